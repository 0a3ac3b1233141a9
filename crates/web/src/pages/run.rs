//! The page of a run: its verdict and reason, its timeline, its attempts, its shards and its log.

use std::time::Duration;

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::Progress;
use rondel_admin::jobs;
use rondel_core::misfire::LateBecause;
use rondel_core::pump::Counts;
use rondel_core::reason::words::{RunStatusFacts, attempt_sentence, sentence};
use rondel_core::route::trace::{CHOSEN, Trace};
use rondel_core::run::{Attempt, ROOT_SHARD};
use rondel_core::{Run, RunId, RunStatus, Timestamp, Trigger};
use rondel_store::ledger::CancelOutcome;
use serde_json::Value;

use super::form::Fields;
use super::job::pretty_json;
use super::moment::{Moment, length_text};
use super::run_log::{LogCard, Search, log_card, show_zone_of_job};
use super::run_neighbours::Neighbours;
use super::run_timeline::RunTimeline;
use super::run_tree::RunTree;
use super::shell::{MissingRoles, Nav, Page, Shell, html};
use super::texts::Texts;
use super::view::{RunRow, Status, own_message};
use crate::api::cancels::{REASON_LEN_MAX, audit_cancel, cancel_message};
use crate::api::logs::{self, chosen_attempt};
use crate::api::runs::{broadcast_of_shard, find, retry_failed_shards, retry_request};
use crate::incident_of_fire::{self, IncidentRef};
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::redirect::redirect_to;
use crate::shown_runs::{Parts, read_attempts, rows_of_groups, run_params, shard_name, shard_runs, with_job_names};

/// The query parameters of the page.
#[derive(Debug)]
pub(crate) struct RunPageQuery {
    /// The attempt whose log is shown.
    pub(super) attempt: Option<i32>,
    /// The line around which the log is shown. Without it, the end of the log is shown.
    pub(super) line: Option<u64>,
    pub(super) search: Search,
    /// Where the search continues, if an earlier page has ended before the end of the log.
    pub(super) search_after: Option<String>,
    /// Whether the request is only for the parts of the page that change while the run is open.
    is_part: bool,
}

impl FromQuery for RunPageQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let line = |text: &str| match text.parse::<u32>() {
            Ok(line) if line >= 1 => Ok(u64::from(line)),
            _ => Err(format!("{text:?} is not the number of a line")),
        };
        Self {
            attempt: logs::attempt_parameter(reader),
            line: reader.parsed("line", line),
            search: Search::from_query(reader),
            search_after: reader.single("after"),
            is_part: reader.single("part").is_some(),
        }
    }
}

#[derive(Template)]
#[template(path = "run.html")]
struct RunPage {
    shell: Shell,
    t: &'static Texts,
    missing_roles: MissingRoles,
    row: RunRow,
    incident: Option<IncidentRef>,
    steps: Vec<RunStep>,
    attempts: Vec<AttemptRow>,
    timeline: RunTimeline,
    neighbours: Neighbours,
    tree: Option<RunTree>,
    is_broadcast: bool,
    /// The run that a retry repeats. For a shard, this is its broadcast.
    retried_run: String,
    /// How many shards did not succeed.
    failed_shards: usize,
    parent: Option<String>,
    /// The caller who asked to cancel the run.
    cancel_by: Option<String>,
    only_executor: Option<String>,
    key: Option<String>,
    /// The name of the run's shard, if the job names its shards.
    shard_name: Option<String>,
    /// The row counts of the groups of a pump.
    row_counts: Option<Counts>,
    progress: Option<Progress>,
    route: Option<RouteFacts>,
    /// For a row that stands for several skipped fires: their number, and the instant of the last one.
    skipped_fires: Option<(i64, Moment)>,
    params: Option<String>,
    result: Option<String>,
    version: i64,
    /// Maximum length of a reason for a cancel, in characters.
    cancel_reason_max: usize,
    commands: Vec<String>,
    /// `None` if the request is only for the parts of the page that change while the run is open.
    log: Option<LogCard>,
}

/// A step of a run.
struct RunStep {
    name: String,
    at: Option<Moment>,
    /// The time since the previous step.
    since_previous: Option<String>,
    /// The CSS class, which decides the colour of the mark.
    class: &'static str,
}

/// How a run was routed to its executor.
struct RouteFacts {
    route: &'static str,
    /// The executors that were eligible for the run.
    eligible_executors: Option<String>,
    /// The executors that were not eligible, each with the reason.
    refused_executors: Option<String>,
    /// How long the run was delayed by an overload of the servers.
    overload_delay: Option<String>,
    /// How long the run was delayed by an outage.
    outage_delay: Option<String>,
    /// How long the run waited for its turn.
    turn_wait: Option<String>,
    /// How long the run waited for an executor.
    executor_wait: Option<String>,
}

