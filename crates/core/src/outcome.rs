//! What follows from the end of an attempt: another attempt, or a verdict.
//!
//! Every end of an attempt goes through [`decide_next`]: a result, a refusal, a lost executor, a cancel.

use std::time::Duration;

use crate::backoff::{backoff, multiply};
use crate::reason::Reason;
use crate::status::RunStatus;
use crate::time::Timestamp;

/// How often a run is sent again after its executor died, in addition to the job's own retries.
pub const LOST_RETRY_MAX: i32 = 3;
/// Maximum number of attempts of a run that never reaches an executor, because a server dies or a message is lost each time.
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
    /// The request that is made when a later run of the job takes the run's place.
    pub const LATER_RUN: CancelRequest<'static> =
        CancelRequest { by: "a later run of the job", reason: Reason::Covered };

    /// The request of a user or a program.
    #[must_use]
    pub const fn requested(by: &'a str) -> Self {
        Self { by, reason: Reason::Requested }
    }

    /// Whether it replaces an earlier request, which was made for the reason `earlier_reason` (`None` if there was none). In general the
    /// first request counts. A user's request replaces the planned end of a pump, because it also keeps the pump from beginning
    /// again.
    ///
    /// ```
    /// use rondel_core::Reason;
    /// use rondel_core::outcome::CancelRequest;
    ///
    /// assert!(CancelRequest::requested("mia").replaces(None));
    /// assert!(CancelRequest::requested("mia").replaces(Some(Reason::Changed)));
    /// assert!(!CancelRequest::requested("mia").replaces(Some(Reason::Requested)));
    /// assert!(!CancelRequest::LATER_RUN.replaces(Some(Reason::Changed)));
    /// ```
    #[must_use]
    pub fn replaces(self, earlier_reason: Option<Reason>) -> bool {
        earlier_reason.is_none_or(|earlier_reason| self.reason == Reason::Requested && earlier_reason.ends_pump())
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
    /// The handler failed.
    Failed {
        /// Whether the job's retry policy applies; false if the handler reported that a retry cannot succeed.
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
    /// The executor stopped the attempt because no server answered. If the handler had not begun, it never will. An executor that shuts down
    /// hands back attempts that have not begun in the same way.
    Silenced {
        /// Whether the handler had begun.
        has_begun: bool,
    },
    /// The attempt's timeout passed without a report of its end. The attempt may still be running, so no further attempt is made.
    Unreported,
    /// A group of a pump job released its items to continue on another executor.
    Yielded,
}

/// The part of a job's definition that [`decide_next`] needs. It is small, because it is copied for each attempt that ends.
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
pub struct AttemptFacts {
    /// Its number, from 1.
    pub attempt: i32,
    /// How often an executor was lost with this run so far.
    pub lost_count: i32,
    /// How many earlier attempts no executor received.
    pub unreceived_count: i32,
    /// Whether a stored mark records that the run may have been sent.
    pub is_marked: bool,
    /// Whether an earlier attempt began, or may have begun.
    pub may_have_begun: bool,
    /// The reason of a request to cancel the run, if there is one.
    pub cancel_request_reason: Option<Reason>,
    /// Whether a group of a pump left rows that failed for good, or its last select failed.
    pub is_unfinished: bool,
    /// Whether it is the row of a whole fire whose shards were never created.
    pub is_unexpanded: bool,
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
/// use rondel_core::outcome::{NextStep, NextStepPolicy, AttemptFacts, Outcome, decide_next};
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
///     AttemptFacts { attempt: 1, lost_count: 0, unreceived_count: 0, is_marked: false, may_have_begun: false, cancel_request_reason: None, is_unfinished: false, is_unexpanded: false };
/// let failed = Outcome::Failed { retryable: true };
/// assert!(matches!(decide_next(policy, first, failed, now, 0.0), NextStep::Retry { .. }));
/// let second = AttemptFacts { attempt: 2, ..first };
/// assert_eq!(decide_next(policy, second, failed, now, 0.0), NextStep::Verdict { status: RunStatus::Failed, reason: None });
/// ```
#[must_use]
pub fn decide_next(
    policy: NextStepPolicy,
    facts: AttemptFacts,
    outcome: Outcome,
    now: Timestamp,
    jitter: f64,
) -> NextStep {
    let verdict = |status, reason| NextStep::Verdict { status, reason };
    match outcome {
        Outcome::Succeeded => verdict(RunStatus::Succeeded, None),
        // No group of the pump was ever created, so the pump did not succeed.
        Outcome::Cancelled
            if policy.is_pump && facts.is_unexpanded && facts.cancel_request_reason.is_some_and(Reason::ends_pump) =>
        {
            verdict(RunStatus::Skipped, facts.cancel_request_reason)
        }
        // The groups have processed their rows: the run ended as planned, except for rows that failed for good.
        Outcome::Cancelled | Outcome::Yielded
            if policy.is_pump && facts.cancel_request_reason.is_some_and(Reason::ends_pump) =>
        {
            // After a pause or an edit a group does not count as failed: the next run continues with the rows that are left.
            let has_failed = facts.is_unfinished && facts.cancel_request_reason.is_some_and(Reason::ends_window);
            verdict(if has_failed { RunStatus::Failed } else { RunStatus::Succeeded }, facts.cancel_request_reason)
        }
        Outcome::Yielded if facts.cancel_request_reason.is_none() && policy.is_pump => {
            NextStep::Retry { due_at: now, reason: Reason::Moved, lost_count: facts.lost_count.saturating_add(1) }
        }
        Outcome::Cancelled | Outcome::Yielded => {
            verdict(RunStatus::Cancelled, facts.cancel_request_reason.or(Some(Reason::Requested)))
        }
        // The job was paused while the only group of a pump was waiting for its next attempt. An earlier attempt may have
        // processed rows, so the run counts as succeeded.
        Outcome::Skipped(reason) if policy.is_pump && facts.may_have_begun && reason.ends_pump() => {
            verdict(RunStatus::Succeeded, Some(reason))
        }
        // A run counts as skipped only if no attempt of it began. Only the handler itself may skip a later attempt.
        Outcome::Skipped(reason) if facts.may_have_begun && reason != Reason::Handler => {
            verdict(RunStatus::Failed, Some(reason))
        }
        Outcome::Skipped(reason) => verdict(RunStatus::Skipped, Some(reason)),
        Outcome::Failed { retryable } => {
            next_retry(policy, facts, retryable, now, jitter).unwrap_or_else(|| verdict(RunStatus::Failed, None))
        }
        Outcome::TimedOut => {
            next_retry(policy, facts, true, now, jitter).unwrap_or_else(|| verdict(RunStatus::TimedOut, None))
        }
        Outcome::Lost(reason) => decide_after_loss(policy, facts, reason, now),
        Outcome::Silenced { has_begun } => decide_after_silence(policy, facts, has_begun, now, jitter),
        Outcome::Unreported => match facts.cancel_request_reason {
            Some(_) => verdict(RunStatus::Cancelled, Some(Reason::ExecutorLost)),
            None => verdict(RunStatus::Unknown, None),
        },
    }
}

fn next_retry(
    policy: NextStepPolicy,
    facts: AttemptFacts,
    retryable: bool,
    now: Timestamp,
    jitter: f64,
) -> Option<NextStep> {
    // Attempts whose executor was lost, or that no executor received, do not count against the job's own retries.
    let uncounted_attempts = facts.lost_count.saturating_add(facts.unreceived_count);
    let failed_count = u32::try_from(facts.attempt.saturating_sub(uncounted_attempts)).unwrap_or(0).max(1);
    let has_no_retry_left = !policy.is_pump && (!retryable || failed_count > policy.retry_max);
    if has_no_retry_left || facts.cancel_request_reason.is_some() {
        return None;
    }
    let wait = multiply(backoff(policy.backoff, policy.backoff_max, failed_count), 0.9 + 0.2 * jitter.clamp(0.0, 1.0));
    Some(NextStep::Retry { due_at: now + wait, reason: Reason::Retry, lost_count: facts.lost_count })
}

/// What follows when an executor stopped an attempt because no server answered. That is not the run's fault: where the delivery policy
/// allows it, the run is sent again without being counted as a retry.
fn decide_after_silence(
    policy: NextStepPolicy,
    facts: AttemptFacts,
    has_begun: bool,
    now: Timestamp,
    jitter: f64,
) -> NextStep {
    if !has_begun {
        // The executor itself reports that the handler never began, so neither the mark nor the delivery policy forbids another send.
        return decide_after_loss(policy, AttemptFacts { is_marked: false, ..facts }, Reason::NotReceived, now);
    }
    match facts.cancel_request_reason {
        Some(cancel_reason) => NextStep::Verdict { status: RunStatus::Cancelled, reason: Some(cancel_reason) },
        None if policy.at_least_once => decide_after_loss(policy, facts, Reason::ExecutorLost, now),
        // The handler began, and must not begin again unless the job's own retries allow that.
        None => next_retry(policy, facts, true, now, jitter)
            .unwrap_or(NextStep::Verdict { status: RunStatus::Failed, reason: None }),
    }
}

fn decide_after_loss(policy: NextStepPolicy, facts: AttemptFacts, reason: Reason, now: Timestamp) -> NextStep {
    if let Some(cancel_reason) = facts.cancel_request_reason {
        // A run that no executor received is cancelled for certain. A handler on a lost executor may have succeeded.
        let reason = if reason == Reason::NotReceived { cancel_reason } else { reason };
        return NextStep::Verdict { status: RunStatus::Cancelled, reason: Some(reason) };
    }
    if !policy.at_least_once && facts.is_marked {
        return NextStep::Verdict { status: RunStatus::Unknown, reason: Some(reason) };
    }
    // A run that no executor received cannot have crashed one: it is sent again without being counted.
    let lost_count = facts.lost_count.saturating_add(i32::from(reason != Reason::NotReceived));
    if !policy.is_pump && (lost_count > LOST_RETRY_MAX || facts.attempt >= UNRECEIVED_ATTEMPT_MAX) {
        return NextStep::Verdict { status: RunStatus::Failed, reason: Some(reason) };
    }
    NextStep::Retry { due_at: now, reason, lost_count }
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
mod tests;
