//! Switches jobs from Rondel to XXL-JOB.
//!
//! A job with a schedule stops running in Rondel at an instant, the seam, and starts in XXL-JOB with its first fire
//! after the seam. Children are switched last: once their parents are in shadow mode, Rondel does not fire them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures_util::future::join_all;
use rondel_core::Timestamp;
use rondel_core::error_chain::chain_in_one_line;
use rondel_store::foreign::xxl_job::{StartOutcome, XxlDatabase};
use serde_json::Value;
use tokio::time::Instant;

use super::job::{CALL_COUNT_MAX, HOLD_DELAY, Job, Switchover};
use super::outcome::{Outcome, Outcomes, RunLocation};
use super::quiet;
use super::relatives;
use super::save::{Pace, Saved, save};
use crate::clock;
use crate::exit::Failure;

/// How far ahead the seam is, in addition to the time for saving: XXL-JOB may sleep for five seconds before it looks at
/// a job.
const SEAM_LEAD: Duration = Duration::from_secs(7);
/// XXL-JOB runs the first fire on time if it is at least this far ahead when the job is started.
const ON_TIME_LEAD_MIN: Duration = Duration::from_secs(5);
/// Minimum time until the first fire of a job that runs on neither side.
const FIRST_FIRE_LEAD_MIN: Duration = Duration::from_secs(2);
/// Maximum number of tries to start a job. A try fails if the job's first fire has passed before the start.
const START_COUNT_MAX: usize = 5;
/// Maximum number of requests for the first fire.
const READ_COUNT_MAX: usize = 3;
const RETRY_DELAY: Duration = Duration::from_millis(300);
/// The result for a job in shadow mode that a user stopped in XXL-JOB.
const STAYS_STOPPED: &str = "does not run here, and stays stopped in XXL-JOB: start it there if it is to run";

/// A job that Rondel stops running at the seam.
struct StoppedJob<'a> {
    job: &'a Job,
    seam: Timestamp,
    /// The first fire that XXL-JOB is to run.
    first_fire: Timestamp,
    gap: Option<String>,
}

pub(super) async fn demote(
    switch: &Switchover<'_>,
    database: &mut XxlDatabase,
    refusals: &BTreeMap<String, String>,
    mut pace: Pace,
) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for job in &switch.jobs {
        if let Some(reason) = refusals.get(&job.name) {
            outcomes.insert(job.name.clone(), Outcome::unchanged(switch.run_location(job), reason));
        }
    }
    let is_open = |job: &&Job| !refusals.contains_key(&job.name);
    let (mut open_jobs, quiet_jobs): (VecDeque<&Job>, VecDeque<&Job>) =
        switch.jobs.iter().filter(is_open).filter(|job| !job.is_follower()).partition(|job| job.is_firing());
    let numbers: Vec<i64> = open_jobs.iter().chain(&quiet_jobs).map(|job| job.number).collect();
    let mut obstacle = why_not_writable(database, &numbers).await;
    if obstacle.is_none() {
        obstacle = quiet::stop(switch, database, &quiet_jobs, &mut outcomes).await;
    }
    while !open_jobs.is_empty() && obstacle.is_none() {
        let batch: Vec<&Job> = open_jobs.drain(..pace.batch_len().min(open_jobs.len())).collect();
        obstacle = mark(database, &batch).await;
        if obstacle.is_some() {
            open_jobs.extend(batch);
            break;
        }
        let start = Instant::now();
        let seam_lead = SEAM_LEAD + pace.allowance();
        let stop_results = join_all(batch.iter().map(|job| stop_in_rondel(switch, job, seam_lead))).await;
        pace.record_measured(start.elapsed());
        let mut stopped_jobs = Vec::new();
        for (job, stop_result) in batch.iter().zip(stop_results) {
            match stop_result {
                Ok(stopped_job) => stopped_jobs.push(stopped_job),
                Err(outcome) => drop(outcomes.insert(job.name.clone(), outcome)),
            }
        }
        unmark_ended(database, &batch, &outcomes).await;
        obstacle = start_in_xxl_job(switch, database, stopped_jobs, &mut outcomes).await;
    }
    if let Some(reason) = obstacle {
        let result = format!("nothing was changed: the database of XXL-JOB cannot be changed ({reason})");
        for job in open_jobs.into_iter().chain(quiet_jobs) {
            let unchanged_outcome = || Outcome::unchanged(switch.run_location(job), &result);
            outcomes.entry(job.name.clone()).or_insert_with(unchanged_outcome);
        }
    }
    let children: Vec<&Job> = switch.jobs.iter().filter(is_open).filter(|job| job.is_follower()).collect();
    stop_children(switch, children, &mut outcomes).await;
    outcomes
}

