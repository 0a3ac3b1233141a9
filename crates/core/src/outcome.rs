//! What follows from the end of an attempt: another attempt, or a verdict.
//!
//! Every way to a terminal state goes through [`decide_next`]: results, refusals, lost executors, cancels.

use crate::backoff::backoff;
use std::time::Duration;

use crate::reason::Reason;
use crate::status::RunStatus;
use crate::time::Timestamp;

/// How often a run is sent again after its executor died, in addition to the job's own retries.
pub const LOST_RETRY_MAX: i32 = 3;
/// Upper bound on the attempts of a run that never reaches an executor, because each time a server dies or a message is lost.
const UNRECEIVED_ATTEMPT_MAX: i32 = 1_000;

/// A request to cancel a run: who asks, and the reason of the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelRequest<'a> {
    /// The user, the token or the part of the server that asks, with the text of the request.
    pub by: &'a str,
    /// The reason of the verdict.
    pub reason: Reason,
}

impl<'a> CancelRequest<'a> {
    /// A later run of the job takes the run's place.
    pub const LATER_RUN: CancelRequest<'static> =
        CancelRequest { by: "a later run of the job", reason: Reason::Covered };

    /// A user or a program asks.
    #[must_use]
    pub const fn requested(by: &'a str) -> Self {
        Self { by, reason: Reason::Requested }
    }
}

/// The verdict's message for a run that `by` asked to cancel.
#[must_use]
pub fn cancelled_by(by: &str) -> String {
    format!("cancelled by {by}")
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The handler returned without an error.
    Succeeded,
    /// The handler failed; `retryable` is false if it reported that a retry is of no use.
    Failed {
        /// Whether the job's retry policy applies.
        retryable: bool,
    },
    /// The handler was stopped at its deadline.
    TimedOut,
    /// The handler was stopped on request.
    Cancelled,
    /// The handler, or the server on its behalf, skipped the run.
    Skipped(Reason),
    /// The executor was lost while it had the run, or never received it.
    Lost(Reason),
    /// The executor stopped the attempt because no server answered. If the handler had not begun, it never will.
    Silenced {
        /// Whether the handler had begun.
        has_begun: bool,
    },
    /// The attempt's timeout passed without a report of its end. It may still run, so no further attempt is made.
    Unreported,
    /// A group of a pump job released its items to continue on another executor.
    Yielded,
}

/// The part of a job's definition that [`decide_next`] needs. It is small, because the end of each attempt has a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextStepPolicy {
    /// Attempts beyond the first.
    pub retry_max: u32,
    /// Wait before the second attempt; each further attempt doubles it.
    pub backoff: Duration,
    /// Upper bound of that wait.
    pub backoff_max: Duration,
    /// Whether a lost attempt may be followed by another.
    pub at_least_once: bool,
    /// Whether the next fire of the job counts from the end of this run (a fixed delay).
    pub has_fixed_delay: bool,
    /// Whether a run that succeeded ends only when the runs that follow from it have ended.
    pub awaits_children: bool,
    /// Whether the run is a group of a pump job, which gets another attempt after each end until it is asked to end.
    pub is_pump: bool,
}

/// The facts about the attempt that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its number, from 1.
    pub attempt: i32,
    /// How often an executor was lost with this run so far.
    pub lost_count: i32,
    /// Whether a stored mark records that the run may have been sent.
    pub marked: bool,
    /// Whether an earlier attempt began, or may have begun.
    pub may_have_begun: bool,
    /// The reason of a request to cancel the run, if there is one.
    pub cancel_asked: Option<Reason>,
    /// Whether a group of a pump left rows that failed for good, or its last select failed.
    pub unfinished: bool,
}

/// What follows from the end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// The run gets another attempt.
    Retry {
        /// When it may start.
        due_at: Timestamp,
        /// Why there is another attempt.
        reason: Reason,
        /// New value of the run's lost count.
        lost_count: i32,
    },
    /// The run ends.
    Verdict {
        /// A terminal status.
        status: RunStatus,
        /// The reason, if the status does not imply it.
        reason: Option<Reason>,
    },
}

