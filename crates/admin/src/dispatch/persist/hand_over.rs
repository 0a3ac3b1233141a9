//! Moves jobs whose runs this node cannot start to a node that can. A job moves with all its open runs, or not at all, because a job has one home.
//!
//! A job that is moving starts nothing here. Its runs stay queued until the outcome of the move is known. If the database does not answer, all runs
//! that may have moved are forgotten here, and the periodic query for strays finds those that stayed. A run that the tick has read, but that has
//! not reached the dispatcher yet, is among the [departing](crate::cluster::DepartureBoard), so it is not started here.

use std::collections::{BTreeSet, HashSet};

use rondel_core::homes::Switch;
use rondel_core::{JobId, NamespaceId, NodeId, RunId, Timestamp};
use rondel_store::StoreError;

use crate::cluster::HeldLease;
use crate::counters::Count;
use crate::dispatch::event::Event;
use crate::dispatch::persist::StepLoop;
use crate::dispatch::ready::ReadyRun;
use crate::dispatch::recovery::seek::RemoteExecutors;

impl StepLoop {
    /// Hands jobs over to a node, and reports when the handover has ended.
    pub(crate) async fn hand_over(&self, jobs: BTreeSet<JobId>, new_home: NodeId) -> Result<(), StoreError> {
        let result = match self.shared.membership.held_lease() {
            Some(lease) => self.move_jobs(&lease, &jobs, new_home).await,
            None => Ok(()),
        };
        self.notify(Event::HandoverEnded(jobs)).await;
        result
    }

    /// Hands over the jobs of these runs to nodes with a stream to an executor that can run them.
    pub(crate) async fn seek(&self, stranded_runs: Vec<ReadyRun>) -> Result<(), StoreError> {
        let result = match self.shared.membership.held_lease() {
            Some(lease) => self.seek_homes(&lease, &stranded_runs).await,
            None => Ok(()),
        };
        self.notify(Event::HandoverEnded(stranded_runs.iter().map(|ready| ready.run.job).collect())).await;
        result
    }

    async fn seek_homes(&self, lease: &HeldLease, stranded_runs: &[ReadyRun]) -> Result<(), StoreError> {
        let (store, now) = (&self.shared.store, self.shared.clock.now());
        let heard_since = now - self.shared.config.beat.saturating_mul(3);
        let sessions = store.sessions(heard_since).await?;
        let namespaces: BTreeSet<NamespaceId> = stranded_runs.iter().map(|ready| ready.run.namespace).collect();
        let mut records = Vec::new();
        for namespace in namespaces {
            records.extend(store.executors(namespace, heard_since).await?);
        }
        // The switch of an executor applies at every node: if an executor is switched off, no other node gives the executor runs.
        records.retain(|record| self.shared.switches.of_executor(record.app, &record.name) == Switch::Active);
        let executors_elsewhere =
            RemoteExecutors::new(lease.token.node, &self.shared.membership.nodes(), &sessions, &records, now);
        for (node, jobs) in executors_elsewhere.homes_for(stranded_runs) {
            self.move_jobs(lease, &jobs, node).await?;
        }
        Ok(())
    }

    async fn move_jobs(&self, lease: &HeldLease, jobs: &BTreeSet<JobId>, new_home: NodeId) -> Result<(), StoreError> {
        let shared = &self.shared;
        // Only the runs of these jobs are read, so that other runs, however many, do not delay the steps that follow.
        let jobs: Vec<JobId> = jobs.iter().copied().collect();
        let unsent_runs = shared.store.unsent_runs_of_jobs(lease.token, &jobs).await?;
        let runs: Vec<(RunId, Timestamp)> = unsent_runs.iter().map(|run| (run.run, run.due_at)).collect();
        let ids: Vec<RunId> = runs.iter().map(|(run, _)| *run).collect();
        shared.departing.begin_final_handover(runs);
        let result = shared.store.hand_over(lease.token, &ids, new_home).await;
        let moved_runs = match result {
            Ok(moved_runs) => moved_runs,
            Err(error) => {
                self.notify(Event::MaybeHandedOver(ids)).await;
                return Err(error);
            }
        };
        let count = moved_runs.len();
        let moved_ids: HashSet<RunId> = moved_runs.iter().copied().collect();
        shared.departing.cancel_handover(ids.into_iter().filter(|run| !moved_ids.contains(run)));
        self.notify(Event::HandedOver(moved_runs)).await;
        if count > 0 {
            shared.counters.add(Count::RunsHandedOver, count);
            tracing::info!(count, node_id = %new_home, "handed over runs to another node, which can start them");
        }
        Ok(())
    }
}
