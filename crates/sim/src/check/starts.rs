//! Checks of the starts of handlers: their times, their number, and which handlers run at the same time.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_core::run::ROOT_SHARD;
use rondel_core::spec::{OverlapPolicy, OverlapScope};
use rondel_core::{JobId, Reason, Run, RunId, RunStatus, Timestamp, Trigger};
use rondel_proto::v1::result::Status;

use super::facts::Facts;
use crate::truth::{Start, Truth};

/// How far a node's clock may run ahead of the database's clock between two readings: its pace is wrong by up to 200
/// millionths, and the database may be unreachable for twelve seconds, more than once.
pub(super) const CLOCK_SLACK: Duration = Duration::from_millis(5);
/// During a pause of at least this length, an executor may have been given up.
const LONG_STOP_MS: u64 = 2_000;
/// How long after the acknowledgement of an edit the old definition may still be in effect.
const EDIT_SLACK: Duration = Duration::from_millis(1_100);

/// How long after its queue time a run may still begin: servers look for such runs only once a second, and an
/// at-most-once run is marked first.
const QUEUE_SLACK: Duration = Duration::from_millis(2_500);

pub(super) fn describe_start(start: &Start) -> String {
    format!("run {} attempt {} on x{} at {} ms", start.run, start.attempt, start.executor, start.began_ms)
}

/// I2: nothing begins before its instant.
pub(super) fn begun_early(truth: &Truth) -> Vec<String> {
    let is_early = |start: &&Start| start.began_at + CLOCK_SLACK < start.fire_at.max(start.due_at);
    let describe = |start: &Start| {
        format!("I2 not early: {}, due {}, began {}", describe_start(start), start.due_at, start.began_at)
    };
    truth.starts.iter().filter(is_early).map(describe).collect()
}

/// I3: each attempt of a run begins once.
pub(super) fn begun_twice(truth: &Truth) -> Vec<String> {
    let mut latest_starts: BTreeMap<(RunId, i32), &Start> = BTreeMap::new();
    let mut complaints = Vec::new();
    for start in &truth.starts {
        if let Some(previous) = latest_starts.insert((start.run, start.attempt), start) {
            complaints.push(format!("I3 no duplicate: {} after {}", describe_start(start), describe_start(previous)));
        }
    }
    complaints
}

/// I3: an at-most-once run begins again only after its handler itself reported its failure, or stopped on request
/// because its time was up.
pub(super) fn repeated_at_most_once(facts: &Facts, truth: &Truth) -> Vec<String> {
    let mut starts_by_run: BTreeMap<RunId, Vec<&Start>> = BTreeMap::new();
    for start in truth.starts.iter().filter(|start| start.at_most_once) {
        starts_by_run.entry(start.run).or_default().push(start);
    }
    let mut complaints = Vec::new();
    for starts in starts_by_run.values() {
        for pair in starts.windows(2) {
            let stored_status = facts.attempts.get(&(pair[0].run, pair[0].attempt)).map(|attempt| attempt.status);
            let was_overdue =
                pair[0].end_status == Some(Status::Cancelled) && stored_status == Some(RunStatus::TimedOut);
            let has_failed = matches!(pair[0].end_status, Some(Status::Failed | Status::TimedOut)) || was_overdue;
            let was_over = pair[0].ended_ms.is_some_and(|ended| ended <= pair[1].began_ms);
            if !has_failed || !was_over || pair[0].attempt >= pair[1].attempt {
                complaints.push(format!(
                    "I3 at most once: {} after {}",
                    describe_start(pair[1]),
                    describe_start(pair[0])
                ));
            }
        }
    }
    complaints
}

/// When a handler ended, as far as servers could know. If its executor was paused for long, the handler counts as
/// ended at the beginning of the pause, because the executor may have been given up during the pause.
pub(super) fn end_ms(start: &Start, facts: &Facts, truth: &Truth) -> u64 {
    let end = start.ended_ms.unwrap_or(facts.now_ms);
    let pauses = truth.executor_pauses.iter().filter(|(incarnation, from, until)| {
        *incarnation == start.incarnation && until - from >= LONG_STOP_MS && *until > start.began_ms && *from < end
    });
    pauses.map(|(_, from, _)| *from).min().map_or(end, |from| from.max(start.began_ms).min(end))
}

