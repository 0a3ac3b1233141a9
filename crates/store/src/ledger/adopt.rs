//! Adoption of the open runs of dead nodes.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use rondel_core::reason::{Detail, WaitFor};
use rondel_core::{NodeId, Run, RunStatus, Timestamp};

use crate::cluster::{LastStreams, LeaseToken};
use crate::error::Result;

/// An open run that came to this node from a lease that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopted {
    /// The run, with its new owner.
    pub run: Run,
    /// Whose it was.
    pub from: LeaseToken,
    /// When that lease ended: a run due later cannot have been sent. [`Timestamp::MAX`] where that is unknown.
    pub from_ended_at: Timestamp,
}

/// The answer to [`adopt`](Adopt::adopt).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adoption {
    /// What was taken over, the oldest first.
    pub runs: Vec<Adopted>,
    /// The dead nodes whose leases are over and fenced: nothing comes to be open under these any more.
    pub fenced: Vec<NodeId>,
    /// This node's own lease does not hold: nothing was read.
    pub is_refused: bool,
}

/// Whether a run of a lease that ended then may have been sent under it. A broadcast's row is never sent; a run whose row
/// has what it waits for is marked before it is sent; and a run that was due when no executor of its app had a stream went to none.
fn may_have_been_sent(run: &Run, ended_at: Timestamp, streams: &LastStreams) -> bool {
    // The shard of a broadcast names the executor that it is meant for, and is sent without a mark.
    let is_unsent = run.is_noted_to_wait() && run.marked_at.is_none() && run.executor.is_none();
    let has_stream = run.marked_at.is_some() || streams.may_have_carried(run.app, run.due_at);
    run.status == RunStatus::Pending && !run.is_root() && run.due_at <= ended_at && !is_unsent && has_stream
}

/// The run of a lease that ended then, as it is after its adoption: one that may have been sent waits for the roll call.
pub(crate) fn adopted(run: Run, ended_at: Timestamp, streams: &LastStreams) -> Run {
    if !may_have_been_sent(&run, ended_at, streams) {
        return run;
    }
    let before = run.detail.as_deref().cloned().unwrap_or_default();
    let roll_call = Detail { waits_for: Some(WaitFor::RollCall), ..Detail::default() };
    Run { status: RunStatus::Running, detail: Some(Box::new(before.waiting(roll_call))), ..run }
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

/// Takes over the open runs of dead nodes.
#[async_trait]
pub trait Adopt {
    /// Takes over open runs whose (node, epoch) is no living lease: this node's own of earlier epochs, and those of
    /// `dead` nodes. The oldest first, of each job all that there is, until they are `enough`; each by an UPDATE guarded by
    /// its old owner. A pending run that was due before that lease ended may have been sent, unless its row has what it waits
    /// for and has no mark, or all streams of its app had ended before its instant: it becomes `running`, so that it does not
    /// count as unsent, and waits for the roll call.
    /// The database's clock decides which of the leases of `dead` have ended: the answer names those nodes.
    async fn adopt(&self, token: LeaseToken, dead: &[NodeId], enough: u32) -> Result<Adoption>;
}
