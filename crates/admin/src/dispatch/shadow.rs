//! Runs in shadow mode: they are routed like other runs, but not sent.
//!
//! They pass no gate and take no limit, so they neither delay nor replace real runs. No executor is asked about them.

use rondel_core::reason::ReasonDetail;
use rondel_core::shadow::compare::name_all;
use rondel_core::{Reason, Run};
use rondel_failpoint::mutant::{self, Mutant};

use super::decision::Decision;
use super::queue::probes::Probe;
use super::ready::ReadyRun;
use super::routing::{self, RouteDecision};
use super::waits;

/// Whether the run must not be sent, because it is in shadow mode.
pub(super) fn is_shadow(ready: &ReadyRun) -> bool {
    let run = &ready.run;
    ready.definition.job.mode.is_shadow_run(run.trigger, run.fire_at) && !mutant::on(Mutant::ShadowIsSent)
}

/// Returns a run that may be sent. A run in shadow mode is skipped, and its detail names the executor that would have got it.
pub(super) fn unless_shadow(d: &mut Decision<'_>, ready: ReadyRun) -> Option<ReadyRun> {
    if !is_shadow(&ready) {
        return Some(ready);
    }
    let (ready, executor) = match is_unexpanded_root(&ready.run) {
        true => {
            let executors = eligible_executor_names(d, &ready);
            (ready, executors)
        }
        false => choose_executor(d, ready),
    };
    let job = &ready.definition.job;
    let obstacles = match executor {
        Some(_) => Vec::new(),
        None => d.state.executors.obstacles(&ready, d.now),
    };
    let app = Some(job.app.clone());
    let detail = ReasonDetail { executor, app, ..ReasonDetail::default() }.with_obstacles(obstacles);
    waits::skip(d, &ready, Reason::Shadow, detail);
    None
}

/// Whether the run represents all shards of its fire, which have not been created.
const fn is_unexpanded_root(run: &Run) -> bool {
    run.is_root() && run.shard_total.is_none()
}

/// The names of the executors that would have got the shards, in one text; `None` if there are none.
fn eligible_executor_names(d: &Decision<'_>, ready: &ReadyRun) -> Option<String> {
    let executors = d.state.executors.eligible_executors(ready);
    let names: Vec<&str> = executors.iter().map(|online| online.name.as_str()).collect();
    name_all(&names)
}

/// Lets the job's router choose. Returns the run, with the trace of the choice, and the name of the chosen executor.
fn choose_executor(d: &mut Decision<'_>, ready: ReadyRun) -> (ReadyRun, Option<String>) {
    let tried_since = Some(ready.first_routed_at.unwrap_or(d.now));
    let mut probe = Probe::new(ReadyRun { first_routed_at: tried_since, ..ready }, d.now);
    let (executor, trace) = match routing::choose(d, &probe, true) {
        RouteDecision::Executor(_, name, trace) => (Some(name), trace),
        RouteDecision::Wait(_) | RouteDecision::NoExecutor => (None, routing::trace_without_executor(d, &probe.ready)),
    };
    probe.ready.run.trace = Some(trace);
    (probe.ready, executor)
}
