//! The adoption of open runs, for checks of other subjects.

use rondel_core::{JobId, NodeId};

use crate::ledger::{Adopted, DeadNode, OrphanedJobs};
use crate::{LeaseToken, Store};

/// Adopts all open runs under leases that have ended.
pub(super) async fn adopt_all(store: &dyn Store, token: LeaseToken, dead: &[NodeId]) -> (OrphanedJobs, Vec<Adopted>) {
    let dead: Vec<DeadNode> = dead.iter().copied().map(DeadNode::from).collect();
    let orphaned = store.orphaned_jobs(token, &dead, 100_000).await.unwrap();
    let jobs: Vec<JobId> = orphaned.jobs.iter().map(|job| job.id).collect();
    (orphaned, store.adopt(token, &dead, &jobs).await.unwrap().runs)
}
