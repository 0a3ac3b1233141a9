//! Due jobs and runs, from claim to verdict.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use rondel_core::outcome::{After, AfterPolicy, CancelRequest, Outcome};
use rondel_core::reason::Detail;
use rondel_core::run::Attempt;
use rondel_core::{AppId, ExecutorId, IdGen, JobId, NamespaceId, NodeId, Run, RunId, RunStatus, Timestamp};

use crate::Result;
use crate::cluster::{HomeMove, LeaseToken};

/// Earlier attempts of a run that are read at once.
pub const ATTEMPT_COUNT_MAX: u32 = 100;

/// A row of the narrow table that the scan reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueJob {
    /// The job.
    pub job: JobId,
    /// The first fire without a row.
    pub next_fire_at: Timestamp,
    /// The definition that it comes from.
    pub version: i64,
    /// The node that owns the job's open runs; 0 for none yet.
    pub home: NodeId,
    /// Rises at each change of home.
    pub term: i64,
}

/// Which due jobs to read.
#[derive(Clone, Copy, Debug)]
pub struct DueRange {
    /// Fires at or after this …
    pub from: Timestamp,
    /// … and at or before this.
    pub to: Timestamp,
    /// At most so many, the earliest first.
    pub limit: u32,
}

/// What one job gets in a claim.
#[derive(Clone, Debug)]
pub struct ClaimJob {
    /// The row as the scan read it: whoever finds it changed has lost.
    pub seen: DueJob,
    /// Where `next_fire_at` moves to.
    pub next_fire_at: Option<Timestamp>,
    /// The rows of its fires, verdicts of missed spans among them.
    pub runs: Vec<Run>,
    /// The run among them whose end gives the next fire: only of a job with a fixed delay.
    pub follows: Option<RunId>,
}

/// What a claim won.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claimed {
    /// Jobs that this node has now, with their term.
    pub jobs: Vec<(JobId, i64)>,
    /// Runs of those jobs that were not inserted because a row with their key exists already.
    pub existing: Vec<RunId>,
    /// The lease did not hold: nothing was tried.
    pub is_refused: bool,
}

/// Whether a run of a lease that ended then may have been sent under it. A broadcast's row is never sent.
pub(crate) fn may_have_been_sent(run: &Run, ended_at: Timestamp) -> bool {
    run.status == RunStatus::Pending && !run.is_root() && run.due_at <= ended_at
}

/// Of open runs, the oldest first, those that one adoption takes: all that there is of a job, and jobs until that is enough.
/// Part of a job here and part of it there would be two homes.
pub(crate) fn whole_jobs<T, Job: Ord + Copy>(runs: Vec<T>, job_of: impl Fn(&T) -> Job, enough: u32) -> Vec<T> {
    let mut counts: BTreeMap<Job, usize> = BTreeMap::new();
    for run in &runs {
        *counts.entry(job_of(run)).or_default() += 1;
    }
    let (mut taken, mut count) = (BTreeSet::new(), 0);
    for job in runs.iter().map(&job_of) {
        if count < usize::try_from(enough).unwrap_or(usize::MAX) && taken.insert(job) {
            count += counts[&job];
        }
    }
    runs.into_iter().filter(|run| taken.contains(&job_of(run))).collect()
}

/// The lease in whose name a new run of a job stands whose home is this node. `leases` are the ends of the node's lease and
/// of the one before; they are equal once it is fenced, and nobody adopts what stands under the epoch of a fence.
pub(crate) fn lease_of_home(node: NodeId, epoch: i64, leases: (Timestamp, Timestamp)) -> LeaseToken {
    let is_fenced = leases.0 == leases.1;
    LeaseToken { node, epoch: epoch - i64::from(is_fenced) }
}

/// An open run that came to this node from a lease that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopted {
    /// The run, with its new owner.
    pub run: Run,
    /// Whose it was.
    pub from: LeaseToken,
    /// When that lease ended: a run due later cannot have been sent. [`Timestamp::MAX`] where nobody can tell.
    pub from_ended_at: Timestamp,
}

