//! The trait `SavedFilters` for the store in memory.

use async_trait::async_trait;
use rondel_core::Timestamp;

use super::MemStore;
use crate::saved_filters::{FilterOwner, FilteredList, SAVED_FILTER_COUNT_MAX, SavedFilter};
use crate::{Result, SavedFilters};

#[async_trait]
impl SavedFilters for MemStore {
    async fn saved_filters(&self, owner: FilterOwner) -> Result<Vec<SavedFilter>> {
        Ok(self.state().saved_filters.get(&owner.id()).cloned().unwrap_or_default())
    }

    async fn save_filter(&self, owner: FilterOwner, filter: &SavedFilter, _now: Timestamp) -> Result<bool> {
        let mut state = self.state();
        let filters = state.saved_filters.entry(owner.id()).or_default();
        match filters
            .iter()
            .position(|saved_filter| saved_filter.list == filter.list && saved_filter.name == filter.name)
        {
            Some(index) => filters[index].filter.clone_from(&filter.filter),
            None if filters.len() >= SAVED_FILTER_COUNT_MAX => return Ok(false),
            None => {
                filters.push(filter.clone());
                filters.sort_by(|a, b| (a.list, &a.name).cmp(&(b.list, &b.name)));
            }
        }
        Ok(true)
    }

    async fn delete_filter(&self, owner: FilterOwner, list: FilteredList, name: &str) -> Result<bool> {
        let mut state = self.state();
        let filters = state.saved_filters.entry(owner.id()).or_default();
        let count_before = filters.len();
        filters.retain(|saved_filter| saved_filter.list != list || saved_filter.name != name);
        Ok(filters.len() < count_before)
    }
}
