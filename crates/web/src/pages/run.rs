//! A run: its verdict and why, its way through time, its attempts, its shards and its log.

use std::time::Duration;

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::Progress;
use rondel_admin::jobs;
use rondel_core::misfire::LateBecause;
use rondel_core::reason::words::{Subject, attempt_sentence, sentence};
use rondel_core::route::trace::Trace;
use rondel_core::run::{Attempt, BROADCAST};
use rondel_core::words::counted;
use rondel_core::{Run, RunStatus, Timestamp, Trigger};
use rondel_store::ledger::CancelAsked;
use serde_json::Value;

use super::form::Fields;
use super::job::pretty;
use super::moment::{Moment, length};
use super::run_log::{LogPart, Search, first_part};
use super::run_tree::RunTree;
use super::shell::{Missing, Nav, Page, Shell, html};
use super::texts::Texts;
use super::view::{RunRow, Status, own_message};
use crate::api::cancels::{REASON_LEN_MAX, asked_by, note_run};
use crate::api::runs::{find, repetition};
use crate::path::{self, Named};
use crate::problem::{Code, Complaint, Problem};
use crate::query::{FromQuery, Reader};
use crate::redirect::to;
use crate::shown_runs::{attempts, named, params, shard_runs};

/// The query of the page: which attempt's log is shown, and what is searched for in it.
#[derive(Debug)]
pub(crate) struct ShownLog {
    pub(super) attempt: Option<i32>,
    pub(super) search: Search,
}

impl FromQuery for ShownLog {
    fn from_query(reader: &mut Reader) -> Self {
        let attempt = |text: &str| match text.parse::<i32>() {
            Ok(attempt) if attempt >= 1 => Ok(attempt),
            _ => Err(format!("{text:?} is not the number of an attempt")),
        };
        Self { attempt: reader.parsed("attempt", attempt), search: Search::from_query(reader) }
    }
}

#[derive(Template)]
#[template(path = "run.html")]
struct RunPage {
    shell: Shell,
    t: &'static Texts,
    missing: Missing,
    row: RunRow,
    steps: Vec<Step>,
    attempts: Vec<AttemptRow>,
    shards: Vec<RunRow>,
    tree: Option<RunTree>,
    is_broadcast: bool,
    parent: Option<String>,
    cancel_by: Option<String>,
    progress: Option<Progress>,
    route: Option<RouteFacts>,
    span: Option<(i64, Moment)>,
    params: Option<String>,
    result: Option<String>,
    version: i64,
    shown_attempt: i32,
    search: String,
    cancel_reason_max: usize,
    here: String,
    log: LogPart,
}

/// A point on a run's way.
struct Step {
    name: &'static str,
    at: Option<Moment>,
    /// After the step before.
    delta: Option<String>,
    /// For the mark's colour.
    class: &'static str,
}

/// How a run came to its executor.
struct RouteFacts {
    route: &'static str,
    of: Option<String>,
    refused: Option<String>,
    overload: Option<String>,
    outage: Option<String>,
    turn: Option<String>,
    executor: Option<String>,
}

