//! Computes the maximum cost of checking parameters against a schema, before the check, over every path that the check may take.
//!
//! The crate `jsonschema` does not limit its work. A choice (`anyOf`, `oneOf`) may visit one value once per branch. A choice that refers
//! back to itself multiplies this at each level of the parameters.

use serde_json::{Map, Value};

/// Maximum number of steps for deciding whether parameters fit: about a tenth of a second.
const STEP_COUNT_MAX: usize = 1_000_000;
/// Maximum number of values and errors that are copied to describe what is wrong. They take about 30 MB.
const COPY_COUNT_MAX: usize = 100_000;
/// How deep schemas and parameters together may nest: each level takes stack.
const DEPTH_MAX: usize = 160;
/// How many bytes of text count as one step or copy.
const TEXT_BYTES_PER_STEP: usize = 64;
/// How deep a schema itself may nest.
const SCHEMA_DEPTH_MAX: usize = 64;

/// Which check of parameters the budget allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckBudget {
    /// Deciding whether the parameters fit, and collecting all errors.
    AllErrors,
    /// Only deciding whether the parameters fit.
    ValidityOnly,
    /// No check at all.
    NoCheck,
}

/// Determines which check of `params` the budget allows.
pub(super) fn check_budget(schema: &Value, params: &Value) -> CheckBudget {
    let mut walk = CostWalk { root: schema, step_count: 0, copy_count: 0 };
    match walk.visit(schema, params, Place { is_in_choice: false, depth: 0 }) {
        Err(Exceeded) => CheckBudget::NoCheck,
        Ok(()) if walk.copy_count > COPY_COUNT_MAX => CheckBudget::ValidityOnly,
        Ok(()) => CheckBudget::AllErrors,
    }
}

/// Why a schema cannot be used although it may be valid: its cost could not be counted. `None` if it can be used.
pub(super) fn unsupported_reason(schema: &Value) -> Option<String> {
    let is_draft_4 = schema["$schema"].as_str().is_some_and(|draft| draft.contains("draft-04"));
    let mut schemas_to_check = vec![(schema, 0)];
    while let Some((value, depth)) = schemas_to_check.pop() {
        if depth > SCHEMA_DEPTH_MAX {
            return Some(format!("it nests more than {SCHEMA_DEPTH_MAX} levels deep"));
        }
        if let Value::Object(fields) = value {
            for (keyword, text) in fields.iter().filter_map(|(keyword, value)| Some((keyword, value.as_str()?))) {
                let is_refused = match keyword.as_str() {
                    "$ref" => !(text == "#" || text.starts_with("#/")) || text.contains('%'),
                    "$dynamicRef" | "$recursiveRef" | "$anchor" | "$dynamicAnchor" => true,
                    "$id" => depth > 0,
                    "id" => depth > 0 && is_draft_4,
                    _ => false,
                };
                if is_refused {
                    return Some(format!("{keyword} {text:?} is not supported: only \"$ref\": \"#/…\" is followed"));
                }
            }
        }
        schemas_to_check.extend(children(value).map(|child| (child, depth + 1)));
    }
    None
}

/// The budget is used up.
struct Exceeded;

#[derive(Clone, Copy)]
struct Place {
    /// Whether errors here are copied into the error of a choice.
    is_in_choice: bool,
    depth: usize,
}

impl Place {
    const fn in_choice(self) -> Self {
        Self { is_in_choice: true, ..self }
    }
}

struct CostWalk<'a> {
    root: &'a Value,
    /// The steps so far, up to [`STEP_COUNT_MAX`].
    step_count: usize,
    /// The values and errors that would be copied, counted until they exceed [`COPY_COUNT_MAX`].
    copy_count: usize,
}

