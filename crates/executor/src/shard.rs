//! Which part of a fire's work this run is, for code far from the handler.

use crate::run;

/// One of `total` parts of the same fire; an unsharded run is part 0 of 1.
///
/// ```
/// # use rondel::{Shard, TestRun};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// async fn rebuild(shard: Shard) {
///     for row in (0..10_u32).filter(|row| shard.owns(u64::from(*row))) {
///         // Every row is done by exactly one of the shards.
///     }
/// }
/// assert!(TestRun::of(rebuild).shard(1, 4).run().await.is_succeeded());
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// Counts from 0.
    pub index: u32,
    /// At least 1.
    pub total: u32,
}

impl Shard {
    /// The whole: part 0 of 1.
    pub const WHOLE: Self = Self { index: 0, total: 1 };

    /// Whether the item with this number (a hash, an id) falls to this shard.
    #[must_use]
    pub const fn owns(self, item: u64) -> bool {
        item % self.total as u64 == self.index as u64
    }

    pub(crate) fn from_wire(index: i32, total: i32) -> Self {
        Self { index: u32::try_from(index).unwrap_or(0), total: u32::try_from(total).unwrap_or(0).max(1) }
    }
}

/// The index of the run that this code runs in, from 0; 0 outside a run.
///
/// ```
/// # use rondel::{TestRun, shard};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// fn far_away() -> (u32, u32) {
///     (shard::index(), shard::total())
/// }
/// async fn handler() {
///     assert_eq!(far_away(), (2, 3));
///     let in_a_task = rondel::spawn(async { far_away() }).await.unwrap();
///     assert_eq!(in_a_task, (2, 3));
/// }
/// assert!(TestRun::of(handler).shard(2, 3).run().await.is_succeeded());
/// assert_eq!(far_away(), (0, 1));
/// # }
/// ```
#[must_use]
pub fn index() -> u32 {
    current().index
}

/// The number of shards of the run that this code runs in; 1 outside a run.
#[must_use]
pub fn total() -> u32 {
    current().total
}

fn current() -> Shard {
    run::with_current(|run| run.shard()).unwrap_or(Shard::WHOLE)
}
