//! The fires of jobs in shadow mode beside those of the scheduler that they are to replace, by job and day.

use std::time::Duration;

use rondel_core::shadow::compare::{Comparison, OldFire, OwnFire, Range, compare};
use rondel_core::sketch::Step;
use rondel_core::spec::Mode;
use rondel_core::{AppId, JobSpec, NamespaceId, Reason, Run, Timestamp};
use rondel_store::StoreError;
use rondel_store::catalog::{JobQuery, JobRecord};
use rondel_store::shadow::ShadowSpan;

use crate::node::Node;
use crate::xxl::Address;

/// Fires of a job and day that are compared on each side; the rest of that day is left out.
const FIRE_COUNT_MAX: u32 = 100_000;
/// The most between the planned instant of an observed fire and when it was sent.
pub const DUE_DISTANCE_MAX: Duration = Duration::from_secs(3_600);
/// Fires after which a page ends.
const PAGE_FIRE_COUNT: usize = 200_000;
const JOB_PAGE: u32 = 500;
/// A job that was just made has had fires there that it could not have here.
const SETTLE: Duration = Duration::from_secs(2);

/// What a report is about.
#[derive(Clone, Debug)]
pub struct ShadowAsk<'a> {
    /// The tenant.
    pub namespace: NamespaceId,
    /// Whose fires are compared with those of Rondel.
    pub source: &'a str,
    /// From when to when, how late fires may be, and from when on they are late.
    pub range: Range,
    /// Only jobs of these apps: what the caller may see.
    pub within: Option<Vec<AppId>>,
    /// Only this job.
    pub job: Option<JobRecord>,
    /// Only jobs whose name comes after this one.
    pub after_name: Option<String>,
    /// So many jobs at most.
    pub job_count_max: usize,
}

/// A job on one day in UTC.
#[derive(Clone, Debug)]
pub struct ShadowRow {
    /// The job.
    pub name: String,
    /// Its app.
    pub app: String,
    /// The beginning of the day.
    pub day: Timestamp,
    /// Both sides.
    pub comparison: Comparison,
    /// Whether the day has more fires than are compared.
    pub is_cut: bool,
}

/// A report, or a page of it.
#[derive(Clone, Debug)]
pub struct ShadowReport {
    /// What was observed; `None` where that is nothing.
    pub span: Option<ShadowSpan>,
    /// By job and day.
    pub rows: Vec<ShadowRow>,
    /// The last job of this page, where another one follows.
    pub next: Option<String>,
}

/// Compares the fires of the jobs in shadow mode, and of those that were, up to what was observed.
///
/// # Errors
/// The store.
pub async fn report(engine: &Node, ask: &ShadowAsk<'_>) -> Result<ShadowReport, StoreError> {
    let store = engine.store();
    let span = store.shadow_span(ask.namespace, ask.source).await?;
    let mut report = ShadowReport { span, rows: Vec::new(), next: None };
    let Some(span) = span else { return Ok(report) };
    // What comes after the last observed fire may not have been read there yet.
    let observed = Range { from: ask.range.from.max(span.first_at), to: ask.range.to.min(span.last_at), ..ask.range };
    let (mut after, mut fire_count, mut job_count) = (ask.after_name.clone(), 0, 0);
    loop {
        let jobs = match &ask.job {
            Some(job) => vec![job.clone()],
            None => {
                let (within, after_name) = (ask.within.clone(), after.clone());
                let query = JobQuery { within, after_name, limit: JOB_PAGE, ..JobQuery::default() };
                store.jobs(ask.namespace, &query).await?
            }
        };
        for job in jobs.iter().filter(|job| has_shadows(&job.spec)) {
            if job_count == ask.job_count_max || fire_count >= PAGE_FIRE_COUNT {
                report.next = report.rows.last().map(|row| row.name.clone()).or(after);
                return Ok(report);
            }
            job_count += 1;
            fire_count += add(engine, ask, job, observed, &mut report.rows).await?;
            after = Some(job.spec.name.clone());
        }
        let is_last = ask.job.is_some() || jobs.len() < JOB_PAGE as usize;
        after = jobs.last().map(|job| job.spec.name.clone());
        if is_last {
            return Ok(report);
        }
    }
}

fn has_shadows(spec: &JobSpec) -> bool {
    spec.mode == Mode::Shadow || spec.mode_from.is_some()
}

/// Adds a job's days. Answers how many fires were read.
async fn add(
    engine: &Node,
    ask: &ShadowAsk<'_>,
    job: &JobRecord,
    observed: Range,
    rows: &mut Vec<ShadowRow>,
) -> Result<usize, StoreError> {
    let range = in_shadow(job, observed);
    let mut fire_count = 0;
    let mut day = Step::Day.floor(range.from);
    while day < range.to {
        let next = day + Duration::from_secs(24 * 3_600);
        let part = Range { from: range.from.max(day), to: range.to.min(next), ..range };
        let (own, old, is_cut) = read(engine, ask, job, part).await?;
        fire_count += own.len() + old.len();
        let comparison = compare(own, old, part);
        if comparison != Comparison::default() {
            let (name, app) = (job.spec.name.clone(), job.spec.app.clone());
            rows.push(ShadowRow { name, app, day, comparison, is_cut });
        }
        day = next;
    }
    Ok(fire_count)
}

/// The part of a range in which both schedulers plan the job's fires.
fn in_shadow(job: &JobRecord, range: Range) -> Range {
    let seam = job.spec.mode_from.as_deref().and_then(|at| at.parse::<Timestamp>().ok());
    let from = range.from.max(job.created_at + SETTLE);
    match (job.spec.mode, seam) {
        (Mode::Active, Some(seam)) => Range { from, to: range.to.min(seam), ..range },
        (Mode::Shadow, Some(seam)) => Range { from: from.max(seam), ..range },
        (_, None) => Range { from, ..range },
    }
}

async fn read(
    engine: &Node,
    ask: &ShadowAsk<'_>,
    job: &JobRecord,
    range: Range,
) -> Result<(Vec<OwnFire>, Vec<OldFire>, bool), StoreError> {
    let (store, (from, to)) = (engine.store(), range.with_edges());
    let own = store.planned_rows(job.id, from, to, FIRE_COUNT_MAX).await?;
    // A fire is found by when it was sent, and compared by when it was due.
    let sent = (from - DUE_DISTANCE_MAX, to + DUE_DISTANCE_MAX);
    let mut old = store.shadow_fires((ask.namespace, ask.source), job.id, sent, FIRE_COUNT_MAX).await?;
    old.retain(|fire| (from..to).contains(&fire.at()));
    for fire in &mut old {
        // An executor of XXL-JOB has a name here.
        if let Ok(address) = Address::parse(&fire.executor) {
            fire.executor = address.name();
        }
    }
    let is_cut = own.len().max(old.len()) >= FIRE_COUNT_MAX as usize;
    Ok((own.iter().filter(|run| is_fire(run)).map(own_fire).collect(), old, is_cut))
}

/// Whether a row stands for a fire that Rondel would have had: not for one that it skipped for a reason of its own, nor for one that it had
/// while the job was active between two stretches of shadow mode, which the other scheduler rightly did not have.
fn is_fire(run: &Run) -> bool {
    run.span_end_at.is_none() && run.reason == Some(Reason::Shadow)
}

fn own_fire(run: &Run) -> OwnFire {
    let would_have = run.detail.as_deref().and_then(|detail| detail.executor.clone());
    OwnFire { run: run.id, fire_at: run.fire_at, sent_at: run.finished_at, executor: would_have }
}
