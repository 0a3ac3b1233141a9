//! Steps: requests to the store. A run waits for some of them before it continues; the others only record facts or read rows.

use std::collections::BTreeSet;

use rondel_core::outcome::CancelRequest;
use rondel_core::{ExecutorId, JobId, NodeId, Reason, Run, RunId};
use rondel_store::LeaseToken;
use rondel_store::ledger::{FenceRequest, LimitName, MarkToRemove, NotedWait, RelayedAnswer, RunAtExecutor};

use super::ready::ReadyRun;

/// A step, and the lease under which it was decided.
#[derive(Debug)]
pub(crate) struct DecidedStep {
    pub(crate) token: LeaseToken,
    pub(crate) step: Step,
}

#[derive(Debug)]
pub(crate) enum Step {
    /// Store the number of a broadcast's shards, and insert the shards.
    Expand(Box<Run>, Vec<Run>),
    /// Mark runs before they are sent: those for which [`ReadyRun::is_marked_first`] is true.
    Mark(Vec<RunAtExecutor>),
    /// Remove the marks of runs that were not received.
    Unmark(Vec<MarkToRemove>),
    /// Note that the process of an executor has ended.
    NoteLeft(ExecutorId),
    /// Record the starts of the handlers whose runs take longer than about a second.
    NoteRunning(Vec<RunAtExecutor>),
    /// Store what pending runs wait for.
    NoteWaits(Vec<NotedWait>),
    /// Request that these runs end to make room for a later run of their job.
    Cover(Vec<RunId>),
    /// Request that these runs end, because their app or their executor is stopped.
    Stop(Vec<RunId>, CancelRequest<'static>),
    /// Find out which node counts the runs of each limit.
    LimitHomes(Vec<LimitName>),
    /// Give these limits to a node, or to the next node that asks.
    GiveLimits(Vec<LimitName>, Option<NodeId>),
    /// Give jobs to another node.
    HandOver(BTreeSet<JobId>, NodeId),
    /// Find out when other nodes last heard these executors.
    LastHeard(Vec<ExecutorId>),
    /// Read the rows of these runs.
    CheckRows(Vec<RunId>),
    /// Give the jobs of these runs to nodes with a stream to an executor that can run them.
    Seek(Vec<ReadyRun>),
    /// Ask other servers for the answers of executors that are not connected here.
    AskFences(Vec<FenceRequest>),
    /// Store executors' answers to fences, for servers to which these executors are not connected.
    AnswerFences(Vec<RelayedAnswer>),
    /// Cancel runs that this node does not have in memory.
    CancelStray(Vec<RunId>),
    /// End runs that this node does not have in memory, for this reason, if no executor has them.
    DropStray(Vec<(RunId, Reason)>),
}
