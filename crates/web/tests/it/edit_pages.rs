//! The form that edits a job.

use serde_json::{Value, json};

use crate::harness::Server;
use crate::visitor::{Visitor, location};

const HOSTILE_TEXT: &str = "<script>alert(1)</script>";

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

async fn job(server: &Server, change: Value) -> Value {
    let mut body = json!({"name": "there", "app": "a", "handler": "h", "description": HOSTILE_TEXT, "params": {"a": HOSTILE_TEXT},
        "shards": 3, "select": {"labels": ["ssd"]}, "misfire": {"policy": "all", "max": 7}, "priority": 8});
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201)
}

/// The fields of the first form in a page, as a browser would send them.
fn fields(page: &str) -> Vec<(String, String)> {
    let form = page.split_once("class=\"sheet\"").unwrap().1.split_once("</form>").unwrap().0;
    let unescape = |text: &str| {
        let pairs = [("&#34;", "\""), ("&#39;", "'"), ("&#60;", "<"), ("&#62;", ">"), ("&#38;", "&")];
        pairs.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    };
    let attribute = |tag: &str, name: &str| {
        Some(unescape(tag.split_once(&format!(" {name}=\""))?.1.split_once('"')?.0)).filter(|text| !text.is_empty())
    };
    let mut fields = Vec::new();
    for part in form.split('<').skip(1) {
        let (tag, text) = part.split_once('>').unwrap();
        let Some(name) = attribute(tag, "name") else {
            if tag.starts_with("option") && tag.ends_with(" selected") {
                let (key, _): (String, String) = fields.pop().unwrap();
                fields.push((key, attribute(tag, "value").unwrap_or_default()));
            }
            continue;
        };
        let is_choice = tag.contains("type=\"radio\"") || tag.contains("type=\"checkbox\"");
        if tag.starts_with("textarea") {
            fields.push((name, unescape(text)));
        } else if !is_choice || tag.ends_with(" checked") {
            fields.push((name, attribute(tag, "value").unwrap_or_default()));
        }
    }
    fields
}

fn body(fields: &[(String, String)]) -> String {
    fields.iter().map(|(key, value)| format!("{key}={}", encoded(value))).collect::<Vec<_>>().join("&")
}

fn set(fields: &mut Vec<(String, String)>, name: &str, value: &str) {
    fields.retain(|(key, _)| key != name);
    fields.push((name.to_owned(), value.to_owned()));
}

#[tokio::test]
async fn a_pump_is_made_kept_and_changed_by_the_form() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let pump = r#"{"items": [{"name": "eu", "params": {"schema": "eu"}}, {"name": "us"}], "groups": 2}"#;
    let form = [
        ("name", "orders"),
        ("app", "a"),
        ("handler", "h"),
        ("kind", "none"),
        ("retry_max", "0"),
        ("retry_backoff", "10s"),
        ("pump", pump),
    ];
    let form: Vec<_> = form.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    assert_eq!(location(&visitor.post("/jobs", &body(&form)).await), "/jobs/orders");
    let pump = server.get("/api/v1/jobs/orders").await.expect(200)["pump"].clone();
    assert_eq!((&pump["items"][0]["params"], &pump["threads"]), (&json!({"schema": "eu"}), &json!(5)));

    let mut sent = fields(&visitor.get("/jobs/orders/edit").await.text());
    set(&mut sent, "description", "closes orders");
    location(&visitor.post("/jobs/orders/edit", &body(&sent)).await);
    let job = server.get("/api/v1/jobs/orders").await.expect(200);
    assert_eq!((&job["description"], &job["pump"], &job["version"]), (&json!("closes orders"), &pump, &json!(2)));

    let mut sent = fields(&visitor.get("/jobs/orders/edit").await.text());
    set(&mut sent, "pump", r#"{"items": {"count": 4}, "groups": 5, "hand_over": "20s"}"#);
    let refusal = visitor.post("/jobs/orders/edit", &body(&sent)).await;
    assert_eq!(refusal.status, 422);
    let page = refusal.text();
    assert!(page.contains("/pump/groups: 5 groups for 4 items"), "{page}");
    assert!(page.contains("&#34;groups&#34;: 5"), "what was typed stays: {page}");
    let mut form: Vec<_> = sent.iter().filter(|(name, _)| name != "pump").cloned().collect();
    set(&mut form, "misfire_max", "3");
    let refused = visitor.post("/jobs/orders/edit", &body(&form)).await;
    assert_eq!(refused.status, 422);
    let page = refused.text();
    assert!(page.contains("a pump job begins once after missed starts, however many there are"), "{page}");
    set(&mut form, "misfire_max", "100");
    set(&mut form, "description", "closes them");
    location(&visitor.post("/jobs/orders/edit", &body(&form)).await);
    assert_eq!(server.get("/api/v1/jobs/orders").await.expect(200)["pump"], pump, "a form without the field");

    let text = "app: a\nhandler: h\npump:\n  items: {count: 4}\n  groups: 2\n  until: empty\n";
    let form = format!("version=3&definition={}", encoded(text));
    location(&visitor.post("/jobs/orders/edit", &form).await);
    let job = server.get("/api/v1/jobs/orders").await.expect(200);
    assert_eq!((&job["pump"]["items"], &job["pump"]["until"]), (&json!({"count": 4}), &json!("empty")));
    assert!(visitor.get("/jobs/orders/edit").await.text().contains("until: empty"), "the text has the pump too");
}

