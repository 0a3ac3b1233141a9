//! Turns facts into observations: decides whether a rule's condition holds for a subject.

use std::time::Duration;

use super::incident::Incident;
use super::rule::{Condition, RuleSpec};
use super::subject::Subject;
use crate::id::{JobId, RunId};
use crate::notice::RunSample;
use crate::reason::Reason;
use crate::status::RunStatus;
use crate::time::Timestamp;

/// A job with fewer runs than this has no usual run length.
pub const USUAL_MIN_RUNS: u64 = 10;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The result of checking a rule's condition for one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    pub subject: Subject,
    /// Whether the condition holds.
    pub state: ConditionState,
    /// Runs that a message names as examples.
    pub samples: Vec<RunSample>,
}

/// Whether a condition holds for a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionState {
    Holds {
        since: Timestamp,
        /// How many occurrences are new since the last check.
        new_count: u64,
    },
    /// The condition has held at some time since the last check, but holds no longer.
    HasEnded {
        /// When it began to hold.
        since: Timestamp,
        /// How many occurrences there were since the last check.
        new_count: u64,
    },
    /// The condition does not hold.
    Clear,
    /// The rule no longer watches the subject: whether the condition holds is not known.
    Unwatched,
    /// The rule watches the subject, but it cannot determine now whether the condition holds. An open incident stays open.
    Unknown,
}

