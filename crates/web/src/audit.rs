//! Writes the audit log: collects the fields of an entry while a request is handled, and stores the entry.
//!
//! The gate stores the entry of a change before the handler runs; if that fails, the change is refused. After the handler has run, the
//! gate adds the outcome and the handler's fields to the entry. If the server dies in between, the entry shows the outcome as unknown. An
//! entry without a change is therefore possible, but never a change without an entry. Of the documents before and after a change, only
//! fields on an allow list are stored.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{Method, StatusCode};
use rondel_core::AuditId;
use rondel_core::disclosure::{for_audit, for_audit_by_name};
use rondel_core::error_chain::chain;
use rondel_store::StoreError;
use rondel_store::access::{AuditEntry, INCOMPLETE, Verdict};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::caller::Caller;
use crate::problem::{Code, Problem};
use crate::state::Web;

/// The fields that the handler adds to the audit entry of its request.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditNote(Arc<Mutex<AuditFields>>);

#[derive(Debug, Default)]
struct AuditFields {
    namespace: Option<String>,
    object: Option<String>,
    document_before: Option<Value>,
    document_after: Option<Value>,
    is_denied: bool,
    has_changed_nothing: bool,
}

impl AuditNote {
    fn fields(&self) -> MutexGuard<'_, AuditFields> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the namespace in which the request is handled.
    pub(crate) fn set_namespace(&self, name: &str) {
        self.fields().namespace = Some(name.to_owned());
    }

    /// The namespace in which the request was handled, if known.
    pub(crate) fn shown_namespace(&self) -> Option<String> {
        self.fields().namespace.clone()
    }

    /// Records the object of the request, for routes whose path does not name it.
    pub(crate) fn set_object(&self, name: impl Into<String>) {
        self.fields().object = Some(name.into());
    }

    /// Records the state before the change. Only the first call has an effect.
    pub(crate) fn before(&self, document: &impl Serialize) {
        let mut fields = self.fields();
        if fields.document_before.is_none() {
            fields.document_before = serde_json::to_value(document).ok().map(for_audit);
        }
    }

    /// Records the state after the change. The last call wins.
    pub(crate) fn changed_to(&self, document: &impl Serialize) {
        self.fields().document_after = serde_json::to_value(document).ok().map(for_audit);
    }

    /// Records several documents as they are before and after the change, keyed by their names. `omitted_count` is the
    /// number of documents that are left out.
    pub(crate) fn record_documents(
        &self,
        values_before: Map<String, Value>,
        values_after: Map<String, Value>,
        omitted_count: usize,
    ) {
        let mut fields = self.fields();
        (fields.document_before, fields.document_after) =
            (Some(for_audit_by_name(values_before, 0)), Some(for_audit_by_name(values_after, omitted_count)));
    }

    /// Records that the request was a dry run and changed nothing.
    pub(crate) fn mark_dry_run(&self) {
        self.changed_to(&serde_json::json!({"dry_run": true}));
    }

    /// Marks the request as refused for the audit log. Needed where the answer hides the refusal, such as a 404 for a job that the caller
    /// may not see. If the answer is no error, this has an effect only if the request has changed nothing.
    pub(crate) fn mark_denied(&self) {
        self.fields().is_denied = true;
    }

    /// Marks a request on several objects as failed for the audit log, although its answer is no error: the action failed for each of
    /// them, with these codes of problems.
    pub(crate) fn mark_all_failed(&self, mut codes: impl Iterator<Item = &'static str>) {
        let mut fields = self.fields();
        fields.has_changed_nothing = true;
        fields.is_denied |= codes.any(|code| code == Code::Forbidden.as_str());
    }

    /// Marks a request that names several objects as refused for the audit log, if some exist and the caller may see none: the answer
    /// treats them like objects that do not exist.
    pub(crate) fn mark_hidden(&self, hidden_count: usize, visible_count: usize) {
        if hidden_count > 0 && visible_count == 0 {
            let mut fields = self.fields();
            (fields.is_denied, fields.has_changed_nothing) = (true, true);
        }
    }
}

/// The fields of an audit entry that the request itself provides.
pub(crate) struct AuditContext {
    pub(crate) address: Option<IpAddr>,
    pub(crate) request_id: Option<String>,
    pub(crate) action: String,
    pub(crate) object: String,
}

/// A stored entry whose outcome is not known yet.
pub(crate) struct PendingEntry(AuditEntry);

impl AuditContext {
    fn entry(self, web: &Web, caller: &Caller, verdict: Verdict) -> AuditEntry {
        AuditEntry {
            id: AuditId::new(web.engine.new_id()),
            at: web.engine.now(),
            actor: caller.name().to_owned(),
            auth_method: caller.auth_method(),
            token: caller.token,
            address: self.address.map(|address| address.to_string()),
            request_id: self.request_id,
            action: self.action,
            object: self.object,
            namespace: None,
            verdict,
            before: None,
            after: None,
        }
    }

