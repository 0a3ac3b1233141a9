//! The stream of events, as listeners receive it.

use std::time::Duration;

use axum::body::Body;
use rondel_core::outcome::Outcome;
use rondel_web::{HttpLimits, WebConfig};
use serde_json::{Value, json};

use crate::harness::Server;
use crate::visitor::Visitor;

/// Waits long enough for changes to be noticed: the server looks for them once per second.
async fn wait_for_changes() {
    tokio::time::sleep(Duration::from_millis(2_500)).await;
}

async fn listening_for(seconds: u64) -> Server {
    Server::start_with(WebConfig { follow_timeout: Duration::from_secs(seconds), ..WebConfig::default() }).await
}

/// The events of a stream: id, kind, data.
fn parse_events(text: &str) -> Vec<(String, String, Value)> {
    let field = |block: &str, name: &str| {
        let value = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.unwrap_or_default().to_owned()
    };
    let events = text.split("\n\n").filter(|block| block.contains("event: "));
    let read = |block: &str| {
        let data = serde_json::from_str(&field(block, "data")).unwrap();
        (field(block, "id"), field(block, "event"), data)
    };
    events.map(read).collect()
}

/// The events of one kind.
fn events_of_kind<'t>(events: &'t [(String, String, Value)], kind: &str) -> Vec<&'t Value> {
    events.iter().filter(|(_, event_kind, _)| event_kind == kind).map(|(_, _, data)| data).collect()
}

async fn listen(server: &Server, query: &str, last: Option<&str>) -> Vec<(String, String, Value)> {
    let mut request = server.request("GET", &format!("/api/v1/events{query}"));
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let answer = server.send(request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    parse_events(&answer.text())
}

#[tokio::test]
async fn changes_of_runs_and_jobs_are_sent() {
    let server = listening_for(8).await;
    server.job("before").await;
    let before = server.trigger("before").await;
    wait_for_changes().await;
    let happens = async {
        wait_for_changes().await;
        server.job("a").await;
        let run = server.trigger("a").await;
        wait_for_changes().await;
        server.finish(run, Outcome::Succeeded).await;
        server.finish(before, Outcome::Succeeded).await;
        server.bare("DELETE", "/api/v1/jobs/a").await.expect(204);
        run
    };
    let (all, only, run) = tokio::join!(listen(&server, "", None), listen(&server, "?kind=job&job=a", None), happens);
    assert_eq!(all[0].1, "ready", "{all:#?}");
    let of_run: Vec<_> = events_of_kind(&all, "run").into_iter().filter(|data| data["job"] == "a").collect();
    let statuses: Vec<_> = of_run.iter().map(|data| &data["status"]).collect();
    assert_eq!(statuses, ["pending", "succeeded"], "{all:#?}");
    assert_eq!((of_run[0]["id"].as_str(), of_run[0]["app"].as_str()), (Some(run.to_string().as_str()), Some("app")));
    let of_before: Vec<_> = events_of_kind(&all, "run").into_iter().filter(|data| data["job"] == "before").collect();
    assert_eq!(of_before.len(), 1, "it was open before anybody listened: {all:#?}");
    let changes = |events: &[(String, String, Value)]| -> Vec<Value> {
        events_of_kind(events, "job").iter().map(|data| json!([data["name"], data["change"]])).collect()
    };
    assert_eq!(changes(&all), [json!(["a", "created"]), json!(["a", "deleted"])], "{all:#?}");
    assert_eq!(changes(&only), changes(&all));
    assert!(only.iter().all(|(_, kind, _)| matches!(kind.as_str(), "ready" | "job" | "end")), "{only:#?}");
    assert_eq!(all.last().unwrap().2, json!({"reason": "timeout"}));
}

#[tokio::test]
async fn a_returning_client_continues_after_its_last_event() {
    let server = listening_for(6).await;
    let (first, ()) = tokio::join!(listen(&server, "", None), async {
        wait_for_changes().await;
        server.job("a").await;
    });
    let created = first.iter().find(|(_, kind, _)| kind == "job").expect("it was sent");
    // No client is listening while this job is created.
    server.job("b").await;
    let end = &first.last().unwrap().0;
    // The third listener has a position that is unknown to this server.
    let (second, again, elsewhere) = tokio::join!(
        listen(&server, "?kind=job", Some(end)),
        listen(&server, "?kind=job", Some(&first[0].0)),
        listen(&server, "", Some("abc-5-1500000000000"))
    );
    assert_eq!(
        events_of_kind(&second, "job").iter().map(|data| &data["name"]).collect::<Vec<_>>(),
        ["b"],
        "{second:#?}"
    );
    assert!(events_of_kind(&second, "gap").is_empty());
    assert_eq!(events_of_kind(&again, "job")[0], &created.2, "from the beginning: {again:#?}");
    assert_eq!(elsewhere[1].1, "gap", "{elsewhere:#?}");
    let invalid_request =
        server.request("GET", "/api/v1/events").header("last-event-id", "x").body(Body::empty()).unwrap();
    assert_eq!(server.send(invalid_request).await.expect(400)["code"], "invalid_header");
    for query in ["kind=gap", "job=A+B", "app=", "limit=3"] {
        server.get(&format!("/api/v1/events?{query}")).await.expect(422);
    }
}

#[tokio::test]
async fn a_stream_ends_with_its_token_and_with_the_server() {
    let limits = HttpLimits { live_streams: 1, ..HttpLimits::default() };
    let config = WebConfig { limits, ..WebConfig::default() };
    let shutdown = config.shutdown.clone();
    let server = Server::start_with(config).await;
    let token = json!({"kind": "api", "name": "ear", "grants": [{"role": "viewer"}]});
    let made = server.with_body("POST", "/api/v1/tokens", token).await.expect(201);
    let bearer = format!("Bearer {}", made["token"].as_str().unwrap());
    let request = http::Request::get("/api/v1/events").header("authorization", bearer).body(Body::empty()).unwrap();
    let (heard, ()) = tokio::join!(server.send(request), async {
        wait_for_changes().await;
        let full = server.get("/api/v1/events").await;
        assert_eq!((full.status.as_u16(), &full.headers["retry-after"]), (503, &"10".parse().unwrap()));
        server.bare("DELETE", &format!("/api/v1/tokens/{}", made["id"].as_str().unwrap())).await.expect(204);
    });
    assert_eq!(parse_events(&heard.text()).last().unwrap().2, json!({"reason": "token_over"}));
    let (heard, ()) = tokio::join!(listen(&server, "", None), async {
        wait_for_changes().await;
        shutdown.cancel();
    });
    assert_eq!(heard.last().unwrap().2, json!({"reason": "stopping"}));
}

/// The token of the sign-in link remains valid, but the stream must end with the session.
#[tokio::test]
async fn a_stream_ends_with_its_sign_in() {
    let server = listening_for(20).await;
    let visitor = Visitor::signed_in(&server).await;
    let mut request = visitor.request("GET", "/n/default/live").body(Body::empty()).unwrap();
    request.headers_mut().insert("accept", "text/event-stream".parse().unwrap());
    let (heard, ()) = tokio::join!(server.send(request), async {
        wait_for_changes().await;
        assert_eq!(visitor.post("/sign-out", "").await.status, 303);
    });
    let text = heard.text();
    let end = parse_events(&text).pop().map(|(.., data)| data);
    assert_eq!(end, Some(json!({"reason": "token_over"})), "{} {text}", heard.status);
}
