//! A flood of failures of one job: it causes one message when it begins, digests while it lasts, and one incident with the total
//! count. Other jobs continue to fire. `TEST_FLOOD_COUNT` sets the number of failures; `tests/flood` sets this variable, and prints
//! what the flood cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rondel::{Executor, JobError};
use rondel_tests::{Api, Backend, ScratchDb, Server, scratch, variable, wait_until, wall_clock_ms};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Failures in the short form.
const COUNT: u32 = 1_500;
/// Callers that request runs concurrently.
const CALLER_COUNT: u32 = 16;
/// How long it may take until all failures are counted, on a slow machine.
const LIMIT: Duration = Duration::from_secs(300);
/// In the long form: maximum time between the first failure and the record of its message.
const MESSAGE_WITHIN_MS: i64 = 10_000;

fn print(text: &str) {
    std::io::Write::write_all(&mut std::io::stdout(), format!("{text}\n").as_bytes()).expect("print");
}

/// Requests this many runs of a job, from several callers.
async fn request_runs(server: &Server, job: &'static str, count: u32) {
    let remaining_count = Arc::new(AtomicU32::new(count));
    let mut callers = JoinSet::new();
    for _ in 0..CALLER_COUNT {
        let (api, remaining_count) = (server.api(), Arc::clone(&remaining_count));
        let path = format!("/api/v1/jobs/{job}/runs");
        callers.spawn(async move {
            while remaining_count
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |remaining_count| remaining_count.checked_sub(1))
                .is_ok()
            {
                api.post(&path, json!({})).await.expect(201);
            }
        });
    }
    while let Some(done) = callers.join_next().await {
        done.expect("every run was asked for");
    }
}

/// Waits until this many runs of a job have ended.
async fn wait_for_ends(db: &ScratchDb, job: &str, count: u32) {
    let query = format!(
        "SELECT COUNT(*) FROM run JOIN job ON job.id = run.job_id WHERE job.name = '{job}' AND run.status IN ('succeeded', 'failed')"
    );
    wait_until(LIMIT, "the runs have ended", async || {
        let found = db.sql(&query);
        if found.trim() == count.to_string() { Ok(()) } else { Err(found) }
    })
    .await;
}

fn number(db: &ScratchDb, query: &str) -> i64 {
    let found = db.sql(query);
    found.trim().parse().expect("a number")
}

/// How late the witness's runs in a range of instants began: their number, the median and the 99th percentile.
fn lateness(db: &ScratchDb, (from, to): (i64, i64)) -> (usize, i64, i64) {
    let found = db.sql(&format!(
        "SELECT run.started_at_ms - run.fire_at_ms FROM run JOIN job ON job.id = run.job_id WHERE job.name = 'witness' \
         AND run.cause = 0 AND run.started_at_ms IS NOT NULL AND run.fire_at_ms BETWEEN {from} AND {to} \
         ORDER BY run.started_at_ms - run.fire_at_ms"
    ));
    let all: Vec<i64> = found.split_whitespace().filter_map(|late| late.parse().ok()).collect();
    let at = |per_cent: usize| all.get(all.len() * per_cent / 100).or(all.last()).copied().unwrap_or(0);
    (all.len(), at(50), at(99))
}

