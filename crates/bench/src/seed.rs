//! Fills a database with jobs and the history of their runs, to view and measure pages and queries with the data of a
//! busy system: namespaces, apps, failures, skipped fires, shards and children.
//!
//! The same plan gives the same data, except for the current time from which it counts back.

use std::collections::HashMap;
use std::time::Duration;

use rondel_core::homes::RecentFires;
use rondel_core::sketch::Step;
use rondel_core::{
    AppId, IdGen, JobId, JobSpec, NamespaceId, NodeId, Reason, Run, RunId, RunStatus, Timestamp, Trigger,
};
use rondel_store::catalog::{JobCreated, Namespace, NewJob};
use rondel_store::cluster::{Join, JoinRequest, NodeReport};
use rondel_store::ledger::{ClaimJob, DueJob};
use rondel_store::{Claim, Cluster, CreateJobs, DatabaseUrl, LeaseToken, Namespaces, SqlStore, Stats, StoreConfig};
use serde_json::json;

use crate::{BenchError, clock, load};

const NODE_NAME: &str = "bench-seed";
const LEASE: Duration = Duration::from_secs(6 * 3_600);
/// Ordinal in the ids of jobs, which are made before the node has joined and got its own ordinal.
const ORDINAL: i64 = IdGen::ORDINAL_COUNT - 1;
/// How far the history reaches back.
const HISTORY_DAYS: u64 = 7;
/// About how many runs one claim writes.
const CLAIM_RUN_COUNT: usize = 2_000;
/// How many jobs one call creates, at most.
const CREATE_JOB_COUNT: usize = 2_000;
/// How many runs one call adds to the statistics, at most.
const ROLL_UP_RUN_COUNT: u32 = 1_000;
const NAMESPACES: [&str; 3] = ["default", "staging", "tools"];
const APPS: [&str; 6] = ["orders", "billing", "reports", "archive", "catalog", "mail"];
const WORK_NAMES: [&str; 10] =
    ["close", "import", "verify", "export", "sync", "clean", "index", "send", "rebuild", "archive"];
/// Minutes between fires, and how many of twenty jobs have this period.
const PERIODS: [(u64, u64); 5] = [(1, 2), (5, 6), (15, 6), (60, 4), (1_440, 2)];

/// How much data to create.
#[derive(Clone, Debug)]
pub struct SeedPlan {
    /// The database: an empty one.
    pub database: DatabaseUrl,
    /// The number of jobs.
    pub jobs: u32,
    /// The approximate number of runs.
    pub history: u32,
    /// Whether all jobs are paused, so that none fires while another measurement runs on this database.
    pub paused: bool,
}

/// How much data was created.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct SeedReport {
    /// The number of jobs.
    pub jobs: usize,
    /// The number of rows in the ledger.
    pub runs: usize,
    /// The number of rows that were counted for the statistics.
    pub counted: u64,
}

/// A job with the properties of its history.
struct Seed {
    job: JobId,
    app: AppId,
    namespace: NamespaceId,
    app_name: &'static str,
    /// Determines all properties of the job.
    number: u64,
    period: Duration,
    next_fire: Timestamp,
    /// The index of the parent, a job of the same app, if the job has no schedule of its own.
    parent_index: Option<usize>,
    shards: u32,
    /// Whether its own schedule fires.
    has_fires: bool,
    term: i64,
    home: NodeId,
}

