//! The server's knowledge of the agent's handlers: their names, and the parameters that they need.

use serde_json::Value;

use crate::field_error::FieldError;

/// Each handler with a list of parameters, at least one of which must be given.
const HANDLERS: [(&str, &[&str]); 7] = [
    ("shell", &["argv", "script"]),
    ("python", &["script"]),
    ("node", &["script"]),
    ("php", &["script"]),
    ("powershell", &["script"]),
    ("http", &["url"]),
    ("pump", &["select"]),
];

/// Whether the agent has a handler with this name. The parameters of the agent's handlers are sensitive: programs and scripts to
/// run, or (`http`) an address that receives secrets.
#[must_use]
pub fn is_agent_handler(handler: &str) -> bool {
    HANDLERS.iter().any(|(name, _)| *name == handler)
}

/// The JSON schema of the handler's parameters, as the agent declares it; `None` if the agent has no such handler.
#[must_use]
pub fn params_schema(handler: &str) -> Option<Value> {
    let text = match handler {
        "shell" => include_str!("agent_handlers/shell.json"),
        "http" => include_str!("agent_handlers/http.json"),
        "pump" => include_str!("agent_handlers/pump.json"),
        handler if is_agent_handler(handler) => include_str!("agent_handlers/script.json"),
        _ => return None,
    };
    serde_json::from_str(text).ok()
}

/// The error if a handler of the agent needs at least one of several parameters, and `params` has none of these; `None`
/// otherwise. Used while no executor with the handler is connected: the server then has no declared schema to check against.
#[must_use]
pub fn missing_param(handler: &str, params: &Value) -> Option<FieldError> {
    let (_, param_names) = HANDLERS.iter().find(|(name, _)| *name == handler)?;
    let is_given = |name: &&str| params.get(*name).is_some_and(|value| !value.is_null());
    if param_names.iter().any(is_given) {
        return None;
    }
    match param_names {
        [only_name] if params.is_object() || params.is_null() => Some(FieldError::new(
            format!("/params/{only_name}"),
            format!("is missing: the handler {handler} cannot do without it"),
        )),
        param_names => {
            let message = format!("{} is missing: the handler {handler} cannot do without", param_names.join(" or "));
            Some(FieldError::new("/params", message))
        }
    }
}

/// An error in `params` that passes the handler's schema but makes the agent refuse every run; `None` if there is none. Only handlers with
/// the parameter `script` are checked.
#[must_use]
pub fn unusable_param(handler: &str, params: &Value) -> Option<FieldError> {
    HANDLERS.iter().find(|(name, param_names)| *name == handler && param_names.contains(&"script"))?;
    let is_given = |name: &str| params.get(name).is_some_and(|value| !value.is_null());
    let error = |name: &str, message: &str| Some(FieldError::new(format!("/params/{name}"), message));
    if is_given("argv") {
        if is_given("script") {
            return error("argv", "cannot be combined with script: give either argv or script");
        }
        let is_checked = params.get("check").and_then(Value::as_bool).unwrap_or_default();
        let script_fields =
            [("interpreter", is_given("interpreter")), ("args", is_given("args")), ("check", is_checked)];
        if let Some((name, _)) = script_fields.into_iter().find(|(_, is_set)| *is_set) {
            return error(name, "applies to script, not to argv");
        }
    }
    let has_no_program = |name: &str| {
        let words = params.get(name).and_then(Value::as_array);
        words.is_some_and(|words| words.first().and_then(Value::as_str).is_none_or(str::is_empty))
    };
    let name = ["argv", "interpreter"].into_iter().find(|name| has_no_program(name))?;
    error(name, "must begin with the program to start")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn empty_parameters_are_named() {
        for (handler, params, pointer) in [
            ("shell", json!({}), Some("/params")),
            ("shell", json!([]), Some("/params")),
            ("shell", json!({"argv": ["date"]}), None),
            ("shell", json!({"script": "date"}), None),
            ("python", json!({"args": "x"}), Some("/params/script")),
            ("http", json!({}), Some("/params/url")),
            ("http", json!({"url": "https://example.com"}), None),
            ("pump", json!({"execute": ["true"]}), Some("/params/select")),
            ("report", json!({}), None),
            ("report", json!(null), None),
            ("shell", json!(null), Some("/params")),
            ("http", json!(null), Some("/params/url")),
        ] {
            assert_eq!(
                missing_param(handler, &params).map(|error| error.pointer).as_deref(),
                pointer,
                "{handler} {params}"
            );
        }
    }

    #[test]
    fn parameters_that_the_agent_refuses_in_every_run_are_named() {
        for (handler, params, pointer) in [
            ("shell", json!({"argv": ["date"], "script": null, "args": null, "check": false}), None),
            ("shell", json!({"argv": null, "script": "date", "interpreter": ["bash"], "check": true}), None),
            ("shell", json!({"argv": ["date"], "script": "date"}), Some("/params/argv")),
            ("shell", json!({"argv": [""]}), Some("/params/argv")),
            ("shell", json!({"argv": []}), Some("/params/argv")),
            ("shell", json!({"argv": ["date"], "args": "x"}), Some("/params/args")),
            ("shell", json!({"argv": ["date"], "interpreter": ["sh"]}), Some("/params/interpreter")),
            ("shell", json!({"argv": ["date"], "check": true}), Some("/params/check")),
            ("shell", json!({"argv": ["{{secret.PROGRAM}}"]}), None),
            ("python", json!({"script": "1", "interpreter": []}), Some("/params/interpreter")),
            ("php", json!({"script": "1", "interpreter": [""]}), Some("/params/interpreter")),
            ("report", json!({"argv": [""]}), None),
            ("http", json!({"argv": [""]}), None),
            ("shell", json!("date"), None),
        ] {
            let error = unusable_param(handler, &params);
            assert_eq!(error.map(|error| error.pointer).as_deref(), pointer, "{handler} {params}");
        }
    }
}
