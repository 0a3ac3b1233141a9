//! An executor that knows two servers: whichever server it calls, both servers know it, and if one of them dies, the
//! other one takes over.

use std::time::Duration;

use rondel_tests::{Backend, Server, Signal, scratch, wait_until};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::stand_in::{Dialect, StandIn};
use super::{LIMIT, NETWORKS, job, log_of, online, run_of, start, token, wait_for_log, wait_for_status};

/// A short lease: after its end, the other server has the jobs of a server that died.
const CLUSTER: [&str; 6] = ["--lease", "2s", "--beat", "400ms", "--claim-strategy", "id_hash"];

/// The number of lines in a log.
const LINE_COUNT: usize = 35;
/// The number of runs that wait for each other.
const RUN_COUNT: u32 = 8;

fn log_id(call: &Value) -> i64 {
    call["logId"].as_i64().expect("a log id")
}

async fn either_server_serves_an_executor(backend: Backend) {
    let Some(db) = scratch(backend).await else { return };
    let args = [&NETWORKS[..], &CLUSTER[..]].concat();
    let mut first = Server::start_with(&db, &args).await;
    let second = Server::start_with(&db, &args).await;
    let (one, two) = (first.api(), second.api());
    for name in ["tick-0", "tick-1", "tick-2", "tick-3"] {
        let more = json!({"schedule": {"every": "1s"}, "misfire": {"policy": "all", "max": 100}});
        job(&one, (name, "demo", "echo"), more).await;
    }
    for name in ["sleep-0", "sleep-1", "sleep-2"] {
        job(&one, (name, "demo", "sleep"), json!({"delivery": "at_most_once"})).await;
    }
    let token = token(&one, "demo").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let servers = [first.url(), second.url()];
    let mut executor = StandIn::start_with(listener, Dialect::Core34, &servers, ("demo", &token));
    // It registers only with the first server, as its client does while that server answers.
    executor.keep_registering();
    let name = online(&one, "demo", 1).await[0]["name"].clone();
    assert_eq!(online(&two, "demo", 1).await[0]["name"], name, "both servers have the same executor, once");
    wait_until(LIMIT, "runs of both servers reach it", async || {
        let found = two.all("/api/v1/runs", &[("status", "succeeded")]).await;
        let jobs = ["tick-0", "tick-1", "tick-2", "tick-3"].map(|name| found.iter().any(|run| run["job"] == name));
        if jobs.iter().all(|has_run| *has_run) { Ok(()) } else { Err(jobs) }
    })
    .await;

    // Each server accepts a callback, whichever server sent the run.
    let mut logs = Vec::new();
    for (number, (api, called)) in [(&one, 1), (&two, 0)].into_iter().enumerate() {
        let run = start(api, &format!("sleep-{number}"), Value::Null).await;
        wait_for_status(api, &run, "running").await;
        let sent = sleeping(&executor, number).await;
        for line in 0..LINE_COUNT {
            executor.write(log_id(&sent), format!("line {line}."));
            // These lines are stored before more are written.
            if line % 10 == 9 && line + 1 < LINE_COUNT {
                wait_for_log(&two, &run, &format!("line {line}.")).await;
            }
        }
        executor.finish_at(called, log_id(&sent), "done").await;
        let ended_run = wait_for_status(&two, &run, "succeeded").await;
        assert_eq!((&ended_run["message"], &ended_run["attempt"]), (&json!("done"), &json!(1)), "{ended_run:#}");
        wait_for_log(&two, &run, &format!("line {}.", LINE_COUNT - 1)).await;
        logs.push(run);
    }

    // The server with which the executor registers dies during a run. This run and all others continue.
    let run = start(&one, "sleep-2", Value::Null).await;
    wait_for_status(&two, &run, "running").await;
    let sent = sleeping(&executor, 2).await;
    first.kill().await;
    let before = ticks(&executor);
    wait_until(LIMIT, "the other server goes on with the jobs", async || {
        let more = ticks(&executor) - before;
        if more >= 12 { Ok(()) } else { Err(more) }
    })
    .await;
    assert_eq!(run_of(&two, &run).await["status"], "running");
    executor.finish(log_id(&sent), 200, "after all").await;
    let ended_run = wait_for_status(&two, &run, "succeeded").await;
    assert_eq!((&ended_run["message"], &ended_run["attempt"]), (&json!("after all"), &json!(1)), "{ended_run:#}");
    wait_for_log(&two, &run, "sleeping").await;
    for run in logs {
        let log = log_of(&two, &run).await;
        let counts: Vec<usize> = (0..LINE_COUNT).map(|line| log.matches(&format!("line {line}.")).count()).collect();
        assert_eq!(counts, [1; LINE_COUNT], "each line is stored once: {log}");
    }

    first.restart().await;
    assert_eq!(online(&first.api(), "demo", 1).await[0]["name"], name);
    assert_eq!(online(&two, "demo", 1).await.len(), 1);
    let begun = executor.started_runs();
    let mut ids: Vec<i64> = begun.iter().map(|one| one.log_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), begun.len(), "no number is sent twice");
    tokio::time::timeout(LIMIT, executor.wait_until_all_reported()).await.expect("its callbacks are taken");
}

