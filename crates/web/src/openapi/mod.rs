//! The OpenAPI 3.1 document of the API. It is generated from the routes and from the types that they read and write.
//!
//! A route is built with its permission and a [`Doc`]. The types of the handler's arguments ([`Inputs`]) describe its inputs, and the
//! types of bodies describe their fields. The document therefore follows every change of a route.

mod derived_bodies;
mod doc;
mod inputs;
mod operation;
mod schemas;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

pub(crate) use self::derived_bodies::{Either, Listed, Patch, Unnamed};
pub(crate) use self::doc::Doc;
pub(crate) use self::inputs::{HandlerInputs, Input, Inputs, RequestBodyDoc, schema_of};
use self::operation::{answer_headers, operation, shared_responses};
use self::schemas::Schemas;
use crate::problem;
use crate::route_info::RouteInfo;

/// The part of the document about a route.
pub(crate) struct RouteDoc {
    pub(crate) doc: Doc,
    pub(crate) describe_inputs: fn() -> HandlerInputs,
}

#[derive(Serialize)]
struct Document {
    openapi: &'static str,
    info: Value,
    servers: Value,
    security: Value,
    tags: Value,
    paths: BTreeMap<&'static str, Map<String, Value>>,
    components: Value,
}

/// The description of the API at the top of the document.
const DESCRIPTION: &str = "Jobs, their runs and logs, and access rights. Bodies are JSON in snake_case; instants are RFC 3339 in UTC, durations are \
     text (`30s`, `1h30m`), ids are decimal strings. Unknown fields and parameters are refused by name. Every error is an RFC \
     9457 document whose `code` does not change between releases. `x-permission` is the permission that an operation requires: \
     `own` (any token of the API), `view`, `operate`, `edit`, `admin` (of a namespace) or `cluster`. Within v1, changes only \
     add.";

/// The tags of operations, one for each kind of object, in the document's order, each with its description.
const TAGS: &[(&str, &str)] = &[
    ("jobs", "Definitions of what runs, when, and where."),
    ("runs", "The executions of jobs, and their outcomes."),
    ("calendars", "Days and times that remove or move fires."),
    ("scripts", "Texts of scripts that jobs run by name, with their versions."),
    ("channels", "Where alerts are sent, and the outcome of each delivery."),
    ("alert-rules", "Conditions that are watched, and where they are reported."),
    ("incidents", "Cases in which the condition of an alert rule holds, or held, for a subject."),
    ("silences", "Periods in which messages about incidents are suppressed."),
    ("maintenance", "Times in which jobs do not fire."),
    ("shadow", "Fires of another scheduler, compared with those of jobs in shadow mode."),
    ("schedules", "A schedule explained in words, before it is saved."),
    ("stats", "Verdicts, durations and lateness of runs over time."),
    ("reports", "The outcomes of runs over days and months."),
    ("timeline", "Past, current and future runs, in lanes."),
    ("fires", "The next fires of all jobs."),
    ("apps", "Groups of executors that run the same handlers."),
    ("executors", "The processes that run jobs."),
    ("events", "A stream of changes."),
    ("nodes", "The servers of the cluster."),
    ("namespaces", "Tenants or environments."),
    ("tokens", "Credentials of programs and executors."),
    ("users", "Users who can sign in, and their roles."),
    ("me", "The caller."),
    ("sessions", "The caller's sign-ins."),
    ("sign-in-links", "Links that sign a browser in to the console."),
    ("audit", "All changes, each with its caller and the caller's address."),
    ("openapi.json", "This document."),
];

/// Generates the document of these routes, as it is served, printed and committed.
pub(crate) fn document<'r>(routes: impl Iterator<Item = (&'r RouteInfo, &'r RouteDoc)>) -> String {
    let mut schemas = Schemas::default();
    let problem = schemas.of_answer(problem::schema);
    let mut paths: BTreeMap<&'static str, Map<String, Value>> = BTreeMap::new();
    for (info, doc) in routes {
        let entry = paths.entry(info.path).or_default();
        entry.insert(info.method.as_str().to_ascii_lowercase(), operation(info, doc, &mut schemas));
    }
    let merged_schemas = schemas.finish();
    paths.values_mut().flat_map(Map::values_mut).for_each(|operation| merged_schemas.apply(operation));
    let document = Document {
        openapi: "3.1.0",
        info: json!({
            "title": "Rondel",
            "version": env!("CARGO_PKG_VERSION"),
            "description": DESCRIPTION,
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        }),
        servers: json!([{"url": "/", "description": "The server that returned this document."}]),
        security: json!([{"token": []}]),
        tags: TAGS.iter().map(|(name, about)| json!({"name": name, "description": about})).collect(),
        paths,
        components: json!({
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of the API, `rondel_pat_…`. An executor's token permits only executors' sessions, and is \
                         refused here.",
                },
            },
            "headers": answer_headers(),
            "responses": shared_responses(&problem),
            "schemas": merged_schemas.schemas,
        }),
    };
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}