/// The answer to [`adopt`](Ledger::adopt).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adoption {
    /// What was taken over, the oldest first.
    pub runs: Vec<Adopted>,
    /// The dead nodes whose leases are over and fenced: nothing comes to be open under these any more.
    pub fenced: Vec<NodeId>,
    /// This node's own lease does not hold: nothing was looked at, and nobody knows what there is.
    pub is_refused: bool,
}

/// What the tick reads about a run just before it is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunCheck {
    /// The run.
    pub id: RunId,
    /// Where it stands.
    pub status: RunStatus,
    /// Its attempt.
    pub attempt: i32,
    /// The definition that it runs under.
    pub job_version: i64,
    /// Its owner.
    pub owner: LeaseToken,
    /// Who asked to cancel it, if somebody did.
    pub cancel_by: Option<String>,
    /// The term of its job's home; 0 where the job is gone.
    pub term: i64,
}

/// A request to cancel a run that is another node's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CancelElsewhere {
    /// The run.
    pub run: RunId,
    /// Its attempt.
    pub attempt: i32,
    /// Who has it in hand.
    pub executor: ExecutorId,
    /// Who asked.
    pub by: String,
}

/// The name of a limit that jobs of a namespace share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitName {
    /// The tenant.
    pub namespace: NamespaceId,
    /// The key that the jobs name.
    pub key: String,
}

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

/// The end of an attempt, from whatever side it comes.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptEnd {
    /// The run.
    pub run: RunId,
    /// The job: rows are locked in the order of their ids, results are written in the job's lane.
    pub job: JobId,
    /// The attempt that ended.
    pub attempt: i32,
    /// How.
    pub outcome: Outcome,
    /// What the job's definition says about what follows.
    pub policy: AfterPolicy,
    /// The executor, where one had it.
    pub executor: Option<(ExecutorId, String)>,
    /// When the handler began.
    pub started_at: Option<Timestamp>,
    /// When the attempt ended.
    pub finished_at: Timestamp,
    /// One line for people.
    pub message: Option<String>,
    /// What the handler returned, as JSON text.
    pub result: Option<String>,
    /// How the attempt came to its executor, as [`rondel_core::route::trace`] writes it.
    pub trace: Option<String>,
    /// The parameters of the outcome's reason.
    pub detail: Option<Box<Detail>>,
    /// A number from 0 to 1 that spreads the retry.
    pub jitter: f64,
    /// Under which lease a server came to this end by itself: it is none where the run is somebody else's by now. `None`
    /// for what an executor says: any node may store that.
    pub owner: Option<LeaseToken>,
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
    /// The verdict was `unknown`, and is the true one now.
    Late,
    /// There is no such run.
    NoSuchRun,
    /// The run is another lease's by now: whoever has it decides. Nothing was written.
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
    /// What became of each, in order.
    pub answers: Vec<Finished>,
    /// Open runs that follow from them: children that were released. Their homes must hear of them.
    pub released: Vec<Run>,
    /// Whether any of them gave a job with a fixed delay its next fire: the scan must look.
    pub is_due: bool,
    /// Runs that succeeded and await their children from now on: they stay open.
    pub awaiting: Vec<(JobId, RunId)>,
    /// Runs that awaited their children and are over now.
    pub over: Vec<(JobId, RunId)>,
}

impl Ends {
    /// Adds what another part of the batch did.
    pub(crate) fn extend(&mut self, part: Self) {
        self.answers.extend(part.answers);
        self.released.extend(part.released);
        self.is_due |= part.is_due;
        self.awaiting.extend(part.awaiting);
        self.over.extend(part.over);
    }
}

/// What became of a request to cancel.
#[derive(Clone, Debug, PartialEq)]
pub enum CancelAsked {
    /// The request is durable; the owner of the run must hear of it.
    Noted(Box<Run>),
    /// The run has a verdict already.
    Over(RunStatus),
    /// There is no such run.
    NotFound,
}

/// An open run that nobody has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsentRun {
    /// The run.
    pub run: RunId,
    /// Its job.
    pub job: JobId,
    /// When it may start.
    pub due_at: Timestamp,
}

