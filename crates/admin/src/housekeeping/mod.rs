//! Housekeeping: runs and logs beyond the retention go, executors without a stream are forgotten.
//!
//! One node per period does it, without a lock: a row has when the last pass began, and a node that finds it recent waits.
//! Two passes at once would do no harm. Batches are small and have pauses between them, so that firing is not disturbed.

mod audit;
mod logs;
mod stats;

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_core::time::format_duration;
use rondel_store::StoreError;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::background::{Background, TickError};
use crate::node::Shared;

const PERIOD_MIN: Duration = Duration::from_secs(1);
const PERIOD_MAX: Duration = Duration::from_secs(600);
/// How old the counts per job and hour are at most, where the database keeps up.
const STATS_PERIOD: Duration = Duration::from_secs(60);
const BATCH_MAX: u32 = 500;
/// A batch that fails (logs can be large, statements have a time limit) is tried with fewer runs, down to these.
const BATCH_MIN: u32 = 8;
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Executors that were not heard for this long are deleted.
const FORGET_AFTER: Duration = Duration::from_secs(24 * 3600);
/// A node whose lease ended so long ago, and longer than runs are kept, does not come back.
const FORGET_NODE_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);
/// For how long the same call with a key gets the same answer.
const CALLS_KEPT: Duration = Duration::from_secs(24 * 3600);
/// How long a token is shown that has ended.
const DEAD_TOKENS_KEPT: Duration = Duration::from_secs(90 * 24 * 3600);
/// A server that was off asks the executors that it knows about the runs of back then before it forgets them. Nodes that
/// are forgotten own nothing: they need not wait for it.
const SETTLE_TIME: Duration = Duration::from_secs(300);

/// What is to be done. Each is a loop of its own: one that fails, or takes long, does not hold up the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    /// Counts runs per job and hour. A run purged before it is counted would be missed, but the retention is far longer.
    Stats,
    OldStats,
    Purge,
    Traces,
    Logs,
    Calls,
    Messages,
    Tokens,
    Executors,
    Nodes,
}

impl Duty {
    /// Its name in the loops' reports, and in the table of when each was last begun.
    const fn task(self) -> &'static str {
        match self {
            Self::Stats => "roll_up",
            Self::OldStats => "forget_stats",
            Self::Purge => "purge",
            Self::Traces => "forget_traces",
            Self::Logs => "remove_logs",
            Self::Calls => "forget_calls",
            Self::Messages => "forget_messages",
            Self::Tokens => "forget_tokens",
            Self::Executors => "forget_executors",
            Self::Nodes => "forget_nodes",
        }
    }

    /// What it cannot do while it fails.
    const fn work(self) -> &'static str {
        match self {
            Self::Stats => "count runs per job and hour",
            Self::OldStats => "remove old counts of runs",
            Self::Purge => "remove runs beyond the retention",
            Self::Traces => "remove traces, and observed fires of other schedulers, beyond the retention",
            Self::Logs => "remove logs beyond their retention or size",
            Self::Calls => "remove old calls with a key",
            Self::Messages => "remove messages of alerts beyond the retention",
            Self::Tokens => "remove old tokens",
            Self::Executors => "remove executors without a stream",
            Self::Nodes => "remove nodes without a lease",
        }
    }
}

/// A duty as a type: each loop has its name and work as constants.
pub(crate) trait Chore: Send {
    const DUTY: Duty;
}

macro_rules! chores {
    ($($chore:ident)*) => {$(
        #[derive(Debug)]
        pub(crate) struct $chore;

        impl Chore for $chore {
            const DUTY: Duty = Duty::$chore;
        }
    )*};
}

chores! { Stats OldStats Purge Traces Logs Calls Messages Tokens Executors Nodes }

pub(crate) struct HousekeepingLoop<C> {
    shared: Arc<Shared>,
    /// How often runs and logs are looked at, which their retention decides.
    keep_period: Duration,
    batch: u32,
    started: Instant,
    chore: PhantomData<C>,
}

impl<C: Chore> Background for HousekeepingLoop<C> {
    const NAME: &'static str = C::DUTY.task();
    const WORK: &'static str = C::DUTY.work();

    fn period(&self) -> Option<Duration> {
        // A pass that another node began may be over sooner than that: it is looked for as often as counts are made.
        Some(self.keep_period.min(STATS_PERIOD))
    }

    fn first_wait(&self) -> Duration {
        self.shared.first_look(self.keep_period.min(STATS_PERIOD))
    }

    async fn tick(&mut self, stop: &CancellationToken) -> Result<u64, TickError> {
        if !self.shared.membership.holds() {
            return Ok(0);
        }
        Ok(self.perform(stop).await?)
    }
}

