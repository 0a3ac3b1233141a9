//! Renders the OpenAPI document as a page: each endpoint with its parameters, bodies, errors, and an example call. The source is the
//! document that `/openapi.json` returns.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use serde_json::Value;

use super::as_code::{AsCode, shell_quoted};
use super::prefs::Prefs;
use super::shell::{Nav, Shell, User, WithLang, html};
use super::texts::{Lang, Texts};
use crate::call::GlobalCall;
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::query_pair;

/// Maximum depth to which nested fields of a body are shown.
const DEPTH_MAX: usize = 3;
/// Maximum number of fields of a body that are shown.
const FIELD_COUNT_MAX: usize = 120;
/// Maximum length of a search, in characters.
const QUERY_LEN_MAX: usize = 100;

/// An operation in the OpenAPI document.
struct Operation {
    id: String,
    method: String,
    path: String,
    tag: String,
    summary: String,
    description: String,
    permission: String,
    parameters: Vec<ParameterRow>,
    body: Option<BodyDoc>,
    answers: Vec<AnswerDoc>,
    /// The text that is searched, in lower case.
    text: String,
}

#[derive(Clone)]
struct ParameterRow {
    name: String,
    place: String,
    kind: String,
    is_required: bool,
    about: String,
}

#[derive(Clone)]
struct BodyDoc {
    media_types: Vec<String>,
    fields: Vec<FieldRow>,
    example: Option<Value>,
}

/// A field of a body. Nested fields are indented.
#[derive(Clone)]
struct FieldRow {
    depth: usize,
    name: String,
    kind: String,
    is_required: bool,
    about: String,
}

#[derive(Clone)]
struct AnswerDoc {
    status: String,
    is_success: bool,
    about: Vec<String>,
    media_types: Vec<String>,
    fields: Vec<FieldRow>,
}

/// Splits a text at its backticks. The flag marks the parts that are code.
pub(super) fn split_at_code(text: &str) -> impl Iterator<Item = (bool, &str)> {
    text.split('`').enumerate().map(|(index, part)| (index % 2 == 1, part)).filter(|(_, part)| !part.is_empty())
}

/// The Chinese translations of the document's texts, by the English text.
const CHINESE_TEXTS: &str = include_str!("../../../../web/locales/zh-api.json");

/// The operations of the document in this language. They are read once.
fn operations(document: fn() -> &'static str, lang: Lang) -> &'static [Operation] {
    static ENGLISH_OPERATIONS: OnceLock<Vec<Operation>> = OnceLock::new();
    static CHINESE_OPERATIONS: OnceLock<Vec<Operation>> = OnceLock::new();
    let english_operations =
        ENGLISH_OPERATIONS.get_or_init(|| read_operations(&serde_json::from_str(document()).unwrap_or_default()));
    if lang == Lang::En {
        return english_operations;
    }
    CHINESE_OPERATIONS.get_or_init(|| {
        let mut root: Value = serde_json::from_str(document()).unwrap_or_default();
        translate(&mut root, &serde_json::from_str(CHINESE_TEXTS).unwrap_or_default());
        let mut operations_in_lang = read_operations(&root);
        // Searches on the Chinese page also match the English words.
        operations_in_lang
            .iter_mut()
            .zip(english_operations)
            .for_each(|(operation, english_operation)| operation.text.push_str(&english_operation.text));
        operations_in_lang
    })
}

fn read_operations(root: &Value) -> Vec<Operation> {
    let document = Document(root);
    let paths = root["paths"].as_object().into_iter().flatten();
    let operations_of_paths = paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().into_iter().flatten();
        methods.map(|(method, operation)| document.operation(method, path, operation)).collect::<Vec<_>>()
    });
    operations_of_paths.collect()
}

/// Translates the summaries and descriptions of the document. Texts without a translation are unchanged.
fn translate(value: &mut Value, texts: &HashMap<String, String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(text) if is_text(name) => {
                        if let Some(translation) = texts.get(text) {
                            text.clone_from(translation);
                        }
                    }
                    _ if is_example(name) => {}
                    _ => translate(field, texts),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| translate(item, texts)),
        _ => {}
    }
}

