//! Rows for servers, executors and their runs, on the pages of the fleet.

use std::collections::HashMap;
use std::time::Duration;

use rondel_core::{AppId, RunId, RunStatus, Timestamp};
use rondel_store::StoreError;
use rondel_store::cluster::{LoopReport, Node};

use super::moment::{Moment, length_text};
use super::shell::Page;
use super::texts::Texts;
use crate::api::executors::ExecutorJson;
use crate::problem::Problem;

/// How many runs of an executor are read at most.
const HELD_RUN_COUNT_MAX: u32 = 1_000;
/// This long after a switch was set, every server obeys it, and the number of runs includes all that were sent before. It is the sum of
/// one beat, the time until a run is stored, and one heartbeat.
const SETTLE_DELAY: Duration = Duration::from_secs(5);
/// A server is marked if its fires are later than this, in milliseconds.
const LATE_MS: u64 = 1_000;
/// How many handlers of an executor a row shows.
const HANDLER_COUNT: usize = 30;

pub(super) struct NodeRow {
    pub(super) name: String,
    /// Whether it is the server that answers this request.
    pub(super) is_answering: bool,
    pub(super) class: &'static str,
    pub(super) word: &'static str,
    pub(super) status: &'static str,
    /// The remaining time of its lease; `None` if the server is dead.
    pub(super) lease: Option<String>,
    /// Since when it is dead; `None` while it lives.
    pub(super) dead_at: Option<Moment>,
    /// Whether it shut down in order.
    pub(super) has_left: bool,
    /// How many jobs have it as their home.
    pub(super) job_count: u64,
    /// How far its host's wall clock is ahead of the database's, in milliseconds.
    pub(super) skew_ms: i64,
    /// The 99th percentile of the lateness of its recent fires; `None` without fires.
    pub(super) lateness: Option<String>,
    /// Whether its lateness is more than [`LATE_MS`].
    pub(super) is_late: bool,
    pub(super) version: String,
    pub(super) started_at: Moment,
    pub(super) url: Option<String>,
    pub(super) loops: Vec<LoopRow>,
    /// The names of the loops that are failing.
    pub(super) failing_loops: Vec<String>,
}

pub(super) struct LoopRow {
    pub(super) name: String,
    pub(super) is_failing: bool,
    pub(super) ticked_at: Option<Moment>,
    /// How long the last tick took.
    pub(super) duration: String,
    pub(super) tick_count: u64,
    /// How many objects its ticks acted on.
    pub(super) done_count: u64,
    /// How many ticks failed.
    pub(super) failed_count: u64,
    pub(super) failing_since: Option<Moment>,
    pub(super) error: Option<String>,
}

pub(super) struct ExecutorRow {
    pub(super) name: String,
    pub(super) app: String,
    pub(super) status: &'static str,
    pub(super) word: &'static str,
    /// How many runs it executes, by its last heartbeat; `None` if it has no stream to this server.
    pub(super) running: Option<u32>,
    pub(super) slots: u32,
    pub(super) weight: u32,
    pub(super) labels: Vec<String>,
    pub(super) handlers: Vec<String>,
    /// How many more handlers there are.
    pub(super) hidden_count: usize,
    pub(super) sdk_version: String,
    pub(super) last_seen: Moment,
    pub(super) connected: Option<Moment>,
    pub(super) state: &'static str,
    /// How many runs it holds.
    pub(super) run_count: u64,
    /// The remaining runs as text, if the executor is switched off.
    pub(super) countdown: Option<String>,
    /// Whether the number of remaining runs can still change.
    pub(super) is_emptying: bool,
}

impl ExecutorRow {
    /// The URL of its page or, with `verb`, of an action on it.
    pub(super) fn url_of(&self, verb: &str) -> String {
        format!("/executors/{}{verb}?app={}", self.name, self.app)
    }
}

/// A run that an executor holds.
pub(super) struct HeldRun {
    pub(super) id: RunId,
    pub(super) job: String,
    pub(super) status: RunStatus,
    pub(super) word: &'static str,
    pub(super) running_for: Option<String>,
    pub(super) since: Option<Moment>,
    pub(super) attempt: i32,
}

