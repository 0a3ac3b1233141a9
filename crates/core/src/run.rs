//! A run: one execution of a fire, and the row of the ledger that holds its verdict.

use std::sync::Arc;

use crate::id::{AppId, ExecutorId, JobId, NamespaceId, NodeId, RunId};
pub use crate::reason::Reason;
use crate::reason::{ReasonDetail, WaitFor};
pub use crate::status::{RunStatus, Trigger};
use crate::time::Timestamp;

/// Shard index of the row that stands for all shards of a fire: this row counts its shards and is never sent itself.
pub const ROOT_SHARD: i32 = -1;

/// Maximum size of a run's result, in bytes of JSON. One less than 64 KiB: MariaDB silently takes the length of a value in a table value
/// constructor modulo 65,536.
pub const RESULT_LEN_MAX: usize = 64 * 1024 - 1;

/// A row of the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Assigned by the node that claimed it; rises with time.
    pub id: RunId,
    pub namespace: NamespaceId,
    pub job: JobId,
    /// The version of the definition that it runs under.
    pub job_version: i64,
    /// The app whose executors may have it.
    pub app: AppId,
    /// The planned instant: one half of the key of its fire.
    pub fire_at: Timestamp,
    /// 0 for the schedule, else the id of the request, backfill or root run: the other half of the key.
    pub cause: i64,
    /// Index of the shard, 0 for an unsharded run, [`ROOT_SHARD`] for the row that stands for all shards.
    pub shard_index: i32,
    /// Number of shards; `None` while a broadcast has not been expanded.
    pub shard_total: Option<i32>,
    /// Why it exists.
    pub trigger: Trigger,
    pub status: RunStatus,
    /// The reason for its status.
    pub reason: Option<Reason>,
    /// The parameters of the reason, and what the run waits or waited for.
    pub detail: Option<Arc<ReasonDetail>>,
    /// Number of the attempt, from 1.
    pub attempt: i32,
    /// When it may start: `fire_at`, or later by jitter, backoff or queueing.
    pub due_at: Timestamp,
    /// The node that owns it while it is open.
    pub node: NodeId,
    /// The epoch under which that node owns it.
    pub node_epoch: i64,
    /// Parameters of this run alone, as JSON text; `None` stands for the job's.
    pub params: Option<String>,
    /// Stable name of the executor that has or had it.
    pub executor: Option<String>,
    /// Incarnation of that executor.
    pub executor_id: Option<ExecutorId>,
    /// The stable name of the only executor that may have it, if its caller named one.
    pub only_executor: Option<String>,
    /// The key that its caller gave it: no other open run of the job has the same.
    pub trigger_key: Option<String>,
    /// When the run was marked as possibly sent. An at-most-once run is marked before it is sent, and so is a run whose row
    /// records a wait. A run that waits in the queue of its executor is marked, too.
    pub marked_at: Option<Timestamp>,
    /// When the handler began, by the server's clock.
    pub started_at: Option<Timestamp>,
    /// When the verdict was made.
    pub finished_at: Option<Timestamp>,
    /// One line for readers: the error, or the handler's summary.
    pub message: Option<String>,
    /// What the handler returned, as JSON text.
    pub result: Option<String>,
    /// How often an executor was lost while it had the run; not counted as retries.
    pub lost_count: i32,
    /// How many shards have no verdict yet; only in the row that stands for all shards.
    pub open_shards: Option<i32>,
    /// How many of the runs that follow from it have no verdict yet; only if the job ends with its children.
    pub open_children: Option<i32>,
    /// The run that this one follows from: for a shard, the row that stands for all shards; else the run of a parent
    /// job, or the run that was retried by hand.
    pub parent: Option<RunId>,
    /// How it was routed, in a short form for readers: which executors were eligible, which refused, what it waited for.
    pub trace: Option<String>,
    /// The caller who asked to cancel it.
    pub cancel_by: Option<String>,
    /// The reason of the verdict if the request to cancel ends the run.
    pub cancel_reason: Option<Reason>,
    /// The last fire of a span; only in a row that stands for a span of skipped fires.
    pub span_end_at: Option<Timestamp>,
    /// How many fires the row stands for.
    pub span_count: i64,
}

