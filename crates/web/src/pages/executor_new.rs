//! How to add an executor: creates a token, and shows commands and code for the agent, a container or a program, with this server and
//! app.

use askama::Template;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use rondel_core::name;

use super::as_code::shell_quoted;
use super::calendar_form::error_lines;
use super::form::Fields;
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use crate::api::addresses::{self, AddressJson, NewAddress};
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::redirect::{query_pair, redirect_to};

/// Maximum length of a server URL that is used in the snippets.
const SERVER_LEN_MAX: usize = 200;

/// The app and the server that the snippets use.
#[derive(Debug)]
pub(super) struct SnippetQuery {
    app: Option<String>,
    server: Option<String>,
}

impl FromQuery for SnippetQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let mut text =
            |name: &'static str| reader.single(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        Self { app: text("app"), server: text("server") }
    }
}

#[derive(Template)]
#[template(path = "executor_new.html")]
struct NewExecutorPage {
    shell: Shell,
    t: &'static Texts,
    app: String,
    apps: Vec<String>,
    server: String,
    /// Why the commands are not for this server, if they are for another one.
    other_server: Option<String>,
    error: Option<String>,
    /// The command that creates the token.
    token: String,
    /// The command that starts an agent.
    agent: String,
    /// The command that starts an agent in a container.
    docker: String,
    /// The source of a program with one handler.
    program: String,
    /// The commands that add the dependencies of the program.
    cargo: String,
    /// The token and the configuration of an executor of XXL-JOB.
    xxl: String,
    /// The executors of the app that are registered by hand; `None` if the app does not exist.
    registered_addresses: Option<Vec<AddressJson>>,
    /// Why the caller may not change the executors that are registered by hand; `None` if the caller may.
    missing_role: Option<&'static str>,
    typed_address: String,
    errors: Vec<String>,
}

pub(super) async fn page(page: Page<SnippetQuery>, headers: HeaderMap) -> Result<Response, Problem> {
    let snippet = SnippetQuery { app: page.query().app.clone(), server: page.query().server.clone() };
    render_page(&page, &headers, (snippet, String::new(), Vec::new())).await
}

