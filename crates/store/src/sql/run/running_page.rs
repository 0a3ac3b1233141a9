//! Pages of running runs, in the order of their ids.
//!
//! The index of a namespace's open runs has that order, but a backfill can add a great many waiting runs to it. Running runs are limited by
//! the slots of the executors, and have another index with another order. MySQL has one index for both.

use rondel_core::{NamespaceId, Run, RunId};

use crate::Result;
use crate::ledger::RunQuery;
use crate::sql::SqlStore;
use crate::sql::query::{Query, Reader, Statement};
use crate::sql::rows::{self, run_columns};
use crate::sql::run::job_page::apps_within;
use crate::sql::run::search::FIND_END_OF_OPEN_RUNS;

/// Number of open runs, per run of the page, that are searched for running ones in the order of the page.
const NEAR_COUNT: u32 = 200;
/// Maximum number of open runs that are searched in that order.
const NEAR_COUNT_MAX: u32 = 20_000;

pub(in crate::sql) const LIST_RUNNING_RUNS_NEAR: Statement = Statement {
    name: "list_running_near",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM run WHERE namespace_id = ? AND id >= ? AND id < ? AND status IN ('pending', 'waiting', 'running') \
         AND status = 'running' AND CASE ? WHEN 1 THEN app_id ELSE 0 END {in_list} ORDER BY id DESC LIMIT ?"
    ),
};
/// The plus signs prevent planners from using the index of all runs.
pub(in crate::sql) const LIST_RUNNING_RUNS: Statement = Statement {
    name: "list_running",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM run WHERE namespace_id = ? AND status = 'running' AND +id < ? \
         AND CASE ? WHEN 1 THEN app_id ELSE 0 END {in_list} ORDER BY +id DESC LIMIT ?"
    ),
};

impl SqlStore {
    pub(super) async fn read_running_page(&self, namespace: NamespaceId, query: &RunQuery) -> Result<Vec<Run>> {
        let (is_within, apps) = apps_within(query);
        if apps.is_empty() {
            return Ok(Vec::new());
        }
        let limit = usize::try_from(query.limit).unwrap_or(usize::MAX);
        let before_id = query.after.map_or(i64::MAX, RunId::get);
        let near_count = query.limit.max(1).saturating_mul(NEAR_COUNT).min(NEAR_COUNT_MAX);
        let end_row = self
            .row(Query::new(&FIND_END_OF_OPEN_RUNS[0]).int(namespace.get()).int(before_id).int(near_count.into()))
            .await?;
        let end_id = end_row.map(|row| Reader::new(&row, "run").int("id")).transpose()?;
        let page =
            Query::new(&LIST_RUNNING_RUNS_NEAR).int(namespace.get()).int(end_id.unwrap_or(i64::MIN)).int(before_id);
        let page = page.int(is_within).list(apps.iter().copied()).int(query.limit.into());
        let running_runs = rows::runs(&self.rows(page).await?)?;
        if end_id.is_none() || running_runs.len() >= limit {
            return Ok(running_runs);
        }
        let page = Query::new(&LIST_RUNNING_RUNS).int(namespace.get()).int(before_id).int(is_within);
        let page = page.list(apps.iter().copied()).int(query.limit.into());
        rows::runs(&self.rows(page).await?)
    }
}
