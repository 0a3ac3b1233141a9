//! One error in a document: its place, and how to correct it.

use std::fmt;

use serde::Serialize;

/// An error in one field of a definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// The field, as a JSON pointer into the document: `/schedule/cron`.
    pub pointer: String,
    /// A sentence that names the value, the problem and the accepted form.
    pub message: String,
    /// Names of jobs that the message is about but does not name, because its reader may lack the right to see some of them.
    pub jobs: Vec<String>,
}

impl FieldError {
    /// An error in the field at `pointer`.
    pub fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), message: message.into(), jobs: Vec::new() }
    }

    /// Adds the jobs that the error is about, parents before their children.
    #[must_use]
    pub fn with_jobs(self, jobs: Vec<String>) -> Self {
        Self { jobs, ..self }
    }
}

/// The JSON pointer to a field of the object at `pointer`. Slashes and tildes in its name are escaped.
///
/// ```
/// use rondel_core::field_error::child_pointer;
///
/// assert_eq!(child_pointer("/params", "a/b"), "/params/a~1b");
/// ```
#[must_use]
pub fn child_pointer(pointer: &str, name: &str) -> String {
    format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"))
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.pointer, self.message)
    }
}
