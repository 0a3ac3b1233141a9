//! Overlap, limits, priority and cancels, judged by what the handlers themselves wrote: when each began and ended.

mod intervals;

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_tests::{Agent, Api, Backend, ScratchDb, Server, rondel, scratch, wait_until};
use serde_json::{Value, json};

use self::intervals::{Interval, Intervals, max_concurrent, max_concurrent_on_one_executor};
use crate::on_each_database;

const LIMIT: Duration = Duration::from_secs(60);

#[expect(clippy::needless_pass_by_value, reason = "callers write them as literals")]
fn job(name: &str, params: Value, extra_fields: Value) -> Value {
    let mut job = json!({"name": name, "app": "files", "handler": "shell", "params": params});
    job.as_object_mut().expect("an object").extend(extra_fields.as_object().expect("an object").clone());
    job
}

/// Creates the app for the agents, and returns the server's API.
async fn create_app(server: &Server) -> Api {
    let api = server.api();
    api.post("/api/v1/apps", json!({"name": "files"})).await.expect(201);
    api
}

async fn create(api: &Api, job: Value) {
    api.post("/api/v1/jobs", job).await.expect(201);
}

async fn trigger(api: &Api, job: &str) -> String {
    let run = api.post(&format!("/api/v1/jobs/{job}/runs"), json!({})).await.expect(201);
    run["id"].as_str().expect("an id").to_owned()
}

async fn run(api: &Api, id: &str) -> Value {
    api.get(&format!("/api/v1/runs/{id}")).await.expect(200)
}

fn is_open(run: &Value) -> bool {
    ["pending", "waiting", "running"].iter().any(|status| run["status"] == *status)
}

async fn wait_for_verdict(api: &Api, id: &str) -> Value {
    wait_until(LIMIT, "the run has a verdict", async || {
        let run = run(api, id).await;
        if is_open(&run) { Err(run) } else { Ok(run) }
    })
    .await
}

/// The runs of a job by status and reason.
async fn verdicts(api: &Api, job: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for run in api.runs(job).await {
        let reason = run["reason"].as_str().unwrap_or_default();
        let verdict = format!("{} {reason}", run["status"].as_str().expect("a status"));
        *counts.entry(verdict.trim().to_owned()).or_default() += 1;
    }
    counts
}

async fn wait_for_begins(intervals: &Intervals, name: &str, count: usize) -> Vec<Interval> {
    wait_until(LIMIT, &format!("{count} begins of {name}"), async || {
        let all = intervals.read(name);
        if all.len() >= count { Ok(all) } else { Err(all) }
    })
    .await
}

const POLICIES: [(&str, u32); 5] = [("serial", 0), ("discard", 0), ("cover", 0), ("allow", 2), ("allow", 0)];

/// Starts five jobs that differ only in their policy. Each fires every second, and its runs take two and a half
/// seconds, on two agents.
async fn start_overlapping(api: &Api, intervals: &Intervals, scope: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (policy, max) in POLICIES {
        let name = format!("{policy}-{max}");
        let overlap = json!({"policy": policy, "scope": scope, "max": max});
        let params = intervals.params(&name, "sleep 2.5 & wait $!");
        create(api, job(&name, params, json!({"schedule": {"every": "1s"}, "overlap": overlap}))).await;
        names.push(name);
    }
    names
}

