//! Business calendars: the computed days, and how a change of them affects a job that is firing.

use std::time::Duration;

use rondel_tests::{Agent, ScratchDb, Server, wait_until};
use serde_json::{Value, json};

use crate::edits::{now_seconds, some_lines};
use crate::journal::{Journal, seconds};
use crate::on_each_database;

/// Monday to Friday without the holidays, and a make-up Saturday; in 2030 the first of October is a Tuesday.
const WORKDAYS: &str = "date,name,kind\n2030-10-01..2030-10-07,国庆节,holiday\n2030-10-12,补班,workday\n";

async fn import(server: &Server, path: &str, text: &str) -> rondel_tests::Answer {
    let api = server.api();
    let request = api.request(rondel_tests::Method::POST, path);
    api.answer(request.header("content-type", "text/plain").body(text.to_owned())).await
}

/// A holiday week in Asia/Shanghai: the job runs on the days on which the office is open.
async fn fires_are_on_the_days_on_which_the_office_is_open(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    import(&server, "/api/v1/calendars/cn/import?format=csv&as=workdays", WORKDAYS).await.expect(201);
    let job = json!({
        "name": "opening", "app": "files", "handler": "shell", "params": {"argv": ["true"]},
        "schedule": {"cron": "0 0 9 * * ?", "time_zone": "Asia/Shanghai"}, "calendar": {"name": "cn"},
    });
    api.post("/api/v1/jobs", job).await.expect(201);
    let range = "/api/v1/jobs/opening/fires?from=2030-09-28T16:00:00Z&to=2030-10-14T16:00:00Z";
    let days = |account: &Value, verdict: &str| -> Vec<String> {
        let items = account["items"].as_array().expect("items").iter().filter(|item| item["verdict"] == verdict);
        // 09:00 in Shanghai is 01:00 in UTC, on the same day.
        items.map(|item| item["fire_at"].as_str().expect("an instant").replace("T01:00:00Z", "")).collect()
    };
    let account = api.get(range).await.expect(200);
    let working = ["2030-09-30", "2030-10-08", "2030-10-09", "2030-10-10", "2030-10-11", "2030-10-12", "2030-10-14"];
    assert_eq!(days(&account, "planned"), working, "{account:#}");
    let why = api.get("/api/v1/jobs/opening/why?at=2030-10-02T01:00:00Z").await.expect(200);
    assert_eq!(why["fire"]["calendar"], json!({"name": "cn", "day": "国庆节", "moved_to": null}), "{why:#}");

    let used = api.delete("/api/v1/calendars/cn").await.expect(409);
    assert!(used["detail"].as_str().is_some_and(|detail| detail.contains("opening")), "{used}");
    let bad = "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nSUMMARY:lunch\r\nDTSTART:20301001T120000Z\r\nEND:VEVENT\r\n";
    let refusal = import(&server, "/api/v1/calendars/cn/import?format=ics", bad).await.expect(422);
    assert!(refusal["detail"].as_str().is_some_and(|detail| detail.contains("line 4")), "{refusal}");
    assert_eq!(api.get("/api/v1/calendars/cn").await.expect(200)["version"], 1);
}
on_each_database!(fires_are_on_the_days_on_which_the_office_is_open);

/// Once a change of a calendar is acknowledged, a job that fires each second follows it within a second.
async fn a_change_of_the_calendar_moves_the_fires(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let closed = |days: &[&str]| json!({"rule": {"days": days}});
    api.put("/api/v1/calendars/closed", closed(&["2000-01-01"])).await.expect(201);
    api.put("/api/v1/calendars/open", json!({"rule": {"not": {"calendar": "closed"}}})).await.expect(201);
    let journal = Journal::new();
    let job = json!({
        "name": "j", "app": "files", "handler": "shell", "params": journal.params(""), "schedule": {"every": "1s"},
        "calendar": {"name": "open"},
    });
    api.post("/api/v1/jobs", job).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    some_lines(&journal, 2).await;

    api.put("/api/v1/calendars/closed", closed(&["2000-01-01..2199-12-30"])).await.expect(422);
    api.put("/api/v1/calendars/closed", closed(&["2026-01-01..2060-12-31"])).await.expect(200);
    let changed_at = now_seconds();
    wait_until(Duration::from_secs(20), "what was claimed is past", async || {
        if now_seconds() > changed_at + 6 { Ok(()) } else { Err(()) }
    })
    .await;
    let late: Vec<_> = journal.lines().into_iter().filter(|line| seconds(&line.fire_at) > changed_at + 1).collect();
    assert!(late.is_empty(), "ran under the old calendar after {changed_at}: {late:?}");

    api.put("/api/v1/calendars/closed", closed(&[])).await.expect(200);
    let count = journal.lines().len();
    some_lines(&journal, count + 2).await;
    assert!(journal.by_fire().values().all(|lines| lines.len() == 1));
}
on_each_database!(a_change_of_the_calendar_moves_the_fires);