/// Why XXL-JOB's database cannot be changed; `None` if it can. This is checked before any job is stopped in Rondel.
async fn why_not_writable(database: &mut XxlDatabase, numbers: &[i64]) -> Option<String> {
    if numbers.is_empty() {
        return None;
    }
    database.xxl_may_write(numbers).await.err().map(|error| chain_in_one_line(&error))
}

/// Marks the rows of active jobs that are stopped in XXL-JOB, unless a promotion has marked them. If the command dies before it starts such a
/// job there, the mark distinguishes it from a job that a user stopped. If the database cannot be changed, returns the reason.
async fn mark(database: &mut XxlDatabase, batch: &[&Job]) -> Option<String> {
    let numbers: Vec<i64> = batch.iter().filter(|job| !job.is_shadow).map(|job| job.number).collect();
    database.xxl_mark(&numbers, clock::now().as_millis()).await.err().map(|error| chain_in_one_line(&error))
}

/// Removes the marks of jobs that have no further fire: they are not started in XXL-JOB, and a mark would make a later import take them for
/// promoted jobs.
async fn unmark_ended(database: &mut XxlDatabase, batch: &[&Job], outcomes: &Outcomes) {
    let has_ended = |outcome: &Outcome| outcome.is_done && matches!(outcome.run_location, RunLocation::Neither);
    let ended_jobs = batch.iter().filter(|job| outcomes.get(&job.name).is_some_and(has_ended));
    let numbers: Vec<i64> = ended_jobs.map(|job| job.number).collect();
    // A mark that stays does no harm to the jobs of this command: their fires are over.
    database.xxl_unmark(&numbers).await.ok();
}

/// Puts a job in shadow mode: from the seam on, Rondel no longer runs it.
async fn stop_in_rondel<'a>(
    switch: &Switchover<'_>,
    job: &'a Job,
    seam_lead: Duration,
) -> Result<StoppedJob<'a>, Outcome> {
    let is_running = switch.xxl_status.get(&job.number).is_some_and(|status| status.is_running);
    if job.is_shadow && is_running {
        return Err(Outcome::done(RunLocation::XxlJob, job.mode_from, "was switched before"));
    }
    if switch.was_stopped_in_xxl_job(job) {
        return Err(Outcome::done(RunLocation::Neither, None, STAYS_STOPPED));
    }
    if job.is_shadow {
        // An earlier command stopped the job: its first fire is the earliest one that XXL-JOB can still run.
        let earliest_fire = clock::now() + FIRST_FIRE_LEAD_MIN;
        let seam = job.mode_from.unwrap_or(earliest_fire);
        let gap_text = (seam < earliest_fire).then(|| neither_side_text(job, seam, earliest_fire));
        return with_first_fire(switch, job, (seam, seam.max(earliest_fire)), gap_text).await;
    }
    let seam = clock::now() + seam_lead;
    match save(switch.client, job, "shadow", seam).await {
        Saved::HoldsFrom(from) => {
            let gap_text =
                (from > seam).then(|| format!("its fires from {seam} to {from} ran here, or on neither side"));
            with_first_fire(switch, job, (seam, seam.max(from)), gap_text).await
        }
        Saved::Refused(failure) => Err(Outcome::unchanged(
            switch.run_location(job),
            format!("{}; it continues to run here", failure.message()),
        )),
        Saved::Unclear(failure) => Err(Outcome::half_done(
            RunLocation::Unknown,
            seam,
            format!(
                "not known whether it was stopped here at the seam ({}), and not started in XXL-JOB",
                failure.message()
            ),
        )
        .repeatable()),
    }
}

