//! Effects: the actions that a decision asks the loop to perform, in this order. If a queue has no room for a step, an end or triggers, an event
//! reports that.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::{ExecutorId, JobId, Run, RunId, Trigger};
use rondel_proto::v1::server_message::Body;
use rondel_store::LeaseToken;
use rondel_store::ledger::AttemptEnd;

use super::active::Phase;
use super::event::{IncomingResult, Responder, SessionHandle};
use super::results::reporter::Reporter;
use super::step::Step;
use crate::counters::Count;
use crate::definitions::CompiledDefinition;
use crate::metrics::CountedRun;
use crate::registry::{OnlineExecutor, UnansweredTriggers};
use crate::trace::DispatchSpan;

#[derive(Debug)]
pub(crate) enum Effect {
    /// Put a message on an executor's stream, if there is room.
    Send(SessionHandle, Body),
    /// End an executor's stream.
    EndStream(SessionHandle),
    /// Put the triggers of these runs on an executor's stream.
    SendTriggers(ExecutorId, Vec<RunId>),
    /// Make a step durable.
    Store(Step),
    /// Create the shards of a broadcast, each for the named executor if there is one, and store them.
    Expand(Box<Run>, Vec<Option<String>>),
    /// Store the end of an attempt.
    Finish(Box<Submission>),
    /// Refuse a result of a run that was never sent.
    RefuseResult(Reporter, RunId, i32),
    /// Judge results of runs that this node does not have in memory.
    JudgeForeign(Reporter, Vec<IncomingResult>),
    /// Judge results by the rows of their runs: as far as this node knows, other executors have these runs.
    JudgeUnexpected(Reporter, Vec<IncomingResult>),
    /// Forget these runs: they are not in memory any more.
    Forget(Vec<RunId>),
    /// Forget these runs, unless they have been taken over under a later lease since.
    ForgetUnderLease(Vec<(RunId, LeaseToken)>),
    /// Record that these runs await their children; they keep their places at their gates.
    Await(Vec<(JobId, RunId)>),
    /// Forget the runs that await their children and that no executor has, because their places at their gates are dropped.
    ForgetAwaiting,
    /// Another node has taken over runs of this lease: nothing may be sent under it any more.
    EndLease,
    /// Show an executor as online, under this name.
    ShowOnline(Box<OnlineExecutor>),
    ShowOffline(ExecutorId),
    /// Show that an executor shuts down and takes no new runs.
    ShowDraining(ExecutorId),
    /// Show that an executor leaves triggers unanswered; `None` if it answers again.
    ShowUnanswered(ExecutorId, Option<UnansweredTriggers>),
    Count(Count, usize),
    Measure(Measure),
    /// End the span of a dispatch: the executor has accepted the run, or refused it for this reason.
    EndSpan(DispatchSpan, Option<&'static str>),
    /// Confirm that a stream is dropped: nothing is sent on it any more.
    AnswerStreamEnded(Responder<()>),
    /// Answer which runs executors have, or are about to get.
    ListInHand(Responder<Vec<RunId>>, Vec<RunId>),
    /// Answer once the dispatcher is drained.
    AnswerWhenDrained(Responder<()>),
}

impl Effect {
    /// Whether the dispatcher may forget this run because of this effect: the run's end is stored, or the periodic queries for open runs that
    /// are not in memory find the run again.
    pub(crate) fn ends(&self, run: RunId) -> bool {
        match self {
            Self::Finish(end) => end.attempt_end.run == run && end.phase_before.is_none(),
            Self::Forget(runs) => runs.contains(&run),
            Self::ForgetUnderLease(runs) => runs.iter().any(|(forgotten, _)| *forgotten == run),
            _ => false,
        }
    }
}

/// The end of an attempt, to be stored.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) attempt_end: AttemptEnd,
    pub(crate) counted_run: CountedRun,
    /// The stream of the executor that reported the end; `None` if the server decided it.
    pub(crate) reply_to: Option<SessionHandle>,
    /// The phase to restore if the lane is full; `None` if no executor has the run.
    pub(crate) phase_before: Option<Phase>,
}

/// A measurement for operators.
#[derive(Debug)]
pub(crate) enum Measure {
    /// How late a fire of a schedule is when it is released.
    FireLateness(Duration),
    /// How long an executor took to accept a run.
    Accepted(Duration),
    /// How long an executor took to refuse a run.
    Refused(Duration),
    /// How many runs executors have, and how many due runs wait.
    Runs { active: usize, queued: usize },
    /// How many runs wait at gates, for limits, for executors, and for the roll call.
    WaitingRuns { gates: usize, limits: usize, parked: usize, roll_call: usize },
    /// A fire was expanded into its shards.
    Dispatched(Arc<CompiledDefinition>, Trigger),
}
