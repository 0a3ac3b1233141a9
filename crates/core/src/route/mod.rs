//! Routers: which of the executors that could take a run gets it.
//!
//! A router is a pure function over the candidates (in the order of their stable names), what it remembers of the
//! job, and a number drawn by the caller. Adding one: a file here, a line in [`pick`], a row in the docs.

mod round;

use crate::spec::Route;

/// An executor that is online, has the handler, and has room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Its stable name: routers order and hash by it, never by the incarnation.
    pub name: &'a str,
}

/// What the routers remember of one job on one node; lost at restart, which costs nothing but evenness.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    turn: Option<u32>,
}

/// Picks one of `candidates`, which are ordered by name; `draw` is a random number. `None` where there are none, and
/// for broadcast, which does not pick.
///
/// ```
/// use rondel_core::route::{Candidate, Memory, pick};
/// use rondel_core::Route;
///
/// let online = [Candidate { name: "a" }, Candidate { name: "b" }];
/// let mut memory = Memory::default();
/// assert_eq!(pick(Route::Last, &online, &mut memory, 7), Some(1));
/// ```
#[must_use]
pub fn pick(route: Route, candidates: &[Candidate<'_>], memory: &mut Memory, draw: u32) -> Option<usize> {
    let last = candidates.len().checked_sub(1)?;
    match route {
        Route::First => Some(0),
        Route::Last => Some(last),
        Route::Random => Some(remainder(draw, candidates.len())),
        Route::Round => Some(round::pick(&mut memory.turn, candidates.len(), draw)),
        // Refused when the job is saved; broadcast is expanded before it comes here.
        Route::ConsistentHash
        | Route::Lfu
        | Route::Lru
        | Route::Failover
        | Route::Busyover
        | Route::Weight
        | Route::LeastActive
        | Route::Broadcast => None,
    }
}

fn remainder(draw: u32, count: usize) -> usize {
    usize::try_from(draw).unwrap_or(0) % count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<Candidate<'static>> {
        ["a", "b", "c", "d"].into_iter().take(count).map(|name| Candidate { name }).collect()
    }

    #[test]
    fn nobody_is_picked_from_nobody() {
        for route in Route::ALL {
            assert_eq!(pick(*route, &[], &mut Memory::default(), 1), None, "{route}");
        }
    }

    #[test]
    fn first_last_random() {
        let mut memory = Memory::default();
        assert_eq!(pick(Route::First, &names(3), &mut memory, 2), Some(0));
        assert_eq!(pick(Route::Last, &names(3), &mut memory, 0), Some(2));
        assert_eq!(pick(Route::Random, &names(3), &mut memory, 5), Some(2));
    }

    #[test]
    fn round_takes_each_in_turn_from_a_drawn_start_and_survives_a_shorter_list() {
        let mut memory = Memory::default();
        let mut picks = |count, draw| pick(Route::Round, &names(count), &mut memory, draw).unwrap();
        let taken: Vec<usize> = (0..4).map(|_| picks(3, 1)).collect();
        assert_eq!(taken, [1, 2, 0, 1]);
        assert!(picks(2, 1) < 2);
    }
}
