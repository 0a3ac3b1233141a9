//! The log on the page of its run: parts of it, and the reason why it is empty.

use rondel_core::outcome::Outcome;
use rondel_core::{RunId, Timestamp};
use rondel_store::logs::{LogChunk, LogLine};
use serde_json::{Value, json};

use crate::harness::Server;
use crate::visitor::Visitor;

/// Writes a log with this many lines, in chunks of 500. Every 5,000th line is an error.
async fn write_long_log(server: &Server, run: RunId, count: i64) {
    let line = |number: i64| LogLine {
        at: Timestamp::from_secs(1_800_000_000 + number),
        level: "stdout".to_owned(),
        text: if number % 5_000 == 0 { format!("ERROR at {number}") } else { format!("line {number}") },
    };
    for sequence in 0..count / 500 {
        let lines = (1..=500).map(|number| line(sequence * 500 + number)).collect();
        server.engine.store().append_logs(&[LogChunk { run, attempt: 1, sequence, lines }]).await.unwrap();
    }
}

fn shown_line_numbers(html: &str) -> Vec<u64> {
    let ids = html.split(" id=\"L").skip(1).filter_map(|part| part.split('"').next());
    ids.map(|id| id.parse().unwrap()).collect()
}

#[tokio::test]
async fn a_long_log_opens_at_its_end_and_its_page_stays_small() {
    let server = Server::start().await;
    server.job("a").await;
    let run = server.trigger("a").await;
    write_long_log(&server, run, 60_000).await;
    server.finish(run, Outcome::Succeeded).await;
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get(&format!("/runs/{run}")).await.text();
    assert_eq!(shown_line_numbers(&page), (59_801..=60_000).collect::<Vec<_>>());
    assert!(page.len() < 80_000, "{} bytes", page.len());
    assert!(page.contains("data-first=\"59801\" data-last=\"60000\" data-total=\"60000\""), "{page}");
    // Without the script, links lead to earlier lines.
    assert!(page.contains(&format!("href=\"/runs/{run}?attempt=1&amp;line=59601#L59601\"")), "{page}");
    let page = visitor.get(&format!("/runs/{run}?line=30000")).await.text();
    let around = shown_line_numbers(&page);
    assert!(around.len() == 400 && around.contains(&30_000), "{around:?}");

    let part = visitor.get(&format!("/runs/{run}/log?attempt=1&before=59801&limit=500")).await.text();
    assert_eq!(shown_line_numbers(&part), (59_301..=59_800).collect::<Vec<_>>());
    assert!(part.contains("data-total=\"60000\"") && part.len() < 80_000, "{} bytes", part.len());
    let part = visitor.get(&format!("/runs/{run}/log?attempt=1&around=30000&limit=10")).await.text();
    assert_eq!(shown_line_numbers(&part), (29_995..=30_004).collect::<Vec<_>>());
    assert!(part.contains("class=\"l error\" id=\"L30000\""), "{part}");
    let found = visitor.get(&format!("/runs/{run}/log/search?attempt=1&severity=error")).await.json();
    assert_eq!((&found["hits"][0], &found["severities"]["error"]), (&Value::from(5_000), &Value::from(12)));
    assert_eq!(visitor.get(&format!("/runs/{run}/log?before=0")).await.status, 422);
    assert_eq!(visitor.get(&format!("/runs/{run}/log?limit=501")).await.status, 422);
}

#[tokio::test]
async fn a_growing_log_sends_only_new_lines() {
    let server = Server::start().await;
    server.job("a").await;
    let run = server.trigger("a").await;
    write_long_log(&server, run, 500).await;
    let visitor = Visitor::signed_in(&server).await;
    let next =
        |html: &str| html.split_once("data-next=\"").and_then(|(_, rest)| rest.split('"').next()).map(str::to_owned);
    let page = visitor.get(&format!("/runs/{run}")).await.text();
    let cursor = next(&page).expect("more may come");
    let part = visitor.get(&format!("/runs/{run}/log?attempt=1&after={cursor}")).await.text();
    assert_eq!(shown_line_numbers(&part), [0; 0]);
    let lines = (0..3).map(|_| LogLine { at: server.engine.now(), level: "info".to_owned(), text: "new".to_owned() });
    let chunk = LogChunk { run, attempt: 1, sequence: 1, lines: lines.collect() };
    server.engine.store().append_logs(&[chunk]).await.unwrap();
    let part = visitor.get(&format!("/runs/{run}/log?attempt=1&after={}", next(&part).unwrap())).await.text();
    assert_eq!(shown_line_numbers(&part), [501, 502, 503]);
    assert!(next(&part).is_some());
}

