//! `/livez` says that the process answers, `/readyz` that this node does its share of the work.

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use rondel_core::Timestamp;
use rondel_core::homes::Switch;
use serde::Serialize;

use crate::app::Web;
use crate::frame::json;
use crate::problem::Problem;
use crate::routes::{OpenPath, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().open(OpenPath::Livez, live).open(OpenPath::Readyz, ready)
}

#[derive(Serialize)]
struct Ready {
    status: &'static str,
    checks: Checks,
}

#[derive(Serialize)]
struct Checks {
    database: bool,
    lease_held: bool,
    draining: bool,
    /// The node's switch.
    state: &'static str,
    quiet_until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    database_trouble: Option<Trouble>,
}

/// What is wrong with the database: told to whoever asks for `?verbose`.
#[derive(Serialize)]
struct Trouble {
    kind: &'static str,
    since: Timestamp,
}

async fn live() -> &'static str {
    "ok\n"
}

async fn ready(State(web): State<Web>, uri: Uri) -> Result<Response, Problem> {
    let state = web.engine.readiness();
    let is_verbose = uri.query().is_some_and(|query| query.split('&').any(|word| word == "verbose"));
    let trouble = state.database.as_ref().filter(|_| is_verbose);
    let checks = Checks {
        database: state.database.is_none(),
        lease_held: state.lease_held,
        draining: state.draining,
        state: state.switch.as_str(),
        quiet_until: state.quiet_until,
        // The driver's own words are in the log: they can name hosts and users.
        database_trouble: trouble.map(|known| Trouble { kind: known.trouble.as_str(), since: known.since }),
    };
    let is_ready = checks.database && checks.lease_held && !checks.draining && state.switch == Switch::Active;
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, &Ready { status: if is_ready { "ready" } else { "not_ready" }, checks })
}
