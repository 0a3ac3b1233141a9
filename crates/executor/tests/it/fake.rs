//! A server that a test controls, and that records what it receives.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use rondel_proto::v1::executor_message::Body;
use rondel_proto::v1::gateway_server::{Gateway, GatewayServer};
use rondel_proto::v1::reply::Kind;
use rondel_proto::v1::result_ack::Kind as AckKind;
use rondel_proto::v1::server_message::Body as ToExecutor;
use rondel_proto::v1::{
    self, ExecutorMessage, HeartbeatReply, Hello, LogAck, LogAcks, LogLine, Reply, ResultAck, ResultAcks,
    ServerMessage, Trigger, Triggers, Welcome,
};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::LIMIT;

pub(crate) const NODE: i64 = 7;
pub(crate) const EPOCH: i64 = 3;

type Outbound = mpsc::Sender<Result<ServerMessage, Status>>;

pub(crate) struct FakeServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    node_id: i64,
    /// Whether results and logs are acknowledged.
    acks: bool,
    /// Whether heartbeats are answered.
    replies_to_heartbeats: bool,
    refuse: Option<Status>,
    welcome: Welcome,
    authorizations: Vec<String>,
    hellos: Vec<Hello>,
    seen: Vec<Body>,
    sessions: Vec<Outbound>,
    ended_count: usize,
}

impl Default for State {
    fn default() -> Self {
        Self {
            node_id: NODE,
            acks: true,
            replies_to_heartbeats: true,
            refuse: None,
            welcome: Welcome {
                heartbeat_ms: 100,
                silence_ms: 15_000,
                now_at_ms: 1_800_000_000_000,
                protocol: rondel_proto::PROTOCOL,
                ..Welcome::default()
            },
            authorizations: Vec::new(),
            hellos: Vec::new(),
            seen: Vec::new(),
            sessions: Vec::new(),
            ended_count: 0,
        }
    }
}

impl FakeServer {
    pub(crate) async fn start() -> Self {
        Self::start_as(NODE).await
    }

