//! All conditions of alerts in one test, on a server that is killed repeatedly. Each incident is reported once when it begins and once
//! when it ends, even if it is silenced, acknowledged, grouped, repeated or escalated.
//!
//! The test creates the facts while no evaluation of the rules is due. Then it starts the server repeatedly. Each time, the server dies
//! at its first decision: in turn just before the COMMIT of that decision and just after it. Therefore every decision is lost once and
//! interrupted once.
//!
//! It takes one to two minutes; `tests/alert-scenarios` runs it many times.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rondel_tests::{Agent, Api, Backend, ScratchDb, Server, rondel, scratch, wait_until, wall_clock_ms};
use serde_json::{Value, json};

use crate::verdicts::{trigger, wait_for_verdict};

const LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of starts of the server in one part of the test.
const LIFE_COUNT_MAX: usize = 60;
/// Minimum number of starts, so that decisions that change nothing are interrupted too.
const LIFE_COUNT_MIN: usize = 4;
const PLACES: [&str; 2] = ["write_alerts.written", "write_alerts.committed"];
/// Jobs whose runs fail until the test mends the jobs.
const FAILING: [&str; 11] =
    ["failed", "in-row", "escalated", "silenced", "known", "repeated", "labelled", "g1", "g2", "g3", "g4"];

/// The rules by name: their conditions, and the fields that differ from the defaults. Most rules watch the job with the
/// rule's name.
fn rules() -> Vec<(&'static str, Value)> {
    let minute = wall_clock_ms() / 60_000 - 3;
    let by = format!("{:02}:{:02}", minute / 60 % 24, minute % 60);
    let of_job = |name: &'static str, condition: Value| (name, json!({"condition": condition, "scope": {"job": name}}));
    let with = |(name, mut rule): (&'static str, Value), field: &str, value: Value| {
        rule[field] = value;
        (name, rule)
    };
    let failed = |name| of_job(name, json!({"failed": {}}));
    vec![
        failed("failed"),
        failed("timed-out"),
        of_job("in-row", json!({"failures_in_row": {"count": 3}})),
        (
            "rate",
            json!({"condition": {"failure_rate": {"percent": 50, "window": "1h", "min_runs": 4}}, "scope": {"app": "rated"}}),
        ),
        of_job("overlapping", json!({"skipped": {"reasons": ["overlap"]}})),
        of_job("without-executor", json!({"skipped": {}})),
        of_job("late", json!({"late": {"by": "1s"}})),
        of_job("by-time", json!({"not_succeeded_by": {"time": by, "zone": "UTC"}})),
        of_job("lately", json!({"no_success_for": {"length": "30m"}})),
        of_job("long", json!({"running_longer": {"than": "1s"}})),
        of_job("unusual", json!({"running_longer": {"times_p95": 2}})),
        ("no-executor", json!({"condition": {"no_executor": {}}, "scope": {"app": "alone"}})),
        ("lost", json!({"condition": {"node_lost": {}}})),
        ("failing-loop", json!({"condition": {"loop_failing": {"length": "1m"}}})),
        ("ending", json!({"condition": {"token_expiring": {"within": "2h"}}})),
        ("certificate", json!({"condition": {"certificate_expiring": {"within": "7d"}}})),
        ("disk", json!({"condition": {"disk_low": {"free": "1KiB"}}})),
        ("growth", json!({"condition": {"ledger_growth": {"runs": 100, "window": "1h"}}, "scope": {"app": "grown"}})),
        ("grouped", json!({"condition": {"failed": {}}, "scope": {"label": "kind=grouped"}, "group_over": 2})),
        with(failed("escalated"), "escalate", json!({"channel": "boss", "after": "1s"})),
        failed("silenced"),
        failed("known"),
        with(failed("repeated"), "repeat", json!("1s")),
        ("labelled", json!({"condition": {"failed": {}}, "scope": {"label": "kind=own"}})),
    ]
}

/// The expected messages by rule and kind once all incidents have begun. Reminders count as one.
fn expected_once_begun() -> BTreeMap<(String, String), usize> {
    let silent = ["silenced"];
    let mut expected = BTreeMap::new();
    for (rule, _) in rules() {
        let count = if rule == "grouped" { 3 } else { 1 };
        if !silent.contains(&rule) {
            expected.insert((rule.to_owned(), "firing".to_owned()), count);
        }
    }
    expected.insert(("escalated".to_owned(), "escalated".to_owned()), 1);
    expected.insert(("repeated".to_owned(), "reminder".to_owned()), 1);
    expected
}

