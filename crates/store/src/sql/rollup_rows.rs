//! Converts rows of counts and overviews to values.

use rondel_core::sketch::Sketch;
use rondel_core::{AppId, JobId, NamespaceId, RunId};
use sqlx::any::AnyRow;

use crate::Result;
use crate::rollups::{ChartRun, ComingJob, NewestOutcomes, StatPoint, UnsuccessfulRuns, Verdicts};
use crate::sql::query::Reader;

/// Reads a point: the columns that [`verdicts`] reads, and then its distributions.
pub(super) fn point(columns: &mut Reader<'_>) -> Result<StatPoint> {
    let verdicts = verdicts(columns)?;
    let mut sketch = |column| {
        let text = columns.text(column)?;
        text.parse::<Sketch>().map_err(|error| columns.corrupt(column, error))
    };
    Ok(StatPoint { durations: sketch("durations")?, lateness: sketch("lateness")?, ..verdicts })
}

/// Reads a point without its distributions, which remain empty.
pub(super) fn verdicts(columns: &mut Reader<'_>) -> Result<StatPoint> {
    let (owner, at) = (columns.int("owner_id")?, columns.at("at_ms")?);
    let mut count = |column| Ok::<_, crate::StoreError>(u64::try_from(columns.int(column)?).unwrap_or(0));
    let verdicts = Verdicts {
        succeeded: count("succeeded_count")?,
        failed: count("failed_count")?,
        timed_out: count("timed_out_count")?,
        cancelled: count("cancelled_count")?,
        unknown: count("unknown_count")?,
        skipped: count("skipped_count")?,
    };
    Ok(StatPoint { owner, at, verdicts, durations: Sketch::default(), lateness: Sketch::default() })
}

pub(super) fn coming_job(row: &AnyRow) -> Result<ComingJob> {
    let mut columns = Reader::new(row, "job");
    Ok(ComingJob {
        job: JobId::new(columns.int("id")?),
        version: columns.int("version")?,
        app: AppId::new(columns.int("app_id")?),
        next_fire_at: columns.at("next_fire_at_ms")?,
    })
}

pub(super) fn pulse(row: &AnyRow) -> Result<NewestOutcomes> {
    let mut columns = Reader::new(row, "job_pulse");
    Ok(NewestOutcomes {
        job: JobId::new(columns.int("job_id")?),
        namespace: NamespaceId::new(columns.int("namespace_id")?),
        app: AppId::new(columns.int("app_id")?),
        succeeded_at: columns.opt_at("succeeded_at_ms")?,
        failed_at: columns.opt_at("failed_at_ms")?,
        failing_since: columns.opt_at("failing_since_ms")?,
        streak: u64::try_from(columns.int("streak_count")?).unwrap_or(0),
    })
}

pub(super) fn chart_run(row: &AnyRow) -> Result<ChartRun> {
    let mut columns = Reader::new(row, "run");
    Ok(ChartRun {
        id: RunId::new(columns.int("id")?),
        job: JobId::new(columns.int("job_id")?),
        app: AppId::new(columns.int("app_id")?),
        fire_at: columns.at("fire_at_ms")?,
        status: columns.word("status")?,
        started_at: columns.opt_at("started_at_ms")?,
        finished_at: columns.opt_at("finished_at_ms")?,
        executor: columns.opt_text("executor")?,
        span_count: columns.int("span_count")?,
        span_end_at: columns.opt_at("span_end_at_ms")?,
        parent: columns.opt_int("parent_id")?.map(RunId::new),
    })
}

/// Reads how often runs of a job ended with one status.
pub(super) fn unsuccessful_runs(row: &AnyRow) -> Result<UnsuccessfulRuns> {
    let mut columns = Reader::new(row, "unsuccessful_run");
    Ok(UnsuccessfulRuns {
        job: JobId::new(columns.int("job_id")?),
        status: columns.word("status")?,
        had_no_executor: columns.int("had_none")? == 1,
        count: u64::try_from(columns.int("row_count")?).unwrap_or(0),
        newest: RunId::new(columns.int("newest")?),
    })
}
