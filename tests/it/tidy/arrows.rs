//! Which crate may use which other ones. A new dependency needs an edit of a table here, and is therefore a deliberate
//! decision.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cargo_metadata::DependencyKind;

use super::WORKSPACE;

/// Each crate, and the crates of the workspace that it uses.
const ARROWS: &[(&str, &[&str])] = &[
    ("rondel-admin", &["rondel-core", "rondel-failpoint", "rondel-outgoing", "rondel-proto", "rondel-store"]),
    ("rondel-bench", &["rondel-admin", "rondel-core", "rondel-executor", "rondel-store", "rondel-web"]),
    (
        "rondel-cli",
        &[
            "rondel-admin",
            "rondel-bench",
            "rondel-core",
            "rondel-executor",
            "rondel-failpoint",
            "rondel-store",
            "rondel-web",
            "rondel-xxl",
        ],
    ),
    ("rondel-core", &[]),
    ("rondel-executor", &["rondel-core", "rondel-failpoint", "rondel-macros", "rondel-outgoing", "rondel-proto"]),
    ("rondel-failpoint", &[]),
    ("rondel-macros", &["rondel-core"]),
    ("rondel-outgoing", &["rondel-core"]),
    ("rondel-proto", &[]),
    (
        "rondel-sim",
        &["rondel-admin", "rondel-core", "rondel-executor", "rondel-failpoint", "rondel-proto", "rondel-store"],
    ),
    ("rondel-store", &["rondel-core", "rondel-failpoint"]),
    // The tests use programs as users write them, and the names of failpoints.
    ("rondel-tests", &["rondel-executor", "rondel-failpoint"]),
    ("rondel-web", &["rondel-admin", "rondel-core", "rondel-store"]),
    ("rondel-xxl", &["rondel-admin", "rondel-core", "rondel-outgoing", "rondel-proto", "rondel-store"]),
];

/// External crates, each with the only crates that may name it, in tests too.
const HOMES: &[(&str, &[&str])] = &[
    // Passwords.
    ("argon2", &["rondel-admin"]),
    ("askama", &["rondel-web"]),
    // In the tests, axum serves a provider of sign-ins; in the bench, executors of XXL-JOB, which listen.
    ("axum", &["rondel-bench", "rondel-tests", "rondel-web"]),
    ("chrono-tz", &["rondel-core"]),
    ("clap", &["rondel-cli"]),
    ("clap_mangen", &["rondel-cli"]),
    ("criterion", &["rondel-core"]),
    ("cron", &["rondel-core"]),
    ("csv", &["rondel-admin"]),
    // Reads the end of a certificate.
    ("der", &["rondel-admin"]),
    // A peer that the benchmark measures against.
    ("croner", &["rondel-core"]),
    // Checks parameters against the schemas that executors declare. It is not in core, because the SDK is built on core. In
    // tests, it checks the answers of the API.
    ("jsonschema", &["rondel-admin", "rondel-web"]),
    ("indicatif", &["rondel-cli"]),
    ("md-5", &["rondel-core"]),
    // Traces are made for fires, requests and runs, each in its crate, and sent by the program.
    ("opentelemetry", &["rondel-admin", "rondel-cli", "rondel-executor", "rondel-web"]),
    ("opentelemetry-otlp", &["rondel-cli"]),
    ("opentelemetry_sdk", &["rondel-cli"]),
    ("prometheus-client", &["rondel-admin"]),
    ("prost", &["rondel-proto"]),
    // Server and agent call URLs chosen by users only through the client in `rondel-outgoing`.
    ("reqwest", &["rondel-bench", "rondel-cli", "rondel-outgoing", "rondel-tests"]),
    // Sign-ins through a provider.
    ("openidconnect", &["rondel-admin"]),
    ("quote", &["rondel-macros"]),
    ("sqlx", &["rondel-store"]),
    // Mail.
    ("lettre", &["rondel-outgoing"]),
    // Templates of messages.
    ("minijinja", &["rondel-admin"]),
    // Finds similar names, of commands and of fields in documents.
    ("strsim", &["rondel-cli", "rondel-core"]),
    ("syn", &["rondel-macros"]),
    // The simulation and the bridge need the status of a refused stream, and the tests a collector of traces.
    ("tonic", &["rondel-admin", "rondel-executor", "rondel-proto", "rondel-sim", "rondel-tests", "rondel-xxl"]),
    ("tonic-prost", &["rondel-proto"]),
    ("tower-http", &["rondel-web"]),
    // Its parser reports lines and columns; in tests, it reads the compose file.
    ("yaml-rust2", &["rondel-tests", "rondel-web"]),
];

/// Features of tonic for one side of a connection, and the only crate that may be that side.
const SIDES: &[(&str, &str)] =
    &[("server", "rondel-admin"), ("router", "rondel-admin"), ("channel", "rondel-executor")];