/// Fills the database.
///
/// # Errors
/// Those of [`BenchError`].
pub async fn seed(plan: &SeedPlan) -> Result<SeedReport, BenchError> {
    let store = SqlStore::open(&StoreConfig { url: plan.database.clone(), ..StoreConfig::default() }).await?;
    load::check_empty(&store).await?;
    let ids = IdGen::new(ORDINAL);
    let now = clock::now();
    let mut seeds = create_jobs(&store, &ids, plan, now).await?;
    let request = JoinRequest {
        name: NODE_NAME.to_owned(),
        lease: LEASE,
        advertise_url: None,
        server_version: env!("CARGO_PKG_VERSION").to_owned(),
        may_take_over: true,
        held: None,
        waited_for_takeover: Duration::ZERO,
    };
    let Join::Joined { token, ordinal } = store.join(&request).await? else {
        return Err(BenchError::failed("another seeding is running on this database"));
    };
    let ids = IdGen::new(ordinal);
    let runs = write_history(&store, (&ids, token), &mut seeds, now).await?;
    // The node gives its lease back as in a clean shutdown, so that no fire counts as missed.
    store.report_node(token, &NodeReport { is_leaving: true, ..NodeReport::default() }).await?;
    store.release(token, Timestamp::EPOCH).await?;
    let mut counted = 0;
    loop {
        match store.roll_up(clock::now(), ROLL_UP_RUN_COUNT).await? {
            0 => break,
            count => counted += count,
        }
    }
    store.close().await;
    Ok(SeedReport { jobs: seeds.len(), runs, counted })
}

