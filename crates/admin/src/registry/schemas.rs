//! The JSON schemas that handlers declare for their parameters, and the check of parameters against them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use jsonschema::{JsonType, PatternOptions, ValidationError, Validator};
use rondel_core::field_error::child_pointer;
use rondel_core::{AppId, FieldError};
use serde_json::{Map, Value};

use super::schema_cost::{CheckBudget, check_budget, unsupported_reason};

/// Maximum length of a schema that is kept, in bytes.
const SCHEMA_LEN_MAX: usize = 64 * 1024;
/// Maximum total length of the schemas of one executor, in bytes.
const SCHEMAS_LEN_MAX: usize = 1024 * 1024;
/// Maximum number of errors from one check.
const ERROR_COUNT_MAX: usize = 50;
/// How much of a value an error shows, in characters.
const EXCERPT_LEN_MAX: usize = 100;
/// Maximum total length, in bytes, of the schemas of one app's executors on this server; a schema that several executors declare counts once.
const APP_LEN_MAX: usize = 2 * 1024 * 1024;
/// How much memory the patterns of a schema may take together, in bytes.
const PATTERN_BYTES_MAX: usize = 2 * 1024 * 1024;
/// The longest error, in characters: an error about a choice repeats the errors about its branches.
const MESSAGE_LEN_MAX: usize = 1_000;
/// Only one check at a time collects errors, since each may take as much memory as [`super::schema_cost`] allows.
static ERROR_COLLECTION_LOCK: Mutex<()> = Mutex::new(());
/// The start of a placeholder that the executor fills in: the server does not know the value.
const SECRET_REFERENCE_START: &str = "{{secret.";
/// The field that the server adds to the parameters of a run that follows from other runs.
const PARENTS_FIELD: &str = "parents";

/// The schemas of an executor's handlers, keyed by the handlers' names.
pub(crate) type Schemas = Arc<BTreeMap<String, Arc<ParamsSchema>>>;

/// The JSON schema that a handler declares for its parameters.
#[derive(Debug)]
pub struct ParamsSchema {
    document: Value,
    /// The number of patterns in the schema.
    pattern_count: usize,
    /// Compiled at the first use; `None` if it cannot be compiled. Stays empty for a schema with patterns, which is compiled for each
    /// check, because patterns take much memory.
    validator: OnceLock<Option<Validator>>,
}

impl ParamsSchema {
    pub(crate) fn new(document: Value) -> Self {
        let pattern_count = pattern_count(&document);
        Self { document, pattern_count, validator: OnceLock::new() }
    }

    /// The schema as it was declared.
    #[must_use]
    pub fn document(&self) -> &Value {
        &self.document
    }

    /// The errors in `params`; none if the schema itself is wrong. `is_follower` is set for a job that follows others: it receives the
    /// field `parents` from them, so its definition does not have that field.
    pub(crate) fn errors(&self, params: &Value, is_follower: bool) -> Vec<FieldError> {
        let compiled;
        let validator = if self.pattern_count == 0 {
            self.validator.get_or_init(|| self.compile())
        } else {
            compiled = self.compile();
            &compiled
        };
        let Some(validator) = validator else { return Vec::new() };
        // If the parameters of a follower are not an object, the server wraps them in an object. A handler whose schema does not fit that object
        // gets the parameters without the wrapper.
        if is_follower && !(params.is_object() || params.is_null()) {
            let fits_in_object = self.errors(&serde_json::json!({"params": params}), true).is_empty();
            return if fits_in_object { Vec::new() } else { self.errors(params, false) };
        }
        let mut params = params.clone();
        if let Some(fields) = params.as_object_mut().filter(|_| is_follower) {
            fields.remove(PARENTS_FIELD);
        }
        let mut budget = check_budget(&self.document, &params);
        // For a handler that expects fields, the SDK reads missing parameters as an empty object.
        if params.is_null() && budget != CheckBudget::NoCheck && !validator.is_valid(&params) {
            params = Value::Object(Map::new());
            budget = check_budget(&self.document, &params);
        }
        match budget {
            CheckBudget::AllErrors => self.errors_in_detail(validator, &params, is_follower),
            // Without the errors it is not known whether the result depends on values that are filled in later.
            CheckBudget::ValidityOnly if is_follower || has_secret(&params) || validator.is_valid(&params) => {
                Vec::new()
            }
            CheckBudget::ValidityOnly => vec![FieldError::new(
                "/params",
                "do not fit the handler's schema; they are too large or too deep to find where",
            )],
            CheckBudget::NoCheck => vec![FieldError::new(
                "/params",
                "are too large or too deep for the handler's schema: checking them takes too many steps. Use smaller \
                 parameters, or a schema without choices that contain themselves",
            )],
        }
    }

