//! One complaint about a document: where in it, and what would be right.

use std::fmt;

use serde::Serialize;

/// A complaint about one field of a definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// Where: a JSON pointer into the document, `/schedule/cron`.
    pub pointer: String,
    /// What is wrong and what would be right, in a sentence that names the value.
    pub message: String,
    /// Names of jobs that the message is about and leaves out, since its reader may not see all of them.
    pub jobs: Vec<String>,
}

impl FieldError {
    /// A complaint about the field at `pointer`.
    pub fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), message: message.into(), jobs: Vec::new() }
    }

    /// The same with the jobs that it is about, each followed by the next one.
    #[must_use]
    pub fn with_jobs(self, jobs: Vec<String>) -> Self {
        Self { jobs, ..self }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.pointer, self.message)
    }
}
