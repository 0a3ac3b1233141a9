//! From a run that is due to its verdict: who gets it, in which order, and what comes back.
//!
//! One loop ([`DispatchLoop`]) owns everything that is known of open runs in memory; nothing is shared, nothing is
//! locked, and it never waits for the database. What must be durable before the next step goes through
//! [`steps`], what ends goes through [`results`], and both answer with an [`Event`].

mod answers;
mod executors;
mod fences;
pub(crate) mod foreign;
mod gates;
mod hand_over;
mod limits;
mod look;
mod messages;
mod overdue;
mod parked;
mod place;
mod probes;
mod reporter;
pub(crate) mod results;
mod rollcall;
mod round;
mod routing;
mod run_loop;
mod seek;
mod state;
pub(crate) mod steps;
mod streams;
mod switches;
#[cfg(test)]
pub(crate) mod tests_support;
mod turns;
mod verdicts;
pub(crate) mod waits;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rondel_core::misfire::{LateFire, runs_late};
use rondel_core::outcome::Outcome;
use rondel_core::{AppId, ExecutorId, JobId, NodeId, Run, RunId, Timestamp, TraceParent, Trigger};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1;
use rondel_store::LeaseToken;
use rondel_store::cluster::Session;
use rondel_store::ledger::{AttemptEnd, CancelElsewhere, Finished, LimitName, RunCheck};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::definitions::Compiled;
use crate::registry::OnlineExecutor;

pub(crate) use messages::{fence, incoming};
pub(crate) use run_loop::DispatchLoop;

/// A run that comes out of the ring so long after its instant was late before it had to wait for anybody.
const CAME_LATE: Duration = Duration::from_secs(1);

/// A run with the definition that it runs under.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    pub(crate) run: Run,
    pub(crate) definition: Arc<Compiled>,
    /// When an executor was first looked for.
    pub(crate) tried_at: Option<Timestamp>,
    /// It came here late: until it is sent, the misfire policy holds for it. One that came in time waits as long as its
    /// job says.
    pub(crate) came_late: bool,
    /// Since when its queue time counts, once this server has taken it up.
    pub(crate) queued_at: Option<Timestamp>,
    /// This attempt was put on a stream before.
    pub(crate) was_sent: bool,
    /// The span that asked for its fire, if somebody did in a trace.
    pub(crate) trace: Option<TraceParent>,
    /// The term of the job's home, as it was when the run was last looked at.
    pub(crate) term: i64,
}

impl Ready {
    pub(crate) const fn new(run: Run, definition: Arc<Compiled>) -> Self {
        Self {
            run,
            definition,
            tried_at: None,
            came_late: false,
            queued_at: None,
            was_sent: false,
            trace: None,
            term: 0,
        }
    }

    /// The same as it comes from the ring at an instant.
    pub(crate) fn released(run: Run, definition: Arc<Compiled>, now: Timestamp) -> Self {
        let ready = Self::new(run, definition);
        let came_late = ready.run.due_at + CAME_LATE < now && !ready.is_queued_in_time(now);
        Self { came_late, ..ready }
    }

    /// Whether a server had it in time and noted what it waits for, before it left or died, and its queue time is not over: it
    /// was not missed.
    fn is_queued_in_time(&self, now: Timestamp) -> bool {
        let has_waited = self.run.detail.as_ref().is_some_and(|detail| detail.waits_for.is_some());
        has_waited && now < self.run.due_at + self.definition.job.queue_timeout
    }

    /// The same as the dispatcher takes it up at its instant. Queue time counts from then on, or from when this server came to it
    /// where that was late: no executor is to blame for a server that was away. A shard counts with its broadcast.
    pub(crate) fn taken_up(self, now: Timestamp) -> Self {
        let is_late = self.run.due_at + CAME_LATE < now && !self.is_queued_in_time(now);
        let queued_at = self.queued_at.unwrap_or(if is_late { now } else { self.run.due_at });
        Self { queued_at: Some(queued_at), ..self }
    }

    /// When it has been queued for as long as its job lets it.
    pub(crate) fn waits_until(&self) -> Timestamp {
        self.queued_at.unwrap_or(self.run.due_at) + self.definition.job.queue_timeout
    }

    /// Whether it has been queued for too long to begin.
    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        self.waits_until() <= now && !mutant::on(Mutant::QueueTimeFromTurn)
    }

    /// Whether this is the first attempt of a missed fire that runs late. While an executor is online, such runs queue without a
    /// time limit.
    pub(crate) fn is_made_up(&self) -> bool {
        matches!(self.run.trigger, Trigger::Misfire | Trigger::Backfill) && self.run.attempt == 1
    }

    /// The lease under which this node took the run: what it is sent under.
    pub(crate) const fn token(&self) -> LeaseToken {
        LeaseToken { node: self.run.node, epoch: self.run.node_epoch }
    }

    /// Whether the misfire policy passes it over: it is from the schedule, was never sent, and it or this server is late.
    pub(crate) fn is_missed(&self, now: Timestamp) -> bool {
        let run = &self.run;
        // A shard is under way with its broadcast, which was judged before it was cut.
        let from_schedule = run.cause == 0 && run.attempt == 1 && run.parent.is_none() && run.marked_at.is_none();
        let fire = LateFire { fire_at: run.fire_at, due_at: run.due_at };
        let is_judged = from_schedule && !self.is_queued_in_time(now) && !mutant::on(Mutant::NoMisfireAtTick);
        is_judged && !runs_late(&self.definition.job, self.definition.anchor, fire, now)
    }
}

