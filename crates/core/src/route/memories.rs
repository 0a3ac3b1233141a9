//! The memories of routers for all jobs on one node. A restart loses them, and runs are spread less evenly for a while.

use std::collections::HashMap;

use super::memory::Memory;
use super::pick;
use super::request::{Choice, RouteRequest};
use crate::id::JobId;
use crate::spec::Route;

/// Upper bound on the remembered jobs and names, about 32 bytes each; beyond it, all memories are deleted.
const ENTRY_MAX: usize = 1_000_000;

/// The memories of all jobs of a node.
#[derive(Debug, Default)]
pub struct Memories {
    memories_by_job: HashMap<JobId, Memory>,
    entry_count: usize,
}

impl Memories {
    /// Routes a run with the memory of its job. Only jobs whose routers remember something use memory here.
    pub fn pick(&mut self, route: Route, request: &RouteRequest<'_>) -> Choice {
        if !matches!(route, Route::Round | Route::Lfu | Route::Lru) {
            return pick(route, request, &mut Memory::default());
        }
        if self.entry_count > ENTRY_MAX {
            *self = Self::default();
        }
        let memory = self.memories_by_job.entry(request.job).or_default();
        let entry_count_before = memory.entry_count();
        let choice = pick(route, request, memory);
        self.entry_count = self.entry_count - entry_count_before + memory.entry_count();
        choice
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::tests::{all_points, candidates, request};

    #[test]
    fn all_of_it_is_bounded() {
        let all_points = all_points(1_000);
        let online = candidates(&all_points);
        let mut memories = Memories::default();
        for job in 0..1_200 {
            let _ = memories.pick(Route::Lfu, &RouteRequest { job: JobId::new(job), ..request(&online) });
            let kept: usize = memories.memories_by_job.values().map(Memory::entry_count).sum();
            assert_eq!(memories.entry_count, kept);
            assert!(kept <= ENTRY_MAX + 1_001, "{kept}");
        }
        assert_eq!(memories.pick(Route::First, &request(&online)), Choice::Take(0));
    }

    #[test]
    fn everything_is_forgotten_beyond_the_bound_and_not_at_it() {
        let all_points = all_points(3);
        let online = candidates(&all_points);
        let mut memories = Memories::default();
        let _ = memories.pick(Route::Lfu, &request(&online));
        assert_eq!((memories.entry_count, memories.memories_by_job.len()), (4, 1));
        memories.entry_count = ENTRY_MAX;
        let _ = memories.pick(Route::Round, &RouteRequest { job: JobId::new(2), ..request(&online) });
        assert_eq!((memories.entry_count, memories.memories_by_job.len()), (ENTRY_MAX + 1, 2));
        let _ = memories.pick(Route::Round, &RouteRequest { job: JobId::new(3), ..request(&online) });
        assert_eq!((memories.entry_count, memories.memories_by_job.len()), (1, 1));
    }
}
