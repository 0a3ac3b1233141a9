//! Removes the oldest rows of a table whose key contains an owner and an instant. Many owners share an instant, so a single statement for
//! all rows of an instant could exceed the statement timeout.

use rondel_core::Timestamp;

use super::SqlStore;
use super::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::Result;

impl SqlStore {
    /// Removes the rows of at most `limit` keys (an instant and an owner) before `before`, the oldest first. Returns how many rows were
    /// removed.
    ///
    /// `find` reads instants and owners in the order of the instants, `remove_before` removes all rows before an instant, and `remove_at`
    /// removes the rows of some owners at an instant. `add_arguments` adds the arguments that all three statements need before their
    /// instants.
    pub(super) async fn remove_oldest(
        &self,
        [find, remove_before, remove_at]: [&'static Statement; 3],
        add_arguments: impl Fn(Query) -> Query + Send,
        (before, limit): (Timestamp, u32),
    ) -> Result<u64> {
        let rows = self.rows(add_arguments(Query::new(find)).at(before).int(limit.max(1).into())).await?;
        let mut keys: Vec<(i64, i64)> = Vec::with_capacity(rows.len());
        for row in &rows {
            let mut columns = Reader::new(row, "statistics");
            let at = columns.int("at_ms")?;
            keys.push((at, columns.int("owner_id")?));
        }
        let (Some((first_at, _)), Some((last_at, _))) = (keys.first().copied(), keys.last().copied()) else {
            return Ok(0);
        };
        let mut removed_count = 0;
        if first_at < last_at {
            // The page contains all rows before its last instant.
            removed_count += self.execute(add_arguments(Query::new(remove_before)).int(last_at)).await?;
        }
        let last_keys = keys.into_iter().filter(|(at, _)| *at == last_at);
        let mut owners: Vec<i64> = last_keys.map(|(_, owner)| owner).collect();
        owners.sort_unstable();
        owners.dedup();
        for chunk in owners.chunks(CHUNK_MAX) {
            let remove = add_arguments(Query::new(remove_at).list(chunk.iter().copied())).int(last_at);
            removed_count += self.execute(remove).await?;
        }
        Ok(removed_count)
    }
}
