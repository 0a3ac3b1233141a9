//! The jobs found in another scheduler, and the outcome for each of them.

use rondel_core::cron::{CronExpr, DstRule, parse_zone};
use rondel_core::labels::check_value;
use rondel_core::spec::JobSpec;
use rondel_core::{FieldError, shape};
use rondel_web::yaml;
use serde::Serialize;
use serde_json::{Map, Value};

use super::names::Names;
use crate::clock;
use crate::terminal::harmless_text;

/// Maximum number of retries of a definition.
pub(super) const RETRY_MAX: u64 = 100;

/// The kind of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NoteKind {
    /// The field has another meaning in Rondel.
    Changed,
    /// Rondel has no counterpart.
    NotSupported,
}

/// A remark on one job, for the user who imports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Note {
    pub(super) kind: NoteKind,
    pub(super) text: String,
}

/// The outcome for a field of the other scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// The field has the same meaning in Rondel.
    Kept,
    /// The field has another meaning in Rondel.
    Changed,
    /// Rondel has no counterpart.
    NotSupported,
    /// The field has no effect in the other scheduler, or Rondel determines it itself.
    NotNeeded,
}

impl Outcome {
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Changed => "changed",
            Self::NotSupported => "not supported",
            Self::NotNeeded => "not needed",
        }
    }
}

/// A field of the other scheduler.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Field {
    pub(super) name: String,
    /// The value, of which only the beginning is kept if it is long.
    pub(super) value: String,
    pub(super) outcome: Outcome,
    /// The counterpart in Rondel, or why there is none.
    #[serde(rename = "here")]
    pub(super) counterpart: String,
}

/// Maximum number of characters of a value in a report.
const VALUE_LEN_MAX: usize = 200;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Subject {
    Job,
    Group,
    User,
}

/// A job of the other scheduler, or one of its groups or users.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Entry {
    pub(super) subject: Subject,
    /// The place of the entry in the source: `line 4`, `job 17`.
    pub(super) from: String,
    /// The name in the other scheduler.
    pub(super) title: String,
    /// The job's definition; `None` if the job is left out, and for groups and users.
    pub(super) job: Option<Value>,
    pub(super) notes: Vec<Note>,
    /// All fields of the entry, if the other scheduler stores it as a row.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) fields: Vec<Field>,
    /// Shell lines for settings that a definition cannot contain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) commands: Vec<String>,
}

/// Everything that the import found.
#[derive(Debug, Default, Serialize)]
pub(super) struct ImportResult {
    pub(super) entries: Vec<Entry>,
    /// Remarks that concern no single entry.
    pub(super) remarks: Vec<String>,
    /// Shell lines before the lines of the entries.
    pub(super) commands: Vec<String>,
    /// Shell lines after the lines of the entries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) last_commands: Vec<String>,
    #[serde(skip)]
    pub(super) names: Names,
}

impl Entry {
    pub(super) fn new(from: impl Into<String>, title: impl Into<String>) -> Self {
        Self {
            subject: Subject::Job,
            from: from.into(),
            title: title.into(),
            job: None,
            notes: Vec::new(),
            fields: Vec::new(),
            commands: Vec::new(),
        }
    }

    pub(super) fn with_subject(subject: Subject, from: impl Into<String>, title: impl Into<String>) -> Self {
        Self { subject, ..Self::new(from, title) }
    }

    /// Records the outcome for a field. A field that is changed or not supported gets a note too.
    pub(super) fn record_field(&mut self, name: &str, value: &str, outcome: Outcome, counterpart: impl Into<String>) {
        let counterpart = counterpart.into();
        match outcome {
            Outcome::Changed => self.note_change(format!("{name}: {counterpart}")),
            Outcome::NotSupported => self.note_unsupported(format!("{name}: {counterpart}")),
            Outcome::Kept | Outcome::NotNeeded => {}
        }
        let value = value.chars().take(VALUE_LEN_MAX).collect();
        self.fields.push(Field { name: name.to_owned(), value, outcome, counterpart });
    }