async fn runs_of_a_job_overlap_as_its_policy_allows(db: ScratchDb) {
    let server = Server::start(&db).await;
    let (api, intervals) = (create_app(&server).await, Intervals::new());
    let _agents = [Agent::start(&server, "files").await, Agent::start(&server, "files").await];
    let names = start_overlapping(&api, &intervals, "cluster").await;
    for name in &names {
        wait_for_begins(&intervals, name, 4).await;
    }
    let max_of = |name: &str| max_concurrent(&intervals.read(name));
    assert_eq!(max_of("serial-0"), 1, "{:?}", intervals.read("serial-0"));
    assert_eq!(max_of("discard-0"), 1, "{:?}", intervals.read("discard-0"));
    assert_eq!(max_of("cover-0"), 1, "{:?}", intervals.read("cover-0"));
    assert_eq!(max_of("allow-2"), 2, "{:?}", intervals.read("allow-2"));
    assert!(max_of("allow-0") > 2, "{:?}", intervals.read("allow-0"));

    let begins: Vec<i64> =
        intervals.read("serial-0").iter().map(|interval| interval.run.parse().expect("an id")).collect();
    assert!(begins.is_sorted(), "serial runs keep the order of their instants: {begins:?}");
    assert!(verdicts(&api, "serial-0").await.keys().all(|verdict| !verdict.starts_with("skipped")));
    assert!(verdicts(&api, "discard-0").await["skipped overlap"] >= 2);
    let covered = verdicts(&api, "cover-0").await;
    assert!(covered["cancelled covered"] >= 3, "{covered:?}");
    assert!(!covered.contains_key("cancelled requested"), "{covered:?}");
    let runs = api.runs("cover-0").await;
    let message = runs.iter().find(|run| run["status"] == "cancelled").map(|run| run["message"].clone());
    assert!(message.expect("one was covered").to_string().contains("cancelled by a later run of the job"));
}
on_each_database!(runs_of_a_job_overlap_as_its_policy_allows);

#[tokio::test]
async fn on_each_executor_runs_overlap_as_the_policy_allows() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = Server::start(&db).await;
    let (api, intervals) = (create_app(&server).await, Intervals::new());
    let _agents = [Agent::start(&server, "files").await, Agent::start(&server, "files").await];
    let names = start_overlapping(&api, &intervals, "executor").await;
    for name in &names {
        wait_for_begins(&intervals, name, 6).await;
    }
    for (name, expected_max) in [("serial-0", 1), ("discard-0", 1), ("cover-0", 1), ("allow-2", 2)] {
        let all = intervals.read(name);
        assert_eq!(max_concurrent_on_one_executor(&all), expected_max, "{name}: {all:?}");
        assert!(max_concurrent(&all) > expected_max, "{name} runs on both: {all:?}");
    }
    assert!(max_concurrent_on_one_executor(&intervals.read("allow-0")) >= 2);
    assert!(verdicts(&api, "discard-0").await["skipped overlap"] >= 1);
    assert!(verdicts(&api, "cover-0").await["cancelled covered"] >= 1);
}

#[tokio::test]
async fn jobs_with_one_key_share_a_limit() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = Server::start(&db).await;
    let (api, intervals) = (create_app(&server).await, Intervals::new());
    let _agent = Agent::start(&server, "files").await;
    for name in ["one", "two"] {
        let params = intervals.params("shared", "sleep 2");
        let extra_fields = json!({
            "schedule": {"every": "1s"}, "overlap": {"policy": "allow"}, "concurrency": {"key": "disk", "max": 2},
            "queue_timeout": "3s",
        });
        create(&api, job(name, params, extra_fields)).await;
    }
    // Two runs come due each second, but the shared limit lets only one begin: the others end with a reason.
    let expired = wait_until(LIMIT, "one has waited as long as it may", async || {
        let mut runs = api.runs("one").await;
        runs.extend(api.runs("two").await);
        let expired = runs.iter().find(|run| run["reason"] == "expired").cloned();
        expired.ok_or(runs.len())
    })
    .await;
    let message = expired["message"].as_str().expect("a message");
    assert!(message.ends_with("s for concurrency limit \"disk\" (2 at a time)"), "{message}");
    let all = wait_for_begins(&intervals, "shared", 8).await;
    assert_eq!(max_concurrent(&all), 2, "{all:?}");
    for name in ["one", "two"] {
        assert!(verdicts(&api, name).await.contains_key("succeeded"), "{name} gets its share");
    }
}

