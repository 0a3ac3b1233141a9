//! Converts reports of executors to changes of items.

use rondel_core::Timestamp;
use rondel_core::pump::{Counts, ItemChange, Owner, Progress};
use rondel_proto::v1;

/// The change that a report about one item makes. Counts that exceed the range of `i64` become its maximum.
pub(super) fn change(owner: Owner, item: &v1::PumpProgress) -> (String, ItemChange) {
    let to_i64 = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let progress = Progress {
        owner,
        epoch: item.epoch,
        sequence: item.sequence,
        counts: Counts {
            fetches: to_i64(item.fetches),
            rows: to_i64(item.rows),
            done: to_i64(item.done),
            failed: to_i64(item.failed),
        },
        per_minute: item.per_minute,
        oldest_at: (item.oldest_at_ms > 0).then(|| Timestamp::from_millis(item.oldest_at_ms)),
        is_dry: item.dry,
        checkpoint: (!item.checkpoint.is_empty()).then(|| item.checkpoint.clone()),
        is_released: item.released,
    };
    (item.name.clone(), ItemChange::Report(progress))
}