impl ConditionState {
    /// Whether the condition neither holds nor has held since the last check, as far as is known.
    #[must_use]
    pub const fn is_clear(self) -> bool {
        matches!(self, Self::Clear | Self::Unwatched | Self::Unknown)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedRun {
    pub run: RunId,
    pub job: JobId,
    /// Its planned instant.
    pub fire_at: Timestamp,
    /// How it ended.
    pub status: RunStatus,
}

impl EndedRun {
    /// Whether it failed, timed out, or has an unknown end.
    #[must_use]
    pub const fn is_failure(&self) -> bool {
        matches!(self.status, RunStatus::Failed | RunStatus::TimedOut | RunStatus::Unknown)
    }
}

/// Whether a disk has less free space than its bound: a percentage of the disk's size or, without a percentage, a number of bytes. While
/// an incident is open, the bound is a tenth higher, so that a disk whose free space goes up and down around the bound is reported once.
#[must_use]
pub fn is_disk_low(bound: (Option<u32>, Option<u64>), (free, size): (u64, u64), is_open: bool) -> bool {
    let size_bound = match bound {
        (Some(percent), _) => u128::from(size) * u128::from(percent) / 100,
        (None, bytes) => u128::from(bytes.unwrap_or(0)),
    };
    let required_free = if is_open { size_bound * 11 / 10 } else { size_bound };
    u128::from(free) < required_free
}

/// Whether two versions of a rule watch the same condition in the same scope. If so, open incidents of one version belong to
/// the other too.
#[must_use]
pub fn have_same_condition_and_scope(rule: &RuleSpec, other_rule: &RuleSpec) -> bool {
    rule.condition == other_rule.condition && rule.scope == other_rule.scope
}

/// A fire that has ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsuccessfulFire {
    /// Its planned instant.
    pub at: Timestamp,
    /// Whether its run failed, timed out, or has an unknown end. Otherwise it was skipped, or has no run.
    pub is_failure: bool,
    /// Why it ended like this; `None` if no reason was recorded, or it has no run.
    pub reason: Option<Reason>,
}

/// Whether a rule about these reasons counts a fire that was skipped for `reason`.
#[must_use]
pub fn counts_skip(reasons: &[Reason], reason: Reason) -> bool {
    // Fires are skipped on purpose inside a maintenance window, in shadow mode, if a pump's window ends before the pump begins, and if a user
    // pauses, edits or deletes the job. A rule applies to them only if it names the reason.
    let is_on_purpose = matches!(
        reason,
        Reason::Maintenance | Reason::Shadow | Reason::WindowOver | Reason::Paused | Reason::Changed | Reason::Deleted
    );
    reasons.contains(&reason) || reasons.is_empty() && !is_on_purpose
}

/// Whether a fire is part of an incident of its job. One of two conditions suffices: the incident names the fire's run; or the rule counts
/// fires with this end, and the fire was planned during the incident or at most the rule's look-back time before it.
#[must_use]
pub fn is_part_of(
    spec: &RuleSpec,
    incident: &Incident,
    (fire, run): (Option<UnsuccessfulFire>, Option<RunId>),
) -> bool {
    let look_back = match &spec.condition {
        Condition::NotSucceededBy { .. } => DAY,
        Condition::NoSuccessFor { length } | Condition::Late { by: length } => *length,
        Condition::RunningLonger { than, .. } => than.unwrap_or_default(),
        _ => Duration::ZERO,
    };
    let is_named = run.is_some_and(|run| incident.samples.iter().any(|sample| sample.run == run));
    let lasts_until = incident.resolved_at.unwrap_or(Timestamp::MAX);
    let is_counted = |fire: &UnsuccessfulFire| match &spec.condition {
        Condition::Failed {} | Condition::FailuresInRow { .. } | Condition::FailureRate { .. } => fire.is_failure,
        // Fires without a run, such as those of a paused job, have no reason, and rules do not count them.
        Condition::Skipped { reasons } => {
            !fire.is_failure && fire.reason.is_some_and(|reason| counts_skip(reasons, reason))
        }
        _ => true,
    };
    let incident_range = incident.started_at - look_back..=lasts_until;
    is_named || fire.filter(is_counted).is_some_and(|fire| incident_range.contains(&fire.at))
}

/// Whether at least `bound` runs were planned.
#[must_use]
pub const fn ledger_growth(bound: u64, count: u64, now: Timestamp) -> ConditionState {
    if count >= bound { ConditionState::Holds { since: now, new_count: 0 } } else { ConditionState::Clear }
}

/// Whether `count` runs of a job failed one after the other. `newest_runs` are its ended runs, the newest first; `events`
/// are the ids of the runs that failed since the rule was last checked. Also finds a streak that a success has ended
/// since that check.
#[must_use]
pub fn failures_in_row(count: u32, newest_runs: &[EndedRun], events: &[RunId]) -> ConditionState {
    let counted_runs = newest_runs.iter().filter(|run| run.is_failure() || run.status == RunStatus::Succeeded);
    let mut is_newest = true;
    let mut best_streak = ConditionState::Clear;
    let mut streak: Vec<&EndedRun> = Vec::new();
    let mut end_streak = |streak: &mut Vec<&EndedRun>, is_newest: bool| {
        let streak_min = usize::try_from(count).unwrap_or(usize::MAX);
        let new_event_count = streak.iter().filter(|run| events.contains(&run.run)).count();
        // If the streak was too short at the last check, all of its failures are new to the rule.
        let new_count = if new_event_count > 0 && streak.len() - new_event_count < streak_min {
            streak.len()
        } else {
            new_event_count
        };
        let new_count = u64::try_from(new_count).unwrap_or(u64::MAX);
        let is_long_enough = streak.len() >= streak_min;
        if let Some(first_failure) = streak.last().filter(|_| is_long_enough && best_streak.is_clear()) {
            let since = first_failure.fire_at;
            match is_newest {
                true => best_streak = ConditionState::Holds { since, new_count },
                false if new_count > 0 => best_streak = ConditionState::HasEnded { since, new_count },
                false => {}
            }
        }
        streak.clear();
    };
    for run in counted_runs {
        if run.is_failure() {
            streak.push(run);
        } else {
            end_streak(&mut streak, is_newest);
            is_newest = false;
        }
    }
    end_streak(&mut streak, is_newest);
    best_streak
}

/// Whether the newest of the job's ended runs was skipped. `events` are the runs that were skipped since the last check.
#[must_use]
pub fn skipped(newest_runs: &[EndedRun], events: &[RunId]) -> ConditionState {
    let skip = newest_runs.iter().find(|run| run.status == RunStatus::Skipped);
    let since = skip.map(|run| run.fire_at);
    let has_ended = newest_runs.first().is_some_and(|run| run.status != RunStatus::Skipped);
    let new_count = u64::try_from(events.len()).unwrap_or(u64::MAX);
    match (since, has_ended) {
        (Some(since), false) => ConditionState::Holds { since, new_count },
        (Some(since), true) if new_count > 0 => ConditionState::HasEnded { since, new_count },
        _ => ConditionState::Clear,
    }
}

/// Whether at least `percent` % of the runs failed, and there are at least `min_runs` runs.
#[must_use]
pub fn failure_rate(
    percent: u32,
    min_runs: u64,
    (failed_count, run_count): (u64, u64),
    since: Timestamp,
) -> ConditionState {
    let is_at_bound = u128::from(failed_count) * 100 >= u128::from(percent) * u128::from(run_count);
    match failed_count > 0 && run_count >= min_runs && is_at_bound {
        true => ConditionState::Holds { since, new_count: 0 },
        false => ConditionState::Clear,
    }
}

/// Whether at least `length` has passed since `from`. Without `from`, the condition does not hold.
#[must_use]
pub fn overdue(from: Option<Timestamp>, length: Duration, now: Timestamp) -> ConditionState {
    match from.map(|from| from.saturating_add(length)) {
        Some(due_at) if due_at <= now => ConditionState::Holds { since: due_at, new_count: 0 },
        _ => ConditionState::Clear,
    }
}

/// Whether a deadline that has passed was missed: no run that was planned at `counts_from` or later has succeeded.
#[must_use]
pub fn missed_deadline(deadline: Timestamp, counts_from: Timestamp, succeeded_at: Option<Timestamp>) -> ConditionState {
    match succeeded_at.is_some_and(|at| at >= counts_from) {
        true => ConditionState::Clear,
        false => ConditionState::Holds { since: deadline, new_count: 0 },
    }
}

/// How long a run may take before the rule holds: `than` or, if that is not given, `times_p95` times `usual`, but at least a
/// second. `usual` is the 95th percentile of the lengths of the job's runs. `None` if neither can be computed.
#[must_use]
pub fn longest_allowed(than: Option<Duration>, times_p95: Option<u32>, usual: Option<Duration>) -> Option<Duration> {
    than.or_else(|| Some(usual?.saturating_mul(times_p95?).max(Duration::from_secs(1))))
}
