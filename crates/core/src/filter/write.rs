//! Writes filters in their canonical form.

use std::fmt;

use super::terms::{Filter, Key, LabelTerm, Text, ValueCondition};
use super::value::{Bound, InstantBound, LengthRange, Pattern, write_length};

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&terms(self).join(" "))
    }
}

pub(super) fn terms(filter: &Filter) -> Vec<String> {
    let mut terms = Vec::new();
    let name = |pattern: &Pattern| quoted(&pattern.0);
    push_values(&mut terms, Key::Is, &filter.states, ToString::to_string);
    terms.extend(filter.run_states.iter().map(|state| format!("{}:{state}", Key::Is)));
    push_values(&mut terms, Key::Status, &filter.statuses, ToString::to_string);
    push_values(&mut terms, Key::App, &filter.apps, name);
    push_values(&mut terms, Key::Job, &filter.jobs, name);
    terms.extend(filter.since.map(|bound| format!("since:{}", instant_value(bound))));
    terms.extend(filter.until.map(|bound| format!("until:{}", instant_value(bound))));
    push_values(&mut terms, Key::Executor, &filter.executors, name);
    push_values(&mut terms, Key::Trigger, &filter.triggers, ToString::to_string);
    push_lengths(&mut terms, Key::Duration, filter.duration);
    push_lengths(&mut terms, Key::Late, filter.late);
    terms.extend(filter.labels.iter().map(label_term));
    terms.extend(filter.texts.iter().map(text_term));
    terms
}

fn push_values<T>(terms: &mut Vec<String>, key: Key, condition: &ValueCondition<T>, write: impl Fn(&T) -> String) {
    for (negation, values) in [("", &condition.any), ("-", &condition.none)] {
        if !values.is_empty() {
            let values: Vec<String> = values.iter().map(&write).collect();
            terms.push(format!("{negation}{key}:{}", values.join(",")));
        }
    }
}

fn instant_value(bound: InstantBound) -> String {
    match bound {
        InstantBound::Ago(length) => write_length(length),
        InstantBound::Today => "today".to_owned(),
        InstantBound::Yesterday => "yesterday".to_owned(),
        InstantBound::Day(day) => day.to_string(),
        InstantBound::Local(local) => local.format("%Y-%m-%dT%H:%M:%S").to_string(),
        InstantBound::At(at) => at.to_string(),
    }
}

fn push_lengths(terms: &mut Vec<String>, key: Key, range: LengthRange) {
    let write = |sign: char, bound: Bound| {
        let equals_sign = if bound.is_inclusive { "=" } else { "" };
        format!("{key}:{sign}{equals_sign}{}", write_length(bound.length))
    };
    terms.extend(range.over.map(|bound| write('>', bound)));
    terms.extend(range.under.map(|bound| write('<', bound)));
}

fn label_term(term: &LabelTerm) -> String {
    let test_text = |test: &super::LabelTest| match &test.value {
        Some(value) => quoted(&format!("{}={value}", test.key)),
        None => quoted(&test.key),
    };
    let test_texts: Vec<String> = term.any.iter().map(test_text).collect();
    format!("{}label:{}", if term.is_not { "-" } else { "" }, test_texts.join(","))
}

fn text_term(text: &Text) -> String {
    let negation = if text.is_not { "-" } else { "" };
    let is_plain = !text.text.starts_with('-') && text.text.chars().all(|c| is_plain(c) && !matches!(c, ':' | '：'));
    if is_plain { format!("{negation}{}", text.text) } else { format!("{negation}{}", in_quotes(&text.text)) }
}

/// A value, in quotes if it could not be read back otherwise.
pub(super) fn quoted(value: &str) -> String {
    if value.chars().all(is_plain) { value.to_owned() } else { in_quotes(value) }
}

fn is_plain(c: char) -> bool {
    !c.is_whitespace() && !matches!(c, '"' | '\\' | ',' | '，')
}

fn in_quotes(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}