fn is_serial(facts: &Facts, job: JobId) -> bool {
    facts.jobs.get(&job).is_some_and(|record| {
        let overlap = record.spec.overlap;
        overlap.policy != OverlapPolicy::Allow && overlap.scope == OverlapScope::Cluster
    })
}

/// I4: no two fires of a serial job, and no two attempts of a run, are executed at the same time.
pub(super) fn overlapping_starts(facts: &Facts, truth: &Truth) -> Vec<String> {
    let mut starts_by_job: BTreeMap<JobId, Vec<&Start>> = BTreeMap::new();
    for start in truth.starts.iter().filter(|start| is_serial(facts, start.job)) {
        starts_by_job.entry(start.job).or_default().push(start);
    }
    let mut complaints = Vec::new();
    for starts in starts_by_job.values() {
        for (index, first) in starts.iter().enumerate() {
            let end = end_ms(first, facts, truth);
            for second in starts.iter().skip(index + 1) {
                let is_one_fire = first.run != second.run && facts.fire_of(first.run) == facts.fire_of(second.run);
                if second.began_ms < end && !is_one_fire {
                    complaints.push(format!(
                        "I4 no overlap: {} beside {}, which ended at {end} ms",
                        describe_start(second),
                        describe_start(first)
                    ));
                }
            }
        }
    }
    complaints
}

/// I5: an executor begins no run of an epoch that it had to refuse.
pub(super) fn fenced_starts(truth: &Truth) -> Vec<String> {
    let is_fenced = |start: &&Start| start.fenced_epoch.is_some_and(|fenced_epoch| start.origin.1 <= fenced_epoch);
    truth
        .starts
        .iter()
        .filter(is_fenced)
        .map(|start| format!("I5 fencing: {} {:?}", describe_start(start), start.origin))
        .collect()
}

/// I5: the token that handlers get rises from one start of a serial job to the next.
pub(super) fn stale_tokens(facts: &Facts, truth: &Truth) -> Vec<String> {
    let mut latest_starts: BTreeMap<JobId, &Start> = BTreeMap::new();
    let mut complaints = Vec::new();
    let is_whole =
        |start: &&Start| facts.runs.get(&start.run).is_some_and(|run| run.shard_total.is_none_or(|total| total <= 1));
    for start in truth.starts.iter().filter(|start| is_serial(facts, start.job)).filter(is_whole) {
        if let Some(previous) = latest_starts.insert(start.job, start)
            && previous.fencing_token >= start.fencing_token
        {
            let description = format!(
                "{} has {:?}, {} had {:?}",
                describe_start(start),
                start.fencing_token,
                describe_start(previous),
                previous.fencing_token
            );
            complaints.push(format!("I5 token: {description}"));
        }
    }
    complaints
}

/// If a run is skipped in the ledger, no attempt of it has begun, unless the handler skipped a later attempt.
pub(super) fn begun_though_skipped(facts: &Facts, truth: &Truth) -> Vec<String> {
    let is_skipped = |start: &&Start| {
        let run = facts.runs.get(&start.run).filter(|run| run.status == RunStatus::Skipped);
        run.is_some_and(|run| run.attempt == start.attempt || run.reason != Some(Reason::Handler))
    };
    let describe = |start: &Start| {
        let reason = facts.runs.get(&start.run).and_then(|run| run.reason);
        format!("I1 verdicts: {} began, it is skipped in the ledger: {reason:?}", describe_start(start))
    };
    truth.starts.iter().filter(is_skipped).map(describe).collect()
}

