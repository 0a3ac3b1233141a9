//! Alert rules on whole systems: each incident is reported once when it begins and once when it ends, even if the server that
//! decides this dies before or after its COMMIT.

use std::time::Duration;

use rondel_tests::{Agent, Api, Backend, ScratchDb, Server, Signal, rondel, scratch, wait_until, wall_clock_ms};
use serde_json::{Value, json};

use crate::on_each_database;
use crate::verdicts::{trigger, wait_for_verdict};

/// An incident about open runs ends within 30 s; the rest is for a slow machine.
const LIMIT: Duration = Duration::from_secs(90);
const OFTEN: [&str; 2] = ["--alert-rules-period", "200ms"];

fn job(name: &str, script: &str) -> Value {
    json!({"name": name, "app": "files", "handler": "shell", "params": {"argv": ["sh", "-c", script]}})
}

/// A channel whose messages reach no service: the tests check the rows of its messages.
fn channel(db: &ScratchDb) {
    db.sql(
        "INSERT INTO alert_channel (id, namespace_id, name, kind, settings, secret, lang, is_enabled, created_at_ms, \
         updated_at_ms) VALUES (7, 1, 'ops', 'webhook', '{}', '', 'en', 1, 0, 0)",
    );
}

async fn rule(api: &Api, name: &str, condition: Value, more: Value) {
    let mut rule = json!({"condition": condition, "channels": ["ops"], "digest": "1h"});
    rule.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    api.put(&format!("/api/v1/alert-rules/{name}"), rule).await.expect(201);
}

async fn rule_again(api: &Api, name: &str, condition: Value) {
    let rule = json!({"condition": condition, "channels": ["ops"], "digest": "1h"});
    api.put(&format!("/api/v1/alert-rules/{name}"), rule).await.expect(200);
}

/// Waits until the only incident of a rule is in this state, and returns it.
async fn incident(api: &Api, rule: &str, state: &str) -> Value {
    wait_until(LIMIT, "the incident is in this state", async || {
        let found = api.get("/api/v1/incidents").await.expect(200);
        let its: Vec<Value> =
            found["items"].as_array().expect("a list").iter().filter(|one| one["rule"] == rule).cloned().collect();
        match its.as_slice() {
            [only] if only["standing"] == state => Ok(only.clone()),
            _ => Err(found),
        }
    })
    .await
}

/// The kinds of the messages about an incident, in the order of their numbers.
fn messages(db: &ScratchDb, incident: &Value) -> Vec<String> {
    let id = incident["id"].as_str().expect("an id");
    let found = db.sql(&format!("SELECT kind FROM alert_message WHERE incident_id = {id} ORDER BY number, id"));
    found.split_whitespace().map(str::to_owned).collect()
}

async fn three_failures_are_reported_once_and_their_end_once(db: ScratchDb) {
    let server = Server::start_with(&db, &OFTEN).await;
    let api = server.api();
    channel(&db);
    api.post("/api/v1/jobs", job("flaky", "exit 3")).await.expect(201);
    rule(&api, "in-row", json!({"failures_in_row": {"count": 3}}), json!({"scope": {"job": "flaky"}})).await;
    let _agent = Agent::start(&server, "files").await;
    for _ in 0..2 {
        wait_for_verdict(&api, &trigger(&api, "flaky").await).await;
    }
    // There is nothing to wait for after two failures: if they began an incident, the checks below would show it.
    wait_for_verdict(&api, &trigger(&api, "flaky").await).await;
    let firing = incident(&api, "in-row", "firing").await;
    assert_eq!((&firing["subject"]["name"], &firing["severity"]), (&json!("flaky"), &json!("warning")));
    assert!(firing["samples"][0]["message"].as_str().is_some_and(|text| text.contains('3')), "{firing}");
    wait_for_verdict(&api, &trigger(&api, "flaky").await).await;
    wait_until(LIMIT, "the fourth is counted", async || {
        let now = incident(&api, "in-row", "firing").await;
        if now["count"].as_u64() >= Some(4) { Ok(()) } else { Err(now) }
    })
    .await;
    assert_eq!(messages(&db, &firing), ["firing"]);

    api.patch("/api/v1/jobs/flaky", json!({"params": {"argv": ["true"]}})).await.expect(200);
    wait_for_verdict(&api, &trigger(&api, "flaky").await).await;
    let resolved = incident(&api, "in-row", "resolved").await;
    assert_eq!(resolved["id"], firing["id"]);
    assert_eq!(messages(&db, &firing), ["firing", "resolved"]);
}
on_each_database!(three_failures_are_reported_once_and_their_end_once);