/// Mixes the bits of a number, so that the result serves as a random one; the same number always gives the same result.
const fn mix(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

fn period_minutes(number: u64) -> u64 {
    let mut remaining = mix(number) % 20;
    for (minutes, count) in PERIODS {
        if remaining < count {
            return minutes;
        }
        remaining -= count;
    }
    1_440
}

/// The factor by which periods are stretched, so that the history has about the wanted number of runs.
fn period_factor(plan: &SeedPlan) -> u64 {
    let per_day = |number: u64| 1_440 / period_minutes(number);
    let run_count: u64 = (0..u64::from(plan.jobs)).map(per_day).sum::<u64>() * HISTORY_DAYS;
    run_count.div_ceil(u64::from(plan.history.max(1))).max(1)
}

async fn create_jobs(store: &SqlStore, ids: &IdGen, plan: &SeedPlan, now: Timestamp) -> Result<Vec<Seed>, BenchError> {
    let mut apps = Vec::new();
    for name in NAMESPACES {
        if store.namespace(name).await?.is_none() {
            let namespace = Namespace { id: NamespaceId::new(ids.next(now)), name: name.to_owned() };
            store.create_namespace(&namespace, now).await?;
        }
        let stored_namespace = store.namespace(name).await?;
        let namespace = stored_namespace.ok_or_else(|| BenchError::failed("a namespace could not be created"))?.id;
        for app in APPS {
            let id = store.ensure_app(AppId::new(ids.next(now)), namespace, app, now).await?.id;
            apps.push((namespace, app, id));
        }
    }
    let period_factor = period_factor(plan);
    let (mut seeds, mut jobs): (Vec<Seed>, Vec<NewJob>) = (Vec::new(), Vec::new());
    for number in 0..u64::from(plan.jobs) {
        // Two thirds of the jobs are in the first namespace.
        let namespace_index = [0, 0, 0, 0, 1, 2][usize::try_from(number % 6).unwrap_or(0)];
        let app_index = usize::try_from(mix(number ^ 77) % 6).unwrap_or(0);
        let (namespace, app_name, app) = apps[namespace_index * APPS.len() + app_index];
        let parent_index = seeds.iter().rposition(|seed| seed.app == app && seed.parent_index.is_none());
        let parent_index = parent_index.filter(|_| number % 17 == 16);
        let minutes = period_minutes(number) * period_factor;
        let next_fire =
            Timestamp::from_millis(Step::Minute.floor(now).as_millis() + 60_000 * i64::try_from(minutes).unwrap_or(1));
        let parent_name = parent_index.and_then(|index| jobs.get(index)).map(|job: &NewJob| job.spec.name.clone());
        let mut spec = definition((number, app_name), minutes, parent_name)?;
        spec.enabled &= !plan.paused;
        let job = JobId::new(ids.next(now));
        let created_at = now - Duration::from_secs((HISTORY_DAYS + 30) * 86_400);
        seeds.push(Seed {
            job,
            app,
            namespace,
            app_name,
            number,
            period: Duration::from_secs(minutes * 60),
            next_fire,
            parent_index,
            shards: if spec.is_sharded() { 4 } else { 1 },
            has_fires: parent_index.is_none() && spec.enabled,
            term: 0,
            home: NodeId::new(0),
        });
        jobs.push(NewJob {
            delay: None,
            calendar: None,
            declared: None,
            id: job,
            namespace,
            app,
            spec,
            anchor: next_fire,
            // A claim needs an instant; jobs without fires of their own lose it at the end of the history.
            next_fire_at: Some(next_fire),
            author: "rondel bench".to_owned(),
            now: created_at,
        });
    }
    for chunk in jobs.chunks(CREATE_JOB_COUNT) {
        let outcomes = store.create_jobs(chunk).await?;
        if !outcomes.iter().all(|outcome| matches!(outcome, JobCreated::Saved(_))) {
            return Err(BenchError::failed("a job could not be created"));
        }
    }
    Ok(seeds)
}

fn definition((number, app): (u64, &str), minutes: u64, parent: Option<String>) -> Result<JobSpec, BenchError> {
    let work_name = WORK_NAMES[usize::try_from(mix(number ^ 5) % 10).unwrap_or(0)];
    let name = format!("{app}.{work_name}-{number:04}");
    let schedule = match (parent, minutes) {
        (Some(parent), _) => json!({"after": [parent]}),
        (None, 1_440) if number.is_multiple_of(2) => json!({"cron": "0 0 0 * * ?", "time_zone": "Europe/Berlin"}),
        (None, minutes) => json!({"every": format!("{minutes}m")}),
    };
    let mut document = json!({"name": name, "app": app, "handler": "shell", "schedule": schedule,
        "description": format!("{work_name} of {app}"), "params": {"argv": ["sleep", "1"]}, "enabled": number % 29 != 28});
    if number % 13 == 12 {
        document["shards"] = json!(4);
    }
    if number == 7 {
        document["handler"] = json!("report.daily");
    }
    serde_json::from_value(document)
        .map_err(|error| BenchError::failed(format!("the definition of {name} is wrong: {error}")))
}

/// Writes the history in the order of time, as claims of rows that already have their verdicts.
async fn write_history(
    store: &SqlStore,
    (ids, token): (&IdGen, LeaseToken),
    seeds: &mut [Seed],
    now: Timestamp,
) -> Result<usize, BenchError> {
    let oldest_fire = now - Duration::from_secs(HISTORY_DAYS * 86_400);
    let mut fires: Vec<(Timestamp, usize)> = Vec::new();
    for (seed_index, seed) in seeds.iter().enumerate().filter(|(_, seed)| seed.parent_index.is_none()) {
        let mut fire_at = seed.next_fire;
        while fire_at > oldest_fire {
            fire_at = fire_at - seed.period;
            if fire_at < now && fire_at > oldest_fire {
                fires.push((fire_at, seed_index));
            }
        }
    }
    fires.sort_unstable();
    let mut children: HashMap<usize, Vec<usize>> = HashMap::new();
    for (seed_index, seed) in seeds.iter().enumerate() {
        if let Some(parent_index) = seed.parent_index {
            children.entry(parent_index).or_default().push(seed_index);
        }
    }
    let (mut batch, mut run_count): (Vec<(usize, Run)>, usize) = (Vec::new(), 0);
    for (fire_at, seed_index) in fires {
        let age = now.since(fire_at);
        let fire = Fire { ids, token, at: fire_at, age };
        let rows = fire.rows(&seeds[seed_index], None);
        let root = rows.first().cloned();
        batch.extend(rows.into_iter().map(|run| (seed_index, run)));
        for child in children.get(&seed_index).into_iter().flatten() {
            let rows = fire.rows(&seeds[*child], root.as_ref());
            batch.extend(rows.into_iter().map(|run| (*child, run)));
        }
        if batch.len() >= CLAIM_RUN_COUNT {
            run_count += write_runs(store, token, seeds, std::mem::take(&mut batch)).await?;
        }
    }
    run_count += write_runs(store, token, seeds, batch).await?;
    let idle_claims: Vec<ClaimJob> =
        seeds.iter().filter(|seed| !seed.has_fires).map(|seed| seed.claim(None, Vec::new())).collect();
    for chunk in idle_claims.chunks(CLAIM_RUN_COUNT) {
        store.claim(token, chunk).await?;
    }
    Ok(run_count)
}

impl Seed {
    fn claim(&self, next_fire_at: Option<Timestamp>, runs: Vec<Run>) -> ClaimJob {
        let due_job = DueJob {
            job: self.job,
            next_fire_at: self.next_fire,
            held_from: None,
            version: 1,
            home: self.home,
            term: self.term,
            recent_fires: RecentFires::default(),
        };
        ClaimJob {
            recent_fires: due_job.recent_fires,
            expected_row: due_job,
            held_from: None,
            next_fire_at,
            runs,
            awaited_run: None,
        }
    }
}

async fn write_runs(
    store: &SqlStore,
    token: LeaseToken,
    seeds: &mut [Seed],
    batch: Vec<(usize, Run)>,
) -> Result<usize, BenchError> {
    let count = batch.len();
    let mut runs_by_seed: HashMap<usize, Vec<Run>> = HashMap::new();
    batch.into_iter().for_each(|(seed_index, run)| runs_by_seed.entry(seed_index).or_default().push(run));
    let mut seed_indexes: Vec<usize> = runs_by_seed.keys().copied().collect();
    seed_indexes.sort_unstable();
    let mut claims = Vec::with_capacity(seed_indexes.len());
    for seed_index in &seed_indexes {
        let seed = &seeds[*seed_index];
        let runs = runs_by_seed.remove(seed_index).unwrap_or_default();
        claims.push(seed.claim(Some(seed.next_fire), runs));
    }
    let claim_result = store.claim(token, &claims).await?;
    let terms: HashMap<JobId, i64> = claim_result.jobs.into_iter().collect();
    for seed_index in seed_indexes {
        if let Some(term) = terms.get(&seeds[seed_index].job) {
            (seeds[seed_index].term, seeds[seed_index].home) = (*term, token.node);
        }
    }
    Ok(count)
}

/// Creates the rows of one fire.
struct Fire<'a> {
    ids: &'a IdGen,
    token: LeaseToken,
    at: Timestamp,
    /// How long ago the fire was planned.
    age: Duration,
}

