//! Logs through the API.

use axum::body::Body;
use rondel_core::RunId;
use rondel_core::outcome::Outcome;
use rondel_store::logs::{LogChunk, LogLine};
use serde_json::{Value, json};

use crate::harness::{Answer, Server};

async fn write(server: &Server, run: RunId, sequence: i64, lines: &[&str]) {
    let at = server.engine.now();
    let line = |text: &&str| LogLine { at, level: "info".to_owned(), text: (*text).to_owned() };
    let chunk = LogChunk { run, attempt: 1, sequence, lines: lines.iter().map(line).collect() };
    server.engine.store().append_logs(&[chunk]).await.unwrap();
}

async fn started() -> (Server, RunId, String) {
    let server = Server::start().await;
    server.job("a").await;
    let run = server.trigger("a").await;
    (server, run, format!("/api/v1/runs/{run}/logs"))
}

async fn accept(server: &Server, path: &str, accept: &str) -> Answer {
    server.send(server.request("GET", path).header("accept", accept).body(Body::empty()).unwrap()).await
}

fn texts(page: &Value) -> Vec<(u64, String)> {
    let items = page["items"].as_array().unwrap().iter();
    items.map(|item| (item["seq"].as_u64().unwrap(), item["line"].as_str().unwrap().to_owned())).collect()
}

#[tokio::test]
async fn lines_are_paged_across_chunks() {
    let (server, run, path) = started().await;
    write(&server, run, 0, &["one", "two", "three"]).await;
    write(&server, run, 1, &["<b>four</b>", "five"]).await;
    let mut seen = Vec::new();
    let mut cursor = None::<String>;
    for _ in 0..3 {
        let after = cursor.map(|cursor| format!("&after={cursor}")).unwrap_or_default();
        let page = server.get(&format!("{path}?limit=2{after}")).await.expect(200);
        seen.extend(texts(&page));
        assert_eq!(page["complete"], false);
        cursor = page["next_cursor"].as_str().map(str::to_owned);
    }
    let expected: Vec<_> = (1..).zip(["one", "two", "three", "<b>four</b>", "five"].map(str::to_owned)).collect();
    assert_eq!(seen, expected);
    write(&server, run, 2, &["six"]).await;
    let page = server.get(&format!("{path}?after={}", cursor.unwrap())).await.expect(200);
    assert_eq!(texts(&page), [(6, "six".to_owned())]);
}

#[tokio::test]
async fn a_missing_chunk_is_waited_for() {
    let (server, run, path) = started().await;
    write(&server, run, 0, &["one"]).await;
    write(&server, run, 2, &["three"]).await;
    assert_eq!(texts(&server.get(&path).await.expect(200)), [(1, "one".to_owned())]);
    write(&server, run, 1, &["two"]).await;
    assert_eq!(texts(&server.get(&path).await.expect(200)).len(), 3);
}

#[tokio::test]
async fn a_log_is_followed_to_its_end() {
    let (server, run, path) = started().await;
    write(&server, run, 0, &["one"]).await;
    let follow = format!("{path}?follow=true");
    let late = async {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        write(&server, run, 1, &["two"]).await;
        server.finish(run, Outcome::Succeeded).await;
    };
    let (answer, ()) = tokio::join!(server.get(&follow), late);
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    let text = answer.text();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().filter_map(|line| line["line"].as_str()).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(lines[2], json!({"complete": true, "status": "succeeded", "next_cursor": null}));

    let page = server.get(&path).await.expect(200);
    assert_eq!((&page["complete"], &page["next_cursor"]), (&json!(true), &Value::Null));
    assert_eq!(accept(&server, &path, "text/plain").await.text(), "one\ntwo\n");
    let events = accept(&server, &follow, "text/event-stream").await.text();
    assert_eq!((events.matches("event: line").count(), events.matches("event: end").count()), (2, 1), "{events}");
}