/// What went to other homes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovedJobs {
    /// The jobs, by id.
    pub jobs: Vec<JobId>,
    /// Their open runs, by id.
    pub runs: Vec<RunId>,
}

/// A page of runs, newest first.
#[derive(Clone, Debug, Default)]
pub struct RunQuery {
    /// Only runs of this job.
    pub job: Option<JobId>,
    /// Only runs of these apps: what the caller may see. Of no use together with a broadcast.
    pub within: Option<Vec<AppId>>,
    /// Only runs with one of these; empty for all.
    pub statuses: Vec<RunStatus>,
    /// Only runs of this broadcast.
    pub parent: Option<RunId>,
    /// Only runs after this one in the order of the page.
    pub after: Option<RunId>,
    /// At most so many.
    pub limit: u32,
}

/// Due jobs and runs.
#[async_trait]
pub trait Ledger {
    /// Jobs of these homes (0 among them for jobs without one) whose next fire is in the range, the earliest first.
    async fn due_jobs(&self, homes: &[NodeId], range: DueRange) -> Result<Vec<DueJob>>;

    /// Claims in one transaction: the lease must hold, each job must still be as it was seen, and another node that
    /// it is at home at must be fenced ([`adopt`](Self::adopt)), with nothing of it open in that one's name; its `next_fire_at` moves on, its home becomes this node, its runs are inserted. What another node
    /// took drops out.
    async fn claim(&self, token: LeaseToken, jobs: &[ClaimJob]) -> Result<Claimed>;

    /// Inserts a run that somebody asked for, owned by the home of its job, be it dead (then it is adopted with whatever else
    /// is open of the job), else by `token`, which becomes the home. Answers the run as it is stored; the one that is there already where its key exists.
    async fn request_run(&self, token: LeaseToken, run: Run) -> Result<Run>;

    /// Own waiting runs due until `until` become pending; answers them, the earliest first.
    async fn take_waiting(&self, token: LeaseToken, until: Timestamp, limit: u32) -> Result<Vec<Run>>;

    /// Own pending runs that were due before `before`, the earliest first.
    async fn overdue(&self, token: LeaseToken, before: Timestamp, limit: u32) -> Result<Vec<Run>>;

    /// Own running runs, the earliest first: each is in this node's memory, or is to be asked for.
    async fn running(&self, token: LeaseToken, limit: u32) -> Result<Vec<Run>>;

    /// Takes over open runs whose (node, epoch) is no living lease: this node's own of earlier epochs, and those of
    /// `dead` nodes. The oldest first, of each job all that there is, until they are `enough`; each by an UPDATE guarded by
    /// its old owner. A pending run that was due before that lease ended may have been sent: it becomes `running`, so that
    /// nobody takes it for unsent.
    /// Whether a lease is over is for the database's clock to say: the answer tells of which of the `dead` it is.
    async fn adopt(&self, token: LeaseToken, dead: &[NodeId], enough: u32) -> Result<Adoption>;

    /// Reads what the tick must know of these runs; those that do not exist are left out.
    async fn check_runs(&self, ids: &[RunId]) -> Result<Vec<RunCheck>>;

    /// Runs by id; those that do not exist are left out.
    async fn runs(&self, ids: &[RunId]) -> Result<Vec<Run>>;

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

