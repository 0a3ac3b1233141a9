//! Every route of the API: its path, who may use it, who handles it, and what it does in words.

mod calendars;
mod cluster;
mod jobs;
mod people;
mod runs;

use serde_json::{Map, Value};

use super::openapi;
use crate::access::Permission::Own;
use crate::openapi::Doc;
use crate::routes::Routes;

pub(crate) fn routes() -> Routes {
    jobs::routes()
        .and(runs::routes())
        .and(calendars::routes())
        .and(cluster::routes())
        .and(people::routes())
        .and(document())
}

fn document() -> Routes {
    Routes::new().get(
        "/api/v1/openapi.json",
        Own,
        openapi::get,
        Doc::new("This document", "The API as an OpenAPI 3.1 document, for any token of the API.")
            .json::<Map<String, Value>>(200, "The document."),
    )
}
