//! The main duty of the product: fires become runs on time, once each, and are shown.

use std::time::Duration;

use rondel_tests::{Agent, ScratchDb, Server, wait_until};
use serde_json::{Value, json};

use crate::journal::{Journal, check_against_ledger, seconds};
use crate::on_each_database;

/// Every fire of a cron job and of an interval job runs once, in order, without a hole.
async fn each_fire_runs_once(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    api.post("/api/v1/apps", json!({"name": "files"})).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    let (cron, interval) = (Journal::new(), Journal::new());
    let job = |name: &str, journal: &Journal, schedule| json!({"name": name, "app": "files", "handler": "shell", "params": journal.params(""), "schedule": schedule, "misfire": {"policy": "all", "max": 100}});
    api.post("/api/v1/jobs", job("cron", &cron, json!({"cron": "*/2 * * * * ?"}))).await.expect(201);
    api.post("/api/v1/jobs", job("interval", &interval, json!({"every": "1s"}))).await.expect(201);
    for (name, journal, period) in [("cron", &cron, 2), ("interval", &interval, 1)] {
        wait_until(Duration::from_secs(60), "twelve seconds of lines", async || {
            let lines = journal.lines();
            if lines.len() >= 12 / period { Ok(()) } else { Err(lines) }
        })
        .await;
        let fires = journal.by_fire();
        assert!(fires.values().all(|lines| lines.len() == 1), "{name} ran a fire twice: {fires:?}");
        let instants: Vec<i64> = fires.keys().map(|fire| seconds(fire)).collect();
        let step = i64::try_from(period).expect("small");
        assert!(instants.windows(2).all(|pair| pair[1] - pair[0] == step), "{name} has a hole: {instants:?}");
        check_against_ledger(&journal.lines(), &api.runs(name).await);
    }
    let runs = api.runs("interval").await;
    let is_done = |run: &&Value| run["status"] == "succeeded" && run["trigger"] == "interval";
    let done = runs.iter().find(is_done).expect("a run has succeeded");
    assert_eq!(done["attempt"], 1);
    let started_at = done["started_at"].as_str().expect("it began");
    assert!(seconds(started_at) >= seconds(done["fire_at"].as_str().expect("an instant")), "{done} began early");
}
on_each_database!(each_fire_runs_once);

/// A job with several schedules fires at each instant of any of them, and only once at an instant that two of them
/// share.
async fn schedules_that_meet_fire_once(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    api.post("/api/v1/apps", json!({"name": "files"})).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    let journal = Journal::new();
    let job = json!({"name": "both", "app": "files", "handler": "shell", "params": journal.params(""),
        "schedule": [{"cron": "0/2 * * * * ?"}, {"cron": "0/3 * * * * ?"}], "misfire": {"policy": "all", "max": 100}});
    api.post("/api/v1/jobs", job).await.expect(201);
    let fires = wait_until(Duration::from_secs(60), "instants of twelve seconds", async || {
        let fires = journal.by_fire();
        if fires.len() >= 9 { Ok(fires) } else { Err(fires) }
    })
    .await;
    assert!(fires.values().all(|lines| lines.len() == 1), "an instant ran twice: {fires:?}");
    let instants: Vec<i64> = fires.keys().map(|fire| seconds(fire)).collect();
    let (first, last) = (instants[0], instants[instants.len() - 1]);
    let expected: Vec<i64> = (first..=last).filter(|instant| instant % 2 == 0 || instant % 3 == 0).collect();
    assert_eq!(instants, expected);
    check_against_ledger(&journal.lines(), &api.runs("both").await);
}
on_each_database!(schedules_that_meet_fire_once);

/// A job triggered by hand runs immediately with its own parameters, and its log can be read.
async fn a_trigger_runs_and_logs(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let job = json!({"name": "echo", "app": "files", "handler": "shell", "params": {"argv": ["echo", "the job's"]},
        "overrides": ["/argv/1"]});
    api.post("/api/v1/jobs", job).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    let run = api.post("/api/v1/jobs/echo/runs", json!({"params": {"argv": ["echo", "this run's"]}})).await.expect(201);
    let path = format!("/api/v1/runs/{}", run["id"].as_str().expect("an id"));
    wait_until(Duration::from_secs(20), "the run succeeds", async || {
        let run = api.get(&path).await.expect(200);
        if run["status"] == "succeeded" { Ok(()) } else { Err(run) }
    })
    .await;
    let logs = wait_until(Duration::from_secs(20), "the log is complete", async || {
        let logs = api.get(&format!("{path}/logs")).await.expect(200);
        if logs["complete"] == true { Ok(logs.clone()) } else { Err(logs) }
    })
    .await;
    let lines: Vec<_> = logs["items"].as_array().expect("items").iter().map(|item| item["line"].clone()).collect();
    assert!(lines.contains(&json!("this run's")) && !lines.contains(&json!("the job's")), "{logs:#}");
}
on_each_database!(a_trigger_runs_and_logs);
