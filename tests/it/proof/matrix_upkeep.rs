//! The kill matrix, for the failpoints (places) that the series in `matrix.rs` do not reach: a server reaches them
//! when it heals something, or when others make it. Each place has a test that leads a server there. A first server
//! dies there before its COMMIT, a second one after it. The change is then stored completely or not at all, and a
//! third server continues as usual.

use std::time::Duration;

use rondel_tests::{Api, Backend, ScratchDb, Server, Signal, has_interpreter, left_out_without, scratch, wait_until};
use serde_json::{Value, json};

use super::fixture::{Journal, Worker, job, record_outcome, rounds, server, wait_until_settled};

/// How long it may take to reach a place: healing has a period of 15 s.
const REACH: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(60);
/// A home that is not a node.
const NOWHERE: &str = "77";

/// A database for one test; `None` if this kind is left out.
async fn database(backend: Backend) -> Option<ScratchDb> {
    if !has_interpreter("python") {
        left_out_without("python3", "the client of SQLite is Python's");
        return None;
    }
    scratch(backend).await
}

/// Restarts the server, so that it dies at a place.
async fn arm(server: &mut Server, place: &str) {
    if server.process().has_ended().is_none() {
        server.stop().await;
    }
    assert!(server.try_restart_with(&["--failpoint", place]).await, "it does not reach {place} at a start");
}

async fn dies(server: &mut Server, backend: Backend, place: &str, limit: Duration) {
    let status = server.process().wait(limit).await;
    let last = server.process().stderr();
    assert!(!status.success() && last.contains(&format!("failpoint {place}: ")), "{place}: {status}, {last}");
    record_outcome(backend, place, "died");
}

fn count(db: &ScratchDb, what: &str) -> usize {
    db.sql(&format!("SELECT COUNT(*) FROM {what}")).parse().expect("a count")
}

/// Lets the next server run this housekeeping task in its first pass.
fn forget_pass(db: &ScratchDb, task: &str) {
    db.sql(&format!("DELETE FROM housekeeping_pass WHERE task = '{task}'"));
}

/// Creates jobs that fire each second, without an executor that runs them.
async fn fire_alone(api: &Api) {
    for name in ["one", "two", "three"] {
        let more = json!({"overlap": {"policy": "allow"}, "misfire": {"policy": "skip"}});
        api.post("/api/v1/jobs", job(name, json!({}), more)).await.expect(201);
    }
    all_fire(api).await;
}

/// Waits until each of the jobs has another run.
async fn all_fire(api: &Api) {
    for name in ["one", "two", "three"] {
        let before = api.runs(name).await.len();
        wait_until(LIMIT, "the job fires", async || {
            let runs = api.runs(name).await;
            if runs.len() > before { Ok(()) } else { Err(runs.len()) }
        })
        .await;
    }
}

/// A list of jobs is created in several transactions: all jobs of a transaction exist, or none.
async fn create_jobs(backend: Backend) {
    const COUNT: usize = 64;
    let Some(db) = database(backend).await else { return };
    let mut server = server(&db, &[]).await;
    let api = server.api();
    let listed = |name: &str| job(name, json!({}), json!({"schedule": null}));
    api.post("/api/v1/jobs", listed("before")).await.expect(201);
    let list: Vec<Value> = (0..COUNT).map(|number| listed(&format!("listed-{number}"))).collect();
    for (place, expected) in [("create_jobs.written", 0), ("create_jobs.committed", COUNT)] {
        arm(&mut server, place).await;
        let call = api.request(rondel_tests::Method::POST, "/api/v1/jobs/apply").json(&list);
        // The beginning of an answer may have arrived: it lists the outcome of each job.
        let answer = api.try_answer(call).await;
        dies(&mut server, backend, place, LIMIT).await;
        for table in ["job", "job_due", "job_version"] {
            assert_eq!(count(&db, table), 1 + expected, "{place}: rows of {table}; {answer:?}");
        }
    }
    server.restart().await;
    // The client has no answer, so it repeats the call.
    api.post("/api/v1/jobs/apply", Value::from(list)).await.expect(200);
    assert_eq!(api.all("/api/v1/jobs", &[]).await.len(), 1 + COUNT);
    record_outcome(backend, "create_jobs", "judged");
}

