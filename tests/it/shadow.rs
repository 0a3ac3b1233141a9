//! Jobs in shadow mode while a stand-in for XXL-JOB runs them: the report names its faults, and jobs are switched over and back
//! without a lost or doubled fire.

mod mishaps;
mod old_scheduler;
mod quiet;
mod relay;
mod switching;

use std::collections::BTreeSet;
use std::time::Duration;

use rondel_tests::{Agent, Backend, Server, rondel, scratch, wait_until, wall_clock_ms};
use serde_json::{Value, json};

use self::old_scheduler::{LogRow, OldScheduler};
use crate::journal::seconds;

const LIMIT: Duration = Duration::from_secs(60);
const JOB_COUNT: i64 = 200;
/// How often each job fires, in seconds.
const PERIOD_S: i64 = 5;

/// Runs the command line against a server.
async fn run(server: &Server, args: &[&str]) -> rondel_tests::Finished {
    let token = server.token_file().display().to_string();
    rondel(args, &[("RONDEL_SERVER", server.url()), ("RONDEL_TOKEN_FILE", token.as_str())]).await
}

/// A job in shadow mode, with the number that it has in the other scheduler.
fn shadow(number: i64, extra_fields: &Value) -> Value {
    let mut job = json!({
        "name": format!("job-{number}"), "app": "work", "handler": "shell", "mode": "shadow",
        "labels": {"xxl-job-id": number.to_string()}, "params": {"argv": ["true"]},
    });
    job.as_object_mut().expect("an object").extend(extra_fields.as_object().expect("an object").clone());
    job
}

async fn create(server: &Server, jobs: &[Value]) {
    let body = Value::from(jobs.to_vec());
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("jobs.json").display().to_string();
    std::fs::write(&file, body.to_string()).expect("write the jobs");
    let saved = run(server, &["job", "apply", "-f", &file, "--yes"]).await;
    assert!(saved.code == Some(0), "{}", saved.stderr);
}

async fn clock_at(second: i64) {
    wait_until(LIMIT, "the instant", async || {
        let now = wall_clock_ms() / 1000;
        if now >= second { Ok(()) } else { Err(now) }
    })
    .await;
}

/// The old scheduler's fault with the job of this number at the instant of this index: the report's kind of the fault, and the seconds
/// after the instant at which the old scheduler fires.
fn fault(number: i64, index: i64) -> (Option<&'static str>, &'static [i64]) {
    match (number % 10, index) {
        (1, 1) => (Some("only_rondel"), &[]),
        (2, 2) => (Some("old_late"), &[3]),
        (3, 3) => (Some("twice"), &[0, 1]),
        (4, 2) => (Some("twice"), &[0, 2]),
        _ => (None, &[0]),
    }
}

#[tokio::test]
async fn a_report_names_exactly_the_faults_of_the_old_scheduler() {
    let Some(foreign) = scratch(Backend::Mysql).await else { return };
    let Some(own_db) = scratch(Backend::Sqlite).await else { return };
    let old = OldScheduler::new(&foreign);
    let server = Server::start(&own_db).await;
    let api = server.api();
    let schedule = json!({"schedule": {"cron": format!("*/{PERIOD_S} * * * * ?")}});
    let jobs: Vec<Value> = (1..=JOB_COUNT).map(|number| shadow(number, &schedule)).collect();
    create(&server, &jobs).await;
    let _agent = Agent::start_named(&server, "work", "work-1", &[]).await;
    let first = (wall_clock_ms() / 1000 / PERIOD_S + 2) * PERIOD_S;
    clock_at(first + 4 * PERIOD_S + 1).await;
    // The last instant only ends the observation.
    let mut expected = BTreeSet::new();
    for index in 0..=4 {
        let at = first + index * PERIOD_S;
        let mut rows = Vec::new();
        for number in 1..=JOB_COUNT {
            let (kind, fires) = fault(number, index);
            expected.extend(kind.map(|kind| (format!("job-{number}"), kind.to_owned(), at)));
            rows.extend(fires.iter().map(|after| LogRow::new(number, at + after)));
        }
        // A retry, a trigger by hand, and a job that was not imported.
        let other = LogRow { trigger: "失败重试触发", ..LogRow::new(5, at) };
        rows.extend([other, LogRow { trigger: "手动触发", ..other }, LogRow::new(JOB_COUNT + 7, at)]);
        rows.sort_by_key(|row| row.at);
        old.write(&rows);
    }
    wait_until(LIMIT, "the shadows have ended", async || {
        let runs = api.runs("job-200").await;
        let ended = runs.iter().filter(|run| run["reason"] == "shadow").count();
        if ended >= 5 { Ok(()) } else { Err(runs) }
    })
    .await;
    let follow =
        ["shadow", "follow", "--source", foreign.url(), "--time-zone", "Asia/Shanghai", "--once", "--settle", "1ms"];
    for _ in 0..2 {
        let followed = run(&server, &follow).await;
        assert!(followed.code == Some(0), "{}", followed.stderr);
    }
    let report = run(&server, &["shadow", "report", "--days", "2", "-o", "json"]).await;
    assert!(report.code == Some(0), "{}", report.stderr);
    let report: Value = serde_json::from_str(&report.stdout).expect("JSON");
    let mut named = BTreeSet::new();
    let (mut both, mut other_executors) = (0, 0);
    for day in report["items"].as_array().expect("a list") {
        both += day["both"].as_i64().expect("a number");
        for one in day["differences"].as_array().expect("a list") {
            let text = |key: &str| one[key].as_str().expect("a text").to_owned();
            if text("kind") == "other_executor" {
                assert_eq!((text("old_executor").as_str(), text("executor").as_str()), ("10.0.0.9-9999", "work-1"));
                other_executors += 1;
                continue;
            }
            named.insert((day["job"].as_str().expect("a name").to_owned(), text("kind"), seconds(&text("at"))));
        }
    }
    assert_eq!(named, expected);
    assert_eq!(both, JOB_COUNT * 4 - JOB_COUNT / 10, "every other fire is on both sides");
    assert_eq!(other_executors, both, "XXL-JOB's executor is not here");
    let table = run(&server, &["shadow", "report", "--job", "job-2"]).await;
    assert!(table.stdout.contains("job-2") && table.stderr.contains("the old scheduler was 3000 ms late"), "{table:?}");
    every_run_names_its_executor(&api.runs("job-1").await);
}