    /// Stores the entry of a change before the change is made.
    pub(crate) async fn begin(self, web: &Web, caller: &Caller) -> Result<PendingEntry, Problem> {
        let entry = self.entry(web, caller, Verdict::Allowed);
        web.engine.store().add_audit(&AuditEntry { after: Some(INCOMPLETE.to_owned()), ..entry.clone() }).await?;
        Ok(PendingEntry(entry))
    }

    /// Stores an entry for a refusal, unless the limit of refusals in this period is reached.
    pub(crate) async fn store_refusal(self, web: &Web, caller: &Caller, note: &AuditNote) {
        if web.refusal_budget.count_refusal(caller.key()) {
            let entry = AuditEntry { namespace: note.shown_namespace(), ..self.entry(web, caller, Verdict::Denied) };
            store_entry(web, &entry).await;
        }
    }
}

impl PendingEntry {
    /// Adds the outcome to the entry.
    pub(crate) async fn end(self, web: &Web, status: StatusCode, note: &AuditNote) {
        let entry = {
            let mut fields = note.fields();
            // If only one of several objects was refused, the answer is no error, and the entry shows the changes of the others.
            let is_error = status.is_client_error() || status.is_server_error();
            let has_failed = is_error || fields.has_changed_nothing;
            let verdict = match status {
                StatusCode::FORBIDDEN => Verdict::Denied,
                _ if has_failed && fields.is_denied => Verdict::Denied,
                _ if has_failed => Verdict::Failed,
                _ => Verdict::Allowed,
            };
            // `document_after` stays empty if the answer is an error. Of a request on several objects, it names them and counts the problems.
            let document_after = fields.document_after.take().filter(|_| !is_error);
            AuditEntry {
                object: fields.object.take().unwrap_or(self.0.object),
                namespace: fields.namespace.clone(),
                verdict,
                before: fields.document_before.take().map(|document| document.to_string()),
                after: document_after.map(|document| document.to_string()),
                ..self.0
            }
        };
        complete_entry(web, &entry).await;
    }
}

/// Whether a request was refused. Refusals get an audit entry even if the request is not a change.
pub(crate) fn is_refusal(status: StatusCode, note: &AuditNote) -> bool {
    status == StatusCode::FORBIDDEN || note.fields().is_denied
}

/// Stores a complete entry. If that fails, the server log gets an error instead.
pub(crate) async fn store_entry(web: &Web, entry: &AuditEntry) {
    if let Err(error) = web.engine.store().add_audit(entry).await {
        log_failure(entry, &error);
    }
}

/// Adds the outcome to an entry that was stored as [`INCOMPLETE`]. If that fails, the server log gets an error instead.
pub(crate) async fn complete_entry(web: &Web, entry: &AuditEntry) {
    if let Err(error) = web.engine.store().complete_audit(entry).await {
        log_failure(entry, &error);
    }
}

fn log_failure(entry: &AuditEntry, error: &StoreError) {
    let (actor, action, object, verdict) = (&entry.actor, &entry.action, &entry.object, entry.verdict.as_str());
    let error = chain(error);
    tracing::error!(target: "audit", actor, action, object, verdict, error, "an entry of the audit log could not be written");
}

/// The actions that are generated from the paths of console forms, each with the action of the API call that does the same. The audit log
/// records the API's action for both.
const ACTIONS_OF_FORMS: [(&str, &str); 26] = [
    ("account.sessions-end", "session.delete"),
    ("account.tokens", "token.create"),
    ("account.tokens-revoke", "token.delete"),
    ("account.tokens-rotate", "token.rotate"),
    ("alert.channels", "channel.change"),
    ("alert.channels-delete", "channel.delete"),
    ("alert.channels-test", "channel.test"),
    ("alert.incidents-acknowledge", "incident.acknowledge"),
    ("alert.maintenance", "maintenance.create"),
    ("alert.maintenance-end", "maintenance.delete"),
    ("alert.rules", "alert-rule.change"),
    ("alert.rules-delete", "alert-rule.delete"),
    ("alert.silences", "silence.create"),
    ("alert.silences-end", "silence.delete"),
    ("app.addresses-remove", "app.delete-addresses"),
    ("app.state", "app.set-state"),
    ("calendar.create", "calendar.change"),
    ("executor.activate", "executor.set-state"),
    ("executor.drain", "executor.set-state"),
    ("executor.stop", "executor.set-state"),
    ("namespace.failure-webhook", "namespace.set-failure-webhook"),
    ("node.state", "node.set-state"),
    ("report.schedule", "report.set-schedule"),
    ("run.retry-failed", "run.retry"),
    ("script.create", "script.change"),
    ("user.link", "user.sign-in-link"),
];

