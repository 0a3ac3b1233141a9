//! The lanes of a timeline: past, running and upcoming runs, by job, app or executor.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use rondel_admin::forecast::{LanePlan, lane_plans};
use rondel_core::sketch::Step;
use rondel_core::{AppId, IdGen, JobId, Run, RunId, RunStatus, Timestamp};
use rondel_store::catalog::{JobQuery, JobRecord};
use rondel_store::ledger::RunQuery;
use rondel_store::rollups::{ChartRun, NewestOutcomes, PointKind, StatPoint, Verdicts};

use super::recent_failures::{FAILING_JOB_COUNT, RecentFailures};
use super::series::{BucketRange, fitting_step, stored_step, summed_verdicts};
use crate::api::jobs::visible_from;
use crate::call::Call;
use crate::problem::Problem;

/// Maximum number of marks in one timeline. Earlier runs beyond it are joined into marks for stretches of time or, in lanes of executors,
/// left out.
pub(crate) const MARK_COUNT_MAX: usize = 5_000;
/// Maximum number of runs of one lane that are shown one by one.
const LANE_MARK_COUNT_MAX: usize = 400;
/// Maximum number of lanes in one timeline.
pub(crate) const LANE_COUNT_MAX: u32 = 100;
/// How many of the worst jobs are read if a filter may remove some of them afterwards.
const FILTERED_JOB_COUNT: u32 = 200;
/// How many running runs are read at most to find the jobs that run now.
const RUNNING_RUN_COUNT_MAX: u32 = 400;
/// Maximum number of running runs from before the range of a timeline.
const EARLIER_RUN_COUNT_MAX: u32 = 1_000;

rondel_core::plain_word_enum! {
    /// What a lane of a timeline shows.
    #[derive(Default)]
    pub(crate) LaneKind {
        #[default]
        Job = "job",
        App = "app",
        Executor = "executor",
    }
}

#[derive(Clone, Debug)]
pub(crate) struct TimelineRequest {
    pub(crate) lane_kind: LaneKind,
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
    /// Only this app.
    pub(crate) app: Option<AppId>,
    /// Only jobs whose name contains this.
    pub(crate) contains: Option<String>,
    /// Maximum number of lanes.
    pub(crate) lane_count: u32,
}

/// One run, or several runs that are joined into one mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) from: Timestamp,
    /// `None` while the run is running.
    pub(crate) to: Option<Timestamp>,
    /// The worst status of the runs that are joined.
    pub(crate) status: RunStatus,
    /// `None` for several runs.
    pub(crate) run: Option<RunId>,
    /// The number of runs or skipped fires.
    pub(crate) count: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Lane {
    pub(crate) name: String,
    /// The app of the job or executor; `None` if the lane is an app.
    pub(crate) app: Option<String>,
    /// Runs in the range.
    pub(crate) run_count: u64,
    /// Runs in the range that failed, timed out, or have an unknown outcome.
    pub(crate) failure_count: u64,
    pub(crate) marks: Vec<Mark>,
    /// Upcoming planned instants.
    pub(crate) fires: Vec<Timestamp>,
    /// Instants that the job's calendar removes or moves.
    pub(crate) removed_fires: Vec<Timestamp>,
    /// Clock changes in the job's zone that affect a fire.
    pub(crate) clock_changes: Vec<Timestamp>,
    /// Whether its earlier runs are joined.
    pub(crate) is_joined: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    pub(crate) lanes: Vec<Lane>,
    /// Whether there are more lanes than shown.
    pub(crate) has_more: bool,
    /// Whether only the newest runs are shown.
    pub(crate) is_cut: bool,
}

pub(crate) async fn timeline<Q: Sync>(
    call: &Call<Q>,
    request: &TimelineRequest,
    failures: &RecentFailures,
) -> Result<Timeline, Problem> {
    match request.lane_kind {
        LaneKind::Job => lanes_by_job(call, request, failures).await,
        LaneKind::App => lanes_by_app(call, request).await,
        LaneKind::Executor => lanes_by_executor(call, request).await,
    }
}