/// The number of requested runs of the jobs with a schedule.
fn ticks(executor: &StandIn) -> usize {
    executor.calls("run").iter().filter(|call| call["executorHandler"] == "echo").count()
}

/// The request for a run of a sleeping job, after this many earlier ones.
async fn sleeping(executor: &StandIn, before: usize) -> Value {
    wait_until(LIMIT, "the executor has the run", async || {
        let calls = executor.calls("run");
        let found = calls.iter().filter(|call| call["executorHandler"] == "sleep").nth(before).cloned();
        found.ok_or(calls.len())
    })
    .await
}

/// A stopped run is cancelled, even if its callback goes to the server that did not request the stop, and arrives before the executor's
/// answer.
async fn a_stopped_run_is_cancelled_wherever_its_callback_goes(backend: Backend) {
    let Some(db) = scratch(backend).await else { return };
    let args = [&NETWORKS[..], &CLUSTER[..]].concat();
    let first = Server::start_with(&db, &args).await;
    let second = Server::start_with(&db, &args).await;
    let (one, two) = (first.api(), second.api());
    let jobs: Vec<String> = (0..8).map(|number| format!("sleep-{number}")).collect();
    for name in &jobs {
        job(&one, (name, "demo", "sleep"), json!({})).await;
    }
    let token = token(&one, "demo").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let servers = [first.url(), second.url()];
    let mut executor = StandIn::start_with(listener, Dialect::Core34, &servers, ("demo", &token));
    executor.call_back_first();
    executor.keep_registering();
    online(&one, "demo", 1).await;
    online(&two, "demo", 1).await;
    let mut runs = Vec::new();
    for name in &jobs {
        runs.push(start(&one, name, Value::Null).await);
    }
    for run in &runs {
        wait_for_status(&one, run, "running").await;
    }
    for run in &runs {
        one.post(&format!("/api/v1/runs/{run}/cancel"), json!({})).await;
    }
    for run in &runs {
        wait_for_status(&one, run, "cancelled").await;
    }
}

/// `/kill` names a job, so a second one might stop the job's next run: only one server sends it.
async fn a_stop_is_requested_once(backend: Backend) {
    let Some(db) = scratch(backend).await else { return };
    let args = [&NETWORKS[..], &CLUSTER[..4]].concat();
    let servers = [Server::start_with(&db, &args).await, Server::start_with(&db, &args).await];
    let apis = [servers[0].api(), servers[1].api()];
    let jobs: Vec<String> = (0..RUN_COUNT).map(|number| format!("sleep-{number}")).collect();
    for name in &jobs {
        job(&apis[0], (name, "demo", "sleep"), json!({})).await;
    }
    let token = token(&apis[0], "demo").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let executor = StandIn::start_with(listener, Dialect::Core34, &[servers[0].url()], ("demo", &token));
    executor.register().await;
    for api in &apis {
        online(api, "demo", 1).await;
    }
    let mut runs = Vec::new();
    for (name, api) in jobs.iter().zip(apis.iter().cycle()) {
        runs.push(start(api, name, Value::Null).await);
    }
    for run in &runs {
        wait_for_status(&apis[0], run, "running").await;
    }
    // By then each server knows the attempts of the other one.
    tokio::time::sleep(Duration::from_secs(16)).await;
    for run in &runs {
        apis[0].post(&format!("/api/v1/runs/{run}/cancel"), json!({})).await;
    }
    for run in &runs {
        wait_for_status(&apis[0], run, "cancelled").await;
    }
    assert_eq!(executor.calls("kill").len(), runs.len());
}

#[tokio::test]
async fn a_stop_is_requested_once_on_postgres() {
    a_stop_is_requested_once(Backend::Postgres).await;
}

#[tokio::test]
async fn a_stop_is_requested_once_on_mysql() {
    a_stop_is_requested_once(Backend::Mysql).await;
}

