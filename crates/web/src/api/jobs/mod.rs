//! Jobs: one file per operation, with its route and its text in the OpenAPI document.
//!
//! - `list`, `create`, `get`, `replace`, `patch`, `switch`, `reset` and `delete` work on definitions, `versions` on earlier definitions;
//! - `bulk` applies one action to many jobs;
//! - `apply` takes lists of definitions and answers with `applied`; `export` writes lists that `apply` accepts;
//! - `fires` and `stats` show the outcomes of a job's fires, `items` the work of a pump job's groups;
//! - `find`, `change`, `job_json`, `body` and `list_errors` are shared by the others.

mod applied;
mod applied_body;
mod apply;
pub(crate) mod body;
mod bulk;
mod change;
mod create;
mod delete;
mod export;
mod find;
mod fires;
mod get;
mod items;
mod job_json;
mod list;
mod list_errors;
mod patch;
mod queued;
mod replace;
mod reset;
mod stats;
mod switch;
mod versions;

pub(crate) use delete::remove;
pub(crate) use export::jobs_as_yaml;
pub(crate) use find::{find, find_app, find_for_runs};
pub(crate) use fires::parse_instant;
pub(crate) use fires::versions_before;
pub(crate) use items::no_pump_problem;
pub(crate) use reset::reset_to_declared;
pub(crate) use stats::visible_from;
pub(crate) use versions::{diff_versions, restore_version, version_spec};

use crate::routes::Routes;

pub(super) fn routes() -> Routes {
    list::routes()
        .and(create::routes())
        .and(apply::routes())
        .and(export::routes())
        .and(get::routes())
        .and(items::routes())
        .and(replace::routes())
        .and(patch::routes())
        .and(delete::routes())
        .and(switch::routes())
        .and(reset::routes())
        .and(fires::routes())
        .and(versions::routes())
        .and(stats::routes())
        .and(bulk::routes())
}
