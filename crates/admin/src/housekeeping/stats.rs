//! Counts per job and hour, made from the ledger, and removed when they are old themselves.

use std::time::Duration;

use rondel_store::StoreError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pause;
use crate::node::Shared;

/// Rows that one transaction looks at.
const BATCH: u32 = 2_000;
/// A transaction that began with an earlier id may still commit.
const LAG: Duration = Duration::from_secs(30);
/// How long counts are kept.
const KEPT: Duration = Duration::from_secs(400 * 24 * 3600);

/// Counts batch after batch until everything is counted, or the pass is over.
pub(super) async fn roll_up(shared: &Shared, stop: &CancellationToken, end: Instant) -> Result<(), StoreError> {
    let before = shared.clock.now() - LAG;
    while !stop.is_cancelled() && Instant::now() < end {
        let began = Instant::now();
        if shared.store.roll_up(before, BATCH).await? == 0 {
            break;
        }
        pause(began.elapsed(), stop).await;
    }
    Ok(())
}

/// Removes counts that are too old. Answers how many.
pub(super) async fn forget_old(shared: &Shared) -> Result<u64, StoreError> {
    shared.store.forget_stats(shared.clock.now() - KEPT, BATCH).await
}