/// Decides what follows from the end of an attempt. `jitter` is a number from 0 to 1 that spreads retries.
///
/// ```
/// use rondel_core::outcome::{NextStep, NextStepPolicy, Ended, Outcome, decide_next};
/// use rondel_core::{RunStatus, Timestamp};
/// use std::time::Duration;
///
/// let policy = NextStepPolicy {
///     retry_max: 1,
///     backoff: Duration::from_secs(10),
///     backoff_max: Duration::from_secs(60),
///     at_least_once: true,
///     has_fixed_delay: false,
///     awaits_children: false,
///     is_pump: false,
/// };
/// let now = Timestamp::from_secs(0);
/// let first =
///     Ended { attempt: 1, lost_count: 0, marked: false, may_have_begun: false, cancel_asked: None, unfinished: false };
/// let failed = Outcome::Failed { retryable: true };
/// assert!(matches!(decide_next(policy, first, failed, now, 0.0), NextStep::Retry { .. }));
/// let second = Ended { attempt: 2, ..first };
/// assert_eq!(decide_next(policy, second, failed, now, 0.0), NextStep::Verdict { status: RunStatus::Failed, reason: None });
/// ```
#[must_use]
pub fn decide_next(policy: NextStepPolicy, ended: Ended, outcome: Outcome, now: Timestamp, jitter: f64) -> NextStep {
    let verdict = |status, reason| NextStep::Verdict { status, reason };
    match outcome {
        Outcome::Succeeded => verdict(RunStatus::Succeeded, None),
        // The groups have worked off their rows: the run ended as planned, except for rows that failed for good.
        Outcome::Cancelled | Outcome::Yielded
            if policy.is_pump && ended.cancel_asked.is_some_and(Reason::ends_pump) =>
        {
            // After a pause or an edit a group does not count as failed: the next run continues with the rows that are left.
            let has_failed = ended.unfinished && ended.cancel_asked.is_some_and(Reason::ends_window);
            verdict(if has_failed { RunStatus::Failed } else { RunStatus::Succeeded }, ended.cancel_asked)
        }
        Outcome::Yielded if ended.cancel_asked.is_none() && policy.is_pump => {
            NextStep::Retry { due_at: now, reason: Reason::Moved, lost_count: ended.lost_count.saturating_add(1) }
        }
        Outcome::Cancelled | Outcome::Yielded => {
            verdict(RunStatus::Cancelled, ended.cancel_asked.or(Some(Reason::Requested)))
        }
        // A run counts as skipped only if no attempt of it began. Only the handler itself may skip a later attempt.
        Outcome::Skipped(reason) if ended.may_have_begun && reason != Reason::Handler => {
            verdict(RunStatus::Failed, Some(reason))
        }
        Outcome::Skipped(reason) => verdict(RunStatus::Skipped, Some(reason)),
        Outcome::Failed { retryable } => {
            retry(policy, ended, retryable, now, jitter).unwrap_or_else(|| verdict(RunStatus::Failed, None))
        }
        Outcome::TimedOut => {
            retry(policy, ended, true, now, jitter).unwrap_or_else(|| verdict(RunStatus::TimedOut, None))
        }
        Outcome::Lost(reason) => lost(policy, ended, reason, now),
        Outcome::Silenced { has_begun } => silenced(policy, ended, has_begun, now, jitter),
        Outcome::Unreported => match ended.cancel_asked {
            Some(_) => verdict(RunStatus::Cancelled, Some(Reason::ExecutorLost)),
            None => verdict(RunStatus::Unknown, None),
        },
    }
}

fn retry(policy: NextStepPolicy, ended: Ended, retryable: bool, now: Timestamp, jitter: f64) -> Option<NextStep> {
    // Attempts whose executor was lost do not count against the job's own retries.
    let failed_count = u32::try_from(ended.attempt - ended.lost_count).unwrap_or(0).max(1);
    let is_over = !policy.is_pump && (!retryable || failed_count > policy.retry_max);
    if is_over || ended.cancel_asked.is_some() {
        return None;
    }
    let wait = backoff(policy.backoff, policy.backoff_max, failed_count).mul_f64(0.9 + 0.2 * jitter.clamp(0.0, 1.0));
    Some(NextStep::Retry { due_at: now + wait, reason: Reason::Retry, lost_count: ended.lost_count })
}

