//! What the dispatcher reacts to.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::outcome::{AfterPolicy, Outcome};
use rondel_core::reason::Detail;
use rondel_core::{AppId, ExecutorId, JobId, NodeId, Reason, Run, RunId, Timestamp};
use rondel_proto::v1;
use rondel_proto::v1::server_message::Body;
use rondel_store::LeaseToken;
use rondel_store::cluster::Session;
use rondel_store::ledger::{AttemptEnd, CancelElsewhere, FenceRequest, Finished, LimitName, RelayedAnswer, RunCheck};

use super::active::Phase;
use super::begin::{Begins, Start};
use super::ready::{Ready, jitter, lost_detail};
use super::step::Step;
use crate::registry::OnlineExecutor;

/// The sending end of an executor's stream.
pub(crate) trait ExecutorStream: fmt::Debug + Send + Sync {
    /// Puts a message on the stream; false where there is no room.
    fn send(&self, body: Body) -> bool;

    /// Ends the stream: another one of the executor takes its place.
    fn end(&self);

    /// Whether it was ended so.
    fn is_ended(&self) -> bool;
}

/// An executor's stream as the parts of the server know it.
#[derive(Clone, Debug)]
pub(crate) struct SessionHandle {
    pub(crate) executor: ExecutorId,
    /// Rises with each stream that is opened to this process.
    pub(crate) number: u64,
    pub(crate) stream: Arc<dyn ExecutorStream>,
}

impl SessionHandle {
    /// Puts a message on the stream, if there is room. One that does not fit is as good as lost on the way: the
    /// protocol repeats what matters.
    pub(crate) fn send(&self, body: Body) -> bool {
        self.stream.send(body)
    }
}

/// Receives the answer to one query of the dispatcher.
pub(crate) struct Answer<T>(Box<dyn FnOnce(T) + Send>);

impl<T> Answer<T> {
    pub(crate) fn new(take: impl FnOnce(T) + Send + 'static) -> Self {
        Self(Box::new(take))
    }

    pub(crate) fn give(self, answer: T) {
        (self.0)(answer);
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

/// What an executor reported to have in hand when it opened its stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) held: HashSet<(RunId, i32)>,
    pub(crate) finished: HashSet<(RunId, i32)>,
    /// Which of those that it holds have begun.
    pub(crate) begins: Begins,
    pub(crate) predecessor: Option<ExecutorId>,
    /// The predecessor and the processes before it, as far as each proved to succeed the one before; the newest first.
    pub(crate) lineage: Arc<[ExecutorId]>,
}

/// An executor's answer to a fence.
#[derive(Clone, Debug)]
pub(crate) struct FenceAnswer {
    /// The newest of the node's leases that it takes no triggers of any more.
    pub(crate) lease: LeaseToken,
    /// Everything that it had in hand then, from whatever node.
    pub(crate) held: HashSet<(RunId, i32)>,
    /// Results that no server had acknowledged then.
    pub(crate) finished: HashSet<(RunId, i32)>,
    /// Which of those that it held had begun then.
    pub(crate) begins: Begins,
}

/// A result as it came from an executor.
#[derive(Clone, Debug)]
pub(crate) struct IncomingResult {
    pub(crate) run: RunId,
    pub(crate) attempt: i32,
    pub(crate) outcome: Outcome,
    pub(crate) message: Option<String>,
    pub(crate) result: Option<String>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Timestamp,
    pub(crate) received_at: Timestamp,
    /// How long no server had answered the executor when it stopped the run for that.
    pub(crate) silent_ms: Option<u64>,
    /// Whether a group of a pump left rows that failed for good, or its last select failed.
    pub(crate) unfinished: bool,
    /// The memory reserved for all results of its message, until their lanes count them.
    pub(crate) memory: Option<Arc<dyn fmt::Debug + Send + Sync>>,
}

impl IncomingResult {
    /// The end of an attempt of this run. No attempt begins or ends before it is due, whatever the executor's clock shows.
    pub(crate) fn into_finish(self, run: &Run, policy: AfterPolicy, executor: (ExecutorId, String)) -> AttemptEnd {
        // From here on its lane counts the memory.
        drop(self.memory);
        let due_at = if self.attempt == run.attempt { run.due_at } else { run.fire_at };
        let earliest = due_at.min(self.received_at);
        let silent = |silent_ms| Detail { silent_ms: Some(silent_ms), ..lost_detail(Some(&executor.1)) };
        let detail = self.silent_ms.map(|silent_ms| Box::new(silent(silent_ms)));
        AttemptEnd {
            run: self.run,
            job: run.job,
            attempt: self.attempt,
            outcome: self.outcome,
            policy,
            executor: Some(executor),
            started_at: self.started_at.map(|at| at.max(earliest)),
            finished_at: self.finished_at.max(earliest),
            message: self.message,
            result: self.result,
            trace: None,
            detail,
            jitter: jitter(self.run, self.attempt),
            owner: None,
            unfinished: self.unfinished,
        }
    }
}

/// What became of triggers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    Accepted,
    /// The handler began.
    Started(Start),
    /// The number is the refused trigger's; none where the run is handed back.
    Refused(v1::RefusedWhy, Option<i64>),
}

