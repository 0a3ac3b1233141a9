//! What routers remember of a job, on one node: lost at restart, which costs nothing but evenness.

use std::collections::HashMap;
use std::time::Duration;

use super::ask::{Ask, Candidate, Choice};
use super::pick;
use crate::id::JobId;
use crate::spec::Route;
use crate::time::Timestamp;

/// How long a memory lasts: what was busy yesterday says nothing about today.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Jobs and names that are remembered in all, about 32 bytes each; everything is forgotten beyond.
const ENTRY_MAX: usize = 1_000_000;

/// What the router of one job remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    route: Option<Route>,
    since: Option<Timestamp>,
    turn: Option<u32>,
    /// A number for each name that is online, in their order.
    marks: Vec<(u64, u32)>,
}

/// The numbers of the names that are known already.
pub(super) struct Known<'a>(&'a [(u64, u32)]);

impl Known<'_> {
    pub(super) fn min(&self) -> u32 {
        self.0.iter().map(|(_, mark)| *mark).min().unwrap_or(0)
    }

    pub(super) fn max(&self) -> u32 {
        self.0.iter().map(|(_, mark)| *mark).max().unwrap_or(0)
    }
}

impl Memory {
    /// Forgets what another route remembered, and what is a day old.
    pub(super) fn begin(&mut self, route: Route, now: Timestamp) {
        let is_fresh = self.since.is_some_and(|since| since <= now && now < since + LIFETIME);
        if self.route != Some(route) || !is_fresh {
            *self = Self { route: Some(route), since: Some(now), ..Self::default() };
        }
    }

    pub(super) const fn turn(&self) -> Option<u32> {
        self.turn
    }

    pub(super) fn set_turn(&mut self, turn: u32) {
        self.turn = Some(turn);
    }

    /// A number for each candidate. Names that left are forgotten; `newcomer` says what a new one starts with.
    pub(super) fn marks(
        &mut self,
        candidates: &[Candidate<'_>],
        newcomer: impl Fn(&Known<'_>) -> u32,
    ) -> &mut [(u64, u32)] {
        let is_same = self.marks.len() == candidates.len()
            && self.marks.iter().zip(candidates).all(|((key, _), candidate)| *key == candidate.seat.key());
        if !is_same {
            let before: HashMap<u64, u32> = std::mem::take(&mut self.marks).into_iter().collect();
            let stay = candidates.iter().filter_map(|candidate| before.get_key_value(&candidate.seat.key()));
            let stay: Vec<(u64, u32)> = stay.map(|(key, mark)| (*key, *mark)).collect();
            let start = newcomer(&Known(&stay));
            let mark = |key| (key, before.get(&key).copied().unwrap_or(start));
            self.marks = candidates.iter().map(|candidate| mark(candidate.seat.key())).collect();
        }
        &mut self.marks
    }

    fn entry_count(&self) -> usize {
        1 + self.marks.len()
    }
}

/// The memories of all jobs of a node.
#[derive(Debug, Default)]
pub struct Memories {
    of: HashMap<JobId, Memory>,
    entry_count: usize,
}

impl Memories {
    /// Routes a run by what is remembered of its job. Only routers that remember something take room here.
    pub fn pick(&mut self, route: Route, ask: &Ask<'_>) -> Choice {
        if !matches!(route, Route::Round | Route::Lfu | Route::Lru) {
            return pick(route, ask, &mut Memory::default());
        }
        if self.entry_count > ENTRY_MAX {
            *self = Self::default();
        }
        let memory = self.of.entry(ask.job).or_default();
        let before = if memory.route.is_some() { memory.entry_count() } else { 0 };
        let choice = pick(route, ask, memory);
        self.entry_count = self.entry_count - before + memory.entry_count();
        choice
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::tests::{ask, candidates, seats};

    #[test]
    fn all_of_it_is_bounded() {
        let seats = seats(1_000);
        let online = candidates(&seats);
        let mut memories = Memories::default();
        for job in 0..1_200 {
            let _ = memories.pick(Route::Lfu, &Ask { job: JobId::new(job), ..ask(&online) });
            let kept: usize = memories.of.values().map(Memory::entry_count).sum();
            assert_eq!(memories.entry_count, kept);
            assert!(kept <= ENTRY_MAX + 1_001, "{kept}");
        }
        assert_eq!(memories.pick(Route::First, &ask(&online)), Choice::Take(0));
    }

    #[test]
    fn a_day_and_another_route_make_it_forget() {
        let seats = seats(2);
        let online = candidates(&seats);
        let mut memory = Memory::default();
        let at = |second| Ask { now: Timestamp::from_secs(second), ..ask(&online) };
        let _ = pick(Route::Lfu, &at(100), &mut memory);
        let _ = pick(Route::Lfu, &at(86_499), &mut memory);
        assert_eq!(memory.marks.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [1, 1]);
        let _ = pick(Route::Lfu, &at(86_500), &mut memory);
        assert_eq!(memory.marks.iter().map(|(_, count)| *count).sum::<u32>(), 1);
        let _ = pick(Route::Round, &at(86_501), &mut memory);
        assert_eq!(memory.marks, []);
    }

    #[test]
    fn everything_is_forgotten_beyond_the_bound_and_not_at_it() {
        let seats = seats(3);
        let online = candidates(&seats);
        let mut memories = Memories::default();
        let _ = memories.pick(Route::Lfu, &ask(&online));
        assert_eq!((memories.entry_count, memories.of.len()), (4, 1));
        memories.entry_count = ENTRY_MAX;
        let _ = memories.pick(Route::Round, &Ask { job: JobId::new(2), ..ask(&online) });
        assert_eq!((memories.entry_count, memories.of.len()), (ENTRY_MAX + 1, 2));
        let _ = memories.pick(Route::Round, &Ask { job: JobId::new(3), ..ask(&online) });
        assert_eq!((memories.entry_count, memories.of.len()), (1, 1));
    }

    #[test]
    fn a_name_that_took_another_ones_place_begins_anew() {
        let seats = seats(3);
        let all = candidates(&seats);
        let mut memory = Memory::default();
        memory.marks(&all[..2], |_| 5)[0].1 = 9;
        let marks: Vec<u32> = memory.marks(&all[1..], |known| known.max() + 1).iter().map(|(_, mark)| *mark).collect();
        assert_eq!(marks, [5, 6]);
    }
}
