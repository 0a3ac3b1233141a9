//! The arguments in the attribute's parentheses.

use proc_macro2::Span;
use serde_json::{Value, json};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Expr, ExprArray, ExprLit, Ident, Lit, LitStr, Token};

/// Each argument, its place in the job's document, and the method of `Declaration` for it.
///
/// `parent` is `after` with a single job.
pub(crate) const ARG_KINDS: &[ArgKind] = &[
    ArgKind { name: "name", path: &["name"], method: "", value_type: ArgType::Text },
    ArgKind { name: "cron", path: &["schedule", "cron"], method: "cron", value_type: ArgType::Text },
    ArgKind { name: "tz", path: &["schedule", "time_zone"], method: "time_zone", value_type: ArgType::Text },
    ArgKind { name: "every", path: &["schedule", "every"], method: "every", value_type: ArgType::Text },
    ArgKind { name: "delay", path: &["schedule", "delay"], method: "delay", value_type: ArgType::Text },
    ArgKind { name: "at", path: &["schedule", "at"], method: "at", value_type: ArgType::Text },
    ArgKind { name: "after", path: &["schedule", "after"], method: "after", value_type: ArgType::Texts },
    ArgKind { name: "parent", path: &["schedule", "after"], method: "after", value_type: ArgType::Texts },
    ArgKind { name: "on", path: &["schedule", "on"], method: "on", value_type: ArgType::Text },
    ArgKind { name: "retry", path: &["retry", "max"], method: "retry", value_type: ArgType::Number },
    ArgKind { name: "backoff", path: &["retry", "backoff"], method: "backoff", value_type: ArgType::Text },
    ArgKind { name: "timeout", path: &["timeout"], method: "timeout", value_type: ArgType::Text },
    ArgKind { name: "misfire", path: &["misfire", "policy"], method: "misfire", value_type: ArgType::Text },
    ArgKind { name: "overlap", path: &["overlap", "policy"], method: "overlap", value_type: ArgType::Text },
    ArgKind { name: "on_silence", path: &["on_silence"], method: "on_silence", value_type: ArgType::Text },
    ArgKind { name: "route", path: &["route"], method: "route", value_type: ArgType::Text },
    ArgKind { name: "priority", path: &["priority"], method: "priority", value_type: ArgType::Number },
    ArgKind { name: "overrides", path: &["overrides"], method: "overrides", value_type: ArgType::WordOrTexts },
    ArgKind { name: "labels", path: &["labels"], method: "labels", value_type: ArgType::Pairs },
    ArgKind {
        name: "success_by",
        path: &["expect", "success_by", "time"],
        method: "success_by",
        value_type: ArgType::Text,
    },
    ArgKind {
        name: "success_by_zone",
        path: &["expect", "success_by", "zone"],
        method: "success_by_zone",
        value_type: ArgType::Text,
    },
    ArgKind {
        name: "no_success_for",
        path: &["expect", "no_success_for"],
        method: "no_success_for",
        value_type: ArgType::Text,
    },
    ArgKind { name: "longer_than", path: &["expect", "longer_than"], method: "longer_than", value_type: ArgType::Text },
    ArgKind { name: "late", path: &["expect", "late"], method: "late", value_type: ArgType::Text },
    ArgKind {
        name: "expect_channels",
        path: &["expect", "channels"],
        method: "expect_channels",
        value_type: ArgType::Texts,
    },
    ArgKind { name: "enabled", path: &["enabled"], method: "enabled", value_type: ArgType::Flag },
];

/// An argument that can be given.
pub(crate) struct ArgKind {
    pub(crate) name: &'static str,
    /// Its place in the job's document.
    pub(crate) path: &'static [&'static str],
    /// The method of `Declaration` for it; empty for the name, which goes to the constructor.
    pub(crate) method: &'static str,
    value_type: ArgType,
}

#[derive(Clone, Copy)]
enum ArgType {
    Text,
    /// One text, or a list of them.
    Texts,
    /// A single word, or a list of texts.
    WordOrTexts,
    /// One pair of a key and a value, `"team=pay"`, or a list of them.
    Pairs,
    Number,
    Flag,
}

/// An argument that was given.
pub(crate) struct Arg {
    pub(crate) kind: &'static ArgKind,
    /// The expression as it was written.
    pub(crate) tokens: Expr,
    /// Its value in the job's document.
    pub(crate) value: Value,
    /// The location that errors about it point at.
    pub(crate) span: Span,
}

pub(crate) struct Args(pub(crate) Vec<Arg>);

