//! Jobs that code declares.
#![expect(clippy::unused_async, reason = "handlers are async functions, whatever they do")]

use rondel::{Builder, Executor, Job, JobError, Params, Shard, TestRun};
use serde_json::{Value, json};

use super::fake::FakeServer;
use super::{RunningExecutor, builder};

/// Closes the invoices
/// of the day.
///
/// At night.
#[rondel::job(
    name = "invoices.close",
    cron = "0 30 2 * * ?",
    tz = "Europe/Berlin",
    retry = 3,
    backoff = "10s..5m",
    timeout = "30m",
    misfire = "once",
    overlap = "discard",
    route = "broadcast",
    priority = 7,
    enabled = false
)]
async fn close_invoices(Params(rows): Params<u32>, shard: Shard) -> Result<u32, JobError> {
    Ok(rows / shard.total)
}

#[rondel::job("report", after = ["invoices.close", "other"], on = "either")]
fn report() {}

#[rondel::job(parent = "report")]
async fn archive() {}

#[test]
fn arguments_become_the_definition() {
    let wanted = json!({
        "name": "invoices.close", "description": "Closes the invoices of the day.",
        "schedule": {"cron": "0 30 2 * * ?", "time_zone": "Europe/Berlin"},
        "retry": {"max": 3, "backoff": "10s..5m"}, "timeout": "30m", "misfire": {"policy": "once"},
        "overlap": {"policy": "discard"}, "route": "broadcast", "priority": 7, "enabled": false,
    });
    assert_eq!(close_invoices.declaration().document(), wanted);
    let wanted = json!({"name": "report", "schedule": {"after": ["invoices.close", "other"], "on": "either"}});
    assert_eq!(report.declaration().document(), wanted);
    assert_eq!(archive.declaration().document(), json!({"name": "archive", "schedule": {"after": ["report"]}}));
}

#[tokio::test]
async fn a_declared_job_is_tested_without_a_server() {
    let outcome = TestRun::of_job(&close_invoices).params(100).shard(1, 4).run().await;
    assert_eq!(outcome.result(), Some(&25.into()));
    assert!(TestRun::of_job(&report).run().await.is_succeeded());
    report::call();
    archive::call().await;
}

#[tokio::test]
async fn the_hello_carries_the_declared_jobs() {
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).job(close_invoices).job(report));
    let hello = server.hello(0).await;
    assert_eq!(hello.handlers, ["invoices.close", "report"]);
    let declared: Vec<Value> = hello.declared.iter().map(|job| serde_json::from_str(&job.spec_json).unwrap()).collect();
    assert_eq!(declared.len(), 2);
    assert_eq!((&declared[1]["app"], &declared[1]["handler"]), (&json!("app"), &json!("report")));
    executor.stop().await;
}

#[test]
fn a_declared_job_is_a_handler_too() {
    let twice: Builder = Executor::builder("app").server("http://a").job(report).handler("report", || async {});
    assert_eq!(twice.build().unwrap_err().to_string(), "handler \"report\" is registered twice");
}
