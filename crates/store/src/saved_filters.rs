//! Filters that users saved under names.

use async_trait::async_trait;
use rondel_core::{AccountId, Timestamp, TokenId};

use crate::error::Result;

/// Maximum number of filters of an owner, over all lists.
pub const SAVED_FILTER_COUNT_MAX: usize = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterOwner {
    /// A user.
    Account(AccountId),
    /// A caller without an account, or whose token has fewer rights than its account: the [first token](crate::access::TokenRecord::line)
    /// from which its token descends.
    Token(TokenId),
}

impl FilterOwner {
    /// The owner's id in the rows. No account and token have the same id.
    pub(crate) const fn id(self) -> i64 {
        match self {
            Self::Account(id) => id.get(),
            Self::Token(id) => id.get(),
        }
    }
}

rondel_core::plain_word_enum! {
    pub FilteredList {
        /// The list of jobs.
        Jobs = "jobs",
        /// The list of runs.
        Runs = "runs",
    }
}

/// A filter with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedFilter {
    pub list: FilteredList,
    /// Unique per owner and list.
    pub name: String,
    /// The filter as the user writes it in the list.
    pub filter: String,
}

#[async_trait]
pub trait SavedFilters {
    /// All filters of an owner, sorted by list and name.
    async fn saved_filters(&self, owner: FilterOwner) -> Result<Vec<SavedFilter>>;

    /// Saves a filter, or replaces the one with its name. `false` if the owner already has [`SAVED_FILTER_COUNT_MAX`] filters, or if
    /// concurrent calls took every free place that this call tried.
    async fn save_filter(&self, owner: FilterOwner, filter: &SavedFilter, now: Timestamp) -> Result<bool>;

    /// Deletes a filter; `false` if there is none with this name.
    async fn delete_filter(&self, owner: FilterOwner, list: FilteredList, name: &str) -> Result<bool>;
}
