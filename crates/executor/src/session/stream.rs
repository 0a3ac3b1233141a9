//! One session: hello, welcome, and then the messages of both sides.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_core::time::format_duration;
use rondel_proto::v1::executor_message::Body as FromExecutor;
use rondel_proto::v1::gateway_client::GatewayClient;
use rondel_proto::v1::server_message::Body as FromServer;
use rondel_proto::v1::{ExecutorMessage, Goodbye, Heartbeat, ServerMessage, Welcome};
use rondel_proto::{PROTOCOL, Refusal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use super::{ServerUrl, dial_named};
use crate::engine::{Engine, Link};
use crate::host;
use rondel_core::error_chain::chain;

/// How many messages may wait between this task and the connection. Further ones wait in the link, where they are
/// batched.
const CHANNEL_MAX: usize = 2;

/// The largest message that is accepted, in bytes. It is large because triggers carry their params.
const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The shortest time between two rounds: under load, messages become larger instead of more frequent.
const ROUND_PERIOD: Duration = Duration::from_millis(1);

/// The period of heartbeats if a welcome does not set it.
const HEARTBEAT_DEFAULT: Duration = Duration::from_secs(2);

/// How long the goodbye may take.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);

/// Why a session ended.
#[derive(Debug)]
pub(super) enum SessionEnd {
    /// The executor shuts down.
    Stopped,
    /// This URL leads to a node that is connected by another URL.
    Alias(i64),
    /// The server refused this executor.
    Refused(String),
    /// The server reports that this executor is connected already: by another URL of the same server, or by a broken
    /// stream that the server has not given up.
    AlreadyConnected(String),
    /// No session was opened.
    Unreachable(String),
    /// An open session was lost.
    Lost(String),
}

pub(super) async fn session(engine: &Arc<Engine>, url: &ServerUrl) -> SessionEnd {
    let stop = engine.setup.lifecycle.soft.clone();
    let open_result = tokio::select! {
        () = stop.cancelled() => return SessionEnd::Stopped,
        open_result = open_session(engine, url) => open_result,
    };
    let OpenedSession { sender, mut inbound, welcome, hello_at } = match open_result {
        Ok(opened_session) => opened_session,
        Err(end) => return end,
    };
    let Some(link) = begin_session(engine, url, &welcome, hello_at) else { return SessionEnd::Alias(welcome.node_id) };
    let _link_guard = LinkGuard { engine, link: &link };
    let heartbeat = heartbeat_period(&welcome);
    let end = tokio::select! {
        () = stop.cancelled() => SessionEnd::Stopped,
        end = read_messages(engine, &link, &mut inbound, heartbeat) => end,
        end = write_messages(engine, &link, &sender, heartbeat) => end,
    };
    if matches!(end, SessionEnd::Stopped) {
        send_goodbye(engine, &link, sender, inbound).await;
    }
    end
}

struct OpenedSession {
    sender: mpsc::Sender<ExecutorMessage>,
    inbound: Streaming<ServerMessage>,
    welcome: Welcome,
    /// The uptime at which the hello was sent.
    hello_at: Duration,
}

async fn open_session(engine: &Arc<Engine>, url: &ServerUrl) -> Result<OpenedSession, SessionEnd> {
    let timing = &engine.setup.timing;
    let endpoint = engine.servers.endpoint(url, timing).map_err(|error| SessionEnd::Unreachable(chain(&error)))?;
    let connection = timeout(timing.connect_timeout, endpoint.connect()).await;
    let channel = connection
        .map_err(|_| {
            SessionEnd::Unreachable(format!("no connection within {}", format_duration(timing.connect_timeout)))
        })?
        .map_err(|error| SessionEnd::Unreachable(transport_message(chain(&error))))?;
    let (sender, receiver) = mpsc::channel(CHANNEL_MAX);
    let mut request = Request::new(ReceiverStream::new(receiver));
    if let Some(token) = engine.servers.token.header().await.map_err(SessionEnd::Unreachable)? {
        request.metadata_mut().insert("authorization", token);
    }
    let hello_at = host::uptime();
    // The hello must be in the stream before the call: the server may send nothing until it has the hello.
    let hello = ExecutorMessage { body: Some(FromExecutor::Hello(engine.hello())) };
    sender.try_send(hello).map_err(|error| SessionEnd::Unreachable(error.to_string()))?;
    let mut client = GatewayClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let read_welcome = async {
        let mut inbound = client.session(request).await?.into_inner();
        let first_message = inbound.message().await?;
        Ok::<_, Status>((inbound, first_message))
    };
    let welcome_result = timeout(timing.connect_timeout, read_welcome).await;
    let (inbound, first_message) =
        match welcome_result.map_err(|_| SessionEnd::Unreachable(no_welcome_message(timing.connect_timeout)))? {
            Ok(stream_and_message) => stream_and_message,
            Err(status) if Refusal::of(&status) == Some(Refusal::Token) => {
                return Err(SessionEnd::Refused(refused_token_message(engine, &status).await));
            }
            Err(status) if status.message().contains("h2 protocol error") => {
                return Err(SessionEnd::Unreachable(no_http2_message(url, &status)));
            }
            Err(status) => return Err(end_from_status(&status)),
        };
    match first_message.and_then(|message| message.body) {
        Some(FromServer::Welcome(welcome)) if welcome.protocol < PROTOCOL => {
            Err(SessionEnd::Refused(too_old_message(&welcome)))
        }
        Some(FromServer::Welcome(welcome)) => Ok(OpenedSession { sender, inbound, welcome, hello_at }),
        _ => Err(SessionEnd::Unreachable("the server began without a welcome".to_owned())),
    }
}

/// The reason for refusing a server with an older protocol: it would not understand this executor's replies, and would
/// consider the executor silent.
fn too_old_message(welcome: &Welcome) -> String {
    format!(
        "node {} (version {}) speaks version {} of the protocol, older than this executor's {PROTOCOL}; update the server",
        welcome.node_name, welcome.server_version, welcome.protocol
    )
}

/// Describes the refused token, and how to get a good one.
async fn refused_token_message(engine: &Engine, status: &Status) -> String {
    let (identity, refused_token) = (&engine.identity, engine.servers.token.describe_refused().await);
    format!(
        "{}; {refused_token}. rondel token list --everybody lists the valid ones, rondel token create NAME --kind executor \
         --role executor:{}/{} creates one",
        status_line(status),
        identity.namespace,
        identity.app
    )
}

fn no_welcome_message(wait: Duration) -> String {
    format!("it accepted the connection but did not answer within {}; is a Rondel server there?", format_duration(wait))
}

/// Describes an answer that is not HTTP/2, such as that of a port that speaks TLS to a call without TLS.
fn no_http2_message(url: &ServerUrl, status: &Status) -> String {
    let line = status_line(status);
    if url.is_tls() {
        return line;
    }
    format!("{line}; if the server speaks TLS there, use https:// instead of http://")
}

/// The transport's message without its own prefix, with a hint if the message alone is unclear.
fn transport_message(line: String) -> String {
    let line = line.strip_prefix("transport error: ").map(str::to_owned).unwrap_or(line);
    if line.contains("UnknownIssuer") {
        return format!("{line}; ca_file names a file with the certificate of the authority that it is from");
    }
    if line.contains("InvalidContentType") {
        return format!("{line}; the server does not speak TLS there: use http:// instead of https://");
    }
    line
}

fn end_from_status(status: &Status) -> SessionEnd {
    let reason = status_line(status);
    match status.code() {
        Code::Unauthenticated
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::InvalidArgument
        | Code::NotFound
        | Code::Unimplemented => SessionEnd::Refused(reason),
        Code::AlreadyExists => SessionEnd::AlreadyConnected(reason),
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::OutOfRange
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => SessionEnd::Unreachable(reason),
    }
}

fn status_line(status: &Status) -> String {
    if status.message().is_empty() { status.code().description().to_owned() } else { status.message().to_owned() }
}

fn begin_session(engine: &Arc<Engine>, url: &ServerUrl, welcome: &Welcome, hello_at: Duration) -> Option<Arc<Link>> {
    engine.setup.clock.observe(Timestamp::from_millis(welcome.now_at_ms));
    let link = engine.open_link(welcome, hello_at)?;
    tracing::info!(server = %url, node = %welcome.node_name, version = %welcome.server_version, "connected");
    dial_named(engine, &welcome.servers);
    Some(link)
}

/// Removes the link, however the session ends.
struct LinkGuard<'a> {
    engine: &'a Engine,
    link: &'a Link,
}

