//! The roll call: which executor has a run that may have been sent under a lease that has ended.

use rondel_core::outcome::Outcome;
use rondel_core::spec::OverlapScope;
use rondel_core::{ExecutorId, Reason, RunId};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::LeaseToken;
use rondel_store::cluster::Session;
use rondel_store::ledger::{AttemptEnd, RelayedAnswer};

use crate::dispatch::active::{ActiveRun, Phase};
use crate::dispatch::decision::Decision;
use crate::dispatch::ends;
use crate::dispatch::event::{Report, RollCallRun};
use crate::dispatch::flow;
use crate::dispatch::queue::turns;
use crate::dispatch::ready::{ReadyRun, end_of_unsent, lost_detail};
use crate::dispatch::recovery::rollcall::CallOutcome;
use crate::dispatch::recovery::{fences, look};
use crate::dispatch::starts::{StartReport, StartTimes};
use crate::dispatch::state::State;
use crate::dispatch::step::Step;
use crate::dispatch::waits::{end_of_missed, with_reason};
use crate::metrics::CountedRun;
use crate::registry::OnlineExecutor;

/// Begins the roll call for runs that may have been sent under ended leases. The runs get their places in their jobs' order, and the
/// executors that may have them are asked.
pub(crate) fn call_roll(
    d: &mut Decision<'_>,
    runs: Vec<RollCallRun>,
    sessions: &[Session],
    ended_leases: &[LeaseToken],
) {
    let now = d.now;
    let runs = runs.into_iter().filter_map(|called| unless_in_hand(d, called)).collect();
    let runs = without_settled_runs(d, runs);
    for called in &runs {
        d.state.gates.restore(&called.ready);
        open_place_at_executor(d, &called.ready);
        if !mutant::on(Mutant::AdoptedBesideLimit) {
            d.state.limits.count_open(&called.ready);
        }
        remember_ungated_job(d, &called.ready);
    }
    ended_leases.iter().for_each(|lease| fences::announce(d, *lease));
    d.state.recovery.rollcall.begin(&runs, sessions, ended_leases, &mut d.state.executors, now);
    for called in runs {
        d.state.runs.put_in_roll_call(called.ready);
    }
    resolve(d);
    fences::ask_witnesses(d);
}

/// Gives a run a place at the gate of the executor that its row names, or that has reported it: no other run of its job begins there before
/// the executor has answered.
fn open_place_at_executor(d: &mut Decision<'_>, ready: &ReadyRun) {
    if ready.definition.job.overlap.scope == OverlapScope::Executor
        && let Some(executor) = ready.run.executor_id.or_else(|| d.state.executors.reporter_of(&ready.run))
    {
        d.state.gates.open_place_at(ready, executor);
    }
}

/// Records that an executor may have a run that passed no gate. If an edit gave the job a gate, the job's next run waits for this run.
fn remember_ungated_job(d: &mut Decision<'_>, ready: &ReadyRun) {
    if ready.definition.job.concurrency_max().is_none() {
        d.state.ungated_jobs.insert(ready.run.job);
    }
}

/// Gives each run in the roll call that the executor's hello lists, and that this executor may have, its place at the executor's gate.
pub(crate) fn open_reported_places(d: &mut Decision<'_>, executor: &OnlineExecutor, report: &Report) {
    let State { recovery, runs, gates, .. } = &mut *d.state;
    if recovery.rollcall.is_empty() {
        return;
    }
    let mut held_runs: Vec<(RunId, i32)> = report.held_runs.iter().copied().collect();
    held_runs.sort_unstable();
    for (run, attempt) in held_runs {
        let may_be_claimed = recovery.rollcall.may_be_claimed(run, executor.app, (executor.id, &report.lineage));
        if let Some(ready) = runs.in_roll_call(run).filter(|ready| may_be_claimed && ready.run.attempt == attempt) {
            gates.open_place_at(ready, executor.id);
        }
    }
}

/// Leaves out a run that this node sent under its previous lease and still waits for: the run belongs to the current lease now. A run that
/// this node had given up is not left out, because the store refuses an end that was decided under the previous lease. Earlier attempts are
/// forgotten: the run has continued elsewhere since, so no executor has them any more.
fn unless_in_hand(d: &mut Decision<'_>, entry: RollCallRun) -> Option<RollCallRun> {
    let run = &entry.ready.run;
    look::forget_attempt(d, run.id, run.attempt - 1);
    match d.state.runs.active_mut(run.id).filter(|active| active.ready.run.attempt == run.attempt) {
        Some(active) if active.phase == Phase::Ending && active.ready.token() != entry.ready.token() => {
            d.state.runs.take_active(run.id);
            Some(entry)
        }
        Some(active) => {
            (active.ready.run.node_epoch, active.ready.run.status) = (run.node_epoch, run.status);
            if run.started_at.is_none() {
                // The store has refused the note that the run is running, because it was made under the previous lease.
                active.clear_noted();
            }
            None
        }
        None => Some(entry),
    }
}

