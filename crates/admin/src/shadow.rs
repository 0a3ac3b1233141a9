//! Compares the fires of jobs in shadow mode with the fires of the scheduler that Rondel is to replace, by job and day.

use std::time::Duration;

use rondel_core::shadow::compare::{
    Comparison, DIFFERENCE_COUNT_MAX, DifferenceKind, OldFire, Range, RondelFire, SAME_FIRE_WITHIN, compare,
};
use rondel_core::sketch::Step;
use rondel_core::spec::Mode;
use rondel_core::{AppId, JobSpec, NamespaceId, Reason, Run, RunStatus, Timestamp};
use rondel_store::StoreError;
use rondel_store::catalog::{JobQuery, JobRecord, ListedJob};
use rondel_store::shadow::ShadowSpan;

use crate::node::Node;
use crate::xxl::Address;

/// Maximum number of fires per job and day compared on each side; the rest of the day is omitted.
const FIRE_COUNT_MAX: u32 = 100_000;
/// Maximum difference between the planned instant of an observed fire and its sending.
pub const DUE_DISTANCE_MAX: Duration = Duration::from_secs(3_600);
/// Number of fires after which a page ends.
const PAGE_FIRE_COUNT: usize = 200_000;
const JOB_PAGE: u32 = 500;
/// Fires within this time after a job's creation are not compared, because Rondel cannot fire the job so soon.
const COMPARED_FROM_AGE: Duration = Duration::from_secs(2);

/// A request for a report.
#[derive(Clone, Debug)]
pub struct ShadowRequest<'a> {
    pub namespace: NamespaceId,
    /// The scheduler whose fires are compared with Rondel's.
    pub source: &'a str,
    /// The range, and the limits for late fires.
    pub range: Range,
    /// Only jobs of these apps, which the caller may view; `None` for all apps.
    pub visible_apps: Option<Vec<AppId>>,
    /// Only this job; `None` for all jobs.
    pub job: Option<JobRecord>,
    /// The names of all jobs that [`has_shadow_fires`] admits, sorted, if they are known; otherwise all jobs are read.
    pub shadow_names: Option<Vec<String>>,
    /// Only jobs whose name comes after this name; `None` to begin with the first job.
    pub after_name: Option<String>,
    /// Maximum number of jobs.
    pub job_count_max: usize,
}

/// The fires of a job on one day in UTC.
#[derive(Clone, Debug)]
pub struct ShadowRow {
    /// The name of the job.
    pub name: String,
    pub app: String,
    /// The start of the day.
    pub day: Timestamp,
    /// The comparison of both sides.
    pub comparison: Comparison,
    /// Whether the day may have more fires than were compared.
    pub is_cut: bool,
}

/// A report, or a page of it.
#[derive(Clone, Debug)]
pub struct ShadowReport {
    /// The range that was observed; `None` if nothing was observed.
    pub span: Option<ShadowSpan>,
    /// Rows sorted by job and day.
    pub rows: Vec<ShadowRow>,
    /// The name of the last job on this page; `None` if no page follows.
    pub next: Option<String>,
}

/// Compares the fires of jobs that are or were in shadow mode, up to the last observed fire.
///
/// # Errors
/// The store's.
pub async fn report(node: &Node, request: &ShadowRequest<'_>) -> Result<ShadowReport, StoreError> {
    let store = node.store();
    let span = store.shadow_span(request.namespace, request.source).await?;
    let mut report = ShadowReport { span, rows: Vec::new(), next: None };
    let Some(span) = span else { return Ok(report) };
    // Fires after the last observed fire may not have been read from the other scheduler yet.
    let observed_range =
        Range { from: request.range.from.max(span.first_at), to: request.range.to.min(span.last_at), ..request.range };
    let (mut after, mut fire_count, mut job_count) = (request.after_name.clone(), 0, 0);
    loop {
        let page = read_page(node, request, after.as_deref()).await?;
        for job in page.jobs.iter().filter(|job| has_shadow_fires(&job.spec)) {
            if job_count == request.job_count_max || fire_count >= PAGE_FIRE_COUNT {
                report.next = report.rows.last().map(|row| row.name.clone()).or(after);
                return Ok(report);
            }
            job_count += 1;
            fire_count += add_rows(node, request, job, observed_range, &mut report.rows).await?;
            after = Some(job.spec.name.clone());
        }
        after = page.last_name;
        if after.is_none() {
            return Ok(report);
        }
    }
}

/// A page of the jobs that may be in a report.
struct JobPage {
    jobs: Vec<JobRecord>,
    /// The last name on this page, after which the next page begins; `None` if the page is not full.
    last_name: Option<String>,
}