#[tokio::test]
async fn no_more_runs_start_than_the_rate_allows() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = Server::start(&db).await;
    let (api, intervals) = (create_app(&server).await, Intervals::new());
    let _agent = Agent::start(&server, "files").await;
    let allow = json!({"policy": "allow"});
    for name in ["one", "two"] {
        let rate = json!({"key": "mail", "max": 3, "per": "3s"});
        create(&api, job(name, intervals.params("mail", "true"), json!({"overlap": allow, "rate": rate}))).await;
    }
    for _ in 0..5 {
        trigger(&api, "one").await;
        trigger(&api, "two").await;
    }
    let all = wait_for_begins(&intervals, "mail", 10).await;
    let begins: Vec<i64> = all.iter().map(|interval| interval.begin_ms).collect();
    // The rate counts the instants at which runs are sent. A handler reads its own clock some milliseconds later, which
    // varies.
    assert!(begins.windows(4).all(|four| four[3] - four[0] > 2_500), "{begins:?}");
    assert!(begins[9] - begins[0] < 15_000, "and no later than need be: {begins:?}");

    let rate = json!({"max": 1, "per": "1h"});
    let extra_fields = json!({"overlap": allow, "rate": rate, "queue_timeout": "1s"});
    create(&api, job("hourly", intervals.params("hourly", "true"), extra_fields)).await;
    trigger(&api, "hourly").await;
    wait_for_begins(&intervals, "hourly", 1).await;
    let expired_run = wait_for_verdict(&api, &trigger(&api, "hourly").await).await;
    assert_eq!((&expired_run["status"], &expired_run["reason"]), (&json!("skipped"), &json!("expired")));
    let reason = expired_run["message"].as_str().unwrap_or_default();
    assert!(reason.ends_with("s for the job's rate limit (1 per 1 h)"), "{expired_run:#}");
}

#[tokio::test]
async fn runs_with_a_higher_priority_go_first() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = Server::start(&db).await;
    let (api, intervals) = (create_app(&server).await, Intervals::new());
    let allow = json!({"policy": "allow"});
    for (name, priority) in [("low", 1), ("usual", 5), ("high", 9)] {
        let params = intervals.params("order", "true");
        create(&api, job(name, params, json!({"overlap": allow, "priority": priority}))).await;
    }
    // The runs wait for an agent. The agent that starts has one slot, and accepts four more runs ahead.
    let mut expected = Vec::new();
    for name in ["low", "usual", "high"] {
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(trigger(&api, name).await);
        }
        expected.splice(0..0, ids);
    }
    wait_until(LIMIT, "all of them are due", async || {
        let runs = api.get("/api/v1/runs?status=pending").await.expect(200);
        if runs["items"].as_array().map(Vec::len) == Some(9) { Ok(()) } else { Err(runs) }
    })
    .await;
    let _agent = Agent::start_with(&server, "files", &["--slots", "1"]).await;
    let begins: Vec<String> =
        wait_for_begins(&intervals, "order", 9).await.into_iter().map(|interval| interval.run).collect();
    assert_eq!(begins, expected, "by priority, then in order");
}

