//! Alert rules, incidents and silences, through the API and on pages.

use std::time::Duration;

use rondel_admin::rules;
use rondel_core::alert::{Incident, IncidentState, RuleSpec, Subject, SubjectKind};
use rondel_core::channel::ChannelKind;
use rondel_core::outcome::Outcome;
use rondel_core::words::Lang;
use rondel_core::{AlertRuleId, IncidentId, NamespaceId};
use rondel_store::alerts::{AlertWrite, IncidentRecord};
use rondel_store::channels::{Channel, ChannelSaved};
use serde_json::{Value, json};

use crate::harness::Server;
use crate::one_app_role::{ScopedCaller, job};
use crate::visitor::{Visitor, location};

const HOSTILE_TEXT: &str = "<script>alert(1)</script>";

/// A disabled channel without settings.
pub(crate) async fn channel(server: &Server, kind: ChannelKind, name: &str) {
    let now = server.engine.now();
    let channel = Channel {
        id: rondel_core::ChannelId::new(server.engine.new_id()),
        namespace: NamespaceId::new(1),
        name: name.to_owned(),
        kind,
        settings: "{}".to_owned(),
        secret: String::new(),
        lang: Lang::En,
        is_enabled: false,
        created_at: now,
        updated_at: now,
    };
    assert!(matches!(server.engine.store().save_channel(&channel, None).await.unwrap(), ChannelSaved::Created(_)));
}

