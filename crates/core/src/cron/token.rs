//! Pieces of an expression with their positions, so that every error names its place.

use super::error::{CronError, CronField};

/// How much of a wrong value an error repeats, in characters.
const VALUE_LENGTH_MAX: usize = 40;

/// A piece of the text, and its position in the text, in characters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) position: usize,
}

impl<'a> Token<'a> {
    pub(super) fn of_text(text: &'a str) -> Self {
        Self { text, position: 0 }
    }

    /// The pieces between white space.
    pub(super) fn fields(self) -> Vec<Self> {
        self.pieces(|c| c.is_ascii_whitespace()).filter(|field| !field.text.is_empty()).collect()
    }

    /// The pieces between separators, including empty ones.
    pub(super) fn pieces(self, is_separator: impl Fn(char) -> bool) -> impl Iterator<Item = Self> {
        let mut position = self.position;
        self.text.split(is_separator).map(move |text| {
            let piece = Self { text, position };
            position += text.chars().count() + 1;
            piece
        })
    }

    /// The parts before and after the first separator.
    pub(super) fn split_once(self, separator: char) -> Option<(Self, Self)> {
        let (before, after) = self.text.split_once(separator)?;
        let position = self.position + before.chars().count() + 1;
        Some((Self { text: before, ..self }, Self { text: after, position }))
    }

    /// The value of a piece made of digits only. A number that is too large becomes `u32::MAX`, which no field accepts.
    pub(super) fn number(self) -> Option<u32> {
        let is_number = !self.text.is_empty() && self.text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| self.text.parse().unwrap_or(u32::MAX))
    }

    pub(super) fn refuse(self, field: CronField, allowed: impl Into<String>) -> CronError {
        let mut value: String = self.text.chars().take(VALUE_LENGTH_MAX).collect();
        if value.len() < self.text.len() {
            value.push('…');
        }
        CronError { field, value, position: self.position, allowed: allowed.into() }
    }
}
