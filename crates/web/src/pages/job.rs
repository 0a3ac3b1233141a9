//! The page of a job: its definition, its runs, and its actions.

use std::collections::BTreeSet;

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::given_name;
use rondel_admin::jobs::{self, JobError, RunParams, RunRequest};
use rondel_core::declared::drift;
use rondel_core::filter::{Filter, LabelTerm, LabelTest};
use rondel_core::overrides::Overrides;
use rondel_core::part::Part;
use rondel_core::request::{IfOpen, parse_planned_at};
use rondel_core::spec::Mode;
use rondel_core::time::format_duration;
use rondel_core::{JobSpec, RunId, RunStatus, Timestamp, Trigger};
use rondel_store::catalog::JobRecord;
use rondel_store::ledger::RunQuery;
use serde_json::Value;

use super::alerts::{self, IncidentRow};
use super::filter_bar::list_url;
use super::fires::WhyForm;
use super::form::Fields;
use super::job_charts::{self, JobCharts};
use super::job_links::JobLinks;
use super::jobs::RecentRuns;
use super::moment::Moment;
use super::params_form::{self, FieldKind, ParamField};
use super::pump_facts;
use super::schedule_text::{self, ScheduleText};
use super::shell::{MissingRoles, Nav, PAGE_ITEM_COUNT, Page, Shell, html};
use super::texts::Texts;
use super::toast::{self, Toast};
use super::view::{Bar, RunRow, StateWord, bars};
use super::zones;
use crate::api::jobs::{find, remove, reset_to_declared};
use crate::api::runs::checked_key;
use crate::api::trigger_executor::checked_executor;
use crate::body::refuse_value;
use crate::cursor::{CursorQuery, Listing, cut_to_page};
use crate::etag::IfMatch;
use crate::job_states;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::redirect::{own_path, query_pair, redirect_to};

/// Maximum number of executors that the form for a run suggests.
const SUGGESTION_COUNT_MAX: usize = 200;
/// How often pausing or resuming is tried if other callers change the job at the same time.
const TRY_COUNT: usize = 4;

