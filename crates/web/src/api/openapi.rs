//! The API's own description.

use axum::response::{IntoResponse as _, Response};
use http::header::CONTENT_TYPE;

use crate::app::openapi;
use crate::call::Person;

pub(super) async fn get(_: Person) -> Response {
    answer()
}

/// The same for whoever signed in: browsers have no token.
pub(crate) async fn page() -> Response {
    answer()
}

fn answer() -> Response {
    ([(CONTENT_TYPE, "application/json")], openapi()).into_response()
}
