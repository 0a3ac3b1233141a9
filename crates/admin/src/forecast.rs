//! Forecasts of fires for charts: the coming fires across jobs, and the planned fires of some jobs in a range of time. Definitions are read
//! from the cache of compiled definitions.

use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use rondel_core::schedule::Kind;
use rondel_core::{AppId, JobId, NamespaceId, Timestamp};
use rondel_store::StoreError;

use crate::definitions::CompiledDefinition;
use crate::fires::compute;
use crate::node::Node;

/// Maximum number of jobs in a forecast. The jobs that fire next are taken.
pub const COMING_JOB_COUNT_MAX: u32 = 10_000;
/// Maximum number of fires of one job that are counted one by one in a forecast.
const FIRES_PER_JOB_MAX: usize = 1_500;
/// If a job has more fires than this and its schedule can count them, they are counted bucket by bucket instead of one by one.
const ENUMERATED_FIRES_MAX: u64 = 150;
/// Maximum number of fires counted one by one in a forecast.
const FIRE_COUNT_MAX: usize = 200_000;
/// To find the peak, at most this many fires of the jobs that are counted bucket by bucket are compared.
const PEAK_FIRE_COUNT_MAX: usize = 200_000;
/// Maximum number of planned instants in a lane's plan, and of removed ones.
const PLANNED_INSTANTS_MAX: usize = 300;

/// Range and granularity of a forecast.
#[derive(Clone, Copy, Debug)]
pub struct ForecastRange {
    /// Only fires after this instant are counted.
    pub from: Timestamp,
    /// Only fires up to this instant are counted.
    pub to: Timestamp,
    /// Length of the buckets in which fires are counted.
    pub step: Duration,
    /// Maximum number of fires listed one by one.
    pub limit: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ComingFire {
    pub at: Timestamp,
    pub job: JobId,
    /// The job's name.
    pub name: String,
    /// The name of the job's app.
    pub app: String,
}

/// The coming fires of a namespace.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    /// The first fires, the earliest first.
    pub fires: Vec<ComingFire>,
    /// The number of fires in each bucket, keyed by the bucket's start; empty buckets are omitted.
    pub density: BTreeMap<Timestamp, u64>,
    /// The instant with the most fires, and their number; `None` if there are no fires, or too many to compare.
    pub peak: Option<(Timestamp, u64)>,
    /// Whether there are more fires than were counted.
    pub is_cut: bool,
}

/// Forecasts the fires of the jobs of a namespace; with `visible_apps`, only of jobs of these apps.
///
/// # Errors
/// The store's.
pub async fn forecast(
    node: &Node,
    namespace: NamespaceId,
    visible_apps: Option<&[AppId]>,
    range: ForecastRange,
) -> Result<Forecast, StoreError> {
    let mut jobs = node.store().coming_jobs(namespace, range.to, COMING_JOB_COUNT_MAX).await?;
    let is_cut = jobs.len() >= usize::try_from(COMING_JOB_COUNT_MAX).unwrap_or(usize::MAX);
    jobs.retain(|job| visible_apps.is_none_or(|apps| apps.contains(&job.app)));
    let definitions = node.definitions(jobs.iter().map(|job| (job.job, job.version))).await?;
    let compute_all = move || {
        let mut builder = ForecastBuilder { range, is_cut, ..ForecastBuilder::default() };
        for job in &jobs {
            if let Some(definition) = definitions.get(&(job.job, job.version)) {
                builder.add(definition, job.next_fire_at);
            }
        }
        builder.forecast()
    };
    Ok(compute(compute_all).await)
}

impl Default for ForecastRange {
    fn default() -> Self {
        Self { from: Timestamp::EPOCH, to: Timestamp::EPOCH, step: Duration::from_secs(60), limit: 0 }
    }
}

/// A forecast in progress.
#[derive(Default)]
struct ForecastBuilder {
    range: ForecastRange,
    /// The first fires. The latest of them is on top of the heap.
    earliest_fires: BinaryHeap<(Timestamp, JobId, String, String)>,
    /// How many fires each bucket has. The fires in `instants` are added at the end.
    density: BTreeMap<Timestamp, u64>,
    /// The fires of the jobs with many fires, unsorted. Filled only while there are few enough to find the peak.
    dense_instants: Vec<Timestamp>,
    /// Whether the jobs with many fires have too many to find the peak.
    is_peak_unknown: bool,
    /// The fires of all other jobs, in any order: they are sorted and counted once, at the end.
    instants: Vec<Timestamp>,
    is_cut: bool,
}

impl ForecastBuilder {
    fn add(&mut self, definition: &CompiledDefinition, next_fire_at: Timestamp) {
        let (table, ForecastRange { from, to, .. }) = (&definition.job.timetable, self.range);
        if table.delay().is_some() {
            return self.add_fire(definition, next_fire_at);
        }
        if let Some(count) =
            table.count_between(definition.anchor, from, to).filter(|count| *count > ENUMERATED_FIRES_MAX)
        {
            return self.add_dense_job(definition, count);
        }
        for (added_count, fire) in table.fires(definition.anchor, from, to).enumerate() {
            if added_count < FIRES_PER_JOB_MAX && self.instants.len() < FIRE_COUNT_MAX {
                self.add_fire(definition, fire.at);
                continue;
            }
            self.is_cut = true;
            // The fire is not counted. It may still be one of the first fires of all jobs.
            if added_count >= FIRES_PER_JOB_MAX || !self.list_if_early(definition, fire.at) {
                break;
            }
        }
    }

