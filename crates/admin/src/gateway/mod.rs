//! The endpoint of executors: one bidirectional gRPC stream per executor and node. The endpoint authenticates the executor, checks the hello,
//! translates messages, and makes no other decision.

mod bounds;
mod hello;
mod log_line;
mod log_readers;
mod log_rights;
mod logs;
mod lost_lines;
mod message_bounds;
mod open_streams;
mod outgoing_stream;
mod proof;
mod registered_stream;
mod scripts;
mod session;
mod session_end;
mod session_rows;
mod welcome;

use std::collections::HashSet;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{StreamExt as _, stream};
use rondel_core::TokenId;
use rondel_core::access::{Grant, Rights, Role};
use rondel_proto::v1::gateway_server::{Gateway, GatewayServer};
use rondel_proto::{Refusal, v1};
use rondel_store::access::TokenKind;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

pub use crate::config::Certificates;
use crate::dispatch::Event;
use crate::identity::tokens;
use crate::lifecycle::{Lifecycle, Until};
use crate::node::Shared;

pub(crate) use bounds::AppRows;
pub use bounds::LABEL_VALUE_LEN_MAX;
pub use log_readers::LogReader;
pub(crate) use log_readers::LogReaders;
pub(crate) use log_rights::SentRuns;
pub(crate) use logs::{LogItem, LogLoop, LogQueue, log_queue};
use open_streams::StreamPlace;
#[cfg(test)]
pub(crate) use outgoing_stream::OutgoingStream;

/// Maximum number of messages queued for one executor.
const OUTGOING_CAPACITY: usize = 1_024;
/// Maximum total size of the results that executors have sent and the dispatcher has not processed, in KiB. Results beyond this total are not
/// acknowledged, so that executors send them again.
const REPORT_KIB_MAX: usize = 64 * 1024;
/// Maximum number of refusals kept in memory, so that each is logged once.
const REFUSAL_COUNT_MAX: usize = 1_000;

/// The gRPC service; the owner of the port serves it.
pub type Service = GatewayServer<GatewayService>;

/// The address of a request's client; the owner of the port puts it into the request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// The names in the client's certificate: stored alongside [`Peer`] if the client sent one.
#[derive(Clone, Debug)]
pub struct PeerNames(pub Vec<String>);

/// A callback that the owner of the port may store alongside [`Peer`]. The gateway calls it once the token of a stream has been verified:
/// from then on the connection counts as authenticated.
#[derive(Clone)]
pub struct OnAuthenticated(pub Arc<dyn Fn(TokenId) + Send + Sync>);

impl std::fmt::Debug for OnAuthenticated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnAuthenticated(…)")
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Accepts the streams of executors.
#[derive(Clone, Debug)]
pub struct GatewayService {
    gateway: Arc<GatewayState>,
}

#[derive(Debug)]
struct GatewayState {
    shared: Arc<Shared>,
    events: mpsc::Sender<Event>,
    logs: LogQueue,
    lifecycle: Lifecycle,
    session_number: AtomicU64,
    /// A permit for each KiB of [`REPORT_KIB_MAX`].
    report_memory: Arc<Semaphore>,
    /// The refusals that have been logged: each is logged once.
    refusals: Mutex<HashSet<String>>,
    hello_rates: bounds::HelloRates,
    open_streams: Arc<open_streams::OpenStreams>,
    session_rows: Arc<session_rows::SessionRows>,
    script_reads: Arc<Semaphore>,
}

impl GatewayService {
    pub(crate) fn new(shared: Arc<Shared>, events: mpsc::Sender<Event>, logs: LogQueue, lifecycle: Lifecycle) -> Self {
        let report_memory = Arc::new(Semaphore::new(REPORT_KIB_MAX));
        let (session_number, refusals) = (AtomicU64::new(0), Mutex::default());
        let gateway = GatewayState {
            shared,
            events,
            logs,
            lifecycle,
            session_number,
            report_memory,
            refusals,
            hello_rates: bounds::HelloRates::default(),
            open_streams: Arc::default(),
            session_rows: Arc::default(),
            script_reads: Arc::new(Semaphore::new(scripts::READ_COUNT_MAX)),
        };
        Self { gateway: Arc::new(gateway) }
    }

