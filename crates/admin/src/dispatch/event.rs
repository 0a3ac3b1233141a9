//! The events that the dispatcher reacts to.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::outcome::{NextStepPolicy, Outcome};
use rondel_core::reason::ReasonDetail;
use rondel_core::{AppId, ExecutorId, JobId, NodeId, Reason, Run, RunId, Timestamp};
use rondel_proto::v1;
use rondel_proto::v1::server_message::Body;
use rondel_store::LeaseToken;
use rondel_store::cluster::Session;
use rondel_store::ledger::{AttemptEnd, CancelElsewhere, EndOutcome, FenceRequest, LimitName, RelayedAnswer, RunCheck};

use super::active::{Phase, not_before_due};
use super::ready::{ReadyRun, jitter, lost_detail};
use super::starts::{Start, StartReports};
use super::step::Step;
use crate::registry::OnlineExecutor;

/// The sending end of an executor's stream.
pub(crate) trait ExecutorStream: fmt::Debug + Send + Sync {
    /// Puts a message on the stream; false if there is no room.
    fn send(&self, body: Body) -> bool;

    /// Ends the stream. The executor opens another stream, or has already opened it.
    fn end(&self);

    /// Whether [`end`](Self::end) was called.
    fn is_ended(&self) -> bool;
}

/// A handle of an executor's stream, for all parts of the server.
#[derive(Clone, Debug)]
pub(crate) struct SessionHandle {
    pub(crate) executor: ExecutorId,
    /// The number of the stream in this process; it rises with each stream that is opened.
    pub(crate) number: u64,
    /// The number of the stream's hello among all hellos that its executor has sent; 0 if the executor does not count them.
    pub(crate) hello_number: u64,
    pub(crate) stream: Arc<dyn ExecutorStream>,
}

impl SessionHandle {
    /// Puts a message on the stream; false if there is no room. A message that does not fit counts as lost in transit: the protocol repeats
    /// messages that must arrive.
    pub(crate) fn send(&self, body: Body) -> bool {
        self.stream.send(body)
    }

    /// Whether this stream is newer than another stream of the same executor. Only the executor knows the order in which it opened its streams: a
    /// server that was suspended may accept them in any order.
    pub(crate) fn is_newer_than(&self, other: &Self) -> bool {
        (self.hello_number, self.number) > (other.hello_number, other.number)
    }
}

/// Receives the dispatcher's answer to one query.
pub(crate) struct Responder<T>(Box<dyn FnOnce(T) + Send>);

impl<T> Responder<T> {
    pub(crate) fn new(take: impl FnOnce(T) + Send + 'static) -> Self {
        Self(Box::new(take))
    }

    pub(crate) fn respond(self, answer: T) {
        (self.0)(answer);
    }
}

impl<T> fmt::Debug for Responder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Responder")
    }
}

/// The attempts that an executor reported when it opened its stream: those that it holds, and those whose results it still has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) held_runs: HashSet<(RunId, i32)>,
    pub(crate) finished_runs: HashSet<(RunId, i32)>,
    /// Which of the held attempts have begun.
    pub(crate) starts: StartReports,
    /// The executor's previous process, as its hello proves; `None` if the hello proves none.
    pub(crate) predecessor: Option<ExecutorId>,
    /// The processes whose results the executor may report: its predecessors, the newest first, and then their other successors (siblings).
    pub(crate) lineage: Arc<[ExecutorId]>,
}

/// An executor's answer to a fence.
#[derive(Clone, Debug)]
pub(crate) struct FenceAnswer {
    /// The newest lease of the fenced node whose triggers the executor refuses.
    pub(crate) lease: LeaseToken,
    /// All attempts that the executor had when it answered, from any node.
    pub(crate) held_runs: HashSet<(RunId, i32)>,
    /// Attempts whose results no server had acknowledged when it answered.
    pub(crate) finished_runs: HashSet<(RunId, i32)>,
    /// Which of the held attempts had begun when it answered.
    pub(crate) starts: StartReports,
}

/// A result as it came from an executor.
#[derive(Clone, Debug)]
pub(crate) struct IncomingResult {
    pub(crate) run: RunId,
    pub(crate) attempt: i32,
    pub(crate) outcome: Outcome,
    pub(crate) message: Option<String>,
    /// The JSON that the handler returned.
    pub(crate) result: Option<String>,
    /// When the handler began, as the executor reports it; `None` if it reports no instant.
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Timestamp,
    pub(crate) received_at: Timestamp,
    /// For how long no server had answered the executor, if it stopped the run for that reason.
    pub(crate) silent_ms: Option<u64>,
    /// Whether the executor was shutting down and handed the run back.
    pub(crate) is_shutting_down: bool,
    /// Whether a group of a pump left rows that failed for good, or its last select failed.
    pub(crate) is_unfinished: bool,
    /// The memory reserved for all results of its message, until their lanes count that memory.
    pub(crate) memory: Option<Arc<dyn fmt::Debug + Send + Sync>>,
}