/// Leaves out runs whose attempt has ended since the adoption: they are not in memory any more, and a next attempt needs no roll call. Such
/// a run keeps its place in its job's order until it is known whether there is a next attempt.
fn without_settled_runs(d: &mut Decision<'_>, runs: Vec<RollCallRun>) -> Vec<RollCallRun> {
    let is_open = |called: &RollCallRun| d.facts.in_memory.has(&called.ready.run);
    let (open_runs, settled_runs): (Vec<_>, Vec<_>) = runs.into_iter().partition(is_open);
    let settled_runs: Vec<ReadyRun> = settled_runs.into_iter().map(|called| called.ready).collect();
    settled_runs.iter().for_each(|ready| d.state.gates.reserve(ready));
    if !settled_runs.is_empty() {
        d.step(Step::CheckRows(settled_runs.iter().map(|ready| ready.run.id).collect()));
    }
    open_runs
}

/// Forgets runs whose roll call did not begin before the lease ended under which this node had taken them over. The server that adopts them
/// finds them as runs of an ended lease. A run that this node sent under an earlier lease, and still waits for, stays in memory: if it counted
/// as missing, the search for strays could take it for a run that was never sent.
pub(crate) fn drop_roll_call(d: &mut Decision<'_>, lease: LeaseToken, runs: &[RunId]) {
    let dropped_runs: Vec<RunId> = runs.iter().copied().filter(|run| d.state.runs.active(*run).is_none()).collect();
    d.forget_under_lease(dropped_runs.into_iter().map(|run| (run, lease)));
}

/// Ends the roll call of each run for which it is known by now which executor has the run, or that none has it.
pub(crate) fn resolve(d: &mut Decision<'_>) {
    let now = d.now;
    if d.state.recovery.rollcall.is_empty() {
        return;
    }
    for (run, outcome) in d.state.recovery.rollcall.resolve(&d.state.executors) {
        let Some(ready) = d.state.runs.take_from_roll_call(run) else { continue };
        match outcome {
            CallOutcome::AtExecutor(executor) => record_at_executor(d, ready, executor),
            // Every executor has answered that it never had the run: it was not sent, and it is late.
            CallOutcome::NoExecutor(Reason::NotReceived) if ready.is_missed(now) => {
                let attempt_end = AttemptEnd { is_unsent: false, ..end_of_missed(&ready, now) };
                ends::submit(d, attempt_end, CountedRun::of_ready(&ready));
            }
            CallOutcome::NoExecutor(reason) => end_lost(d, &ready, reason),
        }
    }
    flow::offer_freed_places(d);
}

/// Records answers that other servers stored for this server.
pub(crate) fn on_fences_relayed(d: &mut Decision<'_>, answers: Vec<RelayedAnswer>) {
    let mut has_new_answer = false;
    for answer in answers {
        has_new_answer |= d.state.recovery.rollcall.relayed_questions().0.record_answer(answer);
    }
    if has_new_answer {
        resolve(d);
    }
}

/// Records that this executor has the run.
fn record_at_executor(d: &mut Decision<'_>, ready: ReadyRun, executor: ExecutorId) {
    let now = d.now;
    let name = d.state.executors.get(executor).map(|online| online.name.clone());
    let name = name.or_else(|| d.state.recovery.rollcall.name_elsewhere(executor).map(str::to_owned));
    let name = name.unwrap_or_default();
    // A hello may have listed the run for an executor that has handed it back since.
    let admitted_runs = d.state.gates.leave_other_executor(ready.run.id, executor, &mut d.state.runs);
    turns::queue_starts(d, admitted_runs);
    d.state.gates.open_place_at(&ready, executor);
    remember_ungated_job(d, &ready);
    let report = d.state.executors.get(executor).map(|online| online.start_report(&ready.run));
    let noted_at = ready.run.started_at;
    let report = match report.unwrap_or(StartReport::Started(StartTimes::default())) {
        StartReport::Started(start) => StartReport::Started(StartTimes { at: noted_at.or(start.at), ..start }),
        StartReport::NotStarted => StartReport::NotStarted,
    };
    let phase = if noted_at.is_some() { Phase::Noted } else { Phase::Sent };
    let row_names_executor = ready.run.executor_id.is_some();
    let mut active = ActiveRun { row_names_executor, ..ActiveRun::new(ready, executor, name, now, phase) };
    if let StartReport::Started(start) = report {
        // If the instant of the start is not known, the due instant is recorded.
        active.record_start(start.at.unwrap_or(active.ready.run.due_at), now);
    } else if let Some(noted_at) = noted_at {
        active.record_start(noted_at, now);
    }
    d.state.deadlines.record_report(&active.ready, report, d.facts.boot_micros);
    if let Some(online) = d.state.executors.get_mut(executor) {
        online.in_flight += 1;
    }
    d.state.runs.put_active(active);
}

fn end_lost(d: &mut Decision<'_>, ready: &ReadyRun, reason: Reason) {
    let now = d.now;
    let detail = lost_detail(ready.run.executor.as_deref());
    let attempt_end = AttemptEnd {
        is_unsent: false,
        ..end_of_unsent(&ready.run, &ready.definition, Outcome::Lost(reason), now, None)
    };
    ends::submit(d, with_reason(attempt_end, reason, detail), CountedRun::of_ready(ready));
}