#[tokio::test]
async fn fields_that_the_form_does_not_show_stay() {
    let server = Server::start().await;
    server.with_body("PUT", "/api/v1/calendars/work", json!({"rule": {"weekdays": ["mon"]}})).await.expect(201);
    let visitor = Visitor::signed_in(&server).await;
    for (index, schedule) in [
        json!(null),
        json!({"cron": "0 0 12 * * ?", "time_zone": "Asia/Shanghai"}),
        json!({"cron": "0 0 12 * * ?", "time_zone": "Europe/Berlin", "dst": {"gap": "skip"}}),
        json!({"every": "90m"}),
        json!({"at": "2030-01-01T00:00:00Z"}),
        json!({"at": "2030-01-01T00:00:00+08:00"}),
        json!([{"cron": "0 0 1 * * ?"}, {"every": "1h", "jitter": {"max": "5s"}}]),
        json!({"delay": "5s"}),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("job-{index}");
        let mut change = json!({"name": name, "schedule": schedule});
        if !schedule.is_null() && schedule.get("delay").is_none() {
            change["calendar"] = json!({"name": "work", "rule": "except"});
        }
        let before = job(&server, change).await;
        let page = visitor.get(&format!("/jobs/{name}/edit")).await;
        assert_eq!(page.status, 200, "{schedule}");
        assert!(!page.text().contains("<script>alert"), "{}", page.text());
        let mut sent = fields(&page.text());
        let path = format!("/jobs/{name}/edit");
        assert_eq!(location(&visitor.post(&path, &body(&sent)).await), format!("/jobs/{name}"), "{schedule}");
        let same = server.get(&format!("/api/v1/jobs/{name}")).await.expect(200);
        assert_eq!(same["version"], before["version"], "nothing was changed: {schedule}");
        set(&mut sent, "timeout", "9s");
        set(&mut sent, "priority", "1");
        assert_eq!(location(&visitor.post(&path, &body(&sent)).await), format!("/jobs/{name}"), "{schedule}");
        let mut after = server.get(&format!("/api/v1/jobs/{name}")).await.expect(200);
        assert_eq!((after["timeout"].take(), after["priority"].take()), (json!("9s"), json!(1)));
        for key in ["schedule", "calendar", "shards", "select", "misfire", "params", "description", "enabled"] {
            assert_eq!(after[key], before[key], "{key} of {schedule}");
        }
    }
}

