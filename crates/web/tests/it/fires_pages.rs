//! The account of fires as a page, and the answers to "why did it not run at …?".

use serde_json::json;

use crate::harness::Server;
use crate::visitor::Visitor;

/// A job that fires at noon in Berlin, except on the days of a calendar, one of which has a hostile name. The store's clock is in January
/// 2027.
async fn create_noon_job(server: &Server) {
    let evil = "<script>alert(1)</script>";
    let calendar = json!({"rule": {"days": [{"date": "2030-01-17", "name": evil}, "2027-01-15..2027-01-20"]}});
    server.with_body("PUT", "/api/v1/calendars/shut", calendar).await.expect(201);
    let body = json!({"name": "noon", "app": "a", "handler": "h", "calendar": {"name": "shut", "rule": "except"},
        "schedule": {"cron": "0 0 12 * * ?", "time_zone": "Europe/Berlin"}});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
}

#[tokio::test]
async fn why_is_asked_on_the_clock_of_the_schedule() {
    let server = Server::start().await;
    create_noon_job(&server).await;
    let mut visitor = Visitor::signed_in(&server).await;
    for (at, zone, en, zh) in [
        (
            "2030-01-16T12:00",
            "Europe/Berlin",
            "It will run at 2030-01-16 12:00 Europe/Berlin.",
            "将在 2030-01-16 12:00",
        ),
        ("2030-01-16T11:00:00", "UTC", "It will run at 2030-01-16 12:00 Europe/Berlin.", "将在 2030-01-16 12:00"),
        ("2030-01-17T12:00", "Europe/Berlin", "&lt;script&gt;alert(1)", "&lt;script&gt;alert(1)"),
        ("2030-01-16T02:30", "Europe/Berlin", "Previous fire", "前一次触发"),
        ("2030-03-31T02:30", "Europe/Berlin", "There is no such time", "没有这个时间"),
        ("2030-10-27T02:30", "Europe/Berlin", "shows this time twice", "会两次显示这个时间"),
    ] {
        for (language, expected) in [("en", en), ("zh", zh)] {
            visitor.language = language;
            let answer = visitor.get(&format!("/jobs/noon/fires?at={at}&zone={zone}")).await;
            assert_eq!(answer.status, 200, "{at}");
            let text = answer.text().replace("&#60;", "&lt;").replace("&#62;", "&gt;");
            assert!(text.contains(expected), "{at} {zone} {language}: {text}");
            assert!(!text.contains("<script>alert"), "{at}: {text}");
            assert!(text.contains(&format!("value=\"{at}\"")), "{at} is kept: {text}");
        }
    }
    let twice = visitor.get("/jobs/noon/fires?at=2030-10-27T02:30&zone=Europe/Berlin").await.text();
    assert_eq!(twice.matches("class=\"banner answer").count(), 2, "{twice}");
}

#[tokio::test]
async fn a_question_that_makes_no_sense_is_kept_and_explained() {
    let server = Server::start().await;
    create_noon_job(&server).await;
    let visitor = Visitor::signed_in(&server).await;
    for (query, expected) in [
        ("at=02:30&zone=UTC", "not a date and time"),
        ("at=1969-12-31T23:59&zone=UTC", "not a date and time"),
        ("at=%2B999999-01-01T00:00&zone=UTC", "not a date and time"),
        ("at=%3Cscript%3Ealert(1)&zone=UTC", "not a date and time"),
        ("at=2030-01-01T00:00&zone=%3Cscript%3Ealert(1)", "not a time zone"),
    ] {
        let answer = visitor.get(&format!("/jobs/noon/fires?{query}")).await;
        assert_eq!(answer.status, 422, "{query}");
        assert!(answer.text().contains(expected), "{query}: {}", answer.text());
        assert!(!answer.text().contains("<script>alert"), "{query}: {}", answer.text());
    }
    // Without an instant, the answer is about the last fire or, if there was none, the next one.
    let answer = visitor.get("/jobs/noon/fires?at=&zone=UTC").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.text().contains("fire"), "{}", answer.text());
    assert_eq!(visitor.get("/jobs/noon/fires?to=yesterday").await.status, 422);
    assert_eq!(visitor.get("/jobs/none/fires?at=2030-01-16T12:00").await.status, 404);
}

#[tokio::test]
async fn the_list_has_past_and_upcoming_fires() {
    let server = Server::start().await;
    create_noon_job(&server).await;
    let often = json!({"name": "often", "app": "a", "handler": "h", "schedule": {"every": "1s"}});
    server.with_body("POST", "/api/v1/jobs", often).await.expect(201);
    server.bare("POST", "/api/v1/jobs/often/pause").await.expect(200);
    let mut visitor = Visitor::signed_in(&server).await;
    for (language, paused, left_out) in [("en", "Paused", "Excluded"), ("zh", "已暂停", "被日历排除")] {
        visitor.language = language;
        let text = visitor.get("/jobs/often/fires").await.text();
        assert!(text.contains(&format!("<span>{paused}</span>")), "{text}");
        assert!(text.contains("hx-trigger=\"live\"") && text.contains("data-live-every=\"30\""), "{text}");
        let text = visitor.get("/jobs/noon/fires").await.text();
        assert!(text.contains(&format!("<span>{left_out}</span>")), "{text}");
        let text = visitor.get("/jobs/noon/fires?to=2026-01-01T00:00:00Z").await.text();
        assert!(
            text.contains("2025-12-31 00:00:00 – 2026-01-01 00:00:00 UTC") && !text.contains("hx-trigger=\"live\""),
            "{text}"
        );
        assert!(text.contains("?to=2025-12-30T23%3A59%3A59.999Z"), "{text}");
        let job = visitor.get("/jobs/noon").await.text();
        assert!(job.contains("hx-get=\"/jobs/noon/fires\"") && job.contains("name=\"at\""), "{job}");
        assert!(job.contains("<option value=\"Europe/Berlin\" selected>"), "{job}");
    }
}

/// The job is younger than a day, so all fires of the day are at its end. The page must show these newest fires, not the oldest ones.
#[tokio::test]
async fn the_newest_fires_of_a_fast_job_are_shown() {
    let server = Server::start().await;
    let often = json!({"name": "often", "app": "a", "handler": "h", "schedule": {"every": "1s"}});
    server.with_body("POST", "/api/v1/jobs", often).await.expect(201);
    let visitor = Visitor::signed_in(&server).await;
    // This instant is long after the store's clock.
    let text = visitor.get("/jobs/often/fires?to=2027-03-01T09:00:00Z").await.text();
    let past = text.split("09:00:00 UTC").nth(1).unwrap_or(&text);
    assert!(past.contains("08:59:5") || past.contains("09:00:00<"), "{text}");
}
