//! Links that sign in to the console, for whoever has a token.

use axum::response::Response;
use http::StatusCode;
use rondel_core::Timestamp;
use serde::Serialize;

use crate::call::Call;
use crate::frame::json;
use crate::problem::Problem;
use crate::sign_in::LINK_LIFETIME;

#[derive(Serialize)]
struct LinkJson {
    /// What follows the server's URL.
    path: String,
    expires_at: Timestamp,
}

/// Makes a link that signs in as the caller, once.
pub(super) async fn create(call: Call) -> Result<Response, Problem> {
    let path = call.web.config.sign_ins.link(call.caller.clone());
    json(StatusCode::CREATED, &LinkJson { path, expires_at: call.engine().now() + LINK_LIFETIME })
}
