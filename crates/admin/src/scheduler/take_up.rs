//! Takes up runs that were left in the store for lack of room in memory: job by job, and each job's runs in their order, as far as there is room.
//! Jobs that have room are found in memory, so that no number of jobs without room delays them.

use std::time::Duration;

use rondel_core::{JobId, Run, Timestamp};
use rondel_store::StoreError;

use crate::cluster::HeldLease;
use crate::node::Shared;
use crate::scheduler::command::TickCommand;
use crate::scheduler::in_memory::LookBounds;

/// The period of the check for room for a run that was left in the store.
const PERIOD: Duration = Duration::from_millis(200);

/// Takes up runs that were left in the store; `after_job` is the job at which the last look ended.
#[derive(Debug, Default)]
pub(crate) struct TakeUp {
    after_job: Option<JobId>,
}

impl TakeUp {
    /// Waits until there is room for a run that was left in the store, or the queue timeout of such a run may have passed.
    pub(crate) async fn wait_for_room(&self, shared: &Shared) {
        let mut after_job = self.after_job;
        loop {
            tokio::time::sleep(PERIOD).await;
            let bounds = LookBounds { examined_max: shared.config.take_up_looks, returned_max: 1 };
            let (jobs, last_job) = shared.in_memory.jobs_with_rows_left(after_job, bounds, shared.clock.now());
            if !jobs.is_empty() {
                return;
            }
            after_job = last_job;
        }
    }

    /// Takes up runs of some jobs, as far as there is room. Returns whether nothing was left to take up.
    pub(crate) async fn take_up(&mut self, shared: &Shared, lease: &HeldLease) -> Result<bool, StoreError> {
        let bounds = LookBounds { examined_max: shared.config.take_up_looks, returned_max: shared.config.take_up_jobs };
        let (jobs, after_job) = shared.in_memory.jobs_with_rows_left(self.after_job, bounds, shared.clock.now());
        self.after_job = after_job;
        let mut has_taken = false;
        for job in jobs {
            has_taken |= take_up_page(shared, lease, job).await?;
        }
        Ok(!has_taken)
    }
}

/// Takes up a page of one job's runs. Returns whether a run was taken up, or more pages follow a page without runs to take up.
async fn take_up_page(shared: &Shared, lease: &HeldLease, job: JobId) -> Result<bool, StoreError> {
    let limit = shared.config.take_up_page.max(1);
    let Some(place) = shared.in_memory.unsent_place_of(job) else { return Ok(false) };
    let page = shared.store.unsent_runs_of_job(lease.token, job, place, limit).await?;
    let is_last = u32::try_from(page.len()).is_ok_and(|len| len < limit);
    let keys = page.iter().map(|run| (run.job, run.job_version));
    let definitions = shared.definitions.load(shared.store.as_ref(), keys).await?;
    let queue_ends_at = |run: &Run, from: Timestamp| {
        let definition = definitions.get(&(run.job, run.job_version));
        definition.map_or(Timestamp::MAX, |definition| from + definition.job.queue_timeout)
    };
    let (taken_up, is_whole_page) = shared.in_memory.take_up(job, page, (shared.clock.now(), queue_ends_at), is_last);
    let has_taken = !taken_up.is_empty() || is_whole_page && !is_last;
    if !taken_up.is_empty() {
        // Sending fails only if the process is ending. The runs are durable.
        drop(shared.tick.send(TickCommand::Put(taken_up)).await);
    }
    Ok(has_taken)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rondel_core::{NamespaceId, RunStatus, Trigger};
    use rondel_store::{MemStore, Store};
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::config::EngineConfig;
    use crate::engine::Engine;
    use crate::jobs::{self, RunRequest};
    use crate::lifecycle::Lifecycle;

    /// A run that has no room in memory can be cancelled, and it ends at its queue timeout.
    #[tokio::test(start_paused = true)]
    async fn runs_left_in_the_store_can_be_cancelled_and_end_with_their_queue_time() {
        let began = Instant::now();
        let micros = move || i64::try_from(began.elapsed().as_micros()).unwrap();
        let clock = move || Timestamp::from_millis(micros() / 1_000) + Duration::from_secs(1_000);
        let store: Arc<dyn Store> = Arc::new(MemStore::new(Arc::new(clock)));
        let boot = crate::clock::BootClock::Given(Arc::new(micros));
        let config = EngineConfig { open_runs_max: 2, take_up_page: 2, boot, ..EngineConfig::default() };
        let lifecycle = Lifecycle::new();
        let engine = Engine::start(Arc::clone(&store), config, &lifecycle).await.unwrap();
        let namespace = NamespaceId::new(1);
        let spec =
            json!({"name": "j", "app": "gone", "handler": "h", "overlap": {"policy": "allow"}, "queue_timeout": "30s"});
        let record = jobs::create(&engine, namespace, serde_json::from_value(spec).unwrap(), "test").await.unwrap();
        let mut runs = Vec::new();
        for _ in 0..9 {
            let request = RunRequest::by(Trigger::Manual);
            runs.push(jobs::request_run(&engine, &record, request).await.unwrap().id);
        }
        let last = *runs.last().unwrap();
        let wait_for = async |run, status, limit| {
            let until = Instant::now() + limit;
            while store.runs(&[run]).await.unwrap()[0].status != status {
                assert!(Instant::now() < until, "run {run} is not {status}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(engine.runs_in_memory() < 4, "{} in memory", engine.runs_in_memory());
        let metrics = engine.metrics().await.unwrap();
        for shown in ["rondel_left_jobs 1.0\n", "rondel_open_runs_max 2.0\n"] {
            assert!(metrics.contains(shown), "{shown}: {metrics}");
        }
        crate::cancel::cancel_run(&engine, last, "li").await.unwrap();
        wait_for(last, RunStatus::Cancelled, Duration::from_secs(5)).await;
        for run in &runs[..8] {
            wait_for(*run, RunStatus::Skipped, Duration::from_secs(60)).await;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(engine.metrics().await.unwrap().contains("rondel_left_jobs 0.0\n"));
        lifecycle.soft.cancel();
        lifecycle.hard.cancel();
    }
}
