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

fn is_end_of_group(facts: &Facts, acked_result: &AckedResult) -> bool {
    let job = facts.runs.get(&acked_result.run).and_then(|run| facts.jobs.get(&run.job));
    // A deleted job is not among the facts, and may have been a pump.
    let is_pump = job.is_none_or(|job| job.spec.pump.is_some());
    is_pump && matches!(acked_result.status, Status::Cancelled | Status::Yielded)
}

/// Whether the group ended because the time window of its pump ended.
fn has_ended_window(facts: &Facts, acked_result: &AckedResult) -> bool {
    let run = facts.runs.get(&acked_result.run).filter(|run| run.attempt == acked_result.attempt);
    run.and_then(|run| run.reason).is_some_and(Reason::ends_window)
}

/// I6: a result that was acknowledged as stored is in the ledger.
pub(super) fn lost_results(facts: &Facts, truth: &Truth) -> Vec<String> {
    let complaint = |acked_result: &AckedResult| {
        let ledger_status = stored_status(facts, acked_result.run, acked_result.attempt);
        let is_stored = match acked_result.kind {
            // The executor stopped the run because no server answered, or handed it back when it drained. The handler
            // may not have begun, or a cancel may have been requested as well.
            Kind::Stored | Kind::Late | Kind::Superseded if acked_result.is_silenced => {
                matches!(ledger_status, Some(RunStatus::Failed | RunStatus::Unknown | RunStatus::Cancelled))
            }
            // A group has ended as planned if the pump itself was asked to end.
            Kind::Stored | Kind::Late | Kind::Superseded if is_end_of_group(facts, acked_result) => match ledger_status
            {
                Some(RunStatus::Succeeded) => !(acked_result.is_unfinished && has_ended_window(facts, acked_result)),
                Some(RunStatus::Failed) => acked_result.is_unfinished,
                ledger_status => ledger_status == Some(RunStatus::Cancelled),
            },
            Kind::Stored | Kind::Late | Kind::Superseded => ledger_status == Some(run_status(acked_result.status)),
            // The stored status is the handler's own end, or the timeout that it exceeded.
            Kind::Duplicate if acked_result.status == Status::Succeeded => {
                matches!(ledger_status, Some(RunStatus::Succeeded | RunStatus::TimedOut))
            }
            Kind::Duplicate => ledger_status.is_some(),
            Kind::NoSuchRun | Kind::Unspecified => false,
        };
        // A run asked to stop after its timeout reports that it was cancelled; the server stores the timeout.
        let was_overdue = acked_result.status == Status::Cancelled && ledger_status == Some(RunStatus::TimedOut);
        (!is_stored && !was_overdue).then(|| {
            let AckedResult { run, attempt, status, kind, .. } = acked_result;
            format!("I6 durable: run {run} attempt {attempt} was {status:?}, acknowledged {kind:?}; stored {ledger_status:?}")
        })
    };
    truth.acked_results.iter().filter_map(complaint).collect()
}

/// I6 in the other direction: no run is stored as succeeded unless its handler succeeded.
pub(super) fn false_successes(facts: &Facts, truth: &Truth) -> Vec<String> {
    let mut complaints = Vec::new();
    let is_stored_success =
        |run: &&rondel_core::Run| run.status == RunStatus::Succeeded && run.shard_index != ROOT_SHARD;
    for run in facts.runs.values().filter(is_stored_success) {
        let has_succeeded = |start: &Start| {
            (start.run, start.attempt) == (run.id, run.attempt) && start.end_status == Some(Status::Succeeded)
        };
        if !truth.starts.iter().any(has_succeeded) {
            complaints.push(format!(
                "I6 durable: run {} attempt {} succeeded without a handler that did",
                run.id, run.attempt
            ));
        }
    }
    complaints
}

/// I11: every run whose id was returned to a caller exists.
pub(super) fn lost_requested_runs(facts: &Facts, truth: &Truth) -> Vec<String> {
    let is_lost = |run: RunId| !facts.runs.contains_key(&run);
    let lost_runs = truth.requested_runs.iter().filter(|requested_run| is_lost(requested_run.run));
    lost_runs
        .map(|requested_run| {
            format!("I11 requests: run {} of job {} is not there", requested_run.run, requested_run.job)
        })
        .collect()
}

/// I7: no run is open at the end.
pub(super) fn runs_without_end(facts: &Facts) -> Vec<String> {
    let open_runs = facts.runs.values().filter(|run| !run.status.is_terminal());
    let describe = |run: &rondel_core::Run| {
        let name = facts.jobs.get(&run.job).map_or("?", |job| job.spec.name.as_str());
        let owner = (run.node.get(), run.node_epoch);
        format!(
            "I7 liveness: run {} of {name} ({}) is {} since {}, attempt {}, shard {}, owner {owner:?}",
            run.id, run.fire_at, run.status, run.due_at, run.attempt, run.shard_index
        )
    };
    open_runs.map(describe).collect()
}
