//! Previews of schedules, before they are saved.

use serde_json::{Value, json};

use crate::harness::Server;

#[tokio::test]
async fn a_preview_has_sentences_fires_and_warnings() {
    let server = Server::start().await;
    let body = json!({
        "schedule": [{"cron": "30 2 * * 1-5", "time_zone": "Europe/Berlin"}, {"at": "2026-11-03T00:00:00Z"}],
        "after": "2026-11-01T00:00:00Z", "count": 3,
    });
    let answer = server.with_body("POST", "/api/v1/schedules/preview", body).await.expect(200);
    let expected = json!({
        "sentences": [
            {"en": "at 02:30, Monday to Friday (Europe/Berlin)", "zh": "周一至周五 02:30（Europe/Berlin）"},
            {"en": "once at 2026-11-03 00:00 UTC", "zh": "单次：2026-11-03 00:00 UTC"},
        ],
        "dialects": ["unix5", null],
        "time_zone": "Europe/Berlin",
        "fires": [
            {"at": "2026-11-02T01:30:00Z", "local": "2026-11-02T02:30:00+01:00"},
            {"at": "2026-11-03T00:00:00Z", "local": "2026-11-03T01:00:00+01:00"},
            {"at": "2026-11-03T01:30:00Z", "local": "2026-11-03T02:30:00+01:00"},
        ],
        "warnings": [],
    });
    assert_eq!(answer, expected);
    let never = json!({"schedule": {"cron": "0 0 0 31 2 ?"}, "after": "2026-11-01T00:00:00Z"});
    let answer = server.with_body("POST", "/api/v1/schedules/preview", never).await.expect(200);
    assert_eq!((&answer["fires"], &answer["warnings"][0]["code"]), (&json!([]), &json!("never_fires")));
    assert_eq!(answer["warnings"][0]["en"], "It never fires after 2026-11-01 00:00 UTC.");
    let none = server.with_body("POST", "/api/v1/schedules/preview", json!({"schedule": null})).await.expect(200);
    assert_eq!((&none["sentences"], &none["fires"], &none["warnings"]), (&json!([]), &json!([]), &json!([])));
}

#[tokio::test]
async fn a_bad_preview_names_the_field() {
    let server = Server::start().await;
    let daily = json!({"cron": "@daily"});
    for (body, pointer) in [
        (json!({}), "/schedule"),
        (json!({"schedule": {"cron": "0 0 24 * * ?"}}), "/schedule/cron"),
        (json!({"schedule": [daily, {"every": "0s"}]}), "/schedule/1/every"),
        (json!({"schedule": {"nosuch": 1}}), "/schedule/nosuch"),
        (json!({"schedule": daily, "nosuch": 1}), "/nosuch"),
        (json!({"schedule": daily, "count": 0}), "/count"),
        (json!({"schedule": daily, "count": 101}), "/count"),
        (json!({"schedule": daily, "count": -1}), "/count"),
        (json!({"schedule": daily, "after": "tomorrow"}), "/after"),
        (json!({"schedule": daily, "calendar": {"name": "nosuch"}}), "/calendar/name"),
        (json!({"schedule": daily, "calendar": {"name": "nosuch", "rule": "x"}}), "/calendar/rule"),
    ] {
        let problem: Value = server.with_body("POST", "/api/v1/schedules/preview", &body).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}: {problem}");
    }
}

#[tokio::test]
async fn a_job_that_never_fires_is_saved_with_a_warning() {
    let server = Server::start().await;
    let job = |cron: &str| json!({"name": "j", "app": "a", "handler": "h", "schedule": {"cron": cron}});
    let never = json!("its schedule never fires from now on");
    let created = server.with_body("POST", "/api/v1/jobs", job("0 0 0 31 2 ?")).await.expect(201);
    assert!(created["warnings"].as_array().unwrap().contains(&never), "{created}");
    let corrected = server.with_body("PUT", "/api/v1/jobs/j", job("0 0 0 28 2 ?")).await.expect(200);
    assert!(!corrected["warnings"].as_array().unwrap().contains(&never), "{corrected}");
}