/// The open incident of a failed job, under a rule with this name.
async fn incident(server: &Server, rule: &str) -> Value {
    server.job("nightly").await;
    let rule = format!("/api/v1/alert-rules/{rule}");
    server.with_body("PUT", &rule, json!({"condition": {"failed": {}}, "description": HOSTILE_TEXT})).await.expect(201);
    let run = server.trigger("nightly").await;
    server.finish(run, Outcome::Failed { retryable: true }).await;
    for _ in 0..300 {
        let found = server.get("/api/v1/incidents?standing=firing").await.expect(200);
        if let Some(found) = found["items"].get(0) {
            return found.clone();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    unreachable!("no incident after 30 s");
}

#[tokio::test]
async fn a_rule_is_saved_read_tried_and_deleted() {
    let server = Server::start().await;
    channel(&server, ChannelKind::Slack, "slack-oncall").await;
    let rule = json!({"scope": {"job": "nightly-close"}, "channels": ["slack-oncall"], "severity": "critical",
        "condition": {"not_succeeded_by": {"time": "06:00", "zone": "Europe/Berlin"}}});
    let path = "/api/v1/alert-rules/close-by-six";
    let created = server.with_body("PUT", path, &rule).await.expect(201);
    assert_eq!(created["sentence"], "nightly-close has not succeeded by 06:00 Europe/Berlin");
    assert!(created["check_at"].is_string() && created["version"] == 1, "{created}");
    assert_eq!(server.get("/api/v1/alert-rules").await.expect(200)["items"][0]["name"], "close-by-six");
    assert_eq!(server.with_body("PUT", path, &rule).await.expect(200)["version"], 2);
    let tried = json!({"name": "tried", "condition": {"failures_in_row": {"count": 3}}});
    assert_eq!(server.with_body("POST", "/api/v1/alert-rules/preview", tried).await.expect(200)["would_fire"], false);
    server.bare("DELETE", path).await.expect(204);
    assert_eq!(server.get(path).await.expect(404)["code"], "alert_rule_not_found");
}

#[tokio::test]
async fn a_wrong_rule_is_refused_with_the_field() {
    let server = Server::start().await;
    let path = "/api/v1/alert-rules/r";
    let failed = json!({"failed": {}});
    for (body, pointer) in [
        (json!({"condition": {"failures_in_row": {"count": 0}}}), "/condition/failures_in_row/count"),
        (json!({"condition": failed, "channels": ["none"]}), "/channels/0"),
        (json!({"condition": failed, "chanels": []}), "/chanels"),
        (json!({"condition": failed, "scope": {"label": "x"}}), "/scope/label"),
        (json!({"condition": {"node_lost": {}}, "scope": {"job": "a"}}), "/scope"),
        (json!({"condition": failed, "repeat": "soon"}), "/repeat"),
        (json!({"condition": {"not_succeeded_by": {"time": "6", "zone": "UTC"}}}), "/condition/not_succeeded_by/time"),
    ] {
        let refusal = server.with_body("PUT", path, &body).await.expect(422);
        let pointers: Vec<&Value> =
            refusal["errors"].as_array().unwrap().iter().map(|error| &error["pointer"]).collect();
        assert_eq!(pointers, [pointer], "{body}: {refusal}");
    }
    let past = json!({"ends_at": "2020-01-01T00:00:00Z"});
    assert_eq!(
        server.with_body("POST", "/api/v1/silences", past).await.expect(422)["errors"][0]["pointer"],
        "/ends_at"
    );
}

#[tokio::test]
async fn an_incident_is_shown_acknowledged_and_silenced() {
    let server = Server::start().await;
    let found = incident(&server, "failing").await;
    let id = found["id"].as_str().unwrap();
    assert_eq!((&found["subject"]["name"], &found["condition"]), (&json!("nightly"), &json!("failed")));
    assert_eq!(server.get("/api/v1/incidents?job=nightly").await.expect(200)["items"][0]["id"], id);
    let mut visitor = Visitor::signed_in(&server).await;
    for (language, words) in [("en", ["Open incidents", "nightly failed"]), ("zh", ["未恢复的事件", "nightly 失败"])]
    {
        visitor.language = language;
        let page = visitor.get("/alerts").await.text();
        assert!(words.iter().all(|word| page.contains(word)) && page.contains("href=\"/jobs/nightly\""), "{page}");
        let own = visitor.get(&format!("/alerts/incidents/{id}")).await.text();
        assert!(own.contains(words[1]) && own.contains("&#60;script&#62;") && !own.contains(HOSTILE_TEXT), "{own}");
        assert!(visitor.get("/jobs/nightly").await.text().contains(words[1]));
    }
    for path in ["/alerts", &format!("/alerts/incidents/{id}")] {
        let page = visitor.get(path).await.text();
        let live = format!("id=\"live\" hx-get=\"{path}\"");
        assert!(page.contains(&live) && page.contains("data-live-every=\"10\""), "reloaded while it is open: {page}");
    }
    visitor.language = "en";
    let acknowledge = format!("/alerts/incidents/{id}/acknowledge");
    assert_eq!(location(&visitor.post(&acknowledge, "back=/jobs/nightly").await), "/jobs/nightly");
    let known = server.get(&format!("/api/v1/incidents/{id}")).await.expect(200);
    assert!(known["acknowledged_by"].is_string(), "{known}");
    let silenced = visitor.post("/alerts/silences", "rule=failing&job=nightly&for=8h&reason=%3Cb%3E").await;
    assert_eq!(location(&silenced), "/alerts");
    let page = visitor.get("/alerts").await.text();
    assert!(page.contains("Silenced") && page.contains("Acknowledged") && !page.contains("<b>&lt;b"), "{page}");
    let silence = server.get("/api/v1/silences").await.expect(200)["items"][0].clone();
    let end = format!("/alerts/silences/{}/end", silence["id"].as_str().unwrap());
    assert_eq!(location(&visitor.post(&end, "").await), "/alerts");
    assert_eq!(server.get("/api/v1/silences").await.expect(200)["items"], json!([]));
    let wrong = visitor.post("/alerts/silences", "job=nightly&for=until&until=soon").await;
    assert!(wrong.status == 422 && wrong.text().contains("value=\"nightly\""), "{}", wrong.text());
}

#[tokio::test]
async fn a_rule_is_made_changed_and_tried_by_its_form() {
    let server = Server::start().await;
    channel(&server, ChannelKind::Slack, "ops").await;
    server.job("nightly").await;
    let visitor = Visitor::signed_in(&server).await;
    let form = "name=by-six&condition=not_succeeded_by&time=06%3A00&zone=Europe%2FBerlin&weekday.mon=1&scope=job&scope_job=nightly\
        &channel.ops=1&severity=critical&digest=15m&group_over=5&enabled=1";
    let tried = visitor.post("/alerts/rules", &format!("{form}&do=try")).await;
    assert!(tried.status == 200 && tried.text().contains("It would fire now"), "{}", tried.text());
    assert_eq!(server.get("/api/v1/alert-rules").await.expect(200)["items"], json!([]), "nothing was saved");
    let rule = "/alerts/rules/by-six";
    assert_eq!(location(&visitor.post("/alerts/rules", &format!("{form}&do=save")).await), rule, "it has a warning");
    assert!(visitor.get(rule).await.text().contains("is disabled: messages for it are dropped"));
    let saved = server.get("/api/v1/alert-rules/by-six").await.expect(200);
    assert_eq!(saved["condition"]["not_succeeded_by"]["weekdays"], json!(["mon"]));
    assert_eq!((&saved["scope"]["job"], &saved["channels"]), (&json!("nightly"), &json!(["ops"])));
    let again = visitor.post("/alerts/rules", &format!("{form}&do=save")).await;
    assert!(again.status == 409 && again.text().contains("A rule with this name exists."), "{}", again.text());
    let page = visitor.get("/alerts/rules/by-six").await.text();
    assert!(page.contains("value=\"06:00\"") && page.contains("name=\"weekday.mon\" value=\"1\" checked"), "{page}");
    let stale = visitor.post("/alerts/rules/by-six", &format!("{form}&version=7&do=save")).await;
    assert_eq!(stale.status, 409);
    let changed = form.replace("06%3A00", "25%3A00");
    let wrong = visitor.post("/alerts/rules/by-six", &format!("{changed}&version=1&do=save")).await;
    assert!(wrong.status == 422 && wrong.text().contains("value=\"25:00\""), "{}", wrong.text());
    assert_eq!(location(&visitor.post("/alerts/rules/by-six/delete", "").await), "/alerts");
}

#[tokio::test]
async fn the_form_of_a_rule_keeps_the_values_of_the_rule() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let rule = json!({"condition": {"ledger_growth": {"runs": 5_000_000_000_u64, "window": "1d"}}});
    server.with_body("PUT", "/api/v1/alert-rules/growth", &rule).await.expect(201);
    let form = "condition=ledger_growth&runs=6000000000&window=1d&scope=all&severity=warning&digest=15m&group_over=5\
        &enabled=1&version=1&do=save";
    assert_eq!(visitor.post("/alerts/rules/growth", form).await.status, 303);
    let saved = server.get("/api/v1/alert-rules/growth").await.expect(200);
    assert_eq!(saved["condition"]["ledger_growth"]["runs"], 6_000_000_000_u64);

    server.with_body("PUT", "/api/v1/calendars/work", json!({"rule": {"weekdays": ["mon"]}})).await.expect(201);
    let rule = json!({"condition": {"not_succeeded_by": {"time": "06:00", "zone": "UTC", "calendar": "work"}}});
    server.with_body("PUT", "/api/v1/alert-rules/by-six", &rule).await.expect(201);
    assert_eq!(server.bare("DELETE", "/api/v1/calendars/work").await.status, 204);
    let page = visitor.get("/alerts/rules/by-six").await.text();
    assert!(page.contains("<option value=\"work\" selected>"), "{page}");
}

#[tokio::test]
async fn missing_objects_cause_warnings() {
    let server = Server::start().await;
    let nothing = "there is no job \"nightly-cloze\": nothing can be observed until there is one";
    let rule = json!({"scope": {"job": "nightly-cloze"}, "condition": {"not_succeeded_by": {"time": "06:00", "zone": "Europe/Berlin"}}});
    let created = server.with_body("PUT", "/api/v1/alert-rules/by-six", &rule).await.expect(201);
    let no_channel = "it names no channel: its incidents are shown in the console and sent nowhere";
    assert_eq!(created["warnings"], json!([nothing, no_channel]));
    let mut tried = rule.clone();
    tried["name"] = json!("tried");
    let seen = server.with_body("POST", "/api/v1/alert-rules/preview", &tried).await.expect(200);
    assert_eq!((&seen["would_fire"], &seen["warnings"]), (&json!(false), &json!([nothing])), "{seen}");
    assert_eq!(seen["deadline"]["zone"], "Europe/Berlin");
    let instant = |value: &Value| value.as_str().unwrap().parse::<rondel_core::Timestamp>().unwrap();
    let (at, deadline) = (instant(&seen["evaluated_at"]), &seen["deadline"]);
    assert!(instant(&deadline["counts_from"]) < at && at < instant(&deadline["next"]), "{seen}");
    server.job("nightly-cloze").await;
    assert_eq!(server.get("/api/v1/alert-rules/by-six").await.expect(200)["warnings"], json!([no_channel]));

    let ends_at = (server.engine.now() + Duration::from_secs(3_600)).to_string();
    let silence = json!({"job": "nope", "app": "none", "rule": "by-six", "ends_at": ends_at});
    let added = server.with_body("POST", "/api/v1/silences", silence).await.expect(201);
    let lost = |what: &str| format!("there is no {what}: the silence matches nothing until there is one");
    assert_eq!(added["warnings"], json!([lost("job \"nope\""), lost("app \"none\"")]));
    let fits = json!({"job": "nightly-cloze", "rule": "expect:late", "ends_at": ends_at});
    assert_eq!(server.with_body("POST", "/api/v1/silences", fits).await.expect(201)["warnings"], json!([]));

    let mut visitor = Visitor::signed_in(&server).await;
    let form =
        "name=lost&condition=failed&scope=job&scope_job=lost-job&severity=critical&digest=15m&group_over=5&enabled=1";
    for (language, words) in [
        ("en", ["Nothing matches this rule now", "there is no job", "Evaluated at"]),
        ("zh", ["没有任何对象匹配", "没有任务", "评估时刻"]),
    ] {
        visitor.language = language;
        let page = visitor.post("/alerts/rules", &format!("{form}&do=try")).await.text();
        assert!(words.iter().all(|word| page.contains(word)) && !page.contains("would not fire"), "{page}");
        assert!(visitor.get("/alerts").await.text().contains(words[1]), "of the silence");
    }
    assert_eq!(location(&visitor.post("/alerts/rules", &format!("{form}&do=save")).await), "/alerts/rules/lost");
    let page = visitor.get("/alerts/rules/lost").await.text();
    assert!(page.contains("没有任务") && page.contains("没有选择渠道"), "{page}");
}

#[tokio::test]
async fn a_disabled_channel_of_a_rule_causes_a_warning() {
    let server = Server::start().await;
    channel(&server, ChannelKind::Slack, "ops").await;
    let rule = json!({"condition": {"failed": {}}, "channels": ["ops"], "escalate": {"channel": "ops", "after": "5m"}});
    let created = server.with_body("PUT", "/api/v1/alert-rules/failing", rule).await.expect(201);
    assert_eq!(created["warnings"], json!(["channel \"ops\" is disabled: messages for it are dropped"]));
    let mut visitor = Visitor::signed_in(&server).await;
    visitor.language = "zh";
    let page = visitor.get("/alerts/rules/failing").await.text();
    assert!(page.contains("已停用：发给它的消息会被丢弃"), "{page}");
}

#[tokio::test]
async fn a_complaint_stands_at_its_field_with_its_label() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    let form = "name=r&condition=not_succeeded_by&time=06%3A00&zone=Mars&calendar=none&scope=all&severity=warning&digest=soon&group_over=5&do=save";
    for (language, label, words) in
        [("en", "Collect further occurrences for: ", "is not a duration"), ("zh", "合并后续事件的时间：", "不是")]
    {
        visitor.language = language;
        let page = visitor.post("/alerts/rules", form).await;
        assert_eq!(page.status, 422);
        let page = page.text();
        assert!(page.contains(label) && page.contains("id=\"error-digest\"") && page.contains(words), "{page}");
    }
    let page = visitor.post("/alerts/rules", &form.replace("soon", "15m").replace("Mars", "UTC")).await.text();
    assert!(page.contains("只在日历中的日子：没有日历") && page.contains("id=\"error-calendar\""), "{page}");
    assert!(!page.contains("/condition/"), "{page}");
}

