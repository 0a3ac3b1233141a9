//! One item held by a group.

use std::time::Duration;

use rondel_proto::v1::PumpProgress;

/// The longest checkpoint, in bytes.
pub const CHECKPOINT_BYTES_MAX: usize = 4 * 1024;

/// Why a checkpoint was not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The checkpoint is too long.
    #[error("a checkpoint of {bytes} bytes; at most {CHECKPOINT_BYTES_MAX} are kept")]
    TooLong {
        /// The checkpoint's length in bytes.
        bytes: usize,
    },
    /// The group no longer holds the item at the epoch of this call.
    #[error("item {item:?} is no longer held at the epoch of this call; its checkpoint is not stored")]
    NotHeld {
        /// The name of the item.
        item: String,
    },
}

/// Counts of the work on one item, or on all items of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Selects that asked for rows of the item.
    pub fetches: u64,
    /// Rows that were fetched to be executed.
    pub rows: u64,
    /// Rows that were executed successfully.
    pub done: u64,
    /// Failed executions, counted once for each row and try.
    pub failed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Held,
    /// The group is releasing the item: it executes the rows that it has fetched. At `abort_at`, if it is set, the
    /// remaining work is aborted.
    Releasing {
        abort_at: Option<std::time::Instant>,
    },
    /// The remaining work is being aborted.
    Aborting,
    /// The item is released, and reported as such until an order no longer names it.
    Released,
}

#[derive(Debug)]
pub(super) struct Holding {
    pub(super) epoch: i64,
    pub(super) params: String,
    pub(super) checkpoint: String,
    pub(super) phase: Phase,
    pub(super) counts: Counts,
    /// Whether the last select returned no rows of the item.
    pub(super) last_select_was_empty: bool,
    pub(super) rate: Rate,
    /// The progress that was last reported.
    pub(super) last_progress: PumpProgress,
}

impl Holding {
    pub(super) fn new(epoch: i64, params: String, checkpoint: String) -> Self {
        Self {
            epoch,
            params,
            checkpoint,
            phase: Phase::Held,
            counts: Counts::default(),
            last_select_was_empty: false,
            rate: Rate::default(),
            last_progress: PumpProgress::default(),
        }
    }

    pub(super) fn set_checkpoint(&mut self, text: &str) -> Result<(), CheckpointError> {
        if text.len() > CHECKPOINT_BYTES_MAX {
            return Err(CheckpointError::TooLong { bytes: text.len() });
        }
        text.clone_into(&mut self.checkpoint);
        Ok(())
    }
}

/// How many slots of the length [`SLOT_LENGTH`] make up a minute.
const SLOT_COUNT: u64 = 12;
const SLOT_ARRAY_LEN: usize = 12;
const SLOT_LENGTH: Duration = Duration::from_secs(5);

/// How many rows were done in the last minute, to within five seconds. Times count from the start of the group.
#[derive(Debug, Default)]
pub(super) struct Rate {
    slots: [u64; SLOT_ARRAY_LEN],
    newest_slot: u64,
}

impl Rate {
    pub(super) fn add(&mut self, count: u64, at: Duration) {
        self.advance(at);
        self.slots[slot_index(self.newest_slot)] += count;
    }

    pub(super) fn per_minute(&mut self, at: Duration) -> u32 {
        self.advance(at);
        u32::try_from(self.slots.iter().sum::<u64>()).unwrap_or(u32::MAX)
    }

    fn advance(&mut self, at: Duration) {
        let slot = (at.as_secs() / SLOT_LENGTH.as_secs()).max(self.newest_slot);
        for passed_slot in self.newest_slot + 1..=slot.min(self.newest_slot + SLOT_COUNT) {
            self.slots[slot_index(passed_slot)] = 0;
        }
        self.newest_slot = slot;
    }
}

fn slot_index(slot: u64) -> usize {
    usize::try_from(slot % SLOT_COUNT).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_minute() {
        let at = Duration::from_secs;
        let mut rate = Rate::default();
        rate.add(3, at(1));
        rate.add(4, at(30));
        assert_eq!((rate.per_minute(at(30)), rate.per_minute(at(59))), (7, 7));
        assert_eq!((rate.per_minute(at(61)), rate.per_minute(at(95))), (4, 0));
        rate.add(5, at(100));
        assert_eq!((rate.per_minute(at(100)), rate.per_minute(at(10_000))), (5, 0));
    }
}
