//! The handlers with which executors of XXL-JOB run a script from the parameters.

use serde_json::Value;

use crate::field_error::FieldError;

/// The names of these handlers, which are the GLUE types of XXL-JOB.
pub const HANDLERS: [&str; 7] =
    ["GLUE_GROOVY", "GLUE_SHELL", "GLUE_PYTHON", "GLUE_PYTHON2", "GLUE_NODEJS", "GLUE_PHP", "GLUE_POWERSHELL"];
/// The pointer to the script in the parameters.
pub const SCRIPT_POINTER: &str = "/source";
/// The pointer to the argument of the script.
pub const ARGUMENT_POINTER: &str = "/param";

/// Whether this is one of [`HANDLERS`].
#[must_use]
pub fn is_script_handler(handler: &str) -> bool {
    HANDLERS.contains(&handler)
}

/// A sentence that describes the parameters that one of [`HANDLERS`] needs.
#[must_use]
pub fn params_requirement(handler: &str) -> String {
    format!("{handler} needs an object with the script as \"source\", and may have \"param\"")
}

/// The error if the handler is one of [`HANDLERS`] and `params` has no script: every run would fail. An empty script is accepted: otherwise
/// a list of jobs from XXL-JOB could not be imported if one of the jobs has an empty script.
#[must_use]
pub fn missing_script(handler: &str, params: &Value) -> Option<FieldError> {
    if !is_script_handler(handler) || params.get("source").is_some_and(Value::is_string) {
        return None;
    }
    let pointer = if params.is_object() { "/params/source" } else { "/params" };
    Some(FieldError::new(pointer, params_requirement(handler)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_script_is_a_text_in_its_field() {
        for (handler, params, pointer) in [
            ("GLUE_SHELL", json!({"source": "echo 1", "param": "p"}), None),
            ("GLUE_SHELL", json!("echo 1"), Some("/params")),
            ("GLUE_PYTHON", json!(null), Some("/params")),
            ("GLUE_PHP", json!({}), Some("/params/source")),
            ("GLUE_PHP", json!({"source": ""}), None),
            ("GLUE_PHP", json!({"source": 7}), Some("/params/source")),
            ("report", json!("text"), None),
        ] {
            let error = missing_script(handler, &params);
            assert_eq!(error.map(|error| error.pointer).as_deref(), pointer, "{handler} {params}");
        }
    }
}