/// I11: after a job is switched off, its later fires do not begin.
pub(super) fn begun_when_off(facts: &Facts, truth: &Truth) -> Vec<String> {
    let mut complaints = Vec::new();
    if facts.has_clock_faults {
        return complaints;
    }
    for switch_off in truth.job_switches.iter().filter(|job_switch| !job_switch.enabled) {
        if truth.uncertain_jobs.contains(&switch_off.job) {
            continue;
        }
        let switches_on =
            truth.job_switches.iter().filter(|job_switch| job_switch.job == switch_off.job && job_switch.enabled);
        // A change may be answered after a later change was answered, because its server was paused.
        let switch_on = switches_on
            .filter(|job_switch| job_switch.version > switch_off.version)
            .min_by_key(|job_switch| job_switch.version);
        let is_forbidden = |start: &&Start| {
            let run = facts.runs.get(&start.run);
            start.job == switch_off.job
                && run.is_some_and(|run| run.cause == 0 && run.shard_index != ROOT_SHARD)
                && start.attempt == 1
                && start.fire_at > switch_off.answered_at + EDIT_SLACK
                // A server's clock lags by as much as the database takes to answer.
                && switch_on.is_none_or(|switch_on| start.fire_at + EDIT_SLACK < switch_on.asked_at)
        };
        for start in truth.starts.iter().filter(is_forbidden) {
            complaints.push(format!(
                "I11 edits: {} of {}, switched off at {}",
                describe_start(start),
                start.fire_at,
                switch_off.answered_at
            ));
        }
    }
    complaints
}

/// I15: a run whose caller named an executor begins on no other one.
pub(super) fn begun_on_wrong_executor(facts: &Facts, truth: &Truth) -> Vec<String> {
    let mut complaints = Vec::new();
    for start in &truth.starts {
        let named_executor = facts.runs.get(&start.run).and_then(|run| run.only_executor.as_deref());
        if let Some(named_executor) =
            named_executor.filter(|named_executor| *named_executor != format!("x{}", start.executor))
        {
            complaints.push(format!("I15 chosen: {}, its caller named {named_executor}", describe_start(start)));
        }
    }
    complaints
}

/// I12: no run begins later than its queue time after it was due. If there was no server at that instant, the queue time
/// counts from the return of a server. If a server took up the attempt from the store after its instant, the queue time
/// counts from the last such read. Catch-up runs are left out, because their queue time counts from the scan.
pub(super) fn queued_too_long(facts: &Facts, truth: &Truth) -> Vec<String> {
    if !facts.has_steady_servers {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    for start in &truth.starts {
        let (Some(job), Some(run)) = (facts.jobs.get(&start.job), facts.runs.get(&start.run)) else { continue };
        let is_catch_up = matches!(run.trigger, Trigger::Misfire | Trigger::Backfill);
        // The run was sent to an executor that was paused.
        let was_paused = truth
            .executor_pauses
            .iter()
            .any(|(incarnation, from, _)| *incarnation == start.incarnation && *from <= start.began_ms);
        let wait_until_at = server_available_at(truth, start, run) + job.spec.queue_timeout + QUEUE_SLACK;
        if start.began_at > wait_until_at && !is_catch_up && !was_paused {
            complaints.push(format!(
                "I12 queue time: {}, due {}, could wait until {wait_until_at}",
                describe_start(start),
                start.due_at
            ));
        }
    }
    complaints
}

/// When a server was available for the run: at its due instant or, if there was none, when one returned. A shard's row is never read
/// before the shard is sent, because the owner itself stored it. For a shard, the owner's read of its broadcast counts instead.
fn server_available_at(truth: &Truth, start: &Start, run: &Run) -> Timestamp {
    let delayed_start = |(from, until): &&(Timestamp, Timestamp)| *from <= start.began_at && *until >= start.due_at;
    let available_at =
        truth.server_outages.iter().filter(delayed_start).map(|(_, until)| *until).max().unwrap_or(start.due_at);
    let keys = [Some((start.run, start.attempt)), run.parent.map(|parent| (parent, 1))];
    let reads = keys.into_iter().flatten().filter_map(|key| truth.row_reads.get(&key)).flatten();
    reads
        .filter(|read_at| **read_at <= start.began_at)
        .fold(available_at, |available_at, read_at| available_at.max(*read_at))
}
