//! Which parts of a document are shown to which readers. The audit log shows the fields on a list and hides every other value:
//! authors choose the names of a job's parameters freely, so no list of secret names is ever complete. Callers who may not edit
//! a job see its old versions and its runs, in which all values that look like secrets are hidden.

mod bounded;
mod secrets;

use serde_json::{Map, Value};

use self::secrets::without_secrets;
use crate::diff::{self, Change};

/// Shown in place of a hidden value.
pub const HIDDEN: &str = "***";
/// The field of a definition with the job's parameters. Authors choose the names in it freely.
const PARAMS: &str = "params";
/// The field with labels. Authors choose its keys, and its values are not secret: executors announce them.
const LABELS: &str = "labels";
/// The field with the URL of a webhook. Only its scheme and host are shown, because the rest is a secret.
const URL: &str = "url";
/// The field with the settings of an alert channel.
const SETTINGS: &str = "settings";

/// The fields whose values the audit log shows. A test compares the list with the documents of the API.
const SHOWN_FIELDS: &[&str] = &[
    "acknowledged_by",
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
    "certificate_expiring",
    "changed_at",
    "channel",
    "channels",
    "concurrency",
    "condition",
    "count",
    "created_at",
    "cron",
    "date",
    "days",
    "declares",
    "delay",
    "delivery",
    "description",
    "digest",
    "disabled",
    "disk_low",
    "display_name",
    "done",
    "dry_run",
    "dst",
    "enabled",
    "end_at",
    "ends_at",
    "escalate",
    "every",
    "executors",
    "expect",
    "expires_at",
    "failed",
    "failure_rate",
    "failures_in_row",
    "fetch",
    "fields",
    "fire_at",
    "fires",
    "free",
    "free_percent",
    "gap",
    "grants",
    "group_over",
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
    "ledger_growth",
    "length",
    "longer_than",
    "loop_failing",
    "max",
    "min_runs",
    "minted_by",
    "misfire",
    "mode",
    "mode_from",
    "name",
    "namespace",
    "no_executor",
    "no_success_for",
    "node_lost",
    "not",
    "not_succeeded_by",
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
    "percent",
    "policy",
    "prefix",
    "priority",
    "problems",
    "provider_sign_in",
    "pump",
    "queue_timeout",
    "rate",
    "reason",
    "reasons",
    "repeat",
    "retry",
    "revoked_at",
    "role",
    "route",
    "rule",
    "run",
    "running_longer",
    "runs",
    "schedule",
    "scope",
    "select",
    "series",
    "settings",
    "severity",
    "shards",
    "skipped",
    "standing",
    "start_at",
    "starts_at",
    "state",
    "status",
    "success_by",
    "than",
    "threads",
    "time",
    "time_zone",
    "timeout",
    "times",
    "times_p95",
    "token_expiring",
    "tolerance",
    "unchanged",
    "until",
    "updated_at",
    "url",
    "user_agent",
    "version",
    "warnings",
    "weekday",
    "weekdays",
    "window",
    "within",
    "zone",
];

/// Settings that the audit log shows in an alert channel. It hides fields with these names elsewhere, where they may hold anything: `from`
/// and `to` are also the old and the new value of a changed field.
const SHOWN_SETTINGS: &[&str] = &["from", "host", "port", "security", "to", "username"];

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
    bounded::cut_document(hide_unlisted(document), bounded::LEN_MAX)
}

