//! `/livez` says that the process answers, `/readyz` that this node does its share of the work.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use rondel_core::Timestamp;
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
    quiet_until: Option<Timestamp>,
}

async fn live() -> &'static str {
    "ok\n"
}

async fn ready(State(web): State<Web>) -> Result<Response, Problem> {
    let state = web.engine.readiness();
    let checks = Checks {
        database: state.database,
        lease_held: state.lease_held,
        draining: state.draining,
        quiet_until: state.quiet_until,
    };
    let is_ready = checks.database && checks.lease_held && !checks.draining;
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, &Ready { status: if is_ready { "ready" } else { "not_ready" }, checks })
}