async fn lanes_by_job<Q: Sync>(
    call: &Call<Q>,
    request: &TimelineRequest,
    failures: &RecentFailures,
) -> Result<Timeline, Problem> {
    let lane_count = usize::try_from(request.lane_count).unwrap_or(usize::MAX);
    let mut jobs = worst_jobs(call, request, failures).await?;
    let listed_ids: BTreeSet<JobId> = jobs.iter().map(|job| job.id).collect();
    if jobs.len() <= lane_count {
        let visible_apps = call.visible_apps();
        let limit = request.lane_count + u32::try_from(listed_ids.len()).unwrap_or(0) + 1;
        let query = JobQuery {
            app: request.app,
            within: visible_apps,
            name_contains: request.contains.clone(),
            limit,
            ..JobQuery::default()
        };
        let other_jobs = call.engine().store().jobs(call.namespace.id, &query).await?;
        jobs.extend(other_jobs.into_iter().filter(|job| !listed_ids.contains(&job.id)));
    }
    let has_more = jobs.len() > lane_count;
    jobs.truncate(lane_count);
    let keys: Vec<(JobId, i64)> = jobs.iter().map(|job| (job.id, job.version)).collect();
    let now = call.engine().now();
    let mut plans = lane_plans(call.engine().node(), &keys, (request.from, request.to), now).await?;
    // In a long range, single runs would overlap, so fewer of them are drawn.
    let mark_divisor = if stretch_length(request) > Step::Hour.length() { 8 } else { 1 };
    let mark_count = (MARK_COUNT_MAX / mark_divisor / jobs.len().max(1)).min(LANE_MARK_COUNT_MAX);
    let mut data_by_job = read_lane_data(call, &jobs, (request, mark_count)).await?;
    let lanes = jobs.iter().map(|job| {
        let plan = plans.remove(&job.id).unwrap_or_default();
        job_lane(job, plan, data_by_job.remove(&job.id).unwrap_or_default(), (now, stretch_length(request)))
    });
    Ok(Timeline { lanes: lanes.collect(), has_more, is_cut: false })
}

/// The data from which the lane of a job is drawn.
#[derive(Debug, Default)]
struct LaneData {
    /// Its newest runs, ordered from the newest to the oldest.
    runs: Vec<ChartRun>,
    /// Runs before this instant are joined.
    cut_at: Option<Timestamp>,
    /// The verdicts of the joined runs, summed up for each stretch of time.
    stretches: Vec<StatPoint>,
}

/// Reads the newest runs of each job. For jobs that have more runs, also reads the counts of the earlier ones.
async fn read_lane_data<Q: Sync>(
    call: &Call<Q>,
    jobs: &[JobRecord],
    (request, mark_count): (&TimelineRequest, usize),
) -> Result<BTreeMap<JobId, LaneData>, Problem> {
    let limit = u32::try_from(mark_count).unwrap_or(u32::MAX).saturating_add(1);
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    let mut data_by_job: BTreeMap<JobId, LaneData> = BTreeMap::new();
    for run in call.engine().store().chart_runs(&ids, request.from, request.to, limit).await? {
        data_by_job.entry(run.job).or_default().runs.push(run);
    }
    let stretch_len = stretch_length(request);
    for LaneData { runs, cut_at, .. } in data_by_job.values_mut() {
        // Runs up to the end of the newest joined stretch are part of the stretches, so only later ones are drawn one by one.
        let oldest_run = runs.last().filter(|_| runs.len() > mark_count);
        *cut_at = oldest_run.map(|oldest_run| oldest_run.fire_at.floor(stretch_len) + stretch_len);
        let cut_at = *cut_at;
        runs.retain(|run| call.may_view(run.app) && cut_at.is_none_or(|cut_at| run.fire_at >= cut_at));
    }
    let cut_at = data_by_job.values().filter_map(|lane_data| lane_data.cut_at).max().unwrap_or(request.from);
    for run in running_before(call, cut_at).await?.iter().filter(|run| ids.contains(&run.job) && !run.is_shard()) {
        let lane_data = data_by_job.entry(run.job).or_default();
        if run.fire_at < lane_data.cut_at.unwrap_or(request.from) {
            lane_data.runs.push(ChartRun::from(run));
        }
    }
    let is_joined = |job: &&JobRecord| {
        call.may_view(job.app) && data_by_job.get(&job.id).is_some_and(|lane_data| lane_data.cut_at.is_some())
    };
    let joined_jobs: Vec<&JobRecord> = jobs.iter().filter(is_joined).collect();
    let step =
        if request.to.since(request.from) > Duration::from_secs(60 * 24 * 3600) { Step::Day } else { Step::Hour };
    let owners: Vec<i64> = joined_jobs.iter().map(|job| job.id.get()).collect();
    let range = BucketRange::new(step, request.from, request.to);
    let stretches = summed_verdicts(call, (PointKind::Job, &owners), range, stretch_len).await?;
    for job in joined_jobs {
        // If the job moved to another app, only runs of apps that the caller sees are counted.
        let from = visible_from(call, job, request.from, request.to).await?;
        let Some(lane_data) = data_by_job.get_mut(&job.id) else { continue };
        let is_visible = |stretch: &&StatPoint| {
            stretch.owner == job.id.get()
                && lane_data.cut_at.is_some_and(|cut_at| stretch.at < cut_at)
                && (from <= request.from || stretch.at >= from)
        };
        lane_data.stretches = stretches.iter().filter(is_visible).cloned().collect();
    }
    Ok(data_by_job)
}

