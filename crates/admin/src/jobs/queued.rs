//! Ends or keeps the queued runs of a job that was paused or deleted, as the caller chooses.
//!
//! The transaction of the pause or deletion stores a request with each run. The run's owner, which may be any server, ends the run unless
//! an executor has it by then.

use std::collections::HashSet;
use std::time::Duration;

use rondel_core::outcome::CancelRequest;
use rondel_core::queued::{QueuedRunsPolicy, is_fire_ahead, is_queued};
use rondel_core::{JobId, Reason, Run, RunId, RunStatus};
use rondel_store::StoreError;
use tokio::time::Instant;

use crate::node::Node;

/// First delay before the runs are checked again, while their owners have not ended them. It doubles with each check.
const FIRST_LOOK_DELAY: Duration = Duration::from_millis(100);

/// Counts of the open runs of a job that was paused or deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuedRuns {
    /// Queued runs that are skipped.
    pub dropped_count: u64,
    /// Queued runs that are kept, and run in their turn.
    pub kept_count: u64,
    /// Runs that executors have, and that continue.
    pub running_count: u64,
}

/// The open runs of a job, up to the configured bound.
pub(super) async fn open_runs(node: &Node, job: JobId) -> Result<Vec<Run>, StoreError> {
    node.store().open_runs(job, None, None, node.shared().config.end_queued_max).await
}

