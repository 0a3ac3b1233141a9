//! The shards of a fire, written like the items of a pump.

use std::collections::HashMap;

use serde_json::Value;

use super::pump::{ITEM_PARAMS_LEN_MAX, ItemSpec, params_text};
use crate::field_error::FieldError;

/// Whether an entry is an item of a pump or a shard; error messages differ.
#[derive(Clone, Copy)]
pub(crate) enum NamedKind {
    Item,
    Shard,
}

/// Checks the names and parameters of items or shards below a pointer.
pub(crate) fn check_named(items: &[ItemSpec], (pointer, what): (&str, NamedKind), errors: &mut Vec<FieldError>) {
    let mut refuse = |pointer: String, message: String| errors.push(FieldError::new(pointer, message));
    let mut first_indexes = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        if let Err(message) = crate::name::check(&item.name) {
            refuse(format!("{pointer}/{index}/name"), message);
        }
        if let Some(first) = first_indexes.insert(&item.name, index) {
            let message = match what {
                NamedKind::Item => format!("{:?} is the name of item {first} too; each item has its own", item.name),
                NamedKind::Shard => format!("{:?} is the name of shard {first} too; each shard has its own", item.name),
            };
            refuse(format!("{pointer}/{index}/name"), message);
        }
        let len = params_text(&item.params).len();
        if len > ITEM_PARAMS_LEN_MAX {
            let message = match what {
                NamedKind::Item => {
                    format!("{len} bytes of JSON; at most {ITEM_PARAMS_LEN_MAX} are allowed for one item")
                }
                NamedKind::Shard => {
                    format!("{len} bytes of JSON; at most {ITEM_PARAMS_LEN_MAX} are allowed for one shard")
                }
            };
            refuse(format!("{pointer}/{index}/params"), message);
        }
    }
}

/// Merges the parameters of a shard into those of its fire. If both are objects, the shard's fields are added to the fire's and
/// replace those of the same name. `null` changes nothing, and any other value replaces the fire's parameters as a whole.
///
/// ```
/// use rondel_core::spec::with_params_of_shard;
/// use serde_json::json;
///
/// let fire_params = json!({"day": "today", "schema": "main"});
/// assert_eq!(with_params_of_shard(fire_params.clone(), &json!({"schema": "us"})), json!({"day": "today", "schema": "us"}));
/// assert_eq!(with_params_of_shard(fire_params.clone(), &json!(7)), json!(7));
/// assert_eq!(with_params_of_shard(fire_params.clone(), &json!(null)), fire_params);
/// ```
#[must_use]
pub fn with_params_of_shard(fire_params: Value, shard_params: &Value) -> Value {
    match (fire_params, shard_params) {
        (fire_params, Value::Null) => fire_params,
        (Value::Object(mut fields), Value::Object(shard_fields)) => {
            fields.extend(shard_fields.clone());
            Value::Object(fields)
        }
        (_, shard_params) => shard_params.clone(),
    }
}
