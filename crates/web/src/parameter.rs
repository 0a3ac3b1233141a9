//! Parameters of requests in the path, the query or a header, as the OpenAPI document describes them.

use std::ops::RangeInclusive;

use rondel_core::schema::{ID_PATTERN, NAME_PATTERN};
use serde_json::{Value, json};

/// The format of a parameter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParameterFormat {
    Text,
    Pattern(&'static str),
    Instant,
    Flag,
    Number { from: u32, to: u32, default: Option<u32> },
    Word(&'static [&'static str]),
    Words(&'static [&'static str]),
    Cursor,
}

/// A parameter, with a sentence that describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) is_required: bool,
    format: ParameterFormat,
}

impl From<&'static str> for Parameter {
    /// A parameter of a page. Pages are not part of the OpenAPI document, so the parameter needs no description.
    fn from(name: &'static str) -> Self {
        Self::text(name)
    }
}

impl Parameter {
    const fn new(name: &'static str, format: ParameterFormat) -> Self {
        Self { name, about: "", is_required: false, format }
    }

    /// Any text.
    pub(crate) const fn text(name: &'static str) -> Self {
        Self::new(name, ParameterFormat::Text)
    }

    /// A text that matches this pattern.
    pub(crate) const fn pattern(name: &'static str, pattern: &'static str) -> Self {
        Self::new(name, ParameterFormat::Pattern(pattern))
    }

    /// The name of an object, such as a namespace or a job.
    pub(crate) const fn name(name: &'static str) -> Self {
        Self::new(name, ParameterFormat::Pattern(NAME_PATTERN))
    }

    /// The id of an object.
    pub(crate) const fn id(name: &'static str) -> Self {
        Self::new(name, ParameterFormat::Pattern(ID_PATTERN))
    }

    pub(crate) const fn instant(name: &'static str) -> Self {
        Self::new(name, ParameterFormat::Instant)
    }

    /// `true` or `false`. The default is `false`.
    pub(crate) const fn flag(name: &'static str) -> Self {
        Self::new(name, ParameterFormat::Flag)
    }

    pub(crate) const fn number(name: &'static str, range: RangeInclusive<u32>) -> Self {
        Self::new(name, ParameterFormat::Number { from: *range.start(), to: *range.end(), default: None })
    }

    pub(crate) const fn word(name: &'static str, words: &'static [&'static str]) -> Self {
        Self::new(name, ParameterFormat::Word(words))
    }

    /// Some of these words, in repeated parameters or separated by commas.
    pub(crate) const fn words(name: &'static str, words: &'static [&'static str]) -> Self {
        Self::new(name, ParameterFormat::Words(words))
    }

    /// The cursor of a list.
    pub(crate) const fn cursor() -> Self {
        Self::new("cursor", ParameterFormat::Cursor)
            .about("`next_cursor` of the previous page; the filters must be the same.")
    }

    /// The cursor of a list, in a parameter with another name.
    pub(crate) const fn cursor_in(name: &'static str) -> Self {
        Self::new(name, ParameterFormat::Cursor)
    }

    pub(crate) const fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }

    pub(crate) const fn required(self) -> Self {
        Self { is_required: true, ..self }
    }

    /// Sets the default of a number.
    pub(crate) const fn with_default(self, default: u32) -> Self {
        match self.format {
            ParameterFormat::Number { from, to, .. } => {
                Self { format: ParameterFormat::Number { from, to, default: Some(default) }, ..self }
            }
            _ => self,
        }
    }

    pub(crate) const fn is_cursor(&self) -> bool {
        matches!(self.format, ParameterFormat::Cursor)
    }

    pub(crate) fn schema(&self) -> Value {
        match self.format {
            ParameterFormat::Text => json!({"type": "string"}),
            ParameterFormat::Pattern(pattern) => json!({"type": "string", "pattern": pattern}),
            ParameterFormat::Instant => json!({"type": "string", "format": "date-time"}),
            ParameterFormat::Flag => json!({"type": "boolean", "default": false}),
            ParameterFormat::Number { from, to, default: None } => {
                json!({"type": "integer", "minimum": from, "maximum": to})
            }
            ParameterFormat::Number { from, to, default: Some(default) } => {
                json!({"type": "integer", "minimum": from, "maximum": to, "default": default})
            }
            ParameterFormat::Word(words) => json!({"type": "string", "enum": words}),
            ParameterFormat::Words(words) => json!({"type": "array", "items": {"type": "string", "enum": words}}),
            ParameterFormat::Cursor => json!({"type": "string", "maxLength": 1024}),
        }
    }
}
