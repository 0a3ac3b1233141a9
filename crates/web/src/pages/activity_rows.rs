//! Entries of the audit log as rows: the action in words, a link to its object, and the fields that changed.

use rondel_core::Timestamp;
use rondel_core::diff::{self, Change};
use rondel_core::disclosure::changes_for_viewer;
use rondel_store::access::{AuditEntry, AuthMethod, INCOMPLETE, Verdict};
use serde_json::{Map, Value};

use super::moment::Moment;
use super::texts::Texts;

/// Maximum number of changed fields that are shown for an entry.
const CHANGE_COUNT_MAX: usize = 24;
/// Maximum length of a value within a line, in characters.
const VALUE_LEN_MAX: usize = 60;

/// Turns entries into rows for the user who reads them.
pub(super) struct ActivityFormatter {
    pub(super) t: &'static Texts,
    pub(super) now: Timestamp,
    /// Whether the reader may see the secrets of parameters.
    pub(super) may_see_secrets: bool,
    /// Whether the reader may see addresses and request ids.
    pub(super) may_see_origin: bool,
}

pub(super) struct ActivityRow {
    pub(super) at: Moment,
    pub(super) actor: String,
    /// How the actor was authenticated; `None` for a session.
    pub(super) auth_method: Option<&'static str>,
    pub(super) address: Option<String>,
    /// The id of the request.
    pub(super) request_id: Option<String>,
    /// The name of the action.
    pub(super) action: String,
    /// The action in words, in the reader's language; `None` for an unknown action.
    pub(super) words: Option<&'static str>,
    pub(super) object: String,
    /// The path of the page about the object.
    pub(super) link: Option<String>,
    pub(super) namespace: Option<String>,
    /// The mark of an action that was refused or failed; `None` if it was allowed.
    pub(super) verdict: Option<StatusMark>,
    /// An additional note.
    pub(super) note: Option<&'static str>,
    pub(super) changes: Vec<ChangeRow>,
    /// How many changed fields are not shown.
    pub(super) hidden_count: usize,
}

/// A CSS class and a word.
pub(super) struct StatusMark {
    pub(super) class: &'static str,
    pub(super) word: &'static str,
}

pub(super) struct ChangeRow {
    pub(super) field: String,
    /// The value before the change; `None` if there was none, or if `lines` shows it.
    pub(super) from: Option<String>,
    /// The value after the change; `None` if there is none, or if `lines` shows it.
    pub(super) to: Option<String>,
    /// The lines that differ, if a value is too long for one line or has several lines.
    pub(super) lines: Option<String>,
}

impl ActivityFormatter {
    pub(super) fn row(&self, entry: &AuditEntry) -> ActivityRow {
        let t = self.t;
        let document =
            |text: &Option<String>| text.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
        let (document_before, document_after) = (document(&entry.before), document(&entry.after));
        let is_dry_run = document_after.as_ref().is_some_and(|document_after| document_after.get("dry_run").is_some());
        let (document_before, document_after) = match (entry.action.as_str(), document_after) {
            ("job.apply", Some(Value::Object(document_after))) => {
                documents_by_job(document_before.as_ref(), document_after)
            }
            (_, document_after) => (document_before, document_after),
        };
        let note = match entry.after.as_deref() {
            Some(INCOMPLETE) => Some(t.activity_unanswered),
            _ if is_dry_run => Some(t.activity_dry_run),
            _ => None,
        };
        // The entry of an action on many objects has no `before`; all fields of `after` are shown as new.
        let document_before =
            document_before.or_else(|| entry.action.ends_with(".bulk").then(|| Value::Object(Map::new())));
        let mut changes = if note.is_some() { Vec::new() } else { self.changes(document_before, document_after) };
        let hidden_count = changes.len().saturating_sub(CHANGE_COUNT_MAX);
        changes.truncate(CHANGE_COUNT_MAX);
        ActivityRow {
            at: Moment::new(entry.at, self.now, t),
            actor: entry.actor.clone(),
            auth_method: match entry.auth_method {
                AuthMethod::Session => None,
                AuthMethod::Token => Some(t.means_token),
                AuthMethod::Executor => Some(t.means_executor),
                AuthMethod::System => Some(t.means_system),
                AuthMethod::Anonymous => Some(t.means_anonymous),
            },
            address: entry.address.clone().filter(|_| self.may_see_origin),
            request_id: entry.request_id.clone().filter(|_| self.may_see_origin),
            words: action_words(t, &entry.action),
            action: entry.action.clone(),
            link: object_link(entry),
            object: entry.object.clone(),
            namespace: entry.namespace.clone(),
            verdict: match entry.verdict {
                Verdict::Allowed => None,
                Verdict::Denied => Some(StatusMark { class: "cancelled", word: t.activity_denied }),
                Verdict::Failed => Some(StatusMark { class: "failed", word: t.activity_failed }),
            },
            note,
            changes,
            hidden_count,
        }
    }

