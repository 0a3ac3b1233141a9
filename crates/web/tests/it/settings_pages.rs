//! Settings with pickers, the fields and the YAML of the job editor, calendars as fields, and the page of the API.

use serde_json::{Value, json};

use crate::harness::Server;
use crate::visitor::{Visitor, location};

fn form(fields: &[(&str, &str)]) -> String {
    let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    fields.iter().map(|(key, value)| format!("{key}={}", encoded(value))).collect::<Vec<_>>().join("&")
}

#[tokio::test]
async fn a_user_is_invited_with_a_role_by_pickers() {
    let server = Server::start().await;
    server.job("there").await;
    let mut visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/users").await.text();
    assert!(page.contains("<option value=\"default/app\">") && page.contains("name=\"grant.0.role\""), "{page}");
    let fields = [("name", "ann"), ("grant.0.role", "operator"), ("grant.0.place", "default/app"), ("do", "invite")];
    let page = visitor.post("/users", &form(&fields)).await.text();
    assert!(page.contains("http://here/sign-in?token=") && page.contains("Operator · default/app"), "{page}");
    let user = server.get("/api/v1/users/ann").await.expect(200);
    assert_eq!(user["grants"], json!([{"role": "operator", "namespace": "default", "app": "app"}]));
    for (fields, message) in [
        (
            vec![("name", "ann"), ("display_name", "<b>kept"), ("grant.0.role", "viewer")],
            "A user with this name exists.",
        ),
        (vec![("name", "Ä b"), ("display_name", "<b>kept")], "This user name cannot be used"),
        (
            vec![("name", "bob"), ("display_name", "<b>kept"), ("grant.0.role", "viewer"), ("grant.0.place", "gone")],
            "see the marked row",
        ),
    ] {
        let answer = visitor.post("/users", &form(&fields)).await;
        assert!(answer.status == 422 || answer.status == 409, "{fields:?}: {}", answer.status);
        let page = answer.text();
        assert!(page.contains(message) && !page.contains("/grants/"), "{fields:?}: {page}");
        assert!(page.contains("value=\"&#60;b&#62;kept\""), "what was typed stays: {page}");
    }
    let change = [("grant.0.role", "viewer"), ("grant.0.place", ""), ("disabled", "0")];
    assert_eq!(location(&visitor.post("/users/ann", &form(&change)).await), "/users");
    let user = server.get("/api/v1/users/ann").await.expect(200);
    assert_eq!(user["grants"], json!([{"role": "viewer", "namespace": null, "app": null}]));
    visitor.language = "zh";
    for path in ["/settings", "/settings/tokens", "/settings/webhooks", "/settings/sign-in"] {
        let answer = visitor.get(path).await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.text().contains("aria-current=\"page\""), "{path}");
    }
}

/// Each of two administrators has the page open. The one who saves later has not seen the change of the other.
#[tokio::test]
async fn an_old_page_restores_no_role_and_lifts_no_lock() {
    let server = Server::start().await;
    let grants = json!([{"role": "viewer"}, {"role": "operator", "namespace": "default"}]);
    server.with_body("POST", "/api/v1/users", json!({"name": "ann", "grants": grants})).await.expect(201);
    let mut visitor = Visitor::signed_in(&server).await;
    let shown_state = |page: &str| {
        let (_, rest) = page.split_once("name=\"shown\" value=\"").expect("the form has the state that it shows");
        rest.split('"').next().unwrap().to_owned()
    };
    let old_state = shown_state(&visitor.get("/users").await.text());
    let change = json!({"grants": [{"role": "viewer"}], "disabled": true});
    server.with_body("PATCH", "/api/v1/users/ann", change).await.expect(200);
    let fields = |state: &str| {
        form(&[
            ("grant.0.role", "viewer"),
            ("grant.1.role", "operator"),
            ("grant.1.place", "default"),
            ("disabled", "0"),
            ("shown", state),
        ])
    };
    let mut new_state = String::new();
    for (language, message) in [("en", "Nothing was saved: the roles"), ("zh", "未保存：该用户")] {
        visitor.language = language;
        let answer = visitor.post("/users/ann", &fields(&old_state)).await;
        assert!(answer.status == 412 && answer.text().contains(message), "{}: {}", answer.status, answer.text());
        new_state = shown_state(&answer.text());
    }
    let user = server.get("/api/v1/users/ann").await.expect(200);
    assert_eq!(user["grants"], json!([{"role": "viewer", "namespace": null, "app": null}]));
    assert_eq!(user["disabled"], json!(true));
    // The answer shows the present state, so saving it again replaces that state knowingly.
    assert_eq!(location(&visitor.post("/users/ann", &fields(&new_state)).await), "/users");
    let user = server.get("/api/v1/users/ann").await.expect(200);
    assert_eq!((user["grants"].as_array().map(Vec::len), &user["disabled"]), (Some(2), &json!(false)));
}