async fn read_page(node: &Node, request: &ShadowRequest<'_>, after: Option<&str>) -> Result<JobPage, StoreError> {
    let (store, page_len) = (node.store(), usize::try_from(JOB_PAGE).unwrap_or(usize::MAX));
    match (&request.job, &request.shadow_names) {
        (Some(job), _) => Ok(JobPage { jobs: vec![job.clone()], last_name: None }),
        (None, Some(names)) => {
            let begin_index = names.partition_point(|name| after.is_some_and(|after| name.as_str() <= after));
            let names: Vec<&str> = names[begin_index..].iter().map(String::as_str).take(page_len).collect();
            let jobs = if names.is_empty() { Vec::new() } else { store.jobs_named(request.namespace, &names).await? };
            let last_name = names.last().filter(|_| names.len() == page_len).map(|name| (*name).to_owned());
            Ok(JobPage { jobs, last_name })
        }
        (None, None) => {
            let (within, after_name) = (request.visible_apps.clone(), after.map(str::to_owned));
            let query = JobQuery { within, after_name, limit: JOB_PAGE, ..JobQuery::default() };
            let jobs = store.listed_jobs(request.namespace, &query).await?;
            let last_name = jobs.last().filter(|_| jobs.len() == page_len).map(|job| job.name().to_owned());
            Ok(JobPage { jobs: jobs.into_iter().filter_map(ListedJob::into_record).collect(), last_name })
        }
    }
}

/// Whether a job is in shadow mode, or was up to an instant.
#[must_use]
pub fn has_shadow_fires(spec: &JobSpec) -> bool {
    spec.mode == Mode::Shadow || spec.mode_from.is_some()
}

/// Adds the rows of a job's days. Returns the number of fires read.
async fn add_rows(
    node: &Node,
    request: &ShadowRequest<'_>,
    job: &JobRecord,
    observed_range: Range,
    rows: &mut Vec<ShadowRow>,
) -> Result<usize, StoreError> {
    let promoted_at = job.spec.mode_from.as_deref().and_then(|at| at.parse::<Timestamp>().ok());
    let range = shadow_range(job.created_at, (job.spec.mode, promoted_at), observed_range);
    let (mut fire_count, row_count) = (0, rows.len());
    let mut day = Step::Day.floor(range.from);
    while day < range.to {
        let next_day = day + Duration::from_secs(24 * 3_600);
        let mut day_range = Range { from: range.from.max(day), to: range.to.min(next_day), ..range };
        let fires = read_fires(node, request, job, day_range).await?;
        let is_cut = fires.is_cut;
        if let Some(hidden_until) = fires.hidden_until {
            // The fires until this instant belong to an app that the caller may not see, so the report begins after them.
            rows.truncate(row_count);
            day_range.from = day_range.from.max(hidden_until + range.tolerance + SAME_FIRE_WITHIN);
        }
        fire_count += fires.rondel_fires.len() + fires.old_fires.len() + fires.old_fires_at_skips.len();
        let old_only = compare(Vec::new(), fires.old_fires_at_skips, day_range);
        let comparison = with_only_old(compare(fires.rondel_fires, fires.old_fires, day_range), old_only);
        if comparison != Comparison::default() {
            let (name, app) = (job.spec.name.clone(), job.spec.app.clone());
            rows.push(ShadowRow { name, app, day, comparison, is_cut });
        }
        day = next_day;
    }
    Ok(fire_count)
}

/// The part of a range in which both schedulers plan the job's fires. For a job that is in shadow mode again after it was active, this is
/// the whole range; [`is_fire`] omits the runs of the time in between, in which the other scheduler was stopped.
fn shadow_range(created_at: Timestamp, (mode, promoted_at): (Mode, Option<Timestamp>), range: Range) -> Range {
    let from = range.from.max(created_at + COMPARED_FROM_AGE);
    match (mode, promoted_at) {
        (Mode::Active, Some(promoted_at)) => Range { from, to: range.to.min(promoted_at), ..range },
        (Mode::Active | Mode::Shadow, _) => Range { from, ..range },
    }
}

/// Adds `old_only`, a comparison without fires of Rondel, to `comparison`.
fn with_only_old(mut comparison: Comparison, old_only: Comparison) -> Comparison {
    comparison.only_old += old_only.only_old;
    comparison.differences.extend(old_only.differences);
    comparison.differences.sort_by_key(|difference| {
        (difference.kind == DifferenceKind::OtherExecutor, difference.at, difference.source_id)
    });
    let dropped_count = comparison.differences.len().saturating_sub(DIFFERENCE_COUNT_MAX);
    comparison.differences.truncate(DIFFERENCE_COUNT_MAX);
    comparison.differences_more += old_only.differences_more + u64::try_from(dropped_count).unwrap_or(u64::MAX);
    comparison
}

