//! The memory of a router for one job.

use std::collections::HashMap;
use std::time::Duration;

use super::request::Candidate;
use crate::spec::Route;
use crate::time::Timestamp;

/// How long a memory lasts: yesterday's load does not matter today.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The memory of one job's router.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    route: Option<Route>,
    /// When this memory began.
    since: Option<Timestamp>,
    turn: Option<u32>,
    /// For each candidate, in the order of the names: its key, and a number that counts its uses (LFU) or ranks its last use (LRU).
    uses: Vec<(u64, u32)>,
}

/// The uses of the executors that were candidates before and still are.
pub(super) struct KnownUses<'a>(&'a [(u64, u32)]);

impl KnownUses<'_> {
    pub(super) fn min(&self) -> u32 {
        self.0.iter().map(|(_, use_value)| *use_value).min().unwrap_or(0)
    }

    pub(super) fn max(&self) -> u32 {
        self.0.iter().map(|(_, use_value)| *use_value).max().unwrap_or(0)
    }
}

impl Memory {
    /// Clears the memory if another route wrote it or it is a day old.
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

    /// The uses of each candidate. Executors that are no longer candidates are forgotten; `newcomer` returns the uses of each new one.
    pub(super) fn uses(
        &mut self,
        candidates: &[Candidate<'_>],
        newcomer: impl Fn(&KnownUses<'_>) -> u32,
    ) -> &mut [(u64, u32)] {
        let are_same_candidates = self.uses.len() == candidates.len()
            && self.uses.iter().zip(candidates).all(|((key, _), candidate)| *key == candidate.hashed_name.key());
        if !are_same_candidates {
            let known_uses: HashMap<u64, u32> = std::mem::take(&mut self.uses).into_iter().collect();
            let staying_entries =
                candidates.iter().filter_map(|candidate| known_uses.get_key_value(&candidate.hashed_name.key()));
            let staying_uses: Vec<(u64, u32)> = staying_entries.map(|(key, use_value)| (*key, *use_value)).collect();
            let newcomer_use = newcomer(&KnownUses(&staying_uses));
            let key_and_use = |key| (key, known_uses.get(&key).copied().unwrap_or(newcomer_use));
            self.uses = candidates.iter().map(|candidate| key_and_use(candidate.hashed_name.key())).collect();
        }
        &mut self.uses
    }

    /// The number of its entries, whose sum over all jobs is limited; 0 before a router has used it.
    pub(super) fn entry_count(&self) -> usize {
        if self.route.is_some() { 1 + self.uses.len() } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::tests::{all_points, candidates, request};
    use crate::route::{RouteRequest, pick};

    #[test]
    fn a_day_and_another_route_make_it_forget() {
        let all_points = all_points(2);
        let online = candidates(&all_points);
        let mut memory = Memory::default();
        let at = |second| RouteRequest { now: Timestamp::from_secs(second), ..request(&online) };
        let _ = pick(Route::Lfu, &at(100), &mut memory);
        let _ = pick(Route::Lfu, &at(86_499), &mut memory);
        assert_eq!(memory.uses.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [1, 1]);
        let _ = pick(Route::Lfu, &at(86_500), &mut memory);
        assert_eq!(memory.uses.iter().map(|(_, count)| *count).sum::<u32>(), 1);
        let _ = pick(Route::Round, &at(86_501), &mut memory);
        assert_eq!(memory.uses, []);
    }

    #[test]
    fn a_name_that_took_another_ones_place_begins_anew() {
        let all_points = all_points(3);
        let all = candidates(&all_points);
        let mut memory = Memory::default();
        memory.uses(&all[..2], |_| 5)[0].1 = 9;
        let uses: Vec<u32> = memory.uses(&all[1..], |known| known.max() + 1).iter().map(|(_, used)| *used).collect();
        assert_eq!(uses, [5, 6]);
    }
}
