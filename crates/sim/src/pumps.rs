//! A world of pump jobs: groups on executors that come and go, items that change owners, rows that arrive. The general
//! world has no pump jobs, so that what its seeds draw does not change.
//!
//! - `jobs` draws the definitions and the requests of users;
//! - `truth` records what really happened: rows, their executions, and the owners of items in the store;
//! - `watch` checks each write of items, `recovery` the recovery after all faults have ended, `check` everything at the
//!   end.

mod check;
mod jobs;
mod recovery;
pub(crate) mod truth;
pub(crate) mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rondel_store::Catalog as _;
use tokio::time::sleep_until;

use self::jobs::NAMESPACE;
use crate::check::Facts;
use crate::executor::ExecutorHost;
use crate::faults::{Hosts, Plan};
use crate::node::NodeHost;
use crate::profile::Profile;
use crate::rng::{SeededRng, mix};
use crate::simulation::{Options, Outcome, create_jobs, run_on_own_clock, wait_for_ends};
use crate::switches;
use crate::world::{World, lock};

/// Salt that keeps the draw of this world independent of the general one of the same seed.
const PUMP_SALT: u64 = 0x9021_4e55;
/// How long schedules continue after all faults have ended.
const SCHEDULES_CONTINUE_FOR: Duration = Duration::from_secs(22);

/// Runs a seed of the world of pump jobs. In the outcome, `start_count` is the number of executions of rows.
///
/// # Panics
/// If the runtime cannot be built.
#[must_use]
pub fn pumps(seed: u64, options: Options) -> Outcome {
    run_on_own_clock(options, run_world(seed, options))
}

fn profile(rng: &mut SeededRng) -> Profile {
    let general = Profile::draw(rng);
    Profile {
        executor_count: usize::try_from(rng.between(2, 5)).unwrap_or(2),
        app_count: 1,
        faulty_ms: rng.between(12_000, 45_000),
        slots: Some(u32::try_from(rng.between(4, 8)).unwrap_or(4)),
        ..general
    }
}

async fn run_world(seed: u64, options: Options) -> Outcome {
    let mut rng = SeededRng::new(mix(seed ^ PUMP_SALT));
    let profile = profile(&mut rng);
    let plan = Plan::draw(&mut rng, &profile).with_drains(seed, &profile);
    let world = World::new(seed, profile.clone(), options.keeps_lines);
    world.record("profile", 0, || format!("{profile:?}"));
    lock(&world.pumps).begin(seed, profile.faulty_ms * 3 / 4);
    let nodes: Vec<_> = (0..profile.node_count).map(|index| NodeHost::new(&world, index)).collect();
    let executors = (0..profile.executor_count).map(|index| ExecutorHost::new(&world, index, &nodes)).collect();
    let hosts = Hosts { world: Arc::clone(&world), nodes, executors };
    let heals_at = world.began_at + Duration::from_millis(profile.faulty_ms);
    let ends_at = world.now() + Duration::from_millis(profile.faulty_ms) + SCHEDULES_CONTINUE_FOR;
    hosts.nodes.iter().for_each(NodeHost::start);
    let names = create_jobs(&hosts, jobs::draw(&mut rng, ends_at)).await;
    note_jobs_without_arrivals(&world, &names).await;
    hosts.executors.iter().for_each(ExecutorHost::start);
    world.set_faulty(true);
    world.tracker.spawn(hosts.clone().inject(plan));
    world.tracker.spawn(hosts.clone().supervise());
    world.tracker.spawn(jobs::send_requests(hosts.clone(), names.clone(), seed));
    world.tracker.spawn(switches::switch_executors(hosts.clone(), seed));
    sleep_until(heals_at).await;
    hosts.heal();
    recovery::recover(&hosts, &names).await;
    recovery::end(&hosts, &names, &mut rng).await;
    wait_for_ends(&hosts, ends_at).await;
    let outcome = judge(seed, &hosts, ends_at).await;
    hosts.executors.iter().for_each(|executor| executor.drop_running());
    outcome
}

/// Records the pumps that begin only once and end on their own: they would not execute rows that arrive later.
async fn note_jobs_without_arrivals(world: &World, names: &[String]) {
    for name in names {
        let Ok(Some(record)) = world.store.job(NAMESPACE, name).await else { continue };
        if jobs::has_end(&record) && record.spec.schedule.is_none() {
            lock(&world.pumps).jobs_without_arrivals.push(record.id);
        }
    }
}

/// Reads the item names of the definitions that root runs used.
async fn read_item_names(world: &World, facts: &Facts) {
    let versions: BTreeSet<_> = facts.runs.values().map(|run| (run.job, run.job_version)).collect();
    let versions: Vec<_> = versions.into_iter().collect();
    for definition in world.store.definitions(&versions).await.unwrap_or_default() {
        let Some(pump) = definition.spec.compile().ok().and_then(|job| job.pump) else { continue };
        let names = pump.items.keys().cloned().collect();
        lock(&world.pumps).item_names.insert((definition.job, definition.version), names);
    }
}

async fn judge(seed: u64, hosts: &Hosts, ends_at: rondel_core::Timestamp) -> Outcome {
    let world = &hosts.world;
    let failed_nodes = hosts.nodes.iter().filter(|node| node.has_failed());
    let failures: Vec<String> =
        failed_nodes.map(|node| format!("I7 liveness: a loop of n{} ended by itself", node.index)).collect();
    let facts = Facts::read(world, ends_at).await;
    read_item_names(world, &facts).await;
    let mut truth = world.truth();
    let mut violations = std::mem::take(&mut truth.violations);
    violations.extend(failures);
    violations.extend(crate::check::check_pumps(&facts, &truth));
    let mut pumps = lock(&world.pumps);
    violations.append(&mut pumps.violations);
    violations.extend(check::check(&facts, &truth, &pumps));
    let start_count = pumps.executions.len();
    drop((truth, pumps));
    violations.sort();
    violations.dedup();
    let (hash, lines) = world.trace.take();
    Outcome {
        seed,
        hash,
        violations,
        lines,
        start_count,
        run_count: facts.runs.len(),
        seconds: world.elapsed_ms() / 1000,
    }
}
