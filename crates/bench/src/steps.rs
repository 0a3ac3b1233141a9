//! A measurement from beginning to end.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::{IdGen, Timestamp};
use rondel_store::counters::TableSizes;
use rondel_store::{SqlStore, StoreConfig};
use tokio::time::Instant;

use crate::database_snapshot::{take, take_still};
use crate::database_work::{DatabaseWork, Snapshot};
use crate::fleet::Fleet;
use crate::histogram::Histogram;
use crate::load::{self, FireTimes};
use crate::metered::{MeteredStore, Metrics};
use crate::plan::{Mode, Plan};
use crate::probe::probe;
use crate::recorder::{Observations, Window};
use crate::report::{Counts, Cpu, Durability, Lateness, Memory, ProbeLane, Report, StoreCall};
use crate::test_server::{ClaimCounts, TestServers};
use crate::usage::{self, Usage};
use crate::witness::Witness;
use crate::{BenchError, clock};

/// Minimum time from the creation of the last job to its first fire.
const HEAD_START: Duration = Duration::from_secs(4);
/// How many jobs are created per second, at least.
const CREATED_PER_SECOND: u32 = 2_000;
/// How long the last results of the window may take.
const DURABLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Ordinal of the ids of jobs: the highest one, which no node gets before the lower ones are taken.
const ORDINAL: i64 = IdGen::ORDINAL_COUNT - 1;
/// How long the jobs of [`Mode::Steady`] keep firing after the window, so that the window contains the whole cost of claiming ahead. Then
/// they end, so that every claimed run gets a verdict, and another measurement on the same database is not disturbed.
const EXTRA_FIRE_TIME: Duration = Duration::from_secs(5);
/// A measurement counts as settled once no run has been open for this long.
const QUIET_TIME: Duration = Duration::from_secs(2);
/// How long a measurement that must settle ([`Plan::must_settle`]) waits until all its runs have a verdict. Others wait as long as
/// [`DURABLE_TIMEOUT`].
const SETTLED_TIMEOUT: Duration = Duration::from_secs(300);
/// How far ahead the fires of idle jobs are planned.
const IDLE_LEAD_TIME: Duration = Duration::from_secs(5 * 365 * 24 * 3600);

/// Runs one measurement.
///
/// # Errors
/// Those of [`BenchError`].
pub async fn run(plan: &Plan) -> Result<Report, BenchError> {
    // The load is read first, because the probe itself adds load.
    let load_before = usage::load();
    let store = open(plan).await?;
    let lanes_before = probe_unless_idle(&store, plan).await?;
    let mut report = measure(&store, plan, load_before).await?;
    let lanes_after = probe_unless_idle(&store, plan).await?;
    store.close().await;
    report.add_probe(lanes_before, lanes_after);
    Ok(report)
}

/// Opens the database, and refuses one that is in use.
pub(crate) async fn open(plan: &Plan) -> Result<Arc<SqlStore>, BenchError> {
    let defaults = StoreConfig::default();
    let pool_size = defaults.pool_size * plan.nodes.max(1);
    let config = StoreConfig { url: plan.database.clone(), pool_size, ..defaults };
    let store = Arc::new(SqlStore::open(&config).await?);
    if !plan.may_have_data {
        load::check_empty(&store).await?;
    }
    Ok(store)
}

/// Probes the database, unless the plan is idle or has no probe.
pub(crate) async fn probe_unless_idle(store: &Arc<SqlStore>, plan: &Plan) -> Result<Vec<ProbeLane>, BenchError> {
    let has_probe = plan.mode != Mode::Idle && !plan.probe_time.is_zero();
    if has_probe { probe(store, plan).await } else { Ok(Vec::new()) }
}

/// Everything that was measured in one window.
#[derive(Debug)]
struct MeasuredWindow {
    window: Window,
    /// How long the creation of the jobs took.
    creation_time: Duration,
    /// The length of the window; for a burst, until its last result was durable.
    duration: Duration,
    observations: Observations,
    witness: Histogram,
    metrics: Metrics,
    cost: Cost,
    memory: Memory,
    claims: ClaimCounts,
    database_work: DatabaseWork,
}

/// The usage of all parts: in total so far, or during the window.
#[derive(Clone, Copy, Debug)]
struct Cost {
    server: Usage,
    executors: Option<Usage>,
    database: Option<Usage>,
}

