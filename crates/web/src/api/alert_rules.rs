//! Alert rules: lists, saves, deletes and tries them.

use std::collections::BTreeSet;

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use http::header::ETAG;
use rondel_admin::rules::{self, DryRun, ResolvedDeadline, RuleError, SavedRule};
use rondel_core::access::Permission::{Edit, View};
use rondel_core::alert::{RuleSpec, Scope, SubjectKind, sentence};
use rondel_core::words::Lang;
use rondel_core::{Timestamp, name};
use rondel_store::alerts::RuleRecord;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::page::Page;
use crate::answer::json_response;
use crate::body::{JsonBody, parse, read_document, refuse_value};
use crate::call::{Call, forbidden_problem, quoted_input};
use crate::etag::{IfMatch, mismatch_problem, version_tag};
use crate::openapi::{Doc, Unnamed};
use crate::path::{self, Named};
use crate::problem::{Code, Complaint, Problem};
use crate::routes::Routes;

/// A rule as it is saved.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SavedAlertRule")]
pub(super) struct RuleJson<'a> {
    #[serde(flatten)]
    spec: &'a RuleSpec,
    namespace: &'a str,
    version: i64,
    /// The rule as a sentence.
    sentence: String,
    author: &'a str,
    created_at: Timestamp,
    updated_at: Timestamp,
    /// When the rule is checked next; null if it is checked after runs.
    check_at: Option<Timestamp>,
    /// Warnings about a valid rule, such as that the job that it watches does not exist.
    warnings: Vec<String>,
}

/// What an incident is about.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "AlertSubject")]
pub(crate) struct SubjectJson {
    pub(crate) kind: SubjectKind,
    pub(crate) name: String,
    /// The app, for a job.
    pub(crate) app: Option<String>,
}

/// The result of an evaluation of a rule.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AlertPreview")]
pub(super) struct PreviewJson {
    /// The rule as a sentence.
    sentence: String,
    /// Whether the condition holds for any subject now.
    would_fire: bool,
    /// The number of checked subjects for which the condition holds.
    count: u64,
    /// The first of these subjects.
    subjects: Vec<SubjectJson>,
    /// How many jobs were checked, if not all were.
    looked_at: Option<u64>,
    /// The instant for which the rule was evaluated.
    evaluated_at: Timestamp,
    /// The deadline of a rule with a time of day; null for other rules.
    deadline: Option<DeadlineJson>,
    /// Reasons why nothing can be observed, such as a job that does not exist.
    warnings: Vec<String>,
}

/// The deadline of a rule with a time of day, computed for an instant.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AlertDeadline")]
struct DeadlineJson {
    /// The zone of the time of day.
    zone: String,
    /// Only runs planned from this instant on count as a success.
    counts_from: Timestamp,
    /// The next deadline; null if there is none.
    next: Option<Timestamp>,
}

pub(super) fn routes() -> Routes {
    let example = json!({
        "scope": {"job": "nightly-close"}, "severity": "critical", "channels": ["slack-oncall"],
        "condition": {"not_succeeded_by": {"time": "06:00", "zone": "Europe/Berlin"}},
    });
    Routes::new()
        .get(
            "/api/v1/alert-rules",
            View,
            list,
            Doc::new("List alert rules", "All rules of the namespace, by name.")
                .json::<Page<RuleJson<'static>>>(200, "The rules."),
        )
        .get(
            "/api/v1/alert-rules/{name}",
            View,
            get,
            Doc::new("Get an alert rule", "The rule with its version.")
                .json::<RuleJson<'static>>(200, "The rule.")
                .with("ETag"),
        )
        .put(
            "/api/v1/alert-rules/{name}",
            Edit,
            put,
            Doc::new("Save an alert rule", "Creates the rule, or replaces it. Its channels must exist.")
                .json::<RuleJson<'static>>(200, "The changed rule.")
                .with("ETag")
                .json::<RuleJson<'static>>(201, "The new rule.")
                .with("ETag")
                .refuses(&[Code::TooManyAlerts])
                .example(example.clone()),
        )
        .delete(
            "/api/v1/alert-rules/{name}",
            Edit,
            delete,
            Doc::new("Delete an alert rule", "Its open incidents are resolved without a message.")
                .empty("It was deleted."),
        )
        .post(
            "/api/v1/alert-rules/preview",
            View,
            preview,
            Doc::new("Preview an alert rule", "Evaluates the rule now. Nothing is saved and nothing is sent.")
                .json::<PreviewJson>(200, "The result.")
                .example({
                    let mut named_example = example;
                    named_example["name"] = json!("close-by-six");
                    named_example
                }),
        )
}

