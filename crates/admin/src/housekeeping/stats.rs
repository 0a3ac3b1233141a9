//! Counts runs per job and hour from the ledger, and removes old counts.

use std::time::Duration;

use rondel_store::StoreError;
use rondel_store::rollups::PointKind;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{pause_after_batch, remove_in_batches};
use crate::node::Shared;

/// Maximum number of rows that one transaction counts or removes.
const BATCH: u32 = 1_000;
/// How far counting lags behind the present, since a run with an earlier id may still be committed within this time.
const COUNT_DELAY: Duration = Duration::from_secs(30);
/// How long counts are kept.
const KEPT_FOR: Duration = Duration::from_secs(400 * 24 * 3600);

/// Counts batch after batch until everything is counted, or until `deadline`.
pub(super) async fn roll_up(shared: &Shared, stop: &CancellationToken, deadline: Instant) -> Result<(), StoreError> {
    let complete_until = shared.clock.now() - COUNT_DELAY;
    while !stop.is_cancelled() && Instant::now() < deadline {
        let batch_start = Instant::now();
        if shared.store.roll_up(complete_until, BATCH).await? == 0 {
            break;
        }
        pause_after_batch(batch_start.elapsed(), stop).await;
    }
    Ok(())
}

/// Removes counts that are too old. Returns the number removed.
pub(super) async fn forget_old(shared: &Shared, stop: &CancellationToken) -> Result<u64, StoreError> {
    let (store, now) = (&shared.store, shared.clock.now());
    let mut count = remove_in_batches(stop, || store.forget_stats(now - KEPT_FOR, BATCH)).await?;
    for kind in [PointKind::Namespace, PointKind::App, PointKind::Job] {
        for step in kind.steps() {
            let kept_from = now - kind.kept_for(*step);
            count += remove_in_batches(stop, || store.forget_points(kind, *step, kept_from, BATCH)).await?;
        }
    }
    count += remove_in_batches(stop, || store.forget_failure_stats(now - KEPT_FOR, BATCH)).await?;
    Ok(count)
}
