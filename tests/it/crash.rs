//! kill -9 of the server under load: no fire without a row, no row without a verdict, nothing begun twice.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rondel_tests::{Agent, Backend, Process, ScratchDb, Server, Signal, example, scratch, wait_until};
use serde_json::{Value, json};

use crate::journal::{Journal, check_against_ledger, seconds};
use crate::on_each_database;
use crate::verdicts::trigger;

const JOB_COUNT: usize = 200;

async fn a_killed_server_loses_nothing(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let journal = Journal::new();
    let data = tempfile::tempdir().expect("make a folder");
    for number in 0..JOB_COUNT {
        let job = json!({
            "name": format!("job-{number}"), "app": "files", "handler": "line",
            "schedule": {"every": "1s"}, "misfire": {"policy": "all", "max": 100},
        });
        server.api().post("/api/v1/jobs", job).await.expect(201);
    }
    let _worker = worker(&server, &journal, data.path());
    wait_for_lines(&journal, 3 * JOB_COUNT).await;
    let pause = any_moment();
    tokio::time::sleep(pause).await;
    server.kill().await;
    // Printed for a failed test: only this moment differs between runs of the test.
    std::io::stdout()
        .write_all(format!("killed {pause:?} after three lines a job\n").as_bytes())
        .expect("print the pause");
    let count_before = journal.lines().len();
    tokio::time::sleep(Duration::from_secs(3)).await;
    server.restart().await;
    wait_for_lines(&journal, count_before + 12 * JOB_COUNT).await;

    let api = server.api();
    for number in 0..JOB_COUNT {
        api.post(&format!("/api/v1/jobs/job-{number}/pause?queued=run"), json!({})).await.expect(200);
    }
    let mut all_runs: Vec<Value> = Vec::new();
    for number in 0..JOB_COUNT {
        let runs = wait_until(Duration::from_secs(60), "every run has a verdict", async || {
            let runs = api.runs(&format!("job-{number}")).await;
            let open: Vec<&Value> = runs.iter().filter(|run| run["finished_at"].is_null()).collect();
            if open.is_empty() { Ok(runs.clone()) } else { Err(format!("{open:#?}")) }
        })
        .await;
        check_no_hole(&runs);
        all_runs.extend(runs);
    }
    check_against_ledger(&journal.lines(), &all_runs);
}
on_each_database!(a_killed_server_loses_nothing);

/// An executor of the SDK instead of an agent: 200 shells a second would take the processors from other tests.
fn worker(server: &Server, journal: &Journal, data: &Path) -> Process {
    let mut command = Command::new(example("worker"));
    command.args(["--app", "files", "--name", "w", "--server", server.url(), "--token-file"]).arg(server.token_file());
    command.arg("--journal").arg(journal.path()).arg("--data-dir").arg(data);
    Process::start("worker", command)
}

/// The server sees that the process of an executor on its own host has died: its run does not wait for 30 s of silence.
#[tokio::test(flavor = "multi_thread")]
async fn the_run_of_a_killed_agent_on_the_servers_host_is_tried_again_at_once() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let api = server.api();
    let job = json!({"name": "long", "app": "files", "handler": "shell", "params": {"argv": ["sleep", "4"]}});
    api.post("/api/v1/jobs", job).await.expect(201);
    let mut first = Agent::start(&server, "files").await;
    let run = api.post("/api/v1/jobs/long/runs", json!({})).await.expect(201);
    let path = format!("/api/v1/runs/{}", run["id"].as_str().expect("an id"));
    wait_for_run(&server, &path, "the run is running", |run| run["status"] == "running").await;
    let second = Agent::start(&server, "files").await;
    first.kill().await;
    wait_for_run(&server, &path, "the other agent has the run", |run| {
        run["attempt"] == 2 && run["executor"] == second.name()
    })
    .await;
    wait_for_run(&server, &path, "the run has its verdict", |run| run["status"] == "succeeded").await;
}

/// A server that starts again sees that the process of an executor on its own host is gone: the run does not wait for 30 s.
#[tokio::test(flavor = "multi_thread")]
async fn the_run_of_an_agent_that_died_while_its_server_was_away_is_tried_again_at_once() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let mut server = Server::start(&db).await;
    let job = json!({"name": "long", "app": "files", "handler": "shell", "params": {"argv": ["sleep", "4"]}});
    server.api().post("/api/v1/jobs", job).await.expect(201);
    let mut first = Agent::start(&server, "files").await;
    let run = server.api().post("/api/v1/jobs/long/runs", json!({})).await.expect(201);
    let path = format!("/api/v1/runs/{}", run["id"].as_str().expect("an id"));
    wait_for_run(&server, &path, "the run is running", |run| run["status"] == "running").await;
    server.kill().await;
    first.kill().await;
    server.restart().await;
    let second = Agent::start(&server, "files").await;
    wait_for_run(&server, &path, "the other agent has the run", |run| {
        run["attempt"] == 2 && run["executor"] == second.name()
    })
    .await;
    wait_for_run(&server, &path, "the run has its verdict", |run| run["status"] == "succeeded").await;
}

