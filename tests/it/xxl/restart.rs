//! An executor that is restarted.

use std::time::Duration;

use rondel_tests::{Backend, scratch, wait_until};
use serde_json::json;
use tokio::net::TcpListener;

use super::by_hand::statuses;
use super::stand_in::{Dialect, StandIn, hold_port};
use super::{LIMIT, job, online, server, start, token, wait_for_status};

/// How long the executor takes to answer a beat: longer than a server waits for the answer.
const BEAT_DELAY: Duration = Duration::from_secs(10);
/// A server waits for the answer to a beat for less than this.
const BEAT_LIMIT: Duration = Duration::from_secs(4);

/// An executor signs off after a run could not be sent to it, while the server asks it whether it can be reached again. Once it has
/// registered again, it gets the run.
#[tokio::test]
async fn an_executor_that_signs_off_during_a_beat_gets_runs_once_it_is_back() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let mut server = server(&db, &[]).await;
    let api = server.api();
    job(&api, ("echo", "demo", "echo"), json!({"queue_timeout": "10m"})).await;
    let token = token(&api, "demo").await;
    let first = StandIn::start(Dialect::Core34, server.url(), ("demo", &token)).await;
    first.register().await;
    online(&api, "demo", 1).await;
    let port = first.port();
    first.die().await;
    let held = hold_port(port);
    let run = start(&api, "echo", json!("x")).await;
    wait_until(LIMIT, "the run cannot be sent", async || {
        let log = server.process().stderr();
        if log.contains("an executor of XXL-JOB cannot be reached") { Ok(()) } else { Err(log) }
    })
    .await;
    let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("its port");
    drop(held);
    let executor = StandIn::start_at(listener, Dialect::Core34, server.url(), ("demo", &token));
    executor.delay_beats(BEAT_DELAY);
    executor.wait_for("beat", 1).await;
    executor.sign_off().await;
    wait_until(LIMIT, "it is offline", async || {
        let found = statuses(&api).await;
        if found.iter().all(|status| status == "offline") { Ok(()) } else { Err(found) }
    })
    .await;
    tokio::time::sleep(BEAT_LIMIT).await;
    executor.delay_beats(Duration::ZERO);
    executor.register().await;
    wait_for_status(&api, &run, "succeeded").await;
}
