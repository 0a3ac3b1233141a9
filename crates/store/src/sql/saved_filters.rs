//! The trait `SavedFilters` in SQL.

use std::collections::BTreeSet;

use async_trait::async_trait;
use rondel_core::Timestamp;

use super::SqlStore;
use super::query::{Query, Reader, Statement};
use crate::saved_filters::{FilterOwner, FilteredList, SAVED_FILTER_COUNT_MAX, SavedFilter};
use crate::{Result, SavedFilters};

pub(super) const READ_FILTERS: Statement = Statement {
    name: "read_filters",
    text: "SELECT slot, page, name, filter FROM saved_filter WHERE owner_id = ? ORDER BY page, name",
};
const UPDATE_FILTER: Statement = Statement {
    name: "update_filter",
    text: "UPDATE saved_filter SET filter = ?, saved_at_ms = ? WHERE owner_id = ? AND page = ? AND name = ?",
};
/// If two requests take the same slot, one of them inserts nothing.
const INSERT_FILTER: Statement = Statement {
    name: "insert_filter",
    text: "INSERT {ignore} INTO saved_filter (owner_id, slot, page, name, filter, saved_at_ms) VALUES (?, ?, ?, ?, ?, ?) \
           {or_ignore}",
};
pub(super) const DELETE_FILTER: Statement =
    Statement { name: "delete_filter", text: "DELETE FROM saved_filter WHERE owner_id = ? AND page = ? AND name = ?" };
pub(super) const DELETE_FILTERS_OF_OWNER: Statement =
    Statement { name: "delete_filters_of_owner", text: "DELETE FROM saved_filter WHERE owner_id = ?" };
/// Deletes filters whose owner has neither an account nor a token left.
pub(super) const DELETE_ORPHANED_FILTERS: Statement = Statement {
    name: "delete_orphaned_filters",
    text: "DELETE FROM saved_filter WHERE NOT EXISTS (SELECT 1 FROM account WHERE account.id = saved_filter.owner_id) \
           AND NOT EXISTS (SELECT 1 FROM api_token WHERE api_token.line_id = saved_filter.owner_id)",
};
/// Number of tries to take a slot, in case other requests take the same slot.
const TRY_COUNT: usize = 5;

#[async_trait]
impl SavedFilters for SqlStore {
    async fn saved_filters(&self, owner: FilterOwner) -> Result<Vec<SavedFilter>> {
        Ok(self.filters_with_slots(owner).await?.into_iter().map(|(_, filter)| filter).collect())
    }

    async fn save_filter(&self, owner: FilterOwner, filter: &SavedFilter, now: Timestamp) -> Result<bool> {
        for _ in 0..TRY_COUNT {
            let slotted_filters = self.filters_with_slots(owner).await?;
            let list_word = filter.list.as_str();
            if slotted_filters
                .iter()
                .any(|(_, saved_filter)| saved_filter.list == filter.list && saved_filter.name == filter.name)
            {
                let update = Query::new(&UPDATE_FILTER).text(&filter.filter).at(now);
                self.execute(update.int(owner.id()).text(list_word).text(&filter.name)).await?;
                return Ok(true);
            }
            let taken_slots: BTreeSet<i64> = slotted_filters.iter().map(|(slot, _)| *slot).collect();
            let count_max = i64::try_from(SAVED_FILTER_COUNT_MAX).unwrap_or(i64::MAX);
            let Some(slot) = (0..count_max).find(|slot| !taken_slots.contains(slot)) else { return Ok(false) };
            let insert = Query::new(&INSERT_FILTER).int(owner.id()).int(slot).text(list_word).text(&filter.name);
            if self.execute(insert.text(&filter.filter).at(now)).await? == 1 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn delete_filter(&self, owner: FilterOwner, list: FilteredList, name: &str) -> Result<bool> {
        let delete = Query::new(&DELETE_FILTER).int(owner.id()).text(list.as_str()).text(name);
        Ok(self.execute(delete).await? > 0)
    }
}

impl SqlStore {
    async fn filters_with_slots(&self, owner: FilterOwner) -> Result<Vec<(i64, SavedFilter)>> {
        let mut filters = Vec::new();
        for row in self.rows(Query::new(&READ_FILTERS).int(owner.id())).await? {
            let mut columns = Reader::new(&row, "saved_filter");
            let slot = columns.int32("slot")?;
            let list = columns.word("page")?;
            let filter = SavedFilter { list, name: columns.text("name")?, filter: columns.text("filter")? };
            filters.push((slot.into(), filter));
        }
        Ok(filters)
    }
}
