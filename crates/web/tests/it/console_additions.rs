//! Saved filters, files of selected jobs, labels in the editor, and actions shown as code.

use serde_json::{Value, json};

use crate::accounts::{signed_in, user, viewer_of};
use crate::harness::Server;
use crate::visitor::{Visitor, location};

const HOSTILE_TEXT: &str = "<script>alert(1)</script>";

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn form(fields: &[(&str, &str)]) -> String {
    fields.iter().map(|(key, value)| format!("{key}={}", encoded(value))).collect::<Vec<_>>().join("&")
}

#[tokio::test]
async fn a_filter_is_saved_for_its_user_alone_and_deleted() {
    let server = Server::start().await;
    for name in ["ann", "bob"] {
        user(&server, name, json!([{"role": "viewer"}])).await;
    }
    let (mut ann, bob) = (signed_in(&server, "ann").await, signed_in(&server, "bob").await);
    let save = |list: &str, name: &str, q: &str| {
        form(&[("list", list), ("name", name), ("q", q), ("back", "/runs?q=status:failed")])
    };
    let page = ann.get("/runs?q=status:failed").await.text();
    assert!(
        page.contains("action=\"/saved-filters\"") && page.contains("name=\"q\" value=\"status:failed\""),
        "{page}"
    );
    assert!(!ann.get("/runs").await.text().contains("action=\"/saved-filters\""), "nothing is there to save");
    let answer = ann.post("/saved-filters", &save("runs", HOSTILE_TEXT, "status:failed")).await;
    assert_eq!(location(&answer), "/runs?q=status:failed");
    ann.post("/saved-filters", &save("runs", "夜间", "app:orders  since:8h")).await;
    for (language, words) in [("en", "Saved filters"), ("zh", "已保存的筛选")] {
        ann.language = language;
        let page = ann.get("/runs?q=status:failed").await.text();
        assert!(page.contains(words) && page.contains("夜间</a>"), "{page}");
        assert!(page.contains("href=\"/runs?q=app%3Aorders%20since%3A8h\""), "{page}");
        assert!(!page.contains(HOSTILE_TEXT) && page.contains("alert(1)"), "a name is text: {page}");
        assert!(!page.contains("action=\"/saved-filters\""), "it is saved already: {page}");
        assert!(!ann.get("/jobs").await.text().contains("夜间"), "each list has its own");
    }
    assert!(!bob.get("/runs").await.text().contains("夜间"), "each user has their own");
    for (list, name, q) in [
        ("nosuch", "a", "status:failed"),
        ("runs", "", "status:failed"),
        ("runs", "a\nb", "status:failed"),
        ("runs", &"n".repeat(61), "status:failed"),
        ("runs", "a", "status:nosuch"),
        ("runs", "a", ""),
    ] {
        assert_eq!(ann.post("/saved-filters", &save(list, name, q)).await.status, 422, "{list} {name} {q}");
    }
    let delete = form(&[("list", "runs"), ("name", HOSTILE_TEXT), ("back", "/runs")]);
    bob.post("/saved-filters/delete", &delete).await;
    assert!(ann.get("/runs").await.text().contains("alert(1)"), "nothing of another user is deleted");
    assert_eq!(location(&ann.post("/saved-filters/delete", &delete).await), "/runs");
    assert!(!ann.get("/runs").await.text().contains("alert(1)"));
    for number in 1..50 {
        let answer = ann.post("/saved-filters", &save("jobs", &format!("n{number}"), "is:failing")).await;
        assert_eq!(answer.status, 303, "{number}");
    }
    ann.language = "en";
    let full = ann.post("/saved-filters", &save("jobs", "one more", "is:failing")).await;
    assert!(full.status == 422 && full.text().contains("50 filters are saved already"), "{}", full.text());
    let page = ann.get("/jobs?q=is:paused").await.text();
    assert!(page.contains("disabled title=\"50 filters are saved already"), "{page}");
}

