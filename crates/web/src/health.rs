//! `/livez` shows that the process responds, `/readyz` whether this node takes its share of the work, and `/metrics` returns the metrics of
//! the node.

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::header::CONTENT_TYPE;
use http::{StatusCode, Uri};
use rondel_admin::{LostHistory, METRICS_MEDIA_TYPE, Readiness};
use rondel_core::Timestamp;
use rondel_core::access::Permission;
use rondel_core::homes::Switch;
use rondel_core::time::format_duration;
use serde::Serialize;

use crate::answer::json_response;
use crate::problem::Problem;
use crate::route_info::METRICS_PATH;
use crate::routes::{OpenPath, Routes};
use crate::state::Web;

pub(crate) fn routes() -> Routes {
    Routes::new().open(OpenPath::Livez, live).open(OpenPath::Readyz, ready).get_outside_api(
        METRICS_PATH,
        Permission::ViewEverywhere,
        metrics,
    )
}

#[derive(Serialize)]
struct ReadinessJson {
    status: &'static str,
    checks: Checks,
    /// Each check with its result, for `?verbose`.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Vec<CheckDetail>>,
}

#[derive(Serialize)]
struct CheckDetail {
    check: &'static str,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Serialize)]
struct Checks {
    database: bool,
    lease_held: bool,
    draining: bool,
    /// The node's switch.
    state: &'static str,
    /// Until when no job fires, because the database's clock stepped back.
    quiet_until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    database_trouble: Option<DatabaseTrouble>,
}

/// The kind of a database problem and when it began, for `?verbose`.
#[derive(Serialize)]
struct DatabaseTrouble {
    kind: &'static str,
    since: Timestamp,
}

async fn metrics(State(web): State<Web>) -> Result<Response, Problem> {
    let text = web
        .engine
        .metrics()
        .await
        .map_err(|error| Problem::internal(format!("the metrics cannot be rendered: {error}")))?;
    Ok(([(CONTENT_TYPE, METRICS_MEDIA_TYPE)], text).into_response())
}

async fn live() -> &'static str {
    "ok\n"
}

async fn ready(State(web): State<Web>, uri: Uri) -> Result<Response, Problem> {
    let state = web.engine.readiness();
    let is_verbose = uri.query().is_some_and(|query| query.split('&').any(|word| word == "verbose"));
    let shown_trouble = state.database.as_ref().filter(|_| is_verbose);
    let checks = Checks {
        database: state.database.is_none(),
        lease_held: state.lease_held,
        draining: state.draining,
        state: state.switch.as_str(),
        quiet_until: state.quiet_until,
        // The driver's message is only in the log, since it can contain host and user names.
        database_trouble: shown_trouble
            .map(|database| DatabaseTrouble { kind: database.trouble.as_str(), since: database.since }),
    };
    let is_ready = checks.database && checks.lease_held && !checks.draining && state.switch == Switch::Active;
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let details = is_verbose.then(|| check_details(&state));
    json_response(status, &ReadinessJson { status: if is_ready { "ready" } else { "not_ready" }, checks, details })
}

/// The checks, each with a message if it fails.
fn check_details(state: &Readiness) -> Vec<CheckDetail> {
    let detail = |check, message: Option<String>| CheckDetail { check, ok: message.is_none(), message };
    let text_unless = |is_met: bool, words: &str| (!is_met).then(|| words.to_owned());
    let database = state.database.as_ref();
    let switch = format!("the switch of this node: {}", state.switch);
    vec![
        detail("database", database.map(|database| format!("{} since {}", database.trouble.as_str(), database.since))),
        detail("lease", text_unless(state.lease_held, "this node's lease has ended and was not renewed")),
        detail(
            "open_runs",
            text_unless(
                state.knows_open_runs,
                "open runs of leases that have ended are being taken over; jobs without such runs fire",
            ),
        ),
        detail("switch", text_unless(state.switch == Switch::Active, &switch)),
        detail("stopping", text_unless(!state.draining, "this node is stopping")),
        detail("history", state.lost_history.as_ref().map(lost_history_message)),
        detail(
            "clock",
            state.quiet_until.map(|at| format!("the database's clock stepped back; jobs are quiet until {at}")),
        ),
    ]
}

/// The message about a database that has lost committed transactions, for example because a backup was restored. The node stays ready: its
/// work after the discovery is not affected.
fn lost_history_message(loss: &LostHistory) -> String {
    let lag_text = loss.by.map_or_else(
        || "this node's lease was missing".to_owned(),
        |lag| format!("by at least {}", format_duration(lag)),
    );
    format!(
        "the database went back in time, found at {}: {lag_text}; runs after that instant are missing in the ledger, and their fires may \
         have run twice",
        loss.found_at
    )
}