fn every_run_names_its_executor(runs: &[Value]) {
    let ended: Vec<&Value> = runs.iter().filter(|run| run["status"] != "pending").collect();
    assert!(ended.len() >= 4, "{runs:#?}");
    for run in ended {
        assert_eq!((&run["status"], &run["reason"]), (&json!("skipped"), &json!("shadow")), "{run}");
        assert_eq!(run["detail"]["executor"], "work-1", "{run}");
        assert!(run["started_at"].is_null(), "{run}");
    }
}

/// Without an executor, the shadow runs do not wait for one, and nothing follows from them.
#[tokio::test]
async fn shadows_without_an_executor_end_at_once_and_fire_no_children() {
    let Some(own_db) = scratch(Backend::Sqlite).await else { return };
    let server = Server::start(&own_db).await;
    let api = server.api();
    let parent =
        shadow(1, &json!({"schedule": {"every": "1s"}, "queue_timeout": "1h", "notify": {"skipped": ["no_executor"]}}));
    let child = json!({"name": "child", "app": "work", "handler": "shell", "params": {"argv": ["true"]}, "schedule": {"after": ["job-1"], "on": "either"}});
    create(&server, &[parent, child]).await;
    let runs = wait_until(LIMIT, "three shadows", async || {
        let runs = api.runs("job-1").await;
        let ended: Vec<Value> = runs.iter().filter(|run| run["status"] == "skipped").cloned().collect();
        if ended.len() >= 3 { Ok(ended) } else { Err(runs) }
    })
    .await;
    for run in &runs {
        assert_eq!((&run["reason"], &run["detail"]["app"]), (&json!("shadow"), &json!("work")), "{run}");
        assert!(run["detail"]["executor"].is_null(), "{run}");
    }
    let why = api.get("/api/v1/jobs/job-1/why").await.expect(200).to_string();
    assert!(why.contains("shadow mode") && why.contains("影子模式"), "{why}");
    for run in api.runs("child").await {
        assert_eq!((&run["status"], &run["reason"]), (&json!("skipped"), &json!("shadow")), "{run}");
    }
    let listed = run(&server, &["job", "list"]).await;
    assert!(listed.stdout.lines().any(|line| line.contains("job-1") && line.contains("shadow")), "{}", listed.stdout);
}

#[tokio::test]
async fn wrong_reports_of_fires_are_refused_with_their_place() {
    let Some(own_db) = scratch(Backend::Sqlite).await else { return };
    let server = Server::start(&own_db).await;
    let api = server.api();
    create(&server, &[shadow(1, &json!({}))]).await;
    let fire = |job: &str, id: i64| json!({"job": job, "source_id": id, "started_at": "2026-11-23T10:00:00Z"});
    let many: Vec<Value> = (0..1_001).map(|id| fire("job-1", id)).collect();
    for (body, status, part) in [
        (json!({"fires": [fire("job-1", 1), fire("nope", 2)]}), 404, "fire 1 is of the job"),
        (json!({"source": "a b", "fires": []}), 422, "/source"),
        (json!({"fires": many}), 422, "has 1001 fires; at most 1000"),
        (json!({"fires": [fire("job-1", -1)]}), 422, "/fires/0/source_id"),
        (
            json!({"fires": [{"job": "job-1", "source_id": 1, "started_at": "2026-11-23T10:00:00Z", "due_at": "2026-11-23T08:59:59Z"}]}),
            422,
            "2026-11-23T08:59:59Z is more than an hour from started_at",
        ),
        (json!({"fires": [{"job": "job-1", "source_id": 1, "started_at": "soon"}]}), 422, "/fires/0/started_at"),
    ] {
        let answer = api.post("/api/v1/shadow/fires", body).await.expect(status).to_string();
        assert!(answer.contains(part), "{answer}");
    }
    for (query, part) in [
        ("tolerance=2h", "is not from 1s to 1h"),
        ("late=0s", "is not from 1s to 1h"),
        ("from=2026-11-23T10:00:00Z&to=2026-11-23T10:00:00Z", "is not a range of up to 31 days"),
        ("source=a%20b", "is not the name of a source"),
    ] {
        let answer = api.get(&format!("/api/v1/shadow/report?{query}")).await.expect(422).to_string();
        assert!(answer.contains(part), "{answer}");
    }
    api.get("/api/v1/shadow/report?job=nope").await.expect(404);
    let stored =
        api.post("/api/v1/shadow/fires", json!({"fires": [fire("job-1", 7), fire("job-1", 7)]})).await.expect(200);
    assert_eq!(stored["stored"], 1);
    let known = api.get("/api/v1/shadow/fires").await.expect(200);
    assert_eq!((&known["last_id"], &known["last_at"]), (&json!(7), &json!("2026-11-23T10:00:00Z")));
}