impl<C: Chore> HousekeepingLoop<C> {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let keep_period = period(shared.config.retention.min(shared.config.log_retention));
        Self { shared, keep_period, batch: BATCH_MAX, started: Instant::now(), chore: PhantomData }
    }

    /// Answers how many rows went.
    async fn perform(&mut self, stop: &CancellationToken) -> Result<u64, StoreError> {
        let (store, now) = (Arc::clone(&self.shared.store), self.shared.clock.now());
        let period = match C::DUTY {
            Duty::Stats => self.keep_period.min(STATS_PERIOD),
            Duty::Purge | Duty::Traces | Duty::Logs | Duty::Messages => self.keep_period,
            Duty::OldStats | Duty::Calls | Duty::Tokens | Duty::Executors | Duty::Nodes => PERIOD_MAX,
        };
        let is_early = C::DUTY == Duty::Executors && self.started.elapsed() < SETTLE_TIME;
        if is_early || !store.begin_pass(C::DUTY.task(), period).await? {
            return Ok(0);
        }
        let retention = self.shared.config.retention;
        match C::DUTY {
            Duty::Stats => stats::roll_up(&self.shared, stop, Instant::now() + STATS_PERIOD).await.map(|()| 0),
            Duty::OldStats => stats::forget_old(&self.shared).await,
            Duty::Purge => self.purge(stop).await,
            Duty::Traces => {
                let traces = in_batches(stop, || store.forget_traces(now - retention, BATCH_MAX)).await?;
                Ok(traces + in_batches(stop, || store.forget_shadow_fires(now - retention, BATCH_MAX)).await?)
            }
            Duty::Logs => logs::remove_logs(&self.shared, stop, Instant::now() + self.keep_period).await,
            Duty::Calls => in_batches(stop, || store.forget_calls(now - CALLS_KEPT, BATCH_MAX)).await,
            Duty::Messages => in_batches(stop, || store.forget_messages(now - retention, BATCH_MAX)).await,
            Duty::Tokens => in_batches(stop, || store.forget_tokens(now - DEAD_TOKENS_KEPT, BATCH_MAX)).await,
            Duty::Executors => in_batches(stop, || store.forget_executors(now - FORGET_AFTER, BATCH_MAX)).await,
            Duty::Nodes => {
                // Its runs are gone by then, too.
                let dead_for = FORGET_NODE_AFTER.max(retention + FORGET_AFTER);
                store.forget_nodes(now - dead_for, BATCH_MAX).await
            }
        }
    }

    /// Removes batch after batch until nothing old is left, or the pass is over.
    async fn purge(&mut self, stop: &CancellationToken) -> Result<u64, StoreError> {
        let retention = self.shared.config.retention;
        let before = self.shared.clock.now() - retention;
        let mut removed = 0;
        let done = self.purge_before(before, &mut removed, stop).await;
        if removed > 0 {
            tracing::debug!(count = removed, "removed runs that are older than the retention");
            let up_to = json!({"finished_before": before, "retention": format_duration(retention)});
            audit::write(&self.shared, "run.purge", None, &up_to, removed).await?;
        }
        done.map(|()| removed)
    }

    async fn purge_before(
        &mut self,
        before: Timestamp,
        removed: &mut u64,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let end = Instant::now() + self.keep_period;
        while !stop.is_cancelled() && Instant::now() < end {
            let began = Instant::now();
            let count = match self.shared.store.purge(before, self.batch).await {
                Ok(count) => count,
                Err(error) => {
                    self.batch = (self.batch / 4).max(BATCH_MIN);
                    return Err(error);
                }
            };
            self.batch = (self.batch * 2).min(BATCH_MAX);
            if count == 0 {
                break;
            }
            *removed += count;
            pause(began.elapsed(), stop).await;
        }
        Ok(())
    }
}

/// Removes batch after batch until nothing is left that is to go. Answers how much went.
async fn in_batches<F: Future<Output = Result<u64, StoreError>> + Send>(
    stop: &CancellationToken,
    remove: impl Fn() -> F + Send,
) -> Result<u64, StoreError> {
    let mut removed = 0;
    while !stop.is_cancelled() {
        let began = Instant::now();
        let count = remove().await?;
        if count == 0 {
            break;
        }
        removed += count;
        pause(began.elapsed(), stop).await;
    }
    Ok(removed)
}

/// Passes are ten to a retention, but at most one a second and at least one in ten minutes.
fn period(retention: Duration) -> Duration {
    (retention / 10).clamp(PERIOD_MIN, PERIOD_MAX)
}

/// Twice what the batch took: two thirds of the time belong to the others.
async fn pause(batch_took: Duration, stop: &CancellationToken) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = tokio::time::sleep((batch_took * 2).max(PAUSE_MIN)) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_follow_the_retention() {
        let seconds = |retention| period(Duration::from_secs(retention)).as_secs();
        assert_eq!((seconds(1), seconds(100), seconds(30 * 24 * 3600)), (1, 10, 600));
    }
}
