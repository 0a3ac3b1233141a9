//! Several nodes on one store: expired leases, dead nodes, executors connected to only some of the nodes.

use std::sync::Arc;
use std::time::Duration;

use rondel_admin::{Count, EngineConfig};
use rondel_core::outcome::CancelRequest;
use rondel_core::{RunId, RunStatus};
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body as Up;
use rondel_proto::v1::server_message::Body as Down;
use rondel_store::{Cancel as _, Cluster as _, MemStore};
use serde_json::json;

use super::world::{LIMIT, Line, World, begun_replies, create, hello, request, runs, store, success_result};

/// A node with a short lease that soon declares an executor lost.
fn quick_config(name: &str) -> EngineConfig {
    EngineConfig {
        node_name: name.to_owned(),
        lease: Duration::from_secs(1),
        beat: Duration::from_millis(200),
        heartbeat: Duration::from_millis(200),
        lost_after: Duration::from_secs(2),
        ..EngineConfig::default()
    }
}

async fn start_node(store: &Arc<MemStore>, name: &str) -> World {
    World::start_on(Arc::clone(store), quick_config(name)).await
}

async fn dial(world: &World, hello: v1::Hello) -> Line {
    world.dial(Some(&world.token), hello).await.unwrap().beat()
}

async fn wait_until(what: &str, holds: impl AsyncFn() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, waiting).await.is_ok(), "not in time: {what}");
}

fn token_of(trigger: &v1::Trigger) -> (i64, i64) {
    (trigger.fence_term, trigger.fence_n)
}

fn run_ref(trigger: &v1::Trigger) -> v1::RunRef {
    v1::RunRef { run_id: trigger.run_id, attempt: trigger.attempt, ..v1::RunRef::default() }
}

/// The next fence or trigger on a line.
#[derive(Debug)]
enum Sent {
    Fence(v1::Fence),
    Triggers,
}

async fn next_sent(line: &mut Line) -> Sent {
    line.receive(|body| match body {
        Down::Fence(fence) => Some(Sent::Fence(fence)),
        Down::Triggers(_) => Some(Sent::Triggers),
        _ => None,
    })
    .await
}

/// The survivor fences the dead lease on its streams, repeats the fence until it is answered, and sends none of the
/// runs until then.
#[tokio::test]
async fn runs_of_a_dead_node_wait_for_the_answer_to_its_fence() {
    let store = store();
    let (a, b) = (start_node(&store, "a").await, start_node(&store, "b").await);
    let job = create(&a, json!({"overlap": {"policy": "allow"}})).await;
    let (mut to_a, mut to_b) = (dial(&a, hello("e", 1)).await, dial(&b, hello("e", 1)).await);
    request(&a, &job).await;
    let held = to_a.trigger().await;
    request(&a, &job).await;
    let never_came = to_a.trigger().await;
    assert!(token_of(&held) < token_of(&never_came), "the later start has the greater token");
    let dead = a.engine.token();
    a.die().await;
    drop(to_a);
    for _ in 0..2 {
        let Sent::Fence(fence) = next_sent(&mut to_b).await else { panic!("a trigger before the answer") };
        assert_eq!((fence.node_id, fence.node_epoch), (dead.node.get(), dead.epoch));
    }
    let answer = v1::FenceReply {
        node_id: dead.node.get(),
        node_epoch: dead.epoch,
        held: vec![run_ref(&held)],
        finished: vec![],
    };
    to_b.send(Up::FenceReply(answer)).await;
    let again = to_b.trigger().await;
    assert_eq!((again.run_id, again.attempt), (never_came.run_id, 2));
    assert!(token_of(&never_came) < token_of(&again), "its home has changed");
    for trigger in [&held, &again] {
        to_b.send(success_result(trigger)).await;
        assert_eq!(to_b.ack().await.kind(), v1::result_ack::Kind::Stored);
    }
    assert!(runs(&b).await.iter().all(|run| run.status == RunStatus::Succeeded));
    // A later executor receives the fence in its welcome.
    let mut late = dial(&b, hello("late", 2)).await;
    let fences = late.receive(|body| match body {
        Down::Welcome(welcome) => Some(welcome.fences),
        _ => None,
    });
    assert_eq!(fences.await, [v1::Fence { node_id: dead.node.get(), node_epoch: dead.epoch }]);
    b.end().await;
}

