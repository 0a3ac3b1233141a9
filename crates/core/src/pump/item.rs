//! The items of a pump job: one owner each, and an epoch that rises with each owner.

use std::collections::BTreeMap;

use crate::id::RunId;
use crate::time::Timestamp;
use crate::word_enum::word_enum;

/// The owner of an item: one attempt of a group's run. The group's next attempt does not inherit the item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The group's run.
    pub run: RunId,
    pub attempt: i32,
}

/// How much was done with the rows of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Selects for the item.
    pub fetches: i64,
    /// Rows that were fetched to be executed.
    pub rows: i64,
    /// Rows that were executed successfully.
    pub done: i64,
    /// Failed executions, counted once for each row and try.
    pub failed: i64,
}

impl Counts {
    /// The sums of both counts, field by field.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            fetches: self.fetches.saturating_add(other.fetches),
            rows: self.rows.saturating_add(other.rows),
            done: self.done.saturating_add(other.done),
            failed: self.failed.saturating_add(other.failed),
        }
    }
}

word_enum! {
    /// Whether an item of a pump job has an owner.
    ItemState {
        /// No group has it.
        Free = "free",
        /// A group has it.
        Dealt = "dealt",
        /// The group that has it was asked to give it back.
        Releasing = "releasing",
    }
}

/// An item as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub name: String,
    /// Its owner; `None` while it is free.
    pub owner: Option<Owner>,
    /// Rises when the item gets an owner, and when an owner loses it to a fence.
    pub epoch: i64,
    /// When its owner was asked to release it; `None` if the owner was not.
    pub asked_at: Option<Timestamp>,
    /// The sequence number of the last report at this epoch; 0 for none.
    pub sequence: i64,
    /// Where the last owner stopped, in the handler's own format.
    pub checkpoint: Option<String>,
    /// What was done at epochs before this one.
    pub before: Counts,
    /// What was done at this epoch.
    pub counts: Counts,
    /// Rows that were done in the minute before the last report.
    pub per_minute: u32,
    /// When the oldest row in work was fetched; `None` without such a row. A row is in work from its fetch until its execution has ended for
    /// good.
    pub oldest_at: Option<Timestamp>,
    /// Whether the last select at this epoch returned no rows, and no row is in work.
    pub is_dry: bool,
    /// When this item was last written to the store.
    pub updated_at: Timestamp,
}

impl Item {
    /// A new item, which has had no owner.
    #[must_use]
    pub fn new(name: &str, now: Timestamp) -> Self {
        Self {
            name: name.to_owned(),
            owner: None,
            epoch: 0,
            asked_at: None,
            sequence: 0,
            checkpoint: None,
            before: Counts::default(),
            counts: Counts::default(),
            per_minute: 0,
            oldest_at: None,
            is_dry: false,
            updated_at: now,
        }
    }

    /// Whether it has an owner.
    #[must_use]
    pub const fn state(&self) -> ItemState {
        match (self.owner.is_some(), self.asked_at.is_some()) {
            (false, _) => ItemState::Free,
            (true, false) => ItemState::Dealt,
            (true, true) => ItemState::Releasing,
        }
    }

    /// What was done with it at all epochs.
    #[must_use]
    pub const fn total(&self) -> Counts {
        self.before.plus(self.counts)
    }

    fn release(&mut self) {
        (self.owner, self.asked_at, self.oldest_at, self.per_minute) = (None, None, None, 0);
    }
}

/// An owner's report on an item. The counts cover its epoch only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The owner that reports.
    pub owner: Owner,
    /// The epoch at which it has the item.
    pub epoch: i64,
    /// Rises by one with each changed report at the epoch.
    pub sequence: i64,
    /// What was done.
    pub counts: Counts,
    /// Rows that were done in the last minute.
    pub per_minute: u32,
    /// When the oldest row in work was fetched, as in [`Item::oldest_at`].
    pub oldest_at: Option<Timestamp>,
    /// Whether the last select returned no rows and no row is in work.
    pub is_dry: bool,
    /// How far the owner has come, in the handler's own format.
    pub checkpoint: Option<String>,
    /// Whether the owner has released the item.
    pub is_released: bool,
}

/// A change of an item. It names the state that it expects, and has no effect on an item in another state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemChange {
    /// The definition has a new item.
    Add,
    /// The definition no longer has the item, and the item has no owner.
    Remove,
    /// A free item goes to an owner, under the next epoch.
    Deal {
        /// The epoch before.
        epoch: i64,
        /// The new owner.
        to: Owner,
    },
    /// Its owner is asked to release it.
    AskToRelease {
        /// The owner's epoch.
        epoch: i64,
    },
    /// Its owner's attempt has ended.
    Free { owner: Owner },
    /// The owner did not release the item in time and loses it, whatever the owner reports later.
    Fence {
        /// The epoch that ends.
        epoch: i64,
    },
    /// Its owner reports.
    Report(Progress),
}

