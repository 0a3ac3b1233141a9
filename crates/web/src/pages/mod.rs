//! The console: askama templates from `web/templates`, updated by htmx. No page has inline scripts or styles.
//!
//! - `shell` is the frame of every page and the extractor for a page's request; `prefs` and `texts` are the language and the theme; `nav`
//!   has the links of the navigation bar; `zones` chooses the clock that pages show, `assets` are the static files, `toast` the short
//!   messages about the outcome of forms; `problem` shows problems as pages; `own_namespace` adds the namespace of a page to its links
//!   and forms;
//! - `sign_in`, `oidc`, `now`, `timeline`, `account`, `users`, `alerts`, `alert_rule`, `reports`, `shadow`, `jobs`, `job_new`, `job`,
//!   `job_edit`, `pump`, `fires`, `runs`, `run`, `run_log`, `calendars`, `calendar`, `scripts`, `script`, `channels`, `executors`,
//!   `executor`, `executor_new`, `versions`, `why`, `activity`, `settings`, `api_docs`, `namespaces` and `palette` are the pages;
//! - `drawing`, `outcome_bars` and `job_charts` turn counts and runs into charts, `gaps` explains the empty parts of lanes;
//! - `view`, `moment`, `schedule_text` and `ansi` turn the engine's data into text for users; `form` reads forms; `filter_bar` and
//!   `saved_filters` are the bars above lists;
//! - `pump_facts` describes the definition of a pump job; `job_links` shows the parents and children of a job, `as_code` shows an action
//!   as `curl` and as a command, `edit_effect` compares upcoming fires, `activity_rows` shows entries of the audit log and changed fields,
//!   `fleet_rows` shows servers and executors, `grants_form` is the picker of roles; `job_leaf_fields`, `label_rows`, `calendar_days` and
//!   `script_form` are parts of forms;
//! - the other modules are parts, forms or downloads of these pages; `sentences` translates the engine's sentences.

mod account;
mod activity;
mod activity_rows;
mod alert_rule;
mod alerts;
mod ansi;
mod api_docs;
mod as_code;
mod assets;
mod calendar;
mod calendar_days;
mod calendar_form;
mod calendars;
mod channel_form;
mod channels;
mod drawing;
mod edit_effect;
mod executor;
mod executor_new;
mod executors;
mod filter_bar;
mod fires;
mod fleet_rows;
mod form;
mod gaps;
mod grants_form;
mod incident_parts;
mod job;
mod job_bulk;
mod job_charts;
mod job_edit;
mod job_export;
mod job_form;
mod job_leaf_fields;
mod job_links;
mod job_new;
mod job_params;
mod jobs;
mod label_rows;
mod maintenance;
mod maintenance_rows;
mod moment;
mod namespaces;
mod nav;
mod now;
mod oidc;
mod outcome_bars;
mod outcomes;
pub(crate) mod own_namespace;
mod palette;
mod params_form;
mod prefs;
pub(crate) mod problem;
mod pump;
mod pump_facts;
mod report_failures;
mod reports;
mod rule_errors;
mod rule_trial;
mod run;
mod run_bulk;
mod run_export;
mod run_line;
mod run_links;
mod run_log;
mod run_neighbours;
mod run_timeline;
mod run_tree;
mod runs;
mod saved_filters;
mod schedule_text;
mod script;
mod script_form;
mod script_try;
mod scripts;
mod sentences;
mod settings;
mod shadow;
mod shell;
mod sign_in;
mod texts;
mod timeline;
mod toast;
mod users;
mod versions;
mod view;
mod why;
pub(crate) mod zones;

use rondel_core::access::Permission::{Admin, Cluster, Edit, Operate, SignedIn, View};