    /// Adds a job with this many fires: the first fires are listed, the others are only counted.
    fn add_dense_job(&mut self, definition: &CompiledDefinition, count: u64) {
        let (table, ForecastRange { from, to, limit, .. }) = (&definition.job.timetable, self.range);
        for fire in table.fires(definition.anchor, from, to).take(limit) {
            self.list_if_early(definition, fire.at);
        }
        let count_left = PEAK_FIRE_COUNT_MAX.saturating_sub(self.dense_instants.len());
        self.is_peak_unknown |= !usize::try_from(count).is_ok_and(|count| count <= count_left);
        if !self.is_peak_unknown {
            self.dense_instants.extend(table.fires(definition.anchor, from, to).map(|fire| fire.at));
        }
        // Each range excludes its start and includes its end, which is the last instant of a bucket.
        let mut begin_at = from;
        while begin_at < to {
            let bucket = self.bucket(begin_at + Duration::from_millis(1));
            let bucket_end = (bucket + self.range.step - Duration::from_millis(1)).min(to);
            let count = table.count_between(definition.anchor, begin_at, bucket_end).unwrap_or(0);
            if count > 0 {
                *self.density.entry(bucket).or_default() += count;
            }
            begin_at = bucket_end;
        }
    }

    fn bucket(&self, at: Timestamp) -> Timestamp {
        at.floor(self.range.step)
    }

    fn add_fire(&mut self, definition: &CompiledDefinition, at: Timestamp) {
        self.instants.push(at);
        self.list_if_early(definition, at);
    }

    /// Lists a fire if it is one of the first so far; returns whether it is.
    fn list_if_early(&mut self, definition: &CompiledDefinition, at: Timestamp) -> bool {
        let is_full = self.earliest_fires.len() >= self.range.limit;
        if is_full && self.earliest_fires.peek().is_none_or(|(last, ..)| *last <= at) {
            return false;
        }
        self.earliest_fires.push((at, definition.id, definition.job.name.clone(), definition.job.app.clone()));
        if is_full {
            self.earliest_fires.pop();
        }
        true
    }

    fn forecast(mut self) -> Forecast {
        let mut instants = std::mem::take(&mut self.instants);
        for at in &instants {
            *self.density.entry(self.bucket(*at)).or_default() += 1;
        }
        instants.append(&mut self.dense_instants);
        let peak_fires = if self.is_peak_unknown { None } else { peak(instants) };
        let fires = self.earliest_fires.into_sorted_vec();
        Forecast {
            fires: fires.into_iter().map(|(at, job, name, app)| ComingFire { at, job, name, app }).collect(),
            density: self.density,
            peak: peak_fires,
            is_cut: self.is_cut,
        }
    }
}

