//! The endpoints: one file for each noun, one function for each verb.

mod applied;
mod apply;
mod apps;
mod audit;
pub(crate) mod calendars;
pub(crate) mod cancels;
pub(crate) mod executors;
mod export;
mod fires;
mod follow;
pub(crate) mod job_body;
pub(crate) mod jobs;
pub(crate) mod lines;
pub(crate) mod logs;
pub(crate) mod me;
mod namespaces;
mod nodes;
pub(crate) mod run_json;
pub(crate) mod run_tree;
pub(crate) mod runs;
pub(crate) mod schedules;
mod sign_in_links;
mod stats;
pub(crate) mod tokens;
pub(crate) mod users;
mod versions;
mod webhooks;

use serde::Serialize;

use crate::access::Permission::{Admin, Cluster, Edit, Operate, Own, View};
use crate::routes::Routes;

/// How many items a page has if the caller does not say.
const LIMIT_DEFAULT: u32 = 50;
/// How many it can have.
const LIMIT_MAX: u32 = 200;

/// One page of a list.
#[derive(Serialize)]
struct Page<T> {
    items: Vec<T>,
    next_cursor: Option<String>,
}

pub(crate) fn routes() -> Routes {
    Routes::new()
        .get("/api/v1/jobs", View, jobs::list)
        .post("/api/v1/jobs", Edit, jobs::create)
        .post("/api/v1/jobs/apply", Edit, apply::post)
        .get("/api/v1/jobs/export", View, export::get)
        .get("/api/v1/jobs/{name}", View, jobs::get)
        .put("/api/v1/jobs/{name}", Edit, jobs::replace)
        .patch("/api/v1/jobs/{name}", Edit, jobs::patch)
        .delete("/api/v1/jobs/{name}", Edit, jobs::delete)
        .post("/api/v1/jobs/{name}/pause", Operate, jobs::pause)
        .post("/api/v1/jobs/{name}/reset", Edit, jobs::reset)
        .post("/api/v1/jobs/{name}/restore", Edit, versions::restore)
        .post("/api/v1/jobs/{name}/resume", Operate, jobs::resume)
        .get("/api/v1/jobs/{name}/versions/diff", View, versions::diff)
        .post("/api/v1/jobs/{name}/cancel", Operate, cancels::job)
        .post("/api/v1/jobs/{name}/runs", Operate, runs::trigger)
        .get("/api/v1/jobs/{name}/fires", View, fires::list)
        .get("/api/v1/jobs/{name}/why", View, fires::why)
        .get("/api/v1/jobs/{name}/versions", View, fires::versions)
        .get("/api/v1/jobs/{name}/stats", View, stats::get)
        .get("/api/v1/calendars", View, calendars::list)
        .get("/api/v1/calendars/{name}", View, calendars::get)
        .put("/api/v1/calendars/{name}", Edit, calendars::put)
        .delete("/api/v1/calendars/{name}", Edit, calendars::delete)
        .post("/api/v1/calendars/{name}/import", Edit, calendars::import_file)
        .get("/api/v1/calendars/{name}/users", View, calendars::users)
        .post("/api/v1/schedules/preview", View, schedules::post)
        .get("/api/v1/runs", View, runs::list)
        .get("/api/v1/runs/{id}", View, runs::get)
        .get("/api/v1/runs/{id}/tree", View, run_tree::get)
        .post("/api/v1/runs/{id}/cancel", Operate, cancels::run)
        .post("/api/v1/runs/{id}/retry", Operate, runs::retry)
        .get("/api/v1/runs/{id}/logs", View, logs::get)
        .get("/api/v1/apps", View, apps::list)
        .post("/api/v1/apps", Edit, apps::create)
        .get("/api/v1/apps/{app}/handlers", View, apps::handlers)
        .get("/api/v1/apps/{app}/declaration-problems", View, apps::declaration_problems)
        .put("/api/v1/apps/{app}/state", Operate, apps::set_state)
        .get("/api/v1/executors", View, executors::list)
        .get("/api/v1/nodes", View, nodes::list)
        .put("/api/v1/nodes/{name}/state", Cluster, nodes::set_state)
        .get("/api/v1/namespaces/{name}/failure-webhook", Admin, webhooks::get)
        .put("/api/v1/namespaces/{name}/failure-webhook", Admin, webhooks::put)
        .delete("/api/v1/namespaces/{name}/failure-webhook", Admin, webhooks::delete)
        .post("/api/v1/sign-in-links", Own, sign_in_links::create)
        .get("/api/v1/me", Own, me::get)
        .get("/api/v1/sessions", Own, me::sessions)
        .delete("/api/v1/sessions/{id}", Own, me::end_session)
        .get("/api/v1/tokens", Own, tokens::list)
        .post("/api/v1/tokens", Own, tokens::create)
        .delete("/api/v1/tokens/{id}", Own, tokens::revoke)
        .post("/api/v1/tokens/{id}/rotate", Own, tokens::rotate)
        .get("/api/v1/namespaces", View, namespaces::list)
        .post("/api/v1/namespaces", Cluster, namespaces::create)
        .delete("/api/v1/namespaces/{name}", Cluster, namespaces::delete)
        .get("/api/v1/users", Cluster, users::list)
        .post("/api/v1/users", Cluster, users::create)
        .get("/api/v1/users/{user}", Cluster, users::get)
        .patch("/api/v1/users/{user}", Cluster, users::change)
        .delete("/api/v1/users/{user}", Cluster, users::delete)
        .post("/api/v1/users/{user}/password", Cluster, users::set_password)
        .post("/api/v1/users/{user}/sign-in-link", Cluster, users::link)
        .get("/api/v1/audit", Cluster, audit::list)
}
