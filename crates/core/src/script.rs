//! Scripts that the server keeps under a name, with their versions, and how the parameters of a job refer to one.
//!
//! The source reaches the agent separately from the run's parameters: a run names a script, and the agent requests its source from a
//! server. This module decides what is hashed and signed; it does not hash or sign.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::field_error::FieldError;
use crate::name;
use crate::schema::NAME_PATTERN;

/// The languages of scripts: the handlers of the agent that run them.
pub const LANGUAGES: [&str; 5] = ["shell", "python", "node", "php", "powershell"];

/// The longest source, in bytes.
pub const SOURCE_LEN_MAX: usize = 256 * 1024;

/// The longest note, in characters.
pub const NOTE_LEN_MAX: usize = 500;

/// The longest signature, in characters; the base64 text of a valid signature is shorter.
const SIGNATURE_LEN_MAX: usize = 200;

/// How many versions of a script are kept, unless a setting states another number.
pub const KEPT_VERSIONS: u32 = 100;

/// The fewest versions that a setting may keep.
pub const KEPT_VERSIONS_MIN: u32 = 30;

/// A version of a script, as it is saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptSpec {
    /// The language, which is also the handler that runs the script. It cannot be changed later.
    #[schemars(extend("enum" = ["shell", "python", "node", "php", "powershell"]))]
    pub language: String,
    /// Its text.
    pub source: String,
    /// What this version changes, in its author's words.
    #[serde(default)]
    pub note: String,
    /// A signature of the source, in base64, as `rondel script sign` makes it: for agents that run only signed scripts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

impl ScriptSpec {
    /// All errors of the version.
    ///
    /// ```
    /// let spec = rondel_core::script::ScriptSpec {
    ///     language: "perl".to_owned(),
    ///     source: "print 1".to_owned(),
    ///     note: String::new(),
    ///     signature: None,
    /// };
    /// assert_eq!(spec.check()[0].pointer, "/language");
    /// ```
    #[must_use]
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if !LANGUAGES.contains(&self.language.as_str()) {
            let languages = LANGUAGES.join(", ");
            let message = format!("{:?} is not a language of scripts: one of {languages}", shorten(&self.language));
            errors.push(FieldError::new("/language", message));
        }
        if self.source.is_empty() {
            errors.push(FieldError::new("/source", "is empty: a script has at least one character"));
        } else if self.source.len() > SOURCE_LEN_MAX {
            let message = format!("has {} bytes; at most {SOURCE_LEN_MAX} are allowed", self.source.len());
            errors.push(FieldError::new("/source", message));
        } else if let Some(position) = self.source.find('\0') {
            let message = format!("byte {position} is NUL, which no script can have");
            errors.push(FieldError::new("/source", message));
        }
        let note_len = self.note.chars().count();
        if note_len > NOTE_LEN_MAX {
            let message = format!("has {note_len} characters; at most {NOTE_LEN_MAX} are allowed");
            errors.push(FieldError::new("/note", message));
        } else if self.note.contains(|c: char| c.is_control() && c != '\n' && c != '\t') {
            errors.push(FieldError::new("/note", "has a control character other than tab and end of line"));
        }
        let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
        if let Some(signature) = &self.signature
            && (signature.is_empty() || signature.len() > SIGNATURE_LEN_MAX || !signature.chars().all(is_base64))
        {
            errors.push(FieldError::new("/signature", "is not the base64 that rondel script sign prints"));
        }
        errors
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(40).collect()
}

/// How a job's parameters refer to a stored script.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "KeptScript")]
pub struct ScriptRef {
    /// Its name in the namespace of the job.
    #[schemars(regex(pattern = NAME_PATTERN))]
    pub name: String,
    /// The version to run. If it is left out, each attempt runs the newest version at its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub version: Option<i64>,
}

impl fmt::Display for ScriptRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.version {
            Some(version) => write!(f, "{:?} version {version}", self.name),
            None => write!(f, "{:?}", self.name),
        }
    }
}

/// The stored script that these parameters of a handler refer to; `None` if they refer to none, or contain their own
/// text.
///
/// ```
/// use rondel_core::script::script_ref;
/// use serde_json::json;
///
/// let script = script_ref("python", &json!({"script": {"name": "close-orders", "version": 3}})).unwrap();
/// assert_eq!((script.name.as_str(), script.version), ("close-orders", Some(3)));
/// assert_eq!(script_ref("python", &json!({"script": "print(1)"})), None);
/// assert_eq!(script_ref("report", &json!({"script": {"name": "close-orders"}})), None);
/// ```
#[must_use]
pub fn script_ref(handler: &str, params: &Value) -> Option<ScriptRef> {
    if !LANGUAGES.contains(&handler) {
        return None;
    }
    let script = params.get("script").filter(|script| script.is_object())?;
    let script: ScriptRef = serde_json::from_value(script.clone()).ok()?;
    let is_valid = name::check(&script.name).is_ok() && script.version.is_none_or(|version| version > 0);
    is_valid.then_some(script)
}

/// The text that is signed: the script's namespace, name and language, and the hash of its source, so that a signed source runs under no
/// other name. The version is not part of it, because it is known only when the script is saved.
///
/// ```
/// let text = rondel_core::script::signed_text("default", "close-orders", "shell", "00ff");
/// assert_eq!(text, "rondel script 1\ndefault\nclose-orders\nshell\n00ff\n");
/// ```
#[must_use]
pub fn signed_text(namespace: &str, name: &str, language: &str, hash: &str) -> String {
    format!("rondel script 1\n{namespace}\n{name}\n{language}\n{hash}\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(language: &str, source: &str, note: &str, signature: Option<&str>) -> ScriptSpec {
        let (language, source, note) = (language.to_owned(), source.to_owned(), note.to_owned());
        ScriptSpec { language, source, note, signature: signature.map(str::to_owned) }
    }

    #[test]
    fn an_error_names_its_field() {
        let long = "x".repeat(SOURCE_LEN_MAX + 1);
        let note = "ä".repeat(NOTE_LEN_MAX + 1);
        for (spec, pointers) in [
            (spec("shell", "date", "first\nline", Some("q80=")), &[][..]),
            (spec("shell", &long[1..], &note[2..], None), &[]),
            (spec("perl", "", "", None), &["/language", "/source"]),
            (spec("shell", &long, &note, None), &["/source", "/note"]),
            (spec("shell", "a\0b", "\u{1b}[31m", Some("")), &["/source", "/note", "/signature"]),
            (spec("shell", "a", "", Some("<b>")), &["/signature"]),
        ] {
            let found: Vec<String> = spec.check().into_iter().map(|error| error.pointer).collect();
            assert_eq!(found, pointers, "{} {}", spec.language, spec.note.len());
        }
    }

    #[test]
    fn only_a_name_of_the_server_names_a_script() {
        for (script, expected) in [
            (json!({"name": "a"}), Some(("a", None))),
            (json!({"name": "a", "version": 2}), Some(("a", Some(2)))),
            (json!({"name": "a", "version": null}), Some(("a", None))),
            (json!({"name": "a", "version": 0}), None),
            (json!({"name": "../a"}), None),
            (json!({"name": "a", "more": 1}), None),
            (json!(["a"]), None),
            (json!("date"), None),
        ] {
            let found = script_ref("shell", &json!({"script": script}));
            let expected = expected.map(|(name, version)| ScriptRef { name: name.to_owned(), version });
            assert_eq!(found, expected, "{script}");
        }
    }
}