#[tokio::test]
async fn the_users_have_pages() {
    let server = Server::start().await;
    for number in 0..201 {
        let user = json!({"name": format!("user-{number:03}"), "grants": []});
        server.with_body("POST", "/api/v1/users", user).await.expect(201);
    }
    let visitor = Visitor::signed_in(&server).await;
    let first = visitor.get("/users").await.text();
    assert!(first.contains(">user-000<") && !first.contains(">user-200<"), "{first}");
    let next = first.split("href=\"/users?").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let second = format!("/users?{next}");
    let page = visitor.get(&second).await.text();
    assert!(page.contains(">user-200<") && !page.contains(">user-000<"), "{page}");
    let form = format!("action=\"/users/user-200?{next}\"");
    assert!(page.contains(&form), "{page}");
    let changed = visitor.post(&format!("/users/user-200?{next}"), "disabled=1").await;
    assert_eq!(location(&changed), second, "the form leads back to its page");
    assert_eq!(server.get("/api/v1/users/user-200").await.expect(200)["disabled"], json!(true));
    assert_eq!(visitor.get("/users?cursor=x").await.status, 422);
}

#[tokio::test]
async fn webhooks_are_set_and_removed_and_tokens_listed() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let path = "/namespaces/default/failure-webhook";
    let created = visitor.post(path, &form(&[("url", "https://alerts.example.com/x")])).await;
    assert!(created.status == 200 && created.text().contains("shown only this once"), "{}", created.text());
    let bad = visitor.post(path, &form(&[("url", "ftp://<b>")])).await;
    assert!(bad.status == 422 && bad.text().contains("value=\"ftp://&#60;b&#62;\""), "{}", bad.text());
    assert_eq!(location(&visitor.post(path, "url=").await), "/settings/webhooks");
    assert_eq!(server.get("/api/v1/namespaces/default/failure-webhook").await.status, 404);
    let token = json!({"kind": "api", "name": "ci", "grants": [{"role": "viewer"}], "expires_in": "2d"});
    server.with_body("POST", "/api/v1/tokens", token).await.expect(201);
    let text = visitor.get("/settings/tokens").await.text();
    assert!(text.contains("Expires soon") && text.contains(">ci</span>"), "{text}");
}

