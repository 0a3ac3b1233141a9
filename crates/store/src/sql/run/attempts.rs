//! The attempts of a run that were followed by another one, in `run_attempt`.

use std::borrow::Cow;

use rondel_core::{ExecutorId, Reason, RunStatus, Timestamp};

use crate::Result;
use crate::settle::CleanEnd;
use crate::sql::Tx;
use crate::sql::query::{Query, Statement};

const INSERT_ATTEMPTS: Statement = Statement {
    name: "insert_attempts",
    text: "INSERT {ignore} INTO run_attempt (run_id, attempt, status, reason, executor_id, executor, started_at_ms, \
           finished_at_ms, message, detail) {values:iittitiitt} {or_ignore}",
};
/// A result that arrives after its attempt was given up corrects the verdict of that attempt. It adds no row, because the transaction that
/// began the next attempt has written one.
const CORRECT_ATTEMPTS: Statement = Statement {
    name: "correct_attempts",
    text: "UPDATE {join:iittitiitt}run_attempt SET status = v.column3, executor_id = v.column5, \
           executor = v.column6, started_at_ms = v.column7, finished_at_ms = v.column8, message = v.column9 \
           {from:iittitiitt} WHERE {of_rows:run_attempt.run_id} AND {check}run_attempt.attempt = v.column2 \
           AND run_attempt.status = 'unknown'{end}",
};

pub(super) struct EndedAttempt<'f> {
    pub(super) clean_end: &'f CleanEnd<'f>,
    pub(super) status: RunStatus,
    pub(super) reason: Option<Reason>,
    pub(super) executor_id: Option<ExecutorId>,
    pub(super) executor: Option<Cow<'f, str>>,
    pub(super) started_at: Option<Timestamp>,
}

impl Tx<'_> {
    /// Inserts attempts that are followed by another one.
    pub(super) async fn insert_attempts(&mut self, attempts: &[EndedAttempt<'_>]) -> Result<()> {
        for (query, _) in self.size.queries(&INSERT_ATTEMPTS, attempts, add_attempt) {
            self.execute(query).await?;
        }
        Ok(())
    }

    /// Stores the results of attempts that were given up earlier.
    pub(super) async fn correct_attempts(&mut self, attempts: &[EndedAttempt<'_>]) -> Result<()> {
        for (query, _) in self.size.queries(&CORRECT_ATTEMPTS, attempts, add_attempt) {
            self.execute(query).await?;
        }
        Ok(())
    }
}

fn add_attempt(query: Query, attempt: &EndedAttempt<'_>) -> Query {
    query
        .int(attempt.clean_end.end.run.get())
        .int(attempt.clean_end.end.attempt.into())
        .text(attempt.status.as_str())
        .opt_text(attempt.reason.map(Reason::as_str))
        .opt_int(attempt.executor_id.map(ExecutorId::get))
        .opt_text(attempt.executor.as_deref())
        .opt_at(attempt.started_at)
        .at(attempt.clean_end.end.finished_at)
        .opt_text(attempt.clean_end.message.as_deref())
        .opt_text(attempt.clean_end.detail.as_deref())
}
