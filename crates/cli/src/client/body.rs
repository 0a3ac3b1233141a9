//! Bodies of answers: stored as the server sent them, and parsed for tables.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::clock;
use crate::exit::Failure;
use rondel_core::Timestamp;

#[derive(Debug)]
pub(crate) struct Body {
    text: String,
}

/// One page of a list.
#[derive(Debug, Deserialize)]
pub(crate) struct Page<'a> {
    /// The items as the server sent them.
    #[serde(borrow)]
    pub(crate) items: Vec<&'a RawValue>,
    /// The cursor of the next page; `None` on the last page.
    #[serde(default)]
    pub(crate) next_cursor: Option<String>,
    /// The instant back to which a search for runs went; `None` if it left out no older runs.
    #[serde(default)]
    pub(crate) searched_to: Option<String>,
    /// The jobs that the server cannot read.
    #[serde(default)]
    pub(crate) unreadable: Vec<UnreadableJob>,
}

/// A job whose definition the server cannot read, and what to do.
#[derive(Debug, Deserialize)]
pub(crate) struct UnreadableJob {
    pub(crate) name: String,
    pub(crate) message: String,
}

impl Body {
    pub(crate) fn new(text: String) -> Self {
        Self { text }
    }

    /// The body as the server sent it.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The body, parsed as a list.
    pub(crate) fn page(&self) -> Result<Page<'_>, Failure> {
        self.read()
    }

    /// The body, parsed as a value.
    pub(crate) fn value(&self) -> Result<Value, Failure> {
        self.read()
    }

    fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Failure> {
        serde_json::from_str(&self.text).map_err(|error| Failure::of("the server's answer is not understood", &error))
    }
}

/// The fields of an object, in the order in which the server sent them.
pub(crate) fn object_fields(text: &str) -> Result<Vec<(String, Value)>, Failure> {
    struct Fields(Vec<(String, Value)>);
    struct FieldsVisitor;

    impl<'de> Visitor<'de> for FieldsVisitor {
        type Value = Fields;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a JSON object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
            let mut fields = Vec::new();
            while let Some(field) = map.next_entry()? {
                fields.push(field);
            }
            Ok(Fields(fields))
        }
    }

    impl<'de> Deserialize<'de> for Fields {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(FieldsVisitor)
        }
    }

    let result = serde_json::from_str::<Fields>(text);
    result.map(|fields| fields.0).map_err(|error| Failure::of("the server's answer is not understood", &error))
}

/// A value as a cell of a table: text without quotes, an empty cell for null, other values as JSON.
pub(crate) fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other_value => other_value.to_string(),
    }
}

/// An instant as a cell of a table: the instant, and how far away it is. Other values are shown as they are.
pub(crate) fn time_text(value: &Value, now: Timestamp) -> String {
    match value.as_str().map(str::parse::<Timestamp>) {
        Some(Ok(at)) => format!("{} ({})", clock::local_text(at), clock::relative_text(at, now)),
        Some(Err(_)) | None => text_of(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_their_order() {
        let names: Vec<_> = object_fields(r#"{"b":1,"a":[2]}"#).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["b", "a"]);
        assert!(object_fields("[]").is_err());
    }

    #[test]
    fn items_stay_as_they_stand() {
        let body = Body::new(r#"{"items":[{"b": 1,"a":2.50}],"next_cursor":null}"#.to_owned());
        let page = body.page().unwrap();
        assert_eq!(page.items[0].get(), r#"{"b": 1,"a":2.50}"#);
        assert!(page.next_cursor.is_none());
    }
}
