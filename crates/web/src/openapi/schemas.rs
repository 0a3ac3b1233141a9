//! The schemas that operations share. Each is in the document once, under its name.
//!
//! A type that is both read and written may need two schemas: fields that may be left out of a request are in every answer. If the two
//! differ, the name of the request's schema ends in `Input`.

use std::collections::BTreeSet;

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::inputs::SchemaOf;

/// The prefix of references to schemas of requests, until they are merged with the schemas of answers.
const REQUEST_SCHEMA_PREFIX: &str = "#/requests/";
const SCHEMA_PREFIX: &str = "#/components/schemas/";

/// The schemas of requests and answers while they are collected.
pub(super) struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

/// All schemas, and the names of the schemas whose request form was renamed.
pub(super) struct MergedSchemas {
    pub(super) schemas: Map<String, Value>,
    renamed_schemas: BTreeSet<String>,
}

impl Default for Schemas {
    fn default() -> Self {
        let settings = |path: &'static str| {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = path.into();
                settings.meta_schema = None;
            })
        };
        Self {
            requests: settings("/requests").for_deserialize().into_generator(),
            answers: settings("/components/schemas").for_serialize().into_generator(),
        }
    }
}

impl Schemas {
    pub(super) fn of_request(&mut self, schema: SchemaOf) -> Value {
        schema(&mut self.requests).to_value()
    }

    pub(super) fn of_answer(&mut self, schema: SchemaOf) -> Value {
        schema(&mut self.answers).to_value()
    }

    /// Merges the schemas of requests and answers.
    pub(super) fn finish(mut self) -> MergedSchemas {
        let requests = self.requests.take_definitions(true);
        let mut schemas = self.answers.take_definitions(true);
        schemas.values_mut().for_each(allow_more_fields);
        let equal_schemas = MergedSchemas { schemas: Map::new(), renamed_schemas: BTreeSet::new() };
        let is_different = |name: &String| {
            let mut request = requests[name].clone();
            equal_schemas.apply(&mut request);
            schemas.get(name).is_some_and(|answer| *answer != request)
        };
        let mut renamed_schemas: BTreeSet<String> =
            requests.keys().filter(|name| is_different(name)).cloned().collect();
        // A schema also differs if it refers to a schema that differs.
        loop {
            let is_referring =
                |name: &&String| !renamed_schemas.contains(*name) && refers_to(&requests[*name], &renamed_schemas);
            let referring_names: Vec<String> = requests.keys().filter(is_referring).cloned().collect();
            let referring_names: Vec<String> =
                referring_names.into_iter().filter(|name| schemas.contains_key(name)).collect();
            if referring_names.is_empty() {
                break;
            }
            renamed_schemas.extend(referring_names);
        }
        let mut merged_schemas = MergedSchemas { schemas: Map::new(), renamed_schemas };
        for (name, mut schema) in requests {
            merged_schemas.apply(&mut schema);
            let name = if merged_schemas.renamed_schemas.contains(&name) { format!("{name}Input") } else { name };
            schemas.entry(name).or_insert(schema);
        }
        merged_schemas.schemas = schemas;
        merged_schemas
    }
}

impl MergedSchemas {
    /// Replaces references to request schemas by the names that these have in the document.
    pub(super) fn apply(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(reference)) = map.get_mut("$ref")
                    && let Some(name) = reference.strip_prefix(REQUEST_SCHEMA_PREFIX)
                {
                    let suffix = if self.renamed_schemas.contains(name) { "Input" } else { "" };
                    *reference = format!("{SCHEMA_PREFIX}{name}{suffix}");
                }
                map.values_mut().for_each(|value| self.apply(value));
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.apply(item)),
            _ => {}
        }
    }
}

/// Allows additional fields in answers, since later versions may add fields.
fn allow_more_fields(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if map.get("additionalProperties") == Some(&Value::Bool(false)) {
                map.remove("additionalProperties");
            }
            map.values_mut().for_each(allow_more_fields);
        }
        Value::Array(items) => items.iter_mut().for_each(allow_more_fields),
        _ => {}
    }
}

/// Whether a request schema refers to one of these names.
fn refers_to(value: &Value, names: &BTreeSet<String>) -> bool {
    match value {
        Value::Object(map) => {
            let referenced_name = map
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|reference| reference.strip_prefix(REQUEST_SCHEMA_PREFIX));
            referenced_name.is_some_and(|name| names.contains(name))
                || map.values().any(|value| refers_to(value, names))
        }
        Value::Array(items) => items.iter().any(|item| refers_to(item, names)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};
    use serde_json::json;

    use super::*;
    use crate::openapi::schema_of;

    #[derive(Serialize, Deserialize, JsonSchema)]
    struct Same {
        a: String,
    }

    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[serde(default)]
        b: u32,
    }

    #[derive(Serialize, Deserialize, JsonSchema)]
    struct Outer {
        same: Same,
        inner: Inner,
    }

    #[test]
    fn a_type_that_differs_in_requests_and_answers_has_two_names() {
        let mut schemas = Schemas::default();
        let (mut request, answer) = (schemas.of_request(schema_of::<Outer>()), schemas.of_answer(schema_of::<Outer>()));
        let renamed = schemas.finish();
        renamed.apply(&mut request);
        assert_eq!(request, json!({"$ref": "#/components/schemas/OuterInput"}));
        assert_eq!(answer, json!({"$ref": "#/components/schemas/Outer"}));
        let names: Vec<&String> = renamed.schemas.keys().collect();
        assert_eq!(names, ["Inner", "InnerInput", "Outer", "OuterInput", "Same"]);
        let closed = |name: &str| renamed.schemas[name].get("additionalProperties").is_some();
        assert_eq!((closed("Inner"), closed("InnerInput")), (false, true));
        let inner = |name: &str| renamed.schemas[name]["properties"]["inner"]["$ref"].clone();
        assert_eq!(inner("Outer"), "#/components/schemas/Inner");
        assert_eq!(inner("OuterInput"), "#/components/schemas/InnerInput");
    }
}
