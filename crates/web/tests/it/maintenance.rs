//! Maintenance windows: the API, the page of alerts, and the announcement on every page.

use std::time::Duration;

use rondel_core::Timestamp;
use serde_json::{Value, json};

use crate::harness::Server;
use crate::visitor::{Visitor, location};

const PATH: &str = "/api/v1/maintenance";
const HOSTILE_TEXT: &str = "<script>alert(1)</script>";

fn instant(value: &Value) -> Timestamp {
    value.as_str().and_then(|text| text.parse().ok()).expect("an instant")
}

/// Waits until the condition holds. The server reads windows once per second.
async fn wait_until(holds: impl AsyncFn() -> bool) {
    for attempt in 0.. {
        if holds().await {
            return;
        }
        assert!(attempt < 600, "it does not come true within 30 s");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_window_is_planned_listed_and_ended() {
    let server = Server::start().await;
    server.job("nightly").await;
    let before = server.engine.now();
    let created = server.with_body("POST", PATH, json!({"length": "2h", "reason": "moving"})).await.expect(201);
    let (starts, ends) = (instant(&created["starts_at"]), instant(&created["ends_at"]));
    let ahead = starts.since(before);
    assert!((70..100).contains(&ahead.as_secs()), "fires are claimed up to a minute ahead: {ahead:?}");
    assert_eq!(ends.since(starts), Duration::from_secs(7200));
    assert_eq!((&created["open"], &created["fires"], &created["app"]), (&json!(false), &json!("skip"), &Value::Null));
    assert_eq!(server.get(PATH).await.expect(200)["items"][0], created);
    let own = format!("{PATH}/{}", created["id"].as_str().unwrap());
    server.bare("DELETE", &own).await.expect(204);
    server.bare("DELETE", &own).await.expect(204);
    assert_eq!(server.get(PATH).await.expect(200)["items"], json!([]));
    let missing = server.bare("DELETE", &format!("{PATH}/1")).await.expect(404);
    assert_eq!(missing["code"], "maintenance_not_found");
    let entries = server.get("/api/v1/audit?limit=20").await.expect(200).to_string();
    assert!(entries.contains("maintenance.create") && entries.contains("moving"), "{entries}");
}

#[tokio::test]
async fn a_wrong_window_is_refused_with_the_field() {
    let server = Server::start().await;
    let at = |seconds: u64| (server.engine.now() + Duration::from_secs(seconds)).to_string();
    for (body, pointer, words) in [
        (json!({"length": "1h", "reason": "r", "starts_at": at(5)}), "/starts_at", "as soon as possible"),
        (json!({"length": "1h", "reason": "r", "starts_at": "2020-01-01T00:00:00Z"}), "/starts_at", "2020-01-01"),
        (json!({"length": "1h", "reason": "r", "starts_at": at(400 * 86_400)}), "/starts_at", "366 days"),
        (json!({"length": "8d", "reason": "r"}), "/length", "at most"),
        (json!({"length": "soon", "reason": "r"}), "/length", "soon"),
        (json!({"ends_at": at(10), "reason": "r"}), "/ends_at", "not after the start"),
        (json!({"ends_at": at(1_000), "length": "1h", "reason": "r"}), "/length", "ends_at"),
        (json!({"reason": "r"}), "/ends_at", "length"),
        (json!({"length": "1h", "reason": " "}), "/reason", "every page"),
        (json!({"length": "1h", "reason": "r".repeat(1_001)}), "/reason", "1001"),
        (json!({"length": "1h", "reason": "r", "fires": "drop"}), "/fires", "drop"),
        (json!({"length": "1h", "reason": "r", "job": "a"}), "/job", "job"),
    ] {
        let refusal = server.with_body("POST", PATH, &body).await.expect(422);
        let error = &refusal["errors"][0];
        assert_eq!(error["pointer"], pointer, "{body}: {refusal}");
        assert!(error.to_string().contains(words), "{body}: {refusal}");
    }
    let unknown = json!({"length": "1h", "reason": "r", "app": "nowhere"});
    assert_eq!(server.with_body("POST", PATH, unknown).await.expect(404)["code"], "app_not_found");
    assert_eq!(server.get(PATH).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn a_window_is_announced_on_every_page_in_both_languages() {
    let server = Server::start().await;
    server.job("nightly").await;
    let mut visitor = Visitor::signed_in(&server).await;
    let form = format!("for=4h&fires=hold&reason={}", "%3Cscript%3Ealert(1)%3C%2Fscript%3E");
    let added = visitor.post("/alerts/maintenance", &form).await;
    assert_eq!(location(&added), "/alerts");
    let id = server.get(PATH).await.expect(200)["items"][0]["id"].as_str().unwrap().to_owned();
    for (language, words) in [("en", "Maintenance planned"), ("zh", "计划维护")] {
        visitor.language = language;
        for path in ["/", "/jobs", "/jobs/nightly", "/runs", "/alerts"] {
            wait_until(async || visitor.get(path).await.text().contains(words)).await;
            let page = visitor.get(path).await.text();
            assert!(page.contains("&#60;script&#62;") && !page.contains(HOSTILE_TEXT), "{path}: {page}");
        }
    }
    visitor.language = "en";
    let wrong = visitor.post("/alerts/maintenance", "for=until&until=soon&reason=kept").await;
    assert!(wrong.status == 422 && wrong.text().contains("value=\"kept\""), "{}", wrong.text());
    let wrong = visitor.post("/alerts/maintenance", "for=1h&reason=").await;
    assert!(wrong.status == 422 && wrong.text().contains("state why"), "{}", wrong.text());
    assert_eq!(location(&visitor.post(&format!("/alerts/maintenance/{id}/end"), "").await), "/alerts");
    wait_until(async || !visitor.get("/jobs").await.text().contains("Maintenance planned")).await;
}

#[tokio::test]
async fn the_page_why_announces_windows_on_its_own_clock() {
    let server = Server::start().await;
    let schedule = json!({"cron": "0 0 1 1 1 ?", "time_zone": "Asia/Shanghai"});
    let job = json!({"name": "nightly", "app": "app", "handler": "handler", "schedule": schedule});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    server.with_body("POST", PATH, json!({"length": "2h", "reason": "moving"})).await.expect(201);
    let mut visitor = Visitor::signed_in(&server).await;
    visitor.cookie.push_str("; rondel_times=job; rondel_zone=Europe/Berlin");
    wait_until(async || visitor.get("/jobs/nightly").await.text().contains("Maintenance planned")).await;
    let announcement = |html: &str| {
        let (_, rest) = html.split_once("class=\"note maintenance\"").expect("an announcement");
        rest.split_once("</div>").expect("its end").0.to_owned()
    };
    let (job, why) = (visitor.get("/jobs/nightly").await.text(), visitor.get("/why?job=nightly").await.text());
    assert_eq!(announcement(&why), announcement(&job));
}