/// Finds the fire with which XXL-JOB is to begin.
async fn with_first_fire<'a>(
    switch: &Switchover<'_>,
    job: &'a Job,
    (seam, from): (Timestamp, Timestamp),
    gap: Option<String>,
) -> Result<StoppedJob<'a>, Outcome> {
    let first_fire = match first_fire(switch, job, from).await {
        Ok(first_fire) => first_fire,
        Err(failure) => return Err(not_started_outcome(seam, failure.message()).repeatable()),
    };
    let until = first_fire.planned_at.unwrap_or_else(clock::now);
    let missed_text = first_fire.missed_at.map(|missed_at| neither_side_text(job, missed_at, until));
    let gap = [gap, missed_text].into_iter().flatten().reduce(|gaps, other_gap| format!("{gaps}; {other_gap}"));
    match first_fire.planned_at {
        Some(planned_at) => Ok(StoppedJob { job, seam, first_fire: planned_at, gap }),
        None => {
            let result = "no longer runs here; it has no fire to start with there: start it in XXL-JOB if it is to run";
            Err(Outcome::done(RunLocation::Neither, Some(seam), result).with_gap(gap.as_deref()))
        }
    }
}

fn not_started_outcome(seam: Timestamp, reason: &str) -> Outcome {
    let result = format!("stopped here at the seam, and not started in XXL-JOB ({reason})");
    Outcome::half_done(RunLocation::Neither, seam, result)
}

/// Starts jobs in XXL-JOB. If its database cannot be used, returns the reason.
async fn start_in_xxl_job<'a>(
    switch: &Switchover<'_>,
    database: &mut XxlDatabase,
    mut open_jobs: Vec<StoppedJob<'a>>,
    outcomes: &mut Outcomes,
) -> Option<String> {
    for round in 1..=START_COUNT_MAX {
        if open_jobs.is_empty() {
            return None;
        }
        let starts: Vec<(i64, i64)> =
            open_jobs.iter().map(|stopped_job| (stopped_job.job.number, stopped_job.first_fire.as_millis())).collect();
        let start_outcomes = match database.xxl_start(&starts, || clock::now().as_millis()).await {
            Ok(start_outcomes) => start_outcomes,
            Err(error) => {
                let reason = chain_in_one_line(&error);
                for stopped_job in open_jobs {
                    let result =
                        format!("stopped here at the seam, and not known whether XXL-JOB has started it ({reason})");
                    let outcome = Outcome::half_done(RunLocation::Unknown, stopped_job.seam, result)
                        .repeatable()
                        .with_gap(stopped_job.gap.as_deref());
                    outcomes.insert(stopped_job.job.name.clone(), outcome);
                }
                return Some(reason);
            }
        };
        let committed_at = clock::now();
        let mut late_jobs = Vec::new();
        for stopped_job in open_jobs {
            let outcome = match start_outcomes.get(&stopped_job.job.number) {
                Some(StartOutcome::TooLate) if round < START_COUNT_MAX => {
                    late_jobs.push(stopped_job);
                    continue;
                }
                Some(StartOutcome::TooLate) => {
                    not_started_outcome(stopped_job.seam, "its first fire had passed each time").repeatable()
                }
                None => not_started_outcome(stopped_job.seam, "XXL-JOB does not have it any more"),
                Some(StartOutcome::From(_)) => started_outcome(switch, &stopped_job, committed_at),
                Some(StartOutcome::AlreadyRunning(_)) => {
                    let gap = "its fires until the seam ran on both sides";
                    let result = "stopped here at the seam; it ran in XXL-JOB already, and continues to";
                    Outcome::done(RunLocation::XxlJob, Some(stopped_job.seam), result).with_gap(Some(gap))
                }
            };
            outcomes.insert(stopped_job.job.name.clone(), outcome);
        }
        let retried_jobs = join_all(
            late_jobs
                .into_iter()
                .map(async |stopped_job| (stopped_job.job, with_later_fire(switch, stopped_job).await)),
        )
        .await;
        open_jobs = Vec::new();
        for (job, result) in retried_jobs {
            match result {
                Ok(stopped_job) => open_jobs.push(stopped_job),
                Err(outcome) => drop(outcomes.insert(job.name.clone(), outcome)),
            }
        }
    }
    None
}

