//! Pages of the runs of one job, in the order of its fires.
//!
//! The index of that order does not contain the status, and a job may have millions of runs. Open runs have an index by job. Other statuses
//! are searched for step by step, so that no statement reads more rows than its timeout allows.

use std::cmp::Reverse;

use rondel_core::{JobId, NamespaceId, Run, Timestamp};

use crate::ledger::RunQuery;
use crate::sql::SqlStore;
use crate::sql::query::{Query, Reader, Statement};
use crate::sql::rows::{self, run_columns};
use crate::sql::run::read::{are_open, bind_all_statuses, bind_statuses};
use crate::sql::run::search::FIND_END_OF_JOB;
use crate::{Result, Runs as _};

/// Number of rows that the first step reads for each run of the page. Each further step is four times as long.
const STEP_COUNT: u32 = 40;
/// Maximum number of rows in a step.
const STEP_COUNT_MAX: u32 = 20_000;

macro_rules! after_place {
    ($table:literal) => {
        concat!(
            $table,
            ".fire_at_ms <= ? AND (",
            $table,
            ".fire_at_ms < ? OR ",
            $table,
            ".cause < ? OR (",
            $table,
            ".cause = ? AND ",
            $table,
            ".shard_index < ?)) "
        )
    };
}
macro_rules! newest_fires {
    ($table:literal) => {
        concat!("ORDER BY ", $table, ".fire_at_ms DESC, ", $table, ".cause DESC, ", $table, ".shard_index DESC LIMIT ?")
    };
}

pub(in crate::sql) const LIST_RUNS_OF_JOB: Statement = Statement {
    name: "list_of_job",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM run WHERE namespace_id = ? AND job_id = ? AND ",
        after_place!("run"),
        newest_fires!("run")
    ),
};
pub(in crate::sql) const LIST_RUNS_OF_JOB_BY_STATUS: Statement = Statement {
    name: "list_of_job_by_status",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM run WHERE namespace_id = ? AND job_id = ? AND fire_at_ms >= ? AND ",
        after_place!("run"),
        "AND status IN ({words}) ",
        newest_fires!("run")
    ),
};
pub(in crate::sql) const LIST_RUNS_OF_JOB_OF_APPS: Statement = Statement {
    name: "list_of_job_of_apps",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM run WHERE namespace_id = ? AND job_id = ? AND fire_at_ms >= ? AND ",
        after_place!("run"),
        "AND status IN (?, ?, ?, ?, ?, ?, ?, ?, ?) AND app_id {in_list} ",
        newest_fires!("run")
    ),
};
/// Reads one status, because in the index the status comes before the fire.
pub(in crate::sql) const LIST_OPEN_RUNS_OF_JOB: Statement = Statement {
    name: "list_open_of_job",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM open_run CROSS JOIN run WHERE run.id = open_run.id AND open_run.job_id = ? AND open_run.status = ? \
         AND +open_run.namespace_id = ? AND ",
        after_place!("open_run"),
        "AND CASE ? WHEN 1 THEN open_run.app_id ELSE 0 END {in_list} ",
        newest_fires!("open_run")
    ),
};

/// A position in the order of the fires. A page begins after it.
#[derive(Clone, Copy, Debug)]
struct FirePlace {
    /// In milliseconds.
    fire_at: i64,
    cause: i64,
    shard_index: i64,
}

impl FirePlace {
    /// The position before all runs that are planned at or before this instant.
    const fn before(fire_at: i64) -> Self {
        Self { fire_at, cause: i64::MAX, shard_index: i64::MAX }
    }

    /// Adds the arguments of the condition that a run is after this place.
    fn add(self, query: Query) -> Query {
        query.int(self.fire_at).int(self.fire_at).int(self.cause).int(self.cause).int(self.shard_index)
    }
}

/// The arguments that limit a page to some apps: 1 and the apps, or 0 and a placeholder (a list in a statement must not be empty).
pub(super) fn apps_within(query: &RunQuery) -> (i64, Vec<i64>) {
    match &query.within {
        None => (0, vec![0]),
        Some(apps) => (1, apps.iter().map(|app| app.get()).collect()),
    }
}