impl IncomingResult {
    /// Converts the result to the end of an attempt of this run. Limits the reported instants to the time in which the attempt can have run, by
    /// [`not_before_due`].
    pub(crate) fn into_attempt_end(
        self,
        run: &Run,
        policy: NextStepPolicy,
        executor: (ExecutorId, String),
    ) -> AttemptEnd {
        // From here on the result's lane counts the memory.
        drop(self.memory);
        let due_at = if self.attempt == run.attempt { run.due_at } else { run.fire_at };
        let bounded_instant = |at| not_before_due(at, due_at, self.received_at);
        let (silent_ms, shutting_down) = (self.silent_ms, self.is_shutting_down);
        let detail = (silent_ms.is_some() || shutting_down)
            .then(|| Arc::new(ReasonDetail { silent_ms, shutting_down, ..lost_detail(Some(&executor.1)) }));
        AttemptEnd {
            run: self.run,
            job: run.job,
            attempt: self.attempt,
            outcome: self.outcome,
            policy,
            executor: Some(executor),
            started_at: self.started_at.map(bounded_instant),
            finished_at: bounded_instant(self.finished_at),
            message: self.message,
            result: self.result,
            trace: None,
            detail,
            jitter: jitter(self.run, self.attempt),
            owner: None,
            is_unsent: false,
            is_unfinished: self.is_unfinished,
        }
    }
}

/// An executor's reply to a trigger.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    Accepted,
    /// The handler began.
    Started(Start),
    /// Why the executor refuses the run, and the number of the refused trigger; `None` if the executor hands the run back.
    Refused(v1::RefusedWhy, Option<i64>),
}