/// Finds a later fire to start with: the previous first fire had passed when XXL-JOB released its lock.
async fn with_later_fire<'a>(switch: &Switchover<'_>, stopped_job: StoppedJob<'a>) -> Result<StoppedJob<'a>, Outcome> {
    let first_allowed_at = clock::now() + FIRST_FIRE_LEAD_MIN;
    let gap = [stopped_job.gap, Some(neither_side_text(stopped_job.job, stopped_job.first_fire, first_allowed_at))]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("; ");
    with_first_fire(switch, stopped_job.job, (stopped_job.seam, first_allowed_at), Some(gap)).await
}

/// The outcome for a job that XXL-JOB runs again.
fn started_outcome(switch: &Switchover<'_>, stopped_job: &StoppedJob<'_>, committed_at: Timestamp) -> Outcome {
    let first_fire = stopped_job.first_fire;
    let is_near = first_fire < committed_at + ON_TIME_LEAD_MIN;
    let lateness_note = is_near.then(|| {
        format!(
            "XXL-JOB may have its fire of {first_fire} up to 5 s late, and leave out others in that time: look at its log"
        )
    });
    let gap: Vec<String> = [stopped_job.gap.clone(), lateness_note].into_iter().flatten().collect();
    let left_behind_text =
        relatives::children_left_behind(switch, stopped_job.job).map(|text| format!("; {text}")).unwrap_or_default();
    let result = format!("runs in XXL-JOB from {first_fire} on{left_behind_text}");
    let gap = (!gap.is_empty()).then(|| gap.join("; "));
    Outcome::done(RunLocation::XxlJob, Some(stopped_job.seam), result).with_gap(gap.as_deref())
}

/// Switches jobs that only follow other jobs to shadow mode, from the last seam of their parents on.
async fn stop_children(switch: &Switchover<'_>, mut open_jobs: Vec<&Job>, outcomes: &mut Outcomes) {
    let seams = outcomes.values().filter(|outcome| outcome.is_done).filter_map(|outcome| outcome.seam);
    // The seam must not precede the instant at which the last edit of a parent takes effect.
    let holds_from = clock::now() + HOLD_DELAY;
    let seam = seams.max().map_or(holds_from, |seam| seam.max(holds_from));
    // A child may be a parent of other children.
    while !open_jobs.is_empty() {
        let names: Vec<String> = open_jobs.iter().map(|job| job.name.clone()).collect();
        let (mut current_jobs, later_jobs): (Vec<&Job>, Vec<&Job>) =
            open_jobs.into_iter().partition(|job| !job.parents.iter().any(|parent| names.contains(parent)));
        open_jobs = later_jobs;
        if current_jobs.is_empty() {
            current_jobs = std::mem::take(&mut open_jobs);
        }
        for chunk in current_jobs.chunks(CALL_COUNT_MAX) {
            let child_outcomes = join_all(chunk.iter().map(|job| demote_child(switch, job, seam, outcomes))).await;
            outcomes.extend(chunk.iter().map(|job| job.name.clone()).zip(child_outcomes));
        }
    }
}

