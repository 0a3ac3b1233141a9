//! Requests to cancel open runs.

use async_trait::async_trait;
use rondel_core::outcome::CancelRequest;
use rondel_core::{AppId, ExecutorId, JobId, Reason, Run, RunId, RunStatus, Timestamp};

use crate::cluster::LeaseToken;
use crate::error::Result;

/// Outcome of a request to cancel.
#[derive(Clone, Debug, PartialEq)]
pub enum CancelOutcome {
    /// The request is stored; the owner of the run must be notified.
    Requested(Box<Run>),
    /// The run has a verdict already.
    AlreadyEnded(RunStatus),
    /// There is no such run.
    NotFound,
}

/// A request to cancel a run that another node owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CancelElsewhere {
    pub run: RunId,
    pub attempt: i32,
    pub executor: ExecutorId,
    /// The caller that requested it.
    pub by: String,
}

/// Stores requests to cancel, and finds runs with such a request.
#[async_trait]
pub trait Cancel {
    /// Records a request to cancel an open run. It replaces an earlier one only as [`CancelRequest::replaces`] decides.
    async fn ask_cancel(&self, run: RunId, request: CancelRequest<'_>, now: Timestamp) -> Result<CancelOutcome>;

    /// Records a request to cancel several runs in one call, at most a few hundred. Ended runs are skipped. Returns how many of `runs` are
    /// open and have a request now. A run that already had a request keeps it, unless [`CancelRequest::replaces`] decides otherwise.
    async fn ask_cancels(&self, runs: &[RunId], request: CancelRequest<'_>, now: Timestamp) -> Result<u64>;

    /// Records that these runs must end unless an executor has them, because their job was paused or deleted (the reason of `request`). A
    /// later request to cancel a run replaces this one. Runs that have ended or already have a request to cancel stay unchanged.
    async fn ask_drops(&self, runs: &[RunId], request: CancelRequest<'_>, now: Timestamp) -> Result<()>;

    /// Open runs of the lease `token` that must end unless an executor has them, each with the reason. Only runs with ids above `after`,
    /// sorted by id, at most `limit`. Every call returns such a run until it has ended.
    async fn drops(&self, token: LeaseToken, after: RunId, limit: u32) -> Result<Vec<(RunId, Reason)>>;

    /// Open runs of the lease `token` with a request to cancel, each with the caller of the request. Every call returns such a run until it
    /// has ended.
    async fn cancels(&self, token: LeaseToken) -> Result<Vec<(RunId, String)>>;

    /// Open runs under other leases that have a request to cancel and whose executor the store knows. Only runs with ids above `after`,
    /// sorted by id, at most `limit`. A node with a stream to such an executor sends it the cancel.
    async fn cancels_elsewhere(&self, token: LeaseToken, after: RunId, limit: u32) -> Result<Vec<CancelElsewhere>>;

    /// The open runs of a job that a user's request to cancel applies to: runs without a request to cancel (a request of
    /// [`ask_drops`](Self::ask_drops) does not count), and runs whose request has a reason that ends a pump ([`Reason::ends_pump`]). Runs
    /// under leases that have ended are included. Sorted by id, at most `limit`. With `fire_at`, only runs planned for that instant. With
    /// `app`, only runs of that app, because a job that moved to another app can have open runs in the earlier app.
    async fn open_runs(
        &self,
        job: JobId,
        fire_at: Option<Timestamp>,
        app: Option<AppId>,
        limit: u32,
    ) -> Result<Vec<Run>>;
}
