//! Builds a page of a list, limited by its number of items and by its bytes. Rows are read in small batches, since their length is not
//! known in advance.

use axum::response::Response;
use http::StatusCode;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::page::Page;
use crate::answer::json_response;
use crate::problem::Problem;

/// Maximum bytes of items in a page. A page has at least one item, however long.
const PAGE_LEN_MAX: usize = 2 * 1024 * 1024;
/// How many rows the first batch has.
const FIRST_BATCH_COUNT: u32 = 16;

#[derive(Debug)]
pub(crate) struct PageBuilder {
    limit: u32,
    items: Vec<Box<RawValue>>,
    /// The total length of the items, in bytes.
    len: usize,
}

impl PageBuilder {
    /// An empty page for at most `limit` items.
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit, items: Vec::new(), len: 0 }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.items.len()).unwrap_or(u32::MAX)
    }

    /// How many rows to read next, if the mean length stays the same. `None` if the page is full.
    pub(crate) fn next_row_count(&self) -> Option<u32> {
        let remaining_count = self.limit.saturating_sub(self.count());
        if remaining_count == 0 || (self.len >= PAGE_LEN_MAX && self.count() > 0) {
            return None;
        }
        if self.items.is_empty() {
            return Some(remaining_count.min(FIRST_BATCH_COUNT));
        }
        let mean_len = (self.len / self.items.len()).max(1);
        let fitting_count = u32::try_from((PAGE_LEN_MAX - self.len) / mean_len).unwrap_or(u32::MAX);
        Some(fitting_count.saturating_add(1).min(remaining_count))
    }

    /// Adds an item. `false` means that the page has no room for it and is complete.
    pub(crate) fn add(&mut self, item: &impl Serialize) -> Result<bool, Problem> {
        let item = to_raw_value(item)
            .map_err(|error| Problem::internal(format!("an item cannot be written as JSON: {error}")))?;
        let len = self.len + item.get().len();
        if self.count() >= self.limit || (len > PAGE_LEN_MAX && !self.items.is_empty()) {
            return Ok(false);
        }
        self.len = len;
        self.items.push(item);
        Ok(true)
    }

    pub(crate) fn into_items(self) -> Vec<Box<RawValue>> {
        self.items
    }

    pub(crate) fn answer(self, next_cursor: Option<String>) -> Result<Response, Problem> {
        json_response(StatusCode::OK, &Page { items: self.items, next_cursor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_with_its_items_or_its_bytes() {
        let mut short = PageBuilder::new(20);
        assert_eq!(short.next_row_count(), Some(16));
        assert!((0..16).all(|number| short.add(&number).unwrap()));
        assert_eq!(short.next_row_count(), Some(4));
        assert!((0..4).all(|number| short.add(&number).unwrap()));
        assert_eq!((short.next_row_count(), short.add(&1).unwrap()), (None, false));
        let mut long = PageBuilder::new(200);
        let text = "x".repeat(PAGE_LEN_MAX / 4);
        assert!((0..3).all(|_| long.add(&text).unwrap()));
        assert_eq!((long.next_row_count(), long.add(&text).unwrap()), (Some(1), false));
        let mut huge = PageBuilder::new(200);
        assert!(huge.add(&"x".repeat(2 * PAGE_LEN_MAX)).unwrap(), "a page is never empty");
        assert_eq!(huge.next_row_count(), None);
    }
}