/// The job of a run, with its definition and app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunJob {
    pub namespace: NamespaceId,
    pub job: JobId,
    /// The version of the definition that the run runs under.
    pub job_version: i64,
    /// The app whose executors may have the run.
    pub app: AppId,
}

impl Run {
    /// The first attempt at a fire of the job's own schedule: pending, due as planned, unsharded, owned by the node and epoch
    /// `owner`. The caller sets what differs, such as the cause of a run that was requested.
    ///
    /// ```
    /// use rondel_core::run::RunJob;
    /// use rondel_core::{AppId, JobId, NamespaceId, NodeId, Run, RunId, Timestamp, Trigger};
    ///
    /// let of = RunJob { namespace: NamespaceId::new(1), job: JobId::new(2), job_version: 1, app: AppId::new(3) };
    /// let fire = Run::new(RunId::new(9), of, Timestamp::from_secs(60), Trigger::Cron, (NodeId::new(1), 1));
    /// assert_eq!((fire.due_at, fire.attempt, fire.shard_total), (Timestamp::from_secs(60), 1, Some(1)));
    /// let asked_for = Run { cause: 9, trigger: Trigger::Api, ..fire };
    /// assert!(asked_for.for_all_shards().is_root());
    /// ```
    #[must_use]
    pub const fn new(id: RunId, run_job: RunJob, fire_at: Timestamp, trigger: Trigger, owner: (NodeId, i64)) -> Self {
        Self {
            id,
            namespace: run_job.namespace,
            job: run_job.job,
            job_version: run_job.job_version,
            app: run_job.app,
            fire_at,
            cause: 0,
            shard_index: 0,
            shard_total: Some(1),
            trigger,
            status: RunStatus::Pending,
            reason: None,
            detail: None,
            attempt: 1,
            due_at: fire_at,
            node: owner.0,
            node_epoch: owner.1,
            params: None,
            executor: None,
            executor_id: None,
            only_executor: None,
            trigger_key: None,
            marked_at: None,
            started_at: None,
            finished_at: None,
            message: None,
            result: None,
            lost_count: 0,
            open_shards: None,
            open_children: None,
            parent: None,
            trace: None,
            cancel_by: None,
            cancel_reason: None,
            span_end_at: None,
            span_count: 1,
        }
    }

    /// Turns it into the row that stands for all shards of the fire. The fire is not expanded into shards yet.
    #[must_use]
    pub fn for_all_shards(self) -> Self {
        Self { shard_index: ROOT_SHARD, shard_total: None, ..self }
    }

    /// The reason of the request to cancel it; `None` without a request.
    #[must_use]
    pub fn cancel_request_reason(&self) -> Option<Reason> {
        self.cancel_by.as_ref().map(|_| self.cancel_reason.unwrap_or(Reason::Requested))
    }

    /// Whether it is asked to end: by a user, by a later run, or because its job was paused or deleted while the run was queued.
    #[must_use]
    pub const fn is_asked_to_end(&self) -> bool {
        self.cancel_by.is_some() || self.cancel_reason.is_some()
    }

    /// The executor that has or had the current attempt; `None` for a run that waits for its next attempt, although the field `executor` of
    /// such a run still names the executor of the previous attempt, for the router to avoid.
    #[must_use]
    pub fn present_executor(&self) -> Option<&str> {
        self.executor.as_deref().filter(|_| self.executor_id.is_some())
    }