fn is_text(name: &str) -> bool {
    matches!(name, "summary" | "description")
}

/// Whether a field of the document contains values of the API, which are never translated.
fn is_example(name: &str) -> bool {
    matches!(name, "example" | "examples" | "default" | "enum")
}

struct Document<'d>(&'d Value);

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl<'d> Document<'d> {
    /// The target, if the value is a reference; otherwise the value itself.
    fn resolved(&self, value: &'d Value) -> &'d Value {
        let Some(reference) = value["$ref"].as_str() else { return value };
        self.0.pointer(reference.trim_start_matches('#')).unwrap_or(&Value::Null)
    }

    fn operation(&self, method: &str, path: &str, operation: &'d Value) -> Operation {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let body = &operation["requestBody"];
        let answers = operation["responses"].as_object().into_iter().flatten();
        let (summary, description) = (text(&operation["summary"]), text(&operation["description"]));
        let tag = text(&operation["tags"][0]);
        Operation {
            id: text(&operation["operationId"]),
            method: method.to_uppercase(),
            path: path.to_owned(),
            text: format!("{method} {path} {summary} {description} {tag}").to_lowercase(),
            tag,
            summary,
            description,
            permission: text(&operation["x-permission"]),
            parameters: parameters.map(|parameter| self.parameter(self.resolved(parameter))).collect(),
            body: (!body.is_null()).then(|| self.body(body)),
            answers: answers.map(|(status, answer)| self.answer(status, self.resolved(answer))).collect(),
        }
    }

    fn parameter(&self, parameter: &'d Value) -> ParameterRow {
        ParameterRow {
            name: text(&parameter["name"]),
            place: text(&parameter["in"]),
            kind: self.kind(&parameter["schema"]),
            is_required: parameter["required"] == true,
            about: text(&parameter["description"]),
        }
    }

    fn body(&self, body: &'d Value) -> BodyDoc {
        let contents = || body["content"].as_object().into_iter().flatten();
        let first_content = contents().map(|(_, content)| content).next().unwrap_or(&Value::Null);
        BodyDoc {
            media_types: contents().map(|(kind, _)| kind.clone()).collect(),
            fields: self.fields(&first_content["schema"]),
            example: contents().find_map(|(_, content)| content.get("example").cloned()),
        }
    }

    fn answer(&self, status: &str, answer: &'d Value) -> AnswerDoc {
        let contents = || answer["content"].as_object().into_iter().flatten();
        let is_success = status.starts_with('2');
        let first_content = contents().map(|(_, content)| content).next().unwrap_or(&Value::Null);
        AnswerDoc {
            status: status.to_owned(),
            is_success,
            about: text(&answer["description"]).split("\n\n").map(str::to_owned).collect(),
            media_types: contents().map(|(kind, _)| kind.clone()).collect(),
            // The fields of errors are left out: all errors have the same shape.
            fields: if is_success { self.fields(&first_content["schema"]) } else { Vec::new() },
        }
    }

    fn fields(&self, schema: &'d Value) -> Vec<FieldRow> {
        let mut rows = Vec::new();
        self.add_fields(schema, 0, &mut rows);
        rows
    }

    fn add_fields(&self, schema: &'d Value, depth: usize, rows: &mut Vec<FieldRow>) {
        let schema = self.object_of(schema);
        let required_fields = schema["required"].as_array();
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            if rows.len() >= FIELD_COUNT_MAX {
                return;
            }
            let description = field["description"].as_str().or_else(|| self.resolved(field)["description"].as_str());
            rows.push(FieldRow {
                depth,
                name: name.clone(),
                kind: self.kind(field),
                is_required: required_fields
                    .is_some_and(|names| names.iter().any(|required_name| required_name == name.as_str())),
                about: description.unwrap_or_default().to_owned(),
            });
            if depth + 1 < DEPTH_MAX {
                self.add_fields(field, depth + 1, rows);
            }
        }
    }

    /// The schema of the object inside a schema, which may be a reference, a list of such objects, or one of several branches.
    fn object_of(&self, schema: &'d Value) -> &'d Value {
        let mut schema = self.resolved(schema);
        for _ in 0..DEPTH_MAX {
            if schema.get("properties").is_some() {
                return schema;
            }
            let branches = ["anyOf", "oneOf", "allOf"].into_iter().find_map(|word| schema[word].as_array());
            let branch = branches.and_then(|branches| {
                let resolved_branches = branches.iter().map(|branch| self.resolved(branch));
                resolved_branches
                    .into_iter()
                    .find(|branch| branch.get("properties").is_some() || branch.get("items").is_some())
            });
            schema = match (branch, schema.get("items")) {
                (Some(branch), _) => branch,
                (None, Some(items)) => self.resolved(items),
                (None, None) => return schema,
            };
        }
        schema
    }

    /// The type of a field in a few words.
    fn kind(&self, schema: &'d Value) -> String {
        let schema = self.resolved(schema);
        if let Some(words) = schema["enum"].as_array() {
            return words
                .iter()
                .map(|word| word.as_str().map_or_else(|| word.to_string(), str::to_owned))
                .collect::<Vec<_>>()
                .join(" | ");
        }
        if let Some(branches) = ["anyOf", "oneOf"].into_iter().find_map(|word| schema[word].as_array()) {
            let mut kinds: Vec<String> = branches.iter().map(|branch| self.kind(branch)).collect();
            kinds.dedup();
            return kinds.join(" | ");
        }
        let kinds: Vec<String> = match &schema["type"] {
            Value::String(kind) => vec![kind.clone()],
            Value::Array(kinds) => kinds.iter().map(text).collect(),
            _ => Vec::new(),
        };
        let kind_names = kinds.into_iter().map(|kind| match kind.as_str() {
            "array" => format!("{}[]", self.kind(&schema["items"])),
            "string" if schema["format"].is_string() => text(&schema["format"]),
            _ => kind,
        });
        kind_names.collect::<Vec<_>>().join(" | ")
    }
}

/// The text to search for, and the operation to show.
#[derive(Debug)]
pub(super) struct DocsQuery {
    q: String,
    op: Option<String>,
}

impl FromQuery for DocsQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let q = reader.single("q").unwrap_or_default().trim().chars().take(QUERY_LEN_MAX).collect();
        Self { q, op: reader.single("op") }
    }
}