/// Each kind of open run, however it waits, ends when it is cancelled, and records who cancelled it and why.
#[tokio::test]
async fn whatever_is_open_can_be_cancelled() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = Server::start(&db).await;
    let (api, intervals) = (create_app(&server).await, Intervals::new());
    let agents = [Agent::start(&server, "files").await, Agent::start(&server, "files").await];
    let long = |extra_fields: Value| job("long", intervals.params("long", "sleep 60 & wait $!"), extra_fields);
    create(&api, long(json!({}))).await;
    create(&api, job("fails", intervals.params("fails", "exit 3"), json!({"retry": {"max": 1, "backoff": "1h"}})))
        .await;
    create(&api, json!({"name": "unserved", "app": "empty", "handler": "shell", "params": {"argv": ["true"]}})).await;
    create(&api, job("all", intervals.params("all", "sleep 60 & wait $!"), json!({"route": "broadcast"}))).await;

    // A run that an executor has, and a run that waits behind it: the first is cancelled by its id, the second with its
    // job.
    let (running, queued) = (trigger(&api, "long").await, trigger(&api, "long").await);
    wait_for_begins(&intervals, "long", 1).await;
    let cancel = |id: &str| format!("/api/v1/runs/{id}/cancel");
    api.post(&cancel(&running), json!({"reason": "the disk is full"})).await.expect(202);
    let ended_run = wait_for_verdict(&api, &running).await;
    assert_eq!((&ended_run["status"], &ended_run["reason"]), (&json!("cancelled"), &json!("requested")));
    assert_eq!(ended_run["message"], "cancelled by token:admin: the disk is full");
    wait_for_begins(&intervals, "long", 2).await;
    let queued_runs = [trigger(&api, "long").await, trigger(&api, "long").await];
    let output = rondel(
        &[
            "job",
            "cancel",
            "long",
            "--reason",
            "enough",
            "--server",
            server.url(),
            "--token-file",
            &server.token_file().display().to_string(),
            "-o",
            "json",
        ],
        &[],
    )
    .await;
    assert_eq!(output.stdout.trim(), "{\"asked\":3,\"has_more\":false}", "{output:?}");
    for id in [&queued, &queued_runs[0], &queued_runs[1]] {
        let ended_run = wait_for_verdict(&api, id).await;
        assert_eq!(
            (&ended_run["status"], &ended_run["message"]),
            (&json!("cancelled"), &json!("cancelled by token:admin: enough"))
        );
    }
    assert_eq!(intervals.read("long").len(), 2, "what was queued never began");

    // A run that waits for its next attempt in an hour, and a run that waits for an executor that never connects.
    let (retried, parked) = (trigger(&api, "fails").await, trigger(&api, "unserved").await);
    wait_until(LIMIT, "it waits for its second attempt", async || {
        let run = run(&api, &retried).await;
        if run["status"] == "waiting" { Ok(()) } else { Err(run) }
    })
    .await;
    for id in [&retried, &parked] {
        api.post(&cancel(id), json!({})).await.expect(202);
        let ended_run = wait_for_verdict(&api, id).await;
        assert_eq!(
            (&ended_run["status"], &ended_run["message"]),
            (&json!("cancelled"), &json!("cancelled by token:admin"))
        );
    }
    // The cancelled run no longer holds up its job: the next run begins.
    trigger(&api, "fails").await;
    wait_for_begins(&intervals, "fails", 2).await;

    // All runs of one fire are cancelled: here a broadcast with its shards.
    let broadcast = trigger(&api, "all").await;
    wait_for_begins(&intervals, "all", agents.len()).await;
    let fire_at = run(&api, &broadcast).await["fire_at"].clone();
    let elsewhere = json!({"fire_at": "2020-01-01T00:00:00Z"});
    let none = api.post("/api/v1/jobs/all/cancel", elsewhere).await.expect(202);
    assert_eq!(none, json!({"asked": 0, "has_more": false}));
    let asked = api.post("/api/v1/jobs/all/cancel", json!({"fire_at": fire_at})).await.expect(202);
    assert_eq!(asked, json!({"asked": 1, "has_more": false}));
    let ended_run = wait_for_verdict(&api, &broadcast).await;
    assert_eq!(
        (&ended_run["status"], &ended_run["message"]),
        (&json!("cancelled"), &json!("2 of 2 shards were cancelled by token:admin"))
    );
    let refusal = api.post("/api/v1/jobs/all/cancel", json!({"fire_at": "soon"})).await.expect(422);
    assert!(refusal.to_string().contains("/fire_at"), "{refusal}");
}

/// If the server dies, a retry that waits keeps its place before the next run, and queued runs keep their order.
async fn the_serial_order_survives_the_server(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let (api, intervals) = (create_app(&server).await, Intervals::new());
    let _agent = Agent::start(&server, "files").await;
    let work = format!("test $RONDEL_ATTEMPT = 2 || test -e {}", intervals.path("well").display());
    let extra_fields = json!({"retry": {"max": 1, "backoff": "6s"}});
    create(&api, job("orderly", intervals.params("orderly", &work), extra_fields)).await;
    let first = trigger(&api, "orderly").await;
    wait_until(LIMIT, "it waits for its second attempt", async || {
        let run = run(&api, &first).await;
        if run["status"] == "waiting" { Ok(()) } else { Err(run) }
    })
    .await;
    std::fs::write(intervals.path("well"), "").expect("from here on all goes well");
    let queued_runs = [trigger(&api, "orderly").await, trigger(&api, "orderly").await];
    server.kill().await;
    server.restart().await;
    let api = server.api();
    for id in [&first, &queued_runs[0], &queued_runs[1]] {
        assert_eq!(wait_for_verdict(&api, id).await["status"], "succeeded");
    }
    let all = intervals.read("orderly");
    let order: Vec<&str> = all.iter().map(|interval| interval.run.as_str()).collect();
    assert_eq!(order, [&first, &first, &queued_runs[0], &queued_runs[1]], "{all:?}");
    assert_eq!(max_concurrent(&all), 1, "{all:?}");
}
on_each_database!(the_serial_order_survives_the_server);

