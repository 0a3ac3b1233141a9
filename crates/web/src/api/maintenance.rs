//! Maintenance windows: plans, lists and ends them.

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use rondel_admin::rules::{self, MaintenanceRequest, WindowEnd};
use rondel_core::access::Permission::{Operate, View};
use rondel_core::maintenance::FiresInside;
use rondel_core::time::parse_duration;
use rondel_core::{MaintenanceId, Timestamp, name};
use rondel_store::alerts::MaintenanceRecord;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::page::Page;
use crate::answer::json_response;
use crate::body::{JsonBody, refuse_value};
use crate::call::{Call, quoted_input};
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::routes::Routes;

/// A maintenance window to create.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewMaintenance")]
pub(super) struct NewMaintenance {
    /// Only the jobs of this app; left out for all jobs of the namespace.
    #[serde(default)]
    app: Option<String>,
    /// Its first instant, more than a minute ahead. If left out, it begins as soon as possible: a little more than a minute ahead.
    #[serde(default)]
    starts_at: Option<Timestamp>,
    /// Its end: the first instant after it, at most 7 days after its beginning; either this or `length`.
    #[serde(default)]
    ends_at: Option<Timestamp>,
    /// How long it is, such as `2h`; either this or `ends_at`.
    #[serde(default)]
    length: Option<String>,
    /// What happens to the fires inside.
    #[serde(default = "default_fires")]
    fires: FiresInside,
    /// Why; shown on every page of the console.
    #[schemars(length(min = 1, max = 1000))]
    reason: String,
}

const fn default_fires() -> FiresInside {
    FiresInside::Skip
}

/// A maintenance window.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Maintenance")]
pub(super) struct MaintenanceJson {
    id: MaintenanceId,
    app: Option<String>,
    starts_at: Timestamp,
    ends_at: Timestamp,
    fires: FiresInside,
    reason: String,
    author: String,
    created_at: Timestamp,
    /// Whether it is open now.
    open: bool,
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/maintenance",
            View,
            list,
            Doc::new("List maintenance windows", "Maintenance windows that have not ended, in the order of their ends.")
                .json::<Page<MaintenanceJson>>(200, "The windows."),
        )
        .post(
            "/api/v1/maintenance",
            Operate,
            add,
            Doc::new(
                "Plan a maintenance window",
                "No job of the namespace, or of an app, fires inside the window. Fires are skipped with the reason \
                 `maintenance`, or held: at the end of the window the misfire policy of each job decides which of them run. A \
                 window can begin a little more than a minute ahead at the earliest, because fires are claimed ahead. Manual \
                 triggers and running runs are not affected.",
            )
            .json::<MaintenanceJson>(201, "The window.")
            .refuses(&[Code::TooManyAlerts, Code::AppNotFound])
            .example(json!({"length": "2h", "fires": "hold", "reason": "moving the database"})),
        )
        .delete(
            "/api/v1/maintenance/{id}",
            Operate,
            end,
            Doc::new(
                "End a maintenance window",
                "Jobs fire again within about a minute. A window that has not begun will not begin. Ending a window again changes \
                 nothing.",
            )
            .empty("It has ended."),
        )
}

/// The windows that the caller may see.
pub(crate) async fn visible_windows<Q>(call: &Call<Q>) -> Result<Vec<MaintenanceRecord>, Problem> {
    let mut windows = call.engine().store().maintenance(Some(call.namespace.id), call.engine().now()).await?;
    windows.retain(|record| is_visible(call, record));
    Ok(windows)
}

/// Whether the caller may see a window. A window of the whole namespace is visible to every caller of that namespace.
pub(crate) fn is_visible<Q>(call: &Call<Q>, record: &MaintenanceRecord) -> bool {
    record.window.app.is_none_or(|app| call.may_view(app))
}

async fn list(call: Call) -> Result<Response, Problem> {
    let now = call.engine().now();
    let items = visible_windows(&call).await?.into_iter().map(|record| window_json(record, now)).collect();
    json_response(StatusCode::OK, &Page::<MaintenanceJson> { items, next_cursor: None })
}

