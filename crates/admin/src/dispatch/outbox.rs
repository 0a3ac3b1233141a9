//! Sends placed runs: stores their marks, sends their triggers, and takes back runs that could not be sent.

use std::collections::BTreeSet;
use std::time::Duration;

use rondel_core::spec::Delivery;
use rondel_core::{ExecutorId, RunId, Timestamp};
use rondel_store::ledger::MarkToRemove;

use super::active::{ActiveRun, Phase};
use super::decision::Decision;
use super::effect::Effect;
use super::messages::TRIGGER_BATCH;
use super::queue::turns;
use super::runs::{Arrival, WaitingRun};
use super::step::Step;
use super::{ends, flow, place};

/// How long after its mark an at-most-once run may be sent.
const MARK_VALID_FOR: Duration = Duration::from_secs(1);
/// Maximum number of jobs whose newest term is remembered.
const TERM_COUNT_MAX: usize = 100_000;

/// Stores the marks and sends the triggers, with up to [`TRIGGER_BATCH`] triggers of an executor in one message. Without a lease, nothing is marked
/// or sent: the runs wait here until the lease holds again, or are dropped with the lease.
pub(super) fn flush(d: &mut Decision<'_>) {
    if !d.may_send() {
        return;
    }
    if !d.state.outbox.marks.is_empty() {
        let marks = std::mem::take(&mut d.state.outbox.marks);
        for mark in &marks {
            let active = d.state.runs.active(mark.run);
            if active.is_some_and(|active| active.mark_to_remove().keeps_executor) {
                d.state.pending_steps.shards_being_marked.insert((mark.run, mark.attempt));
            }
        }
        d.step(Step::Mark(marks));
    }
    for (executor, runs) in std::mem::take(&mut d.state.outbox.triggers) {
        let batches = runs.chunks(TRIGGER_BATCH);
        d.effects.extend(batches.map(|batch| Effect::SendTriggers(executor, batch.to_vec())));
    }
}

/// Splits these runs into those that may be sent to the executor now, and those that may not be sent any more, because they were taken under
/// another lease or their mark is too old. Runs that are not placed at this executor any more are left out.
pub(super) fn split_sendable(d: &mut Decision<'_>, executor: ExecutorId, runs: &[RunId]) -> (Vec<RunId>, Vec<RunId>) {
    let (state, token, now) = (&mut *d.state, d.facts.token, d.now);
    if state.newest_terms.len() > TERM_COUNT_MAX {
        state.newest_terms.clear();
    }
    let (mut sendable_runs, mut unsent_runs) = (Vec::with_capacity(runs.len()), Vec::new());
    for run in runs {
        let is_placed = |active: &&mut ActiveRun| active.executor == executor && active.phase == Phase::Placed;
        let Some(active) = state.runs.active_mut(*run).filter(is_placed) else { continue };
        if active.ready.token() == token && may_still_be_sent(active, now) {
            // A run that has waited here may carry an older term than a later run of its job that was sent before it.
            let newest_term = state.newest_terms.entry(active.ready.run.job).or_default();
            *newest_term = active.ready.term.max(*newest_term);
            active.ready.term = *newest_term;
            sendable_runs.push(*run);
        } else {
            unsent_runs.push(*run);
        }
    }
    (sendable_runs, unsent_runs)
}

/// Whether the run may still be sent. An at-most-once run must not be sent once its mark is older than a second: other nodes may already treat the
/// run as lost with this node.
fn may_still_be_sent(active: &ActiveRun, now: Timestamp) -> bool {
    active.ready.definition.job.delivery == Delivery::AtLeastOnce || active.sent_or_chosen_at + MARK_VALID_FOR > now
}

/// Records that these runs were put on the stream of this executor, and that its answers are awaited.
pub(super) fn on_sent(d: &mut Decision<'_>, executor: ExecutorId, runs: &[(RunId, i64)]) {
    let beats_at_send = d.state.executors.get(executor).map_or(0, |online| online.beat_count);
    for (run, number) in runs {
        let Some(active) = d.state.runs.active_mut(*run) else { continue };
        active.ready.was_sent = true;
        (active.phase, active.sent_or_chosen_at, active.trigger_number) = (Phase::Sent, d.now, *number);
        active.beats_at_send = Some(beats_at_send);
    }
}

