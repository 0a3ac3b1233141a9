//! Hides resolved secrets, and their usual encodings, in everything that leaves the executor: log lines, messages,
//! results. An encoding is found only within one line. This prevents accidental disclosure; it does not stop code that
//! wants to reveal a secret.

use std::borrow::Cow;
use std::collections::BTreeSet;

use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

const MASK: &str = "***";

/// Minimum length at which the lines of a multi-line secret are hidden one by one; shorter lines would also match much
/// unrelated text.
const LINE_BYTES_MIN: usize = 8;
/// Minimum length of secrets whose encodings are hidden: encodings of shorter secrets would match unrelated text.
const ENCODED_BYTES_MIN: usize = 6;
/// Maximum length of secrets whose encodings are hidden: encodings of longer secrets would cost too much memory.
const ENCODED_BYTES_MAX: usize = 8 * 1024;
/// The shortest encoded form that is searched for.
const FORM_BYTES_MIN: usize = 6;
/// Line lengths of `base64`, and of tools that write PEM.
const WRAP_LENGTHS: [usize; 2] = [76, 64];

/// Characters that a strict encoder escapes in a component of a URL.
const COMPONENT_ESCAPES: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Characters that Python's `quote` escapes.
const PATH_ESCAPES: &AsciiSet = &COMPONENT_ESCAPES.remove(b'/');
/// Characters that JavaScript's `encodeURIComponent` escapes.
const JS_COMPONENT_ESCAPES: &AsciiSet =
    &COMPONENT_ESCAPES.remove(b'!').remove(b'*').remove(b'\'').remove(b'(').remove(b')');
/// Characters that are escaped in the data of HTML forms.
const FORM_ESCAPES: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'*');
/// Characters that are escaped in a whole URL.
const URL_ESCAPES: &AsciiSet = &JS_COMPONENT_ESCAPES
    .remove(b':')
    .remove(b'/')
    .remove(b'?')
    .remove(b'#')
    .remove(b'[')
    .remove(b']')
    .remove(b'@')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=');

/// The secrets of one run, in every form that is searched for.
#[derive(Default)]
pub(crate) struct Masks {
    /// Finds the longest of the forms that begin at the same place: masking a shorter one would show the rest.
    finder: Option<AhoCorasick>,
    form_count: usize,
}

