//! Switches jobs from XXL-JOB to Rondel.
//!
//! Children are saved first: as long as their parents are in shadow mode, Rondel does not fire them. Then the jobs with
//! a schedule are stopped in XXL-JOB and made active in Rondel, in batches.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures_util::future::join_all;
use rondel_core::Timestamp;
use rondel_core::error_chain::chain_in_one_line;
use rondel_store::foreign::ForeignError;
use rondel_store::foreign::xxl_job::{JobStatus, StartOutcome, StopOutcome, XxlDatabase};
use tokio::time::Instant;

use super::job::{CALL_COUNT_MAX, Direction, HOLD_DELAY, Job, Switchover, instant_of_millis};
use super::outcome::{Outcome, Outcomes, RunLocation};
use super::relatives;
use super::save::{Pace, Saved, save};
use crate::clock;
use crate::exit::Failure;

/// The pause before a job whose next fire in XXL-JOB is too near is checked again.
const RECHECK_PAUSE: Duration = Duration::from_millis(300);
/// An edit within this time after the seam belongs to the switch at that seam.
const SAME_SWITCH_WITHIN: Duration = Duration::from_secs(600);
/// The result for a job that is paused in Rondel and stopped in XXL-JOB.
const STAYS_PAUSED: &str = "is switched, and stays paused here: resume it if it is to run";

pub(super) async fn promote(
    switch: &Switchover<'_>,
    database: &mut XxlDatabase,
    mut refusals: BTreeMap<String, String>,
    (mut pace, wait): (Pace, Duration),
) -> Outcomes {
    let began_at = Instant::now();
    save_children(switch, &mut refusals).await;
    let mut outcomes = Outcomes::new();
    for job in &switch.jobs {
        if let Some(reason) = refusals.get(&job.name) {
            outcomes.insert(job.name.clone(), Outcome::unchanged(switch.run_location(job), reason));
        }
    }
    let mut open_jobs: VecDeque<&Job> =
        switch.jobs.iter().filter(|job| !job.is_follower() && !refusals.contains_key(&job.name)).collect();
    while !open_jobs.is_empty() {
        let mut retry_jobs = VecDeque::new();
        while !open_jobs.is_empty() {
            let batch: Vec<&Job> = open_jobs.drain(..pace.batch_len().min(open_jobs.len())).collect();
            let numbers: Vec<i64> = batch.iter().map(|job| job.number).collect();
            let allowance = pace.allowance();
            let not_before = || (clock::now() + HOLD_DELAY + allowance).as_millis();
            let stop_outcomes = match database.xxl_stop(&numbers, not_before).await {
                Ok(stop_outcomes) => stop_outcomes,
                Err(error) => {
                    let reason = chain_in_one_line(&error);
                    let has_changed_nothing = matches!(error, ForeignError::NoLock);
                    let (unclear_jobs, unlocked_jobs) =
                        if has_changed_nothing { (&[][..], &batch[..]) } else { (&batch[..], &[][..]) };
                    let unchanged_jobs = unlocked_jobs.iter().chain(&open_jobs).chain(&retry_jobs).copied();
                    outcomes.extend(unreachable_database_outcomes(
                        switch,
                        unclear_jobs,
                        unchanged_jobs,
                        &reason,
                        !has_changed_nothing,
                    ));
                    return with_children(switch, outcomes, &refusals);
                }
            };
            let is_waiting = began_at.elapsed() < wait;
            let (waiting_jobs, batch): (Vec<&Job>, Vec<&Job>) = batch
                .into_iter()
                .partition(|job| is_waiting && matches!(stop_outcomes.get(&job.number), Some(StopOutcome::TooNear(_))));
            retry_jobs.extend(waiting_jobs);
            let start = Instant::now();
            let promote_ends =
                join_all(batch.iter().map(|job| promote_one(switch, job, stop_outcomes.get(&job.number), allowance)))
                    .await;
            if !batch.is_empty() {
                pace.record_measured(start.elapsed());
            }
            for (job, promote_end) in batch.iter().zip(promote_ends) {
                let outcome = match promote_end {
                    PromoteEnd::Settled(outcome) => outcome,
                    PromoteEnd::Refused(seam, failure) => start_again(database, job, seam, &failure).await,
                };
                outcomes.insert(job.name.clone(), outcome);
            }
            mark_promoted(database, &batch, &stop_outcomes, &mut outcomes).await;
        }
        open_jobs = retry_jobs;
        if !open_jobs.is_empty() {
            tokio::time::sleep(RECHECK_PAUSE).await;
        }
    }
    with_children(switch, outcomes, &refusals)
}

