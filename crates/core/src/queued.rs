//! Decides which queued runs are skipped when their job is paused or deleted.

use crate::reason::Reason;
use crate::run::Run;
use crate::status::{RunStatus, Trigger};
use crate::time::Timestamp;
use crate::word_enum::word_enum;

word_enum! {
    /// What happens to the queued runs of a job, which no executor has, when the job is paused or deleted.
    QueuedRunsPolicy {
        /// They run in their turn.
        Run = "run",
        /// They are skipped.
        Drop = "drop",
    }
}

impl QueuedRunsPolicy {
    /// Whether a queued run with this trigger is skipped when its job is paused or deleted (`reason`). By default, a pause skips the runs
    /// that the schedule or a parent created and keeps the runs that a caller requested; a deletion skips all of them.
    #[must_use]
    pub const fn drops(choice: Option<Self>, reason: Reason, trigger: Trigger) -> bool {
        match (choice, trigger) {
            (Some(Self::Run), _) => false,
            (Some(Self::Drop), _) => true,
            (None, Trigger::Manual | Trigger::Api | Trigger::Backfill) => matches!(reason, Reason::Deleted),
            (None, Trigger::Cron | Trigger::Interval | Trigger::Once | Trigger::Parent | Trigger::Misfire) => true,
        }
    }
}

impl Reason {
    /// Whether a request to end a run for this reason applies only while no executor has the run.
    #[must_use]
    pub const fn applies_only_to_queued(self) -> bool {
        matches!(self, Self::Paused | Self::Deleted)
    }
}

/// Whether this run is a schedule's fire whose instant is still ahead, so that an edit may withdraw it. Runs that a user
/// planned do not count. `ahead_after` is the current instant, or a later one if the clock has stepped back: an edit does not withdraw what
/// may have been sent before the step.
#[must_use]
pub fn is_fire_ahead(run: &Run, ahead_after: Timestamp) -> bool {
    run.cause == 0 && run.fire_at > ahead_after
}

/// Whether no executor has this open run, as far as its row shows. A shard never counts as queued, because its fire has begun.
#[must_use]
pub fn is_queued(run: &Run) -> bool {
    let is_unsent = match run.status {
        RunStatus::Waiting => true,
        RunStatus::Pending => run.marked_at.is_none() && run.executor_id.is_none(),
        _ => false,
    };
    is_unsent && (run.is_root() || run.shard_total.is_none_or(|total| total <= 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_keeps_runs_that_a_caller_requested() {
        for (choice, reason, trigger, expected) in [
            (None, Reason::Paused, Trigger::Cron, true),
            (None, Reason::Paused, Trigger::Parent, true),
            (None, Reason::Paused, Trigger::Manual, false),
            (None, Reason::Paused, Trigger::Backfill, false),
            (None, Reason::Deleted, Trigger::Api, true),
            (Some(QueuedRunsPolicy::Run), Reason::Deleted, Trigger::Cron, false),
            (Some(QueuedRunsPolicy::Drop), Reason::Paused, Trigger::Api, true),
        ] {
            assert_eq!(QueuedRunsPolicy::drops(choice, reason, trigger), expected, "{choice:?} {reason:?} {trigger:?}");
        }
    }
}