    pub(super) fn is_job(&self) -> bool {
        self.subject == Subject::Job
    }

    pub(super) fn is_left_out(&self) -> bool {
        self.is_job() && self.job.is_none()
    }

    /// The name in Rondel; without one, the name in the other scheduler.
    pub(super) fn name(&self) -> &str {
        self.job.as_ref().and_then(|job| job["name"].as_str()).unwrap_or(&self.title)
    }

    /// The CSS class of a note, and its word in reports.
    pub(super) fn class_and_word(&self, note: &Note) -> (&'static str, &'static str) {
        match note.kind {
            _ if self.is_left_out() => ("gone", "left out"),
            NoteKind::Changed => ("changed", "changed"),
            NoteKind::NotSupported => ("gone", "not supported"),
        }
    }

    pub(super) fn note_change(&mut self, text: impl Into<String>) {
        self.notes.push(Note { kind: NoteKind::Changed, text: text.into() });
    }

    pub(super) fn note_unsupported(&mut self, text: impl Into<String>) {
        self.notes.push(Note { kind: NoteKind::NotSupported, text: text.into() });
    }
}

impl Entry {
    /// Replaces the notes by the reasons for leaving the job out: the other notes do not matter then.
    fn replace_notes(&mut self, reasons: Vec<String>) {
        self.notes = reasons.into_iter().map(|text| Note { kind: NoteKind::NotSupported, text }).collect();
    }
}

impl ImportResult {
    /// An empty result, with the prefix of the jobs' names.
    pub(super) fn with_prefix(prefix: &str) -> Self {
        Self { names: Names::new(prefix), ..Self::default() }
    }

    /// Adds an entry with its definition. The definition is checked as the server checks it, and left out if the server
    /// would refuse it.
    pub(super) fn add(&mut self, mut entry: Entry, job: Map<String, Value>) {
        let job = Value::Object(job);
        let errors = definition_errors(&job);
        if errors.is_empty() {
            if never_fires(&job) {
                entry.note_change("its schedule has no instant from now on: it never fires");
            }
            entry.job = Some(job);
        } else {
            entry.replace_notes(errors);
        }
        self.entries.push(entry);
    }

    /// Adds an entry without a definition. The reason becomes its only note.
    pub(super) fn leave_out(&mut self, mut entry: Entry, reason: impl Into<String>) {
        entry.replace_notes(vec![reason.into()]);
        self.entries.push(entry);
    }

    /// Puts all jobs in shadow mode, in which they send nothing.
    pub(super) fn put_in_shadow(&mut self) {
        self.set_in_all_jobs("mode", &Value::from("shadow"));
    }

    /// Writes all jobs paused, so that they fire nothing.
    pub(super) fn disable(&mut self) {
        self.set_in_all_jobs("enabled", &Value::from(false));
    }

    fn set_in_all_jobs(&mut self, field: &str, value: &Value) {
        for job in self.entries.iter_mut().filter_map(|entry| entry.job.as_mut()?.as_object_mut()) {
            job.insert(field.to_owned(), value.clone());
        }
    }

    /// Whether a job would fire as soon as it is saved. A definition without the fields `enabled` and `mode` is active.
    pub(super) fn has_active(&self) -> bool {
        let mut jobs = self.entries.iter().filter_map(|entry| entry.job.as_ref());
        jobs.any(|job| job["enabled"] != false && job["mode"] != "shadow")
    }

    /// The definitions as a file for `rondel job apply`.
    pub(super) fn yaml(&self) -> String {
        let jobs = self.entries.iter().filter_map(|entry| entry.job.as_ref()?.as_object());
        let items: Vec<Vec<(&str, &Value)>> =
            jobs.map(|job| FIELDS.iter().filter_map(|field| Some((*field, job.get(*field)?))).collect()).collect();
        yaml::write(&items)
    }