/// Applies a change, and returns whether it was applied.
///
/// ```
/// use rondel_core::pump::{ItemChange, Item, Owner, apply};
/// use rondel_core::{RunId, Timestamp};
///
/// let now = Timestamp::from_secs(1);
/// let mut items = std::collections::BTreeMap::new();
/// let (first, second) = (Owner { run: RunId::new(1), attempt: 1 }, Owner { run: RunId::new(2), attempt: 1 });
/// assert!(apply(&mut items, "eu", &ItemChange::Add, now));
/// assert!(apply(&mut items, "eu", &ItemChange::Deal { epoch: 0, to: first }, now));
/// // It has an owner.
/// assert!(!apply(&mut items, "eu", &ItemChange::Deal { epoch: 1, to: second }, now));
/// assert!(apply(&mut items, "eu", &ItemChange::Free { owner: first }, now));
/// assert!(apply(&mut items, "eu", &ItemChange::Deal { epoch: 1, to: second }, now));
/// assert_eq!(items["eu"].epoch, 2);
/// ```
pub fn apply(items: &mut BTreeMap<String, Item>, name: &str, change: &ItemChange, now: Timestamp) -> bool {
    match change {
        ItemChange::Add => {
            let is_new = !items.contains_key(name);
            items.entry(name.to_owned()).or_insert_with(|| Item::new(name, now));
            return is_new;
        }
        ItemChange::Remove => {
            let is_free = items.get(name).is_some_and(|item| item.owner.is_none());
            if is_free {
                items.remove(name);
            }
            return is_free;
        }
        _ => {}
    }
    let Some(item) = items.get_mut(name) else { return false };
    let is_applied = change_item(item, change, now);
    if is_applied {
        item.updated_at = now;
    }
    is_applied
}

fn change_item(item: &mut Item, change: &ItemChange, now: Timestamp) -> bool {
    match change {
        ItemChange::Add | ItemChange::Remove => false,
        ItemChange::Deal { epoch, to } => {
            let is_applicable = item.owner.is_none() && item.epoch == *epoch;
            if is_applicable {
                item.before = item.total();
                (item.counts, item.sequence, item.is_dry) = (Counts::default(), 0, false);
                (item.owner, item.epoch) = (Some(*to), epoch + 1);
            }
            is_applicable
        }
        ItemChange::AskToRelease { epoch } => {
            let is_applicable = item.owner.is_some() && item.epoch == *epoch && item.asked_at.is_none();
            if is_applicable {
                item.asked_at = Some(now);
            }
            is_applicable
        }
        ItemChange::Free { owner } => {
            let is_applicable = item.owner == Some(*owner);
            if is_applicable {
                item.release();
            }
            is_applicable
        }
        ItemChange::Fence { epoch } => {
            let is_applicable = item.owner.is_some() && item.epoch == *epoch;
            if is_applicable {
                item.before = item.total();
                (item.counts, item.sequence, item.is_dry) = (Counts::default(), 0, false);
                item.epoch += 1;
                item.release();
            }
            is_applicable
        }
        ItemChange::Report(progress) => apply_report(item, progress),
    }
}

