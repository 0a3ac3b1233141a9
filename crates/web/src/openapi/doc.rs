//! The texts about an operation, which cannot be derived from its types.

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
    /// Its possible bodies, by media type; empty if it has none.
    pub(super) bodies: Vec<(&'static str, BodyKind)>,
    /// Headers that it always has.
    pub(super) headers: Vec<&'static str>,
}

/// What kind of body an answer has.
pub(super) enum BodyKind {
    /// JSON of this type.
    Json(SchemaOf),
    /// JSON of this type in the form that a request may send: fields that have their default are left out.
    Short(SchemaOf),
    /// Text without a schema.
    Text,
}

impl Doc {
    /// `summary` is one line, `about` the description.
    pub(crate) const fn new(summary: &'static str, about: &'static str) -> Self {
        Self { summary, about, answers: Vec::new(), refusals: Vec::new(), headers: Vec::new(), example: None }
    }

    fn answer(mut self, status: u16, about: &'static str, body: Option<(&'static str, BodyKind)>) -> Self {
        match self.answers.iter_mut().find(|answer| answer.status == status) {
            Some(answer) => answer.bodies.extend(body),
            None => self.answers.push(ResponseDoc {
                status,
                about,
                bodies: body.into_iter().collect(),
                headers: Vec::new(),
            }),
        }
        self
    }

    /// Adds an answer with `T` as JSON.
    pub(crate) fn json<T: JsonSchema>(self, status: u16, about: &'static str) -> Self {
        self.answer(status, about, Some(("application/json", BodyKind::Json(schema_of::<T>()))))
    }

    /// Adds an answer with `T` as JSON, in a form that the client can send back.
    pub(crate) fn short<T: JsonSchema>(self, status: u16, about: &'static str) -> Self {
        self.answer(status, about, Some(("application/json", BodyKind::Short(schema_of::<T>()))))
    }

    /// Adds `T` as YAML to the answer with status 200.
    pub(crate) fn yaml<T: JsonSchema>(self) -> Self {
        self.answer(200, "", Some(("application/yaml", BodyKind::Short(schema_of::<T>()))))
    }

    /// Adds an answer without a body.
    pub(crate) fn empty(self, about: &'static str) -> Self {
        self.answer(204, about, None)
    }

    /// Adds text of this media type to the answer with status 200, for requests whose `Accept` header or parameters ask for it.
    pub(crate) fn text(self, media_type: &'static str) -> Self {
        self.answer(200, "", Some((media_type, BodyKind::Text)))
    }

    /// Adds an answer with text of this media type. The answer has no JSON unless that is added too.
    pub(crate) fn stream(self, media_type: &'static str, about: &'static str) -> Self {
        self.answer(200, about, Some((media_type, BodyKind::Text)))
    }

    /// Adds a header to the last answer.
    pub(crate) fn with(mut self, header: &'static str) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.headers.push(header);
        }
        self
    }

    /// Adds refusals that the handler's arguments do not imply.
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
