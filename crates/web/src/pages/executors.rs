//! The executors: who is online, how busy, and what each can run.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::DeclarationProblem;

use super::moment::Moment;
use super::shell::{LIMIT, Nav, Page, Shell, html};
use super::texts::Texts;
use crate::api::executors::{ExecutorJson, Position, page as page_of};
use crate::cursor::Listing;
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::pair;

/// How many handlers of one executor a row shows.
const HANDLER_COUNT: usize = 30;

/// Where the list goes on.
#[derive(Debug)]
pub(super) struct ExecutorsFrom(Option<String>);

impl FromQuery for ExecutorsFrom {
    fn from_query(reader: &mut Reader) -> Self {
        Self(reader.one("cursor"))
    }
}

#[derive(Template)]
#[template(path = "executors.html")]
struct ExecutorsPage {
    shell: Shell,
    t: &'static Texts,
    here: String,
    rows: Vec<ExecutorRow>,
    next: Option<String>,
    is_first: bool,
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
    /// How many more handlers there are.
    hidden_count: usize,
    sdk_version: String,
    last_seen: Moment,
}

pub(super) async fn list(page: Page<ExecutorsFrom>) -> Result<Response, Problem> {
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
        hidden_count: one.handlers.len().saturating_sub(HANDLER_COUNT),
        handlers: one.handlers.into_iter().take(HANDLER_COUNT).collect(),
        sdk_version: one.sdk_version,
        last_seen: Moment::new(one.last_seen_at, now, t),
    };
    let listing = Listing::new("executors", page.call.namespace.id);
    let cursor = page.query().0.as_deref();
    let after = cursor.map(|cursor| listing.position::<Position>(cursor)).transpose()?;
    let is_first = cursor.is_none();
    let (found, next) = page_of(&page.call, after, LIMIT).await?;
    let next = next.map(|last| format!("/executors?{}", pair("cursor", &listing.cursor(last))));
    let rows = found.into_iter().map(row).collect();
    let (shell, here, problems) = (page.shell(Nav::Executors), page.here().to_owned(), problems(&page).await?);
    let template = ExecutorsPage { shell, t, here, rows, next, is_first, problems };
    html(StatusCode::OK, &template)
}

async fn problems(page: &Page<ExecutorsFrom>) -> Result<Vec<(String, Vec<DeclarationProblem>)>, Problem> {
    let apps = page.engine().store().apps(page.call.namespace.id).await?;
    let seen = apps.into_iter().filter(|app| page.call.sees(app.id));
    let declared = seen.map(|app| (app.name, page.engine().declaration_problems(app.id)));
    Ok(declared.filter(|(_, problems)| !problems.is_empty()).collect())
}
