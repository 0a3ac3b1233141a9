//! A server dies, and the executors of its runs cannot reach the server that takes the runs over. They reach a third
//! server, so the roll call goes through that one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::{JobSpec, Run, RunId, Timestamp};
use serde_json::json;
use tokio::time::sleep;

use crate::check::{self, Facts};
use crate::executor::ExecutorHost;
use crate::faults::Hosts;
use crate::node::NodeHost;
use crate::profile::Profile;
use crate::simulation::{Options, create_jobs, run_on_own_clock, wait_for_ends};
use crate::truth::Truth;
use crate::world::World;

const JOB_COUNT: usize = 16;
/// Longer than a handler takes.
const PERIOD: Duration = Duration::from_secs(6);
/// The first server dies after this long, plus up to three seconds.
const BEFORE_DEATH: Duration = Duration::from_secs(13);
/// The schedules continue for this long after [`BEFORE_DEATH`].
const AFTER_DEATH: Duration = Duration::from_secs(25);
/// How long after its due instant a run may take to begin or to get its verdict. This covers either the time that a
/// handler takes, or the end of the lease, the reconnection of the executors and the roll call.
const SETTLED_WITHIN: Duration = Duration::from_secs(14);

/// The result of the simulation.
#[derive(Clone, Debug, Default)]
pub struct RelayReport {
    /// The violations, each with the rule that is broken.
    pub violations: Vec<String>,
    /// Rows of the ledger.
    pub run_count: usize,
}

/// Simulates the death of the server that owns the runs.
#[must_use]
pub fn relay(seed: u64, options: Options) -> RelayReport {
    run_on_own_clock(options, run_world(seed, options))
}

async fn run_world(seed: u64, options: Options) -> RelayReport {
    let world =
        World::new(seed, Profile { node_count: 3, app_count: 2, ..Profile::steady(2, 100) }, options.keeps_lines);
    let nodes: Vec<_> = (0..3).map(|index| NodeHost::new(&world, index)).collect();
    let reachable_nodes = [Arc::clone(&nodes[0]), Arc::clone(&nodes[2])];
    let executors: Vec<_> = (0..2).map(|index| ExecutorHost::new(&world, index, &reachable_nodes)).collect();
    let ends_at = world.now() + BEFORE_DEATH + AFTER_DEATH;
    // The nodes start in order: when one dies, the next live node in this order takes over.
    nodes[0].start();
    let all_hosts = Hosts { world: Arc::clone(&world), nodes: nodes.clone(), executors: executors.clone() };
    create_jobs(&all_hosts, jobs(ends_at)).await;
    for node in &nodes[1..] {
        sleep(Duration::from_secs(1)).await;
        node.start();
    }
    executors.iter().for_each(ExecutorHost::start);
    sleep(BEFORE_DEATH + Duration::from_millis(seed % 10 * 317)).await;
    nodes[0].kill();
    let remaining_hosts = Hosts { world: Arc::clone(&world), nodes: nodes[1..].to_vec(), executors };
    wait_for_ends(&remaining_hosts, ends_at).await;
    let facts = Facts::read(&world, ends_at).await;
    let truth = world.truth();
    let mut report = RelayReport { run_count: facts.runs.len(), violations: check::check(&facts, &truth) };
    report.violations.extend(late_settlements(&facts, &truth));
    drop(truth);
    remaining_hosts.executors.iter().for_each(|executor| executor.drop_running());
    report
}

fn jobs(ends_at: Timestamp) -> Vec<JobSpec> {
    let job = |index: usize| {
        let mut job = json!({
            "name": format!("j{index}"), "app": format!("app{}", index % 2), "handler": "h",
            "schedule": {"every": format!("{}s", PERIOD.as_secs()), "end_at": ends_at.to_string()},
            "misfire": {"tolerance": "1m"},
        });
        match index % 4 {
            1 => job["delivery"] = json!("at_most_once"),
            2 => job["overlap"] = json!({"policy": "allow"}),
            3 => job["route"] = json!("broadcast"),
            _ => {}
        }
        serde_json::from_value(job).unwrap_or_else(|error| unreachable!("a bad job: {error}"))
    };
    (0..JOB_COUNT).map(job).collect()
}

/// Runs that neither began nor got a verdict soon after they were due.
fn late_settlements(facts: &Facts, truth: &Truth) -> Vec<String> {
    let mut first_starts: BTreeMap<RunId, Timestamp> = BTreeMap::new();
    for start in &truth.starts {
        first_starts.entry(start.run).or_insert(start.began_at);
    }
    let is_late = |run: &&Run| {
        let settled_at = first_starts.get(&run.id).copied().or(run.finished_at);
        run.attempt == 1 && !run.is_root() && settled_at.is_none_or(|at| at > run.due_at + SETTLED_WITHIN)
    };
    let describe = |run: &Run| {
        let (began_at, ended_at) = (first_starts.get(&run.id), run.finished_at);
        format!(
            "L1 roll call: run {} due {}, began {began_at:?}, ended {ended_at:?}: {}",
            run.id, run.due_at, run.status
        )
    };
    facts.runs.values().filter(is_late).map(describe).take(5).collect()
}
