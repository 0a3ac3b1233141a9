//! The pages of calendars.

use serde_json::json;

use crate::harness::Server;
use crate::visitor::{Visitor, location};

const HOSTILE_TEXT: &str = "<script>alert(1)</script>";

fn form(fields: &[(&str, &str)]) -> String {
    let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    fields.iter().map(|(key, value)| format!("{key}={}", encoded(value))).collect::<Vec<_>>().join("&")
}

#[tokio::test]
async fn a_year_is_shown_with_names_and_users() {
    let server = Server::start().await;
    let rule = json!({"any": [{"days": [{"date": "2028-02-29", "name": HOSTILE_TEXT}]}, {"all": [{"weekdays": ["mon"]},
        {"times": ["08:00-12:00"]}]}]});
    let calendar = json!({"description": HOSTILE_TEXT, "rule": rule});
    server.with_body("PUT", "/api/v1/calendars/odd", calendar).await.expect(201);
    server.with_body("PUT", "/api/v1/calendars/user", json!({"rule": {"calendar": "odd"}})).await.expect(201);
    let job = json!({"name": "there", "app": "a", "handler": "h", "schedule": {"every": "1h"},
        "calendar": {"name": "odd"}});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let mut visitor = Visitor::signed_in(&server).await;
    for (language, words) in
        [("en", ["in the calendar", "in part", "Used by"]), ("zh", ["在日历之内", "部分在内", "使用者"])]
    {
        visitor.language = language;
        let list = visitor.get("/calendars").await.text();
        assert!(list.contains("href=\"/calendars/odd\"") && !list.contains(HOSTILE_TEXT), "{list}");
        let text = visitor.get("/calendars/odd?year=2028").await.text();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        assert!(text.contains("href=\"/jobs/there\"") && text.contains("href=\"/calendars/user\""), "{text}");
        assert!(text.contains("<b>2028-02-29</b> &#60;script&#62;") && !text.contains(HOSTILE_TEXT), "{text}");
        assert_eq!(text.matches("<td class=\"part\"").count(), 52, "the Mondays");
        assert_eq!(text.matches("<td class=\"in named\"").count(), 1);
        assert!(!text.contains("action=\"/calendars/odd/delete\"><button"), "{text}");
    }
    for (path, status) in [("/calendars/odd?year=1969", 422), ("/calendars/none", 404), ("/calendars/%3Cb%3E", 404)] {
        assert_eq!(visitor.get(path).await.status, status, "{path}");
    }
    let refusal = visitor.post("/calendars/odd/delete", "").await;
    assert!(refusal.status == 409 && refusal.text().contains("仍在使用中"), "{}", refusal.text());
}

#[tokio::test]
async fn a_calendar_whose_days_have_passed_is_named_with_its_jobs() {
    let server = Server::start().await;
    let calendar = |day: &str| json!({"rule": {"days": [day]}});
    server.with_body("PUT", "/api/v1/calendars/year", calendar("2001-12-31")).await.expect(201);
    let mut job = json!({"name": "j", "app": "a", "handler": "h", "schedule": {"cron": "@daily"},
        "calendar": {"name": "year"}});
    let created = server.with_body("POST", "/api/v1/jobs", &job).await.expect(201);
    let warning = json!("its calendar year removes every fire of its schedule from now on");
    assert!(created["warnings"].as_array().unwrap().contains(&warning), "{created}");
    job["name"] = json!("k");
    let applied = server.with_body("POST", "/api/v1/jobs/apply?dry_run=true", json!([job])).await.expect(200);
    assert!(applied["items"][0]["warnings"].as_array().unwrap().contains(&warning), "{applied}");
    let mut visitor = Visitor::signed_in(&server).await;
    for (language, of_job, of_calendar) in [
        ("en", "Its calendar year removes every fire of its schedule", "the last one was 2001-12-31"),
        ("zh", "日历 year 从现在起会排除", "最后一天是 2001-12-31"),
    ] {
        visitor.language = language;
        assert!(visitor.get("/jobs/j").await.text().contains(of_job), "{language}");
        assert!(visitor.get("/calendars/year").await.text().contains(of_calendar), "{language}");
    }
    server.with_body("PUT", "/api/v1/calendars/year", calendar("2002-01-01..2055-12-31")).await.expect(200);
    assert!(!visitor.get("/calendars/year").await.text().contains("days-passed"));
    assert!(!visitor.get("/jobs/j").await.text().contains("从现在起会排除"));
}

#[tokio::test]
async fn a_calendar_is_tried_made_changed_and_deleted() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    let file = "date,name\r\n2027-01-01,New Year\r\n2027-05-01,<b>Labour Day</b>\r\n";
    let fields = [("name", "holidays"), ("format", "csv"), ("as", "days"), ("text", file)];
    let tried = visitor.post("/calendars", &form(&[&fields[..], &[("do", "try")]].concat())).await;
    assert_eq!(tried.status, 200, "{}", tried.text());
    let text = tried.text();
    assert!(text.contains("nothing was saved") && text.contains("<b>2027-01-01</b> New Year"), "{text}");
    assert!(!text.contains("<b>Labour") && text.contains("value=\"holidays\""), "{text}");
    assert_eq!(visitor.get("/calendars/holidays").await.status, 404);
    let save = form(&[&fields[..], &[("do", "save")]].concat());
    assert_eq!(location(&visitor.post("/calendars", &save).await), "/calendars/holidays");
    let again = visitor.post("/calendars", &save).await;
    assert!(again.status == 422 && again.text().contains("Another calendar has this name"), "{}", again.text());
    let path = "/calendars/holidays";
    let good = "{\"rule\": {\"weekdays\": [\"sun\"]}}";
    for (language, conflict, nothing) in
        [("en", "is now at version 1.", "Nothing was saved"), ("zh", "现在是版本 1。", "未保存")]
    {
        visitor.language = language;
        let late = visitor.post(path, &form(&[("version", "7"), ("format", "json"), ("text", good)])).await;
        assert!(late.status == 409 && late.text().contains(conflict), "{}", late.text());
        for bad in
            ["{", "{\"rule\": {\"weekdays\": [\"<script>alert(1)</script>\"]}}", "{\"rule\": {\"calendar\": \"x\"}}"]
        {
            for verb in ["save", "try"] {
                let sent = form(&[("version", "1"), ("format", "json"), ("text", bad), ("do", verb)]);
                let answer = visitor.post(path, &sent).await;
                assert_eq!(answer.status, 422, "{bad}");
                let text = answer.text();
                assert!(
                    text.contains(nothing) && text.contains("id=\"errors\"") && !text.contains(HOSTILE_TEXT),
                    "{text}"
                );
            }
        }
    }
    let sent = form(&[("version", "1"), ("format", "json"), ("text", good), ("do", "save")]);
    assert_eq!(location(&visitor.post(path, &sent).await), path);
    let calendar = server.get("/api/v1/calendars/holidays").await.expect(200);
    assert_eq!((&calendar["version"], &calendar["rule"]), (&json!(2), &json!({"weekdays": ["sun"]})));
    assert_eq!(location(&visitor.post("/calendars/holidays/delete", "").await), "/calendars");
    assert_eq!(visitor.get(path).await.status, 404);
}