/// Registers an executor that speaks XXL-JOB's protocol by hand.
pub(super) async fn add_address(
    page: Page,
    Named(app, ..): Named<path::App>,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, Problem> {
    let (address, token) = (fields.get("address").to_owned(), fields.get("token").to_owned());
    match addresses::register_address(&page.call, &app, NewAddress { address: address.clone(), token }).await {
        Ok(_) => Ok(redirect_to(&format!("/executors/new?{}", query_pair("app", &app)))),
        Err(problem) if matches!(problem.code(), Code::InvalidBody) => {
            let errors = error_lines(&problem, page.t.lang());
            let snippet = SnippetQuery { app: Some(app), server: None };
            let mut response = render_page(&page, &headers, (snippet, address, errors)).await?;
            *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
            Ok(response)
        }
        Err(problem) => Err(problem),
    }
}

/// Removes an executor that was registered by hand.
pub(super) async fn remove_address(
    page: Page,
    Named(app, ..): Named<path::App>,
    fields: Fields,
) -> Result<Response, Problem> {
    addresses::remove_address(&page.call, &app, fields.get("address")).await?;
    Ok(redirect_to(&format!("/executors/new?{}", query_pair("app", &app))))
}

async fn render_page<Q>(
    page: &Page<Q>,
    headers: &HeaderMap,
    (snippet, typed_address, errors): (SnippetQuery, String, Vec<String>),
) -> Result<Response, Problem> {
    let app_records = page.engine().store().apps(page.call.namespace.id).await?;
    let apps: Vec<String> =
        app_records.into_iter().filter(|app| page.call.may_view(app.id)).map(|app| app.name).collect();
    let typed_app =
        snippet.app.clone().unwrap_or_else(|| apps.first().cloned().unwrap_or_else(|| "billing".to_owned()));
    let error = name::check(&typed_app).err().map(|_| page.t.error_app_name.to_owned());
    // An invalid name is shown in its field, but not used in the commands.
    let app = if error.is_some() { "billing" } else { typed_app.as_str() };
    let own_server = own_address(page, headers).await?;
    let (server, other_server) = match &snippet.server {
        Some(server) if is_plain_url(server) && !is_same_url(server, &own_server) => {
            (server.clone(), Some(page.t.add_other_server(&own_server, server)))
        }
        _ => (own_server, None),
    };
    let namespace = &page.call.namespace.name;
    let address = shell_quoted(&server);
    let registered_addresses = match apps.contains(&typed_app) {
        true => Some(addresses::addresses_of_app(&page.call, &typed_app).await?),
        false => None,
    };
    let app_id = page.engine().store().app(page.call.namespace.id, app).await?.map(|app| app.id);
    let template = NewExecutorPage {
        shell: page.shell(Nav::Executors),
        t: page.t,
        token: format!(
            "umask 077\nrondel token create {app}-executors --kind executor --role executor:{namespace}/{app} > {app}.token"
        ),
        agent: format!(
            "rondel agent --server {address} --namespace {namespace} --app {app} \\\n  --token-file {app}.token --data-dir /var/lib/rondel-agent"
        ),
        docker: format!(
            "docker run -d --name rondel-agent-{app} \\\n  -v \"$PWD/{app}.token:/run/token:ro\" -v rondel-agent-{app}:/data \\\n  rondel:local agent --server {address} --namespace {namespace} --app {app} \\\n  --token-file /run/token --data-dir /data",
        ),
        program: program(&server, namespace, app),
        cargo: "cargo add rondel-executor tracing\ncargo add tokio --features macros,rt-multi-thread".to_owned(),
        xxl: format!(
            "umask 077\nrondel token create {app}-xxl --kind xxl --role executor:{namespace}/{app} > {app}-xxl.token\n\n# xxl-job-executor.properties\nxxl.job.admin.addresses={server}/xxl-job-admin\nxxl.job.accessToken=TOKEN\n# since 3.0:\nxxl.job.admin.accessToken=TOKEN\nxxl.job.executor.appname={app}",
        ),
        registered_addresses,
        missing_role: page.missing_roles(app_id).editor,
        typed_address,
        errors,
        app: typed_app.clone(),
        apps,
        server,
        other_server,
        error,
    };
    html(StatusCode::OK, &template)
}

/// Whether a text can be used as the server's URL in the snippets. Users paste these into a shell, and a link to this page can have any
/// text, so only characters without a meaning in a shell are accepted.
fn is_plain_url(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:[]".contains(&byte);
    text.len() <= SERVER_LEN_MAX
        && ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme))
        && text.bytes().all(is_plain)
}

fn is_same_url(first: &str, second: &str) -> bool {
    first.trim_end_matches('/').eq_ignore_ascii_case(second.trim_end_matches('/'))
}

/// The URL at which executors reach this server: the advertised one, else the one that the browser used.
async fn own_address<Q>(page: &Page<Q>, headers: &HeaderMap) -> Result<String, Problem> {
    let nodes = page.engine().store().nodes().await?;
    let advertised_url =
        nodes.into_iter().find(|node| node.name == page.engine().node_name()).and_then(|node| node.advertise_url);
    let scheme = if page.call.web.config.tls { "https" } else { "http" };
    let host = headers.get(http::header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("127.0.0.1:8080");
    Ok(advertised_url.unwrap_or_else(|| format!("{scheme}://{host}")))
}

/// The source of a complete program with one handler.
fn program(server: &str, namespace: &str, app: &str) -> String {
    format!(
        r#"use rondel::{{Executor, ExecutorError, JobError, Params}};

async fn greet(Params(name): Params<Option<String>>) -> Result<String, JobError> {{
    let name = name.unwrap_or_else(|| "world".to_owned());
    tracing::info!("hello, {{name}}"); // lands in the run's log
    Ok(format!("greeted {{name}}"))
}}

#[tokio::main]
async fn main() -> Result<(), ExecutorError> {{
    Executor::builder({app:?})
        .server({server:?})
        .namespace({namespace:?})
        .token_file("{app}.token")
        .handler("greet", greet)
        .run_until(rondel::signal::terminate())
        .await
}}"#
    )
}