/// The expected messages once all incidents have ended: one more about each end, to each channel that reported the
/// beginning.
fn expected_once_ended() -> BTreeMap<(String, String), usize> {
    let mut expected = expected_once_begun();
    let firing: Vec<_> =
        expected.iter().filter(|((_, kind), _)| kind == "firing").map(|(key, count)| (key.0.clone(), *count)).collect();
    for (rule, count) in firing {
        let count = if rule == "escalated" { 2 } else { count };
        expected.insert((rule, "resolved".to_owned()), count);
    }
    expected.insert(("known".to_owned(), "acknowledged".to_owned()), 1);
    expected
}

fn messages(db: &ScratchDb) -> BTreeMap<(String, String), usize> {
    let rows = db.sql(
        "SELECT incident.rule_name, alert_message.kind, COUNT(*) FROM alert_message JOIN incident \
         ON incident.id = alert_message.incident_id GROUP BY incident.rule_name, alert_message.kind",
    );
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [rule, kind, count] = words.as_slice() else { return None };
        let count: usize = count.parse().ok()?;
        let count = if *kind == "reminder" { 1 } else { count };
        Some((((*rule).to_owned(), (*kind).to_owned()), count))
    };
    rows.lines().filter_map(row).collect()
}

/// The rules with an open incident.
fn open(db: &ScratchDb) -> BTreeSet<String> {
    let rows = db.sql("SELECT DISTINCT rule_name FROM incident WHERE is_open = 1");
    rows.split_whitespace().map(str::to_owned).collect()
}

/// Postpones the next evaluation of the rules: records that the last one began 40 s from now, so that none is due in
/// the next minute on a server with a long period.
fn hold(db: &ScratchDb) {
    let soon = wall_clock_ms() + 40_000;
    db.sql(&format!("INSERT OR REPLACE INTO housekeeping_pass (task, last_at_ms) VALUES ('alert_rules', {soon})"));
}

/// Starts the server until `is_done`. Each time, it dies at its next decision.
async fn storm(server: &mut Server, part: &str, is_done: impl Fn() -> Result<(), String>) {
    let mut seen = Err("nothing yet".to_owned());
    for life in 0..LIFE_COUNT_MAX {
        let often = ["--alert-rules-period", "200ms", "--failpoint", PLACES[life % PLACES.len()]];
        if server.try_restart_with(&often).await {
            wait_until(LIMIT, "the server dies at its next decision", async || {
                server.process().has_ended().ok_or("it lives")
            })
            .await;
        }
        seen = is_done();
        if seen.is_ok() && life + 1 >= LIFE_COUNT_MIN {
            return;
        }
    }
    assert_eq!(seen, Ok(()), "{part}: not after {LIFE_COUNT_MAX} lives");
}

fn compare(db: &ScratchDb, expected: &BTreeMap<(String, String), usize>) -> Result<(), String> {
    let found = messages(db);
    let wrong: Vec<_> = expected.iter().filter(|(key, count)| found.get(key) != Some(count)).collect();
    let more: Vec<_> = found.iter().filter(|(key, _)| !expected.contains_key(key)).collect();
    if wrong.is_empty() && more.is_empty() {
        Ok(())
    } else {
        Err(format!("expected {wrong:?}; beside them {more:?}; found {found:?}"))
    }
}

async fn job(api: &Api, name: &str, (app, script): (&str, &str), more: Value) {
    let mut job = json!({"name": name, "app": app, "handler": "shell", "params": {"argv": ["sh", "-c", script]}});
    job.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    api.post("/api/v1/jobs", job).await.expect(201);
}

async fn make_rules(db: &ScratchDb, (server, api): (&Server, &Api)) {
    for (id, name) in [(7, "ops"), (8, "boss")] {
        db.sql(&format!(
            "INSERT INTO alert_channel (id, namespace_id, name, kind, settings, secret, lang, is_enabled, created_at_ms, \
             updated_at_ms) VALUES ({id}, 1, '{name}', 'webhook', '{{}}', '', 'en', 1, 0, 0)"
        ));
    }
    for (name, mut rule) in rules() {
        rule["channels"] = json!(["ops"]);
        rule["digest"] = json!("1h");
        api.put(&format!("/api/v1/alert-rules/{name}"), rule).await.expect(201);
    }
    let token = server.token_file().display().to_string();
    let place = ["--server", server.url(), "--token-file", &token];
    let silence = ["alert", "silence", "add", "--rule", "silenced", "--for", "8h", "--reason", "stocktaking"];
    let added = rondel(&[&silence[..], &place].concat(), &[]).await;
    assert_eq!(added.code, Some(0), "{}", added.stderr);
}

