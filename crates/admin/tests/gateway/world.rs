//! Engines that serve real gRPC on port 0, with one store in memory; and hand-written executors.

use std::sync::Arc;
use std::time::Duration;

use rondel_admin::auth::{Token, add_admin_token};
use rondel_admin::jobs;
use rondel_admin::{Engine, EngineConfig, Lifecycle};
use rondel_core::{AppId, JobSpec, NamespaceId, Timestamp};
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body as Up;
use rondel_proto::v1::gateway_client::GatewayClient;
use rondel_proto::v1::server_message::Body as Down;
use rondel_store::ledger::RunQuery;
use rondel_store::{MemStore, Runs as _, Store};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Channel, Server};
use tonic::{Request, Status, Streaming};

pub(crate) const NAMESPACE: NamespaceId = NamespaceId::new(1);
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// A store that uses the test's clock.
pub(crate) fn store() -> Arc<MemStore> {
    let started = tokio::time::Instant::now();
    let clock = move || Timestamp::from_secs(1_800_000_000) + started.elapsed();
    Arc::new(MemStore::new(Arc::new(clock)))
}

/// A running engine that serves executors, and a token for it.
pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) store: Arc<MemStore>,
    lifecycle: Lifecycle,
    url: String,
    pub(crate) token: Token,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::start_on(store(), EngineConfig::default()).await
    }

    /// Starts one node on this store.
    pub(crate) async fn start_on(store: Arc<MemStore>, config: EngineConfig) -> Self {
        let as_store = Arc::clone(&store) as Arc<dyn Store>;
        Self::start_behind(store, as_store, config).await
    }

    /// Starts one node on `as_store`, which delegates to `store`.
    pub(crate) async fn start_behind(store: Arc<MemStore>, as_store: Arc<dyn Store>, config: EngineConfig) -> Self {
        let lifecycle = Lifecycle::new();
        let engine = Engine::start(as_store, config, &lifecycle).await.unwrap();
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

    pub(crate) async fn dial(&self, token: Option<&Token>, hello: v1::Hello) -> Result<Line, Status> {
        let mut client = GatewayClient::<Channel>::connect(self.url.clone()).await.unwrap();
        let (up, messages) = mpsc::channel(64);
        up.send(v1::ExecutorMessage { body: Some(Up::Hello(hello)) }).await.unwrap();
        let mut request = Request::new(ReceiverStream::new(messages));
        if let Some(token) = token {
            let value = format!("Bearer {}", token.reveal()).parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        let down = client.session(request).await?.into_inner();
        Ok(Line { up, down, beats: JoinSet::new() })
    }

    /// Ends the node as kill -9 does: nothing is sent, returned or finished.
    pub(crate) async fn die(self) {
        self.lifecycle.soft.cancel();
        self.lifecycle.hard.cancel();
        tokio::time::timeout(LIMIT, self.lifecycle.wait()).await.unwrap();
    }

    pub(crate) async fn end(self) {
        self.engine.drain(Duration::from_secs(1)).await;
        tokio::time::timeout(LIMIT, self.lifecycle.wait()).await.unwrap();
        assert!(!self.lifecycle.has_failed());
    }
}

/// An executor's stream.
pub(crate) struct Line {
    up: mpsc::Sender<v1::ExecutorMessage>,
    down: Streaming<v1::ServerMessage>,
    /// The task that sends heartbeats; dropped with the line.
    beats: JoinSet<()>,
}

impl Line {
    pub(crate) async fn send(&self, body: Up) {
        self.up.send(v1::ExecutorMessage { body: Some(body) }).await.unwrap();
    }

    /// Closes the executor's side of the stream.
    pub(crate) fn hang_up(&mut self) {
        self.up = mpsc::channel(1).0;
    }

    /// Waits until the server has ended the stream.
    pub(crate) async fn wait_for_end(&mut self) {
        let gone = async { while matches!(self.down.message().await, Ok(Some(_))) {} };
        tokio::time::timeout(LIMIT, gone).await.unwrap();
    }

    /// Waits until the server has ended the stream, and returns the status.
    pub(crate) async fn refusal(&mut self) -> Status {
        let end = async {
            loop {
                match self.down.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return Status::ok("ended without a status"),
                    Err(status) => return status,
                }
            }
        };
        tokio::time::timeout(LIMIT, end).await.unwrap()
    }

    /// Waits until the server has read everything sent so far.
    pub(crate) async fn wait_until_read(&mut self, sequence: i64) {
        self.receive_until_read(sequence).await;
    }

    /// The server's messages until it has read everything sent so far.
    pub(crate) async fn receive_until_read(&mut self, sequence: i64) -> Vec<Down> {
        self.send(Up::Heartbeat(v1::Heartbeat { sequence, ..v1::Heartbeat::default() })).await;
        let mut sent = Vec::new();
        loop {
            let body = self.receive(Some).await;
            if matches!(&body, Down::HeartbeatReply(reply) if reply.sequence == sequence) {
                return sent;
            }
            sent.push(body);
        }
    }

    /// Sends heartbeats until dropped.
    pub(crate) fn beat(mut self) -> Self {
        let up = self.up.downgrade();
        self.beats.spawn(async move {
            let mut period = tokio::time::interval(Duration::from_millis(100));
            loop {
                period.tick().await;
                let Some(up) = up.upgrade() else { return };
                let body = Some(Up::Heartbeat(v1::Heartbeat::default()));
                if up.send(v1::ExecutorMessage { body }).await.is_err() {
                    return;
                }
            }
        });
        self
    }

    /// The next message that `pick` accepts.
    pub(crate) async fn receive<T>(&mut self, pick: impl Fn(Down) -> Option<T>) -> T {
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

    /// The next message, without a time limit. Never returns once the stream has ended.
    pub(crate) async fn receive_forever(&mut self) -> Down {
        loop {
            match self.down.message().await {
                Ok(Some(v1::ServerMessage { body: Some(body) })) => return body,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => std::future::pending().await,
            }
        }
    }

    pub(crate) async fn trigger(&mut self) -> v1::Trigger {
        self.receive(|body| match body {
            Down::Triggers(triggers) => triggers.triggers.into_iter().next(),
            _ => None,
        })
        .await
    }

    pub(crate) async fn ack(&mut self) -> v1::ResultAck {
        self.receive(|body| match body {
            Down::ResultAcks(acks) => acks.acks.into_iter().next(),
            _ => None,
        })
        .await
    }
}

/// The secret in the data directory of this incarnation.
pub(crate) fn secret(incarnation: i64) -> Vec<u8> {
    format!("secret {incarnation}").into_bytes()
}

/// The hello of a process that was started after another one on the same data directory.
pub(crate) fn successor(name: &str, incarnation: i64, predecessor: i64) -> v1::Hello {
    v1::Hello { predecessor, predecessor_secret: secret(predecessor), ..hello(name, incarnation) }
}

pub(crate) fn hello(name: &str, incarnation: i64) -> v1::Hello {
    v1::Hello {
        namespace: "default".to_owned(),
        app: "files".to_owned(),
        name: name.to_owned(),
        incarnation,
        secret: secret(incarnation),
        slots: 4,
        handlers: vec!["h".to_owned()],
        protocol: rondel_proto::PROTOCOL,
        ..v1::Hello::default()
    }
}

pub(crate) fn accepted_reply(trigger: &v1::Trigger) -> Up {
    let (run_id, attempt) = (trigger.run_id, trigger.attempt);
    let reply = v1::Reply { kind: v1::reply::Kind::Accepted.into(), run_id, attempt, ..v1::Reply::default() };
    Up::Replies(v1::Replies { replies: vec![reply] })
}

/// The replies that the executor has accepted the run and that the handler has begun.
pub(crate) fn begun_replies(trigger: &v1::Trigger) -> Up {
    use v1::reply::Kind;
    let (run_id, attempt) = (trigger.run_id, trigger.attempt);
    let reply = |kind: Kind| v1::Reply { kind: kind.into(), run_id, attempt, ..v1::Reply::default() };
    Up::Replies(v1::Replies { replies: vec![reply(Kind::Accepted), reply(Kind::Started)] })
}

pub(crate) fn success_result(trigger: &v1::Trigger) -> Up {
    let result = v1::Result {
        run_id: trigger.run_id,
        attempt: trigger.attempt,
        status: v1::result::Status::Succeeded.into(),
        job_id: trigger.job_id,
        ..v1::Result::default()
    };
    Up::Results(v1::Results { results: vec![result] })
}

pub(crate) async fn create(world: &World, more: serde_json::Value) -> rondel_store::catalog::JobRecord {
    let mut spec = serde_json::json!({"name": "j", "app": "files", "handler": "h"});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let spec: JobSpec = serde_json::from_value(spec).unwrap();
    jobs::create(&world.engine, NAMESPACE, spec, "test").await.unwrap()
}

pub(crate) async fn request(world: &World, job: &rondel_store::catalog::JobRecord) {
    let request = jobs::RunRequest::by(rondel_core::Trigger::Api);
    jobs::request_run(&world.engine, job, request).await.unwrap();
}

pub(crate) async fn runs(world: &World) -> Vec<rondel_core::Run> {
    world.store.list_runs(NAMESPACE, &RunQuery { limit: 100, ..RunQuery::default() }).await.unwrap()
}
