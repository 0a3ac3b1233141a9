//! Checks whether a JSON document has the shape of a type. All deviations are reported together, each with its place, the value
//! that was found and the value that was expected.
//!
//! The shape is the JSON schema that the type derives for the API's description. serde alone stops at the first error and
//! accepts an array for an object. Names, ranges and dependencies between fields are not checked here: a document that has
//! errors is repaired with placeholders, so that the caller can check the rest of it and report everything in one answer.

mod check;
mod document;
mod expected;

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use serde_json::Value;
use serde_path_to_error::Segment;

use self::check::Checker;
pub use self::document::Document;
use crate::field_error::FieldError;

/// How many errors of one document are kept; further ones are only counted.
pub const ERROR_COUNT_MAX: usize = 200;

crate::plain_word_enum! {
    /// The kind of a deviation.
    pub ErrorKind {
        /// The type has no such field.
        UnknownField = "unknown_field",
        /// A field without a default was left out.
        MissingField = "missing_field",
        /// A field is given twice.
        DuplicateField = "duplicate_field",
        /// The value has another type than the field, or is not in its list of words.
        InvalidValue = "invalid_value",
    }
}

/// A deviation from the shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeError {
    /// A JSON pointer into the document.
    pub pointer: String,
    /// The kind of the deviation.
    pub kind: ErrorKind,
    /// A sentence that names what was expected and what was found.
    pub message: String,
}

/// A document that does not have the shape of `T`.
#[derive(Clone, Debug)]
pub struct ShapeErrors<T> {
    /// The errors in the order of the document, at most [`ERROR_COUNT_MAX`].
    pub errors: Vec<ShapeError>,
    /// The number of all errors, including those that are not kept.
    pub count: usize,
    /// The document with placeholders for wrong and missing values, if it can be deserialized as a `T`. For further checks only.
    pub repaired: Option<T>,
}

impl<T> ShapeErrors<T> {
    /// Returns the errors among `field_errors` that no deviation can have caused. `field_errors` are errors that further checks of the
    /// repaired document reported. A deviation can have caused an error if the pointer of one lies at or below the pointer of the other.
    pub fn independent_errors(&self, field_errors: Vec<FieldError>) -> impl Iterator<Item = FieldError> {
        let is_below = |below: &str, above: &str| {
            below.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_independent = move |error: &FieldError| {
            let is_related = |shape_error: &ShapeError| {
                is_below(&error.pointer, &shape_error.pointer) || is_below(&shape_error.pointer, &error.pointer)
            };
            !self.errors.iter().any(is_related)
        };
        field_errors.into_iter().filter(is_independent)
    }
}

/// Reads `T` out of a document.
///
/// # Errors
/// Everything in which the document deviates from the shape of `T`.
pub fn read<T: DeserializeOwned + JsonSchema + 'static>(document: Document) -> Result<T, Box<ShapeErrors<T>>> {
    let schema = schema_of::<T>();
    let Document { mut value, duplicates } = document;
    let mut checker = Checker::new(&schema, &duplicates);
    let is_readable = checker.check(&schema, &mut value);
    let (errors, count) = checker.into_errors();
    if count == 0 {
        let error = match serde_path_to_error::deserialize(value) {
            Ok(read) => return Ok(read),
            Err(error) => from_serde_error(&error),
        };
        return Err(Box::new(ShapeErrors { errors: vec![error], count: 1, repaired: None }));
    }
    let repaired_value = is_readable.then(|| T::deserialize(value).ok()).flatten();
    Err(Box::new(ShapeErrors { errors, count, repaired: repaired_value }))
}

/// The schema of a type, generated once per process.
fn schema_of<T: JsonSchema + 'static>() -> Arc<Value> {
    static SCHEMAS: LazyLock<RwLock<HashMap<TypeId, Arc<Value>>>> = LazyLock::new(RwLock::default);
    let id = TypeId::of::<T>();
    if let Some(schema) = SCHEMAS.read().unwrap_or_else(PoisonError::into_inner).get(&id) {
        return Arc::clone(schema);
    }
    let generator = SchemaSettings::draft2020_12().for_deserialize().into_generator();
    let schema = Arc::new(generator.into_root_schema_for::<T>().to_value());
    SCHEMAS.write().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::clone(&schema));
    schema
}

/// Reads `T`. The error is serde's message after a JSON pointer to the value that does not fit: serde alone names a field only
/// if it is missing or unknown.
///
/// ```
/// use std::collections::HashMap;
///
/// use rondel_core::shape::read_with_place;
///
/// let value = serde_json::json!({"rows": [1, "ten"]});
/// let wrong = read_with_place::<HashMap<String, Vec<u32>>, _>(&value).unwrap_err();
/// assert_eq!(wrong, "/rows/1: invalid type: string \"ten\", expected u32");
/// ```
///
/// # Errors
/// The pointer with the message.
pub fn read_with_place<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, String> {
    serde_path_to_error::deserialize(deserializer).map_err(|error: serde_path_to_error::Error<D::Error>| {
        let mut pointer = pointer_to(error.path());
        let message = error.into_inner().to_string();
        if message.starts_with("unknown field") {
            pointer.truncate(pointer.rfind('/').unwrap_or(0));
        }
        if pointer.is_empty() { message } else { format!("{pointer}: {message}") }
    })
}

fn pointer_to(path: &serde_path_to_error::Path) -> String {
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => push(&mut pointer, &index.to_string()),
            Segment::Map { key } => push(&mut pointer, key),
            Segment::Enum { variant } => push(&mut pointer, variant),
            Segment::Unknown => {}
        }
    }
    pointer
}

/// The error for a document that fits the schema but that the type refuses.
fn from_serde_error(error: &serde_path_to_error::Error<serde_json::Error>) -> ShapeError {
    let mut pointer = pointer_to(error.path());
    let message = error.inner().to_string();
    let missing_field = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    if let Some(name) = missing_field {
        push(&mut pointer, name);
        let message = format!("required field {name:?} is missing");
        return ShapeError { pointer, kind: ErrorKind::MissingField, message };
    }
    ShapeError { pointer, kind: ErrorKind::InvalidValue, message: readable_message(&message) }
}

/// serde's message, or a general one if the message names Rust types.
fn readable_message(message: &str) -> String {
    let type_words = ["struct ", "enum ", "variant ", "tuple ", "unit ", "newtype "];
    if type_words.iter().any(|word| message.contains(word)) {
        return "does not have the expected form; see the description of the API for it".to_owned();
    }
    message.to_owned()
}

/// Appends a key or an index to a JSON pointer.
fn push(pointer: &mut String, key: &str) {
    pointer.push('/');
    if key.contains(['~', '/']) {
        pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
    } else {
        pointer.push_str(key);
    }
}

#[cfg(test)]
mod tests;
