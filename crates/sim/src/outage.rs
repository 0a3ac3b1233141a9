//! Ten minutes without executors, or without a server: checks each fire in the ledger afterwards, by overlap policy and
//! misfire policy. The outage has its real length, on the simulated clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rondel_core::{JobSpec, Reason, Run, RunId, RunStatus, Timestamp, Trigger};
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

/// Jobs for each pair of an overlap policy and a misfire policy.
const JOB_COUNT: usize = 20;
const PERIOD: Duration = Duration::from_secs(15);
const QUEUE_TIMEOUT: Duration = Duration::from_secs(40);
const OUTAGE_LENGTH: Duration = Duration::from_secs(600);
/// How long everything works before the outage.
const TIME_BEFORE_OUTAGE: Duration = Duration::from_secs(40);
/// How long everything works after the outage.
const TIME_AFTER_OUTAGE: Duration = Duration::from_secs(50);
/// Fires this close to the beginning or the end of the outage may be on either side of it.
const OUTAGE_MARGIN: Duration = Duration::from_secs(8);
/// How many times a server is stopped.
const STOP_COUNT: u32 = 5;
const STOP_PERIOD: Duration = Duration::from_secs(10);
const OVERLAPS: [&str; 4] = ["serial", "discard", "cover", "allow"];
const MISFIRES: [&str; 3] = ["skip", "once", "all"];

/// The part of the cluster that has an outage, for ten minutes unless noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutageScope {
    /// All executors.
    Executors,
    /// All executors, and halfway through the server restarts.
    ExecutorsWithRestart,
    /// The server.
    Server,
    /// The server, several times for some seconds: it is stopped while runs are in progress.
    StoppedServer,
}

/// The result of an outage.
#[derive(Clone, Debug, Default)]
pub struct OutageReport {
    /// The violations: broken rules of the checker, and differences from the table of outages in docs/API.md (overlap and misfire).
    pub violations: Vec<String>,
    /// The number of fires during the outage, by overlap policy, misfire policy and verdict. A row that stands for
    /// several fires counts for all of them.
    pub verdicts: BTreeMap<(String, String, String), i64>,
    /// Rows of the ledger.
    pub run_count: usize,
}

/// Simulates an outage of this part of the cluster, and compares the ledger with the table of outages in docs/API.md.
#[must_use]
pub fn outage(scope: OutageScope, options: Options) -> OutageReport {
    run_on_own_clock(options, run_world(scope, options))
}

async fn run_world(scope: OutageScope, options: Options) -> OutageReport {
    let world = World::new(1, Profile::steady(2, 300), options.keeps_lines);
    let nodes = vec![NodeHost::new(&world, 0)];
    let executors: Vec<_> = (0..2).map(|index| ExecutorHost::new(&world, index, &nodes)).collect();
    let hosts = Hosts { world: Arc::clone(&world), nodes, executors };
    hosts.nodes.iter().for_each(NodeHost::start);
    // Stops of the server are tested while runs wait for earlier ones of their jobs.
    let (length, period, count) = match scope {
        OutageScope::StoppedServer => (STOP_PERIOD * STOP_COUNT, Duration::from_secs(1), JOB_COUNT / 4),
        OutageScope::Executors | OutageScope::ExecutorsWithRestart | OutageScope::Server => {
            (OUTAGE_LENGTH, PERIOD, JOB_COUNT)
        }
    };
    let ends_at = world.now() + TIME_BEFORE_OUTAGE + length + TIME_AFTER_OUTAGE;
    create_jobs(&hosts, jobs(ends_at, period, count)).await;
    hosts.executors.iter().for_each(ExecutorHost::start);
    sleep(TIME_BEFORE_OUTAGE).await;
    let from = world.now();
    match scope {
        OutageScope::Executors | OutageScope::ExecutorsWithRestart => {
            hosts.executors.iter().for_each(|executor| executor.kill());
            sleep(OUTAGE_LENGTH / 2).await;
            if scope == OutageScope::ExecutorsWithRestart {
                let stopped_at = world.now();
                hosts.nodes[0].kill();
                sleep(Duration::from_secs(3)).await;
                hosts.nodes[0].start();
                world.truth().server_outages.push((stopped_at, world.now() + OUTAGE_MARGIN));
            }
            sleep(OUTAGE_LENGTH / 2).await;
            hosts.executors.iter().for_each(ExecutorHost::start);
        }
        OutageScope::StoppedServer => {
            for _ in 0..STOP_COUNT {
                sleep(STOP_PERIOD / 2).await;
                let stopped_at = world.now();
                hosts.nodes[0].drain(Duration::from_secs(1));
                sleep(STOP_PERIOD / 2).await;
                hosts.nodes[0].start();
                world.truth().server_outages.push((stopped_at, world.now() + OUTAGE_MARGIN));
            }
        }
        OutageScope::Server => {
            hosts.nodes[0].kill();
            sleep(OUTAGE_LENGTH).await;
            hosts.nodes[0].start();
            world.truth().server_outages.push((from, world.now() + OUTAGE_MARGIN));
        }
    }
    let until = world.now();
    wait_for_ends(&hosts, ends_at).await;
    let facts = Facts::read(&world, ends_at).await;
    let truth = world.truth();
    let mut report = OutageReport { run_count: facts.runs.len(), ..OutageReport::default() };
    report.violations = check::check(&facts, &truth);
    match scope {
        OutageScope::StoppedServer => report.violations.extend(lost_without_start(&facts, &truth)),
        OutageScope::Executors | OutageScope::ExecutorsWithRestart | OutageScope::Server => {
            report.check_outage(&facts, scope, (from, until))
        }
    }
    hosts.executors.iter().for_each(|executor| executor.drop_running());
    report
}