    /// The gRPC service, with the limit on the size of its messages.
    #[must_use]
    pub(crate) fn into_service(self) -> Service {
        GatewayServer::new(self).max_decoding_message_size(rondel_proto::MESSAGE_BYTES_MAX)
    }
}

/// The rights with which an executor connects.
#[derive(Clone, Debug)]
pub(crate) struct ExecutorAccess {
    rights: Rights,
    /// Whether the executor may declare jobs.
    may_declare: bool,
    /// The DNS names in the client's certificate, which must name the executor and its app; `None` admits any executor.
    allowed_names: Option<Vec<String>>,
    /// The credential of the stream, checked again while it is open; `None` if no check is needed.
    authorization: Option<String>,
    token: Option<TokenId>,
    /// Whether executors with this access announce no handlers and accept runs of any handler.
    may_take_any_handler: bool,
}

impl ExecutorAccess {
    /// Admits any executor: the caller has verified its identity.
    pub(crate) fn everywhere() -> Self {
        Self {
            rights: Rights::new(vec![Grant::everywhere(Role::Executor)]),
            may_declare: true,
            allowed_names: None,
            authorization: None,
            token: None,
            may_take_any_handler: false,
        }
    }

    /// Admits executors that do not announce handlers: the caller has verified their identity.
    pub(crate) fn any_handler() -> Self {
        Self { may_declare: false, may_take_any_handler: true, ..Self::everywhere() }
    }
}

impl ExecutorAccess {
    /// The access that a token gives, limited to the names in the client's certificate if the setting requires this. Refuses a client without a
    /// required certificate.
    fn new(
        principal: &tokens::Principal,
        certificates: Certificates,
        peer_names: Option<&PeerNames>,
    ) -> Result<Self, Status> {
        if peer_names.is_none() && certificates != Certificates::Ignored {
            return Err(Refusal::Certificate.status("executors need a client certificate here"));
        }
        let names = peer_names.filter(|_| certificates == Certificates::Named).map(|PeerNames(names)| names.clone());
        let (rights, declares) = (principal.rights.clone(), principal.token.declares);
        Ok(Self {
            rights,
            may_declare: declares,
            allowed_names: names,
            authorization: None,
            token: Some(principal.token.id),
            may_take_any_handler: false,
        })
    }
}

impl GatewayService {
    /// Serves an executor's stream of any transport after its token was checked: reads the hello, then returns the
    /// messages to send, starting with the welcome, and the status that ends the stream if a message is rejected.
    pub(crate) async fn open(
        &self,
        mut messages: impl Stream<Item = Result<v1::ExecutorMessage, Status>> + Send + Unpin + 'static,
        (peer, place): (&str, Option<StreamPlace>),
        access: &ExecutorAccess,
    ) -> Result<(mpsc::Receiver<v1::ServerMessage>, oneshot::Receiver<Status>), Status> {
        let gateway = &self.gateway;
        // Streams are numbered on arrival, so that the later stream of an executor wins, even if its session is stored before that of the earlier
        // stream.
        let session_number = gateway.session_number.fetch_add(1, Ordering::Relaxed) + 1;
        let hello = hello::receive(&mut messages).await.map_err(|status| match status.code() {
            Code::InvalidArgument => gateway.refuse(peer, status),
            _ => status,
        })?;
        let label = bounds::executor_label(&hello, peer);
        let admitted =
            hello::check(&gateway.shared, hello, access).await.map_err(|status| gateway.refuse(&label, status))?;
        let (sender, outgoing) = mpsc::channel(OUTGOING_CAPACITY);
        let session = session::Session::open(gateway, admitted, sender, (session_number, access)).await?;
        let (refusal_sender, refusal_receiver) = oneshot::channel();
        let hard_stop = gateway.lifecycle.hard.clone();
        gateway.lifecycle.spawn("session", Until::Done, async move {
            session.run(messages, (refusal_sender, place), hard_stop).await;
        });
        Ok((outgoing, refusal_receiver))
    }
}

