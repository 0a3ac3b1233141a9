//! LFU: the one that this job used least often (XXL-JOB's LFU). Remembers a count for each name, for a day. Who comes
//! online starts with the least count of the others, so that it is not flooded; of equals any, so that jobs born together
//! do not all begin with the first.

use super::ask::{Ask, Choice};
use super::memory::Memory;

/// Counts begin again beyond.
const COUNT_MAX: u32 = 1_000_000;

pub(super) fn pick(ask: &Ask<'_>, memory: &mut Memory) -> Choice {
    let counts = memory.marks(ask.candidates, |known| known.min());
    let Some(index) = ask.least(|index| u64::from(counts[index].1)) else { return Choice::Nobody };
    counts[index].1 += 1;
    if counts[index].1 > COUNT_MAX {
        let least = counts.iter().map(|(_, count)| *count).min().unwrap_or(0);
        counts.iter_mut().for_each(|(_, count)| *count -= least);
        // The one that never has room must not hold the others' counts up for ever.
        counts.iter_mut().for_each(|(_, count)| *count = (*count).min(COUNT_MAX / 2));
    }
    Choice::Take(index)
}