/// Crates that a crate must not depend on, not even indirectly.
const UNREACHABLE: &[(&str, &[&str])] = &[
    ("rondel-core", &["axum", "reqwest", "rustix", "sqlx", "tokio", "tonic"]),
    ("rondel-executor", &["rondel-admin", "rondel-store", "rondel-web", "sqlx"]),
    ("rondel-proto", &["rondel-core", "sqlx"]),
    ("rondel-store", &["axum", "tonic"]),
    ("rondel-tests", &["rondel-admin", "rondel-core", "rondel-store", "sqlx"]),
];

#[test]
fn arrows_between_crates_are_those_of_the_table() {
    let found: BTreeMap<_, BTreeSet<_>> = WORKSPACE
        .workspace_packages()
        .into_iter()
        .map(|package| {
            let dependencies = package.dependencies.iter().filter(|dependency| dependency.path.is_some());
            // A crate may use itself in tests, for an example or a macro.
            let dependencies = dependencies
                .map(|dependency| dependency.name.as_str())
                .filter(|dependency| *dependency != package.name.as_str());
            (package.name.as_str(), dependencies.collect())
        })
        .collect();
    let listed: BTreeMap<_, BTreeSet<_>> =
        ARROWS.iter().map(|(name, dependencies)| (*name, dependencies.iter().copied().collect())).collect();
    assert_eq!(found, listed, "left: the manifests; right: the table");
}

#[test]
fn outside_crates_are_named_only_at_home() {
    let mut strays = Vec::new();
    for package in WORKSPACE.workspace_packages() {
        for dependency in &package.dependencies {
            let home = HOMES.iter().find(|(name, _)| *name == dependency.name);
            if home.is_some_and(|(_, homes)| !homes.contains(&package.name.as_str())) {
                strays.push(format!("{} names {}", package.name, dependency.name));
            }
            let sides =
                SIDES.iter().filter(|_| dependency.name == "tonic" && dependency.kind == DependencyKind::Normal);
            for (feature, home) in sides {
                if dependency.features.iter().any(|one| one == feature) && package.name.as_str() != *home {
                    strays.push(format!("{} names tonic's {feature}", package.name));
                }
            }
        }
    }
    assert!(strays.is_empty(), "{strays:#?}");
}

/// A build of one package activates only the features that its dependencies request: the manuals build `rondel-cli`
/// alone.
#[test]
fn the_store_for_tests_is_not_in_the_shipped_binary() {
    let shipped = reach("rondel-cli");
    for package in WORKSPACE.workspace_packages() {
        let is_testing = |feature: &String| feature == "testing";
        assert!(!package.features.get("default").is_some_and(|default| default.iter().any(is_testing)));
        for dependency in package.dependencies.iter().filter(|dependency| dependency.name == "rondel-store") {
            let is_on = dependency.kind == DependencyKind::Normal && dependency.features.iter().any(is_testing);
            let is_shipped = package.name.as_str() == "rondel-cli" || shipped.contains(package.name.as_str());
            assert!(!(is_on && is_shipped), "{} turns on the store for tests", package.name);
        }
    }
    for path in ["docs/INSTALL.md", "docker-compose.yml"] {
        let text = super::read(Path::new(path));
        let builds: Vec<&str> = text.lines().filter(|line| line.contains("cargo build --profile dist")).collect();
        assert!(!builds.is_empty(), "{path} does not build the binary");
        assert!(builds.iter().all(|line| line.contains("-p rondel-cli")), "{path}: {builds:?}");
    }
}

#[test]
fn forbidden_crates_are_unreachable() {
    for (name, forbidden) in UNREACHABLE {
        let reached_names = reach(name);
        let found: Vec<_> = forbidden.iter().filter(|one| reached_names.contains(**one)).collect();
        assert!(found.is_empty(), "{name} reaches {found:?}");
    }
}

/// Every crate on which a crate depends, directly or indirectly, except the dependencies of its tests and build
/// scripts.
fn reach(name: &str) -> BTreeSet<&'static str> {
    let resolve = WORKSPACE.resolve.as_ref().expect("cargo metadata resolves");
    let start = WORKSPACE.workspace_packages().into_iter().find(|package| package.name.as_str() == name);
    let mut unvisited_ids = vec![&start.expect("the tables name crates that exist").id];
    let mut reached_names = BTreeSet::new();
    while let Some(id) = unvisited_ids.pop() {
        let node = resolve.nodes.iter().find(|node| node.id == *id).expect("each package has a node");
        for dependency in &node.deps {
            let is_normal = dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal);
            if is_normal && reached_names.insert(WORKSPACE[&dependency.pkg].name.as_str()) {
                unvisited_ids.push(&dependency.pkg);
            }
        }
    }
    reached_names
}
