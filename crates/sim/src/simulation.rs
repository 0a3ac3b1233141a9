//! One simulation: a seed, from the draw of its world to the checker's verdict.

use std::sync::Arc;
use std::time::Duration;

use rondel_admin::jobs;
use rondel_core::{JobSpec, NamespaceId, Timestamp};
use rondel_failpoint::mutant::Mutant;
use rondel_store::ledger::RunQuery;
use rondel_store::{Heal as _, Runs as _};
use tokio::time::{Instant, sleep, sleep_until};

use crate::check::{self, Facts};
use crate::executor::ExecutorHost;
use crate::faults::{Hosts, Plan};
use crate::jobs::draw_jobs;
use crate::maintenance;
use crate::node::NodeHost;
use crate::profile::{AHEAD_ABOVE, Bounds, LIMITED_ABOVE, Profile, SINGLE_ABOVE};
use crate::requests;
use crate::rng::SeededRng;
use crate::switches;
use crate::world::World;

const NAMESPACE: NamespaceId = NamespaceId::new(1);
/// How long schedules continue after all faults have ended.
const SCHEDULES_CONTINUE_FOR: Duration = Duration::from_secs(4);
/// How long the next end of a run may take once all faults have ended. It is longer than the longest wait that a drawn
/// job can have. A serial job without an executor ends its runs one after the other, each after its longest wait.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// How to run a seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether to keep the lines of the trace.
    pub keeps_lines: bool,
    /// A mutant, which is a safeguard to disable; only in builds with debug assertions.
    pub mutant: Option<Mutant>,
}

/// The outcome of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// A hash of everything that happened, in order: the same for each run of a seed.
    pub hash: u64,
    /// The violations that the checker found, each with the rule that is broken.
    pub violations: Vec<String>,
    /// Lines of the trace.
    pub lines: Vec<String>,
    /// The number of handlers that began, which shows whether anything happened.
    pub start_count: usize,
    /// Rows of the ledger.
    pub run_count: usize,
    /// Simulated seconds.
    pub seconds: u64,
}

/// Runs a seed from its beginning to the checker's verdict.
///
/// # Panics
/// If the runtime cannot be built.
#[must_use]
pub fn simulate(seed: u64, options: Options) -> Outcome {
    run_on_own_clock(options, run_world(seed, options))
}

/// Runs a world from its beginning to its end, on a separate paused clock and with the mutant of the options.
pub(crate) fn run_on_own_clock<T>(options: Options, world: impl Future<Output = T>) -> T {
    #[cfg(debug_assertions)]
    rondel_failpoint::mutant::set(options.mutant);
    // A release build has no mutants.
    #[cfg(not(debug_assertions))]
    let _: Options = options;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing from the host");
    let outcome = runtime.block_on(world);
    drop(runtime);
    #[cfg(debug_assertions)]
    rondel_failpoint::mutant::set(None);
    outcome
}

/// One seed of eleven has jobs in shadow mode.
const fn has_shadows(seed: u64) -> bool {
    seed % 11 == 8
}

async fn run_world(seed: u64, options: Options) -> Outcome {
    let mut rng = SeededRng::new(seed);
    let drawn_profile = Profile::draw(&mut rng);
    let is_limited = seed > LIMITED_ABOVE;
    let is_single_server = seed > SINGLE_ABOVE && !is_limited;
    let profile = Profile {
        silence_seed: Some(seed),
        shadow_seed: has_shadows(seed).then_some(seed),
        limit_seed: is_limited.then_some(seed),
        bounds: Bounds::of(seed),
        sends_ahead: seed > AHEAD_ABOVE,
        is_single_server,
        node_count: if is_single_server { 1 } else { drawn_profile.node_count },
        ..drawn_profile
    };
    let plan = Plan::draw(&mut rng, &profile).with_blackout(&profile).with_restarts(seed, &profile);
    let world = World::new(seed, profile.clone(), options.keeps_lines);
    world.record("profile", 0, || format!("{profile:?}"));
    let nodes: Vec<_> = (0..profile.node_count).map(|index| NodeHost::new(&world, index)).collect();
    let executors = (0..profile.executor_count).map(|index| ExecutorHost::new(&world, index, &nodes)).collect();
    let hosts = Hosts { world: Arc::clone(&world), nodes, executors };
    let heals_at = world.began_at + Duration::from_millis(profile.faulty_ms);
    let ends_at = world.now() + Duration::from_millis(profile.faulty_ms) + SCHEDULES_CONTINUE_FOR;
    // The last window ends while schedules still fire.
    let windows_end_at = ends_at - Duration::from_secs(1);
    maintenance::plan_first(&world, seed, windows_end_at).await;
    hosts.nodes.iter().for_each(NodeHost::start);
    let names = create_drawn_jobs(&hosts, &mut rng, ends_at).await;
    hosts.executors.iter().for_each(ExecutorHost::start);
    world.set_faulty(true);
    world.tracker.spawn(hosts.clone().inject(plan));
    world.tracker.spawn(hosts.clone().supervise());
    world.tracker.spawn(requests::send_requests(hosts.clone(), names, seed));
    world.tracker.spawn(switches::switch_executors(hosts.clone(), seed));
    world.tracker.spawn(maintenance::plan_ahead(hosts.clone(), seed, windows_end_at));
    sleep_until(heals_at).await;
    hosts.heal();
    wait_for_ends(&hosts, ends_at).await;
    let outcome = judge(seed, &hosts, ends_at).await;
    hosts.executors.iter().for_each(|executor| executor.drop_running());
    outcome
}

