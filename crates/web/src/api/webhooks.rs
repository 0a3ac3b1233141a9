//! Failure webhooks: each namespace can have one, which receives a message about each failed run.

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use rondel_admin::failure_webhook::{SavedWebhook, WebhookError};
use rondel_core::access::Permission::Admin;
use rondel_core::{NamespaceId, Timestamp};
use rondel_store::catalog::Namespace;
use rondel_store::outbox::FailureWebhook;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::answer::json_response;
use crate::body::{JsonBody, refuse_value};
use crate::call::{Call, forbidden_problem, quoted_input, visible_namespace};
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::routes::Routes;

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

/// A webhook to create.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewWebhook {
    /// http or https, at most 2000 characters, without user and password.
    #[schemars(length(max = 2000))]
    url: String,
}

/// The result of a test message.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "WebhookTest")]
pub(super) struct TestJson {
    /// Whether the receiver accepted it: only a response with a status of 2xx counts.
    is_delivered: bool,
    /// The status of its response; null if there was none.
    status: Option<u16>,
    latency_ms: u64,
    /// Why it does not count as delivered; null if it was delivered.
    error: Option<String>,
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .post(
            "/api/v1/namespaces/{name}/failure-webhook:test",
            Admin,
            test,
            Doc::new(
                "Send a test message to a failure webhook",
                "Sends one message immediately, signed like any other, with the type `webhook.test`.",
            )
            .json::<TestJson>(200, "The result of the test.")
            .refuses(&[Code::WebhookNotFound]),
        )
        .get(
            "/api/v1/namespaces/{name}/failure-webhook",
            Admin,
            get,
            Doc::new("Get a failure webhook", "Where failed runs of the namespace are reported; without the secret.")
                .json::<WebhookJson>(200, "The webhook.")
                .refuses(&[Code::WebhookNotFound]),
        )
        .put(
            "/api/v1/namespaces/{name}/failure-webhook",
            Admin,
            put,
            Doc::new("Set a failure webhook", "An existing webhook gets the new URL and keeps its secret.")
                .json::<WebhookJson>(200, "The changed webhook.")
                .json::<WebhookJson>(201, "The new webhook, with `secret`, which is shown only this once.")
                .refuses(&[Code::WebhookNotFound])
                .example(json!({"url": "https://example.com/rondel"})),
        )
        .delete(
            "/api/v1/namespaces/{name}/failure-webhook",
            Admin,
            delete,
            Doc::new(
                "Delete a failure webhook",
                "No more messages are sent. If the webhook is set again, it gets a new secret.",
            )
            .empty("It was deleted.")
            .refuses(&[Code::WebhookNotFound]),
        )
}

async fn get(call: Call, Named(name, ..): Named<path::Namespace>) -> Result<Response, Problem> {
    let namespace = administered_namespace(&call, &name).await?;
    let webhook =
        call.engine().store().failure_webhook(namespace.id).await?.ok_or_else(|| missing_webhook_problem(&name))?;
    json_response(StatusCode::OK, &webhook_json(namespace.name, webhook, None))
}

/// Creates the namespace's webhook with a new secret. If the namespace has a webhook, only its URL changes.
async fn put(
    call: Call,
    Named(name, ..): Named<path::Namespace>,
    body: JsonBody<NewWebhook>,
) -> Result<Response, Problem> {
    let namespace = administered_namespace(&call, &name).await?;
    let new_webhook = body.read()?;
    audit_before(&call, namespace.id, &name).await?;
    call.note.changed_to(&serde_json::json!({"url": new_webhook.url}));
    match call.engine().put_failure_webhook(namespace.id, &new_webhook.url).await {
        Ok(SavedWebhook::Created(webhook)) => {
            let secret = Some(webhook.secret.clone());
            json_response(StatusCode::CREATED, &webhook_json(namespace.name, webhook, secret))
        }
        Ok(SavedWebhook::Changed) => {
            let webhook_after = call.engine().store().failure_webhook(namespace.id).await?;
            json_response(
                StatusCode::OK,
                &webhook_json(namespace.name, webhook_after.ok_or_else(|| missing_webhook_problem(&name))?, None),
            )
        }
        Err(WebhookError::Url(sentence)) => Err(refuse_value("/url", sentence)),
        Err(WebhookError::Store(error)) => Err(error.into()),
    }
}

async fn delete(call: Call, Named(name, ..): Named<path::Namespace>) -> Result<Response, Problem> {
    let namespace = administered_namespace(&call, &name).await?;
    audit_before(&call, namespace.id, &name).await?;
    match call.engine().store().delete_failure_webhook(namespace.id).await? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(missing_webhook_problem(&name)),
    }
}

async fn test(call: Call, Named(name, ..): Named<path::Namespace>) -> Result<Response, Problem> {
    let namespace = administered_namespace(&call, &name).await?;
    call.note.set_namespace(&name);
    let test_result = call
        .engine()
        .test_failure_webhook((namespace.id, &name))
        .await?
        .ok_or_else(|| missing_webhook_problem(&name))?;
    call.note.changed_to(&json!({"status": test_result.status}));
    let latency_ms = u64::try_from(test_result.took.as_millis()).unwrap_or(u64::MAX);
    let (status, error) = (test_result.status, test_result.error);
    json_response(StatusCode::OK, &TestJson { is_delivered: error.is_none(), status, latency_ms, error })
}

/// Records the namespace and the current URL in the audit log.
async fn audit_before(call: &Call, namespace: NamespaceId, name: &str) -> Result<(), Problem> {
    call.note.set_namespace(name);
    if let Some(webhook) = call.engine().store().failure_webhook(namespace).await? {
        call.note.before(&serde_json::json!({"url": webhook.url}));
    }
    Ok(())
}

/// The namespace named in the path. The caller needs the permission in this namespace, even if the query names another one.
async fn administered_namespace(call: &Call, name: &str) -> Result<Namespace, Problem> {
    let namespace = visible_namespace(call.engine(), &call.caller, name).await?;
    if call.caller.rights.allow(Admin, namespace.id, None) { Ok(namespace) } else { Err(forbidden_problem()) }
}

fn webhook_json(namespace: String, webhook: FailureWebhook, secret: Option<String>) -> WebhookJson {
    let FailureWebhook { url, created_at, updated_at, .. } = webhook;
    WebhookJson { namespace, url, secret, created_at, updated_at }
}

fn missing_webhook_problem(name: &str) -> Problem {
    Problem::new(Code::WebhookNotFound, format!("namespace {} has no failure webhook", quoted_input(name)))
}