/// Sends the runs that the store has marked: immediately, or at their instants if these lie ahead. The other runs are forgotten.
pub(super) fn on_marked(d: &mut Decision<'_>, asked_runs: &[(RunId, i32)], marked_runs: &[RunId]) {
    let now = d.now;
    let marked_runs: BTreeSet<RunId> = marked_runs.iter().copied().collect();
    let (mut unwanted_marks, mut unmarked_runs) = (Vec::new(), Vec::new());
    for (run, attempt) in asked_runs {
        let keeps_executor = d.state.pending_steps.shards_being_marked.remove(&(*run, *attempt));
        let is_marked_attempt =
            |active: &&mut ActiveRun| active.phase == Phase::Marking && active.ready.run.attempt == *attempt;
        let Some(active) = d.state.runs.active_mut(*run).filter(is_marked_attempt) else {
            // The run was dropped meanwhile. If it was marked, its mark is removed again.
            let mark = MarkToRemove { run: *run, attempt: *attempt, keeps_executor };
            unwanted_marks.extend(marked_runs.contains(run).then_some(mark));
            continue;
        };
        let (executor, due_at) = (active.executor, active.ready.run.due_at);
        if !marked_runs.contains(run) {
            // The run belongs to another node or is settled, or the database did not answer. The periodic queries find it if it is still open.
            unmarked_runs.extend(ends::remove_from_executor(d, *run).map(|active| active.ready));
            continue;
        }
        active.phase = Phase::Placed;
        if due_at > now {
            d.state.outbox.not_yet_due.insert((due_at, *run));
        } else {
            d.state.outbox.triggers.entry(executor).or_default().push(*run);
        }
    }
    place::forget_and_check_rows(d, &unmarked_runs);
    flow::offer_freed_places(d);
    unmark(d, unwanted_marks);
}

/// Takes back runs that the executor is known not to have received. They wait for an executor again.
pub(super) fn take_back_unsent(d: &mut Decision<'_>, runs: &[RunId]) {
    let now = d.now;
    let token = d.facts.token;
    let (mut marks_to_remove, mut returned_runs) = (Vec::new(), Vec::new());
    for run in runs {
        let Some(mut active) = ends::take_back(d, *run) else { continue };
        // Another server takes a result only from the executor that the row names, and the run may go to a different executor next. The run is
        // marked before it is sent there, so that the row does not name the executor that handed the run back, even if this server dies after the
        // send.
        let is_named = active.row_names_executor && !active.ready.is_for_one_executor();
        if active.ready.is_marked_first() || is_named {
            marks_to_remove.push(active.mark_to_remove());
        }
        active.ready.was_handed_back_by_named_executor |= is_named;
        // A server that is leaving does not retry a run that it gets back: the run goes to another server with its job.
        if active.ready.token() == token && !d.state.is_draining {
            turns::give_back(d, &active.ready);
            flow::offer_freed_places(d);
            if d.state.runs.arrival(&active.ready) != Arrival::Known {
                turns::withdraw(d, *run);
                d.state.parked.push(WaitingRun::new(active.ready, now), &mut d.state.runs);
            }
        } else {
            returned_runs.push(active.ready);
        }
    }
    place::forget_and_check_rows(d, &returned_runs);
    flow::offer_freed_places(d);
    unmark(d, marks_to_remove);
}

/// Removes the marks of runs that are known not to have been received. A mark means that a run may have been sent.
fn unmark(d: &mut Decision<'_>, marks: Vec<MarkToRemove>) {
    if !marks.is_empty() {
        d.state.pending_steps.unmarking_count += 1;
        d.step(Step::Unmark(marks));
    }
}

/// Forgets runs that have an executor and were not sent to it. The caller updates gates and limits.
pub(super) fn drop_unsent_placed(d: &mut Decision<'_>) {
    d.state.outbox.triggers.clear();
    d.state.outbox.marks.clear();
    d.state.outbox.not_yet_due.clear();
    let is_unsent = |active: &&ActiveRun| matches!(active.phase, Phase::Marking | Phase::Placed);
    let mut unsent_runs: Vec<RunId> =
        d.state.runs.active_runs().filter(is_unsent).map(|active| active.ready.run.id).collect();
    unsent_runs.sort_unstable();
    let mut marks_to_remove = Vec::new();
    for run in unsent_runs {
        let Some(active) = ends::remove_from_executor(d, run) else { continue };
        if active.phase == Phase::Placed && active.ready.is_marked_first() {
            marks_to_remove.push(active.mark_to_remove());
        }
        d.forget_under_lease([(run, active.ready.token())]);
    }
    unmark(d, marks_to_remove);
}