#[tokio::test]
async fn a_description_of_several_lines_keeps_them() {
    let server = Server::start().await;
    let text = "loads the orders\nowner: <b>\n";
    job(&server, json!({ "description": text })).await;
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/jobs/there/edit").await.text();
    // In a browser, a field of one line would lose the line breaks.
    assert!(page.contains("<textarea name=\"description\""), "{page}");
    for (typed, saved) in [(text.replace('\n', "\r\n"), text), ("one\r\ntwo".to_owned(), "one\ntwo")] {
        let mut sent = fields(&visitor.get("/jobs/there/edit").await.text());
        set(&mut sent, "description", &typed);
        set(&mut sent, "priority", "1");
        location(&visitor.post("/jobs/there/edit", &body(&sent)).await);
        let job = server.get("/api/v1/jobs/there").await.expect(200);
        assert_eq!((&job["description"], &job["priority"]), (&json!(saved), &json!(1)));
    }
}

#[tokio::test]
async fn errors_stand_at_their_fields_and_nothing_typed_is_lost() {
    let server = Server::start().await;
    job(&server, json!({"schedule": {"every": "1h"}})).await;
    server.job("other").await;
    let mut visitor = Visitor::signed_in(&server).await;
    let sent = fields(&visitor.get("/jobs/there/edit").await.text());
    for (changes, field) in [
        (vec![("app", "Ä")], "app"),
        (vec![("name", "\"><script>alert(1)</script>")], "name"),
        (vec![("name", "other")], "name"),
        (vec![("priority", "10")], "priority"),
        (vec![("priority", "-1")], "priority"),
        (vec![("timeout", "soon")], "timeout"),
        (vec![("queue_timeout", "0s")], "queue_timeout"),
        (vec![("calendar", "none-such")], "calendar"),
        (vec![("calendar_rule", "never"), ("calendar", "x")], "calendar_rule"),
        (vec![("kind", "cron"), ("cron", "61 * * * * ?")], "cron"),
        (vec![("kind", "cron"), ("time_zone", "Mars/Base")], "time_zone"),
        (vec![("kind", "json"), ("schedule_json", "[{")], "schedule_json"),
        (vec![("kind", "json"), ("schedule_json", "[{\"every\": \"1h\"}, {\"every\": \"x\"}]")], "schedule_json"),
        (vec![("params", "{")], "params"),
        (vec![("retry_max", "101")], "retry_max"),
    ] {
        let mut sent = sent.clone();
        for (name, value) in &changes {
            set(&mut sent, name, value);
        }
        for (language, title) in [("en", "Nothing was saved."), ("zh", "未保存")] {
            visitor.language = language;
            let answer = visitor.post("/jobs/there/edit", &body(&sent)).await;
            assert_eq!(answer.status, 422, "{changes:?}");
            let text = answer.text();
            assert!(text.contains(title) && text.contains(&format!("id=\"error-{field}\"")), "{changes:?}: {text}");
            assert!(!text.contains("<script>alert"), "{text}");
            let kept = fields(&text);
            for (name, value) in &changes {
                if !matches!(*name, "calendar_rule") {
                    assert!(kept.iter().any(|(key, kept)| key == name && kept == value), "{name} is lost: {text}");
                }
            }
        }
    }
    assert_eq!(server.get("/api/v1/jobs/there").await.expect(200)["version"], 1);
}

#[tokio::test]
async fn a_folded_part_of_the_form_is_open_over_an_error() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    for (typed, missing) in
        [("concurrency_max=3", "concurrency_key"), ("rate_per=1m", "rate_max"), ("rate_key=db", "rate_max")]
    {
        let form = format!("name=orders&app=a&handler=h&kind=none&retry_max=0&retry_backoff=10s&{typed}");
        let answer = visitor.post("/jobs", &form).await;
        assert_eq!(answer.status, 422, "{typed}");
        let text = answer.text();
        let (before, _) = text.split_once(&format!("id=\"error-{missing}\"")).expect("an error at the field");
        let (_, part) = before.rsplit_once("<details ").expect("a part around the field");
        assert!(part.starts_with("class=\"more-options\" open>"), "{typed}: {part}");
    }
}