/// A run whose row shows that it waits continues in its attempt after its server was killed. A run that may have been sent is not
/// shown as running until the executors have answered the restarted server.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_waiting_runs_are_known_to_be_unsent_and_the_others_are_not_called_running() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let mut server = Server::start(&db).await;
    let api = server.api();
    for (name, seconds) in [("serial", "3"), ("other", "1")] {
        let job = json!({"name": name, "app": "files", "handler": "shell", "params": {"argv": ["sleep", seconds]}});
        api.post("/api/v1/jobs", job).await.expect(201);
    }
    let mut agent = Agent::start(&server, "files").await;
    let path = |run: String| format!("/api/v1/runs/{run}");
    let first = path(trigger(&api, "serial").await);
    let queued = path(trigger(&api, "serial").await);
    wait_for_run(&server, &first, "the first run is running", |run| run["status"] == "running").await;
    wait_for_run(&server, &queued, "the next one is noted to wait", |run| run["detail"]["waits_for"] == "run").await;
    agent.process().signal(Signal::STOP);
    let unknown = path(trigger(&api, "other").await);
    server.kill().await;
    server.restart().await;
    let run = server.api().get(&unknown).await.expect(200);
    assert_eq!((&run["status"], &run["detail"]["waits_for"]), (&json!("pending"), &json!("roll_call")), "{run:#}");
    let why = run["why"]["en"].as_str().unwrap_or_default();
    assert!(why.contains("for the executors to report whether they have it"), "{run:#}");
    let account = server.api().get("/api/v1/jobs/other/why").await.expect(200);
    let sentence = account["answer"]["en"].as_str().unwrap_or_default();
    assert!(sentence.contains("It is not known yet whether it began"), "{account:#}");
    let queued_run = server.api().get(&queued).await.expect(200);
    assert_eq!((&queued_run["status"], &queued_run["attempt"]), (&json!("pending"), &json!(1)), "{queued_run:#}");
    assert_eq!(queued_run["detail"]["waits_for"], "run", "{queued_run:#}");
    agent.process().signal(Signal::CONT);
    wait_for_run(&server, &queued, "it ran in its first attempt", |run| {
        run["status"] == "succeeded" && run["attempt"] == 1
    })
    .await;
    wait_for_run(&server, &unknown, "the other one ran", |run| run["status"] == "succeeded").await;
}

/// Waits until a run meets a condition, for less than the 30 s that a silent executor has.
async fn wait_for_run(server: &Server, path: &str, description: &str, is_met: impl Fn(&Value) -> bool) {
    wait_until(Duration::from_secs(20), description, async || {
        let run = server.api().get(path).await.expect(200);
        if is_met(&run) { Ok(()) } else { Err(run) }
    })
    .await;
}

/// A random length below a second and a half.
fn any_moment() -> Duration {
    use std::hash::{BuildHasher as _, RandomState};
    Duration::from_millis(RandomState::new().hash_one(()) % 1500)
}

/// The server dies between advancing a job's `next_fire_at` and inserting its runs. The next server must find these
/// fires due.
async fn a_claim_is_whole_or_not_at_all(db: ScratchDb) {
    let journal = Journal::new();
    // The first claims after a start are for the jobs that were just created. A later one is for a job that is firing.
    let mut server = Server::start_with(&db, &["--failpoint", "claim.moved@3"]).await;
    let job = json!({
        "name": "job", "app": "files", "handler": "shell", "params": journal.params(""),
        "schedule": {"every": "1s"}, "misfire": {"policy": "all", "max": 100},
    });
    server.api().post("/api/v1/jobs", job).await.expect(201);
    let exit_status = server.process().wait(Duration::from_secs(60)).await;
    assert!(!exit_status.success(), "it aborted at the failpoint: {exit_status}");
    let server = Server::start_with_data_of(server, &[]).await;
    let _agent = Agent::start(&server, "files").await;
    wait_for_lines(&journal, 12).await;
    let runs = server.api().runs("job").await;
    check_no_hole(&runs);
    check_against_ledger(&journal.lines(), &runs);
}
on_each_database!(a_claim_is_whole_or_not_at_all);

/// A job with one fire a second has a row for each second between its first and its last.
fn check_no_hole(runs: &[Value]) {
    let fires: BTreeSet<i64> = runs.iter().map(|run| seconds(run["fire_at"].as_str().expect("an instant"))).collect();
    let (first, last) = (fires.first().expect("it fired"), fires.last().expect("it fired"));
    let holes: Vec<i64> = (*first..=*last).filter(|second| !fires.contains(second)).collect();
    assert!(holes.is_empty(), "no row for {holes:?}");
}

async fn wait_for_lines(journal: &Journal, count: usize) {
    wait_until(Duration::from_secs(90), "more lines", async || {
        let line_count = journal.lines().len();
        if line_count >= count { Ok(()) } else { Err(format!("{line_count} of {count}")) }
    })
    .await;
}
