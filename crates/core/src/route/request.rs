//! The input of a router, and its choice.

use super::answers::Answer;
use super::hash_points::HashPoints;
use super::trace::Refusal;
use crate::id::JobId;
use crate::time::Timestamp;

/// An executor that is online in the job's app, has the handler, and meets the job's conditions.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its stable name with the hashes of the name: routers order, hash and remember executors by name, never by incarnation.
    pub hashed_name: &'a HashPoints,
    /// What it declares for `Route::Weight`.
    pub weight: u32,
    /// How many runs it has.
    pub active: usize,
    /// Why it cannot take this run now; `None` if it is open. Only open candidates are picked; the others keep their uses in the router's
    /// memory.
    pub refusal: Option<Refusal>,
    /// Its answer to the route's `question`.
    pub answer: Answer,
}

/// A run to route, with the facts that routers use.
#[derive(Clone, Copy, Debug)]
pub struct RouteRequest<'a> {
    pub job: JobId,
    /// The key that is hashed onto the consistent-hash ring; `None` for the job's id.
    pub hash_key: Option<&'a str>,
    /// Index of its shard.
    pub shard: usize,
    /// Number of shards; 1 for an unsharded run.
    pub shards: usize,
    /// Its attempt, from 1.
    pub attempt: i32,
    /// The executor that had the previous attempt; for the first attempt of a broadcast's shard, the executor that the shard is for.
    pub executor: Option<&'a str>,
    /// All executors that are online and eligible, in the order of their names.
    pub candidates: &'a [Candidate<'a>],
    pub now: Timestamp,
    /// A random number. It is the same for all shards of a fire, so that the shards go to the executors in turn, beginning at
    /// one place in the list.
    pub draw: u32,
    /// Whether the wait for answers has ended.
    pub is_wait_over: bool,
}

/// What a router decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This candidate gets the run.
    Take(usize),
    /// Answers are still missing.
    Wait,
    /// No candidate can take the run now.
    NoExecutor,
}

impl From<Option<usize>> for Choice {
    fn from(index: Option<usize>) -> Self {
        index.map_or(Self::NoExecutor, Self::Take)
    }
}

impl Candidate<'_> {
    pub(super) fn refused_if_named(&self, name: &str) -> Self {
        let refusal = self.refusal.or_else(|| (self.hashed_name.name() == name).then_some(Refusal::HadPreviousAttempt));
        Self { refusal, ..*self }
    }
}

impl RouteRequest<'_> {
    /// The open candidates.
    pub(super) fn open(&self) -> impl DoubleEndedIterator<Item = usize> {
        let is_open = |(_, candidate): &(usize, &Candidate<'_>)| candidate.refusal.is_none();
        self.candidates.iter().enumerate().filter(is_open).map(|(index, _)| index)
    }

    /// The open candidate for this shard if the shards of a fire go to the executors in turn, beginning with number `start`.
    pub(super) fn candidate_in_turn(&self, start: u32) -> Option<usize> {
        nth_wrapping(self.open(), usize::try_from(start).unwrap_or(0).wrapping_add(self.shard_offset()))
    }

    /// The shard's offset from the first shard of its fire; 0 for an unsharded run.
    pub(super) const fn shard_offset(&self) -> usize {
        if self.shards > 1 { self.shard } else { 0 }
    }

    /// A random number that differs between the shards of a fire, and between attempts.
    pub(super) fn random_number(&self) -> u32 {
        let step =
            u32::try_from(self.shard_offset()).unwrap_or(0).wrapping_add(self.attempt.unsigned_abs().saturating_sub(1));
        self.draw.wrapping_add(step.wrapping_mul(0x9E37_79B9))
    }

    /// The open candidate with the lowest value; if several candidates have it, a random one of these.
    pub(super) fn least(&self, value: impl Fn(usize) -> u64) -> Option<usize> {
        let least_value = self.open().map(&value).min()?;
        let start = usize::try_from(self.random_number()).unwrap_or(0);
        nth_wrapping(self.open().filter(|index| value(*index) == least_value), start)
    }
}

/// The item at position `turn`, which wraps around; `None` without items.
pub(super) fn nth_wrapping(items: impl DoubleEndedIterator<Item = usize>, turn: usize) -> Option<usize> {
    let items: Vec<usize> = items.collect();
    items.get(turn.checked_rem(items.len())?).copied()
}
