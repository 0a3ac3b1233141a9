//! The form of an alert rule: shows, tries and saves the rule.

use std::str::FromStr;

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::rules;
use rondel_core::alert::{Condition, Escalation, RuleSpec, Scope, disk};
use rondel_core::calendar::Weekday;
use rondel_core::notice::Severity;
use rondel_core::time::{format_duration, parse_duration};
use rondel_store::alerts::RuleRecord;
use rondel_store::catalog::JobQuery;

use super::form::{Fields, with_line_feeds};
use super::rule_errors::RuleErrors;
use super::rule_trial::{RuleTrial, localized_all};
use super::shell::{MissingRoles, Nav, Page, Shell, html};
use super::texts::Texts;
use crate::api::alert_rules::{find, try_rule};
use crate::body::refuse_value;
use crate::call::forbidden_problem;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::redirect::redirect_to;

/// How many jobs, and how many calendars, the form offers for selection.
const SUGGESTION_COUNT: u32 = 200;

/// The query parameters of the form for a new rule. `job` preselects that job as the scope.
#[derive(Debug)]
pub(crate) struct NewRule {
    job: Option<String>,
}

impl FromQuery for NewRule {
    fn from_query(reader: &mut Reader) -> Self {
        Self { job: reader.single("job") }
    }
}

/// The fields of the form as the user typed them.
#[derive(Clone, Debug, Default)]
struct RuleForm {
    name: String,
    description: String,
    scope: String,
    scope_name: String,
    condition: String,
    count: String,
    percent: String,
    window: String,
    min_runs: String,
    reasons: String,
    length: String,
    time: String,
    zone: String,
    weekdays: Vec<String>,
    calendar: String,
    times_p95: String,
    handler: String,
    free: String,
    runs: String,
    severity: String,
    channels: Vec<String>,
    repeat: String,
    digest: String,
    group_over: String,
    escalate_to: String,
    escalate_after: String,
    is_enabled: bool,
}

#[derive(Template)]
#[template(path = "alert_rule.html")]
struct RulePage {
    shell: Shell,
    t: &'static Texts,
    form: RuleForm,
    errors: RuleErrors,
    warnings: Vec<String>,
    trial: Option<RuleTrial>,
    /// The version on which the next save will be based; `None` for a new rule.
    version: Option<i64>,
    /// Whether another caller has saved the rule since the form was loaded.
    is_conflict: bool,
    action: String,
    jobs: Vec<String>,
    apps: Vec<String>,
    labels: Vec<String>,
    calendars: Vec<String>,
    channels: Vec<String>,
    conditions: Vec<(&'static str, &'static str)>,
    missing_roles: MissingRoles,
}

impl RuleForm {
    fn new(job: Option<&str>) -> Self {
        let text = str::to_owned;
        Self {
            scope: text(if job.is_some() { "job" } else { "all" }),
            scope_name: job.unwrap_or_default().to_owned(),
            condition: text("failed"),
            count: text("3"),
            percent: text("20"),
            window: text("1h"),
            min_runs: text("10"),
            length: text("1h"),
            time: text("06:00"),
            zone: super::zones::clock_and_zone().1.name().to_owned(),
            times_p95: text("3"),
            free: text("10%"),
            runs: text("1000000"),
            severity: text("warning"),
            digest: text("15m"),
            group_over: text("5"),
            is_enabled: true,
            ..Self::default()
        }
    }

