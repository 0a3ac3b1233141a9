//! A parsed JSON text together with the keys that an object in it contains twice, because a `Value` keeps only the last of
//! them.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::push;

/// How many repeated keys are kept.
const DUPLICATE_COUNT_MAX: usize = 50;

/// A JSON document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    pub value: Value,
    /// JSON pointers to the keys that an object contains more than once.
    pub duplicates: Vec<String>,
}

impl From<Value> for Document {
    fn from(value: Value) -> Self {
        Self { value, duplicates: Vec::new() }
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut position = ReadPosition::default();
        let value = ValueReader(&mut position).deserialize(deserializer)?;
        Ok(Self { value, duplicates: position.duplicates })
    }
}

/// Where the reader is, and what it found so far.
#[derive(Default)]
struct ReadPosition {
    pointer: String,
    duplicates: Vec<String>,
}

impl ReadPosition {
    /// Calls `read` one level down, at `key`.
    fn within<T>(&mut self, key: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let len = self.pointer.len();
        push(&mut self.pointer, key);
        let value = read(self);
        self.pointer.truncate(len);
        value
    }

    fn add_duplicate(&mut self, key: &str) {
        if self.duplicates.len() < DUPLICATE_COUNT_MAX {
            let mut pointer = self.pointer.clone();
            push(&mut pointer, key);
            self.duplicates.push(pointer);
        }
    }
}

struct ValueReader<'p>(&'p mut ReadPosition);

impl<'de> DeserializeSeed<'de> for ValueReader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueReader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) =
            self.0.within(&items.len().to_string(), |position| seq.next_element_seed(ValueReader(position)))?
        {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = self.0.within(&key, |position| map.next_value_seed(ValueReader(position)))?;
            if fields.contains_key(&key) {
                self.0.add_duplicate(&key);
            }
            fields.insert(key, value);
        }
        Ok(Value::Object(fields))
    }
}
