//! Ends of attempts, and what follows from them: retries, verdicts, runs of child jobs.

use std::sync::Arc;

use async_trait::async_trait;
use rondel_core::outcome::{NextStep, NextStepPolicy, Outcome};
use rondel_core::reason::ReasonDetail;
use rondel_core::{ExecutorId, IdGen, JobId, Run, RunId, Timestamp};

use crate::cluster::LeaseToken;
use crate::error::Result;

/// The end of an attempt, whether an executor reports it or a server decides it.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptEnd {
    pub run: RunId,
    /// The run's job. The caller must not pass ends of one job to two concurrent calls. Within a call, the store locks rows in the order of
    /// their ids.
    pub job: JobId,
    pub attempt: i32,
    /// How it ended.
    pub outcome: Outcome,
    /// The policy of the job's definition for what follows.
    pub policy: NextStepPolicy,
    /// The executor that had the attempt, if any.
    pub executor: Option<(ExecutorId, String)>,
    /// When the handler began.
    pub started_at: Option<Timestamp>,
    /// When the attempt ended.
    pub finished_at: Timestamp,
    /// One line for users.
    pub message: Option<String>,
    /// The handler's return value, as JSON text.
    pub result: Option<String>,
    /// How the attempt was routed to its executor, as [`rondel_core::route::trace`] writes it.
    pub trace: Option<String>,
    /// The parameters of the outcome's reason.
    pub detail: Option<Arc<ReasonDetail>>,
    /// A random number from 0 to 1 that varies the delay of a retry.
    pub jitter: f64,
    /// The lease under which a server decided this end on its own; the end is refused if the run has another owner by now. `None` for an
    /// executor's result, which any node may store.
    pub owner: Option<LeaseToken>,
    /// Whether a server decided this end in the belief that no executor got the attempt, from a row that was not `running`. The end is refused if
    /// the row is `running` by now: the run may have left this node and come back meanwhile, after another node sent it.
    pub is_unsent: bool,
    /// Whether a group of a pump left rows that failed for good, or its last select failed.
    pub is_unfinished: bool,
}

/// Outcome of storing an [`AttemptEnd`].
#[derive(Clone, Debug, PartialEq)]
pub enum EndOutcome {
    /// The end is stored with its consequences. `Some` is the waiting run if another attempt follows.
    Stored(NextStep, Option<Box<Run>>),
    Duplicate,
    /// A later attempt exists; this end is kept with the earlier attempts.
    Superseded,
    /// The stored verdict did not come from an executor's report. This report has replaced it.
    Late,
    /// There is no such run.
    NoSuchRun,
    /// Another lease owns the run by now and decides its end. Nothing was written.
    NotOwner,
    /// The end of an attempt that was never sent, for a run that is `running` by now ([`AttemptEnd::is_unsent`]). Nothing was written: the
    /// executors must be asked for the run.
    UnderWay,
    /// The row cannot be written because of an error in its own data. The run is stored as failed.
    Unwritable,
}

/// The node that writes a batch of ends.
#[derive(Clone, Copy, Debug)]
pub struct Finisher<'a> {
    /// The node's lease. It owns the runs that follow from the ends if their job's home has no node row.
    pub token: LeaseToken,
    /// Makes the ids of the runs that follow.
    pub ids: &'a IdGen,
}

/// Outcome of a batch of ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ends {
    /// One outcome for each end, in the order of the ends. If a later part of the batch failed, that part was not
    /// written, and its outcomes are missing.
    pub outcomes: Vec<EndOutcome>,
    /// Open runs that follow from the ends: children that were released. Their homes must be notified.
    pub released_runs: Vec<Run>,
    /// The earliest next fire that one of the ends set for a job with a fixed delay. The scan must read due jobs by then.
    pub due_at: Option<Timestamp>,
    /// Runs that succeeded and await their children, and therefore stay open. This includes runs whose end was stored before, because the
    /// answer to that call may have been lost or may have gone to another server.
    pub awaiting_runs: Vec<(JobId, RunId)>,
    /// Runs that awaited their children and have now ended.
    pub ended_parents: Vec<(JobId, RunId)>,
}

impl Ends {
    /// Adds the outcome of the next part of the batch.
    pub fn extend(&mut self, part: Self) {
        self.outcomes.extend(part.outcomes);
        self.released_runs.extend(part.released_runs);
        self.due_at = self.due_at.into_iter().chain(part.due_at).min();
        self.awaiting_runs.extend(part.awaiting_runs);
        self.ended_parents.extend(part.ended_parents);
    }
}

#[async_trait]
pub trait Finish {
    /// Ends attempts, in one transaction with everything that follows: the next attempt (the old one moves to the table of attempts), the
    /// broadcast's count and verdict, the runs of the children, the next fire of a fixed delay, the outbox. A batch that failed before is
    /// split into several transactions; the outcome may then cover only the first of them.
    async fn finish(&self, finisher: Finisher<'_>, batch: &[AttemptEnd]) -> Result<Ends>;
}
