//! Folds verdicts in order: a long stretch of one verdict becomes one entry.

use super::history::{Entry, FOLD_ABOVE, FireHistory, FireVerdict};
use crate::time::Timestamp;

/// Consecutive fires with the same verdict.
pub(super) struct VerdictStretch {
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    pub(super) count: u64,
    pub(super) verdict: FireVerdict,
}

/// Collects entries up to a limit.
pub(super) struct HistoryFold {
    entries: Vec<Entry>,
    limit: usize,
    /// The first fire beyond the limit of entries; `None` as long as all fires are within it.
    first_beyond_limit: Option<Timestamp>,
    open_stretch: Option<OpenStretch>,
}

/// A stretch that the next fires may extend.
struct OpenStretch {
    stretch: VerdictStretch,
    /// The instants of its fires; incomplete if there are more than [`FOLD_ABOVE`].
    instants: Vec<Timestamp>,
}

impl HistoryFold {
    pub(super) fn new(limit: usize) -> Self {
        Self { entries: Vec::new(), limit, first_beyond_limit: None, open_stretch: None }
    }

    /// Adds a stretch, which must begin after the end of the previous one; `instants` are its fires.
    pub(super) fn push(&mut self, stretch: VerdictStretch, instants: impl Iterator<Item = Timestamp>) {
        if self.open_stretch.as_ref().is_some_and(|open_stretch| open_stretch.stretch.verdict != stretch.verdict) {
            self.close_stretch();
        }
        let (new_last, count) = (stretch.last, stretch.count);
        let open_stretch = self.open_stretch.get_or_insert_with(|| OpenStretch {
            stretch: VerdictStretch { count: 0, ..stretch },
            instants: Vec::new(),
        });
        open_stretch.stretch.last = new_last;
        open_stretch.stretch.count += count;
        if open_stretch.stretch.count <= FOLD_ABOVE {
            open_stretch.instants.extend(instants);
        }
    }

    /// Whether there are more entries than the limit allows.
    pub(super) fn is_full(&self) -> bool {
        self.first_beyond_limit.is_some()
    }

    /// Closes the open stretch and returns the history. The next history continues from the first fire beyond the limit of entries,
    /// or else from `stopped_at`, if the walk stopped early.
    pub(super) fn finish(mut self, stopped_at: Option<Timestamp>) -> FireHistory {
        self.close_stretch();
        FireHistory { entries: self.entries, next: self.first_beyond_limit.or(stopped_at) }
    }

    fn close_stretch(&mut self) {
        let Some(OpenStretch { stretch, instants }) = self.open_stretch.take() else { return };
        let shares_a_row = matches!(stretch.verdict, FireVerdict::Span { .. });
        if shares_a_row || stretch.count > FOLD_ABOVE {
            return self.add_entry(stretch);
        }
        for at in instants {
            self.add_entry(VerdictStretch { first: at, last: at, count: 1, verdict: stretch.verdict.clone() });
        }
    }

    fn add_entry(&mut self, VerdictStretch { first, last, count, verdict }: VerdictStretch) {
        if self.first_beyond_limit.is_some() {
            return;
        }
        if self.entries.len() == self.limit {
            self.first_beyond_limit = Some(first);
            return;
        }
        self.entries.push(Entry { first, last, count, verdict });
    }
}
