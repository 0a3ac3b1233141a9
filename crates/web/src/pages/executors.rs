//! The executors: who is online, how busy, and what each can run.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::DeclarationProblem;

use super::moment::Moment;
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use crate::api::executors::{ExecutorJson, all};
use crate::problem::Problem;

#[derive(Template)]
#[template(path = "executors.html")]
struct ExecutorsPage {
    shell: Shell,
    t: &'static Texts,
    here: String,
    rows: Vec<ExecutorRow>,
    /// What is wrong with the jobs that code declares, by app.
    problems: Vec<(String, Vec<DeclarationProblem>)>,
}

struct ExecutorRow {
    name: String,
    app: String,
    status: &'static str,
    word: &'static str,
    running: Option<u32>,
    slots: u32,
    labels: Vec<String>,
    handlers: Vec<String>,
    sdk_version: String,
    last_seen: Moment,
}

pub(super) async fn list(page: Page) -> Result<Response, Problem> {
    let (now, t) = (page.engine().now(), page.t);
    let row = |one: ExecutorJson| ExecutorRow {
        name: one.name,
        app: one.app,
        status: one.status,
        word: match one.status {
            "online" => t.executor_online,
            "draining" => t.executor_draining,
            _ => t.executor_offline,
        },
        running: one.running,
        slots: one.slots,
        labels: one.labels.into_iter().map(|(key, value)| format!("{key}={value}")).collect(),
        handlers: one.handlers,
        sdk_version: one.sdk_version,
        last_seen: Moment::new(one.last_seen_at, now, t),
    };
    let rows = all(&page.call).await?.into_iter().map(row).collect();
    let (shell, here, problems) = (page.shell(Nav::Executors), page.here().to_owned(), problems(&page).await?);
    let template = ExecutorsPage { shell, t, here, rows, problems };
    html(StatusCode::OK, &template)
}

async fn problems(page: &Page) -> Result<Vec<(String, Vec<DeclarationProblem>)>, Problem> {
    let apps = page.engine().store().apps(page.call.namespace.id).await?;
    let seen = apps.into_iter().filter(|app| page.call.sees(app.id));
    let told = seen.map(|app| (app.name, page.engine().declaration_problems(app.id)));
    Ok(told.filter(|(_, problems)| !problems.is_empty()).collect())
}
