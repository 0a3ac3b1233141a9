//! What a run was told of the runs that it follows from.

use serde_json::{Map, Value};

/// The parameter in which servers put it.
const PARENTS: &str = "parents";

/// Takes it out of the parameters. A parameter of the job's own with this name stays: each parent is told with the id of its
/// run, and so it is when such a run is repeated by hand.
pub(crate) fn take(params: &mut Value) -> Option<Map<String, Value>> {
    let fields = params.as_object_mut()?;
    let is_run = |told: &Value| told["run_id"].is_string() && told["status"].is_string();
    match fields.get(PARENTS) {
        Some(Value::Object(told)) if !told.is_empty() && told.values().all(is_run) => {}
        _ => return None,
    }
    match fields.remove(PARENTS) {
        Some(Value::Object(told)) => Some(told),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_a_server_told_is_taken() {
        let told = json!({"b": {"run_id": "7", "status": "succeeded", "params": null, "result": 3}});
        let mut params = json!({"table": "orders", "parents": told});
        assert_eq!(take(&mut params).map(Value::Object), Some(told));
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
