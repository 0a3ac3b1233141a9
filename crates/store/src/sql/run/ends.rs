//! Stores batches of ended attempts. A batch is split into parts, each of which is written in one transaction.

use async_trait::async_trait;
use rondel_core::outcome::Outcome;

use crate::ledger::{AttemptEnd, EndOutcome, Ends, Finisher};
use crate::settle::CleanEnd;
use crate::sql::failure::{self, Failure};
use crate::sql::run::finish::Batch;
use crate::sql::{SqlStore, transact};
use crate::{Finish, Result, StoreError};

#[async_trait]
impl Finish for SqlStore {
    /// A result that the database refuses does not hold up the others: the batch is halved until that result is alone in its part.
    async fn finish(&self, finisher: Finisher<'_>, batch: &[AttemptEnd]) -> Result<Ends> {
        let clean_ends: Vec<CleanEnd<'_>> = batch.iter().map(CleanEnd::new).collect();
        let mut ends = Ends { outcomes: Vec::with_capacity(batch.len()), ..Ends::default() };
        let first_run_id = |part: &[CleanEnd<'_>]| part.first().map_or(0, |clean_end| clean_end.end.run.get());
        let rows_max = self.failed_batches.rows_max("finish", first_run_id(&clean_ends));
        let mut parts: Vec<&[CleanEnd<'_>]> = clean_ends.chunks(rows_max).rev().collect();
        while let Some(part) = parts.pop() {
            let result =
                transact!(self, "finish", at most rows_max, |tx| Batch::default().execute(tx, finisher, part).await);
            let error = match result {
                Ok(part_ends) => {
                    self.failed_batches.record_success("finish", first_run_id(part));
                    ends.extend(part_ends);
                    continue;
                }
                Err(error) => error,
            };
            let is_data_error = matches!(failure::classify_store_error(&error), Failure::Data | Failure::Duplicate);
            let is_unwritable =
                is_data_error || self.record_failure("finish", first_run_id(part), part.len(), &error).await;
            if part.len() == 1 && is_unwritable && (is_data_error || part[0].has_texts()) {
                ends.extend(self.finish_unwritable(finisher, part[0].end, &error).await?);
                self.failed_batches.record_success("finish", first_run_id(part));
            } else if is_data_error && part.len() > 1 {
                let (left, right) = part.split_at(part.len() / 2);
                parts.extend([right, left]);
            } else if ends.outcomes.is_empty() {
                return Err(error);
            } else {
                // Committed ends must be returned now. A repeated call would find duplicates, and would not return what follows from them.
                tracing::warn!(%error, answered = ends.outcomes.len(), of = batch.len(), "a part of a batch of results failed");
                break;
            }
        }
        Ok(ends)
    }
}

impl SqlStore {
    /// Stores a run as failed, without the values that the database refuses.
    async fn finish_unwritable(
        &self,
        finisher: Finisher<'_>,
        attempt_end: &AttemptEnd,
        error: &StoreError,
    ) -> Result<Ends> {
        tracing::error!(run_id = %attempt_end.run, attempt = attempt_end.attempt, %error, "a result cannot be written");
        let failed_end = AttemptEnd {
            outcome: Outcome::Failed { retryable: false },
            executor: None,
            started_at: None,
            message: Some("the result of this run cannot be written to the database".to_owned()),
            result: None,
            ..attempt_end.clone()
        };
        let part = [CleanEnd::new(&failed_end)];
        let mut ends = transact!(self, "finish_unwritable", |tx| Batch::default().execute(tx, finisher, &part).await)?;
        for outcome in &mut ends.outcomes {
            if matches!(outcome, EndOutcome::Stored(..) | EndOutcome::Late) {
                *outcome = EndOutcome::Unwritable;
            }
        }
        Ok(ends)
    }
}
