//! The jobs found in another scheduler, and what becomes of them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use rondel_core::name::NAME_LEN_MAX;
use rondel_core::spec::JobSpec;
use rondel_core::words::counted;
use rondel_core::{FieldError, shape};
use rondel_web::yaml;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::terminal::harmless;

/// What a note reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// It has another meaning here.
    Changed,
    /// It has no counterpart here.
    NotSupported,
}

/// A remark on one job, for its author.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Note {
    pub(super) kind: Kind,
    pub(super) text: String,
}

/// What becomes of a field of the other scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// It has the same meaning here.
    Kept,
    /// It has another meaning here.
    Changed,
    /// It has no counterpart here.
    NotSupported,
    /// It has no effect in the other scheduler, or Rondel determines it itself.
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
    /// Only its beginning, if it is long.
    pub(super) value: String,
    pub(super) outcome: Outcome,
    /// Its counterpart here, or why there is none.
    pub(super) here: String,
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
    /// Its place in the source: `line 4`, `job 17`.
    pub(super) from: String,
    /// Its name in the other scheduler.
    pub(super) title: String,
    /// Its definition; `None` if it is left out.
    pub(super) job: Option<Value>,
    pub(super) notes: Vec<Note>,
    /// All of its fields, if the other scheduler stores it as a row.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) fields: Vec<Field>,
    /// Shell lines for what a definition cannot hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) commands: Vec<String>,
}

/// Everything that the import found.
#[derive(Debug, Default, Serialize)]
pub(super) struct Found {
    pub(super) entries: Vec<Entry>,
    /// Remarks that concern no single entry.
    pub(super) remarks: Vec<String>,
    /// Shell lines before those of the entries.
    pub(super) commands: Vec<String>,
    /// Shell lines after those of the entries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) last_commands: Vec<String>,
    #[serde(skip)]
    names: BTreeSet<String>,
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

    pub(super) fn of(subject: Subject, from: impl Into<String>, title: impl Into<String>) -> Self {
        Self { subject, ..Self::new(from, title) }
    }

    /// Records the outcome for a field. A field that is changed or not supported gets a note too.
    pub(super) fn field(&mut self, name: &str, value: &str, outcome: Outcome, here: impl Into<String>) {
        let here = here.into();
        match outcome {
            Outcome::Changed => self.changed(format!("{name}: {here}")),
            Outcome::NotSupported => self.not_supported(format!("{name}: {here}")),
            Outcome::Kept | Outcome::NotNeeded => {}
        }
        let value = value.chars().take(VALUE_LEN_MAX).collect();
        self.fields.push(Field { name: name.to_owned(), value, outcome, here });
    }

    pub(super) fn is_job(&self) -> bool {
        self.subject == Subject::Job
    }

    pub(super) fn is_left_out(&self) -> bool {
        self.is_job() && self.job.is_none()
    }

    /// Its name in Rondel or, without one, in the other scheduler.
    pub(super) fn name(&self) -> &str {
        self.job.as_ref().and_then(|job| job["name"].as_str()).unwrap_or(&self.title)
    }

    /// The CSS class of a note, and its word in reports.
    pub(super) fn word(&self, note: &Note) -> (&'static str, &'static str) {
        match note.kind {
            _ if self.is_left_out() => ("gone", "left out"),
            Kind::Changed => ("changed", "changed"),
            Kind::NotSupported => ("gone", "not supported"),
        }
    }

    pub(super) fn changed(&mut self, text: impl Into<String>) {
        self.notes.push(Note { kind: Kind::Changed, text: text.into() });
    }

    pub(super) fn not_supported(&mut self, text: impl Into<String>) {
        self.notes.push(Note { kind: Kind::NotSupported, text: text.into() });
    }
}

impl Entry {
    /// Puts the reasons for leaving the job out first. Notes on changes are dropped: a job that is left out has none.
    fn reasons(&mut self, reasons: Vec<String>) {
        self.notes.retain(|note| note.kind != Kind::Changed);
        self.notes.splice(0..0, reasons.into_iter().map(|text| Note { kind: Kind::NotSupported, text }));
    }
}