    pub(crate) async fn start_as(node_id: i64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        shared.state.lock().unwrap().node_id = node_id;
        let service = GatewayServer::new(Service(Arc::clone(&shared)));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let server = tonic::transport::Server::builder().add_service(service);
            server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
        });
        Self { address, shared, _tasks: tasks }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn state<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.shared.state.lock().unwrap())
    }

    pub(crate) fn set_acks(&self, acks: bool) {
        self.state(|state| state.acks = acks);
    }

    pub(crate) fn set_heartbeat_replies(&self, replies_to_heartbeats: bool) {
        self.state(|state| state.replies_to_heartbeats = replies_to_heartbeats);
    }

    pub(crate) fn refuse(&self, refuse: Option<Status>) {
        self.state(|state| state.refuse = refuse);
    }

    pub(crate) fn change_welcome(&self, change: impl FnOnce(&mut Welcome)) {
        self.state(|state| change(&mut state.welcome));
    }

    pub(crate) async fn send(&self, body: ToExecutor) {
        let session = self.wait(|state| state.sessions.last().cloned()).await;
        session.send(Ok(ServerMessage { body: Some(body) })).await.unwrap();
    }

    pub(crate) async fn trigger(&self, trigger: Trigger) {
        self.trigger_all(vec![trigger]).await;
    }

    pub(crate) async fn trigger_all(&self, triggers: Vec<Trigger>) {
        let node_id = self.state(|state| state.node_id);
        self.send(ToExecutor::Triggers(Triggers { node_id, node_epoch: EPOCH, triggers })).await;
    }

    /// Breaks every session.
    pub(crate) async fn disconnect(&self) {
        let sessions = self.state(|state| std::mem::take(&mut state.sessions));
        for session in sessions {
            // The session may be gone already.
            drop(session.send(Err(Status::unavailable("broken by the test"))).await);
        }
    }

    async fn wait<T>(&self, mut find: impl FnMut(&mut State) -> Option<T>) -> T {
        let found = async {
            loop {
                if let Some(found) = self.state(&mut find) {
                    return found;
                }
                self.shared.changed.notified().await;
            }
        };
        match tokio::time::timeout(LIMIT, found).await {
            Ok(found) => found,
            Err(_) => panic!("not seen in time; seen: {:#?}", self.seen()),
        }
    }

    pub(crate) fn seen(&self) -> Vec<Body> {
        self.state(|state| state.seen.clone())
    }

    pub(crate) fn forget_seen(&self) {
        self.state(|state| state.seen.clear());
    }

    pub(crate) async fn find<T>(&self, find: impl Fn(&Body) -> Option<T>) -> T {
        self.wait(|state| state.seen.iter().find_map(&find)).await
    }

    /// The hello with this number, from 0.
    pub(crate) async fn hello(&self, number: usize) -> Hello {
        self.wait(|state| state.hellos.get(number).cloned()).await
    }

    pub(crate) fn hello_count(&self) -> usize {
        self.state(|state| state.hellos.len())
    }

    pub(crate) fn authorizations(&self) -> Vec<String> {
        self.state(|state| state.authorizations.clone())
    }

    pub(crate) async fn wait_for_session_end(&self) {
        self.wait(|state| (state.ended_count > 0).then_some(())).await;
    }

    pub(crate) async fn result(&self, run_id: i64) -> v1::Result {
        self.find(|body| match body {
            Body::Results(results) => results.results.iter().find(|result| result.run_id == run_id).cloned(),
            _ => None,
        })
        .await
    }

    pub(crate) async fn wait_for_results(&self, run_id: i64, count: usize) {
        self.wait(|state| (count_results(&state.seen, run_id) >= count).then_some(())).await;
    }

    pub(crate) fn count_results(&self, run_id: i64) -> usize {
        self.state(|state| count_results(&state.seen, run_id))
    }

    pub(crate) async fn reply(&self, run_id: i64, kind: Kind) -> Reply {
        self.find(|body| match body {
            Body::Replies(replies) => {
                replies.replies.iter().find(|reply| reply.run_id == run_id && reply.kind() == kind).copied()
            }
            _ => None,
        })
        .await
    }

    pub(crate) async fn wait_for_replies(&self, run_id: i64, kind: Kind, count: usize) {
        let is_it = |reply: &&Reply| reply.run_id == run_id && reply.kind() == kind;
        let replies = |body: &Body| match body {
            Body::Replies(replies) => replies.replies.iter().filter(is_it).count(),
            _ => 0,
        };
        self.wait(|state| (state.seen.iter().map(replies).sum::<usize>() >= count).then_some(())).await;
    }

    /// The lines of a run's log, each chunk once, in the order of their numbers.
    pub(crate) fn log(&self, run_id: i64) -> Vec<LogLine> {
        let mut chunks = std::collections::BTreeMap::new();
        for body in self.seen() {
            let Body::Logs(logs) = body else { continue };
            for chunk in logs.chunks.into_iter().filter(|chunk| chunk.run_id == run_id) {
                chunks.insert(chunk.sequence, chunk.lines);
            }
        }
        chunks.into_values().flatten().collect()
    }
}

fn count_results(seen: &[Body], run_id: i64) -> usize {
    let results = |body: &Body| match body {
        Body::Results(results) => results.results.iter().filter(|result| result.run_id == run_id).count(),
        _ => 0,
    };
    seen.iter().map(results).sum()
}

struct Service(Arc<Shared>);

type Messages = Pin<Box<dyn Stream<Item = Result<ServerMessage, Status>> + Send>>;

#[tonic::async_trait]
impl Gateway for Service {
    type SessionStream = Messages;

    async fn session(&self, request: Request<Streaming<ExecutorMessage>>) -> Result<Response<Messages>, Status> {
        let authorization = request.metadata().get("authorization").map(|value| value.to_str().unwrap().to_owned());
        let mut inbound = request.into_inner();
        let first = inbound.message().await?.and_then(|message| message.body);
        let Some(Body::Hello(hello)) = first else { return Err(Status::invalid_argument("no hello")) };
        let (outbound, receiver) = mpsc::channel(64);
        self.0.admit(hello, authorization, &outbound)?;
        let shared = Arc::clone(&self.0);
        let listen = receive_messages(inbound, shared, outbound.downgrade());
        drop(outbound);
        // The two directions end together, because polling the outgoing stream also polls the incoming one.
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver).merge(listen))))
    }
}

