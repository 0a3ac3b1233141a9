//! Roles on the command line: `operator:default/billing`.

use serde_json::{Value, json};

use crate::exit::Failure;

/// The roles in the form that the API takes.
pub(crate) fn parse_roles(role_words: &[String]) -> Result<Value, Failure> {
    role_words.iter().map(|word| parse_role(word)).collect::<Result<Vec<_>, _>>().map(Value::from)
}

fn parse_role(word: &str) -> Result<Value, Failure> {
    let (role, place) = match word.split_once(':') {
        Some((role, place)) => (role, Some(place)),
        None => (word, None),
    };
    let role_names = ["viewer", "operator", "editor", "admin", "executor"];
    if !role_names.contains(&role) {
        return Err(Failure::refused(format!("--role: {role:?} is none of {}", role_names.join(", "))));
    }
    let (namespace, app) = match place.map(|place| place.split_once('/').ok_or(place)) {
        None => (None, None),
        Some(Ok((namespace, app))) => (Some(namespace), Some(app)),
        Some(Err(namespace)) => (Some(namespace), None),
    };
    // An unset variable in a script gives an empty place, which must not grant the role everywhere.
    if namespace == Some("") || app == Some("") {
        let forms_text = "ROLE, ROLE:NAMESPACE or ROLE:NAMESPACE/APP";
        return Err(Failure::refused(format!("--role: {word:?} names no place; give {forms_text}")));
    }
    Ok(json!({"role": role, "namespace": namespace, "app": app}))
}

/// Adds a hint if a role names an app in place of a namespace.
pub(crate) fn with_place_hint(failure: Failure, role_words: &[String]) -> Failure {
    let app_hint = |word: &String| {
        let (role, place) = word.split_once(':')?;
        let is_cause =
            !place.contains('/') && failure.message().contains(&format!("there is no namespace \"{place}\""));
        is_cause.then(|| format!("; for an app of that name: {role}:default/{place}"))
    };
    let hint = role_words.iter().find_map(app_hint).unwrap_or_default();
    failure.with_hint(&hint)
}

/// A grant of the API in the form of the command line.
pub(crate) fn role_argument(grant: &Value) -> String {
    let role = grant["role"].as_str().unwrap_or_default();
    match (grant["namespace"].as_str(), grant["app"].as_str()) {
        (Some(namespace), Some(app)) => format!("{role}:{namespace}/{app}"),
        (Some(namespace), None) => format!("{role}:{namespace}"),
        (None, _) => role.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_read_as_they_are_written() {
        for word in ["viewer", "operator:default", "executor:default/billing"] {
            assert_eq!(role_argument(&parse_role(word).unwrap()), word);
        }
        for word in ["root", "viewer:", "viewer:default/", "executor:/billing", "viewer:/"] {
            assert!(parse_role(word).is_err(), "{word}");
        }
        let failure = Failure::refused("/grants/0/namespace: there is no namespace \"billing\"");
        let hinted = with_place_hint(failure, &["executor:billing".to_owned()]);
        assert!(
            hinted.message().ends_with("for an app of that name: executor:default/billing"),
            "{}",
            hinted.message()
        );
    }
}
