//! Logs through the API.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use futures_util::StreamExt as _;
use rondel_core::outcome::Outcome;
use rondel_core::{RunId, Timestamp};
use rondel_store::logs::{LogChunk, LogLine, NUMBERED_BY_LINE};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::harness::{Answer, Server};

async fn write(server: &Server, run: RunId, sequence: i64, lines: &[&str]) {
    write_at(server, run, (sequence, server.engine.now()), lines).await;
}

async fn write_at(server: &Server, run: RunId, (sequence, at): (i64, Timestamp), lines: &[&str]) {
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

/// The chunks of an executor that speaks XXL-JOB's protocol are numbered by their first lines, so a gap in the numbers does not mean a
/// missing chunk.
#[tokio::test]
async fn chunks_that_are_numbered_by_lines_are_not_waited_for() {
    let (server, run, path) = started().await;
    let numbers = async |query: &str| {
        let page = server.get(&format!("{path}?{query}")).await.expect(200);
        texts(&page).into_iter().map(|(number, _)| number).collect::<Vec<_>>()
    };
    write(&server, run, NUMBERED_BY_LINE + 1, &["one", "two", "three"]).await;
    write(&server, run, NUMBERED_BY_LINE + 4, &["four", "five"]).await;
    assert_eq!(numbers("limit=100").await, [1, 2, 3, 4, 5]);
    assert_eq!(numbers("tail=2").await, [4, 5]);
    let found = server.get(&format!("{path}/search?contains=five")).await.expect(200);
    assert_eq!(found["hits"], json!([5]), "{found:#}");
    write(&server, run, NUMBERED_BY_LINE + 7, &["seven"]).await;
    assert_eq!(numbers("limit=100").await.len(), 5, "line 6 may still come in");
    write(&server, run, NUMBERED_BY_LINE + 6, &["six"]).await;
    assert_eq!(numbers("limit=100").await.len(), 7);
}

#[tokio::test]
async fn pages_go_on_within_a_chunk_behind_a_gap() {
    let (server, run, path) = started().await;
    let long_ago = server.engine.now() - Duration::from_secs(60);
    write_at(&server, run, (0, long_ago), &["one"]).await;
    write_at(&server, run, (2, long_ago), &["three", "four", "five"]).await;
    let (mut seen, mut after) = (Vec::new(), String::new());
    for _ in 0..4 {
        let page = server.get(&format!("{path}?limit=2{after}")).await.expect(200);
        seen.extend(texts(&page).into_iter().map(|(_, text)| text));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        after = format!("&after={cursor}");
    }
    assert_eq!(seen, ["one", "three", "four", "five"]);
}

/// The chunks of an executor of XXL-JOB: the lines 3 to 49 were lost, and the message of the end has a far higher number.
#[tokio::test]
async fn pages_go_on_within_a_chunk_that_is_numbered_by_lines_behind_a_gap() {
    let (server, run, path) = started().await;
    let long_ago = server.engine.now() - Duration::from_secs(60);
    write_at(&server, run, (NUMBERED_BY_LINE + 1, long_ago), &["one", "two"]).await;
    write_at(&server, run, (NUMBERED_BY_LINE + 50, long_ago), &["fifty", "fifty-one", "fifty-two"]).await;
    write_at(&server, run, (1 << 42, long_ago), &["failed", "at a", "at b", "at c"]).await;
    let all = ["one", "two", "fifty", "fifty-one", "fifty-two", "failed", "at a", "at b", "at c"];
    let expected: Vec<_> = (1..).zip(all.map(str::to_owned)).collect();
    let (mut seen, mut after) = (Vec::new(), String::new());
    for _ in 0..6 {
        let page = server.get(&format!("{path}?limit=2{after}")).await.expect(200);
        seen.extend(texts(&page));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        after = format!("&after={cursor}");
    }
    assert_eq!(seen, expected);
    let page = server.get(&format!("{path}?tail=2")).await.expect(200);
    assert_eq!(texts(&page), expected[7..]);
    let page = server.get(&format!("{path}?from_line=4&limit=3")).await.expect(200);
    assert_eq!(texts(&page), expected[3..6]);
}

#[tokio::test]
async fn a_log_is_followed_to_its_end() {
    let (server, run, path) = started().await;
    write(&server, run, 0, &["one"]).await;
    let follow = format!("{path}?follow=true");
    let late = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        write(&server, run, 1, &["two"]).await;
        server.finish(run, Outcome::Succeeded).await;
    };
    let (answer, ()) = tokio::join!(server.get(&follow), late);
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    assert_eq!(answer.headers["x-accel-buffering"], "no", "a proxy passes each line on as it comes");
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
        tokio::time::sleep(Duration::from_millis(200)).await;
        shutdown.cancel();
    };
    let follow = format!("/api/v1/runs/{run}/logs?follow=true");
    let (answer, ()) = tokio::join!(server.get(&follow), stop);
    let end: Value = serde_json::from_str(answer.text().trim()).unwrap();
    assert_eq!(end["complete"], false);
    assert!(end["next_cursor"].is_string(), "{end}");
}

