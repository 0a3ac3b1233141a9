//! Runs that callers request: now or at a later instant, with or without a key.

use std::time::Duration;

use rondel_core::error_chain::chain;
use rondel_core::request::IfOpen;
use rondel_core::run::RunJob;
use rondel_core::spec::OverlapPolicy;
use rondel_core::{FieldError, Run, RunId, RunStatus, Timestamp};
use rondel_store::catalog::JobRecord;
use rondel_store::ledger::KeyedRun;

use super::{JobError, RunParams, RunRequest};
use crate::node::Node;
use crate::store_once::store_once;

/// A run that is due further ahead than this waits in the store until the scan of the job's home takes it. A run that is due sooner enters
/// the ring immediately.
const RING_AHEAD_MAX: Duration = Duration::from_secs(2);

/// Creates a run of the job's newest definition, due now or at the instant of the request. The run is durable before it is in memory.
///
/// # Errors
/// [`JobError::Invalid`] if the request is to replace an open run and the job's overlap policy is discard; [`JobError::KeyInUse`] if an open run
/// of the job has the key and the request does not replace it; the store's.
pub async fn request_run(node: &Node, record: &JobRecord, request: RunRequest) -> Result<Run, JobError> {
    let (key, trace) = (request.key.clone(), request.trace);
    if let Some((_, IfOpen::Replace)) = &key
        && record.spec.overlap.policy == OverlapPolicy::Discard
    {
        // The new run would be skipped while the old one ends, and neither would do the work.
        let message = "replace: the job's overlap policy discard skips a run while another one ends, so that neither would do the work; \
                       refuse or keep, or give the job another policy";
        return Err(JobError::Invalid(vec![FieldError::new("/if_open", message)]));
    }
    let run = new_requested_run(node, record, request);
    if let Some(trace) = trace {
        node.store().note_trace(run.id, trace).await?;
    }
    let run = match key {
        None => store_once(|| node.store().request_run(node.token(), run.clone())).await?,
        Some((name, if_open)) => {
            let keyed_run = Run { trigger_key: Some(name), ..run };
            let store = || node.store().request_keyed_run(node.token(), keyed_run.clone(), if_open, node.now());
            match store_once(store).await? {
                KeyedRun::Created(run) => run,
                KeyedRun::Replaced(run, _) => {
                    // If this node owns the earlier run, it reads the cancel request now.
                    node.poke_cancels(&run);
                    run
                }
                KeyedRun::Open(open) => return Err(JobError::KeyInUse(Box::new(open))),
            }
        }
    };
    acknowledge_repeated_run(node, &run).await;
    if run.status == RunStatus::Pending {
        node.try_put_own(vec![run.clone()]);
    }
    Ok(run)
}

/// Acknowledges the failed run that this run repeats, since its failure needs no more attention. An error is only logged: the new run is stored,
/// and a caller who got an error would request another run.
pub(super) async fn acknowledge_repeated_run(node: &Node, run: &Run) {
    let Some(failed_run) = run.parent else { return };
    if let Err(error) = node.store().acknowledge_dead_letters(run.namespace, &[failed_run]).await {
        tracing::warn!(run = %failed_run, error = %chain(&error), "cannot acknowledge a failed run that was run again");
    }
}

