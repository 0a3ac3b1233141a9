//! The explanations of the empty parts of lanes in the timeline.

use std::time::Duration;

use rondel_core::Timestamp;
use serde_json::{Value, json};

use crate::harness::Server;
use crate::visitor::Visitor;

const HOSTILE_TEXT: &str = "<script>alert(1)</script>";

async fn gaps(server: &Server, visitor: &Visitor<'_>, job: &str) -> Vec<Value> {
    let now = server.engine.now();
    let (from, to) = (now - Duration::from_secs(3_600), now + Duration::from_secs(600));
    let answer = visitor.get(&format!("/jobs/{job}/gaps?from={from}&to={to}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.headers["content-type"], "application/json");
    answer.json()["gaps"].as_array().unwrap().clone()
}

#[tokio::test]
async fn one_request_explains_all_gaps_of_a_lane() {
    let server = Server::start().await;
    let calendar = json!({"rule": {"days": [{"date": "2027-01-15", "name": HOSTILE_TEXT}, "2027-01-16..2027-12-31"]}});
    server.with_body("PUT", "/api/v1/calendars/shut", calendar).await.expect(201);
    let job = |name: &str, more: Value| {
        let mut body = json!({"name": name, "app": "a", "handler": "h", "schedule": {"every": "1s"}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for body in [
        job("paused", json!({"enabled": false})),
        job("shut", json!({"calendar": {"name": "shut", "rule": "except"}})),
        job("by-hand", json!({"schedule": null})),
    ] {
        server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    }
    let mut visitor = Visitor::signed_in(&server).await;
    for (name, en, zh) in [("paused", "aused", "暂停"), ("shut", "shut", "日历")] {
        for (language, words) in [("en", en), ("zh", zh)] {
            visitor.language = language;
            let end = tokio::time::Instant::now() + Duration::from_secs(30);
            loop {
                let found = gaps(&server, &visitor, name).await;
                let is_explained =
                    |gap: &Value| !gap["at_ms"].is_null() && gap["text"].as_str().unwrap().contains(words);
                if found.iter().any(is_explained) {
                    let first = &found[0];
                    assert!(
                        first["at_ms"].is_null() && first["from_ms"].as_i64() < first["to_ms"].as_i64(),
                        "{found:?}"
                    );
                    assert!(found.len() <= 3, "fires with one reason are one gap: {found:?}");
                    break;
                }
                assert!(tokio::time::Instant::now() < end, "{name} {language}: {found:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    let whole = gaps(&server, &visitor, "by-hand").await;
    assert_eq!(whole.len(), 1, "{whole:?}");
    let page = visitor.get("/timeline").await.text();
    assert!(page.contains("data-gaps=\"/jobs/paused/gaps\"") && page.contains("class=\"gap-key\""), "{page}");
}

#[tokio::test]
async fn a_lane_that_makes_no_sense_is_refused() {
    let server = Server::start().await;
    server.job("there").await;
    let visitor = Visitor::signed_in(&server).await;
    let now = server.engine.now();
    let later = |days: u64| now + Duration::from_secs(days * 86_400);
    let ask =
        async |from: Timestamp, to: Timestamp| visitor.get(&format!("/jobs/there/gaps?from={from}&to={to}")).await;
    for (answer, status) in [
        (ask(now, later(7)).await, 200),
        (ask(now, later(9)).await, 422),
        (ask(later(1), now).await, 422),
        (visitor.get("/jobs/there/gaps").await, 200),
        (visitor.get("/jobs/there/gaps?from=x&to=y").await, 422),
        (visitor.get(&format!("/jobs/nosuch/gaps?from={now}&to={}", later(1))).await, 404),
    ] {
        assert_eq!(answer.status.as_u16(), status, "{}", answer.text());
    }
}