pub(super) fn node_row(node: Node, own_loops: Option<Vec<LoopReport>>, now: Timestamp, t: &Texts) -> NodeRow {
    let status = node.status(now);
    let is_answering = own_loops.is_some();
    // The loops of the answering server come from memory: the server's row is out of date if its beat fails, for example because the
    // database is unreachable.
    let loops: Vec<LoopRow> =
        own_loops.unwrap_or(node.report.loops).into_iter().map(|report| loop_row(report, now, t)).collect();
    let is_dead = status == "dead";
    // No lateness is shown for a dead server, whose last report is old.
    let lateness = node.report.lateness_p99_ms.filter(|_| !is_dead);
    let failing_loops = loops.iter().filter(|row| row.is_failing).map(|row| row.name.clone()).collect();
    let (class, word) = match status {
        "dead" if node.report.is_leaving => ("offline", t.node_left),
        "dead" => ("failed", t.node_dead),
        "leaving" => ("draining", t.node_leaving),
        "draining" => ("draining", t.executor_draining),
        "stopped" => ("cancelled", t.switch_stopped),
        _ => ("online", t.executor_online),
    };
    NodeRow {
        name: node.name,
        is_answering,
        class,
        word,
        status,
        lease: (!is_dead).then(|| length_text(node.lease_until.since(now), t)),
        dead_at: is_dead.then(|| Moment::new(node.lease_until, now, t)),
        has_left: is_dead && node.report.is_leaving,
        job_count: node.report.job_count,
        skew_ms: node.report.skew_ms,
        lateness: lateness.map(|ms| format!("≤ {}", length_text(Duration::from_millis(ms), t))),
        is_late: lateness.is_some_and(|ms| ms > LATE_MS),
        version: node.server_version,
        started_at: Moment::new(node.started_at, now, t),
        url: node.advertise_url,
        loops,
        failing_loops,
    }
}

fn loop_row(report: LoopReport, now: Timestamp, t: &Texts) -> LoopRow {
    LoopRow {
        is_failing: report.failing_since.is_some(),
        name: report.name,
        ticked_at: report.ticked_at.map(|at| Moment::new(at, now, t)),
        duration: format!("{} {}", report.took_ms, t.unit_ms),
        tick_count: report.tick_count,
        done_count: report.done_count,
        failed_count: report.failed_count,
        failing_since: report.failing_since.map(|at| Moment::new(at, now, t)),
        error: report.error,
    }
}

pub(super) fn executor_row(
    executor: ExecutorJson,
    handler_count: Option<usize>,
    now: Timestamp,
    t: &Texts,
) -> ExecutorRow {
    let shown_count = handler_count.unwrap_or(HANDLER_COUNT);
    let (countdown, is_emptying) = open_runs_text(&executor, now, t);
    let (status, word) = match (executor.status, executor.state) {
        ("online" | "draining", "draining") | ("draining", "active") => ("draining", t.executor_draining),
        ("online" | "draining", "stopped") => ("cancelled", t.switch_stopped),
        ("online", _) => ("online", t.executor_online),
        _ => ("offline", t.executor_offline),
    };
    ExecutorRow {
        state: executor.state,
        run_count: executor.run_count,
        countdown,
        is_emptying,
        status,
        word,
        name: executor.name,
        app: executor.app,
        running: executor.running,
        slots: executor.slots,
        weight: executor.weight,
        labels: executor.labels.into_iter().map(|(key, value)| format!("{key}={value}")).collect(),
        hidden_count: executor.handlers.len().saturating_sub(shown_count),
        handlers: executor.handlers.into_iter().take(shown_count).collect(),
        sdk_version: executor.sdk_version,
        last_seen: Moment::new(executor.last_seen_at, now, t),
        connected: executor.connected_at.map(|at| Moment::new(at, now, t)),
    }
}

/// The runs that a switched-off executor still has, as text, and whether their number can still change.
fn open_runs_text(executor: &ExecutorJson, now: Timestamp, t: &Texts) -> (Option<String>, bool) {
    let is_settled = executor.state_since.is_some_and(|since| since + SETTLE_DELAY <= now);
    let text = match (executor.state, executor.run_count) {
        ("draining", 0) if is_settled || executor.status == "offline" => t.exec_empty.to_owned(),
        ("draining", 0) => t.exec_settling.to_owned(),
        ("draining", count) => t.exec_left(count),
        ("stopped", 0) => t.exec_stopped_empty.to_owned(),
        ("stopped", count) => t.exec_stopped_left(count),
        _ => return (None, false),
    };
    (Some(text), executor.status != "offline" && (executor.run_count > 0 || !is_settled))
}

/// The runs of an app that the executor with this name has, the oldest first.
pub(super) async fn held_runs<Q>(page: &Page<Q>, app: AppId, executor: &str) -> Result<Vec<HeldRun>, Problem> {
    let (store, now, t) = (page.engine().store(), page.engine().now(), page.t);
    let mut runs = store.running_runs_of_executor(page.call.namespace.id, app, executor, HELD_RUN_COUNT_MAX).await?;
    runs.sort_by_key(|run| run.id);
    let mut ids: Vec<_> = runs.iter().map(|run| run.job).collect();
    ids.sort_unstable();
    ids.dedup();
    let names: HashMap<_, _> =
        store.job_names(&ids).await.map_err(|error: StoreError| Problem::from(error))?.into_iter().collect();
    let held_rows = runs.iter().map(|run| HeldRun {
        id: run.id,
        job: names.get(&run.job).cloned().unwrap_or_default(),
        status: run.status,
        word: t.status(run.status),
        running_for: run.started_at.map(|at| length_text(now.since(at), t)),
        since: run.started_at.map(|at| Moment::new(at, now, t)),
        attempt: run.attempt,
    });
    Ok(held_rows.collect())
}