async fn create_drawn_jobs(hosts: &Hosts, rng: &mut SeededRng, ends_at: Timestamp) -> Vec<String> {
    let specs = draw_jobs(rng, &hosts.world.profile, ends_at);
    create_jobs(hosts, specs).await
}

/// Creates jobs through the first server, once it is up. Returns their names.
pub(crate) async fn create_jobs(hosts: &Hosts, specs: Vec<JobSpec>) -> Vec<String> {
    let engine = loop {
        match hosts.nodes[0].engine() {
            Some((engine, _)) => break engine,
            None => sleep(Duration::from_millis(5)).await,
        }
    };
    let mut names = Vec::new();
    for spec in specs {
        let name = spec.name.clone();
        hosts.world.record("job", 0, || serde_json::to_string(&spec).unwrap_or_default());
        match jobs::create(&engine, NAMESPACE, spec, "sim").await {
            Ok(_) => names.push(name),
            Err(error) => hosts.world.truth().violate("a drawn job was refused", &format!("{name}: {error:?}")),
        }
    }
    names
}

/// Waits, up to a limit, until all servers are up, no run is open and nothing will fire.
pub(crate) async fn wait_for_ends(hosts: &Hosts, ends_at: Timestamp) {
    let world = &hosts.world;
    // If the clock stepped back, the schedules end later.
    let remaining_time = ends_at.since(world.now()) + Duration::from_secs(2);
    sleep(remaining_time).await;
    let may_heal_late = world.profile.steps_back || !world.profile.has_steady_servers();
    let query = RunQuery { limit: u32::MAX, ..RunQuery::default() };
    let (mut quiet_count, mut known_ended_count, mut gives_up_at) = (0, 0, Instant::now() + ENDS_WITHIN);
    while quiet_count < 3 {
        sleep(Duration::from_millis(700)).await;
        let runs = world.store.list_runs(NAMESPACE, &query).await.unwrap_or_default();
        let ended_count = runs.iter().filter(|run| run.status.is_terminal()).count();
        // A job with a fixed delay may plan an instant that already had a fire: a pause inside a maintenance window
        // settled it, or the clock stepped back. The scan then plans the job again in a second transaction. If the
        // server dies before that, no further fire follows until the heal loop notices the job.
        let stuck_job_count = if may_heal_late { stuck_count(world).await } else { 0 };
        // A server that was just leaving when the faults ended comes back some seconds later.
        let down_node_count = hosts.nodes.iter().filter(|node| node.engine().is_none()).count();
        quiet_count =
            if runs.len() - ended_count + stuck_job_count + down_node_count == 0 { quiet_count + 1 } else { 0 };
        if ended_count > known_ended_count {
            (known_ended_count, gives_up_at) = (ended_count, Instant::now() + ENDS_WITHIN);
        } else if Instant::now() > gives_up_at {
            return;
        }
    }
}

async fn stuck_count(world: &World) -> usize {
    let stuck_jobs = world.store.stuck_jobs(100).await.unwrap_or_default();
    stuck_jobs.iter().filter(|stuck_job| stuck_job.awaited_run.is_none()).count()
}

async fn judge(seed: u64, hosts: &Hosts, ends_at: Timestamp) -> Outcome {
    let world = &hosts.world;
    for node in &hosts.nodes {
        if node.has_failed() {
            world.truth().violate("I7 liveness", &format!("a loop of n{} ended by itself", node.index));
        }
    }
    let stuck_jobs = world.store.stuck_jobs(100).await.unwrap_or_default();
    let facts = Facts::read(world, ends_at).await;
    let mut truth = world.truth();
    for stuck_job in stuck_jobs.iter().filter(|stuck_job| stuck_job.awaited_run.is_none()) {
        truth.violate("I7 liveness", &format!("job {} has no next fire although it should", stuck_job.job));
    }
    let mut violations = std::mem::take(&mut truth.violations);
    violations.extend(check::check(&facts, &truth));
    let start_count = truth.starts.len();
    drop(truth);
    violations.sort();
    violations.dedup();
    let (hash, lines) = world.trace.take();
    let seconds = world.elapsed_ms() / 1000;
    Outcome { seed, hash, violations, lines, start_count, run_count: facts.runs.len(), seconds }
}
