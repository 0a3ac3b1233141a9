//! The claims of `docs/SECURITY.md` about tests are true, and routes are made in one place.

use std::path::Path;

use super::{files, read};

/// Every incident that the table must have a row for.
const INCIDENTS: &[&str] = &[
    "XXL-JOB before 2.2.0",
    "default_token",
    "unsalted",
    "CVE-2022-43183",
    "#3375",
    "CVE-2025-7787",
    "CVE-2022-36157",
    "CVE-2023-33779",
    "CVE-2024-42681",
    "CVE-2025-9264",
    "CVE-2020-23814",
    "GHSA-8gvg",
    "CVE-2023-26120",
    "#3360",
    "#3964",
    "GHSA-v3c9",
    "GHSA-pv4m",
    "CVE-2024-3366",
    "CVE-2022-43402",
    "CVE-2023-29922",
    "GHSA-c6mx",
    "CVE-2023-37754",
    "CVE-2024-44546",
    "CVE-2025-11580",
    "GHSA-9wq6",
    "CVE-2025-14518",
    "CVE-2026-82630",
    "CVE-2020-13927",
    "CVE-2020-11978",
    "CVE-2026-41280",
    "CVE-2026-47340",
    "CVE-2024-43202",
    "CVE-2021-39133",
    "CVE-2021-39132",
    "CVE-2021-41111",
    "CVE-2021-41112",
    "CVE-2022-29186",
    "CVE-2019-13990",
    "CVE-2023-39017",
    "CVE-2024-2689",
    "CVE-2023-3485",
    "CVE-2026-89140",
    "CVE-2026-104355",
    "GO-2025-3953",
    "Dkron |",
    "#176",
    "#319",
    "#755",
    "CVE-2022-44303",
];

/// Sources whose tests the document may name.
fn sources() -> String {
    let is_source = |path: &&std::path::PathBuf| path.extension().is_some_and(|ending| ending == "rs");
    files().iter().filter(is_source).map(|path| read(path)).collect()
}

#[test]
fn each_incident_has_a_row_and_each_row_a_test() {
    let document = read(Path::new("docs/SECURITY.md"));
    let (_, rest) = document.split_once("## What happened to others").expect("the section is there");
    let section = rest.split("\n## ").next().expect("it has an end");
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    for incident in INCIDENTS {
        assert!(rows.iter().any(|row| row.contains(incident)), "no row for {incident}");
    }
    let sources = sources();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let [_, _, tried] = cells[..] else { panic!("three columns: {row}") };
        let tests: Vec<&str> = tried.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty() || tried.starts_with("does not apply: "), "{row}");
        for test in tests {
            assert!(sources.contains(&format!("fn {test}(")), "there is no test {test}");
        }
    }
}

/// The tests that the rest of the document names, which are words of four parts and more.
#[test]
fn tests_that_the_document_names_exist() {
    let document = read(Path::new("docs/SECURITY.md"));
    let sources = sources();
    for word in document.split('`').skip(1).step_by(2) {
        let is_name = word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if is_name && word.matches('_').count() >= 3 {
            assert!(sources.contains(&format!("fn {word}(")), "there is no test {word}");
        }
    }
}

/// A router built by hand could bypass the check of permissions. The table lists what each file may do with a router; a new
/// line is a deliberate decision.
#[test]
fn routes_are_made_by_the_builder_that_asks_for_a_permission() {
    const ROUTER: [&str; 7] = [
        "Router::new(",
        "axum::routing",
        "route_service(",
        "nest_service(",
        "fallback_service(",
        ".nest(",
        "MethodRouter",
    ];
    const ALLOWED: [(&str, &str); 13] = [
        ("crates/web/src/routes.rs", "use axum::routing::{MethodFilter, MethodRouter, on};"),
        ("crates/web/src/routes.rs", "handler: MethodRouter<Web>"),
        ("crates/web/src/routes.rs", "let mut router = Router::new();"),
        ("crates/web/src/routes.rs", "(&'static str, MethodRouter<Web>)"),
        // The gateway, whose permissions are in crates/admin/tests/grpc_permissions.tsv.
        ("crates/web/src/app.rs", ".route_service(GATEWAY_PATH, gateway)"),
        // Endpoints of another protocol, off by default: each call is authenticated in crates/xxl/src/api.rs before its body is read, and
        // `bad_calls_are_refused_in_words` has the calls that are refused.
        ("crates/web/src/mounted_routes.rs", "use axum::routing::any;"),
        ("crates/web/src/mounted_routes.rs", "let mut router = Router::new();"),
        // This router has no route. Its layer takes the namespace out of the path, and must precede the routing, which
        // reads the path.
        (
            "crates/web/src/app.rs",
            "Router::new().fallback_service(MapRequestLayer::new(own_namespace::namespace_into_query).layer(app_router))",
        ),
        ("crates/web/src/routes.rs", "let mut paths: Vec<(&'static str, MethodRouter<Web>)>"),
        // Not a server's: an executor of XXL-JOB that does nothing, for measurements.
        ("crates/bench/src/xxl.rs", "use axum::routing::post;"),
        ("crates/bench/src/xxl.rs", "let app = Router::new()"),
        // A test of the answer after a panic.
        ("crates/web/src/frame.rs", "use axum::routing::get;"),
        ("crates/web/src/frame.rs", "let app = Router::new().route(\"/\", get(panics))"),
    ];
    let mut strays = Vec::new();
    for path in files() {
        let is_source = path.starts_with("crates") && path.extension().is_some_and(|ending| ending == "rs");
        if !is_source || path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        let name = path.display().to_string();
        for (index, line) in read(&path).lines().enumerate() {
            let is_allowed = || ALLOWED.iter().any(|(file, text)| *file == name && line.contains(text));
            if ROUTER.iter().any(|word| line.contains(word)) && !is_allowed() {
                strays.push(format!("{name}:{}: {}", index + 1, line.trim()));
            }
        }
    }
    assert!(strays.is_empty(), "{strays:#?}");
}
