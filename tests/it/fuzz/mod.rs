//! Thousands of generated calls from the API's own document, for each role: the server never fails, every status and body is
//! documented, and the memory stays bounded.
//!
//! `RONDEL_TEST_SCHEMATHESIS` names the program that generates the calls. A run of all tests makes a few; `RONDEL_TEST_FUZZ=N`
//! makes every call that varies one parameter or field, and N random ones for each operation and role: tens of thousands.

use std::io::Write as _;
use std::path::Path;

use rondel_tests::{Api, Backend, Server, left_out_without, scratch, variable};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::task::JoinSet;

/// How many random calls an operation gets from a role in a run of all tests.
const SHORT: &str = "1";
/// The phases of the generator in a run of all tests.
const PHASES: &str = "examples,fuzzing,stateful";
/// The phases in the long form, which also try each parameter and field at its bounds and beyond.
const ALL_PHASES: &str = "examples,coverage,fuzzing,stateful";
/// Maximum peak memory of the server.
const MEMORY_MAX_MIB: u64 = 256;
/// The checks of each answer: it is documented, and a call without a token, with another method, or to a deleted object
/// does not succeed.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
    response_schema_conformance,ignored_auth,unsupported_method,allow_header_conformance,use_after_free";

#[tokio::test(flavor = "multi_thread")]
async fn no_made_up_call_of_any_role_breaks_the_server() {
    let Some(program) = variable("RONDEL_TEST_SCHEMATHESIS") else {
        return left_out_without("schemathesis", "schemathesis: RONDEL_TEST_SCHEMATHESIS is not set");
    };
    let Some(db) = scratch(Backend::Postgres).await else { return };
    // Without a rate limit, which would hide the answers to calls.
    let mut server = Server::start_with(&db, &["--api-rate", "0"]).await;
    let known_objects = furnish(&server.api()).await.to_string();
    let document = server.api().get("/api/v1/openapi.json").await.expect(200).to_string();
    let call_generator = CallGenerator { program, url: server.url().to_owned(), document, known_objects };
    let mut total = 0;
    // Two processes, because the program's own threads disturb each other on some versions of Python.
    for pair in tokens(&server.api(), server.token_file().as_path()).await.chunks(2) {
        let calls: JoinSet<u64> =
            pair.iter().cloned().map(|(role, token)| call_generator.clone().call(role, token)).collect();
        total += calls.join_all().await.into_iter().sum::<u64>();
    }
    let memory = memory_mib(server.process().id());
    writeln!(std::io::stdout(), "{total} made-up calls; the server had {memory} MiB at most").expect("stdout");
    assert!(memory <= MEMORY_MAX_MIB, "the server had {memory} MiB");
    assert!(server.stop().await.success());
}

/// The generator of calls, and its input.
#[derive(Clone)]
struct CallGenerator {
    program: String,
    url: String,
    document: String,
    known_objects: String,
}

impl CallGenerator {
    /// Makes calls with a token, or without one, and returns their number.
    async fn call(self, role: &'static str, token: Option<String>) -> u64 {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("openapi.json"), &self.document).expect("a file");
        let long = variable("RONDEL_TEST_FUZZ");
        let (count, phases) = long.as_deref().map_or((SHORT, PHASES), |count| (count, ALL_PHASES));
        let mut command = Command::new(&self.program);
        command.args(["run", "openapi.json", "--url", &self.url, "--checks", CHECKS, "--max-examples", count]);
        command.args(["--phases", phases, "--generation-allow-x00", "true", "--generation-database", "none"]);
        command.args(["--workers", "1", "--continue-on-failure", "--no-shrink", "--no-color", "--warnings", "off"]);
        // A stream of events lasts for up to an hour, so its path is left out.
        command.args(["--suppress-health-check", "all", "--request-timeout", "30", "--exclude-path", "/api/v1/events"]);
        command.args(["--report", "json", "--report-json-path", "report.json"]);
        if let Some(token) = token {
            command.args(["--header", &format!("Authorization: Bearer {token}")]);
        }
        let hooks = Path::new(env!("CARGO_MANIFEST_DIR")).join("it/fuzz");
        command
            .env("PYTHONPATH", hooks)
            .env("SCHEMATHESIS_HOOKS", "hooks")
            .env("RONDEL_FUZZ_KNOWN", &self.known_objects);
        command.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(folder.path()).kill_on_drop(true);
        let done = command.output().await.expect("schemathesis starts");
        let output = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{role}: {output}\n{}", String::from_utf8_lossy(&done.stderr));
        let report = std::fs::read_to_string(folder.path().join("report.json")).expect("a report");
        let report: Value = serde_json::from_str(&report).expect("a report is JSON");
        let count = report["test_cases"]["generated"].as_u64().expect("a number of calls");
        writeln!(std::io::stdout(), "{role}: {count} made-up calls").expect("stdout");
        count
    }
}

/// Creates objects of every kind. Returns, by the beginning of a path, the name of its parameter and a value that names
/// an object.
async fn furnish(api: &Api) -> Value {
    let job =
        json!({"name": "seeded", "app": "demo", "handler": "h", "schedule": {"every": "1h"}, "queue_timeout": "1h"});
    api.post("/api/v1/jobs", job).await.expect(201);
    api.patch("/api/v1/jobs/seeded", json!({"description": "again"})).await.expect(200);
    let run = api.post("/api/v1/jobs/seeded/runs", json!({})).await.expect(201);
    api.put("/api/v1/calendars/holidays", json!({"rule": {"days": ["2026-12-24"]}})).await.expect(201);
    api.post("/api/v1/namespaces", json!({"name": "staging"})).await.expect(201);
    api.post("/api/v1/users", json!({"name": "guest"})).await.expect(201);
    let token = json!({"kind": "api", "name": "spare", "grants": [{"role": "viewer"}]});
    let token = api.post("/api/v1/tokens", token).await.expect(201);
    let nodes = api.get("/api/v1/nodes").await.expect(200);
    json!({
        "/api/v1/jobs/": ["name", "seeded"],
        "/api/v1/runs/": ["id", run["id"]],
        "/api/v1/calendars/": ["name", "holidays"],
        "/api/v1/apps/": ["app", "demo"],
        "/api/v1/nodes/": ["name", nodes["items"][0]["name"]],
        "/api/v1/namespaces/": ["name", "staging"],
        "/api/v1/users/": ["user", "guest"],
        "/api/v1/tokens/": ["id", token["id"]],
    })
}

/// A token for each role; none for a caller without a role.
async fn tokens(api: &Api, admin: &Path) -> Vec<(&'static str, Option<String>)> {
    let mut tokens = vec![("a stranger", None)];
    for (role, kind) in [("executor", "executor"), ("viewer", "api"), ("operator", "api"), ("editor", "api")] {
        let grant = json!({"role": role, "namespace": "default", "app": (role == "executor").then_some("demo")});
        let made = api
            .post("/api/v1/tokens", json!({"kind": kind, "name": format!("a-{role}"), "grants": [grant]}))
            .await
            .expect(201);
        tokens.push((role, made["token"].as_str().map(str::to_owned)));
    }
    let all = std::fs::read_to_string(admin).expect("the server wrote its token");
    tokens.push(("admin of everything", Some(all.trim().to_owned())));
    tokens
}

/// The peak memory of a process.
fn memory_mib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("the process lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux has this line");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") / 1024
}
