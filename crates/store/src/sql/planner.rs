//! The statistics that PostgreSQL's planner has about the sizes of the tables.
//!
//! PostgreSQL analyzes a table again about a minute after many of its rows have changed. Until then, a table that was empty at its last
//! analysis and now has twenty thousand rows is scanned for each row of a batch: a claim that takes milliseconds takes seconds. Therefore
//! tables that have outgrown their statistics are analyzed immediately.

use super::SqlStore;
use super::dialect::Dialect;
use super::query::{Query, Reader, Statement};
use crate::Result;

const FIND_OUTGROWN_TABLES: Statement = Statement {
    name: "find_outgrown",
    text: "SELECT CAST(counted.relname AS TEXT) AS name FROM pg_stat_user_tables live \
           JOIN pg_class counted ON counted.oid = live.relid \
           WHERE live.schemaname = current_schema() AND live.n_live_tup >= 1000 \
           AND live.n_live_tup > 2 * CASE WHEN counted.relpages > 0 AND counted.reltuples > 0 \
           THEN counted.reltuples / counted.relpages * (pg_relation_size(counted.oid) \
           / CAST(current_setting('block_size') AS BIGINT)) ELSE 0 END",
};
/// The tables that grow with jobs and runs. A table that is already being analyzed is skipped, not waited for.
const ANALYZE_TABLES: [(&str, Statement); 7] = [
    ("job", Statement { name: "count_job", text: "ANALYZE (SKIP_LOCKED) job" }),
    ("job_due", Statement { name: "count_job_due", text: "ANALYZE (SKIP_LOCKED) job_due" }),
    ("job_version", Statement { name: "count_job_version", text: "ANALYZE (SKIP_LOCKED) job_version" }),
    ("open_run", Statement { name: "count_open_run", text: "ANALYZE (SKIP_LOCKED) open_run" }),
    ("run", Statement { name: "count_run", text: "ANALYZE (SKIP_LOCKED) run" }),
    ("run_attempt", Statement { name: "count_run_attempt", text: "ANALYZE (SKIP_LOCKED) run_attempt" }),
    ("unsuccessful_run", Statement { name: "count_unsuccessful", text: "ANALYZE (SKIP_LOCKED) unsuccessful_run" }),
];

impl SqlStore {
    /// Makes PostgreSQL analyze the tables that have outgrown their statistics.
    pub(super) async fn analyze_outgrown_tables(&self) -> Result<()> {
        if self.statements.dialect() != Dialect::Postgres {
            return Ok(());
        }
        for row in self.rows(Query::new(&FIND_OUTGROWN_TABLES)).await? {
            let table = Reader::new(&row, "pg_class").text("name")?;
            if let Some((_, analyze)) = ANALYZE_TABLES.iter().find(|(name, _)| *name == table) {
                self.execute(Query::new(analyze)).await?;
                tracing::debug!(table, "the database analyzed a table that had outgrown its statistics");
            }
        }
        Ok(())
    }
}