fn new_requested_run(node: &Node, record: &JobRecord, request: RunRequest) -> Run {
    let (now, id, token) = (node.now(), node.new_id(), node.token());
    let fire_at: Timestamp = request.at.map_or(now, |at| at.max(now));
    let run_job = RunJob { namespace: record.namespace, job: record.id, job_version: record.version, app: record.app };
    let run = Run {
        cause: id,
        status: if fire_at > now + RING_AHEAD_MAX { RunStatus::Waiting } else { RunStatus::Pending },
        params: request.params.map(RunParams::into_text),
        parent: request.parent,
        only_executor: request.executor,
        ..Run::new(RunId::new(id), run_job, fire_at, request.trigger, (token.node, token.epoch))
    };
    if record.spec.is_sharded() { run.for_all_shards() } else { run }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rondel_core::outcome::CancelRequest;
    use rondel_core::queued::QueuedRunsPolicy;
    use rondel_core::{NamespaceId, Reason, Trigger};
    use rondel_store::{MemStore, Store};
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::clock::BootClock;
    use crate::config::EngineConfig;
    use crate::engine::Engine;
    use crate::jobs;
    use crate::lifecycle::Lifecycle;

    const NAMESPACE: NamespaceId = NamespaceId::new(1);

    struct World {
        store: Arc<dyn Store>,
        boot: BootClock,
    }

    impl World {
        fn new() -> Self {
            let began = Instant::now();
            let micros = move || i64::try_from(began.elapsed().as_micros()).unwrap();
            let clock = move || Timestamp::from_millis(micros() / 1_000) + Duration::from_secs(1_000);
            Self { store: Arc::new(MemStore::new(Arc::new(clock))), boot: BootClock::Given(Arc::new(micros)) }
        }

        async fn server(&self) -> (Engine, Lifecycle) {
            let config = EngineConfig { boot: self.boot.clone(), ..EngineConfig::default() };
            let lifecycle = Lifecycle::new();
            (Engine::start(Arc::clone(&self.store), config, &lifecycle).await.unwrap(), lifecycle)
        }

        async fn status(&self, run: RunId) -> RunStatus {
            self.store.runs(&[run]).await.unwrap().remove(0).status
        }
    }

    async fn job(engine: &Engine) -> JobRecord {
        let spec =
            json!({"name": "j", "app": "gone", "handler": "h", "queue_timeout": "1h", "overlap": {"policy": "allow"}});
        jobs::create(engine, NAMESPACE, serde_json::from_value(spec).unwrap(), "test").await.unwrap()
    }

    /// A planned run waits in the store until its instant, even while no server runs, and can be cancelled before.
    #[tokio::test(start_paused = true)]
    async fn a_planned_run_waits_for_its_instant_through_a_restart_and_can_be_cancelled() {
        let world = World::new();
        let (engine, lifecycle) = world.server().await;
        let record = job(&engine).await;
        let plan =
            |ahead| RunRequest { at: Some(engine.now() + Duration::from_secs(ahead)), ..RunRequest::by(Trigger::Api) };
        let planned = request_run(&engine, &record, plan(600)).await.unwrap();
        let other = request_run(&engine, &record, plan(600)).await.unwrap();
        let soon = request_run(&engine, &record, plan(30)).await.unwrap();
        assert_eq!((planned.status, planned.fire_at), (RunStatus::Waiting, planned.due_at));
        tokio::time::sleep(Duration::from_secs(25)).await;
        assert_eq!(world.status(soon.id).await, RunStatus::Waiting);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(world.status(soon.id).await, RunStatus::Pending, "it waits for an executor now");
        engine.cancel_run(other.id, "li").await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(world.status(other.id).await, RunStatus::Cancelled);
        lifecycle.hard.cancel();
        lifecycle.soft.cancel();
        drop(engine);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let (_engine, lifecycle) = world.server().await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(world.status(planned.id).await, RunStatus::Waiting);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(world.status(planned.id).await, RunStatus::Pending);
        lifecycle.hard.cancel();
        lifecycle.soft.cancel();
    }

    /// A planned run ends when its job is paused or deleted, not at its instant.
    #[tokio::test(start_paused = true)]
    async fn planned_runs_end_with_their_job() {
        let world = World::new();
        let (engine, lifecycle) = world.server().await;
        let record = job(&engine).await;
        let plan = || RunRequest { at: Some(engine.now() + Duration::from_secs(600)), ..RunRequest::by(Trigger::Api) };
        let planned = request_run(&engine, &record, plan()).await.unwrap();
        let (paused, runs) = jobs::pause(&engine, &record, "li", Some(QueuedRunsPolicy::Drop)).await.unwrap();
        assert_eq!((runs.dropped_count, runs.kept_count), (1, 0));
        assert_eq!(world.status(planned.id).await, RunStatus::Skipped);
        let planned = request_run(&engine, &paused, plan()).await.unwrap();
        let runs = jobs::delete(&engine, &paused, None, false, (None, "li")).await.unwrap().unwrap();
        assert_eq!(runs.dropped_count, 1);
        let ended = world.store.runs(&[planned.id]).await.unwrap().remove(0);
        assert_eq!((ended.status, ended.reason), (RunStatus::Skipped, Some(Reason::Deleted)));
        lifecycle.hard.cancel();
        lifecycle.soft.cancel();
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_discards_overlapping_runs_does_not_replace() {
        let world = World::new();
        let (engine, lifecycle) = world.server().await;
        let spec = json!({"name": "j", "app": "gone", "handler": "h", "overlap": {"policy": "discard"}});
        let record = jobs::create(&engine, NAMESPACE, serde_json::from_value(spec).unwrap(), "test").await.unwrap();
        let key = |if_open| RunRequest { key: Some(("k".to_owned(), if_open)), ..RunRequest::by(Trigger::Api) };
        let first = request_run(&engine, &record, key(IfOpen::Refuse)).await.unwrap();
        let refused = request_run(&engine, &record, key(IfOpen::Replace)).await;
        assert!(matches!(&refused, Err(JobError::Invalid(errors)) if errors[0].pointer == "/if_open"), "{refused:?}");
        assert!(!world.store.runs(&[first.id]).await.unwrap()[0].is_asked_to_end());
        lifecycle.hard.cancel();
        lifecycle.soft.cancel();
    }

    /// The request for a new run also ends the run that it replaces.
    #[tokio::test(start_paused = true)]
    async fn a_key_is_refused_kept_or_replaced() {
        let world = World::new();
        let (engine, lifecycle) = world.server().await;
        let record = job(&engine).await;
        let ask = async |if_open| {
            let request = RunRequest { key: Some(("k".to_owned(), if_open)), ..RunRequest::by(Trigger::Api) };
            request_run(&engine, &record, request).await
        };
        let first = ask(IfOpen::Refuse).await.unwrap();
        for if_open in [IfOpen::Refuse, IfOpen::Keep] {
            let refused = ask(if_open).await;
            assert!(matches!(&refused, Err(JobError::KeyInUse(open)) if open.id == first.id), "{refused:?}");
        }
        let second = ask(IfOpen::Replace).await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(world.status(first.id).await, RunStatus::Cancelled);
        assert_eq!(world.status(second.id).await, RunStatus::Pending);
        world.store.ask_cancel(second.id, CancelRequest::requested("li"), engine.now()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert!(ask(IfOpen::Refuse).await.is_ok(), "the key is free");
        lifecycle.hard.cancel();
        lifecycle.soft.cancel();
    }
}
