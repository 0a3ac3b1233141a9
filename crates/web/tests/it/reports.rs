//! Reports: the API, CSV files, the page and its form.

use axum::body::Body;
use rondel_core::channel::ChannelKind;
use rondel_core::outcome::Outcome;
use serde_json::{Value, json};

use crate::alerts::channel;
use crate::harness::Server;
use crate::visitor::{Visitor, location};

const HOSTILE_TEXT: &str = "<script>alert(1)</script>";

/// Two jobs, one with two successful runs and one with a failed run. The runs are already counted.
async fn server_with_runs() -> Server {
    let server = Server::start().await;
    for (name, label) in [("good", HOSTILE_TEXT), ("bad", "=2+3")] {
        let body = json!({"name": name, "app": "app", "handler": "handler", "labels": {"team": label}});
        server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    }
    for (job, outcome) in
        [("good", Outcome::Succeeded), ("good", Outcome::Succeeded), ("bad", Outcome::Failed { retryable: false })]
    {
        let run = server.trigger(job).await;
        server.finish(run, outcome).await;
    }
    server.count_runs().await;
    server
}

fn items(report: &Value) -> Vec<(String, u64)> {
    let items = report["items"].as_array().expect("a list").iter();
    items.map(|item| (item["name"].as_str().unwrap().to_owned(), item["run_count"].as_u64().unwrap())).collect()
}

#[tokio::test]
async fn runs_are_reported_by_namespace_app_job_and_label() {
    let server = server_with_runs().await;
    for (query, expected) in [
        ("by=namespace", vec![("default", 3)]),
        ("", vec![("app", 3)]),
        ("by=app&app=app", vec![("app", 3)]),
        ("by=job", vec![("bad", 1), ("good", 2)]),
        ("by=job&job=good", vec![("good", 2)]),
        ("by=label&label=team", vec![(HOSTILE_TEXT, 2), ("=2+3", 1)]),
        ("by=job&period=day", vec![("bad", 1), ("good", 2)]),
        ("by=app&period=month", vec![("app", 3)]),
    ] {
        let report = server.get(&format!("/api/v1/reports?{query}")).await.expect(200);
        let expected: Vec<(String, u64)> = expected.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        assert_eq!(items(&report), expected, "{query}");
        assert_eq!(report["total"]["run_count"], expected.iter().map(|(_, count)| count).sum::<u64>(), "{query}");
    }
    let report = server.get("/api/v1/reports").await.expect(200);
    assert_eq!(report["total"]["succeeded_percent"], 66.6);
    // All runs were triggered by hand, so none was scheduled.
    assert_eq!(report["total"]["on_time_percent"], Value::Null);
    assert_eq!(report["failures"][0]["message"], "<b>done</b>");
    assert_eq!(report["failures"][0]["jobs"], json!(["bad"]));
    let good = server.get("/api/v1/reports?by=job&job=good").await.expect(200);
    assert_eq!(good["failures"], json!([]));
    let first = server.get("/api/v1/reports?by=job&limit=1").await.expect(200);
    let cursor = first["next_cursor"].as_str().expect("there is more");
    let second = server.get(&format!("/api/v1/reports?by=job&limit=1&cursor={cursor}")).await.expect(200);
    assert_eq!((items(&first), items(&second)), (vec![("bad".to_owned(), 1)], vec![("good".to_owned(), 2)]));
    let csv = server.get("/api/v1/reports?by=label&label=team&format=csv").await.text();
    assert!(csv.contains("'=2+3,") && csv.lines().count() == 4, "{csv}");
}

#[tokio::test]
async fn a_wrong_question_is_refused_with_its_parameter() {
    let server = Server::start().await;
    for (query, parameter) in [
        ("by=color", "by"),
        ("period=week", "period"),
        ("by=label", "label"),
        ("label=team", "label"),
        ("job=x", "job"),
        ("on_time=soon", "on_time"),
        ("on_time=48h", "on_time"),
        ("from=2027-01-01T00:00:00Z&to=2026-01-01T00:00:00Z", "to"),
        ("from=2020-01-01T00:00:00Z&to=2026-01-01T00:00:00Z", "from"),
        ("limit=501", "limit"),
        ("color=red", "color"),
    ] {
        let refusal = server.get(&format!("/api/v1/reports?{query}")).await.expect(422);
        assert_eq!(refusal["errors"][0]["parameter"], parameter, "{query}: {refusal}");
    }
    server.get("/api/v1/reports?app=none").await.expect(404);
    server.get("/api/v1/reports?by=job&job=none").await.expect(404);
}

