//! Reports fires of another scheduler for a job in shadow mode, for tests of the page that compares the two.

use std::time::Duration;

use rondel_tests::{Api, instant_at, millis, wait_until};
use serde_json::{Value, json};

/// The job in shadow mode.
const JOB: &str = "exchange-rates.import";
/// How many of its fires are compared.
const FIRE_COUNT: usize = 6;

/// Lets a job of this app fire in shadow mode, and reports the same fires from another scheduler: one is missing there, one is late, one
/// was sent twice, and one went to another executor.
///
/// If the database is used again, this is done only once.
pub(super) async fn observe_fires(api: &Api, app: &str) {
    if api.get(&format!("/api/v1/jobs/{JOB}")).await.status == 200 {
        return;
    }
    let job = json!({
        "name": JOB, "app": app, "handler": "shell", "mode": "shadow", "params": {"argv": ["true"]},
        "schedule": {"cron": "*/2 * * * * ?"}, "labels": {"xxl-job-id": "41"},
    });
    api.post("/api/v1/jobs", job).await.expect(201);
    let runs = wait_until(Duration::from_secs(60), "its fires", async || {
        let mut runs = api.runs(JOB).await;
        runs.retain(|run| run["reason"] == "shadow");
        if runs.len() >= FIRE_COUNT { Ok(runs) } else { Err(runs) }
    })
    .await;
    api.patch(&format!("/api/v1/jobs/{JOB}"), json!({"enabled": false})).await.expect(200);
    // The oldest first.
    let fires: Vec<&Value> = runs.iter().rev().take(FIRE_COUNT).collect();
    let fire = |source_id: i64, of: &Value, late_ms: i64| {
        let at = of["fire_at"].as_str().and_then(millis).expect("an instant");
        json!({"job": JOB, "source_id": source_id, "due_at": instant_at(at), "started_at": instant_at(at + late_ms),
            "executor": of["detail"]["executor"], "outcome": "succeeded"})
    };
    let mut other = fire(5, fires[4], 40);
    other["executor"] = "rates-old-7".into();
    let observed = json!([
        fire(1, fires[0], 20),
        fire(2, fires[2], 7_000),
        fire(3, fires[3], 30),
        fire(4, fires[3], 900),
        other,
        fire(6, fires[5], 20),
    ]);
    api.post("/api/v1/shadow/fires", json!({ "fires": observed })).await.expect(200);
}