impl Cost {
    fn now(plan: &Plan, fleet: &Fleet) -> Self {
        let server = Usage { cpu: clock::cpu_time(), ..usage::of(std::process::id()) };
        Self { server, executors: fleet.usage(), database: plan.database_pid.map(usage::of_tree) }
    }

    fn since(self, earlier: Self) -> Self {
        let difference = |now: Option<Usage>, earlier_usage: Option<Usage>| Some(now?.since(earlier_usage?));
        Self {
            server: self.server.since(earlier.server),
            executors: difference(self.executors, earlier.executors),
            database: difference(self.database, earlier.database),
        }
    }
}

/// Measures once on an open database.
pub(crate) async fn measure(store: &Arc<SqlStore>, plan: &Plan, load_before: String) -> Result<Report, BenchError> {
    Ok(observe(store, plan).await?.report(plan, load_before))
}

/// Makes the measurement and ends its executors and servers. The servers drain before the executors end, so that the last results
/// are stored.
async fn observe(store: &Arc<SqlStore>, plan: &Plan) -> Result<MeasuredWindow, BenchError> {
    let metered_store = Arc::new(MeteredStore::new(Arc::clone(store)));
    let ids = IdGen::new(ORDINAL);
    // Executors are refused as long as the app does not exist.
    load::ensure_bench_app(store, &ids).await?;
    let sizes = store.table_sizes().await;
    let mut creation_time = Duration::ZERO;
    if plan.mode == Mode::Idle {
        let first_fire = (clock::now() + IDLE_LEAD_TIME).ceil_second();
        creation_time = create_jobs(store, &ids, plan, FireTimes::OneByOne(first_fire)).await?;
    }
    let test_servers = TestServers::start(&metered_store, plan.nodes).await?;
    let drive_result = drive(store, &ids, (plan, sizes), &metered_store, &test_servers).await;
    let claims = test_servers.claims().await?;
    test_servers.drain().await;
    let DriveResult { measured_window, fleet, snapshot, snapshot_at } = drive_result?;
    let observations = fleet.end().await?;
    test_servers.close().await?;
    let creation_time = measured_window.creation_time.max(creation_time);
    let metrics = metered_store.read(Clone::clone);
    let seconds = snapshot_at.elapsed().as_secs_f64();
    let run_counts = (metrics.stored_count, metrics.open_count());
    let database_work = DatabaseWork::between(&snapshot, &take_still(store, plan).await, seconds, run_counts);
    Ok(MeasuredWindow { creation_time, observations, claims, metrics, database_work, ..measured_window })
}

/// The result of [`drive`].
#[derive(Debug)]
struct DriveResult {
    measured_window: MeasuredWindow,
    fleet: Fleet,
    /// What the database had counted before the first fire.
    snapshot: Snapshot,
    snapshot_at: Instant,
}

/// Starts the executors, creates the jobs that are to fire, and watches.
async fn drive(
    store: &SqlStore,
    ids: &IdGen,
    (plan, sizes): (&Plan, TableSizes),
    metered_store: &MeteredStore,
    test_servers: &TestServers,
) -> Result<DriveResult, BenchError> {
    let mut fleet = Fleet::start(plan, test_servers).await?;
    let time_to_create = Duration::from_secs((plan.jobs / CREATED_PER_SECOND).into());
    let first_fire = (clock::now() + HEAD_START + time_to_create).ceil_second();
    let (fires, window) = match plan.mode {
        Mode::Idle => (None, window(clock::now().ceil_second(), plan.warm_up, plan.seconds)),
        Mode::Burst => (Some(FireTimes::Once(first_fire)), window(first_fire, 0, 1)),
        Mode::Steady => {
            let window = window(first_fire, plan.warm_up, plan.seconds);
            (Some(FireTimes::EachSecond { first_fire, last_fire: last_fire(plan, window) }), window)
        }
    };
    if let Some(flood) = plan.flood {
        let begins_at = first_fire - Duration::from_secs(1);
        let length = Duration::from_secs((plan.warm_up + plan.seconds + 2).into());
        metered_store.ignore_job(load::create_flood(store, ids, flood, begins_at, length).await?);
    }
    let creation_time = match fires {
        Some(fires) => create_jobs(store, ids, plan, fires).await?,
        None => Duration::ZERO,
    };
    let (snapshot, snapshot_at) = (take(store, plan, sizes).await, Instant::now());
    fleet.set_window(window).await?;
    let measured_window = watch(plan, metered_store, &mut fleet, window).await?;
    if let Some(last_fire_at) = last_fire(plan, window) {
        clock::sleep_until(last_fire_at).await;
        let limit = if plan.must_settle { SETTLED_TIMEOUT } else { DURABLE_TIMEOUT };
        let is_settled = wait_until_settled(metered_store, limit).await;
        if plan.must_settle && !is_settled {
            let message = "the runs of an overloaded round had no verdicts five minutes later: begin with fewer jobs";
            return Err(BenchError::failed(message));
        }
    }
    let measured_window = MeasuredWindow { creation_time, ..measured_window };
    Ok(DriveResult { measured_window, fleet, snapshot, snapshot_at })
}

