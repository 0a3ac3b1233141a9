//! Each server of a cluster sends the events of all its servers, and the command line shows them.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use reqwest::{Method, Response};
use rondel_tests::{Agent, Backend, Process, ScratchDb, Server, binary, scratch, wait_until};
use serde_json::{Value, json};
use tokio::time::timeout;

/// How long an event may take on a slow machine.
const LIMIT: Duration = Duration::from_secs(30);

/// The lines of a stream of events.
struct EventStream {
    response: Response,
    rest: String,
}

impl EventStream {
    async fn listen(server: &Server, query: &str) -> Self {
        let request = server.api().request(Method::GET, &format!("/api/v1/events{query}"));
        let request = request.header("accept", "application/x-ndjson").timeout(LIMIT * 4);
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status().as_u16(), 200);
        let mut stream = Self { response, rest: String::new() };
        assert_eq!(stream.next().await["event"], "ready");
        stream
    }

    async fn next(&mut self) -> Value {
        loop {
            if let Some((line, rest)) = self.rest.split_once('\n') {
                let event = (!line.is_empty()).then(|| serde_json::from_str(line).expect("a line is JSON"));
                self.rest = rest.to_owned();
                match event {
                    Some(event) => return event,
                    None => continue,
                }
            }
            let chunk =
                timeout(LIMIT, self.response.chunk()).await.expect("an event comes").expect("the stream goes on");
            self.rest.push_str(std::str::from_utf8(&chunk.expect("the stream goes on")).expect("text"));
        }
    }

    /// The events up to the expected one.
    async fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut received = Vec::new();
        loop {
            let event = self.next().await;
            let is_last = is_it(&event);
            received.push(event);
            if is_last {
                return received;
            }
        }
    }
}

/// Events of one server are sent by the other.
async fn events_of_one_server_are_sent_by_the_other(db: ScratchDb) {
    let mut first = Server::start(&db).await;
    let mut second = Server::start(&db).await;
    first.api().post("/api/v1/apps", json!({"name": "billing"})).await.expect(201);
    let mut stream = EventStream::listen(&second, "").await;
    let mut agent = Agent::start_with(&first, "billing", &[]).await;
    let came = stream.until(|event| event["event"] == "executor").await;
    let executor = &came.last().expect("one").clone()["data"];
    assert_eq!((&executor["name"], &executor["status"]), (&json!(agent.name()), &json!("online")));
    let job = json!({"name": "nap", "app": "billing", "handler": "shell", "params": {"argv": ["sleep", "4"]}});
    first.api().post("/api/v1/jobs", job).await.expect(201);
    let run = first.api().post("/api/v1/jobs/nap/runs", json!({})).await.expect(201);
    let received = stream.until(|event| event["data"]["status"] == "succeeded").await;
    let of_run: Vec<&Value> = received.iter().filter(|event| event["data"]["id"] == run["id"]).collect();
    let statuses: Vec<&str> = of_run.iter().filter_map(|event| event["data"]["status"].as_str()).collect();
    assert!(statuses.ends_with(&["running", "succeeded"]), "{received:#?}");
    assert_eq!(of_run[of_run.len() - 1]["data"]["executor"], json!(agent.name()));
    assert!(
        received.iter().any(|event| event["data"]["change"] == "created" && event["data"]["name"] == "nap"),
        "{received:#?}"
    );
    assert!(agent.stop().await.success());
    let received = stream.until(|event| event["event"] == "executor").await;
    assert_eq!(received.last().expect("one")["data"]["status"], "offline");
    first.kill().await;
    let received = stream.until(|event| event["event"] == "node" && event["data"]["status"] == "dead").await;
    let ids: BTreeSet<&str> = received.iter().filter_map(|event| event["id"].as_str()).collect();
    assert_eq!(ids.len(), received.len(), "each has its own id");
    // The stream also ends with its server.
    let ending = async {
        assert!(second.stop().await.success());
    };
    let (received, ()) = tokio::join!(stream.until(|event| event["event"] == "end"), ending);
    assert_eq!(received.last().expect("one")["data"]["reason"], "stopping");
}

#[tokio::test]
async fn events_of_one_server_are_sent_by_the_other_on_postgres() {
    if let Some(db) = scratch(Backend::Postgres).await {
        events_of_one_server_are_sent_by_the_other(db).await;
    }
}

#[tokio::test]
async fn events_of_one_server_are_sent_by_the_other_on_mysql() {
    if let Some(db) = scratch(Backend::Mysql).await {
        events_of_one_server_are_sent_by_the_other(db).await;
    }
}

#[tokio::test]
async fn the_command_line_prints_events() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let mut server = Server::start(&db).await;
    let mut command = Command::new(binary());
    command.args(["events", "--kind", "job", "--count", "2", "--server", server.url(), "--token-file"]);
    command.arg(server.token_file());
    let mut listener = Process::start("rondel events", command);
    let mut number = 0;
    // Nothing shows when the command has begun to listen, so jobs are created until it has received two.
    let status = wait_until(LIMIT, "it has printed two", async || {
        number += 1;
        let job = json!({"name": format!("job-{number}"), "app": "a", "handler": "h"});
        server.api().post("/api/v1/jobs", job).await.expect(201);
        listener.has_ended().ok_or_else(|| listener.last_words())
    })
    .await;
    assert!(status.success());
    let printed = listener.stdout();
    assert_eq!(
        printed.lines().filter(|line| line.contains(" job ") && line.contains("created, version 1")).count(),
        2,
        "{printed}"
    );
    assert!(server.stop().await.success());
}
