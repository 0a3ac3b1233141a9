//! Reads rows that may show more than this node's memory: those of executors that only other nodes hear, and of runs that ended on other
//! nodes. Nodes communicate only through rows.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use rondel_core::{ExecutorId, Reason, RunId, RunStatus, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::LeaseToken;
use rondel_store::ledger::{CancelElsewhere, EndOutcome, RunCheck};

use crate::counters::Count;
use crate::dispatch::active::Phase;
use crate::dispatch::decision::Decision;
use crate::dispatch::effect::Effect;
use crate::dispatch::event::SettledAttempt;
use crate::dispatch::messages::cancel;
use crate::dispatch::queue::turns;
use crate::dispatch::ready::ReadyRun;
use crate::dispatch::recovery::{lose, roll, silence};
use crate::dispatch::results::verdicts;
use crate::dispatch::step::Step;
use crate::dispatch::{ends, flow};

/// How often the rows of runs at executors are read. The row of a run is read only once the run was sent at least this long ago.
const LOOK_PERIOD: Duration = Duration::from_secs(5);
/// Maximum number of rows that one look reads for each of three kinds of runs: runs at executors, runs in the roll call, and runs that hold up
/// others. The runs whose rows were read the longest ago come first.
const LOOK_COUNT_MAX: usize = 5_000;

/// The state of a row, compared with this node's memory of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowState {
    /// The run is as this node knows it.
    Unchanged,
    /// It has its verdict, or no row any more.
    Ended,
    /// Another attempt follows.
    NextAttempt,
    /// It belongs to another node.
    OtherNode,
}

/// Asks when other nodes last heard the executors that have been silent here for too long. Rows may show executors as silent for longer
/// than they were if the database's clock may have stepped ahead, the database was unreachable, or this server has just started and does
/// not know whether the clock stepped before. In these cases every executor gets the full time again.
pub(crate) fn look_for_lost_executors(d: &mut Decision<'_>) {
    let now = d.now;
    let lost_after = d.facts.settings.lost_after;
    if d.facts.rows_may_be_old {
        return;
    }
    let suspects = d.state.executors.suspects(now - lost_after);
    if !suspects.is_empty() && !d.state.pending_steps.is_looking_for_lost {
        d.state.pending_steps.is_looking_for_lost = true;
        d.step(Step::LastHeard(suspects));
    }
}

/// Handles the answer to [`Step::LastHeard`]: when other nodes last heard these suspects. An executor whose stream to this node has ended is
/// not lost while another node hears it.
pub(crate) fn on_heard_elsewhere(
    d: &mut Decision<'_>,
    suspects: &[ExecutorId],
    heard_at_by_executor: &BTreeMap<ExecutorId, Timestamp>,
) {
    let now = d.now;
    let lost_after = d.facts.settings.lost_after;
    d.state.pending_steps.is_looking_for_lost = false;
    for executor in suspects {
        match heard_at_by_executor.get(executor) {
            Some(at) if *at + lost_after > now => d.state.executors.watch(*executor, *at),
            // Perhaps the rows were read before it was known that they may be old.
            _ if d.facts.rows_may_be_old => {}
            // The executor has connected since the question. If it has left again, it gets the full time again.
            _ if !d.state.executors.is_suspect(*executor, now - lost_after) => {}
            _ if d.state.executors.record_loss(*executor, now, silence::silence_cutoff(d)) => {
                lose_executor(d, *executor)
            }
            _ => {}
        }
    }
    roll::resolve(d);
}

/// An executor that has shut down cleanly counts as ended, unless one of its runs has no result yet: the result may be in the executor's
/// journal, and the executor then sends it after its next start.
pub(crate) fn on_executor_shut_down(d: &mut Decision<'_>, executor: ExecutorId) {
    let now = d.now;
    if lose::runs_sent_to(d, executor, |_| true).is_empty() && d.state.executors.record_process_end(executor, now) {
        d.step(Step::NoteLeft(executor));
        roll::resolve(d);
    }
}