/// The fires of a job in a range.
struct Fires {
    rondel_fires: Vec<RondelFire>,
    /// The fires of the other scheduler.
    old_fires: Vec<OldFire>,
    /// The fires of the other scheduler at instants that Rondel skipped for a reason of its own.
    old_fires_at_skips: Vec<OldFire>,
    /// Whether the range may have more fires.
    is_cut: bool,
    /// The end of Rondel's last fire that belongs to an app that the caller may not see; all such fires are left out.
    hidden_until: Option<Timestamp>,
}

async fn read_fires(
    node: &Node,
    request: &ShadowRequest<'_>,
    job: &JobRecord,
    range: Range,
) -> Result<Fires, StoreError> {
    let (store, (from, to)) = (node.store(), range.with_edges());
    let mut planned_rows = store.planned_rows(job.id, from, to, FIRE_COUNT_MAX).await?;
    // Fires are queried by the instant at which they were sent, and compared by their due instant.
    let sent_range = (from - DUE_DISTANCE_MAX, to + DUE_DISTANCE_MAX);
    let mut foreign_fires =
        store.shadow_fires((request.namespace, request.source), job.id, sent_range, FIRE_COUNT_MAX).await?;
    foreign_fires.retain(|fire| (from..to).contains(&fire.at()));
    for fire in &mut foreign_fires {
        // Executors of XXL-JOB are compared by the names that Rondel gives to their addresses.
        if let Ok(address) = Address::parse(&fire.executor) {
            fire.executor = address.name();
        }
    }
    let is_cut = planned_rows.len().max(foreign_fires.len()) >= FIRE_COUNT_MAX as usize;
    let hidden_until = remove_hidden(&mut planned_rows, request.visible_apps.as_deref());
    let (old_fires_at_skips, old_fires) =
        foreign_fires.into_iter().partition(|fire| is_at_skip(&planned_rows, fire.at(), range.tolerance));
    let rondel_fires = planned_rows.iter().filter(|run| is_fire(run)).map(rondel_fire).collect();
    Ok(Fires { rondel_fires, old_fires, old_fires_at_skips, is_cut, hidden_until })
}

/// Removes the rows of apps that the caller may not see, which are from the time before the job moved. Returns the end of the last of these
/// rows; `None` if there are none.
fn remove_hidden(planned_rows: &mut Vec<Run>, visible_apps: Option<&[AppId]>) -> Option<Timestamp> {
    let visible_apps = visible_apps?;
    let hidden_rows = planned_rows.iter().filter(|run| !visible_apps.contains(&run.app));
    let hidden_until = hidden_rows.map(|run| run.span_end_at.unwrap_or(run.fire_at)).max();
    planned_rows.retain(|run| visible_apps.contains(&run.app));
    hidden_until
}

/// Whether an observed fire belongs to an instant that Rondel planned and skipped for a reason of its own, such as an outage. Only the other
/// scheduler had such a fire, so the fire is no repetition of the fire before it. `planned_runs` is sorted by instant.
fn is_at_skip(planned_runs: &[Run], at: Timestamp, tolerance: Duration) -> bool {
    let next_index = planned_runs.partition_point(|run| run.fire_at <= at);
    let earlier_run = next_index.checked_sub(1).and_then(|place| planned_runs.get(place));
    let span_end = |run: &Run| run.span_end_at.unwrap_or(run.fire_at);
    // The clock of the other scheduler may be a little behind: its fire then belongs to the instant that follows.
    let is_near = |run: &&Run| {
        let distance = run.fire_at.since(at);
        distance <= SAME_FIRE_WITHIN && earlier_run.is_none_or(|before| distance < at.since(span_end(before)))
    };
    planned_runs.get(next_index).filter(is_near).or(earlier_run).is_some_and(|run| {
        let is_skip = run.status == RunStatus::Skipped && run.reason != Some(Reason::Shadow);
        is_skip && at.since(span_end(run)) <= tolerance
    })
}

/// Whether a row records a fire that Rondel would have run without shadow mode. A fire that Rondel skipped for another reason does not
/// count. A fire that ran while the job was active between two periods of shadow mode does not count either, since the other scheduler did
/// not fire the job then.
fn is_fire(run: &Run) -> bool {
    run.span_end_at.is_none() && run.reason == Some(Reason::Shadow)
}