#[tokio::test]
async fn the_slower_of_two_users_gets_a_conflict_and_keeps_the_input() {
    let server = Server::start().await;
    job(&server, json!({"schedule": {"every": "1h"}})).await;
    let mut visitor = Visitor::signed_in(&server).await;
    let mut sent = fields(&visitor.get("/jobs/there/edit").await.text());
    server.with_body("PATCH", "/api/v1/jobs/there", json!({"shards": 5})).await.expect(200);
    set(&mut sent, "description", "mine");
    for (language, expected) in [("en", "is now at version 2."), ("zh", "现在是版本 2。")] {
        visitor.language = language;
        let answer = visitor.post("/jobs/there/edit", &body(&sent)).await;
        assert_eq!(answer.status, 409);
        assert!(answer.text().contains(expected) && answer.text().contains("value=\"mine\""), "{}", answer.text());
    }
    let again = fields(&visitor.post("/jobs/there/edit", &body(&sent)).await.text());
    assert_eq!(location(&visitor.post("/jobs/there/edit", &body(&again)).await), "/jobs/there");
    let job = server.get("/api/v1/jobs/there").await.expect(200);
    assert_eq!((&job["description"], &job["shards"]), (&json!("mine"), &json!(5)));
    set(&mut sent, "version", "");
    assert_eq!(visitor.post("/jobs/there/edit", &body(&sent)).await.status, 409);
}

#[tokio::test]
async fn an_error_in_the_slower_form_undoes_nothing_of_the_faster_one() {
    let server = Server::start().await;
    job(&server, json!({"schedule": {"every": "1h"}})).await;
    let visitor = Visitor::signed_in(&server).await;
    let mut sent = fields(&visitor.get("/jobs/there/edit").await.text());
    server.with_body("PATCH", "/api/v1/jobs/there", json!({"shards": 5})).await.expect(200);
    set(&mut sent, "description", "mine");
    set(&mut sent, "timeout", "soon");
    let refusal = visitor.post("/jobs/there/edit", &body(&sent)).await;
    assert_eq!(refusal.status, 409);
    assert!(!refusal.text().contains("Saving again overwrites"), "it leads to a merge first: {}", refusal.text());
    let mut corrected = fields(&refusal.text());
    set(&mut corrected, "timeout", "9s");
    let merged = visitor.post("/jobs/there/edit", &body(&corrected)).await;
    assert_eq!(merged.status, 409, "{}", merged.text());
    assert!(merged.text().contains("Saving again overwrites"), "{}", merged.text());
    assert_eq!(location(&visitor.post("/jobs/there/edit", &body(&fields(&merged.text()))).await), "/jobs/there");
    let job = server.get("/api/v1/jobs/there").await.expect(200);
    assert_eq!((&job["description"], &job["timeout"], &job["shards"]), (&json!("mine"), &json!("9s"), &json!(5)));

    let wrong = visitor.post("/jobs/there/edit", &format!("version=1&definition={}", encoded("{"))).await;
    assert_eq!(wrong.status, 409);
    let page = wrong.text();
    assert!(page.contains("name=\"version\" value=\"1\"") && !page.contains("name=\"version\" value=\"3\""), "{page}");
}

#[tokio::test]
async fn the_whole_definition_can_be_written_as_json() {
    let server = Server::start().await;
    job(&server, json!({})).await;
    let visitor = Visitor::signed_in(&server).await;
    let send = async |version: i64, text: &str| {
        let form = format!("version={version}&definition={}", encoded(text));
        visitor.post("/jobs/there/edit", &form).await
    };
    for (text, expected) in [
        ("{", "line 1"),
        ("[]", "expected an object, found an array"),
        ("{\"app\": \"a\"}", "/handler"),
        ("{\"app\": \"a\", \"handler\": \"h\", \"schedule\": {\"cron\": \"<script>alert(1)\"}}", "/schedule/cron"),
        ("{\"name\": \"<b>\", \"app\": \"a\", \"handler\": \"h\"}", "/name"),
        ("{\"app\": \"a\", \"handler\": \"h\", \"colour\": 1}", "/colour"),
    ] {
        let answer = send(1, text).await;
        assert_eq!(answer.status, 422, "{text}");
        let page = answer.text();
        assert!(page.contains(expected) && page.contains("id=\"whole\" open"), "{text}: {page}");
        assert!(!page.contains("<script>alert"), "{page}");
    }
    let good = json!({"app": "a", "handler": "other", "schedule": [{"every": "1h"}, {"cron": "0 0 1 * * ?"}]});
    assert_eq!(location(&send(1, &good.to_string()).await), "/jobs/there");
    let job = server.get("/api/v1/jobs/there").await.expect(200);
    assert_eq!(
        (&job["handler"], &job["schedule"], &job["shards"]),
        (&good["handler"], &good["schedule"], &json!(null))
    );
    assert_eq!(send(1, &good.to_string()).await.status, 409);
    let mut renamed = good;
    renamed["name"] = json!("elsewhere");
    assert_eq!(location(&send(2, &renamed.to_string()).await), "/jobs/elsewhere");
}