/// Skips the queued runs of a job that are not to be kept, and waits until their owners have ended them, at most for the configured time. If an
/// owner is down, the owner or its successor ends the runs later. `open_before` has the runs that were open before the pause or deletion. The
/// counts include the runs among them that the pause or deletion has already ended.
pub(super) async fn end_queued(
    node: &Node,
    job: JobId,
    (reason, queued_policy): (Reason, Option<QueuedRunsPolicy>),
    author: &str,
    open_before: Vec<Run>,
) -> Result<QueuedRuns, StoreError> {
    let (config, asked_at) = (&node.shared().config, node.now());
    let ahead_after = node.shared().fires_ahead_after();
    let mut open_runs = open_runs(node, job).await?;
    let known_ids: HashSet<RunId> = open_runs.iter().map(|run| run.id).collect();
    // Runs of future fires were already settled when the definition was saved.
    let was_queued = |run: &Run| is_queued(run) && !is_fire_ahead(run, ahead_after);
    let was_dropped = |run: &Run| was_queued(run) && QueuedRunsPolicy::drops(queued_policy, reason, run.trigger);
    open_runs.extend(open_before.into_iter().filter(|run| !known_ids.contains(&run.id) && was_dropped(run)));
    let is_whole = |run: &&Run| run.is_root() || run.shard_total.is_none_or(|total| total <= 1);
    let (queued_runs, running_runs): (Vec<&Run>, Vec<&Run>) =
        open_runs.iter().filter(is_whole).partition(|run| is_queued(run));
    let (dropped_runs, kept_runs): (Vec<&Run>, Vec<&Run>) =
        queued_runs.into_iter().partition(|run| QueuedRunsPolicy::drops(queued_policy, reason, run.trigger));
    let count = |runs: usize| u64::try_from(runs).unwrap_or(u64::MAX);
    let mut run_counts =
        QueuedRuns { dropped_count: 0, kept_count: count(kept_runs.len()), running_count: count(running_runs.len()) };
    let mut ids: Vec<RunId> = dropped_runs.iter().map(|run| run.id).collect();
    if ids.is_empty() {
        return Ok(run_counts);
    }
    node.store().ask_drops(&ids, CancelRequest { by: author, reason }, asked_at).await?;
    dropped_runs.iter().for_each(|run| node.poke_cancels(run));
    let (deadline, mut look_delay, mut ended_count) = (Instant::now() + config.end_queued_wait, FIRST_LOOK_DELAY, 0);
    loop {
        let rows = node.store().runs(&ids).await?;
        let is_taken = |run: &&Run| run.status == RunStatus::Running || run.executor_id.is_some();
        // Runs of future fires are not waited for.
        let is_waited_for = |run: &&Run| !run.status.is_terminal() && !is_fire_ahead(run, ahead_after);
        ended_count += rows.iter().filter(|run| run.status.is_terminal() && run.reason == Some(reason)).count();
        let remaining_runs: Vec<&Run> = rows.iter().filter(is_waited_for).collect();
        let taken_count = remaining_runs.iter().copied().filter(is_taken).count();
        if remaining_runs.len() <= taken_count || Instant::now() >= deadline {
            // Runs that an executor got meanwhile count as running; runs that their owners have not ended yet count as dropped.
            run_counts.running_count += count(taken_count);
            run_counts.dropped_count = count(ended_count + remaining_runs.len() - taken_count);
            return Ok(run_counts);
        }
        ids = remaining_runs.iter().map(|run| run.id).collect();
        tokio::time::sleep_until((Instant::now() + look_delay).min(deadline)).await;
        look_delay *= 2;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rondel_core::{JobSpec, NamespaceId, Timestamp, Trigger};
    use rondel_store::catalog::{JobDeletion, JobRecord};
    use rondel_store::{MemStore, Store};
    use serde_json::json;

    use super::*;
    use crate::clock::BootClock;
    use crate::config::EngineConfig;
    use crate::engine::Engine;
    use crate::jobs::{self, RunRequest, pause};
    use crate::lifecycle::Lifecycle;

    const NAMESPACE: NamespaceId = NamespaceId::new(1);

    /// Two servers. The first one has the runs of a job, which wait for an executor.
    struct Pair {
        store: Arc<dyn Store>,
        servers: [Engine; 2],
        record: JobRecord,
        lifecycle: Lifecycle,
    }

    impl Drop for Pair {
        fn drop(&mut self) {
            self.lifecycle.soft.cancel();
            self.lifecycle.hard.cancel();
        }
    }

    /// Starts the pair, with at most this many open runs in memory.
    async fn start_pair(open_runs_max: usize) -> Pair {
        let began = Instant::now();
        let micros = move || i64::try_from(began.elapsed().as_micros()).unwrap();
        let clock = move || Timestamp::from_millis(micros() / 1_000) + Duration::from_secs(1_000);
        let store: Arc<dyn Store> = Arc::new(MemStore::new(Arc::new(clock)));
        let lifecycle = Lifecycle::new();
        let start = async |name: &str| {
            let boot = BootClock::Given(Arc::new(micros));
            let config = EngineConfig {
                node_name: name.to_owned(),
                open_runs_max,
                end_request_page: 2,
                boot,
                ..EngineConfig::default()
            };
            Engine::start(Arc::clone(&store), config, &lifecycle).await.unwrap()
        };
        let first = start("first").await;
        let spec = json!({
            "name": "j", "app": "gone", "handler": "h", "schedule": {"every": "1s"}, "overlap": {"policy": "allow"},
            "queue_timeout": "1h",
        });
        let record = jobs::create(&first, NAMESPACE, serde_json::from_value(spec).unwrap(), "test").await.unwrap();
        tokio::time::sleep(Duration::from_secs(6)).await;
        let request = RunRequest::by(Trigger::Manual);
        jobs::request_run(&first, &record, request).await.unwrap();
        let second = start("second").await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        Pair { store, servers: [first, second], record, lifecycle }
    }

    async fn open_triggers(pair: &Pair) -> Vec<Trigger> {
        let open = pair.store.open_runs(pair.record.id, None, None, 1_000).await.unwrap();
        open.iter().map(|run| run.trigger).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_skips_scheduled_queued_runs_of_every_server_in_memory_or_not() {
        for (server, open_runs_max) in [(0, 1_000), (1, 1_000), (0, 8), (1, 8)] {
            let pair = start_pair(open_runs_max).await;
            let engine = &pair.servers[server];
            let (paused, runs) = pause(engine, &pair.record, "li", None).await.unwrap();
            assert!(!paused.spec.enabled && runs.dropped_count >= 5, "{runs:?} by {server}");
            assert_eq!((runs.kept_count, runs.running_count), (1, 0), "{runs:?} by {server}");
            tokio::time::sleep(Duration::from_secs(3)).await;
            assert_eq!(open_triggers(&pair).await, [Trigger::Manual]);
            let (_, runs) = pause(engine, &paused, "li", Some(QueuedRunsPolicy::Run)).await.unwrap();
            assert_eq!((runs.dropped_count, runs.kept_count), (0, 1));
            let (_, runs) = pause(engine, &paused, "li", Some(QueuedRunsPolicy::Drop)).await.unwrap();
            assert_eq!((runs.dropped_count, runs.kept_count), (1, 0));
            assert_eq!(open_triggers(&pair).await, []);
        }
    }

    /// The first pause keeps the queued runs, and so does the first deletion.
    #[tokio::test(start_paused = true)]
    async fn a_repeated_pause_or_deletion_skips_the_runs_that_the_first_one_left() {
        let pair = start_pair(1_000).await;
        let engine = &pair.servers[1];
        let off = JobSpec { enabled: false, ..pair.record.spec.clone() };
        let by = (Some(QueuedRunsPolicy::Run), "li");
        let paused = jobs::change_definition(engine, &pair.record, off, None, by).await.unwrap();
        assert!(open_triggers(&pair).await.len() >= 6);
        jobs::set_enabled(engine, &paused, false, "li").await.unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(open_triggers(&pair).await, [Trigger::Manual]);
        let deletion = JobDeletion {
            id: paused.id,
            expected_version: None,
            before: None,
            skipped_row_id: RunId::new(engine.new_id()),
            now: engine.now(),
            reached: engine.now(),
            detaches_followers: false,
            drops: None,
        };
        pair.store.delete_job(deletion).await.unwrap();
        assert_eq!(open_triggers(&pair).await, [Trigger::Manual]);
        let runs = jobs::end_queued_of_deleted(engine, paused.id, (None, "li")).await.unwrap();
        assert_eq!(runs.dropped_count, 1);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(open_triggers(&pair).await, []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deletion_skips_all_that_is_queued_or_keeps_it_by_choice() {
        for server in [0, 1] {
            let dropping = start_pair(1_000).await;
            let delete = async |pair: &Pair, queued| {
                jobs::delete(&pair.servers[server], &pair.record, None, false, (queued, "li")).await.unwrap().unwrap()
            };
            let runs = delete(&dropping, None).await;
            assert!(runs.dropped_count >= 6 && runs.kept_count == 0, "{runs:?}");
            tokio::time::sleep(Duration::from_secs(3)).await;
            assert_eq!(open_triggers(&dropping).await, []);
            let keeping = start_pair(1_000).await;
            let runs = delete(&keeping, Some(QueuedRunsPolicy::Run)).await;
            assert!(runs.kept_count >= 6 && runs.dropped_count == 0, "{runs:?}");
            assert!(open_triggers(&keeping).await.len() >= 6);
        }
    }
}
