//! The inputs of a handler, described by the types of its arguments.

use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::parameter::Parameter;
use crate::problem::Code;

/// A function that generates the schema of a type.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The function that generates the schema of `T`.
pub(crate) const fn schema_of<T: JsonSchema>() -> SchemaOf {
    |generator| generator.subschema_for::<T>()
}

pub(crate) struct RequestBodyDoc {
    /// The media types that are accepted.
    pub(crate) media_types: &'static [&'static str],
    pub(crate) schema: SchemaOf,
    pub(crate) is_required: bool,
}

/// All inputs of a handler.
#[derive(Default)]
pub(crate) struct HandlerInputs {
    pub(crate) path: Vec<Parameter>,
    pub(crate) query: Vec<Parameter>,
    pub(crate) headers: Vec<Parameter>,
    pub(crate) body: Option<RequestBodyDoc>,
    /// The codes with which these inputs can be refused.
    pub(crate) refusals: Vec<Code>,
}

/// An argument of a handler.
pub(crate) trait Input {
    fn describe(inputs: &mut HandlerInputs);
}

/// The arguments of a handler, after the marker type that axum puts first.
pub(crate) trait Inputs {
    fn describe_inputs() -> HandlerInputs;
}

macro_rules! inputs {
    ($($argument:ident),+) => {
        impl<Mark, $($argument: Input),+> Inputs for (Mark, $($argument,)+) {
            fn describe_inputs() -> HandlerInputs {
                let mut inputs = HandlerInputs::default();
                $($argument::describe(&mut inputs);)+
                inputs
            }
        }
    };
}

inputs!(A);
inputs!(A, B);
inputs!(A, B, C);
inputs!(A, B, C, D);
inputs!(A, B, C, D, E);

impl Input for http::HeaderMap {
    /// Describes nothing: the route's `Doc` names the headers that the handler reads.
    fn describe(_: &mut HandlerInputs) {}
}