#[tokio::test]
async fn a_weekly_report_is_set_changed_and_ended() {
    let server = Server::start().await;
    let path = "/api/v1/reports/schedule";
    server.get(path).await.expect(404);
    channel(&server, ChannelKind::Email, "mail").await;
    let weekly = json!({"weekday": "mon", "time": "08:00", "zone": "Europe/Berlin", "channel": "mail"});
    let saved = server.with_body("PUT", path, &weekly).await.expect(201);
    assert!(saved["next_at"].is_string() && saved["sent_at"].is_null(), "{saved}");
    assert_eq!(server.with_body("PUT", path, &weekly).await.expect(200)["weekday"], "mon");
    for (field, value) in [("time", "8"), ("zone", "Mars/Base"), ("channel", "none"), ("weekday", "someday")] {
        let mut wrong = weekly.clone();
        wrong[field] = json!(value);
        let refusal = server.with_body("PUT", path, &wrong).await.expect(422);
        assert_eq!(refusal["errors"][0]["pointer"], format!("/{field}"), "{refusal}");
    }
    // Sends the report now, in the same way as every week. The schedule remains.
    let send = format!("{path}/send");
    assert_eq!(server.with_body("POST", &send, json!({})).await.expect(200)["channel"], "mail");
    let mut delivered = Value::Null;
    for _ in 0..300 {
        delivered = server.get("/api/v1/channels/mail/deliveries").await.expect(200)["items"][0].clone();
        if !delivered.is_null() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!((&delivered["kind"], &delivered["subject"]), (&json!("report"), &json!("default")), "{delivered}");
    let after = server.get(path).await.expect(200);
    assert_eq!((&after["next_at"], &after["sent_at"]), (&saved["next_at"], &Value::Null));
    server.bare("DELETE", path).await.expect(204);
    server.bare("DELETE", path).await.expect(404);
    server.with_body("POST", &send, json!({})).await.expect(404);
}

/// Otherwise the later save of two browser tabs would silently undo the earlier one.
#[tokio::test]
async fn the_weekly_report_is_changed_in_the_version_that_the_caller_read() {
    let server = Server::start().await;
    let path = "/api/v1/reports/schedule";
    channel(&server, ChannelKind::Email, "mail").await;
    let send = async |method: &str, version: Option<&str>, body: String| {
        let request = server.request(method, path).header("content-type", "application/json");
        let request = version.into_iter().fold(request, |request, version| request.header("if-match", version));
        server.send(request.body(Body::from(body)).unwrap()).await
    };
    let weekly = |time: &str| json!({"weekday": "mon", "time": time, "channel": "mail"}).to_string();
    let visitor = Visitor::signed_in(&server).await;
    let form = |version: i64| format!("weekday=mon&time=09%3A00&zone=UTC&channel=mail&do=save&version={version}");
    assert!(visitor.get("/reports").await.text().contains("name=\"version\" value=\"0\""));
    send("PUT", Some("\"v1\""), weekly("08:00")).await.expect(412);
    let created = send("PUT", None, weekly("08:00")).await;
    assert_eq!(created.headers["etag"], "\"v1\"");
    assert_eq!(created.expect(201)["version"], 1);
    assert!(visitor.get("/reports").await.text().contains("name=\"version\" value=\"1\""));
    assert_eq!(visitor.post("/reports/schedule", &form(0)).await.status, 409, "another tab has saved it first");
    send("PUT", Some("\"v1\""), weekly("10:00")).await.expect(200);
    assert_eq!(send("PUT", Some("\"v1\""), weekly("11:00")).await.expect(412)["current_version"], 2);
    let stale = visitor.post("/reports/schedule", &form(1)).await;
    assert!(stale.status == 409 && stale.text().contains("The weekly report was changed"), "{}", stale.text());
    let now = server.get(path).await;
    assert_eq!(now.headers["etag"], "\"v2\"");
    assert_eq!(now.expect(200)["time"], "10:00");
    assert_eq!(location(&visitor.post("/reports/schedule", &form(2)).await), "/reports#weekly");
    send("DELETE", Some("\"v2\""), String::new()).await.expect(412);
    assert_eq!(send("DELETE", Some("\"v3\""), String::new()).await.status, 204);
}

#[tokio::test]
async fn the_page_shows_hostile_names_as_text_and_saves_the_weekly_report() {
    let server = server_with_runs().await;
    let mut visitor = Visitor::signed_in(&server).await;
    for (language, words) in [("en", ["Most frequent failures", "Weekly report"]), ("zh", ["最常见的失败", "周报"])]
    {
        visitor.language = language;
        let page = visitor.get("/reports?by=label&label=team").await.text();
        assert!(words.iter().all(|word| page.contains(word)), "{page}");
        assert!(
            page.contains("&#60;script&#62;") && !page.contains(HOSTILE_TEXT) && !page.contains("<b>done"),
            "{page}"
        );
        for (query, shown) in [("from=soon", "soon"), ("by=foo", "label"), ("period=foo", "month"), ("days=0", "400")] {
            let wrong = visitor.get(&format!("/reports?{query}")).await.text();
            let error = wrong.split("id=\"errors\">").nth(1).and_then(|rest| rest.split("</div>").next());
            assert!(error.is_some_and(|error| error.contains(shown)), "{query}: {wrong}");
        }
    }
    visitor.language = "en";
    let csv = visitor.get("/export/report.csv?by=job").await.text();
    assert!(csv.contains("good,app,"), "{csv}");
    let page = visitor.get("/reports").await.text();
    assert!(page.contains("There are no channels yet") && !page.contains("name=\"channel\""), "{page}");
    channel(&server, ChannelKind::Email, "mail").await;
    let form = "weekday=fri&time=17%3A00&zone=Asia%2FShanghai&channel=mail&do=save";
    assert_eq!(location(&visitor.post("/reports/schedule", form).await), "/reports#weekly");
    let page = visitor.get("/reports").await.text();
    assert!(page.contains("Friday at 17:00 (Asia/Shanghai) to mail"), "{page}");
    assert!(page.contains("id=\"send-now\""), "{page}");
    assert_eq!(location(&visitor.post("/reports/schedule", "do=send").await), "/alerts/channels/mail");
    let wrong = visitor.post("/reports/schedule", "weekday=fri&time=8&zone=UTC&channel=mail&do=save").await;
    assert!(wrong.status == 422 && wrong.text().contains("weekly-errors"), "{}", wrong.text());
    assert_eq!(location(&visitor.post("/reports/schedule", "do=delete").await), "/reports#weekly");
    server.get("/api/v1/reports/schedule").await.expect(404);
}

#[tokio::test]
async fn the_file_of_a_report_has_the_jobs_of_all_pages() {
    let server = Server::start().await;
    let job = |number| json!({"name": format!("j{number:03}"), "app": "app", "handler": "handler"});
    let jobs: Value = (0..510).map(job).collect();
    server.with_body("POST", "/api/v1/jobs/apply", jobs).await.expect(200);
    let visitor = Visitor::signed_in(&server).await;
    let first = visitor.get("/reports?by=job").await.text();
    assert!(first.contains(">j099</a>") && !first.contains(">j100</a>"), "the page has a hundred");
    for path in ["/export/report.csv?by=job", "/export/report.csv?by=job&cursor=x"] {
        let csv = visitor.get(path).await.text();
        let names: Vec<&str> = csv.lines().skip(1).filter_map(|line| line.split(',').next()).collect();
        assert_eq!((names.len(), names[0], names[509], names[510]), (511, "j000", "j509", "(total)"));
    }
    for (more, count) in [("", 511), ("&limit=20", 21)] {
        let csv = server.get(&format!("/api/v1/reports?by=job&format=csv{more}")).await.text();
        assert_eq!(csv.lines().skip(1).count(), count, "{more}");
    }
}
