//! What a handler takes from a request, described by the types of its arguments.

use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::parameter::Parameter;
use crate::problem::Code;

/// Makes the schema of a type.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The maker of the schema of `T`.
pub(crate) const fn schema_of<T: JsonSchema>() -> SchemaOf {
    |generator| generator.subschema_for::<T>()
}

/// A body of a request.
pub(crate) struct BodyForm {
    /// The types under which it can be sent.
    pub(crate) media: &'static [&'static str],
    pub(crate) schema: SchemaOf,
    pub(crate) is_required: bool,
}

/// All that a handler takes.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) path: Vec<Parameter>,
    pub(crate) query: Vec<Parameter>,
    pub(crate) headers: Vec<Parameter>,
    pub(crate) body: Option<BodyForm>,
    /// What is answered where it cannot be taken.
    pub(crate) refusals: Vec<Code>,
}

/// An argument of a handler.
pub(crate) trait Input {
    fn describe(taken: &mut Taken);
}

/// The arguments of a handler, behind the mark that axum puts before them.
pub(crate) trait Inputs {
    fn taken() -> Taken;
}

macro_rules! inputs {
    ($($argument:ident),+) => {
        impl<Mark, $($argument: Input),+> Inputs for (Mark, $($argument,)+) {
            fn taken() -> Taken {
                let mut taken = Taken::default();
                $($argument::describe(&mut taken);)+
                taken
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
    /// Which headers are looked at, the route names.
    fn describe(_: &mut Taken) {}
}