impl GatewayState {
    /// Counts a stream of an executor, or rejects it.
    fn admit_stream(&self, principal: &tokens::Principal, peer: Option<Peer>) -> Result<StreamPlace, Status> {
        let (token, address) = (&principal.token, peer.map(|Peer(address)| address));
        self.open_streams.admit(token.id, address, &self.shared.config).map_err(|refused| {
            let client = match address {
                Some(address) => format!("token {} at {address}", token.id),
                None => format!("token {}", token.id),
            };
            self.shared.metrics.limits.record_reached(refused.limit, &client);
            refused.status()
        })
    }

    /// Logs a refusal once for each executor and reason. Returns its status.
    fn refuse(&self, who: &str, status: Status) -> Status {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if refusals.len() >= REFUSAL_COUNT_MAX {
            refusals.clear();
        }
        if refusals.insert(format!("{who}: {}", status.message())) {
            tracing::warn!(executor = who, reason = status.message(), "refused an executor");
        }
        status
    }
}

#[tonic::async_trait]
impl Gateway for GatewayService {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<v1::ServerMessage, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<v1::ExecutorMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let gateway = &self.gateway;
        let peer = request.extensions().get::<Peer>().map_or_else(|| "unknown address".to_owned(), ToString::to_string);
        if request.metadata().get_all("authorization").iter().count() > 1 {
            return Err(
                gateway.refuse(&peer, Status::invalid_argument("authorization was sent more than once; send it once"))
            );
        }
        let header = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        let now = gateway.shared.clock.now();
        let client = request.extensions().get::<Peer>().map(|Peer(address)| *address);
        let store = gateway.shared.store.as_ref();
        let token = gateway.shared.lookups.authenticate_bearer(store, (header, client), now).await.map_err(|error| {
            if let Some(count) = gateway.shared.log_limit.count("token check", 0) {
                tracing::warn!(error = %rondel_core::error_chain::chain(&error), count, "cannot check an executor's token");
            }
            Status::unavailable("the server cannot check tokens now")
        })?;
        let Some(principal) = token else {
            return Err(
                gateway.refuse(&peer, Refusal::Token.status("no token, or one that is unknown, expired or revoked"))
            );
        };
        if principal.token.kind == TokenKind::Xxl {
            let words =
                "this token is only for executors of XXL-JOB: create one with rondel token create --kind executor";
            return Err(gateway.refuse(&peer, Status::permission_denied(words)));
        }
        gateway.hello_rates.admit(principal.token.id, now)?;
        let place = gateway.admit_stream(&principal, request.extensions().get::<Peer>().copied())?;
        let peer_names = request.extensions().get::<PeerNames>();
        let access = ExecutorAccess::new(&principal, gateway.shared.config.executor_certificates, peer_names);
        let access = access.map_err(|status| gateway.refuse(&peer, status))?;
        if let Some(OnAuthenticated(report)) = request.extensions().get::<OnAuthenticated>() {
            report(principal.token.id);
        }
        let access = ExecutorAccess { authorization: header.map(str::to_owned), ..access };
        let (outgoing, refusal_receiver) = self.open(request.into_inner(), (&peer, Some(place)), &access).await?;
        let refusal_receiver = stream::once(refusal_receiver).filter_map(async |refused| refused.ok().map(Err));
        Ok(Response::new(Box::pin(ReceiverStream::new(outgoing).map(Ok).chain(refusal_receiver))))
    }
}
