//! Types of bodies that are derived from another type.

use std::borrow::Cow;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// `T` without its field `name`, because the path has the name.
pub(crate) struct Unnamed<T>(PhantomData<T>);

/// A merge patch of `T`: every field may be left out, and null resets a field to its default.
pub(crate) struct Patch<T>(PhantomData<T>);

/// A list of `T`, or a single `T`.
pub(crate) struct Listed<T>(PhantomData<T>);

impl<T: JsonSchema> JsonSchema for Listed<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("{}List", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let item_schema = generator.subschema_for::<T>();
        json_schema!({"anyOf": [{"type": "array", "items": item_schema, "minItems": 1, "maxItems": 5000}, item_schema]})
    }
}

/// A body that is either an `A` or a `B`.
pub(crate) struct Either<A, B>(PhantomData<(A, B)>);

impl<A: JsonSchema, B: JsonSchema> JsonSchema for Either<A, B> {
    fn schema_name() -> Cow<'static, str> {
        format!("{}Or{}", A::schema_name(), B::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [generator.subschema_for::<A>(), generator.subschema_for::<B>()]})
    }
}

impl<T: JsonSchema> JsonSchema for Unnamed<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("{}Unnamed", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = T::json_schema(generator);
        if let Some(Value::Array(required)) = schema.get_mut("required") {
            required.retain(|field| field != "name");
        }
        schema
    }
}

impl<T: JsonSchema> JsonSchema for Patch<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("{}Patch", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = T::json_schema(generator);
        schema.remove("required");
        schema.insert("description".to_owned(), json!("A merge patch (RFC 7396): null resets a field to its default."));
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            for property in properties.values_mut() {
                let property_schema = property.take();
                *property = json!({"anyOf": [property_schema, {"type": "null"}]});
            }
        }
        schema
    }
}
