//! The endpoints: one file for each noun, one function for each verb; `routes` has their paths, permissions and words.

mod applied;
pub(crate) mod apply;
mod apps;
mod audit;
pub(crate) mod calendars;
pub(crate) mod cancels;
mod events;
pub(crate) mod executors;
mod export;
mod filling;
mod fires;
mod follow;
pub(crate) mod job_body;
pub(crate) mod jobs;
pub(crate) mod lines;
mod list_errors;
pub(crate) mod logs;
pub(crate) mod me;
mod namespaces;
mod nodes;
pub(crate) mod openapi;
mod parent_params;
mod routes;
pub(crate) mod run_json;
pub(crate) mod run_tree;
pub(crate) mod runs;
pub(crate) mod schedules;
mod sign_in_links;
mod stats;
mod token_descent;
mod token_name;
mod token_room;
pub(crate) mod tokens;
pub(crate) mod users;
mod versions;
mod webhooks;

use schemars::JsonSchema;
use serde::Serialize;

pub(crate) use self::routes::routes;
use crate::parameter::Parameter;
use crate::query::{FromQuery, Reader};

/// How many items a page has if the caller does not say.
const LIMIT_DEFAULT: u32 = 50;
/// How many it can have.
const LIMIT_MAX: u32 = 200;

/// The query of a list.
#[derive(Debug)]
struct PageQuery {
    limit: u32,
    cursor: Option<String>,
}

impl FromQuery for PageQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self { limit: reader.limit(LIMIT_DEFAULT, LIMIT_MAX), cursor: reader.one(Parameter::cursor()) }
    }
}

/// One page of a list.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "{T}Page")]
struct Page<T> {
    items: Vec<T>,
    /// For `?cursor=`; null on the last page.
    next_cursor: Option<String>,
}
