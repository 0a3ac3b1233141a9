//! Describes in words which values a schema accepts, and a given value.

use serde_json::Value;

use crate::schema::DURATION_PATTERN;

/// The longest part of a text that a message repeats, in characters.
const SHOWN_LEN_MAX: usize = 80;

/// The schema that a `$ref` refers to; the schema itself if it has none.
pub(super) fn resolve<'s>(root: &'s Value, schema: &'s Value) -> &'s Value {
    let name = schema.get("$ref").and_then(Value::as_str).and_then(|reference| reference.strip_prefix("#/$defs/"));
    name.and_then(|name| root.get("$defs")?.get(name)).unwrap_or(schema)
}

/// The branches of an `anyOf` or `oneOf`.
pub(super) fn branches(schema: &Value) -> Option<&[Value]> {
    let branches = schema.get("anyOf").or_else(|| schema.get("oneOf"))?;
    branches.as_array().map(Vec::as_slice)
}

/// The words from which the value must be chosen; empty if it may be another string, or no string at all.
pub(super) fn allowed_words<'s>(root: &'s Value, schema: &'s Value) -> Vec<&'s str> {
    let schema = resolve(root, schema);
    if let Some(word) = schema.get("const").and_then(Value::as_str) {
        return vec![word];
    }
    if let Some(words) = schema.get("enum").and_then(Value::as_array) {
        return words.iter().filter_map(Value::as_str).collect();
    }
    let Some(branches) = branches(schema) else { return Vec::new() };
    let is_other_text = |branch: &&Value| admits_text(root, branch) && allowed_words(root, branch).is_empty();
    if branches.iter().any(|branch| is_other_text(&branch)) {
        return Vec::new();
    }
    branches.iter().flat_map(|branch| allowed_words(root, branch)).collect()
}

fn admits_text(root: &Value, schema: &Value) -> bool {
    admits(root, schema, &Value::String(String::new()))
}

/// Whether the schema admits the JSON type of the value.
pub(super) fn admits(root: &Value, schema: &Value, value: &Value) -> bool {
    let schema = resolve(root, schema);
    if let Some(branches) = branches(schema) {
        return branches.iter().any(|branch| admits(root, branch, value));
    }
    let is_of_kind = |kind: &str| match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    };
    match schema.get("type") {
        Some(Value::String(kind)) => is_of_kind(kind),
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).any(is_of_kind),
        _ => true,
    }
}

const OBJECT: &str = "an object";

/// What the schema expects: "a string", "one of first, last".
pub(super) fn expected(root: &Value, schema: &Value) -> String {
    let mut parts = alternatives(root, schema);
    if parts.iter().filter(|part| part.starts_with(OBJECT)).count() > 1 {
        // Listing the fields of several kinds of objects would hide the rest.
        parts.retain(|part| !part.starts_with(OBJECT));
        parts.insert(0, OBJECT.to_owned());
    }
    // `null` comes last, because it is the least likely intention.
    parts.sort_by_key(|part| part == "null");
    match parts.as_slice() {
        [] => "any JSON value".to_owned(),
        [part] => part.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

fn alternatives(root: &Value, schema: &Value) -> Vec<String> {
    let words = allowed_words(root, resolve(root, schema));
    if words.is_empty() {
        return kinds(root, schema, false);
    }
    let mut alternatives = vec![format!("{}{}", if words.len() > 1 { "one of " } else { "" }, words.join(", "))];
    alternatives.extend(kinds(root, schema, true));
    alternatives
}

/// What the types of a schema admit. Strings are left out with `without_texts`, for callers that list the admitted words themselves.
fn kinds(root: &Value, schema: &Value, without_texts: bool) -> Vec<String> {
    let schema = resolve(root, schema);
    if let Some(branches) = branches(schema) {
        let mut all_kinds = Vec::new();
        let of_branch = |branch| if without_texts { kinds(root, branch, true) } else { alternatives(root, branch) };
        for part in branches.iter().flat_map(of_branch) {
            if !all_kinds.contains(&part) {
                all_kinds.push(part);
            }
        }
        return all_kinds;
    }
    let kinds = match schema.get("type") {
        Some(Value::String(kind)) => vec![kind.as_str()],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    kinds
        .into_iter()
        .filter(|kind| !(without_texts && *kind == "string"))
        .map(|kind| type_words(kind, schema))
        .collect()
}

fn type_words(kind: &str, schema: &Value) -> String {
    match kind {
        "string" if is_duration(schema) => "a duration such as \"30s\" or \"1h30m\"".to_owned(),
        "string" if is_instant(schema) => "an instant such as \"2026-03-08T07:00:00Z\"".to_owned(),
        "string" => "a string".to_owned(),
        "boolean" => "true or false".to_owned(),
        "integer" => match integer_bounds(schema) {
            Some((min, max)) => {
                let limit = |name: &str| schema.get(name).and_then(Value::as_i64).map(i128::from);
                let (min, max) = (limit("minimum").unwrap_or(min), limit("maximum").unwrap_or(max));
                format!("a whole number from {min} to {max}")
            }
            None => "a whole number".to_owned(),
        },
        "number" => "a number".to_owned(),
        "array" => "an array".to_owned(),
        "object" => match required_fields(schema).as_slice() {
            [field] => format!("{OBJECT} with {field:?}"),
            [first, second] => format!("{OBJECT} with {first:?} and {second:?}"),
            _ => OBJECT.to_owned(),
        },
        other => other.to_owned(),
    }
}

/// The names of the required fields.
fn required_fields(schema: &Value) -> Vec<&str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

pub(super) fn is_duration(schema: &Value) -> bool {
    schema.get("pattern").and_then(Value::as_str) == Some(DURATION_PATTERN)
}

pub(super) fn is_instant(schema: &Value) -> bool {
    schema.get("format").and_then(Value::as_str) == Some("date-time")
}

/// The bounds of the integer type. Narrower ranges are checked later, with messages of their own.
pub(super) fn integer_bounds(schema: &Value) -> Option<(i128, i128)> {
    Some(match schema.get("format")?.as_str()? {
        "uint8" => (0, u8::MAX.into()),
        "uint16" => (0, u16::MAX.into()),
        "uint32" => (0, u32::MAX.into()),
        "uint64" | "uint" => (0, u64::MAX.into()),
        "int32" => (i32::MIN.into(), i32::MAX.into()),
        "int64" => (i64::MIN.into(), i64::MAX.into()),
        _ => return None,
    })
}

/// Describes a value in words: its type and, unless it is a list or an object, its content.
pub(super) fn describe_value(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the string {}", quoted(text)),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// A text in quotes, cut if it is long.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(SHOWN_LEN_MAX) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
