//! Reads the ledger at the end of a simulation.

use std::collections::BTreeMap;

use rondel_core::run::Attempt;
use rondel_core::{JobId, NamespaceId, Run, RunId, Timestamp};
use rondel_store::catalog::{JobQuery, JobRecord};
use rondel_store::ledger::RunQuery;
use rondel_store::{Catalog as _, Runs as _};

use crate::world::World;

const NAMESPACE: NamespaceId = NamespaceId::new(1);
const ROW_COUNT_MAX: u32 = 1_000_000;

/// The ledger at the end of a simulation.
pub(crate) struct Facts {
    pub(crate) runs: BTreeMap<RunId, Run>,
    pub(crate) attempts: BTreeMap<(RunId, i32), Attempt>,
    pub(crate) jobs: BTreeMap<JobId, JobRecord>,
    /// When the schedules of the jobs end.
    pub(crate) ends_at: Timestamp,
    /// Milliseconds since the world began.
    pub(crate) now_ms: u64,
    pub(crate) has_clock_faults: bool,
    pub(crate) has_steady_servers: bool,
}

impl Facts {
    pub(crate) async fn read(world: &World, ends_at: Timestamp) -> Self {
        let query = RunQuery { limit: ROW_COUNT_MAX, ..RunQuery::default() };
        let runs = world.store.list_runs(NAMESPACE, &query).await.unwrap_or_default();
        let mut attempts = BTreeMap::new();
        for run in runs.iter().filter(|run| run.attempt > 1) {
            for attempt in world.store.attempts(run.id).await.unwrap_or_default() {
                attempts.insert((run.id, attempt.attempt), attempt);
            }
        }
        let query = JobQuery { limit: ROW_COUNT_MAX, ..JobQuery::default() };
        let jobs = world.store.jobs(NAMESPACE, &query).await.unwrap_or_default();
        Self {
            runs: runs.into_iter().map(|run| (run.id, run)).collect(),
            attempts,
            jobs: jobs.into_iter().map(|job| (job.id, job)).collect(),
            ends_at,
            now_ms: world.elapsed_ms(),
            has_clock_faults: world.profile.has_clock_faults,
            has_steady_servers: world.profile.has_steady_servers(),
        }
    }

    /// The key of a run's fire.
    pub(super) fn fire_of(&self, run: RunId) -> Option<(Timestamp, i64)> {
        self.runs.get(&run).map(|run| (run.fire_at, run.cause))
    }
}