    fn errors_in_detail(&self, validator: &Validator, params: &Value, is_follower: bool) -> Vec<FieldError> {
        if validator.is_valid(params) {
            return Vec::new();
        }
        let _turn = ERROR_COLLECTION_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let is_excused =
            |error: &ValidationError<'_>| depends_on_secrets(error) || (is_follower && misses_only_parents(error));
        let errors = validator.iter_errors(params).filter(|error| !is_excused(error)).take(ERROR_COUNT_MAX);
        errors.flat_map(|error| self.field_errors(&error)).take(ERROR_COUNT_MAX).collect()
    }

    fn compile(&self) -> Option<Validator> {
        if let Some(reason) = unsupported_reason(&self.document) {
            tracing::warn!(reason, "a handler's params schema cannot be used; its params are not checked");
            return None;
        }
        // A pattern is matched in linear time, and nothing is fetched from elsewhere.
        let bytes_max = PATTERN_BYTES_MAX / self.pattern_count.max(1);
        let pattern_options = PatternOptions::regex().size_limit(bytes_max).dfa_size_limit(bytes_max);
        let validator = jsonschema::options().with_pattern_options(pattern_options).build(&self.document);
        validator
            .inspect_err(|error| {
                tracing::warn!(%error, "a handler's params schema cannot be used; its params are not checked");
            })
            .ok()
    }

    fn field_errors(&self, error: &ValidationError<'_>) -> Vec<FieldError> {
        let place = format!("/params{}", error.instance_path().as_str());
        match error.kind() {
            Kind::Required { property } => {
                let field = property.as_str().unwrap_or_default();
                vec![FieldError::new(child_pointer(&place, field), "is missing: the handler cannot do without it")]
            }
            Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
                let known_fields_text = self.known_fields_text(error);
                let error_at = |field: &String| {
                    FieldError::new(child_pointer(&place, field), format!("is unknown{known_fields_text}"))
                };
                unexpected.iter().map(error_at).collect()
            }
            Kind::AnyOf { context } | Kind::OneOfNotValid { context } => self.choice_errors(error, &place, context),
            _ => vec![FieldError::new(place, error_sentence(error))],
        }
    }

    /// The errors about a choice without a fitting branch. If all branches but one are for `null`, these are the errors of the remaining branch.
    fn choice_errors(
        &self,
        error: &ValidationError<'_>,
        place: &str,
        context: &[Vec<ValidationError<'static>>],
    ) -> Vec<FieldError> {
        let is_null_branch = |branch: &&Vec<ValidationError<'static>>| {
            let is_null = |kind: &Kind| matches!(kind, Kind::Type { kind: TypeKind::Single(JsonType::Null) });
            matches!(branch.as_slice(), [only] if is_null(only.kind()) && only.instance_path() == error.instance_path())
        };
        let candidate_branches: Vec<_> = context.iter().filter(|branch| !is_null_branch(branch)).collect();
        if let [only] = candidate_branches.as_slice() {
            return only.iter().flat_map(|error| self.field_errors(error)).collect();
        }
        let branch_errors =
            candidate_branches.iter().filter_map(|branch| branch.first()).flat_map(|error| self.field_errors(error));
        let relative_message = |error: FieldError| {
            let rest_of_pointer = error.pointer.strip_prefix(place).unwrap_or_default();
            if rest_of_pointer.is_empty() { error.message } else { format!("{rest_of_pointer} {}", error.message) }
        };
        let choices: Vec<_> = branch_errors.take(ERROR_COUNT_MAX).map(relative_message).collect();
        let message = format!("{} fits none of its choices: {}", value_text(error.instance()), choices.join("; "));
        vec![FieldError::new(place, truncate(&message, MESSAGE_LEN_MAX))]
    }

    /// The end of the message about an unknown field: the names of the fields that the schema has at the same place.
    fn known_fields_text(&self, error: &ValidationError<'_>) -> String {
        let keyword = error.schema_path().as_str();
        let schema = keyword.rsplit_once('/').and_then(|(schema, _)| self.document.pointer(schema));
        match schema.and_then(|schema| schema.get("properties")).and_then(Value::as_object) {
            Some(known) => {
                let names: Vec<_> = known.keys().map(String::as_str).collect();
                format!("; the handler knows {}", truncate(&names.join(", "), EXCERPT_LEN_MAX * 3))
            }
            None => " to the handler".to_owned(),
        }
    }
}

/// The schemas in use, each once per app, however many executors declare it.
#[derive(Debug, Default)]
pub(crate) struct SchemaPool(Mutex<HashMap<AppId, Pool>>);

/// The schemas of one app, keyed by their texts.
type Pool = HashMap<String, Weak<ParamsSchema>>;

