//! The page of alerts: open incidents, silences, rules, and resolved incidents.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::rules::SilenceRequest;
use rondel_core::Timestamp;
use rondel_core::alert::{IncidentState, RuleSpec, Scope, SilenceSpec, Subject, SubjectKind, sentence};
use rondel_core::notice::Severity;
use rondel_core::words::Lang;
use rondel_store::alerts::{IncidentQuery, IncidentRecord, MaintenanceRecord, RuleRecord, SilenceRecord};
use rondel_store::catalog::JobRecord;

use super::form::Fields;
use super::incident_parts::{self, MessageRow, OPEN_INCIDENT_COUNT, RunsInWindow};
use super::maintenance_rows::{WindowForm, WindowRow, window_row};
use super::moment::Moment;
use super::sentences::localized;
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use super::view::visible_text;
use super::zones;
use crate::api::{alert_rules, incidents};
use crate::body::refuse_value;
use crate::cursor::cut_to_page;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::redirect::{own_path, query_pair, redirect_to};

/// Maximum number of open incidents on the page of a job.
const JOB_INCIDENT_COUNT: u32 = 10;
/// Maximum number of resolved incidents on the page.
const RESOLVED_INCIDENT_COUNT: u32 = 25;

pub(super) struct IncidentRow {
    pub(super) id: String,
    pub(super) is_critical: bool,
    pub(super) is_open: bool,
    pub(super) summary: String,
    /// The URL of the page about its subject.
    pub(super) href: Option<String>,
    pub(super) subject: String,
    pub(super) rule: String,
    pub(super) since: Moment,
    pub(super) resolved_at: Option<Moment>,
    pub(super) acknowledged_by: Option<String>,
    /// Whether a silence suppresses its messages.
    pub(super) is_silenced: bool,
    /// The names of its channels, if none of them exists; the incident is then not reported.
    pub(super) missing_channels: Option<String>,
    /// The job, if the incident is about one.
    pub(super) job: Option<String>,
    /// The app, if the incident is about one.
    pub(super) app: Option<String>,
    pub(super) runs: Vec<SampleRow>,
    /// Why the caller may not acknowledge or silence it; `None` if the caller may.
    pub(super) missing_operator_role: Option<&'static str>,
}

/// A run of an incident.
pub(super) struct SampleRow {
    pub(super) id: String,
    pub(super) job: String,
    pub(super) fire_at: Moment,
    pub(super) message: String,
}

struct RuleRow {
    name: String,
    sentence: String,
    channels: String,
    is_critical: bool,
    is_enabled: bool,
    /// When the rule is checked next; `None` if that is within a minute, or if it is checked after runs.
    next_at: Option<Moment>,
}

struct SilenceRow {
    id: String,
    /// The incidents that it covers, in words.
    scope_text: String,
    author: String,
    reason: String,
    ends_at: Moment,
    warnings: Vec<String>,
    /// Why the caller may not end it; `None` if the caller may.
    missing_operator_role: Option<&'static str>,
}

#[derive(Template)]
#[template(path = "alerts.html")]
struct AlertsPage {
    shell: Shell,
    t: &'static Texts,
    /// Why the caller may not create a rule; `None` if the caller may.
    missing_editor_role: Option<&'static str>,
    /// Whether the caller may create silences and maintenance windows for at least one app.
    may_operate: bool,
    /// Whether the forms must name an app, because the caller may not operate the whole namespace.
    needs_app: bool,
    open_incidents: Vec<IncidentRow>,
    /// Whether there are older open incidents, which the page does not show.
    has_more_incidents: bool,
    resolved_incidents: Vec<IncidentRow>,
    rules: Vec<RuleRow>,
    silences: Vec<SilenceRow>,
    /// The maintenance windows, each with the reason why the caller may not end it; `None` if the caller may.
    windows: Vec<(WindowRow, Option<&'static str>)>,
    errors: Vec<String>,
    form: SilenceForm,
    window_form: WindowForm,
    return_url: String,
}

#[derive(Template)]
#[template(path = "alert_incident.html")]
struct IncidentPage {
    shell: Shell,
    t: &'static Texts,
    row: IncidentRow,
    description: String,
    facts: Vec<(&'static str, String)>,
    members: Vec<IncidentRow>,
    messages: Vec<MessageRow>,
    runs_in_window: Option<RunsInWindow>,
    return_url: String,
}

/// Why the caller may not operate the whole namespace or single apps. A role on an app covers its incidents, silences and windows.
struct MissingRoleByApp {
    for_namespace: Option<&'static str>,
    /// The reason for each app, keyed by the app's name; empty if the caller may operate the whole namespace.
    apps: BTreeMap<String, Option<&'static str>>,
}

impl MissingRoleByApp {
    async fn read<Q>(page: &Page<Q>) -> Result<Self, Problem> {
        let missing_role = |app| page.missing_roles(app).operator;
        let for_namespace = missing_role(None);
        let apps = match for_namespace {
            None => Vec::new(),
            Some(_) => page.engine().store().apps(page.call.namespace.id).await?,
        };
        Ok(Self { for_namespace, apps: apps.into_iter().map(|app| (app.name, missing_role(Some(app.id)))).collect() })
    }

