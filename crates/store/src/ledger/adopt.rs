//! Adoption of the open runs of dead nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use rondel_core::reason::{ReasonDetail, WaitFor};
use rondel_core::{JobId, NodeId, Run, RunStatus, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use crate::cluster::LeaseToken;
use crate::error::Result;
use crate::streams::LastSessions;

/// A node whose lease seems to have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadNode {
    pub id: NodeId,
    /// Whether its runs are taken over even if another node has fenced its lease. That other node is the home of the dead node's limits, and
    /// counts them without these runs.
    pub is_late: bool,
}

impl From<NodeId> for DeadNode {
    fn from(id: NodeId) -> Self {
        Self { id, is_late: false }
    }
}

/// Which nodes `own_node` takes over, out of those whose leases have ended. `fencers` has these nodes, each with the node that fenced it, if it
/// is fenced and the fencer is known. A node that another one has fenced is left to it, because the limits of the fenced node are there. The
/// exceptions are late nodes, and nodes whose fencer is taken over, too.
pub(crate) fn taken_nodes(
    own_node: NodeId,
    dead_nodes: &[DeadNode],
    fencers: &BTreeMap<NodeId, Option<NodeId>>,
) -> BTreeSet<NodeId> {
    let late_nodes: BTreeSet<NodeId> = dead_nodes.iter().filter(|node| node.is_late).map(|node| node.id).collect();
    let mut taken_nodes = BTreeSet::new();
    loop {
        let is_taken = |(node, fenced_by): &(&NodeId, &Option<NodeId>)| {
            late_nodes.contains(*node)
                || fenced_by.is_none_or(|fencer| fencer == own_node || taken_nodes.contains(&fencer))
                || mutant::on(Mutant::HeirBesideFencer)
        };
        let taken_now: BTreeSet<NodeId> = fencers.iter().filter(is_taken).map(|(node, _)| *node).collect();
        if taken_now == taken_nodes {
            return taken_nodes;
        }
        taken_nodes = taken_now;
    }
}

/// An open run that this node took over from a lease that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopted {
    /// The run, with its new owner.
    pub run: Run,
    /// The lease that owned it before.
    pub from: LeaseToken,
    /// When that lease ended: a run due later cannot have been sent. [`Timestamp::MAX`] if that is unknown.
    pub lease_ended_at: Timestamp,
}

/// A job with open runs under leases that have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrphanedJob {
    pub id: JobId,
    /// How many such runs it has.
    pub run_count: u64,
}

/// The answer to [`orphaned_jobs`](Adopt::orphaned_jobs).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrphanedJobs {
    /// Jobs with open runs under leases that have ended, those with the fewest such runs first.
    pub jobs: Vec<OrphanedJob>,
    /// The nodes that are taken over: dead nodes that the caller named, except those that are left to another fencer; nodes that a taken-over
    /// node has fenced; and nodes that this node has fenced. Nothing new is stored under their ended leases, except runs that another node
    /// inserts for a job's home.
    pub fenced: Vec<NodeId>,
    /// Whether nothing was read, because this node's own lease is no longer valid.
    pub is_refused: bool,
}

/// The answer to [`adopt`](Adopt::adopt).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adoption {
    /// The runs that were taken over, the oldest first.
    pub runs: Vec<Adopted>,
    /// Whether nothing was taken, because this node's own lease is no longer valid.
    pub is_refused: bool,
}

/// Whether a run may have been sent under its lease, which ended at `ended_at`. The row of a broadcast is never sent. A run whose row
/// states what it waits for is marked before it is sent, so without a mark it was not sent. A run was not sent either if no executor of its
/// app had a stream when it was due.
fn may_have_been_sent(run: &Run, ended_at: Timestamp, last_sessions: &LastSessions) -> bool {
    // A shard of a broadcast names the executor that it is meant for, and is sent without a mark.
    let is_unsent = run.has_recorded_wait() && run.marked_at.is_none() && run.executor.is_none();
    let has_stream = run.marked_at.is_some() || last_sessions.may_have_carried(run.app, run.due_at);
    run.status == RunStatus::Pending && !run.is_root() && run.due_at <= ended_at && !is_unsent && has_stream
}

