//! `rondel why NAME` where the cause is outside of the job: executors, other jobs that use up a limit, parents.

use std::time::Duration;

use rondel_tests::{Agent, Backend, Server, Signal, rondel, scratch, wait_until};
use serde_json::json;

use crate::verdicts::{trigger, wait_for_verdict};
use crate::why::{Fixture, has_parts, shell, with};

const LIMIT: Duration = Duration::from_secs(40);

async fn wait_until_running(fixture: &Fixture<'_>, run: &str) {
    wait_until(LIMIT, "the run is running", async || {
        let run = fixture.api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
        if run["status"] == "running" { Ok(()) } else { Err(run) }
    })
    .await;
}

#[tokio::test]
async fn the_run_that_holds_a_limit_is_named() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let fixture = Fixture { server: &server, api: server.api() };
    let limit = json!({"concurrency": {"key": "db", "max": 1}});
    fixture.job(with(shell("long", "files", "sleep 120"), &limit)).await;
    fixture.job(with(shell("short", "files", "true"), &limit)).await;
    let mut agent = Agent::start(&server, "files").await;
    let long = trigger(&fixture.api, "long").await;
    wait_until_running(&fixture, &long).await;
    trigger(&fixture.api, "short").await;
    let name = agent.name().to_owned();
    let (en, zh) = (
        format!(
            "and waits for concurrency limit \"db\" (1 at a time). Limit \"db\" is held by run {long} of job long on {name} since * UTC."
        ),
        format!("限制 \"db\" 被占用：任务 long 的运行 {long}（执行器 {name}），自 * UTC 起。"),
    );
    fixture.expect_why("short", &en, &zh).await;
    // The agent neither answers nor ends.
    agent.process().signal(Signal::STOP);
    let (en, zh) = (
        format!("on {name}. Executor {name} is silent since * UTC, and is given up at * UTC if it stays silent."),
        format!("执行器 {name} 自 * UTC 起没有音讯，若一直如此，将在 * UTC 视为失联。"),
    );
    fixture.expect_why("long", &en, &zh).await;
    agent.process().signal(Signal::CONT);
    for job in ["short", "long"] {
        fixture.api.post(&format!("/api/v1/jobs/{job}/cancel"), json!({})).await.expect(202);
    }
    wait_for_verdict(&fixture.api, &long).await;
}

#[tokio::test]
async fn an_executor_that_drains_is_named() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let fixture = Fixture { server: &server, api: server.api() };
    fixture.job(shell("long", "files", "sleep 120")).await;
    fixture.job(shell("next", "files", "true")).await;
    let mut agent = Agent::start(&server, "files").await;
    let long = trigger(&fixture.api, "long").await;
    wait_until_running(&fixture, &long).await;
    agent.process().signal(Signal::TERM);
    let name = agent.name().to_owned();
    let (en, zh) = (
        format!("on {name}. Executor {name} is draining (takes nothing new)."),
        format!("执行器 {name} 正在排空（不再接收新的运行）。"),
    );
    fixture.expect_why("long", &en, &zh).await;
    trigger(&fixture.api, "next").await;
    let (en, zh) = (format!("for an executor*{name} is draining"), format!("执行器*{name} 正在排空"));
    fixture.expect_why("next", &en, &zh).await;
    fixture.api.post("/api/v1/jobs/long/cancel", json!({})).await.expect(202);
    wait_for_verdict(&fixture.api, &long).await;
}

#[tokio::test]
async fn the_first_cause_of_a_chain_is_named_and_a_triggered_run_is_found() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let fixture = Fixture { server: &server, api: server.api() };
    fixture.job(shell("o.a", "files", "exit 3")).await;
    for (job, parent) in [("o.b", "o.a"), ("o.c", "o.b"), ("o.d", "o.c")] {
        fixture.job(with(shell(job, "files", "true"), &json!({"schedule": {"after": [parent]}}))).await;
    }
    let _agent = Agent::start(&server, "files").await;
    let first = trigger(&fixture.api, "o.a").await;
    let (en, zh) = (
        format!(
            "parent job o.c ended as skipped. The first cause is run {first} of job o.a, which ended as failed: exit code 3 (by way of o.b, o.c)."
        ),
        format!("上游任务 o.c 已跳过。最初的原因是任务 o.a 的运行 {first}：失败：退出码 3（经由 o.b、o.c）。"),
    );
    fixture.expect_why("o.d", &en, &zh).await;

    let run = fixture.api.get(&format!("/api/v1/runs/{first}")).await.expect(200);
    let at = run["fire_at"].as_str().expect("an instant");
    let token = server.token_file().display().to_string();
    for (job, lead) in
        [("o.a", "triggered through the API: It ran at"), ("o.d", "which follows from a parent job: It did")]
    {
        let args = ["why", job, "--at", at, "--server", server.url(), "--token-file", &token];
        let answer = rondel(&args, &[]).await;
        assert!(has_parts(&answer.stdout, &format!("Run of * UTC, {lead}")), "{job} at {at}: {answer:?}");
    }
}