/// Accepts a report if it has the item's epoch, and no other attempt owns the item. Late reports of an ended attempt are therefore accepted
/// until the item is dealt again.
fn apply_report(item: &mut Item, progress: &Progress) -> bool {
    if item.epoch != progress.epoch || item.owner.is_some_and(|owner| owner != progress.owner) {
        return false;
    }
    let is_new_report = progress.sequence > item.sequence;
    if is_new_report {
        item.sequence = progress.sequence;
        (item.counts, item.per_minute, item.oldest_at) = (progress.counts, progress.per_minute, progress.oldest_at);
        item.is_dry = progress.is_dry;
        item.checkpoint.clone_from(&progress.checkpoint);
    }
    let is_given_back = progress.is_released && item.owner.is_some();
    if is_given_back || item.owner.is_none() {
        // Without an owner, the item has no row in work, whatever a late report states.
        item.release();
    }
    is_new_report || is_given_back
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn owner(run: i64, attempt: i32) -> Owner {
        Owner { run: RunId::new(run), attempt }
    }

    fn progress(owner: Owner, epoch: i64, sequence: i64, done: i64) -> Progress {
        Progress {
            owner,
            epoch,
            sequence,
            counts: Counts { fetches: sequence, rows: done, done, failed: 0 },
            per_minute: 0,
            oldest_at: None,
            is_dry: false,
            checkpoint: Some(format!("row {done}")),
            is_released: false,
        }
    }

    fn item() -> Item {
        let mut items = BTreeMap::new();
        assert!(apply(&mut items, "a", &ItemChange::Add, NOW));
        assert!(apply(&mut items, "a", &ItemChange::Deal { epoch: 0, to: owner(1, 1) }, NOW));
        items.remove("a").unwrap()
    }

    fn change(item: &mut Item, change: &ItemChange) -> bool {
        change_item(item, change, NOW)
    }

    #[test]
    fn an_item_has_one_owner() {
        let mut one = item();
        for epoch in [0, 1, 2] {
            assert!(!change(&mut one, &ItemChange::Deal { epoch, to: owner(2, 1) }));
        }
        assert!(!change(&mut one, &ItemChange::Free { owner: owner(1, 2) }), "another attempt of its owner");
        assert!(change(&mut one, &ItemChange::Free { owner: owner(1, 1) }));
        assert!(!change(&mut one, &ItemChange::Deal { epoch: 0, to: owner(2, 1) }), "an older epoch");
        assert!(change(&mut one, &ItemChange::Deal { epoch: 1, to: owner(2, 1) }));
        assert_eq!((one.epoch, one.owner), (2, Some(owner(2, 1))));
    }

    #[test]
    fn a_late_report_of_an_earlier_owner_is_refused() {
        let mut one = item();
        assert!(change(&mut one, &ItemChange::Report(progress(owner(1, 1), 1, 5, 50))));
        assert!(change(&mut one, &ItemChange::Fence { epoch: 1 }));
        assert!(!change(&mut one, &ItemChange::Report(progress(owner(1, 1), 1, 6, 60))), "it was fenced");
        assert!(change(&mut one, &ItemChange::Deal { epoch: 2, to: owner(2, 1) }));
        assert!(!change(&mut one, &ItemChange::Report(progress(owner(1, 1), 1, 7, 70))));
        assert!(!change(&mut one, &ItemChange::Report(progress(owner(1, 1), 3, 7, 70))), "the epoch of another owner");
        assert_eq!(one.checkpoint.as_deref(), Some("row 50"));
        assert!(change(&mut one, &ItemChange::Report(progress(owner(2, 1), 3, 1, 5))));
        assert_eq!((one.total().done, one.counts.done), (55, 5));
    }

    #[test]
    fn the_last_words_of_an_attempt_that_is_over_count_until_the_item_is_dealt_on() {
        let mut one = item();
        assert!(change(&mut one, &ItemChange::Free { owner: owner(1, 1) }));
        let busy = Progress { per_minute: 30, oldest_at: Some(NOW), ..progress(owner(1, 1), 1, 1, 10) };
        assert!(change(&mut one, &ItemChange::Report(busy)));
        assert_eq!((one.per_minute, one.oldest_at), (0, None), "no row is in work");
        assert!(change(&mut one, &ItemChange::Deal { epoch: 1, to: owner(2, 1) }));
        assert!(!change(&mut one, &ItemChange::Report(progress(owner(1, 1), 1, 2, 20))));
        assert_eq!(one.total().done, 10);
    }

    #[test]
    fn a_checkpoint_never_goes_back() {
        let mut one = item();
        assert!(change(&mut one, &ItemChange::Report(progress(owner(1, 1), 1, 3, 30))));
        for sequence in [1, 2, 3] {
            assert!(!change(&mut one, &ItemChange::Report(progress(owner(1, 1), 1, sequence, 20))));
        }
        assert_eq!((one.checkpoint.as_deref(), one.counts.done), (Some("row 30"), 30));
    }

    #[test]
    fn an_item_that_is_asked_back_is_free_once_its_owner_releases_it() {
        let mut one = item();
        assert!(!change(&mut one, &ItemChange::AskToRelease { epoch: 2 }));
        assert_eq!(one.state(), ItemState::Dealt);
        assert!(change(&mut one, &ItemChange::AskToRelease { epoch: 1 }));
        assert_eq!(one.state(), ItemState::Releasing);
        assert!(
            !change(&mut one, &ItemChange::AskToRelease { epoch: 1 }),
            "it was asked already, and the time runs from then"
        );
        let released = Progress { is_released: true, ..progress(owner(1, 1), 1, 0, 0) };
        assert!(change(&mut one, &ItemChange::Report(released.clone())));
        assert_eq!((one.owner, one.asked_at, one.state()), (None, None, ItemState::Free));
        assert!(!change(&mut one, &ItemChange::Report(released)), "the same report again");
        assert!(!change(&mut one, &ItemChange::AskToRelease { epoch: 1 }), "it has no owner");
    }
}
