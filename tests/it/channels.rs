//! Channels of alerts: each service accepts its messages, the reason of a refusal is recorded, and a message survives the server
//! that sends it.

mod mail;
mod service;

use std::time::Duration;

use rondel_tests::{Backend, ScratchDb, Server, scratch, wait_until};
use serde_json::{Value, json};

use self::service::{Request, Service};
use crate::on_each_database;

const LIMIT: Duration = Duration::from_secs(60);

/// The server may send to this machine, and often looks for due messages.
const QUICK: [&str; 6] =
    ["--outgoing-allow", "127.0.0.1", "--alert-period", "50ms", "--advertise", "https://rondel.example.com"];

fn notice(kind: &str, summary: &str) -> Value {
    json!({
        "kind": kind, "incident": "77", "rule": "nightly-close-late", "condition": "success_by",
        "namespace": "default", "subject": {"kind": "job", "name": "nightly-close"}, "severity": "critical",
        "summary_en": summary, "summary_zh": "失败了", "started_at": "2026-03-08T07:00:00Z", "at": "2026-03-08T07:15:00Z",
        "count": 1, "samples": [], "path": "/alerts",
    })
}

/// The id of a channel. Ids grow with time: a message whose id is a little greater is about as old as the channel.
fn id_of(db: &ScratchDb, channel: &str) -> i64 {
    let found = db.sql(&format!("SELECT id FROM alert_channel WHERE name = '{channel}'"));
    found.trim().parse().expect("the id of a channel")
}

/// Writes a message about an incident, as the rules of alerts do.
fn write_message(db: &ScratchDb, (id, channel): (i64, &str), kind: &str, summary: &str) {
    let notice = notice(kind, summary).to_string().replace('\'', "''");
    db.sql(&format!(
        "INSERT INTO alert_message (id, namespace_id, channel_id, incident_id, kind, number, notice, state, try_count, \
         next_try_at_ms, created_at_ms) SELECT {id}, 1, alert_channel.id, 77, '{kind}', 1, '{notice}', 'waiting', 0, 0, \
         alert_channel.created_at_ms FROM alert_channel WHERE name = '{channel}'"
    ));
}

fn state_of(db: &ScratchDb, id: i64) -> String {
    db.sql(&format!("SELECT state FROM alert_message WHERE id = {id}")).trim().to_owned()
}

async fn wait_for_state(db: &ScratchDb, id: i64, state: &str) {
    wait_until(LIMIT, "the message has its state", async || {
        let found = state_of(db, id);
        if found == state { Ok(()) } else { Err(found) }
    })
    .await;
}

/// The server dies between the service's answer and the record of it: the message is sent again with the same id.
async fn a_message_outlives_the_server_that_sends_it(db: ScratchDb) {
    let service = Service::start().await;
    let mut server = Server::start_with(&db, &QUICK).await;
    let path = "/api/v1/channels/ops";
    let body = json!({"kind": "webhook", "secrets": {"url": service.url("/alerts")}});
    let made = server.api().put(path, body).await.expect(201);
    let key = made["signing_key"].as_str().expect("a key, this once").to_owned();
    server.stop().await;
    let (first, second) = (id_of(&db, "ops") + 1, id_of(&db, "ops") + 2);
    write_message(&db, (first, "ops"), "firing", "It is late.");
    write_message(&db, (second, "ops"), "resolved", "It is well again.");
    server.try_restart_with(&["--failpoint", "alert_send.sent@1"]).await;
    let exit_status = server.process().wait(LIMIT).await;
    assert!(!exit_status.success(), "it aborted at the failpoint: {exit_status}");
    assert_eq!((service.requests().len(), state_of(&db, first).as_str()), (1, "waiting"));

    server.restart().await;
    wait_for_state(&db, second, "sent").await;
    wait_for_state(&db, first, "sent").await;
    let requests = service.requests();
    let ids: Vec<&str> = requests.iter().map(|it| it.headers["webhook-id"].as_str()).collect();
    let expected = [first, first, second].map(|id| format!("alert_{id}"));
    assert_eq!(ids, expected);
    for request in &requests {
        assert_eq!(request.headers["idempotency-key"], request.headers["webhook-id"]);
        request.check_standard_signature(&key);
    }
    assert_eq!(requests[0].json()["data"], requests[1].json()["data"]);
    assert_eq!(requests[2].json()["type"], "alert.resolved");
    let shown = server.api().get(&format!("{path}/deliveries")).await.expect(200);
    let found: Vec<Value> = shown["items"].as_array().expect("a list").iter().map(|it| it["verdict"].clone()).collect();
    assert_eq!(found, ["sent", "sent"], "{shown:#}");
}
on_each_database!(a_message_outlives_the_server_that_sends_it);