impl Found {
    /// A name that no other job here has: the letters, digits and dashes of the text. If it is taken or cut, a hash of
    /// `identity` follows, so that the name does not depend on earlier jobs; a number only follows if that is taken
    /// too.
    pub(super) fn name(&mut self, text: &str, identity: &str) -> String {
        let stem = slug(text);
        let hashed = format!("{stem}-{:08x}", hash(identity));
        let mut name = if is_cut(text) { hashed.clone() } else { stem };
        for number in 1_u32.. {
            if self.names.insert(name.clone()) {
                break;
            }
            name = if number == 1 { hashed.clone() } else { format!("{hashed}-{number}") };
        }
        name
    }

    /// The name of a job that has its own id: the text, cut if it is long, and the id.
    pub(super) fn name_with_id(&mut self, text: &str, id: &str) -> String {
        let room = STEM_LEN_MAX.saturating_sub(id.len() + 1);
        let stem: String = slug(text).chars().take(room).collect();
        self.name(&format!("{}-{id}", stem.trim_end_matches(['-', '.', '_'])), id)
    }

    /// Adds an entry with its definition, which is checked as the server checks it: one that would be refused is left
    /// out.
    pub(super) fn add(&mut self, mut entry: Entry, job: Map<String, Value>) {
        let job = Value::Object(job);
        let wrong = wrong(&job);
        if wrong.is_empty() {
            entry.job = Some(job);
        } else {
            entry.reasons(wrong);
        }
        self.entries.push(entry);
    }

    /// Adds an entry without a definition.
    pub(super) fn leave_out(&mut self, mut entry: Entry, why: impl Into<String>) {
        entry.reasons(vec![why.into()]);
        self.entries.push(entry);
    }

    /// Puts all jobs in shadow mode, in which they send nothing.
    pub(super) fn put_in_shadow(&mut self) {
        for job in self.entries.iter_mut().filter_map(|entry| entry.job.as_mut()?.as_object_mut()) {
            job.insert("mode".to_owned(), Value::from("shadow"));
        }
    }

    /// The definitions as a file for `rondel job apply`.
    pub(super) fn yaml(&self) -> String {
        let jobs = self.entries.iter().filter_map(|entry| entry.job.as_ref()?.as_object());
        let items: Vec<Vec<(&str, &Value)>> =
            jobs.map(|job| FIELDS.iter().filter_map(|field| Some((*field, job.get(*field)?))).collect()).collect();
        yaml::write(&items)
    }

    /// The whole report as JSON.
    pub(super) fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Counts the entries of each kind.
    pub(super) fn sums(&self) -> String {
        let jobs = || self.entries.iter().filter(|entry| entry.is_job());
        let left_out = jobs().filter(|entry| entry.is_left_out()).count();
        let noted = jobs().filter(|entry| !entry.is_left_out() && !entry.notes.is_empty()).count();
        let plain = jobs().count() - left_out - noted;
        let mut sums = format!(
            "{}: {plain} as they were, {noted} with notes, {left_out} left out",
            counted(jobs().count(), "job")
        );
        for (subject, word) in [(Subject::Group, "group"), (Subject::User, "user")] {
            let count = self.entries.iter().filter(|entry| entry.subject == subject).count();
            if count > 0 {
                write!(sums, "; {}", counted(count, word)).ok();
            }
        }
        sums
    }

    /// A shell script for what no definition can hold; empty if there is nothing to do.
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

