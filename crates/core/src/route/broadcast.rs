//! Broadcast: every executor gets a shard (XXL-JOB's `SHARDING_BROADCAST`). The executors are chosen when the fire is expanded;
//! this router only picks the executor of each shard. The shard waits while that executor has no room. A retried shard goes to
//! the same executor if it is still online, else to another. Remembers nothing.

use super::ask::{Choice, RouteRequest};
use super::memory::Memory;

pub(super) fn pick(ask: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    let is_its = |index: &usize| Some(ask.candidates[*index].hashed_name.name()) == ask.executor;
    if let Some(index) = ask.open().find(is_its) {
        return Choice::Take(index);
    }
    let is_there = (0..ask.candidates.len()).any(|index| is_its(&index));
    if is_there || (ask.attempt == 1 && ask.executor.is_some()) {
        return Choice::NoExecutor;
    }
    ask.dealt(0).into()
}