impl Masks {
    pub(crate) fn new(values: impl IntoIterator<Item = String>) -> Self {
        let mut secrets: BTreeSet<String> = BTreeSet::new();
        for value in values.into_iter().filter(|value| !value.is_empty()) {
            // A secret from a variable may end with a line break, which no line of the log contains.
            let text = value.trim_matches(['\n', '\r']);
            if text.contains('\n') {
                let lines = text.lines().map(str::trim).filter(|line| line.len() >= LINE_BYTES_MIN);
                secrets.extend(lines.map(str::to_owned));
            } else if text.len() < value.len() && !text.trim().is_empty() {
                secrets.insert(text.trim().to_owned());
            }
            secrets.insert(value);
        }
        let has_hidden_encodings = |secret: &&String| (ENCODED_BYTES_MIN..=ENCODED_BYTES_MAX).contains(&secret.len());
        let mut forms: BTreeSet<String> =
            secrets.iter().filter(has_hidden_encodings).flat_map(|secret| encoded_forms(secret)).collect();
        forms.retain(|form| form.len() >= FORM_BYTES_MIN);
        forms.extend(secrets);
        if forms.is_empty() {
            return Self::default();
        }
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&forms);
        let finder = finder.inspect_err(|error| tracing::error!(%error, "cannot hide the secrets of a run")).ok();
        Self { finder, form_count: forms.len() }
    }

    pub(crate) fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let Some(finder) = &self.finder else {
            // There is nothing to hide, or the finder could not be built. In the second case, the whole text is hidden:
            // a log without its text is better than one with secrets.
            return Cow::Borrowed(if self.form_count == 0 { text } else { MASK });
        };
        if !finder.is_match(text) {
            return Cow::Borrowed(text);
        }
        let mut masked_text = String::with_capacity(text.len());
        finder.replace_all_with(text, &mut masked_text, |_, _, masked_text| {
            masked_text.push_str(MASK);
            true
        });
        Cow::Owned(masked_text)
    }

    /// Masks only the strings of a JSON text, keys included. A secret may look like a number, and a masked number would not be JSON.
    pub(crate) fn apply_json<'a>(&self, json: &'a str) -> Cow<'a, str> {
        if self.form_count == 0 {
            return Cow::Borrowed(json);
        }
        match serde_json::from_str(json) {
            Ok(mut value) => {
                self.hide_in_value(&mut value);
                Cow::Owned(value.to_string())
            }
            Err(_) => self.apply(json),
        }
    }

    fn hide_in_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.apply(text).into_owned(),
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide_in_value(item)),
            Value::Object(fields) => {
                for (key, mut field) in std::mem::take(fields) {
                    self.hide_in_value(&mut field);
                    let mut key = self.apply(&key).into_owned();
                    // Two keys may be the same once they are masked; the second one gets a suffix, so that neither value is lost.
                    while fields.contains_key(&key) {
                        key.push('*');
                    }
                    fields.insert(key, field);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// The forms in which other programs write a secret.
fn encoded_forms(secret: &str) -> Vec<String> {
    let mut forms = Vec::new();
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    forms.extend([hex.to_ascii_uppercase(), hex]);
    let percent_encoded: String = secret.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let escape_sets = [COMPONENT_ESCAPES, JS_COMPONENT_ESCAPES, FORM_ESCAPES, URL_ESCAPES, PATH_ESCAPES];
    let mut escaped_forms: Vec<String> =
        escape_sets.iter().map(|set| utf8_percent_encode(secret, set).to_string()).collect();
    escaped_forms.extend([0, 2].map(|index| escaped_forms[index].replace("%20", "+")));
    escaped_forms.push(percent_encoded);
    forms.extend(escaped_forms.iter().map(|text| in_lower_case(text)));
    forms.extend(escaped_forms);
    forms.extend(json_forms(secret));
    forms.extend(base64_forms(secret.as_bytes()));
    forms
}

/// The forms of a secret in JSON strings: plain; with non-ASCII characters escaped (Python's `json.dumps`; hex digits
/// in either case); with the special characters of HTML escaped (Go); and with `/` escaped (PHP).
fn json_forms(secret: &str) -> Vec<String> {
    let json = Value::from(secret).to_string();
    let json_text = json[1..json.len() - 1].to_owned();
    let is_html = |c: char| matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}');
    let with_ascii_only = [false, true].map(|is_upper| with_unicode_escapes(&json_text, is_upper, |c| !c.is_ascii()));
    let with_escaped_slashes = [&json_text, &with_ascii_only[0]].map(|text| text.replace('/', "\\/"));
    let html_escaped = with_unicode_escapes(&json_text, false, is_html);
    let html_ascii_only = with_unicode_escapes(&json_text, false, |c| is_html(c) || !c.is_ascii());
    [json_text, html_escaped, html_ascii_only].into_iter().chain(with_ascii_only).chain(with_escaped_slashes).collect()
}

/// Escapes the characters for which `is_escaped` is true: as `\u` and hex digits, once per UTF-16 unit.
fn with_unicode_escapes(text: &str, is_upper: bool, is_escaped: impl Fn(char) -> bool) -> String {
    let mut escaped_text = String::with_capacity(text.len());
    for c in text.chars() {
        if !is_escaped(c) {
            escaped_text.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            escaped_text.push_str(&if is_upper { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") });
        }
    }
    escaped_text
}

/// Puts the hex digits of the percent escapes in lower case.
fn in_lower_case(escaped_text: &str) -> String {
    let mut parts = escaped_text.split('%');
    let first_part = parts.next().unwrap_or_default().to_owned();
    parts.fold(first_part, |text, text_part| {
        let (escape, tail) = text_part.split_at_checked(2).unwrap_or((text_part, ""));
        text + "%" + &escape.to_ascii_lowercase() + tail
    })
}

/// The base64 forms of a secret, for each of the three offsets at which it can begin within a group of three bytes. The
/// first form of an offset has only the characters that depend on nothing but the secret. The second form continues to
/// the end, for a text that ends with the secret.
fn base64_forms(secret: &[u8]) -> Vec<String> {
    let mut forms = Vec::new();
    for shift in 0..3 {
        let bytes = [&[0; 2][..shift], secret].concat();
        let (start, end) = ((8 * shift).div_ceil(6), 8 * bytes.len() / 6);
        for encoded in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
            forms.extend([encoded[start..end].to_owned(), encoded[start..].to_owned()]);
            if shift == 0 {
                forms.extend(
                    WRAP_LENGTHS
                        .into_iter()
                        .filter(|wrap| encoded.len() > *wrap)
                        .flat_map(|wrap| wrapped_lines(&encoded, wrap)),
                );
            }
        }
        forms.extend([STANDARD.encode(&bytes), URL_SAFE.encode(&bytes)].map(|encoded| encoded[start..].to_owned()));
    }
    forms
}

fn wrapped_lines(text: &str, len: usize) -> impl Iterator<Item = String> {
    let line = move |index: usize| text[index * len..text.len().min((index + 1) * len)].to_owned();
    (0..text.len().div_ceil(len)).map(line).filter(|line| line.len() >= LINE_BYTES_MIN)
}

impl std::fmt::Debug for Masks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Masks({})", self.form_count)
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
        for value in ["hunter2\n", "hunter2\r\n", "\nhunter2"] {
            assert_eq!(masks(&[value]).apply("password=hunter2"), "password=***", "{value:?}: it is one line");
        }
        assert_eq!(masks(&["\n"]).apply("nothing"), "nothing");
    }

    #[test]
    fn escaped_secrets_are_hidden_in_json() {
        assert_eq!(masks(&["a\"b"]).apply_json(r#"{"echo":"<a\"b>"}"#), r#"{"echo":"<***>"}"#);
        assert_eq!(masks(&["1"]).apply_json(r#"{"code":1,"text":"1"}"#), r#"{"code":1,"text":"***"}"#);
        let keys = masks(&["key-1", "key-2"]);
        assert_eq!(keys.apply_json(r#"{"key-1":{"a key-2":1},"key-2":2}"#), r#"{"***":{"a ***":1},"****":2}"#);
        assert_eq!(masks(&["key 🔑 of"]).apply(r#""key \ud83d\udd11 of""#), "\"***\"");
        assert_eq!(masks(&["pass\"word"]).apply(r#"{"a":"pass\"word"}"#), r#"{"a":"***"}"#);
    }

    #[test]
    fn encoded_secrets_are_hidden() {
        let secret = "p&ss wörd/+*~(1)";
        let (masks, short) = (masks(&[secret]), masks(&["short"]));
        let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        for text in [
            hex.clone(),
            hex.to_uppercase(),
            "p%26ss%20w%C3%B6rd%2F%2B%2A~%281%29".to_owned(),
            "p%26ss%20w%c3%b6rd%2f%2b%2a~%281%29".to_owned(),
            "p%26ss%20w%C3%B6rd%2F%2B*~(1)".to_owned(),
            "p%26ss+w%C3%B6rd%2F%2B*%7E%281%29".to_owned(),
            "p&ss%20w%C3%B6rd/+*~(1)".to_owned(),
            // Python: quote, quote_plus.
            "p%26ss%20w%C3%B6rd/%2B%2A~%281%29".to_owned(),
            "p%26ss+w%C3%B6rd%2F%2B%2A~%281%29".to_owned(),
            // JSON: Python, others, Go, PHP.
            r"p&ss w\u00f6rd/+*~(1)".to_owned(),
            r"p&ss w\u00F6rd/+*~(1)".to_owned(),
            r"p\u0026ss wörd/+*~(1)".to_owned(),
            r"p&ss w\u00f6rd\/+*~(1)".to_owned(),
            secret.bytes().map(|byte| format!("%{byte:02X}")).collect(),
        ] {
            assert_eq!(masks.apply(&format!("<{text}>")), "<***>", "{text}");
        }
        for before in ["", "u", "us", "use", "user:"] {
            for after in ["", "\n", "!!", "abc"] {
                let plain = format!("{before}{secret}{after}");
                for text in [STANDARD.encode(&plain), STANDARD_NO_PAD.encode(&plain), URL_SAFE.encode(&plain)] {
                    let masked = masks.apply(&text);
                    // The bytes before and after the secret remain and, at each end, a character that encodes bits of
                    // both.
                    let left = masked.replace(MASK, "").len();
                    let neighbours = (before.len() + after.len()) * 4 / 3;
                    assert!(masked.contains(MASK) && left <= neighbours + 6, "{plain:?}: {text} → {masked}");
                }
            }
        }
        assert_eq!(short.apply("c2hvcnQ="), "c2hvcnQ=");
    }

    #[test]
    fn base64_in_several_lines_is_hidden_in_each() {
        let secret = "0123456789abcdefghijklmnopqrstuvwxyz".repeat(5);
        let masks = masks(&[&secret]);
        let whole = STANDARD.encode(&secret);
        for wrap in WRAP_LENGTHS {
            for line in wrapped_lines(&whole, wrap) {
                assert_eq!(masks.apply(&line), MASK, "{wrap}: {line}");
            }
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        assert!(!format!("{:?}", masks(&["hidden"])).contains("hidden"));
    }
}
