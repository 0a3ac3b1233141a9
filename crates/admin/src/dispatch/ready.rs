//! A run that is due, with the definition that it runs under.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::misfire::{Lateness, UnsentFire, lateness, runs_late};
use rondel_core::outcome::Outcome;
use rondel_core::reason::{ReasonDetail, WaitFor, milliseconds};
use rondel_core::spec::Delivery;
use rondel_core::{Reason, Run, RunId, RunStatus, Timestamp, TraceParent, Trigger};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::LeaseToken;
use rondel_store::ledger::AttemptEnd;

use crate::definitions::CompiledDefinition;

/// A run counts as late if this server takes it up later than this after its instant.
const LATE_AFTER: Duration = Duration::from_secs(1);

/// A run that is due or will be soon, with the definition that it runs under.
#[derive(Clone, Debug)]
pub(crate) struct ReadyRun {
    pub(crate) run: Run,
    pub(crate) definition: Arc<CompiledDefinition>,
    /// When the dispatcher first looked for an executor.
    pub(crate) first_routed_at: Option<Timestamp>,
    /// The instant at which the servers had caught up with the run. The misfire policy judges how late the run was then. `None` for a run that a
    /// server had queued in time, or that did not come from the ring.
    pub(crate) taken_up_at: Option<Timestamp>,
    /// How late this server took the run up; `None` if it was not late.
    pub(crate) lateness: Option<Lateness>,
    /// When its queue time began; `None` until this server has taken it up.
    pub(crate) queued_at: Option<Timestamp>,
    /// Whether this attempt was put on a stream before.
    pub(crate) was_sent: bool,
    /// Whether its wait is stored in its row, or about to be.
    pub(crate) has_noted_wait: bool,
    /// Whether its row named an executor when that executor handed the run back. Stays true although a queued step removes the name.
    pub(crate) was_handed_back_by_named_executor: bool,
    /// The trace parent of its fire, if the request for the fire was traced.
    pub(crate) trace: Option<Box<TraceParent>>,
    /// The term of the job's home when the run's row was last read. The term rises when the home changes.
    pub(crate) term: i64,
}

impl ReadyRun {
    pub(crate) const fn new(run: Run, definition: Arc<CompiledDefinition>) -> Self {
        Self {
            run,
            definition,
            first_routed_at: None,
            taken_up_at: None,
            lateness: None,
            queued_at: None,
            was_sent: false,
            has_noted_wait: false,
            was_handed_back_by_named_executor: false,
            trace: None,
            term: 0,
        }
    }

    /// A run that leaves the ring. The servers had caught up with it at `taken_up_at`.
    pub(crate) fn from_ring(run: Run, definition: Arc<CompiledDefinition>, taken_up_at: Timestamp) -> Self {
        let ready = Self::new(run, definition);
        let taken_up_at = (!ready.is_queued_in_time(taken_up_at)).then_some(taken_up_at);
        Self { taken_up_at, ..ready }
    }

    /// Whether a server queued the run in time, as the wait in its row shows, and its queue timeout has not passed. Such a run was not
    /// missed, even if that server has left or died since.
    fn is_queued_in_time(&self, now: Timestamp) -> bool {
        let has_waited = self.run.waits_for().is_some_and(|what| what != WaitFor::RollCall);
        has_waited && now < self.run.due_at + self.definition.job.queue_timeout
    }

    /// The run as the dispatcher takes it up. Its queue time counts from its instant, or from now if this server is late, because the time
    /// without a server is no wait for an executor. The queue time of a shard includes that of its broadcast; the queue time of an attempt
    /// includes that of earlier attempts that no executor received.
    pub(crate) fn with_queue_start(self, now: Timestamp) -> Self {
        let is_late = self.run.due_at + LATE_AFTER < now && !self.is_queued_in_time(now);
        let queue_start = if is_late { now } else { self.run.due_at }.saturating_sub(self.earlier_queue_time());
        let queued_at = self.queued_at.unwrap_or(queue_start);
        let is_first_of_fire = is_late && self.run.attempt == 1 && self.run.parent.is_none();
        let lateness = self.lateness.or_else(|| {
            is_first_of_fire.then(|| lateness(self.run.due_at, self.taken_up_at.unwrap_or(now), now)).flatten()
        });
        Self { queued_at: Some(queued_at), lateness, ..self }
    }

    /// How long it was queued in earlier attempts that no executor received.
    fn earlier_queue_time(&self) -> Duration {
        let is_unreceived = self.run.attempt > 1 && self.run.reason == Some(Reason::NotReceived);
        let detail = self.run.detail.as_deref().filter(|_| is_unreceived);
        Duration::from_millis(detail.and_then(|detail| detail.waited_ms).unwrap_or(0))
    }

