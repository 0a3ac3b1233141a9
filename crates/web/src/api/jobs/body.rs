//! Reads a job's definition, or a patch of one, from a body. Each error has the pointer to its place in the body.

use rondel_core::JobSpec;
use rondel_core::shape::{self, Document, ShapeErrors};
use serde_json::{Map, Value};

use crate::body::{parse as parse_json, refuse_value, shape_complaint};
use crate::problem::{Code, Complaint, Problem};

/// Parses a whole definition.
pub(super) fn parse(bytes: &[u8]) -> Result<JobSpec, Problem> {
    from_document(parse_json(bytes)?)
}

/// Parses a whole definition. Its name may be left out, because the path has it.
pub(crate) fn parse_named(bytes: &[u8], name: &str) -> Result<JobSpec, Problem> {
    let mut document = parse_json(bytes)?;
    if let Value::Object(fields) = &mut document.value {
        fields.entry("name").or_insert_with(|| Value::from(name));
    }
    from_document(document)
}

/// `spec` with a JSON merge patch (RFC 7396) applied to it.
pub(super) fn apply_patch(spec: &JobSpec, bytes: &[u8]) -> Result<JobSpec, Problem> {
    let Document { value: patch, duplicates } = parse_json(bytes)?;
    if !patch.is_object() {
        return Err(refuse_value("", "expected an object: the fields of the job to change"));
    }
    let mut value = serde_json::to_value(spec).unwrap_or_default();
    merge_patch(&mut value, patch);
    from_document(Document { value, duplicates })
}

pub(crate) fn from_value(value: Value) -> Result<JobSpec, Problem> {
    from_document(value.into())
}

fn from_document(document: Document) -> Result<JobSpec, Problem> {
    shape::read(document).map_err(|shape_errors| {
        let (complaints, count) = shape_complaints(&shape_errors);
        Problem::of_some_complaints(Code::InvalidBody, complaints, count)
    })
}

/// The errors of a definition: wrong fields or types, and values that break a rule. Also returns the number of all errors, which is greater
/// than that of the returned ones if there are too many to list.
pub(super) fn shape_complaints(shape_errors: &ShapeErrors<JobSpec>) -> (Vec<Complaint>, usize) {
    let mut complaints: Vec<Complaint> = shape_errors.errors.iter().map(|error| shape_complaint("", error)).collect();
    let shape_count = complaints.len();
    let broken_rules = shape_errors.repaired.as_ref().and_then(|spec| spec.compile().err()).unwrap_or_default();
    complaints.extend(shape_errors.independent_errors(broken_rules).map(Complaint::from));
    let count = shape_errors.count + complaints.len() - shape_count;
    (complaints, count)
}

fn merge_patch(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(&key);
        } else {
            merge_patch(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merges_as_in_the_rfc() {
        for (target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        ] {
            let mut merged = target;
            merge_patch(&mut merged, patch);
            assert_eq!(merged, result);
        }
    }
}
