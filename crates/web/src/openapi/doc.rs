//! What is written about an operation: all that its types cannot express.

use schemars::JsonSchema;
use serde_json::Value;

use super::inputs::{SchemaOf, schema_of};
use crate::parameter::Parameter;
use crate::problem::Code;

/// The words about a route, and what it answers.
pub(crate) struct Doc {
    pub(super) summary: &'static str,
    pub(super) about: &'static str,
    pub(super) answers: Vec<ResponseDoc>,
    pub(super) refusals: Vec<Code>,
    pub(super) headers: Vec<Parameter>,
    pub(super) example: Option<Value>,
}

/// One way in which a call goes well.
pub(super) struct ResponseDoc {
    pub(super) status: u16,
    pub(super) about: &'static str,
    /// Each form that it can have; nothing for no body.
    pub(super) forms: Vec<(&'static str, Form)>,
    /// Headers that it always has.
    pub(super) headers: Vec<&'static str>,
}

/// What a body of an answer is.
pub(super) enum Form {
    /// JSON of a type.
    Json(SchemaOf),
    /// A document of a type as it could be sent: without what is the default anyway.
    Short(SchemaOf),
    /// Text, which no schema describes.
    Text,
}

impl Doc {
    /// A short line, and what there is to know.
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

    /// Answers `T` as JSON.
    pub(crate) fn json<T: JsonSchema>(self, status: u16, about: &'static str) -> Self {
        self.answer(status, about, Some(("application/json", Form::Json(schema_of::<T>()))))
    }

    /// Answers `T` as JSON that could be sent back.
    pub(crate) fn short<T: JsonSchema>(self, status: u16, about: &'static str) -> Self {
        self.answer(status, about, Some(("application/json", Form::Short(schema_of::<T>()))))
    }

    /// The same in YAML.
    pub(crate) fn yaml<T: JsonSchema>(self) -> Self {
        self.answer(200, "", Some(("application/yaml", Form::Short(schema_of::<T>()))))
    }

    /// Answers nothing but the status.
    pub(crate) fn empty(self, about: &'static str) -> Self {
        self.answer(204, about, None)
    }

    /// Answers a text of this type too, where `Accept` or a parameter asks for it.
    pub(crate) fn text(self, media: &'static str) -> Self {
        self.answer(200, "", Some((media, Form::Text)))
    }

    /// Answers a text of this type, and no JSON unless that follows.
    pub(crate) fn stream(self, media: &'static str, about: &'static str) -> Self {
        self.answer(200, about, Some((media, Form::Text)))
    }

    /// A header that the last answer has.
    pub(crate) fn with(mut self, header: &'static str) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.headers.push(header);
        }
        self
    }

    /// Refusals that its arguments do not name.
    pub(crate) fn refuses(mut self, codes: &[Code]) -> Self {
        self.refusals.extend_from_slice(codes);
        self
    }

    /// A header that it looks at.
    pub(crate) fn reads(mut self, header: Parameter) -> Self {
        self.headers.push(header);
        self
    }

    /// A body that works.
    pub(crate) fn example(mut self, body: Value) -> Self {
        self.example = Some(body);
        self
    }
}
