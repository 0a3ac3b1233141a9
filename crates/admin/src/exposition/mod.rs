//! The answer of `/metrics`, gathered at each request. This folder is the only list of metric names; docs/METRICS.md describes them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rondel_core::homes::Switch;
use rondel_core::{NamespaceId, Timestamp};
use rondel_store::cluster::Node;

use self::family::{Family, Label, encode_text, label};
use crate::counters::Count;
use crate::metrics::{FireOutcome, NamespaceCounts, label_name, to_u64};
use crate::node::Shared;

mod family;
mod jobs;
mod process;
mod pumps;

pub use self::family::MEDIA_TYPE as METRICS_MEDIA_TYPE;

/// Gathers all metrics, as text.
pub(crate) async fn gather(shared: &Shared) -> Result<String, fmt::Error> {
    let now = shared.clock.now();
    let mut families = vec![build_info(shared)];
    families.extend(fires(shared));
    families.push(labelled_runs(shared));
    families.extend(memory(shared));
    families.extend(engine_steps(shared, now));
    families.extend(loops(shared, now));
    families.extend(requests_logs_and_alerts(shared));
    families.extend(executors(shared));
    families.extend(cluster(shared, now));
    families.extend(rare_events(shared));
    families.extend(jobs::families(shared, now).await);
    families.extend(process::families());
    encode_text(families)
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[expect(clippy::cast_precision_loss, reason = "a metric is a float, and 2^53 is far away")]
const fn to_f64(count: u64) -> f64 {
    count as f64
}

fn seconds(at: Timestamp) -> f64 {
    to_f64(u64::try_from(at.as_millis()).unwrap_or(0)) / 1_000.0
}

fn build_info(shared: &Shared) -> Family {
    let labels = vec![label("version", &shared.config.server_version), label("node", &shared.config.node_name)];
    Family::gauges("rondel_build_info", "The program and this node's name; always 1", [(labels, 1.0)])
}

fn fires(shared: &Shared) -> Vec<Family> {
    let namespaces = shared.definitions.namespaces.all();
    let fires = namespaces.iter().flat_map(|counts| {
        counts.read_fires().filter(|(.., count)| *count > 0).map(|(trigger, outcome, count)| {
            let labels = vec![
                label("namespace", &counts.name),
                label("trigger", trigger.as_str()),
                label("outcome", outcome.as_str()),
            ];
            (labels, count)
        })
    });
    let missed_counts = namespaces.iter().flat_map(|counts| {
        let reasons = FireOutcome::ALL.into_iter().filter(|outcome| outcome.is_missed());
        reasons.map(|reason| (namespace_labels(counts, "reason", reason.as_str()), missed_count(counts, reason)))
    });
    let runs = namespaces.iter().flat_map(|counts| {
        let verdicts = counts.read_runs().filter(|(status, _)| status.is_terminal());
        verdicts.map(|(status, count)| (namespace_labels(counts, "status", status.as_str()), count))
    });
    let retries = namespaces.iter().flat_map(|counts| {
        let retry_counts = counts.read_retries().filter(|(_, count)| *count > 0);
        retry_counts.map(|(why, count)| (namespace_labels(counts, "reason", why.as_str()), count))
    });
    let metrics = &shared.metrics;
    vec![
        Family::counters("rondel_fires", "Fires by outcome, as this node decided it", fires),
        Family::counters("rondel_missed_fires", "Fires that did not run although they were due", missed_counts),
        Family::histogram(
            "rondel_fire_lateness_seconds",
            "From the instant at which a fire of a schedule was due to its release",
            metrics.fire_lateness.read(),
        ),
        Family::counters("rondel_runs", "Runs that got their verdict; each shard counts", runs),
        Family::counters("rondel_retries", "Attempts that were followed by a retry", retries),
        Family::histogram(
            "rondel_run_queue_seconds",
            "From the instant at which a run was due to its sending to an executor",
            metrics.run_queue.read(),
        ),
        Family::histogram(
            "rondel_run_duration_seconds",
            "From the start of a handler to its end",
            metrics.run_duration.read(),
        ),
        Family::gauge("rondel_runs_active", "Runs that executors have", to_f64(get(&metrics.runs_active))),
        Family::gauge(
            "rondel_runs_queued",
            "Runs that are due and wait for an executor, a limit or their turn",
            to_f64(get(&metrics.runs_queued)),
        ),
    ]
}

/// Counts of verdicts by the job labels that `metrics_labels` lists.
fn labelled_runs(shared: &Shared) -> Family {
    let label_groups = &shared.definitions.labelled_runs;
    let names: Vec<String> = label_groups.keys().iter().map(|key| label_name(key)).collect();
    let mut samples = Vec::new();
    for counts in label_groups.all() {
        let labels = names.iter().zip(counts.values()).map(|(name, value)| label(name.clone(), value));
        let labels: Vec<Label> = labels.collect();
        for (status, count) in counts.read() {
            let key_labels =
                [label("namespace", counts.namespace()), label("app", counts.app()), label("status", status.as_str())];
            samples.push((key_labels.into_iter().chain(labels.iter().cloned()).collect(), count));
        }
    }
    Family::counters("rondel_labelled_runs", "Runs that got their verdict, by labels of their jobs", samples)
}

/// The number of open runs in memory, in total and in each place that holds some of them, and their maximum. Also the number of jobs with runs
/// that are left in the database.
fn memory(shared: &Shared) -> Vec<Family> {
    let runs_in_memory = &shared.metrics.runs_in_memory;
    let places = [
        ("in_memory", to_u64(shared.in_memory.len())),
        ("ring", get(&runs_in_memory.ring)),
        ("gates", get(&runs_in_memory.gates)),
        ("limits", get(&runs_in_memory.limits)),
        ("parked", get(&runs_in_memory.parked)),
        ("roll_call", get(&runs_in_memory.roll_call)),
    ];
    let places = places.map(|(place, count)| (vec![label("place", place)], to_f64(count)));
    vec![
        Family::gauges("rondel_open_runs", "Open runs in memory, and in each place that holds some of them", places),
        Family::gauge(
            "rondel_open_runs_max",
            "Approximate maximum of open runs in memory, and in each place that holds some of them",
            to_f64(to_u64(shared.config.open_runs_max)),
        ),
        Family::gauge(
            "rondel_left_jobs",
            "Jobs of which runs are left in the database until there is room in memory",
            to_f64(to_u64(shared.in_memory.left_count())),
        ),
    ]
}

fn namespace_labels(counts: &NamespaceCounts, name: &'static str, value: &str) -> Vec<Label> {
    vec![label("namespace", &counts.name), label(name, value)]
}

fn missed_count(counts: &NamespaceCounts, reason: FireOutcome) -> u64 {
    counts.read_fires().filter(|(_, outcome, _)| *outcome == reason).map(|(.., count)| count).sum()
}

fn engine_steps(shared: &Shared, now: Timestamp) -> Vec<Family> {
    let metrics = &shared.metrics;
    let lag = now.since(metrics.scanned_at()).as_secs_f64();
    let replies = [("accepted", &metrics.accept_delay), ("refused", &metrics.refuse_delay)];
    vec![
        Family::gauge("rondel_scheduler_lag_seconds", "Time since the last scan that could claim fires", lag),
        Family::histogram("rondel_scan_duration_seconds", "A look for due jobs", metrics.scan.read()),
        Family::histogram("rondel_tick_duration_seconds", "The check of what is due next", metrics.tick.read()),
        Family::histograms(
            "rondel_dispatch_duration_seconds",
            "From the sending of a run to the executor's acceptance or refusal",
            replies.map(|(result, histogram)| (vec![label("result", result)], histogram.read())),
        ),
        Family::histogram(
            "rondel_result_write_duration_seconds",
            "A batch of results, until it is durable",
            metrics.results_written.read(),
        ),
    ]
}

/// The results of each loop's ticks.
fn loops(shared: &Shared, now: Timestamp) -> Vec<Family> {
    let reports = shared.loops.reports();
    let loop_label = |name: &str| vec![label("loop", name)];
    let tick_ages = reports
        .iter()
        .filter_map(|report| Some((loop_label(&report.name), now.since(report.ticked_at?).as_secs_f64())));
    let tick_ages: Vec<_> = tick_ages.collect();
    let durations = reports.iter().map(|report| (loop_label(&report.name), to_f64(report.took_ms) / 1_000.0));
    let failing_flags =
        reports.iter().map(|report| (loop_label(&report.name), f64::from(u8::from(report.failing_since.is_some()))));
    let failed_counts = reports.iter().map(|report| (loop_label(&report.name), report.failed_count));
    vec![
        Family::gauges("rondel_loop_last_tick_age_seconds", "Since the last tick of a loop ended", tick_ages),
        Family::gauges("rondel_loop_last_tick_seconds", "How long the last tick of a loop took", durations),
        Family::gauges("rondel_loop_failing", "1 while the ticks of a loop fail", failing_flags),
        Family::counters("rondel_loop_failures", "Ticks of a loop that failed", failed_counts),
    ]
}

/// Metrics of requests, logs and alerts.
fn requests_logs_and_alerts(shared: &Shared) -> Vec<Family> {
    let metrics = &shared.metrics;
    let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(&metrics.requests);
    vec![
        Family::counters(
            "rondel_http_requests",
            "Answers of the API and the console, by the class of their status",
            classes.map(|(class, count)| (vec![label("class", class)], get(count))),
        ),
        Family::histogram(
            "rondel_http_request_duration_seconds",
            "From a request's arrival until its answer begins",
            metrics.request_duration.read(),
        ),
        Family::counters(
            "rondel_http_limited",
            "Clients that a limit of the port rejected or disconnected",
            metrics.limits.read().map(|(limit, count)| (vec![label("limit", limit.as_str())], count)),
        ),
        Family::counters(
            "rondel_xxl_calls",
            "Calls of executors of XXL-JOB, by outcome; a callback counts once for each of its runs",
            metrics.xxl.read().map(|(call, outcome, count)| {
                (vec![label("call", call.as_str()), label("outcome", outcome.as_str())], count)
            }),
        ),
        Family::gauge(
            "rondel_log_followers",
            "Readers who follow a run's log",
            to_f64(to_u64(shared.log_readers.count())),
        ),
        Family::counter("rondel_log_bytes", "Text of runs' logs that was stored", get(&metrics.log_bytes)),
        Family::counter(
            "rondel_log_lines_dropped",
            "Lines of runs' logs that executors left out",
            get(&metrics.log_lines_dropped),
        ),
        Family::counters(
            "rondel_alert_deliveries",
            "Tries to send messages about failures, by outcome",
            [
                ("delivered", &metrics.alerts_delivered),
                ("refused", &metrics.alerts_refused),
                ("given_up", &metrics.alerts_given_up),
            ]
            .map(|(result, count)| (vec![label("result", result)], get(count))),
        ),
    ]
}

fn executors(shared: &Shared) -> Vec<Family> {
    let names: BTreeMap<NamespaceId, String> = shared.definitions.namespaces.namespace_names().into_iter().collect();
    let mut counts: BTreeMap<(String, String, &str), u64> = BTreeMap::new();
    let mut slots: BTreeMap<(String, String, &str), u64> = BTreeMap::new();
    for executor in shared.registry.all() {
        let namespace = names.get(&executor.namespace).cloned().unwrap_or_else(|| executor.namespace.to_string());
        let key = |state| (namespace.clone(), executor.app_name.clone(), state);
        *counts.entry(key(if executor.is_draining { "draining" } else { "online" })).or_default() += 1;
        *slots.entry(key("busy")).or_default() += u64::from(executor.running.min(executor.slots));
        *slots.entry(key("free")).or_default() += u64::from(executor.slots.saturating_sub(executor.running));
    }
    let with_labels = |counts: BTreeMap<(String, String, &'static str), u64>| {
        counts.into_iter().map(|((namespace, app, state), count)| {
            (vec![label("namespace", namespace), label("app", app), label("state", state)], to_f64(count))
        })
    };
    vec![
        Family::gauges("rondel_executors", "Executors that are connected to this node", with_labels(counts)),
        Family::gauges("rondel_executor_slots", "Their slots, by their last heartbeats", with_labels(slots)),
    ]
}

fn cluster(shared: &Shared, now: Timestamp) -> Vec<Family> {
    let nodes = shared.membership.nodes();
    let mut states = BTreeMap::from([("active", 0_u64), ("draining", 0), ("stopped", 0), ("leaving", 0), ("dead", 0)]);
    for node in nodes.iter() {
        let state = match node.is_living(now) {
            false => "dead",
            true if node.report.is_leaving => "leaving",
            true => match node.switch {
                Switch::Active => "active",
                Switch::Draining => "draining",
                Switch::Stopped => "stopped",
            },
        };
        *states.entry(state).or_default() += 1;
    }
    let states = states.into_iter().map(|(state, count)| (vec![label("state", state)], to_f64(count)));
    let skew = Duration::from_millis(shared.clock.skew_ms().unsigned_abs()).as_secs_f64();
    let skew = if shared.clock.skew_ms() < 0 { -skew } else { skew };
    let connections = shared.store.connections().into_iter().flat_map(|use_of| {
        [("busy", use_of.busy), ("idle", use_of.idle)]
            .map(|(state, count)| (vec![label("state", state)], f64::from(count)))
    });
    vec![
        Family::gauges("rondel_nodes", "Servers of the cluster, as this one sees them", states),
        Family::gauges(
            "rondel_node_heartbeat_age_seconds",
            "Since a server last renewed its lease, as this one sees it",
            heartbeat_ages(&nodes, shared.config.lease, now),
        ),
        Family::gauge(
            "rondel_node_lease_held",
            "1 while this node may act",
            f64::from(u8::from(shared.membership.holds_lease())),
        ),
        Family::gauge("rondel_clock_skew_seconds", "How far this host's clock is ahead of the database's", skew),
        Family::gauges("rondel_db_pool_connections", "Connections to the database", connections),
        Family::gauge(
            "rondel_db_up",
            "1 while the database answers",
            f64::from(u8::from(shared.database.trouble().is_none())),
        ),
    ]
}

/// How long ago each node renewed its lease. A node that has left the cluster is omitted, since it is not expected to send heartbeats.
fn heartbeat_ages(nodes: &[Node], lease: Duration, now: Timestamp) -> Vec<(Vec<Label>, f64)> {
    let expected_nodes = nodes.iter().filter(|node| !node.report.is_leaving || node.is_living(now));
    let age = |node: &Node| now.since(node.lease_until - lease).as_secs_f64();
    expected_nodes.map(|node| (vec![label("node", &node.name)], age(node))).collect()
}

/// Counters that are 0 in a quiet cluster.
fn rare_events(shared: &Shared) -> Vec<Family> {
    Count::ALL.iter().map(|what| Family::counter(what.as_str(), what.help(), shared.counters.get(*what))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rondel_core::NodeId;
    use rondel_store::cluster::NodeReport;
    use rondel_store::{MemStore, Store};
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::clock::BootClock;
    use crate::config::EngineConfig;
    use crate::engine::Engine;
    use crate::lifecycle::Lifecycle;

    async fn start_engine(lifecycle: &Lifecycle) -> Engine {
        let began = Instant::now();
        let micros = move || i64::try_from(began.elapsed().as_micros()).unwrap();
        let clock = move || Timestamp::from_millis(micros() / 1_000) + Duration::from_secs(1_000);
        let store: Arc<dyn Store> = Arc::new(MemStore::new(Arc::new(clock)));
        let config = EngineConfig { boot: BootClock::Given(Arc::new(micros)), ..EngineConfig::default() };
        Engine::start(store, config, lifecycle).await.unwrap()
    }

    async fn lag_of(engine: &Engine) -> f64 {
        let text = engine.metrics().await.unwrap();
        let lag = text.lines().find_map(|line| line.strip_prefix("rondel_scheduler_lag_seconds "));
        lag.unwrap().parse().unwrap()
    }

    /// A scan without the lease claims nothing, so the lag rises although each scan ends quickly.
    #[tokio::test(start_paused = true)]
    async fn the_lag_rises_while_no_fire_can_be_claimed() {
        let lifecycle = Lifecycle::new();
        let engine = start_engine(&lifecycle).await;
        sleep(Duration::from_secs(20)).await;
        let lag = lag_of(&engine).await;
        assert!(lag < 5.0, "{lag}");
        engine.shared().membership.give_back().await;
        sleep(Duration::from_secs(20)).await;
        let lag = lag_of(&engine).await;
        assert!(lag > 15.0, "{lag}");
        lifecycle.soft.cancel();
        lifecycle.hard.cancel();

        let lifecycle = Lifecycle::new();
        let engine = start_engine(&lifecycle).await;
        engine.shared().membership.give_back().await;
        sleep(Duration::from_secs(20)).await;
        let lag = lag_of(&engine).await;
        assert!(lag > 15.0, "before the first scan: {lag}");
        lifecycle.soft.cancel();
        lifecycle.hard.cancel();
    }

    #[test]
    fn a_server_that_has_left_in_order_has_no_heartbeat_age() {
        let node = |name: &str, lease_until: i64, is_leaving: bool| Node {
            id: NodeId::new(1),
            name: name.to_owned(),
            epoch: 1,
            lease_until: Timestamp::from_secs(lease_until),
            is_fenced: false,
            fenced_by: None,
            advertise_url: None,
            server_version: String::new(),
            started_at: Timestamp::EPOCH,
            switch: Switch::Active,
            report: NodeReport { is_leaving, ..NodeReport::default() },
        };
        let living = [node("lives", 105, false), node("leaves", 104, true)];
        let ended = [node("left", 90, true), node("gone", 90, false)];
        let ages = heartbeat_ages(&[living, ended].concat(), Duration::from_secs(5), Timestamp::from_secs(100));
        let ages: Vec<_> = ages.into_iter().map(|(labels, age)| (labels[0].1.clone(), age)).collect();
        assert_eq!(ages, [("lives".to_owned(), 0.0), ("leaves".to_owned(), 1.0), ("gone".to_owned(), 15.0)]);
    }
}
