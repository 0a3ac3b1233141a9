//! Parameters as fields of a form, generated from the schema that a handler declares. The form works without a script. The name of each
//! field determines how its text is read, so a submitted form keeps its meaning even if the schema has changed since.

use rondel_core::field_error::child_pointer;
use serde_json::{Map, Value};

use super::form::{Fields, with_line_feeds};
use crate::body::refuse_value;
use crate::problem::Problem;

/// Parameters whose schema has more fields are edited as JSON.
const FIELD_COUNT_MAX: usize = 50;
/// Fields with more choices are edited as JSON.
const CHOICE_COUNT_MAX: usize = 200;
/// Maximum number of references that are followed one after another.
const REFERENCE_DEPTH_MAX: usize = 8;
/// The prefix of the names of fields that contain text.
const TEXT_PREFIX: &str = "param.text.";
/// The prefix of the names of fields that contain JSON.
const JSON_PREFIX: &str = "param.json.";
/// The prefix of the names of fields that contain text or JSON.
const TEXT_OR_JSON_PREFIX: &str = "param.either.";

#[derive(Debug, PartialEq)]
pub(super) struct ParamField {
    /// Its name in the form.
    pub(super) id: String,
    /// The parameter's name.
    pub(super) name: String,
    /// The description in the handler's code.
    pub(super) hint: String,
    pub(super) is_required: bool,
    pub(super) value: String,
    pub(super) kind: FieldKind,
}

impl ParamField {
    /// A JSON pointer to the parameter.
    pub(super) fn pointer(&self) -> String {
        child_pointer("", &self.name)
    }
}

