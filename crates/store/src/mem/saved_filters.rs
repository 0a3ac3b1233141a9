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
        let own = state.saved_filters.entry(owner.id()).or_default();
        match own.iter().position(|one| one.list == filter.list && one.name == filter.name) {
            Some(place) => own[place].filter.clone_from(&filter.filter),
            None if own.len() >= SAVED_FILTER_COUNT_MAX => return Ok(false),
            None => {
                own.push(filter.clone());
                own.sort_by(|one, other| (one.list, &one.name).cmp(&(other.list, &other.name)));
            }
        }
        Ok(true)
    }

    async fn delete_filter(&self, owner: FilterOwner, list: FilteredList, name: &str) -> Result<bool> {
        let mut state = self.state();
        let own = state.saved_filters.entry(owner.id()).or_default();
        let before = own.len();
        own.retain(|one| one.list != list || one.name != name);
        Ok(own.len() < before)
    }
}