impl SchemaPool {
    /// The schemas of an executor, from pairs of handler and schema text. A text that is too long, or is no schema, is ignored and logged.
    pub(crate) fn of_executor(
        &self,
        app: AppId,
        executor: &str,
        infos: impl IntoIterator<Item = (String, String)>,
    ) -> Schemas {
        let mut bytes_left = SCHEMAS_LEN_MAX;
        let mut schemas_by_handler = BTreeMap::new();
        let mut pools_by_app = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pools_by_app.values_mut().for_each(|pool| pool.retain(|_, schema| schema.strong_count() > 0));
        pools_by_app.retain(|_, pool| !pool.is_empty());
        let pool = pools_by_app.entry(app).or_default();
        let mut app_bytes_left = APP_LEN_MAX.saturating_sub(pool.keys().map(String::len).sum());
        for (handler, text) in infos.into_iter().filter(|(_, text)| !text.is_empty()) {
            let shared_schema = pool.get(&text).and_then(Weak::upgrade);
            let len_max =
                SCHEMA_LEN_MAX.min(bytes_left).min(if shared_schema.is_some() { usize::MAX } else { app_bytes_left });
            if text.len() > len_max {
                let len = text.len();
                tracing::warn!(executor, handler, len, len_max, "a handler's params schema is too long and ignored");
                continue;
            }
            let is_new = shared_schema.is_none();
            let schema = match shared_schema.map_or_else(|| parse_schema(&text), Ok) {
                Ok(schema) => schema,
                Err(reason) => {
                    tracing::warn!(
                        executor,
                        handler,
                        reason,
                        "a handler's params schema cannot be read and is ignored"
                    );
                    continue;
                }
            };
            bytes_left -= text.len();
            app_bytes_left -= if is_new { text.len() } else { 0 };
            pool.insert(text, Arc::downgrade(&schema));
            schemas_by_handler.insert(handler, schema);
        }
        Arc::new(schemas_by_handler)
    }
}

fn pattern_count(document: &Value) -> usize {
    match document {
        Value::Array(items) => items.iter().map(pattern_count).sum(),
        Value::Object(fields) => {
            let own_count = usize::from(fields.get("pattern").is_some_and(Value::is_string));
            let named_count = fields.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
            own_count + named_count + fields.values().map(pattern_count).sum::<usize>()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn parse_schema(text: &str) -> Result<Arc<ParamsSchema>, String> {
    match serde_json::from_str(text) {
        Ok(document @ (Value::Object(_) | Value::Bool(_))) => Ok(Arc::new(ParamsSchema::new(document))),
        Ok(_) => Err("a schema is an object or a boolean".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The schema that all of these share; `None` if two differ, one is missing, or there are none.
pub(crate) fn common_schema<'a>(
    mut schemas: impl Iterator<Item = Option<&'a Arc<ParamsSchema>>>,
) -> Option<Arc<ParamsSchema>> {
    let first_schema = schemas.next()??;
    let is_same =
        |other: &Arc<ParamsSchema>| Arc::ptr_eq(other, first_schema) || other.document == first_schema.document;
    schemas.all(|schema| schema.is_some_and(is_same)).then(|| Arc::clone(first_schema))
}

/// Whether the error depends on a text that the executor fills in.
fn depends_on_secrets(error: &ValidationError<'_>) -> bool {
    let instance: &Value = error.instance();
    match error.kind() {
        // These errors depend only on a value's type, and on the names and the number of its fields.
        Kind::Required { .. }
        | Kind::AdditionalProperties { .. }
        | Kind::AdditionalItems { .. }
        | Kind::PropertyNames { .. }
        | Kind::MinProperties { .. }
        | Kind::MaxProperties { .. }
        | Kind::MinItems { .. }
        | Kind::MaxItems { .. }
        | Kind::Type { .. } => instance.as_str().is_some_and(|text| text.contains(SECRET_REFERENCE_START)),
        _ => has_secret(instance),
    }
}

fn has_secret(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains(SECRET_REFERENCE_START),
        Value::Array(items) => items.iter().any(has_secret),
        Value::Object(fields) => fields.values().any(has_secret),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Whether the error is only that `parents` is missing: a run that follows others gets that field when it runs.
fn misses_only_parents(error: &ValidationError<'_>) -> bool {
    error.instance_path().as_str().is_empty() && misses_parents(error)
}

fn misses_parents(error: &ValidationError<'_>) -> bool {
    match error.kind() {
        Kind::Required { property } => property == PARENTS_FIELD,
        Kind::AnyOf { context } | Kind::OneOfNotValid { context } => {
            context.iter().any(|branch| branch.iter().all(misses_only_parents))
        }
        _ => false,
    }
}

/// The library's message. The value in it is shortened, because the schema's expectation follows the value, and a long value would displace
/// it.
fn error_sentence(error: &ValidationError<'_>) -> String {
    truncate(&error.masked_with(value_text(error.instance())).to_string(), MESSAGE_LEN_MAX)
}

fn value_text(value: &Value) -> String {
    truncate(&value.to_string(), EXCERPT_LEN_MAX)
}

fn truncate(text: &str, len_max: usize) -> String {
    match text.char_indices().nth(len_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
#[path = "schemas_tests.rs"]
pub(super) mod tests;