/// Healing finds jobs that should fire and have no next fire.
async fn heal_job(backend: Backend) {
    let Some(db) = database(backend).await else { return };
    let mut server = server(&db, &[]).await;
    let api = server.api();
    fire_alone(&api).await;
    server.stop().await;
    db.sql("UPDATE job_due SET next_fire_at_ms = NULL");
    // Each transaction heals one job.
    for (place, expected) in [("heal_job.written", 3), ("heal_job.committed", 2)] {
        forget_pass(&db, "heal");
        arm(&mut server, place).await;
        dies(&mut server, backend, place, REACH).await;
        assert_eq!(count(&db, "job_due WHERE next_fire_at_ms IS NULL"), expected, "{place}");
    }
    forget_pass(&db, "heal");
    server.restart().await;
    all_fire(&api).await;
    record_outcome(backend, "heal_job", "judged");
}

/// Healing frees jobs whose home is no longer a node.
async fn free_homeless(backend: Backend) {
    let Some(db) = database(backend).await else { return };
    let mut server = server(&db, &[]).await;
    let api = server.api();
    fire_alone(&api).await;
    server.stop().await;
    db.sql(&format!("UPDATE job_due SET home = {NOWHERE}"));
    for (place, expected) in [("free_homeless.written", 3), ("free_homeless.committed", 0)] {
        forget_pass(&db, "heal");
        arm(&mut server, place).await;
        dies(&mut server, backend, place, REACH).await;
        assert_eq!(count(&db, &format!("job_due WHERE home = {NOWHERE}")), expected, "{place}");
    }
    server.restart().await;
    all_fire(&api).await;
    record_outcome(backend, "free_homeless", "judged");
}

/// A node that has been dead for longer than its runs are kept is deleted.
async fn forget_nodes(backend: Backend) {
    let Some(db) = database(backend).await else { return };
    let mut gone = server(&db, &[]).await;
    gone.stop().await;
    // The shorter the retention is, the more frequent are the passes.
    let mut server = server(&db, &["--retention", "3s"]).await;
    assert_eq!(count(&db, "node"), 2);
    server.stop().await;
    db.sql("UPDATE node SET lease_until_ms = 0 WHERE id = (SELECT id FROM (SELECT MIN(id) AS id FROM node) AS older)");
    for (place, expected) in [("forget_nodes.written", 2), ("forget_nodes.committed", 1)] {
        forget_pass(&db, "forget_nodes");
        arm(&mut server, place).await;
        dies(&mut server, backend, place, REACH).await;
        assert_eq!(count(&db, "node"), expected, "{place}");
    }
    server.restart().await;
    fire_alone(&server.api()).await;
    assert_eq!(count(&db, "node"), 1);
    // A node that was forgotten and returns is a node like any other.
    server.stop().await;
    gone.restart().await;
    all_fire(&gone.api()).await;
    record_outcome(backend, "forget_nodes", "judged");
}

/// A result that the database refuses: the run ends without it.
async fn finish_unwritable(backend: Backend) {
    let Some(db) = database(backend).await else { return };
    let journal = Journal::new();
    let mut server = server(&db, &[]).await;
    let api = server.api();
    let more = json!({"schedule": null});
    api.post("/api/v1/jobs", job("fails", json!({"fail": true}), more)).await.expect(201);
    server.stop().await;
    // The database itself rejects the result, like a database that rejects a character.
    db.sql(match backend {
        Backend::Sqlite => {
            "CREATE TRIGGER no_such_text BEFORE UPDATE ON run WHEN NEW.message LIKE '%asked to fail%' \
             BEGIN SELECT RAISE(ABORT, 'no such text'); END"
        }
        Backend::Postgres | Backend::Mysql => {
            "ALTER TABLE run ADD CONSTRAINT no_such_text CHECK (message NOT LIKE '%asked to fail%')"
        }
    });
    server.restart().await;
    let data = journal.folder().join("worker-data");
    let worker = Worker::start(&[&server], "worker", &journal, Some(&data), &[]).await;
    arm(&mut server, "finish_unwritable.written").await;
    worker.wait_until_listed(&api).await;
    api.post("/api/v1/jobs/fails/runs", json!({})).await.expect(201);
    dies(&mut server, backend, "finish_unwritable.written", REACH).await;
    assert_eq!(count(&db, "run WHERE status = 'failed'"), 0);
    // The executor has no acknowledgement, and sends the result again.
    arm(&mut server, "finish_unwritable.committed").await;
    dies(&mut server, backend, "finish_unwritable.committed", REACH).await;
    assert_eq!(count(&db, "run WHERE status = 'failed'"), 1);
    server.restart().await;
    wait_until_settled(&api).await;
    let runs = api.runs("fails").await;
    let (status, message) = (&runs[0]["status"], &runs[0]["message"]);
    assert_eq!((runs.len(), status.as_str()), (1, Some("failed")), "{runs:?}");
    assert_eq!(message, "the result of this run cannot be written to the database");
    assert_eq!(journal.starts().len(), 1, "it began once");
    record_outcome(backend, "finish_unwritable", "judged");
}

