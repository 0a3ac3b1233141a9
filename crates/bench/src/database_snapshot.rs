//! Reads what the database has counted, before and after a measurement.

use std::time::Duration;

use rondel_store::SqlStore;
use rondel_store::counters::{DatabaseCounts, TableSizes};
use tokio::time::Instant;

use crate::database_work::Snapshot;
use crate::plan::Plan;
use crate::usage;

/// PostgreSQL's counts are final once they have not risen for this long: a session in use reports its counts once a second.
const STILL_TIME: Duration = Duration::from_millis(1_500);
/// How long the counts may rise after the servers have stopped.
const STILL_TIMEOUT: Duration = Duration::from_secs(20);
/// The names of the threads in which the driver runs SQLite begin with this. The kernel keeps 15 letters of a name.
const SQLITE_THREADS: &str = "sqlx-sqlite-wor";

/// The snapshot before the first fire. The sizes have been read earlier, because that can take long.
pub(crate) async fn take(store: &SqlStore, plan: &Plan, sizes: TableSizes) -> Snapshot {
    let (mut counts, file_bytes) = (store.database_counts().await, file_bytes(plan));
    if plan.database.sqlite_path().is_some() && file_bytes.is_none() {
        counts.notes.push("the bytes that the threads of SQLite write cannot be read".to_owned());
    }
    Snapshot { counts, sizes, file_bytes }
}

/// The snapshot after the servers have stopped, as soon as the counts have stopped rising. Only PostgreSQL reports counts late; it is
/// recognized by its counts per table.
pub(crate) async fn take_still(store: &SqlStore, plan: &Plan) -> Snapshot {
    let (file_bytes, start) = (file_bytes(plan), Instant::now());
    let mut counts = store.database_counts().await;
    // The log is never counted late. Its first count is kept, because the database's own work adds to the log meanwhile.
    let log_bytes = counts.log_bytes;
    while !counts.tables.is_empty() {
        tokio::time::sleep(STILL_TIME).await;
        let earlier_rows = counts.rows;
        counts = store.database_counts().await;
        if counts.rows == earlier_rows {
            break;
        }
        if start.elapsed() > STILL_TIMEOUT {
            counts.notes.push("the counts of rows still rose after the servers had stopped".to_owned());
            break;
        }
    }
    let counts = DatabaseCounts { log_bytes, ..counts };
    Snapshot { counts, sizes: store.table_sizes().await, file_bytes }
}

/// Bytes that SQLite has written; `None` on other databases.
fn file_bytes(plan: &Plan) -> Option<u64> {
    plan.database.sqlite_path()?;
    usage::bytes_of_threads(SQLITE_THREADS)
}
