//! The form of a script: its input, and the version that it describes.

use rondel_core::script::{LANGUAGES, ScriptSpec};

use super::form::{Fields, with_line_feeds};

/// The fields of the form as the user typed them.
#[derive(Clone, Debug)]
pub(super) struct ScriptForm {
    pub(super) name: String,
    pub(super) language: String,
    pub(super) source: String,
    pub(super) note: String,
    pub(super) signature: String,
}

impl ScriptForm {
    /// The form of an existing script, or of a new one.
    pub(super) fn new(name: &str, language: &str, source: String) -> Self {
        let (name, language) = (name.to_owned(), language.to_owned());
        Self { name, language, source, note: String::new(), signature: String::new() }
    }

    pub(super) fn from_fields(name: &str, language: &str, fields: &Fields) -> Self {
        Self {
            name: name.to_owned(),
            language: language.to_owned(),
            source: with_line_feeds(fields.raw("source")),
            note: with_line_feeds(fields.get("note")),
            signature: fields.get("signature").to_owned(),
        }
    }

    /// The version to save. Its line breaks are LF: `from_fields` has replaced the CR LF of browsers, since interpreters take the CR as
    /// text.
    pub(super) fn spec(&self) -> ScriptSpec {
        ScriptSpec {
            language: self.language.clone(),
            source: self.source.clone(),
            note: self.note.clone(),
            signature: Some(self.signature.clone()).filter(|signature| !signature.is_empty()),
        }
    }

    pub(super) fn languages(&self) -> impl Iterator<Item = (&'static str, bool)> {
        LANGUAGES.into_iter().map(|language| (language, language == self.language))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_as_interpreters_expect() {
        let fields = Fields::from([("source", "\r\necho 1\r\necho 2\r\n"), ("note", " a "), ("signature", "")]);
        let spec = ScriptForm::from_fields("a", "shell", &fields).spec();
        assert_eq!((spec.source.as_str(), spec.note.as_str(), spec.signature), ("\necho 1\necho 2\n", "a", None));
    }
}
