//! Calendars, and their effect on fires.

use axum::body::Body;
use serde_json::{Value, json};

use crate::harness::Server;

/// The workdays around the Chinese autumn holidays of 2026, with the make-up Saturday.
fn workdays() -> Value {
    json!({"any": [
        {"days": [{"date": "2026-10-10", "name": "补班"}]},
        {"all": [{"weekdays": ["mon", "tue", "wed", "thu", "fri"]}, {"not": {"calendar": "cn-holidays"}}]},
    ]})
}

async fn holidays(server: &Server) {
    let body = json!({"rule": {"days": [{"date": "2026-10-01..2026-10-07", "name": "国庆节"}]}});
    server.with_body("PUT", "/api/v1/calendars/cn-holidays", body).await.expect(201);
}

async fn use_in_job(server: &Server, job: &str, calendar: Value) -> Value {
    let schedule = json!({"cron": "0 0 9 * * ? 2026-2030", "time_zone": "Asia/Shanghai"});
    let body = json!({"name": job, "app": "a", "handler": "h", "schedule": schedule, "calendar": calendar});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201)
}

#[tokio::test]
async fn a_calendar_is_saved_and_read() {
    let server = Server::start().await;
    holidays(&server).await;
    let work = json!({"name": "cn-work", "description": "office", "rule": workdays()});
    let answer = server.with_body("PUT", "/api/v1/calendars/cn-work", &work).await;
    assert_eq!(answer.headers["etag"], "\"v1\"");
    let saved = answer.expect(201);
    assert_eq!((&saved["rule"], &saved["version"]), (&workdays(), &json!(1)));
    assert_eq!(server.get("/api/v1/calendars/cn-work").await.expect(200)["description"], "office");
    let list = server.get("/api/v1/calendars?limit=1").await.expect(200);
    assert_eq!(list["items"][0]["name"], "cn-holidays");
    let next = format!("/api/v1/calendars?limit=1&cursor={}", list["next_cursor"].as_str().unwrap());
    assert_eq!(server.get(&next).await.expect(200)["items"][0]["name"], "cn-work");
    let same = server.with_body("PUT", "/api/v1/calendars/cn-work", &work).await.expect(200);
    assert_eq!(same["version"], 1, "saving the same makes no version");
    let stale = server.request("PUT", "/api/v1/calendars/cn-work").header("if-match", "\"v7\"");
    let stale = stale.header("content-type", "application/json").body(Body::from(work.to_string())).unwrap();
    assert_eq!(server.send(stale).await.expect(412)["current_version"], 1);
    assert_eq!(server.get("/api/v1/calendars/none").await.expect(404)["code"], "calendar_not_found");
}

#[tokio::test]
async fn a_job_follows_its_calendar_and_the_calendars_in_it() {
    let server = Server::start().await;
    holidays(&server).await;
    server.with_body("PUT", "/api/v1/calendars/cn-work", json!({"rule": workdays()})).await.expect(201);
    let job = use_in_job(&server, "daily", json!({"name": "cn-work"})).await;
    assert_eq!(job["version"], 1);
    let range = "/api/v1/jobs/daily/fires?from=2028-09-29T16:00:00Z&to=2028-10-03T16:00:00Z";
    let before = server.get(range).await.expect(200);
    let changed =
        json!({"rule": {"days": ["2026-10-01..2026-10-07", {"date": "2028-10-02..2028-10-03", "name": "国庆节"}]}});
    server.with_body("PUT", "/api/v1/calendars/cn-holidays", changed).await.expect(200);
    let job = server.get("/api/v1/jobs/daily").await.expect(200);
    assert_eq!(job["version"], 2, "the answer came when the job had moved on: {job}");
    let versions = server.get("/api/v1/jobs/daily/versions").await.expect(200);
    assert_eq!(versions["items"][0]["author"], "calendar cn-work");
    assert_eq!(versions["items"][1]["version"], 1);
    let verdicts = |account: &Value| -> Vec<String> {
        let items = account["items"].as_array().unwrap().iter();
        items
            .map(|item| format!("{} {}", &item["fire_at"].as_str().unwrap()[..10], item["verdict"].as_str().unwrap()))
            .collect()
    };
    let weekend = ["2028-09-30 calendar", "2028-10-01 calendar"];
    assert_eq!(verdicts(&before), [&weekend[..], &["2028-10-02 planned", "2028-10-03 planned"]].concat());
    let after = server.get(range).await.expect(200);
    assert_eq!(verdicts(&after), [&weekend[..], &["2028-10-02 calendar", "2028-10-03 calendar"]].concat());
    assert_eq!(after["items"][2]["calendar"]["day"], "国庆节");
}