#[derive(Template)]
#[template(path = "job.html")]
struct JobPage {
    shell: Shell,
    t: &'static Texts,
    missing_roles: MissingRoles,
    /// The role that the caller lacks to create an alert rule. Rules need a role on the whole namespace.
    missing_rule_role: Option<&'static str>,
    alerts: Vec<IncidentRow>,
    name: String,
    description: String,
    /// The labels, each with the URL of the list of jobs that have it.
    labels: Vec<(String, String)>,
    links: JobLinks,
    is_enabled: bool,
    is_pump: bool,
    state: StateWord,
    /// The mark of a job that is in shadow mode, or whose mode applies only from some instant on.
    mode: Option<String>,
    schedules: Vec<ScheduleText>,
    next_fire: Option<Moment>,
    last_run: Option<RunRow>,
    bars: Vec<Bar>,
    charts: JobCharts,
    /// Facts about the job: names and values.
    facts: Vec<(&'static str, String)>,
    params: String,
    run_form: RunForm,
    /// Warnings for its author.
    warnings: Vec<String>,
    declared_note: Option<DeclaredNote>,
    updated_at: Moment,
    version: i64,
    /// The URL of this page, from which the script reloads its live part.
    page_url: String,
    rows: Vec<RunRow>,
    next_url: Option<String>,
    /// The URL of the first page of runs.
    first_url: String,
    is_first: bool,
    why_form: WhyForm,
    /// Always `None`: the form leads to the page of fires, which shows the errors.
    no_error: Option<String>,
}

/// The form that starts a run with other parameters than the job's, or on a chosen executor. It shows only parameters that a run may
/// override.
struct RunForm {
    /// Whether a run may have parameters of its own.
    takes_params: bool,
    /// The names of the executors of the job's app that are connected to this server.
    executors: Vec<String>,
    /// Whether the caller may name an executor. False for a pump job: its groups are distributed to all suitable executors.
    takes_executor: bool,
    /// The parameters as JSON.
    params: String,
    /// The parameters as fields, if the handler declares its parameters.
    fields: Vec<ParamField>,
    hint: String,
}

/// The differences from the definition that code declares.
struct DeclaredNote {
    at: Moment,
    /// The names of the fields that differ, in one line; empty if there are none.
    drift: String,
    undeclared_at: Option<Moment>,
}

pub(super) async fn page(page: Page<CursorQuery>, Named(name, ..): Named<path::Job>) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    zones::set_job(&record.spec);
    let (now, t) = (page.engine().now(), page.t);
    let recent_runs = RecentRuns::read(&page.call, &record, now).await?;
    let (rows, next_url) = run_rows(&page, &record, now).await?;
    let spec = &record.spec;
    let template = JobPage {
        shell: page.shell(Nav::Jobs),
        t,
        missing_roles: page.missing_roles(Some(record.app)),
        missing_rule_role: page.missing_roles(None).editor,
        alerts: alerts::incident_rows_of_job(&page, &record).await?,
        name: spec.name.clone(),
        description: spec.description.clone(),
        labels: spec.labels.iter().map(|(key, value)| label_link(key, value)).collect(),
        links: JobLinks::read(&page.call, &record, t).await?,
        is_enabled: spec.enabled,
        is_pump: spec.pump.is_some(),
        state: StateWord::new(job_states::job_state(page.engine(), &record).await?, t),
        mode: mode_mark(spec, t),
        schedules: schedule_text::schedule_texts(spec, t),
        next_fire: recent_runs.next_fire_at.map(|at| Moment::new(at, now, t)),
        last_run: recent_runs.past_runs.first().map(|run| RunRow::new(run, String::new(), now, t)),
        bars: bars(&recent_runs.past_runs, now, t),
        charts: job_charts::read(&page.call, &record, (now, t)).await?,
        facts: job_facts(&record, t),
        params: params_text(&spec.params),
        run_form: run_form(&page, &record),
        warnings: jobs::warnings(page.engine(), record.namespace, spec, recent_runs.next_fire_at)
            .iter()
            .map(|warning| t.warning(warning))
            .collect(),
        declared_note: record.declared.as_ref().map(|declared| DeclaredNote {
            at: Moment::new(declared.declared_at, now, t),
            drift: drift(spec, &declared.spec).join(", "),
            undeclared_at: declared.undeclared_at.map(|at| Moment::new(at, now, t)),
        }),
        updated_at: Moment::new(record.updated_at, now, t),
        version: record.version,
        page_url: page.page_url().to_owned(),
        rows,
        next_url,
        first_url: format!("/jobs/{}", spec.name),
        is_first: page.query().0.is_none(),
        why_form: WhyForm::new(spec),
        no_error: None,
    };
    html(StatusCode::OK, &template)
}

fn run_form(page: &Page<CursorQuery>, record: &JobRecord) -> RunForm {
    let (spec, t) = (&record.spec, page.t);
    let overrides = spec.effective_overrides();
    let schema = jobs::params_schema(page.engine(), record.namespace, &spec.app, &spec.handler);
    let mut fields =
        schema.map(|schema| params_form::param_fields(schema.document(), &spec.params)).unwrap_or_default();
    fields.retain(|field| overrides.covers(&field.pointer()));
    RunForm {
        takes_params: *overrides != Overrides::None,
        executors: online_names(page, record),
        takes_executor: record.spec.pump.is_none(),
        params: params_text(&overrides.replaceable_part(&spec.params)),
        fields,
        hint: match &*overrides {
            Overrides::Only(pointers) => t.job_run_params_only(pointers.join(", ")),
            Overrides::None | Overrides::All => t.job_run_params_hint.to_owned(),
        },
    }
}

/// The connected executors, as suggestions. The user may enter other names; they are checked against all known executors.
fn online_names(page: &Page<CursorQuery>, record: &JobRecord) -> Vec<String> {
    let online_executors = page.engine().online_names().into_iter().filter(|executor| executor.app == record.app);
    let names: BTreeSet<String> = online_executors.map(|executor| given_name(&executor.name).to_owned()).collect();
    names.into_iter().take(SUGGESTION_COUNT_MAX).collect()
}

