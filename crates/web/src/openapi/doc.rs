//! The texts about an operation: everything that its types cannot express.

use schemars::JsonSchema;
use serde_json::Value;

use super::inputs::{SchemaOf, schema_of};
use crate::parameter::Parameter;
use crate::problem::Code;

/// The texts about a route, and its answers.
pub(crate) struct Doc {
    pub(super) summary: &'static str,
    pub(super) about: &'static str,
    pub(super) answers: Vec<ResponseDoc>,
    pub(super) refusals: Vec<Code>,
    pub(super) headers: Vec<Parameter>,
    pub(super) example: Option<Value>,
}

/// A successful answer.
pub(super) struct ResponseDoc {
    pub(super) status: u16,
    pub(super) about: &'static str,
    /// The forms of its body, by media type; empty for no body.
    pub(super) forms: Vec<(&'static str, Form)>,
    /// Headers that it always has.
    pub(super) headers: Vec<&'static str>,
}

/// The form of an answer's body.
pub(super) enum Form {
    /// JSON of a type.
    Json(SchemaOf),
    /// JSON of a type as a request could send it: values that are the default are left out.
    Short(SchemaOf),
    /// Text, which no schema describes.
    Text,
}

impl Doc {
    /// A summary in one line, and a description.
    pub(crate) const fn new(summary: &'static str, about: &'static str) -> Self {
        Self { summary, about, answers: Vec::new(), refusals: Vec::new(), headers: Vec::new(), example: None }
    }

    fn answer(mut self, status: u16, about: &'static str, form: Option<(&'static str, Form)>) -> Self {
        match self.answers.iter_mut().find(|answer| answer.status == status) {
            Some(answer) => answer.forms.extend(form),
            None => {
                self.answers.push(ResponseDoc { status, about, forms: form.into_iter().collect(), headers: Vec::new() })
            }
        }
        self
    }

    /// Adds an answer with `T` as JSON.
    pub(crate) fn json<T: JsonSchema>(self, status: u16, about: &'static str) -> Self {
        self.answer(status, about, Some(("application/json", Form::Json(schema_of::<T>()))))
    }

    /// Adds an answer with `T` as JSON that could be sent back.
    pub(crate) fn short<T: JsonSchema>(self, status: u16, about: &'static str) -> Self {
        self.answer(status, about, Some(("application/json", Form::Short(schema_of::<T>()))))
    }

    /// Adds `T` as YAML to the answer with status 200.
    pub(crate) fn yaml<T: JsonSchema>(self) -> Self {
        self.answer(200, "", Some(("application/yaml", Form::Short(schema_of::<T>()))))
    }

    /// Adds an answer without a body.
    pub(crate) fn empty(self, about: &'static str) -> Self {
        self.answer(204, about, None)
    }

    /// Adds a text of this type to the answer with status 200, for requests whose `Accept` or parameters ask for it.
    pub(crate) fn text(self, media: &'static str) -> Self {
        self.answer(200, "", Some((media, Form::Text)))
    }

    /// Adds an answer with a text of this type; it has JSON too only if that is added.
    pub(crate) fn stream(self, media: &'static str, about: &'static str) -> Self {
        self.answer(200, about, Some((media, Form::Text)))
    }

    /// Adds a header to the last answer.
    pub(crate) fn with(mut self, header: &'static str) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.headers.push(header);
        }
        self
    }

    /// Adds refusals that the handler's arguments do not name.
    pub(crate) fn refuses(mut self, codes: &[Code]) -> Self {
        self.refusals.extend_from_slice(codes);
        self
    }

    /// Adds a header that the handler reads.
    pub(crate) fn reads(mut self, header: Parameter) -> Self {
        self.headers.push(header);
        self
    }

    /// Adds an example of a valid body.
    pub(crate) fn example(mut self, body: Value) -> Self {
        self.example = Some(body);
        self
    }
}