#[tokio::test]
async fn an_empty_log_has_a_reason() {
    let server = Server::start().await;
    server.job("a").await;
    let mut visitor = Visitor::signed_in(&server).await;
    let waiting = server.trigger("a").await;
    let over = server.trigger("a").await;
    server.finish(over, Outcome::Succeeded).await;
    let removed = server.trigger("a").await;
    let mark = LogLine {
        at: server.engine.now(),
        level: "warn".to_owned(),
        text: "… 12 lines were removed by the log retention".to_owned(),
    };
    let chunk = LogChunk { run: removed, attempt: 1, sequence: 0, lines: vec![mark] };
    server.engine.store().append_logs(&[chunk]).await.unwrap();
    for (run, en, zh) in [
        (waiting, "The run has not started.", "运行还没有开始"),
        (over, "This attempt wrote nothing.", "这次尝试没有输出。"),
        (removed, "… 12 lines were removed by the log retention", "… 有 12 行日志已过保留期，被清除"),
    ] {
        for (language, text) in [("en", en), ("zh", zh)] {
            visitor.language = language;
            let page = visitor.get(&format!("/runs/{run}")).await.text();
            assert!(page.contains(text), "{text}: {page}");
        }
    }
}

#[tokio::test]
async fn lines_that_the_script_loads_have_the_clock_of_the_page() {
    let server = Server::start().await;
    let schedule = json!({"cron": "0 0 1 1 1 ?", "time_zone": "Asia/Shanghai"});
    let job = json!({"name": "a", "app": "app", "handler": "handler", "schedule": schedule});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let run = server.trigger("a").await;
    write_long_log(&server, run, 500).await;
    let mut visitor = Visitor::signed_in(&server).await;
    visitor.cookie.push_str("; rondel_times=job; rondel_zone=Europe/Berlin");
    let time = |html: &str| {
        let (line, _) = html.split_once(" id=\"L500\"")?.1.split_once("</time>")?;
        Some(line.rsplit_once('>')?.1.to_owned())
    };
    let page = visitor.get(&format!("/runs/{run}")).await.text();
    assert_eq!(time(&page).as_deref(), Some("16:08:20.000"), "{page}");
    let part = visitor.get(&format!("/runs/{run}/log?attempt=1&tail=10&limit=10")).await.text();
    assert_eq!(time(&part), time(&page), "{part}");
}

/// One request searches 256 parts of a log. A browser without the script gets a link to the rest.
#[tokio::test]
async fn a_search_that_ends_early_leads_to_the_rest_of_the_log() {
    let server = Server::start().await;
    server.job("a").await;
    let run = server.trigger("a").await;
    for sequence in 0..300 {
        let text = if sequence == 290 { "needle & hay".to_owned() } else { format!("hay {sequence}") };
        let lines = vec![LogLine { at: server.engine.now(), level: "info".to_owned(), text }];
        server.engine.store().append_logs(&[LogChunk { run, attempt: 1, sequence, lines }]).await.unwrap();
    }
    server.finish(run, Outcome::Succeeded).await;
    let visitor = Visitor::signed_in(&server).await;
    let rest_url = |page: &str| {
        let url = page.split_once("data-rest href=\"")?.1.split('"').next()?.replace("&amp;", "&");
        Some(url.split('#').next()?.to_owned())
    };
    for (search, first, rest) in [
        ("needle+%26", vec![], vec![291]),
        ("hay", (1..=256).collect::<Vec<u64>>(), (257..=300).collect()),
        ("nothing", vec![], vec![]),
    ] {
        let page = visitor.get(&format!("/runs/{run}?contains={search}")).await.text();
        assert_eq!(shown_line_numbers(&page), first, "{search}");
        assert!(page.contains("up to line 256, not to its end") && !page.contains("No line"), "{search}: {page}");
        let page = visitor.get(&rest_url(&page).expect("a link to the rest")).await.text();
        assert_eq!(shown_line_numbers(&page), rest, "{search}");
        assert!(rest_url(&page).is_none(), "{search}: {page}");
        assert_eq!(page.contains("No line after line 256 matches."), rest.is_empty(), "{search}: {page}");
    }
    assert_eq!(visitor.get(&format!("/runs/{run}?contains=hay&after=x")).await.status, 422);
}

#[tokio::test]
async fn the_file_of_an_unknown_attempt_is_not_that_of_the_last_one() {
    let server = Server::start().await;
    server.job("a").await;
    let run = server.trigger("a").await;
    write_long_log(&server, run, 500).await;
    server.finish(run, Outcome::Succeeded).await;
    let visitor = Visitor::signed_in(&server).await;
    assert_eq!(visitor.get(&format!("/runs/{run}/log.txt?attempt=1")).await.status, 200);
    assert_eq!(visitor.get(&format!("/runs/{run}/log.txt?attempt=2")).await.status, 422);
    server.get(&format!("/api/v1/runs/{run}/logs?attempt=2")).await.expect(422);
}