/// Makes the jobs that only follow others active. If that fails for a job, its parents stay unchanged.
async fn save_children(switch: &Switchover<'_>, refusals: &mut BTreeMap<String, String>) {
    let followers: Vec<&Job> = switch
        .jobs
        .iter()
        .filter(|job| job.is_follower() && job.is_shadow && !refusals.contains_key(&job.name))
        .collect();
    for chunk in followers.chunks(CALL_COUNT_MAX) {
        // The current time is before the seam of any parent.
        let active_from = clock::now();
        let results = join_all(chunk.iter().map(|job| save(switch.client, job, "active", active_from))).await;
        for (job, result) in chunk.iter().zip(results) {
            if let Saved::Refused(failure) | Saved::Unclear(failure) = result {
                refusals.insert(job.name.clone(), format!("it was not saved here: {}", failure.message()));
            }
        }
    }
    relatives::propagate_refusals(Direction::Promote, &switch.jobs, refusals);
}

/// Adds the outcomes of the children. Each follows from the outcomes of the child's parents.
fn with_children(switch: &Switchover<'_>, mut outcomes: Outcomes, refusals: &BTreeMap<String, String>) -> Outcomes {
    let mut followers: Vec<&Job> =
        switch.jobs.iter().filter(|job| job.is_follower() && !refusals.contains_key(&job.name)).collect();
    // A child may be a parent of other children.
    while let Some(index) = followers
        .iter()
        .position(|job| !job.parents.iter().any(|name| followers.iter().any(|follower| follower.name == *name)))
    {
        let job = followers.swap_remove(index);
        let parents = job.parents.iter().filter_map(|name| Some((name, outcomes.get(name)?)));
        let undone_parents: Vec<(&String, &Outcome)> = parents.filter(|(_, outcome)| !outcome.is_done).collect();
        let outcome = match undone_parents.first() {
            None if job.is_shadow => Outcome::done(RunLocation::Rondel, None, "runs here after its parents"),
            None => Outcome::done(RunLocation::Rondel, job.mode_from, "was switched before"),
            Some((name, parent)) => {
                let result = format!("is active here, and runs where its parent {name} does, which was not switched");
                let outcome = Outcome::unchanged(parent.run_location, result);
                if parent.is_repeatable { outcome.repeatable() } else { outcome }
            }
        };
        outcomes.insert(job.name.clone(), outcome);
    }
    outcomes
}

fn unreachable_database_outcomes<'a>(
    switch: &Switchover<'_>,
    unclear_jobs: &[&'a Job],
    unchanged_jobs: impl Iterator<Item = &'a Job>,
    reason: &str,
    is_repeatable: bool,
) -> Outcomes {
    let unclear_outcome_of = |job: &&Job| {
        let result = format!("not known whether XXL-JOB has stopped it ({reason}), and unchanged here");
        (job.name.clone(), Outcome::unchanged(RunLocation::Unknown, result).repeatable())
    };
    let unchanged_outcome_of = |job: &Job| {
        let result = format!("nothing was changed: the database of XXL-JOB cannot be used ({reason})");
        let outcome = Outcome::unchanged(switch.run_location(job), result);
        (job.name.clone(), if is_repeatable { outcome.repeatable() } else { outcome })
    };
    unclear_jobs.iter().map(unclear_outcome_of).chain(unchanged_jobs.map(unchanged_outcome_of)).collect()
}

enum PromoteEnd {
    Settled(Outcome),
    /// The job was stopped in XXL-JOB at the seam, and is certainly not saved in Rondel.
    Refused(Timestamp, Failure),
}

async fn promote_one(
    switch: &Switchover<'_>,
    job: &Job,
    stop_outcome: Option<&StopOutcome>,
    allowance: Duration,
) -> PromoteEnd {
    match stop_outcome {
        None => PromoteEnd::Settled(Outcome::unchanged(
            switch.run_location(job),
            format!("XXL-JOB has no job {}", job.number),
        )),
        Some(StopOutcome::TooNear(at)) => {
            PromoteEnd::Settled(Outcome::unchanged(switch.run_location(job), too_near_text(*at, allowance)))
        }
        Some(StopOutcome::At(at)) => take_over(switch, job, seam_at(*at)).await,
        Some(StopOutcome::AlreadyStopped(status)) if !job.is_shadow => {
            PromoteEnd::Settled(earlier_switch_outcome(job, *status))
        }
        Some(StopOutcome::AlreadyStopped(status)) => {
            PromoteEnd::Settled(take_over_stopped(switch, job, *status, allowance).await)
        }
    }
}

