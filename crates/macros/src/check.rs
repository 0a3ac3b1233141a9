//! Checks the attribute's arguments as a job's document, with the server's own parsers.

use proc_macro2::Span;
use rondel_core::JobSpec;
use rondel_core::spec::ScheduleSpec;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::args::{Arg, Args};

/// Refuses everything that the server would refuse; each error points at its argument.
pub(crate) fn check(args: &Args, name: &str, function_span: Span) -> syn::Result<()> {
    let mut errors = ErrorList(None);
    for arg in &args.0 {
        // Each argument is first read without the arguments of other fields, so that a value that cannot be parsed is
        // reported at this argument.
        if let Err(error) = read_spec(document(with_args_of_same_field(arg, args), name)) {
            errors.add(arg.span, error);
        }
    }
    if errors.0.is_none() {
        let spec = read_spec(document(&args.0, name));
        let spec = spec.map_err(|error| syn::Error::new(function_span, error))?;
        for error in spec.compile().err().unwrap_or_default() {
            errors.add(span_of(&error.pointer, args, function_span), error.message);
        }
    }
    errors.0.map_or(Ok(()), Err)
}

/// The argument, together with the other arguments of its field, because some fields can be read only as a whole:
/// `success_by` may have a zone, but must have a time.
fn with_args_of_same_field<'a>(arg: &'a Arg, args: &'a Args) -> impl Iterator<Item = &'a Arg> {
    let field = &arg.kind.path[..arg.kind.path.len() - 1];
    let is_of_field = move |other_arg: &&Arg| field.len() > 1 && other_arg.kind.path.starts_with(field);
    args.0.iter().filter(move |other_arg| std::ptr::eq(*other_arg, arg) || is_of_field(other_arg))
}

/// Reads a document. Its schedule is read separately first: the field may be one schedule or a list, and for such a
/// field serde reports only that neither form fits.
fn read_spec(document: Value) -> serde_json::Result<JobSpec> {
    if let Some(schedule) = document.get("schedule") {
        ScheduleSpec::deserialize(schedule)?;
    }
    serde_json::from_value(document)
}

struct ErrorList(Option<syn::Error>);

impl ErrorList {
    fn add(&mut self, span: Span, message: impl std::fmt::Display) {
        let error = syn::Error::new(span, message);
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }
}

/// The span of the argument whose place in the document is at, below or above the pointer. If there is none, the span of the function's
/// name.
fn span_of(pointer: &str, args: &Args, function_span: Span) -> Span {
    let pointer = if pointer == "/handler" { "/name" } else { pointer };
    let is_at_pointer = |arg: &&Arg| {
        let own_pointer = arg.kind.path.iter().map(|step| format!("/{step}")).collect::<String>();
        pointer == own_pointer
            || own_pointer.starts_with(&format!("{pointer}/"))
            || pointer.starts_with(&format!("{own_pointer}/"))
    };
    args.0.iter().find(is_at_pointer).map_or(function_span, |arg| arg.span)
}

fn document<'a>(args: impl IntoIterator<Item = &'a Arg>, name: &str) -> Value {
    // The executor sets the app, which is unknown here.
    let mut document = json!({"name": name, "app": "app", "handler": name});
    for arg in args {
        let mut value = &mut document;
        for step in arg.kind.path {
            value = &mut value[*step];
        }
        *value = arg.value.clone();
    }
    document
}