async fn demote_child(switch: &Switchover<'_>, job: &Job, seam: Timestamp, outcomes: &Outcomes) -> Outcome {
    let parents = job.parents.iter().filter_map(|name| Some((name, outcomes.get(name)?)));
    if let Some((name, parent)) = parents.into_iter().find(|(_, outcome)| !outcome.is_done) {
        let result = format!("is unchanged, and runs where its parent {name} does, which was not switched");
        let outcome = Outcome::unchanged(parent.run_location, result);
        return if parent.is_repeatable { outcome.repeatable() } else { outcome };
    }
    if job.is_shadow {
        return Outcome::done(RunLocation::XxlJob, job.mode_from, "was switched before");
    }
    match save(switch.client, job, "shadow", seam).await {
        Saved::HoldsFrom(_) => Outcome::done(RunLocation::XxlJob, Some(seam), "runs in XXL-JOB after its parents"),
        // The job's parents are in shadow mode in Rondel, so Rondel does not fire it.
        Saved::Refused(failure) | Saved::Unclear(failure) => Outcome::unchanged(
            RunLocation::XxlJob,
            format!("runs in XXL-JOB after its parents; its mode was not saved here ({})", failure.message()),
        )
        .repeatable(),
    }
}

/// The fire with which XXL-JOB can begin.
#[derive(Default)]
struct FirstFire {
    planned_at: Option<Timestamp>,
    /// The earliest fire before the planned one that ran on neither side, and whose instant has passed.
    missed_at: Option<Timestamp>,
}

/// Finds the first planned fire of a job from an instant on.
async fn first_fire(switch: &Switchover<'_>, job: &Job, mut from: Timestamp) -> Result<FirstFire, Failure> {
    let mut first_fire = FirstFire::default();
    for _ in 0..READ_COUNT_MAX {
        let fires = planned_fires(switch, job, from).await?;
        let instant = |fire: &Value| fire["fire_at"].as_str()?.parse().ok();
        let verdict = |fire: &Value| fire["verdict"].as_str().map(str::to_owned).unwrap_or_default();
        let is_upcoming =
            |fire: &&Value| matches!(verdict(fire).as_str(), "planned" | "undecided" | "pending" | "waiting");
        first_fire.planned_at = fires.iter().find(is_upcoming).and_then(instant);
        let is_missed = |fire: &&Value| fire["reason"] == "shadow";
        let missed_at = fires.iter().take_while(|fire| !is_upcoming(fire)).find(is_missed).and_then(instant);
        first_fire.missed_at = first_fire.missed_at.or(missed_at);
        if first_fire.planned_at.is_some() || missed_at.is_none() {
            break;
        }
        // All listed fires have passed, so the list is read again from now on.
        from = clock::now();
    }
    Ok(first_fire)
}

async fn planned_fires(switch: &Switchover<'_>, job: &Job, from: Timestamp) -> Result<Vec<Value>, Failure> {
    let to = from + Duration::from_secs(366 * 24 * 3_600);
    let (from, to) = (from.to_string(), to.to_string());
    let query = [("from", from.as_str()), ("to", to.as_str()), ("limit", "50")];
    for _ in 1..READ_COUNT_MAX {
        match switch.client.get(&["jobs", &job.name, "fires"], &query).await {
            Ok(body) => return Ok(items(&body.value()?)),
            Err(_) => tokio::time::sleep(RETRY_DELAY).await,
        }
    }
    Ok(items(&switch.client.get(&["jobs", &job.name, "fires"], &query).await?.value()?))
}

fn items(page: &Value) -> Vec<Value> {
    page["items"].as_array().cloned().unwrap_or_default()
}

fn neither_side_text(job: &Job, from: Timestamp, to: Timestamp) -> String {
    let name = &job.name;
    format!(
        "its fires from {from} to {to} ran on neither side, or some of them: rondel job fires {name} --from {from} names them"
    )
}
