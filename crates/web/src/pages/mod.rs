//! The console: askama templates from `web/templates`, moved by htmx, without a line of code or style of their own.
//!
//! - `shell` is what is around every page and what a request for one is; `prefs` and `texts` its language and theme;
//!   `assets` the files that pages load; `problem` what goes wrong, as a page; `own_namespace` keeps the namespace of a page
//!   on its links and forms;
//! - `sign_in`, `oidc`, `account`, `users`, `jobs`, `job_new`, `job`, `job_edit`, `fires`, `runs`, `run`, `run_log`, `calendars`, `calendar`, `executors` and `namespaces` are the pages;
//! - `view`, `moment`, `schedule_text` and `ansi` turn what the engine knows into what users read; `form` reads forms.

mod account;
mod ansi;
mod assets;
mod calendar;
mod calendar_form;
mod calendars;
mod executors;
mod fires;
mod form;
mod job;
mod job_edit;
mod job_form;
mod job_new;
mod job_params;
mod jobs;
mod moment;
mod namespaces;
mod oidc;
pub(crate) mod own_namespace;
mod params_form;
mod prefs;
pub(crate) mod problem;
mod run;
mod run_log;
mod run_tree;
mod runs;
mod schedule_text;
mod shell;
mod sign_in;
mod texts;
mod users;
mod view;

use axum::response::Response;
use rondel_core::access::Permission::{Cluster, Edit, Operate, Own, View};

use crate::api;
use crate::redirect::to;
use crate::routes::{OpenPath, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .page("/", View, home)
        .page("/jobs", View, jobs::list)
        .form("/jobs", Edit, job_new::create)
        .page("/jobs/new", Edit, job_new::page)
        .page("/jobs/{name}", View, job::page)
        .form("/jobs/{name}/delete", Edit, job::delete)
        .page("/jobs/{name}/edit", Edit, job_edit::page)
        .form("/jobs/{name}/edit", Edit, job_edit::save)
        .page("/jobs/{name}/fires", View, fires::page)
        .form("/jobs/{name}/pause", Operate, job::pause)
        .form("/jobs/{name}/reset", Edit, job::reset)
        .form("/jobs/{name}/resume", Operate, job::resume)
        .form("/jobs/{name}/runs", Operate, job::trigger)
        .form("/job-params", Edit, job_params::part)
        .page("/schedule-preview", View, job_new::preview)
        .page("/runs", View, runs::list)
        .page("/runs/{id}", View, run::page)
        .form("/runs/{id}/cancel", Operate, run::cancel)
        .form("/runs/{id}/retry", Operate, run::retry)
        .page("/runs/{id}/log", View, run_log::tail)
        .page("/runs/{id}/log.txt", View, run_log::text)
        .page("/calendars", View, calendars::list)
        .form("/calendars", Edit, calendars::create)
        .page("/calendars/{name}", View, calendar::page)
        .form("/calendars/{name}", Edit, calendar::save)
        .form("/calendars/{name}/delete", Edit, calendar::delete)
        .page("/executors", View, executors::list)
        .page("/namespaces", View, namespaces::list)
        .page("/openapi.json", Own, api::openapi::page)
        .page("/account", Own, account::page)
        .form("/account/password", Own, account::password)
        .form("/account/sessions/{id}/end", Own, account::end_session)
        .form("/account/tokens", Own, account::make_token)
        .form("/account/tokens/{id}/revoke", Own, account::revoke_token)
        .form("/account/tokens/{id}/rotate", Own, account::rotate_token)
        .page("/users", Cluster, users::page)
        .form("/users", Cluster, users::create)
        .form("/users/{user}", Cluster, users::change)
        .form("/users/{user}/delete", Cluster, users::delete)
        .form("/users/{user}/link", Cluster, users::link)
        .form("/users/{user}/password", Cluster, users::password)
        .open(OpenPath::SetUp, sign_in::set_up)
        .open_post(OpenPath::SetUp, sign_in::set_up_account)
        .open(OpenPath::SignIn, sign_in::page)
        .open_post(OpenPath::SignIn, sign_in::enter)
        .open(OpenPath::Oidc, oidc::leave)
        .open(OpenPath::OidcBack, oidc::come_back)
        .open_post(OpenPath::SignOut, sign_in::leave)
        .open_post(OpenPath::Preferences, sign_in::prefer)
        .open(OpenPath::Static, assets::get)
}

async fn home() -> Response {
    to("/jobs")
}
