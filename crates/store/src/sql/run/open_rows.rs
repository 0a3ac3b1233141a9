//! The rows of `open_run`: a narrow table with a row for each open run, beside the row in `run`, which has all runs.
//!
//! The transaction that holds the lock of a row of `run` is the only one that writes its row of `open_run`, and leaves it there exactly if
//! the status is open (`pending`, `waiting`, `running`), with the same key, owner, due instant and status. So a transaction that inserts
//! rows of `run`, or changes one of these columns, then calls a function of this file with the ids of these rows, and a statement outside
//! of a transaction changes none of these columns. Ids of rows that the transaction has not inserted or locked must not be passed.
//!
//! Statements that look for open runs read `open_run`, and join `run` for other columns. A statement that finds the ids of runs in order to
//! change them locks them in `run`, and checks there whether they are still open: a server of the version before this table writes `run`
//! alone, so a row may be missing, or may be left from a run that has ended. No function here expects a number of rows.

use rondel_core::{Run, RunId, RunStatus};

use crate::Result;
#[cfg(feature = "testing")]
use crate::sql::SqlStore;
use crate::sql::Tx;
use crate::sql::query::Statement;
#[cfg(feature = "testing")]
use crate::sql::query::{Query, read_ids};

/// Copies the rows as they are in `run` now.
pub(in crate::sql) const WRITE_OPEN_ROWS: Statement = Statement {
    name: "write_open_rows",
    text: "INSERT INTO open_run (id, job_id, fire_at_ms, cause, shard_index, namespace_id, app_id, node_id, node_epoch, status, due_at_ms) \
           SELECT id, job_id, fire_at_ms, cause, shard_index, namespace_id, app_id, node_id, node_epoch, status, due_at_ms \
           FROM run WHERE id {in_list} AND {check}status IN ('pending', 'waiting', 'running'){end} \
           {or_update:id} shard_index = {new:shard_index}, app_id = {new:app_id}, node_id = {new:node_id}, \
           node_epoch = {new:node_epoch}, status = {new:status}, due_at_ms = {new:due_at_ms}",
};
pub(in crate::sql) const REMOVE_OPEN_ROWS: Statement =
    Statement { name: "remove_open_rows", text: "DELETE FROM open_run WHERE id {in_list}" };
#[cfg(feature = "testing")]
const FIND_MISSING_OPEN_ROWS: Statement = Statement {
    name: "find_missing_open_rows",
    text: "SELECT run.id FROM run LEFT JOIN open_run ON open_run.id = run.id AND open_run.job_id = run.job_id \
           AND open_run.fire_at_ms = run.fire_at_ms AND open_run.cause = run.cause AND open_run.shard_index = run.shard_index \
           AND open_run.namespace_id = run.namespace_id AND open_run.app_id = run.app_id AND open_run.node_id = run.node_id \
           AND open_run.node_epoch = run.node_epoch AND open_run.status = run.status AND open_run.due_at_ms = run.due_at_ms \
           WHERE run.status IN ('pending', 'waiting', 'running') AND open_run.id IS NULL ORDER BY run.id",
};
#[cfg(feature = "testing")]
const FIND_LEFT_OPEN_ROWS: Statement = Statement {
    name: "find_left_open_rows",
    text: "SELECT open_run.id FROM open_run LEFT JOIN run ON run.id = open_run.id \
           AND run.status IN ('pending', 'waiting', 'running') WHERE run.id IS NULL ORDER BY open_run.id",
};

/// The ids of the runs without a verdict.
pub(super) fn open_ids(runs: &[&Run]) -> Vec<i64> {
    runs.iter().filter(|run| !run.status.is_terminal()).map(|run| run.id.get()).collect()
}

#[cfg(feature = "testing")]
impl SqlStore {
    /// The runs whose rows in `run` and `open_run` do not agree: for tests.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn runs_with_wrong_open_rows(&self) -> Result<Vec<RunId>> {
        let mut runs = Vec::new();
        for statement in [&FIND_MISSING_OPEN_ROWS, &FIND_LEFT_OPEN_ROWS] {
            let ids = read_ids(&self.rows(Query::new(statement)).await?, "open_run", "id")?;
            runs.extend(ids.into_iter().map(RunId::new));
        }
        Ok(runs)
    }
}

impl Tx<'_> {
    /// Writes the rows of runs that this transaction has inserted, changed or reopened. Runs with a verdict get none.
    pub(in crate::sql) async fn write_open_rows(&mut self, ids: &[i64]) -> Result<()> {
        for (query, _) in self.size.queries(&WRITE_OPEN_ROWS, ids, |query, id| query.int(*id)) {
            self.execute(query).await?;
        }
        Ok(())
    }

    /// Removes the rows of runs that have got their verdict in this transaction.
    pub(in crate::sql) async fn remove_open_rows(&mut self, ids: &[i64]) -> Result<()> {
        for (query, _) in self.size.queries(&REMOVE_OPEN_ROWS, ids, |query, id| query.int(*id)) {
            self.execute(query).await?;
        }
        Ok(())
    }

    /// Writes or removes the rows of runs that got these statuses in this transaction.
    pub(super) async fn sync_open_rows(&mut self, runs: &[(RunId, RunStatus)]) -> Result<()> {
        let (ended, open): (Vec<(RunId, RunStatus)>, Vec<_>) =
            runs.iter().partition(|(_, status)| status.is_terminal());
        let ids = |runs: Vec<(RunId, RunStatus)>| runs.into_iter().map(|(run, _)| run.get()).collect::<Vec<i64>>();
        self.remove_open_rows(&ids(ended)).await?;
        self.write_open_rows(&ids(open)).await
    }
}