/// One channel's service hangs, another's fails at first, and a third one refuses for good. None of them delays another
/// channel.
#[tokio::test(flavor = "multi_thread")]
async fn a_channel_that_fails_holds_up_no_other() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let (hangs, fails, refuses, takes) =
        (Service::never_answering().await, Service::start().await, Service::start().await, Service::start().await);
    fails.answer(503, "busy");
    refuses.answer(410, "gone");
    let server = Server::start_with(&db, &QUICK).await;
    let api = server.api();
    let all = [("hangs", &hangs), ("fails", &fails), ("refuses", &refuses), ("takes", &takes)];
    for (name, service) in all {
        let body = json!({"kind": "webhook", "secrets": {"url": service.url("/alerts")}});
        api.put(&format!("/api/v1/channels/{name}"), body).await.expect(201);
    }
    let ids = all.map(|(name, _)| id_of(&db, name) + 1);
    for ((name, _), id) in all.iter().zip(ids) {
        write_message(&db, (id, name), "firing", "It is late.");
    }
    wait_for_state(&db, ids[3], "sent").await;
    wait_for_state(&db, ids[2], "given_up").await;
    wait_for_state(&db, ids[1], "sent").await;
    let deliveries = async |name: &str| {
        let found = api.get(&format!("/api/v1/channels/{name}/deliveries")).await.expect(200);
        found["items"].as_array().expect("a list").clone()
    };
    let tried: Vec<Value> = deliveries("fails").await.iter().map(|it| json!([it["verdict"], it["status"]])).collect();
    assert_eq!(tried, [json!(["sent", 200]), json!(["retry", 503])]);
    let refused = &deliveries("refuses").await[0];
    assert_eq!((&refused["verdict"], &refused["status"]), (&json!("given_up"), &json!(410)), "{refused:#}");
    assert!(refused["error"].as_str().is_some_and(|text| text.contains("gone")), "{refused:#}");
    wait_until(LIMIT, "the service that hangs is given up for now", async || {
        let found = deliveries("hangs").await;
        if found.iter().any(|it| it["verdict"] == "retry" && it["status"] == 0) { Ok(()) } else { Err(found) }
    })
    .await;
    assert_eq!(state_of(&db, ids[0]), "waiting");
}

/// Tests a channel of a kind; returns the delivery and the request that the service received.
async fn run_test(server: &Server, service: &Service, kind: &str, body: Value) -> (Value, Request) {
    let api = server.api();
    let mut body = body;
    body["kind"] = json!(kind);
    let path = format!("/api/v1/channels/{kind}");
    let saved = api.put(&path, body).await;
    assert!([200, 201].contains(&saved.status), "{saved:?}");
    let delivery = api.post(&format!("{path}/test"), json!({})).await.expect(200);
    (delivery, service.requests().pop().expect("a request"))
}