    /// Ends attempts, in one transaction with all that follows from it: the next attempt (the old one moves to the
    /// attempts), the broadcast's count and verdict, the runs of the children, the next fire of a fixed delay, the outbox.
    async fn finish(&self, finisher: Finisher<'_>, batch: &[AttemptEnd]) -> Result<Ends>;

    /// Notes that somebody wants an open run cancelled.
    async fn ask_cancel(&self, run: RunId, request: CancelRequest<'_>, now: Timestamp) -> Result<CancelAsked>;

    /// The same for several at once, at most a few hundred: those that are over are passed by. Answers how many of them
    /// are open and asked for now, by whoever was first.
    async fn ask_cancels(&self, runs: &[RunId], request: CancelRequest<'_>, now: Timestamp) -> Result<u64>;

    /// Open runs of a job that nobody asked to cancel, in the order of their ids, at most `limit`: those of one planned
    /// instant, or all that the nodes of the cluster look after.
    /// With an app, only runs of that app: a job that moved leaves runs behind.
    async fn open_runs(
        &self,
        job: JobId,
        fire_at: Option<Timestamp>,
        app: Option<AppId>,
        limit: u32,
    ) -> Result<Vec<Run>>;

    /// The nodes that count for these limits, in this order: for one that nobody counts for yet, the node of `token` from
    /// now on. Who adopts a dead node's runs ([`adopt`](Self::adopt)) counts in its place.
    async fn limit_homes(&self, token: LeaseToken, limits: &[LimitName]) -> Result<Vec<NodeId>>;

    /// Gives own runs that were never sent to another living node, and their jobs with them: a job goes with all that is open
    /// of it here, or stays where it is, since a job has one home. It stays where anything of it is open that is not among
    /// `runs`, or that may have been sent. Of a job that is at home there already, just the pending runs go. They wait in
    /// the store, where the other node's scan finds them. Answers which went.
    async fn hand_over(&self, token: LeaseToken, runs: &[RunId], to: NodeId) -> Result<Vec<RunId>>;

    /// The same of whole jobs whose home the node is. A job stays, too, where it has an open run with a later attempt, or one
    /// that is due before `not_before`.
    /// The runs wait in the store, where the other node's scan finds them. Answers the runs that went, and the jobs.
    async fn move_jobs(&self, token: LeaseToken, moves: &[HomeMove], not_before: Timestamp) -> Result<MovedJobs>;

    /// Own open runs that nobody has sent (pending without a mark, or waiting), by id after `after`, at most `limit`.
    async fn unsent(&self, token: LeaseToken, after: RunId, limit: u32) -> Result<Vec<UnsentRun>>;

    /// Jobs that this node is home to, by id after `after`, at most `limit`.
    async fn jobs_at(&self, home: NodeId, after: JobId, limit: u32) -> Result<Vec<JobId>>;

    /// How many jobs that fire a node is home to.
    async fn count_jobs_at(&self, home: NodeId) -> Result<u64>;

    /// Makes jobs that a dead node is home to homeless, where nothing of that node's is open, so that every node sees them;
    /// at most `limit`. The node is one that was fenced ([`adopt`](Self::adopt)). Answers how many they were.
    async fn free_jobs(&self, token: LeaseToken, dead: NodeId, limit: u32) -> Result<u64>;

    /// Own open runs that somebody asked to cancel, with who; each is answered until the run is over.
    async fn cancels(&self, token: LeaseToken) -> Result<Vec<(RunId, String)>>;

    /// Open runs of other nodes that somebody asked to cancel and that a known executor has in hand, by id, at most
    /// `limit`: whoever has a stream to that executor tells it.
    async fn cancels_elsewhere(&self, token: LeaseToken, limit: u32) -> Result<Vec<CancelElsewhere>>;

    /// A page of a namespace's runs, newest first.
    async fn list_runs(&self, namespace: NamespaceId, query: &RunQuery) -> Result<Vec<Run>>;

    /// The runs that name one of these (a few hundred) as the run that they follow from: shards, children, runs retried by
    /// hand. In the order of their ids, at most `limit`.
    async fn runs_below(&self, parents: &[RunId], limit: u32) -> Result<Vec<Run>>;

    /// The rows of a job's own schedule (cause 0; not its shards) whose planned instants lie from `from` to `to`, in order,
    /// at most `limit`; before them the last row with an earlier instant, where it stands for a span that reaches `from`.
    async fn planned_rows(&self, job: JobId, from: Timestamp, to: Timestamp, limit: u32) -> Result<Vec<Run>>;

    /// The attempts of a run that are over, by number: the newest [`ATTEMPT_COUNT_MAX`]. The run has the number of all.
    async fn attempts(&self, run: RunId) -> Result<Vec<Attempt>>;
}