impl Fire<'_> {
    fn rows(&self, seed: &Seed, parent: Option<&Run>) -> Vec<Run> {
        let random = mix(seed.number.wrapping_mul(1_000_003) ^ self.at.as_millis().unsigned_abs());
        let status = status(seed, self.age, random);
        let run = self.run(seed, parent, (status, random));
        if seed.shards <= 1 || status == RunStatus::Skipped {
            return vec![run];
        }
        let shard_total = i32::try_from(seed.shards).unwrap_or(1);
        let root =
            Run { shard_index: rondel_core::run::ROOT_SHARD, shard_total: Some(shard_total), executor: None, ..run };
        let shard = |index: i32| {
            let random = mix(random ^ u64::try_from(index).unwrap_or(0));
            let status = if index == 0 { root.status } else { RunStatus::Succeeded };
            let run = self.run(seed, None, (status, random));
            Run { shard_index: index, shard_total: Some(shard_total), parent: Some(root.id), cause: root.cause, ..run }
        };
        let shards: Vec<Run> = (0..shard_total).map(shard).collect();
        std::iter::once(root).chain(shards).collect()
    }

    fn run(&self, seed: &Seed, parent: Option<&Run>, (status, random): (RunStatus, u64)) -> Run {
        let base_ms = 200 << (mix(seed.number ^ 3) % 9);
        let lateness = Duration::from_millis(4 + random % 40 + if random.is_multiple_of(97) { 900 } else { 0 });
        let duration = Duration::from_millis(
            base_ms + base_ms * (random % 100) / 60 + if random.is_multiple_of(61) { base_ms * 4 } else { 0 },
        );
        let started_at = self.at + lateness;
        let has_run = status != RunStatus::Skipped;
        Run {
            id: RunId::new(self.ids.next(self.at)),
            namespace: seed.namespace,
            job: seed.job,
            job_version: 1,
            app: seed.app,
            fire_at: self.at,
            cause: parent.map_or(0, |parent| parent.id.get()),
            shard_index: 0,
            shard_total: Some(1),
            trigger: if parent.is_some() { Trigger::Parent } else { Trigger::Interval },
            status,
            reason: match status {
                RunStatus::Skipped if seed.number == 7 => Some(Reason::NoExecutor),
                RunStatus::Skipped => Some(Reason::Misfire),
                _ => None,
            },
            detail: None,
            attempt: 1,
            due_at: self.at,
            node: self.token.node,
            node_epoch: self.token.epoch,
            params: None,
            executor: has_run.then(|| format!("{}-w{}", seed.app_name, 1 + random % 3)),
            executor_id: None,
            only_executor: None,
            trigger_key: None,
            marked_at: None,
            started_at: has_run.then_some(started_at),
            finished_at: Some(if has_run { started_at + duration } else { self.at + Duration::from_secs(60) }),
            message: message(status, random),
            result: None,
            lost_count: 0,
            open_shards: None,
            open_children: None,
            parent: parent.map(|parent| parent.id),
            trace: None,
            cancel_by: None,
            cancel_reason: None,
            span_end_at: None,
            span_count: 1,
        }
    }
}