async fn add(call: Call, body: JsonBody<NewMaintenance>) -> Result<Response, Problem> {
    let NewMaintenance { app, starts_at, ends_at, length, fires, reason } = body.read()?;
    let window_end = match (ends_at, length) {
        (Some(ends_at), None) => WindowEnd::At(ends_at),
        (None, Some(length)) => {
            let length_problem = |error| {
                refuse_value("/length", format!("{} is not a length: {error}; such as 2h", quoted_input(&length)))
            };
            WindowEnd::After(parse_duration(&length).map_err(length_problem)?)
        }
        (Some(_), Some(_)) => return Err(refuse_value("/length", "cannot be combined with ends_at; give one of them")),
        (None, None) => return Err(refuse_value("/ends_at", "is missing; give ends_at or length")),
    };
    let record = add_window(&call, (app, fires), (starts_at, window_end), reason).await?;
    let now = call.engine().now();
    json_response(StatusCode::CREATED, &window_json(record, now))
}

/// Plans a window if the caller's roles allow it, and records it in the audit log.
pub(crate) async fn add_window<Q>(
    call: &Call<Q>,
    (app, fires): (Option<String>, FiresInside),
    (starts_at, window_end): (Option<Timestamp>, WindowEnd),
    reason: String,
) -> Result<MaintenanceRecord, Problem> {
    let app = match app {
        None => None,
        Some(app_name) => {
            name::check(&app_name).map_err(|message| refuse_value("/app", message))?;
            let not_found = || {
                let detail =
                    format!("there is no app {} in namespace {}", quoted_input(&app_name), call.namespace.name);
                Problem::new(Code::AppNotFound, detail)
            };
            let app =
                call.engine().store().app(call.namespace.id, &app_name).await?.filter(|app| call.may_view(app.id));
            Some(app.ok_or_else(not_found)?)
        }
    };
    call.check(app.as_ref().map(|app| app.id), crate::call::forbidden_problem)?;
    let app = app.map(|app| (app.id, app.name));
    let request = MaintenanceRequest { app, starts_at, end: window_end, fires, reason };
    let record = rules::add_maintenance(call.engine(), call.namespace.id, request, call.caller.name()).await?;
    call.note.set_object(record.window.id.to_string());
    call.note.changed_to(&audited_window(&record));
    Ok(record)
}

async fn end(call: Call, Named(id, ..): Named<path::Maintenance>) -> Result<Response, Problem> {
    end_window(&call, &id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Ends a window if the caller's roles allow it, and records it in the audit log.
pub(crate) async fn end_window<Q>(call: &Call<Q>, id_text: &str) -> Result<(), Problem> {
    let not_found = || {
        let detail = format!("there is no maintenance window {}", quoted_input(id_text));
        Problem::new(Code::MaintenanceNotFound, detail)
    };
    let id = id_text.parse::<MaintenanceId>().map_err(|_| not_found())?;
    // Ended windows are searched too: ending a window twice is no error.
    let mut windows = call.engine().store().maintenance(Some(call.namespace.id), Timestamp::EPOCH).await?;
    windows.retain(|record| record.window.id == id && is_visible(call, record));
    let record = windows.pop().ok_or_else(not_found)?;
    call.check(record.window.app, not_found)?;
    call.note.before(&audited_window(&record));
    Ok(rules::end_maintenance(call.engine(), call.namespace.id, id).await?)
}

fn audited_window(record: &MaintenanceRecord) -> serde_json::Value {
    let window = &record.window;
    json!({
        "app": record.app_name, "starts_at": window.starts_at, "ends_at": window.ends_at, "fires": window.fires,
        "reason": record.reason,
    })
}

fn window_json(record: MaintenanceRecord, now: Timestamp) -> MaintenanceJson {
    let MaintenanceRecord { window, app_name, reason, author, created_at } = record;
    MaintenanceJson {
        open: window.has(now),
        id: window.id,
        app: app_name,
        starts_at: window.starts_at,
        ends_at: window.ends_at,
        fires: window.fires,
        reason,
        author,
        created_at,
    }
}
