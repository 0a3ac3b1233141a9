//! Housekeeping: removes runs and logs beyond their retention, and executors without a stream.
//!
//! One node per period performs it, without a lock: a row stores when the last pass began, and a node that finds a recent pass waits. Two
//! concurrent passes would do no harm. Batches are small, with pauses between them, so that firing is not disturbed.

mod audit;
mod logs;
mod stats;

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::time::format_duration;
use rondel_core::{NamespaceId, RunId, Timestamp};
use rondel_store::StoreError;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::background::{Background, TickError};
use crate::node::Shared;

const PERIOD_MIN: Duration = Duration::from_secs(1);
const PERIOD_MAX: Duration = Duration::from_secs(600);
/// Maximum age of the counts per job and hour, if the database keeps up.
const STATS_PERIOD: Duration = Duration::from_secs(60);
const BATCH_MAX: u32 = 500;
/// A batch that fails (logs can be large, and statements have a time limit) is tried again with fewer runs, down to this number.
const BATCH_MIN: u32 = 8;
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Executors to which no server has had a stream for this long are deleted. Until then, an executor that restarts on the same data
/// directory can prove that it is the successor, and deliver the results in its journal. A week allows for a weekend.
const FORGET_EXECUTOR_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);
/// A node is deleted this long after its lease ended, but only after its runs are deleted.
const FORGET_NODE_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);
/// How much longer than its runs a node is kept.
const NODE_MARGIN: Duration = Duration::from_secs(24 * 3600);
/// How long the answer to a call with an idempotency key is kept, in case the call is repeated.
const CALLS_KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
/// How long an ended token is still shown.
const DEAD_TOKENS_KEPT_FOR: Duration = Duration::from_secs(90 * 24 * 3600);
/// A server deletes no executors until this long after its start, because it asks the executors that it knows for their earlier runs. Nodes
/// can be deleted earlier, because they own no runs by then.
const SETTLE_TIME: Duration = Duration::from_secs(300);

/// A duty as a type, so that the loop of each duty has the duty's name and action as constants.
pub(crate) trait DutyType: Send {
    const DUTY: Duty;
    /// The duty's name in the loops' reports, and in the table of the last passes.
    const NAME: &'static str;
    /// What the duty does, for the log lines of its failures.
    const ACTION: &'static str;
}

