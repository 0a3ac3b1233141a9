//! A run in an executor's hands, or on its way.

use std::time::Duration;

use rondel_core::{ExecutorId, Timestamp};
use rondel_store::ledger::InHand;

use super::ready::Ready;
use crate::trace::DispatchSpan;

/// How long ago a run was sent when it is noted in the store what has become of it.
pub(crate) const NOTE_AFTER: Duration = Duration::from_secs(1);

/// A run in an executor's hands, or on its way.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) ready: Ready,
    pub(crate) executor: ExecutorId,
    pub(crate) executor_name: String,
    /// When it was sent; before that, when the executor was chosen, which is the instant of an at-most-once run's mark.
    pub(crate) sent_at: Timestamp,
    /// The number of the trigger that was sent last.
    pub(crate) number: i64,
    /// When its row was looked at last.
    pub(crate) looked_at: Timestamp,
    pub(crate) phase: Phase,
    /// When its handler began; `None` where no report has come that it did.
    pub(crate) began_at: Option<Timestamp>,
    /// Its row names the executor, which has accepted it.
    pub(crate) is_named: bool,
    /// How many heartbeats had come on the stream when it was sent; none once the executor has answered.
    pub(crate) beats_at_send: Option<u64>,
    /// The dispatch of the run, until the executor answers; where traces are exported.
    pub(crate) span: Option<DispatchSpan>,
}

impl Active {
    pub(crate) fn new(ready: Ready, executor: ExecutorId, executor_name: String, now: Timestamp, phase: Phase) -> Self {
        Self {
            ready,
            executor,
            executor_name,
            sent_at: now,
            number: 0,
            looked_at: now,
            phase,
            began_at: None,
            is_named: false,
            beats_at_send: None,
            span: None,
        }
    }

    /// What the store notes of it: that it began then, or was sent, or its executor chosen.
    pub(crate) fn in_hand(&self, at: Timestamp) -> InHand {
        InHand {
            run: self.ready.run.id,
            attempt: self.ready.run.attempt,
            executor_id: self.executor,
            executor: self.executor_name.clone(),
            at,
        }
    }

    /// Its handler has begun. The first report counts, and no attempt begins before it is due.
    pub(crate) fn began(&mut self, at: Timestamp, now: Timestamp) {
        let earliest = self.ready.run.due_at.min(now);
        self.began_at.get_or_insert(at.max(earliest).min(now));
    }

    /// The executor has answered about this attempt.
    pub(crate) const fn answered(&mut self) {
        self.beats_at_send = None;
    }

    /// It could not be noted as running.
    pub(crate) fn note_refused(&mut self) {
        if self.phase == Phase::Noted {
            self.phase = Phase::Sent;
        }
    }

    /// Whether it is on a stream, and its executor has not answered.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.phase == Phase::Sent && self.beats_at_send.is_some()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waits for its durable mark.
    Marking,
    /// Its executor is chosen, and its mark durable where it needs one: it is sent at its instant, while the lease holds.
    Placed,
    /// On the stream, or further.
    Sent,
    /// Sent, and noted as running: its handler has begun.
    Noted,
    /// It was given up, and that is on its way into the store; a result may still come first.
    Ending,
    /// Its result is on its way into the store; the same result again changes nothing.
    Settling,
}