async fn list(call: Call) -> Result<Response, Problem> {
    let records = visible_rules(&call).await?;
    let mut items = Vec::with_capacity(records.len());
    for record in &records {
        items.push(rule_json(&call, record).await?);
    }
    json_response(StatusCode::OK, &Page { items, next_cursor: None })
}

/// The rules that the caller may see. A caller who may see only some apps does not see rules about other apps.
pub(crate) async fn visible_rules<Q>(call: &Call<Q>) -> Result<Vec<RuleRecord>, Problem> {
    let mut visible_rules = Vec::new();
    for record in call.engine().store().alert_rules(call.namespace.id).await? {
        if is_visible(call, &record.spec.scope).await? {
            visible_rules.push(record);
        }
    }
    Ok(visible_rules)
}

/// The names of the rules that the caller may not see.
pub(crate) async fn hidden_rule_names<Q>(call: &Call<Q>) -> Result<BTreeSet<String>, Problem> {
    let mut hidden_names = BTreeSet::new();
    if call.visible_apps().is_some() {
        for record in call.engine().store().alert_rules(call.namespace.id).await? {
            if !is_visible(call, &record.spec.scope).await? {
                hidden_names.insert(record.spec.name);
            }
        }
    }
    Ok(hidden_names)
}

async fn is_visible<Q>(call: &Call<Q>, scope: &Scope) -> Result<bool, Problem> {
    Ok(match scope {
        Scope::Job(job) => call.may_view_job(job).await?,
        Scope::App(app) => !call.hidden_apps([app.clone()].into()).await?.contains(app),
        Scope::All | Scope::Label(_) => true,
    })
}

async fn get(call: Call, Named(name, ..): Named<path::AlertRule>) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    rule_response(&call, StatusCode::OK, &record).await
}

async fn put(
    call: Call,
    Named(name, ..): Named<path::AlertRule>,
    if_match: IfMatch,
    body: JsonBody<Unnamed<RuleSpec>>,
) -> Result<Response, Problem> {
    let mut document = parse(&body.bytes)?;
    if let Value::Object(fields) = &mut document.value {
        fields.entry("name").or_insert_with(|| Value::from(name.as_str()));
    }
    let spec: RuleSpec = read_document(document)?;
    if spec.name != name {
        return Err(refuse_value(
            "/name",
            format!("{} is not the name in the path: it stays", quoted_input(&spec.name)),
        ));
    }
    call.check(None, forbidden_problem)?;
    let rules = call.engine().store().alert_rules(call.namespace.id).await?;
    let existing_rule = rules.into_iter().find(|record| record.spec.name == name);
    let expected_version = match &existing_rule {
        Some(record) => if_match.expected_version(record.version)?,
        None if if_match.is_given() => return Err(mismatch_problem(0)),
        None => None,
    };
    if let Some(record) = &existing_rule {
        call.note.before(&record.spec);
    }
    let SavedRule { record, is_new, .. } =
        rules::save_rule(call.engine(), call.namespace.id, (&spec, expected_version), call.caller.name()).await?;
    call.note.changed_to(&record.spec);
    rule_response(&call, if is_new { StatusCode::CREATED } else { StatusCode::OK }, &record).await
}

