//! Open runs on their way to an executor.

use async_trait::async_trait;
use rondel_core::reason::Detail;
use rondel_core::{ExecutorId, Run, RunId, Timestamp};

use crate::cluster::LeaseToken;
use crate::error::Result;

/// A run that is known to be in an executor's hands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InHand {
    /// The run.
    pub run: RunId,
    /// Its attempt.
    pub attempt: i32,
    /// The executor's incarnation.
    pub executor_id: ExecutorId,
    /// The executor's stable name.
    pub executor: String,
    /// When the handler began, or when the run was sent.
    pub at: Timestamp,
}

/// What a pending run waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedWait {
    /// The run.
    pub run: RunId,
    /// Its attempt.
    pub attempt: i32,
    /// What it waits for, with the parameters of its reason.
    pub detail: Box<Detail>,
}

/// Records how open runs get to their executors.
#[async_trait]
pub trait Dispatch {
    /// Own waiting runs due until `until` become pending; answers them, the earliest first.
    async fn take_waiting(&self, token: LeaseToken, until: Timestamp, limit: u32) -> Result<Vec<Run>>;

    /// Marks pending at-most-once runs, before they are sent, with the executor that will get them. Answers those won.
    async fn mark(&self, token: LeaseToken, runs: &[InHand]) -> Result<Vec<RunId>>;

    /// Takes the mark off runs that are known not to have been received, or not to have begun: they are pending, also where they
    /// were noted as running, marked or not, while they waited in their executor's hands.
    async fn unmark(&self, token: LeaseToken, runs: &[(RunId, i32)]) -> Result<()>;

    /// Hands over what a lease that is given back has claimed and not sent: `pending` becomes `waiting`, without a mark, and the
    /// next lease takes it up as never sent. The runs `in_hand` are with executors and stay as they are. Answers how many went.
    async fn shelve(&self, token: LeaseToken, in_hand: &[RunId]) -> Result<u64>;

    /// Notes that these runs are in an executor's hands: `pending` becomes `running`.
    async fn note_running(&self, token: LeaseToken, runs: &[InHand]) -> Result<()>;

    /// Stores what own pending runs wait for, at most a few hundred at once. A run that has gone on since keeps what it has.
    async fn note_waits(&self, token: LeaseToken, waits: &[NotedWait]) -> Result<()>;

    /// Fixes the total of a broadcast and inserts its shards, all or nothing; false where it was expanded already.
    async fn expand(&self, token: LeaseToken, run: RunId, shards: &[Run]) -> Result<bool>;
}
