//! Which parts of a document are shown to which readers. The audit log shows fields that are on a list and hides every other value: authors
//! name a job's parameters as they like, so no list of secret names is ever complete. Callers who may not edit a job see its old versions
//! and its runs without what looks like a secret.

mod bounded;
mod secrets;

use serde_json::{Map, Value};

use self::secrets::{is_secret_name, without_secrets};
use crate::diff::Change;

/// Shown in place of a hidden value.
pub const HIDDEN: &str = "***";
/// The field of a definition whose content is up to its author.
const PARAMS: &str = "params";
/// The field with the definition of a pump, whose items have parameters too.
const PUMP: &str = "pump";
/// A map whose keys are chosen by its author and whose values are no secrets: executors announce them.
const LABELS: &str = "labels";
/// A field of which the scheme and the host are shown: the rest of a webhook's URL is its secret.
const URL: &str = "url";

/// The fields whose values the audit log shows. A test compares the list with the documents of the API.
const SHOWN: &[&str] = &[
    "action",
    "address",
    "after",
    "all",
    "any",
    "app",
    "at",
    "attempt",
    "backoff",
    "batch",
    "by",
    "calendar",
    "cancel_asked",
    "cancelled",
    "changed_at",
    "channels",
    "concurrency",
    "count",
    "created_at",
    "cron",
    "date",
    "days",
    "declares",
    "delay",
    "delivery",
    "description",
    "disabled",
    "display_name",
    "done",
    "dry_run",
    "dst",
    "enabled",
    "end_at",
    "ends_at",
    "every",
    "executors",
    "expect",
    "expires_at",
    "fetch",
    "fields",
    "fire_at",
    "fires",
    "gap",
    "grants",
    "groups",
    "hand_over",
    "handler",
    "has_password",
    "hash",
    "id",
    "idle",
    "if_past",
    "is_new",
    "is_this",
    "items",
    "items_per_group",
    "jitter",
    "job",
    "jobs",
    "keep",
    "keep_tokens",
    "key",
    "kind",
    "label",
    "labels",
    "lang",
    "language",
    "last_seen_at",
    "last_used_at",
    "late",
    "longer_than",
    "max",
    "minted_by",
    "misfire",
    "mode",
    "mode_from",
    "name",
    "namespace",
    "no_success_for",
    "not",
    "note",
    "notify",
    "on",
    "on_silence",
    "over",
    "overlap",
    "overrides",
    "password_changed_at",
    "pause",
    "per",
    "per_executor",
    "policy",
    "prefix",
    "priority",
    "problems",
    "provider_sign_in",
    "pump",
    "queue_timeout",
    "rate",
    "reason",
    "retry",
    "revoked_at",
    "role",
    "route",
    "rule",
    "run",
    "runs",
    "schedule",
    "scope",
    "select",
    "series",
    "severity",
    "shards",
    "skipped",
    "start_at",
    "starts_at",
    "state",
    "status",
    "success_by",
    "threads",
    "time",
    "time_zone",
    "timeout",
    "times",
    "tolerance",
    "unchanged",
    "until",
    "url",
    "user_agent",
    "version",
    "warnings",
    "weekdays",
    "zone",
];

/// A document as the audit log keeps it.
///
/// ```
/// use rondel_core::disclosure::for_audit;
/// use serde_json::json;
///
/// let job = json!({"name": "a", "params": {"dsn": "postgres://u:p@h/d", "pin": 7, "verbose": true}});
/// let kept = json!({"name": "a", "params": {"dsn": "***", "pin": "***", "verbose": true}});
/// assert_eq!(for_audit(job), kept);
/// assert_eq!(for_audit(json!({"url": "https://hooks.example.com/T0/secret"})), json!({"url": "https://hooks.example.com/***"}));
/// ```
#[must_use]
pub fn for_audit(document: Value) -> Value {
    bounded::cut(show_listed(document), bounded::LEN_MAX)
}