/// A server that has not read the other nodes' leases for a long time still announces the fences that another server
/// wrote meanwhile.
#[tokio::test]
async fn an_executor_that_connects_after_a_fence_learns_of_it_from_any_server() {
    let store = store();
    let seldom = Duration::from_secs(600);
    let config = EngineConfig { lease: 3 * seldom, beat: seldom, ..quick_config("b") };
    let b = World::start_on(Arc::clone(&store), config).await;
    // The node that is next in line adopts the runs of a dead node.
    let (a, c) = (start_node(&store, "a").await, start_node(&store, "c").await);
    let dead = a.engine.token();
    a.die().await;
    wait_until("the lease is fenced", async || {
        store.nodes().await.unwrap().iter().any(|node| node.id == dead.node && node.epoch > dead.epoch)
    })
    .await;
    let mut late = dial(&b, hello("late", 1)).await;
    let fences = late.receive(|body| match body {
        Down::Welcome(welcome) => Some(welcome.fences),
        _ => None,
    });
    assert_eq!(fences.await, [v1::Fence { node_id: dead.node.get(), node_epoch: dead.epoch }]);
    b.end().await;
    c.end().await;
}

/// The URLs in the next welcome on a line.
async fn named_servers(line: &mut Line) -> Vec<String> {
    line.receive(|body| match body {
        Down::Welcome(welcome) => Some(welcome.servers),
        _ => None,
    })
    .await
}

/// Otherwise an executor that knows one node would not connect to a node that joins later, and would lose both with the first one.
#[tokio::test]
async fn a_connected_executor_gets_the_urls_of_nodes_that_join_and_leave() {
    let store = store();
    let config = |name: &str| EngineConfig {
        advertise_url: Some(format!("http://{name}")),
        lease: Duration::from_secs(10),
        ..quick_config(name)
    };
    let a = World::start_on(Arc::clone(&store), config("a")).await;
    let mut to_a = dial(&a, hello("e", 1)).await;
    assert_eq!(named_servers(&mut to_a).await, ["http://a"]);
    let b = World::start_on(Arc::clone(&store), config("b")).await;
    assert_eq!(named_servers(&mut to_a).await, ["http://a", "http://b"]);
    b.end().await;
    assert_eq!(named_servers(&mut to_a).await, ["http://a"]);
    drop(to_a);
    a.die().await;
}

/// A lost stream is not a lost executor while another node hears it: the nodes exchange results and cancels through
/// rows, and the home removes the ended run from its memory.
#[tokio::test]
async fn an_executor_that_another_node_hears_is_not_lost() {
    let store = store();
    let (a, b) = (start_node(&store, "a").await, start_node(&store, "b").await);
    let job = create(&a, json!({})).await;
    let (mut to_a, mut to_b) = (dial(&a, hello("e", 1)).await, dial(&b, hello("e", 1)).await);
    request(&a, &job).await;
    let trigger = to_a.trigger().await;
    to_a.send(begun_replies(&trigger)).await;
    to_a.wait_until_read(1).await;
    drop(to_a);
    wait_until("A has not heard it for twice the silence limit", async || {
        let sent_at = runs(&a).await[0].started_at;
        sent_at.is_some_and(|sent_at| sent_at + Duration::from_secs(4) < a.engine.now())
    })
    .await;
    let run = runs(&a).await.remove(0);
    assert_eq!((run.status, run.attempt), (RunStatus::Running, 1));
    assert_eq!(a.engine.counters().get(Count::ExecutorsLost), 0);
    store.ask_cancel(run.id, CancelRequest::requested("Bo"), a.engine.now()).await.unwrap();
    let cancel = to_b.receive(|body| match body {
        Down::Cancels(cancels) => cancels.cancels.into_iter().next(),
        _ => None,
    });
    assert_eq!(RunId::new(cancel.await.run_id), run.id);
    to_b.send(success_result(&trigger)).await;
    assert_eq!(to_b.ack().await.kind(), v1::result_ack::Kind::Stored);
    wait_until("A forgets the run", async || a.engine.runs_in_memory() == 0).await;

    // Once no node hears it any more, it is lost.
    request(&a, &job).await;
    let again = to_b.trigger().await;
    assert_eq!(again.attempt, 1, "sent by the node that hears it");
    drop(to_b);
    wait_until("it is lost", async || b.engine.counters().get(Count::ExecutorsLost) == 1).await;
    wait_until("another attempt", async || runs(&b).await[0].attempt == 2).await;
    a.die().await;
    b.die().await;
}