impl RouteFacts {
    fn new(trace: &str, t: &'static Texts) -> Option<Self> {
        let trace: Trace = serde_json::from_str(trace).ok()?;
        let wait_text = |length: Duration| (!length.is_zero()).then(|| length_text(length, t));
        let refusals = trace.refused.iter().map(|(name, refusal)| format!("{name} ({})", t.refusal(refusal))).collect();
        let joined_names = |mut names: Vec<String>, more_count: usize| {
            names.extend((more_count > 0).then(|| format!("+{more_count}")));
            (!names.is_empty()).then(|| names.join(", "))
        };
        let waits = trace.waits();
        let delay_text =
            |because| waits.server.filter(|delay| delay.because == because).and_then(|delay| wait_text(delay.by));
        Some(Self {
            route: match trace.route.as_str() {
                CHOSEN => t.route_chosen,
                route => t.route(route.parse().ok()?),
            },
            eligible_executors: joined_names(trace.of, trace.of_more),
            refused_executors: joined_names(refusals, trace.refused_more),
            overload_delay: delay_text(LateBecause::Overload),
            outage_delay: delay_text(LateBecause::Outage),
            turn_wait: wait_text(waits.turn),
            executor_wait: wait_text(waits.executor),
        })
    }
}

struct AttemptRow {
    number: i32,
    status: Status,
    reason: Option<String>,
    executor: Option<String>,
    started_at: Option<Moment>,
    length: Option<String>,
    message: Option<String>,
}

pub(super) async fn page(page: Page<RunPageQuery>, path: Named<path::Run>) -> Result<Response, Problem> {
    let run = find(&page.call, &path).await?;
    let (now, t) = (page.engine().now(), page.t);
    show_zone_of_job(&page, &run).await?;
    let shown_attempt = chosen_attempt(page.query().attempt, &run)?;
    let job = with_job_names(&page.call, vec![run.clone()]).await?.pop().map(|(job, _)| job).unwrap_or_default();
    let is_broadcast = run.shard_index == ROOT_SHARD;
    let shards = if is_broadcast { shard_runs(&page.call, &run).await? } else { Vec::new() };
    let attempts = read_attempts(&page.call, &run).await?;
    let params = run_params(&page.call, &run).await?.filter(|params| params != "null");
    let broadcast = broadcast_of_shard(&page.call, &run).await?.map(|broadcast| broadcast.id);
    let is_part = page.query().is_part;
    let log = if is_broadcast || is_part { None } else { Some(log_card(&page, &run, shown_attempt).await?) };
    let row_counts = if run.status.is_terminal() { rows_of_groups(&page.call, &shards).await? } else { None };
    let part = Parts::read(&page.call, std::iter::once(&run)).await?.part_of(&run);
    let template = RunPage {
        shell: page.shell(Nav::Runs),
        t,
        missing_roles: page.missing_roles(Some(run.app)),
        incident: incident_of_fire::incident_of_run(&page.call, &run).await?,
        steps: run_steps(&run, now, t),
        timeline: RunTimeline::new(&run, &attempts, &shards, now, t),
        neighbours: Neighbours::read(&page, &run).await?,
        failed_shards: shards.iter().filter(|shard| jobs::is_unsuccessful(shard)).count(),
        attempts: attempt_rows(attempts, &run, now, t),
        retried_run: broadcast.unwrap_or(run.id).to_string(),
        commands: shell_commands(&page, &run, broadcast),
        tree: RunTree::read(&page, &run).await?,
        is_broadcast,
        parent: run.parent.map(|parent| parent.to_string()),
        cancel_by: run.cancel_by.clone(),
        progress: page.engine().progress(&run),
        only_executor: run.only_executor.clone(),
        key: run.trigger_key.clone(),
        route: run.trace.as_deref().and_then(|trace| RouteFacts::new(trace, t)),
        skipped_fires: run.span_end_at.map(|end| (run.span_count, Moment::new(end, now, t))),
        params: params.map(indent_json),
        result: run.result.clone().map(indent_json),
        version: run.job_version,
        cancel_reason_max: REASON_LEN_MAX,
        log,
        row: RunRow::new(&run, job, now, t).with_part(part, t),
        shard_name: shard_name(&page.call, &run).await?,
        row_counts,
    };
    html(StatusCode::OK, &template)
}

/// Shell commands for the data and the actions of the page.
fn shell_commands<Q>(page: &Page<Q>, run: &Run, broadcast: Option<RunId>) -> Vec<String> {
    let namespace = &page.call.namespace.name;
    let command = |verb: &str, id: RunId| format!("rondel run {verb} {id} --namespace {namespace}");
    let (verb, id) = if run.status.is_terminal() { ("retry", broadcast.unwrap_or(run.id)) } else { ("cancel", run.id) };
    let curl = format!(
        "curl -X POST -H \"Authorization: Bearer $RONDEL_TOKEN\" \"$RONDEL_SERVER/api/v1/runs/{id}/{verb}?namespace={namespace}\""
    );
    vec![command("get", run.id), command("logs", run.id), command(verb, id), curl]
}

