//! The README's program as it is printed there: its log lines are in its run's log, and if it cannot work, its stderr
//! names the reason within seconds.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rondel_tests::{Backend, Process, Server, example, scratch, wait_until};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(20);
/// A user at a terminal expects an answer within this time.
const SOON: Duration = Duration::from_secs(5);

const PROGRAM: &str = include_str!("../../crates/executor/examples/hello.rs");
const README: &str = include_str!("../../README.md");

fn start(name: &str, program: &str, url: &str, token_file: &Path) -> Process {
    let mut command = Command::new(example(program));
    command.arg(url).arg(token_file);
    Process::start(name, command)
}

/// Waits until one line of stderr has all of these parts, and returns it.
async fn line_with(process: &Process, description: &str, limit: Duration, parts: &[&str]) -> String {
    wait_until(limit, description, async || {
        let text = process.stderr();
        let found = text.lines().find(|line| parts.iter().all(|part| line.contains(part))).map(str::to_owned);
        found.ok_or(text)
    })
    .await
}

#[test]
fn the_readme_has_the_program_that_is_tested() {
    let (_, program) = PROGRAM.split_once("\n\n").expect("a line about it comes first");
    let (_, printed) = README.split_once("```rust\n").expect("the README has a program");
    let (printed, _) = printed.split_once("```\n").expect("it ends");
    assert_eq!(printed, program);
}

#[tokio::test]
async fn the_readmes_program_logs_into_its_run() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = Server::start(&db).await;
    let api = server.api();
    let mut program = start("the README's program", "hello", server.url(), &server.token_file());
    api.post("/api/v1/jobs", json!({"name": "greet", "app": "hello", "handler": "greet"})).await.expect(201);
    api.post("/api/v1/jobs/greet/runs", json!({"params": "Ada"})).await.expect(201);
    let run = wait_until(LIMIT, "the run has succeeded", async || {
        let runs = api.runs("greet").await;
        match runs.as_slice() {
            [run] if run["status"] == "succeeded" => Ok(run.clone()),
            _ => Err(runs),
        }
    })
    .await;
    let id = run["id"].as_str().expect("an id").to_owned();
    let line = wait_until(LIMIT, "its line is in the run's log", async || {
        let page = api.get(&format!("/api/v1/runs/{id}/logs")).await.expect(200);
        let found = page["items"].as_array().into_iter().flatten().find(|line| line.to_string().contains("hello, Ada"));
        found.cloned().ok_or(page)
    })
    .await;
    assert_eq!(line["level"], "info", "{line:#}");
    line_with(&program, "stderr has it too", SOON, &["INFO", "hello, Ada"]).await;
    assert_eq!(program.terminate(LIMIT).await.code(), Some(0), "{}", program.stderr());
}

#[tokio::test]
async fn obstacles_are_on_the_programs_stderr() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = Server::start(&db).await;
    let (folder, api) = (tempfile::tempdir().expect("a folder"), server.api());

    // Without a server, the message names the URL and the cause. The port was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let nowhere = format!("http://{}", free.local_addr().expect("its address"));
    drop(free);
    let mut program = start("with a wrong port", "hello", &nowhere, &server.token_file());
    let parts = ["WARN", "no session with the server at", &nowhere, "onnection refused", "keeps trying"];
    line_with(&program, "it reports that nothing listens there", SOON, &parts).await;
    // The message comes immediately, and not again at each attempt.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(program.stderr().matches("no session with").count(), 1, "{}", program.stderr());
    program.terminate(LIMIT).await;

    // If the server does not know the token, the message names the remedy.
    let wrong = folder.path().join("wrong.token");
    std::fs::write(&wrong, format!("rondel_exec_{}", "0123456789abcdef".repeat(4))).expect("a file");
    make_private(&wrong);
    let mut program = start("with a bad token", "hello", server.url(), &wrong);
    let parts = ["ERROR", "refused by the server at", server.url(), "wrong.token", "rondel token create"];
    line_with(&program, "it reports that its token is refused", SOON, &parts).await;
    program.terminate(LIMIT).await;

    // If the file is missing, the message is a sentence and not the name of an error's variant.
    let mut program = start("without a token", "hello", server.url(), &folder.path().join("missing.token"));
    assert_eq!(program.wait(LIMIT).await.code(), Some(1));
    let printed = program.stderr();
    assert!(printed.contains("Error: cannot read ") && printed.contains("missing.token: No such file"), "{printed}");
    assert!(!printed.contains("File {"), "{printed}");

    // If the server refuses a job, the message names the job and the reason. The job's name belongs to another app.
    let taken = json!({"name": "invoices.close", "app": "other", "handler": "h"});
    api.post("/api/v1/jobs", taken).await.expect(201);
    let mut program = start("with a refused declaration", "invoices", server.url(), &server.token_file());
    let parts = ["ERROR", "refused a job that this code declares", "\"invoices.close\"", "another app"];
    line_with(&program, "it names the refused job", LIMIT, &parts).await;
    let problems = api.get("/api/v1/apps/billing/declaration-problems").await.expect(200);
    assert!(problems["items"].as_array().is_some_and(|all: &Vec<Value>| !all.is_empty()), "{problems:#}");
    program.terminate(LIMIT).await;
}

/// Makes a token file readable by its owner only: the SDK refuses any other token file.
fn make_private(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("set its mode");
}
