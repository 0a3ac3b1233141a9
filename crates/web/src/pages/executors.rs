//! The page of the fleet: the servers, the apps with their switches, and the executors of each app with their load.

use std::collections::BTreeMap;

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::DeclarationProblem;
use rondel_core::access::Permission;
use rondel_core::homes::Switch;
use rondel_core::name;
use serde_json::json;

use super::as_code::AsCode;
use super::fleet_rows::{ExecutorRow, NodeRow, executor_row, node_row};
use super::form::Fields;
use super::sentences::localized;
use super::shell::{MissingRoles, Nav, PAGE_ITEM_COUNT, Page, Shell, html};
use super::texts::Texts;
use crate::api::executors::{ExecutorPosition, Fleet, page as page_of};
use crate::api::jobs::find_app;
use crate::body::refuse_value;
use crate::call::quoted_input;
use crate::cursor::{CursorQuery, Listing};
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::redirect::{own_path, query_pair, redirect_to};

#[derive(Template)]
#[template(path = "executors.html")]
struct ExecutorsPage {
    shell: Shell,
    t: &'static Texts,
    /// The URL of this page, from which the script reloads its live part.
    page_url: String,
    nodes: Vec<NodeRow>,
    /// Why the caller may not set the switches of servers; `None` if the caller may.
    missing_node_role: Option<&'static str>,
    apps: Vec<AppRow>,
    is_empty: bool,
    /// Whether the number of runs can still change for an executor on this page that is switched off.
    is_emptying: bool,
    next_url: Option<String>,
    is_first: bool,
    /// The errors in jobs that code declares, by app.
    problems: Vec<(String, Vec<DeclarationProblem>)>,
    code: AsCode,
}

/// An app, and its executors on this page.
struct AppRow {
    name: String,
    class: &'static str,
    word: &'static str,
    state: &'static str,
    /// How many of its executors have a stream to this server.
    online_count: usize,
    /// How many runs these executors have.
    busy_count: u32,
    /// How many slots these executors have.
    slots: u32,
    /// How many runs its executors have, counted on all servers.
    held_count: u64,
    missing_roles: MissingRoles,
    rows: Vec<ExecutorRow>,
}

pub(super) async fn list(page: Page<CursorQuery>) -> Result<Response, Problem> {
    let (now, t) = (page.engine().now(), page.t);
    let listing = Listing::new("executors", page.call.namespace.id);
    let cursor = page.query().0.as_deref();
    let after_position = cursor.map(|cursor| listing.position::<ExecutorPosition>(cursor)).transpose()?;
    let is_first = cursor.is_none();
    let (executors, next_position) = page_of(&page.call, after_position.clone(), PAGE_ITEM_COUNT).await?;
    let app_of_position = |position: &ExecutorPosition| position.0.clone();
    let app_range = (after_position.as_ref().map(app_of_position), next_position.as_ref().map(app_of_position));
    let next_url = next_position.map(|last| format!("/executors?{}", query_pair("cursor", &listing.cursor(last))));
    let is_empty = executors.is_empty();
    let mut rows_by_app: BTreeMap<String, Vec<ExecutorRow>> = BTreeMap::new();
    for executor in executors {
        rows_by_app.entry(executor.app.clone()).or_default().push(executor_row(executor, None, now, t));
    }
    let apps = app_rows(&page, rows_by_app, app_range).await?;
    let template = ExecutorsPage {
        shell: page.shell(Nav::Executors),
        page_url: page.page_url().to_owned(),
        nodes: if is_first { node_rows(&page).await? } else { Vec::new() },
        missing_node_role: (!page.call.caller.rights.allow_somewhere(Permission::Cluster)).then_some(t.needs_admin),
        is_emptying: apps.iter().flat_map(|app| &app.rows).any(|row| row.is_emptying),
        apps,
        is_empty,
        next_url,
        is_first,
        problems: declaration_problems(&page).await?,
        code: page.code(("GET", "/api/v1/executors"), None, "executor list"),
        t,
    };
    html(StatusCode::OK, &template)
}

async fn node_rows<Q>(page: &Page<Q>) -> Result<Vec<NodeRow>, Problem> {
    let (engine, t) = (page.engine(), page.t);
    let now = engine.now();
    let nodes = engine.store().nodes().await?;
    let row = |node: rondel_store::cluster::Node| {
        let loops = (node.name == engine.node_name()).then(|| engine.loops());
        node_row(node, loops, now, t)
    };
    Ok(nodes.into_iter().map(row).collect())
}