/// The instant that occurs most often, and how often it occurs; the earliest instant if several occur equally often.
fn peak(mut instants: Vec<Timestamp>) -> Option<(Timestamp, u64)> {
    instants.sort_unstable();
    let count = |same: &[Timestamp]| Some((*same.first()?, u64::try_from(same.len()).ok()?));
    // `max_by_key` returns the last of equal maxima, hence `rev`.
    instants.chunk_by(|a, b| a == b).filter_map(count).rev().max_by_key(|(_, count)| *count)
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LanePlan {
    /// The job's name.
    pub name: String,
    /// The name of the job's app.
    pub app: String,
    /// The handler that the job's runs call.
    pub handler: String,
    /// Whether the job's schedules fire.
    pub enabled: bool,
    /// Planned instants in the future; if there are very many, an evenly spread selection.
    pub fires: Vec<Timestamp>,
    /// Instants that the job's calendar removes or moves.
    pub removed: Vec<Timestamp>,
    /// Clock changes in the time zones of the job's schedules that affect a fire.
    pub clock_changes: Vec<Timestamp>,
    /// Whether `fires` omits planned instants.
    pub is_cut: bool,
}

/// Plans the given definitions from `from` to `to`; fires are listed after `now`. Definitions that cannot be read are omitted.
///
/// # Errors
/// The store's.
pub async fn lane_plans(
    node: &Node,
    jobs: &[(JobId, i64)],
    (from, to): (Timestamp, Timestamp),
    now: Timestamp,
) -> Result<BTreeMap<JobId, LanePlan>, StoreError> {
    let definitions = node.definitions(jobs.iter().copied()).await?;
    let compute_plans = move || {
        definitions.values().map(|definition| (definition.id, lane_plan(definition, (from, to), now))).collect()
    };
    Ok(compute(compute_plans).await)
}

/// The next fires of a job after one instant and up to another, at most `count`; empty if the job is disabled or its definition unreadable.
///
/// # Errors
/// The store's.
pub async fn next_fires(
    node: &Node,
    job: (JobId, i64),
    (after_at, to): (Timestamp, Timestamp),
    count: usize,
) -> Result<Vec<Timestamp>, StoreError> {
    let definitions = node.definitions([job]).await?;
    let fires = move || -> Option<Vec<Timestamp>> {
        let definition = definitions.get(&job).filter(|definition| definition.job.enabled)?;
        let fires = definition.job.timetable.fires(definition.anchor, after_at, to);
        Some(fires.map(|fire| fire.at).take(count).collect())
    };
    Ok(compute(fires).await.unwrap_or_default())
}

fn lane_plan(definition: &CompiledDefinition, (from, to): (Timestamp, Timestamp), now: Timestamp) -> LanePlan {
    let (job, anchor) = (&definition.job, definition.anchor);
    let table = &job.timetable;
    let (mut fires, mut is_cut) = (Vec::new(), false);
    let (first_at, mut after_at) = (now.max(from), now.max(from));
    let stride = to.since(first_at) / u32::try_from(PLANNED_INSTANTS_MAX).unwrap_or(u32::MAX);
    while job.enabled && fires.len() < PLANNED_INSTANTS_MAX {
        let Some(fire) = table.next_until(anchor, after_at, to) else { break };
        // If there are many, only the first fire of each stride is taken.
        let stride_count = u32::try_from(fires.len() + 1).unwrap_or(u32::MAX);
        let next_at = first_at + stride * stride_count;
        is_cut |= table.next_until(anchor, fire.at, to).is_some_and(|following| following.at < next_at);
        fires.push(fire.at);
        after_at = fire.at.max(next_at);
    }
    let changes = table.schedules.iter().flat_map(|schedule| match &schedule.kind {
        Kind::Cron { expr, dst } => expr.clock_changes(schedule.zone, *dst, from, to),
        Kind::Every(_) | Kind::Delay(_) | Kind::At(_) | Kind::After(_) => Vec::new(),
    });
    let mut clock_changes: Vec<Timestamp> = changes.map(|change| change.at).collect();
    clock_changes.sort_unstable();
    clock_changes.dedup();
    LanePlan {
        name: job.name.clone(),
        app: job.app.clone(),
        handler: job.handler.clone(),
        enabled: job.enabled,
        fires,
        removed: table.removed_fires(anchor, from, to).map(|fire| fire.at).take(PLANNED_INSTANTS_MAX).collect(),
        clock_changes,
        is_cut,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dispatch::tests_support::definition;

    /// The forecast of a day for jobs with these periods.
    fn of_day(periods: &[&str]) -> Forecast {
        let range = ForecastRange { to: Timestamp::from_secs(86_400), ..ForecastRange::default() };
        let mut builder = ForecastBuilder { range, ..ForecastBuilder::default() };
        for every in periods {
            builder.add(&definition(&json!({"schedule": {"every": every}})), Timestamp::EPOCH);
        }
        builder.forecast()
    }

    #[test]
    fn the_peak_counts_jobs_with_many_fires() {
        let at = Timestamp::from_secs;
        assert_eq!(of_day(&["1h"]).peak, Some((at(3_600), 1)));
        assert_eq!(of_day(&["1m", "1m"]).peak, Some((at(60), 2)));
        let found = of_day(&["1m", "1m", "1h"]);
        assert_eq!(found.peak, Some((at(3_600), 3)));
        assert_eq!(found.density.values().sum::<u64>(), 2 * 1_440 + 24);
    }

    #[test]
    fn the_first_fires_are_those_of_all_jobs_even_if_not_all_fires_are_counted() {
        let range = ForecastRange { to: Timestamp::from_secs(86_400), limit: 2, ..ForecastRange::default() };
        let mut builder = ForecastBuilder { range, ..ForecastBuilder::default() };
        let frequent_job = definition(&json!({"schedule": {"every": "10m"}}));
        for _ in 0..=FIRE_COUNT_MAX / 144 {
            builder.add(&frequent_job, Timestamp::EPOCH);
        }
        builder.add(&definition(&json!({"schedule": {"cron": "0 5 * * * ?"}})), Timestamp::EPOCH);
        let found = builder.forecast();
        let listed: Vec<Timestamp> = found.fires.iter().map(|fire| fire.at).collect();
        assert_eq!(listed, [Timestamp::from_secs(300), Timestamp::from_secs(600)]);
        assert!(found.is_cut);
        assert_eq!(found.density.values().sum::<u64>(), u64::try_from(FIRE_COUNT_MAX).unwrap());
    }

    #[test]
    fn there_is_no_peak_where_there_are_too_many_fires_to_compare() {
        let found = of_day(&["1h", "1s", "1s", "1s"]);
        assert_eq!((found.peak, found.is_cut), (None, false));
        assert_eq!(found.density.values().sum::<u64>(), 3 * 86_400 + 24);
        assert_eq!(of_day(&[]).peak, None);
    }
}