    fn for_app(&self, app: Option<&str>) -> Option<&'static str> {
        app.and_then(|app| self.apps.get(app)).copied().unwrap_or(self.for_namespace)
    }

    /// Whether the caller may operate at least one app.
    fn allows_some(&self) -> bool {
        self.for_namespace.is_none() || self.apps.values().any(Option::is_none)
    }
}

/// The form of a silence as the user typed it.
#[derive(Clone, Debug, Default)]
pub(super) struct SilenceForm {
    rule: String,
    job: String,
    app: String,
    until: String,
    reason: String,
}

impl SilenceForm {
    fn from_fields(fields: &Fields) -> Self {
        let text = |field| fields.get(field).to_owned();
        Self { rule: text("rule"), job: text("job"), app: text("app"), until: text("until"), reason: text("reason") }
    }

    fn spec(&self) -> SilenceSpec {
        let non_empty = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        SilenceSpec { rule: non_empty(&self.rule), job: non_empty(&self.job), app: non_empty(&self.app) }
    }

    fn request(&self, length_word: &str, now: Timestamp, t: &Texts) -> Result<SilenceRequest, Problem> {
        let after_hours = |count: u64| now + Duration::from_secs(count * 3600);
        let ends_at = match length_word {
            "1h" => after_hours(1),
            "8h" => after_hours(8),
            "24h" => after_hours(24),
            _ => zones::typed_instant(zones::clock_and_zone().1, &self.until, now)
                .ok_or_else(|| refuse_value("/until", t.alerts_bad_until.to_owned()))?,
        };
        Ok(SilenceRequest { spec: self.spec(), reason: self.reason.clone(), ends_at })
    }
}

/// The forms of the page, filled with input that was refused.
#[derive(Default)]
pub(super) struct AlertForms {
    pub(super) silence: SilenceForm,
    pub(super) window: WindowForm,
}

pub(super) async fn page(page: Page) -> Result<Response, Problem> {
    render_page(&page, StatusCode::OK, (AlertForms::default(), Vec::new())).await
}

pub(super) async fn render_page(
    page: &Page,
    status: StatusCode,
    (forms, errors): (AlertForms, Vec<String>),
) -> Result<Response, Problem> {
    let (now, t) = (page.engine().now(), page.t);
    let silences = incidents::visible_silences(&page.call).await?;
    let windows = crate::api::maintenance::visible_windows(&page.call).await?;
    let visible_app_names = page.call.visible_app_names().await?;
    let query = incident_parts::open_incident_query(&page.call, visible_app_names.as_deref());
    let mut open_records = incident_parts::open_incidents(&page.call, query).await?;
    let has_more_incidents = cut_to_page(&mut open_records, OPEN_INCIDENT_COUNT).is_some();
    open_records.sort_by_key(|record| (record.spec.severity != Severity::Critical, record.incident.started_at));
    let resolved_query = IncidentQuery { is_open: Some(false), limit: RESOLVED_INCIDENT_COUNT, ..query };
    let mut resolved_records = page.engine().store().incidents(resolved_query).await?;
    incidents::conceal_jobs(&page.call, &mut open_records).await?;
    incidents::conceal_jobs(&page.call, &mut resolved_records).await?;
    let channels = incidents::channel_names(&page.call).await?;
    let missing_roles = MissingRoleByApp::read(page).await?;
    let row = |record| incident_row(record, (&silences, &channels, &missing_roles), now, t);
    let rules = alert_rules::visible_rules(&page.call).await?;
    let warnings = incidents::silence_warnings(&page.call, &silences).await?;
    let mut silence_rows = Vec::new();
    for (silence, warnings) in silences.iter().zip(&warnings) {
        let may_operate_all = missing_roles.for_namespace.is_none();
        let app = if may_operate_all { None } else { incidents::silence_app(&page.call, &silence.spec).await? };
        silence_rows.push(silence_row((silence, page.missing_roles(app).operator), warnings, now, t));
    }
    let window =
        |record: &MaintenanceRecord| (window_row(record, now, t), missing_roles.for_app(record.app_name.as_deref()));
    let template = AlertsPage {
        shell: page.shell(Nav::Alerts),
        t,
        missing_editor_role: page.missing_roles(None).editor,
        may_operate: missing_roles.allows_some(),
        needs_app: missing_roles.for_namespace.is_some(),
        open_incidents: open_records.into_iter().map(row).collect(),
        has_more_incidents,
        resolved_incidents: resolved_records.into_iter().map(row).collect(),
        rules: rules.iter().map(|record| rule_row(record, now, t)).collect(),
        silences: silence_rows,
        windows: windows.iter().map(window).collect(),
        errors,
        form: forms.silence,
        window_form: forms.window,
        return_url: "/alerts".to_owned(),
    };
    html(status, &template)
}

fn incident_row(
    record: IncidentRecord,
    (silences, channels, missing_roles): (&[SilenceRecord], &BTreeSet<String>, &MissingRoleByApp),
    now: Timestamp,
    t: &Texts,
) -> IncidentRow {
    let IncidentRecord { incident, spec, .. } = record;
    let (en, zh) = sentence::incident(&spec, &incident);
    let is_silenced =
        silences.iter().any(|silence| silence.ends_at > now && silence.spec.matches(&spec.name, &incident.subject));
    let is_job = incident.subject.kind == SubjectKind::Job;
    let app = (incident.subject.kind == SubjectKind::App).then(|| incident.subject.name.clone());
    let missing_operator_role = missing_roles.for_app(incident.subject.app.as_deref().or(app.as_deref()));
    let missing_channels = incidents::missing_channels(&spec, channels);
    let is_unreported = incident.fired_at.is_none() && incident.group.is_none() && !missing_channels.is_empty();
    let run = |sample: rondel_core::notice::RunSample| SampleRow {
        id: sample.run.to_string(),
        job: sample.job,
        fire_at: Moment::new(sample.fire_at, now, t),
        message: visible_text(&sample.message),
    };
    IncidentRow {
        id: incident.id.to_string(),
        is_critical: spec.severity == Severity::Critical,
        is_open: incident.state == IncidentState::Firing,
        summary: if t.lang() == Lang::En { en } else { zh },
        href: subject_url(&incident.subject),
        rule: spec.name.clone(),
        since: Moment::new(incident.started_at, now, t),
        resolved_at: incident.resolved_at.map(|at| Moment::new(at, now, t)),
        acknowledged_by: incident.acknowledged_by,
        is_silenced,
        missing_channels: (is_unreported && missing_channels.len() == spec.channels.len())
            .then(|| missing_channels.join(t.list_separator)),
        job: is_job.then(|| incident.subject.name.clone()),
        app,
        subject: incident.subject.name,
        runs: incident.samples.into_iter().map(run).collect(),
        missing_operator_role,
    }
}

/// The open incidents about a job, for its page. An incident is hidden if the job belonged, at the time of the incident, to an app that the
/// caller does not see.
pub(super) async fn incident_rows_of_job<Q>(page: &Page<Q>, record: &JobRecord) -> Result<Vec<IncidentRow>, Problem> {
    let now = page.engine().now();
    let visible_app_names = page.call.visible_app_names().await?;
    let query = IncidentQuery {
        namespace: record.namespace,
        is_open: Some(true),
        job: Some(record.id),
        before: None,
        within: visible_app_names.as_deref(),
        limit: JOB_INCIDENT_COUNT,
    };
    let mut incidents = Problem::unless_unreadable(page.engine().store().incidents(query).await)?;
    if incidents.is_empty() {
        return Ok(Vec::new());
    }
    incidents::conceal_jobs(&page.call, &mut incidents).await?;
    let silences = incidents::visible_silences(&page.call).await?;
    let channels = incidents::channel_names(&page.call).await?;
    let missing_roles = MissingRoleByApp::read(page).await?;
    Ok(incidents
        .into_iter()
        .map(|record| incident_row(record, (&silences, &channels, &missing_roles), now, page.t))
        .collect())
}

/// The URL of the page about a subject; `None` for a namespace or a group of incidents.
fn subject_url(subject: &Subject) -> Option<String> {
    let name = &subject.name;
    match subject.kind {
        SubjectKind::Job => Some(format!("/jobs/{name}")),
        SubjectKind::App => Some(format!("/jobs?{}", query_pair("q", &format!("app:{name}")))),
        SubjectKind::Node => Some("/executors".to_owned()),
        SubjectKind::Token => Some("/settings/tokens".to_owned()),
        SubjectKind::Namespace | SubjectKind::Group => None,
    }
}

fn channels_text(spec: &RuleSpec, t: &Texts) -> String {
    if spec.channels.is_empty() { t.alerts_nobody.to_owned() } else { spec.channels.join(t.list_separator) }
}

fn rule_row(record: &RuleRecord, now: Timestamp, t: &Texts) -> RuleRow {
    let RuleSpec { name, channels, severity, enabled, .. } = &record.spec;
    RuleRow {
        name: name.clone(),
        sentence: rule_heading(&record.spec, t.lang()),
        channels: channels.join(t.list_separator),
        is_critical: *severity == Severity::Critical,
        is_enabled: *enabled,
        next_at: record.check_at.filter(|at| *at > now + Duration::from_secs(60)).map(|at| Moment::new(at, now, t)),
    }
}

/// The sentence of a rule. Its first letter is capitalized, unless the sentence begins with the name of a job.
fn rule_heading(spec: &RuleSpec, lang: Lang) -> String {
    let sentence = sentence::rule(spec, lang);
    if matches!(spec.scope, Scope::Job(_)) && !spec.condition.is_about_servers() {
        return sentence;
    }
    let mut characters = sentence.chars();
    characters.next().map_or_else(String::new, |first| format!("{}{}", first.to_uppercase(), characters.as_str()))
}

fn silence_row(
    (silence, missing_operator_role): (&SilenceRecord, Option<&'static str>),
    warnings: &[String],
    now: Timestamp,
    t: &Texts,
) -> SilenceRow {
    let spec = &silence.spec;
    let scope_names = [(t.alerts_rule, &spec.rule), (t.col_job, &spec.job), (t.alerts_app, &spec.app)];
    let conditions = scope_names.iter().filter_map(|(word, name)| name.as_ref().map(|name| format!("{word} {name}")));
    let scope_text = conditions.collect::<Vec<_>>().join(t.list_separator);
    SilenceRow {
        id: silence.id.to_string(),
        scope_text: if scope_text.is_empty() { t.alerts_everything.to_owned() } else { scope_text },
        author: silence.author.clone(),
        reason: silence.reason.clone(),
        ends_at: Moment::new(silence.ends_at, now, t),
        warnings: warnings.iter().map(|warning| localized(t.lang(), warning).into_owned()).collect(),
        missing_operator_role,
    }
}

pub(super) async fn incident(page: Page, Named(id, ..): Named<path::Incident>) -> Result<Response, Problem> {
    let record = incidents::find(&page.call, &id).await?;
    let (now, t) = (page.engine().now(), page.t);
    let silences = incidents::visible_silences(&page.call).await?;
    let channels = incidents::channel_names(&page.call).await?;
    let missing_roles = MissingRoleByApp::read(&page).await?;
    let row = |record| incident_row(record, (&silences, &channels, &missing_roles), now, t);
    let mut members = match record.incident.subject.kind {
        SubjectKind::Group => page.engine().store().incidents_of_group(record.incident.id, OPEN_INCIDENT_COUNT).await?,
        _ => Vec::new(),
    };
    incidents::conceal_jobs(&page.call, &mut members).await?;
    let template = IncidentPage {
        shell: page.shell(Nav::Alerts),
        t,
        description: record.spec.description.clone(),
        facts: incident_facts(&record, now, t),
        return_url: format!("/alerts/incidents/{id}"),
        messages: incident_parts::messages(&page, &record).await?,
        runs_in_window: incident_parts::runs_in_window(&page, &record).await?,
        row: row(record),
        members: members.into_iter().map(row).collect(),
    };
    html(StatusCode::OK, &template)
}

fn incident_facts(record: &IncidentRecord, now: Timestamp, t: &Texts) -> Vec<(&'static str, String)> {
    let incident = &record.incident;
    let instant_text = |at: Timestamp| {
        let moment = Moment::new(at, now, t);
        let date_text = if moment.date.is_empty() { String::new() } else { format!("{} ", moment.date) };
        format!("{date_text}{} · {}", moment.time, moment.relative)
    };
    let acknowledgement = incident.acknowledged_by.as_ref().zip(incident.acknowledged_at);
    let mut facts = vec![
        (t.alerts_since, instant_text(incident.started_at)),
        (t.alerts_seen, instant_text(incident.seen_at)),
        (t.incident_count(incident.subject.kind), incident.count.to_string()),
        (t.alerts_channels, channels_text(&record.spec, t)),
    ];
    facts.extend(incident.resolved_at.map(|resolved_at| (t.alerts_resolved_at, instant_text(resolved_at))));
    facts.extend(incident.fired_at.map(|fired_at| (t.alerts_fired, instant_text(fired_at))));
    facts.extend(incident.escalated_at.map(|escalated_at| (t.alerts_escalated, instant_text(escalated_at))));
    facts.extend(acknowledgement.map(|(user, at)| (t.alerts_acknowledged, format!("{user}, {}", instant_text(at)))));
    facts
}

pub(super) async fn acknowledge(
    page: Page,
    Named(id, ..): Named<path::Incident>,
    fields: Fields,
) -> Result<Response, Problem> {
    let record = incidents::find(&page.call, &id).await?;
    incidents::acknowledge_incident(&page.call, &record).await?;
    Ok(redirect_back(&fields))
}

pub(super) async fn silence(page: Page, fields: Fields) -> Result<Response, Problem> {
    let form = SilenceForm::from_fields(&fields);
    let request = form.request(fields.get("for"), page.engine().now(), page.t);
    let outcome = match request {
        Ok(request) => incidents::create_silence(&page.call, request).await.map(|_| ()),
        Err(problem) => {
            let app = incidents::silence_app(&page.call, &form.spec()).await?.filter(|app| page.call.may_view(*app));
            page.call.check(app, crate::call::forbidden_problem).and(Err(problem))
        }
    };
    match outcome {
        Ok(()) => Ok(redirect_back(&fields)),
        Err(problem) if matches!(problem.code(), Code::InvalidBody | Code::TooManyAlerts) => {
            let errors = super::calendar_form::error_lines(&problem, page.t.lang());
            let forms = AlertForms { silence: form, ..AlertForms::default() };
            render_page(&page, StatusCode::UNPROCESSABLE_ENTITY, (forms, errors)).await
        }
        Err(problem) => Err(problem),
    }
}

pub(super) async fn end_silence(
    page: Page,
    Named(id, ..): Named<path::Silence>,
    fields: Fields,
) -> Result<Response, Problem> {
    incidents::end_silence_by_id(&page.call, &id).await?;
    Ok(redirect_back(&fields))
}

pub(super) fn redirect_back(fields: &Fields) -> Response {
    redirect_to(own_path(fields.get("back")).unwrap_or("/alerts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subject_of_an_incident_is_a_link_to_its_page() {
        let of = |kind| subject_url(&Subject { kind, id: 1, name: "orders".to_owned(), app: None });
        assert_eq!(of(SubjectKind::Job).as_deref(), Some("/jobs/orders"));
        assert_eq!(of(SubjectKind::App).as_deref(), Some("/jobs?q=app%3Aorders"));
        assert_eq!(of(SubjectKind::Group), None);
    }
}