#[tokio::test]
async fn a_token_with_fewer_rights_than_its_account_has_filters_of_its_own() {
    let server = Server::start().await;
    user(&server, "ann", json!([{"role": "operator"}])).await;
    let ann = signed_in(&server, "ann").await;
    let save = |name: &str| form(&[("list", "runs"), ("name", name), ("q", "app:payroll"), ("back", "/runs")]);
    ann.post("/saved-filters", &save("of-ann")).await;
    let (_, limited) = viewer_of(&server, &ann).await;
    assert!(!limited.get("/runs").await.text().contains("of-ann"), "it can name what the token may not see");
    limited.post("/saved-filters", &save("of-token")).await;
    limited.post("/saved-filters/delete", &form(&[("list", "runs"), ("name", "of-ann"), ("back", "/runs")])).await;
    assert!(limited.get("/runs").await.text().contains("of-token"));
    let page = ann.get("/runs").await.text();
    assert!(page.contains("of-ann") && !page.contains("of-token"), "{page}");
}

#[tokio::test]
async fn chosen_jobs_become_a_file_that_apply_takes() {
    let server = Server::start().await;
    for (name, team) in [("orders.close", "pay"), ("orders.export", "ops"), ("mail.send", "ops")] {
        let body =
            json!({"name": name, "app": "a", "handler": "h", "labels": {"team": team}, "description": HOSTILE_TEXT});
        server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    }
    user(&server, "ann", json!([{"role": "viewer"}])).await;
    let visitor = signed_in(&server, "ann").await;
    let page = visitor.get("/jobs").await.text();
    assert!(page.contains("formaction=\"/export/jobs.yaml\""), "{page}");
    let file = visitor.get("/export/jobs.yaml?q=&back=%2Fjobs&label=&job=orders.close&job=mail.send").await;
    assert_eq!(file.headers["content-disposition"], "attachment; filename=\"jobs.yaml\"");
    assert_eq!(file.headers["content-type"], "application/yaml");
    let whole = server.get("/api/v1/jobs/export?format=yaml").await.text();
    let own = |name: &str| {
        let part = whole.split("- name: ").find(|part| part.starts_with(name)).unwrap_or_default();
        format!("- name: {part}")
    };
    assert_eq!(file.text(), format!("{}{}", own("mail.send"), own("orders.close")), "as the export of the API");
    let matching = visitor.get("/export/jobs.yaml?q=label:team%3Dops").await.text();
    assert!(matching.contains("mail.send") && matching.contains("orders.export") && !matching.contains("orders.close"));
    assert_eq!(visitor.get("/export/jobs.yaml?q=app:none").await.text(), "[]\n");
    for (query, status) in [
        ("", 303),
        ("?back=/jobs%3Fsort=app", 303),
        ("?job=nosuch", 404),
        ("?job=%3Cscript%3E", 422),
        ("?q=is:nosuch", 422),
        ("?job=a&nosuch=1", 422),
    ] {
        assert_eq!(visitor.get(&format!("/export/jobs.yaml{query}")).await.status, status, "{query}");
    }
}

