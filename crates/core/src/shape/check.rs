//! Compares a document with its schema, value by value.

use serde_json::{Map, Value, json};
use strsim::osa_distance;

use super::expected::{
    admits, allowed_words, branches, describe_value, expected, integer_bounds, is_duration, is_instant, quoted, resolve,
};
use super::{ERROR_COUNT_MAX, ErrorKind, ShapeError, push};
use crate::time::{Timestamp, parse_duration};

/// How many letters of a suggested word may differ.
const DISTANCE_MAX: usize = 2;
/// Maximum nesting depth of a placeholder.
const PLACEHOLDER_DEPTH_MAX: usize = 8;

/// Collects errors, and replaces wrong values in the document by placeholders.
pub(super) struct Checker<'s> {
    root: &'s Value,
    duplicates: &'s [String],
    pointer: String,
    errors: Vec<ShapeError>,
    error_count: usize,
}

impl<'s> Checker<'s> {
    pub(super) fn new(root: &'s Value, duplicates: &'s [String]) -> Self {
        Self { root, duplicates, pointer: String::new(), errors: Vec::new(), error_count: 0 }
    }

    pub(super) fn into_errors(self) -> (Vec<ShapeError>, usize) {
        (self.errors, self.error_count)
    }

    /// Whether the value itself fits. Wrong values inside it do not count, because they are replaced by placeholders.
    pub(super) fn check(&mut self, schema: &'s Value, value: &mut Value) -> bool {
        let schema = resolve(self.root, schema);
        if !admits(self.root, schema, value) {
            let message = format!("expected {}, found {}", expected(self.root, schema), describe_value(value));
            return self.refuse(ErrorKind::InvalidValue, message);
        }
        let known_words = allowed_words(self.root, schema);
        if let (Some(word), false) = (value.as_str(), known_words.is_empty()) {
            return known_words.contains(&word) || {
                let message = format!(
                    "expected {}, found {}{}",
                    expected(self.root, schema),
                    quoted(word),
                    closest_word(word, &known_words)
                );
                self.refuse(ErrorKind::InvalidValue, message)
            };
        }
        match branches(schema) {
            Some(branches) => self.check_choice(branches, value),
            None => self.check_schema(schema, value),
        }
    }

    fn check_schema(&mut self, schema: &'s Value, value: &mut Value) -> bool {
        match value {
            Value::Object(fields) => {
                self.check_fields(schema, fields);
                true
            }
            Value::Array(items) => {
                if let Some(item_schema) = schema.get("items") {
                    for (index, item) in items.iter_mut().enumerate() {
                        if !self.within(&index.to_string(), |checker| checker.check(item_schema, item)) {
                            *item = placeholder_value(self.root, item_schema, 0);
                        }
                    }
                }
                true
            }
            Value::String(text) => {
                let format_error = if is_duration(schema) {
                    parse_duration(text).err()
                } else if is_instant(schema) {
                    text.parse::<Timestamp>().err()
                } else {
                    None
                };
                // The message of `error` repeats the whole text, which may be long.
                format_error.is_none_or(|error| {
                    let message = if text.len() > 100 {
                        format!("expected {}, found {}", expected(self.root, schema), quoted(text))
                    } else {
                        error.to_string()
                    };
                    self.refuse(ErrorKind::InvalidValue, message)
                })
            }
            Value::Number(number) => {
                let value = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
                let is_inside =
                    integer_bounds(schema).zip(value).is_none_or(|((min, max), value)| (min..=max).contains(&value));
                is_inside || {
                    let message = format!("expected {}, found the number {number}", expected(self.root, schema));
                    self.refuse(ErrorKind::InvalidValue, message)
                }
            }
            Value::Null | Value::Bool(_) => true,
        }
    }

    /// Checks the value against the branch of an `anyOf` or `oneOf` that the document's author meant. If that branch is not
    /// clear, the value passes here, and deserialization decides.
    fn check_choice(&mut self, branches: &'s [Value], value: &mut Value) -> bool {
        let mut branch_iter = branches.iter().filter(|branch| admits(self.root, branch, value));
        if let (Some(only_branch), None) = (branch_iter.next(), branch_iter.next()) {
            return self.check(only_branch, value);
        }
        let admitting_branches = branches.iter().filter(|branch| admits(self.root, branch, value));
        let tags_and_schemas: Option<Vec<(&str, &Value)>> =
            admitting_branches.map(|branch| tag_field(resolve(self.root, branch))).collect();
        let (Some(tags_and_schemas), Value::Object(fields)) = (tags_and_schemas, value) else { return true };
        let names: Vec<&str> = tags_and_schemas.iter().map(|(name, _)| *name).collect();
        let mut keys = fields.iter_mut();
        let (Some((key, value_below)), None) = (keys.next(), keys.next()) else {
            let message = format!("expected an object with exactly one of the fields {}", names.join(", "));
            return self.refuse(ErrorKind::InvalidValue, message);
        };
        match tags_and_schemas.iter().find(|(name, _)| name == key) {
            Some((_, schema)) => self.within(key, |checker| checker.check(schema, value_below)),
            None => {
                let message = unknown_field_message(key, &names);
                self.within(key, |checker| checker.refuse(ErrorKind::UnknownField, message))
            }
        }
    }

