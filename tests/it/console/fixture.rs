//! A system like a busy one, for the pictures: jobs and a week of runs, agents at work, a draining agent, failures with their incidents,
//! and in the long form two servers.

use std::time::Duration;

use rondel_tests::{Agent, Api, ScratchDb, Server, wait_until};
use serde_json::{Value, json};

use super::alerts::{incident, plan_maintenance, watch_failures, watch_much};
use super::old_scheduler::observe_fires;
use super::pages::{Subjects, newest_run, save_script};

/// The apps of the seeded jobs that get agents; the sixth, `archive`, has none, which the pages show.
const APPS: [&str; 5] = ["orders", "billing", "reports", "catalog", "mail"];
/// A seeded namespace, which gets the maintenance windows.
const ANNOUNCED: &str = "staging";
const JOB: &str = "ledger.nightly-reconciliation-of-all-european-accounts";
const LOG: &str = r#"for i in $(seq 1 24); do echo "INFO  batch $i of 24: $((i * 137 % 900 + 100)) rows read"; sleep 0.05; done
echo "WARN  3 rows have no counterpart"
echo "ERROR connection refused: ledger-db:5432" >&2; exit 3"#;
/// Runs until the agent ends.
const LONG_WORK: &str = "while kill -0 $PPID; do echo \"INFO  $(date +%T) copying\"; sleep 1; done";

/// The user who may only look.
pub(super) const VIEWER_NAME: &str = "eye";
pub(super) const VIEWER_PASSWORD: &str = "look but not touch";

/// A running system with a history.
pub(super) struct Fixture {
    pub(super) server: Server,
    pub(super) subjects: Subjects,
    /// The other processes, which must live as long as pictures are taken.
    _others: (Vec<Server>, Vec<Agent>),
}

impl Fixture {
    /// Adds agents and objects to a server on a seeded database. With `cluster`, also adds a second server, and an agent
    /// for each app.
    pub(super) async fn new(server: Server, cluster: Option<&ScratchDb>) -> Self {
        let api = server.api();
        api.post("/api/v1/apps", json!({"name": "ledger"})).await.expect(201);
        let mut agents = vec![];
        for name in ["ledger-w1", "ledger-w2"] {
            agents.push(Agent::start_named(&server, "ledger", name, &["--slots", "8", "--label", "zone=eu"]).await);
        }
        let mut servers = Vec::new();
        if let Some(db) = cluster {
            servers.push(Server::start(db).await);
            for app in APPS {
                let (name, labels) = (format!("{app}-w1"), ["--label", "zone=eu", "--label", "disk=ssd"]);
                agents.push(Agent::start_named(&server, app, &name, &labels).await);
            }
        }
        for (app, label) in [("orders", "team=payments"), ("billing", "team=payments"), ("catalog", "team=search")] {
            let bulk = json!({"action": "label", "q": format!("app:{app}"), "label": label});
            api.post("/api/v1/jobs:bulk", bulk).await.expect(200);
        }
        let mut subjects = furnish(&api).await;
        subjects.live = Some(keep_busy(&api).await);
        Self { server, subjects, _others: (servers, agents) }
    }
}