/// The seam for a job's next instant in XXL-JOB. Before version 3.4 the instants of a fixed rate have fractions of a second. XXL-JOB fires
/// at the beginning of that second, and Rondel at whole seconds: the fire of this second belongs to Rondel.
fn seam_at(next_ms: i64) -> Timestamp {
    instant_of_millis(next_ms).floor(Duration::from_secs(1))
}

/// Marks switched jobs that had already been stopped in XXL-JOB, so that an import recognises them as promoted.
async fn mark_promoted(
    database: &mut XxlDatabase,
    batch: &[&Job],
    stop_outcomes: &BTreeMap<i64, StopOutcome>,
    outcomes: &mut Outcomes,
) {
    let is_unmarked = |job: &&Job| {
        let outcome = stop_outcomes.get(&job.number);
        matches!(outcome, Some(StopOutcome::AlreadyStopped(status)) if status.next_ms == 0)
    };
    let is_done = |name: &str| outcomes.get(name).is_some_and(|outcome| outcome.is_done);
    let unmarked_jobs: Vec<&Job> = batch.iter().copied().filter(is_unmarked).filter(|job| is_done(&job.name)).collect();
    let numbers: Vec<i64> = unmarked_jobs.iter().map(|job| job.number).collect();
    let Err(error) = database.xxl_mark(&numbers, clock::now().as_millis()).await else { return };
    let reason = chain_in_one_line(&error);
    for job in unmarked_jobs {
        if let Some(outcome) = outcomes.remove(&job.name) {
            let result = format!(
                "{}; XXL-JOB's row is not marked ({reason}), so that a repeated import would take the job back",
                outcome.result
            );
            let outcome = Outcome { result, is_done: false, ..outcome }.repeatable();
            outcomes.insert(job.name.clone(), outcome);
        }
    }
}

/// Makes a job that XXL-JOB has stopped at the seam active in Rondel from the seam on.
async fn take_over(switch: &Switchover<'_>, job: &Job, seam: Timestamp) -> PromoteEnd {
    match save(switch.client, job, "active", seam).await {
        Saved::HoldsFrom(from) => {
            let gap = (from > seam).then(|| neither_side_text(job, seam, from));
            PromoteEnd::Settled(
                Outcome::done(RunLocation::Rondel, Some(seam), "runs here from the seam on").with_gap(gap.as_deref()),
            )
        }
        Saved::Refused(failure) => PromoteEnd::Refused(seam, failure),
        Saved::Unclear(failure) => PromoteEnd::Settled(unclear_outcome(seam, &failure)),
    }
}

fn unclear_outcome(seam: Timestamp, failure: &Failure) -> Outcome {
    let message = failure.message();
    Outcome::half_done(
        RunLocation::Unknown,
        seam,
        format!(
            "stopped in XXL-JOB at the seam, and not known whether it is saved here ({message}): it runs here or nowhere"
        ),
    )
    .repeatable()
}

/// Starts a job in XXL-JOB again, after Rondel has refused the edit.
async fn start_again(database: &mut XxlDatabase, job: &Job, seam: Timestamp, failure: &Failure) -> Outcome {
    let message = failure.message();
    let start_outcomes = database.xxl_start(&[(job.number, seam.as_millis())], || i64::MIN).await;
    match start_outcomes.as_ref().map(|start_outcomes| start_outcomes.get(&job.number)) {
        Ok(Some(StartOutcome::From(_))) => {
            let is_late = clock::now() > seam;
            let note = format!("it was started there after its fire of {seam}, which XXL-JOB has late or not at all");
            Outcome::unchanged(RunLocation::XxlJob, format!("{message}; it continues to run there"))
                .with_gap(is_late.then_some(&note))
        }
        Ok(Some(_)) => Outcome::unchanged(RunLocation::XxlJob, format!("{message}; it continues to run there")),
        Ok(None) => {
            Outcome::half_done(RunLocation::Neither, seam, format!("{message}; XXL-JOB has no such job any more"))
        }
        Err(error) => {
            let reason = chain_in_one_line(error);
            let result =
                format!("{message}; stopped in XXL-JOB at the seam, and perhaps not started again there ({reason})");
            Outcome::half_done(RunLocation::Unknown, seam, result).repeatable()
        }
    }
}

