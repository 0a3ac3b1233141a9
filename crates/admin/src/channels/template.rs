//! Custom message templates, in a bounded subset of Jinja.
//!
//! A template can read values, loop and branch. It cannot define anything, repeat a text, or use a filter that lengthens texts. Therefore
//! no expression becomes longer than its inputs. Fuel bounds the number of steps, and [`OUTPUT_BYTES_MAX`] bounds the output.

use std::io::{self, Write};
use std::ops::Range;

use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, filters};
use rondel_core::error_chain::chain_in_one_line;
use rondel_core::notice::Notice;

/// Maximum length of a rendered text, in bytes.
const OUTPUT_BYTES_MAX: usize = 16 * 1024;
/// Maximum number of steps of one rendering.
const FUEL: u64 = 20_000;
const DEPTH_MAX: usize = 16;
/// The names of the values that [`context`] provides, for error messages.
const VALUE_NAMES: &str = "kind, severity, rule, condition, namespace, subject.kind, subject.name, summary, summary_en, summary_zh, \
                      description, started_at, at, count, samples and url";
/// The tags that a template may use.
const ALLOWED_TAGS: [&str; 6] = ["if", "elif", "else", "endif", "for", "endfor"];

pub(super) fn render(template: &str, notice: &Notice, url: Option<&str>) -> Result<String, String> {
    check_constructs(template)?;
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(DEPTH_MAX);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.add_filter("upper", filters::upper);
    environment.add_filter("lower", filters::lower);
    environment.add_filter("length", filters::length);
    environment.add_filter("trim", filters::trim);
    environment.add_filter("default", filters::default);
    environment.add_filter("first", filters::first);
    environment.add_filter("last", filters::last);
    let compiled = environment.template_from_str(template).map_err(|error| chain_in_one_line(&error))?;
    let mut output = BoundedWriter(Vec::new());
    match compiled.render_captured_to(context(notice, url), &mut output) {
        Ok(_) => {}
        Err(_) if output.0.len() >= OUTPUT_BYTES_MAX => {
            return Err(format!("makes a text of more than {OUTPUT_BYTES_MAX} bytes"));
        }
        Err(error) if error.kind() == ErrorKind::UndefinedError => {
            let expression = error.range().and_then(|range| expression_at(template, range)).unwrap_or_default();
            return Err(format!(
                "undefined value {expression:?} in a message of the kind {}; the values are {VALUE_NAMES}; some messages have no samples",
                notice.kind.as_str()
            ));
        }
        Err(error) => return Err(chain_in_one_line(&error)),
    }
    String::from_utf8(output.0).map_err(|error| error.to_string())
}

/// The expression at the range of an error. For `a.b.c`, the range covers only `.b.c`, so the name before the range is added.
fn expression_at(template: &str, range: Range<usize>) -> Option<&str> {
    let text_before = template.get(..range.start)?;
    let begin_index = text_before.trim_end_matches(|c: char| c.is_alphanumeric() || "_.[]".contains(c)).len();
    template.get(begin_index..range.end)
}

/// The values that a template can read.
fn context(notice: &Notice, url: Option<&str>) -> Value {
    let samples: Vec<_> = notice
        .samples
        .iter()
        .map(|sample| {
            serde_json::json!({
                "run": sample.run.to_string(),
                "job": sample.job,
                "fire_at": sample.fire_at.to_string(),
                "message": sample.message,
            })
        })
        .collect();
    Value::from_serialize(serde_json::json!({
        "kind": notice.kind,
        "severity": notice.severity,
        "rule": notice.rule,
        "condition": notice.condition,
        "namespace": notice.namespace,
        "subject": {"kind": notice.subject.kind, "name": notice.subject.name},
        "summary": notice.summary_en,
        "summary_en": notice.summary_en,
        "summary_zh": notice.summary_zh,
        "description": notice.description,
        "started_at": notice.started_at.to_string(),
        "at": notice.at.to_string(),
        "count": notice.count,
        "samples": samples,
        "url": url.unwrap_or_default(),
    }))
}

/// Refuses constructs that could make a text grow: tags that define something, recursive loops, and multiplication.
fn check_constructs(template: &str) -> Result<(), String> {
    let mut unread_text = template;
    while let Some(begin_index) =
        unread_text.find("{%").into_iter().chain(unread_text.find("{{")).chain(unread_text.find("{#")).min()
    {
        let (mark, after_mark) = unread_text[begin_index..].split_at(2);
        if mark == "{#" {
            unread_text = after_mark.split_once("#}").map_or("", |(_, rest)| rest);
            continue;
        }
        let (inside, after_tag) = split_at_end(after_mark, if mark == "{%" { "%}" } else { "}}" });
        let code = without_texts(inside);
        let first_word = code.trim_start_matches(['-', '+']).split_whitespace().next().unwrap_or_default();
        if mark == "{%" && !ALLOWED_TAGS.contains(&first_word) {
            return Err(format!("{{% {first_word} %}} cannot be used here; the tags are {}", ALLOWED_TAGS.join(", ")));
        }
        if code.contains('*') {
            return Err("multiplication cannot be used here".to_owned());
        }
        if code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "recursive") {
            return Err("recursive loops cannot be used here".to_owned());
        }
        unread_text = after_tag;
    }
    Ok(())
}