/// Formats JSON on several lines. Any other text is returned unchanged.
fn indent_json(text: String) -> String {
    serde_json::from_str::<Value>(&text).map_or(text, |value| pretty_json(&value))
}

/// The steps of a run: planned, due, started, finished. Steps that are still to come have no instant.
fn run_steps(run: &Run, now: Timestamp, t: &'static Texts) -> Vec<RunStep> {
    let has_ended = run.status.is_terminal();
    let end_class = if has_ended { run.status.as_str() } else { "ahead" };
    // The due instant, the start and the end are those of the last attempt.
    let due_text = if run.attempt > 1 { t.step_due_again(run.attempt) } else { t.step_due.to_owned() };
    let points = [
        (t.step_planned.to_owned(), Some(run.fire_at), "done"),
        (due_text, Some(run.due_at).filter(|due_at| *due_at != run.fire_at), "done"),
        (t.step_started.to_owned(), run.started_at, if run.started_at.is_some() { "done" } else { "ahead" }),
        (t.step_finished.to_owned(), run.finished_at.filter(|_| has_ended), end_class),
    ];
    let mut previous_at = None::<Timestamp>;
    let mut steps = Vec::new();
    for (step_index, (name, at, class)) in points.into_iter().enumerate() {
        // Leaves out a due instant that equals the planned one, and the start of a run that ended without having started.
        if at.is_none() && (step_index == 1 || (step_index == 2 && has_ended)) {
            continue;
        }
        let since_previous =
            at.zip(previous_at).map(|(at, previous_at)| format!("+{}", length_text(at.since(previous_at), t)));
        previous_at = at.or(previous_at);
        steps.push(RunStep { name, at: at.map(|at| Moment::new(at, now, t)), since_previous, class });
    }
    steps
}

/// The attempts, the newest first.
fn attempt_rows(attempts: Vec<Attempt>, run: &Run, now: Timestamp, t: &'static Texts) -> Vec<AttemptRow> {
    let row = |attempt: Attempt| AttemptRow {
        number: attempt.attempt,
        status: Status::new(attempt.status, t),
        reason: attempt_reason(&attempt, run, t),
        message: own_message(attempt.message.as_deref(), attempt.reason, attempt.detail.as_deref(), t.lang()),
        executor: attempt.executor,
        started_at: attempt.started_at.map(|at| Moment::new(at, now, t)),
        length: attempt.started_at.zip(attempt.finished_at).map(|(start, end)| length_text(end.since(start), t)),
    };
    attempts.into_iter().rev().map(row).collect()
}

/// Why the next attempt followed this one. For the last attempt, the reason for its current state.
fn attempt_reason(attempt: &Attempt, run: &Run, t: &Texts) -> Option<String> {
    if attempt.attempt == run.attempt {
        return sentence(RunStatusFacts::of(run), t.lang());
    }
    attempt_sentence(attempt, t.lang())
}

pub(super) async fn cancel(page: Page, path: Named<path::Run>, fields: Fields) -> Result<Response, Problem> {
    let run = find(&page.call, &path).await?;
    audit_cancel(&page.call, &run, Some(fields.get("reason")));
    let cancel_text = cancel_message(page.call.caller.name(), Some(fields.get("reason")))?;
    match page.engine().cancel_run(run.id, &cancel_text).await? {
        CancelOutcome::Requested(_) | CancelOutcome::AlreadyEnded(RunStatus::Cancelled) => {
            Ok(redirect_to(&format!("/runs/{}", run.id)))
        }
        CancelOutcome::AlreadyEnded(status) => {
            Err(Problem::new(Code::RunFinished, format!("the run has ended: {status}")))
        }
        CancelOutcome::NotFound => Err(Problem::new(Code::RunNotFound, "the run is gone")),
    }
}

pub(super) async fn retry(page: Page, path: Named<path::Run>) -> Result<Response, Problem> {
    let run = find(&page.call, &path).await?;
    let (record, request) = retry_request(&page.call, &run, Trigger::Manual).await?;
    let run = jobs::request_run(page.engine(), &record, request).await?;
    page.call.note.changed_to(&serde_json::json!({"run": run.id}));
    Ok(redirect_to(&format!("/runs/{}", run.id)))
}

/// Repeats the shards that did not succeed.
pub(super) async fn retry_failed(page: Page, path: Named<path::Run>) -> Result<Response, Problem> {
    let run = find(&page.call, &path).await?;
    let (record, request) = retry_request(&page.call, &run, Trigger::Manual).await?;
    let run = retry_failed_shards(&page.call, (&record, &run), request).await?;
    page.call.note.changed_to(&serde_json::json!({"run": run.id}));
    Ok(redirect_to(&format!("/runs/{}", run.id)))
}
