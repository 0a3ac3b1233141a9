//! The executors' door, over real gRPC on port 0, with the store in memory: who is let in, and what the wire promises.

#![cfg(test)]

use std::sync::Arc;
use std::time::Duration;

use rondel_admin::auth::{Token, add_admin_token};
use rondel_admin::{Engine, EngineConfig, Lifecycle};
use rondel_core::{AppId, JobSpec, NamespaceId, RunStatus, Timestamp};
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body as Up;
use rondel_proto::v1::gateway_client::GatewayClient;
use rondel_proto::v1::server_message::Body as Down;
use rondel_store::ledger::RunQuery;
use rondel_store::{Ledger as _, MemStore, Store};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Status, Streaming};

const NAMESPACE: NamespaceId = NamespaceId::new(1);
const LIMIT: Duration = Duration::from_secs(20);

/// A running engine with its door open, and a token for it.
struct World {
    engine: Engine,
    store: Arc<MemStore>,
    lifecycle: Lifecycle,
    url: String,
    token: Token,
}

impl World {
    async fn start() -> Self {
        let started = tokio::time::Instant::now();
        let clock = move || Timestamp::from_secs(1_800_000_000) + started.elapsed();
        let store = Arc::new(MemStore::new(Arc::new(clock)));
        let lifecycle = Lifecycle::new();
        let as_store: Arc<dyn Store> = Arc::clone(&store) as Arc<dyn Store>;
        let engine = Engine::start(as_store, EngineConfig::default(), &lifecycle).await.unwrap();
        let token = Token::generate();
        add_admin_token(engine.store(), engine.new_id(), &token, engine.now()).await.unwrap();
        engine.store().ensure_app(AppId::new(7), NAMESPACE, "files", engine.now()).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = lifecycle.hard.clone();
        let server = Server::builder()
            .add_service(engine.gateway())
            .serve_with_incoming_shutdown(TcpListenerStream::new(listener), async move { stop.cancelled().await });
        lifecycle.spawn("port", rondel_admin::Until::Hard, async move { server.await.unwrap() });
        Self { engine, store, lifecycle, url, token }
    }

    async fn dial(&self, token: Option<&Token>, hello: v1::Hello) -> Result<Line, Status> {
        let mut client = GatewayClient::<Channel>::connect(self.url.clone()).await.unwrap();
        let (up, messages) = mpsc::channel(64);
        up.send(v1::ExecutorMessage { body: Some(Up::Hello(hello)) }).await.unwrap();
        let mut request = Request::new(ReceiverStream::new(messages));
        if let Some(token) = token {
            let value = format!("Bearer {}", token.reveal()).parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        let down = client.session(request).await?.into_inner();
        Ok(Line { up, down })
    }

    async fn end(self) {
        self.engine.drain(Duration::from_secs(1)).await;
        tokio::time::timeout(LIMIT, self.lifecycle.wait()).await.unwrap();
        assert!(!self.lifecycle.has_failed());
    }
}

/// An executor's stream.
struct Line {
    up: mpsc::Sender<v1::ExecutorMessage>,
    down: Streaming<v1::ServerMessage>,
}

impl Line {
    async fn say(&self, body: Up) {
        self.up.send(v1::ExecutorMessage { body: Some(body) }).await.unwrap();
    }

    /// The next message that `pick` wants.
    async fn hear<T>(&mut self, pick: impl Fn(Down) -> Option<T>) -> T {
        let next = async {
            loop {
                let message = self.down.message().await.unwrap().expect("the stream goes on");
                if let Some(found) = message.body.and_then(&pick) {
                    return found;
                }
            }
        };
        tokio::time::timeout(LIMIT, next).await.unwrap()
    }

    async fn trigger(&mut self) -> v1::Trigger {
        self.hear(|body| match body {
            Down::Triggers(triggers) => triggers.triggers.into_iter().next(),
            _ => None,
        })
        .await
    }