/// The executor calls back only one server. The runs of a job whose home is the other server still follow each other quickly.
async fn runs_follow_each_other_wherever_the_executor_calls(backend: Backend) {
    let Some(db) = scratch(backend).await else { return };
    let args = [&NETWORKS[..], &CLUSTER[..4]].concat();
    let called = Server::start_with(&db, &args).await;
    let home = Server::start_with(&db, &args).await;
    let api = home.api();
    job(&api, ("echo", "demo", "echo"), json!({"queue_timeout": "10m"})).await;
    let token = token(&api, "demo").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let executor = StandIn::start_with(listener, Dialect::Core34, &[called.url()], ("demo", &token));
    executor.register().await;
    online(&api, "demo", 1).await;
    let began_at = Instant::now();
    let mut runs = Vec::new();
    for _ in 0..RUN_COUNT {
        runs.push(start(&api, "echo", Value::Null).await);
    }
    for run in &runs {
        wait_for_status(&api, run, "succeeded").await;
    }
    let took = began_at.elapsed();
    assert!(took < Duration::from_secs(3) * RUN_COUNT, "{RUN_COUNT} runs took {took:?}");
}

#[tokio::test]
async fn runs_follow_each_other_wherever_the_executor_calls_on_postgres() {
    runs_follow_each_other_wherever_the_executor_calls(Backend::Postgres).await;
}

#[tokio::test]
async fn runs_follow_each_other_wherever_the_executor_calls_on_mysql() {
    runs_follow_each_other_wherever_the_executor_calls(Backend::Mysql).await;
}

/// A server is paused after a run got its number and before its request is sent, and another server takes the run over. When the first
/// server continues, it does not send the request: the run gets another attempt.
async fn a_run_of_a_server_that_stood_still_is_sent_again(backend: Backend) {
    let Some(db) = scratch(backend).await else { return };
    let args = [&NETWORKS[..], &CLUSTER[..4]].concat();
    let other = Server::start_with(&db, &args).await;
    let mut sleeper = Server::start_with(&db, &[&args[..], &["--failpoint", "send_xxl.committed=stop"]].concat()).await;
    let api = other.api();
    job(&api, ("echo", "demo", "echo"), json!({})).await;
    let token = token(&api, "demo").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let executor = StandIn::start_with(listener, Dialect::Core34, &[other.url()], ("demo", &token));
    executor.register().await;
    online(&api, "demo", 1).await;
    online(&sleeper.api(), "demo", 1).await;
    // The server may stop before it answers.
    let asked = sleeper.api();
    let mut request = JoinSet::new();
    request.spawn(async move { start(&asked, "echo", json!("hello")).await });
    let id = sleeper.process().id();
    wait_until(LIMIT, "the server stops at its failpoint", async || {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        if stat.contains(") T ") { Ok(()) } else { Err(stat) }
    })
    .await;
    // Longer than the lease, so that the other server has the run.
    tokio::time::sleep(Duration::from_secs(6)).await;
    sleeper.process().signal(Signal::CONT);
    let run = request.join_next().await.expect("one request").expect("it is answered");
    let ended_run = wait_for_status(&api, &run, "succeeded").await;
    assert_eq!(ended_run["attempt"], 2, "{ended_run:#}");
    assert_eq!(executor.calls("run").len(), 1, "the first attempt was not sent");
}

#[tokio::test]
async fn a_run_of_a_server_that_stood_still_is_sent_again_on_postgres() {
    a_run_of_a_server_that_stood_still_is_sent_again(Backend::Postgres).await;
}

#[tokio::test]
async fn a_run_of_a_server_that_stood_still_is_sent_again_on_mysql() {
    a_run_of_a_server_that_stood_still_is_sent_again(Backend::Mysql).await;
}

#[tokio::test]
async fn a_stopped_run_is_cancelled_wherever_its_callback_goes_on_postgres() {
    a_stopped_run_is_cancelled_wherever_its_callback_goes(Backend::Postgres).await;
}

#[tokio::test]
async fn a_stopped_run_is_cancelled_wherever_its_callback_goes_on_mysql() {
    a_stopped_run_is_cancelled_wherever_its_callback_goes(Backend::Mysql).await;
}

#[tokio::test]
async fn either_server_serves_an_executor_on_postgres() {
    either_server_serves_an_executor(Backend::Postgres).await;
}

#[tokio::test]
async fn either_server_serves_an_executor_on_mysql() {
    either_server_serves_an_executor(Backend::Mysql).await;
}