    fn from_spec(spec: &RuleSpec) -> Self {
        let length = |length: Option<std::time::Duration>| length.map(format_duration).unwrap_or_default();
        let (scope, scope_name) = match &spec.scope {
            Scope::All => ("all", String::new()),
            Scope::App(name) => ("app", name.clone()),
            Scope::Label(name) => ("label", name.clone()),
            Scope::Job(name) => ("job", name.clone()),
        };
        let mut form = Self {
            name: spec.name.clone(),
            description: spec.description.clone(),
            scope: scope.to_owned(),
            scope_name,
            condition: spec.condition.word().to_owned(),
            severity: spec.severity.as_str().to_owned(),
            channels: spec.channels.clone(),
            repeat: length(spec.repeat),
            digest: format_duration(spec.digest),
            group_over: spec.group_over.to_string(),
            escalate_to: spec.escalate.as_ref().map(|escalation| escalation.channel.clone()).unwrap_or_default(),
            escalate_after: length(spec.escalate.as_ref().map(|escalation| escalation.after)),
            is_enabled: spec.enabled,
            ..Self::new(None)
        };
        form.set_condition(&spec.condition);
        form
    }

    fn set_condition(&mut self, condition: &Condition) {
        match condition {
            Condition::Failed {} | Condition::NodeLost {} => {}
            Condition::FailuresInRow { count } => self.count = count.to_string(),
            Condition::FailureRate { percent, window, min_runs } => {
                (self.percent, self.min_runs) = (percent.to_string(), min_runs.to_string());
                self.window = format_duration(*window);
            }
            Condition::Skipped { reasons } => {
                self.reasons = reasons.iter().map(|reason| reason.as_str()).collect::<Vec<_>>().join(", ");
            }
            Condition::NotSucceededBy { time, zone, weekdays, calendar } => {
                (self.time, self.zone) = (time.clone(), zone.clone());
                self.weekdays = weekdays.iter().map(|day| day.as_str().to_owned()).collect();
                self.calendar = calendar.clone().unwrap_or_default();
            }
            Condition::RunningLonger { than, times_p95 } => {
                self.length = than.map(format_duration).unwrap_or_default();
                self.times_p95 = times_p95.map(|times| times.to_string()).unwrap_or_default();
            }
            Condition::NoExecutor { handler } => self.handler = handler.clone().unwrap_or_default(),
            Condition::DiskLow { free_percent, free } => self.free = disk::format(*free_percent, *free),
            Condition::LedgerGrowth { runs, window } => {
                (self.runs, self.window) = (runs.to_string(), format_duration(*window));
            }
            Condition::Late { by: length }
            | Condition::NoSuccessFor { length }
            | Condition::LoopFailing { length }
            | Condition::TokenExpiring { within: length }
            | Condition::CertificateExpiring { within: length } => self.length = format_duration(*length),
        }
    }

    fn from_fields(name: &str, fields: &Fields) -> Self {
        let text = |field| fields.get(field).to_owned();
        let checked_words = |prefix: &str| {
            let checked_fields = fields.with_prefix(prefix).filter(|(_, value)| *value == "1");
            checked_fields.map(|(key, _)| key[prefix.len()..].to_owned()).collect::<Vec<_>>()
        };
        Self {
            name: name.to_owned(),
            description: with_line_feeds(fields.get("description")),
            scope: text("scope"),
            scope_name: text(&format!("scope_{}", fields.get("scope"))),
            condition: text("condition"),
            count: text("count"),
            percent: text("percent"),
            window: text("window"),
            min_runs: text("min_runs"),
            reasons: text("reasons"),
            length: text("length"),
            time: text("time"),
            zone: text("zone"),
            weekdays: checked_words("weekday."),
            calendar: text("calendar"),
            times_p95: text("times_p95"),
            handler: text("handler"),
            free: text("free"),
            runs: text("runs"),
            severity: text("severity"),
            channels: checked_words("channel."),
            repeat: text("repeat"),
            digest: text("digest"),
            group_over: text("group_over"),
            escalate_to: text("escalate_to"),
            escalate_after: text("escalate_after"),
            is_enabled: fields.get("enabled") == "1",
        }
    }