    /// The run as a reader sees it: without an executor if only an earlier attempt had one, and with the status of
    /// [`shown_status`](Self::shown_status).
    #[must_use]
    pub fn for_reader(self) -> Self {
        let (executor, status) = (self.present_executor().map(str::to_owned), self.shown_status());
        Self { executor, status, ..self }
    }

    /// The status as a reader sees it. A run left by a dead server is stored as running until the roll call shows which executor has it, so
    /// that no server sends it before that. Readers see it as pending, because it may never have been sent.
    #[must_use]
    pub fn shown_status(&self) -> RunStatus {
        if self.awaits_roll_call() { RunStatus::Pending } else { self.status }
    }

    /// Whether its server died before it recorded the run as running, and it is not known yet whether an executor has it.
    #[must_use]
    pub fn awaits_roll_call(&self) -> bool {
        self.status == RunStatus::Running && self.started_at.is_none() && self.waits_for() == Some(WaitFor::RollCall)
    }

    /// What it waits for, or waited for, according to its row.
    #[must_use]
    pub fn waits_for(&self) -> Option<WaitFor> {
        self.detail.as_ref().and_then(|detail| detail.waits_for)
    }

    /// Whether its row records that it waits for its turn, a limit or an executor. Such a run is marked before it is sent: without the
    /// mark, the row proves that no executor has it. Shards are left out, because a mark overwrites the executor that a shard is meant for.
    #[must_use]
    pub fn has_recorded_wait(&self) -> bool {
        let is_whole = self.shard_total.is_none_or(|total| total <= 1) && !self.is_root();
        is_whole
            && match self.waits_for() {
                Some(WaitFor::Run | WaitFor::Limit | WaitFor::Executor | WaitFor::Slot | WaitFor::App) => true,
                Some(WaitFor::Answer | WaitFor::RollCall) | None => false,
            }
    }

    /// Whether its own work is done, but it ends only when the runs that follow from it have ended. No executor has such a run.
    #[must_use]
    pub fn awaits_children(&self) -> bool {
        self.status == RunStatus::Running && self.open_children.is_some()
    }

    /// Whether this row stands for all shards of its fire.
    #[must_use]
    pub const fn is_root(&self) -> bool {
        self.shard_index == ROOT_SHARD
    }

    /// Whether it is one of several shards of its fire.
    #[must_use]
    pub fn is_shard(&self) -> bool {
        !self.is_root() && self.shard_total.is_some_and(|total| total > 1)
    }

    /// Its reason, if a sentence can explain it. `None` if the row of a broadcast has a reason from its shards that
    /// needs parameters: only the rows of the shards have them.
    #[must_use]
    pub fn reason_in_words(&self) -> Option<Reason> {
        let is_folded = self.is_root() && self.detail.is_none() && self.message.is_some();
        self.reason.filter(|reason| !(is_folded && matches!(reason, Reason::NoExecutor | Reason::Expired)))
    }
}

/// An ended attempt that was followed by another one.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// Counts from 1.
    pub attempt: i32,
    /// How it ended.
    pub status: RunStatus,
    /// Why the next one exists.
    pub reason: Option<Reason>,
    /// The parameters of that reason.
    pub detail: Option<Arc<ReasonDetail>>,
    /// The executor that had it.
    pub executor: Option<String>,
    /// Incarnation of that executor.
    pub executor_id: Option<ExecutorId>,
    /// When its handler began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Its error.
    pub message: Option<String>,
}

impl Attempt {
    /// Whether its handler began, or may have begun.
    #[must_use]
    pub fn may_have_begun(&self) -> bool {
        attempt_may_have_begun(self.status, self.reason)
    }
}

/// Whether the handler of an attempt that ended with this status began, or may have begun. `reason` is why another attempt followed: an
/// attempt that the executor never received is known not to have begun.
#[must_use]
pub fn attempt_may_have_begun(status: RunStatus, reason: Option<Reason>) -> bool {
    status != RunStatus::Unknown || reason.is_some_and(|reason| reason != Reason::NotReceived)
}
