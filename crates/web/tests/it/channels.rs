//! Alert channels, through the API and on pages.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use rondel_core::channel::ChannelKind;
use rondel_core::words::Lang;
use rondel_core::{ChannelId, NamespaceId};
use rondel_store::channels::Channel;
use rondel_store::{Channels as _, MemStore, Result, Store};
use rondel_web::WebConfig;
use serde_json::{Value, json};

use crate::harness::{Server, clock};
use crate::visitor::Visitor;

const PATH: &str = "/api/v1/channels/ops";

fn slack() -> Value {
    json!({"kind": "slack", "secrets": {"url": "https://hooks.slack.com/services/T0/B0/to-be-kept"}})
}

#[tokio::test]
async fn a_channel_is_saved_and_its_secrets_are_never_shown() {
    let server = Server::start().await;
    assert_eq!(server.get(PATH).await.expect(404)["code"], "channel_not_found");
    let created = server.with_body("PUT", PATH, slack()).await.expect(201);
    assert_eq!((&created["secrets"], &created["host"]), (&json!({"url": "set"}), &json!("hooks.slack.com")));
    assert_eq!((&created["lang"], &created["enabled"], &created["settings"]), (&json!("en"), &json!(true), &json!({})));
    // A secret that the request leaves out is retained.
    let body =
        json!({"kind": "slack", "lang": "zh", "enabled": false, "settings": {"title_template": "{{ summary }}"}});
    let changed = server.with_body("PUT", PATH, body).await.expect(200);
    assert_eq!((&changed["secrets"], &changed["enabled"]), (&json!({"url": "set"}), &json!(false)));
    assert_eq!(server.get(PATH).await.expect(200), changed);
    let list = server.get("/api/v1/channels").await.expect(200);
    let visitor = Visitor::signed_in(&server).await;
    let pages = [visitor.get("/alerts/channels").await.text(), visitor.get("/alerts/channels/ops").await.text()];
    for shown in pages.iter().chain([&list.to_string(), &changed.to_string()]) {
        assert!(shown.contains("ops") && !shown.contains("to-be-kept"), "{shown}");
    }
    let audit = server.get("/api/v1/audit?object=ops").await.expect(200).to_string();
    assert!(!audit.contains("to-be-kept"), "{audit}");
    let reference = json!({"kind": "slack", "secrets": {"url": "env:RONDEL_ALERT_SECRET_SLACK"}});
    let referred = server.with_body("PUT", PATH, reference).await.expect(200);
    assert_eq!(referred["secrets"], json!({"url": "env:RONDEL_ALERT_SECRET_SLACK"}));
    server.bare("DELETE", PATH).await.expect(204);
    server.bare("DELETE", PATH).await.expect(404);
}

#[tokio::test]
async fn the_key_of_a_webhook_is_made_and_shown_once() {
    let server = Server::start().await;
    let body = json!({"kind": "webhook", "secrets": {"url": "https://example.com/alerts"}});
    let created = server.with_body("PUT", PATH, body.clone()).await.expect(201);
    assert!(created["signing_key"].as_str().unwrap().starts_with("whsec_"), "{created}");
    let changed = server.with_body("PUT", PATH, body).await.expect(200);
    assert_eq!((changed.get("signing_key"), &changed["secrets"]["signing_key"]), (None, &json!("set")));
}

#[tokio::test]
async fn a_stored_secret_is_not_sent_to_another_host() {
    let server = Server::start().await;
    let mail = |host: &str, secrets: Value| {
        let settings = json!({"host": host, "username": "rondel", "from": "a@example.com", "to": "b@example.com"});
        json!({"kind": "email", "settings": settings, "secrets": secrets})
    };
    let put = async |host: &str, secrets: Value| server.with_body("PUT", PATH, mail(host, secrets)).await;
    put("mail.example.com", json!({"password": "to-be-kept"})).await.expect(201);
    put("mail.example.com", json!({})).await.expect(200);
    let problem = put("evil.example.com", json!({})).await.expect(422);
    let error = &problem["errors"][0];
    assert_eq!(error["pointer"], "/secrets/password", "{problem}");
    assert!(error["message"].as_str().unwrap().contains("with another host"), "{problem}");
    assert_eq!(server.get(PATH).await.expect(200)["host"], "mail.example.com");
    put("relay.example.com", json!({"password": "another"})).await.expect(200);
    put("relay.example.com", json!({"password": "env:RONDEL_ALERT_SECRET_MAIL"})).await.expect(200);
    put("mail.example.com", json!({})).await.expect(200);
}

