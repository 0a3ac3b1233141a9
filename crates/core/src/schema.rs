//! JSON schemas of the values that the domain writes as text: words, instants, durations, ids.
//!
//! The documents of the API derive their schemas from their types; this module has the schemas that cannot be derived.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::labels::{LABEL_COUNT_MAX, LABEL_KEY_PATTERN, LABEL_VALUE_LEN_MAX};

/// Names of namespaces, apps, jobs, calendars and executors; see [`crate::name::check`].
pub const NAME_PATTERN: &str = "^[a-z0-9][a-z0-9._-]{0,99}$";
/// Names of accounts; see [`crate::name::check_account`].
pub const ACCOUNT_PATTERN: &str = "^[a-z0-9][a-z0-9._+@-]{0,99}$";
/// Names of handlers; see [`crate::name::check_handler`].
pub const HANDLER_PATTERN: &str = "^[A-Za-z0-9._:-]{1,100}$";
/// Ids as they are written in JSON.
pub const ID_PATTERN: &str = "^[0-9]{1,19}$";
pub(crate) const DURATION_PATTERN: &str = "^([0-9]{1,12}(years?|months?|weeks?|days?|[wdhms]|ms|us|ns))+$";

/// Labels: their keys, and the lengths of their values.
pub(crate) fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": LABEL_COUNT_MAX,
        "propertyNames": {"pattern": LABEL_KEY_PATTERN},
        "additionalProperties": {"type": "string", "minLength": 1, "maxLength": LABEL_VALUE_LEN_MAX},
        "examples": [{"team": "pay"}]
    })
}

/// A length of time as users write it: stands for a [`std::time::Duration`] in `#[schemars(with = "…")]`.
#[derive(Debug)]
pub struct DurationText;

impl JsonSchema for DurationText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": DURATION_PATTERN, "examples": ["30s", "1h30m"]})
    }
}

impl JsonSchema for crate::Timestamp {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time", "examples": ["2026-03-08T07:00:00Z"]})
    }
}

pub(crate) fn id() -> Schema {
    json_schema!({"type": "string", "pattern": ID_PATTERN})
}

/// The schema of an enum of words, each described by the lines of its doc comment.
pub(crate) fn words(description: &[&str], words: &[(&str, &[&str])]) -> Schema {
    let text = |lines: &[&str]| lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    let lines: String =
        words.iter().map(|(word, description)| format!("\n- `{word}`: {}", text(description))).collect();
    let values: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    json_schema!({"type": "string", "enum": values, "description": format!("{}\n{lines}", text(description))})
}

#[cfg(test)]
mod tests {
    use schemars::schema_for;

    use crate::calendar::Weekday;
    use crate::{RunId, Timestamp};

    #[test]
    fn words_are_listed_with_their_meaning() {
        let schema = schema_for!(Weekday);
        assert_eq!(schema.get("enum").unwrap().as_array().unwrap().len(), 7);
        let about = schema.get("description").unwrap().as_str().unwrap();
        assert!(about.starts_with("A day of the week.\n\n- `mon`: Monday.\n"), "{about}");
    }

    #[test]
    fn texts_have_a_pattern() {
        assert_eq!(schema_for!(RunId).get("pattern").unwrap(), super::ID_PATTERN);
        assert_eq!(schema_for!(Option<Timestamp>).get("type").unwrap(), &serde_json::json!(["string", "null"]));
    }
}