#[derive(Debug, PartialEq)]
pub(super) enum FieldKind {
    Text,
    /// A number. The text is the `step` attribute of the input.
    Number(&'static str),
    /// One of these values: each as JSON, and as text for users.
    Choice(Vec<(String, String)>),
    /// Text, or an object or list as JSON. For example, a script's source as text, or an object that names a stored script.
    TextOrJson,
    Json,
}

/// The fields for `params`. Empty if the schema does not describe an object, if it describes one with more than [`FIELD_COUNT_MAX`] fields,
/// or if `params` is neither an object nor null.
pub(super) fn param_fields(schema: &Value, params: &Value) -> Vec<ParamField> {
    let properties = schema["properties"].as_object().filter(|properties| properties.len() <= FIELD_COUNT_MAX);
    let Some(properties) = properties.filter(|_| params.is_null() || params.is_object()) else { return Vec::new() };
    let is_required = |name: &str| {
        schema["required"]
            .as_array()
            .is_some_and(|required_names| required_names.iter().any(|required_name| required_name == name))
    };
    let field = |(name, property): (&String, &Value)| {
        let kind = field_kind(schema, property);
        let value = params.get(name).filter(|value| !value.is_null());
        // A value of another kind is shown as JSON, such as the name of a secret in place of a number.
        let kind = if value.is_some_and(|value| !can_show(&kind, value)) { FieldKind::Json } else { kind };
        let (prefix, value) = match (&kind, value) {
            (FieldKind::Text, value) => (TEXT_PREFIX, value.and_then(Value::as_str).unwrap_or_default().to_owned()),
            (FieldKind::TextOrJson, value) => (TEXT_OR_JSON_PREFIX, value.map(text_or_json).unwrap_or_default()),
            (_, value) => (JSON_PREFIX, value.map(Value::to_string).unwrap_or_default()),
        };
        ParamField {
            id: format!("{prefix}{name}"),
            name: name.clone(),
            hint: param_description(schema, property).to_owned(),
            is_required: is_required(name),
            value,
            kind,
        }
    };
    properties.iter().map(field).collect()
}

/// The description of the property, else that of the schema to which it refers.
fn param_description<'a>(schema: &'a Value, property: &'a Value) -> &'a str {
    let description =
        [property, resolve_reference(schema, property)].into_iter().find_map(|schema| schema["description"].as_str());
    description.unwrap_or_default()
}

fn can_show(kind: &FieldKind, value: &Value) -> bool {
    match kind {
        FieldKind::Text => value.is_string(),
        FieldKind::TextOrJson => value.is_string() || value.is_object() || value.is_array(),
        FieldKind::Number(_) => value.is_number(),
        FieldKind::Choice(choices) => {
            let value = value.to_string();
            choices.iter().any(|(choice, _)| *choice == value)
        }
        FieldKind::Json => true,
    }
}

fn field_kind(schema: &Value, property: &Value) -> FieldKind {
    let property = resolve_reference(schema, property);
    if let Some(choices) = enum_choices(property) {
        return choices;
    }
    if is_text_or_json(schema, property) {
        return FieldKind::TextOrJson;
    }
    let single_type = match &property["type"] {
        Value::String(type_name) => Some(type_name.as_str()),
        // An optional value has two types: `["integer", "null"]`.
        Value::Array(type_names) => {
            let mut other_types = type_names.iter().filter_map(Value::as_str).filter(|type_name| *type_name != "null");
            other_types.next().filter(|_| other_types.next().is_none())
        }
        _ => None,
    };
    match single_type {
        Some("string") => FieldKind::Text,
        Some("integer") => FieldKind::Number("1"),
        Some("number") => FieldKind::Number("any"),
        Some("boolean") => FieldKind::Choice(["true", "false"].map(|word| (word.to_owned(), word.to_owned())).to_vec()),
        _ => FieldKind::Json,
    }
}

/// Whether the values are either texts, or objects or lists. With other types, such as numbers, the input `5` would be ambiguous.
fn is_text_or_json(schema: &Value, property: &Value) -> bool {
    let alternatives = property["anyOf"].as_array().map(Vec::as_slice).unwrap_or_default();
    let types: Vec<_> = alternatives
        .iter()
        .map(|alternative| resolve_reference(schema, alternative)["type"].as_str().unwrap_or_default())
        .collect();
    let is_known = |type_name: &&str| ["string", "object", "array", "null"].contains(type_name);
    types.contains(&"string")
        && types.iter().all(is_known)
        && types.iter().any(|type_name| ["object", "array"].contains(type_name))
}

/// Follows a reference. `anyOf` with one schema and null counts as a reference to that schema.
fn resolve_reference<'a>(schema: &'a Value, mut property: &'a Value) -> &'a Value {
    for _ in 0..REFERENCE_DEPTH_MAX {
        let reference = property["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
        let target = match (reference, property["anyOf"].as_array().map(Vec::as_slice)) {
            (Some(pointer), _) => schema.pointer(pointer),
            (None, Some([target, null] | [null, target])) if null["type"] == "null" => Some(target),
            _ => None,
        };
        match target {
            Some(target) => property = target,
            None => break,
        }
    }
    property
}

/// The values of an enumeration, given by `enum` or by `oneOf` with constants.
fn enum_choices(property: &Value) -> Option<FieldKind> {
    let constant = |alternative: &Value| alternative.get("const").cloned();
    let values = match (property["enum"].as_array(), property["oneOf"].as_array()) {
        (Some(values), _) => values.clone(),
        (None, Some(alternatives)) => alternatives.iter().map(constant).collect::<Option<_>>()?,
        (None, None) => return None,
    };
    let text_of = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let is_not_null = |value: &&Value| !value.is_null();
    let choices: Vec<_> = values.iter().filter(is_not_null).map(|value| (value.to_string(), text_of(value))).collect();
    (!choices.is_empty() && choices.len() <= CHOICE_COUNT_MAX).then_some(FieldKind::Choice(choices))
}

/// The content of a field for text or JSON. A text is shown as it is, unless it would be read as JSON.
fn text_or_json(value: &Value) -> String {
    let plain_text = value.as_str().filter(|text| read_text_or_json(text) == *value);
    plain_text.map_or_else(|| value.to_string(), str::to_owned)
}

/// Reads a field for text or JSON. Valid JSON that begins like an object, a list or a quoted text is read as JSON; everything else is text.
fn read_text_or_json(text: &str) -> Value {
    let is_json = text.trim_start().starts_with(['{', '[', '"']);
    let json = is_json.then(|| serde_json::from_str(text).ok()).flatten();
    json.unwrap_or_else(|| Value::String(with_line_feeds(text)))
}

/// The parameters in the fields of the form, merged into `saved_params`, which may have parameters without a field. An empty field removes its
/// parameter. `None` if no field was sent.
pub(super) fn from_fields(form: &Fields, saved_params: &Value) -> Result<Option<Value>, Problem> {
    let mut params = saved_params.as_object().cloned().unwrap_or_else(Map::new);
    let mut has_field = false;
    for (id, text) in form.with_prefix("param.") {
        let (json_name, text_or_json_name) = (id.strip_prefix(JSON_PREFIX), id.strip_prefix(TEXT_OR_JSON_PREFIX));
        let (name, value) = match (id.strip_prefix(TEXT_PREFIX), json_name.or(text_or_json_name)) {
            (Some(name), _) => (name, Value::String(with_line_feeds(text))),
            (None, Some(name)) if text.trim().is_empty() => (name, Value::String(String::new())),
            (None, Some(name)) if text_or_json_name.is_some() => (name, read_text_or_json(text)),
            (None, Some(name)) => {
                let refuse = |error| refuse_value(&format!("/params/{name}"), format!("{text:?} is not JSON: {error}"));
                (name, serde_json::from_str(text).map_err(refuse)?)
            }
            (None, None) => continue,
        };
        has_field = true;
        let is_empty = value == "";
        // If the value was empty before and is still empty, it is unchanged: null remains null.
        let was_empty = params.get(name).is_some_and(|saved_value| saved_value.is_null() || *saved_value == "");
        match is_empty {
            true if was_empty => {}
            true => drop(params.remove(name)),
            false => drop(params.insert(name.to_owned(), value)),
        }
    }
    // No parameters were saved, and the fields have none.
    let has_no_params = params.is_empty() && saved_params.is_null();
    Ok(has_field.then_some(if has_no_params { Value::Null } else { Value::Object(params) }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "flag": {"type": "boolean"},
                "list": {"type": "array"},
                "mode": {"anyOf": [{"$ref": "#/$defs/Mode"}, {"type": "null"}]},
                "ratio": {"type": ["number", "null"]},
                "rows": {"type": "integer", "description": "how many"},
                "table": {"type": "string"},
            },
            "required": ["table"],
            "$defs": {"Mode": {"oneOf": [{"const": "full"}, {"const": "delta"}]}},
        })
    }

