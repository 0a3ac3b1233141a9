//! Checks that statements in `docs/API.md` are true.

use std::collections::BTreeMap;

use rondel_core::JobSpec;
use rondel_web::{Access, Code, route_table};
use serde_json::{Value, json};

const API: &str = include_str!("../../../../docs/API.md");

/// The rows of the table whose header begins with `first`.
fn table(first: &str) -> Vec<Vec<&'static str>> {
    let header = format!("| {first} |");
    let rows = API.lines().skip_while(|line| !line.starts_with(&header)).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`')).collect()).collect()
}

fn leaves(pointer: &str, value: &Value, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let pointer = if pointer.is_empty() { key.clone() } else { format!("{pointer}.{key}") };
                leaves(&pointer, value, found);
            }
        }
        leaf => drop(found.insert(pointer.to_owned(), leaf.clone())),
    }
}

#[test]
fn defaults_of_a_job_are_in_the_table() {
    let least: JobSpec = serde_json::from_value(json!({"name": "a", "app": "b", "handler": "c"})).unwrap();
    let mut defaults = BTreeMap::new();
    leaves("", &serde_json::to_value(least).unwrap(), &mut defaults);
    defaults.retain(|field, _| !matches!(field.as_str(), "name" | "app" | "handler"));
    // Fields without a default are not part of the comparison.
    let documented: BTreeMap<String, Value> = table("field")
        .into_iter()
        .filter(|row| row[1] != "none")
        .map(|row| (row[0].to_owned(), serde_json::from_str(row[1]).unwrap_or_else(|_| panic!("{row:?}"))))
        .collect();
    assert_eq!(documented, defaults, "left: docs/API.md; right: the code");
}

#[test]
fn codes_are_in_the_table() {
    let documented = table("code");
    let codes: Vec<Vec<String>> = Code::ALL
        .iter()
        .map(|code| vec![code.as_str().to_owned(), code.status().to_string(), code.title().to_owned()])
        .collect();
    assert_eq!(documented, codes, "left: docs/API.md; right: the code");
}

#[test]
fn endpoints_are_in_the_table() {
    let documented: Vec<String> = table("call").into_iter().map(|row| row[0].to_owned()).collect();
    let mut routes: Vec<String> = route_table()
        .iter()
        .filter(|route| matches!(route.access, Access::Needs(_)))
        .map(|route| format!("{} {}", route.method, route.path))
        .collect();
    routes.sort();
    let mut sorted = documented;
    sorted.sort();
    assert_eq!(sorted, routes, "left: docs/API.md; right: the code");
}