/// A run that is to be replaced stops slowly, and the server dies meanwhile. The run's successor still waits for the
/// run's end.
#[tokio::test]
async fn a_cover_survives_the_server() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let mut server = Server::start(&db).await;
    let (api, intervals) = (create_app(&server).await, Intervals::new());
    let _agent = Agent::start(&server, "files").await;
    let slow = "sleep 60 & wait $!";
    let params = intervals.params("covered", slow);
    let script =
        params["argv"][2].as_str().expect("a script").replace("trap 'exit 1' TERM", "trap 'sleep 4; exit 1' TERM");
    let extra_fields = json!({"overlap": {"policy": "cover"}});
    create(&api, job("covered", json!({"argv": ["sh", "-c", script]}), extra_fields)).await;
    let first = trigger(&api, "covered").await;
    wait_for_begins(&intervals, "covered", 1).await;
    let second = trigger(&api, "covered").await;
    wait_until(LIMIT, "it is asked to make room", async || {
        let run = run(&api, &first).await;
        if run["cancel_requested_by"].is_null() { Err(run) } else { Ok(()) }
    })
    .await;
    server.kill().await;
    server.restart().await;
    let api = server.api();
    let ended_run = wait_for_verdict(&api, &first).await;
    assert_eq!((&ended_run["status"], &ended_run["reason"]), (&json!("cancelled"), &json!("covered")), "{ended_run:#}");
    let all = wait_for_begins(&intervals, "covered", 2).await;
    assert_eq!(all[1].run, second);
    assert_eq!(max_concurrent(&all), 1, "{all:?}");
    api.post("/api/v1/jobs/covered/cancel", json!({})).await.expect(202);
    wait_for_verdict(&api, &second).await;
}

/// Two servers, each the home of one job. The jobs share a limit, so one server counts for both. When it dies, the other
/// one takes over the count.
#[tokio::test]
async fn a_limit_holds_over_two_servers() {
    let Some(db) = scratch(Backend::Postgres).await else { return };
    let mut servers = [
        Server::start_with(&db, &["--node-name", "one"]).await,
        Server::start_with(&db, &["--node-name", "two"]).await,
    ];
    let intervals = Intervals::new();
    let apis = [create_app(&servers[0]).await, servers[1].api()];
    let _agent = Agent::start_with(&servers[0], "files", &["--server", servers[1].url()]).await;
    for name in ["one", "two"] {
        let extra_fields = json!({"overlap": {"policy": "allow"}, "concurrency": {"key": "disk", "max": 1}});
        create(&apis[0], job(name, intervals.params("shared", "sleep 0.3"), extra_fields)).await;
    }
    let mut ids = Vec::new();
    for _ in 0..4 {
        for (api, name) in apis.iter().zip(["one", "two"]) {
            ids.push(trigger(api, name).await);
        }
    }
    for id in &ids {
        assert_eq!(wait_for_verdict(&apis[0], id).await["status"], "succeeded");
    }
    let all = intervals.read("shared");
    assert_eq!((all.len(), max_concurrent(&all)), (8, 1), "{all:?}");

    // Each server is killed in turn: the one that counts is among them, and then the other one counts.
    for index in [0, 1] {
        let before = intervals.read("shared").len();
        servers[index].kill().await;
        let api = servers[1 - index].api();
        let ids = [trigger(&api, "one").await, trigger(&api, "two").await];
        for id in &ids {
            assert_eq!(wait_for_verdict(&api, id).await["status"], "succeeded");
        }
        let all = intervals.read("shared");
        assert_eq!((all.len(), max_concurrent(&all)), (before + 2, 1), "{all:?}");
        servers[index].restart().await;
    }
}
