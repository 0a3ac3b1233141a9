//! Parameters of one run. They are checked against the parameters that the job lets callers replace and, unless they repeat those of an earlier
//! run, against the handler's schema.

use crate::jobs::{self, params};
use rondel_core::job::check_params_size;
use rondel_core::overrides::Overrides;
use rondel_core::{FieldError, JobSpec, NamespaceId, Run};
use rondel_store::StoreError;
use rondel_store::catalog::JobRecord;
use serde_json::{Map, Value};

use super::JobError;
use crate::node::Node;

/// The field that the server adds to the parameters of a run that follows from other runs.
const PARENTS_FIELD: &str = "parents";
/// The field that holds the job's parameters if they are not an object and `parents` is added beside them.
const WRAPPER_FIELD: &str = "params";

/// Parameters of one run, checked against the job. Only [`run_params`] and [`params_of_repetition`] create them, so that no way of requesting
/// a run can omit the check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunParams(String);

impl RunParams {
    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

/// The parameters of a run for which the caller gave parameters: the job's parameters, some of them replaced by the given parameters. `None` if
/// the result equals the job's parameters.
///
/// # Errors
/// [`JobError::Invalid`] with an error for each parameter that may not be replaced or that the handler would refuse.
pub fn run_params(node: &Node, record: &JobRecord, overrides: &Value) -> Result<Option<RunParams>, JobError> {
    if let Err(message) = check_params_size(overrides) {
        return Err(JobError::Invalid(vec![FieldError::new("/params", message)]));
    }
    let spec = &record.spec;
    let params = apply_overrides(spec, &spec.params, overrides)?;
    if params == spec.params {
        return Ok(None);
    }
    match params::check_params(node, record.namespace, spec, &params) {
        errors if errors.is_empty() => Ok(Some(RunParams(params.to_string()))),
        errors => Err(JobError::Invalid(errors)),
    }
}

/// The parameters of a run that repeats `run`. They are not checked against the handler's schema, but against the job's current overrides: a
/// parameter replaced in the first run may be code, which callers may no longer be allowed to give. `None` means the parameters of the job:
/// `run` had no others, or its definition is no longer stored.
///
/// # Errors
/// [`JobError::Invalid`], and the store's.
pub async fn params_of_repetition(node: &Node, record: &JobRecord, run: &Run) -> Result<Option<RunParams>, JobError> {
    let is_same_version = run.job_version == record.version;
    if run.params.is_none() && is_same_version {
        return Ok(None);
    }
    let Some(run_spec) = spec_of_run(node, record, run).await? else { return Ok(None) };
    let spec = &record.spec;
    let is_same_code = (&run_spec.app, &run_spec.handler) == (&spec.app, &spec.handler);
    let base_params = if is_same_code { run_spec.params.clone() } else { spec.params.clone() };
    let params = match run.params.as_deref() {
        Some(run_params) => repeated_params(spec, base_params, serde_json::from_str(run_params).unwrap_or_default())?,
        None => apply_overrides(spec, &base_params, &run_spec.params)?,
    };
    Ok(Some(RunParams(params.to_string())))
}

/// The definition from which a run was created; `None` if it is no longer stored.
async fn spec_of_run(node: &Node, record: &JobRecord, run: &Run) -> Result<Option<JobSpec>, StoreError> {
    if run.job_version == record.version {
        return Ok(Some(record.spec.clone()));
    }
    Ok(node.store().definitions(&[(run.job, run.job_version)]).await?.pop().map(|found| found.spec))
}

/// Checks the pointers of a definition's overrides against its handler's schema. Overrides that were already saved for the same handler are
/// accepted.
pub(super) fn override_errors(
    node: &Node,
    namespace: NamespaceId,
    spec: &JobSpec,
    stored_spec: Option<&JobSpec>,
) -> Vec<FieldError> {
    let check_inputs = |spec: &JobSpec| (spec.app.clone(), spec.handler.clone(), spec.overrides.clone());
    let Some(Overrides::Only(pointers)) = &spec.overrides else { return Vec::new() };
    if stored_spec.is_some_and(|before| check_inputs(before) == check_inputs(spec)) {
        return Vec::new();
    }
    match jobs::params_schema(node, namespace, &spec.app, &spec.handler) {
        Some(schema) => unknown_pointer_errors(schema.document(), pointers),
        None => Vec::new(),
    }
}

fn apply_overrides(spec: &JobSpec, base_params: &Value, overrides: &Value) -> Result<Value, JobError> {
    spec.effective_overrides().apply(&spec.handler, base_params, overrides).map_err(JobError::Invalid)
}

/// The parameters of a repeated run. The field [`PARENTS_FIELD`], which the server had added, is not checked against the job.
fn repeated_params(spec: &JobSpec, base_params: Value, mut overrides: Value) -> Result<Value, JobError> {
    let parents = overrides.as_object_mut().and_then(|fields| fields.remove(PARENTS_FIELD));
    let base = match base_params {
        base @ (Value::Object(_) | Value::Null) => base,
        other if parents.is_some() => Value::Object(Map::from_iter([(WRAPPER_FIELD.to_owned(), other)])),
        other => other,
    };
    let mut params = apply_overrides(spec, &base, &overrides)?;
    if let Some(parents) = parents {
        if params.is_null() {
            params = Value::Object(Map::new());
        }
        if let Some(fields) = params.as_object_mut() {
            fields.insert(PARENTS_FIELD.to_owned(), parents);
        }
    }
    Ok(params)
}

/// Errors for pointers whose first part is not a field of the schema, if the schema allows no other fields.
fn unknown_pointer_errors(schema: &Value, pointers: &[String]) -> Vec<FieldError> {
    let is_closed = schema["additionalProperties"] == false && schema.get("patternProperties").is_none();
    let Some(properties) = schema["properties"].as_object().filter(|_| is_closed) else { return Vec::new() };
    let first_step = |pointer: &String| {
        let name = pointer.trim_start_matches('/').split('/').next().unwrap_or_default();
        name.replace("~1", "/").replace("~0", "~")
    };
    let indexed_pointers =
        pointers.iter().enumerate().filter(|(_, pointer)| !properties.contains_key(&first_step(pointer)));
    let error = |(index, pointer): (usize, &String)| {
        let names: Vec<&str> = properties.keys().map(String::as_str).collect();
        let message = format!("{pointer:?} is not a parameter of the handler; it has {}", names.join(", "));
        FieldError::new(format!("/overrides/{index}"), message)
    };
    indexed_pointers.map(error).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(change: &Value) -> JobSpec {
        let mut spec = json!({"name": "a", "app": "b", "handler": "shell", "params": {"argv": ["date"]}});
        spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn a_repetition_keeps_the_parents_and_allows_no_other_code() {
        let spec = spec(&json!({}));
        let repeat = |base: Value, given: Value| repeated_params(&spec, base, given);
        let parents = json!({"load": {"result": 1}});
        let with = |params: Value| {
            let mut params = params;
            params["parents"] = parents.clone();
            params
        };
        let same = with(json!({"argv": ["date"]}));
        assert_eq!(repeat(spec.params.clone(), same.clone()).unwrap(), same);
        assert_eq!(repeat(json!(3), with(json!({"params": 3}))).unwrap(), with(json!({"params": 3})));
        assert_eq!(repeat(json!(null), with(json!({}))).unwrap(), with(json!({})));
        for given in [json!({"argv": ["id"]}), with(json!({"argv": ["date"], "env": {"PATH": "/tmp"}}))] {
            assert!(matches!(repeat(spec.params.clone(), given), Err(JobError::Invalid(_))));
        }
    }

    #[test]
    fn pointers_are_held_against_the_schema() {
        let schema = |closed: bool| json!({"properties": {"a/b": {}, "env": {}}, "additionalProperties": !closed});
        let pointers = ["/a~1b", "/env/X", "/envy"].map(str::to_owned);
        let found = unknown_pointer_errors(&schema(true), &pointers);
        assert_eq!(found.iter().map(|error| error.pointer.as_str()).collect::<Vec<_>>(), ["/overrides/2"]);
        assert!(found[0].message.ends_with("it has a/b, env"), "{}", found[0].message);
        assert!(unknown_pointer_errors(&schema(false), &pointers).is_empty());
    }
}
