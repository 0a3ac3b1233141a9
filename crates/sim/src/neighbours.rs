//! Sick neighbours: the executors of one app are gone, and a job of the other app has a handler that no executor has.
//! The runs of both kinds of jobs pile up, with engine bounds of two or three. The healthy jobs must continue
//! nevertheless: the liveness rules L1 to L3.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::{JobSpec, Run, RunId, Timestamp};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::check::{self, Facts};
use crate::executor::ExecutorHost;
use crate::faults::Hosts;
use crate::node::NodeHost;
use crate::profile::{Bounds, Profile};
use crate::rng::SeededRng;
use crate::simulation::{Options, create_jobs, run_on_own_clock, wait_for_ends};
use crate::truth::Truth;
use crate::world::World;

/// How long the neighbours pile up runs.
const LENGTH: Duration = Duration::from_secs(25);
const QUEUE_TIMEOUT: Duration = Duration::from_secs(15);
/// L1: how long after its queue time a run may take to begin or to get its verdict. In this time, a scan takes the run
/// up, and the server's search for expired runs ends it.
const VERDICT_WITHIN: Duration = Duration::from_secs(4);
/// L2: how late a healthy job may be next to sick jobs. If memory is scarce, its runs wait for its own handlers and for
/// a scan.
const HEALTHY_WITHIN: Duration = Duration::from_secs(7);
/// Jobs that pile up runs.
const SICK_COUNT: usize = 5;
/// Shards of a fire.
const SHARD_COUNT: usize = 3;
const SAMPLE_PERIOD: Duration = Duration::from_millis(100);

/// The result of the simulation.
#[derive(Clone, Debug, Default)]
pub struct NeighbourReport {
    /// The violations, each with the rule that is broken.
    pub violations: Vec<String>,
    /// Starts of the healthy jobs.
    pub healthy_start_count: usize,
    /// Rows of the ledger.
    pub run_count: usize,
    /// The largest number of open runs in memory at any time.
    pub in_memory_max: usize,
}

/// Simulates sick neighbours, with bounds that the seed draws.
#[must_use]
pub fn neighbours(seed: u64, options: Options) -> NeighbourReport {
    run_on_own_clock(options, run_world(seed, options))
}

async fn run_world(seed: u64, options: Options) -> NeighbourReport {
    let mut rng = SeededRng::new(seed);
    let bounds = Bounds { open_runs_max: *rng.pick(&[40, 60]), ..Bounds::draw(&mut rng) };
    let open_runs_max = bounds.open_runs_max;
    let profile = Profile { app_count: 2, bounds, ..Profile::steady(2, 100) };
    let world = World::new(seed, profile, options.keeps_lines);
    let nodes = vec![NodeHost::new(&world, 0)];
    let executors: Vec<_> = (0..2).map(|index| ExecutorHost::new(&world, index, &nodes)).collect();
    let hosts = Hosts { world: Arc::clone(&world), nodes, executors };
    hosts.nodes.iter().for_each(NodeHost::start);
    let ends_at = world.now() + LENGTH;
    create_jobs(&hosts, jobs(ends_at)).await;
    // The executor of the other app never starts.
    hosts.executors[1].start();
    let mut in_memory_max = 0;
    while world.now() < ends_at {
        sleep(SAMPLE_PERIOD).await;
        let engine = hosts.nodes[0].engine();
        in_memory_max = engine.map_or(0, |(engine, _)| engine.runs_in_memory()).max(in_memory_max);
    }
    wait_for_ends(&hosts, ends_at).await;
    let facts = Facts::read(&world, ends_at).await;
    let truth = world.truth();
    let mut report = NeighbourReport { run_count: facts.runs.len(), in_memory_max, ..NeighbourReport::default() };
    report.violations = check::check(&facts, &truth);
    report.violations.extend(late_verdicts(&facts, &truth));
    report.check_healthy(&facts, &truth);
    // The engine may exceed its bound by the reserve for jobs with few runs, by runs that only end, by one run of each
    // app, and by the shards of one fire of each app.
    let bound = open_runs_max + open_runs_max / 4 + open_runs_max / 8 + 1 + 2 * (1 + SHARD_COUNT);
    if in_memory_max > bound {
        report.violations.push(format!("L3 memory: {in_memory_max} open runs in memory, {bound} at most"));
    }
    report
}

fn jobs(ends_at: Timestamp) -> Vec<JobSpec> {
    let job = |name: &str, app: usize, fields: Value| {
        let mut job = json!({
            "name": name, "app": format!("app{app}"), "handler": "h",
            "schedule": {"every": "1s", "end_at": ends_at.to_string()},
            "overlap": {"policy": "allow"}, "queue_timeout": format!("{}s", QUEUE_TIMEOUT.as_secs()),
        });
        for (key, value) in fields.as_object().into_iter().flatten() {
            job[key] = value.clone();
        }
        serde_json::from_value(job).unwrap_or_else(|error| unreachable!("a bad job: {error}"))
    };
    let mut jobs: Vec<JobSpec> = (0..SICK_COUNT).map(|index| job(&format!("sick-{index}"), 0, json!({}))).collect();
    jobs.push(job("sick-sharded", 0, json!({"shards": SHARD_COUNT})));
    let job_without_handler =
        |index| job(&format!("sick-handler-{index}"), 1, json!({"handler": format!("gone{index}"), "priority": 9}));
    jobs.extend((0..3).map(job_without_handler));
    jobs.push(job("healthy-plain", 1, json!({})));
    jobs.push(job("healthy-sharded", 1, json!({"shards": 2})));
    jobs
}

/// L1: every run has begun, or has a verdict, soon after its queue time.
fn late_verdicts(facts: &Facts, truth: &Truth) -> Vec<String> {
    let mut first_starts: BTreeMap<RunId, Timestamp> = BTreeMap::new();
    for start in &truth.starts {
        first_starts.entry(start.run).or_insert(start.began_at);
    }
    let until = |run: &Run| run.due_at + QUEUE_TIMEOUT + VERDICT_WITHIN;
    let is_late = |run: &&Run| {
        let settled_at = first_starts.get(&run.id).copied().or(run.finished_at);
        run.attempt == 1 && !run.is_root() && settled_at.is_none_or(|at| at > until(run))
    };
    let describe = |run: &Run| {
        let (began_at, ended_at) = (first_starts.get(&run.id), run.finished_at);
        format!("L1 in time: run {} due {}, began {began_at:?}, ended {ended_at:?}: {}", run.id, run.due_at, run.status)
    };
    facts.runs.values().filter(is_late).map(describe).take(5).collect()
}

impl NeighbourReport {
    /// L2: each fire of a healthy job begins close to its instant.
    fn check_healthy(&mut self, facts: &Facts, truth: &Truth) {
        let is_healthy = |run: &&Run| facts.jobs.get(&run.job).is_some_and(|job| job.spec.name.starts_with("healthy"));
        let first_starts: BTreeMap<RunId, Timestamp> =
            truth.starts.iter().rev().map(|start| (start.run, start.began_at)).collect();
        for run in facts.runs.values().filter(is_healthy).filter(|run| !run.is_root()) {
            let Some(at) = first_starts.get(&run.id) else {
                self.violations.push(format!(
                    "L2 neighbours: run {} due {} is {} and never began",
                    run.id, run.due_at, run.status
                ));
                continue;
            };
            self.healthy_start_count += 1;
            if *at > run.due_at + HEALTHY_WITHIN {
                self.violations.push(format!("L2 neighbours: run {} due {} began {at}", run.id, run.due_at));
            }
        }
    }
}