/// Each service receives the request that its documentation defines. The signatures are checked by the test's own code.
#[tokio::test(flavor = "multi_thread")]
async fn each_service_takes_a_test() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let service = Service::start().await;
    let server = Server::start_with(&db, &QUICK).await;
    let link = "https://rondel.example.com/n/default/alerts/channels";
    let sent =
        |delivery: &Value| assert_eq!((&delivery["verdict"], &delivery["kind"]), (&json!("sent"), &json!("test")));

    let secrets = json!({"url": service.url("/services/T0/B0/x")});
    let (delivery, request) = run_test(&server, &service, "slack", json!({ "secrets": secrets })).await;
    sent(&delivery);
    let body = request.json();
    assert_eq!(
        body["blocks"][0],
        json!({"type": "header", "text": {"type": "plain_text", "text": "[Test] Rondel: slack", "emoji": false}})
    );
    assert!(body["blocks"].to_string().contains(&format!("<{link}|Open in Rondel>")), "{body:#}");

    service.answer(202, "");
    let secrets = json!({"url": service.url("/workflows/x")});
    let (delivery, request) = run_test(&server, &service, "teams", json!({ "secrets": secrets })).await;
    sent(&delivery);
    let card = &request.json()["attachments"][0];
    assert_eq!(card["contentType"], "application/vnd.microsoft.card.adaptive");
    assert_eq!(
        (&card["content"]["type"], &card["content"]["actions"][0]["url"]),
        (&json!("AdaptiveCard"), &json!(link))
    );

    service.answer(202, "{\"status\":\"success\"}");
    let extra_fields =
        json!({"settings": {"url": service.url("/v2/enqueue")}, "secrets": {"routing_key": "R".repeat(32)}});
    let (delivery, request) = run_test(&server, &service, "pagerduty", extra_fields).await;
    sent(&delivery);
    let event = request.json();
    assert_eq!((&event["event_action"], &event["routing_key"]), (&json!("trigger"), &json!("R".repeat(32))));
    assert_eq!((&event["payload"]["severity"], &event["client_url"]), (&json!("info"), &json!(link)));

    service.answer(200, "{\"errcode\":0,\"errmsg\":\"ok\"}");
    let secrets = json!({"url": service.url("/robot/send?access_token=x"), "signing_key": "SECsecret"});
    let (delivery, request) = run_test(&server, &service, "dingtalk", json!({"secrets": secrets, "lang": "zh"})).await;
    sent(&delivery);
    request.check_dingtalk_signature("SECsecret");
    let body = request.json();
    assert!(body["msgtype"] == "text" && body["text"]["content"].to_string().contains("【测试】"), "{body:#}");

    service.answer(200, "{\"errcode\":0,\"errmsg\":\"ok\"}");
    let secrets = json!({"url": service.url("/cgi-bin/webhook/send?key=x")});
    let (delivery, request) = run_test(&server, &service, "wecom", json!({ "secrets": secrets })).await;
    sent(&delivery);
    let content = request.json()["markdown"]["content"].as_str().expect("a text").to_owned();
    assert!(content.len() <= 4096 && content.contains("［Test］") && content.contains(link), "{content}");

    service.answer(200, "{\"code\":0,\"msg\":\"success\"}");
    let secrets = json!({"url": service.url("/open-apis/bot/v2/hook/x"), "signing_key": "secret"});
    let (delivery, request) = run_test(&server, &service, "feishu", json!({ "secrets": secrets })).await;
    sent(&delivery);
    request.check_feishu_signature("secret");
    assert_eq!(request.json()["content"]["post"]["en_us"]["title"], "[Test] Rondel: feishu");

    let extra_fields = json!({"settings": {"url": service.url("/")}, "secrets": {"topic": "oncall", "token": "tk_x"}});
    let (delivery, request) = run_test(&server, &service, "ntfy", extra_fields).await;
    sent(&delivery);
    let message = request.json();
    assert_eq!(
        (&message["topic"], &message["priority"], &message["click"]),
        (&json!("oncall"), &json!(3), &json!(link))
    );
    assert_eq!(request.headers["authorization"], "Bearer tk_x");
    // No secret is shown.
    let shown = server.api().get("/api/v1/channels").await.expect(200).to_string();
    for secret in ["tk_x", "SECsecret", "access_token", "services/T0", &"R".repeat(32)] {
        assert!(!shown.contains(secret), "{secret}: {shown}");
    }
}

/// The service's answer decides: an error code in a 200, a redirect, a pause that it asks for, or an unknown form of answer.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_keep_their_reason() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let service = Service::start().await;
    let server = Server::start_with(&db, &QUICK).await;
    let secrets = json!({"url": service.url("/robot/send?access_token=x")});
    for (status, answer, words) in [
        (200, "{\"errcode\":310000,\"errmsg\":\"sign not match\"}", "310000: sign not match"),
        (302, "", "status 302"),
        (500, "<html>\u{1b}[31mbroken", "broken"),
    ] {
        service.answer(status, answer);
        let (delivery, _) = run_test(&server, &service, "dingtalk", json!({ "secrets": secrets })).await;
        assert_eq!((&delivery["verdict"], &delivery["status"]), (&json!("given_up"), &json!(status)), "{delivery:#}");
        assert!(delivery["error"].as_str().is_some_and(|text| text.contains(words)), "{delivery:#}");
    }
}

/// The server calls the watchdog as long as it schedules, and no longer once it has stopped.
#[tokio::test(flavor = "multi_thread")]
async fn the_watchdog_is_called_while_the_server_schedules() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let service = Service::start().await;
    let url = service.url("/ping/x");
    let args = ["--outgoing-allow", "127.0.0.1", "--watchdog-url", &url, "--watchdog-period", "100ms"];
    let mut server = Server::start_with(&db, &args).await;
    wait_until(LIMIT, "it is called again and again", async || {
        let count = service.requests().len();
        if count >= 3 { Ok(()) } else { Err(count) }
    })
    .await;
    assert_eq!(service.requests()[0].path, "/ping/x");
    server.stop().await;
    let count = service.requests().len();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(service.requests().len(), count, "a server that has stopped calls nothing");
}