/// A pump run fails if rows failed for good, and its message names these rows.
async fn rows_that_fail_for_good_are_reported(db: ScratchDb) {
    let server = Server::start_with(&db, &OFTEN).await;
    let api = server.api();
    channel(&db);
    let folder = tempfile::tempdir().expect("make a folder");
    let [gate, done] = ["gate", "done"].map(|name| folder.path().join(name).display().to_string());
    let select = format!(r#"test -e {done} || echo '{{"item": "0", "key": "4711", "row": 1}}'"#);
    let execute = format!("cat > {done}.read; test -e {gate} && touch {done}");
    let pump = json!({"items": 2, "groups": 2, "idle": "100ms", "until": "empty"});
    let orders = json!({"name": "orders", "app": "files", "handler": "pump", "pump": pump,
        "params": {"select": ["sh", "-c", select], "execute": ["sh", "-c", execute]}, "retry": {"max": 1, "backoff": "1s"}});
    rule(&api, "failed", json!({"failed": {}}), json!({})).await;
    api.post("/api/v1/apps", json!({"name": "files"})).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    api.post("/api/v1/jobs", orders).await.expect(201);
    let firing = incident(&api, "failed", "firing").await;
    assert_eq!((&firing["subject"]["name"], &firing["count"]), (&json!("orders"), &json!(1)));
    let run = firing["samples"][0]["run"].as_str().expect("a run");
    let root = api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
    assert_eq!((&root["status"], &root["reason"]), (&json!("failed"), &json!("dry")));
    let groups = root["shards"].as_array().expect("shards");
    let group = groups.iter().find(|group| group["status"] == "failed").expect("a group has failed");
    assert_eq!((&group["reason"], &root["message"]), (&json!("dry"), &json!("1 of 2 shards failed")));
    assert!(group["message"].as_str().is_some_and(|text| text.ends_with("failed for good: 4711")), "{group}");
    // A run that completes the row ends the incident.
    std::fs::write(&gate, "").expect("write a file");
    let again = wait_for_verdict(&api, &trigger(&api, "orders").await).await;
    assert_eq!((&again["status"], &again["reason"]), (&json!("succeeded"), &json!("dry")));
    let resolved = incident(&api, "failed", "resolved").await;
    assert_eq!(messages(&db, &resolved), ["firing", "resolved"]);
    assert_eq!(api.runs("orders").await.iter().filter(|run| run["shard_index"].is_null()).count(), 2);
}
on_each_database!(rows_that_fail_for_good_are_reported);

/// The server dies at `place`, in the transaction that writes a decision: once when an incident begins and once when it
/// ends.
async fn dies_at(place: &str) {
    let armed = ["--failpoint", place];
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let mut server = Server::start_with(&db, &OFTEN).await;
    channel(&db);
    server.api().post("/api/v1/jobs", job("fails", "exit 3")).await.expect(201);
    rule(&server.api(), "failed", json!({"failed": {}}), json!({})).await;
    server.kill().await;
    assert!(server.try_restart_with(&armed).await, "nothing is decided before a run fails");
    let _agent = Agent::start(&server, "files").await;
    trigger(&server.api(), "fails").await;
    server.process().wait(LIMIT).await;
    server.restart().await;
    let api = server.api();
    let firing = incident(&api, "failed", "firing").await;
    assert_eq!(messages(&db, &firing), ["firing"], "{place}");

    // An open incident is evaluated again after two seconds: the server is killed before that.
    api.patch("/api/v1/jobs/fails", json!({"params": {"argv": ["true"]}})).await.expect(200);
    wait_for_verdict(&api, &trigger(&api, "fails").await).await;
    server.kill().await;
    if server.try_restart_with(&armed).await {
        wait_until(LIMIT, "the server dies", async || server.process().has_ended().ok_or("it lives")).await;
    }
    server.restart().await;
    let resolved = incident(&server.api(), "failed", "resolved").await;
    assert_eq!(messages(&db, &resolved), ["firing", "resolved"], "{place}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_before_a_decision_is_committed_reports_it_once() {
    dies_at("write_alerts.written").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_after_a_decision_is_committed_reports_it_once() {
    dies_at("write_alerts.committed").await;
}

/// A deadline that passes without a success begins an incident within seconds, and so does a period without a success.
/// A success ends both.
async fn a_missing_success_is_reported(db: ScratchDb) {
    let server = Server::start_with(&db, &OFTEN).await;
    let api = server.api();
    channel(&db);
    api.post("/api/v1/jobs", job("close", "true")).await.expect(201);
    api.post("/api/v1/jobs", job("other", "true")).await.expect(201);
    // The first minute that begins at least 8 s from now: the rule must exist before it.
    let minute = (wall_clock_ms() + 8_000) / 60_000 + 1;
    let by = format!("{:02}:{:02}", minute / 60 % 24, minute % 60);
    let deadline = json!({"not_succeeded_by": {"time": by, "zone": "UTC"}});
    rule(&api, "by", deadline.clone(), json!({"scope": {"job": "close"}, "severity": "critical"})).await;
    rule(&api, "lately", json!({"no_success_for": {"length": "2s"}}), json!({"scope": {"job": "other"}})).await;
    let early = incident(&api, "lately", "firing").await;
    let _agent = Agent::start(&server, "files").await;
    let tried = json!({"name": "tried", "condition": deadline, "scope": {"job": "close"}});
    assert_eq!(api.post("/api/v1/alert-rules/preview", tried).await.expect(200)["would_fire"], true);

    wait_until(Duration::from_secs(120), "the deadline passes", async || {
        let open = api.get("/api/v1/incidents?standing=firing&job=close").await.expect(200);
        if open["items"].as_array().is_some_and(|items| items.len() == 1) { Ok(()) } else { Err(open) }
    })
    .await;
    let late = incident(&api, "by", "firing").await;
    assert_eq!(late["severity"], "critical");
    wait_for_verdict(&api, &trigger(&api, "close").await).await;
    let late = incident(&api, "by", "resolved").await;
    assert_eq!(messages(&db, &late), ["firing", "resolved"]);
    assert_eq!(messages(&db, &early), ["firing"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_without_a_success_fires_once_and_ends_with_one() {
    a_missing_success_is_reported(scratch(Backend::Sqlite).await.expect("SQLite is always there")).await;
}

/// A silence withholds a message, and the end of the silence releases it. After an acknowledgement, an incident sends
/// only the message about its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_silence_keeps_a_message_back_until_it_ends() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start_with(&db, &OFTEN).await;
    let api = server.api();
    channel(&db);
    api.post("/api/v1/jobs", job("fails", "exit 3")).await.expect(201);
    rule(&api, "failed", json!({"failed": {}}), json!({"repeat": "1s"})).await;
    let token = server.token_file().display().to_string();
    let place = ["--server", server.url(), "--token-file", &token, "-o", "json"];
    let add = ["alert", "silence", "add", "--job", "fails", "--for", "1h"];
    let added = rondel(&[&add[..], &place].concat(), &[]).await;
    let silence: Value = serde_json::from_str(&added.stdout).unwrap_or_else(|_| panic!("{}", added.stderr));
    let _agent = Agent::start(&server, "files").await;
    wait_for_verdict(&api, &trigger(&api, "fails").await).await;
    let firing = incident(&api, "failed", "firing").await;
    assert_eq!(firing["fired_at"], Value::Null);
    assert_eq!(messages(&db, &firing), [""; 0]);
    let id = silence["id"].as_str().expect("an id");
    api.delete(&format!("/api/v1/silences/{id}")).await.expect(204);
    wait_until(LIMIT, "it is reported, and again", async || {
        let sent = messages(&db, &firing);
        if sent.len() >= 2 && sent[..2] == ["firing", "reminder"] { Ok(()) } else { Err(sent) }
    })
    .await;
    let id = firing["id"].as_str().expect("an id");
    let known = api.post(&format!("/api/v1/incidents/{id}/acknowledge"), json!({})).await.expect(200);
    assert!(known["acknowledged_by"].is_string());
    let sent = messages(&db, &firing).len();
    api.patch("/api/v1/jobs/fails", json!({"params": {"argv": ["true"]}})).await.expect(200);
    wait_for_verdict(&api, &trigger(&api, "fails").await).await;
    let resolved = incident(&api, "failed", "resolved").await;
    assert_eq!(messages(&db, &resolved)[sent..], ["resolved"]);
}

/// A missed expectation of a job's definition is reported once, and its end once.
async fn an_expectation_that_does_not_come_true_is_reported_once(db: ScratchDb) {
    let server = Server::start_with(&db, &OFTEN).await;
    let api = server.api();
    channel(&db);
    let expecting = |name: &str, script: &str, expect: Value| {
        let mut job = job(name, script);
        job["expect"] = expect;
        job
    };
    let often = json!({"no_success_for": "2s", "channels": ["ops"], "severity": "critical"});
    api.post("/api/v1/jobs", expecting("often", "true", often)).await.expect(201);
    let short = json!({"longer_than": "1s", "late": "1h", "channels": ["ops"]});
    api.post("/api/v1/jobs", expecting("short", "sleep 600", short)).await.expect(201);
    let missed = incident(&api, "expect:no_success_for", "firing").await;
    assert_eq!((&missed["subject"]["name"], &missed["severity"]), (&json!("often"), &json!("critical")));
    let _agent = Agent::start(&server, "files").await;
    let run = trigger(&api, "short").await;
    let long = incident(&api, "expect:longer_than", "firing").await;
    assert_eq!(long["samples"][0]["run"], run.as_str());
    api.patch("/api/v1/jobs/often", json!({"expect": {"no_success_for": "1h", "channels": ["ops"]}})).await.expect(200);
    wait_for_verdict(&api, &trigger(&api, "often").await).await;
    let missed = incident(&api, "expect:no_success_for", "resolved").await;
    assert_eq!(messages(&db, &missed), ["firing", "resolved"]);
    api.delete("/api/v1/jobs/short").await.expect(204);
    let long = incident(&api, "expect:longer_than", "resolved").await;
    assert_eq!(messages(&db, &long), ["firing", "resolved"]);
}
on_each_database!(an_expectation_that_does_not_come_true_is_reported_once);

/// A missed expectation is reported once, even if the server dies before or after the COMMIT of the decision.
async fn dies_with_an_expectation_at(place: &str) {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let mut server = Server::start_with(&db, &OFTEN).await;
    channel(&db);
    let mut often = job("often", "true");
    often["expect"] = json!({"no_success_for": "1h", "channels": ["ops"]});
    server.api().post("/api/v1/jobs", often).await.expect(201);
    server.kill().await;
    db.sql("UPDATE job_expect SET look_at_ms = 1");
    db.sql("UPDATE job SET created_at_ms = created_at_ms - 7200000");
    if server.try_restart_with(&["--failpoint", place]).await {
        wait_until(LIMIT, "the server dies", async || server.process().has_ended().ok_or("it lives")).await;
    }
    server.restart().await;
    let firing = incident(&server.api(), "expect:no_success_for", "firing").await;
    assert_eq!(messages(&db, &firing), ["firing"], "{place}");
    let _agent = Agent::start(&server, "files").await;
    wait_for_verdict(&server.api(), &trigger(&server.api(), "often").await).await;
    let resolved = incident(&server.api(), "expect:no_success_for", "resolved").await;
    assert_eq!(messages(&db, &resolved), ["firing", "resolved"], "{place}");
    wait_until(LIMIT, "the next look is an hour after the success", async || {
        let at = db.sql("SELECT look_at_ms FROM job_expect");
        let at: i64 = at.trim().parse().expect("a number");
        if at > wall_clock_ms() + 1_800_000 { Ok(()) } else { Err(at) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expectation_is_reported_once_by_a_server_that_dies_before_the_commit() {
    dies_with_an_expectation_at("write_alerts.written").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expectation_is_reported_once_by_a_server_that_dies_after_the_commit() {
    dies_with_an_expectation_at("write_alerts.committed").await;
}

/// A restart of the server ends the streams of all executors. An executor that may reconnect counts as missing only
/// once it is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_server_is_no_lack_of_executors() {
    let patience = ["--heartbeat", "1s", "--silence", "3s", "--lost-after", "13s", "--continue-max", "40s"];
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let mut server = Server::start_with(&db, &[&OFTEN[..], &patience].concat()).await;
    channel(&db);
    server.api().post("/api/v1/jobs", job("j", "true")).await.expect(201);
    let mut agent = Agent::start(&server, "files").await;
    rule(&server.api(), "gone", json!({"no_executor": {}}), json!({})).await;
    // The paused agent does not reconnect for now.
    agent.process().signal(Signal::STOP);
    server.kill().await;
    server.restart().await;
    let looked_at = || db.sql("SELECT check_at_ms FROM alert_rule");
    for _ in 0..3 {
        let before = looked_at();
        wait_until(LIMIT, "the rule is looked at", async || {
            let now = looked_at();
            if now == before { Err(now) } else { Ok(()) }
        })
        .await;
        let stopped = db.sql("SELECT COUNT(*) FROM executor_session WHERE ended_at_ms IS NULL");
        assert_eq!(stopped.trim(), "0", "the agent is still away");
        assert_eq!(db.sql("SELECT COUNT(*) FROM incident").trim(), "0", "it may come back");
    }
    let firing = incident(&server.api(), "gone", "firing").await;
    agent.process().signal(Signal::CONT);
    let resolved = incident(&server.api(), "gone", "resolved").await;
    assert_eq!(resolved["id"], firing["id"]);
    assert_eq!(messages(&db, &firing), ["firing", "resolved"]);
}

/// The explanation of a failed fire names the fire's incident.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_fire_leads_to_its_incident() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start_with(&db, &OFTEN).await;
    let api = server.api();
    for (name, script) in [("fails", "exit 3"), ("works", "true")] {
        let mut job = job(name, script);
        job["schedule"] = json!({"cron": "* * * * * ?"});
        api.post("/api/v1/jobs", job).await.expect(201);
    }
    channel(&db);
    rule(&api, "failed", json!({"failed": {}}), json!({})).await;
    let _agent = Agent::start(&server, "files").await;
    let firing = incident(&api, "failed", "firing").await;
    let at = firing["samples"][0]["fire_at"].as_str().expect("an instant").to_owned();
    let why = api.get(&format!("/api/v1/jobs/fails/why?at={at}")).await.expect(200);
    assert_eq!((&why["incident"]["id"], &why["incident"]["rule"]), (&firing["id"], &json!("failed")), "{why}");
    let token = server.token_file().display().to_string();
    let args = ["why", "fails", "--at", &at, "--server", server.url(), "--token-file", &token];
    let printed = rondel(&args, &[]).await.stdout;
    assert!(printed.contains(firing["id"].as_str().expect("an id")), "{printed}");
    let run = wait_until(LIMIT, "the other job succeeds", async || {
        let runs = api.runs("works").await;
        runs.iter().find(|run| run["status"] == "succeeded").cloned().ok_or(runs)
    })
    .await;
    let at = run["fire_at"].as_str().expect("an instant");
    let why = api.get(&format!("/api/v1/jobs/works/why?at={at}")).await.expect(200);
    assert_eq!(why["incident"], Value::Null, "{why}");
}

/// The server measures its own disks, and reads when its certificate ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_without_room_and_a_certificate_that_ends_are_reported() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start_with(&db, &OFTEN).await;
    let api = server.api();
    let node = wait_until(LIMIT, "the disks are measured", async || {
        let nodes = api.get("/api/v1/nodes").await.expect(200);
        let node = nodes["items"][0].clone();
        if node["disks"][0]["size_bytes"].as_u64() > Some(0) { Ok(node) } else { Err(nodes) }
    })
    .await;
    assert_eq!(node["certificate_ends_at"], Value::Null, "{node}");
    let free = node["disks"][0]["free_bytes"].as_u64().expect("a number");
    // Other programs change the free space too, so the bound is far above it.
    let more = format!("{}MiB", (free >> 20) * 4 + 1_024);
    channel(&db);
    rule(&api, "room", json!({"disk_low": {"free": more}}), json!({})).await;
    let firing = incident(&api, "room", "firing").await;
    assert_eq!((&firing["subject"]["kind"], &firing["subject"]["name"]), (&json!("node"), &node["name"]));
    rule_again(&api, "room", json!({"disk_low": {"free": "1B"}})).await;
    let resolved = incident(&api, "room", "resolved").await;
    assert_eq!(messages(&db, &resolved), ["firing", "resolved"]);
    let soon = json!({"name": "soon", "condition": {"certificate_expiring": {"within": "366d"}}});
    assert_eq!(api.post("/api/v1/alert-rules/preview", soon).await.expect(200)["would_fire"], false);
}