/// An executor whose process was seen to die is lost immediately, without a long silence first. It has no journal with results to wait for.
pub(crate) fn on_process_died(d: &mut Decision<'_>, executor: ExecutorId) {
    let now = d.now;
    if d.state.executors.record_process_end(executor, now) {
        lose_executor(d, executor);
        d.step(Step::NoteLeft(executor));
        roll::resolve(d);
    }
}

fn lose_executor(d: &mut Decision<'_>, executor: ExecutorId) {
    let has_stopped_all = d.state.executors.has_stopped_all(executor);
    let runs = lose::runs_sent_to(d, executor, |active| has_stopped_all || !silence::continues_in_silence(active));
    tracing::warn!(executor_id = %executor, count = runs.len(), "an executor is lost");
    d.count(Count::ExecutorsLost, 1);
    for run in runs {
        lose::lose(d, run, Reason::ExecutorLost);
    }
}

/// Reads the rows of runs that may have changed without an event here: another node may have stored a result. Also reads the rows of runs
/// that are not in memory but hold up others: such a run keeps its place in its job's order only while its next attempt waits in the store.
pub(crate) fn look_at_rows(d: &mut Decision<'_>) {
    let now = d.now;
    if now < d.state.recovery.next_look_at || mutant::on(Mutant::NoLook) {
        return;
    }
    d.state.recovery.next_look_at = now + LOOK_PERIOD;
    let mut runs = if d.facts.settings.is_single_server { Vec::new() } else { runs_to_check(d) };
    let missing_runs_ahead = d.facts.in_memory.missing_runs(d.state.gates.runs_holding_up());
    runs.extend(next_in_turn(missing_runs_ahead, &mut d.state.recovery.last_looked_runs.0, LOOK_COUNT_MAX));
    if !runs.is_empty() {
        d.step(Step::CheckRows(runs));
    }
}

/// The runs at executors, and the runs in the roll call, whose rows were read the longest ago: up to [`LOOK_COUNT_MAX`] of each.
fn runs_to_check(d: &mut Decision<'_>) -> Vec<RunId> {
    let now = d.now;
    let is_old = |sent_at: Timestamp| sent_at + LOOK_PERIOD <= now;
    let is_held = |phase| matches!(phase, Phase::Sent | Phase::Noted);
    let mut held_runs: Vec<(Timestamp, RunId)> = d
        .state
        .runs
        .active_runs()
        .filter(|active| is_held(active.phase) && is_old(active.sent_or_chosen_at))
        .map(|active| (active.row_checked_at, active.ready.run.id))
        .collect();
    held_runs.sort_unstable();
    held_runs.truncate(LOOK_COUNT_MAX);
    for (_, run) in &held_runs {
        if let Some(active) = d.state.runs.active_mut(*run) {
            active.row_checked_at = now;
        }
    }
    let roll_call_runs = d.state.recovery.rollcall.runs().collect();
    let roll_call_runs = next_in_turn(roll_call_runs, &mut d.state.recovery.last_looked_runs.1, LOOK_COUNT_MAX);
    held_runs.into_iter().map(|(_, run)| run).chain(roll_call_runs).collect()
}

/// The next `count` of these runs, which are sorted: the runs after `last_looked_run`, and then the runs from the first run on. Sets
/// `last_looked_run` to the last run that it returns.
fn next_in_turn(mut runs: Vec<RunId>, last_looked_run: &mut RunId, count: usize) -> Vec<RunId> {
    let next_index = runs.partition_point(|run| *run <= *last_looked_run);
    runs.rotate_left(next_index);
    runs.truncate(count);
    *last_looked_run = runs.last().copied().unwrap_or(*last_looked_run);
    runs
}