#[tokio::test]
async fn the_preview_knows_calendars_zones_and_lists() {
    let server = Server::start().await;
    server.with_body("PUT", "/api/v1/calendars/work", json!({"rule": {"weekdays": ["mon"]}})).await.expect(201);
    let mut visitor = Visitor::signed_in(&server).await;
    visitor.language = "zh";
    let ask = async |kind: &str, rest: &str| visitor.get(&format!("/schedule-preview?kind={kind}&{rest}")).await.text();
    let text = ask("cron", "cron=0+0+12+*+*+%3F&time_zone=Asia/Shanghai&calendar=work&calendar_rule=only").await;
    assert!(text.contains("日历 work") && text.contains("12:00 Asia/Shanghai") && text.contains("04:00:00"), "{text}");
    let two = encoded(r#"[{"every": "1h"}, {"cron": "0 30 2 * * ?"}]"#);
    let text = ask("json", &format!("schedule_json={two}")).await;
    assert!(text.contains("每小时") && text.contains("每天 02:30") && text.matches("<li>").count() == 10, "{text}");
    for rest in [&format!("schedule_json={}", encoded("[{")), "schedule_json=7", "schedule_json=", "cron=%3Cscript%3E"]
    {
        let text = ask("json", rest).await;
        assert!(!text.contains("<script>") && !text.contains("<li>"), "{rest}: {text}");
    }
    for kind in ["cron", "every", "at", "delay", "after"] {
        let text = ask(kind, "cron=&every=&at=&delay=&after=&calendar=work").await;
        assert!(text.contains("输入后在此显示") && !text.contains("class=\"error\""), "{kind}: {text}");
    }
    let text = ask("every", "every=1h&calendar=none-such").await;
    assert!(text.contains("class=\"error\"") && text.contains("none-such"), "{text}");
}

#[tokio::test]
async fn bad_json_is_named_by_line_and_column() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let answer =
        visitor.get(&format!("/schedule-preview?kind=json&schedule_json={}", encoded("{\n  \"cron\" 5}"))).await;
    assert!(answer.text().contains("line 2, column 10"), "{}", answer.text());
}

/// A region that reloads itself shows a refusal in its place. Other parts must not be replaced by the whole page of the problem.
#[tokio::test]
async fn parts_that_scripts_load_have_an_answer_to_refusals() {
    let server = Server::start().await;
    server.job("there").await;
    let visitor = Visitor::signed_in(&server).await;
    let mut count = 0;
    for path in ["/jobs", "/jobs/new", "/jobs/there", "/jobs/there/edit", "/runs", "/timeline", "/api-docs"] {
        let page = visitor.get(path).await.text();
        let parts = page.split('<').filter(|tag| tag.contains(" hx-get=\"") || tag.contains(" hx-post=\""));
        for tag in parts.filter(|tag| !tag.contains(" data-live") && !tag.contains(" hx-trigger=\"never\"")) {
            assert!(tag.contains(" hx-status:4xx=\"") && tag.contains(" hx-status:5xx=\""), "{path}: {tag}");
            count += 1;
        }
    }
    assert!(count >= 5, "the pages have {count} such parts");
}
