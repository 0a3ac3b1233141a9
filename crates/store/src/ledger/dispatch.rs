//! Dispatch of open runs to executors.

use std::sync::Arc;

use async_trait::async_trait;
use rondel_core::reason::ReasonDetail;
use rondel_core::{ExecutorId, Run, RunId, Timestamp};

use crate::cluster::LeaseToken;
use crate::error::Result;

/// A run, and the executor that has it or was chosen for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunAtExecutor {
    pub run: RunId,
    pub attempt: i32,
    pub executor_id: ExecutorId,
    /// The executor's stable name.
    pub executor: String,
    /// When the handler began. For a run that has not begun, when it was sent, or when its executor was chosen.
    pub at: Timestamp,
}

/// A run that was not received, or has not begun, and whose mark is therefore removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkToRemove {
    pub run: RunId,
    pub attempt: i32,
    /// Whether the row continues to name its executor: true for the shard of a broadcast, which goes to that executor only.
    pub keeps_executor: bool,
}

/// Where a run waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitPlace {
    /// In its server's memory, or in flight to an executor.
    Server,
    /// In the queue of an executor that has accepted it. `Some` if the row must name that executor.
    Executor(Option<RunAtExecutor>),
}

/// Why a run that has not begun waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedWait {
    pub run: RunId,
    pub attempt: i32,
    /// What it waits for, with the parameters of its reason.
    pub detail: Arc<ReasonDetail>,
    /// Where it waits.
    pub place: WaitPlace,
}

/// Records how open runs get to their executors.
#[async_trait]
pub trait Dispatch {
    /// Turns waiting runs of the lease `token` that are due by `until` into pending ones, and returns these, the earliest first, at most
    /// `limit`.
    async fn take_waiting(&self, token: LeaseToken, until: Timestamp, limit: u32) -> Result<Vec<Run>>;

    /// Marks pending runs, before they are sent, with the executor that will get them. Returns the runs that were marked: those that had no
    /// mark. Callers mark at-most-once runs, and at-least-once runs whose row records a wait, or named an executor that handed the run
    /// back. Without the mark, the first row would prove that no executor has the run, and the second would not name the new executor.
    async fn mark(&self, token: LeaseToken, runs: &[RunAtExecutor]) -> Result<Vec<RunId>>;

    /// Removes the mark from runs that are known not to have been received, or not to have begun, and makes them pending. This includes
    /// runs, marked or not, that were recorded as running while they waited at their executor. Also removes the executor's name from the
    /// rows, unless [`MarkToRemove::keeps_executor`] is true.
    async fn unmark(&self, token: LeaseToken, marks: &[MarkToRemove]) -> Result<()>;

    /// Returns the claimed but unsent runs of a lease that is being released from `pending` to `waiting`, except the runs `in_hand`, which
    /// are at executors. Removes the marks of the returned runs, so that the next lease treats these runs as never sent. If such a run is
    /// due, its row records a wait, so that the run does not count as missed. Returns how many runs changed.
    async fn shelve(&self, token: LeaseToken, in_hand: &[RunId]) -> Result<u64>;

    /// Records that the handlers of these runs have begun: sets the status `running`, the executor and the instant of the start. This
    /// includes runs that were adopted as `running`. A run whose row has a start already stays unchanged.
    async fn note_running(&self, token: LeaseToken, runs: &[RunAtExecutor]) -> Result<()>;

    /// Stores what pending runs of the lease `token` wait for, at most a few hundred per call. A run that has begun or
    /// ended by now, or is in another attempt, stays unchanged. A run that waits in an executor's queue is marked with
    /// that executor, and becomes `pending` again if it was adopted as `running` without a start.
    async fn note_waits(&self, token: LeaseToken, waits: &[NotedWait]) -> Result<()>;

    /// Sets the number of shards of a broadcast and inserts the shards, all or nothing; `false` if it was expanded already.
    async fn expand(&self, token: LeaseToken, run: RunId, shards: &[Run]) -> Result<bool>;
}
