//! Routers: which of the executors that could take a run gets it.
//!
//! A router is a pure function over what is asked ([`Ask`]: the job, the executors online in the order of their stable
//! names, a number drawn by the caller) and what it remembers of the job ([`Memory`]). Each is a file here and a line in
//! `router`; `docs/ROUTERS.md` has the table for people, and the steps for adding one.

mod answers;
mod broadcast;
mod busyover;
mod consistent_hash;
mod failover;
mod first;
mod last;
mod least_active;
mod lfu;
mod lru;
mod memory;
mod random;
mod round;
mod seat;
#[cfg(test)]
mod tests;
pub mod trace;
mod weight;

use crate::id::JobId;
use crate::spec::Route;
use crate::time::Timestamp;

pub use answers::{Answer, Question};
pub use memory::{Memories, Memory};
pub use seat::Seat;
pub use trace::Refusal;

/// A router. Pure: the same question and memory give the same choice.
type Router = fn(&Ask<'_>, &mut Memory) -> Choice;

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

/// What a router must know of the executors first; nothing for most.
#[must_use]
pub const fn question(route: Route) -> Option<Question> {
    match route {
        Route::Failover => Some(Question::There),
        Route::Busyover => Some(Question::Free),
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

/// An executor that is online in the job's app, has the handler, and meets the job's conditions.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its stable name, by which routers order, hash and remember; never the incarnation.
    pub seat: &'a Seat,
    /// What it declares for [`Route::Weight`].
    pub weight: u32,
    /// How many runs it has in hand.
    pub active: usize,
    /// Why it cannot take this run now; `None` for an open one. Only open ones are picked, the others are remembered.
    pub refusal: Option<Refusal>,
    /// What it said to the route's [`question`].
    pub answer: Answer,
}

/// A run that is to be routed.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Its job.
    pub job: JobId,
    /// Its shard: index …
    pub shard: usize,
    /// … and how many there are; 1 for an unsharded run.
    pub shards: usize,
    /// Counts from 1.
    pub attempt: i32,
    /// The executor that had the attempt before; for the first attempt of a broadcast's shard the one that it is for.
    pub executor: Option<&'a str>,
    /// Everyone who is online and fit, in the order of their names.
    pub candidates: &'a [Candidate<'a>],
    /// The present.
    pub now: Timestamp,
    /// A random number: the same for all shards of a fire, so that they are dealt from one start.
    pub draw: u32,
    /// Whether answers were waited for long enough.
    pub is_over: bool,
}

/// What a router says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This candidate gets the run.
    Take(usize),
    /// Answers are missing.
    Wait,
    /// None of them, now.
    Nobody,
}

impl From<Option<usize>> for Choice {
    fn from(picked: Option<usize>) -> Self {
        picked.map_or(Self::Nobody, Self::Take)
    }
}

/// Routes a run. A retry goes to another executor than the attempt before, where another is open.
///
/// ```
/// use rondel_core::route::{Answer, Ask, Candidate, Choice, Memory, Seat, pick};
/// use rondel_core::{JobId, Route, Timestamp};
///
/// let seats = [Seat::new("a"), Seat::new("b")];
/// let open = |seat| Candidate { seat, weight: 1, active: 0, refusal: None, answer: Answer::None };
/// let candidates: Vec<_> = seats.iter().map(open).collect();
/// let ask = Ask {
///     job: JobId::new(1), shard: 0, shards: 1, attempt: 1, executor: None,
///     candidates: &candidates, now: Timestamp::EPOCH, draw: 7, is_over: false,
/// };
/// assert_eq!(pick(Route::Last, &ask, &mut Memory::default()), Choice::Take(1));
/// // The attempt before was on b.
/// let again = Ask { attempt: 2, executor: Some("b"), ..ask };
/// assert_eq!(pick(Route::Last, &again, &mut Memory::default()), Choice::Take(0));
/// ```
#[must_use]
pub fn pick(route: Route, ask: &Ask<'_>, memory: &mut Memory) -> Choice {
    memory.begin(route, ask.now);
    let router = router(route);
    if let Some(name) = ask.executor.filter(|_| ask.attempt > 1 && route != Route::Broadcast) {
        let others: Vec<Candidate<'_>> = ask.candidates.iter().map(|candidate| candidate.unless_named(name)).collect();
        let among_others = router(&Ask { candidates: &others, ..*ask }, memory);
        if among_others != Choice::Nobody {
            return among_others;
        }
    }
    router(ask, memory)
}

impl Candidate<'_> {
    fn unless_named(&self, name: &str) -> Self {
        let refusal = self.refusal.or_else(|| (self.seat.name() == name).then_some(Refusal::HadItBefore));
        Self { refusal, ..*self }
    }
}

impl Ask<'_> {
    /// The open candidates.
    fn open(&self) -> impl DoubleEndedIterator<Item = usize> {
        let is_open = |(_, candidate): &(usize, &Candidate<'_>)| candidate.refusal.is_none();
        self.candidates.iter().enumerate().filter(is_open).map(|(index, _)| index)
    }

    /// The open candidate that the shard's turn comes to, from a start: shards are dealt over the executors.
    fn dealt(&self, start: u32) -> Option<usize> {
        deal(self.open(), usize::try_from(start).unwrap_or(0).wrapping_add(self.deal()))
    }

    /// How far the shard stands behind the first one of its fire.
    const fn deal(&self) -> usize {
        if self.shards > 1 { self.shard } else { 0 }
    }

    /// A random number that differs between the shards of a fire, and between attempts.
    fn chance(&self) -> u32 {
        let step = u32::try_from(self.deal()).unwrap_or(0).wrapping_add(self.attempt.unsigned_abs().saturating_sub(1));
        self.draw.wrapping_add(step.wrapping_mul(0x9E37_79B9))
    }

    /// The open candidate with the least value; any of them where several have it.
    fn least(&self, value: impl Fn(usize) -> u64) -> Option<usize> {
        let least = self.open().map(&value).min()?;
        let start = usize::try_from(self.chance()).unwrap_or(0);
        deal(self.open().filter(|index| value(*index) == least), start)
    }
}

/// The item that a count comes to which goes round and round.
fn deal(items: impl DoubleEndedIterator<Item = usize>, turn: usize) -> Option<usize> {
    let items: Vec<usize> = items.collect();
    items.get(turn.checked_rem(items.len())?).copied()
}
