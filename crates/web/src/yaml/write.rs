//! Writes YAML that is easy to read, and that [`super::documents`] reads back as the same values.

use rondel_core::plain::is_control_or_invisible;
use serde_json::Value;

use super::scalar;

/// Writes a list of objects as a YAML document, with their fields in the given order.
#[must_use]
pub fn write(items: &[Vec<(&str, &Value)>]) -> String {
    if items.is_empty() {
        return "[]\n".to_owned();
    }
    let mut yaml = String::new();
    for item in items {
        for (index, (key, value)) in item.iter().enumerate() {
            yaml.push_str(if index == 0 { "- " } else { "  " });
            write_field(&mut yaml, key, value, 2);
        }
    }
    yaml
}

/// Writes any value as a YAML document.
#[must_use]
pub fn write_value(value: &Value) -> String {
    let mut yaml = String::new();
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                write_field(&mut yaml, key, value, 0);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                yaml.push_str("- ");
                write_entry(&mut yaml, item, 2);
            }
        }
        value => {
            write_inline(&mut yaml, value, None);
            yaml.push('\n');
        }
    }
    yaml
}

/// Writes `key: value` at the current position, which is already indented by `indent`.
fn write_field(yaml: &mut String, key: &str, value: &Value, indent: usize) {
    write_text(yaml, key, None);
    yaml.push(':');
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            yaml.push('\n');
            for (key, value) in fields {
                write_indent(yaml, indent + 2);
                write_field(yaml, key, value, indent + 2);
            }
        }
        Value::Array(items) if !items.is_empty() && items.iter().any(|item| item.is_object() || item.is_array()) => {
            yaml.push('\n');
            for item in items {
                write_indent(yaml, indent + 2);
                yaml.push_str("- ");
                write_entry(yaml, item, indent + 4);
            }
        }
        value => {
            yaml.push(' ');
            write_inline(yaml, value, Some(indent + 2));
            yaml.push('\n');
        }
    }
}

/// Writes an entry of a list, after its `- `.
fn write_entry(yaml: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (index, (key, value)) in fields.iter().enumerate() {
                if index > 0 {
                    write_indent(yaml, indent);
                }
                write_field(yaml, key, value, indent);
            }
        }
        value => {
            write_inline(yaml, value, None);
            yaml.push('\n');
        }
    }
}