/// The mark of an at-most-once run is removed if the run has certainly not begun: its executor returns it unbegun.
async fn unmark(backend: Backend) {
    let Some(db) = database(backend).await else { return };
    // A run without a mark waits this long for executors that are no longer heard.
    let mut server = server(&db, &["--continue-max", "30s"]).await;
    let api = server.api();
    let more = json!({"schedule": null});
    api.post("/api/v1/jobs", job("long", json!({"sleep_ms": 60_000}), more.clone())).await.expect(201);
    for (place, is_done) in [("unmark.written", false), ("unmark.committed", true)] {
        let journal = Journal::new();
        let name = if is_done { "marked-2" } else { "marked-1" };
        let marked = json!({"schedule": null, "delivery": "at_most_once"});
        api.post("/api/v1/jobs", job(name, json!({}), marked)).await.expect(201);
        arm(&mut server, place).await;
        let data = journal.folder().join("worker-data");
        let mut worker = Worker::start(&[&server], "worker", &journal, Some(&data), &["--slots", "1"]).await;
        api.post("/api/v1/jobs/long/runs", json!({})).await.expect(201);
        wait_until(LIMIT, "it is busy", async || if journal.starts().is_empty() { Err(()) } else { Ok(()) }).await;
        let run = api.post(&format!("/api/v1/jobs/{name}/runs"), json!({})).await.expect(201);
        let run = run["id"].as_str().expect("an id").to_owned();
        let is_marked = format!("run WHERE id = {run} AND marked_at_ms IS NOT NULL");
        wait_until(LIMIT, "the run is marked", async || if count(&db, &is_marked) == 1 { Ok(()) } else { Err(()) })
            .await;
        worker.process.signal(Signal::TERM);
        dies(&mut server, backend, place, REACH).await;
        assert_eq!(count(&db, &is_marked), usize::from(!is_done), "{place}");
        worker.kill(&journal).await;
        server.restart().await;
        worker.restart(&[]);
        // The run that kept the executor busy is not needed any more.
        api.post("/api/v1/jobs/long/cancel", json!({})).await.expect(202);
        wait_until_settled(&api).await;
        let starts = journal.starts().into_iter().filter(|start| start.job == name).count();
        let status = api.runs(name).await[0]["status"].clone();
        // A run that still has its mark may have been sent, as far as the server knows.
        let is_right = match (is_done, starts) {
            (true, 1) => status == "succeeded",
            (false, 0) => status == "unknown",
            (false, 1) => status == "succeeded",
            _ => false,
        };
        assert!(is_right, "{place}: it began {starts} times and is {status}");
    }
    record_outcome(backend, "unmark", "judged");
}

/// Runs the test on `SQLite`; in the long form, several times on each database.
macro_rules! each_place {
    ($($scenario:ident: $test:ident),+ $(,)?) => {$(
        #[tokio::test]
        async fn $test() {
            for _ in 0..rounds().unwrap_or(1) {
                for backend in if rounds().is_some() { &Backend::ALL[..] } else { &[Backend::Sqlite] } {
                    $scenario(*backend).await;
                }
            }
        }
    )+};
}
each_place!(
    create_jobs: jobs_are_made_a_list_at_a_time,
    heal_job: jobs_without_a_next_fire_are_healed,
    free_homeless: jobs_without_a_home_are_freed,
    forget_nodes: nodes_that_died_long_ago_are_forgotten,
    finish_unwritable: results_that_cannot_be_written_end_their_runs,
    unmark: marks_go_with_what_was_not_begun,
);
