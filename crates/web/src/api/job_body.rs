//! A job's definition in a body: read whole, patched, and with the complaint at the right place.

use rondel_core::JobSpec;
use rondel_core::spec::ScheduleSpec;
use serde_json::{Map, Value};

use crate::body::{read, read_value, refuse_value};
use crate::problem::Problem;

/// A whole definition.
pub(super) fn parse(bytes: &[u8]) -> Result<JobSpec, Problem> {
    read(bytes).map_err(|problem| located(problem, || read::<Value>(bytes).ok()?.get("schedule").cloned()))
}

/// A whole definition whose name may be left out, because the path has it.
pub(crate) fn parse_named(bytes: &[u8], name: &str) -> Result<JobSpec, Problem> {
    if let Ok(Value::Object(mut map)) = read(bytes)
        && !map.contains_key("name")
    {
        map.insert("name".to_owned(), Value::from(name));
        return from_value(Value::Object(map));
    }
    parse(bytes)
}

/// `spec` with a JSON merge patch (RFC 7396) applied to it.
pub(super) fn patched(spec: &JobSpec, bytes: &[u8]) -> Result<JobSpec, Problem> {
    let patch: Value = read(bytes)?;
    if !patch.is_object() {
        return Err(refuse_value("", "a patch of a job is an object"));
    }
    let mut document = serde_json::to_value(spec).unwrap_or_default();
    merge(&mut document, patch);
    from_value(document)
}

pub(crate) fn from_value(document: Value) -> Result<JobSpec, Problem> {
    let schedule = document.get("schedule").cloned();
    read_value("", document).map_err(|problem| located(problem, || schedule))
}

/// A schedule is one or many, and serde's complaint about such a choice does not say where: the schedules are read again,
/// each by itself.
fn located(problem: Problem, schedule: impl FnOnce() -> Option<Value>) -> Problem {
    if problem.first_pointer() != Some("/schedule") {
        return problem;
    }
    let exact = match schedule() {
        Some(one @ Value::Object(_)) => read_value::<ScheduleSpec>("/schedule", one).err(),
        Some(Value::Array(many)) => many
            .into_iter()
            .enumerate()
            .find_map(|(index, one)| read_value::<ScheduleSpec>(&format!("/schedule/{index}"), one).err()),
        Some(_) => Some(refuse_value("/schedule", "is neither null, nor a schedule, nor a list of schedules")),
        None => None,
    };
    exact.unwrap_or(problem)
}

fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(&key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merges_as_the_rfc_says() {
        for (target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        ] {
            let mut merged = target;
            merge(&mut merged, patch);
            assert_eq!(merged, result);
        }
    }
}
