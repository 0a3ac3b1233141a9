//! LRU: the executor that this job used least recently (XXL-JOB's LRU). Remembers for each executor a number that rises with each use, for
//! a day. An executor that comes online waits until the others have had their turn. Among executors never used it picks at random, so that jobs
//! created together do not all begin with the first.

use super::memory::Memory;
use super::request::{Choice, RouteRequest};

pub(super) fn pick(request: &RouteRequest<'_>, memory: &mut Memory) -> Choice {
    let last_uses = memory.uses(request.candidates, |known_uses| known_uses.max());
    let Some(index) = request.least(|index| u64::from(last_uses[index].1)) else { return Choice::NoExecutor };
    let newest_use = last_uses.iter().map(|(_, at)| *at).max().unwrap_or(0);
    match newest_use.checked_add(1) {
        Some(next_use) => last_uses[index].1 = next_use,
        None => last_uses.iter_mut().for_each(|(_, at)| *at = 0),
    }
    Choice::Take(index)
}