/// Switches a job that had already been stopped in XXL-JOB. Either an earlier run of this command stopped it and left
/// the next instant in its row, or a user stopped it and XXL-JOB set that instant to 0.
async fn take_over_stopped(switch: &Switchover<'_>, job: &Job, status: JobStatus, allowance: Duration) -> Outcome {
    let earliest_seam = clock::now() + HOLD_DELAY + allowance;
    let stopped_at = (status.next_ms > 0).then(|| seam_at(status.next_ms));
    let seam = stopped_at.map_or(earliest_seam, |at| earliest_seam.max(at));
    match save(switch.client, job, "active", seam).await {
        Saved::HoldsFrom(from) => {
            let holds_from = seam.max(from);
            let gap = match stopped_at {
                _ if !job.is_firing() => None,
                Some(at) if at < holds_from => Some(neither_side_text(job, at, holds_from)),
                Some(_) => None,
                None => (from > seam).then(|| neither_side_text(job, seam, from)),
            };
            let (run_location, result) = match (job.is_enabled, job.has_schedule) {
                (false, _) => (RunLocation::Neither, STAYS_PAUSED),
                (true, true) => (RunLocation::Rondel, "was stopped in XXL-JOB; runs here from the seam on"),
                (true, false) => (RunLocation::Rondel, "has no schedule; runs here when it is triggered"),
            };
            Outcome::done(run_location, Some(seam), result).with_gap(gap.as_deref())
        }
        Saved::Refused(failure) => {
            let result = format!("{}; stopped in XXL-JOB, and in shadow mode here", failure.message());
            Outcome::half_done(RunLocation::Neither, stopped_at.unwrap_or(seam), result).repeatable()
        }
        Saved::Unclear(failure) => unclear_outcome(seam, &failure),
    }
}

/// The outcome for a job that already runs in Rondel. If it was saved too late for its seam, the gap is reported again:
/// the command that saved it may have lost the answer.
fn earlier_switch_outcome(job: &Job, status: JobStatus) -> Outcome {
    if !job.is_enabled {
        return Outcome::done(RunLocation::Neither, job.mode_from, "was switched before, and is paused here");
    }
    let outcome = Outcome::done(RunLocation::Rondel, job.mode_from, "was switched before");
    let (Some(seam), Some(saved_at)) = (job.mode_from, job.updated_at) else { return outcome };
    let holds_from = saved_at + HOLD_DELAY;
    let is_late = seam_at(status.next_ms) == seam && holds_from > seam && saved_at < seam + SAME_SWITCH_WITHIN;
    outcome.with_gap(is_late.then(|| neither_side_text(job, seam, holds_from)).as_deref())
}

fn neither_side_text(job: &Job, from: Timestamp, to: Timestamp) -> String {
    let name = &job.name;
    format!(
        "its fires from {from} to {to} ran on neither side, or some of them: rondel job fires {name} --from {from} names those that were \
         skipped; trigger by hand what must run"
    )
}

fn too_near_text(at: i64, allowance: Duration) -> String {
    if at <= 0 {
        return "it runs in XXL-JOB without a next fire: its servers do not run, or have not looked at it yet; nothing was changed"
            .to_owned();
    }
    let at = instant_of_millis(at);
    if at < clock::now() {
        return format!(
            "XXL-JOB has not taken up its fire of {at}: its servers do not run, or are behind; nothing was changed"
        );
    }
    let needed_seconds = (allowance + HOLD_DELAY).as_secs_f64();
    format!(
        "its next fire in XXL-JOB, {at}, never was {needed_seconds:.1} s ahead, which is what saving it here may take: use a faster connection to the \
         server, or a longer --wait; nothing was changed"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seam_is_the_beginning_of_the_second_in_which_xxl_job_fires() {
        let fire = Timestamp::from_secs(1_795_428_047);
        assert_eq!([1_795_428_047_000, 1_795_428_047_700].map(seam_at), [fire; 2]);
    }
}