/// A node without a stream to an eligible executor hands its due runs, and their job's home, to one that has a stream.
#[tokio::test]
async fn due_runs_go_to_the_node_that_hears_an_executor() {
    let store = store();
    let (a, b) = (start_node(&store, "a").await, start_node(&store, "b").await);
    let job = create(&a, json!({})).await;
    let mut to_a = dial(&a, hello("e", 1)).await;
    request(&a, &job).await;
    let first = to_a.trigger().await;
    to_a.send(success_result(&first)).await;
    to_a.ack().await;
    drop(to_a);
    wait_until("A has no executor", async || a.engine.online_executors().is_empty()).await;
    let mut to_b = dial(&b, hello("e", 1)).await;
    request(&a, &job).await;
    let second = to_b.trigger().await;
    assert_eq!(second.attempt, 1);
    assert!(token_of(&first) < token_of(&second), "{first:?} {second:?}");
    to_b.send(success_result(&second)).await;
    assert_eq!(to_b.ack().await.kind(), v1::result_ack::Kind::Stored);
    assert_eq!(a.engine.counters().get(Count::RunsHandedOver), 1);
    request(&a, &job).await;
    assert_eq!(runs(&b).await[0].node, b.engine.token().node, "the job's home has moved");
    a.end().await;
    b.end().await;
}

/// While the lease is not held, nothing is sent and no result is acknowledged.
#[tokio::test]
async fn without_a_lease_nothing_is_sent_and_nothing_acknowledged() {
    let config =
        EngineConfig { lease: Duration::from_secs(2), beat: Duration::from_secs(3600), ..EngineConfig::default() };
    let world = World::start_on(store(), config).await;
    let job = create(&world, json!({"overlap": {"policy": "allow"}})).await;
    let mut line = dial(&world, hello("e", 1)).await;
    request(&world, &job).await;
    let trigger = line.trigger().await;
    wait_until("the lease ends", async || !world.engine.readiness().lease_held).await;
    line.send(success_result(&trigger)).await;
    request(&world, &job).await;
    let sent = line.receive(|body| matches!(body, Down::Triggers(_) | Down::ResultAcks(_)).then_some(body));
    let sent = tokio::time::timeout(Duration::from_secs(2), sent).await;
    assert!(sent.is_err(), "{sent:?}");
    assert!(runs(&world).await.iter().all(|run| !run.status.is_terminal()));
    world.die().await;
}

/// Only its executor ends an attempt; a report from another executor is answered and counted, and changes nothing.
#[tokio::test]
async fn a_result_from_an_executor_without_the_run_is_refused() {
    let world = World::start().await;
    let job = create(&world, json!({})).await;
    let mut mine = dial(&world, hello("mine", 1)).await;
    request(&world, &job).await;
    let trigger = mine.trigger().await;
    let mut other = dial(&world, hello("other", 2)).await;
    other.send(success_result(&trigger)).await;
    assert_eq!(other.ack().await.kind(), v1::result_ack::Kind::NoSuchRun);
    assert_eq!(runs(&world).await[0].status, RunStatus::Pending);
    assert_eq!(world.engine.counters().get(Count::ResultsRefused), 1);
    mine.send(success_result(&trigger)).await;
    assert_eq!(mine.ack().await.kind(), v1::result_ack::Kind::Stored);
    // The run has its verdict: a second report is a duplicate; an attempt that never began is unknown.
    mine.send(success_result(&trigger)).await;
    assert_eq!(mine.ack().await.kind(), v1::result_ack::Kind::Duplicate);
    mine.send(success_result(&v1::Trigger { attempt: 7, ..trigger })).await;
    assert_eq!(mine.ack().await.kind(), v1::result_ack::Kind::NoSuchRun);
    assert_eq!(world.engine.counters().get(Count::ResultsUnknown), 1);
    world.end().await;
}

