//! A run that is assigned to an executor, until its attempt ends.

use std::time::Duration;

use rondel_core::{ExecutorId, Reason, Timestamp};
use rondel_store::ledger::{MarkToRemove, RunAtExecutor};

use super::ready::ReadyRun;
use crate::trace::DispatchSpan;

/// A run that was sent this long ago, and whose handler has begun, is noted in its row as running. Shorter runs need no such write.
pub(crate) const NOTE_RUNNING_AFTER: Duration = Duration::from_secs(1);

/// A run that is assigned to an executor.
#[derive(Debug)]
pub(crate) struct ActiveRun {
    pub(crate) ready: ReadyRun,
    pub(crate) executor: ExecutorId,
    pub(crate) executor_name: String,
    /// When the run was sent; until then, when its executor was chosen. A mark is written before the send, so it has the instant of the choice.
    pub(crate) sent_or_chosen_at: Timestamp,
    /// The number of the run's last trigger; 0 if no trigger was sent.
    pub(crate) trigger_number: i64,
    /// When this server last looked at the run's row.
    pub(crate) row_checked_at: Timestamp,
    pub(crate) phase: Phase,
    /// When its handler began; `None` if no start has been reported.
    pub(crate) began_at: Option<Timestamp>,
    /// Whether the run's row names the executor, or a queued step will write the name there.
    pub(crate) row_names_executor: bool,
    /// How many heartbeats had arrived on the stream when the run was sent; `None` before the send, and once the executor has answered.
    pub(crate) beats_at_send: Option<u64>,
    /// Why the server gave the run up; `None` if it did not. If the result lane has no room for the end that follows, the next round gives
    /// the run up again for this reason. Cleared when the executor lists the run again.
    pub(crate) lost_reason: Option<Reason>,
    /// The span of the dispatch, until the executor answers; `None` if traces are not exported.
    pub(crate) span: Option<DispatchSpan>,
}

impl ActiveRun {
    pub(crate) fn new(
        ready: ReadyRun,
        executor: ExecutorId,
        executor_name: String,
        now: Timestamp,
        phase: Phase,
    ) -> Self {
        Self {
            ready,
            executor,
            executor_name,
            sent_or_chosen_at: now,
            trigger_number: 0,
            row_checked_at: now,
            phase,
            began_at: None,
            row_names_executor: false,
            beats_at_send: None,
            lost_reason: None,
            span: None,
        }
    }

    /// The entry that the store is to write about the run. `at` is when the run began, was sent, or got its executor.
    pub(crate) fn run_at_executor(&self, at: Timestamp) -> RunAtExecutor {
        RunAtExecutor {
            run: self.ready.run.id,
            attempt: self.ready.run.attempt,
            executor_id: self.executor,
            executor: self.executor_name.clone(),
            at,
        }
    }

    /// The entry that removes the run's mark if the executor does not have the run. The shard of a broadcast remains meant for its executor.
    pub(crate) fn mark_to_remove(&self) -> MarkToRemove {
        let ReadyRun { run, .. } = &self.ready;
        let is_meant_for_it = run.executor.as_deref() == Some(self.executor_name.as_str());
        let keeps_executor = self.ready.is_for_one_executor() && is_meant_for_it;
        MarkToRemove { run: run.id, attempt: run.attempt, keeps_executor }
    }

    /// Records the start of the handler. The first report counts, and no attempt begins before it is due.
    pub(crate) fn record_start(&mut self, at: Timestamp, now: Timestamp) {
        self.began_at.get_or_insert(not_before_due(at, self.ready.run.due_at, now));
    }

    /// Handles a step back of the clock to `now`: moves the instants of the run's send and of the last look at its row back to `now` if they are
    /// later.
    pub(crate) fn step_back(&mut self, now: Timestamp) {
        self.sent_or_chosen_at = now.min(self.sent_or_chosen_at);
        self.row_checked_at = now.min(self.row_checked_at);
    }

    /// Records that the executor has answered about this attempt.
    pub(crate) const fn record_answer(&mut self) {
        self.beats_at_send = None;
    }

    /// Records that the store did not note the run as running. The next round tries again.
    pub(crate) fn clear_noted(&mut self) {
        if self.phase == Phase::Noted {
            self.phase = Phase::Sent;
        }
    }

    /// Whether the run was sent and its executor has not answered.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.phase == Phase::Sent && self.beats_at_send.is_some()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waits for its durable mark.
    Marking,
    /// Its executor is chosen, and its mark, if it needs one, is durable. It is sent at its instant, or ahead of it, while the lease
    /// holds.
    Placed,
    /// On the stream, or received by the executor.
    Sent,
    /// Sent, and noted as running: its handler has begun.
    Noted,
    /// The server gave the run up, and that end is being stored. A result of the executor may still be stored first.
    Ending,
    /// Its result is being stored; if the same result arrives again, it changes nothing.
    Settling,
}

/// How far the clocks of two servers may differ in normal operation. Both follow the database's clock, as exactly as its response time allows.
const CLOCK_SLACK: Duration = Duration::from_millis(200);

/// Limits a reported instant of an attempt to the time from `due_at` to `now`. The executor's clock may be wrong, and the clock of the server that
/// sent the attempt may be slightly ahead of this server's. If `due_at` is later than `now` by at most [`CLOCK_SLACK`], the result is `due_at`. If
/// it is later by more, this server's clock has stepped back, and the result is `now`.
pub(crate) fn not_before_due(at: Timestamp, due_at: Timestamp, now: Timestamp) -> Timestamp {
    let earliest = if due_at <= now + CLOCK_SLACK { due_at } else { now };
    at.min(now).max(earliest)
}
