//! The errors in the form of an alert rule: each at its field, with the field's label.

use std::collections::BTreeMap;

use rondel_core::words::Lang;

use super::sentences::localized;
use super::texts::Texts;
use crate::problem::Problem;

/// Errors in the reader's language.
#[derive(Debug, Default)]
pub(super) struct RuleErrors {
    /// The lines at the top of the form. A line about a field begins with the field's label.
    pub(super) lines: Vec<String>,
    fields: BTreeMap<&'static str, String>,
}

impl RuleErrors {
    pub(super) fn of_problem(problem: &Problem, t: &Texts) -> Self {
        let lang = t.lang();
        let mut errors = Self::default();
        for complaint in problem.complaints() {
            let message = localized(lang, &complaint.message);
            let pointer = complaint.pointer.as_deref().unwrap_or_default();
            match form_field(pointer, t) {
                Some((name, label)) => errors.add((name, label), &message, lang),
                None => errors.lines.push(message.into_owned()),
            }
        }
        if errors.lines.is_empty() {
            errors.lines.push(localized(lang, problem.detail()).into_owned());
        }
        errors
    }

    pub(super) fn of_name(message: &str, t: &Texts) -> Self {
        let mut errors = Self::default();
        errors.add(("name", t.field_name), message, t.lang());
        errors
    }

    fn add(&mut self, (name, label): (&'static str, &str), message: &str, lang: Lang) {
        let colon = if lang == Lang::Zh { "：" } else { ": " };
        self.lines.push(format!("{label}{colon}{message}"));
        self.fields.entry(name).or_insert_with(|| message.to_owned());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The error in a field.
    pub(super) fn of(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }
}

/// The field of the form that shows this place in the document, and its label.
fn form_field<'t>(pointer: &str, t: &'t Texts) -> Option<(&'static str, &'t str)> {
    let mut segments = pointer.trim_start_matches('/').split('/');
    let last_segment = pointer.rsplit('/').next().unwrap_or_default();
    Some(match (segments.next()?, last_segment) {
        ("name", _) => ("name", t.field_name),
        ("description", _) => ("description", t.alerts_description),
        ("scope", "job") => ("scope_job", t.col_job),
        ("scope", "app") => ("scope_app", t.alerts_app),
        ("scope", "label") => ("scope_label", t.alerts_scope_label),
        ("scope", _) => ("scope", t.alerts_scope),
        ("channels", _) => ("channels", t.alerts_channels),
        ("repeat", _) => ("repeat", t.alerts_repeat),
        ("digest", _) => ("digest", t.alerts_digest),
        ("group_over", _) => ("group_over", t.alerts_group),
        ("escalate", "after") => ("escalate_after", t.alerts_escalate_after),
        ("escalate", _) => ("escalate_to", t.alerts_escalate),
        ("condition", "count") => ("count", t.alerts_times),
        ("condition", "percent") => ("percent", t.alerts_percent),
        ("condition", "window") => ("window", t.alerts_window),
        ("condition", "min_runs") => ("min_runs", t.alerts_min_runs),
        ("condition", "reasons") => ("reasons", t.alerts_reasons),
        ("condition", "time") => ("time", t.alerts_time),
        ("condition", "zone") => ("zone", t.alerts_zone),
        ("condition", "weekdays") => ("weekdays", t.alerts_days),
        ("condition", "calendar") => ("calendar", t.alerts_calendar),
        ("condition", "times_p95") => ("times_p95", t.alerts_p95),
        ("condition", "handler") => ("handler", t.alerts_handler),
        ("condition", "free" | "free_percent") => ("free", t.alerts_free),
        ("condition", "runs") => ("runs", t.alerts_growth_runs),
        ("condition", "by" | "length" | "than" | "within") => ("length", t.alerts_length),
        ("condition", _) => ("condition", t.alerts_when),
        _ => return None,
    })
}