/// Everything that the dispatcher reacts to.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most events are batches behind one pointer; a box for each hello would only add an allocation"
)]
pub(crate) enum Event {
    /// Runs that the tick has read and checked, to be released at their instants.
    Ready(Vec<ReadyRun>),
    /// An executor opened a stream.
    Joined(SessionHandle, OnlineExecutor, Report),
    /// The new, complete [lineage](Report::lineage) of this stream's executor: a process that belongs to it was stored after the hello was read.
    LineageGrew(SessionHandle, Arc<[ExecutorId]>),
    /// The stream of an executor with this number ended. Once this event is answered, nothing is sent on the stream.
    StreamEnded(ExecutorId, u64, Responder<()>),
    /// An executor has shut down cleanly, and has no runs.
    ExecutorShutDown(ExecutorId),
    /// The process of an executor on this host has died: none of its runs continues.
    Died(ExecutorId),
    /// A heartbeat: how many runs the executor has, from all nodes.
    Beat(ExecutorId, usize),
    /// An executor answered a fence, on the stream with this number.
    FenceAnswered(ExecutorId, u64, FenceAnswer),
    /// When other nodes last heard these executors, which have no stream to this node. Executors that no node heard recently are not in the
    /// map.
    Heard(Vec<ExecutorId>, BTreeMap<ExecutorId, Timestamp>),
    /// An executor answered the question with this number: the jobs that it is free for.
    Probed(ExecutorId, i64, BTreeSet<JobId>),
    /// An executor takes no more runs.
    Draining(ExecutorId),
    /// Replies of an executor to triggers.
    Replies(ExecutorId, Vec<(RunId, i32, Reply)>),
    /// Results, to be made durable.
    Results(SessionHandle, Vec<IncomingResult>),
    /// Ends of attempts that are durable now.
    Settled(Vec<SettledAttempt>),
    /// Runs that succeeded and await their children: they keep their places at their gates.
    Awaiting(Vec<(JobId, RunId)>),
    /// Adopted runs that await their children: they get places at their gates.
    AdoptedAwaiting(Vec<ReadyRun>),
    /// Runs that awaited their children and have ended.
    AwaitingEnded(Vec<(JobId, RunId)>),
    /// The outcome of storing the shards of this broadcast.
    Expanded(Box<Run>, Shards),
    /// Runs that were to be marked before they are sent, and those of them that the store has marked.
    Marked(Vec<(RunId, i32)>, Vec<RunId>),
    /// Runs of ended leases that may have been sent; the sessions of executors that may have got them; and the ended leases under which they may
    /// have been sent.
    RollCall(Vec<RollCallRun>, Vec<Session>, Vec<LeaseToken>),
    /// Runs that were taken over under this lease, which ended before their roll call could begin.
    RollCallDropped(LeaseToken, Vec<RunId>),
    /// Open runs of an ended lease that no executor has in hand. Those that have begun get back their places at their job's gate.
    Restored(Vec<ReadyRun>),
    /// This lease was taken. The runs that were open before are still to be taken over, job by job; the tick holds back due runs of those
    /// jobs.
    LeaseBegun(LeaseToken),
    /// The open runs of these jobs are about to be taken over; the events with these runs follow. If the list is empty, leases are about to be
    /// fenced, or may have been, and it is not known yet which jobs have runs under them.
    Adopting(Vec<JobId>),
    /// The open runs of these jobs are known.
    AdoptedJobs(Vec<JobId>),
    /// All open runs are known: those from before this lease was taken, and those of jobs that have come to this node since.
    AllAdopted(LeaseToken),
    /// Runs that are to be cancelled, each with the user or part of the server that asked.
    Cancels(Vec<(RunId, String)>),
    /// Runs that are to end unless an executor has them, each with the reason: its job was paused or deleted.
    Drops(Vec<(RunId, Reason)>),
    /// Runs that were durably asked to make room for a later run, and the cancel requests to deliver.
    Covered(Vec<RunId>, Vec<(RunId, String)>),
    /// Servers without a stream to these executors ask which runs the executors have.
    FencesAsked(Vec<FenceRequest>),
    /// Executors' answers that other servers have stored for this server.
    FencesRelayed(Vec<RelayedAnswer>),
    /// The home of each limit, as read under this lease: the node that counts the runs of the limit.
    LimitHomes(LeaseToken, Vec<(LimitName, NodeId)>),
    /// This node is to keep no jobs: it gives away the limits that it counts. Repeated with each beat.
    GiveLimits,
    /// Requests to cancel runs of other nodes that executors connected here may have.
    CancelsElsewhere(Vec<CancelElsewhere>),
    /// Runs that belong to another node now.
    HandedOver(Vec<RunId>),
    /// Runs that may belong to another node now: the database did not answer.
    MaybeHandedOver(Vec<RunId>),
    /// The handover of these jobs has ended: they went to another node, or they stay.
    HandoverEnded(BTreeSet<JobId>),
    /// The answer to [`Step::CheckRows`]: the runs that were asked about, and their rows.
    RowsChecked(Vec<RunId>, Vec<RunCheck>),
    /// Marks were removed, or the database did not answer.
    Unmarked,
    /// The lease has ended: runs that were not sent are left to the next lease holder.
    LeaseLost,
    /// Asks which runs executors have, or are about to get.
    ListInHand(Responder<Vec<RunId>>),
    /// These apps are stopped: their runs at executors are to end. Repeated with each beat.
    StopApps(Vec<AppId>),
    /// This node is stopped: executors are to connect to other nodes. Repeated with each beat.
    Dismiss,
    /// Send nothing more, announce this grace to the executors, and answer when nothing is in flight.
    Drain(Responder<()>, Duration),
    /// The instant of a run has come, or a wait has ended.
    Wake,
    /// A second has passed; these leases of other nodes have ended.
    Round(Vec<LeaseToken>),
    /// All events so far are handled: marks, triggers and questions go out.
    Flush,
    /// These runs were put on an executor's stream, each with the number of its trigger.
    Sent(ExecutorId, Vec<(RunId, i64)>),
    /// These runs could not be put on a stream.
    NotSent(Vec<RunId>),
    /// The queue had no room for this step.
    StepRefused(Step),
    /// The lane had no room for the end of this attempt; the run returns to this phase.
    EndRefused(RunId, i32, Phase),
}

/// A run that may have been sent under an ended lease.
#[derive(Debug)]
pub(crate) struct RollCallRun {
    pub(crate) ready: ReadyRun,
    /// The lease under which it may have been sent; `None` if that is no longer known.
    pub(crate) sent_under: Option<LeaseToken>,
}

/// The outcome of storing a broadcast's shards.
#[derive(Debug)]
pub(crate) struct Shards {
    /// The shards that were to be written.
    pub(crate) requested_shards: Vec<Run>,
    /// The open shards that belong to this node; `None` if the database did not answer: it may have stored the shards.
    pub(crate) open_shards: Option<Vec<Run>>,
}

/// The end of an attempt that is durable now.
#[derive(Debug)]
pub(crate) struct SettledAttempt {
    pub(crate) run: RunId,
    pub(crate) attempt: i32,
    /// The lease of the server that decided the end; `None` if an executor reported the end.
    pub(crate) owner: Option<LeaseToken>,
    pub(crate) end_outcome: EndOutcome,
}