    /// The alert rule that the form describes.
    fn spec(&self) -> Result<RuleSpec, Problem> {
        let name = self.scope_name.clone();
        let scope = match self.scope.as_str() {
            "app" => Scope::App(name),
            "label" => Scope::Label(name),
            "job" => Scope::Job(name),
            _ => Scope::All,
        };
        let repeat = match self.repeat.as_str() {
            "" => None,
            text => Some(parse_length("/repeat", text)?),
        };
        let escalate = match self.escalate_to.as_str() {
            "" => None,
            channel => {
                let escalate_after = parse_length("/escalate/after", &self.escalate_after)?;
                Some(Escalation { channel: channel.to_owned(), after: escalate_after })
            }
        };
        Ok(RuleSpec {
            name: self.name.clone(),
            description: self.description.clone(),
            scope,
            condition: self.condition()?,
            severity: if self.severity == "critical" { Severity::Critical } else { Severity::Warning },
            channels: self.channels.clone(),
            repeat,
            digest: parse_length("/digest", &self.digest)?,
            group_over: parse_number("/group_over", &self.group_over)?,
            escalate,
            enabled: self.is_enabled,
        })
    }

    fn condition(&self) -> Result<Condition, Problem> {
        let condition_length = || parse_length("/condition/length", &self.length);
        Ok(match self.condition.as_str() {
            "failures_in_row" => Condition::FailuresInRow { count: parse_number("/condition/count", &self.count)? },
            "failure_rate" => Condition::FailureRate {
                percent: parse_number("/condition/percent", &self.percent)?,
                window: parse_length("/condition/window", &self.window)?,
                min_runs: parse_number("/condition/min_runs", &self.min_runs)?,
            },
            "skipped" => {
                let words = self.reasons.split([',', ' ', '，', '、']).filter(|word| !word.is_empty());
                let reason =
                    |word: &str| word.parse().map_err(|message: String| refuse_value("/condition/reasons", message));
                Condition::Skipped { reasons: words.map(reason).collect::<Result<_, _>>()? }
            }
            "late" => Condition::Late { by: condition_length()? },
            "not_succeeded_by" => {
                let day = |word: &String| {
                    word.parse::<Weekday>().map_err(|message| refuse_value("/condition/weekdays", message))
                };
                Condition::NotSucceededBy {
                    time: self.time.clone(),
                    zone: self.zone.clone(),
                    weekdays: self.weekdays.iter().map(day).collect::<Result<_, _>>()?,
                    calendar: (!self.calendar.is_empty()).then(|| self.calendar.clone()),
                }
            }
            "no_success_for" => Condition::NoSuccessFor { length: condition_length()? },
            "running_longer" if self.length.is_empty() => Condition::RunningLonger {
                than: None,
                times_p95: Some(parse_number("/condition/times_p95", &self.times_p95)?),
            },
            "running_longer" => Condition::RunningLonger { than: Some(condition_length()?), times_p95: None },
            "no_executor" => {
                Condition::NoExecutor { handler: (!self.handler.is_empty()).then(|| self.handler.clone()) }
            }
            "node_lost" => Condition::NodeLost {},
            "loop_failing" => Condition::LoopFailing { length: condition_length()? },
            "token_expiring" => Condition::TokenExpiring { within: condition_length()? },
            "certificate_expiring" => Condition::CertificateExpiring { within: condition_length()? },
            "disk_low" => {
                disk::parse(&self.free).map_err(|message| refuse_value("/condition/disk_low/free", message))?
            }
            "ledger_growth" => Condition::LedgerGrowth {
                runs: parse_number("/condition/runs", &self.runs)?,
                window: parse_length("/condition/window", &self.window)?,
            },
            _ => Condition::Failed {},
        })
    }

    /// The days of the week with their names, and whether each is chosen.
    fn days<'t>(&self, t: &'t Texts) -> Vec<(&'static str, &'t str, bool)> {
        let names = t.weekdays_short.split(' ');
        let is_chosen = |day: &Weekday| self.weekdays.iter().any(|chosen_day| chosen_day == day.as_str());
        Weekday::ALL.iter().zip(names).map(|(day, name)| (day.as_str(), name, is_chosen(day))).collect()
    }
}