    /// The end of its queue timeout.
    pub(crate) fn waits_until(&self) -> Timestamp {
        self.queued_at.unwrap_or(self.run.due_at) + self.definition.job.queue_timeout
    }

    /// Whether it has been queued for too long to begin.
    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        self.waits_until() <= now && !mutant::on(Mutant::QueueTimeFromTurn)
    }

    /// Whether the run is marked in the store before it is sent: each at-most-once run, and a run whose row would mislead the next lease holder.
    /// That node counts a run with a noted wait and without a mark as unsent. If the row names an executor, that node asks only this executor.
    pub(crate) fn is_marked_first(&self) -> bool {
        let is_shard = self.run.shard_total.is_some_and(|total| total > 1);
        let is_noted = self.run.has_recorded_wait() || self.has_noted_wait && !is_shard;
        self.definition.job.delivery == Delivery::AtMostOnce
            || (is_noted || self.was_handed_back_by_named_executor) && !self.is_for_one_executor()
    }

    /// Whether this is the first attempt of a missed fire that runs late. While an executor is online, such runs queue without a
    /// time limit.
    pub(crate) fn is_catch_up(&self) -> bool {
        matches!(self.run.trigger, Trigger::Misfire | Trigger::Backfill) && self.run.attempt == 1
    }

    /// Whether it is the shard of a broadcast, which goes to the same executor each time that it is sent.
    pub(crate) fn is_for_one_executor(&self) -> bool {
        self.definition.job.is_broadcast()
    }

    /// The lease under which this node took the run, and under which it is sent.
    pub(crate) const fn token(&self) -> LeaseToken {
        LeaseToken { node: self.run.node, epoch: self.run.node_epoch }
    }

    /// Whether the misfire policy skips it: it is from the schedule, was never sent, and was late when the servers took it up.
    pub(crate) fn is_missed(&self, now: Timestamp) -> bool {
        let run = &self.run;
        // A shard belongs to its broadcast, which was judged before. A catch-up fire is a result of the policy and is not judged again. A run that
        // a user starts to continue a pump's run has no cause either, but it is not a fire of the schedule.
        let has_unscheduled_trigger = matches!(run.trigger, Trigger::Misfire | Trigger::Manual | Trigger::Api);
        let is_scheduled_fire = run.cause == 0 && !has_unscheduled_trigger && run.parent.is_none();
        let is_never_sent = is_scheduled_fire && run.attempt == 1 && run.marked_at.is_none();
        let fire = UnsentFire { fire_at: run.fire_at, due_at: run.due_at };
        let is_judged = is_never_sent && !self.is_queued_in_time(now) && !mutant::on(Mutant::NoMisfireAtTick);
        let taken_up_at = self.taken_up_at.map_or(now, |at| at.min(now));
        let key = (self.definition.id, self.definition.anchor);
        is_judged && !runs_late(&self.definition.job, key, fire, taken_up_at)
    }
}

/// The end of a run that no executor has.
pub(crate) fn end_of_unsent(
    run: &Run,
    definition: &CompiledDefinition,
    outcome: Outcome,
    now: Timestamp,
    message: Option<String>,
) -> AttemptEnd {
    AttemptEnd {
        run: run.id,
        job: run.job,
        attempt: run.attempt,
        outcome,
        policy: definition.job.next_step_policy,
        executor: None,
        started_at: None,
        finished_at: now,
        message,
        result: None,
        trace: run.trace.clone(),
        detail: None,
        jitter: jitter(run.id, run.attempt),
        owner: Some(LeaseToken { node: run.node, epoch: run.node_epoch }),
        is_unsent: run.status != RunStatus::Running,
        is_unfinished: false,
    }
}

/// A number from 0 to 1 that differs between runs and attempts and needs no random source.
pub(crate) fn jitter(run: RunId, attempt: i32) -> f64 {
    let mixed_bits =
        run.get().unsigned_abs().wrapping_add(u64::from(attempt.unsigned_abs())).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    f64::from(u16::try_from(mixed_bits >> 48).unwrap_or(0)) / f64::from(u16::MAX)
}

/// How long a run has been queued.
pub(crate) fn waited_ms(ready: &ReadyRun, now: Timestamp) -> u64 {
    milliseconds(now.since(ready.queued_at.unwrap_or(ready.run.due_at)))
}

/// The detail for the end of an attempt that an executor had, or may have had.
pub(crate) fn lost_detail(executor: Option<&str>) -> ReasonDetail {
    let executor = executor.filter(|name| !name.is_empty()).map(str::to_owned);
    ReasonDetail { executor, ..ReasonDetail::default() }
}

#[cfg(test)]
mod tests;
