//! Demotes jobs that no schedule currently fires, because they are paused or have no schedule. Nothing is started in XXL-JOB
//! for them.

use std::collections::VecDeque;

use futures_util::future::join_all;
use rondel_core::error_chain::chain_in_one_line;
use rondel_store::foreign::xxl_job::XxlDatabase;

use super::job::{CALL_COUNT_MAX, HOLD_DELAY, Job, Switchover};
use super::outcome::{Outcome, Outcomes, RunLocation};
use super::save::{Saved, save};
use crate::clock;

/// Puts the jobs in shadow mode, and removes the mark of their promotion from their rows in XXL-JOB. If XXL-JOB's
/// database cannot be used, returns the reason.
pub(super) async fn stop(
    switch: &Switchover<'_>,
    database: &mut XxlDatabase,
    jobs: &VecDeque<&Job>,
    outcomes: &mut Outcomes,
) -> Option<String> {
    let jobs: Vec<&Job> = jobs.iter().copied().collect();
    for chunk in jobs.chunks(CALL_COUNT_MAX) {
        let demote_outcomes = join_all(chunk.iter().map(|job| demote_one(switch, job))).await;
        let numbers: Vec<i64> = chunk
            .iter()
            .zip(&demote_outcomes)
            .filter(|(_, outcome)| outcome.is_done)
            .map(|(job, _)| job.number)
            .collect();
        let unmark_failure = database.xxl_unmark(&numbers).await.err().map(|error| chain_in_one_line(&error));
        for (job, outcome) in chunk.iter().zip(demote_outcomes) {
            let outcome = match &unmark_failure {
                Some(reason) if outcome.is_done => {
                    let result =
                        format!("{}; the mark of its promotion is still in XXL-JOB ({reason})", outcome.result);
                    Outcome { result, is_done: false, ..outcome }.repeatable()
                }
                _ => outcome,
            };
            outcomes.insert(job.name.clone(), outcome);
        }
        if unmark_failure.is_some() {
            return unmark_failure;
        }
    }
    None
}

async fn demote_one(switch: &Switchover<'_>, job: &Job) -> Outcome {
    let is_running = switch.xxl_status.get(&job.number).is_some_and(|status| status.is_running);
    let (run_location, result) = match (is_running, job.has_schedule) {
        (true, _) => (RunLocation::XxlJob, "runs in XXL-JOB, as before"),
        (false, true) => {
            (RunLocation::Neither, "is switched, and stays stopped in XXL-JOB: start it there if it is to run")
        }
        (false, false) => (RunLocation::XxlJob, "has no schedule; runs in XXL-JOB when it is triggered there"),
    };
    if job.is_shadow {
        return Outcome::done(run_location, job.mode_from, "was switched before");
    }
    let seam = clock::now() + HOLD_DELAY;
    match save(switch.client, job, "shadow", seam).await {
        Saved::HoldsFrom(_) => Outcome::done(run_location, Some(seam), result),
        Saved::Refused(failure) => {
            Outcome::unchanged(switch.run_location(job), format!("{}; it stays as it is here", failure.message()))
        }
        Saved::Unclear(failure) => {
            let result = format!("not known whether it is in shadow mode here ({})", failure.message());
            Outcome::half_done(RunLocation::Unknown, seam, result).repeatable()
        }
    }
}
