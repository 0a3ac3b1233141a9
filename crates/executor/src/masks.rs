//! Hides resolved secrets in what leaves the executor: log lines, messages, results.

use std::borrow::Cow;

use serde_json::Value;

const MASK: &str = "***";

/// Lines of a secret of several lines are hidden one by one; shorter ones would hide half the log.
const LINE_BYTES_MIN: usize = 8;

/// The secrets of one run, the longest first, so that one within another hides nothing of it.
#[derive(Default)]
pub(crate) struct Masks {
    secrets: Vec<String>,
}

impl Masks {
    pub(crate) fn new(values: impl IntoIterator<Item = String>) -> Self {
        let mut secrets: Vec<String> = Vec::new();
        for value in values.into_iter().filter(|value| !value.is_empty()) {
            if value.contains('\n') {
                let lines = value.lines().map(str::trim).filter(|line| line.len() >= LINE_BYTES_MIN);
                secrets.extend(lines.map(str::to_owned));
            }
            secrets.push(value);
        }
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        Self { secrets }
    }

    pub(crate) fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.secrets.iter().fold(Cow::Borrowed(text), |text, secret| replace(text, secret))
    }

    /// The same in the strings of JSON text, so that it stays JSON: a secret may look like a number.
    pub(crate) fn apply_json<'a>(&self, json: &'a str) -> Cow<'a, str> {
        if self.secrets.is_empty() {
            return Cow::Borrowed(json);
        }
        match serde_json::from_str(json) {
            Ok(mut value) => {
                self.hide_in(&mut value);
                Cow::Owned(value.to_string())
            }
            Err(_) => self.apply(json),
        }
    }

    fn hide_in(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.apply(text).into_owned(),
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide_in(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.hide_in(field)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

fn replace<'a>(text: Cow<'a, str>, secret: &str) -> Cow<'a, str> {
    if secret.is_empty() || !text.contains(secret) { text } else { Cow::Owned(text.replace(secret, MASK)) }
}

impl std::fmt::Debug for Masks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Masks({})", self.secrets.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masks(secrets: &[&str]) -> Masks {
        Masks::new(secrets.iter().map(|secret| (*secret).to_owned()))
    }

    #[test]
    fn secrets_are_hidden_the_longest_first() {
        assert_eq!(masks(&["key", "key-and-more"]).apply("a key-and-more b key"), "a *** b ***");
        assert_eq!(masks(&[""]).apply("nothing"), "nothing");
    }

    #[test]
    fn the_lines_of_a_long_secret_are_hidden_one_by_one() {
        let pem = masks(&["-----BEGIN-----\nabcdefghijkl\nx\n"]);
        assert_eq!(pem.apply("line: abcdefghijkl, x"), "line: ***, x");
    }

    #[test]
    fn escaped_secrets_are_hidden_in_json() {
        assert_eq!(masks(&["a\"b"]).apply_json(r#"{"echo":"<a\"b>"}"#), r#"{"echo":"<***>"}"#);
        assert_eq!(masks(&["1"]).apply_json(r#"{"code":1,"text":"1"}"#), r#"{"code":1,"text":"***"}"#);
    }

    #[test]
    fn debug_says_nothing() {
        assert_eq!(format!("{:?}", masks(&["hidden"])), "Masks(1)");
    }
}
