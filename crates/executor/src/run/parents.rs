//! The runs that a run follows: servers list them in its parameters.

use serde_json::{Map, Value};

/// The parameter in which servers list the runs that a run follows.
pub(crate) const PARENTS: &str = "parents";

/// Takes the parents out of the parameters; `None` if there are none. A job's own parameter of this name stays, because
/// it lacks the run id and the status that servers list for each parent. The run's trigger is not considered, because a
/// manual repetition of a run has that run's parents, too.
pub(crate) fn take(params: &mut Value) -> Option<Map<String, Value>> {
    let fields = params.as_object_mut()?;
    let is_run = |parents: &Value| parents["run_id"].is_string() && parents["status"].is_string();
    match fields.get(PARENTS) {
        Some(Value::Object(parents)) if !parents.is_empty() && parents.values().all(is_run) => {}
        _ => return None,
    }
    match fields.remove(PARENTS) {
        Some(Value::Object(parents)) => Some(parents),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_parents_that_a_server_sent_are_taken() {
        let parents = json!({"b": {"run_id": "7", "status": "succeeded", "params": null, "result": 3}});
        let mut params = json!({"table": "orders", "parents": parents});
        assert_eq!(take(&mut params).map(Value::Object), Some(parents));
        assert_eq!(params, json!({"table": "orders"}));
        for own in
            [json!({"parents": {"b": 1}}), json!({"parents": {}}), json!({"parents": ["b"]}), json!(null), json!([])]
        {
            let mut params = own.clone();
            assert_eq!(take(&mut params), None, "{own}");
            assert_eq!(params, own);
        }
    }
}
