//! The page of one executor: its handlers, its slots, and the runs that it has.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::given_name;
use rondel_core::homes::Switch;
use rondel_core::name;
use serde_json::json;

use super::as_code::AsCode;
use super::fleet_rows::{ExecutorRow, HeldRun, executor_row, held_runs};
use super::form::Fields;
use super::shell::{MissingRoles, Nav, Page, Shell, html};
use super::texts::Texts;
use super::toast::{self, Toast};
use crate::api::executors::{find, set_switch};
use crate::call::quoted_input;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::redirect::{own_path, query_pair};

/// How many handlers the page shows.
const HANDLER_COUNT: usize = 500;
/// How many runs the page shows.
const RUN_COUNT: usize = 200;

/// The app of the executor. Names are unique only within an app.
#[derive(Debug)]
pub(super) struct AppQuery(Option<String>);

impl FromQuery for AppQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self(reader.single("app"))
    }
}

#[derive(Template)]
#[template(path = "executor.html")]
struct ExecutorPage {
    shell: Shell,
    t: &'static Texts,
    /// The URL of this page, from which the script reloads its live part.
    page_url: String,
    row: ExecutorRow,
    held_runs: Vec<HeldRun>,
    /// How many more runs it has.
    hidden_count: usize,
    /// The roles that the caller lacks on its app.
    missing_roles: MissingRoles,
    code: AsCode,
}

pub(super) async fn page(page: Page<AppQuery>, Named(name, ..): Named<path::Executor>) -> Result<Response, Problem> {
    let not_found = || Problem::new(Code::NotFound, format!("there is no executor {}", quoted_input(&name)));
    name::check(given_name(&name)).map_err(|_| not_found())?;
    let (app, executor) = find(&page.call, &name, page.query().0.as_deref()).await?.ok_or_else(not_found)?;
    let (now, t) = (page.engine().now(), page.t);
    let mut runs = held_runs(&page, app, &executor.name).await?;
    let hidden_count = runs.len().saturating_sub(RUN_COUNT);
    runs.truncate(RUN_COUNT);
    let (next_state, verb) = if executor.state == "active" { ("draining", "drain") } else { ("active", "activate") };
    let row = executor_row(executor, Some(HANDLER_COUNT), now, t);
    let template = ExecutorPage {
        shell: page.shell(Nav::Executors),
        page_url: page.page_url().to_owned(),
        held_runs: runs,
        hidden_count,
        missing_roles: page.missing_roles(Some(app)),
        code: page.code(
            ("PUT", &format!("/api/v1/executors/{name}/state")),
            Some(&json!({"app": row.app, "state": next_state})),
            &format!("executor {verb} {name} --app {}", row.app),
        ),
        row,
        t,
    };
    html(StatusCode::OK, &template)
}

/// Drains the executor: it gets no new runs.
pub(super) async fn drain(
    page: Page<AppQuery>,
    Named(name, ..): Named<path::Executor>,
    fields: Fields,
) -> Result<Response, Problem> {
    switch_executor(&page, &name, Switch::Draining, &fields).await
}

/// Stops the executor: it gets no new runs, and its runs are cancelled.
pub(super) async fn stop(
    page: Page<AppQuery>,
    Named(name, ..): Named<path::Executor>,
    fields: Fields,
) -> Result<Response, Problem> {
    switch_executor(&page, &name, Switch::Stopped, &fields).await
}

/// Activates the executor: it gets new runs again.
pub(super) async fn activate(
    page: Page<AppQuery>,
    Named(name, ..): Named<path::Executor>,
    fields: Fields,
) -> Result<Response, Problem> {
    switch_executor(&page, &name, Switch::Active, &fields).await
}

async fn switch_executor(
    page: &Page<AppQuery>,
    name: &str,
    switch: Switch,
    fields: &Fields,
) -> Result<Response, Problem> {
    let (executor, switch_before) = set_switch(&page.call, (name, page.query().0.as_deref()), switch).await?;
    let text = match switch {
        Switch::Active => page.t.toast_exec_active(name),
        Switch::Draining => page.t.toast_exec_draining(name),
        Switch::Stopped => page.t.toast_exec_stopped(name),
    };
    let verb = match switch_before {
        Switch::Active => "activate",
        Switch::Draining => "drain",
        Switch::Stopped => "stop",
    };
    let undo_url =
        (switch_before != switch).then(|| format!("/executors/{name}/{verb}?{}", query_pair("app", &executor.app)));
    let return_url = own_path(fields.get("back")).unwrap_or("/executors");
    toast::toast_response(page, Toast { text, undo_url, link: None }, return_url)
}