/// A page of the job's runs, and the URL of the next page.
async fn run_rows(
    page: &Page<CursorQuery>,
    record: &JobRecord,
    now: Timestamp,
) -> Result<(Vec<RunRow>, Option<String>), Problem> {
    let listing = Listing::new("job page", record.id);
    let after_id = listing.id_after(page.query().0.as_deref(), RunId::get)?;
    let visible_apps = page.call.visible_apps();
    let query = RunQuery {
        job: Some(record.id),
        within: visible_apps,
        after: after_id,
        limit: PAGE_ITEM_COUNT + 1,
        ..RunQuery::default()
    };
    let mut runs = page.engine().store().list_runs(record.namespace, &query).await?;
    let next_url = cut_to_page(&mut runs, PAGE_ITEM_COUNT)
        .map(|run| format!("/jobs/{}?{}", record.spec.name, query_pair("cursor", &listing.cursor(run.id))));
    page.call.conceal(&mut runs).await?;
    let is_pump = record.spec.pump.is_some();
    let row = |run| RunRow::new(run, record.spec.name.clone(), now, page.t).with_part(Part::of(run, is_pump), page.t);
    Ok((runs.iter().map(row).collect(), next_url))
}

/// A label, and the URL of the list of jobs that have it.
fn label_link(key: &str, value: &str) -> (String, String) {
    let label_test = LabelTest { key: key.to_owned(), value: Some(value.to_owned()) };
    let labels = vec![LabelTerm { any: vec![label_test], is_not: false }];
    let filter = Filter { labels, ..Filter::default() };
    (format!("{key}={value}"), list_url("/jobs", &filter.to_string(), &[]))
}

/// The mark of the job's mode; `None` if the job is active without a start instant.
fn mode_mark(spec: &JobSpec, t: &Texts) -> Option<String> {
    match (spec.mode, spec.mode_from.as_deref()) {
        (Mode::Active, None) => None,
        (Mode::Active, Some(from)) => Some(t.mode_active_from(from)),
        (Mode::Shadow, None) => Some(t.shadow.to_owned()),
        (Mode::Shadow, Some(from)) => Some(t.mode_shadow_from(from)),
    }
}

fn job_facts(record: &JobRecord, t: &'static Texts) -> Vec<(&'static str, String)> {
    let spec = &record.spec;
    let mut facts = vec![(t.field_app, spec.app.clone()), (t.field_handler, spec.handler.clone())];
    match &spec.pump {
        Some(pump) => facts.extend(pump_facts::pump_facts(pump, t)),
        None => facts.extend([
            (t.field_route, t.route(spec.route).to_owned()),
            (t.field_overlap, t.overlap(spec.overlap.policy).to_owned()),
            (t.field_misfire, t.misfire(spec.misfire.policy).to_owned()),
            (t.field_delivery, t.delivery(spec.delivery).to_owned()),
            (t.field_on_silence, t.on_silence(spec.on_silence).to_owned()),
            (t.field_timeout, spec.timeout.map_or_else(|| t.none.to_owned(), format_duration)),
            (t.field_queue_timeout, format_duration(spec.queue_timeout)),
        ]),
    }
    let retry = match spec.retry.max {
        0 => t.none.to_owned(),
        max => format!("{max} × {}", spec.retry.backoff),
    };
    facts.push((t.field_retry, retry));
    let overrides = match &*spec.effective_overrides() {
        Overrides::None => t.overrides_none.to_owned(),
        Overrides::All => t.overrides_all.to_owned(),
        Overrides::Only(pointers) => pointers.join(", "),
    };
    facts.push((t.field_overrides, overrides));
    facts
}

/// The parameters as JSON; empty if there are none.
fn params_text(params: &Value) -> String {
    if params.is_null() { String::new() } else { pretty_json(params) }
}