    /// The report as text: the sums, the remarks, and a line for each note.
    pub(super) fn text(&self, from: &str) -> String {
        let mut text = self.sums().replacen(':', &format!(" from {}:", harmless(from)), 1) + "\n";
        for remark in &self.remarks {
            writeln!(text, "  {}", harmless(remark)).ok();
        }
        for entry in &self.entries {
            for note in &entry.notes {
                let (_, word) = entry.word(note);
                writeln!(
                    text,
                    "  {} ({}): {word}: {}",
                    harmless(entry.name()),
                    harmless(&entry.from),
                    harmless(&note.text)
                )
                .ok();
            }
        }
        text.push_str(
            "compare the definitions with a server by rondel job plan -f FILE, save them by rondel job apply -f FILE",
        );
        text
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
pub(super) fn wrong(job: &Value) -> Vec<String> {
    let line = |pointer: &str, message: &str| format!("{pointer}: {message}");
    match shape::read::<JobSpec>(job.clone().into()) {
        Err(misfit) => misfit.errors.iter().map(|error| line(&error.pointer, &error.message)).collect(),
        Ok(spec) => {
            let errors: Vec<FieldError> = spec.compile().err().unwrap_or_default();
            errors.iter().map(|error| line(&error.pointer, &error.message)).collect()
        }
    }
}

/// Quotes any text as one word of a shell.
pub(super) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", harmless(text).replace('\'', "'\\''"))
}

/// Turns any text into a name; never empty.
pub(super) fn slug(text: &str) -> String {
    let mut slug = String::new();
    for c in text.chars().flat_map(char::to_lowercase) {
        match c {
            'a'..='z' | '0'..='9' | '.' | '_' => slug.push(c),
            _ if slug.ends_with('-') => {}
            _ => slug.push('-'),
        }
    }
    let slug: String = slug.trim_matches(['-', '.', '_']).chars().take(STEM_LEN_MAX).collect();
    if slug.is_empty() { "job".to_owned() } else { slug }
}

/// Maximum length of the part of a name that is made of a text; a hash or a number may follow.
const STEM_LEN_MAX: usize = NAME_LEN_MAX - 10;

/// Whether a name cannot hold all of a text.
fn is_cut(text: &str) -> bool {
    text.trim().chars().count() > STEM_LEN_MAX
}

/// FNV-1a: a text has the same hash in each import.
pub(super) fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(name: &str) -> Map<String, Value> {
        json!({"name": name, "app": "a", "handler": "h"}).as_object().cloned().unwrap()
    }

    #[test]
    fn names_are_made_of_any_text_and_each_once() {
        let mut found = Found::default();
        for (text, name) in [
            ("Backup.SH", "backup.sh"),
            ("backup.sh", "backup.sh-HASH"),
            ("每晚结算", "job"),
            ("  --x__", "x"),
            ("new", "new"),
            ("", "job-HASH"),
            (&"a".repeat(300), &format!("{}-HASH", "a".repeat(90))),
        ] {
            let expected = name.replace("HASH", &format!("{:08x}", hash(text)));
            let given = found.name(text, text);
            assert_eq!(given, expected, "{text:?}");
            assert!(given.len() <= NAME_LEN_MAX, "{given}");
        }
    }

    #[test]
    fn long_names_keep_the_id_whatever_else_is_there() {
        let long = "a".repeat(95);
        let mut both = Found::default();
        let names = [both.name_with_id(&long, "1"), both.name_with_id(&long, "2147483647")];
        assert_eq!(Found::default().name_with_id(&long, "2147483647"), names[1], "without the first one, too");
        assert!(names[0].ends_with("a-1") && names[1].ends_with("a-2147483647"), "{names:?}");
        for name in names {
            rondel_core::name::check(&name).unwrap();
        }
        assert_eq!(Found::default().name_with_id("数据", "7"), "job-7");
    }

    #[test]
    fn what_the_server_would_refuse_is_left_out_and_said() {
        let mut found = Found::default();
        found.add(Entry::new("line 1", "good"), job("good"));
        found.add(Entry::new("line 2", "Bad"), job("Bad"));
        let mut noted = Entry::new("line 3", "noted");
        noted.changed("something");
        found.add(noted, job("noted"));
        assert_eq!(found.yaml().matches("- name:").count(), 2);
        let text = found.text("a\u{1b}file");
        assert!(
            text.starts_with("3 jobs from ") && text.contains("1 as they were, 1 with notes, 1 left out"),
            "{text}"
        );
        assert!(
            text.contains("Bad (line 2): left out: /name: \"Bad\" is not a name") && !text.contains('\u{1b}'),
            "{text}"
        );
        assert!(text.contains("noted (line 3): changed: something"), "{text}");
        let json: Value = serde_json::from_str(&found.json()).unwrap();
        assert_eq!(json["entries"][1]["notes"][0]["kind"], "not_supported");
    }
}