/// Each fire is reported as a fire of the old scheduler, too. For job 2, the report names another executor, and one fire was
/// sent much later.
#[tokio::test]
async fn executors_are_compared_by_their_names_and_active_stretches_are_left_out() {
    let Some(own_db) = scratch(Backend::Sqlite).await else { return };
    let server = Server::start(&own_db).await;
    let api = server.api();
    let first = json!({"schedule": {"every": "1s"}, "select": {"executors": ["10.0.0.9-9999"]}});
    let broadcast = json!({"schedule": {"every": "1s"}, "route": "broadcast"});
    create(&server, &[shadow(1, &first), shadow(2, &first), shadow(3, &broadcast)]).await;
    let _agents = [
        Agent::start_named(&server, "work", "10.0.0.8-9999", &[]).await,
        Agent::start_named(&server, "work", "10.0.0.9-9999", &[]).await,
    ];
    let shadows = async |job: &str, count: usize| {
        wait_until(LIMIT, "shadows with executors", async || {
            let mut runs = api.runs(job).await;
            runs.retain(|run| run["reason"] == "shadow");
            runs.sort_by_key(|run| seconds(run["fire_at"].as_str().expect("an instant")));
            let known = runs.iter().filter(|run| run["detail"]["executor"].is_string()).count();
            if known >= count { Ok(runs) } else { Err(known) }
        })
        .await
    };
    let before = shadows("job-1", 4).await.len();
    api.patch("/api/v1/jobs/job-1", json!({"mode": "active"})).await.expect(200);
    wait_until(LIMIT, "two runs for real", async || {
        let runs = api.runs("job-1").await;
        let done = runs.iter().filter(|run| run["status"] == "succeeded").count();
        if done >= 2 { Ok(()) } else { Err(done) }
    })
    .await;
    api.patch("/api/v1/jobs/job-1", json!({"mode": "shadow"})).await.expect(200);
    shadows("job-1", before + 2).await;
    let mut fires = Vec::new();
    for (job, executor) in
        [("job-1", "http://10.0.0.9:9999/"), ("job-2", "http://10.0.0.8:9999/"), ("job-3", "http://10.0.0.8:9999")]
    {
        let runs = shadows(job, 5).await;
        fires.extend(
            runs.into_iter().map(|run| (run["fire_at"].as_str().expect("an instant").to_owned(), job, executor, run)),
        );
    }
    fires.sort_by(|a, b| a.0.cmp(&b.0));
    let shards = fires.iter().rfind(|fire| fire.1 == "job-3").expect("a broadcast").3["detail"]["executor"].clone();
    assert_eq!(shards, "10.0.0.8-9999, 10.0.0.9-9999");
    let late = fires.iter().filter(|fire| fire.1 == "job-2").nth(3).expect("four").0.clone();
    let report = |id: usize, (at, job, executor, _): &(String, &str, &str, Value)| {
        let mut fire = json!({"job": job, "source_id": id, "started_at": at, "executor": executor});
        if *job == "job-2" && *at == late {
            fire["due_at"] = fire["started_at"].clone();
            fire["started_at"] = Value::from(at.replace('Z', "-00:50"));
        }
        fire
    };
    let body: Vec<Value> = fires.iter().enumerate().map(|(id, fire)| report(id, fire)).collect();
    api.post("/api/v1/shadow/fires", json!({"fires": body})).await.expect(200);
    let report = api.get("/api/v1/shadow/report").await.expect(200);
    let sum = |job: &str, key: &str| -> i64 {
        let days = report["items"].as_array().expect("a list").iter().filter(|day| day["job"] == job);
        days.map(|day| day[key].as_i64().expect("a number")).sum()
    };
    for (job, is_other) in [("job-1", false), ("job-2", true), ("job-3", false)] {
        assert!(sum(job, "both") >= 2, "{job}: {report}");
        assert_eq!(sum(job, "other_executor") > 0, is_other, "{job}: {report}");
        assert_eq!((sum(job, "only_rondel"), sum(job, "only_old")), (0, 0), "{job}: {report}");
    }
    assert_eq!((sum("job-2", "old_late"), sum("job-1", "old_late")), (1, 0), "{report}");
}