/// The sending end of an executor's stream.
#[derive(Clone, Debug)]
pub(crate) struct SessionHandle {
    pub(crate) executor: ExecutorId,
    /// Rises with each stream that is opened to this process.
    pub(crate) number: u64,
    pub(crate) sender: mpsc::Sender<v1::ServerMessage>,
    /// Another stream of the executor has taken this one's place.
    pub(crate) replaced: CancellationToken,
}

impl SessionHandle {
    /// Puts a message on the stream, if there is room. One that does not fit is as good as lost on the way: the
    /// protocol repeats what matters.
    pub(crate) fn send(&self, body: v1::server_message::Body) -> bool {
        self.sender.try_send(v1::ServerMessage { body: Some(body) }).is_ok()
    }
}

/// What an executor said it has in hand when it opened its stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) held: HashSet<(RunId, i32)>,
    pub(crate) finished: HashSet<(RunId, i32)>,
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
    /// Results that nobody had acknowledged then.
    pub(crate) finished: HashSet<(RunId, i32)>,
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
    /// Its share, with the others of its message, of what results may take before their lanes take them up.
    pub(crate) memory: Option<Arc<OwnedSemaphorePermit>>,
}

/// What became of triggers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    Accepted,
    Started,
    /// The number is the refused trigger's; none where the run is handed back.
    Refused(v1::RefusedWhy, Option<i64>),
}

/// Everything that the dispatcher is told.
#[derive(Debug)]
pub(crate) enum Event {
    /// Checked runs, to be released at their instants.
    Ready(Vec<Ready>),
    /// An executor opened a stream.
    Joined(SessionHandle, OnlineExecutor, Report),
    /// A stream ended.
    Left(ExecutorId, u64),
    /// An executor has ended in order: it has nothing in hand.
    Gone(ExecutorId),
    /// The process of an executor has died, as this host has seen: nothing that it had in hand goes on.
    Died(ExecutorId),
    /// A heartbeat: how many runs the executor has, from all nodes.
    Beat(ExecutorId, usize),
    /// An executor answered a fence, on the stream with this number.
    FenceAnswered(ExecutorId, u64, FenceAnswer),
    /// When other nodes last heard executors that are not connected here; where none is told, nobody did of late.
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
    Expanded(Run, Shards),
    /// At-most-once runs that were marked, or not.
    Marked(Vec<(RunId, i32)>, Vec<RunId>),
    /// Runs of leases that are over, which may have been sent; who may have got them; and all leases that are over.
    RollCall(Vec<CalledRun>, Vec<Session>, Vec<LeaseToken>),
    /// Open runs of a lease that is over which nobody has in hand: what of them has a place at its job's gate keeps it.
    Restored(Vec<Ready>),
    /// Jobs of other nodes come to this one: what is open of them is told next.
    Adopting,
    /// Everything that was open when this lease was taken has been told, and of jobs that came since then.
    Adopted(LeaseToken),
    /// Runs that somebody asked to cancel, with who.
    Cancels(Vec<(RunId, String)>),
    /// Runs that were asked to make room for a later one; and who of them, or of their shards, must hear of it.
    Covered(Vec<RunId>, Vec<(RunId, String)>),
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
    /// The lease is gone: what is not sent is somebody else's.
    LeaseLost,
    /// Which runs are in executors' hands, or on their way.
    ListInHand(oneshot::Sender<Vec<RunId>>),
    /// These apps are stopped: their runs in executors' hands are to end. Told with each beat.
    StopApps(Vec<AppId>),
    /// This node is stopped: executors are to go elsewhere. Told with each beat.
    Dismiss,
    /// Send nothing more; answer when nothing is in flight.
    Drain(oneshot::Sender<()>, Duration),
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
    /// Under which lease the server came to it by itself.
    pub(crate) owner: Option<LeaseToken>,
    pub(crate) finished: Finished,
}

/// The end of a run that no executor has.
pub(crate) fn finish_unsent(
    run: &Run,
    definition: &Compiled,
    outcome: Outcome,
    now: Timestamp,
    message: Option<String>,
) -> AttemptEnd {
    AttemptEnd {
        run: run.id,
        job: run.job,
        attempt: run.attempt,
        outcome,
        policy: definition.job.after,
        executor: None,
        started_at: None,
        finished_at: now,
        message,
        result: None,
        trace: run.trace.clone(),
        detail: None,
        jitter: jitter(run.id, run.attempt),
        owner: Some(LeaseToken { node: run.node, epoch: run.node_epoch }),
    }
}

/// A number from 0 to 1 that differs between runs and attempts and needs no source of chance.
pub(crate) fn jitter(run: RunId, attempt: i32) -> f64 {
    let mixed =
        run.get().unsigned_abs().wrapping_add(u64::from(attempt.unsigned_abs())).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    f64::from(u16::try_from(mixed >> 48).unwrap_or(0)) / f64::from(u16::MAX)
}