/// The apps on this page of the list. An app without executors is on the page to which its name belongs: the name comes after `previous_app`,
/// the app of the last executor on the previous page (`None` on the first page), and before `last_app`, the app of the last executor on this
/// page (`None` on the last page).
async fn app_rows(
    page: &Page<CursorQuery>,
    mut rows_by_app: BTreeMap<String, Vec<ExecutorRow>>,
    (previous_app, last_app): (Option<String>, Option<String>),
) -> Result<Vec<AppRow>, Problem> {
    let (engine, t) = (page.engine(), page.t);
    let fleet = Fleet::read(&page.call).await?;
    let app_records = engine.store().apps(page.call.namespace.id).await?;
    let online_executors = engine.online_executors();
    let mut rows = Vec::new();
    for app in app_records.into_iter().filter(|app| page.call.may_view(app.id)) {
        let executors = rows_by_app.remove(&app.name).unwrap_or_default();
        let state = fleet.switches.of_app(app.id);
        let executors_of_app = || online_executors.iter().filter(|executor| executor.app == app.id);
        // An app whose name is outside of this range belongs to another page.
        let is_on_page = previous_app.as_ref().is_none_or(|name| app.name > *name)
            && last_app.as_ref().is_none_or(|name| app.name < *name);
        if executors.is_empty() && !(is_on_page && (state != Switch::Active || executors_of_app().next().is_none())) {
            continue;
        }
        let (class, word) = match state {
            Switch::Active => ("online", t.switch_active),
            Switch::Draining => ("draining", t.executor_draining),
            Switch::Stopped => ("cancelled", t.switch_stopped),
        };
        rows.push(AppRow {
            class,
            word,
            state: state.as_str(),
            online_count: executors_of_app().count(),
            busy_count: executors_of_app().map(|executor| executor.running).sum(),
            slots: executors_of_app().map(|executor| executor.slots).sum(),
            held_count: fleet.run_count_of_app(app.id),
            missing_roles: page.missing_roles(Some(app.id)),
            name: app.name,
            rows: executors,
        });
    }
    Ok(rows)
}

async fn declaration_problems(page: &Page<CursorQuery>) -> Result<Vec<(String, Vec<DeclarationProblem>)>, Problem> {
    let apps = page.engine().store().apps(page.call.namespace.id).await?;
    let visible_apps = apps.into_iter().filter(|app| page.call.may_view(app.id));
    let localized_problem = |problem: DeclarationProblem| {
        let message = localized(page.t.lang(), &problem.message).into_owned();
        DeclarationProblem { message, ..problem }
    };
    let problems_of = |app| -> Vec<DeclarationProblem> {
        page.engine().declaration_problems(app).into_iter().map(localized_problem).collect()
    };
    let problems_of_apps = visible_apps.map(|app| (app.name, problems_of(app.id)));
    Ok(problems_of_apps.filter(|(_, problems)| !problems.is_empty()).collect())
}

fn parse_switch(fields: &Fields) -> Result<Switch, Problem> {
    fields.get("state").parse().map_err(|message: String| refuse_value("/state", message))
}

fn redirect_back(fields: &Fields) -> Response {
    own_path(fields.get("back")).map_or_else(|| redirect_to("/executors"), redirect_to)
}

/// Sets the switch of an app; every server reads it at its next beat.
pub(super) async fn switch_app(
    page: Page,
    Named(app, ..): Named<path::App>,
    fields: Fields,
) -> Result<Response, Problem> {
    let switch = parse_switch(&fields)?;
    let id = find_app(&page.call, &app).await?;
    let store = page.engine().store();
    page.call.note.before(&json!({"state": store.switches().await?.of_app(id).as_str()}));
    page.call.note.changed_to(&json!({"state": switch.as_str()}));
    store.set_app_switch(id, switch).await?;
    page.engine().poke_beat();
    Ok(redirect_back(&fields))
}

/// Sets the switch of a server.
pub(super) async fn switch_node(
    page: Page,
    Named(node, ..): Named<path::Node>,
    fields: Fields,
) -> Result<Response, Problem> {
    let switch = parse_switch(&fields)?;
    let not_found = || Problem::new(Code::NodeNotFound, format!("no node is called {}", quoted_input(&node)));
    name::check(&node).map_err(|_| not_found())?;
    let store = page.engine().store();
    let switch_before = store.nodes().await?.into_iter().find(|record| record.name == node).map(|node| node.switch);
    page.call.note.before(&json!({"state": switch_before.map(Switch::as_str)}));
    page.call.note.changed_to(&json!({"state": switch.as_str()}));
    if !store.set_node_switch(&node, switch).await? {
        return Err(not_found());
    }
    page.engine().poke_beat();
    Ok(redirect_back(&fields))
}