#[derive(Template)]
#[template(path = "api_docs.html")]
struct DocsPage {
    shell: Shell,
    t: &'static Texts,
    q: String,
    groups: Vec<Group>,
    has_no_match: bool,
    shown_operation: Option<ShownOperation>,
}

struct Group {
    tag: String,
    entries: Vec<EntryRow>,
}

struct EntryRow {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    link: String,
    is_shown: bool,
}

struct ShownOperation {
    operation: &'static Operation,
    example: Option<String>,
    code: AsCode,
}

pub(super) async fn page(call: GlobalCall<WithLang<DocsQuery>>, prefs: Prefs) -> Result<Response, Problem> {
    let DocsQuery { q, op } = &call.query.0;
    let documented_operations = operations(call.web.document, prefs.lang);
    let words: Vec<String> = q.to_lowercase().split_whitespace().map(str::to_owned).collect();
    let matching_operations =
        documented_operations.iter().filter(|operation| words.iter().all(|word| operation.text.contains(word)));
    let mut groups: BTreeMap<&str, Vec<EntryRow>> = BTreeMap::new();
    for operation in matching_operations {
        let query = if q.is_empty() { String::new() } else { format!("&{}", query_pair("q", q)) };
        groups.entry(&operation.tag).or_default().push(EntryRow {
            method: &operation.method,
            path: operation.path.trim_start_matches("/api/v1"),
            summary: &operation.summary,
            link: format!("/api-docs?{}{query}", query_pair("op", &operation.id)),
            is_shown: op.as_deref() == Some(&operation.id),
        });
    }
    let selected_operation =
        op.as_deref().and_then(|op| documented_operations.iter().find(|operation| operation.id == op));
    let page_url =
        op.as_ref().map_or_else(|| "/api-docs".to_owned(), |op| format!("/api-docs?{}", query_pair("op", op)));
    let shell = Shell::new(prefs, Nav::Api, Some(User::of_global_call(&call).await), &page_url);
    let template = DocsPage {
        t: shell.t,
        q: q.clone(),
        has_no_match: groups.is_empty(),
        groups: groups.into_iter().map(|(tag, entries)| Group { tag: tag.to_owned(), entries }).collect(),
        shown_operation: selected_operation.map(shown_operation),
        shell,
    };
    html(StatusCode::OK, &template)
}