/// Waits until a job has an open incident, and returns it.
pub(crate) async fn wait_for_incident(server: &Server, job: &str) -> Value {
    for _ in 0..300 {
        let found = server.get(&format!("/api/v1/incidents?standing=firing&job={job}")).await.expect(200);
        if let Some(found) = found["items"].get(0) {
            return found.clone();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    unreachable!("no incident after 30 s");
}

#[tokio::test]
async fn an_incident_without_a_channel_is_not_shown_as_reported() {
    let server = Server::start().await;
    let job = json!({"name": "lonely", "app": "x", "handler": "h", "expect": {"no_success_for": "1s"}});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let found = wait_for_incident(&server, "lonely").await;
    assert_eq!((&found["fired_at"], &found["missing_channels"]), (&Value::Null, &json!(["default"])), "{found}");
    let visitor = Visitor::signed_in(&server).await;
    for path in ["/alerts", &format!("/alerts/incidents/{}", found["id"].as_str().unwrap())] {
        let page = visitor.get(path).await.text();
        assert!(page.contains("<b>No channel:</b> default does not exist: no message was sent."), "{path}: {page}");
    }
    let own = visitor.get(&format!("/alerts/incidents/{}", found["id"].as_str().unwrap())).await.text();
    assert!(own.contains("No run was planned in this time.") && own.contains("href=\"/jobs/lonely/fires\""), "{own}");
    assert!(own.contains("No message was written."), "{own}");

    channel(&server, ChannelKind::Slack, "default").await;
    let path = format!("/api/v1/incidents/{}", found["id"].as_str().unwrap());
    let mut reported = Value::Null;
    for _ in 0..600 {
        reported = server.get(&path).await.expect(200);
        if reported["messages"][0]["state"] == "given_up" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // The channel exists now, but is disabled: the message is given up, and the page shows this.
    assert_eq!((&reported["messages"][0]["channel"], &reported["missing_channels"]), (&json!("default"), &json!([])));
    assert!(reported["fired_at"].is_string() && reported["messages"][0]["state"] == "given_up", "{reported}");
    let page = visitor.get(&format!("/alerts/incidents/{}", found["id"].as_str().unwrap())).await.text();
    assert!(page.contains("Given up") && page.contains("href=\"/alerts/channels/default\""), "{page}");
}

/// A rule about failed runs.
pub(crate) async fn create_failed_run_rule(server: &Server) -> (AlertRuleId, RuleSpec) {
    let spec: RuleSpec = serde_json::from_value(json!({"name": "run-failed", "condition": {"failed": {}}})).unwrap();
    let saved = rules::save_rule(&server.engine, NamespaceId::new(1), (&spec, None), "test").await.unwrap();
    (saved.record.id, spec)
}

/// An open incident of a rule.
pub(crate) fn firing_incident(
    server: &Server,
    (rule, spec): (AlertRuleId, &RuleSpec),
    subject: Subject,
    group: Option<IncidentId>,
) -> IncidentRecord {
    let now = server.engine.now();
    let incident = Incident {
        id: IncidentId::new(server.engine.new_id()),
        subject,
        group,
        state: IncidentState::Firing,
        started_at: now,
        seen_at: now,
        resolved_at: None,
        count: 1,
        reported_count: 0,
        fired_at: None,
        reported_at: None,
        escalated_at: None,
        acknowledged_by: None,
        acknowledged_at: None,
        message_count: 0,
        check_at: None,
        samples: Vec::new(),
    };
    IncidentRecord { incident, rule, spec: spec.clone() }
}

pub(crate) async fn write(server: &Server, incidents: &[IncidentRecord]) {
    let (store, namespace) = (server.engine.store(), NamespaceId::new(1));
    let write = AlertWrite {
        namespace,
        version: store.alert_version(namespace).await.unwrap().unwrap(),
        incidents,
        messages: &[],
        evaluated_events: &[],
        checks: &[],
        expect_checks: &[],
        open_runs_check: None,
    };
    assert!(store.write_alerts(&write).await.unwrap());
}

#[tokio::test]
async fn an_incident_about_an_app_is_silenced_for_that_app_alone() {
    let server = Server::start().await;
    let rule = create_failed_run_rule(&server).await;
    let subject = Subject { kind: SubjectKind::App, id: 1, name: "orders".to_owned(), app: None };
    write(&server, &[firing_incident(&server, (rule.0, &rule.1), subject, None)]).await;
    let page = Visitor::signed_in(&server).await.get("/alerts").await.text();
    let fields = "name=\"rule\" value=\"run-failed\"><input type=\"hidden\" name=\"app\" value=\"orders\">";
    assert!(page.contains(fields), "{page}");
}

#[tokio::test]
async fn an_operator_of_one_app_acts_on_its_incidents() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "operator").await;
    job(&server, "own-job", "mine", json!({})).await;
    server.with_body("PUT", "/api/v1/alert-rules/failing", json!({"condition": {"failed": {}}})).await.expect(201);
    let run = server.trigger("own-job").await;
    server.finish(run, Outcome::Failed { retryable: true }).await;
    let found = wait_for_incident(&server, "own-job").await;
    let own = format!("/alerts/incidents/{}", found["id"].as_str().unwrap());
    let silence = json!({"app": "theirs", "ends_at": server.engine.now() + Duration::from_secs(3600)});
    server.with_body("POST", "/api/v1/silences", silence).await.expect(201);
    let visitor = scoped.visitor().await;
    for path in ["/alerts", own.as_str()] {
        let page = visitor.get(path).await.text();
        assert!(page.contains("<button>Acknowledge</button>"), "{path}: {page}");
    }
    let wrong = visitor.post("/alerts/silences", "job=own-job&for=until&until=soon").await;
    assert!(wrong.status == 422 && wrong.text().contains("value=\"own-job\""), "{}", wrong.text());
    let wrong = visitor.post("/alerts/maintenance", "app=mine&reason=x&for=until&until=soon").await;
    assert!(wrong.status == 422 && wrong.text().contains("value=\"mine\""), "{}", wrong.text());
    assert_eq!(location(&visitor.post("/alerts/silences", "job=own-job&for=1h").await), "/alerts");
    let page = visitor.get("/alerts").await.text();
    assert!(page.contains("<button>End now</button>"), "{page}");
    assert!(page.contains("spellcheck=\"false\" required>"), "a window without an app would be refused: {page}");
    assert_eq!(location(&visitor.post(&format!("{own}/acknowledge"), "").await), "/alerts");
    let whole = visitor.post("/alerts/silences", "for=1h").await;
    let needs = "it needs the role operator for the whole namespace";
    assert!(whole.status == 403 && whole.text().contains(needs), "one for all apps: {}", whole.text());
    // A hidden app is refused in the same words as one that does not exist.
    for app in [Value::Null, json!("theirs"), json!("nosuch")] {
        let all = json!({"app": app, "ends_at": server.engine.now() + Duration::from_secs(3600)});
        let refusal = scoped.ask("POST", "/api/v1/silences", all).await.expect(403);
        let detail = refusal["detail"].as_str().unwrap();
        assert!(detail.ends_with("it needs the role operator for the whole namespace"), "{app}: {detail}");
    }
}

#[tokio::test]
async fn deliveries_name_no_job_of_another_app() {
    let server = Server::start().await;
    channel(&server, ChannelKind::Slack, "ops").await;
    let scoped = ScopedCaller::new(&server, "viewer").await;
    let rule = json!({"condition": {"failed": {}}, "channels": ["ops"]});
    server.with_body("PUT", "/api/v1/alert-rules/failing", rule).await.expect(201);
    for (name, app) in [("own-job", "mine"), ("vault", "theirs")] {
        job(&server, name, app, json!({})).await;
        server.fail(server.trigger(name).await, "no key").await;
        wait_for_incident(&server, name).await;
    }
    let path = "/api/v1/channels/ops/deliveries";
    let subjects = |page: Value| -> Vec<String> {
        let items = page["items"].as_array().unwrap().iter();
        let mut subjects: Vec<String> = items.filter_map(|item| Some(item["subject"].as_str()?.to_owned())).collect();
        subjects.sort();
        subjects
    };
    let mut all = Vec::new();
    for _ in 0..300 {
        all = subjects(server.get(path).await.expect(200));
        if all.len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(all, ["own-job", "vault"]);
    assert_eq!(subjects(scoped.get(path).await.expect(200)), ["own-job", "…"]);
    let page = scoped.visitor().await.get("/alerts/channels/ops").await.text();
    assert!(page.contains("own-job") && !page.contains("vault"), "{page}");
}

/// In a large outage, the newest incidents are all members of a group. Pages must still show the other ones.
#[tokio::test]
async fn the_members_of_a_group_push_no_other_incident_off_the_pages() {
    let server = Server::start().await;
    let rule = create_failed_run_rule(&server).await;
    let record = |kind: SubjectKind, number: i64, group: Option<IncidentId>| {
        let app = (kind == SubjectKind::Job).then(|| "app".to_owned());
        let subject = Subject { kind, id: number, name: format!("subject-{number}"), app };
        firing_incident(&server, (rule.0, &rule.1), subject, group)
    };
    let group = record(SubjectKind::Group, 0, None);
    let group_id = group.incident.id;
    let of_group = Some(group_id);
    let oldest = record(SubjectKind::Job, 500, of_group);
    let mut incidents = vec![group, oldest, record(SubjectKind::Job, 600, None)];
    incidents.extend((1..=90).map(|number| record(SubjectKind::Job, number, of_group)));
    incidents.extend((601..=615).map(|number| record(SubjectKind::Job, number, None)));
    write(&server, &incidents).await;
    let visitor = Visitor::signed_in(&server).await;
    let all = visitor.get("/alerts").await.text();
    assert!(all.contains("subject-600") && !all.contains("subject-500"), "{all}");
    let now = visitor.get("/").await.text();
    assert!(now.contains("href=\"/alerts\">alerts <b>17</b>"), "{now}");
    let own = visitor.get(&format!("/alerts/incidents/{group_id}")).await.text();
    assert!(own.contains("subject-500") && !own.contains("subject-600"), "{own}");
    assert!(own.contains("In total") && !own.contains("Occurrences"), "{own}");
}

/// Callers who see only some apps do not see the group: without its members, failing jobs of their app would be on no page.
#[tokio::test]
async fn an_operator_of_one_app_sees_the_members_of_a_group() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "operator").await;
    let rule = create_failed_run_rule(&server).await;
    let record = |kind: SubjectKind, name: &str, app: Option<&str>, group: Option<IncidentId>| {
        let subject = Subject { kind, id: 0, name: name.to_owned(), app: app.map(str::to_owned) };
        firing_incident(&server, (rule.0, &rule.1), subject, group)
    };
    let group = record(SubjectKind::Group, "default", None, None);
    let of_group = Some(group.incident.id);
    let mut incidents = vec![group];
    for (id, (name, app)) in [("own-job", "mine"), ("vault", "theirs")].into_iter().enumerate() {
        let mut member = record(SubjectKind::Job, name, Some(app), of_group);
        member.incident.subject.id = i64::try_from(id).unwrap() + 1;
        incidents.push(member);
    }
    write(&server, &incidents).await;
    let visitor = scoped.visitor().await;
    let page = visitor.get("/alerts").await.text();
    assert!(page.contains("own-job") && !page.contains("vault"), "{page}");
    let now = visitor.get("/").await.text();
    assert!(now.contains("alerts <b>1</b>"), "{now}");
}
