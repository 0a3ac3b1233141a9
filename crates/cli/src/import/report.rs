//! The report of an import as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rondel_core::words::counted;

use super::result::{Entry, ImportResult, Subject};
use crate::terminal::harmless_text;

/// If more than this many jobs have the same note, the report prints the note once.
const SAME_NOTE_MAX: usize = 3;
/// Maximum number of jobs that are named on the line of a note that many jobs have.
const NAME_COUNT_MAX: usize = 3;

/// The names of the jobs with each note, keyed by the kind and the text of the note.
type Notes<'a> = BTreeMap<(&'static str, &'a str), Vec<&'a str>>;

impl ImportResult {
    /// The whole report as JSON.
    pub(super) fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Counts the entries of each kind.
    pub(super) fn counts_text(&self) -> String {
        let jobs = || self.entries.iter().filter(|entry| entry.is_job());
        let left_out_count = jobs().filter(|entry| entry.is_left_out()).count();
        let noted_count = jobs().filter(|entry| !entry.is_left_out() && !entry.notes.is_empty()).count();
        let unchanged_count = jobs().count() - left_out_count - noted_count;
        let mut text = format!(
            "{}: {unchanged_count} as they were, {noted_count} with notes, {left_out_count} left out",
            counted(jobs().count(), "job")
        );
        for (subject, noun) in [(Subject::Group, "group"), (Subject::User, "user")] {
            let count = self.entries.iter().filter(|entry| entry.subject == subject).count();
            if count > 0 {
                write!(text, "; {}", counted(count, noun)).ok();
            }
        }
        text
    }

    /// The report as text: the sums, the remarks, a line for each note and, at the end, one line for each note that many
    /// jobs have.
    pub(super) fn text(&self, source: &str) -> String {
        let mut text = self.counts_text().replacen(':', &format!(" from {}:", harmless_text(source)), 1) + "\n";
        for remark in &self.remarks {
            writeln!(text, "  {}", harmless_text(remark)).ok();
        }
        let shared_notes = self.shared_notes();
        for entry in &self.entries {
            for note in &entry.notes {
                let (_, word) = entry.class_and_word(note);
                if !shared_notes.contains_key(&(word, &note.text)) {
                    let (name, entry_source) = (harmless_text(entry.name()), harmless_text(&entry.from));
                    writeln!(text, "  {name} ({entry_source}): {word}: {}", harmless_text(&note.text)).ok();
                }
            }
        }
        for ((word, note), jobs) in shared_notes {
            writeln!(
                text,
                "  {} ({}): {word}: {}",
                counted(jobs.len(), "job"),
                first_names(&jobs),
                harmless_text(note)
            )
            .ok();
        }
        text.push_str(
            "compare the definitions with a server by rondel job plan -f FILE, save them by rondel job apply -f FILE",
        );
        text
    }

    /// The notes that more than [`SAME_NOTE_MAX`] imported jobs have. A job that is left out keeps lines of its own.
    fn shared_notes(&self) -> Notes<'_> {
        let mut notes = Notes::new();
        let is_imported = |entry: &&Entry| entry.is_job() && !entry.is_left_out();
        for entry in self.entries.iter().filter(is_imported) {
            for note in &entry.notes {
                let (_, word) = entry.class_and_word(note);
                let jobs = notes.entry((word, &note.text)).or_default();
                if jobs.last() != Some(&entry.name()) {
                    jobs.push(entry.name());
                }
            }
        }
        notes.retain(|_, jobs| jobs.len() > SAME_NOTE_MAX);
        notes
    }
}

/// The first names of a list.
fn first_names(names: &[&str]) -> String {
    let ellipsis = if names.len() > NAME_COUNT_MAX { ", …" } else { "" };
    let shown_names: Vec<_> = names.iter().take(NAME_COUNT_MAX).map(|name| harmless_text(name)).collect();
    shown_names.join(", ") + ellipsis
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_note_that_many_jobs_have_is_one_line_of_the_text_and_whole_in_the_json() {
        let mut result = ImportResult::default();
        for name in ["a", "b", "c", "d"] {
            let mut entry = Entry::new(format!("line {name}"), name);
            entry.note_change("its zone");
            if name != "d" {
                entry.note_change("its user");
            }
            let job = json!({"name": name, "app": "x", "handler": "h"});
            result.add(entry, job.as_object().cloned().unwrap());
        }
        for line in 0..5 {
            result.leave_out(Entry::new(format!("line {line}"), "gone"), "has no command");
        }
        let text = result.text("x");
        assert!(text.contains("  4 jobs (a, b, c, …): changed: its zone\n"), "{text}");
        assert_eq!((text.matches("its zone").count(), text.matches("its user").count()), (1, 3), "{text}");
        assert_eq!(text.matches("left out: has no command").count(), 5, "each has its line: {text}");
        assert_eq!(result.json().matches("its zone").count(), 4);
    }
}