/// Receives the messages of the executor, and sends only answers. It is a stream without items.
fn receive_messages(
    mut inbound: Streaming<ExecutorMessage>,
    shared: Arc<Shared>,
    outbound: mpsc::WeakSender<Result<ServerMessage, Status>>,
) -> impl Stream<Item = Result<ServerMessage, Status>> {
    let listen = async move {
        while let Ok(Some(message)) = inbound.message().await {
            let Some(body) = message.body else { continue };
            let answers = shared.take(body);
            let Some(outbound) = outbound.upgrade() else { break };
            for answer in answers {
                // Waiting for room in a full channel would be a deadlock, because this same task empties it. A lost
                // answer does no harm.
                drop(outbound.try_send(Ok(answer)));
            }
        }
        shared.end_session();
    };
    futures_util::FutureExt::into_stream(listen).filter_map(|()| None)
}

fn message(body: ToExecutor) -> ServerMessage {
    ServerMessage { body: Some(body) }
}

impl Shared {
    fn admit(&self, hello: Hello, authorization: Option<String>, outbound: &Outbound) -> Result<(), Status> {
        let mut state = self.state.lock().unwrap();
        state.hellos.push(hello);
        state.authorizations.extend(authorization);
        self.changed.notify_waiters();
        self.changed.notify_one();
        if let Some(status) = &state.refuse {
            return Err(status.clone());
        }
        // The welcome is sent first, before anything that the test sends.
        let welcome = Welcome { node_id: state.node_id, node_epoch: EPOCH, ..state.welcome.clone() };
        outbound.try_send(Ok(message(ToExecutor::Welcome(welcome)))).expect("room for the first message");
        state.sessions.push(outbound.clone());
        Ok(())
    }

    fn take(&self, body: Body) -> Vec<ServerMessage> {
        let mut state = self.state.lock().unwrap();
        let answers = state.answers_to(&body);
        state.seen.push(body);
        self.changed.notify_waiters();
        self.changed.notify_one();
        answers
    }

    /// Closes the server's side, after the executor has closed its own.
    fn end_session(&self) {
        let mut state = self.state.lock().unwrap();
        state.ended_count += 1;
        state.sessions.clear();
        self.changed.notify_waiters();
        self.changed.notify_one();
    }
}

impl State {
    fn answers_to(&self, body: &Body) -> Vec<ServerMessage> {
        let ack = |result: &v1::Result| ResultAck {
            run_id: result.run_id,
            attempt: result.attempt,
            kind: AckKind::Stored.into(),
        };
        match body {
            Body::Heartbeat(beat) if self.replies_to_heartbeats => {
                let now_at_ms = self.welcome.now_at_ms;
                vec![message(ToExecutor::HeartbeatReply(HeartbeatReply { sequence: beat.sequence, now_at_ms }))]
            }
            Body::Results(results) if self.acks => {
                let acks = results.results.iter().map(ack).collect();
                vec![message(ToExecutor::ResultAcks(ResultAcks { acks }))]
            }
            Body::Logs(logs) if self.acks => {
                let ack = |chunk: &v1::LogChunk| LogAck {
                    run_id: chunk.run_id,
                    attempt: chunk.attempt,
                    sequence: chunk.sequence,
                };
                vec![message(ToExecutor::LogAcks(LogAcks { acks: logs.chunks.iter().map(ack).collect() }))]
            }
            _ => Vec::new(),
        }
    }
}

/// A trigger of attempt 1 with nothing special.
pub(crate) fn trigger(run_id: i64, handler: &str) -> Trigger {
    Trigger {
        run_id,
        attempt: 1,
        job_id: 1,
        job: "job".to_owned(),
        namespace: "default".to_owned(),
        handler: handler.to_owned(),
        params: "null".to_owned(),
        fire_at_ms: 1_800_000_000_000,
        due_at_ms: 1_800_000_000_000,
        shard_total: 1,
        trigger: "cron".to_owned(),
        ..Trigger::default()
    }
}