fn show_listed(document: Value) -> Value {
    match document {
        Value::Object(map) => {
            let fields = map.into_iter().map(|(key, value)| {
                let value = show_listed_field(&key, value);
                (key, value)
            });
            Value::Object(fields.collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(show_listed).collect()),
        plain => plain,
    }
}

/// As [`for_audit`], for documents keyed by the names of their objects; `more` is how many the caller left out already.
#[must_use]
pub fn for_audit_by_name(documents: Map<String, Value>, more: usize) -> Value {
    bounded::cut_by_name(documents.into_iter().map(|(name, document)| (name, show_listed(document))).collect(), more)
}

/// Whether the audit log shows the values of a field as they are.
#[must_use]
pub fn is_shown(field: &str) -> bool {
    SHOWN.contains(&field)
}

fn show_listed_field(key: &str, value: Value) -> Value {
    let mut fields = segments(key);
    let last = fields.next_back().unwrap_or_default();
    // Fields below `labels` are shown although they are not on the list: their names are chosen by the author.
    if key.starts_with('/') && segments(key).any(|field| field == LABELS) {
        return value;
    }
    if !is_shown(last) || !fields.all(is_shown) {
        return hide_values(value);
    }
    match (last, value) {
        (URL, Value::String(url)) => Value::String(host_of(&url)),
        (LABELS, value) => value,
        (_, value) => show_listed(value),
    }
}

/// The fields of a pointer, without the indexes of lists; a plain name is one field.
fn segments(key: &str) -> impl DoubleEndedIterator<Item = &str> {
    let path = key.strip_prefix('/').unwrap_or(key);
    let is_pointer = key.starts_with('/');
    path.split('/').filter(move |part| !is_pointer || !part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The value with all numbers and texts hidden: it still shows which fields there are, and whether they are set.
fn hide_values(value: Value) -> Value {
    match value {
        Value::Null | Value::Bool(_) => value,
        Value::Number(_) | Value::String(_) => Value::from(HIDDEN),
        Value::Array(items) => Value::Array(items.into_iter().map(hide_values).collect()),
        Value::Object(map) => Value::Object(map.into_iter().map(|(key, value)| (key, hide_values(value))).collect()),
    }
}

fn host_of(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return HIDDEN.to_owned() };
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit('@').next().unwrap_or_default();
    if path.is_empty() || path == "/" {
        format!("{scheme}://{host}{path}")
    } else {
        format!("{scheme}://{host}/{HIDDEN}")
    }
}

/// A job's definition for readers who may not edit it: what looks like a secret in its parameters is hidden.
#[must_use]
pub fn for_viewer(mut definition: Value) -> Value {
    if let Some(params) = definition.get_mut(PARAMS) {
        *params = without_secrets(params.take());
    }
    // Items of a pump job and shards have parameters too.
    for place in ["/pump/items", "/shards"] {
        if let Some(items) = definition.pointer_mut(place) {
            *items = without_secrets(items.take());
        }
    }
    definition
}

/// The parameters of a run for readers who may not edit its job: what looks like a secret is hidden.
#[must_use]
pub fn params_for_viewer(params: Value) -> Value {
    without_secrets(params)
}

/// A difference between two definitions, for readers who may not edit the job.
#[must_use]
pub fn change_for_viewer(change: Change) -> Change {
    let show = shown_at(&change.pointer);
    Change { from: change.from.map(show), to: change.to.map(show), ..change }
}

/// How viewers see the value at a pointer.
fn shown_at(pointer: &str) -> fn(Value) -> Value {
    let mut fields = segments(pointer);
    let is_param = matches!(fields.next(), Some(PARAMS | PUMP));
    match is_param {
        true if fields.any(is_secret_name) => hide_values,
        true => without_secrets,
        false => |value| value,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_audit_log_hides_what_is_not_on_the_list() {
        for name in ["private_key", "pwd", "cookie", "dsn", "webhook", "hook", "x", "password"] {
            let kept = for_audit(json!({"params": {name: "hunter2", "deep": [{name: 12}]}, name: {"a": "hunter2"}}));
            assert_eq!(kept, json!({"params": {name: "***", "deep": [{name: "***"}]}, name: {"a": "***"}}), "{name}");
        }
        let shown =
            json!({"name": "a", "schedule": {"every": "1h"}, "select": {"labels": {"zone": "eu"}}, "params": null});
        assert_eq!(for_audit(shown.clone()), shown);
    }

    #[test]
    fn fields_by_their_pointers_are_those_of_the_documents() {
        let changes = json!({"fields": {
            "/timeout": "1m", "/params/x/0": "hunter2", "/params": {"y": "hunter2"}, "/calendar/0/name": "cn",
            "/select/labels/zone": "eu", "/schedule": {"cron": "* * * * *"},
        }});
        let kept = json!({"a": {"fields": {
            "/timeout": "1m", "/params/x/0": "***", "/params": {"y": "***"}, "/calendar/0/name": "cn",
            "/select/labels/zone": "eu", "/schedule": {"cron": "* * * * *"},
        }}});
        assert_eq!(for_audit_by_name(Map::from_iter([("a".to_owned(), changes)]), 0), kept);
    }

    #[test]
    fn a_webhook_is_shown_by_its_host() {
        for (url, shown) in [
            ("https://hooks.example.com/services/T/B/x", "https://hooks.example.com/***"),
            ("https://u:p@example.com/?key=x", "https://example.com/***"),
            ("http://example.com:81", "http://example.com:81"),
            ("hunter2", "***"),
        ] {
            assert_eq!(for_audit(json!({"url": url})), json!({"url": shown}));
        }
    }

    #[test]
    fn a_viewer_sees_old_parameters_without_secrets() {
        let definition = json!({"name": "token", "params": {
            "Private-Key": "k", "n": 1, "url": "https://u:p@h/x", "text": "-----BEGIN KEY", "list": [{"pwd": 5, "a": "b"}],
        }});
        let shown = json!({"name": "token", "params": {
            "Private-Key": "***", "n": 1, "url": "***", "text": "***", "list": [{"pwd": "***", "a": "b"}],
        }});
        assert_eq!(for_viewer(definition), shown);
        let change = |pointer: &str, value: Value| {
            let change = Change { pointer: pointer.to_owned(), from: Some(value), to: None };
            change_for_viewer(change).from.unwrap()
        };
        assert_eq!(change("/params/db/password", json!("x")), json!("***"));
        assert_eq!(change("/params", json!({"dsn": "x"})), json!({"dsn": "***"}));
        assert_eq!(change("/params/n", json!("x")), json!("x"));
        let items = json!([{"name": "eu", "params": {"dsn": "x", "schema": "eu"}}]);
        let shown = json!([{"name": "eu", "params": {"dsn": "***", "schema": "eu"}}]);
        assert_eq!(
            for_viewer(json!({"pump": {"items": items, "groups": 2}})),
            json!({"pump": {"items": shown, "groups": 2}})
        );
        assert_eq!(change("/pump/items", items), shown);
        assert_eq!(change("/pump/items/0/params/password", json!("x")), json!("***"));
        assert_eq!(change("/pump/threads", json!(5)), json!(5));
        assert_eq!(change("/description", json!("token")), json!("token"));
    }
}