    fn check_fields(&mut self, schema: &'s Value, fields: &mut Map<String, Value>) {
        let Some(Value::Object(properties)) = schema.get("properties") else {
            if let Some(value_schema @ Value::Object(_)) = schema.get("additionalProperties") {
                for (key, value) in fields.iter_mut() {
                    if !self.within(key, |checker| checker.check(value_schema, value)) {
                        *value = placeholder_value(self.root, value_schema, 0);
                    }
                }
            }
            return;
        };
        self.check_duplicates();
        if schema.get("additionalProperties") == Some(&Value::Bool(false)) {
            let names: Vec<&str> = properties.keys().map(String::as_str).collect();
            let unknown_keys: Vec<String> =
                fields.keys().filter(|key| !properties.contains_key(*key)).cloned().collect();
            for key in unknown_keys {
                fields.remove(&key);
                let message = unknown_field_message(&key, &names);
                self.within(&key, |checker| checker.refuse(ErrorKind::UnknownField, message));
            }
        }
        let required = schema.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let missing_fields: Vec<_> = required
            .iter()
            .filter_map(|key| properties.get_key_value(key.as_str()?))
            .filter(|(key, _)| !fields.contains_key(*key))
            .collect();
        for (key, field_schema) in missing_fields {
            let message = format!("required field {key:?} is missing; expected {}", expected(self.root, field_schema));
            self.within(key, |checker| checker.refuse(ErrorKind::MissingField, message));
            fields.insert(key.clone(), placeholder_value(self.root, field_schema, 0));
        }
        for (key, field_schema) in properties {
            let Some(value) = fields.get_mut(key) else { continue };
            if self.within(key, |checker| checker.check(field_schema, value)) {
                continue;
            }
            if required.iter().any(|name| name == key) {
                *value = placeholder_value(self.root, field_schema, 0);
            } else {
                fields.remove(key);
            }
        }
    }

    /// Reports keys that this object contains twice. Only objects with known fields are checked: in free-form parameters, the last
    /// of two equal keys counts.
    fn check_duplicates(&mut self) {
        let duplicate_pointers: Vec<&String> = self
            .duplicates
            .iter()
            .filter(|pointer| pointer.rsplit_once('/').is_some_and(|(parent, _)| parent == self.pointer))
            .collect();
        for pointer in duplicate_pointers {
            let message = "the field is given more than once; keep one of them".to_owned();
            self.error_count += 1;
            self.errors.push(ShapeError { pointer: pointer.clone(), kind: ErrorKind::DuplicateField, message });
        }
    }

    fn within<T>(&mut self, key: &str, check: impl FnOnce(&mut Self) -> T) -> T {
        let len = self.pointer.len();
        push(&mut self.pointer, key);
        let result = check(self);
        self.pointer.truncate(len);
        result
    }

    fn refuse(&mut self, kind: ErrorKind, message: String) -> bool {
        self.error_count += 1;
        if self.errors.len() < ERROR_COUNT_MAX {
            self.errors.push(ShapeError { pointer: self.pointer.clone(), kind, message });
        }
        false
    }
}

/// The field by which a branch can be recognized, with its schema: the branch has no other field, and requires this one.
fn tag_field(branch: &Value) -> Option<(&str, &Value)> {
    let mut fields = branch.get("properties")?.as_object()?.iter();
    let (Some((name, schema)), None) = (fields.next(), fields.next()) else { return None };
    let required = branch.get("required")?.as_array()?;
    required.iter().any(|field| field == name).then_some((name.as_str(), schema))
}

fn unknown_field_message(key: &str, known_keys: &[&str]) -> String {
    let fields = if known_keys.is_empty() { "there are none".to_owned() } else { known_keys.join(", ") };
    format!("unknown field {}{}; known fields: {fields}", quoted(key), closest_word(key, known_keys))
}

/// A clause that suggests the known word closest to `word`; empty if no word is close enough.
fn closest_word(word: &str, known_words: &[&str]) -> String {
    let len = word.chars().count();
    if len > 100 {
        return String::new();
    }
    let distance = |known_word: &&str| osa_distance(&word.to_ascii_lowercase(), known_word);
    let closest_word = known_words.iter().map(|known_word| (distance(known_word), known_word)).min();
    match closest_word {
        Some((distance, closest)) if distance <= DISTANCE_MAX.min(len / 2) => format!("; did you mean {closest:?}?"),
        _ => String::new(),
    }
}

/// A value of the right shape for a field whose value is wrong or missing.
fn placeholder_value(root: &Value, schema: &Value, depth: usize) -> Value {
    let schema = resolve(root, schema);
    if let Some(word) = allowed_words(root, schema).first() {
        return json!(word);
    }
    if depth == PLACEHOLDER_DEPTH_MAX {
        return Value::Null;
    }
    if let Some(branches) = branches(schema) {
        return branches.first().map(|branch| placeholder_value(root, branch, depth + 1)).unwrap_or_default();
    }
    let kind = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.first().and_then(Value::as_str),
        other => other.and_then(Value::as_str),
    };
    match kind {
        Some("string") if is_duration(schema) => json!("1s"),
        Some("string") if is_instant(schema) => json!("2100-01-01T00:00:00Z"),
        Some("string") => json!("x"),
        Some("integer" | "number") => json!(1),
        Some("boolean") => json!(false),
        Some("array") => json!([]),
        Some("object") => {
            let required = schema.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let field = |name: &Value| {
                let name = name.as_str()?;
                let field_schema = schema.get("properties")?.get(name)?;
                Some((name.to_owned(), placeholder_value(root, field_schema, depth + 1)))
            };
            required.iter().filter_map(field).collect::<Map<_, _>>().into()
        }
        _ => Value::Null,
    }
}