/// JSON on several lines.
pub(super) fn pretty_json(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

pub(super) async fn pause(page: Page, Named(name, ..): Named<path::Job>, fields: Fields) -> Result<Response, Problem> {
    switch_job(&page, &name, false).await?;
    let undo_url = Some(format!("/jobs/{name}/resume"));
    toast::toast_response(
        &page,
        Toast { text: page.t.toast_paused(&name), undo_url, link: None },
        &return_path(&fields, &name),
    )
}

pub(super) async fn resume(page: Page, Named(name, ..): Named<path::Job>, fields: Fields) -> Result<Response, Problem> {
    switch_job(&page, &name, true).await?;
    let undo_url = Some(format!("/jobs/{name}/pause"));
    toast::toast_response(
        &page,
        Toast { text: page.t.toast_resumed(&name), undo_url, link: None },
        &return_path(&fields, &name),
    )
}

/// The path to return to: the page that has the form, or the page of the job.
fn return_path(fields: &Fields, name: &str) -> String {
    own_path(fields.get("back")).map_or_else(|| format!("/jobs/{name}"), str::to_owned)
}

async fn switch_job(page: &Page, name: &str, is_enabled: bool) -> Result<(), Problem> {
    for _ in 0..TRY_COUNT {
        let record = find(&page.call, name).await?;
        match jobs::set_enabled(page.engine(), &record, is_enabled, page.call.caller.name()).await {
            Ok(changed_record) => {
                page.call.note.changed_to(&changed_record.spec);
                return Ok(());
            }
            Err(JobError::Conflict { .. }) => {}
            Err(error) => return Err(page.call.job_problem(error).await),
        }
    }
    Err(Problem::new(Code::EditConflict, "the job changed under each of several tries; try again"))
}

/// Restores the definition that code declares.
pub(super) async fn reset(page: Page, Named(name, ..): Named<path::Job>) -> Result<Response, Problem> {
    let reset_record = reset_to_declared(&page.call, &name, &IfMatch::Any).await?;
    page.call.note.changed_to(&reset_record.spec);
    Ok(redirect_to(&format!("/jobs/{name}")))
}

pub(super) async fn delete(page: Page, Named(name, ..): Named<path::Job>, fields: Fields) -> Result<Response, Problem> {
    let is_forced = fields.get("force") == "true";
    remove(&page.call, &name, &IfMatch::Any, (is_forced, None)).await?;
    Ok(redirect_to("/jobs"))
}

/// Starts a run, with the parameters in the form if the form has any.
pub(super) async fn trigger(
    page: Page,
    Named(name, ..): Named<path::Job>,
    fields: Fields,
) -> Result<Response, Problem> {
    let record = find(&page.call, &name).await?;
    let params = chosen_params(&page, &fields, &record)?;
    let executor = match fields.get("executor").trim() {
        "" => None,
        name => Some(checked_executor(&page.call, &record, ("/executor", name)).await?),
    };
    let non_empty_field = |name: &str| Some(fields.get(name).trim()).filter(|text| !text.is_empty()).map(str::to_owned);
    let if_open = non_empty_field("if_open").filter(|_| non_empty_field("key").is_some());
    let if_open = if_open
        .map(|word| word.parse::<IfOpen>().map_err(|message: String| refuse_value("/if_open", message)))
        .transpose()?;
    let key = checked_key(("/key", non_empty_field("key").as_deref()), if_open)?;
    let at = non_empty_field("at").map(|text| parse_planned_at(&text, page.engine().now())).transpose();
    let at = at.map_err(|message| refuse_value("/at", message))?;
    let request = RunRequest { params, executor, key, at, trace: page.call.trace, ..RunRequest::by(Trigger::Manual) };
    let run = match jobs::request_run(page.engine(), &record, request).await {
        Err(JobError::KeyInUse(open_run)) if if_open == Some(IfOpen::Keep) && !open_run.is_asked_to_end() => {
            return Ok(redirect_to(&format!("/runs/{}", open_run.id)));
        }
        result => result?,
    };
    page.call.note.changed_to(&serde_json::json!({"run": run.id}));
    let (run_url, at) = (format!("/runs/{}", run.id), Moment::new(run.fire_at, run.fire_at, page.t));
    let is_planned = run.status == RunStatus::Waiting;
    let run_link = Some((format!("#{name} · {}", at.time), run_url.clone()));
    let return_url = own_path(fields.get("back")).map_or(run_url, str::to_owned);
    toast::toast_response(
        &page,
        Toast {
            text: if is_planned { page.t.toast_planned } else { page.t.toast_started }.to_owned(),
            link: run_link,
            undo_url: None,
        },
        &return_url,
    )
}

/// The parameters for this run; `None` if the run has those of the job.
fn chosen_params(page: &Page, fields: &Fields, record: &JobRecord) -> Result<Option<RunParams>, Problem> {
    let params_json = match (params_form::from_fields(fields, &record.spec.params)?, fields.get("params")) {
        (Some(value), _) => value,
        (None, "") => return Ok(None),
        (None, text) => serde_json::from_str(text)
            .map_err(|error| refuse_value("/params", page.t.error_json(error.column(), error.line())))?,
    };
    Ok(jobs::run_params(page.engine(), record, &params_json)?)
}
