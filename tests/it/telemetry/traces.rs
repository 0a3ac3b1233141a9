//! One trace leads from the call that requests a run, through the server and the executor, to the script. The lines that
//! both programs write meanwhile belong to it.

use std::path::Path;
use std::time::Duration;

use rondel_tests::{Agent, Api, Backend, Method, Server, scratch, wait_until};
use serde_json::{Value, json};

use super::collector::{Collector, Span};
use super::lines::{about, line_with_message, lines};
use crate::verdicts::wait_for_verdict;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";
const REQUEST: &str = "asked-by-a-test";
const LOUD: &[&str] = &["--log-format", "json", "--log-level", "info,rondel=debug"];
/// Kinds of spans, as OTLP numbers them.
const SERVER: i32 = 2;
const PRODUCER: i32 = 4;
const CONSUMER: i32 = 5;

/// Requests a run, as a program that is part of a trace does.
async fn ask(api: &Api, job: &str) -> String {
    let request = api.request(Method::POST, &format!("/api/v1/jobs/{job}/runs"));
    let request = request.header("traceparent", format!("00-{TRACE}-{CALLER}-01")).header("x-request-id", REQUEST);
    let run = api.answer(request).await.expect(201);
    run["id"].as_str().expect("an id").to_owned()
}

/// A script that makes a span below the span in which it runs.
fn script(file: &Path) -> Value {
    let file = file.display();
    json!({"script": format!("printf '%s %016x' \"$TRACEPARENT\" $$ > {file}")})
}

/// The contents of the script's file: the trace, the parent span, whether it is recorded, and the script's own span.
fn written(file: &Path) -> (String, String, String, String) {
    let text = std::fs::read_to_string(file).expect("the script wrote");
    let (parent, own) = text.split_once(' ').expect("two words");
    let parts: Vec<&str> = parent.split('-').collect();
    assert_eq!((parts.len(), parts[0]), (4, "00"), "{text}");
    (parts[1].to_owned(), parts[2].to_owned(), parts[3].to_owned(), own.to_owned())
}

fn only<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut named = spans.iter().filter(|span| span.name == name);
    let span = named.next().unwrap_or_else(|| panic!("no span {name}: {spans:#?}"));
    assert!(named.next().is_none(), "two spans {name}: {spans:#?}");
    span
}

#[tokio::test]
async fn one_trace_goes_from_the_call_to_the_script_and_each_line_has_the_runs_id() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let collector = Collector::start().await;
    let exports = ["--otlp-endpoint", collector.url()];
    let mut server = Server::start_with(&db, &[LOUD, &exports].concat()).await;
    let api = server.api();
    api.post("/api/v1/apps", json!({"name": "traced"})).await.expect(201);
    let mut agent = Agent::start_with(&server, "traced", &[LOUD, &exports, &["--allow-scripts"]].concat()).await;
    let folder = tempfile::tempdir().expect("make a folder");
    let file = folder.path().join("parent");
    let job = json!({"name": "trail-of-one", "app": "traced", "handler": "shell", "params": script(&file)});
    api.post("/api/v1/jobs", job).await.expect(201);

    let run = ask(&api, "trail-of-one").await;
    assert_eq!(wait_for_verdict(&api, &run).await["status"], "succeeded");

    let names = ["POST /api/v1/jobs/{name}/runs", "fire trail-of-one", "dispatch", "run trail-of-one"];
    let spans = collector.spans(TRACE, &names.map(|name| (name, 1))).await;
    assert_eq!(spans.len(), 4, "{spans:#?}");
    let [call, fire, dispatch, handled] = names.map(|name| only(&spans, name));
    assert_eq!((call.parent.as_str(), call.kind, call.service.as_str()), (CALLER, SERVER, "rondel-server"));
    assert_eq!((&fire.parent, fire.kind), (&call.span_id, PRODUCER));
    assert_eq!((&dispatch.parent, &dispatch.service), (&fire.span_id, &fire.service));
    assert_eq!(dispatch.attributes["rondel.executor.name"], agent.name());
    assert_eq!((&handled.parent, handled.kind), (&dispatch.span_id, CONSUMER));
    assert_eq!((handled.service.as_str(), handled.is_error), ("rondel-agent", false));
    for span in [fire, handled] {
        assert_eq!((&span.attributes["rondel.run.id"], span.attributes["rondel.trigger"].as_str()), (&run, "api"));
    }
    let (trace, parent, sampled, own) = written(&file);
    assert_eq!((trace.as_str(), &parent, sampled.as_str()), (TRACE, &handled.span_id, "01"));
    assert!(spans.iter().all(|span| span.span_id != own));

    let words = [run.as_str(), "trail-of-one", REQUEST, TRACE];
    assert!(server.stop().await.success() && agent.stop().await.success());
    let (of_server, of_agent) = (lines(&server.process().stderr()), lines(&agent.process().stderr()));
    let (of_server, of_agent) = (about(&of_server, &words), about(&of_agent, &words));
    for line in of_server.iter().chain(&of_agent) {
        assert_eq!(line["run_id"].as_str(), Some(run.as_str()), "{line:#}");
    }
    let asked = line_with_message(&of_server, "request");
    assert_eq!((&asked["request_id"], &asked["trace_id"]), (&json!(REQUEST), &json!(TRACE)), "{asked:#}");
    for message in ["a run goes to an executor", "a run has its verdict"] {
        let line = line_with_message(&of_server, message);
        assert_eq!((&line["attempt"], line["job_id"].is_string()), (&json!(1), true), "{line:#}");
    }
    for message in ["the run begins", "the run ended"] {
        let line = line_with_message(&of_agent, message);
        assert_eq!((&line["job"], &line["attempt"]), (&json!("trail-of-one"), &json!(1)), "{line:#}");
        assert_eq!((&line["trace_id"], &line["span_id"]), (&json!(TRACE), &json!(handled.span_id)), "{line:#}");
    }
}