/// The last instant at which the jobs fire; `None` for jobs that fire once or not at all.
fn last_fire(plan: &Plan, window: Window) -> Option<Timestamp> {
    (plan.mode == Mode::Steady).then(|| Timestamp::from_millis(window.to_ms) + EXTRA_FIRE_TIME)
}

/// Waits until every run has a verdict, and no more runs are claimed. Returns `false` at the limit.
async fn wait_until_settled(metered_store: &MeteredStore, limit: Duration) -> bool {
    let start = Instant::now();
    let mut quiet_since = start;
    while quiet_since.elapsed() < QUIET_TIME {
        if start.elapsed() > limit {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        if metered_store.read(Metrics::open_count) > 0 {
            quiet_since = Instant::now();
        }
    }
    true
}

fn window(first_fire: Timestamp, warm_up: u32, seconds: u32) -> Window {
    let from = first_fire + Duration::from_secs(warm_up.into());
    Window::new(from, from + Duration::from_secs(seconds.into()))
}

/// Creates the jobs. Returns how long that took.
async fn create_jobs(store: &SqlStore, ids: &IdGen, plan: &Plan, fires: FireTimes) -> Result<Duration, BenchError> {
    let start = Instant::now();
    let prefix = clock::now().as_millis().to_string();
    load::create(store, ids, &prefix, plan.jobs, fires).await?;
    Ok(start.elapsed())
}

/// Watches the window; a burst is watched until its last result is durable.
async fn watch(
    plan: &Plan,
    metered_store: &MeteredStore,
    fleet: &mut Fleet,
    window: Window,
) -> Result<MeasuredWindow, BenchError> {
    let (from, to) = (Timestamp::from_millis(window.from_ms), Timestamp::from_millis(window.to_ms));
    if clock::micros_after(from) > 0 {
        return Err(BenchError::failed("creating the jobs took too long: they were due before they were created"));
    }
    clock::sleep_until(from).await;
    let witness = Witness::start()?;
    usage::reset_peak();
    metered_store.begin(window);
    let (cost_before, start) = (Cost::now(plan, fleet), Instant::now());
    let planned_count = planned_count(plan);
    match plan.mode {
        Mode::Steady | Mode::Idle => clock::sleep_until(to).await,
        Mode::Burst => wait_until_durable(metered_store, window, planned_count).await,
    }
    let (cost, duration) = (Cost::now(plan, fleet).since(cost_before), start.elapsed());
    let memory = memory(plan, fleet);
    let witness = witness.end();
    if plan.mode == Mode::Steady {
        wait_until_durable(metered_store, window, planned_count).await;
    }
    let (creation_time, observations, metrics) = Default::default();
    let (claims, database_work) = Default::default();
    Ok(MeasuredWindow {
        window,
        creation_time,
        duration,
        observations,
        witness,
        metrics,
        cost,
        memory,
        claims,
        database_work,
    })
}

/// Waits until all fires of the window have a durable verdict, up to a limit.
async fn wait_until_durable(metered_store: &MeteredStore, window: Window, planned_count: u64) {
    let start = Instant::now();
    while durable_count(metered_store, window) < planned_count && start.elapsed() < DURABLE_TIMEOUT {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn durable_count(metered_store: &MeteredStore, window: Window) -> u64 {
    metered_store.read(|metrics| {
        metrics
            .fires
            .iter()
            .filter(|(fire_at, _)| window.contains(**fire_at))
            .map(|(_, fires)| fires.durable_count)
            .sum()
    })
}

fn planned_count(plan: &Plan) -> u64 {
    match plan.mode {
        Mode::Steady => u64::from(plan.jobs) * u64::from(plan.seconds),
        Mode::Burst => plan.jobs.into(),
        Mode::Idle => 0,
    }
}

fn memory(plan: &Plan, fleet: &Fleet) -> Memory {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let (now, peak) = usage::memory(std::process::id());
    Memory {
        server_mb: mb(now),
        server_peak_mb: mb(peak),
        executor_peak_mb: fleet.memory().map(|(_, peak)| mb(peak)),
        database_mb: plan.database_pid.map(|pid| mb(usage::memory_of_tree(pid))),
    }
}

impl MeasuredWindow {
    fn report(self, plan: &Plan, load_before: String) -> Report {
        let counts = self.counts(plan);
        let seconds = self.duration.as_secs_f64();
        let durable_count = match plan.mode {
            Mode::Burst => counts.durable,
            Mode::Steady | Mode::Idle => self.metrics.stored_in_window,
        };
        Report {
            mode: plan.mode,
            database: plan.database.to_string(),
            version: env!("CARGO_PKG_VERSION"),
            jobs: plan.jobs,
            seconds,
            nodes: plan.nodes,
            claims_tried: self.claims.tried_count,
            claims_lost: self.claims.lost_count,
            executors: plan.executors,
            slots: plan.slots,
            separate: plan.executor_program.is_some(),
            flood: plan.flood,
            create_s: self.creation_time.as_secs_f64(),
            load_before,
            runs_per_second: durable_count as f64 / seconds,
            start_lateness: Lateness::from(&self.observations.lateness),
            durability: self.durability(),
            witness: Lateness::from(&self.witness),
            counts,
            cpu: self.cpu(durable_count),
            memory: self.memory,
            calls: self.calls(),
            database_work: self.database_work,
            probe: None,
        }
    }

    fn counts(&self, plan: &Plan) -> Counts {
        let fires =
            self.metrics.fires.iter().filter(|(fire_at, _)| self.window.contains(**fire_at)).map(|(_, fires)| fires);
        let (claimed, durable) =
            fires.fold((0, 0), |sums, fire| (sums.0 + fire.claimed_count, sums.1 + fire.durable_count));
        Counts {
            planned: planned_count(plan),
            claimed,
            started: self.observations.lateness.count(),
            durable,
            started_in_all: self.observations.started,
            durable_in_all: self.metrics.stored_count,
            other_answers: self.metrics.other_answers,
            repeated: self.observations.repeated,
            early: self.observations.early,
        }
    }

    fn durability(&self) -> Durability {
        let fires = self.metrics.fires.iter().filter(|(fire_at, _)| self.window.contains(**fire_at));
        let mut last_durable_micros: Vec<u64> = fires.map(|(_, fires)| fires.last_durable_micros).collect();
        last_durable_micros.sort_unstable();
        let ms = |micros: Option<&u64>| *micros.unwrap_or(&0) as f64 / 1_000.0;
        Durability {
            p50_ms: ms(last_durable_micros.get(last_durable_micros.len() / 2)),
            max_ms: ms(last_durable_micros.last()),
        }
    }

    fn cpu(&self, run_count: u64) -> Cpu {
        let Cost { server, executors, database } = self.cost;
        let seconds = |usage: Option<Usage>| usage.map(|usage| usage.cpu.as_secs_f64());
        let (server_s, executors_s, database_s) = (server.cpu.as_secs_f64(), seconds(executors), seconds(database));
        let total_seconds = server_s + executors_s.unwrap_or_default() + database_s.unwrap_or_default();
        let per_run = |amount: f64| if run_count == 0 { 0.0 } else { amount / run_count as f64 };
        Cpu {
            server_s,
            executors_s,
            database_s,
            per_1000_runs_s: per_run(total_seconds) * 1_000.0,
            server_bytes_per_run: per_run(server.written_bytes as f64),
            database_bytes_per_run: database.map(|usage| per_run(usage.written_bytes as f64)),
        }
    }

    fn calls(&self) -> Vec<StoreCall> {
        let calls = self.metrics.calls.iter().map(|(name, timing)| StoreCall {
            name,
            calls: timing.call_count,
            rows: timing.row_count,
            total_s: timing.total.as_secs_f64(),
            mean_ms: timing.total.as_secs_f64() * 1_000.0 / timing.call_count.max(1) as f64,
            max_ms: timing.max.as_secs_f64() * 1_000.0,
        });
        let mut calls: Vec<StoreCall> = calls.collect();
        calls.sort_by(|a, b| b.total_s.total_cmp(&a.total_s));
        calls
    }
}