fn jobs(ends_at: Timestamp, period: Duration, count: usize) -> Vec<JobSpec> {
    let mut specs = Vec::new();
    for (overlap, misfire) in OVERLAPS.iter().flat_map(|overlap| MISFIRES.map(|misfire| (*overlap, misfire))) {
        for index in 0..count {
            let mut job = json!({
                "name": format!("{overlap}-{misfire}-{index}"), "app": "app0", "handler": "h",
                "schedule": {"every": format!("{}s", period.as_secs()), "end_at": ends_at.to_string()},
                "overlap": {"policy": overlap}, "misfire": {"policy": misfire, "max": 100},
                "queue_timeout": format!("{}s", QUEUE_TIMEOUT.as_secs()),
            });
            match index % 5 {
                1 => job["delivery"] = json!("at_most_once"),
                2 => job["route"] = json!("broadcast"),
                3 => job["shards"] = json!(3),
                4 => job["retry"] = json!({"max": 1, "backoff": "1s"}),
                _ => {}
            }
            let spec = serde_json::from_value(job);
            specs.push(spec.unwrap_or_else(|error| unreachable!("a bad job: {error}")));
        }
    }
    specs
}

impl OutageReport {
    fn check_outage(&mut self, facts: &Facts, scope: OutageScope, (from, until): (Timestamp, Timestamp)) {
        for job in facts.jobs.values() {
            let mut name_parts = job.spec.name.split('-').map(str::to_owned);
            let (Some(overlap), Some(misfire)) = (name_parts.next(), name_parts.next()) else { continue };
            let is_fire = |run: &&Run| run.job == job.id && run.parent.is_none();
            let mut fires: Vec<&Run> = facts.runs.values().filter(is_fire).collect();
            fires.sort_by_key(|run| run.fire_at);
            // Runs that were open when the outage began are left out, because they end in other ways.
            let first_fire_at = from + QUEUE_TIMEOUT + OUTAGE_MARGIN;
            let is_inside =
                |run: &&&Run| run.fire_at >= first_fire_at && run.fire_at < until - QUEUE_TIMEOUT - OUTAGE_MARGIN;
            let is_expected = |run: &Run| match scope {
                OutageScope::Server => is_as_missed(&misfire, run),
                OutageScope::Executors | OutageScope::ExecutorsWithRestart | OutageScope::StoppedServer => {
                    is_as_queued(&overlap, run, scope)
                }
            };
            for run in fires.iter().filter(is_inside) {
                let verdict = verdict_text(run);
                let key = (overlap.clone(), misfire.clone(), verdict.clone());
                *self.verdicts.entry(key).or_default() += run.span_count;
                if !is_expected(run) {
                    self.violations.push(format!("table: {} of {} is {verdict}", job.spec.name, run.fire_at));
                }
            }
            if scope == OutageScope::Server {
                self.check_missed_fires(&job.spec.name, (&overlap, &misfire), &fires, (from, until));
            } else if !fires
                .iter()
                .any(|run| run.fire_at + QUEUE_TIMEOUT > until && run.fire_at < until && ran_or_was_covered(run))
            {
                self.violations.push(format!("table: nothing of {} that could wait still has run", job.spec.name));
            }
        }
    }