pub(crate) fn on_rows_checked(d: &mut Decision<'_>, asked_runs: &[RunId], checks: &[RunCheck]) {
    let rows: HashMap<RunId, &RunCheck> = checks.iter().map(|check| (check.id, check)).collect();
    let own_lease = d.facts.token;
    let is_own = |check: &RunCheck| check.owner.node == own_lease.node;
    for run in asked_runs {
        let row = rows.get(run).copied();
        let held_run = d.state.runs.active(*run).filter(|active| matches!(active.phase, Phase::Sent | Phase::Noted));
        if let Some(ready) = held_run.map(|active| &active.ready).or_else(|| d.state.runs.in_roll_call(*run)) {
            let (attempt, lease) = (ready.run.attempt, ready.token());
            apply_row_state(d, *run, (attempt, lease), row_state(attempt, row, is_own));
            if let Some(row) = row {
                update_lease(d, row);
            }
        } else if !d.facts.in_memory.missing_runs([*run]).is_empty() {
            let admitted_runs = match place_by_row(row.filter(|row| is_own(row))) {
                RowPlace::Open => continue,
                RowPlace::Reserved => d.state.gates.make_reserved(*run, &mut d.state.runs),
                RowPlace::Vacant => d.state.gates.leave(*run, &mut d.state.runs),
            };
            turns::queue_starts(d, admitted_runs);
            flow::offer_freed_places(d);
        }
    }
}

/// Applies the state of the row to an attempt that this node has, under `lease`, at an executor or in the roll call.
fn apply_row_state(d: &mut Decision<'_>, run: RunId, (attempt, lease): (i32, LeaseToken), row_state: RowState) {
    if row_state == RowState::Unchanged {
        return;
    }
    forget_attempt(d, run, attempt);
    if row_state == RowState::NextAttempt && d.facts.in_memory.has_later(run, attempt) {
        // The next attempt is in memory by now and has the place at the gate. A limit counts that attempt only once it has an executor.
        if d.state.runs.active(run).is_none() {
            turns::release_limit(d, run);
            flow::offer_freed_places(d);
        }
        return;
    }
    if row_state == RowState::OtherNode && lease == d.facts.token {
        // A run that may have been sent is never handed over. So another node has adopted it, and this node's present lease has ended, even if it
        // still holds by this node's clock. Nothing is sent under it any more, least of all the runs that wait behind this run.
        d.facts.lease_holds = false;
        d.effects.push(Effect::EndLease);
    }
    if row_state == RowState::NextAttempt || row_state == RowState::OtherNode {
        d.forget([run]);
        turns::release_limit(d, run);
        let admitted_runs = d.state.gates.make_reserved(run, &mut d.state.runs);
        turns::queue_starts(d, admitted_runs);
        flow::offer_freed_places(d);
    } else {
        verdicts::on_settled(d, &SettledAttempt { run, attempt, owner: None, end_outcome: EndOutcome::Duplicate });
    }
}

/// Gives a run at an executor the current lease if its row has that lease. The run may have belonged to another node for a while, and have
/// come back by an adoption whose answer was lost. If the row records no start, the store refused the note about it, which was made under the
/// earlier lease; the note is made again.
fn update_lease(d: &mut Decision<'_>, row: &RunCheck) {
    if row.owner != d.facts.token {
        return;
    }
    let active = d.state.runs.active_mut(row.id).filter(|active| active.ready.run.attempt == row.attempt);
    if let Some(active) = active {
        (active.ready.run.node_epoch, active.ready.run.status) = (row.owner.epoch, row.status);
        if !row.has_recorded_start {
            active.clear_noted();
        }
    }
}

/// Forgets this attempt, or an earlier attempt of the run: no executor has it any more.
pub(crate) fn forget_attempt(d: &mut Decision<'_>, run: RunId, attempt: i32) {
    let is_up_to_attempt = |ready: &ReadyRun| ready.run.attempt <= attempt;
    if d.state.runs.active(run).is_some_and(|active| is_up_to_attempt(&active.ready)) {
        ends::remove_from_executor(d, run);
        d.state.deadlines.forget(run);
    }
    if d.state.runs.in_roll_call(run).is_some_and(is_up_to_attempt) {
        d.state.recovery.rollcall.remove(run, &mut d.state.runs);
    }
}

/// Sends cancel requests to executors that are connected here; the owners of their runs may have no stream to them.
pub(crate) fn cancel_elsewhere(d: &mut Decision<'_>, cancels: Vec<CancelElsewhere>) {
    for cancel_request in cancels {
        if let Some(online) = d.state.executors.get(cancel_request.executor) {
            let body = cancel(cancel_request.run, cancel_request.attempt, &cancel_request.by);
            d.effects.push(Effect::Send(online.session.clone(), body));
        }
    }
}

