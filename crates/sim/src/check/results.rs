//! Checks of results: what was acknowledged is stored, and what is stored happened.

use rondel_core::run::ROOT_SHARD;
use rondel_core::{Reason, RunId, RunStatus};
use rondel_proto::v1::result::Status;
use rondel_proto::v1::result_ack::Kind;

use super::facts::Facts;
use crate::truth::{AckedResult, Start, Truth};

const fn run_status(status: Status) -> RunStatus {
    match status {
        Status::Succeeded | Status::Yielded => RunStatus::Succeeded,
        Status::TimedOut => RunStatus::TimedOut,
        Status::Cancelled => RunStatus::Cancelled,
        Status::Skipped => RunStatus::Skipped,
        Status::Failed | Status::Unspecified => RunStatus::Failed,
    }
}

/// The status of an attempt in the ledger.
fn stored_status(facts: &Facts, run: RunId, attempt: i32) -> Option<RunStatus> {
    let row = facts.runs.get(&run)?;
    if row.attempt == attempt {
        return Some(row.status);
    }
    facts.attempts.get(&(run, attempt)).map(|attempt| attempt.status)
}

fn is_end_of_group(facts: &Facts, acked: &AckedResult) -> bool {
    let job = facts.runs.get(&acked.run).and_then(|run| facts.jobs.get(&run.job));
    // A deleted job is not among the facts, and may have been a pump.
    let is_pump = job.is_none_or(|job| job.spec.pump.is_some());
    is_pump && matches!(acked.status, Status::Cancelled | Status::Yielded)
}

/// Whether the group ended because the time window of its pump ended.
fn has_ended_window(facts: &Facts, acked: &AckedResult) -> bool {
    let run = facts.runs.get(&acked.run).filter(|run| run.attempt == acked.attempt);
    run.and_then(|run| run.reason).is_some_and(Reason::ends_window)
}

/// I6: a result that was acknowledged as stored is in the ledger.
pub(super) fn lost_results(facts: &Facts, truth: &Truth) -> Vec<String> {
    let complain = |acked: &AckedResult| {
        let stored = stored_status(facts, acked.run, acked.attempt);
        let is_there = match acked.kind {
            // The executor stopped the run because no server answered, or handed it back when it drained. The handler
            // may not have begun, or a cancel may have been requested as well.
            Kind::Stored | Kind::Late | Kind::Superseded if acked.is_silenced => {
                matches!(stored, Some(RunStatus::Failed | RunStatus::Unknown | RunStatus::Cancelled))
            }
            // A group has ended as planned if the pump itself was asked to end.
            Kind::Stored | Kind::Late | Kind::Superseded if is_end_of_group(facts, acked) => match stored {
                Some(RunStatus::Succeeded) => !(acked.is_unfinished && has_ended_window(facts, acked)),
                Some(RunStatus::Failed) => acked.is_unfinished,
                stored => stored == Some(RunStatus::Cancelled),
            },
            Kind::Stored | Kind::Late | Kind::Superseded => stored == Some(run_status(acked.status)),
            // The stored status is the handler's own end, or the timeout that it exceeded.
            Kind::Duplicate if acked.status == Status::Succeeded => {
                matches!(stored, Some(RunStatus::Succeeded | RunStatus::TimedOut))
            }
            Kind::Duplicate => stored.is_some(),
            Kind::NoSuchRun | Kind::Unspecified => false,
        };
        // A run asked to stop after its timeout reports that it was cancelled; the server stores the timeout.
        let was_overdue = acked.status == Status::Cancelled && stored == Some(RunStatus::TimedOut);
        (!is_there && !was_overdue).then(|| {
            let AckedResult { run, attempt, status, kind, .. } = acked;
            format!("I6 durable: run {run} attempt {attempt} was {status:?}, acknowledged {kind:?}; stored {stored:?}")
        })
    };
    truth.acked_results.iter().filter_map(complain).collect()
}

/// I6 in the other direction: no run is stored as succeeded unless its handler succeeded.
pub(super) fn false_successes(facts: &Facts, truth: &Truth) -> Vec<String> {
    let mut found = Vec::new();
    let is_stored_success =
        |run: &&rondel_core::Run| run.status == RunStatus::Succeeded && run.shard_index != ROOT_SHARD;
    for run in facts.runs.values().filter(is_stored_success) {
        let did = |start: &Start| {
            (start.run, start.attempt) == (run.id, run.attempt) && start.ended == Some(Status::Succeeded)
        };
        if !truth.starts.iter().any(did) {
            found.push(format!(
                "I6 durable: run {} attempt {} succeeded without a handler that did",
                run.id, run.attempt
            ));
        }
    }
    found
}

/// I11: every run whose id was returned to a caller exists.
pub(super) fn lost_requested_runs(facts: &Facts, truth: &Truth) -> Vec<String> {
    let is_lost = |run: RunId| !facts.runs.contains_key(&run);
    let lost = truth.requested_runs.iter().filter(|requested| is_lost(requested.run));
    lost.map(|one| format!("I11 requests: run {} of job {} is not there", one.run, one.job)).collect()
}

/// I7: no run is open at the end.
pub(super) fn runs_without_end(facts: &Facts) -> Vec<String> {
    let open = facts.runs.values().filter(|run| !run.status.is_terminal());
    let describe = |run: &rondel_core::Run| {
        let name = facts.jobs.get(&run.job).map_or("?", |job| job.spec.name.as_str());
        let owner = (run.node.get(), run.node_epoch);
        format!(
            "I7 liveness: run {} of {name} ({}) is {} since {}, attempt {}, shard {}, owner {owner:?}",
            run.id, run.fire_at, run.status, run.due_at, run.attempt, run.shard_index
        )
    };
    open.map(describe).collect()
}