fn rondel_fire(run: &Run) -> RondelFire {
    let chosen_executor = run.detail.as_deref().and_then(|detail| detail.executor.clone());
    RondelFire { run: run.id, fire_at: run.fire_at, sent_at: run.finished_at, executor: chosen_executor }
}

#[cfg(test)]
mod tests {
    use rondel_core::run::RunJob;
    use rondel_core::shadow::compare::OldOutcome;
    use rondel_core::{JobId, NodeId, RunId, Trigger};

    use super::*;

    #[test]
    fn fires_that_rondel_skipped_for_its_own_reasons_are_only_old_ones() {
        let at = Timestamp::from_secs;
        let row = |second: i64, reason: Reason| {
            let of = RunJob { namespace: NamespaceId::new(1), job: JobId::new(1), job_version: 1, app: AppId::new(1) };
            let run = Run::new(RunId::new(second), of, at(second), Trigger::Cron, (NodeId::new(1), 1));
            Run { status: RunStatus::Skipped, reason: Some(reason), ..run }
        };
        let outage = Run { span_end_at: Some(at(18)), span_count: 4, ..row(12, Reason::Misfire) };
        let planned = [row(10, Reason::Shadow), outage, row(20, Reason::Shadow), row(22, Reason::Misfire)];
        let tolerance = Duration::from_secs(30);
        for (second, expected) in [(9, false), (10, false), (12, true), (16, true), (19, true), (20, false), (23, true)]
        {
            assert_eq!(is_at_skip(&planned, at(second), tolerance), expected, "{second}");
        }
        assert!(!is_at_skip(&planned, at(60), tolerance), "a later fire has no planned instant");
        for (millis, expected) in [(19_990, false), (19_400, false), (19_200, false), (18_900, true), (21_990, true)] {
            let early = Timestamp::from_millis(millis);
            assert_eq!(is_at_skip(&planned, early, tolerance), expected, "{millis}: a clock that is behind");
        }

        let range = Range { from: at(0), to: at(100), tolerance, late_from: Duration::from_secs(3) };
        let old = |source_id, second| OldFire {
            source_id,
            due_at: None,
            started_at: at(second),
            executor: String::new(),
            outcome: OldOutcome::Succeeded,
        };
        let (skipped, others) = [(1, 10), (2, 12), (3, 14), (4, 20)]
            .map(|(id, second)| old(id, second))
            .into_iter()
            .partition(|fire| is_at_skip(&planned, fire.at(), tolerance));
        let own = planned.iter().filter(|run| is_fire(run)).map(rondel_fire).collect();
        let found = with_only_old(compare(own, others, range), compare(Vec::new(), skipped, range));
        assert_eq!((found.both, found.only_old, found.twice, found.only_rondel), (2, 2, 0, 0), "{found:?}");
        assert!(found.differences.iter().all(|one| one.kind == DifferenceKind::OnlyOld), "{found:?}");
    }

    #[test]
    fn fires_from_before_a_job_moved_are_hidden_with_its_earlier_app() {
        let at = Timestamp::from_secs;
        let row = |app: i64, second: i64| {
            let (job, app) = (JobId::new(1), AppId::new(app));
            let of = RunJob { namespace: NamespaceId::new(1), job, job_version: 1, app };
            Run::new(RunId::new(second), of, at(second), Trigger::Cron, (NodeId::new(1), 1))
        };
        let rows = || vec![row(1, 10), Run { span_end_at: Some(at(25)), ..row(1, 20) }, row(2, 30)];
        let found = |visible_apps: Option<&[AppId]>| {
            let mut planned_rows = rows();
            let hidden_until = remove_hidden(&mut planned_rows, visible_apps);
            (hidden_until, planned_rows.len())
        };
        assert_eq!(found(None), (None, 3));
        assert_eq!(found(Some(&[AppId::new(1), AppId::new(2)])), (None, 3));
        assert_eq!(found(Some(&[AppId::new(2)])), (Some(at(25)), 1));
    }

    #[test]
    fn every_stretch_in_shadow_mode_is_compared() {
        let at = Timestamp::from_secs;
        let whole = Range { from: at(0), to: at(1_000), tolerance: Duration::ZERO, late_from: Duration::ZERO };
        for (mode, promoted_at, expected) in [
            (Mode::Shadow, None, (12, 1_000)),
            (Mode::Active, Some(at(500)), (12, 500)),
            (Mode::Shadow, Some(at(700)), (12, 1_000)),
        ] {
            let found = shadow_range(at(10), (mode, promoted_at), whole);
            assert_eq!((found.from, found.to), (at(expected.0), at(expected.1)), "{mode:?} {promoted_at:?}");
        }
    }
}
