//! Pagination: the query and the answer that lists share.

use schemars::JsonSchema;
use serde::Serialize;

use crate::parameter::Parameter;
use crate::query::{FromQuery, Reader};

/// How many items a page has if the caller gives no limit.
pub(crate) const LIMIT_DEFAULT: u32 = 50;
/// Maximum number of items in a page.
pub(crate) const LIMIT_MAX: u32 = 200;

/// The query parameters for a list that has pages.
#[derive(Debug)]
pub(crate) struct PageQuery {
    pub(crate) limit: u32,
    pub(crate) cursor: Option<String>,
}

impl FromQuery for PageQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self { limit: reader.limit(LIMIT_DEFAULT, LIMIT_MAX), cursor: reader.single(Parameter::cursor()) }
    }
}

/// One page of a list.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "{T}Page")]
pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    /// For `?cursor=`; null on the last page.
    pub(crate) next_cursor: Option<String>,
}