#[tokio::test]
async fn every_option_is_a_field_and_the_yaml_keeps_in_step() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let fields = [
        ("name", "there"),
        ("app", "a"),
        ("handler", "h"),
        ("kind", "cron"),
        ("cron", "0 30 2 * * ?"),
        ("time_zone", "Europe/Berlin"),
        ("dst_gap", "skip"),
        ("jitter_max", "30s"),
        ("retry_max", "2"),
        ("retry_backoff", "5s"),
        ("select_labels", "zone=eu !old"),
        ("shards", "3"),
        ("misfire", "all"),
        ("misfire_max", "7"),
        ("misfire_keep", "oldest"),
        ("overlap", "allow"),
        ("overlap_max", "4"),
        ("rate_max", "2"),
        ("rate_per", "1m"),
        ("concurrency_key", "db"),
        ("concurrency_max", "5"),
        ("over", "children"),
        ("notify", "1"),
        ("notify.misfire", "1"),
        ("notify.handler", "1"),
    ];
    assert_eq!(location(&visitor.post("/jobs", &form(&fields)).await), "/jobs/there");
    let created = server.get("/api/v1/jobs/there").await.expect(200);
    for (pointer, expected) in [
        ("/schedule/dst/gap", json!("skip")),
        ("/schedule/jitter/max", json!("30s")),
        ("/select/labels", json!(["zone=eu", "!old"])),
        ("/shards", json!(3)),
        ("/misfire/max", json!(7)),
        ("/misfire/keep", json!("oldest")),
        ("/overlap/max", json!(4)),
        ("/rate/per", json!("1m")),
        ("/concurrency", json!({"key": "db", "max": 5})),
        ("/over", json!("children")),
        ("/notify/skipped", json!(["misfire", "handler"])),
    ] {
        assert_eq!(created.pointer(pointer).unwrap_or(&Value::Null), &expected, "{pointer}");
    }
    let yaml = visitor.post("/job-yaml", &form(&fields)).await.text();
    assert!(
        yaml.contains("select:") && yaml.contains("concurrency:") && yaml.contains("name=\"definition\""),
        "{yaml}"
    );
    let wrong = visitor.post("/job-yaml", &form(&[("name", "Ä")])).await.text();
    assert!(wrong.contains("are not a valid definition yet"), "{wrong}");
    let text = "app: a\nhandler: h2\nschedule:\n  - every: 1h\n  - cron: 0 0 1 * * ?\n";
    let into =
        visitor.post("/jobs/there/edit", &form(&[("version", "1"), ("definition", text), ("do", "fields")])).await;
    assert!(into.status == 200 && into.text().contains("value=\"h2\""), "{}", into.text());
    assert_eq!(
        location(&visitor.post("/jobs/there/edit", &form(&[("version", "1"), ("definition", text)])).await),
        "/jobs/there"
    );
    let late =
        visitor.post("/jobs/there/edit", &form(&[("version", "1"), ("definition", "app: a\nhandler: h3\n")])).await;
    assert!(late.status == 409 && late.text().contains("<code>handler</code>"), "{}", late.text());
    let bad = visitor.post("/jobs/there/edit", &form(&[("version", "2"), ("definition", "app: [\n")])).await;
    assert!(bad.status == 422 && bad.text().contains("line 2"), "{}", bad.text());
    let preview = visitor.get("/schedule-preview?kind=every&every=2h&was=there").await.text();
    assert!(preview.contains("class=\"minus\"") && preview.contains("class=\"plus\""), "{preview}");
}

#[tokio::test]
async fn a_calendar_is_made_of_days_without_json() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let fields = [
        ("name", "work"),
        ("format", "days"),
        ("weekday.mon", "1"),
        ("weekday.fri", "1"),
        ("removed", "2027-01-01 New Year"),
        ("pick.0.from", "2027-02-27"),
        ("pick.0.to", "2027-02-28"),
        ("pick.0.name", "Stocktaking"),
        ("pick.0.kind", "in"),
        ("do", "save"),
    ];
    assert_eq!(location(&visitor.post("/calendars", &form(&fields)).await), "/calendars/work");
    let created = server.get("/api/v1/calendars/work").await.expect(200);
    let rule = json!({"any": [
        {"all": [{"weekdays": ["mon", "fri"]}, {"not": {"days": [{"date": "2027-01-01", "name": "New Year"}]}}]},
        {"days": [{"date": "2027-02-27..2027-02-28", "name": "Stocktaking"}]}]});
    assert_eq!(created["rule"], rule);
    let page = visitor.get("/calendars/work").await.text();
    assert!(
        page.contains("2027-01-01 New Year") && page.contains("name=\"weekday.fri\" value=\"1\" checked"),
        "{page}"
    );
}

#[tokio::test]
async fn the_api_is_searched_and_shown() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let all = visitor.get("/api-docs").await.text();
    assert!(all.contains("/api-docs?op=post_jobs\"") && all.contains("Choose an endpoint"), "{all}");
    let found = visitor.get("/api-docs?q=pause&op=post_jobs_name_pause").await.text();
    assert!(!found.contains("op=get_tokens") && found.contains("rondel api POST"), "{found}");
    let endpoint_page = visitor.get("/api-docs?op=post_jobs").await.text();
    for expected in ["Idempotency-Key", "<code>schedule</code>", "invalid_json", "curl -X POST", "report.daily"] {
        assert!(endpoint_page.contains(expected), "{expected}: {endpoint_page}");
    }
    assert!(visitor.get("/api-docs?q=%3Cscript%3Enothing").await.text().contains("No endpoint matches"));
}
