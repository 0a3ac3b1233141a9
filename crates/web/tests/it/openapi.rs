//! The OpenAPI document: it is complete and valid, and equals the committed one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use rondel_web::{Access, Permission, RouteInfo, WebConfig, openapi, route_table};
use serde_json::Value;

use crate::contract::{DOCUMENT, complaints, resolved};
use crate::harness::Server;

const COMMITTED_DOCUMENT_PATH: &str = "../../docs/openapi.json";

/// The method, path and operation of every operation in the document.
fn operations() -> Vec<(String, &'static str, &'static Value)> {
    let paths = DOCUMENT["paths"].as_object().unwrap();
    let of_path = |(path, operations): (&'static String, &'static Value)| {
        let operation_of_method =
            |(method, operation): (&String, &'static Value)| (method.to_ascii_uppercase(), path.as_str(), operation);
        operations.as_object().unwrap().iter().map(operation_of_method).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of_path).collect()
}

fn routes() -> Vec<RouteInfo> {
    route_table().into_iter().filter(|route| route.path.starts_with("/api/")).collect()
}

#[test]
fn the_committed_document_matches_the_code() {
    if std::env::var_os("RONDEL_BLESS").is_some() {
        std::fs::write(COMMITTED_DOCUMENT_PATH, openapi()).unwrap();
    }
    let committed = std::fs::read_to_string(COMMITTED_DOCUMENT_PATH).unwrap_or_default();
    for (index, (ours, theirs)) in openapi().lines().zip(committed.lines()).enumerate() {
        assert_eq!(
            ours,
            theirs,
            "line {} of docs/openapi.json; RONDEL_BLESS=1 writes it anew: read what changed",
            index + 1
        );
    }
    assert_eq!(openapi().len(), committed.len(), "docs/openapi.json ends too early or too late");
}

#[test]
fn every_route_is_documented_with_its_permission() {
    let word = |access: Access| match access {
        Access::Needs(Permission::SignedIn) => "own",
        Access::Needs(Permission::View) => "view",
        Access::Needs(Permission::Operate) => "operate",
        Access::Needs(Permission::Edit) => "edit",
        Access::Needs(Permission::Admin) => "admin",
        Access::Needs(Permission::Cluster) => "cluster",
        other => panic!("a route of the API that is {other:?}"),
    };
    let built: BTreeMap<(String, &str), &str> =
        routes().into_iter().map(|route| ((route.method.to_string(), route.path), word(route.access))).collect();
    let documented: BTreeMap<(String, &str), &str> = operations()
        .into_iter()
        .map(|(method, path, operation)| ((method, path), operation["x-permission"].as_str().unwrap_or_default()))
        .collect();
    assert_eq!(built, documented, "left: the routes; right: the document");
    assert_eq!(built.len(), routes().len(), "a route is built twice");
}

#[tokio::test]
async fn everything_in_the_document_is_served() {
    // Streams end immediately.
    let server = Server::start_with(WebConfig { follow_timeout: Duration::ZERO, ..WebConfig::default() }).await;
    for (method, path, _) in operations() {
        let path = path.replace("{name}", "a").replace("{app}", "a").replace("{user}", "a").replace("{id}", "1");
        let answer = server.bare(&method, &path).await;
        let code = answer.json()["code"].as_str().unwrap_or_default().to_owned();
        assert!(!matches!(code.as_str(), "not_found" | "method_not_allowed"), "{method} {path}: {code}");
    }
}

#[test]
fn every_operation_has_a_description() {
    let mut ids = BTreeSet::new();
    let tags: BTreeSet<&str> =
        DOCUMENT["tags"].as_array().unwrap().iter().map(|tag| tag["name"].as_str().unwrap()).collect();
    for (method, path, operation) in operations() {
        let place = format!("{method} {path}");
        assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{place}: its id is another's too");
        assert!(tags.contains(operation["tags"][0].as_str().unwrap()), "{place}: its tag is not in the list");
        let (summary, about) = (operation["summary"].as_str().unwrap(), operation["description"].as_str().unwrap());
        assert!((3..=60).contains(&summary.len()) && !summary.ends_with('.'), "{place}: {summary:?}");
        assert!(about.ends_with('.'), "{place}: {about:?}");
        let mut in_path = BTreeSet::new();
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let about = parameter["description"].as_str().unwrap();
            assert!(about.ends_with('.') || about.ends_with('`'), "{place}: {parameter}");
            if parameter["in"] == "path" {
                in_path.insert(parameter["name"].as_str().unwrap());
            }
        }
        let braces = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        assert_eq!(in_path, braces.collect(), "{place}");
        for (status, answer) in operation["responses"].as_object().unwrap() {
            assert!(
                resolved(answer)["description"].as_str().is_some_and(|about| !about.is_empty()),
                "{place}: {status}"
            );
        }
    }
}

#[test]
fn descriptions_are_for_callers() {
    fn walk(value: &Value) {
        if let Some(about) = value.get("description").and_then(Value::as_str) {
            assert!(!about.contains("```") && !about.contains("](") && !about.starts_with('…'), "{about}");
        }
        match value {
            Value::Object(map) => map.values().for_each(walk),
            Value::Array(items) => items.iter().for_each(walk),
            _ => {}
        }
    }
    walk(&DOCUMENT);
}

#[test]
fn examples_match_their_schemas() {
    let mut seen = 0;
    for (method, path, operation) in operations() {
        for form in operation["requestBody"]["content"].as_object().into_iter().flatten().map(|(_, form)| form) {
            let Some(example) = form.get("example") else { continue };
            assert_eq!(complaints(&form["schema"], example), [""; 0], "{method} {path}");
            seen += 1;
        }
    }
    assert!(seen > 15, "{seen} examples");
}

#[test]
fn references_resolve_and_all_schemas_are_used() {
    fn walk(value: &'static Value, seen: &mut BTreeSet<&'static str>) {
        if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
            resolved(value);
            seen.insert(reference);
        }
        match value {
            Value::Object(map) => map.values().for_each(|value| walk(value, seen)),
            Value::Array(items) => items.iter().for_each(|item| walk(item, seen)),
            _ => {}
        }
    }
    let mut seen = BTreeSet::new();
    walk(&DOCUMENT, &mut seen);
    for (kind, all) in DOCUMENT["components"].as_object().unwrap().iter().filter(|(kind, _)| *kind != "securitySchemes")
    {
        for name in all.as_object().unwrap().keys() {
            assert!(seen.contains(format!("#/components/{kind}/{name}").as_str()), "nothing refers to {name}");
        }
    }
}

#[tokio::test]
async fn the_document_is_for_any_token() {
    let server = Server::start().await;
    let answer = server.get("/api/v1/openapi.json").await;
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.text(), openapi());
    let request = Request::builder().uri("/api/v1/openapi.json").body(Body::empty()).unwrap();
    assert_eq!(server.send(request).await.status, 401);
}
