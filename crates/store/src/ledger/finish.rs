//! The end of attempts: the only way to a verdict.

use async_trait::async_trait;
use rondel_core::outcome::{After, AfterPolicy, Outcome};
use rondel_core::reason::Detail;
use rondel_core::{ExecutorId, IdGen, JobId, Run, RunId, Timestamp};

use crate::cluster::LeaseToken;
use crate::error::Result;

/// The end of an attempt, from whatever side it comes.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptEnd {
    /// The run.
    pub run: RunId,
    /// The job: rows are locked in the order of their ids, results are written in the job's lane.
    pub job: JobId,
    /// The attempt that ended.
    pub attempt: i32,
    /// How it ended.
    pub outcome: Outcome,
    /// What the job's definition decides about what follows.
    pub policy: AfterPolicy,
    /// The executor, where one had it.
    pub executor: Option<(ExecutorId, String)>,
    /// When the handler began.
    pub started_at: Option<Timestamp>,
    /// When the attempt ended.
    pub finished_at: Timestamp,
    /// One line for users.
    pub message: Option<String>,
    /// What the handler returned, as JSON text.
    pub result: Option<String>,
    /// How the attempt came to its executor, as [`rondel_core::route::trace`] writes it.
    pub trace: Option<String>,
    /// The parameters of the outcome's reason.
    pub detail: Option<Box<Detail>>,
    /// A number from 0 to 1 that spreads the retry.
    pub jitter: f64,
    /// Under which lease a server came to this end by itself: it is refused where the run has another owner by now. `None`
    /// for the result of an executor: any node may store that.
    pub owner: Option<LeaseToken>,
    /// Whether a group of a pump left rows that failed for good, or its last select failed.
    pub unfinished: bool,
}

/// What became of an [`AttemptEnd`].
#[derive(Clone, Debug, PartialEq)]
pub enum Finished {
    /// It is durable, and so is what follows. With another attempt, the run as it waits now.
    Stored(After, Option<Box<Run>>),
    /// It was durable already.
    Duplicate,
    /// A later attempt exists; this one is kept beside it.
    Superseded,
    /// No executor had reported the verdict that stood there; it is the true one now.
    Late,
    /// There is no such run.
    NoSuchRun,
    /// The run is another lease's by now, and its owner decides. Nothing was written.
    NotOwner,
    /// The row cannot be written (a data error that is this row's own); the run is marked failed.
    Unwritable,
}

/// In whose name a batch of ends is written.
#[derive(Clone, Copy, Debug)]
pub struct Finisher<'a> {
    /// The node, whose runs those are that follow from the ends where their job has no living home.
    pub token: LeaseToken,
    /// Makes the ids of the runs that follow.
    pub ids: &'a IdGen,
}

/// What a batch of ends did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ends {
    /// What became of each, in order. Fewer than were asked where a later part of the batch failed: the rest was not written.
    pub answers: Vec<Finished>,
    /// Open runs that follow from them: children that were released. Their homes must hear of them.
    pub released: Vec<Run>,
    /// The earliest next fire that one of them gave to a job with a fixed delay: the scan must look.
    pub due_at: Option<Timestamp>,
    /// Runs that succeeded and await their children from now on: they stay open.
    pub awaiting: Vec<(JobId, RunId)>,
    /// Runs that awaited their children and are over now.
    pub over: Vec<(JobId, RunId)>,
}

impl Ends {
    /// Adds what the next part of the batch did.
    pub fn extend(&mut self, part: Self) {
        self.answers.extend(part.answers);
        self.released.extend(part.released);
        self.due_at = self.due_at.into_iter().chain(part.due_at).min();
        self.awaiting.extend(part.awaiting);
        self.over.extend(part.over);
    }
}

/// Ends attempts.
#[async_trait]
pub trait Finish {
    /// Ends attempts, in one transaction with all that follows from it: the next attempt (the old one moves to the
    /// attempts), the broadcast's count and verdict, the runs of the children, the next fire of a fixed delay, the outbox.
    /// A batch that failed before is cut into several transactions, and the answer may be that of the first ones alone.
    async fn finish(&self, finisher: Finisher<'_>, batch: &[AttemptEnd]) -> Result<Ends>;
}