macro_rules! duties {
    ($($(#[$doc:meta])* $duty:ident: $name:literal, $work:literal;)*) => {
        /// A housekeeping duty. Each duty has its own loop, so that a slow or failing duty does not delay the others.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Duty { $($(#[$doc])* $duty),* }

        $(
            #[derive(Debug)]
            pub(crate) struct $duty;

            impl DutyType for $duty {
                const DUTY: Duty = Duty::$duty;
                const NAME: &'static str = $name;
                const ACTION: &'static str = $work;
            }
        )*
    };
}

duties! {
    /// Counts runs per job and hour. A run purged before it is counted would be missed, but the retention is far longer.
    Stats: "roll_up", "count runs per job and hour";
    OldStats: "forget_stats", "remove old counts of runs";
    Purge: "purge", "remove runs beyond the retention";
    Traces: "forget_traces", "remove traces, and observed fires of other schedulers, beyond the retention";
    Logs: "remove_logs", "remove logs beyond their retention or size";
    Calls: "forget_calls", "remove old calls with a key";
    Messages: "forget_messages", "remove messages of alerts beyond the retention";
    Tokens: "forget_tokens", "remove old tokens";
    Executors: "forget_executors", "remove executors without a stream";
    Nodes: "forget_nodes", "remove nodes without a lease";
}

pub(crate) struct HousekeepingLoop<T> {
    shared: Arc<Shared>,
    /// Period of the passes that remove runs and logs; it depends on their retention.
    purge_period: Duration,
    batch_len: u32,
    /// The namespace in which this node's last removal of logs ended.
    last_log_namespace: Option<NamespaceId>,
    started_at: Instant,
    duty: PhantomData<T>,
}

impl<T: DutyType> Background for HousekeepingLoop<T> {
    const NAME: &'static str = T::NAME;
    const ACTION: &'static str = T::ACTION;

    fn period(&self) -> Option<Duration> {
        // Every duty checks this often: another node may have made the last pass, so this node does not know when the next pass is due.
        Some(self.purge_period.min(STATS_PERIOD))
    }

    fn first_wait(&self) -> Duration {
        self.shared.first_look_delay(self.purge_period.min(STATS_PERIOD))
    }

    async fn tick(&mut self, stop: &CancellationToken) -> Result<u64, TickError> {
        if !self.shared.membership.holds_lease() {
            return Ok(0);
        }
        Ok(self.perform(stop).await?)
    }
}

impl<T: DutyType> HousekeepingLoop<T> {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let purge_period = pass_period(shared.config.retention.min(shared.config.log_retention));
        Self {
            shared,
            purge_period,
            batch_len: BATCH_MAX,
            last_log_namespace: None,
            started_at: Instant::now(),
            duty: PhantomData,
        }
    }

    /// Runs a pass if one is due. Returns the number of rows removed.
    async fn perform(&mut self, stop: &CancellationToken) -> Result<u64, StoreError> {
        let (store, now) = (Arc::clone(&self.shared.store), self.shared.clock.now());
        let period = match T::DUTY {
            Duty::Stats => self.purge_period.min(STATS_PERIOD),
            Duty::Purge | Duty::Traces | Duty::Logs | Duty::Messages => self.purge_period,
            Duty::OldStats | Duty::Calls | Duty::Tokens | Duty::Executors | Duty::Nodes => PERIOD_MAX,
        };
        let is_early = T::DUTY == Duty::Executors && self.started_at.elapsed() < SETTLE_TIME;
        if is_early || !store.begin_pass(T::NAME, period).await? {
            return Ok(0);
        }
        let retention = self.shared.config.retention;
        match T::DUTY {
            Duty::Stats => stats::roll_up(&self.shared, stop, Instant::now() + STATS_PERIOD).await.map(|()| 0),
            Duty::OldStats => stats::forget_old(&self.shared, stop).await,
            Duty::Purge => self.purge(stop).await,
            Duty::Traces => {
                let trace_count = remove_in_batches(stop, || store.forget_traces(now - retention, BATCH_MAX)).await?;
                Ok(trace_count
                    + remove_in_batches(stop, || store.forget_shadow_fires(now - retention, BATCH_MAX)).await?)
            }
            Duty::Logs => {
                let deadline = Instant::now() + self.purge_period;
                logs::remove_logs(&self.shared, &mut self.last_log_namespace, (stop, deadline)).await
            }
            Duty::Calls => remove_in_batches(stop, || store.forget_calls(now - CALLS_KEPT_FOR, BATCH_MAX)).await,
            Duty::Messages => remove_in_batches(stop, || store.forget_messages(now - retention, BATCH_MAX)).await,
            Duty::Tokens => {
                remove_in_batches(stop, || store.forget_tokens(now - DEAD_TOKENS_KEPT_FOR, BATCH_MAX)).await
            }
            Duty::Executors => {
                remove_in_batches(stop, || store.forget_executors(now - FORGET_EXECUTOR_AFTER, BATCH_MAX)).await
            }
            Duty::Nodes => {
                // By then the runs of a dead node are deleted as well.
                let dead_longer_than = FORGET_NODE_AFTER.max(retention.saturating_add(NODE_MARGIN));
                store.forget_nodes(now - dead_longer_than, BATCH_MAX).await
            }
        }
    }

    /// Removes old runs in batches until none is left, or the pass has lasted a period.
    async fn purge(&mut self, stop: &CancellationToken) -> Result<u64, StoreError> {
        let retention = self.shared.config.retention;
        let kept_from = self.shared.clock.now() - retention;
        let mut removed_count = 0;
        let result = self.purge_before(kept_from, &mut removed_count, stop).await;
        if removed_count > 0 {
            tracing::debug!(count = removed_count, "removed runs that are older than the retention");
            let extent = json!({"finished_before": kept_from, "retention": format_duration(retention)});
            audit::write(&self.shared, "run.purge", None, &extent, removed_count).await?;
        }
        result.map(|()| removed_count)
    }

    async fn purge_before(
        &mut self,
        kept_from: Timestamp,
        removed_count: &mut u64,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let deadline = Instant::now() + self.purge_period;
        let mut after = RunId::new(0);
        while !stop.is_cancelled() && Instant::now() < deadline {
            let batch_start = Instant::now();
            let step = match self.shared.store.purge(kept_from, after, self.batch_len).await {
                Ok(step) => step,
                Err(error) => {
                    self.batch_len = (self.batch_len / 4).max(BATCH_MIN);
                    return Err(error);
                }
            };
            self.batch_len = (self.batch_len * 2).min(BATCH_MAX);
            *removed_count += step.removed_count;
            let Some(next_after) = step.next_after else { break };
            after = next_after;
            pause_after_batch(batch_start.elapsed(), stop).await;
        }
        Ok(())
    }
}

/// Removes batch after batch until nothing is left to remove. Returns the number of rows removed.
async fn remove_in_batches<F: Future<Output = Result<u64, StoreError>> + Send>(
    stop: &CancellationToken,
    remove: impl Fn() -> F + Send,
) -> Result<u64, StoreError> {
    let mut removed_count = 0;
    while !stop.is_cancelled() {
        let batch_start = Instant::now();
        let count = remove().await?;
        if count == 0 {
            break;
        }
        removed_count += count;
        pause_after_batch(batch_start.elapsed(), stop).await;
    }
    Ok(removed_count)
}

/// A tenth of the retention, but at least one second and at most ten minutes.
fn pass_period(retention: Duration) -> Duration {
    (retention / 10).clamp(PERIOD_MIN, PERIOD_MAX)
}

/// Pauses for twice the duration of the batch, which leaves two thirds of the time to other work.
async fn pause_after_batch(batch_took: Duration, stop: &CancellationToken) {
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
        let seconds = |retention| pass_period(Duration::from_secs(retention)).as_secs();
        assert_eq!((seconds(1), seconds(100), seconds(30 * 24 * 3600)), (1, 10, 600));
    }
}
