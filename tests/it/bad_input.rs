//! Bad input gets a clear error that names the field, and leaves nothing behind.

use std::time::Duration;

use rondel_tests::{Api, Backend, ScratchDb, Server, binary, rondel, scratch, wait_until};
use serde_json::{Value, json};

async fn server() -> (ScratchDb, Server) {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    (db, server)
}

#[tokio::test]
async fn each_bad_field_is_named() {
    let (_db, server) = server().await;
    let api = server.api();
    for (change, pointer) in [
        (json!({"name": "Bad Name"}), "/name"),
        (json!({"schedule": {"cron": "61 * * * * ?"}}), "/schedule/cron"),
        (json!({"schedule": {"cron": "0 * * * * ?", "time_zone": "Mars/Olympus"}}), "/schedule/time_zone"),
        (json!({"schedule": {"every": "0s"}}), "/schedule/every"),
        (json!({"schedule": {"at": "2001-01-01T00:00:00Z"}}), "/schedule/at"),
        (json!({"route": "sideways"}), "/route"),
        (json!({"timeout": "soon"}), "/timeout"),
        (json!({"colour": "red"}), "/colour"),
        (json!({"retry": {"max": -1}}), "/retry/max"),
    ] {
        let mut job = json!({"name": "j", "app": "a", "handler": "h"});
        job.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        let answer = api.post("/api/v1/jobs", job).await;
        assert_eq!(answer.headers["content-type"], "application/problem+json");
        let problem = answer.expect(422);
        let pointers: Vec<&Value> =
            problem["errors"].as_array().expect("errors").iter().map(|e| &e["pointer"]).collect();
        assert_eq!(pointers, [pointer], "{change}: {problem:#}");
    }
    assert_eq!(api.get("/api/v1/jobs").await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn without_a_token_nothing_exists() {
    let (_db, server) = server().await;
    server.api().post("/api/v1/jobs", json!({"name": "real", "app": "a", "handler": "h"})).await.expect(201);
    for api in [Api::anonymous(server.url()), Api::new(server.url(), "rondel_0000")] {
        let mut answers: Vec<Value> = Vec::new();
        for path in ["/api/v1/jobs/real", "/api/v1/jobs/unreal", "/api/v1/nothing"] {
            let mut body = api.get(path).await.expect(401);
            let fields = body.as_object_mut().expect("a problem");
            fields.remove("request_id");
            fields.remove("instance");
            answers.push(body);
        }
        assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:#?}");
    }
}

#[tokio::test]
async fn a_second_server_on_one_sqlite_file_is_refused_in_one_sentence() {
    let (db, _server) = server().await;
    let data = tempfile::tempdir().expect("make a folder");
    let data = data.path().join("second").display().to_string();
    let args = ["server", "--database", db.url(), "--listen", "127.0.0.1:0", "--data-dir", &data];
    let second = rondel(&args, &[]).await;
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.stderr.contains("in use by another rondel server"), "{second:?}");
    assert!(!std::path::Path::new(&data).exists(), "something was left behind");
}

/// An agent whose app does not exist is refused with the reason until the app is created. Although the agent retries,
/// the server logs the refusal once.
#[tokio::test]
async fn an_executor_is_refused_with_the_reason_once() {
    let (_db, mut server) = server().await;
    let mut command = std::process::Command::new(binary());
    command.args(["agent", "--server", server.url(), "--app", "later", "--name", "knocker", "--token-file"]);
    command.arg(server.token_file());
    let mut agent = rondel_tests::Process::start("the knocking agent", command);
    agent.wait_for_line(Duration::from_secs(20), "there is no app").await;
    server.process().wait_for_line(Duration::from_secs(20), "there is no app").await;
    server.api().post("/api/v1/apps", json!({"name": "later"})).await.expect(201);
    wait_until(Duration::from_secs(20), "the agent is in", async || {
        let executors = server.api().get("/api/v1/executors").await.expect(200);
        if executors.to_string().contains("knocker") { Ok(()) } else { Err(executors) }
    })
    .await;
    let refusals = server.process().stderr().matches("there is no app").count();
    assert_eq!(refusals, 1, "{}", server.process().stderr());
    agent.terminate(Duration::from_secs(20)).await;
}