fn status(seed: &Seed, age: Duration, random: u64) -> RunStatus {
    let permille = random % 1_000;
    match seed.number {
        7 => RunStatus::Skipped,
        number if number % 41 == 3 && age < Duration::from_secs(7 * 3_600) => RunStatus::Failed,
        number if number % 67 == 5 => RunStatus::Failed,
        number if number % 23 == 4 && permille < 90 => RunStatus::Failed,
        number if number % 31 == 6 && permille < 60 => RunStatus::TimedOut,
        _ if permille < 8 => RunStatus::Failed,
        _ if permille < 12 => RunStatus::TimedOut,
        _ if permille < 22 => RunStatus::Skipped,
        _ if permille < 24 => RunStatus::Cancelled,
        _ => RunStatus::Succeeded,
    }
}

fn message(status: RunStatus, random: u64) -> Option<String> {
    let failures = ["connection refused", "HTTP 502 from upstream", "exit code 1", "no such table: invoices_2026"];
    let failure = failures[usize::try_from(random / 7 % 4).unwrap_or(0)];
    match status {
        RunStatus::Failed => Some(failure.to_owned()),
        RunStatus::Succeeded => Some(format!("{} rows", random % 5_000)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_right() {
        for number in 0..200 {
            let parent = (number % 17 == 16).then(|| "orders.close-0001".to_owned());
            let app = APPS[usize::try_from(number % 6).unwrap()];
            let spec = definition((number, app), period_minutes(number), parent).unwrap();
            assert!(spec.compile().is_ok(), "{}", spec.name);
        }
    }

    #[test]
    fn a_history_has_about_as_many_runs_as_are_wanted() {
        let database: DatabaseUrl = DatabaseUrl::sqlite_file(std::path::PathBuf::from("unused.db"));
        for (jobs, history) in [(150, 200_000), (10_000, 1_000_000)] {
            let plan = SeedPlan { database: database.clone(), jobs, history, paused: false };
            let period_factor = period_factor(&plan);
            let runs: u64 = (0..u64::from(jobs))
                .map(|number| 1_440 * HISTORY_DAYS / (period_minutes(number) * period_factor))
                .sum();
            assert!((u64::from(history) / 3..=u64::from(history) * 3 / 2).contains(&runs), "{runs}");
        }
    }
}