impl Parse for Args {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut args = Vec::new();
        if input.peek(LitStr) {
            let name: LitStr = input.parse()?;
            args.push(Arg::new(&ARG_KINDS[0], Expr::Lit(ExprLit { attrs: Vec::new(), lit: Lit::Str(name) }))?);
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        for named_arg in Punctuated::<NamedArg, Token![,]>::parse_terminated(input)? {
            let arg = Arg::new(find_kind(&named_arg.name)?, named_arg.value)?;
            if let Some(same_arg) = args.iter().find(|same_arg| same_arg.kind.path == arg.kind.path) {
                let message = match same_arg.kind.name {
                    name if name == arg.kind.name => format!("`{name}` is given twice"),
                    name => format!("`{}` means the same as `{name}`; give one of them", arg.kind.name),
                };
                return Err(syn::Error::new(named_arg.name.span(), message));
            }
            args.push(arg);
        }
        Ok(Self(args))
    }
}

struct NamedArg {
    name: Ident,
    value: Expr,
}

impl Parse for NamedArg {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let name = input.parse()?;
        input.parse::<Token![=]>()?;
        Ok(Self { name, value: input.parse()? })
    }
}

fn find_kind(name: &Ident) -> syn::Result<&'static ArgKind> {
    ARG_KINDS.iter().find(|kind| name == kind.name).ok_or_else(|| {
        let known_names: Vec<String> = ARG_KINDS.iter().map(|kind| format!("`{}`", kind.name)).collect();
        syn::Error::new(
            name.span(),
            format!("`{name}` is not an argument of a job; there are {}", known_names.join(", ")),
        )
    })
}

impl Arg {
    fn new(kind: &'static ArgKind, tokens: Expr) -> syn::Result<Self> {
        let span = syn::spanned::Spanned::span(&tokens);
        let value = parse_value(kind.value_type, &tokens).ok_or_else(|| {
            let expected_form = match kind.value_type {
                ArgType::Text => "a string literal",
                ArgType::Texts => "a string literal, or a list of them such as [\"a\", \"b\"]",
                ArgType::WordOrTexts => "a string literal, or a list of them such as [\"/a\", \"/b\"]",
                ArgType::Pairs => "a pair such as \"team=pay\", or a list of them with different keys",
                ArgType::Number => "a whole number",
                ArgType::Flag => "true or false",
            };
            syn::Error::new(span, format!("`{}` wants {expected_form}", kind.name))
        })?;
        Ok(Self { kind, tokens, value, span })
    }
}

fn parse_value(value_type: ArgType, expr: &Expr) -> Option<Value> {
    match (value_type, expr) {
        (ArgType::Text | ArgType::WordOrTexts, Expr::Lit(ExprLit { lit: Lit::Str(text), .. })) => {
            Some(json!(text.value()))
        }
        (ArgType::Texts, Expr::Lit(ExprLit { lit: Lit::Str(text), .. })) => Some(json!([text.value()])),
        (ArgType::Texts | ArgType::WordOrTexts, Expr::Array(ExprArray { elems, .. })) => elems
            .iter()
            .map(|element| parse_value(ArgType::Text, element))
            .collect::<Option<Vec<_>>>()
            .map(Value::Array),
        (ArgType::Pairs, Expr::Lit(ExprLit { lit: Lit::Str(text), .. })) => parse_pairs([text.value()].into_iter()),
        (ArgType::Pairs, Expr::Array(ExprArray { elems, .. })) => {
            let texts = elems.iter().map(|element| parse_value(ArgType::Text, element)?.as_str().map(str::to_owned));
            parse_pairs(texts.collect::<Option<Vec<_>>>()?.into_iter())
        }
        (ArgType::Number, Expr::Lit(ExprLit { lit: Lit::Int(number), .. })) => {
            number.base10_parse::<u64>().ok().map(|number| json!(number))
        }
        (ArgType::Flag, Expr::Lit(ExprLit { lit: Lit::Bool(flag), .. })) => Some(json!(flag.value)),
        _ => None,
    }
}

/// An object made of texts such as `team=pay`; `None` if a text is not a pair, or a key occurs twice.
fn parse_pairs(texts: impl Iterator<Item = String>) -> Option<Value> {
    let mut object = serde_json::Map::new();
    for text in texts {
        let (key, value) = text.split_once('=')?;
        if object.insert(key.to_owned(), json!(value)).is_some() {
            return None;
        }
    }
    Some(Value::Object(object))
}