fn hide_unlisted(document: Value) -> Value {
    match document {
        Value::Object(map) => {
            let fields = map.into_iter().map(|(key, value)| {
                let value = hide_unlisted_field(&key, value);
                (key, value)
            });
            Value::Object(fields.collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(hide_unlisted).collect()),
        other => other,
    }
}

/// As [`for_audit`], for several documents, keyed by the names of their objects. `left_out_count` is how many documents the caller has
/// already left out.
#[must_use]
pub fn for_audit_by_name(documents: Map<String, Value>, left_out_count: usize) -> Value {
    bounded::cut_by_name(
        documents.into_iter().map(|(name, document)| (name, hide_unlisted(document))).collect(),
        left_out_count,
    )
}

/// Whether the audit log shows the values of a field as they are.
#[must_use]
pub fn is_shown(field: &str) -> bool {
    SHOWN_FIELDS.contains(&field)
}

fn hide_unlisted_field(key: &str, value: Value) -> Value {
    let mut fields = pointer_fields(key);
    let last_field = fields.next_back().unwrap_or_default();
    // Fields below `labels` are shown although they are not on the list: their names are chosen by the author.
    if key.starts_with('/') && pointer_fields(key).any(|field| field == LABELS) {
        return value;
    }
    if !is_shown(last_field) || !fields.all(is_shown) {
        return hide_values(value);
    }
    match (last_field, value) {
        (SETTINGS, Value::Object(settings)) => Value::Object(settings.into_iter().map(hide_unlisted_setting).collect()),
        (URL, Value::String(url)) => Value::String(hide_path(&url)),
        (LABELS, value) => value,
        (_, value) => hide_unlisted(value),
    }
}

/// Hides the value of an alert channel's setting unless it may be shown. The channel's secrets are not among its settings.
fn hide_unlisted_setting((name, value): (String, Value)) -> (String, Value) {
    let value = match SHOWN_SETTINGS.contains(&name.as_str()) {
        true => value,
        false => hide_unlisted_field(&name, value),
    };
    (name, value)
}

/// The fields of a pointer, without the indexes of lists; a plain name is one field.
fn pointer_fields(key: &str) -> impl DoubleEndedIterator<Item = &str> {
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

fn hide_path(url: &str) -> String {
    let Some((scheme, after_scheme)) = url.split_once("://") else { return HIDDEN.to_owned() };
    let end = after_scheme.find(['/', '?', '#', '\\']).unwrap_or(after_scheme.len());
    let (authority, path) = after_scheme.split_at(end);
    let host = authority.rsplit('@').next().unwrap_or_default();
    if path.is_empty() || path == "/" {
        format!("{scheme}://{host}{path}")
    } else {
        format!("{scheme}://{host}/{HIDDEN}")
    }
}

/// A job's definition for readers who may not edit it: parameters that look like secrets are hidden.
#[must_use]
pub fn for_viewer(mut definition: Value) -> Value {
    if let Some(params) = definition.get_mut(PARAMS) {
        *params = without_secrets(params.take());
    }
    // Items of a pump job and shards have parameters too.
    for pointer in ["/pump/items", "/shards"] {
        if let Some(items) = definition.pointer_mut(pointer) {
            *items = without_secrets(items.take());
        }
    }
    definition
}

/// The parameters of a run for readers who may not edit its job: values that look like secrets are hidden.
#[must_use]
pub fn params_for_viewer(params: Value) -> Value {
    without_secrets(params)
}

/// The differences between two definitions, for readers who may not edit the job: each changed field as [`for_viewer`] shows it.
#[must_use]
pub fn changes_for_viewer(before: &Value, after: &Value) -> Vec<Change> {
    let [shown_before, shown_after] = [before, after].map(|definition| for_viewer(definition.clone()));
    let shown_change = |Change { pointer, .. }: Change| {
        let [from, to] = [&shown_before, &shown_after].map(|definition| definition.pointer(&pointer).cloned());
        Change { pointer, from, to }
    };
    diff::changes(before, after).into_iter().map(shown_change).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_audit_log_hides_fields_that_are_not_listed() {
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
    fn rules_and_channels_are_shown_except_their_secrets() {
        let rule = json!({"condition": {"failure_rate": {"percent": 60, "window": "10m"}}, "digest": "15m"});
        assert_eq!(for_audit(rule.clone()), rule);
        let settings = |template, url| json!({"host": "m", "to": "a@b.c", "title_template": template, "url": url});
        let channel = json!({"settings": settings("x", "https://h/secret"), "to": "x", "secrets": {"password": "x"}});
        let shown = json!({"settings": settings("***", "https://h/***"), "to": "***", "secrets": {"password": "***"}});
        assert_eq!(for_audit(channel), shown);
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
        let items = json!([{"name": "eu", "params": {"dsn": "x", "schema": "eu"}}]);
        let shown = json!([{"name": "eu", "params": {"dsn": "***", "schema": "eu"}}]);
        assert_eq!(
            for_viewer(json!({"pump": {"items": items, "groups": 2}})),
            json!({"pump": {"items": shown, "groups": 2}})
        );
        assert_eq!(for_viewer(json!({"shards": items})), json!({"shards": shown}));
    }

    #[test]
    fn a_viewer_sees_changes_without_secrets() {
        let change = |pointer: &str, before: Value, after: Value| {
            let changes = changes_for_viewer(&before, &after);
            let [change] = &changes[..] else { unreachable!("one change, not {changes:?}") };
            assert_eq!(change.pointer, pointer);
            (change.from.clone(), change.to.clone())
        };
        let hidden = Some(json!("***"));
        let params = |params: Value| json!({"params": params});
        let password = |text: &str| params(json!({"db": {"password": text}}));
        assert_eq!(change("/params/db/password", password("x"), password("y")), (hidden.clone(), hidden.clone()));
        let variable = |text: &str| params(json!({"env": {"name": "DB_PASSWORD", "value": text}}));
        assert_eq!(change("/params/env/value", variable("x"), variable("y")), (hidden.clone(), hidden));
        let added = change("/params", json!({}), params(json!({"dsn": "x", "n": 1})));
        assert_eq!(added, (None, Some(json!({"dsn": "***", "n": 1}))));
        let text = change("/description", json!({"description": "token"}), json!({"description": ""}));
        assert_eq!(text, (Some(json!("token")), Some(json!(""))));

        let items = |value: &str| json!([{"name": "eu", "params": {"dsn": value, "schema": "eu"}}]);
        let shown = items("***");
        let shards = change("/shards", json!({"shards": items("x")}), json!({"shards": 2}));
        assert_eq!(shards, (Some(shown.clone()), Some(json!(2))));
        let pump = |items: Value| json!({"pump": {"items": items, "threads": 5}});
        assert_eq!(change("/pump/items", pump(items("x")), pump(json!(2))), (Some(shown.clone()), Some(json!(2))));
        let removed = change("/pump", pump(items("x")), json!({}));
        assert_eq!(removed, (Some(json!({"items": shown, "threads": 5})), None));
    }
}
