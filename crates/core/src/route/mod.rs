//! Routers: which of the executors that could take a run gets it.
//!
//! A router is a pure function of its input ([`RouteRequest`]: the job, the executors online in the order of their stable names, a number
//! drawn by the caller) and its memory of the job ([`Memory`]). Each router is a file here and a line in `router`; `docs/ROUTERS.md` has
//! the table for users, and the steps for adding one.

mod answers;
mod broadcast;
mod busyover;
mod consistent_hash;
mod failover;
mod first;
mod hash_points;
mod last;
mod least_active;
mod lfu;
mod lru;
mod memories;
mod memory;
mod random;
mod request;
mod round;
#[cfg(test)]
mod tests;
pub mod trace;
mod weight;

use crate::spec::Route;

pub use answers::{Answer, Question};
pub use hash_points::HashPoints;
pub use memories::Memories;
pub use memory::Memory;
pub use request::{Candidate, Choice, RouteRequest};
pub use trace::Refusal;

/// A router. Pure: the same input and memory give the same choice.
type Router = fn(&RouteRequest<'_>, &mut Memory) -> Choice;

/// The table of the routers.
const fn router(route: Route) -> Router {
    match route {
        Route::First => first::pick,
        Route::Last => last::pick,
        Route::Round => round::pick,
        Route::Random => random::pick,
        Route::ConsistentHash => consistent_hash::pick,
        Route::Lfu => lfu::pick,
        Route::Lru => lru::pick,
        Route::Failover => failover::pick,
        Route::Busyover => busyover::pick,
        Route::Weight => weight::pick,
        Route::LeastActive => least_active::pick,
        Route::Broadcast => broadcast::pick,
    }
}

/// The question that a router needs answered first; `None` for most.
#[must_use]
pub const fn question(route: Route) -> Option<Question> {
    match route {
        Route::Failover => Some(Question::Online),
        Route::Busyover => Some(Question::Idle),
        Route::First
        | Route::Last
        | Route::Round
        | Route::Random
        | Route::ConsistentHash
        | Route::Lfu
        | Route::Lru
        | Route::Weight
        | Route::LeastActive
        | Route::Broadcast => None,
    }
}

/// Routes a run. A retry goes to another executor than the previous attempt, if another is open.
///
/// ```
/// use rondel_core::route::{Answer, RouteRequest, Candidate, Choice, Memory, HashPoints, pick};
/// use rondel_core::{JobId, Route, Timestamp};
///
/// let all_points = [HashPoints::new("a"), HashPoints::new("b")];
/// let open = |points| Candidate { hashed_name: points, weight: 1, active: 0, refusal: None, answer: Answer::Missing };
/// let candidates: Vec<_> = all_points.iter().map(open).collect();
/// let request = RouteRequest {
///     job: JobId::new(1), hash_key: None, shard: 0, shards: 1, attempt: 1, executor: None,
///     candidates: &candidates, now: Timestamp::EPOCH, draw: 7, is_wait_over: false,
/// };
/// assert_eq!(pick(Route::Last, &request, &mut Memory::default()), Choice::Take(1));
/// // The previous attempt was on b.
/// let again = RouteRequest { attempt: 2, executor: Some("b"), ..request };
/// assert_eq!(pick(Route::Last, &again, &mut Memory::default()), Choice::Take(0));
/// ```
#[must_use]
pub fn pick(route: Route, request: &RouteRequest<'_>, memory: &mut Memory) -> Choice {
    memory.begin(route, request.now);
    let router = router(route);
    if let Some(name) = request.executor.filter(|_| request.attempt > 1 && route != Route::Broadcast) {
        let other_candidates: Vec<Candidate<'_>> =
            request.candidates.iter().map(|candidate| candidate.refused_if_named(name)).collect();
        let among_others = router(&RouteRequest { candidates: &other_candidates, ..*request }, memory);
        if among_others != Choice::NoExecutor {
            return among_others;
        }
    }
    router(request, memory)
}