/// Creates a job that fails after retries, a job with shards, users, a calendar, and an empty namespace.
async fn furnish(api: &Api) -> Subjects {
    let shell = |script: &str| json!({"argv": ["sh", "-c", script]});
    let jobs = [
        json!({"name": JOB, "handler": "shell", "params": shell(LOG), "retry": {"max": 2, "backoff": "500ms"},
            "schedule": {"cron": "0 30 2 ? * MON-FRI", "time_zone": "Europe/Berlin"}, "labels": {"team": "payments", "tier": "critical"},
            "description": "Reconciles the ledger with the bank"}),
        json!({"name": "ledger.export", "handler": "shell", "shards": 6, "schedule": {"cron": "0 0 3 * * ?"},
            "params": shell("echo \"INFO  shard $RONDEL_SHARD_INDEX\"; sleep 0.$RONDEL_SHARD_INDEX; test $RONDEL_SHARD_INDEX != 2")}),
        json!({"name": "ledger.notify", "handler": "shell", "params": shell("true"),
            "schedule": {"after": ["ledger.export"], "on": "either"}}),
        json!({"name": "ledger.copy-archive", "handler": "shell", "params": shell(LONG_WORK), "timeout": "6h",
            "overlap": {"policy": "allow"}, "schedule": {"every": "6h"}, "labels": {"team": "storage"}}),
    ];
    for mut job in jobs {
        job["app"] = Value::from("ledger");
        api.post("/api/v1/jobs", job).await.expect(201);
    }
    watch_failures(api, JOB).await;
    watch_much(api, JOB).await;
    let change = json!({"description": "Reconciles the ledger of all European accounts with the bank, every working night", "timeout": "20m"});
    api.patch(&format!("/api/v1/jobs/{JOB}"), change).await.expect(200);
    for user in [
        json!({"name": "maria", "display_name": "María Fernández", "grants": [{"role": "operator", "namespace": "default"}]}),
        json!({"name": VIEWER_NAME, "grants": [{"role": "viewer", "namespace": "default"}], "password": VIEWER_PASSWORD}),
        json!({"name": "li.wei", "display_name": "李伟", "grants": [{"role": "viewer", "namespace": "staging"}]}),
    ] {
        api.post("/api/v1/users", user).await.expect(201);
    }
    let days = json!([{"date": "2027-01-01", "name": "New Year"}, {"date": "2027-02-05..2027-02-12", "name": "春节"}]);
    let rule = json!({"any": [{"days": days}, {"weekdays": ["sat", "sun"]}]});
    api.put("/api/v1/calendars/holidays", json!({ "rule": rule })).await.expect(201);
    save_script(api).await;
    api.post("/api/v1/namespaces", json!({"name": "empty"})).await.expect(201);
    plan_maintenance(api, ANNOUNCED).await;
    observe_fires(api, "ledger").await;
    for job in [JOB, "ledger.export"] {
        api.post(&format!("/api/v1/jobs/{job}/runs"), json!({})).await.expect(201);
        wait_until(Duration::from_secs(60), "the verdict", async || {
            let runs = api.runs(job).await;
            let is_over = |run: &&Value| run["shard_total"] != 1 || !run["finished_at"].is_null();
            if runs.len() == runs.iter().filter(is_over).count() && runs.iter().any(|run| run["status"] == "failed") {
                Ok(())
            } else {
                Err(runs)
            }
        })
        .await;
    }
    let (job, at) = job_with_failures(api).await;
    Subjects {
        job,
        at,
        run: newest_run(api, JOB).await,
        broadcast_root: newest_run(api, "ledger.export").await,
        executor: "ledger-w1?app=ledger".to_owned(),
        live: None,
        empty: "empty",
        announced: Some(ANNOUNCED),
        incident: Some(incident(api).await),
    }
}

/// A job of the history with failed runs, and the instant of the newest of these runs. The job gets a second version.
async fn job_with_failures(api: &Api) -> (String, String) {
    for job in api.all("/api/v1/jobs", &[]).await {
        let name = job["name"].as_str().unwrap_or_default().to_owned();
        if name.starts_with("archive.") {
            continue;
        }
        let answer = api.get(&format!("/api/v1/runs?job={name}&limit=60")).await.expect(200);
        let runs = answer["items"].as_array().cloned().unwrap_or_default();
        let with_status =
            |status: &str| runs.iter().filter(|run| run["status"] == status).cloned().collect::<Vec<Value>>();
        let (succeeded, failed) = (with_status("succeeded"), with_status("failed"));
        if let (Some(newest), 30..) = (failed.first(), succeeded.len()) {
            let at = newest["fire_at"].as_str().unwrap_or_default().to_owned();
            let change = json!({"description": format!("{} for the shops in all countries", job["description"].as_str().unwrap_or_default()), "timeout": "20m"});
            api.patch(&format!("/api/v1/jobs/{name}"), change).await.expect(200);
            return (name, at);
        }
    }
    (JOB.to_owned(), "02:30".to_owned())
}

/// Starts long runs on both agents of the ledger, and drains one of the agents; returns one of the runs.
async fn keep_busy(api: &Api) -> String {
    for _ in 0..9 {
        api.post("/api/v1/jobs/ledger.copy-archive/runs", json!({})).await.expect(201);
    }
    let executors = async || api.get("/api/v1/executors").await.expect(200)["items"].clone();
    wait_until(Duration::from_secs(60), "both are at work", async || {
        let answer = executors().await;
        let executor_rows = answer.as_array().cloned().unwrap_or_default();
        let ledger_executors = executor_rows.iter().filter(|executor| executor["app"] == "ledger");
        let counts: Vec<u64> = ledger_executors.filter_map(|executor| executor["run_count"].as_u64()).collect();
        if counts.iter().sum::<u64>() >= 9 && counts.iter().all(|count| *count > 0) { Ok(()) } else { Err(answer) }
    })
    .await;
    let drain = json!({"state": "draining", "app": "ledger"});
    api.put("/api/v1/executors/ledger-w2/state", drain).await.expect(200);
    newest_run(api, "ledger.copy-archive").await
}
