//! The requests of users and programs during the faults: runs, cancels, jobs switched off and on.

use std::sync::Arc;
use std::time::Duration;

use rondel_admin::Engine;
use rondel_admin::jobs::{self, RunRequest};
use rondel_core::outcome::CancelRequest;
use rondel_core::{NamespaceId, Trigger};
use rondel_store::catalog::JobRecord;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::faults::Hosts;
use crate::rng::{SeededRng, mix};
use crate::truth::{JobSwitch, RequestedRun};
use crate::world::World;

const NAMESPACE: NamespaceId = NamespaceId::new(1);

/// Salt that keeps the draw of the executors that callers name independent of other draws of the same seed.
const NAMED_EXECUTOR_SALT: u64 = 0x4e41_3e0d;

#[derive(Clone, Copy, Debug)]
enum RequestKind {
    Run,
    Cancel,
    Switch,
}

/// Sends requests at random times, to any server that is up.
pub(crate) async fn send_requests(hosts: Hosts, names: Vec<String>, seed: u64) {
    let world = Arc::clone(&hosts.world);
    // In one of seven seeds, callers name executors, some of which do not belong to the job's app.
    let mut executor_rng = (seed % 7 == 3).then(|| SeededRng::new(mix(seed ^ NAMED_EXECUTOR_SALT)));
    while world.is_faulty() {
        let (wait, kind, name, node) = {
            let mut rng = world.rng();
            let kind = match rng.below(10) {
                0..=5 => RequestKind::Run,
                6 => RequestKind::Cancel,
                _ if world.profile.has_edits => RequestKind::Switch,
                _ => RequestKind::Run,
            };
            (rng.millis(200, 2_500), kind, rng.pick(&names).clone(), rng.index(hosts.nodes.len()))
        };
        sleep(wait).await;
        let Some((engine, process)) = hosts.nodes[node].engine() else { continue };
        let executors = &hosts.executors;
        let named_executor = executor_rng
            .as_mut()
            .filter(|_| matches!(kind, RequestKind::Run))
            .and_then(|rng| rng.happens(500_000).then(|| executors[rng.index(executors.len())].name.clone()));
        let (done_sender, done_receiver) = oneshot::channel();
        let task_world = Arc::clone(&world);
        let task = async move {
            perform(&task_world, &engine, kind, (&name, named_executor)).await;
            done_sender.send(()).ok();
        };
        world.tracker.spawn(process.confine(Box::pin(task)));
        // A caller does not wait without limit.
        timeout(Duration::from_secs(10), done_receiver).await.ok();
    }
}

async fn perform(
    world: &Arc<World>,
    engine: &Engine,
    kind: RequestKind,
    (name, named_executor): (&str, Option<String>),
) {
    let Ok(Some(record)) = engine.store().job(NAMESPACE, name).await else { return };
    match kind {
        RequestKind::Run => {
            let request = RunRequest { executor: named_executor, ..RunRequest::by(Trigger::Api) };
            if let Ok(run) = jobs::request_run(engine, &record, request).await {
                world.record("requested", run.id.get(), || name.to_owned());
                world.truth().requested_runs.push(RequestedRun { run: run.id, job: run.job });
            }
        }
        RequestKind::Cancel => {
            let Ok(runs) = engine.store().open_runs(record.id, None, None, 3).await else { return };
            let ids: Vec<_> = runs.iter().map(|run| run.id).collect();
            world.record("cancels", record.id.get(), || format!("{name} {ids:?}"));
            engine.store().ask_cancels(&ids, CancelRequest::requested("user"), engine.now()).await.ok();
        }
        RequestKind::Switch => switch_job(world, engine, &record).await,
    }
}

async fn switch_job(world: &World, engine: &Engine, record: &JobRecord) {
    let (enabled, asked_at) = (!record.spec.enabled, world.now());
    // The job's state is unknown until an answer comes.
    world.truth().uncertain_jobs.push(record.id);
    let Ok(JobRecord { version, .. }) = jobs::set_enabled(engine, record, enabled, "user").await else { return };
    world.record("switched", record.id.get(), || format!("{} {enabled}", record.spec.name));
    let mut truth = world.truth();
    if let Some(index) = truth.uncertain_jobs.iter().rposition(|job| *job == record.id) {
        truth.uncertain_jobs.remove(index);
    }
    truth.job_switches.push(JobSwitch { job: record.id, enabled, version, asked_at, answered_at: world.now() });
}