    /// Checks how many of the missed fires a server catches up on, and how many rows stand for the others.
    fn check_missed_fires(
        &mut self,
        name: &str,
        (overlap, misfire): (&str, &str),
        fires: &[&Run],
        (from, until): (Timestamp, Timestamp),
    ) {
        let catch_up_runs: Vec<&&Run> = fires.iter().filter(|run| run.trigger == Trigger::Misfire).collect();
        let span_row_count = fires.iter().filter(|run| run.span_count > 1).count();
        let missed_count =
            usize::try_from((until - OUTAGE_MARGIN * 2).since(from).as_secs() / PERIOD.as_secs()).unwrap_or(0);
        let is_right = match misfire {
            "skip" => catch_up_runs.is_empty() && span_row_count == 1,
            "once" => catch_up_runs.len() == 1 && span_row_count == 1,
            _ => catch_up_runs.len() >= missed_count && span_row_count == 0,
        };
        let ran_count = catch_up_runs.iter().filter(|run| ran_or_was_covered(run)).count();
        let enough_ran = match (misfire, overlap) {
            ("skip", _) => true,
            // All of them run in the end, one after the other or side by side.
            (_, "serial" | "allow") => ran_count == catch_up_runs.len(),
            _ => ran_count >= 1,
        };
        if !is_right || !enough_ran {
            let ends: BTreeSet<String> = catch_up_runs.iter().map(|run| verdict_text(run)).collect();
            let description = format!(
                "{} caught up ({ends:?}), {ran_count} of them ran, {span_row_count} spans, {missed_count} missed",
                catch_up_runs.len()
            );
            self.violations.push(format!("table: {name}: {description}"));
        }
    }
}

/// Runs that count as lost, or as perhaps begun, although no executor ever had them.
fn lost_without_start(facts: &Facts, truth: &Truth) -> Vec<String> {
    let first_starts = truth.starts.iter().filter(|start| start.attempt == 1);
    let begun_runs: BTreeSet<RunId> = first_starts.map(|start| start.run).collect();
    let is_lost = |run: &&Run| run.attempt > 1 || run.status == RunStatus::Unknown;
    let lost_runs = facts.runs.values().filter(is_lost).filter(|run| !run.is_root() && !begun_runs.contains(&run.id));
    lost_runs
        .map(|run| format!("lost: run {} was never sent, and is {} with attempt {}", run.id, run.status, run.attempt))
        .collect()
}

/// Whether the run ran, or waited as its job's next run until a later run replaced it.
fn ran_or_was_covered(run: &Run) -> bool {
    let is_covered = run.reason == Some(Reason::Covered);
    is_covered || matches!(run.status, RunStatus::Succeeded | RunStatus::Failed | RunStatus::TimedOut)
}

fn verdict_text(run: &Run) -> String {
    match run.reason {
        Some(reason) => format!("{}: {reason}", run.status),
        None => run.status.to_string(),
    }
}

/// Whether a fire whose queue time had passed before the executors came back has the expected verdict.
fn is_as_queued(overlap: &str, run: &Run, scope: OutageScope) -> bool {
    let is_restart = run.reason == Some(Reason::Misfire) && scope == OutageScope::ExecutorsWithRestart;
    let is_expected = match overlap {
        "discard" => matches!(run.reason, Some(Reason::NoExecutor | Reason::Overlap)),
        "cover" => run.reason == Some(Reason::Covered),
        _ => run.reason == Some(Reason::NoExecutor),
    };
    // A run whose server died gets another attempt. The later fire that covers the run then cancels this attempt.
    let is_ended =
        run.status == RunStatus::Cancelled && overlap == "cover" && scope == OutageScope::ExecutorsWithRestart;
    (run.status == RunStatus::Skipped || is_ended) && (is_expected || is_restart)
}

/// Whether a fire that no server saw has the expected verdict.
fn is_as_missed(misfire: &str, run: &Run) -> bool {
    let is_skipped = run.status == RunStatus::Skipped;
    match misfire {
        "skip" | "once" => is_skipped && run.reason == Some(Reason::Misfire),
        _ => run.trigger == Trigger::Misfire && (!is_skipped || run.reason != Some(Reason::Misfire)),
    }
}
