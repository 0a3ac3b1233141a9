//! Trigger keys: which run of a job has a key, or had it last.

use rondel_core::{JobId, Run, RunId};

use crate::Result;
use crate::sql::Tx;
use crate::sql::query::{Query, Reader, Statement};
use crate::sql::rows;

const LOCK_TRIGGER_KEY: Statement = Statement {
    name: "lock_trigger_key",
    text: "SELECT run_id FROM trigger_key WHERE job_id = ? AND name = ? {for_update}",
};
const DELETE_TRIGGER_KEY: Statement =
    Statement { name: "delete_trigger_key", text: "DELETE FROM trigger_key WHERE job_id = ? AND name = ?" };
const INSERT_TRIGGER_KEY: Statement =
    Statement { name: "insert_trigger_key", text: "INSERT INTO trigger_key (job_id, name, run_id) VALUES (?, ?, ?)" };

impl Tx<'_> {
    /// Locks the run that has this trigger key of the job, or that had it last.
    pub(super) async fn key_holder(&mut self, job: JobId, name: &str) -> Result<Option<Run>> {
        let Some(row) = self.row(Query::new(&LOCK_TRIGGER_KEY).int(job.get()).text(name)).await? else {
            return Ok(None);
        };
        let holder_id = Reader::new(&row, "trigger_key").int("run_id")?;
        let row = self.row(Query::new(&rows::LOCK_RUN).int(holder_id)).await?;
        row.as_ref().map(rows::run).transpose()
    }

    /// Gives a trigger key of the job to this run.
    pub(super) async fn set_key_holder(&mut self, job: JobId, name: &str, run: RunId) -> Result<()> {
        self.execute(Query::new(&DELETE_TRIGGER_KEY).int(job.get()).text(name)).await?;
        let insert = Query::new(&INSERT_TRIGGER_KEY).int(job.get()).text(name).int(run.get());
        self.execute_all(insert, 1).await
    }
}