#[tokio::test]
async fn errors_name_their_field() {
    let server = Server::start().await;
    let template =
        |text: &str| json!({"kind": "slack", "secrets": slack()["secrets"], "settings": {"body_template": text}});
    let hook = |kind: &str, url: &str| json!({"kind": kind, "secrets": {"url": url}});
    for (body, pointer, words) in [
        (json!({"kind": "slack"}), "/secrets/url", "is needed"),
        (hook("slack", "http://hooks.slack.com/x"), "/secrets/url", "https://"),
        (hook("slack", "https://10.0.0.1/x"), "/secrets/url", "outgoing_allow"),
        (hook("dingtalk", "https://oapi.dingtalk.com/robot/send"), "/secrets/url", "access_token"),
        (hook("slack", "file:../passwd"), "/secrets/url", "is not a reference"),
        (json!({"kind": "ntfy", "secrets": {"topik": "x", "topic": "x"}}), "/secrets/topik", "did you mean topic"),
        (template("{{ sumary }}"), "/settings/body_template", "undefined"),
        (template("{% for x in samples %}"), "/settings/body_template", "syntax"),
        (template("{% set x = 1 %}"), "/settings/body_template", "cannot be used here"),
        (template("{{ 'x' * 1000000000 }}"), "/settings/body_template", "multiplication"),
    ] {
        let problem = server.with_body("PUT", PATH, body.clone()).await.expect(422);
        let error = &problem["errors"][0];
        assert_eq!(error["pointer"], pointer, "{body}: {problem}");
        assert!(error["message"].as_str().unwrap().contains(words), "{body}: {problem}");
    }
    server.with_body("PUT", PATH, json!({"kind": "pigeon"})).await.expect(422);
    server.with_body("PUT", "/api/v1/channels/Ops", slack()).await.expect(422);
}

#[tokio::test]
async fn a_test_answers_how_it_went_and_stands_in_the_deliveries() {
    let server = Server::start().await;
    // The host does not exist; the reason of the failure is stored.
    let body = json!({"kind": "webhook", "secrets": {"url": "https://nowhere.invalid/x"}});
    server.with_body("PUT", PATH, body).await.expect(201);
    let delivery = server.with_body("POST", &format!("{PATH}/test"), json!({})).await.expect(200);
    assert_eq!(
        (&delivery["kind"], &delivery["verdict"], &delivery["status"]),
        (&json!("test"), &json!("given_up"), &json!(0))
    );
    assert!(delivery["error"].is_string() && !delivery.to_string().contains("nowhere.invalid/x"), "{delivery}");
    let listed = server.get(&format!("{PATH}/deliveries")).await.expect(200);
    assert_eq!(listed["items"], json!([delivery]));
    let list = server.get("/api/v1/channels").await.expect(200);
    assert_eq!(list["items"][0]["last_delivery"], delivery);
    let page = Visitor::signed_in(&server).await.get("/alerts/channels/ops").await.text();
    assert!(page.contains("id=\"deliveries\"") && page.contains("Given up"), "{page}");
}

#[tokio::test]
async fn each_kind_has_a_form_in_both_languages() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    for kind in ChannelKind::ALL {
        for lang in ["en", "zh"] {
            visitor.language = lang;
            let page = visitor.get(&format!("/alerts/channels/new?kind={kind}")).await;
            assert_eq!(page.status, 200);
            let text = page.text();
            for field in rondel_core::channel::fields(*kind) {
                assert!(text.contains(&format!("name=\"{}\"", field.name)), "{kind}: {}", field.name);
            }
        }
    }
}

fn form(fields: &[(&str, &str)]) -> String {
    let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    fields.iter().map(|(key, value)| format!("{key}={}", encoded(value))).collect::<Vec<_>>().join("&")
}

#[tokio::test]
async fn a_form_comes_back_with_its_input_and_then_saves() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let typed = [("kind", "email"), ("name", "mail"), ("lang", "zh"), ("enabled", "1"), ("host", "smtp.example.com")];
    let wrong = [&typed[..], &[("from", "<b>noone"), ("to", "a@b.c")]].concat();
    let refusal = visitor.post("/alerts/channels", &form(&wrong)).await;
    assert_eq!(refusal.status, 422, "{}", refusal.text());
    let text = refusal.text();
    assert!(text.contains("id=\"error-from\"") && text.contains("value=\"smtp.example.com\""), "{text}");
    assert!(!text.contains("<b>noone") && text.contains("&#60;b&#62;noone"), "{text}");
    let right =
        [&typed[..], &[("from", "r@example.com"), ("to", "a@b.c"), ("username", "u"), ("password", "secret-word")]];
    let saved = visitor.post("/alerts/channels", &form(&right.concat())).await;
    assert_eq!(saved.status, 303, "{}", saved.text());
    let again = visitor.post("/alerts/channels", &form(&right.concat())).await;
    assert!(again.status == 422 && again.text().contains("id=\"error-name\""), "{}", again.text());
    // An empty password field leaves the password unchanged.
    let change = [&typed[..], &[("from", "r@example.com"), ("to", "x@y.z"), ("username", "u")]].concat();
    let changed = visitor.post("/alerts/channels/mail", &form(&change)).await;
    assert_eq!(changed.status, 303, "{}", changed.text());
    let shown = server.get("/api/v1/channels/mail").await.expect(200);
    assert_eq!((&shown["settings"]["to"], &shown["secrets"]), (&json!("x@y.z"), &json!({"password": "set"})));
    assert_eq!((&shown["lang"], &shown["enabled"]), (&json!("zh"), &json!(true)));
    let page = visitor.get("/alerts/channels/mail").await.text();
    assert!(!page.contains("secret-word") && page.contains("Leave it empty to keep it"), "{page}");
    let removed = visitor.post("/alerts/channels/mail/delete", "").await;
    assert_eq!(removed.status, 303, "{}", removed.text());
    assert_eq!(visitor.get("/alerts/channels/mail").await.status, 404);
}

