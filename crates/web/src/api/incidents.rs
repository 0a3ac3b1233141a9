//! Incidents of alert rules: lists and acknowledges them. Also silences, which suppress their messages.

use std::collections::BTreeSet;

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use rondel_admin::rules::{self, SilenceRequest};
use rondel_core::access::Permission::{Operate, View};
use rondel_core::alert::{Incident, IncidentState, RuleSpec, SilenceSpec, sentence};
use rondel_core::notice::{NoticeKind, RunSample, Severity};
use rondel_core::{AppId, IncidentId, MessageId, RunId, SilenceId, Timestamp, name};
use rondel_store::alerts::{IncidentQuery, IncidentRecord, SilenceRecord};
use rondel_store::channels::{INCIDENT_MESSAGE_COUNT_MAX, IncidentMessage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::alert_rules::{SubjectJson, hidden_rule_names};
use super::jobs;
use super::page::{LIMIT_DEFAULT, LIMIT_MAX, Page};
use crate::answer::json_response;
use crate::body::JsonBody;
use crate::call::{Call, quoted_input};
use crate::cursor::{Listing, cut_to_page};
use crate::named_jobs;
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::read_again::read_again;
use crate::routes::Routes;

/// The query parameters for the list of incidents.
#[derive(Debug)]
pub(super) struct IncidentsQuery {
    is_open: Option<bool>,
    job: Option<String>,
    limit: u32,
    cursor: Option<String>,
}

impl FromQuery for IncidentsQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let is_open = |text: &str| match text {
            "firing" => Ok(true),
            "resolved" => Ok(false),
            _ => Err(format!("{} is neither firing nor resolved", quoted_input(text))),
        };
        Self {
            is_open: reader.parsed(
                Parameter::word("standing", &["firing", "resolved"])
                    .about("Only incidents in this state; all if left out."),
                is_open,
            ),
            job: reader.single(Parameter::name("job").about("Only incidents about this job.")),
            limit: reader.limit(LIMIT_DEFAULT, LIMIT_MAX),
            cursor: reader.single(Parameter::cursor()),
        }
    }
}

/// An incident.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Incident")]
pub(super) struct IncidentJson {
    id: IncidentId,
    rule: String,
    /// The kind of the rule's condition.
    condition: &'static str,
    severity: Severity,
    subject: SubjectJson,
    standing: IncidentState,
    /// What happened, as a sentence.
    summary: String,
    started_at: Timestamp,
    seen_at: Timestamp,
    resolved_at: Option<Timestamp>,
    /// How many occurrences it has; for a group, the number of its subjects.
    count: u64,
    /// The channels of its rule; empty if the incident is shown only in the console.
    channels: Vec<String>,
    /// Channels of the rule that do not exist: no message is sent there.
    missing_channels: Vec<String>,
    /// When it was first reported; null while a silence suppresses that, or if none of its channels exists.
    fired_at: Option<Timestamp>,
    reported_at: Option<Timestamp>,
    escalated_at: Option<Timestamp>,
    acknowledged_by: Option<String>,
    acknowledged_at: Option<Timestamp>,
    /// The incident that reports it together with others.
    group: Option<IncidentId>,
    samples: Vec<SampleJson>,
    /// The messages about it, the latest first; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<Vec<MessageJson>>,
}

/// A message about an incident.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "IncidentMessage")]
struct MessageJson {
    id: MessageId,
    channel: String,
    kind: NoticeKind,
    /// `waiting` for its first or next try, `sent` or `given_up`.
    #[schemars(extend("enum" = ["waiting", "sent", "given_up"]))]
    state: String,
    try_count: i32,
    created_at: Timestamp,
    /// When it is tried next, or was tried last.
    at: Timestamp,
    /// Why the last try failed.
    error: Option<String>,
}

/// A run of an incident.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "IncidentRun")]
struct SampleJson {
    run: RunId,
    job: String,
    fire_at: Timestamp,
    message: String,
}

/// A silence to create.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewSilence")]
pub(super) struct NewSilence {
    /// Incidents of this rule.
    #[serde(default)]
    rule: Option<String>,
    /// Incidents about this job.
    #[serde(default)]
    job: Option<String>,
    /// Incidents about this app and its jobs.
    #[serde(default)]
    app: Option<String>,
    /// Its end, at most 90 days ahead.
    ends_at: Timestamp,
    /// Why.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    reason: String,
}