/// Everything that the dispatcher reacts to.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most events are batches behind one pointer; a box for each hello would only add an allocation"
)]
pub(crate) enum Event {
    /// Checked runs, to be released at their instants.
    Ready(Vec<Ready>),
    /// An executor opened a stream.
    Joined(SessionHandle, OnlineExecutor, Report),
    /// A stream ended. Once this is answered, nothing is sent on it.
    Left(ExecutorId, u64, Answer<()>),
    /// An executor has ended in order: it has nothing in hand.
    Gone(ExecutorId),
    /// The process of an executor has died, as this host has seen: nothing that it had in hand goes on.
    Died(ExecutorId),
    /// A heartbeat: how many runs the executor has, from all nodes.
    Beat(ExecutorId, usize),
    /// An executor answered a fence, on the stream with this number.
    FenceAnswered(ExecutorId, u64, FenceAnswer),
    /// When other nodes last heard executors without a stream to this node. The map leaves out executors that no node heard lately.
    Heard(Vec<ExecutorId>, BTreeMap<ExecutorId, Timestamp>),
    /// An executor answered a question: its number, and the jobs that it is free for.
    Probed(ExecutorId, i64, BTreeSet<JobId>),
    /// An executor takes no more runs.
    Draining(ExecutorId),
    /// What became of triggers.
    Replies(ExecutorId, Vec<(RunId, i32, Reply)>),
    /// Results, to be made durable.
    Results(SessionHandle, Vec<IncomingResult>),
    /// Ends of attempts that are durable now.
    Settled(Vec<Settled>),
    /// Runs that succeeded and await their children: they keep their place in their gates.
    Awaiting(Vec<(JobId, RunId)>),
    /// Such runs that came from a lease that is over.
    Hold(Vec<Ready>),
    /// Runs that awaited their children and are over now.
    Over(Vec<(JobId, RunId)>),
    /// What became of the shards of a broadcast, by its row.
    Expanded(Box<Run>, Shards),
    /// At-most-once runs that were marked, or not.
    Marked(Vec<(RunId, i32)>, Vec<RunId>),
    /// Runs of leases that are over, which may have been sent; who may have got them; and all leases that are over.
    RollCall(Vec<CalledRun>, Vec<Session>, Vec<LeaseToken>),
    /// Open runs of an ended lease which no executor has in hand: those that have a place at their job's gate keep it.
    Restored(Vec<Ready>),
    /// This lease was taken. What was open before is still to be taken over, job by job; the tick holds back what is due of
    /// such jobs.
    Begun(LeaseToken),
    /// The open runs of these jobs are about to be taken over, and follow.
    Adopting(Vec<JobId>),
    /// The open runs of these jobs are known.
    AdoptedJobs(Vec<JobId>),
    /// All runs that were open when this lease was taken are known, and those of jobs that came since then.
    Adopted(LeaseToken),
    /// Runs that are to be cancelled, each with the user or part of the server that asked.
    Cancels(Vec<(RunId, String)>),
    /// The jobs of these runs were paused or deleted, which is the reason: those end that no executor has.
    Drops(Vec<(RunId, Reason)>),
    /// Runs that were asked to make room for a later one; and who of them, or of their shards, must hear of it.
    Covered(Vec<RunId>, Vec<(RunId, String)>),
    /// Servers that have no stream to these executors ask what they have in hand.
    FencesAsked(Vec<FenceRequest>),
    /// Servers that hear these executors stored their answers.
    FencesRelayed(Vec<RelayedAnswer>),
    /// The nodes that count for limits.
    LimitHomes(Vec<(LimitName, NodeId)>),
    /// Requests to cancel runs of other nodes, which executors that are connected here may have in hand.
    CancelsElsewhere(Vec<CancelElsewhere>),
    /// Runs that are another node's now.
    HandedOver(Vec<RunId>),
    /// Runs that may be another node's now: the database did not answer.
    MaybeHandedOver(Vec<RunId>),
    /// Jobs that were to go to another node: they went, or they stay.
    Handed(BTreeSet<JobId>),
    /// What the store knows of runs that have been in executors' hands for long.
    Looked(Vec<RunId>, Vec<RunCheck>),
    /// Marks were taken off, or the database did not answer.
    Unmarked,
    /// The lease has ended: what is not sent belongs to another lease.
    LeaseLost,
    /// Which runs are in executors' hands, or on their way.
    ListInHand(Answer<Vec<RunId>>),
    /// These apps are stopped: their runs in executors' hands are to end. Repeated with each beat.
    StopApps(Vec<AppId>),
    /// This node is stopped: executors are to go elsewhere. Repeated with each beat.
    Dismiss,
    /// Send nothing more; answer when nothing is in flight.
    Drain(Answer<()>, Duration),
    /// The instant of a run has come, or something that was waited for is over.
    Wake,
    /// A second has passed; these leases of other nodes have ended.
    Round(Vec<LeaseToken>),
    /// All that has come so far is dealt with: what is to be sent goes out.
    Flush,
    /// These runs were put on an executor's stream, each with the number of its trigger.
    Sent(ExecutorId, Vec<(RunId, i64)>),
    /// These runs could not be put on a stream.
    NotSent(Vec<RunId>),
    /// A step found no room.
    StepRefused(Step),
    /// The end of this attempt found no room; the run is in this phase again.
    EndRefused(RunId, i32, Phase),
}

/// A run that may have been sent under a lease that is over.
#[derive(Debug)]
pub(crate) struct CalledRun {
    pub(crate) ready: Ready,
    /// Under which; `None` where that is not known any more.
    pub(crate) from: Option<LeaseToken>,
}

/// What became of a broadcast's shards.
#[derive(Debug)]
pub(crate) struct Shards {
    /// Those that were to be written.
    pub(crate) asked: Vec<Run>,
    /// Those that are open, and this node's; `None` where the database did not answer: it may have what was asked for.
    pub(crate) open: Option<Vec<Run>>,
}

/// The end of an attempt that is durable now.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) run: RunId,
    pub(crate) attempt: i32,
    /// The lease of the server that decided the end; `None` where an executor reported it.
    pub(crate) owner: Option<LeaseToken>,
    pub(crate) finished: Finished,
}
