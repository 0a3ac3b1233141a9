//! Compares every answer in these tests with the OpenAPI document.

#![expect(clippy::panic, reason = "an answer that breaks its promise ends the test")]

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use jsonschema::Validator;
use rondel_web::openapi;
use serde_json::{Value, json};

use crate::harness::Answer;

/// The OpenAPI document as it is served.
pub(crate) static DOCUMENT: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(openapi()).unwrap());
/// The validators by their schemas.
static VALIDATORS: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);

/// The errors that a schema of the document finds in a value.
pub(crate) fn complaints(schema: &Value, value: &Value) -> Vec<String> {
    let key = schema.to_string();
    let mut validators = VALIDATORS.lock().unwrap();
    let validator = validators.entry(key).or_insert_with(|| {
        let whole = json!({"allOf": [schema], "components": DOCUMENT["components"]});
        let options = jsonschema::options().should_validate_formats(true);
        Arc::new(options.build(&whole).unwrap_or_else(|error| panic!("{schema:#}: {error}")))
    });
    let validator = Arc::clone(validator);
    drop(validators);
    validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// The target of a reference in the document, or the value itself if it is not a reference.
pub(crate) fn resolved(value: &Value) -> &Value {
    match value["$ref"].as_str() {
        Some(reference) => DOCUMENT.pointer(&reference[1..]).unwrap_or_else(|| panic!("{reference} leads nowhere")),
        None => value,
    }
}

/// The path of the document to which a request's path belongs. Paths without parameters take precedence.
fn template(path: &str) -> Option<&'static str> {
    let parts: Vec<&str> = path.split('/').collect();
    let fits = |template: &str| {
        let wanted: Vec<&str> = template.split('/').collect();
        let part = |(wanted, part): (&&str, &&str)| wanted == part || (wanted.starts_with('{') && !part.is_empty());
        wanted.len() == parts.len() && wanted.iter().zip(&parts).all(part)
    };
    let paths = DOCUMENT["paths"].as_object().unwrap().keys().map(String::as_str);
    paths.filter(|template| fits(template)).min_by_key(|template| template.matches('{').count())
}

/// Checks that an answer is as the document describes it.
#[track_caller]
pub(crate) fn check(method: &str, path: &str, answer: &Answer) {
    let Some(template) = template(path) else { return };
    let Some(operation) = DOCUMENT["paths"][template].get(method.to_ascii_lowercase()) else { return };
    let (place, status) = (format!("{method} {template}"), answer.status.as_u16().to_string());
    let Some(promised) = operation["responses"].get(&status) else {
        panic!("{place}: {status} is not documented: {}", String::from_utf8_lossy(&answer.bytes));
    };
    let promised = resolved(promised);
    for (name, header) in promised["headers"].as_object().into_iter().flatten() {
        let is_there = answer.headers.contains_key(name.as_str());
        assert!(is_there || resolved(header)["required"] != true, "{place}: {status} has no {name}");
    }
    let kind = answer.headers.get("content-type").and_then(|kind| kind.to_str().ok());
    let kind = kind.map(|kind| kind.split(';').next().unwrap_or_default());
    let Some(kind) = kind else {
        assert!(promised.get("content").is_none() && answer.bytes.is_empty(), "{place}: {status} has no type");
        return;
    };
    let form = promised["content"].get(kind).unwrap_or_else(|| panic!("{place}: {status} is not documented as {kind}"));
    if matches!(kind, "application/json" | "application/problem+json") {
        let body = serde_json::from_slice(&answer.bytes).unwrap_or_else(|error| panic!("{place}: {status}: {error}"));
        let wrong = complaints(&form["schema"], &body);
        assert!(wrong.is_empty(), "{place}: {status}: {wrong:#?}\n{body:#}");
    }
}