/// A silence.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Silence")]
pub(super) struct SilenceJson {
    id: SilenceId,
    rule: Option<String>,
    job: Option<String>,
    app: Option<String>,
    author: String,
    reason: String,
    created_at: Timestamp,
    ends_at: Timestamp,
    /// Warnings about a valid request, such as that the job does not exist.
    warnings: Vec<String>,
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/incidents",
            View,
            list,
            Doc::new("List incidents", "The newest first.")
                .json::<Page<IncidentJson>>(200, "A page of incidents.")
                .refuses(&[Code::JobNotFound]),
        )
        .get(
            "/api/v1/incidents/{id}",
            View,
            get,
            Doc::new("Get an incident", "The incident with its messages and some of its runs.")
                .json::<IncidentJson>(200, "The incident."),
        )
        .post(
            "/api/v1/incidents/{id}/acknowledge",
            Operate,
            acknowledge,
            Doc::new(
                "Acknowledge an incident",
                "The incident is not reported again and does not escalate; its end is still reported.",
            )
            .json::<IncidentJson>(200, "The incident."),
        )
        .get(
            "/api/v1/silences",
            View,
            list_silences,
            Doc::new("List silences", "Silences that have not ended, in the order of their ends.")
                .json::<Page<SilenceJson>>(200, "The silences."),
        )
        .post(
            "/api/v1/silences",
            Operate,
            add_silence,
            Doc::new(
                "Add a silence",
                "Suppresses messages that match all given conditions, until its end; without a condition, all messages of the namespace.",
            )
            .json::<SilenceJson>(201, "The silence.")
            .refuses(&[Code::TooManyAlerts])
            .example(json!({"job": "nightly-close", "ends_at": "2026-12-24T18:00:00Z", "reason": "stocktaking"})),
        )
        .delete(
            "/api/v1/silences/{id}",
            Operate,
            end_silence,
            Doc::new("End a silence", "The messages of incidents that are still open are sent.").empty("It has ended."),
        )
}

async fn list(call: Call<IncidentsQuery>) -> Result<Response, Problem> {
    let IncidentsQuery { is_open, job, limit, cursor } = &call.query;
    let listing = Listing::new("incidents", (call.namespace.id, is_open, job));
    let before_id = cursor.as_deref().map(|cursor| listing.position::<IncidentId>(cursor)).transpose()?;
    let store = call.engine().store();
    let job = match job {
        Some(job_name) => Some(jobs::find(&call, job_name).await?.id),
        None => None,
    };
    let visible_app_names = call.visible_app_names().await?;
    let query = IncidentQuery {
        namespace: call.namespace.id,
        is_open: *is_open,
        job,
        before: before_id,
        within: visible_app_names.as_deref(),
        limit: limit + 1,
    };
    let mut records = store.incidents(query).await?;
    let next_cursor = cut_to_page(&mut records, *limit).map(|last| listing.cursor(last.incident.id));
    conceal_jobs(&call, &mut records).await?;
    let channels = channel_names(&call).await?;
    let items = records.into_iter().map(|record| incident_json(record, &channels)).collect();
    json_response(StatusCode::OK, &Page { items, next_cursor })
}

/// Conceals the names of jobs that the caller may not see, in the samples of these incidents.
pub(crate) async fn conceal_jobs<Q>(call: &Call<Q>, records: &mut [IncidentRecord]) -> Result<(), Problem> {
    let samples = records.iter_mut().flat_map(|record| &mut record.incident.samples);
    named_jobs::conceal_names(call, samples.map(|sample| &mut sample.message).collect()).await
}

async fn get(call: Call, Named(id, ..): Named<path::Incident>) -> Result<Response, Problem> {
    let record = find(&call, &id).await?;
    let messages = call.engine().store().incident_messages(record.incident.id, INCIDENT_MESSAGE_COUNT_MAX).await?;
    let body = IncidentJson {
        messages: Some(messages.into_iter().map(message_json).collect()),
        ..incident_json(record, &channel_names(&call).await?)
    };
    json_response(StatusCode::OK, &body)
}

pub(crate) async fn channel_names<Q>(call: &Call<Q>) -> Result<BTreeSet<String>, Problem> {
    let channels = call.engine().store().channels(call.namespace.id).await?;
    Ok(channels.into_iter().map(|channel| channel.name).collect())
}

/// The channels of an incident's rule that do not exist.
pub(crate) fn missing_channels(spec: &RuleSpec, channels: &BTreeSet<String>) -> Vec<String> {
    spec.channels.iter().filter(|name| !channels.contains(*name)).cloned().collect()
}

fn message_json(message: IncidentMessage) -> MessageJson {
    let IncidentMessage { id, channel, kind, state, try_count, created_at, at, error } = message;
    MessageJson { id, channel, kind, state, try_count, created_at, at, error }
}