/// Browsers send each line break of a form as CR LF.
#[tokio::test]
async fn texts_of_several_lines_are_saved_with_plain_line_breaks() {
    let server = Server::start().await;
    server.with_body("PUT", PATH, slack()).await.expect(201);
    let visitor = Visitor::signed_in(&server).await;
    let text = "{{ summary }}\r\nsee the runbook";
    let change = [("kind", "slack"), ("lang", "en"), ("enabled", "1"), ("body_template", text)];
    let changed = visitor.post("/alerts/channels/ops", &form(&change)).await;
    assert_eq!(changed.status, 303, "{}", changed.text());
    let saved = server.get(PATH).await.expect(200);
    assert_eq!(saved["settings"]["body_template"], "{{ summary }}\nsee the runbook");
    let rule = [("name", "failures"), ("condition", "failed"), ("digest", "15m"), ("group_over", "5"), ("do", "save")];
    let rule = [&rule[..], &[("scope", "all"), ("channel.ops", "1"), ("description", "one\r\ntwo")]].concat();
    let created = visitor.post("/alerts/rules", &form(&rule)).await;
    assert_eq!(created.status, 303, "{}", created.text());
    assert_eq!(server.get("/api/v1/alert-rules/failures").await.expect(200)["description"], "one\ntwo");
}

#[tokio::test]
async fn a_used_channel_is_not_deleted() {
    let server = Server::start().await;
    let job = |channel: &str| json!({"name": "nightly-close", "app": "billing", "handler": "close", "expect": {"late": "5m", "channels": [channel]}});
    let refusal = server.with_body("POST", "/api/v1/jobs", job("ops")).await.expect(422);
    assert_eq!(refusal["errors"][0]["pointer"], "/expect/channels/0", "{refusal}");
    assert_eq!(refusal["errors"][0]["message"], "there is no channel \"ops\"; there is none");
    server.with_body("PUT", PATH, slack()).await.expect(201);
    server.with_body("POST", "/api/v1/jobs", job("ops")).await.expect(201);
    let other = server.with_body("PATCH", "/api/v1/jobs/nightly-close", json!({"expect": job("opps")["expect"]})).await;
    assert_eq!(other.expect(422)["errors"][0]["message"], "there is no channel \"opps\"; there are ops");
    let applied = server.with_body("POST", "/api/v1/jobs/apply", json!([job("opps")])).await.expect(422);
    assert!(applied.to_string().contains("/expect/channels/0"), "{applied}");
    let rule = json!({"condition": {"failed": {}}, "channels": ["ops"]});
    server.with_body("PUT", "/api/v1/alert-rules/failures", rule).await.expect(201);
    let weekly = json!({"weekday": "mon", "time": "08:00", "zone": "UTC", "channel": "ops"});
    server.with_body("PUT", "/api/v1/reports/schedule", weekly).await.expect(201);

    let refusal = server.bare("DELETE", PATH).await.expect(409);
    assert_eq!(refusal["code"], "channel_used");
    let expected = "\"ops\" is used by 1 alert rule (failures), the expectations of job nightly-close, the weekly report; \
        give them another channel first";
    assert_eq!(refusal["detail"], expected);
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.post("/alerts/channels/ops/delete", "").await;
    assert_eq!(page.status, 409);
    for href in ["/alerts/rules/failures", "/jobs/nightly-close", "/reports#weekly"] {
        assert!(page.text().contains(&format!("<li><a href=\"{href}\">")), "{href}: {}", page.text());
    }
    server.get(PATH).await.expect(200);
    server.bare("DELETE", "/api/v1/alert-rules/failures").await.expect(204);
    server.bare("DELETE", "/api/v1/jobs/nightly-close").await.expect(204);
    server.bare("DELETE", "/api/v1/reports/schedule").await.expect(204);
    server.bare("DELETE", PATH).await.expect(204);
}