#[tokio::test]
async fn a_calendar_in_use_is_not_deleted() {
    let server = Server::start().await;
    holidays(&server).await;
    server.with_body("PUT", "/api/v1/calendars/cn-work", json!({"rule": workdays()})).await.expect(201);
    use_in_job(&server, "daily", json!({"name": "cn-work", "rule": "next"})).await;
    let named = server.bare("DELETE", "/api/v1/calendars/cn-holidays").await.expect(409);
    assert_eq!(named["code"], "calendar_used");
    assert!(named["detail"].as_str().unwrap().contains("cn-work"), "{named}");
    let used = server.bare("DELETE", "/api/v1/calendars/cn-work").await.expect(409);
    assert!(used["detail"].as_str().unwrap().contains("daily"), "{used}");
    let users = server.get("/api/v1/calendars/cn-work/users").await.expect(200);
    assert_eq!(users["items"], json!([{"kind": "job", "name": "daily"}]));
    let users = server.get("/api/v1/calendars/cn-holidays/users").await.expect(200);
    assert_eq!(users["items"], json!([{"kind": "calendar", "name": "cn-work"}]));
    // The job moves its fires by whole days, so its calendar cannot be changed to one with times of day.
    let times = json!({"rule": {"any": [{"days": ["2026-10-01"]}, {"times": ["09:00-17:00"]}]}});
    let refusal = server.with_body("PUT", "/api/v1/calendars/cn-holidays", times).await.expect(422);
    assert!(refusal["detail"].as_str().unwrap().contains("daily"), "{refusal}");
    server.bare("DELETE", "/api/v1/jobs/daily").await.expect(204);
    server.bare("DELETE", "/api/v1/calendars/cn-work").await.expect(204);
    server.bare("DELETE", "/api/v1/calendars/cn-holidays").await.expect(204);
    server.bare("DELETE", "/api/v1/calendars/cn-holidays").await.expect(404);
}

#[tokio::test]
async fn bad_calendars_are_refused_with_a_pointer() {
    let server = Server::start().await;
    for (body, pointer) in [
        (json!({"rule": {"weeks": []}}), "/rule/weeks"),
        (json!({"rule": {"days": ["2026-13-01"]}}), "/rule/days/0"),
        (json!({"rule": {"any": [{"days": []}, {"days": ["x"]}]}}), "/rule/any/1/days/0"),
        (json!({"rule": {"weekdays": ["mon", "mo"]}}), "/rule/weekdays/1"),
        (json!({"rule": {"times": ["9-17"]}}), "/rule/times/0"),
        (json!({"rule": {"calendar": "none"}}), "/rule/calendar"),
        (json!({"rule": {"not": {"calendar": "bad"}}}), "/rule/not/calendar"),
        (json!({"name": "other", "rule": {"days": []}}), "/name"),
        (json!({"rule": {"days": []}, "zone": "UTC"}), "/zone"),
    ] {
        let problem = server.with_body("PUT", "/api/v1/calendars/bad", &body).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}: {problem}");
    }
    let unknown =
        json!({"name": "j", "app": "a", "handler": "h", "schedule": {"every": "1h"}, "calendar": {"name": "none"}});
    let problem = server.with_body("POST", "/api/v1/jobs", unknown).await.expect(422);
    assert_eq!(problem["errors"][0]["pointer"], "/calendar/name", "{problem}");
}

