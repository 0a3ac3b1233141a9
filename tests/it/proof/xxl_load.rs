//! Many jobs that fire each second on many executors of XXL-JOB, while their server is killed and restarted: each fire has its result. The
//! long form is `tests/xxl-load`, which prints how late the executors began and what a run cost.

use std::process::Stdio;
use std::time::Duration;

use rondel_tests::{Api, Backend, ScratchDb, Server, binary, instant_at, scratch, variable, wait_until, wall_clock_ms};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use super::fixture::print;

const APP: &str = "bench";
const ARGS: [&str; 2] = ["--xxl-networks", "127.0.0.0/8"];
/// Tasks that create or change jobs concurrently.
const TASK_COUNT: usize = 16;
/// The number of jobs that one call resumes: each is a write that waits for the writes of the runs.
const BULK_COUNT: usize = 20;
const WARM_UP_SECONDS: i64 = 4;
/// How long the death and the new start of the server may take.
const RESTART_SECONDS: i64 = 8;
/// Minimum number of jobs that are created and resumed in a second.
const JOBS_A_SECOND: i64 = 250;
/// If more runs are due than the machine can execute, the rest is executed at the end.
const LIMIT: Duration = Duration::from_secs(300);

/// The size of the load.
struct Load {
    jobs: usize,
    executors: usize,
    seconds: u64,
    database: Option<String>,
}

impl Load {
    fn new() -> Self {
        let number = |name| variable(name).and_then(|text| text.parse::<usize>().ok());
        Self {
            jobs: number("TEST_XXL_JOBS").unwrap_or(20),
            executors: number("TEST_XXL_EXECUTORS").unwrap_or(3),
            seconds: number("TEST_XXL_SECONDS").and_then(|count| u64::try_from(count).ok()).unwrap_or(3),
            database: variable("TEST_XXL_DATABASE").filter(|url| !url.is_empty()),
        }
    }

    async fn database(&self) -> Option<ScratchDb> {
        match &self.database {
            Some(url) if url.starts_with("postgres") => Some(ScratchDb::given(Backend::Postgres, url)),
            Some(url) => Some(ScratchDb::given(Backend::Sqlite, url)),
            None => scratch(Backend::Sqlite).await,
        }
    }
}

#[tokio::test]
async fn each_fire_of_many_jobs_has_its_result_from_executors_of_xxl_job() {
    let load = Load::new();
    let Some(db) = load.database().await else { return };
    let mut server = Server::start_with(&db, &ARGS).await;
    let api = server.api();
    let mut executors = start(&load, &server, &token(&api).await).await;
    wait_until(LIMIT, "the executors are online", async || {
        let online = api.all("/api/v1/executors", &[]).await.iter().filter(|one| one["status"] == "online").count();
        if online >= load.executors { Ok(()) } else { Err(online) }
    })
    .await;
    let seconds = i64::try_from(load.seconds).unwrap_or(1);
    let making = i64::try_from(load.jobs).unwrap_or(1) / JOBS_A_SECOND;
    let until = (wall_clock_ms() / 1_000 + making + WARM_UP_SECONDS + 2 * seconds + RESTART_SECONDS) * 1_000;
    create(&api, load.jobs, until).await;

    let from = (wall_clock_ms() / 1_000 + WARM_UP_SECONDS) * 1_000;
    let to = from + seconds * 1_000;
    assert!(to < until, "there is time for the window: {from} to {to}, and the last fire is at {until}");
    write(&mut executors, &json!({"measure": {"from_ms": from, "to_ms": to}})).await;
    clock_shows(from).await;
    let before = (processor_time(server.process().id()), processor_time(executors.id().expect("an executor")));
    clock_shows(to).await;
    let after = (processor_time(server.process().id()), processor_time(executors.id().expect("an executor")));

    server.kill().await;
    server.restart().await;
    clock_shows(until).await;
    wait_until(LIMIT, "every run has a verdict", async || {
        let open = db.sql(
            "SELECT (SELECT COUNT(*) FROM run WHERE status IN ('pending', 'waiting', 'running')) \
             + (SELECT COUNT(*) FROM job_due WHERE next_fire_at_ms IS NOT NULL)",
        );
        if open.trim() == "0" { Ok(()) } else { Err(open) }
    })
    .await;
    let seen = end(executors).await;

    let runs_planned = u64::try_from(load.jobs).unwrap_or(1) * load.seconds;
    // If more runs are due than the machine can execute, fewer end in the window than were planned in it.
    let ended: f64 = db
        .sql(&format!("SELECT COUNT(*) FROM run WHERE finished_at_ms >= {from} AND finished_at_ms < {to}"))
        .trim()
        .parse()
        .expect("a number");
    let cost = |before: f64, after: f64| (after - before) / ended * 1_000.0;
    let answered = start_report_delays_ms(&db, from, to);
    let share_of = |hundredths| percentile(&answered, hundredths);
    print(&format!(
        "{} jobs of each second, {} executors, {} s: {ended} runs ended in it; late p50 {} / p99 {} / max {} ms, answered p50 {} / p99 {} / max {} ms \
         after their instants; processor for 1,000 runs: server {:.3} s, executors {:.3} s; {} begun, {} again after a death, {} early",
        load.jobs,
        load.executors,
        load.seconds,
        seen["lateness"]["p50_ms"],
        seen["lateness"]["p99_ms"],
        seen["lateness"]["max_ms"],
        share_of(50),
        share_of(99),
        share_of(100),
        cost(before.0, after.0),
        cost(before.1, after.1),
        seen["started"],
        seen["repeated"],
        seen["early"],
    ));
    assert_eq!(u64::try_from(answered.len()).ok(), Some(runs_planned), "every fire began: {seen}");
    assert_eq!(seen["early"], 0);
    each_fire_has_its_result(&db, load.jobs, until);
}