/// Otherwise a caller who has read an older version would silently delete the change of another caller.
#[tokio::test]
async fn a_rule_is_deleted_in_the_version_that_the_caller_names() {
    let server = Server::start().await;
    let path = "/api/v1/alert-rules/failing";
    for (severity, status) in [("warning", 201), ("critical", 200)] {
        let rule = json!({"condition": {"failed": {}}, "severity": severity});
        server.with_body("PUT", path, rule).await.expect(status);
    }
    let delete = async |version: &str| {
        server.send(server.request("DELETE", path).header("if-match", version).body(Body::empty()).unwrap()).await
    };
    assert_eq!(delete("\"v1\"").await.expect(412)["current_version"], 2);
    assert_eq!(delete("\"v2\"").await.status, 204);
}

/// A store in which another caller saves a channel just before the first save.
#[derive(Debug)]
struct OvertakingStore {
    inner: MemStore,
    other: Mutex<Option<Channel>>,
}

impl OvertakingStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let other = if name == "save_channel" { self.other.lock().unwrap().take() } else { None };
        if let Some(other) = other {
            self.inner.save_channel(&other, None).await.unwrap();
        }
        effect.await
    }
}

rondel_store::delegate_store!(OvertakingStore);

/// A save replaces the secrets of a channel one by one: a secret that the request leaves out stays as another caller has just saved it.
#[tokio::test]
async fn a_secret_that_is_saved_meanwhile_stays() {
    let saved_at = clock() + Duration::from_secs(600);
    let other = Channel {
        id: ChannelId::new(7),
        namespace: NamespaceId::new(1),
        name: "ops".to_owned(),
        kind: ChannelKind::Ntfy,
        settings: "{}".to_owned(),
        secret: json!({"topic": "theirs", "token": "kept"}).to_string(),
        lang: Lang::En,
        is_enabled: true,
        created_at: saved_at,
        updated_at: saved_at,
    };
    let store = Arc::new(OvertakingStore { inner: MemStore::new(Arc::new(clock)), other: Mutex::new(Some(other)) });
    let server = Server::start_on(Arc::clone(&store) as Arc<dyn Store>, WebConfig::default()).await;
    let body = json!({"kind": "ntfy", "secrets": {"topic": "mine"}});
    server.with_body("PUT", PATH, body).await.expect(200);
    let stored = store.inner.channel(NamespaceId::new(1), "ops").await.unwrap().unwrap();
    let secrets: Value = serde_json::from_str(&stored.secret).unwrap();
    assert_eq!(secrets, json!({"topic": "mine", "token": "kept"}));
    assert!(stored.updated_at > saved_at, "each save has another instant");
}

/// Otherwise the later save of two browser tabs would silently undo the earlier one.
#[tokio::test]
async fn a_channel_is_saved_in_the_version_that_the_caller_read() {
    let server = Server::start().await;
    let put = async |version: Option<&str>| {
        let request = server.request("PUT", PATH).header("content-type", "application/json");
        let request = version.into_iter().fold(request, |request, version| request.header("if-match", version));
        server.send(request.body(Body::from(slack().to_string())).unwrap()).await
    };
    put(Some("\"v1\"")).await.expect(412);
    let first = put(None).await.headers["etag"].to_str().unwrap().to_owned();
    assert_eq!(server.get(PATH).await.headers["etag"], first.as_str());
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/alerts/channels/ops").await.text();
    let shown =
        page.split("name=\"version\" value=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap().to_owned();
    assert_eq!(format!("\"v{shown}\""), first);
    let second = put(Some(first.as_str())).await.headers["etag"].to_str().unwrap().to_owned();
    assert_ne!(second, first);
    put(Some(first.as_str())).await.expect(412);
    let form = |version: &str| form(&[("kind", "slack"), ("lang", "en"), ("version", version)]);
    let stale = visitor.post("/alerts/channels/ops", &form(shown.as_str())).await;
    assert!(stale.status == 409 && stale.text().contains("The channel was changed meanwhile"), "{}", stale.text());
    let newest = second.trim_matches(['"', 'v']);
    assert_eq!(visitor.post("/alerts/channels/ops", &form(newest)).await.status, 303);
    let saved = server.get(PATH).await;
    let third = saved.headers["etag"].to_str().unwrap().to_owned();
    assert_eq!(saved.expect(200)["enabled"], false);
    let delete = async |version: &str| {
        server.send(server.request("DELETE", PATH).header("if-match", version).body(Body::empty()).unwrap()).await
    };
    delete(second.as_str()).await.expect(412);
    assert_eq!(delete(third.as_str()).await.status, 204);
}