async fn acknowledge(call: Call, Named(id, ..): Named<path::Incident>) -> Result<Response, Problem> {
    let record = find(&call, &id).await?;
    let incident = acknowledge_incident(&call, &record).await?;
    let mut record = IncidentRecord { incident, ..record };
    conceal_jobs(&call, std::slice::from_mut(&mut record)).await?;
    json_response(StatusCode::OK, &incident_json(record, &channel_names(&call).await?))
}

/// Acknowledges an incident and records it in the audit log.
pub(crate) async fn acknowledge_incident<Q>(call: &Call<Q>, record: &IncidentRecord) -> Result<Incident, Problem> {
    call.note.before(&audited_incident(&record.incident));
    let id = record.incident.id;
    let incident = rules::acknowledge(call.engine(), call.namespace.id, id, call.caller.name()).await?;
    call.note.changed_to(&audited_incident(&incident));
    Ok(incident)
}

fn audited_incident(incident: &Incident) -> serde_json::Value {
    json!({"acknowledged_by": incident.acknowledged_by, "standing": incident.state})
}

/// The incident with this id, if the caller may see it and has the route's permission on it.
pub(crate) async fn find<Q>(call: &Call<Q>, id_text: &str) -> Result<IncidentRecord, Problem> {
    let not_found = || Problem::new(Code::IncidentNotFound, format!("there is no incident {}", quoted_input(id_text)));
    let id = id_text.parse::<IncidentId>().map_err(|_| not_found())?;
    let mut record = call.engine().store().incident(call.namespace.id, id).await?.ok_or_else(not_found)?;
    let subject = &record.incident.subject;
    let own_app = (subject.kind == rondel_core::alert::SubjectKind::App).then_some(&subject.name);
    let app = match subject.app.as_ref().or(own_app) {
        Some(app) => call.engine().store().app(call.namespace.id, app).await?.map(|app| app.id),
        None => None,
    };
    if app.is_none() && call.visible_apps().is_some() {
        return Err(not_found());
    }
    call.check(app, not_found)?;
    conceal_jobs(call, std::slice::from_mut(&mut record)).await?;
    Ok(record)
}

fn incident_json(record: IncidentRecord, existing_channels: &BTreeSet<String>) -> IncidentJson {
    let IncidentRecord { incident, spec, .. } = record;
    let (summary, _) = sentence::incident(&spec, &incident);
    let sample = |sample: RunSample| SampleJson {
        run: sample.run,
        job: sample.job,
        fire_at: sample.fire_at,
        message: sample.message,
    };
    IncidentJson {
        id: incident.id,
        condition: spec.condition.word(),
        severity: spec.severity,
        missing_channels: missing_channels(&spec, existing_channels),
        channels: spec.channels,
        rule: spec.name,
        subject: SubjectJson { kind: incident.subject.kind, name: incident.subject.name, app: incident.subject.app },
        standing: incident.state,
        summary,
        started_at: incident.started_at,
        seen_at: incident.seen_at,
        resolved_at: incident.resolved_at,
        count: incident.count,
        fired_at: incident.fired_at,
        reported_at: incident.reported_at,
        escalated_at: incident.escalated_at,
        acknowledged_by: incident.acknowledged_by,
        acknowledged_at: incident.acknowledged_at,
        group: incident.group,
        samples: incident.samples.into_iter().map(sample).collect(),
        messages: None,
    }
}

async fn list_silences(call: Call) -> Result<Response, Problem> {
    let silences = visible_silences(&call).await?;
    let warnings = silence_warnings(&call, &silences).await?;
    let items = silences.into_iter().zip(warnings).map(silence_json).collect();
    json_response(StatusCode::OK, &Page { items, next_cursor: None })
}

/// The silences that the caller may see. A caller who may see only some apps does not see silences of other apps, nor those of a rule about
/// other apps.
pub(crate) async fn visible_silences<Q>(call: &Call<Q>) -> Result<Vec<SilenceRecord>, Problem> {
    let hidden_rules = hidden_rule_names(call).await?;
    let mut visible_silences = Vec::new();
    for silence in call.engine().store().silences(call.namespace.id, call.engine().now()).await? {
        let is_visible = match (&silence.spec.job, &silence.spec.app) {
            (Some(job), _) => call.may_view_job(job).await?,
            (None, Some(app)) => !call.hidden_apps([app.clone()].into()).await?.contains(app),
            (None, None) => !silence.spec.rule.as_ref().is_some_and(|rule| hidden_rules.contains(rule)),
        };
        if is_visible {
            visible_silences.push(silence);
        }
    }
    Ok(visible_silences)
}