/// The delays from the instants of these runs to the executors' answers that they began, in milliseconds, sorted. Executors do not know the
/// instants: they take the second in which a run was sent for its instant. For a run that was running when the server was killed, the
/// restarted server knows only the end.
fn start_report_delays_ms(db: &ScratchDb, from_ms: i64, to_ms: i64) -> Vec<i64> {
    let rows = db.sql(&format!(
        "SELECT COALESCE(started_at_ms, finished_at_ms) - fire_at_ms FROM run \
         WHERE fire_at_ms >= {from_ms} AND fire_at_ms < {to_ms} AND finished_at_ms IS NOT NULL ORDER BY 1"
    ));
    rows.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

fn percentile(sorted: &[i64], hundredths: usize) -> i64 {
    let index = (sorted.len() * hundredths / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or_default()
}

/// Each second of each job, from its first to the last, has one row, and each row a success.
fn each_fire_has_its_result(db: &ScratchDb, job_count: usize, last_ms: i64) {
    let other = db.sql("SELECT status, reason, COUNT(*) FROM run WHERE status <> 'succeeded' GROUP BY status, reason");
    assert_eq!(other.trim(), "", "runs that did not succeed");
    let whole = db.sql(&format!(
        "SELECT COUNT(*) FROM (SELECT job_id FROM run GROUP BY job_id \
         HAVING COUNT(DISTINCT fire_at_ms) = ({last_ms} - MIN(fire_at_ms)) / 1000 + 1 AND COUNT(*) = COUNT(DISTINCT fire_at_ms) \
         AND MAX(fire_at_ms) = {last_ms}) t"
    ));
    assert_eq!(whole.trim(), job_count.to_string(), "jobs without a lost or doubled fire");
}

async fn token(api: &Api) -> String {
    let grants = json!([{"role": "executor", "namespace": "default", "app": APP}]);
    let made = api.post("/api/v1/tokens", json!({"kind": "xxl", "name": APP, "grants": grants})).await.expect(201);
    made["token"].as_str().expect("a secret").to_owned()
}

async fn start(load: &Load, server: &Server, token: &str) -> Child {
    let mut command = Command::new(binary());
    command.args(["bench", "xxl-executors", "--server", server.url(), "--count", &load.executors.to_string()]);
    let mut executors = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("start");
    write(&mut executors, &json!({"token": token})).await;
    executors
}

async fn write(executors: &mut Child, word: &Value) {
    let input = executors.stdin.as_mut().expect("an input");
    input.write_all(format!("{word}\n").as_bytes()).await.expect("write to the executors");
}

/// Ends the executors; returns their summary.
async fn end(mut executors: Child) -> Value {
    drop(executors.stdin.take());
    let mut text = String::new();
    executors.stdout.take().expect("an output").read_to_string(&mut text).await.expect("read what they saw");
    serde_json::from_str(&text).expect("a summary")
}

/// Creates the jobs, whose last fire is at `until_ms`, and resumes them.
async fn create(api: &Api, count: usize, until_ms: i64) {
    let end_at = instant_at(until_ms);
    let names: Vec<String> = (0..count).map(|number| format!("load-{number:05}")).collect();
    let mut tasks = JoinSet::new();
    for part in names.chunks(count.div_ceil(TASK_COUNT).max(1)) {
        let (api, part, end_at) = (api.clone(), part.to_vec(), end_at.clone());
        tasks.spawn(async move {
            for name in part {
                let job = json!({
                    "name": name, "app": APP, "handler": "nothing", "enabled": false,
                    "schedule": {"every": "1s", "start_at": "2026-01-01T00:00:00Z", "end_at": end_at},
                    "misfire": {"policy": "all", "max": 1000},
                    // Runs that the machine cannot start immediately wait, and none is skipped.
                    "queue_timeout": "10m",
                });
                api.post("/api/v1/jobs", job).await.expect(201);
            }
        });
    }
    tasks.join_all().await;
    // No job fires before all jobs exist.
    let mut tasks = JoinSet::new();
    for part in names.chunks(count.div_ceil(TASK_COUNT).max(1)) {
        let (api, part) = (api.clone(), part.to_vec());
        tasks.spawn(async move {
            for chunk in part.chunks(BULK_COUNT) {
                api.post("/api/v1/jobs:bulk", json!({"action": "resume", "names": chunk})).await.expect(200);
            }
        });
    }
    tasks.join_all().await;
}

async fn clock_shows(at_ms: i64) {
    let left = at_ms - wall_clock_ms();
    tokio::time::sleep(Duration::from_millis(u64::try_from(left).unwrap_or(0))).await;
}

/// The processor time that a process has used, in seconds.
fn processor_time(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |place: usize| fields.get(place).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