    #[test]
    fn each_kind_has_its_field() {
        let drawn = param_fields(&schema(), &json!({"mode": "delta", "rows": "{{secret.rows}}", "table": "a\nb"}));
        let choice = |words: [&str; 2], as_json: [&str; 2]| {
            FieldKind::Choice(as_json.into_iter().map(str::to_owned).zip(words.map(str::to_owned)).collect())
        };
        let found: Vec<_> = drawn.iter().map(|one| (one.id.as_str(), one.value.as_str(), &one.kind)).collect();
        let expected = [
            ("param.json.flag", "", &choice(["true", "false"], ["true", "false"])),
            ("param.json.list", "", &FieldKind::Json),
            ("param.json.mode", "\"delta\"", &choice(["full", "delta"], ["\"full\"", "\"delta\""])),
            ("param.json.ratio", "", &FieldKind::Number("any")),
            ("param.json.rows", "\"{{secret.rows}}\"", &FieldKind::Json),
            ("param.text.table", "a\nb", &FieldKind::Text),
        ];
        assert_eq!(found, expected);
        assert_eq!((drawn[4].hint.as_str(), drawn[4].is_required, drawn[5].is_required), ("how many", false, true));
        for (schema, params) in
            [(json!(true), json!({})), (json!({"type": "string"}), json!("x")), (schema(), json!([1]))]
        {
            assert_eq!(param_fields(&schema, &params), []);
        }
    }

    #[test]
    fn sent_fields_are_combined() {
        let before = json!({"table": "t", "other": [1], "note": "", "rows": 3, "list": null});
        let form = Fields::from([
            ("params", "ignored"),
            ("param.text.table", " a\r\nb"),
            ("param.text.note", ""),
            ("param.json.rows", ""),
            ("param.json.list", " "),
            ("param.json.flag", "true"),
        ]);
        let expected = json!({"table": " a\nb", "other": [1], "note": "", "list": null, "flag": true});
        assert_eq!(from_fields(&form, &before).unwrap(), Some(expected));
        assert_eq!(from_fields(&Fields::from([("params", "{}")]), &before).unwrap(), None);
        assert_eq!(from_fields(&Fields::from([("param.text.table", "")]), &json!(null)).unwrap(), Some(json!(null)));
        let bad = from_fields(&Fields::from([("param.json.rows", "many")]), &json!(null)).unwrap_err();
        assert_eq!(bad.complaints()[0].pointer.as_deref(), Some("/params/rows"));
    }

    #[test]
    fn a_text_beside_objects_or_lists_needs_no_quotes() {
        let schema = json!({
            "properties": {
                "args": {"anyOf": [{"type": "string"}, {"type": "array"}]},
                "script": {"anyOf": [{"$ref": "#/$defs/Script"}, {"type": "null"}]},
                "size": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            },
            "$defs": {
                "Kept": {"type": "object"},
                "Script": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Kept"}], "description": "text or name"},
            },
        });
        let params = json!({"args": "[1]", "script": "[ -f a ] &&\n  date", "size": "5"});
        let drawn = param_fields(&schema, &params);
        let found: Vec<_> = drawn.iter().map(|one| (one.id.as_str(), one.value.as_str(), &one.kind)).collect();
        let expected = [
            ("param.either.args", "\"[1]\"", &FieldKind::TextOrJson),
            ("param.either.script", "[ -f a ] &&\n  date", &FieldKind::TextOrJson),
            ("param.json.size", "\"5\"", &FieldKind::Json),
        ];
        assert_eq!(found, expected);
        assert_eq!(drawn[1].hint, "text or name");
        let sent = Fields::from([0, 1, 2].map(|at: usize| (drawn[at].id.as_str(), drawn[at].value.as_str())));
        assert_eq!(from_fields(&sent, &json!({})).unwrap().as_ref(), Some(&params));
        for (typed, read) in [
            ("date\r\nid", json!("date\nid")),
            ("{\"name\": \"a\"}", json!({"name": "a"})),
            ("\"a b\"", json!("a b")),
            ("{ date; }", json!("{ date; }")),
            ("7", json!("7")),
        ] {
            let sent = Fields::from([("param.either.script", typed)]);
            assert_eq!(from_fields(&sent, &json!(null)).unwrap(), Some(json!({"script": read})), "{typed}");
        }
        let emptied = from_fields(&Fields::from([("param.either.script", " ")]), &params).unwrap();
        assert_eq!(emptied, Some(json!({"args": "[1]", "size": "5"})));
    }

    #[test]
    fn a_reference_to_itself_ends() {
        let schema = json!({"properties": {"a": {"$ref": "#/properties/a"}}});
        assert_eq!(param_fields(&schema, &json!({}))[0].kind, FieldKind::Json);
    }
}