async fn delete(call: Call, Named(name, ..): Named<path::AlertRule>, if_match: IfMatch) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    let expected_version = if_match.expected_version(record.version)?;
    call.note.before(&record.spec);
    rules::delete_rule(call.engine(), call.namespace.id, &name, expected_version).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn preview(call: Call, body: JsonBody<RuleSpec>) -> Result<Response, Problem> {
    let spec = body.read()?;
    let DryRun { subjects, count, looked_at, at, deadline, warnings } = try_rule(&call, &spec).await?;
    let subjects_json =
        subjects.into_iter().map(|subject| SubjectJson { kind: subject.kind, name: subject.name, app: subject.app });
    let body = PreviewJson {
        sentence: sentence::rule(&spec, Lang::En),
        would_fire: count > 0,
        count,
        subjects: subjects_json.collect(),
        looked_at,
        evaluated_at: at,
        deadline: deadline.map(|ResolvedDeadline { zone, counts_from, next }| DeadlineJson { zone, counts_from, next }),
        warnings,
    };
    json_response(StatusCode::OK, &body)
}

/// Evaluates a rule as of now without saving it. The caller must see the whole namespace.
pub(crate) async fn try_rule<Q>(call: &Call<Q>, spec: &RuleSpec) -> Result<DryRun, Problem> {
    if call.visible_apps().is_some() {
        return Err(forbidden_problem());
    }
    let namespace = (call.namespace.id, call.namespace.name.as_str());
    Ok(rules::dry_run(call.engine(), namespace, spec).await?)
}

/// The rule with this name, if the caller may see it.
pub(crate) async fn find<Q>(call: &Call<Q>, name: &str) -> Result<RuleRecord, Problem> {
    let not_found = || {
        let detail = format!("there is no alert rule {} in namespace {}", quoted_input(name), call.namespace.name);
        Problem::new(Code::AlertRuleNotFound, detail)
    };
    if name::check(name).is_err() {
        return Err(not_found());
    }
    let record =
        visible_rules(call).await?.into_iter().find(|record| record.spec.name == name).ok_or_else(not_found)?;
    call.check(None, not_found)?;
    Ok(record)
}

async fn rule_json<'a, Q: Sync>(call: &'a Call<Q>, record: &'a RuleRecord) -> Result<RuleJson<'a>, Problem> {
    Ok(RuleJson {
        warnings: rules::rule_warnings(call.engine(), call.namespace.id, &record.spec).await?,
        spec: &record.spec,
        namespace: &call.namespace.name,
        version: record.version,
        sentence: sentence::rule(&record.spec, Lang::En),
        author: &record.author,
        created_at: record.created_at,
        updated_at: record.updated_at,
        check_at: record.check_at,
    })
}

async fn rule_response<Q: Sync>(call: &Call<Q>, status: StatusCode, record: &RuleRecord) -> Result<Response, Problem> {
    let mut response = json_response(status, &rule_json(call, record).await?)?;
    response.headers_mut().insert(ETAG, version_tag(record.version));
    Ok(response)
}

impl From<RuleError> for Problem {
    fn from(error: RuleError) -> Self {
        match error {
            RuleError::Invalid(errors) => {
                Self::of_complaints(Code::InvalidBody, errors.into_iter().map(Complaint::from).collect())
            }
            RuleError::Conflict { version } => mismatch_problem(version),
            error @ (RuleError::TooMany { .. } | RuleError::TooManyInAll { .. }) => {
                Self::new(Code::TooManyAlerts, error.to_string())
            }
            RuleError::NotFound("incident") => Self::new(Code::IncidentNotFound, "there is no such incident"),
            error @ RuleError::NotFound("maintenance window") => {
                Self::new(Code::MaintenanceNotFound, error.to_string())
            }
            RuleError::NotFound("rule") => Self::new(Code::AlertRuleNotFound, "the rule was deleted meanwhile"),
            error @ RuleError::NotFound(_) => Self::new(Code::SilenceNotFound, error.to_string()),
            RuleError::Store(error) => error.into(),
        }
    }
}