/// While a server stops, a client that opens the stream again gets the new lines, and a download is whole.
#[tokio::test]
async fn a_server_that_stops_still_sends_lines() {
    let config = rondel_web::WebConfig::default();
    let shutdown = config.shutdown.clone();
    let server = Server::start_with(config).await;
    server.job("a").await;
    let run = server.trigger("a").await;
    shutdown.cancel();
    write(&server, run, 0, &["one", "two"]).await;
    let path = format!("/api/v1/runs/{run}/logs");
    let text = server.get(&format!("{path}?follow=true")).await.text();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().filter_map(|line| line["line"].as_str()).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(lines[2]["complete"], false);
    assert_eq!(accept(&server, &path, "text/plain").await.text(), "one\ntwo\n");
}

/// A client must not mistake the beginning of a log for the whole log.
#[tokio::test]
async fn plain_text_that_is_cut_off_breaks_the_connection() {
    // The stream must end after its first read.
    let config = rondel_web::WebConfig { follow_timeout: Duration::ZERO, ..rondel_web::WebConfig::default() };
    let server = Server::start_with(config).await;
    server.job("a").await;
    let run = server.trigger("a").await;
    let path = format!("/api/v1/runs/{run}/logs");
    assert_eq!(accept(&server, &path, "text/plain").await.text(), "", "no line is missing");
    write(&server, run, 0, &["one", "two"]).await;
    let request = server.request("GET", &path).header("accept", "text/plain").body(Body::empty()).unwrap();
    let response = server.app.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(to_bytes(response.into_body(), usize::MAX).await.is_err());
}

#[tokio::test]
async fn positions_are_checked() {
    let (server, run, path) = started().await;
    for query in ["attempt=0", "attempt=2", "attempt=x", "after=x", "limit=5001", "follow=1", "head=1"] {
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
    // The log has more chunks than one call searches. One line near the end matches.
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
        let refusal = server.get(&format!("{path}?{query}")).await.expect(422);
        assert_eq!(refusal["errors"][0]["parameter"], parameter);
    }
}

/// Clients and proxies close a connection that is silent for a minute.
#[tokio::test]
async fn a_stream_that_searches_a_large_log_is_kept_alive() {
    let (server, run, path) = started().await;
    // The log has more chunks than one read of the stream searches.
    for sequence in 0..300 {
        write(&server, run, sequence, &[if sequence == 290 { "the Needle" } else { "nothing" }]).await;
    }
    let follow = server.request("GET", &format!("{path}?follow=true&contains=needle"));
    let response = server.app.clone().oneshot(follow.body(Body::empty()).unwrap()).await.unwrap();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(20)).await;
    let mut pieces = response.into_body().into_data_stream();
    assert_eq!(&pieces.next().await.unwrap().unwrap()[..], b"\n", "nothing was found yet");
    let piece = String::from_utf8(pieces.next().await.unwrap().unwrap().to_vec()).unwrap();
    assert!(piece.contains("the Needle"), "{piece}");
}

#[tokio::test]
async fn a_filtered_page_before_a_line_ends_there() {
    let (server, run, path) = started().await;
    for sequence in 0..10 {
        write(&server, run, sequence, &["nothing", "a needle"]).await;
    }
    for (query, expected) in [
        ("before=11&limit=4", vec![8, 10]),
        ("before=12&limit=4", vec![8, 10]),
        ("before=2&limit=4", vec![]),
        ("before=99&limit=4", vec![18, 20]),
    ] {
        let page = server.get(&format!("{path}?contains=needle&{query}")).await.expect(200);
        assert_eq!(numbers(&page), expected, "{query}");
    }
    let page = server.get(&format!("{path}?contains=needle&before=12&limit=4")).await.expect(200);
    assert_eq!(page["end_line"], 11);
    let next = page["next_cursor"].as_str().unwrap();
    let page = server.get(&format!("{path}?contains=needle&after={next}&limit=1")).await.expect(200);
    assert_eq!((numbers(&page), &page["end_line"]), (vec![12], &json!(12)));
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
    // The console continues with the next part; a file is streamed.
    let visitor = crate::visitor::Visitor::signed_in(&server).await;
    let part = visitor.get(&format!("/runs/{run}/log")).await;
    assert!(part.bytes.len() < 2 * 1024 * 1024 && part.text().contains("data-next"), "{} bytes", part.bytes.len());
    server.finish(run, Outcome::Succeeded).await;
    let file = visitor.get(&format!("/runs/{run}/log.txt?attempt=1")).await;
    assert_eq!(file.bytes.len(), 100 * (LINE_LEN + 1));
}

