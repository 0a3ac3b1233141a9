//! The rows of two narrow tables beside `run`, which has all runs: `open_run` has a row for each open run, and `unsuccessful_run` one for
//! each run whose verdict is not success.
//!
//! The transaction that holds the lock of a row of `run` is the only one that writes its rows of these tables. It leaves a row in `open_run`
//! exactly if the status is open (`pending`, `waiting`, `running`), with the same key, owner, due instant and status, and a row in
//! `unsuccessful_run` exactly if the status is a verdict other than `succeeded`, with the same job, app, status and reason. So a transaction
//! that inserts or deletes rows of `run`, or changes one of these columns, then calls functions of this file with the ids of these rows, and
//! a statement outside of a transaction changes none of these columns. Only ids of rows that the transaction has inserted or locked, or
//! that `run` no longer has, may be passed.
//!
//! Statements that look for open or unsuccessful runs read these tables, and join `run` for other columns. A statement that finds the ids
//! of runs in order to change them locks them in `run`, and checks there whether they are still open. No function here checks how many rows
//! a statement changed.

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
    Statement { name: "remove_open_rows", text: "{delete_ids:open_run}" };
/// Copies the rows as they are in `run` now.
pub(in crate::sql) const WRITE_UNSUCCESSFUL_ROWS: Statement = Statement {
    name: "write_unsuccessful_rows",
    text: "INSERT INTO unsuccessful_run (id, namespace_id, job_id, app_id, status, reason) \
           SELECT id, namespace_id, job_id, app_id, status, reason FROM run WHERE id {in_list} \
           AND {check}status IN ('failed', 'timed_out', 'cancelled', 'unknown', 'skipped'){end} \
           {or_update:id} status = {new:status}, reason = {new:reason}",
};
pub(in crate::sql) const REMOVE_UNSUCCESSFUL_ROWS: Statement =
    Statement { name: "remove_unsuccessful_rows", text: "{delete_ids:unsuccessful_run}" };
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
#[cfg(feature = "testing")]
const FIND_MISSING_UNSUCCESSFUL_ROWS: Statement = Statement {
    name: "find_missing_unsuccessful_rows",
    text: "SELECT run.id FROM run LEFT JOIN unsuccessful_run ON unsuccessful_run.id = run.id \
           AND unsuccessful_run.namespace_id = run.namespace_id AND unsuccessful_run.job_id = run.job_id \
           AND unsuccessful_run.app_id = run.app_id AND unsuccessful_run.status = run.status \
           AND COALESCE(unsuccessful_run.reason, '') = COALESCE(run.reason, '') \
           WHERE run.status IN ('failed', 'timed_out', 'cancelled', 'unknown', 'skipped') AND unsuccessful_run.id IS NULL ORDER BY run.id",
};
#[cfg(feature = "testing")]
const FIND_LEFT_UNSUCCESSFUL_ROWS: Statement = Statement {
    name: "find_left_unsuccessful_rows",
    text: "SELECT unsuccessful_run.id FROM unsuccessful_run LEFT JOIN run ON run.id = unsuccessful_run.id \
           AND run.status IN ('failed', 'timed_out', 'cancelled', 'unknown', 'skipped') WHERE run.id IS NULL ORDER BY unsuccessful_run.id",
};

fn is_unsuccessful(status: RunStatus) -> bool {
    status.is_terminal() && status != RunStatus::Succeeded
}

/// The ids of the runs whose status is wanted.
fn ids_with(runs: &[(RunId, RunStatus)], is_wanted: impl Fn(RunStatus) -> bool) -> Vec<i64> {
    runs.iter().filter(|(_, status)| is_wanted(*status)).map(|(run, _)| run.get()).collect()
}

#[cfg(feature = "testing")]
impl SqlStore {
    /// The runs whose rows in `run`, `open_run` and `unsuccessful_run` do not agree: for tests.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn runs_with_wrong_open_rows(&self) -> Result<Vec<RunId>> {
        let mut runs = Vec::new();
        for statement in [
            &FIND_MISSING_OPEN_ROWS,
            &FIND_LEFT_OPEN_ROWS,
            &FIND_MISSING_UNSUCCESSFUL_ROWS,
            &FIND_LEFT_UNSUCCESSFUL_ROWS,
        ] {
            let ids = read_ids(&self.rows(Query::new(statement)).await?, "run", "id")?;
            runs.extend(ids.into_iter().map(RunId::new));
        }
        Ok(runs)
    }
}

impl Tx<'_> {
    /// Writes the rows of runs that this transaction has inserted, in the table of open or of unsuccessful runs.
    pub(super) async fn write_inserted_rows(&mut self, runs: &[&Run]) -> Result<()> {
        let runs: Vec<(RunId, RunStatus)> = runs.iter().map(|run| (run.id, run.status)).collect();
        self.write_open_rows(&ids_with(&runs, |status| !status.is_terminal())).await?;
        self.write_unsuccessful_rows(&ids_with(&runs, is_unsuccessful)).await
    }

    /// Writes the rows of open runs that this transaction has changed or reopened. Runs with a verdict get none.
    pub(in crate::sql) async fn write_open_rows(&mut self, ids: &[i64]) -> Result<()> {
        self.execute_for(&WRITE_OPEN_ROWS, ids).await
    }

    /// Removes the rows of runs that have got their verdict in this transaction.
    pub(in crate::sql) async fn remove_open_rows(&mut self, ids: &[i64]) -> Result<()> {
        self.execute_for(&REMOVE_OPEN_ROWS, ids).await
    }

    /// Writes the rows of runs that have got a verdict other than success in this transaction. Other runs get none.
    pub(in crate::sql) async fn write_unsuccessful_rows(&mut self, ids: &[i64]) -> Result<()> {
        self.execute_for(&WRITE_UNSUCCESSFUL_ROWS, ids).await
    }

    /// Removes the rows of runs that this transaction has reopened or deletes, or whose verdict it has corrected to success.
    pub(in crate::sql) async fn remove_unsuccessful_rows(&mut self, ids: &[i64]) -> Result<()> {
        self.execute_for(&REMOVE_UNSUCCESSFUL_ROWS, ids).await
    }

    async fn execute_for(&mut self, statement: &'static Statement, ids: &[i64]) -> Result<()> {
        for (query, _) in self.size.queries(statement, ids, |query, id| query.int(*id)) {
            self.execute(query).await?;
        }
        Ok(())
    }

    /// Writes or removes the rows of runs that were open or had succeeded, and got these statuses in this transaction.
    pub(super) async fn sync_rows(&mut self, runs: &[(RunId, RunStatus)]) -> Result<()> {
        self.remove_open_rows(&ids_with(runs, RunStatus::is_terminal)).await?;
        self.write_open_rows(&ids_with(runs, |status| !status.is_terminal())).await?;
        self.write_unsuccessful_rows(&ids_with(runs, is_unsuccessful)).await
    }

    /// Writes or removes the rows of runs that had a verdict, and got these verdicts instead in this transaction.
    pub(super) async fn sync_corrected_rows(&mut self, runs: &[(RunId, RunStatus)]) -> Result<()> {
        self.write_unsuccessful_rows(&ids_with(runs, is_unsuccessful)).await?;
        self.remove_unsuccessful_rows(&ids_with(runs, |status| status == RunStatus::Succeeded)).await
    }
}
