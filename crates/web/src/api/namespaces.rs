//! Namespaces: lists and creates them, and deletes empty ones.

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use rondel_core::access::Permission::{Cluster, View};
use rondel_core::{NamespaceId, name};
use rondel_store::catalog::{Namespace, NamespaceDeleted};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::page::Page;
use crate::answer::json_response;
use crate::body::{JsonBody, refuse_value};
use crate::call::{GlobalCall, namespace_by_name, visible_namespaces};
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::routes::Routes;

/// A tenant or an environment.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Namespace")]
pub(super) struct NamespaceJson {
    id: NamespaceId,
    name: String,
}

/// A namespace to create.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewNamespace {
    #[schemars(regex(pattern = rondel_core::schema::NAME_PATTERN))]
    name: String,
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/namespaces",
            View,
            list,
            Doc::new("List namespaces", "The namespaces in which the caller has a role.")
                .json::<Page<NamespaceJson>>(200, "The namespaces."),
        )
        .post(
            "/api/v1/namespaces",
            Cluster,
            create,
            Doc::new("Create a namespace", "The new namespace is empty.")
                .json::<NamespaceJson>(201, "The namespace.")
                .refuses(&[Code::NamespaceExists])
                .example(json!({"name": "staging"})),
        )
        .delete(
            "/api/v1/namespaces/{name}",
            Cluster,
            delete,
            Doc::new("Delete a namespace", "Refused while it has jobs, calendars or scripts, or if it ever had jobs.")
                .empty("It was deleted.")
                .refuses(&[Code::NamespaceUsed]),
        )
}

/// Lists the namespaces in which the caller may see something.
async fn list(call: GlobalCall) -> Result<Response, Problem> {
    let namespaces = visible_namespaces(call.engine(), &call.caller).await?;
    let items =
        namespaces.into_iter().map(|namespace| NamespaceJson { id: namespace.id, name: namespace.name }).collect();
    json_response(StatusCode::OK, &Page { items, next_cursor: None })
}

async fn create(call: GlobalCall, body: JsonBody<NewNamespace>) -> Result<Response, Problem> {
    let new_namespace = body.read()?;
    name::check(&new_namespace.name).map_err(|message| refuse_value("/name", message))?;
    let engine = call.engine();
    let namespace = Namespace { id: NamespaceId::new(engine.new_id()), name: new_namespace.name };
    call.note.set_object(&namespace.name);
    if !engine.store().create_namespace(&namespace, engine.now()).await? {
        return Err(Problem::new(Code::NamespaceExists, format!("namespace {} exists", namespace.name)));
    }
    let namespace = NamespaceJson { id: namespace.id, name: namespace.name };
    call.note.changed_to(&namespace);
    json_response(StatusCode::CREATED, &namespace)
}

async fn delete(call: GlobalCall, Named(name, ..): Named<path::Namespace>) -> Result<Response, Problem> {
    let namespace = namespace_by_name(call.engine(), &name).await?;
    let in_use_problem = |detail: &str| Err(Problem::new(Code::NamespaceUsed, detail));
    if namespace.name == "default" {
        return in_use_problem("the namespace default cannot be deleted");
    }
    call.note.before(&NamespaceJson { id: namespace.id, name: namespace.name });
    match call.engine().store().delete_namespace(namespace.id).await? {
        NamespaceDeleted::Done => Ok(StatusCode::NO_CONTENT.into_response()),
        NamespaceDeleted::NotFound => Err(Problem::new(Code::NamespaceNotFound, "it was removed meanwhile")),
        NamespaceDeleted::Used => {
            in_use_problem("it has jobs, calendars or scripts, or had jobs, whose runs and versions are kept")
        }
    }
}