fn parse_length(pointer: &str, text: &str) -> Result<std::time::Duration, Problem> {
    parse_duration(text).map_err(|error| refuse_value(pointer, error.to_string()))
}

fn parse_number<N: FromStr>(pointer: &str, text: &str) -> Result<N, Problem> {
    text.parse()
        .map_err(|_| refuse_value(pointer, format!("{} is not a whole number", crate::call::quoted_input(text))))
}

pub(super) async fn new(page: Page<NewRule>) -> Result<Response, Problem> {
    page.call.check(None, forbidden_problem)?;
    let form = RuleForm::new(page.query().job.as_deref());
    render_page(&page, StatusCode::OK, form, PageState { action: "/alerts/rules".to_owned(), ..PageState::default() })
        .await
}

pub(super) async fn edit(page: Page, Named(name, ..): Named<path::AlertRule>) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    let warnings = rules::rule_warnings(page.engine(), record.namespace, &record.spec).await?;
    let (action, version) = (format!("/alerts/rules/{name}"), Some(record.version));
    let state = PageState { action, version, warnings: localized_all(&warnings, page.t), ..PageState::default() };
    render_page(&page, StatusCode::OK, RuleForm::from_spec(&record.spec), state).await
}

pub(super) async fn create(page: Page, fields: Fields) -> Result<Response, Problem> {
    page.call.check(None, forbidden_problem)?;
    let form = RuleForm::from_fields(fields.get("name"), &fields);
    let state = PageState { action: "/alerts/rules".to_owned(), ..PageState::default() };
    submit(&page, form, (fields.get("do") == "try", None), state).await
}

pub(super) async fn save(
    page: Page,
    Named(name, ..): Named<path::AlertRule>,
    fields: Fields,
) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    let form = RuleForm::from_fields(&name, &fields);
    let state =
        PageState { action: format!("/alerts/rules/{name}"), version: Some(record.version), ..PageState::default() };
    if fields.get("version").parse() != Ok(record.version) {
        return render_page(&page, StatusCode::CONFLICT, form, PageState { is_conflict: true, ..state }).await;
    }
    submit(&page, form, (fields.get("do") == "try", Some(&record)), state).await
}

/// Saves or tries the rule in the form, and answers with a redirect or with the page.
async fn submit(
    page: &Page,
    form: RuleForm,
    (is_trial, record): (bool, Option<&RuleRecord>),
    state: PageState,
) -> Result<Response, Problem> {
    match save_or_try(page, &form, is_trial, record).await {
        Ok(RuleOutcome::Saved) => Ok(redirect_to("/alerts")),
        Ok(RuleOutcome::SavedWithWarnings(name)) => Ok(redirect_to(&format!("/alerts/rules/{name}"))),
        Ok(RuleOutcome::Tried(trial)) => {
            render_page(page, StatusCode::OK, form, PageState { trial: Some(*trial), ..state }).await
        }
        Err(problem) if problem.code() == Code::VersionMismatch && record.is_none() => {
            let errors = RuleErrors::of_name(page.t.alerts_exists, page.t);
            render_page(page, StatusCode::CONFLICT, form, PageState { errors, ..state }).await
        }
        Err(problem) if matches!(problem.code(), Code::InvalidBody | Code::TooManyAlerts | Code::VersionMismatch) => {
            let errors = RuleErrors::of_problem(&problem, page.t);
            render_page(page, StatusCode::UNPROCESSABLE_ENTITY, form, PageState { errors, ..state }).await
        }
        Err(problem) => Err(problem),
    }
}