    /// A shell script for settings that no definition can contain; empty if there are none.
    pub(super) fn script(&self) -> String {
        let lines: Vec<&str> = self
            .commands
            .iter()
            .chain(self.entries.iter().flat_map(|entry| &entry.commands))
            .chain(&self.last_commands)
            .map(String::as_str)
            .collect();
        if lines.is_empty() {
            return String::new();
        }
        format!(
            "#!/bin/sh\n# Written by rondel import. Run it after rondel job apply; it may be run again.\nset -eu\nfailed=0\n{}\nexit \"$failed\"\n",
            lines.join("\n")
        )
    }
}

/// The fields of a definition that an import sets, in the order in which users read them.
const FIELDS: [&str; 19] = [
    "name",
    "app",
    "handler",
    "description",
    "labels",
    "params",
    "schedule",
    "route",
    "shards",
    "select",
    "misfire",
    "overlap",
    "delivery",
    "timeout",
    "queue_timeout",
    "retry",
    "priority",
    "enabled",
    "mode",
];

/// The errors of a definition, as the server would report them.
pub(super) fn definition_errors(job: &Value) -> Vec<String> {
    let error_line = |pointer: &str, message: &str| format!("{pointer}: {message}");
    match shape::read::<JobSpec>(job.clone().into()) {
        Err(shape_errors) => {
            shape_errors.errors.iter().map(|error| error_line(&error.pointer, &error.message)).collect()
        }
        Ok(spec) => {
            let errors: Vec<FieldError> = spec.compile().err().unwrap_or_default();
            errors.iter().map(|error| error_line(&error.pointer, &error.message)).collect()
        }
    }
}

/// Whether a cron expression has no instant from now on, such as an expression for 31 February.
fn never_fires(job: &Value) -> bool {
    let text = |field: &str| job["schedule"][field].as_str();
    let cron = text("cron").and_then(|cron| CronExpr::parse(cron).ok());
    let zone = text("time_zone").and_then(|zone| parse_zone(zone).ok());
    cron.zip(zone).is_some_and(|(cron, zone)| cron.next_after(zone, DstRule::default(), clock::now()).is_none())
}

/// Labels that name a job's origin. A value that no label can have is left out.
pub(super) fn origin_labels(pairs: &[(&str, &str)]) -> Map<String, Value> {
    let valid_pairs = pairs.iter().filter(|(_, value)| check_value(value).is_ok());
    valid_pairs.map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect()
}

/// Quotes any text as one word of a shell.
pub(super) fn shell_quoted(text: &str) -> String {
    let needs_no_quotes = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if !text.is_empty() && text.chars().all(needs_no_quotes) {
        return text.to_owned();
    }
    format!("'{}'", harmless_text(text).replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(name: &str) -> Map<String, Value> {
        json!({"name": name, "app": "a", "handler": "h"}).as_object().cloned().unwrap()
    }

    #[test]
    fn invalid_definitions_are_left_out_and_reported() {
        let mut result = ImportResult::default();
        result.add(Entry::new("line 1", "good"), job("good"));
        result.add(Entry::new("line 2", "Bad"), job("Bad"));
        let mut noted = Entry::new("line 3", "noted");
        noted.note_change("something");
        result.add(noted, job("noted"));
        assert_eq!(result.yaml().matches("- name:").count(), 2);
        let text = result.text("a\u{1b}file");
        assert!(
            text.starts_with("3 jobs from ") && text.contains("1 as they were, 1 with notes, 1 left out"),
            "{text}"
        );
        assert!(
            text.contains("Bad (line 2): left out: /name: \"Bad\" is not a name") && !text.contains('\u{1b}'),
            "{text}"
        );
        assert!(text.contains("noted (line 3): changed: something"), "{text}");
        let json: Value = serde_json::from_str(&result.json()).unwrap();
        assert_eq!(json["entries"][1]["notes"][0]["kind"], "not_supported");
    }
}