#[tokio::test]
async fn following_ends_with_the_server() {
    let config = rondel_web::WebConfig::default();
    let shutdown = config.shutdown.clone();
    let server = Server::start_with(config).await;
    server.job("a").await;
    let run = server.trigger("a").await;
    let stop = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        shutdown.cancel();
    };
    let follow = format!("/api/v1/runs/{run}/logs?follow=true");
    let (answer, ()) = tokio::join!(server.get(&follow), stop);
    let end: Value = serde_json::from_str(answer.text().trim()).unwrap();
    assert_eq!(end["complete"], false);
    assert!(end["next_cursor"].is_string(), "{end}");
}

#[tokio::test]
async fn positions_are_checked() {
    let (server, run, path) = started().await;
    for query in ["attempt=0", "attempt=2", "attempt=x", "after=x", "limit=5001", "follow=1", "tail=1"] {
        server.get(&format!("{path}?{query}")).await.expect(422);
    }
    server.job("b").await;
    let other = server.trigger("b").await;
    let cursor = server.get(&path).await.expect(200)["next_cursor"].as_str().unwrap().to_owned();
    server.get(&format!("/api/v1/runs/{other}/logs?after={cursor}")).await.expect(422);
    server.get(&format!("/api/v1/runs/{run}/logs?after={cursor}")).await.expect(200);
}

#[tokio::test]
async fn the_server_searches() {
    let (server, run, path) = started().await;
    // More chunks than one call looks through, with one line that is wanted near the end.
    for sequence in 0..300 {
        write(&server, run, sequence, &["nothing", if sequence == 290 { "the Needle" } else { "to see" }]).await;
    }
    let mut found = Vec::new();
    let mut cursor = String::new();
    for _ in 0..3 {
        let page = server.get(&format!("{path}?contains=needle{cursor}")).await.expect(200);
        found.extend(texts(&page));
        cursor = format!("&after={}", page["next_cursor"].as_str().unwrap());
    }
    assert_eq!(found, [(582, "the Needle".to_owned())]);
    assert!(texts(&server.get(&format!("{path}?level=error,stderr")).await.expect(200)).is_empty());
    assert_eq!(texts(&server.get(&format!("{path}?level=info&limit=2")).await.expect(200)).len(), 2);
    let text = accept(&server, &format!("{path}?contains=NEEDLE"), "text/plain").await;
    assert_eq!(text.text(), "the Needle\n");
    for (query, parameter) in [("level=loud", "level"), ("contains=", "contains")] {
        let refused = server.get(&format!("{path}?{query}")).await.expect(422);
        assert_eq!(refused["errors"][0]["parameter"], parameter);
    }
}

#[tokio::test]
async fn a_page_of_long_lines_has_bounded_bytes() {
    const LINE_LEN: usize = 64 * 1024;
    let (server, run, path) = started().await;
    let long: Vec<String> = (0..100).map(|number| format!("{number:03}{}", "x".repeat(LINE_LEN - 3))).collect();
    for (sequence, lines) in (0..).zip(long.chunks(7)) {
        write(&server, run, sequence, &lines.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    let (mut seen, mut page_count, mut after) = (Vec::new(), 0, String::new());
    while seen.len() < long.len() {
        let answer = server.get(&format!("{path}?limit=5000{after}")).await;
        assert!(answer.bytes.len() < 2 * 1024 * 1024, "{} bytes", answer.bytes.len());
        let page = answer.expect(200);
        seen.extend(texts(&page));
        page_count += 1;
        after = format!("&after={}", page["next_cursor"].as_str().unwrap());
        assert!(page_count < 20, "each page goes on");
    }
    let expected: Vec<_> = (1..).zip(long).collect();
    assert!(seen == expected, "each line once, in order");
    assert_eq!(page_count, 7);
    // The console goes on by itself; a file is sent piece by piece.
    let visitor = crate::visitor::Visitor::signed_in(&server).await;
    let part = visitor.get(&format!("/runs/{run}/log")).await;
    assert!(part.bytes.len() < 2 * 1024 * 1024 && part.text().contains("hx-get"), "{} bytes", part.bytes.len());
    server.finish(run, Outcome::Succeeded).await;
    let file = visitor.get(&format!("/runs/{run}/log.txt?attempt=1")).await;
    assert_eq!(file.bytes.len(), 100 * (LINE_LEN + 1));
}