async fn save_or_try(
    page: &Page,
    form: &RuleForm,
    is_trial: bool,
    record: Option<&RuleRecord>,
) -> Result<RuleOutcome, Problem> {
    let spec = form.spec()?;
    if is_trial {
        page.call.note.mark_dry_run();
        let dry_run = try_rule(&page.call, &spec).await?;
        return Ok(RuleOutcome::Tried(Box::new(RuleTrial::new(&spec, dry_run, page.t))));
    }
    page.call.note.set_object(&spec.name);
    if let Some(record) = record {
        page.call.note.before(&record.spec);
    }
    let expected_version = Some(record.map_or(0, |record| record.version));
    let namespace = page.call.namespace.id;
    let saved_rule =
        rules::save_rule(page.engine(), namespace, (&spec, expected_version), page.call.caller.name()).await?;
    page.call.note.changed_to(&saved_rule.record.spec);
    Ok(if saved_rule.warnings.is_empty() {
        RuleOutcome::Saved
    } else {
        RuleOutcome::SavedWithWarnings(saved_rule.record.spec.name)
    })
}

enum RuleOutcome {
    Saved,
    SavedWithWarnings(String),
    Tried(Box<RuleTrial>),
}

pub(super) async fn delete(page: Page, Named(name, ..): Named<path::AlertRule>) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    page.call.note.before(&record.spec);
    rules::delete_rule(page.engine(), record.namespace, &name, None).await?;
    Ok(redirect_to("/alerts"))
}

/// The state of the page, apart from the fields of its form.
#[derive(Default)]
struct PageState {
    action: String,
    version: Option<i64>,
    is_conflict: bool,
    errors: RuleErrors,
    warnings: Vec<String>,
    trial: Option<RuleTrial>,
}

async fn render_page<Q>(
    page: &Page<Q>,
    status: StatusCode,
    form: RuleForm,
    state: PageState,
) -> Result<Response, Problem> {
    let (store, namespace, t) = (page.engine().store(), page.call.namespace.id, page.t);
    let query = JobQuery { within: page.call.visible_apps(), limit: SUGGESTION_COUNT, ..JobQuery::default() };
    let jobs = store.jobs(namespace, &query).await?;
    let mut labels: Vec<String> =
        jobs.iter().flat_map(|job| &job.spec.labels).map(|(key, value)| format!("{key}={value}")).collect();
    labels.sort();
    labels.dedup();
    let apps = store.apps(namespace).await?.into_iter().filter(|app| page.call.may_view(app.id)).map(|app| app.name);
    let calendars =
        store.calendar_outlines(namespace, None, SUGGESTION_COUNT).await?.into_iter().map(|record| record.name);
    let mut calendars: Vec<String> = calendars.collect();
    // A calendar that is not among those offered is added: otherwise saving the form would lose it.
    if !form.calendar.is_empty() && !calendars.contains(&form.calendar) {
        calendars.push(form.calendar.clone());
    }
    let channels = store.channels(namespace).await?.into_iter().map(|channel| channel.name);
    let template = RulePage {
        shell: page.shell(Nav::Alerts),
        t,
        form,
        errors: state.errors,
        warnings: state.warnings,
        trial: state.trial,
        version: state.version,
        is_conflict: state.is_conflict,
        action: state.action,
        apps: apps.collect(),
        labels,
        calendars,
        channels: channels.collect(),
        jobs: jobs.into_iter().map(|job| job.spec.name).collect(),
        conditions: condition_choices(t),
        missing_roles: page.missing_roles(None),
    };
    html(status, &template)
}

fn condition_choices(t: &Texts) -> Vec<(&'static str, &'static str)> {
    vec![
        ("failed", t.alerts_when_failed),
        ("failures_in_row", t.alerts_when_in_row),
        ("failure_rate", t.alerts_when_rate),
        ("not_succeeded_by", t.alerts_when_by),
        ("no_success_for", t.alerts_when_no_success),
        ("late", t.alerts_when_late),
        ("running_longer", t.alerts_when_longer),
        ("skipped", t.alerts_when_skipped),
        ("no_executor", t.alerts_when_no_executor),
        ("node_lost", t.alerts_when_node_lost),
        ("loop_failing", t.alerts_when_loop),
        ("token_expiring", t.alerts_when_token),
        ("certificate_expiring", t.alerts_when_certificate),
        ("disk_low", t.alerts_when_disk),
        ("ledger_growth", t.alerts_when_growth),
    ]
}