#[tokio::test]
async fn a_file_becomes_a_calendar() {
    let server = Server::start().await;
    let send = async |path: &str, text: &str| {
        let request = server.request("POST", path).header("content-type", "text/plain");
        server.send(request.body(Body::from(text.to_owned())).unwrap()).await
    };
    let ics = "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nDTSTART;VALUE=DATE:20261001\r\nDTEND;VALUE=DATE:20261008\r\nSUMMARY:国庆节\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n";
    let dry = send("/api/v1/calendars/cn/import?format=ics&dry_run=true", ics).await.expect(200);
    assert_eq!(dry["rule"], json!({"days": [{"date": "2026-10-01..2026-10-07", "name": "国庆节"}]}));
    server.get("/api/v1/calendars/cn").await.expect(404);
    send("/api/v1/calendars/cn/import?format=ics", ics).await.expect(201);
    let csv = "date,name,kind\n2026-10-01..2026-10-07,国庆节,holiday\n2026-10-10,补班,workday\n";
    let saved = send("/api/v1/calendars/cn/import?format=csv&as=workdays", csv).await.expect(200);
    assert_eq!(saved["version"], 2);
    for (path, text, part) in [
        (
            "/api/v1/calendars/cn/import?format=ics",
            "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:20261001T083000\n",
            "line 3",
        ),
        ("/api/v1/calendars/cn/import?format=csv", "day\n2026-10-01\n", "date"),
        ("/api/v1/calendars/cn/import?format=xls", "", "format"),
        ("/api/v1/calendars/cn/import", "", "format"),
        ("/api/v1/calendars/cn/import?format=csv&years=1999..1998", "date\n", "years"),
        ("/api/v1/calendars/CN/import?format=csv", "date\n2026-10-01\n", "name"),
    ] {
        let problem = send(path, text).await.expect(422);
        assert!(problem["detail"].as_str().unwrap().contains(part), "{path}: {problem}");
    }
    let large = "x".repeat(1024 * 1024 + 1);
    send("/api/v1/calendars/cn/import?format=csv", &large).await.expect(413);
}

#[tokio::test]
async fn the_calendar_of_a_deadline_exists_and_has_whole_days() {
    let server = Server::start().await;
    let job = |calendar: &str| {
        let expect = json!({"success_by": {"time": "06:00", "calendar": calendar}});
        json!({"name": "close", "app": "a", "handler": "h", "expect": expect})
    };
    let times = json!({"rule": {"times": ["09:00-17:00"]}});
    server.with_body("PUT", "/api/v1/calendars/office-hours", times).await.expect(201);
    for (calendar, part) in [("cn-holidays", "there is no calendar"), ("office-hours", "has times of day")] {
        let refusal = server.with_body("POST", "/api/v1/jobs", job(calendar)).await.expect(422);
        assert_eq!(refusal["errors"][0]["pointer"], "/expect/success_by/calendar", "{refusal}");
        assert!(refusal["errors"][0]["message"].as_str().unwrap().contains(part), "{refusal}");
        let refusal = server.with_body("POST", "/api/v1/jobs/apply", json!([job(calendar)])).await.expect(422);
        assert_eq!(refusal["errors"][0]["pointer"], "/0/expect/success_by/calendar", "{refusal}");
    }
    holidays(&server).await;
    server.with_body("POST", "/api/v1/jobs", job("cn-holidays")).await.expect(201);
    let applied = server.with_body("POST", "/api/v1/jobs/apply", json!([job("cn-holidays")])).await.expect(200);
    assert_eq!(applied["summary"]["unchanged"], 1, "{applied}");
}