async fn make_jobs(api: &Api) {
    for name in FAILING {
        let kind = if name.starts_with('g') {
            "grouped"
        } else if name == "labelled" {
            "own"
        } else {
            "none"
        };
        job(api, name, ("files", "exit 3"), json!({"labels": {"kind": kind}})).await;
    }
    job(api, "timed-out", ("files", "sleep 60"), json!({"timeout": "1s"})).await;
    job(api, "overlapping", ("files", "sleep 600"), json!({"overlap": {"policy": "discard"}})).await;
    job(api, "long", ("files", "sleep 600"), json!({})).await;
    job(api, "unusual", ("files", "sleep 600"), json!({})).await;
    job(api, "by-time", ("files", "true"), json!({})).await;
    job(api, "lately", ("files", "true"), json!({})).await;
    job(api, "late", ("empty", "true"), json!({"queue_timeout": "1h", "misfire": {"tolerance": "1h"}})).await;
    job(api, "without-executor", ("empty", "true"), json!({"queue_timeout": "1s"})).await;
    job(api, "lonely", ("alone", "true"), json!({})).await;
    job(api, "rated", ("rated", "true"), json!({})).await;
    job(api, "grown", ("grown", "true"), json!({})).await;
}

async fn running(api: &Api, job: &str) -> String {
    let run = trigger(api, job).await;
    wait_until(LIMIT, "the run is under way", async || {
        let run = api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
        if run["status"] == "running" { Ok(()) } else { Err(run) }
    })
    .await;
    run
}

/// Creates the facts for the conditions that do not depend on runs.
fn make_facts(db: &ScratchDb) {
    let (now, day, hour) = (wall_clock_ms(), 86_400_000, 3_600_000);
    // Makes today's deadline due for evaluation. It has passed already.
    db.sql(&format!("UPDATE alert_rule SET check_at_ms = check_at_ms - {day} WHERE name = 'by-time'"));
    db.sql(&format!("UPDATE job SET created_at_ms = created_at_ms - {hour} WHERE name = 'lately'"));
    for (app, succeeded, failed) in [("rated", 1, 5), ("grown", 100, 0)] {
        db.sql(&format!(
            "INSERT INTO stat_point (owner_id, kind, step_ms, at_ms, succeeded_count, failed_count, timed_out_count, cancelled_count, \
             unknown_count, skipped_count, durations, lateness) SELECT id, 'app', 60000, {}, {succeeded}, {failed}, 0, 0, 0, 0, '', '' \
             FROM app WHERE name = '{app}'",
            now / 60_000 * 60_000
        ));
    }
    db.sql(&format!(
        "INSERT INTO stat_point (owner_id, kind, step_ms, at_ms, succeeded_count, failed_count, timed_out_count, cancelled_count, \
         unknown_count, skipped_count, durations, lateness) SELECT id, 'job', 3600000, {}, 20, 0, 0, 0, 0, 0, '10:20', '' FROM job \
         WHERE name = 'unusual'",
        now / hour * hour - hour
    ));
    let failing = json!([{"name": "scan", "failing_since": "2020-01-01T00:00:00Z", "error": "no such table"}]);
    let disk = json!({"folder": "/data", "free_bytes": 5, "size_bytes": 1_000_000});
    let host = json!([{"name": "host", "host": {"disks": [disk], "certificate_ends_at": "2020-01-01T00:00:00Z"}}]);
    for (id, name, lease, loops) in [
        (901, "gone", 1, "[]".to_owned()),
        (902, "ill", now + day, failing.to_string()),
        (903, "full", now + day, host.to_string()),
    ] {
        db.sql(&format!(
            "INSERT INTO node (id, name, ordinal, epoch, lease_until_ms, state, server_version, started_at_ms, loops) \
             VALUES ({id}, '{name}', {id}, 1, {lease}, 'draining', 'test', 1, '{loops}')"
        ));
    }
}

/// Makes every condition hold.
async fn break_all(db: &ScratchDb, api: &Api) -> Vec<String> {
    let mut open = Vec::new();
    for job in ["overlapping", "long", "unusual"] {
        open.push(running(api, job).await);
    }
    let mut ended = vec![
        trigger(api, "overlapping").await,
        trigger(api, "without-executor").await,
        trigger(api, "timed-out").await,
    ];
    trigger(api, "late").await;
    for job in FAILING.into_iter().chain(["in-row", "in-row"]) {
        ended.push(trigger(api, job).await);
    }
    for run in &ended {
        wait_for_verdict(api, run).await;
        hold(db);
    }
    open
}