impl<'a> CostWalk<'a> {
    fn visit(&mut self, schema: &'a Value, instance: &Value, place: Place) -> Result<(), Exceeded> {
        let place = Place { depth: place.depth + 1, ..place };
        if place.depth > DEPTH_MAX {
            return Err(Exceeded);
        }
        let Value::Object(keywords) = schema else { return self.charge(1, instance, place) };
        self.charge(weight(keywords), instance, place)?;
        self.visit_in_place(keywords, instance, place)?;
        if keywords.contains_key("unevaluatedProperties") || keywords.contains_key("unevaluatedItems") {
            self.visit_for_unevaluated(keywords, instance, place)?;
        }
        match instance {
            Value::Object(fields) => self.visit_fields(keywords, fields, place),
            Value::Array(items) => self.visit_items(keywords, items, place),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    fn charge(&mut self, weight: usize, instance: &Value, place: Place) -> Result<(), Exceeded> {
        let text_steps = instance.as_str().map_or(0, |text| text.len() / TEXT_BYTES_PER_STEP);
        self.step_count = self.step_count.saturating_add(weight.saturating_add(text_steps));
        if self.copy_count <= COPY_COUNT_MAX {
            let size = if place.is_in_choice { size(instance) } else { 1 };
            self.step_count = self.step_count.saturating_add(size);
            self.copy_count = self.copy_count.saturating_add(weight.saturating_mul(size));
        }
        if self.step_count > STEP_COUNT_MAX { Err(Exceeded) } else { Ok(()) }
    }

    /// Visits the schemas against which the same value is checked.
    fn visit_in_place(
        &mut self,
        keywords: &'a Map<String, Value>,
        instance: &Value,
        place: Place,
    ) -> Result<(), Exceeded> {
        for (schema, is_choice) in self.applicable_schemas(keywords, instance)? {
            self.visit(schema, instance, if is_choice { place.in_choice() } else { place })?;
        }
        Ok(())
    }

    /// Visits the schemas that apply to the value once more, level by level: `unevaluated…` checks the value against each of them, to see which
    /// of these schemas the value satisfies.
    fn visit_for_unevaluated(
        &mut self,
        keywords: &'a Map<String, Value>,
        instance: &Value,
        place: Place,
    ) -> Result<(), Exceeded> {
        let place = Place { depth: place.depth + 1, ..place };
        if place.depth > DEPTH_MAX {
            return Err(Exceeded);
        }
        for (schema, _) in self.applicable_schemas(keywords, instance)? {
            self.visit(schema, instance, place)?;
            if let Value::Object(keywords) = schema {
                self.visit_for_unevaluated(keywords, instance, place)?;
            }
        }
        Ok(())
    }

    /// The schemas that apply to the value itself, and whether each is a branch of a choice.
    fn applicable_schemas(
        &self,
        keywords: &'a Map<String, Value>,
        instance: &Value,
    ) -> Result<Vec<(&'a Value, bool)>, Exceeded> {
        let mut found_schemas = Vec::new();
        for (keyword, value) in keywords {
            match keyword.as_str() {
                "$ref" => found_schemas.push((self.resolve(value).ok_or(Exceeded)?, false)),
                "anyOf" | "oneOf" => found_schemas.extend(children(value).map(|schema| (schema, true))),
                "allOf" => found_schemas.extend(children(value).map(|schema| (schema, false))),
                "not" | "if" | "then" | "else" => found_schemas.push((value, false)),
                "dependentSchemas" | "dependencies" => {
                    let is_present = |field: &&String| instance.get(field.as_str()).is_some();
                    let schemas = value.as_object().into_iter().flatten();
                    found_schemas
                        .extend(schemas.filter(|(field, _)| is_present(field)).map(|(_, schema)| (schema, false)));
                }
                _ => {}
            }
        }
        Ok(found_schemas)
    }

    fn visit_fields(
        &mut self,
        keywords: &'a Map<String, Value>,
        fields: &Map<String, Value>,
        place: Place,
    ) -> Result<(), Exceeded> {
        let properties = keywords.get("properties").and_then(Value::as_object);
        for (name, child) in fields {
            if let Some(schema) = properties.and_then(|named| named.get(name)) {
                self.visit(schema, child, place)?;
            } else if let Some(schema) = keywords.get("additionalProperties") {
                self.visit(schema, child, place)?;
            }
            if let Some(schema) = keywords.get("unevaluatedProperties") {
                self.visit(schema, child, place)?;
            }
            for (pattern, schema) in keywords.get("patternProperties").and_then(Value::as_object).into_iter().flatten()
            {
                self.charge(1 + (pattern.len() + name.len()) / TEXT_BYTES_PER_STEP, &Value::Null, place)?;
                self.visit(schema, child, place)?;
            }
            if let Some(schema) = keywords.get("propertyNames") {
                self.visit(schema, &Value::String(name.clone()), place)?;
            }
        }
        Ok(())
    }

    fn visit_items(&mut self, keywords: &'a Map<String, Value>, items: &[Value], place: Place) -> Result<(), Exceeded> {
        if keywords.contains_key("uniqueItems") {
            self.charge(items.iter().map(size).sum(), &Value::Null, place)?;
        }
        let list = |keyword| keywords.get(keyword).and_then(Value::as_array).into_iter().flatten();
        for (schema, item) in list("prefixItems").zip(items).chain(list("items").zip(items)) {
            self.visit(schema, item, place)?;
        }
        let item_keywords = ["items", "additionalItems", "contains", "unevaluatedItems"];
        for schema in
            item_keywords.into_iter().filter_map(|keyword| keywords.get(keyword)).filter(|schema| !schema.is_array())
        {
            for item in items {
                self.visit(schema, item, place)?;
            }
        }
        Ok(())
    }

    fn resolve(&self, reference: &Value) -> Option<&'a Value> {
        let pointer = reference.as_str()?.strip_prefix('#')?;
        self.root.pointer(pointer)
    }
}

/// The number of comparisons that checking a value against a schema takes, without the schema's subschemas.
fn weight(keywords: &Map<String, Value>) -> usize {
    let keyword_weight = |(keyword, value): (&String, &Value)| match (keyword.as_str(), value) {
        ("$defs" | "definitions", _) => 0,
        ("enum" | "const", value) => size(value),
        (_, Value::Array(items)) => 1 + items.len(),
        (_, Value::Object(fields)) => 1 + fields.len(),
        _ => 1,
    };
    1 + keywords.iter().map(keyword_weight).sum::<usize>()
}

/// The cost of a value: 1 for each value in it, and 1 for each [`TEXT_BYTES_PER_STEP`] bytes of a text, or of the keys of an object.
fn size(value: &Value) -> usize {
    let text_len = match value {
        Value::String(text) => text.len(),
        Value::Object(fields) => fields.keys().map(String::len).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => 0,
    };
    1 + text_len / TEXT_BYTES_PER_STEP + children(value).map(size).sum::<usize>()
}

fn children(value: &Value) -> impl Iterator<Item = &Value> {
    let items = value.as_array().into_iter().flatten();
    items.chain(value.as_object().into_iter().flat_map(Map::values))
}

#[cfg(test)]
#[path = "schema_cost_tests.rs"]
mod tests;