/// What follows when an executor stopped an attempt because no server answered. That is not the run's fault: where the delivery policy
/// allows it, the run is sent again without being counted as a retry.
fn silenced(policy: NextStepPolicy, ended: Ended, has_begun: bool, now: Timestamp, jitter: f64) -> NextStep {
    if !has_begun {
        // The executor itself reports that the handler never began, so neither the mark nor the delivery policy forbids another send.
        return lost(policy, Ended { marked: false, ..ended }, Reason::NotReceived, now);
    }
    match ended.cancel_asked {
        Some(asked) => NextStep::Verdict { status: RunStatus::Cancelled, reason: Some(asked) },
        None if policy.at_least_once => lost(policy, ended, Reason::ExecutorLost, now),
        // It began, and must not begin again unless the job's own retries allow that.
        None => retry(policy, ended, true, now, jitter)
            .unwrap_or(NextStep::Verdict { status: RunStatus::Failed, reason: None }),
    }
}

fn lost(policy: NextStepPolicy, ended: Ended, reason: Reason, now: Timestamp) -> NextStep {
    if let Some(asked) = ended.cancel_asked {
        // A run that no executor received is cancelled for certain. A handler on a lost executor may have succeeded.
        let reason = if reason == Reason::NotReceived { asked } else { reason };
        return NextStep::Verdict { status: RunStatus::Cancelled, reason: Some(reason) };
    }
    if !policy.at_least_once && ended.marked {
        return NextStep::Verdict { status: RunStatus::Unknown, reason: Some(reason) };
    }
    // A run that no executor received cannot have crashed one: it is sent again without being counted.
    let died_count = ended.lost_count.saturating_add(i32::from(reason != Reason::NotReceived));
    if !policy.is_pump && (died_count > LOST_RETRY_MAX || ended.attempt >= UNRECEIVED_ATTEMPT_MAX) {
        return NextStep::Verdict { status: RunStatus::Failed, reason: Some(reason) };
    }
    NextStep::Retry { due_at: now, reason, lost_count: died_count }
}

/// Whether a verdict was given without the executor's report; a late result replaces such a verdict.
///
/// ```
/// use rondel_core::outcome::is_provisional;
/// use rondel_core::{Reason, RunStatus};
///
/// assert!(is_provisional(RunStatus::Unknown, None));
/// assert!(is_provisional(RunStatus::Cancelled, Some(Reason::ExecutorLost)));
/// assert!(!is_provisional(RunStatus::Cancelled, Some(Reason::Requested)));
/// ```
#[must_use]
pub fn is_provisional(status: RunStatus, reason: Option<Reason>) -> bool {
    match status {
        RunStatus::Unknown => true,
        RunStatus::Failed | RunStatus::Cancelled => reason == Some(Reason::ExecutorLost),
        RunStatus::Succeeded
        | RunStatus::TimedOut
        | RunStatus::Skipped
        | RunStatus::Pending
        | RunStatus::Waiting
        | RunStatus::Running => false,
    }
}