fn row_state(attempt: i32, row: Option<&RunCheck>, is_own: impl Fn(&RunCheck) -> bool) -> RowState {
    match row {
        None => RowState::Ended,
        Some(check) if check.status.is_terminal() => RowState::Ended,
        Some(check) if !is_own(check) => RowState::OtherNode,
        Some(check) if check.attempt > attempt => RowState::NextAttempt,
        Some(_) => RowState::Unchanged,
    }
}

/// The place in its job's order of a run that is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowPlace {
    /// It is under way: the periodic queries find the executor that has it.
    Open,
    /// It waits for another attempt.
    Reserved,
    /// It has ended, has no row, or belongs to another node.
    Vacant,
}

/// The place that the run's row shows. `row` is `None` if the run has no row or belongs to another node.
fn place_by_row(row: Option<&RunCheck>) -> RowPlace {
    match row.map(|row| row.status) {
        Some(RunStatus::Running) => RowPlace::Open,
        Some(RunStatus::Pending | RunStatus::Waiting) => RowPlace::Reserved,
        _ => RowPlace::Vacant,
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::NodeId;

    use super::*;

    fn row(status: RunStatus, attempt: i32, node: i64) -> RunCheck {
        RunCheck {
            id: RunId::new(1),
            status,
            attempt,
            job_version: 1,
            has_recorded_start: true,
            owner: LeaseToken { node: NodeId::new(node), epoch: 1 },
            cancel_by: None,
            drop_for: None,
            term: 1,
        }
    }

    #[test]
    fn the_row_of_a_held_run_is_compared() {
        let state_of = |row: Option<RunCheck>| row_state(2, row.as_ref(), |check| check.owner.node == NodeId::new(1));
        for (row, expected) in [
            (None, RowState::Ended),
            (Some(row(RunStatus::Succeeded, 2, 1)), RowState::Ended),
            (Some(row(RunStatus::Failed, 3, 2)), RowState::Ended),
            (Some(row(RunStatus::Waiting, 3, 1)), RowState::NextAttempt),
            (Some(row(RunStatus::Running, 2, 2)), RowState::OtherNode),
            (Some(row(RunStatus::Waiting, 3, 2)), RowState::OtherNode),
            (Some(row(RunStatus::Pending, 2, 2)), RowState::OtherNode),
            (Some(row(RunStatus::Running, 2, 1)), RowState::Unchanged),
            (Some(row(RunStatus::Pending, 2, 1)), RowState::Unchanged),
        ] {
            assert_eq!(state_of(row.clone()), expected, "{row:?}");
        }
    }

    #[test]
    fn each_run_is_looked_at_however_many_there_are() {
        let mut last = RunId::new(0);
        let mut taken = |ids: &[i64]| {
            let runs = ids.iter().copied().map(RunId::new).collect();
            next_in_turn(runs, &mut last, 2).into_iter().map(RunId::get).collect::<Vec<_>>()
        };
        assert_eq!(taken(&[1, 2, 3, 4, 5]), [1, 2]);
        assert_eq!(taken(&[1, 3, 4, 5]), [3, 4]);
        assert_eq!(taken(&[1, 3, 4, 5]), [5, 1]);
        assert_eq!(taken(&[1]), [1]);
        assert_eq!(taken(&[]), [] as [i64; 0]);
        assert_eq!(taken(&[2, 9]), [2, 9]);
    }

    #[test]
    fn a_run_that_is_not_here_keeps_its_place_while_it_is_open_and_this_nodes() {
        for (status, expected) in [
            (RunStatus::Running, RowPlace::Open),
            (RunStatus::Waiting, RowPlace::Reserved),
            (RunStatus::Pending, RowPlace::Reserved),
            (RunStatus::Failed, RowPlace::Vacant),
            (RunStatus::Unknown, RowPlace::Vacant),
        ] {
            assert_eq!(place_by_row(Some(&row(status, 2, 1))), expected, "{status}");
        }
        assert_eq!(place_by_row(None), RowPlace::Vacant, "it is another node's, or gone");
    }
}
