//! Every way to end: failed, retried, timed out, cancelled, skipped.

use std::time::Duration;

use rondel_tests::{Agent, Api, ScratchDb, Server, wait_until};
use serde_json::{Value, json};

use crate::journal::Journal;
use crate::on_each_database;

pub(crate) async fn trigger(api: &Api, job: &str) -> String {
    let run = api.post(&format!("/api/v1/jobs/{job}/runs"), json!({})).await.expect(201);
    run["id"].as_str().expect("an id").to_owned()
}

pub(crate) async fn wait_for_verdict(api: &Api, run: &str) -> Value {
    let path = format!("/api/v1/runs/{run}");
    wait_until(Duration::from_secs(30), "the run has a verdict", async || {
        let run = api.get(&path).await.expect(200);
        let is_open = ["pending", "waiting", "running"].iter().any(|open| run["status"] == *open);
        if is_open { Err(run) } else { Ok(run) }
    })
    .await
}

async fn each_end_has_its_verdict(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let shell = |name: &str, script: &str, extra_fields: Value| {
        let mut job =
            json!({"name": name, "app": "files", "handler": "shell", "params": {"argv": ["sh", "-c", script]}});
        job.as_object_mut().expect("an object").extend(extra_fields.as_object().expect("an object").clone());
        job
    };
    let journal = Journal::new();
    let twice = format!("echo x >> {}; exit 3", journal.path().display());
    for job in [
        shell("fails", &twice, json!({"retry": {"max": 1, "backoff": "100ms"}})),
        shell("hangs", "sleep 60", json!({"timeout": "500ms"})),
        shell("long", "sleep 60", json!({})),
        json!({"name": "unserved", "app": "empty", "handler": "shell", "params": {"argv": ["true"]}, "queue_timeout": "1s"}),
        json!({"name": "nothing", "app": "files", "handler": "no.such.handler", "queue_timeout": "1s"}),
    ] {
        api.post("/api/v1/jobs", job).await.expect(201);
    }
    let _agent = Agent::start(&server, "files").await;

    let run = wait_for_verdict(&api, &trigger(&api, "fails").await).await;
    assert_eq!((&run["status"], &run["attempt"]), (&json!("failed"), &json!(2)), "{run:#}");
    assert_eq!(run["attempts"].as_array().map(Vec::len), Some(2), "each attempt is kept: {run:#}");
    let lines = std::fs::read_to_string(journal.path()).expect("the handler wrote");
    assert_eq!(lines.lines().count(), 2);

    let run = wait_for_verdict(&api, &trigger(&api, "hangs").await).await;
    assert_eq!(run["status"], "timed_out", "{run:#}");

    let long = trigger(&api, "long").await;
    wait_until(Duration::from_secs(20), "the run is seen running", async || {
        let run = api.get(&format!("/api/v1/runs/{long}")).await.expect(200);
        if run["status"] == "running" { Ok(()) } else { Err(run) }
    })
    .await;
    api.post(&format!("/api/v1/runs/{long}/cancel"), json!({})).await.expect(202);
    let run = wait_for_verdict(&api, &long).await;
    assert_eq!(run["status"], "cancelled", "{run:#}");

    for job in ["unserved", "nothing"] {
        let run = wait_for_verdict(&api, &trigger(&api, job).await).await;
        assert_eq!((&run["status"], &run["reason"]), (&json!("skipped"), &json!("no_executor")), "{job}: {run:#}");
    }
}
on_each_database!(each_end_has_its_verdict);
