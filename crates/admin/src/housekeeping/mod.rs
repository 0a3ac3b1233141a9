//! Housekeeping: runs and logs beyond the retention go, executors that nobody hears are forgotten.
//!
//! One node per period does it, without a lock: a row says when the last pass began, and who finds it young stays away.
//! Two passes at once would do no harm. Batches are small and have pauses between them, so that firing is not disturbed.

mod audit;
mod logs;
mod stats;

use std::sync::Arc;
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_core::time::format_duration;
use rondel_store::StoreError;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::engine::{Shared, chain};

const PERIOD_MIN: Duration = Duration::from_secs(1);
const PERIOD_MAX: Duration = Duration::from_secs(600);
/// How old the counts per job and hour are at most, where the database keeps up.
const STATS_PERIOD: Duration = Duration::from_secs(60);
const BATCH_MAX: u32 = 500;
/// A batch that fails (logs can be large, statements have a time limit) is tried with fewer runs, down to these.
const BATCH_MIN: u32 = 8;
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Who was not heard for so long is forgotten.
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

const PURGE: &str = "purge";
const LOGS: &str = "remove_logs";
const STATS: &str = "roll_up";
const CALLS: &str = "forget_calls";
const TOKENS: &str = "forget_tokens";
const EXECUTORS: &str = "forget_executors";
const NODES: &str = "forget_nodes";

pub(crate) struct HousekeepingLoop {
    shared: Arc<Shared>,
    period: Duration,
    batch: u32,
    started: Instant,
}

impl HousekeepingLoop {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let period = period(shared.config.retention.min(shared.config.log_retention));
        Self { shared, period, batch: BATCH_MAX, started: Instant::now() }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let look = self.period.min(STATS_PERIOD);
        let first = self.shared.first_look(look);
        let mut period = interval_at(Instant::now() + first, look);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut complained = false;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = period.tick() => {}
            }
            match self.tick(&stop).await {
                Ok(()) => complained = false,
                Err(error) => {
                    if !std::mem::replace(&mut complained, true) {
                        tracing::warn!(error = %chain(&error), "cannot remove what is old; trying on");
                    }
                }
            }
        }
    }

    async fn tick(&mut self, stop: &CancellationToken) -> Result<(), StoreError> {
        if !self.shared.membership.holds() {
            return Ok(());
        }
        // Before anything goes: what is purged cannot be counted.
        if self.shared.store.begin_pass(STATS, self.period.min(STATS_PERIOD)).await? {
            stats::roll_up(&self.shared, stop, Instant::now() + STATS_PERIOD).await?;
        }
        if self.shared.store.begin_pass(PURGE, self.period).await? {
            self.purge(stop).await?;
            self.forget_traces(stop).await?;
        }
        if self.shared.store.begin_pass(LOGS, self.period).await? {
            logs::remove_logs(&self.shared, stop, Instant::now() + self.period).await?;
        }
        if self.shared.store.begin_pass(CALLS, PERIOD_MAX).await? {
            self.forget_calls(stop).await?;
        }
        if self.shared.store.begin_pass(TOKENS, PERIOD_MAX).await? {
            self.forget_tokens(stop).await?;
        }
        if self.started.elapsed() >= SETTLE_TIME && self.shared.store.begin_pass(EXECUTORS, PERIOD_MAX).await? {
            self.forget_executors(stop).await?;
        }
        if self.shared.store.begin_pass(NODES, PERIOD_MAX).await? {
            // Its runs are gone by then, too.
            let dead_for = FORGET_NODE_AFTER.max(self.shared.config.retention + FORGET_AFTER);
            self.shared.store.forget_nodes(self.shared.clock.now() - dead_for, BATCH_MAX).await?;
        }
        Ok(())
    }

    /// Removes batch after batch until nothing old is left, or the pass is over.
    async fn purge(&mut self, stop: &CancellationToken) -> Result<(), StoreError> {
        let retention = self.shared.config.retention;
        let before = self.shared.clock.now() - retention;
        let mut removed = 0;
        let done = self.purge_before(before, &mut removed, stop).await;
        if removed > 0 {
            tracing::debug!(count = removed, "removed runs that are older than the retention");
            let up_to = json!({"finished_before": before, "retention": format_duration(retention)});
            audit::write(&self.shared, "run.purge", None, &up_to, removed).await?;
        }
        done
    }

    async fn purge_before(
        &mut self,
        before: Timestamp,
        removed: &mut u64,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let end = Instant::now() + self.period;
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

    async fn forget_traces(&self, stop: &CancellationToken) -> Result<(), StoreError> {
        let before = self.shared.clock.now() - self.shared.config.retention;
        while !stop.is_cancelled() {
            let began = Instant::now();
            if self.shared.store.forget_traces(before, BATCH_MAX).await? == 0 {
                break;
            }
            pause(began.elapsed(), stop).await;
        }
        Ok(())
    }

    async fn forget_calls(&self, stop: &CancellationToken) -> Result<(), StoreError> {
        let before = self.shared.clock.now() - CALLS_KEPT;
        while !stop.is_cancelled() {
            let began = Instant::now();
            if self.shared.store.forget_calls(before, BATCH_MAX).await? == 0 {
                break;
            }
            pause(began.elapsed(), stop).await;
        }
        Ok(())
    }

    async fn forget_tokens(&self, stop: &CancellationToken) -> Result<(), StoreError> {
        let before = self.shared.clock.now() - DEAD_TOKENS_KEPT;
        while !stop.is_cancelled() {
            let began = Instant::now();
            if self.shared.store.forget_tokens(before, BATCH_MAX).await? == 0 {
                break;
            }
            pause(began.elapsed(), stop).await;
        }
        Ok(())
    }

    async fn forget_executors(&self, stop: &CancellationToken) -> Result<(), StoreError> {
        let before = self.shared.clock.now() - FORGET_AFTER;
        while !stop.is_cancelled() {
            let began = Instant::now();
            if self.shared.store.forget_executors(before, BATCH_MAX).await? == 0 {
                break;
            }
            pause(began.elapsed(), stop).await;
        }
        Ok(())
    }
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
