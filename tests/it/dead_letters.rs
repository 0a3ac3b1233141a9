//! Dead letters on whole systems: a run that failed for good while the server is killed is listed once, until it is acknowledged or
//! has been run again.

use std::collections::BTreeSet;
use std::time::Duration;

use rondel_tests::{Agent, Api, ScratchDb, Server, rondel, wait_until};
use serde_json::{Value, json};

use crate::on_each_database;
use crate::verdicts::{trigger, wait_for_verdict};

const LIMIT: Duration = Duration::from_secs(60);
/// Where the server dies while it stores the end of a run.
const PLACES: [&str; 3] = ["finish.written", "finish.settled", "finish.committed"];

/// The ids of the dead runs.
async fn dead(api: &Api) -> Vec<String> {
    let found = api.get("/api/v1/runs?q=is:dead&limit=200").await.expect(200);
    let items = found["items"].as_array().expect("a list");
    items.iter().filter_map(|run| run["id"].as_str()).map(str::to_owned).collect()
}

async fn until_dead_are(api: &Api, expected: &BTreeSet<String>) {
    wait_until(LIMIT, "the list of dead letters", async || {
        let found = dead(api).await;
        let is_same = found.len() == expected.len() && found.iter().all(|run| expected.contains(run));
        if is_same { Ok(()) } else { Err((found, expected)) }
    })
    .await;
}

/// Runs a client command, and returns its output.
async fn client(server: &Server, args: &[&str]) -> String {
    let token = server.token_file().display().to_string();
    let output = rondel(&[args, &["--server", server.url(), "--token-file", &token]].concat(), &[]).await;
    assert_eq!(output.code, Some(0), "{args:?}: {}{}", output.stdout, output.stderr);
    format!("{}{}", output.stdout, output.stderr)
}

async fn a_dead_letter_is_listed_once_until_it_is_handled(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let shell = |name: &str, script: &str, extra_fields: Value| {
        let mut job =
            json!({"name": name, "app": "files", "handler": "shell", "params": {"argv": ["sh", "-c", script]}});
        job.as_object_mut().expect("an object").extend(extra_fields.as_object().expect("an object").clone());
        job
    };
    let folder = tempfile::tempdir().expect("a folder");
    let mended = folder.path().join("mended");
    // A run is retried with its own parameters, so the repair is outside of them.
    let script = format!("test -e '{}' || exit 3", mended.display());
    let twice = json!({"retry": {"max": 1, "backoff": "1s"}});
    for name in ["a", "b", "c"] {
        server.api().post("/api/v1/jobs", shell(name, &script, twice.clone())).await.expect(201);
    }
    server.api().post("/api/v1/jobs", shell("well", "true", json!({}))).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    wait_for_verdict(&server.api(), &trigger(&server.api(), "well").await).await;
    let mut expected = BTreeSet::new();
    for (job, place) in ["a", "b", "c"].into_iter().zip(PLACES) {
        let run = trigger(&server.api(), job).await;
        server.kill().await;
        // The server dies at the end of an attempt, and again at the end of the next one.
        let state = || db.sql(&format!("SELECT status FROM run WHERE id = {run}"));
        for _ in 0..2 {
            if state().trim() != "failed" && server.try_restart_with(&["--failpoint", place]).await {
                wait_until(LIMIT, "the server dies, or the run is over", async || {
                    let state = state();
                    if server.process().has_ended().is_some() || state.trim() == "failed" { Ok(()) } else { Err(state) }
                })
                .await;
            }
            if server.process().has_ended().is_none() {
                server.kill().await;
            }
        }
        server.restart().await;
        let run = wait_for_verdict(&server.api(), &run).await;
        assert_eq!(run["status"], "failed", "{place}: {run}");
        expected.insert(run["id"].as_str().expect("an id").to_owned());
        until_dead_are(&server.api(), &expected).await;
    }
    let api = server.api();
    let printed = client(&server, &["run", "list", "--filter", "is:dead", "-o", "json"]).await;
    assert!(expected.iter().all(|run| printed.matches(run.as_str()).count() == 1), "{printed}");

    let acknowledged = expected.pop_first().expect("three runs");
    client(&server, &["run", "ack", &acknowledged]).await;
    until_dead_are(&api, &expected).await;
    assert_eq!(api.get(&format!("/api/v1/runs/{acknowledged}")).await.expect(200)["status"], "failed");

    std::fs::write(&mended, "").expect("write a file");
    let many = ["run", "retry", "--filter", "is:dead app:files"];
    let counted = client(&server, &[&many[..], &["--dry-run"]].concat()).await;
    assert!(counted.contains('2'), "{counted}");
    until_dead_are(&api, &expected).await;
    client(&server, &[&many[..], &["--yes"]].concat()).await;
    until_dead_are(&api, &BTreeSet::new()).await;
    wait_until(LIMIT, "what was run again succeeds", async || {
        let found = api.get("/api/v1/runs?q=status:succeeded&limit=200").await.expect(200);
        let count = found["items"].as_array().map(Vec::len);
        if count == Some(3) { Ok(()) } else { Err(found) }
    })
    .await;
}
on_each_database!(a_dead_letter_is_listed_once_until_it_is_handled);
