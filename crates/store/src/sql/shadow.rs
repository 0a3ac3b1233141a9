//! The trait `ShadowFires` in SQL.

use async_trait::async_trait;
use rondel_core::shadow::compare::OldFire;
use rondel_core::{JobId, NamespaceId, Timestamp};
use sqlx::any::AnyRow;

use super::SqlStore;
use super::query::{Query, Reader, Statement};
use crate::settle::without_nul;
use crate::shadow::{SHADOW_EXECUTOR_LEN_MAX, ShadowFire, ShadowSpan};
use crate::{Result, ShadowFires};

const INSERT_FIRES: Statement = Statement {
    name: "insert_shadow_fires",
    text: "INSERT {ignore} INTO shadow_fire \
           (namespace_id, source, source_id, job_id, due_at_ms, started_at_ms, executor, outcome) \
           {values:itiiiitt} {or_ignore}",
};
pub(super) const LIST_FIRES: Statement = Statement {
    name: "list_shadow_fires",
    text: "SELECT source_id, due_at_ms, started_at_ms, executor, outcome FROM shadow_fire \
           WHERE job_id = ? AND started_at_ms >= ? AND started_at_ms < ? AND namespace_id = ? AND source = ? \
           ORDER BY started_at_ms, source_id LIMIT ?",
};
pub(super) const READ_FIRST_FIRE: Statement = Statement {
    name: "first_shadow_fire",
    text: "SELECT source_id, started_at_ms FROM shadow_fire WHERE namespace_id = ? AND source = ? ORDER BY source_id LIMIT 1",
};
pub(super) const READ_LAST_FIRE: Statement = Statement {
    name: "last_shadow_fire",
    text: "SELECT source_id, started_at_ms FROM shadow_fire WHERE namespace_id = ? AND source = ? ORDER BY source_id DESC LIMIT 1",
};
pub(super) const FIND_OLD_FIRES: Statement = Statement {
    name: "find_old_shadow_fires",
    text: "SELECT started_at_ms FROM shadow_fire WHERE started_at_ms < ? ORDER BY started_at_ms LIMIT ?",
};
const DELETE_OLD_FIRES: Statement =
    Statement { name: "delete_old_shadow_fires", text: "DELETE FROM shadow_fire WHERE started_at_ms <= ?" };
/// Maximum number of rows in one statement, with eight values each.
const INSERT_ROWS_MAX: usize = 100;

#[async_trait]
impl ShadowFires for SqlStore {
    async fn add_shadow_fires(&self, namespace: NamespaceId, source: &str, fires: &[ShadowFire]) -> Result<u64> {
        let mut added_count = 0;
        for chunk in fires.chunks(INSERT_ROWS_MAX) {
            let insert = Query::new(&INSERT_FIRES).rows(chunk, |query, ShadowFire { job, fire }| {
                let executor: String = without_nul(&fire.executor).chars().take(SHADOW_EXECUTOR_LEN_MAX).collect();
                query
                    .int(namespace.get())
                    .text(source)
                    .int(fire.source_id)
                    .int(job.get())
                    .opt_at(fire.due_at)
                    .at(fire.started_at)
                    .text(&executor)
                    .text(fire.outcome.as_str())
            });
            added_count += self.execute(insert).await?;
        }
        Ok(added_count)
    }

    async fn shadow_fires(
        &self,
        (namespace, source): (NamespaceId, &str),
        job: JobId,
        (from, to): (Timestamp, Timestamp),
        limit: u32,
    ) -> Result<Vec<OldFire>> {
        let query = Query::new(&LIST_FIRES).int(job.get()).at(from).at(to).int(namespace.get()).text(source);
        self.rows(query.int(limit.into())).await?.iter().map(fire).collect()
    }

    async fn shadow_span(&self, namespace: NamespaceId, source: &str) -> Result<Option<ShadowSpan>> {
        let mut ends = Vec::new();
        for statement in [&READ_FIRST_FIRE, &READ_LAST_FIRE] {
            let Some(row) = self.row(Query::new(statement).int(namespace.get()).text(source)).await? else {
                return Ok(None);
            };
            let mut columns = Reader::new(&row, "shadow_fire");
            ends.push((columns.int("source_id")?, columns.at("started_at_ms")?));
        }
        let span = |ends: &[(i64, Timestamp)]| match ends {
            [(_, first_at), (last_id, last_at)] => {
                Some(ShadowSpan { first_at: *first_at, last_at: *last_at, last_id: *last_id })
            }
            _ => None,
        };
        Ok(span(&ends))
    }

    async fn forget_shadow_fires(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let rows = self.rows(Query::new(&FIND_OLD_FIRES).at(before).int(limit.into())).await?;
        let Some(last_row) = rows.last() else { return Ok(0) };
        let last_at = Reader::new(last_row, "shadow_fire").at("started_at_ms")?;
        self.execute(Query::new(&DELETE_OLD_FIRES).at(last_at)).await
    }
}

fn fire(row: &AnyRow) -> Result<OldFire> {
    let mut columns = Reader::new(row, "shadow_fire");
    Ok(OldFire {
        source_id: columns.int("source_id")?,
        due_at: columns.opt_at("due_at_ms")?,
        started_at: columns.at("started_at_ms")?,
        executor: columns.text("executor")?,
        outcome: columns.word("outcome")?,
    })
}