fn shown_operation(operation: &'static Operation) -> ShownOperation {
    let example = operation.body.as_ref().and_then(|body| body.example.as_ref());
    let path = operation.path.trim_start_matches("/api/v1");
    let data = example.map(|example| format!(" -d {}", shell_quoted(&example.to_string()))).unwrap_or_default();
    let command = format!("api {} {}{data}", operation.method, shell_quoted(path));
    ShownOperation {
        operation,
        example: example.map(|example| serde_json::to_string_pretty(example).unwrap_or_default()),
        code: AsCode::without_namespace((&operation.method, &operation.path), example, &command),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn collect_texts<'d>(value: &'d Value, found: &mut BTreeSet<&'d str>) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    match field {
                        Value::String(text) if is_text(name) => drop(found.insert(text)),
                        _ if is_example(name) => {}
                        _ => collect_texts(field, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| collect_texts(item, found)),
            _ => {}
        }
    }

    #[test]
    fn every_text_of_the_document_is_there_in_chinese() {
        let root: Value = serde_json::from_str(crate::openapi()).unwrap();
        let mut english = BTreeSet::new();
        collect_texts(&root, &mut english);
        let chinese: BTreeMap<String, String> = serde_json::from_str(CHINESE_TEXTS).unwrap();
        let missing: Vec<_> = english.iter().filter(|text| !chinese.contains_key(**text)).collect();
        assert!(missing.is_empty(), "web/locales/zh-api.json lacks {missing:#?}");
        let left: Vec<_> = chinese.keys().filter(|text| !english.contains(text.as_str())).collect();
        assert!(left.is_empty(), "web/locales/zh-api.json has texts that the document has no more: {left:#?}");
        let code = |text: &str| {
            let mut parts: Vec<String> = text.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            parts.sort();
            parts
        };
        for (english, chinese) in &chinese {
            let kept = code(chinese);
            let lost: Vec<_> = code(english).into_iter().filter(|part| !kept.contains(part)).collect();
            assert!(lost.is_empty(), "{english}\n{chinese}\nlacks {lost:?}");
        }
    }

    #[test]
    fn fields_are_found_behind_references_and_branches() {
        let root = json!({"components": {"schemas": {"A": {"type": "object", "required": ["n"], "properties": {
            "n": {"type": ["integer", "null"], "description": "A number."},
            "of": {"anyOf": [{"type": "null"}, {"$ref": "#/components/schemas/B"}]}}},
            "B": {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}}}}});
        let schema = json!({"type": "array", "items": {"$ref": "#/components/schemas/A"}});
        let rows = Document(&root).fields(&schema);
        let shown: Vec<_> = rows.iter().map(|row| (row.depth, row.name.as_str(), row.kind.as_str())).collect();
        assert_eq!(shown, [(0, "n", "integer | null"), (0, "of", "null | object"), (1, "at", "date-time")]);
        assert!(rows[0].is_required && !rows[1].is_required);
    }
}