    async fn ack(&mut self) -> v1::ResultAck {
        self.hear(|body| match body {
            Down::ResultAcks(acks) => acks.acks.into_iter().next(),
            _ => None,
        })
        .await
    }
}

fn hello(name: &str, incarnation: i64) -> v1::Hello {
    v1::Hello {
        namespace: "default".to_owned(),
        app: "files".to_owned(),
        name: name.to_owned(),
        incarnation,
        slots: 4,
        handlers: vec!["h".to_owned()],
        ..v1::Hello::default()
    }
}

fn succeeded(trigger: &v1::Trigger) -> Up {
    let result = v1::Result {
        run_id: trigger.run_id,
        attempt: trigger.attempt,
        status: v1::result::Status::Succeeded.into(),
        job_id: trigger.job_id,
        ..v1::Result::default()
    };
    Up::Results(v1::Results { results: vec![result] })
}

async fn refusal(world: &World, token: Option<&Token>, hello: v1::Hello) -> (Code, String) {
    match world.dial(token, hello).await {
        Ok(_) => (Code::Ok, String::new()),
        Err(status) => (status.code(), status.message().to_owned()),
    }
}

#[tokio::test]
async fn who_may_not_come_in_is_told_why() {
    let world = World::start().await;
    let token = Some(&world.token);
    let (code, _) = refusal(&world, None, hello("a", 1)).await;
    assert_eq!(code, Code::Unauthenticated);
    let (code, _) = refusal(&world, Some(&Token::generate()), hello("a", 1)).await;
    assert_eq!(code, Code::Unauthenticated);
    let unknown = v1::Hello { app: "nothing".to_owned(), ..hello("a", 1) };
    let (code, message) = refusal(&world, token, unknown).await;
    assert_eq!(code, Code::FailedPrecondition);
    assert!(message.contains("\"nothing\""), "{message}");
    for (bad, field) in [
        (v1::Hello { slots: 0, ..hello("a", 1) }, "slots"),
        (v1::Hello { incarnation: 0, ..hello("a", 1) }, "incarnation"),
        (hello("<script>", 1), "name"),
    ] {
        let (code, message) = refusal(&world, token, bad).await;
        assert_eq!(code, Code::InvalidArgument);
        assert!(message.starts_with(field), "{message}");
    }
    world.end().await;
}

#[tokio::test]
async fn two_executors_that_claim_one_incarnation_are_refused() {
    let world = World::start().await;
    let mut first = world.dial(Some(&world.token), hello("a", 42)).await.unwrap();
    first.hear(|body| matches!(body, Down::Welcome(_)).then_some(())).await;
    for name in ["a", "b"] {
        let (code, message) = refusal(&world, Some(&world.token), hello(name, 42)).await;
        assert_eq!(code, Code::AlreadyExists, "{message}");
    }
    // The first one is left in peace.
    first.say(Up::Heartbeat(v1::Heartbeat { sequence: 9, ..v1::Heartbeat::default() })).await;
    let sequence = first.hear(|body| match body {
        Down::HeartbeatReply(reply) => Some(reply.sequence),
        _ => None,
    });
    assert_eq!(sequence.await, 9);
    world.end().await;
}

async fn create(world: &World, more: serde_json::Value) -> rondel_store::catalog::JobRecord {
    let mut spec = serde_json::json!({"name": "j", "app": "files", "handler": "h"});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let spec: JobSpec = serde_json::from_value(spec).unwrap();
    world.engine.create_job(NAMESPACE, spec, "test").await.unwrap()
}

async fn request(world: &World, job: &rondel_store::catalog::JobRecord) {
    let request = rondel_admin::jobs::RunRequest { params: None, trigger: rondel_core::Trigger::Api, parent: None };
    world.engine.request_run(job, request).await.unwrap();
}

async fn runs(world: &World) -> Vec<rondel_core::Run> {
    world.store.list_runs(NAMESPACE, &RunQuery { limit: 100, ..RunQuery::default() }).await.unwrap()
}

/// A result is durable before it is acknowledged; the same result again is a duplicate; one of nobody's run is none.
#[tokio::test]
async fn results_are_durable_before_they_are_acknowledged_and_may_come_twice() {
    let world = World::start().await;
    let job = create(&world, serde_json::json!({})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    request(&world, &job).await;
    let trigger = line.trigger().await;
    line.say(succeeded(&trigger)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    assert_eq!(runs(&world).await[0].status, RunStatus::Succeeded);
    line.say(succeeded(&trigger)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Duplicate);
    line.say(succeeded(&v1::Trigger { run_id: 5, ..trigger })).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::NoSuchRun);
    world.end().await;
}

/// A stream that breaks is not a lost executor: what it still holds goes on, what it never got is another attempt.
#[tokio::test]
async fn a_new_stream_says_what_is_held_and_the_rest_is_sent_again() {
    let world = World::start().await;
    let job = create(&world, serde_json::json!({"overlap": {"policy": "allow"}})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    request(&world, &job).await;
    let held = line.trigger().await;
    request(&world, &job).await;
    let lost = line.trigger().await;
    drop(line);
    tokio::time::timeout(LIMIT, async {
        while !world.engine.online_executors().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    let report = vec![v1::RunRef { run_id: held.run_id, attempt: held.attempt }];
    let mut line = world.dial(Some(&world.token), v1::Hello { held: report, ..hello("a", 1) }).await.unwrap();
    let again = line.trigger().await;
    assert_eq!((again.run_id, again.attempt), (lost.run_id, 2));
    line.say(succeeded(&held)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    line.say(succeeded(&again)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    assert!(runs(&world).await.iter().all(|run| run.status == RunStatus::Succeeded));
    world.end().await;
}

/// A successor that proves its predecessor settles the predecessor's runs at once, without thirty seconds of silence.
#[tokio::test]
async fn a_successor_brings_the_journal_and_the_rest_is_known_to_be_dead() {
    let world = World::start().await;
    let job = create(&world, serde_json::json!({"overlap": {"policy": "allow"}})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    request(&world, &job).await;
    let journaled = line.trigger().await;
    request(&world, &job).await;
    let died = line.trigger().await;
    drop(line);
    let finished = vec![v1::RunRef { run_id: journaled.run_id, attempt: journaled.attempt }];
    let successor = v1::Hello { predecessor: 1, finished, ..hello("a", 2) };
    let mut line = world.dial(Some(&world.token), successor).await.unwrap();
    line.say(succeeded(&journaled)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    let again = line.trigger().await;
    assert_eq!((again.run_id, again.attempt), (died.run_id, 2));
    let attempts = world.store.attempts(rondel_core::RunId::new(died.run_id)).await.unwrap();
    assert_eq!(attempts.len(), 1);
    world.end().await;
}
