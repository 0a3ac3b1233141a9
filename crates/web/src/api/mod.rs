//! The endpoints. Each noun has a file; a noun with many operations has a file per operation. Each file has the paths and permissions of
//! its routes, and their texts in the OpenAPI document.

pub(crate) mod addresses;
pub(crate) mod alert_rules;
mod apps;
pub(crate) mod audit;
pub(crate) mod calendars;
pub(crate) mod cancels;
pub(crate) mod channels;
pub(crate) mod events;
pub(crate) mod executors;
mod follow;
pub(crate) mod incidents;
pub(crate) mod jobs;
pub(crate) mod lines;
pub(crate) mod log_search;
pub(crate) mod log_seek;
pub(crate) mod logs;
pub(crate) mod maintenance;
pub(crate) mod me;
mod namespaces;
mod nodes;
pub(crate) mod openapi;
mod page;
mod page_builder;
pub(crate) mod reports;
mod run_bulk;
pub(crate) mod run_json;
mod run_list;
pub(crate) mod run_tree;
pub(crate) mod runs;
pub(crate) mod schedules;
pub(crate) mod scripts;
pub(crate) mod shadow;
mod sign_in_links;
mod stats;
mod timeline;
mod token_descent;
mod token_limit;
mod token_name;
pub(crate) mod tokens;
pub(crate) mod trigger_executor;
pub(crate) mod users;
mod webhooks;

use crate::routes::Routes;

/// Every route of the API.
pub(crate) fn routes() -> Routes {
    jobs::routes()
        .and(runs::routes())
        .and(run_list::routes())
        .and(run_bulk::routes())
        .and(cancels::routes())
        .and(run_tree::routes())
        .and(logs::routes())
        .and(log_search::routes())
        .and(calendars::routes())
        .and(schedules::routes())
        .and(scripts::routes())
        .and(stats::routes())
        .and(timeline::routes())
        .and(reports::routes())
        .and(apps::routes())
        .and(addresses::routes())
        .and(executors::routes())
        .and(events::routes())
        .and(nodes::routes())
        .and(namespaces::routes())
        .and(webhooks::routes())
        .and(channels::routes())
        .and(alert_rules::routes())
        .and(incidents::routes())
        .and(maintenance::routes())
        .and(shadow::routes())
        .and(me::routes())
        .and(sign_in_links::routes())
        .and(tokens::routes())
        .and(users::routes())
        .and(audit::routes())
        .and(openapi::routes())
}