impl RouteFacts {
    fn new(trace: &str, t: &'static Texts) -> Option<Self> {
        let trace: Trace = serde_json::from_str(trace).ok()?;
        let waited = |length: Duration| (!length.is_zero()).then(|| super::moment::length(length, t));
        let refused = trace.refused.iter().map(|(name, why)| format!("{name} ({})", t.refusal(why))).collect();
        let list = |mut names: Vec<String>, more: usize| {
            names.extend((more > 0).then(|| format!("+{more}")));
            (!names.is_empty()).then(|| names.join(", "))
        };
        let waits = trace.waits();
        let behind = |because| waits.server.filter(|late| late.because == because).and_then(|late| waited(late.by));
        Some(Self {
            route: t.route(trace.route.parse().ok()?),
            of: list(trace.of, trace.of_more),
            refused: list(refused, trace.refused_more),
            overload: behind(LateBecause::Overload),
            outage: behind(LateBecause::Outage),
            turn: waited(waits.turn),
            executor: waited(waits.executor),
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

pub(super) async fn page(page: Page<ShownLog>, path: Named<path::Run>) -> Result<Response, Problem> {
    let run = find(&page.call, &path).await?;
    let (now, t) = (page.engine().now(), page.t);
    let shown_attempt = page.query().attempt.unwrap_or(run.attempt);
    if shown_attempt > run.attempt {
        let message = format!("the run has {}", counted(run.attempt, "attempt"));
        let complaint = Complaint::query("attempt", "invalid_value", message);
        return Err(Problem::of_complaints(Code::InvalidQuery, vec![complaint]));
    }
    let job = named(&page.call, vec![run.clone()]).await?.pop().map(|(job, _)| job).unwrap_or_default();
    let is_broadcast = run.shard_index == BROADCAST;
    let shards = if is_broadcast { shard_runs(&page.call, &run).await? } else { Vec::new() };
    let tried = attempts(&page.call, &run).await?;
    let params = params(&page.call, &run).await?.filter(|params| params != "null");
    let template = RunPage {
        shell: page.shell(Nav::Runs),
        t,
        missing: page.missing(Some(run.app)),
        steps: steps(&run, now, t),
        attempts: attempt_rows(tried, &run, now, t),
        shards: shards.into_iter().map(|shard| RunRow::new(&shard, job.clone(), now, t)).collect(),
        tree: RunTree::read(&page, &run).await?,
        is_broadcast,
        parent: run.parent.map(|parent| parent.to_string()),
        cancel_by: run.cancel_by.clone(),
        progress: page.engine().progress(&run),
        route: run.trace.as_deref().and_then(|trace| RouteFacts::new(trace, t)),
        span: run.span_end_at.map(|end| (run.span_count, Moment::new(end, now, t))),
        params: params.map(readable),
        result: run.result.clone().map(readable),
        version: run.job_version,
        shown_attempt,
        search: page.query().search.text().to_owned(),
        cancel_reason_max: REASON_LEN_MAX,
        here: page.here().to_owned(),
        log: first_part(&page, &run, shown_attempt).await?,
        row: RunRow::new(&run, job, now, t),
    };
    html(StatusCode::OK, &template)
}

/// JSON text over several lines; anything else as it is.
fn readable(text: String) -> String {
    serde_json::from_str::<Value>(&text).map_or(text, |value| pretty(&value))
}

/// Planned, due, started, finished: as far as the run has come.
fn steps(run: &Run, now: Timestamp, t: &'static Texts) -> Vec<Step> {
    let is_over = run.status.is_terminal();
    let end_class = if is_over { run.status.as_str() } else { "ahead" };
    let points = [
        (t.step_planned, Some(run.fire_at), "done"),
        (t.step_due, Some(run.due_at).filter(|due| *due != run.fire_at), "done"),
        (t.step_started, run.started_at, if run.started_at.is_some() { "done" } else { "ahead" }),
        (t.step_finished, run.finished_at.filter(|_| is_over), end_class),
    ];
    let mut before = None::<Timestamp>;
    let mut steps = Vec::new();
    for (place, (name, at, class)) in points.into_iter().enumerate() {
        // Most runs are due when they are planned; one that never began has no start.
        if at.is_none() && (place == 1 || (place == 2 && is_over)) {
            continue;
        }
        let delta = at.zip(before).map(|(at, before)| format!("+{}", length(at.since(before), t)));
        before = at.or(before);
        steps.push(Step { name, at: at.map(|at| Moment::new(at, now, t)), delta, class });
    }
    steps
}

/// Every attempt, the newest first.
fn attempt_rows(tried: Vec<Attempt>, run: &Run, now: Timestamp, t: &'static Texts) -> Vec<AttemptRow> {
    let row = |attempt: Attempt| AttemptRow {
        number: attempt.attempt,
        status: Status::new(attempt.status, t),
        reason: attempt_reason(&attempt, run, t),
        message: own_message(attempt.message.as_deref(), attempt.reason, attempt.detail.as_deref(), t.lang()),
        executor: attempt.executor,
        started_at: attempt.started_at.map(|at| Moment::new(at, now, t)),
        length: attempt.started_at.zip(attempt.finished_at).map(|(start, end)| length(end.since(start), t)),
    };
    tried.into_iter().rev().map(row).collect()
}

/// Why there was another attempt after this one, or why the present one stands where it stands.
fn attempt_reason(attempt: &Attempt, run: &Run, t: &Texts) -> Option<String> {
    if attempt.attempt == run.attempt {
        return sentence(Subject::of(run), t.lang());
    }
    attempt_sentence(attempt, t.lang())
}

pub(super) async fn cancel(page: Page, path: Named<path::Run>, fields: Fields) -> Result<Response, Problem> {
    let run = find(&page.call, &path).await?;
    note_run(&page.call, &run, Some(fields.get("reason")));
    let by = asked_by(page.call.caller.name(), Some(fields.get("reason")))?;
    match page.engine().cancel_run(run.id, &by).await? {
        CancelAsked::Noted(_) | CancelAsked::Over(RunStatus::Cancelled) => Ok(to(&format!("/runs/{}", run.id))),
        CancelAsked::Over(status) => Err(Problem::new(Code::RunFinished, format!("the run is over: {status}"))),
        CancelAsked::NotFound => Err(Problem::new(Code::RunNotFound, "the run is gone")),
    }
}

pub(super) async fn retry(page: Page, path: Named<path::Run>) -> Result<Response, Problem> {
    let run = find(&page.call, &path).await?;
    let (record, again) = repetition(&page.call, &run, Trigger::Manual).await?;
    let run = jobs::request_run(page.engine(), &record, again).await?;
    page.call.note.changed_to(&serde_json::json!({"run": run.id}));
    Ok(to(&format!("/runs/{}", run.id)))
}
