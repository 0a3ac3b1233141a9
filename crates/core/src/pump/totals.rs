//! Totals over the items of a pump job.

use super::item::{Counts, Item, ItemState};
use crate::time::Timestamp;

/// Sums over items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Items without an owner.
    pub free: u32,
    /// Items that a group has, and was not asked to release.
    pub dealt: u32,
    /// Items that a group was asked to release.
    pub releasing: u32,
    /// Items whose last select returned no rows, and that have no row in work.
    pub dry: u32,
    /// What was done at all epochs.
    pub counts: Counts,
    /// Rows that were done in the last minute.
    pub per_minute: u64,
    /// When the oldest row in work of these items was fetched.
    pub oldest_at: Option<Timestamp>,
}

impl Totals {
    /// Adds up the items.
    pub fn of<'i>(items: impl IntoIterator<Item = &'i Item>) -> Self {
        let mut totals = Self::default();
        for item in items {
            match item.state() {
                ItemState::Free => totals.free += 1,
                ItemState::Dealt => totals.dealt += 1,
                ItemState::Releasing => totals.releasing += 1,
            }
            totals.dry += u32::from(item.is_dry);
            totals.counts = totals.counts.plus(item.total());
            totals.per_minute += u64::from(item.per_minute);
            totals.oldest_at = totals.oldest_at.into_iter().chain(item.oldest_at).min();
        }
        totals
    }

    /// The same totals, but with `counts` added up over these items.
    #[must_use]
    pub fn with_counts_of<'i>(self, items: impl IntoIterator<Item = &'i Item>) -> Self {
        let counts = items.into_iter().fold(Counts::default(), |sum, item| sum.plus(item.total()));
        Self { counts, ..self }
    }
}

impl Counts {
    /// Reads the counts from the message that a group reports at the end of an attempt; `None` if it has none.
    ///
    /// ```
    /// use rondel_core::pump::Counts;
    ///
    /// let counts = Counts::parse_message("no server answered for 25 s; fetched 12, done 9, failed 1; 2 selects failed").unwrap();
    /// assert_eq!((counts.rows, counts.done, counts.failed), (12, 9, 1));
    /// assert_eq!(Counts::parse_message("fetched none"), None);
    /// ```
    #[must_use]
    pub fn parse_message(message: &str) -> Option<Self> {
        let (_, counts) = message.rsplit_once("fetched ")?;
        let counts = counts.split(';').next()?;
        let mut parts = counts.split(", ");
        let mut number = |word: &str| parts.next()?.trim().strip_prefix(word)?.parse::<i64>().ok();
        let (rows, done, failed) = (number("")?, number("done ")?, number("failed ")?);
        Some(Self { rows, done, failed, ..Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::item::Owner;
    use super::*;
    use crate::id::RunId;

    #[test]
    fn items_add_up() {
        let now = Timestamp::from_secs(100);
        let owner = Some(Owner { run: RunId::new(1), attempt: 1 });
        let done = |done| Counts { done, ..Counts::default() };
        let items = [
            Item::new("free", now),
            Item {
                owner,
                counts: done(7),
                before: done(3),
                oldest_at: Some(now),
                per_minute: 60,
                ..Item::new("a", now)
            },
            Item {
                owner,
                asked_at: Some(now),
                oldest_at: Some(Timestamp::from_secs(50)),
                is_dry: true,
                ..Item::new("b", now)
            },
        ];
        let totals = Totals::of(&items);
        assert_eq!((totals.free, totals.dealt, totals.releasing, totals.dry), (1, 1, 1, 1));
        assert_eq!((totals.counts.done, totals.per_minute), (10, 60));
        assert_eq!(totals.oldest_at, Some(Timestamp::from_secs(50)));
        let of_others = Totals::of(&items[2..]).with_counts_of(&items);
        assert_eq!((of_others.free, of_others.dealt, of_others.releasing, of_others.counts.done), (0, 0, 1, 10));
    }
}