fn numbers(page: &Value) -> Vec<u64> {
    page["items"].as_array().unwrap().iter().map(|item| item["seq"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn a_page_begins_at_a_line_without_the_lines_before_it() {
    let (server, run, path) = started().await;
    for sequence in 0..40 {
        let lines: Vec<String> = (0..25).map(|line| format!("line {}", sequence * 25 + line + 1)).collect();
        write(&server, run, sequence, &lines.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    for (query, expected) in [
        ("tail=3", 998..=1000),
        ("tail=5000&limit=2", 1..=2),
        ("from_line=30&limit=4", 30..=33),
        ("before=30&limit=4", 26..=29),
        ("before=3&limit=100", 1..=2),
        ("around=500&limit=10", 495..=504),
        ("around=1&limit=10", 1..=10),
        ("around=9999&limit=10", 991..=1000),
    ] {
        let page = server.get(&format!("{path}?{query}")).await.expect(200);
        assert_eq!(numbers(&page), expected.collect::<Vec<_>>(), "{query}");
        assert_eq!(page["line_count"], 1000, "{query}");
        let line = page["items"][0]["line"].as_str().unwrap();
        assert_eq!(line, format!("line {}", page["items"][0]["seq"]), "{query}");
    }
    let page = server.get(&format!("{path}?from_line=26&limit=3")).await.expect(200);
    let next = page["next_cursor"].as_str().unwrap();
    let page = server.get(&format!("{path}?after={next}&limit=2")).await.expect(200);
    assert_eq!((numbers(&page), &page["line_count"]), (vec![29, 30], &Value::Null));
    assert_eq!(numbers(&server.get(&format!("{path}?from_line=2000")).await.expect(200)), [0; 0]);
    let text = accept(&server, &format!("{path}?tail=2"), "text/plain").await;
    assert_eq!(text.text(), "line 999\nline 1000\n");
    write(&server, run, 40, &["new"]).await;
    let page = server.get(&format!("{path}?tail=1")).await.expect(200);
    assert_eq!((numbers(&page), &page["line_count"]), (vec![1001], &json!(1001)));
    for (query, parameter) in [
        (format!("tail=1&after={next}"), "after"),
        ("before=5&follow=true".to_owned(), "before"),
        ("tail=3&before=5".to_owned(), "before"),
        ("after=x".to_owned(), "after"),
        ("tail=0".to_owned(), "tail"),
        ("from_line=x".to_owned(), "from_line"),
    ] {
        let refusal = server.get(&format!("{path}?{query}")).await.expect(422);
        assert_eq!(refusal["errors"][0]["parameter"], parameter, "{query}");
    }
}

/// A run that writes a line now and then for weeks has a chunk for each line.
#[tokio::test]
async fn each_line_of_a_log_of_very_many_chunks_is_found() {
    let (server, run, path) = started().await;
    let at = server.engine.now() - Duration::from_secs(60);
    let chunk = |sequence: i64| {
        let line = LogLine { at, level: "info".to_owned(), text: format!("line {}", sequence + 1) };
        LogChunk { run, attempt: 1, sequence, lines: vec![line] }
    };
    let chunks: Vec<LogChunk> = (0..120_005).map(chunk).collect();
    server.engine.store().append_logs(&chunks).await.unwrap();
    for (query, expected) in [
        ("tail=3", 120_003..=120_005),
        ("before=120001&limit=2", 119_999..=120_000),
        ("from_line=110000&limit=3", 110_000..=110_002),
        ("around=10000&limit=4", 9_998..=10_001),
        ("from_line=1&limit=2", 1..=2),
    ] {
        let page = server.get(&format!("{path}?{query}")).await.expect(200);
        assert_eq!(numbers(&page), expected.collect::<Vec<_>>(), "{query}");
        assert_eq!(page["line_count"], 120_005, "{query}");
        let line = page["items"][0]["line"].as_str().unwrap();
        assert_eq!(line, format!("line {}", page["items"][0]["seq"]), "{query}");
    }
    assert_eq!(numbers(&server.get(&format!("{path}?from_line=120006")).await.expect(200)), [0; 0]);
    let text = accept(&server, &format!("{path}?tail=2"), "text/plain").await;
    assert_eq!(text.text(), "line 120004\nline 120005\n");
}

/// The size of a page is limited, so that it can have fewer lines than it may.
#[tokio::test]
async fn a_page_of_long_lines_has_the_line_that_it_was_requested_for() {
    let (server, run, path) = started().await;
    let long_line = "x".repeat(64 * 1024);
    for sequence in 0..20 {
        write(&server, run, sequence, &[long_line.as_str(); 5]).await;
    }
    for (query, expected) in [("before=90&limit=50", 78..=89), ("before=3&limit=50", 1..=2)] {
        let page = server.get(&format!("{path}?{query}")).await.expect(200);
        assert_eq!(numbers(&page), expected.collect::<Vec<_>>(), "{query}");
    }
    let around = numbers(&server.get(&format!("{path}?around=70&limit=60")).await.expect(200));
    assert!(around.len() > 5 && around.contains(&70), "{around:?}");
    let tail = numbers(&server.get(&format!("{path}?tail=60")).await.expect(200));
    assert_eq!(tail.first(), Some(&41), "the following pages have the other lines");
    // The console shows the end of the log, and the lines right before those that it has.
    let visitor = crate::visitor::Visitor::signed_in(&server).await;
    let html = visitor.get(&format!("/runs/{run}")).await.text();
    assert!(html.contains("id=\"L100\"") && !html.contains("id=\"L80\""), "{} bytes", html.len());
    let part = visitor.get(&format!("/runs/{run}/log?attempt=1&before=85&limit=400")).await.text();
    assert!(part.contains("id=\"L84\"") && part.contains("data-last=\"84\""), "{} bytes", part.len());
}

/// A browser that reconnects repeats the original URL, including the position in it.
#[tokio::test]
async fn a_stream_goes_on_behind_the_last_event_wherever_it_began() {
    let (server, run, path) = started().await;
    write(&server, run, 0, &["one", "two", "three"]).await;
    let first = server.get(&format!("{path}?limit=1")).await.expect(200)["next_cursor"].as_str().unwrap().to_owned();
    write(&server, run, 1, &["four"]).await;
    let page = server.get(&format!("{path}?after={first}&limit=2")).await.expect(200);
    let last = page["next_cursor"].as_str().unwrap();
    for query in ["tail=3".to_owned(), "from_line=1".to_owned(), format!("after={first}")] {
        let request = server.request("GET", &format!("{path}?{query}")).header("last-event-id", last);
        let page = server.send(request.body(Body::empty()).unwrap()).await.expect(200);
        assert_eq!(texts(&page), [(4, "four".to_owned())], "{query}");
    }
}

#[tokio::test]
async fn lines_behind_a_missing_chunk_have_no_number_yet() {
    let (server, run, path) = started().await;
    write(&server, run, 0, &["one"]).await;
    write(&server, run, 2, &["three"]).await;
    let page = server.get(&format!("{path}?tail=5")).await.expect(200);
    assert_eq!((numbers(&page), &page["line_count"]), (vec![1], &json!(1)));
    write(&server, run, 1, &["two"]).await;
    let page = server.get(&format!("{path}?tail=2")).await.expect(200);
    assert_eq!(texts(&page), [(2, "two".to_owned()), (3, "three".to_owned())]);
}

#[tokio::test]
async fn a_whole_log_is_counted_and_searched() {
    let (server, run, path) = started().await;
    let at = server.engine.now();
    let line = |level: &str, text: &str| LogLine { at, level: level.to_owned(), text: text.to_owned() };
    let lines = vec![
        line("stdout", "starting"),
        line("stdout", "2026-03-08 ERROR disk full"),
        line("stderr", "Warning: slow"),
        line("debug", "error in a word"),
        line("warn", "… 7 lines were dropped here: the run logged faster than they could be sent"),
        line("error", "Disk broke"),
    ];
    server.engine.store().append_logs(&[LogChunk { run, attempt: 1, sequence: 0, lines }]).await.unwrap();
    let found = server.get(&format!("{path}/search")).await.expect(200);
    assert_eq!(found["severities"], json!({"error": 2, "warn": 2, "info": 1, "debug": 1}));
    assert_eq!(
        (&found["line_count"], &found["hits"], &found["has_gaps"], &found["complete"]),
        (&json!(6), &json!([]), &json!(true), &json!(false))
    );
    let found = server.get(&format!("{path}/search?contains=DISK")).await.expect(200);
    assert_eq!((&found["hits"], &found["hit_count"]), (&json!([2, 6]), &json!(2)));
    let found = server.get(&format!("{path}/search?severity=error,warn&contains=full")).await.expect(200);
    assert_eq!(found["hits"], json!([2]));
    let page = server.get(&format!("{path}?severity=error")).await.expect(200);
    assert_eq!(numbers(&page), [2, 6]);
    assert_eq!(page["items"][0]["severity"], "error");
    server.get(&format!("{path}/search?severity=loud")).await.expect(422);
    server.get(&format!("{path}/search?attempt=2")).await.expect(422);
}
