//! Apps: groups of executors.

use axum::response::Response;
use http::StatusCode;
use rondel_admin::apps::{self, AppError};
use rondel_admin::jobs;
use rondel_core::access::Permission::{Edit, Operate, View};
use rondel_core::homes::Switch;
use rondel_core::schema::NAME_PATTERN;
use rondel_core::{AppId, name};
use rondel_store::catalog::App;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::jobs::find_app;
use super::nodes::NewState;
use super::page::Page;
use crate::answer::json_response;
use crate::body::{JsonBody, refuse_value};
use crate::call::Call;
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::Problem;
use crate::routes::Routes;

/// An app.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "App")]
pub(super) struct AppJson {
    id: AppId,
    name: String,
    namespace: String,
    /// The state of its switch.
    #[schemars(with = "Switch")]
    state: &'static str,
    /// How many of its executors are connected to this server.
    executor_count: usize,
}

/// An app to create.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewApp {
    #[schemars(regex(pattern = NAME_PATTERN))]
    name: String,
}

/// A handler that executors connected to this server announce.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Handler")]
pub(super) struct HandlerJson<'a> {
    /// The handler's name. `*` stands for executors that announce no handlers and accept every run, as those of XXL-JOB do.
    name: &'a str,
    /// The executors that have it and are connected to this server.
    executors: &'a [String],
    /// The schema of its parameters; null if the executors announce different ones.
    params_schema: Option<&'a Value>,
}

/// An error in a job that code declares.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DeclarationProblem")]
pub(super) struct ProblemJson<'a> {
    /// The job's name in the declaration, as far as it could be read.
    job: &'a str,
    /// JSON pointer to the place in the definition.
    pointer: &'a str,
    message: &'a str,
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/apps",
            View,
            list,
            Doc::new(
                "List apps",
                "The apps with their switches, and the number of executors that are connected to this server.",
            )
            .json::<Page<AppJson>>(200, "All apps that the caller may see."),
        )
        .post(
            "/api/v1/apps",
            Edit,
            create,
            Doc::new("Create an app", "An app is also created with its first job.")
                .json::<AppJson>(201, "The new app.")
                .json::<AppJson>(200, "The app, which already existed.")
                .example(json!({"name": "billing"})),
        )
        .get(
            "/api/v1/apps/{app}/handlers",
            View,
            list_handlers,
            Doc::new(
                "List an app's handlers",
                "The handlers of executors that are connected to this server, with the JSON schemas of their parameters.",
            )
            .json::<Page<HandlerJson<'static>>>(200, "The handlers."),
        )
        .get(
            "/api/v1/apps/{app}/declaration-problems",
            View,
            declaration_problems,
            Doc::new("List errors in declared jobs", "Only for jobs that executors connected to this server declare.")
                .json::<Page<ProblemJson<'static>>>(200, "The errors."),
        )
        .put(
            "/api/v1/apps/{app}/state",
            Operate,
            set_state,
            Doc::new(
                "Set the state of an app",
                "`draining`: its executors get no new runs, due runs wait. `stopped`: due runs are skipped, and running runs \
                 are cancelled. Every server applies it within a second.",
            )
            .json::<AppJson>(200, "The app.")
            .example(json!({"state": "active"})),
        )
}

async fn list(call: Call) -> Result<Response, Problem> {
    let mut apps = call.engine().store().apps(call.namespace.id).await?;
    apps.retain(|app| call.may_view(app.id));
    let online_executors = call.engine().online_names();
    let count = |app: AppId| online_executors.iter().filter(|executor| executor.app == app).count();
    let switches = call.engine().store().switches().await?;
    let state = |app: AppId| switches.of_app(app);
    let item = |app: App| (state(app.id), count(app.id), app);
    let items = apps.into_iter().map(item).map(|(state, count, app)| app_json(&call, app, state, count)).collect();
    json_response(StatusCode::OK, &Page { items, next_cursor: None })
}

/// Creates an app. If it exists, it is returned unchanged.
async fn create(call: Call, body: JsonBody<NewApp>) -> Result<Response, Problem> {
    let new_app = body.read()?;
    name::check(&new_app.name).map_err(|message| refuse_value("/name", message))?;
    call.check_app_name(&new_app.name).await?;
    call.note.set_object(&new_app.name);
    let engine = call.engine();
    let id = AppId::new(engine.new_id());
    let result = apps::ensure(engine.store(), id, (call.namespace.id, &new_app.name), engine.now()).await;
    let app = result.map_err(|error| match error {
        AppError::Store(error) => error.into(),
        AppError::TooMany => refuse_value("/name", error.to_string()),
    })?;
    let status = if app.id == id { StatusCode::CREATED } else { StatusCode::OK };
    let (state, count) = (switch_of_app(&call, app.id).await?, executor_count(&call, app.id));
    call.note.changed_to(&serde_json::json!({"name": app.name, "is_new": status == StatusCode::CREATED}));
    json_response(status, &app_json(&call, app, state, count))
}

/// Sets the switch of an app. Every node reads it at its next beat.
async fn set_state(
    call: Call,
    Named(name, ..): Named<path::App>,
    body: JsonBody<NewState>,
) -> Result<Response, Problem> {
    let switch = body.read()?.state;
    let id = find_app(&call, &name).await?;
    call.note.before(&serde_json::json!({"state": switch_of_app(&call, id).await?.as_str()}));
    call.note.changed_to(&serde_json::json!({"state": switch.as_str()}));
    call.engine().store().set_app_switch(id, switch).await?;
    call.engine().poke_beat();
    let app = App { id, namespace: call.namespace.id, name };
    let count = executor_count(&call, id);
    json_response(StatusCode::OK, &app_json(&call, app, switch, count))
}

async fn switch_of_app(call: &Call, app: AppId) -> Result<Switch, Problem> {
    Ok(call.engine().store().switches().await?.of_app(app))
}

fn executor_count(call: &Call, app: AppId) -> usize {
    call.engine().online_names().iter().filter(|executor| executor.app == app).count()
}

/// The handlers that the app's online executors have.
async fn list_handlers(call: Call, Named(app, ..): Named<path::App>) -> Result<Response, Problem> {
    let app = find_app(&call, &app).await?;
    let handlers = jobs::handlers(call.engine(), app);
    let items = handlers.iter().map(|handler| HandlerJson {
        name: &handler.name,
        executors: &handler.executors,
        params_schema: handler.params_schema.as_ref().map(|schema| schema.document()),
    });
    json_response(StatusCode::OK, &Page { items: items.collect(), next_cursor: None })
}

/// The errors in the jobs that the app's executors declare in their code. Only executors that are online at this node count.
async fn declaration_problems(call: Call, Named(app, ..): Named<path::App>) -> Result<Response, Problem> {
    let app = find_app(&call, &app).await?;
    let problems = call.engine().declaration_problems(app);
    let items = problems.iter().map(|problem| ProblemJson {
        job: &problem.job,
        pointer: &problem.pointer,
        message: &problem.message,
    });
    json_response(StatusCode::OK, &Page { items: items.collect(), next_cursor: None })
}

fn app_json(call: &Call, app: App, switch: Switch, executor_count: usize) -> AppJson {
    let state = switch.as_str();
    AppJson { id: app.id, name: app.name, namespace: call.namespace.name.clone(), state, executor_count }
}