use crate::api;
use crate::routes::{OpenPath, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .page("/", View, now::page)
        .page("/timeline", View, timeline::page)
        .page("/timeline/ahead", View, timeline::ahead)
        .page("/jobs", View, jobs::list)
        .form("/jobs", Edit, job_new::create)
        .page("/jobs/new", Edit, job_new::page)
        .page("/jobs/{name}", View, job::page)
        .page("/jobs/{name}/activity", View, activity::of_job)
        .form("/jobs/{name}/delete", Edit, job::delete)
        .page("/jobs/{name}/edit", Edit, job_edit::page)
        .form("/jobs/{name}/edit", Edit, job_edit::save)
        .page("/jobs/{name}/fires", View, fires::page)
        .page("/jobs/{name}/gaps", View, gaps::of_job)
        .form("/jobs/{name}/pause", Operate, job::pause)
        .page("/jobs/{name}/pump", View, pump::page)
        .form("/jobs/{name}/reset", Edit, job::reset)
        .form("/jobs/{name}/restore", Edit, versions::restore)
        .form("/jobs/{name}/resume", Operate, job::resume)
        .form("/jobs/{name}/runs", Operate, job::trigger)
        .page("/jobs/{name}/versions", View, versions::page)
        .form("/job-code", Edit, job_edit::code_part)
        .form("/job-params", Edit, job_params::part)
        .form("/job-yaml", Edit, job_edit::yaml_part)
        .page("/schedule-preview", View, job_new::preview)
        .page("/runs", View, runs::list)
        .form("/jobs:bulk", Operate, job_bulk::act)
        .form("/runs:bulk", Operate, run_bulk::act)
        .page("/export/jobs.yaml", View, job_export::yaml)
        .page("/export/runs.csv", View, run_export::csv)
        .page("/export/runs.jsonl", View, run_export::json_lines)
        .form("/saved-filters", View, saved_filters::save)
        .form("/saved-filters/delete", View, saved_filters::delete)
        .page("/suggest/jobs", View, filter_bar::for_jobs)
        .page("/suggest/runs", View, filter_bar::for_runs)
        .page("/runs/{id}", View, run::page)
        .form("/runs/{id}/cancel", Operate, run::cancel)
        .form("/runs/{id}/retry", Operate, run::retry)
        .form("/runs/{id}/retry-failed", Operate, run::retry_failed)
        .page("/runs/{id}/log", View, run_log::window)
        .page("/runs/{id}/log/search", View, run_log::search)
        .page("/runs/{id}/log.txt", View, run_log::text)
        .page("/calendars", View, calendars::list)
        .form("/calendars", Edit, calendars::create)
        .page("/calendars/{name}", View, calendar::page)
        .form("/calendars/{name}", Edit, calendar::save)
        .form("/calendars/{name}/delete", Edit, calendar::delete)
        .page("/scripts", View, scripts::list)
        .form("/scripts", Edit, scripts::create)
        .page("/scripts/{name}", View, script::page)
        .form("/scripts/{name}", Edit, script::save)
        .form("/scripts/{name}/delete", Edit, script::delete)
        .form("/scripts/{name}/restore", Edit, script::restore)
        .form("/scripts/{name}/try", Edit, script::try_script)
        .page("/alerts/channels", View, channels::list)
        .form("/alerts/channels", Admin, channels::create)
        .page("/alerts/channels/new", Admin, channels::blank)
        .page("/alerts/channels/{name}", View, channels::page)
        .form("/alerts/channels/{name}", Admin, channels::save)
        .form("/alerts/channels/{name}/delete", Admin, channels::delete)
        .form("/alerts/channels/{name}/test", Admin, channels::test)
        .page("/alerts", View, alerts::page)
        .page("/alerts/incidents/{id}", View, alerts::incident)
        .form("/alerts/incidents/{id}/acknowledge", Operate, alerts::acknowledge)
        .form("/alerts/rules", Edit, alert_rule::create)
        .page("/alerts/rules/new", Edit, alert_rule::new)
        .page("/alerts/rules/{name}", View, alert_rule::edit)
        .form("/alerts/rules/{name}", Edit, alert_rule::save)
        .form("/alerts/rules/{name}/delete", Edit, alert_rule::delete)
        .form("/alerts/maintenance", Operate, maintenance::add)
        .form("/alerts/maintenance/{id}/end", Operate, maintenance::end)
        .form("/alerts/silences", Operate, alerts::silence)
        .form("/alerts/silences/{id}/end", Operate, alerts::end_silence)
        .page("/reports", View, reports::page)
        .page("/shadow", View, shadow::page)
        .form("/reports/schedule", Admin, reports::schedule)
        .page("/export/report.csv", View, reports::export)
        .form("/apps/{app}/state", Operate, executors::switch_app)
        .form("/apps/{app}/addresses", Edit, executor_new::add_address)
        .form("/apps/{app}/addresses/remove", Edit, executor_new::remove_address)
        .page("/executors", View, executors::list)
        .page("/executors/new", View, executor_new::page)
        .page("/executors/{name}", View, executor::page)
        .form("/executors/{name}/activate", Operate, executor::activate)
        .form("/executors/{name}/drain", Operate, executor::drain)
        .form("/executors/{name}/stop", Operate, executor::stop)
        .form("/nodes/{name}/state", Cluster, executors::switch_node)
        .page("/activity", Cluster, activity::page)
        .page("/activity.ndjson", Cluster, activity::export)
        .page("/why", View, why::page)
        .page("/api-docs", SignedIn, api_docs::page)
        .page("/live", View, api::events::watch)
        .page("/namespaces", View, namespaces::list)
        .page("/palette", View, palette::page)
        .page("/openapi.json", SignedIn, api::openapi::page)
        .page("/account", SignedIn, account::page)
        .form("/account/password", SignedIn, account::password)
        .form("/account/sessions/{id}/end", SignedIn, account::end_session)
        .form("/account/tokens", SignedIn, account::submit_token)
        .form("/account/tokens/{id}/revoke", SignedIn, account::revoke_token)
        .form("/account/tokens/{id}/rotate", SignedIn, account::rotate_token)
        .page("/settings", SignedIn, settings::page)
        .page("/settings/sign-in", Cluster, settings::sign_in)
        .page("/settings/tokens", SignedIn, settings::tokens)
        .page("/settings/webhooks", View, settings::webhooks)
        .form("/namespaces/{name}/failure-webhook", Admin, settings::set_webhook)
        .form("/namespaces/{name}/failure-webhook/test", Admin, settings::test_webhook)
        .page("/users", Cluster, users::page)
        .form("/users", Cluster, users::create)
        .form("/users/{user}", Cluster, users::change)
        .form("/users/{user}/delete", Cluster, users::delete)
        .form("/users/{user}/link", Cluster, users::link)
        .form("/users/{user}/password", Cluster, users::password)
        .open(OpenPath::SetUp, sign_in::set_up)
        .open_post(OpenPath::SetUp, sign_in::set_up_account)
        .open(OpenPath::SignIn, sign_in::page)
        .open_post(OpenPath::SignIn, sign_in::submit_sign_in)
        .open(OpenPath::Oidc, oidc::redirect_to_provider)
        .open(OpenPath::OidcBack, oidc::return_from_provider)
        .open_post(OpenPath::SignOut, sign_in::sign_out)
        .open_post(OpenPath::Preferences, sign_in::set_preference)
        .open(OpenPath::Static, assets::get)
}
