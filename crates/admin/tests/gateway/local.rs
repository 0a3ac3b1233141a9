//! An executor on the server's own host that is killed. Its runs are retried immediately, not after the timeout of a
//! silent executor.

use std::process::{Child, Command};
use std::time::Duration;

use rondel_core::{Reason, RunStatus};
use rondel_proto::v1;
use rondel_store::Runs as _;

use super::world::{Line, World, begun_replies, create, hello, request, runs, success_result};

/// A process that stands in for an executor and is named in its hello.
fn process() -> (Child, v1::HostProcess) {
    let child = Command::new("sleep").arg("60").spawn().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap().to_str().unwrap().to_owned();
    let named = v1::HostProcess {
        boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned(),
        pid_namespace: namespace.trim_start_matches("pid:[").trim_end_matches(']').parse().unwrap(),
        pid: i32::try_from(child.id()).unwrap(),
        started_ticks: fields[19].parse().unwrap(),
    };
    (child, named)
}

/// An executor that holds a run, and another one that could take it.
async fn with_a_run(world: &World, process: v1::HostProcess) -> (Line, v1::Trigger, Line) {
    let job = create(world, serde_json::json!({})).await;
    let first = v1::Hello { process: Some(process), ..hello("a", 1) };
    let mut line = world.dial(Some(&world.token), first).await.unwrap();
    request(world, &job).await;
    let trigger = line.trigger().await;
    line.send(begun_replies(&trigger)).await;
    line.wait_until_read(1).await;
    let mut other = world.dial(Some(&world.token), hello("b", 2)).await.unwrap().beat();
    other.wait_until_read(1).await;
    (line, trigger, other)
}

#[tokio::test]
async fn the_runs_of_a_killed_process_of_this_host_are_tried_again_at_once() {
    let world = World::start().await;
    let (mut child, named) = process();
    let (line, trigger, mut other) = with_a_run(&world, named).await;
    child.kill().unwrap();
    drop(line);
    // Without the process check, the server would wait 30 s for the silent executor, which is longer than the test
    // waits for a message.
    let again = other.trigger().await;
    assert_eq!((again.run_id, again.attempt), (trigger.run_id, 2));
    let attempts = world.store.attempts(rondel_core::RunId::new(again.run_id)).await.unwrap();
    assert_eq!(attempts[0].reason, Some(Reason::ExecutorLost));
    child.wait().unwrap();
    other.send(success_result(&again)).await;
    assert_eq!(other.ack().await.kind(), v1::result_ack::Kind::Stored);
    world.end().await;
}

/// The server concludes nothing from a process of another host, nor from one that is still alive.
#[tokio::test]
async fn nothing_is_concluded_of_a_foreign_process_or_of_one_that_lives() {
    tokio::join!(Box::pin(check_no_verdict(true)), Box::pin(check_no_verdict(false)));
}

async fn check_no_verdict(is_foreign: bool) {
    let world = World::start().await;
    let (mut child, named) = process();
    let boot_id = if is_foreign { "00000000-0000-4000-8000-000000000000".to_owned() } else { named.boot_id.clone() };
    let (line, trigger, mut other) = with_a_run(&world, v1::HostProcess { boot_id, ..named }).await;
    if is_foreign {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    drop(line);
    let sent = tokio::time::timeout(Duration::from_secs(7), other.trigger()).await;
    assert!(sent.is_err(), "{sent:?}");
    let run = runs(&world).await.remove(0);
    assert_eq!((run.status, run.attempt), (RunStatus::Running, 1), "{}", trigger.run_id);
    if !is_foreign {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    world.die().await;
}
