//! What a decision asks the loop to do. The loop performs effects in their order; one that finds no room comes back as an event.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::{ExecutorId, JobId, Run, RunId, Trigger};
use rondel_proto::v1::server_message::Body;
use rondel_store::LeaseToken;
use rondel_store::ledger::AttemptEnd;

use super::active::Phase;
use super::event::{Answer, IncomingResult, SessionHandle};
use super::results::reporter::Reporter;
use super::step::Step;
use crate::counters::Count;
use crate::definitions::Compiled;
use crate::metrics::Counted;
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
    /// Make something durable.
    Store(Step),
    /// Create the shards of a broadcast, each for the named executor if there is one, and store them.
    Expand(Box<Run>, Vec<Option<String>>),
    /// Store the end of an attempt.
    Finish(Box<Submission>),
    /// Answer a result of a run that was never sent.
    RefuseResult(Reporter, RunId, i32),
    /// Judge results of runs that this node does not have in memory.
    JudgeForeign(Reporter, Vec<IncomingResult>),
    /// Judge results by their rows of runs that other executors have, as far as this node knows.
    JudgeDoubted(Reporter, Vec<IncomingResult>),
    /// These runs are not in memory any more.
    Forget(Vec<RunId>),
    /// The same, unless they were taken over under a later lease since.
    ForgetOf(Vec<(RunId, LeaseToken)>),
    /// These runs await their children, and keep their places at their gates.
    Await(Vec<(JobId, RunId)>),
    /// Another node has taken over runs of this lease: nothing is sent under it any more.
    EndLease,
    /// An executor is online under this name.
    ShowOnline(Box<OnlineExecutor>),
    /// An executor is offline.
    ShowOffline(ExecutorId),
    /// An executor leaves triggers unanswered, or answers again.
    ShowUnanswered(ExecutorId, Option<UnansweredTriggers>),
    Count(Count, usize),
    Measure(Measure),
    /// An executor has accepted or refused a run: its dispatch ends.
    EndSpan(DispatchSpan, Option<&'static str>),
    /// Answer that a stream is dropped.
    AnswerLeft(Answer<()>),
    /// Answer which runs are in executors' hands.
    ListInHand(Answer<Vec<RunId>>, Vec<RunId>),
    /// Answer once nothing is in an executor's hands.
    AnswerWhenDrained(Answer<()>),
}

impl Effect {
    /// Whether the dispatcher may forget this run with it: its end is stored, or it is found again by the standing queries.
    pub(crate) fn ends(&self, run: RunId) -> bool {
        match self {
            Self::Finish(end) => end.finish.run == run && end.phase_before.is_none(),
            Self::Forget(runs) => runs.contains(&run),
            Self::ForgetOf(runs) => runs.iter().any(|(forgotten, _)| *forgotten == run),
            _ => false,
        }
    }
}

/// The end of an attempt, to be stored.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) finish: AttemptEnd,
    pub(crate) counted: Counted,
    /// The executor that reported it.
    pub(crate) reply_to: Option<SessionHandle>,
    /// The phase that the run has again where there is no room; a run without one is in no executor's hands.
    pub(crate) phase_before: Option<Phase>,
}

/// Something that operators watch.
#[derive(Debug)]
pub(crate) enum Measure {
    /// How late a fire of a schedule is when it is released.
    FireLateness(Duration),
    /// How long an executor took to accept a run.
    Accepted(Duration),
    /// How long an executor took to refuse a run.
    Refused(Duration),
    /// How many runs are in executors' hands, and how many are due and wait.
    Runs { active: usize, queued: usize },
    /// How many runs wait at gates, for limits, for executors, and for the roll call.
    Held { gates: usize, limits: usize, parked: usize, roll_call: usize },
    /// A broadcast was sent out as its shards.
    Dispatched(Arc<Compiled>, Trigger),
}