/// The action of a request, as a noun and a verb: `POST /api/v1/jobs/{name}/pause` is `job.pause`.
pub(crate) fn action_of_request(method: &Method, path: &str) -> String {
    // In `jobs:bulk`, the part after the colon is a verb that applies to the whole collection.
    let path = path.trim_start_matches("/api/v1").trim_start_matches('/').replace(':', "/");
    let parts: Vec<&str> = path.split('/').collect();
    let is_fixed = |part: &&str| !part.is_empty() && !part.starts_with('{');
    let fixed_parts: Vec<&str> = parts.iter().copied().filter(is_fixed).collect();
    let ends_in_parameter = parts.last().is_some_and(|last| last.starts_with('{'));
    let singular = |word: &str| word.strip_suffix('s').filter(|_| !word.ends_with("ss")).unwrap_or(word).to_owned();
    let noun = fixed_parts.first().map_or_else(|| "console".to_owned(), |word| singular(word));
    let verb = match (method, fixed_parts.get(1..).unwrap_or_default()) {
        (&Method::GET, []) => "read".to_owned(),
        (&Method::GET, rest) => format!("read-{}", rest.join("-")),
        (&Method::POST, []) if !ends_in_parameter => "create".to_owned(),
        (&Method::DELETE, []) => "delete".to_owned(),
        (_, [] | ["edit"]) => "change".to_owned(),
        (_, ["runs"]) => "trigger".to_owned(),
        (&Method::POST, rest) => rest.join("-"),
        (&Method::DELETE, rest) => format!("delete-{}", rest.join("-")),
        (_, rest) => format!("set-{}", rest.join("-")),
    };
    let generated_action = format!("{noun}.{verb}");
    let replacement = ACTIONS_OF_FORMS.iter().find(|(form, _)| *form == generated_action);
    replacement.map_or(generated_action, |(_, action)| (*action).to_owned())
}

/// The object of a request: the values of the path parameters in `template`, joined by `/`.
pub(crate) fn object_of_request(template: &str, path: &str) -> String {
    let pairs = template.split('/').zip(path.split('/'));
    let values: Vec<String> =
        pairs.filter(|(part, _)| part.starts_with('{')).map(|(_, value)| percent_decode(value)).collect();
    values.join("/")
}

/// Percent-decodes a part of a path. A part with an invalid escape, or that decodes to invalid UTF-8, is returned unchanged.
fn percent_decode(part: &str) -> String {
    let mut pieces = part.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let digits = piece.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let (Some(byte), Some(rest)) = (byte, piece.get(2..)) else { return part.to_owned() };
        bytes.push(byte);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).unwrap_or_else(|_| part.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_a_noun_and_a_verb() {
        for (method, path, expected) in [
            (Method::POST, "/api/v1/jobs", "job.create"),
            (Method::PUT, "/api/v1/jobs/{name}", "job.change"),
            (Method::PATCH, "/api/v1/jobs/{name}", "job.change"),
            (Method::DELETE, "/api/v1/jobs/{name}", "job.delete"),
            (Method::POST, "/api/v1/jobs/{name}/pause", "job.pause"),
            (Method::POST, "/jobs/{name}/edit", "job.change"),
            (Method::POST, "/api/v1/jobs/{name}/runs", "job.trigger"),
            (Method::POST, "/api/v1/runs/{id}/cancel", "run.cancel"),
            (Method::GET, "/api/v1/runs/{id}/logs", "run.read-logs"),
            (Method::PUT, "/api/v1/namespaces/{name}/failure-webhook", "namespace.set-failure-webhook"),
            (Method::POST, "/calendars/{name}", "calendar.change"),
            (Method::DELETE, "/api/v1/tokens/{id}", "token.delete"),
            (Method::POST, "/api/v1/jobs:bulk", "job.bulk"),
            (Method::POST, "/runs:bulk", "run.bulk"),
            (Method::POST, "/apps/{app}/state", "app.set-state"),
            (Method::POST, "/account/tokens", "token.create"),
            (Method::POST, "/alerts/rules/{name}", "alert-rule.change"),
            (Method::GET, "/", "console.read"),
        ] {
            assert_eq!(action_of_request(&method, path), expected, "{method} {path}");
        }
        assert_eq!(object_of_request("/api/v1/jobs/{name}/pause", "/api/v1/jobs/a.b/pause"), "a.b");
        assert_eq!(object_of_request("/api/v1/jobs", "/api/v1/jobs"), "");
    }

    #[test]
    fn an_object_has_the_name_that_users_know() {
        for (part, expected) in [
            ("ann%40example.com", "ann@example.com"),
            ("%E4%BD%A0a", "你a"),
            ("100%", "100%"),
            ("a%4", "a%4"),
            ("a%+4", "a%+4"),
            ("%ff", "%ff"),
            ("%2525", "%25"),
        ] {
            assert_eq!(object_of_request("/api/v1/users/{user}", &format!("/api/v1/users/{part}")), expected);
        }
    }
}