    /// The changed fields. For a created or deleted object, only one document exists, and no fields are listed.
    fn changes(&self, value_before: Option<Value>, value_after: Option<Value>) -> Vec<ChangeRow> {
        let (Some(mut value_before), Some(value_after)) = (value_before, value_after) else { return Vec::new() };
        if has_no_field_of(&value_before, &value_after) {
            // In this case `value_before` is the object of the action, such as a job, and `value_after` its result, such as a run.
            value_before = Value::Object(Map::new());
        }
        let find_changes = if self.may_see_secrets { diff::changes } else { changes_for_viewer };
        find_changes(&value_before, &value_after).iter().map(change_row).collect()
    }
}

/// The documents of an applied list. For each job they have the changed fields, or one word such as `created`.
fn documents_by_job(value_before: Option<&Value>, values_after: Map<String, Value>) -> (Option<Value>, Option<Value>) {
    let fields = |document: &Value| -> Option<Value> {
        let fields = document["fields"].as_object().filter(|fields| !fields.is_empty())?;
        let field_entry =
            |(pointer, value): (&String, &Value)| (pointer.trim_start_matches('/').replace('/', "."), value.clone());
        Some(Value::Object(fields.iter().map(field_entry).collect()))
    };
    let (mut before_fields, mut after_fields) = (Map::new(), Map::new());
    for (job, document) in values_after {
        if let Some(fields) = value_before.and_then(|value_before| fields(&value_before[&job])) {
            before_fields.insert(job.clone(), fields);
        }
        let shown_fields = fields(&document).or_else(|| document.get("action").cloned()).unwrap_or(document);
        after_fields.insert(job, shown_fields);
    }
    (Some(Value::Object(before_fields)), Some(Value::Object(after_fields)))
}

/// Whether `value_after` has no field in common with `value_before`, which means that they are different kinds of documents.
fn has_no_field_of(value_before: &Value, value_after: &Value) -> bool {
    let (Some(value_before), Some(value_after)) = (value_before.as_object(), value_after.as_object()) else {
        return false;
    };
    !value_after.is_empty() && value_after.keys().all(|key| !value_before.contains_key(key))
}

/// A changed field in readable form.
pub(super) fn change_row(change: &Change) -> ChangeRow {
    let is_long =
        |value: &Option<Value>| value.as_ref().is_some_and(|value| value_text(value).chars().count() > VALUE_LEN_MAX);
    let has_lines =
        |value: &Option<Value>| value.as_ref().and_then(Value::as_str).is_some_and(|text| text.contains('\n'));
    let needs_diff = [&change.from, &change.to].into_iter().any(|value| is_long(value) || has_lines(value));
    let lines = needs_diff.then(|| diff::changes_text(std::slice::from_ref(change)));
    // The first line is left out because it repeats the name of the field.
    let lines =
        lines.map(|lines| lines.split_once('\n').map_or_else(String::new, |(_, rest)| rest.trim_end().to_owned()));
    let inline_text = |value: &Option<Value>| value.as_ref().filter(|_| !needs_diff).map(value_text);
    ChangeRow {
        field: change.pointer.trim_start_matches('/').replace('/', "."),
        from: inline_text(&change.from),
        to: inline_text(&change.to),
        lines,
    }
}

fn value_text(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => format!("“{text}”"),
        value => value.to_string(),
    }
}

/// The path of the page about an entry's object.
fn object_link(entry: &AuditEntry) -> Option<String> {
    if entry.object.is_empty() || entry.object.contains('/') || entry.action.ends_with(".delete") {
        return None;
    }
    let noun = entry.action.split('.').next().unwrap_or_default();
    let path = match noun {
        "job" => "/jobs",
        "run" => "/runs",
        "calendar" => "/calendars",
        "script" => "/scripts",
        "user" => return Some("/users".to_owned()),
        _ => return None,
    };
    let name = crate::redirect::percent_encode(&entry.object);
    let namespace = entry.namespace.as_ref().map(|namespace| format!("?namespace={namespace}")).unwrap_or_default();
    Some(format!("{path}/{name}{namespace}"))
}

