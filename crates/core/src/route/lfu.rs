//! LFU: the executor that this job used least often (XXL-JOB's LFU). Remembers a count for each executor, for a day. An executor that comes
//! online starts with the least count of the others, so that it is not flooded. Among equals it picks at random, so that jobs created
//! together do not all begin with the first.

use super::memory::Memory;
use super::request::{Choice, RouteRequest};

/// All counts are lowered once one of them exceeds this.
const COUNT_MAX: u32 = 1_000_000;

pub(super) fn pick(request: &RouteRequest<'_>, memory: &mut Memory) -> Choice {
    let counts = memory.uses(request.candidates, |known_uses| known_uses.min());
    let Some(index) = request.least(|index| u64::from(counts[index].1)) else { return Choice::NoExecutor };
    counts[index].1 += 1;
    if counts[index].1 > COUNT_MAX {
        let least_count = counts.iter().map(|(_, count)| *count).min().unwrap_or(0);
        counts.iter_mut().for_each(|(_, count)| *count -= least_count);
        // The lowest count stays low if an executor never has room. The other counts are bounded even then.
        counts.iter_mut().for_each(|(_, count)| *count = (*count).min(COUNT_MAX / 2));
    }
    Choice::Take(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::tests::{all_points, candidates, request};

    #[test]
    fn counts_begin_again_beyond_their_bound() {
        let all_points = all_points(2);
        let mut online = candidates(&all_points);
        let mut memory = Memory::default();
        let counts = |memory: &mut Memory| -> Vec<u32> {
            memory.uses(&candidates(&all_points), |_| 0).iter().map(|(_, count)| *count).collect()
        };
        for (_, count) in memory.uses(&online, |_| 0).iter_mut() {
            *count = COUNT_MAX - 1;
        }
        online[1].refusal = Some(crate::route::Refusal::HadPreviousAttempt);
        assert_eq!(pick(&request(&online), &mut memory), Choice::Take(0));
        assert_eq!(counts(&mut memory), [COUNT_MAX, COUNT_MAX - 1]);
        assert_eq!(pick(&request(&online), &mut memory), Choice::Take(0));
        assert_eq!(counts(&mut memory), [2, 0]);
        memory.uses(&online, |_| 0)[0].1 = COUNT_MAX;
        assert_eq!(pick(&request(&online), &mut memory), Choice::Take(0));
        assert_eq!(counts(&mut memory), [COUNT_MAX / 2, 0], "the one that never has room holds up none");
    }
}