async fn add_silence(call: Call, body: JsonBody<NewSilence>) -> Result<Response, Problem> {
    let new_silence = body.read()?;
    let spec = SilenceSpec { rule: new_silence.rule, job: new_silence.job, app: new_silence.app };
    let silence =
        create_silence(&call, SilenceRequest { spec, reason: new_silence.reason, ends_at: new_silence.ends_at })
            .await?;
    let warnings = read_again(|| Box::pin(silence_warnings(&call, std::slice::from_ref(&silence)))).await?;
    json_response(StatusCode::CREATED, &silence_json((silence, warnings.concat())))
}

/// The warnings for the authors of these silences, one list per silence. A hidden rule gets the same warning as a rule that does not exist.
pub(crate) async fn silence_warnings<Q>(
    call: &Call<Q>,
    silences: &[SilenceRecord],
) -> Result<Vec<Vec<String>>, Problem> {
    let specs: Vec<SilenceSpec> = silences.iter().map(|silence| silence.spec.clone()).collect();
    let hidden_rules = hidden_rule_names(call).await?;
    Ok(rules::silence_warnings(call.engine(), call.namespace.id, &specs, &hidden_rules).await?)
}

/// Adds a silence if the caller's roles allow it, and records it in the audit log.
pub(crate) async fn create_silence<Q>(call: &Call<Q>, mut request: SilenceRequest) -> Result<SilenceRecord, Problem> {
    // A hidden job or app is refused in the same words as one that does not exist.
    let app = silence_app(call, &request.spec).await?.filter(|app| call.may_view(*app));
    call.check(app, crate::call::forbidden_problem)?;
    // A role for one app covers a job only as long as the job belongs to that app: a job of another app can have its name later.
    if let (Some(app), Some(job)) = (app, &request.spec.job)
        && !call.caller.rights.allow(Operate, call.namespace.id, None)
    {
        let record = call.engine().store().job(call.namespace.id, job).await?.filter(|record| record.app == app);
        let own_app = record.ok_or_else(crate::call::forbidden_problem)?.spec.app;
        if request.spec.app.as_ref().is_some_and(|given_app| *given_app != own_app) {
            return Err(crate::call::forbidden_problem());
        }
        request.spec.app = Some(own_app);
    }
    let silence = rules::add_silence(call.engine(), call.namespace.id, request, call.caller.name()).await?;
    call.note.set_object(silence.id.to_string());
    call.note.changed_to(&audited_silence(&silence));
    Ok(silence)
}

/// The app that a silence is limited to; `None` for the whole namespace, and for a job or app that does not exist.
pub(crate) async fn silence_app<Q>(call: &Call<Q>, spec: &SilenceSpec) -> Result<Option<AppId>, Problem> {
    let store = call.engine().store();
    Ok(match (&spec.job, &spec.app) {
        (Some(job), _) if name::check(job).is_ok() => store.job(call.namespace.id, job).await?.map(|job| job.app),
        (None, Some(app)) if name::check(app).is_ok() => store.app(call.namespace.id, app).await?.map(|app| app.id),
        _ => None,
    })
}

async fn end_silence(call: Call, Named(id, ..): Named<path::Silence>) -> Result<Response, Problem> {
    end_silence_by_id(&call, &id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Ends a silence if the caller's roles allow it, and records it in the audit log.
pub(crate) async fn end_silence_by_id<Q>(call: &Call<Q>, id_text: &str) -> Result<(), Problem> {
    let not_found = || {
        Problem::new(Code::SilenceNotFound, format!("there is no silence {} that has not ended", quoted_input(id_text)))
    };
    let id = id_text.parse::<SilenceId>().map_err(|_| not_found())?;
    let silence = visible_silences(call).await?.into_iter().find(|silence| silence.id == id).ok_or_else(not_found)?;
    call.check(silence_app(call, &silence.spec).await?, not_found)?;
    call.note.before(&audited_silence(&silence));
    Ok(rules::end_silence(call.engine(), call.namespace.id, id).await?)
}

fn audited_silence(silence: &SilenceRecord) -> serde_json::Value {
    json!({
        "rule": silence.spec.rule, "job": silence.spec.job, "app": silence.spec.app, "ends_at": silence.ends_at,
        "reason": silence.reason,
    })
}

fn silence_json((silence, warnings): (SilenceRecord, Vec<String>)) -> SilenceJson {
    let SilenceRecord { id, spec, author, reason, created_at, ends_at, .. } = silence;
    SilenceJson { id, rule: spec.rule, job: spec.job, app: spec.app, author, reason, created_at, ends_at, warnings }
}