/// Makes every condition end.
async fn mend_all(db: &ScratchDb, (server, api): (&Server, &Api), open: &[String], token: &str) -> Vec<Agent> {
    db.sql("DELETE FROM node WHERE id IN (901, 902, 903)");
    db.sql("DELETE FROM stat_point WHERE step_ms = 60000 AND kind = 'app' AND owner_id IN (SELECT id FROM app WHERE name IN ('rated', 'grown'))");
    api.delete(&format!("/api/v1/tokens/{token}")).await;
    let agents = vec![Agent::start(server, "empty").await, Agent::start(server, "alone").await];
    // No run waits for this executor, so the test itself waits until the server knows the executor, before the server
    // dies.
    wait_until(LIMIT, "the executor of the app alone is online", async || {
        let found = api.get("/api/v1/executors?limit=200").await.expect(200);
        let items = found["items"].as_array().expect("a list");
        let is_online = items.iter().any(|one| one["app"] == "alone" && one["status"] == "online");
        if is_online { Ok(()) } else { Err(found.clone()) }
    })
    .await;
    for run in open {
        api.post(&format!("/api/v1/runs/{run}/cancel"), json!({})).await;
        wait_for_verdict(api, run).await;
        hold(db);
    }
    let mut runs =
        vec![trigger(api, "by-time").await, trigger(api, "lately").await, trigger(api, "without-executor").await];
    for job in FAILING.into_iter().chain(["timed-out", "overlapping"]) {
        api.patch(&format!("/api/v1/jobs/{job}"), json!({"params": {"argv": ["true"]}})).await.expect(200);
        runs.push(trigger(api, job).await);
    }
    let late = api.runs("late").await;
    runs.extend(late.iter().filter_map(|run| run["id"].as_str()).map(str::to_owned));
    for run in &runs {
        let run = wait_for_verdict(api, run).await;
        assert_eq!(run["status"], "succeeded", "{run}");
        hold(db);
    }
    let found = api.get("/api/v1/incidents?standing=firing&limit=200").await.expect(200);
    let known = found["items"].as_array().expect("a list").iter().find(|one| one["rule"] == "known").cloned();
    let known = known.expect("the incident is open");
    let id = known["id"].as_str().expect("an id");
    api.post(&format!("/api/v1/incidents/{id}/acknowledge"), json!({})).await.expect(200);
    agents
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_four_scenarios_are_reported_once_by_a_server_that_dies_at_every_decision() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let mut server = Server::start_with_variables(&db, &[], &[("RONDEL_SERVER_ALERT_RULES_PERIOD", "60s")]).await;
    let api = server.api();
    hold(&db);
    make_jobs(&api).await;
    make_rules(&db, (&server, &api)).await;
    let token = json!({"kind": "api", "name": "ending", "grants": [{"role": "viewer"}], "expires_in": "1h"});
    let token = api.post("/api/v1/tokens", token).await.expect(201);
    let token = token["id"].as_str().expect("an id").to_owned();
    let _agent = Agent::start(&server, "files").await;
    let under_way = break_all(&db, &api).await;
    server.kill().await;
    make_facts(&db);

    let all: BTreeSet<String> = rules().into_iter().map(|(name, _)| name.to_owned()).collect();
    storm(&mut server, "all incidents begin", || {
        let open = open(&db);
        let missing: Vec<String> = all.difference(&open).cloned().collect();
        if missing.is_empty() {
            compare(&db, &expected_once_begun())
        } else {
            Err(format!("no incident of {missing:?}"))
        }
    })
    .await;

    hold(&db);
    server.restart().await;
    hold(&db);
    let api = server.api();
    let _agents = mend_all(&db, (&server, &api), &under_way, &token).await;
    server.kill().await;
    storm(&mut server, "all incidents end", || {
        let open = open(&db);
        if open.is_empty() { compare(&db, &expected_once_ended()) } else { Err(format!("still open: {open:?}")) }
    })
    .await;
    let twice = db.sql(
        "SELECT rule_name, subject_kind, subject_name, COUNT(*) FROM incident GROUP BY rule_name, subject_kind, subject_name HAVING COUNT(*) > 1",
    );
    assert_eq!(twice.trim(), "", "incidents that began twice");
}
