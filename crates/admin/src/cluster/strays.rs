//! Strays: open runs of this node that are not in its memory, because the answer to their claim was lost, another server stored them in this
//! server's name, or they were dropped with a lease. Each look reads only a few pages of keys and starts where the last look ended, so that every
//! run is reached, however many runs wait in memory.

use std::time::Duration;

use rondel_core::{Run, RunId, RunStatus, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::ledger::{MarkToRemove, OpenPage};
use rondel_store::{LeaseToken, StoreError};

use crate::definitions::CompiledDefinitions;
use crate::node::Shared;

/// How overdue a run of this node must be before it counts as missing in memory.
const STRAY_AFTER: Duration = Duration::from_secs(1);

/// A place in the order of a sweep: the instant of the last run that was read, and its id.
type SweepPosition = (Timestamp, RunId);

const SWEEP_START: SweepPosition = (Timestamp::EPOCH, RunId::new(0));

/// Repeatedly walks through the keys of this node's open runs with one status, in the order of their instants.
#[derive(Debug)]
pub(super) struct Sweep {
    status: RunStatus,
    position: SweepPosition,
}

impl Sweep {
    pub(super) const fn new(status: RunStatus) -> Self {
        Self { status, position: SWEEP_START }
    }

    /// Whether the next look begins at the start.
    pub(super) fn is_at_start(&self) -> bool {
        self.position == SWEEP_START
    }

    /// The ids of runs on the next pages that are not in memory, and are due from `due_from` on and before `due_before`.
    async fn missing_runs(
        &mut self,
        shared: &Shared,
        token: LeaseToken,
        (due_from, due_before): (Timestamp, Timestamp),
    ) -> Result<Vec<RunId>, StoreError> {
        let limit = shared.config.stray_page;
        let page_len = usize::try_from(limit).unwrap_or(usize::MAX);
        if mutant::on(Mutant::SweepFromTheStart) {
            self.position = SWEEP_START;
        }
        self.position = self.position.max((due_from, RunId::new(0)));
        let mut missing_ids = Vec::new();
        for _ in 0..shared.config.stray_pages {
            let page = OpenPage { status: self.status, before: due_before, after: self.position, limit };
            let keys = shared.store.open_keys(token, page).await?;
            missing_ids.extend(shared.in_memory.missing_runs(keys.iter().map(|(_, run)| *run)));
            let Some(last_key) = keys.last().filter(|_| keys.len() == page_len) else {
                self.position = SWEEP_START;
                break;
            };
            self.position = *last_key;
            if missing_ids.len() >= page_len {
                break;
            }
        }
        Ok(missing_ids)
    }

    /// The rows of runs on the next pages that are not in memory, unless their status or their owner has changed since the page was read.
    pub(super) async fn missing_rows(&mut self, shared: &Shared, token: LeaseToken) -> Result<Vec<Run>, StoreError> {
        let missing_ids = self.missing_runs(shared, token, (Timestamp::EPOCH, Timestamp::MAX)).await?;
        let mut runs = shared.store.runs(&missing_ids).await?;
        runs.retain(|run| run.status == self.status && (run.node, run.node_epoch) == (token.node, token.epoch));
        Ok(runs)
    }
}

#[derive(Debug)]
pub(super) struct Strays {
    /// Runs that came due recently; runs that another server has just stored are among them.
    recent_sweep: Sweep,
    /// All overdue runs, read over many looks.
    overdue_sweep: Sweep,
    /// All running runs, read over many looks.
    running_sweep: Sweep,
}

impl Strays {
    pub(super) const fn new() -> Self {
        Self {
            recent_sweep: Sweep::new(RunStatus::Pending),
            overdue_sweep: Sweep::new(RunStatus::Pending),
            running_sweep: Sweep::new(RunStatus::Running),
        }
    }

    /// Own pending runs, on the next pages of both sweeps, that are overdue and not in memory.
    pub(super) async fn overdue_runs(&mut self, shared: &Shared, token: LeaseToken) -> Result<Vec<Run>, StoreError> {
        let due_before = shared.clock.now() - STRAY_AFTER;
        let recent_range = (due_before - shared.config.stray_recent, due_before);
        let mut missing_ids = self.recent_sweep.missing_runs(shared, token, recent_range).await?;
        missing_ids.extend(self.overdue_sweep.missing_runs(shared, token, (Timestamp::EPOCH, due_before)).await?);
        missing_ids.sort_unstable();
        missing_ids.dedup();
        let mut overdue_runs = shared.store.runs(&missing_ids).await?;
        let is_own = |run: &Run| (run.node, run.node_epoch) == (token.node, token.epoch);
        overdue_runs.retain(|run| run.status == RunStatus::Pending && is_own(run));
        // Memory is read after the rows: a run that came into memory meanwhile may have been marked and sent since.
        let missing_ids = shared.in_memory.missing_runs(overdue_runs.iter().map(|run| run.id));
        overdue_runs.retain(|run| missing_ids.contains(&run.id));
        Ok(overdue_runs)
    }

    /// Starts the next sweep of the running runs at the beginning.
    pub(super) const fn restart_sweep(&mut self) {
        self.running_sweep.position = SWEEP_START;
    }

    /// Whether a sweep of the running runs is in progress.
    pub(super) fn is_sweeping(&self) -> bool {
        !self.running_sweep.is_at_start()
    }

    /// Own running runs, on the next pages, that are not in memory. If a run has ended since its key was read, it left the memory only after its
    /// end was durable, so its row shows the end.
    pub(super) async fn running_runs(&mut self, shared: &Shared, token: LeaseToken) -> Result<Vec<Run>, StoreError> {
        let range = (Timestamp::EPOCH, Timestamp::MAX);
        let missing_ids = shared.awaiting.missing_runs(self.running_sweep.missing_runs(shared, token, range).await?);
        let mut running_runs = shared.store.runs(&missing_ids).await?;
        let is_own = |run: &Run| (run.node, run.node_epoch) == (token.node, token.epoch);
        // A broadcast in progress is in no node's memory; only its shards are.
        running_runs.retain(|run| run.status == RunStatus::Running && is_own(run) && !run.is_root());
        Ok(running_runs)
    }
}

/// Removes the marks of strays. A run that this node has sent under the present lease is in memory until the run ends. So strays were not sent,
/// even if they are marked. The shard of a broadcast remains meant for the executor that its row names.
pub(super) async fn remove_marks(shared: &Shared, token: LeaseToken, strays: &mut [Run]) -> Result<(), StoreError> {
    let marked_runs: Vec<&mut Run> = strays.iter_mut().filter(|run| run.marked_at.is_some()).collect();
    if marked_runs.is_empty() {
        return Ok(());
    }
    let keys: Vec<_> = marked_runs.iter().map(|run| (run.job, run.job_version)).collect();
    let definitions = shared.definitions.load(shared.store.as_ref(), keys).await?;
    let marks: Vec<MarkToRemove> = marked_runs.iter().map(|run| mark_to_remove(run, &definitions)).collect();
    shared.store.unmark(token, &marks).await?;
    for (run, mark) in marked_runs.into_iter().zip(&marks) {
        (run.executor_id, run.marked_at) = (None, None);
        if !mark.keeps_executor {
            run.executor = None;
        }
    }
    Ok(())
}

fn mark_to_remove(run: &Run, definitions: &CompiledDefinitions) -> MarkToRemove {
    let definition = definitions.get(&(run.job, run.job_version));
    let keeps_executor = definition.is_some_and(|definition| definition.job.is_broadcast());
    MarkToRemove { run: run.id, attempt: run.attempt, keeps_executor }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rondel_core::run::RunJob;
    use rondel_core::{NamespaceId, Trigger};
    use rondel_store::{MemStore, Store};
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::config::EngineConfig;
    use crate::engine::Engine;
    use crate::lifecycle::Lifecycle;

    /// Runs that another server stores under this server's lease are taken up, however many runs wait here for an executor.
    #[tokio::test(start_paused = true)]
    async fn each_stray_has_its_turn_beside_any_number_of_runs_that_wait_here() {
        let began = Instant::now();
        let micros = move || i64::try_from(began.elapsed().as_micros()).unwrap();
        let clock = move || Timestamp::from_millis(micros() / 1_000) + Duration::from_secs(1_000);
        let store: Arc<dyn Store> = Arc::new(MemStore::new(Arc::new(clock)));
        let config = EngineConfig {
            stray_page: 2,
            stray_pages: 1,
            boot: crate::clock::BootClock::Given(Arc::new(micros)),
            ..EngineConfig::default()
        };
        let lifecycle = Lifecycle::new();
        let engine = Engine::start(Arc::clone(&store), config, &lifecycle).await.unwrap();
        let namespace = NamespaceId::new(1);
        let spec =
            json!({"name": "j", "app": "gone", "handler": "h", "overlap": {"policy": "allow"}, "queue_timeout": "1h"});
        crate::jobs::create(&engine, namespace, serde_json::from_value(spec).unwrap(), "test").await.unwrap();
        let job = store.job(namespace, "j").await.unwrap().unwrap();
        let of = RunJob { namespace, job: job.id, job_version: job.version, app: job.app };
        let token = engine.token();
        for count in 1..=9 {
            let id = RunId::new(count);
            let due_at = clock();
            let run = Run { cause: count, ..Run::new(id, of, due_at, Trigger::Api, (token.node, token.epoch)) };
            store.request_run(token, run).await.unwrap();
            let limit = Instant::now() + Duration::from_secs(30);
            while engine.runs_in_memory() < usize::try_from(count).unwrap() {
                assert!(Instant::now() < limit, "run {count} was not taken up");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        lifecycle.soft.cancel();
        lifecycle.hard.cancel();
    }
}