/// The run as the adopting node stores it; its old lease ended at `ended_at`. A run that may have been sent waits for the roll call, in
/// which the executors report the runs that they have.
pub(crate) fn adopted_run(run: Run, ended_at: Timestamp, last_sessions: &LastSessions) -> Run {
    if !may_have_been_sent(&run, ended_at, last_sessions) {
        return run;
    }
    let old_detail = run.detail.as_deref().cloned().unwrap_or_default();
    let roll_call = ReasonDetail { waits_for: Some(WaitFor::RollCall), ..ReasonDetail::default() };
    Run { status: RunStatus::Running, detail: Some(Arc::new(old_detail.with_wait(roll_call))), ..run }
}

/// The `limit` jobs with the fewest runs. A job can occur in `counts` several times, for example once for each node; its counts are added.
pub(crate) fn fewest_first(counts: impl IntoIterator<Item = (JobId, u64)>, limit: u32) -> Vec<OrphanedJob> {
    let mut run_counts_by_job: HashMap<JobId, u64> = HashMap::new();
    for (job, count) in counts {
        *run_counts_by_job.entry(job).or_default() += count;
    }
    let mut jobs: Vec<OrphanedJob> =
        run_counts_by_job.into_iter().map(|(id, run_count)| OrphanedJob { id, run_count }).collect();
    jobs.sort_unstable_by_key(|job| (job.run_count, job.id));
    jobs.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    jobs
}

/// Takes over the open runs of dead nodes.
#[async_trait]
pub trait Adopt {
    /// Fences those leases of `dead_nodes` that have ended by the database's clock. A lease that is fenced already has ended, even if the
    /// clock has stepped back to before its end. The limits of the dead nodes get this node as their home, and the runs must go to the same
    /// node. So a lease that another node has fenced is left to that node, unless [`DeadNode::is_late`]. If a node of `dead_nodes` is taken over, the
    /// leases that it has fenced are taken over with it, whether or not `dead_nodes` has them. So are all leases that this node has fenced.
    ///
    /// Returns at most `limit` jobs with open runs that no living lease owns: runs of earlier epochs of this node, and runs of the nodes that
    /// are taken over. Jobs with few such runs come first, so that a job that fires each second does not wait for the backlog of another job.
    async fn orphaned_jobs(&self, token: LeaseToken, dead_nodes: &[DeadNode], limit: u32) -> Result<OrphanedJobs>;

    /// The jobs among `jobs` that have open runs under earlier leases of this node.
    async fn jobs_open_under_earlier_leases(&self, token: LeaseToken, jobs: &[JobId]) -> Result<Vec<JobId>>;

    /// Takes over all open runs of these jobs that [`orphaned_jobs`](Self::orphaned_jobs) counts. If only some of a job's runs were taken,
    /// the job would have two homes. Each run is taken by an UPDATE guarded by its old owner. A pending run that was due before the old
    /// lease ended may have been sent, unless its row states what it waits for and has no mark, or all streams of its app had ended before
    /// its instant. A run that may have been sent becomes `running`, so that it does not count as unsent, and waits for the roll call.
    async fn adopt(&self, token: LeaseToken, dead_nodes: &[DeadNode], jobs: &[JobId]) -> Result<Adoption>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leases_of_a_fencer_go_where_its_limits_go() {
        let id = NodeId::new;
        let taken = |late: &[i64], fencers: &[(i64, Option<i64>)]| -> Vec<i64> {
            let dead_nodes: Vec<DeadNode> =
                fencers.iter().map(|(node, _)| DeadNode { id: id(*node), is_late: late.contains(node) }).collect();
            let fencers = fencers.iter().map(|(node, fencer)| (id(*node), fencer.map(id))).collect();
            taken_nodes(id(1), &dead_nodes, &fencers).into_iter().map(NodeId::get).collect()
        };
        assert_eq!(taken(&[], &[(2, None), (3, Some(1)), (4, Some(9))]), [2, 3], "node 9 has the limits of node 4");
        assert_eq!(taken(&[4], &[(2, None), (3, Some(1)), (4, Some(9))]), [2, 3, 4]);
        assert_eq!(taken(&[], &[(2, Some(3)), (3, Some(4)), (4, None)]), [2, 3, 4], "node 4 dies, too");
        assert_eq!(taken(&[], &[(2, Some(3)), (3, Some(4)), (4, Some(9))]), [0; 0]);
        assert_eq!(taken(&[], &[(2, Some(3)), (3, Some(2))]), [0; 0]);
    }
}