/// Writes a value on one line. If `block` has an indentation, a text of several lines is written as a block instead.
fn write_inline(yaml: &mut String, value: &Value, block: Option<usize>) {
    match value {
        Value::String(text) => write_text(yaml, text, block),
        Value::Array(items) => {
            yaml.push('[');
            for (index, item) in items.iter().enumerate() {
                yaml.push_str(if index > 0 { ", " } else { "" });
                write_inline(yaml, item, None);
            }
            yaml.push(']');
        }
        Value::Object(fields) => {
            yaml.push('{');
            for (index, (key, value)) in fields.iter().enumerate() {
                yaml.push_str(if index > 0 { ", " } else { "" });
                write_text(yaml, key, None);
                yaml.push_str(": ");
                write_inline(yaml, value, None);
            }
            yaml.push('}');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => yaml.push_str(&value.to_string()),
    }
}

fn write_text(yaml: &mut String, text: &str, block: Option<usize>) {
    match block {
        Some(indent) if is_block(text) => write_block(yaml, text, indent),
        _ if is_plain(text) => yaml.push_str(text),
        _ => write_quoted(yaml, text),
    }
}

fn write_block(yaml: &mut String, text: &str, indent: usize) {
    let body = text.strip_suffix('\n');
    yaml.push_str(if body.is_some() { "|" } else { "|-" });
    for line in body.unwrap_or(text).split('\n') {
        yaml.push('\n');
        if !line.is_empty() {
            write_indent(yaml, indent);
            yaml.push_str(line);
        }
    }
}

/// Whether a text of several lines can be written as a block: it must have no invisible characters, and no spaces that a block would
/// lose.
fn is_block(text: &str) -> bool {
    let body = text.strip_suffix('\n').unwrap_or(text);
    let is_shown = |c: char| c == '\n' || c == '\t' || !is_control_or_invisible(c);
    let mut lines = body.split('\n');
    let starts_with_text = lines.next().is_some_and(|first| !first.is_empty() && !first.starts_with([' ', '\t']));
    body.contains('\n')
        && starts_with_text
        && !body.ends_with('\n')
        && text.chars().all(is_shown)
        && body.split('\n').all(|line| !line.ends_with([' ', '\t']))
}

/// Whether a text keeps its meaning without quotes, even within a list.
fn is_plain(text: &str) -> bool {
    let starts_plain = text.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_'))
        || text.strip_prefix('<').is_some_and(|rest| rest == "<");
    let is_plain_inside = |c: char| {
        c.is_alphanumeric()
            || matches!(c, ' ' | '/' | '.' | '_' | '-' | '*' | '?' | '=' | '@' | '+' | '(' | ')' | ';' | '%')
    };
    let is_word = scalar::parse_plain(text).is_ok_and(|value| value.is_string());
    starts_plain && text.chars().all(is_plain_inside) && !text.ends_with(' ') && is_word && !text.contains("  ")
}

/// Writes a text in double quotes. Escapes are those of JSON, except for characters beyond 16 bits, which are escaped as in YAML.
fn write_quoted(yaml: &mut String, text: &str) {
    yaml.push('"');
    for c in text.chars() {
        match c {
            '"' => yaml.push_str("\\\""),
            '\\' => yaml.push_str("\\\\"),
            '\n' => yaml.push_str("\\n"),
            '\t' => yaml.push_str("\\t"),
            '\r' => yaml.push_str("\\r"),
            c if is_control_or_invisible(c) => match u32::from(c) {
                code @ ..=0xffff => yaml.push_str(&format!("\\u{code:04X}")),
                code => yaml.push_str(&format!("\\U{code:08X}")),
            },
            c => yaml.push(c),
        }
    }
    yaml.push('"');
}

fn write_indent(yaml: &mut String, indent: usize) {
    yaml.extend(std::iter::repeat_n(' ', indent));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::yaml::documents;

    fn yaml_text(value: &Value) -> String {
        write(&[value.as_object().unwrap().iter().map(|(key, value)| (key.as_str(), value)).collect()])
    }

    #[track_caller]
    fn check(value: &Value) {
        let text = yaml_text(value);
        let read: Vec<Value> = documents(&text)
            .unwrap_or_else(|error| panic!("{error}\n{text}"))
            .iter()
            .map(|node| node.value())
            .collect();
        assert_eq!(read, [json!([value])], "{text}");
    }

    #[test]
    fn it_reads_well() {
        let value = json!({
            "name": "report.daily", "params": {"script": "echo one\necho two\n", "argv": ["a", "b c", "-x", "1"]},
            "schedule": [{"cron": "0 30 2 * * ?", "time_zone": "Asia/Shanghai"}, {"every": "5s"}], "text": "日报",
        });
        assert_eq!(
            yaml_text(&value),
            "- name: report.daily\n  params:\n    argv: [a, b c, \"-x\", \"1\"]\n    script: |\n      echo one\n      echo two\n  \
             schedule:\n    - cron: 0 30 2 * * ?\n      time_zone: Asia/Shanghai\n    - every: 5s\n  text: 日报\n"
        );
        check(&value);
        assert_eq!(write(&[]), "[]\n");
    }

    #[test]
    fn texts_survive() {
        for it in [
            "",
            " ",
            "a ",
            " a",
            "null",
            "true",
            "1",
            "1.0",
            "-",
            "- a",
            "a: b",
            "a #b",
            "#",
            "'",
            "\"",
            "a\\b",
            "|",
            ">",
            "@",
            "`",
            "%a",
            "a\nb",
            "a\nb\n",
            "a\n\nb\n\n",
            "\na",
            " a\nb",
            "a \nb",
            "a\tb",
            "a\r\nb",
            "\u{0}",
            "\u{7f}",
            "\u{85}",
            "\u{2028}",
            "\u{feff}a",
            "a\u{200d}b",
            "a\u{e0041}b",
            "🦀",
            "~",
            "0x1f",
            "[a]",
            "{a}",
            "*a",
            "&a",
            "!a",
            "?",
            "? a",
            "<<",
            "=",
            "2026-01-01",
            "a  b",
            "---",
            "...",
            "\t",
            "#!/bin/sh\nset -e\n  indented\n",
            "#!/bin/sh\n# a: b\n\"quoted\"\n",
        ] {
            check(&json!({"a": it, "b": [it], "c": {"d": it}, "e": [{"f": it}], "g": [[it]]}));
            if !it.is_empty() && it != "<<" {
                check(&json!({ it: 1, "x": {it: 2} }));
            }
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[ -~\n]{0,40}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map("[a-z ]{1,6}", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn written_values_are_read_back(value in any_value()) {
            check(&json!({ "value": value }));
            let text = write_value(&value);
            let read: Vec<Value> = documents(&text).unwrap().iter().map(|node| node.value()).collect();
            // A document that consists of null is treated as empty.
            if value.is_null() { prop_assert!(read.is_empty()) } else { prop_assert_eq!(read, [value], "{}", text) }
        }
    }
}
