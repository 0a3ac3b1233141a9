//! Serves the OpenAPI document.

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::header::CONTENT_TYPE;
use rondel_core::access::Permission::SignedIn;
use serde_json::{Map, Value};

use crate::call::GlobalCall;
use crate::openapi::Doc;
use crate::routes::Routes;
use crate::state::Web;

pub(super) fn routes() -> Routes {
    Routes::new().get(
        "/api/v1/openapi.json",
        SignedIn,
        get,
        Doc::new("This document", "The API as an OpenAPI 3.1 document, for any token of the API.")
            .json::<Map<String, Value>>(200, "The document."),
    )
}

async fn get(call: GlobalCall) -> Response {
    answer(&call.web)
}

/// The OpenAPI document for signed-in users: the console's pages have a session instead of a token.
pub(crate) async fn page(State(web): State<Web>) -> Response {
    answer(&web)
}

fn answer(web: &Web) -> Response {
    ([(CONTENT_TYPE, "application/json")], (web.document)()).into_response()
}