#[tokio::test]
async fn all_attempts_of_a_fire_are_in_one_trace_of_its_own() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let collector = Collector::start().await;
    let exports = ["--otlp-endpoint", collector.url()];
    let server = Server::start_with(&db, &exports).await;
    let api = server.api();
    let job = json!({
        "name": "fails-twice", "app": "traced", "handler": "shell", "params": {"argv": ["false"]},
        "schedule": {"every": "2s"}, "retry": {"max": 1, "backoff": "100ms"},
    });
    api.post("/api/v1/jobs", job).await.expect(201);
    let _agent = Agent::start_with(&server, "traced", &exports).await;
    let fire = collector.wait_for_first("fire fails-twice").await;
    assert_eq!((fire.parent.as_str(), fire.attributes["rondel.trigger"].as_str()), ("", "interval"));
    let spans = collector.spans(&fire.trace_id, &[("fire fails-twice", 2), ("run fails-twice", 2)]).await;
    assert!(spans.iter().filter(|span| span.name == "run fails-twice").all(|span| span.is_error), "{spans:#?}");
}

#[tokio::test]
async fn without_a_collector_the_callers_trace_is_handed_on_and_no_other_is_made() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let api = server.api();
    let folder = tempfile::tempdir().expect("make a folder");
    let (asked, plain) = (folder.path().join("asked"), folder.path().join("plain"));
    for (name, file) in [("asked", &asked), ("plain", &plain)] {
        let job = json!({"name": name, "app": "traced", "handler": "shell", "params": script(file)});
        api.post("/api/v1/jobs", job).await.expect(201);
    }
    let _agent = Agent::start_with(&server, "traced", &["--allow-scripts"]).await;
    let first = ask(&api, "asked").await;
    let second = api.post("/api/v1/jobs/plain/runs", json!({})).await.expect(201);
    wait_for_verdict(&api, &first).await;
    wait_for_verdict(&api, second["id"].as_str().expect("an id")).await;
    let (trace, parent, sampled, _) = written(&asked);
    assert_eq!((trace.as_str(), parent.as_str(), sampled.as_str()), (TRACE, CALLER, "01"));
    let text = wait_until(Duration::from_secs(10), "the script wrote", async || std::fs::read_to_string(&plain)).await;
    assert!(text.starts_with(' '), "{text}");
}
