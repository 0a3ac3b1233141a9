//! The timer of a run that waits for its instant.

use std::time::Duration;

use rondel_core::Timestamp;
use rondel_core::spec::Delivery;

use super::ready::ReadyRun;

/// How long before its instant an at-most-once run is marked at the earliest: long enough for the write, so that the run starts on time,
/// and no longer, because a run whose node dies in between ends as `unknown`.
pub(crate) const MARK_LEAD: Duration = Duration::from_millis(200);
/// Maximum time before its instant at which the tick reads a run and sends it here.
const READ_AHEAD_MAX: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer {
    /// The run's instant, or slightly earlier if the run is marked first or may be sent ahead.
    pub(crate) at: Timestamp,
    /// When the run came here, as the uptime of the process.
    armed_at: Duration,
}

impl Timer {
    /// The timer goes off `send_lead` before the run's instant, or [`MARK_LEAD`] before it if the run may run at most once and is therefore marked
    /// first.
    pub(crate) fn new(ready: &ReadyRun, send_lead: Duration, uptime: Duration) -> Self {
        let needs_mark = ready.definition.job.delivery == Delivery::AtMostOnce && !ready.run.is_root();
        let send_lead = if needs_mark { MARK_LEAD } else { send_lead };
        Self { at: ready.run.due_at - send_lead, armed_at: uptime }
    }

    /// This timer, set to `at`.
    pub(crate) const fn set_to(self, at: Timestamp) -> Self {
        Self { at, ..self }
    }

    /// Whether the run has waited here for longer than the database's clock allows. If so, that clock has stepped back since the run was
    /// read. The run's instant may have lain far ahead again, and an edit may have settled the run meanwhile.
    pub(crate) fn is_outdated(&self, due_at: Timestamp, now: Timestamp, uptime: Duration) -> bool {
        let overdue_for = if now > due_at { now.since(due_at) } else { Duration::ZERO };
        uptime.saturating_sub(self.armed_at) > overdue_for + READ_AHEAD_MAX
    }
}