pub(super) fn action_words(t: &Texts, action: &str) -> Option<&'static str> {
    let action_text = match action {
        "job.create" => t.act_job_create,
        "job.change" | "job.edit" => t.act_job_change,
        "job.apply" => t.act_job_apply,
        "job.restore" | "job.versions-restore" => t.act_job_restore,
        "job.reset" => t.act_job_reset,
        "job.pause" => t.act_job_pause,
        "job.resume" => t.act_job_resume,
        "job.trigger" => t.act_job_trigger,
        "job.cancel" => t.act_job_cancel,
        "job.delete" => t.act_job_delete,
        "run.cancel" => t.act_run_cancel,
        "run.retry" => t.act_run_retry,
        "app.create" => t.act_app_create,
        "app.set-state" | "app.state" => t.act_app_state,
        "node.set-state" | "node.state" => t.act_node_state,
        "calendar.create" | "calendar.change" => t.act_calendar_change,
        "calendar.import" => t.act_calendar_import,
        "calendar.delete" => t.act_calendar_delete,
        "script.create" | "script.change" => t.act_script_change,
        "script.restore" => t.act_script_restore,
        "script.delete" => t.act_script_delete,
        "script.try" => t.act_script_try,
        "namespace.create" => t.act_namespace_create,
        "namespace.delete" => t.act_namespace_delete,
        "namespace.set-failure-webhook" | "namespace.delete-failure-webhook" | "namespace.failure-webhook" => {
            t.act_webhook
        }
        "user.create" => t.act_user_create,
        "user.change" => t.act_user_change,
        "user.delete" => t.act_user_delete,
        "user.password" | "account.password" => t.act_user_password,
        "user.link" | "user.sign-in-link" | "sign-in-link.create" => t.act_user_link,
        "token.create" | "account.tokens" => t.act_token_create,
        "token.rotate" | "account.tokens-rotate" => t.act_token_rotate,
        "token.delete" | "account.tokens-revoke" => t.act_token_revoke,
        "job.bulk" => t.act_job_bulk,
        "run.bulk" => t.act_run_bulk,
        "run.retry-failed" => t.act_run_retry,
        "executor.set-state" | "executor.activate" | "executor.drain" | "executor.stop" => t.act_executor_state,
        "alert-rule.change" | "alert.rules" => t.act_rule_change,
        "alert-rule.delete" | "alert.rules-delete" => t.act_rule_delete,
        "channel.change" | "alert.channels" => t.act_channel_change,
        "channel.delete" | "alert.channels-delete" => t.act_channel_delete,
        "channel.test" | "alert.channels-test" => t.act_channel_test,
        "silence.create" | "alert.silences" => t.act_silence_create,
        "silence.delete" | "alert.silences-end" => t.act_silence_end,
        "maintenance.create" | "alert.maintenance" => t.act_maintenance_create,
        "maintenance.delete" | "alert.maintenance-end" => t.act_maintenance_end,
        "incident.acknowledge" | "alert.incidents-acknowledge" => t.act_incident,
        "report.set-schedule" | "report.delete-schedule" | "report.schedule" => t.act_report,
        "report.schedule-send" => t.act_report_send,
        "app.addresses" | "app.addresses-remove" | "app.delete-addresses" => t.act_app_addresses,
        "shadow.fires" => t.act_shadow_fires,
        "saved-filter.create" => t.act_filter_save,
        "saved-filter.delete" => t.act_filter_delete,
        "namespace.failure-webhook-test" => t.act_webhook_test,
        "session.create" | "sign-in.create" => t.act_session_start,
        "session.delete" | "account.sessions-end" => t.act_session_end,
        _ => return None,
    };
    Some(action_text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rondel_core::diff::changes;
    use serde_json::json;

    use super::super::texts::Lang;
    use super::*;
    use crate::audit::action_of_request;
    use crate::route_info::{Access, is_read_only_post};

    #[test]
    fn fields_that_differ_are_short_or_in_lines() {
        let found = changes(
            &json!({"retry": {"max": 1}, "params": {"script": "a\nb"}}),
            &json!({"retry": {"max": 3}, "params": {"script": "a\nc"}, "note": "x"}),
        );
        let rows: Vec<ChangeRow> = found.iter().map(change_row).collect();
        assert_eq!(
            rows.iter().map(|row| row.field.as_str()).collect::<Vec<_>>(),
            ["note", "params.script", "retry.max"]
        );
        assert_eq!((rows[0].from.as_deref(), rows[0].to.as_deref()), (None, Some("“x”")));
        assert_eq!(rows[1].lines.as_deref(), Some("  a\n- b\n+ c"));
        assert_eq!((rows[2].from.as_deref(), rows[2].to.as_deref()), (Some("1"), Some("3")));
    }

    /// An action without words is shown by its English name, even on a Chinese page.
    #[test]
    fn every_change_has_words() {
        let changes = crate::route_table().into_iter().filter(|route| !route.method.is_safe());
        let names = changes
            .filter(|route| route.access != Access::Open && !is_read_only_post(route.path))
            .map(|route| action_of_request(&route.method, route.path));
        let wordless: BTreeSet<String> = names.filter(|name| action_words(Lang::Zh.texts(), name).is_none()).collect();
        assert_eq!(wordless, BTreeSet::new());
    }

    #[test]
    fn an_applied_list_has_a_line_for_each_job_or_field() {
        let before = json!({"b": {"version": 1, "fields": {"/retry/max": 1}}});
        let after = json!({
            "a": {"action": "created", "fields": {}},
            "b": {"action": "changed", "fields": {"/retry/max": 3, "/timeout": "5s"}},
            "...": 7,
        });
        let (from, to) = documents_by_job(Some(&before), after.as_object().cloned().unwrap());
        assert_eq!(from, Some(json!({"b": {"retry.max": 1}})));
        let expected = json!({"a": "created", "b": {"retry.max": 3, "timeout": "5s"}, "...": 7});
        assert_eq!(to, Some(expected));
    }

    #[test]
    fn the_outcome_of_an_action_is_no_change_of_its_object() {
        let job = json!({"name": "a", "app": "b"});
        assert!(has_no_field_of(&job, &json!({"run": "7"})));
        assert!(!has_no_field_of(&job, &json!({"name": "a", "app": "c"})));
        assert!(!has_no_field_of(&job, &json!({})) && !has_no_field_of(&json!(1), &job));
    }
}
