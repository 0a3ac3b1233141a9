//! Failure webhooks: where failed runs of a namespace are reported.

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use http::request::Parts;
use rondel_admin::alert::{PutWebhook, WebhookError};
use rondel_core::{NamespaceId, Timestamp};
use rondel_store::catalog::Namespace;
use rondel_store::outbox::FailureWebhook;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::access::Permission;
use crate::app::Web;
use crate::body::{JsonBody, refuse_value};
use crate::call::{Call, forbidden, quoted, visible_namespace};
use crate::frame::json;
use crate::openapi::{Input, Taken};
use crate::parameter::Parameter;
use crate::problem::{Code, Problem};

/// The namespace in the path.
pub(super) struct NamespacePath(pub(super) String);

impl Input for NamespacePath {
    fn tell(taken: &mut Taken) {
        taken.path.push(Parameter::name("name").about("The namespace."));
        taken.refusals.push(Code::NamespaceNotFound);
    }
}

impl FromRequestParts<Web> for NamespacePath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, web: &Web) -> Result<Self, Problem> {
        let path = axum::extract::Path::<String>::from_request_parts(parts, web).await;
        let unreadable = |_| Problem::new(Code::NamespaceNotFound, "the path holds no readable name");
        path.map(|axum::extract::Path(name)| Self(name)).map_err(unreadable)
    }
}

/// Where failed runs of a namespace are reported.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FailureWebhook")]
pub(super) struct WebhookJson {
    namespace: String,
    url: String,
    /// Shown once, to the caller that creates it.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

/// A webhook to be.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewWebhook {
    /// http or https, at most 2000 characters, without user and password.
    #[schemars(length(max = 2000))]
    url: String,
}

pub(super) async fn get(call: Call, NamespacePath(name): NamespacePath) -> Result<Response, Problem> {
    let namespace = guarded(&call, &name).await?;
    let webhook = call.engine().store().failure_webhook(namespace.id).await?.ok_or_else(|| missing(&name))?;
    json(StatusCode::OK, &show(namespace.name, webhook, None))
}

/// Makes it, with a secret of its own, or gives the one that is there another URL.
pub(super) async fn put(
    call: Call,
    NamespacePath(name): NamespacePath,
    body: JsonBody<NewWebhook>,
) -> Result<Response, Problem> {
    let namespace = guarded(&call, &name).await?;
    let new = body.read()?;
    note_before(&call, namespace.id, &name).await?;
    call.note.after(&serde_json::json!({"url": new.url}));
    match call.engine().put_failure_webhook(namespace.id, &new.url).await {
        Ok(PutWebhook::Created(webhook)) => {
            let secret = Some(webhook.secret.clone());
            json(StatusCode::CREATED, &show(namespace.name, webhook, secret))
        }
        Ok(PutWebhook::Changed) => {
            let changed = call.engine().store().failure_webhook(namespace.id).await?;
            json(StatusCode::OK, &show(namespace.name, changed.ok_or_else(|| missing(&name))?, None))
        }
        Err(WebhookError::Url(sentence)) => Err(refuse_value("/url", sentence)),
        Err(WebhookError::Store(error)) => Err(error.into()),
    }
}

pub(super) async fn delete(call: Call, NamespacePath(name): NamespacePath) -> Result<Response, Problem> {
    let namespace = guarded(&call, &name).await?;
    note_before(&call, namespace.id, &name).await?;
    match call.engine().store().delete_failure_webhook(namespace.id).await? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(missing(&name)),
    }
}

/// For the audit log: in which namespace, and where messages were sent until now.
async fn note_before(call: &Call, namespace: NamespaceId, name: &str) -> Result<(), Problem> {
    call.note.namespace(name);
    if let Some(webhook) = call.engine().store().failure_webhook(namespace).await? {
        call.note.before(&serde_json::json!({"url": webhook.url}));
    }
    Ok(())
}

/// The namespace in the path, which need not be the one of the query: the right to guard it is asked for there.
async fn guarded(call: &Call, name: &str) -> Result<Namespace, Problem> {
    let namespace = visible_namespace(call.engine(), &call.caller, name).await?;
    if call.caller.rights.allow(Permission::Admin, namespace.id, None) { Ok(namespace) } else { Err(forbidden()) }
}

fn show(namespace: String, webhook: FailureWebhook, secret: Option<String>) -> WebhookJson {
    let FailureWebhook { url, created_at, updated_at, .. } = webhook;
    WebhookJson { namespace, url, secret, created_at, updated_at }
}

fn missing(name: &str) -> Problem {
    Problem::new(Code::WebhookNotFound, format!("namespace {} has no failure webhook", quoted(name)))
}