/// Splits the text at the first end mark outside quoted texts. Returns the parts before and after the mark; without a mark, the whole text and
/// an empty part.
fn split_at_end<'t>(text: &'t str, end_mark: &str) -> (&'t str, &'t str) {
    let mut quote = None;
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if is_escaped => is_escaped = false,
            (Some(_), '\\') => is_escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, _) if text[at..].starts_with(end_mark) => return (&text[..at], &text[at + end_mark.len()..]),
            (None, _) => {}
        }
    }
    (text, "")
}

/// Removes quoted texts, with their quotes.
fn without_texts(inside: &str) -> String {
    let mut code = String::with_capacity(inside.len());
    let mut quote = None;
    let mut is_escaped = false;
    for c in inside.chars() {
        match (quote, c) {
            _ if is_escaped => is_escaped = false,
            (Some(_), '\\') => is_escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, c) => code.push(c),
        }
    }
    code
}

/// A writer that accepts up to [`OUTPUT_BYTES_MAX`] bytes, and then fails.
struct BoundedWriter(Vec<u8>);

impl Write for BoundedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes_left = OUTPUT_BYTES_MAX.saturating_sub(self.0.len());
        if bytes_left == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let written_len = bytes.len().min(bytes_left);
        self.0.extend_from_slice(&bytes[..written_len]);
        Ok(written_len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::notices;
    use super::*;

    fn rendered(template: &str) -> Result<String, String> {
        render(template, &notices()[0], Some("https://rondel.example/x"))
    }

    #[test]
    fn values_loops_and_choices() {
        let text = rendered("{{ subject.name|upper }} {% if count > 1 %}{{ count }}{% else %}once{% endif %}").unwrap();
        assert_eq!(text, "NIGHTLY-CLOSE 3");
        let text = rendered("{% for sample in samples %}{{ loop.index }}:{{ sample.job }} {% endfor %}").unwrap();
        assert_eq!(text, "1:nightly-close 2:nightly-close ");
        assert_eq!(
            rendered("**{{ kind }}** {# a * b #}{{ '*' }} }} {{ url }}").unwrap(),
            "**firing** * }} https://rondel.example/x"
        );
    }

    #[track_caller]
    fn check_refused(template: &str, words: &str) {
        let refused = rendered(template).unwrap_err();
        assert!(refused.contains(words), "{template}: {refused}");
    }

    #[test]
    fn template_errors_are_named() {
        check_refused("{{ sumary }}", "undefined");
        check_refused(
            "{{ subject.nam }}",
            "undefined value \"subject.nam\" in a message of the kind firing; the values are kind,",
        );
        check_refused("{{ samples[2].message }}", "undefined value \"samples[2].message\"");
        check_refused("{% if %}", "syntax error");
        check_refused("{% for x in samples %}", "unexpected end");
        check_refused("{{ summary|nonsense }}", "unknown filter");
    }

    #[test]
    fn a_template_that_could_grow_or_run_for_long_is_refused() {
        check_refused("{% include 'x' %}", "cannot be used here");
        check_refused("{%- set a = 'x' -%}", "cannot be used here");
        check_refused("{%+set a = 'x' %}", "cannot be used here");
        check_refused("{% macro a() %}{% endmacro %}", "cannot be used here");
        check_refused("{% filter upper %}{% endfilter %}", "cannot be used here");
        check_refused("{% with a = summary %}{% endwith %}", "cannot be used here");
        check_refused("{{ 'x' * 1000000000 }}", "multiplication");
        check_refused("{{ '}}' * 1000000000 }}", "multiplication");
        check_refused("{{ \"\\\"\" * 1000000000 }}", "multiplication");
        check_refused("{% if 'x' * 1000000000 %}{% endif %}", "multiplication");
        check_refused("{% for x in [1] recursive %}{{ loop([x, x]) }}{% endfor %}", "recursive");
        check_refused("{{ range(1000000) }}", "unknown function");
        check_refused("{{ summary|replace('a', 'aaaaaaaaaa') }}", "unknown filter");
        let deep = "{% for a in 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' %}".repeat(4);
        let ends = "{% endfor %}".repeat(4);
        check_refused(&format!("{deep}{ends}"), "fuel");
        let long = format!(
            "{}{{{{ summary }}}}{}",
            "{% for a in 'xxxxxxxxxxxxxxxxxxxxxxxxxxx' %}".repeat(2),
            "{% endfor %}".repeat(2)
        );
        check_refused(&long, "more than 16384 bytes");
    }
}