/// Requests this many runs of a job, and waits for their ends and for two runs of the witness. Returns the range of instants and the
/// time that the runs took.
async fn trigger_and_wait(
    db: &ScratchDb,
    server: &Server,
    (job, count): (&'static str, u32),
) -> ((i64, i64), Duration) {
    let (from, began_at) = (wall_clock_ms(), Instant::now());
    request_runs(server, job, count).await;
    wait_for_ends(db, job, count).await;
    let took = began_at.elapsed();
    wait_until(LIMIT, "the witness fires", async || {
        let late = lateness(db, (from, wall_clock_ms()));
        if late.0 >= 2 { Ok(()) } else { Err(late) }
    })
    .await;
    ((from, wall_clock_ms()), took)
}

async fn incident(api: &Api) -> Value {
    let found = api.get("/api/v1/incidents").await.expect(200);
    let items = found["items"].as_array().expect("a list");
    assert!(items.len() <= 1, "one incident: {found}");
    items.first().cloned().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_failures_is_one_message_and_digests() {
    let given = variable("TEST_FLOOD_COUNT").and_then(|text| text.parse::<u32>().ok());
    let count = given.unwrap_or(COUNT);
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start_with(&db, &["--api-rate", "0"]).await;
    let api = server.api();
    db.sql(
        "INSERT INTO alert_channel (id, namespace_id, name, kind, settings, secret, lang, is_enabled, created_at_ms, \
         updated_at_ms) VALUES (7, 1, 'ops', 'webhook', '{}', '', 'en', 1, 0, 0)",
    );
    let rule = json!({"condition": {"failed": {}}, "channels": ["ops"], "digest": "2s"});
    api.put("/api/v1/alert-rules/failed", rule).await.expect(201);
    for (name, handler, extra_fields) in [
        ("good", "good", json!({"overlap": {"policy": "allow"}, "queue_timeout": "1h"})),
        ("bad", "bad", json!({"overlap": {"policy": "allow"}, "queue_timeout": "1h"})),
        ("witness", "good", json!({"schedule": {"every": "1s"}, "overlap": {"policy": "allow"}})),
    ] {
        let mut job = json!({"name": name, "app": "flooded", "handler": handler});
        job.as_object_mut().expect("an object").extend(extra_fields.as_object().expect("an object").clone());
        api.post("/api/v1/jobs", job).await.expect(201);
    }
    let (stop, stopped) = oneshot::channel::<()>();
    let mut executor = JoinSet::new();
    executor.spawn(
        Executor::builder("flooded")
            .server(server.url())
            .token_file(server.token_file())
            .slots(256)
            .handler("good", async || {})
            .handler("bad", async || Err::<(), JobError>(JobError::failed("order 4711 is lost")))
            .run_until(stopped),
    );

    // For comparison: the same number of runs that succeed.
    let (witness, witness_took) = trigger_and_wait(&db, &server, ("good", count)).await;
    let (flood, flood_took) = trigger_and_wait(&db, &server, ("bad", count)).await;

    let counted = wait_until(LIMIT, "every failure is counted", async || {
        let incident = incident(&api).await;
        if incident["count"] == count { Ok(incident) } else { Err(incident) }
    })
    .await;
    assert_eq!((&counted["standing"], &counted["subject"]["name"]), (&json!("firing"), &json!("bad")));
    wait_until(LIMIT, "a digest reports the last of them", async || {
        let last = db.sql("SELECT notice FROM alert_message WHERE kind = 'digest' ORDER BY id DESC LIMIT 1");
        if last.contains(&format!("\"count\":{count},")) { Ok(()) } else { Err(last) }
    })
    .await;
    let firing = number(&db, "SELECT COUNT(*) FROM alert_message WHERE kind = 'firing'");
    let digests = number(&db, "SELECT COUNT(*) FROM alert_message WHERE kind = 'digest'");
    assert_eq!(firing, 1);
    assert_eq!(number(&db, "SELECT COUNT(*) FROM alert_event"), 0, "no failure waits any more");
    assert_eq!(number(&db, "SELECT COUNT(*) FROM alert_message") - digests, 1, "one message, and digests");
    let after = number(
        &db,
        "SELECT (SELECT MIN(created_at_ms) FROM alert_message) - MIN(run.finished_at_ms) FROM run JOIN job ON job.id = run.job_id \
         WHERE job.name = 'bad'",
    );
    let (beside, during) = (lateness(&db, witness), lateness(&db, flood));
    print(&format!(
        "{count} runs that succeed: {:.1} s; the witness began (count, p50, p99 in ms) {beside:?}",
        witness_took.as_secs_f64()
    ));
    print(&format!("{count} runs that fail: {:.1} s; the witness began {during:?}", flood_took.as_secs_f64()));
    print(&format!("the message was written {after} ms after the first failure; then {digests} digests"));
    if given.is_some() {
        assert!(after <= MESSAGE_WITHIN_MS, "the message came {after} ms after the first failure");
    }
    drop(stop);
    executor.join_next().await.expect("one task").expect("no panic").expect("no error");
}