impl SqlStore {
    pub(super) async fn read_page_of_job(
        &self,
        namespace: NamespaceId,
        job: JobId,
        query: &RunQuery,
    ) -> Result<Vec<Run>> {
        let place = match query.after {
            None => FirePlace::before(query.until.map_or(i64::MAX, Timestamp::as_millis)),
            Some(after) => match self.runs(&[after]).await?.first() {
                Some(run) => FirePlace {
                    fire_at: run.fire_at.as_millis(),
                    cause: run.cause,
                    shard_index: run.shard_index.into(),
                },
                // The run was deleted in the meantime, so its place in the order is unknown.
                None => return Ok(Vec::new()),
            },
        };
        match (&query.within, &query.statuses[..]) {
            (Some(apps), _) if apps.is_empty() => Ok(Vec::new()),
            (None, []) => {
                let page = place.add(Query::new(&LIST_RUNS_OF_JOB).int(namespace.get()).int(job.get()));
                rows::runs(&self.rows(page.int(query.limit.into())).await?)
            }
            (_, statuses) if !statuses.is_empty() && are_open(statuses) => {
                self.read_open_runs_of_job((namespace, job), place, query).await
            }
            _ => self.read_runs_by_steps((namespace, job), place, query).await,
        }
    }

    async fn read_open_runs_of_job(
        &self,
        (namespace, job): (NamespaceId, JobId),
        place: FirePlace,
        query: &RunQuery,
    ) -> Result<Vec<Run>> {
        let (is_within, apps) = apps_within(query);
        let mut open_runs: Vec<Run> = Vec::new();
        for status in &query.statuses {
            let page = Query::new(&LIST_OPEN_RUNS_OF_JOB).int(job.get()).text(status.as_str()).int(namespace.get());
            let page = place.add(page).int(is_within).list(apps.iter().copied()).int(query.limit.into());
            open_runs.append(&mut rows::runs(&self.rows(page).await?)?);
        }
        open_runs.sort_by_key(|run| Reverse((run.fire_at, run.cause, run.shard_index)));
        // A run can get another status between two statements.
        open_runs.dedup_by_key(|run| run.id);
        open_runs.truncate(usize::try_from(query.limit).unwrap_or(usize::MAX));
        Ok(open_runs)
    }

    async fn read_runs_by_steps(
        &self,
        (namespace, job): (NamespaceId, JobId),
        mut place: FirePlace,
        query: &RunQuery,
    ) -> Result<Vec<Run>> {
        let limit = usize::try_from(query.limit).unwrap_or(usize::MAX);
        let mut step = query.limit.max(1).saturating_mul(STEP_COUNT).min(STEP_COUNT_MAX);
        let mut runs: Vec<Run> = Vec::new();
        loop {
            let end_query = Query::new(&FIND_END_OF_JOB).int(job.get()).int(place.fire_at).int(i64::from(step) - 1);
            let end_row = self.row(end_query).await?;
            // The step includes all runs of its last instant.
            let from_ms = end_row.map(|row| Reader::new(&row, "run").int("fire_at_ms")).transpose()?;
            let page = |statement: &'static Statement| {
                let page = Query::new(statement).int(namespace.get()).int(job.get());
                place.add(page.int(from_ms.unwrap_or(i64::MIN)))
            };
            let page = match &query.within {
                None => bind_statuses(page(&LIST_RUNS_OF_JOB_BY_STATUS), &query.statuses),
                Some(apps) => bind_all_statuses(page(&LIST_RUNS_OF_JOB_OF_APPS), &query.statuses)
                    .list(apps.iter().map(|app| app.get())),
            };
            runs.append(&mut rows::runs(&self.rows(page.int(query.limit.into())).await?)?);
            let Some(from_ms) = from_ms.filter(|_| runs.len() < limit) else { break };
            place = FirePlace::before(from_ms.saturating_sub(1));
            step = step.saturating_mul(4).min(STEP_COUNT_MAX);
        }
        runs.truncate(limit);
        Ok(runs)
    }
}
