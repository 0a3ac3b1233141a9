//! Reports on whole systems: their counts, also on the command line, and a weekly report that is sent once even if the server dies
//! before or after it writes the message.

use std::time::Duration;

use rondel_tests::{Agent, Backend, ScratchDb, Server, rondel, scratch, wait_until};
use serde_json::{Value, json};

use crate::on_each_database;
use crate::verdicts::{trigger, wait_for_verdict};

const LIMIT: Duration = Duration::from_secs(60);
const OFTEN: [&str; 2] = ["--alert-rules-period", "200ms"];

/// A channel whose messages reach no service: the tests check the rows of its messages.
fn channel(db: &ScratchDb) {
    db.sql(
        "INSERT INTO alert_channel (id, namespace_id, name, kind, settings, secret, lang, is_enabled, created_at_ms, \
         updated_at_ms) VALUES (7, 1, 'ops', 'webhook', '{}', '', 'en', 1, 0, 0)",
    );
}

/// The notices of the messages to the channel.
fn reports(db: &ScratchDb) -> Vec<String> {
    let found = db.sql("SELECT notice FROM alert_message WHERE channel_id = 7 ORDER BY id");
    found.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

fn make_due(db: &ScratchDb) {
    db.sql("UPDATE report_schedule SET next_at_ms = 1700000000000");
}

async fn dies_at(place: &str) {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let mut server = Server::start_with(&db, &OFTEN).await;
    channel(&db);
    let weekly = json!({"weekday": "mon", "time": "08:00", "zone": "Europe/Berlin", "channel": "ops"});
    server.api().put("/api/v1/reports/schedule", weekly).await.expect(201);
    server.kill().await;
    make_due(&db);
    if server.try_restart_with(&["--failpoint", place]).await {
        wait_until(LIMIT, "the server dies", async || server.process().has_ended().ok_or("it lives")).await;
    }
    server.restart().await;
    let api = server.api();
    wait_until(LIMIT, "the report is sent", async || {
        let schedule = api.get("/api/v1/reports/schedule").await.expect(200);
        if schedule["sent_at"].is_string() && reports(&db).len() == 1 { Ok(()) } else { Err(schedule) }
    })
    .await;
    // This report is no longer due. When the next one is due, a second message is written, and no third.
    make_due(&db);
    wait_until(LIMIT, "the next report is sent", async || {
        let count = reports(&db).len();
        if count == 2 { Ok(()) } else { Err(count) }
    })
    .await;
    assert_eq!(reports(&db).len(), 2, "{place}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_before_a_weekly_report_is_committed_sends_it_once() {
    dies_at("write_report.written").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_after_a_weekly_report_is_committed_sends_it_once() {
    dies_at("write_report.committed").await;
}

/// After the next count, runs that ended are in the report by app, job and label, with equal messages grouped, and also in the
/// weekly report.
async fn failed_runs_are_in_the_report(db: ScratchDb) {
    let server = Server::start_with(&db, &[&OFTEN[..], &["--log-retention", "10s"]].concat()).await;
    let api = server.api();
    channel(&db);
    let job = |name: &str, script: &str| {
        json!({"name": name, "app": "files", "handler": "shell", "labels": {"team": "pay"},
            "params": {"argv": ["sh", "-c", script]}})
    };
    api.post("/api/v1/jobs", job("good", "true")).await.expect(201);
    api.post("/api/v1/jobs", job("bad", "echo order $$ lost >&2; exit 3")).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    wait_for_verdict(&api, &trigger(&api, "good").await).await;
    for _ in 0..2 {
        wait_for_verdict(&api, &trigger(&api, "bad").await).await;
    }
    let report = wait_until(Duration::from_secs(120), "the runs are counted", async || {
        let report = api.get("/api/v1/reports?by=label&label=team").await.expect(200);
        // The counts and the messages are two reads: the server may count the runs between them.
        let is_counted = report["total"]["run_count"] == 3 && report["failures"][0]["run_count"] == 2;
        if is_counted { Ok(report) } else { Err(report) }
    })
    .await;
    assert_eq!(report["items"][0]["name"], "pay");
    assert_eq!(report["total"]["counts"], json!({"succeeded": 1, "failed": 2}));
    assert_eq!(report["total"]["succeeded_percent"], 33.3);
    let failures = report["failures"].as_array().expect("a list");
    assert_eq!((failures.len(), &failures[0]["run_count"]), (1, &json!(2)), "{report}");
    assert_eq!(failures[0]["jobs"], json!(["bad"]));
    for by in ["namespace", "app", "job"] {
        let same = api.get(&format!("/api/v1/reports?by={by}")).await.expect(200);
        assert_eq!(same["total"]["run_count"], 3, "{by}: {same}");
    }

    let token = server.token_file().display().to_string();
    let place = ["--server", server.url(), "--token-file", &token];
    let shown = rondel(&[&["report", "show", "--by", "job"][..], &place].concat(), &[]).await;
    assert!(shown.stdout.contains("good") && shown.stdout.contains("(total)"), "{} {}", shown.stdout, shown.stderr);
    let csv = rondel(&[&["report", "show", "--by", "job", "--csv"][..], &place].concat(), &[]).await;
    assert!(
        csv.stdout.contains("name,app,at,runs") && csv.stdout.lines().count() == 4,
        "{} {}",
        csv.stdout,
        csv.stderr
    );
    let set = ["report", "schedule", "set", "--weekday", "fri", "--time", "17:00", "--channel", "ops", "-o", "json"];
    let saved = rondel(&[&set[..], &place].concat(), &[]).await;
    let saved: Value = serde_json::from_str(&saved.stdout).expect("JSON");
    assert!(saved["next_at"].is_string() && saved["zone"] == "UTC", "{saved}");
    make_due(&db);
    let notice = wait_until(LIMIT, "the weekly report is sent", async || {
        let sent = reports(&db);
        sent.first().cloned().ok_or(sent)
    })
    .await;
    assert!(notice.contains("\"kind\":\"report\"") && notice.contains("No run was planned"), "{notice}");
}
on_each_database!(failed_runs_are_in_the_report);