impl Drop for LinkGuard<'_> {
    fn drop(&mut self) {
        self.engine.close_link(self.link);
    }
}

fn heartbeat_period(welcome: &Welcome) -> Duration {
    if welcome.heartbeat_ms == 0 { HEARTBEAT_DEFAULT } else { Duration::from_millis(welcome.heartbeat_ms.into()) }
}

/// Reads messages. A server answers every heartbeat, so a stream without messages for several periods is dead.
async fn read_messages(
    engine: &Arc<Engine>,
    link: &Link,
    inbound: &mut Streaming<ServerMessage>,
    heartbeat: Duration,
) -> SessionEnd {
    let idle_timeout = heartbeat * 3 + Duration::from_secs(1);
    loop {
        match timeout(idle_timeout, inbound.message()).await {
            Err(_) => return SessionEnd::Lost("the server is silent".to_owned()),
            Ok(Err(status)) => return SessionEnd::Lost(status_line(&status)),
            Ok(Ok(None)) => return SessionEnd::Lost("the server closed the session".to_owned()),
            Ok(Ok(Some(message))) => {
                if !engine.record_heard(link) {
                    return SessionEnd::Lost(
                        "no message from the server for too long; messages that arrived meanwhile do not count"
                            .to_owned(),
                    );
                }
                if let Some(body) = message.body {
                    handle_message(engine, link, body);
                }
            }
        }
    }
}

