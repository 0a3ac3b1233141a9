//! Removes old rows of executors and attempts from the store.

use std::time::Duration;

use rondel_admin::Engine;
use rondel_store::StoreError;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::lines::LineLimit;

const PRUNING_PERIOD: Duration = Duration::from_secs(10);
/// How long one round continues while there are old rows.
const ROUND_MAX: Duration = Duration::from_secs(3);
/// How long rows are kept, so that late callbacks can still be assigned.
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
const BATCH_LEN: u32 = 500;

/// Repeatedly removes rows that are too old.
pub(crate) async fn pruning_loop(engine: &Engine, log_limit: &LineLimit) {
    let mut ticker = interval(PRUNING_PERIOD);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticker.tick().await;
        let delete_before = engine.now() - KEPT_FOR;
        if let Err(error) = repeat_while_full(|| engine.store().forget_xxl(delete_before, BATCH_LEN)).await {
            log_limit.log_store_failure("forget attempts", &error);
        }
    }
}

/// Repeats a removal of at most [`BATCH_LEN`] rows until one removes fewer, or the time of the round has passed.
async fn repeat_while_full<F>(mut remove: impl FnMut() -> F) -> Result<(), StoreError>
where
    F: Future<Output = Result<u64, StoreError>>,
{
    let started_at = Instant::now();
    while remove().await? >= u64::from(BATCH_LEN) && started_at.elapsed() < ROUND_MAX {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn old_rows_are_removed_until_a_batch_is_not_full_or_the_time_is_up() {
        for (counts, expected) in [(vec![500, 900, 7, 500], 3), (vec![0, 500], 1), (vec![500; 100], 6)] {
            let (mut counts, mut calls) = (counts.into_iter(), 0);
            repeat_while_full(|| {
                calls += 1;
                let count = counts.next().unwrap_or_default();
                async move {
                    tokio::time::sleep(ROUND_MAX / 6).await;
                    Ok(count)
                }
            })
            .await
            .expect("the rows are removed");
            assert_eq!(calls, expected);
        }
    }
}
