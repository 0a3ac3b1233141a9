//! Apps: groups of executors.

use axum::response::Response;
use http::StatusCode;
use rondel_core::{AppId, name};
use rondel_store::catalog::App;
use serde::{Deserialize, Serialize};

use super::Page;
use crate::body::{JsonBody, read, refuse_value};
use crate::call::Call;
use crate::frame::json;
use crate::problem::Problem;

#[derive(Serialize)]
struct AppJson {
    id: AppId,
    name: String,
    namespace: String,
    /// Executors of it that this node hears.
    executor_count: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewApp {
    name: String,
}

pub(super) async fn list(call: Call) -> Result<Response, Problem> {
    let apps = call.engine().store().apps(call.namespace.id).await?;
    let online = call.engine().online_executors();
    let count = |app: AppId| online.iter().filter(|executor| executor.app == app).count();
    let items = apps.into_iter().map(|app| (count(app.id), app)).map(|(count, app)| show(&call, app, count)).collect();
    json(StatusCode::OK, &Page { items, next_cursor: None })
}

/// Makes an app; one that exists is answered as it is.
pub(super) async fn create(call: Call, JsonBody(body): JsonBody) -> Result<Response, Problem> {
    let new: NewApp = read(&body)?;
    name::check(&new.name).map_err(|message| refuse_value("/name", message))?;
    let engine = call.engine();
    let id = AppId::new(engine.new_id());
    let app = engine.store().ensure_app(id, call.namespace.id, &new.name, engine.now()).await?;
    let status = if app.id == id { StatusCode::CREATED } else { StatusCode::OK };
    let count = engine.online_executors().iter().filter(|executor| executor.app == app.id).count();
    json(status, &show(&call, app, count))
}

fn show(call: &Call, app: App, executor_count: usize) -> AppJson {
    AppJson { id: app.id, name: app.name, namespace: call.namespace.name.clone(), executor_count }
}