/// The running runs that were created before an instant, the newest first. They still overlap the time after that instant.
async fn running_before<Q>(call: &Call<Q>, instant: Timestamp) -> Result<Vec<Run>, Problem> {
    let query = RunQuery {
        within: call.visible_apps(),
        statuses: vec![RunStatus::Running],
        after: Some(RunId::new(IdGen::first_at(instant))),
        limit: EARLIER_RUN_COUNT_MAX,
        ..RunQuery::default()
    };
    Ok(call.engine().store().list_runs(call.namespace.id, &query).await?)
}

/// The jobs in this order: those whose newest runs failed, those with a failed run in the last day, and those that are running.
async fn worst_jobs<Q: Sync>(
    call: &Call<Q>,
    request: &TimelineRequest,
    failures: &RecentFailures,
) -> Result<Vec<JobRecord>, Problem> {
    let (store, namespace) = (call.engine().store(), call.namespace.id);
    let visible_apps = call.visible_apps();
    let is_unfiltered = request.contains.is_none() && request.app.is_none() && visible_apps.is_none();
    // One job more than there are lanes shows whether there are more lanes. If a filter applies, more jobs are read, so that enough
    // remain.
    let count = if is_unfiltered { request.lane_count + 1 } else { FILTERED_JOB_COUNT };
    let job = |pulse: &NewestOutcomes| pulse.job;
    let mut candidates: Vec<JobId> = if count <= FAILING_JOB_COUNT {
        failures.failing_jobs(call).await?.iter().map(job).collect()
    } else {
        store.failing_jobs(namespace, visible_apps.as_deref(), count).await?.iter().map(job).collect()
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if candidates.len() < count {
        let failed_runs = failures.read(call).await?.iter().filter(|runs| runs.status != RunStatus::Skipped);
        candidates.extend(failed_runs.map(|runs| runs.job));
        let running_jobs = store.open_chart_runs(namespace, RunStatus::Running, RUNNING_RUN_COUNT_MAX).await?;
        candidates.extend(running_jobs.iter().map(|run| run.job));
    }
    let mut distinct_jobs = BTreeSet::new();
    let ids: Vec<JobId> = candidates.into_iter().filter(|job| distinct_jobs.insert(*job)).take(count).collect();
    let jobs_by_id =
        if is_unfiltered { store.jobs_by_id(&ids).await? } else { matching_jobs(call, request, &ids).await? };
    let mut jobs_by_id: HashMap<JobId, JobRecord> = jobs_by_id.into_iter().map(|job| (job.id, job)).collect();
    let is_selected = |job: &JobRecord| call.may_view(job.app) && request.app.is_none_or(|app| app == job.app);
    Ok(ids.iter().filter_map(|id| jobs_by_id.remove(id)).filter(is_selected).collect())
}

/// The jobs among `ids` whose names contain the wanted text: at most one more than the timeline has lanes, or all of them if [`worst_jobs`]
/// filters them further.
async fn matching_jobs<Q>(call: &Call<Q>, request: &TimelineRequest, ids: &[JobId]) -> Result<Vec<JobRecord>, Problem> {
    let store = call.engine().store();
    let names: HashMap<JobId, String> = store.job_names(ids).await?.into_iter().collect();
    let text = request.contains.as_deref().unwrap_or_default();
    let mut matching_names: Vec<&str> = ids.iter().filter_map(|id| names.get(id)).map(String::as_str).collect();
    matching_names.retain(|name| name.contains(text));
    let spare_count = if request.app.is_some() || call.visible_apps().is_some() { matching_names.len() } else { 1 };
    matching_names.truncate(usize::try_from(request.lane_count).unwrap_or(usize::MAX).saturating_add(spare_count));
    Ok(store.jobs_named(call.namespace.id, &matching_names).await?)
}

fn job_lane(job: &JobRecord, plan: LanePlan, data: LaneData, (now, stretch_len): (Timestamp, Duration)) -> Lane {
    let LaneData { mut runs, cut_at, stretches } = data;
    // A run that is claimed ahead of its instant is drawn as a planned fire until that instant.
    let claimed_instants: BTreeSet<Timestamp> =
        runs.iter().filter(|run| is_ahead(run)).map(|run| run.fire_at).collect();
    runs.retain(|run| !is_ahead(run) || run.fire_at <= now);
    let run_failures = runs.iter().fold(Verdicts::default(), |sum, run| sum.plus(failures_of_run(run)));
    let stretch_verdicts = || stretches.iter().map(|stretch| &stretch.verdicts);
    let run_count =
        u64::try_from(runs.len()).unwrap_or(u64::MAX) + stretch_verdicts().map(Verdicts::total).sum::<u64>();
    let failure_count = run_failures.failure_count() + stretch_verdicts().map(Verdicts::failure_count).sum::<u64>();
    let stretch_marks = stretches.iter().flat_map(|stretch| marks_of_stretch(stretch, stretch_len));
    let mut fires: Vec<Timestamp> = plan.fires;
    fires.extend(claimed_instants.into_iter().filter(|at| *at > now));
    fires.sort_unstable();
    fires.dedup();
    Lane {
        name: job.spec.name.clone(),
        app: Some(job.spec.app.clone()),
        run_count,
        failure_count,
        marks: stretch_marks.chain(runs.iter().rev().map(Mark::from)).collect(),
        is_joined: cut_at.is_some(),
        fires,
        removed_fires: plan.removed,
        clock_changes: plan.clock_changes,
    }
}

/// Whether the run is claimed or waiting, but has not begun.
const fn is_ahead(run: &ChartRun) -> bool {
    matches!(run.status, RunStatus::Pending | RunStatus::Waiting)
}

fn failures_of_run(run: &ChartRun) -> Verdicts {
    let count = u64::try_from(run.span_count).unwrap_or(1);
    let no_verdicts = Verdicts::default();
    match run.status {
        RunStatus::Failed => Verdicts { failed: count, ..no_verdicts },
        RunStatus::TimedOut => Verdicts { timed_out: count, ..no_verdicts },
        RunStatus::Unknown => Verdicts { unknown: count, ..no_verdicts },
        _ => no_verdicts,
    }
}

/// The length of the stretches of time into which runs are joined.
fn stretch_length(request: &TimelineRequest) -> Duration {
    let hours = match request.to.since(request.from).as_secs() / 3_600 {
        0..=48 => 1,
        49..=240 => 4,
        _ => 24,
    };
    Step::Hour.length() * hours
}

/// The marks of a joined stretch, one for each status that occurs. The mark of succeeded runs also counts the cancelled ones.
fn marks_of_stretch(stretch: &StatPoint, stretch_len: Duration) -> Vec<Mark> {
    let (at, Verdicts { succeeded, failed, timed_out, cancelled, unknown, skipped }) = (stretch.at, stretch.verdicts);
    let mark_of = |status, count| Mark { from: at, to: Some(at + stretch_len), status, run: None, count };
    let status_counts = [
        (RunStatus::Succeeded, succeeded + cancelled),
        (RunStatus::Skipped, skipped),
        (RunStatus::Unknown, unknown),
        (RunStatus::TimedOut, timed_out),
        (RunStatus::Failed, failed),
    ];
    status_counts.into_iter().filter(|(_, count)| *count > 0).map(|(status, count)| mark_of(status, count)).collect()
}

impl From<&ChartRun> for Mark {
    fn from(run: &ChartRun) -> Self {
        let begun_at = run.started_at.unwrap_or(run.fire_at).max(run.fire_at);
        let to = match run.status {
            RunStatus::Skipped => Some(run.span_end_at.unwrap_or(run.fire_at)),
            status if status.is_terminal() => Some(run.finished_at.unwrap_or(begun_at).max(begun_at)),
            _ => None,
        };
        let from = if run.status == RunStatus::Skipped { run.fire_at } else { begun_at };
        let count = u64::try_from(run.span_count).unwrap_or(1);
        Self { from, to, status: run.status, run: Some(run.id), count }
    }
}

async fn lanes_by_app<Q>(call: &Call<Q>, request: &TimelineRequest) -> Result<Timeline, Problem> {
    let mut apps = call.engine().store().apps(call.namespace.id).await?;
    apps.retain(|app| call.may_view(app.id) && request.app.is_none_or(|wanted| wanted == app.id));
    let lane_count = usize::try_from(request.lane_count).unwrap_or(usize::MAX);
    let has_more = apps.len() > lane_count;
    apps.truncate(lane_count);
    // Apps are counted in steps of at most an hour.
    let finest_step = fitting_step(request.to.since(request.from)).min(Step::Hour).max(Step::QuarterHour);
    let step = stored_step(PointKind::App, finest_step, (request.from, call.engine().now()));
    let ids: Vec<i64> = apps.iter().map(|app| app.id.get()).collect();
    // In a long range, short stretches would overlap, so runs are joined into longer ones.
    let stretch_len = if step == Step::Hour { stretch_length(request) } else { step.length() };
    let range = BucketRange::new(step, request.from, request.to);
    let stretches = summed_verdicts(call, (PointKind::App, &ids), range, stretch_len).await?;
    let lane = |app: rondel_store::catalog::App| {
        let stretches_of_app = || stretches.iter().filter(|stretch| stretch.owner == app.id.get());
        let verdict_sum =
            stretches_of_app().fold(Verdicts::default(), |verdict_sum, stretch| verdict_sum.plus(stretch.verdicts));
        Lane {
            name: app.name,
            run_count: verdict_sum.total(),
            failure_count: verdict_sum.failure_count(),
            marks: stretches_of_app().flat_map(|stretch| marks_of_stretch(stretch, stretch_len)).collect(),
            is_joined: true,
            ..Lane::default()
        }
    };
    let mut lanes: Vec<Lane> = apps.into_iter().map(lane).collect();
    lanes.sort_by_key(|lane| std::cmp::Reverse(lane.failure_count));
    Ok(Timeline { lanes, has_more, is_cut: false })
}

async fn lanes_by_executor<Q>(call: &Call<Q>, request: &TimelineRequest) -> Result<Timeline, Problem> {
    let ids = (RunId::new(IdGen::first_at(request.from)), RunId::new(IdGen::first_at(request.to)));
    let limit = u32::try_from(MARK_COUNT_MAX).unwrap_or(u32::MAX).saturating_add(1);
    let mut chart_runs = call.engine().store().chart_runs_of_namespace(call.namespace.id, ids, limit).await?;
    let is_cut = chart_runs.len() > MARK_COUNT_MAX;
    chart_runs.truncate(MARK_COUNT_MAX);
    chart_runs.extend(running_before(call, request.from).await?.iter().map(ChartRun::from));
    chart_runs.retain(|run| call.may_view(run.app) && request.app.is_none_or(|app| app == run.app));
    chart_runs.retain(|run| run.started_at.is_some());
    let mut runs_by_executor: BTreeMap<(AppId, String), Vec<ChartRun>> = BTreeMap::new();
    for run in chart_runs {
        if let Some(name) = run.executor.clone() {
            runs_by_executor.entry((run.app, name)).or_default().push(run);
        }
    }
    let apps = call.engine().store().apps(call.namespace.id).await?;
    let apps: HashMap<AppId, String> = apps.into_iter().map(|app| (app.id, app.name)).collect();
    let lane = |((app, name), chart_runs): ((AppId, String), Vec<ChartRun>)| Lane {
        name,
        app: apps.get(&app).cloned(),
        run_count: u64::try_from(chart_runs.len()).unwrap_or(u64::MAX),
        failure_count: chart_runs
            .iter()
            .fold(Verdicts::default(), |sum, run| sum.plus(failures_of_run(run)))
            .failure_count(),
        marks: chart_runs.iter().rev().map(Mark::from).collect(),
        ..Lane::default()
    };
    let lane_count = usize::try_from(request.lane_count).unwrap_or(usize::MAX);
    let has_more = runs_by_executor.len() > lane_count;
    Ok(Timeline { lanes: runs_by_executor.into_iter().take(lane_count).map(lane).collect(), has_more, is_cut })
}