/// Folds the verdicts of a broadcast's shards into the verdict of the fire: the worst one counts.
#[must_use]
pub fn fold_shards(shards: impl IntoIterator<Item = RunStatus>) -> RunStatus {
    let weight = |status: &RunStatus| match status {
        RunStatus::Failed => 5,
        RunStatus::TimedOut => 4,
        RunStatus::Unknown => 3,
        RunStatus::Cancelled => 2,
        RunStatus::Skipped => 1,
        RunStatus::Succeeded | RunStatus::Pending | RunStatus::Waiting | RunStatus::Running => 0,
    };
    shards.into_iter().max_by_key(weight).unwrap_or(RunStatus::Skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: NextStepPolicy = NextStepPolicy {
        retry_max: 2,
        backoff: Duration::from_secs(10),
        backoff_max: Duration::from_secs(15),
        at_least_once: true,
        has_fixed_delay: false,
        awaits_children: false,
        is_pump: false,
    };
    const NOW: Timestamp = Timestamp::from_secs(1000);
    const FIRST: Ended = Ended {
        attempt: 1,
        lost_count: 0,
        marked: false,
        may_have_begun: false,
        cancel_asked: None,
        unfinished: false,
    };
    const FAILED: Outcome = Outcome::Failed { retryable: true };

    #[track_caller]
    fn check_after(policy: NextStepPolicy, ended: Ended, outcome: Outcome, expected: NextStep) {
        assert_eq!(decide_next(policy, ended, outcome, NOW, 0.5), expected);
    }

    fn verdict(status: RunStatus, reason: Option<Reason>) -> NextStep {
        NextStep::Verdict { status, reason }
    }

    fn again_in(seconds: u64, reason: Reason, lost_count: i32) -> NextStep {
        NextStep::Retry { due_at: NOW + Duration::from_secs(seconds), reason, lost_count }
    }

    #[test]
    fn retries_double_their_wait_up_to_the_cap_and_end() {
        check_after(POLICY, FIRST, FAILED, again_in(10, Reason::Retry, 0));
        check_after(POLICY, Ended { attempt: 2, ..FIRST }, FAILED, again_in(15, Reason::Retry, 0));
        check_after(POLICY, Ended { attempt: 3, ..FIRST }, FAILED, verdict(RunStatus::Failed, None));
        check_after(POLICY, FIRST, Outcome::TimedOut, again_in(10, Reason::Retry, 0));
        check_after(POLICY, FIRST, Outcome::Failed { retryable: false }, verdict(RunStatus::Failed, None));
    }

    #[test]
    fn a_cancelled_run_is_not_tried_again() {
        let asked = Ended { cancel_asked: Some(Reason::Requested), ..FIRST };
        check_after(POLICY, asked, FAILED, verdict(RunStatus::Failed, None));
        let cancelled = verdict(RunStatus::Cancelled, Some(Reason::Requested));
        check_after(POLICY, asked, Outcome::Lost(Reason::NotReceived), cancelled);
        check_after(POLICY, asked, Outcome::Cancelled, cancelled);
        check_after(POLICY, FIRST, Outcome::Cancelled, cancelled);
        let covered = Ended { cancel_asked: Some(CancelRequest::LATER_RUN.reason), ..FIRST };
        check_after(POLICY, covered, Outcome::Cancelled, verdict(RunStatus::Cancelled, Some(Reason::Covered)));
    }

    #[test]
    fn a_cancelled_run_whose_executor_is_lost_has_a_verdict_that_a_late_result_replaces() {
        let asked = Ended { cancel_asked: Some(Reason::Requested), ..FIRST };
        let provisional = verdict(RunStatus::Cancelled, Some(Reason::ExecutorLost));
        check_after(POLICY, asked, Outcome::Lost(Reason::ExecutorLost), provisional);
        check_after(POLICY, asked, Outcome::Unreported, provisional);
        assert!(is_provisional(RunStatus::Cancelled, Some(Reason::ExecutorLost)));
        assert!(is_provisional(RunStatus::Failed, Some(Reason::ExecutorLost)));
        for reason in [None, Some(Reason::NotReceived), Some(Reason::Requested), Some(Reason::Covered)] {
            assert!(!is_provisional(RunStatus::Cancelled, reason), "{reason:?}");
        }
    }

    #[test]
    fn lost_attempts_are_counted_apart_and_end() {
        let lost = Outcome::Lost(Reason::ExecutorLost);
        check_after(POLICY, FIRST, lost, again_in(0, Reason::ExecutorLost, 1));
        let after_three = Ended { attempt: 4, lost_count: 3, ..FIRST };
        check_after(POLICY, after_three, lost, verdict(RunStatus::Failed, Some(Reason::ExecutorLost)));
        // A run that no executor received does not count as lost.
        let unreceived = Outcome::Lost(Reason::NotReceived);
        check_after(POLICY, after_three, unreceived, again_in(0, Reason::NotReceived, 3));
        check_after(
            POLICY,
            Ended { attempt: 1_000, ..FIRST },
            unreceived,
            verdict(RunStatus::Failed, Some(Reason::NotReceived)),
        );
        // The fourth attempt is the first that failed by itself.
        check_after(POLICY, after_three, FAILED, again_in(10, Reason::Retry, 3));
    }

    #[test]
    fn a_run_that_its_executor_stopped_in_silence_is_sent_again_without_a_retry() {
        let none = NextStepPolicy { retry_max: 0, ..POLICY };
        let begun = Outcome::Silenced { has_begun: true };
        check_after(none, FIRST, begun, again_in(0, Reason::ExecutorLost, 1));
        check_after(none, Ended { attempt: 2, lost_count: 1, ..FIRST }, FAILED, verdict(RunStatus::Failed, None));
        let after_three = Ended { attempt: 4, lost_count: 3, ..FIRST };
        check_after(none, after_three, begun, verdict(RunStatus::Failed, Some(Reason::ExecutorLost)));
        let asked = Ended { cancel_asked: Some(Reason::Requested), ..FIRST };
        check_after(none, asked, begun, verdict(RunStatus::Cancelled, Some(Reason::Requested)));

        let at_most_once = NextStepPolicy { at_least_once: false, ..none };
        let marked = Ended { marked: true, ..FIRST };
        check_after(at_most_once, marked, begun, verdict(RunStatus::Failed, None));
        let waiting = Outcome::Silenced { has_begun: false };
        check_after(at_most_once, marked, waiting, again_in(0, Reason::NotReceived, 0));
        check_after(none, after_three, waiting, again_in(0, Reason::NotReceived, 3));
    }

    #[test]
    fn a_run_of_which_an_attempt_began_is_not_skipped() {
        let begun = Ended { attempt: 2, may_have_begun: true, ..FIRST };
        for at_least_once in [true, false] {
            let policy = NextStepPolicy { at_least_once, ..POLICY };
            for reason in [Reason::NoExecutor, Reason::Overlap, Reason::Expired, Reason::Misfire, Reason::Stopped] {
                let skipped = Outcome::Skipped(reason);
                check_after(policy, begun, skipped, verdict(RunStatus::Failed, Some(reason)));
                check_after(policy, Ended { attempt: 2, ..FIRST }, skipped, verdict(RunStatus::Skipped, Some(reason)));
            }
        }
        let by_handler = Outcome::Skipped(Reason::Handler);
        check_after(POLICY, begun, by_handler, verdict(RunStatus::Skipped, Some(Reason::Handler)));
    }

    #[test]
    fn a_marked_at_most_once_run_that_was_lost_is_unknown() {
        let policy = NextStepPolicy { at_least_once: false, ..POLICY };
        let lost = Outcome::Lost(Reason::ExecutorLost);
        let marked = Ended { marked: true, ..FIRST };
        check_after(policy, marked, lost, verdict(RunStatus::Unknown, Some(Reason::ExecutorLost)));
        check_after(policy, FIRST, lost, again_in(0, Reason::ExecutorLost, 1));
    }

    #[test]
    fn a_run_past_its_timeout_whose_end_is_not_reported_is_unknown_and_not_sent_again() {
        let policy = NextStepPolicy { at_least_once: false, retry_max: 9, ..POLICY };
        check_after(policy, FIRST, Outcome::Unreported, verdict(RunStatus::Unknown, None));
        let asked = Ended { cancel_asked: Some(Reason::Requested), ..FIRST };
        check_after(policy, asked, Outcome::Unreported, verdict(RunStatus::Cancelled, Some(Reason::ExecutorLost)));
    }

    #[test]
    fn the_worst_shard_gives_the_verdict() {
        use RunStatus::{Failed, Skipped, Succeeded, TimedOut};
        for (shards, expected) in [
            (vec![Succeeded, Succeeded], Succeeded),
            (vec![Succeeded, Failed, TimedOut], Failed),
            (vec![Succeeded, Skipped], Skipped),
            (vec![], Skipped),
        ] {
            assert_eq!(fold_shards(shards), expected);
        }
    }

    #[test]
    fn a_lost_attempt_is_no_failure_and_each_failure_counts() {
        // Both attempts so far were lost: the next failure is the first one.
        let all_lost = Ended { attempt: 2, lost_count: 2, ..FIRST };
        check_after(POLICY, all_lost, FAILED, again_in(10, Reason::Retry, 2));
        let none = NextStepPolicy { retry_max: 0, ..POLICY };
        check_after(none, all_lost, FAILED, verdict(RunStatus::Failed, None));
        let lost = Outcome::Lost(Reason::ExecutorLost);
        check_after(POLICY, Ended { attempt: 3, lost_count: 2, ..FIRST }, lost, again_in(0, Reason::ExecutorLost, 3));
        let unreceived = Outcome::Lost(Reason::NotReceived);
        check_after(POLICY, Ended { attempt: 999, ..FIRST }, unreceived, again_in(0, Reason::NotReceived, 0));
    }

    #[test]
    fn a_group_of_a_pump_goes_on_until_it_is_asked_to_end() {
        let pump = NextStepPolicy { retry_max: 0, is_pump: true, ..POLICY };
        let many = Ended { attempt: 5_000, lost_count: 4_000, ..FIRST };
        check_after(pump, many, Outcome::Yielded, again_in(0, Reason::Moved, 4_001));
        check_after(pump, many, Outcome::Lost(Reason::ExecutorLost), again_in(0, Reason::ExecutorLost, 4_001));
        check_after(pump, many, Outcome::Lost(Reason::NotReceived), again_in(0, Reason::NotReceived, 4_000));
        check_after(pump, many, Outcome::Failed { retryable: false }, again_in(15, Reason::Retry, 4_000));
        for reason in [Reason::WindowOver, Reason::Dry, Reason::Paused, Reason::Changed] {
            let asked = Ended { cancel_asked: Some(reason), ..many };
            for outcome in [Outcome::Cancelled, Outcome::Yielded] {
                check_after(pump, asked, outcome, verdict(RunStatus::Succeeded, Some(reason)));
            }
            check_after(pump, asked, FAILED, verdict(RunStatus::Failed, None));
        }
        let by_hand = Ended { cancel_asked: Some(Reason::Requested), ..many };
        for outcome in [Outcome::Cancelled, Outcome::Yielded] {
            check_after(pump, by_hand, outcome, verdict(RunStatus::Cancelled, Some(Reason::Requested)));
        }
    }

    #[test]
    fn a_group_that_leaves_failed_rows_at_the_end_of_a_window_has_failed() {
        let pump = NextStepPolicy { is_pump: true, ..POLICY };
        for (asked, status) in [
            (Reason::WindowOver, RunStatus::Failed),
            (Reason::Dry, RunStatus::Failed),
            (Reason::Paused, RunStatus::Succeeded),
            (Reason::Changed, RunStatus::Succeeded),
            (Reason::Requested, RunStatus::Cancelled),
        ] {
            let ended = Ended { cancel_asked: Some(asked), unfinished: true, ..FIRST };
            for outcome in [Outcome::Cancelled, Outcome::Yielded] {
                check_after(pump, ended, outcome, verdict(status, Some(asked)));
            }
        }
        check_after(pump, Ended { unfinished: true, ..FIRST }, Outcome::Yielded, again_in(0, Reason::Moved, 1));
    }

    #[test]
    fn jitter_spreads_a_retry_by_a_tenth() {
        let wait = |jitter| match decide_next(POLICY, FIRST, FAILED, NOW, jitter) {
            NextStep::Retry { due_at, .. } => due_at.since(NOW).as_millis(),
            NextStep::Verdict { .. } => 0,
        };
        assert_eq!([-1.0, 0.0, 0.5, 1.0, 2.0].map(wait), [9_000, 9_000, 10_000, 11_000, 11_000]);
    }

    #[test]
    fn each_verdict_of_a_shard_outweighs_the_milder_ones() {
        use RunStatus::{Cancelled, Failed, Skipped, Succeeded, TimedOut, Unknown};
        let from_mild_to_bad = [Succeeded, Skipped, Cancelled, Unknown, TimedOut, Failed];
        for pair in from_mild_to_bad.windows(2) {
            for shards in [[pair[0], pair[1]], [pair[1], pair[0]]] {
                assert_eq!(fold_shards(shards), pair[1]);
            }
        }
    }
}