/// The mark is durable just before the instant, so that the run starts on time. The run never starts before its
/// instant.
#[tokio::test]
async fn at_most_once_is_marked_just_before_it_is_due() {
    let world = World::start().await;
    let mut line = dial(&world, hello("e", 1)).await;
    let due_at = world.store.now().await.unwrap().ceil_second() + Duration::from_secs(4);
    create(&world, json!({"delivery": "at_most_once", "schedule": {"at": due_at.to_string()}})).await;
    let trigger = line.trigger().await;
    let came_at = world.store.now().await.unwrap();
    assert_eq!(trigger.due_at_ms, due_at.as_millis());
    assert!(came_at >= due_at, "it came {:?} early", due_at.since(came_at));
    let marked_at = runs(&world).await[0].marked_at.expect("a mark");
    let ahead = due_at.since(marked_at);
    assert!(!ahead.is_zero() && ahead <= Duration::from_millis(200), "marked {ahead:?} before");
    line.send(success_result(&trigger)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    world.end().await;
}

/// A refusal removes the mark, and the run is sent to another executor as the same attempt, because it never began.
#[tokio::test]
async fn a_refused_run_is_not_marked_any_more() {
    let world = World::start().await;
    let job = create(&world, json!({"delivery": "at_most_once", "overlap": {"policy": "allow"}})).await;
    let mut line = dial(&world, hello("e", 1)).await;
    request(&world, &job).await;
    let refused = line.trigger().await;
    let first_mark = runs(&world).await[0].marked_at.expect("a mark");
    let full = v1::Reply {
        kind: v1::reply::Kind::Refused.into(),
        run_id: refused.run_id,
        attempt: refused.attempt,
        refused: v1::RefusedWhy::Full.into(),
        fence_n: refused.fence_n,
        ..v1::Reply::default()
    };
    let refusal = || Up::Replies(v1::Replies { replies: vec![full] });
    line.send(refusal()).await;
    let again = line.trigger().await;
    assert_eq!((again.run_id, again.attempt), (refused.run_id, 1));
    assert!(token_of(&refused) < token_of(&again));
    let second_mark = runs(&world).await[0].marked_at.expect("a new mark");
    assert!(second_mark > first_mark);
    // A late refusal of the first trigger does not apply to the second.
    line.send(refusal()).await;
    request(&world, &job).await;
    line.trigger().await;
    let first = runs(&world).await.into_iter().find(|run| run.id.get() == again.run_id).expect("the first run");
    assert_eq!(first.marked_at, Some(second_mark), "it is not sent again");
    line.send(success_result(&again)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    world.end().await;
}

/// A node that was paused past its lease: executors refuse the triggers it still sends, and they are counted.
#[tokio::test]
async fn triggers_of_a_fenced_lease_are_refused_and_counted() {
    let world = World::start().await;
    let job = create(&world, json!({})).await;
    let mut line = dial(&world, hello("e", 1)).await;
    request(&world, &job).await;
    let trigger = line.trigger().await;
    let fenced = v1::Reply {
        kind: v1::reply::Kind::Refused.into(),
        run_id: trigger.run_id,
        attempt: trigger.attempt,
        refused: v1::RefusedWhy::Fenced.into(),
        fence_n: trigger.fence_n,
        ..v1::Reply::default()
    };
    line.send(Up::Replies(v1::Replies { replies: vec![fenced] })).await;
    wait_until("it is counted", async || world.engine.counters().get(Count::TriggersFenced) == 1).await;
    assert_eq!(runs(&world).await[0].attempt, 1);
    world.end().await;
}
