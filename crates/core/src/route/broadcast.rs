//! Broadcast: every executor gets a shard (XXL-JOB's `SHARDING_BROADCAST`). The executors are chosen when the fire is expanded;
//! this router only picks the executor of each shard. The shard waits while that executor has no room. A retried shard goes to
//! the same executor if it is still online, else to another. Remembers nothing.

use super::memory::Memory;
use super::request::{Choice, RouteRequest};

pub(super) fn pick(request: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    let is_requested = |index: &usize| Some(request.candidates[*index].hashed_name.name()) == request.executor;
    if let Some(index) = request.open().find(is_requested) {
        return Choice::Take(index);
    }
    let is_present = (0..request.candidates.len()).any(|index| is_requested(&index));
    if is_present || (request.attempt == 1 && request.executor.is_some()) {
        return Choice::NoExecutor;
    }
    request.candidate_in_turn(0).into()
}