fn handle_message(engine: &Arc<Engine>, link: &Link, body: FromServer) {
    match body {
        FromServer::HeartbeatReply(reply) => engine.setup.clock.observe(Timestamp::from_millis(reply.now_at_ms)),
        FromServer::Triggers(triggers) => engine.offer(link, triggers),
        FromServer::Cancels(cancels) => engine.cancel(&cancels.cancels),
        FromServer::ResultAcks(acks) => engine.record_acks(&acks.acks),
        FromServer::LogAcks(acks) => engine.record_log_acks(&acks.acks),
        FromServer::Fence(fence) => engine.fence(link, &fence),
        FromServer::Probes(probes) => engine.probe(link, probes),
        FromServer::DeclarationProblems(problem_list) => engine.log_declaration_problems(&problem_list.problems),
        FromServer::PumpOrders(orders) => engine.pump_orders(orders),
        FromServer::ScriptReply(reply) => engine.setup.script_requests.answer(reply),
        FromServer::Drain(_) => {
            tracing::info!("a server is shutting down; results are still sent to it until it has ended")
        }
        FromServer::Welcome(welcome) => dial_named(engine, &welcome.servers),
    }
}

async fn write_messages(
    engine: &Engine,
    link: &Link,
    sender: &mpsc::Sender<ExecutorMessage>,
    heartbeat: Duration,
) -> SessionEnd {
    let mut beat_timer = interval(heartbeat);
    beat_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sequence = 0;
    let mut written_at = Instant::now();
    loop {
        tokio::select! {
            biased;
            _ = beat_timer.tick() => {
                sequence += 1;
                if sender.send(beat_message(engine, sequence)).await.is_err() {
                    return connection_closed();
                }
            }
            () = link.wait_until_ready() => {
                // Messages that other tasks are about to send join this round.
                if written_at.elapsed() < ROUND_PERIOD {
                    sleep(ROUND_PERIOD).await;
                } else {
                    tokio::task::yield_now().await;
                }
                written_at = Instant::now();
                if !write_round(link, sender).await {
                    return connection_closed();
                }
            }
        }
    }
}

fn connection_closed() -> SessionEnd {
    SessionEnd::Lost("the connection is closed".to_owned())
}

async fn write_round(link: &Link, sender: &mpsc::Sender<ExecutorMessage>) -> bool {
    for message in link.take() {
        let has_results = matches!(message.body, Some(FromExecutor::Results(_)));
        if sender.send(message).await.is_err() {
            return false;
        }
        if has_results {
            rondel_failpoint::pass("executor.reported");
        }
    }
    true
}

fn beat_message(engine: &Engine, sequence: i64) -> ExecutorMessage {
    let (running, queued) = engine.load();
    let beat = Heartbeat { running, queued, sequence, cpu_load: host::cpu_load(), memory_bytes: host::memory_bytes() };
    ExecutorMessage { body: Some(FromExecutor::Heartbeat(beat)) }
}

/// Writes the messages that still wait and, if the executor is settled, a goodbye. Then closes this side, and waits for
/// the server to close the other.
async fn send_goodbye(
    engine: &Engine,
    link: &Link,
    sender: mpsc::Sender<ExecutorMessage>,
    mut inbound: Streaming<ServerMessage>,
) {
    let goodbye = async {
        while !link.is_empty() && write_round(link, &sender).await {}
        if engine.is_settled() {
            let message = ExecutorMessage { body: Some(FromExecutor::Goodbye(Goodbye {})) };
            // If the connection is gone, the server does not get the goodbye and waits for this executor.
            sender.send(message).await.ok();
        }
        drop(sender);
        while let Ok(Some(_)) = inbound.message().await {}
    };
    if timeout(GOODBYE_TIMEOUT, goodbye).await.is_err() {
        tracing::debug!("a server did not close the session in time");
    }
}