#[tokio::test]
async fn labels_are_rows_of_the_editor_and_of_its_yaml() {
    let server = Server::start().await;
    let body = json!({"name": "there", "app": "a", "handler": "h", "labels": {"team": "pay", "tier": HOSTILE_TEXT}});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    let mut visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/jobs/there/edit").await.text();
    for part in [
        "name=\"label.0.key\" value=\"team\"",
        "name=\"label.0.value\" value=\"pay\"",
        "name=\"label.1.key\" value=\"tier\"",
        "name=\"label.2.key\" value=\"\"",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains(HOSTILE_TEXT), "{page}");
    let base = [
        ("version", "1"),
        ("name", "there"),
        ("app", "a"),
        ("handler", "h"),
        ("kind", "none"),
        ("retry_max", "0"),
        ("retry_backoff", "10s"),
        ("enabled", "yes"),
        ("labels", "1"),
    ];
    let with = |rows: &[(&str, &str)]| {
        let mut fields: Vec<(&str, &str)> = base.to_vec();
        fields.extend(rows);
        form(&fields)
    };
    let wrong = with(&[
        ("label.0.key", "a b"),
        ("label.0.value", HOSTILE_TEXT),
        ("label.1.key", "team"),
        ("label.1.value", "pay"),
        ("label.2.key", "team"),
        ("label.2.value", "ops"),
    ]);
    for (language, words, twice) in
        [("en", "Nothing can be saved with the marked labels", "is named twice"), ("zh", "标出的标签有误", "重复出现")]
    {
        visitor.language = language;
        let answer = visitor.post("/jobs/there/edit", &wrong).await;
        let page = answer.text();
        assert!(answer.status == 422 && page.contains(words) && page.contains(twice), "{page}");
        assert!(page.contains("id=\"label-fault-0\"") && page.contains("id=\"label-fault-2\""), "{page}");
        assert!(!page.contains("id=\"label-fault-1\"") && !page.contains(HOSTILE_TEXT), "{page}");
        assert!(page.contains("name=\"label.0.key\" value=\"a b\""), "what was typed is kept: {page}");
    }
    let good =
        with(&[("label.5.key", "team"), ("label.5.value", "支付 组"), ("label.9.key", ""), ("label.9.value", "")]);
    let yaml = visitor.post("/job-yaml", &format!("{good}&was=there")).await.text();
    assert!(yaml.contains("team: ") && yaml.contains("支付 组"), "the YAML keeps step: {yaml}");
    let code = visitor.post("/job-code", &format!("{good}&was=there")).await.text();
    assert!(code.contains("curl -X PUT") && code.contains("/api/v1/jobs/there?namespace=default"), "{code}");
    assert!(code.contains("rondel job apply -f - --namespace default") && code.contains("支付 组"), "{code}");
    let code = visitor.post("/job-code", &good).await.text();
    assert!(code.contains("curl -X POST") && !code.contains("-X PUT"), "a new job: {code}");
    let refusal = visitor.post("/job-code", &wrong).await.text();
    assert!(refusal.contains("class=\"error\"") && !refusal.contains("curl -X"), "{refusal}");
    assert_eq!(location(&visitor.post("/jobs/there/edit", &good).await), "/jobs/there");
    let labels = |job: Value| job["labels"].clone();
    assert_eq!(labels(server.get("/api/v1/jobs/there").await.expect(200)), json!({"team": "支付 组"}));
    let none = with(&[]).replacen("version=%31", "version=%32", 1);
    assert_eq!(location(&visitor.post("/jobs/there/edit", &none).await), "/jobs/there");
    assert_eq!(labels(server.get("/api/v1/jobs/there").await.expect(200)), Value::Null);
}

#[tokio::test]
async fn pages_write_their_actions_as_code() {
    let server = Server::start().await;
    server.with_body("PUT", "/api/v1/calendars/work", json!({"rule": {"weekdays": ["mon"]}})).await.expect(201);
    user(&server, "o.neil@x", json!([{"role": "operator", "namespace": "default"}])).await;
    server.job("there").await;
    let visitor = Visitor::signed_in(&server).await;
    for (path, parts) in [
        ("/calendars", vec!["/api/v1/calendars?namespace=default", "rondel calendar list --namespace default"]),
        ("/calendars/work", vec!["curl -X PUT", "rondel calendar apply -f - --namespace default"]),
        (
            "/users",
            vec![
                "rondel user list --all",
                "rondel user create maria --role operator:default",
                "curl -X PATCH",
                "rondel user change",
                "--role operator:default --enable",
            ],
        ),
        ("/jobs/there/edit", vec!["curl -X PUT", "rondel job apply -f - --namespace default", "hx-post=\"/job-code\""]),
        ("/jobs/new", vec!["hx-post=\"/job-code\""]),
    ] {
        let page = visitor.get(path).await.text();
        for part in parts {
            assert!(page.contains(part), "{path}: {part}: {page}");
        }
    }
}

/// On a page that is not in the menu, the menu marks the part to which the page belongs.
#[tokio::test]
async fn channels_belong_to_alerts() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/alerts/channels").await.text();
    assert!(page.contains("<a href=\"/alerts\" data-key=\"l\" aria-current=\"page\">"), "{page}");
}

/// Each beat of a server reports how late its fires were.
#[tokio::test]
async fn the_fleet_shows_how_late_each_server_is() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/executors").await.text();
    assert!(page.contains("Late, p99") && page.contains("No fire in the last 5 minutes"), "{page}");
    let often = json!({"name": "often", "app": "a", "handler": "h", "schedule": {"every": "1s"}});
    server.with_body("POST", "/api/v1/jobs", often).await.expect(201);
    let end = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let nodes = server.get("/api/v1/nodes").await.expect(200);
        let late = nodes["items"][0]["lateness_p99_ms"].as_u64();
        if let Some(late) = late {
            assert!(late <= 600_001, "{nodes}");
            break;
        }
        assert!(tokio::time::Instant::now() < end, "{nodes}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let page = visitor.get("/executors").await.text();
    assert!(page.contains("<td class=\"num late\"") && page.contains("≤ "), "{page}");
}
