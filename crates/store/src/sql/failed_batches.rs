//! Batches that fail although the database answers.
//!
//! The batch itself may be the cause: it is larger than the packets that the database or a proxy accepts, or too slow. After repeated
//! failures the batch is halved, whatever the error, down to a single row. A batch is identified by its first row, because the caller tries
//! again with the same rows.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::connections::PROBE_TIMEOUT;
use super::query::{Query, Reader, Statement, StatementSize};
use super::{Dialect, SqlStore, failure};
use crate::StoreError;

/// Maximum number of failed batches that are remembered.
const FAILED_BATCH_MAX: usize = 1_000;

const PING: Statement = Statement { name: "ping", text: "SELECT CAST(1 AS {bigint})" };
/// The smaller of the two limits applies, because a connection keeps the limit that it began with.
const READ_PACKET_MAX: Statement = Statement {
    name: "read_packet_max",
    text: "SELECT CAST(LEAST(@@GLOBAL.max_allowed_packet, @@SESSION.max_allowed_packet) AS SIGNED)",
};

/// The batches that failed, by operation and first row.
#[derive(Debug)]
pub(super) struct FailedBatches {
    batches: Mutex<BTreeMap<(&'static str, i64), FailedBatch>>,
    /// Number of failures after which a batch is halved.
    halve_after: u32,
}

#[derive(Clone, Copy, Debug)]
struct FailedBatch {
    /// Maximum number of rows of its next try.
    rows_max: usize,
    /// Number of failures since it was last halved.
    failed_count: u32,
}

impl FailedBatches {
    pub(super) fn new(halve_after: u32) -> Self {
        Self { batches: Mutex::default(), halve_after: halve_after.max(1) }
    }

    /// Maximum number of rows in one transaction, and in one statement, of this batch.
    pub(super) fn rows_max(&self, operation: &'static str, first_row_id: i64) -> usize {
        self.lock().get(&(operation, first_row_id)).map_or(usize::MAX, |batch| batch.rows_max)
    }

    pub(super) fn record_success(&self, operation: &'static str, first_row_id: i64) {
        self.lock().remove(&(operation, first_row_id));
    }

    /// Counts a failure of a batch of `row_count` rows. Returns how often the batch has failed with a single row; 0 while it has several
    /// rows.
    fn count_failure(&self, operation: &'static str, first_row_id: i64, row_count: usize) -> u32 {
        let mut batches = self.lock();
        // A batch that is in the list already takes no additional place, and keeps its count.
        if batches.len() >= FAILED_BATCH_MAX && !batches.contains_key(&(operation, first_row_id)) {
            batches.pop_first();
        }
        let batch =
            batches.entry((operation, first_row_id)).or_insert(FailedBatch { rows_max: row_count, failed_count: 0 });
        batch.rows_max = batch.rows_max.min(row_count);
        batch.failed_count = batch.failed_count.saturating_add(1);
        if batch.rows_max <= 1 {
            return batch.failed_count;
        }
        if batch.failed_count >= self.halve_after {
            *batch = FailedBatch { rows_max: batch.rows_max / 2, failed_count: 0 };
            let rows_max = batch.rows_max;
            tracing::warn!(operation, rows_max, "a batch fails although the database answers; it is halved");
        }
        0
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(&'static str, i64), FailedBatch>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SqlStore {
    /// Counts a failure of a batch, which is identified by its first row. Returns `true` if the batch is a single row that repeatedly ends
    /// the connection although the database answers. Such a row can never be written.
    pub(super) async fn record_failure(
        &self,
        operation: &'static str,
        first_row_id: i64,
        row_count: usize,
        error: &StoreError,
    ) -> bool {
        if !failure::may_be_caused_by_batch(error) || !self.is_database_answering().await {
            return false;
        }
        // A single row must fail twice as often as a batch before it is blamed, because the database may break every connection for a
        // while.
        let single_row_failure_count = self.failed_batches.count_failure(operation, first_row_id, row_count);
        failure::ends_connection(error) && single_row_failure_count >= self.failed_batches.halve_after.saturating_mul(2)
    }

    /// Whether the database answers a short statement. This also updates the known packet limit.
    async fn is_database_answering(&self) -> bool {
        let ping = async {
            self.row(Query::new(&PING)).await?;
            self.read_packet_max().await
        };
        matches!(tokio::time::timeout(PROBE_TIMEOUT, ping).await, Ok(Ok(())))
    }

    /// Reads the largest packet that the database accepts. A statement stays below a quarter of that size, because rows are filled up to a
    /// power of two, and the length in front of each value also counts.
    pub(super) async fn read_packet_max(&self) -> crate::Result<()> {
        if self.statements.dialect() != Dialect::MySql {
            return Ok(());
        }
        if let Some(row) = self.row(Query::new(&READ_PACKET_MAX)).await? {
            let bytes = Reader::new(&row, "variables").int("max_allowed_packet")?;
            self.packet_bytes.store(usize::try_from(bytes / 4).unwrap_or(usize::MAX), Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn statement_size(&self) -> StatementSize {
        let bytes = self.statement_size.bytes.min(self.packet_bytes.load(Ordering::Relaxed));
        StatementSize { bytes, ..self.statement_size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_fails_again_is_halved_down_to_one_row() {
        let failed_batches = FailedBatches::new(2);
        let mut sizes = Vec::new();
        for _ in 0..8 {
            let row_count = failed_batches.rows_max("finish", 7).min(5);
            sizes.push((row_count, failed_batches.count_failure("finish", 7, row_count)));
        }
        assert_eq!(sizes, [(5, 0), (5, 0), (2, 0), (2, 0), (1, 1), (1, 2), (1, 3), (1, 4)]);
        failed_batches.record_success("finish", 7);
        assert_eq!(failed_batches.rows_max("finish", 7), usize::MAX);
    }

    /// The list is full, and the batch that fails again is its first one.
    #[test]
    fn a_batch_keeps_its_count_in_a_full_list() {
        let failed_batches = FailedBatches::new(2);
        for first_row_id in (0..).take(FAILED_BATCH_MAX) {
            assert_eq!(failed_batches.count_failure("finish", first_row_id, 5), 0);
        }
        for _ in 0..2 {
            assert_eq!(failed_batches.count_failure("claim", 7, 8), 0);
        }
        assert_eq!(failed_batches.rows_max("claim", 7), 4);
        assert_eq!(failed_batches.lock().len(), FAILED_BATCH_MAX);
    }
}
