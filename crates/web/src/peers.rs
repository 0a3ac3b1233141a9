//! The open connections by address. A connection is unauthenticated until one of its requests is authenticated. The number of
//! unauthenticated connections per address is limited, and so is the number of all connections together. To make room for a newer
//! connection, the oldest unauthenticated connection without a running request is closed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rondel_admin::{Engine, Limit};
use rondel_core::forwarded::TrustedProxies;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::limits::{CallerKey, HttpLimits, Share, Tally, network_of};

/// Minimum time between log lines about connections that cannot be accepted.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// All connections of a port.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) limits: HttpLimits,
    pub(crate) trusted_proxies: TrustedProxies,
    engine: Option<Engine>,
    connections: Mutex<ConnectionTable>,
    shares_by_caller: Tally<CallerKey>,
    /// Notified when a connection has ended.
    connection_ended: Notify,
    /// When a connection that could not be accepted was last logged.
    logged_at: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    /// The number of the newest connection.
    newest_number: u64,
    /// How many connections are open.
    open_count: usize,
    /// Keyed by address and then by number: of one address, the oldest connection comes first.
    unauthenticated: BTreeMap<IpAddr, BTreeMap<u64, Connection>>,
}

/// The handle of a connection, for its requests.
#[derive(Clone, Debug)]
pub(crate) struct Connection(Arc<ConnectionState>);

#[derive(Debug)]
struct ConnectionState {
    peers: Arc<Peers>,
    number: u64,
    /// The client's address; for IPv6, its network.
    network: IpAddr,
    /// Requests that the server works on: their bodies have arrived, and their answers have not begun.
    busy_count: AtomicUsize,
    /// Requests whose answers have not ended.
    open_request_count: AtomicUsize,
    has_served: AtomicBool,
    /// Requests whose answers are being sent, except for executors' streams.
    answering_count: AtomicUsize,
    /// When the connection last made progress with a request or an answer. The timeouts count from then.
    progressed_at: Mutex<Instant>,
    /// Cancelled when the connection must close to make room.
    eviction: CancellationToken,
    /// The connection's share of its caller's maximum; `None` while the connection is unauthenticated.
    caller_share: Mutex<Option<Share<CallerKey>>>,
}

/// Counts a connection as open until this value is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection(pub(crate) Connection);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let Connection(state) = &self.0;
        let mut connections = state.peers.lock_connections();
        connections.open_count = connections.open_count.saturating_sub(1);
        connections.forget(state.network, state.number);
        state.peers.connection_ended.notify_waiters();
    }
}

impl ConnectionTable {
    fn forget(&mut self, network: IpAddr, number: u64) {
        if let Some(connections_of_network) = self.unauthenticated.get_mut(&network) {
            connections_of_network.remove(&number);
            if connections_of_network.is_empty() {
                self.unauthenticated.remove(&network);
            }
        }
    }

    /// Closes an address's oldest unauthenticated connection on which the server works on no request. Returns `false` if there is none.
    fn evict(&mut self, network: IpAddr) -> bool {
        let unauthenticated_connections = self.unauthenticated.get(&network).into_iter().flat_map(BTreeMap::values);
        let mut idle_connections =
            unauthenticated_connections.filter(|connection| connection.0.busy_count.load(Ordering::Relaxed) == 0);
        let Some(oldest_idle) = idle_connections.next().cloned() else { return false };
        oldest_idle.0.eviction.cancel();
        self.forget(network, oldest_idle.0.number);
        true
    }

    /// The address with the most unauthenticated connections. Trusted proxies are chosen only if there is no other address.
    fn fullest_network(&self, trusted_proxies: &TrustedProxies) -> Option<IpAddr> {
        let rank = |(network, connections): &(&IpAddr, &BTreeMap<u64, Connection>)| {
            (!trusted_proxies.contains(**network), connections.len())
        };
        self.unauthenticated.iter().max_by_key(rank).map(|(network, _)| *network)
    }
}

impl Peers {
    pub(crate) fn new(limits: HttpLimits, trusted_proxies: TrustedProxies, engine: Option<Engine>) -> Arc<Self> {
        Arc::new(Self {
            limits,
            trusted_proxies,
            engine,
            connections: Mutex::default(),
            shares_by_caller: Tally::default(),
            connection_ended: Notify::new(),
            logged_at: Mutex::default(),
        })
    }

    fn lock_connections(&self) -> MutexGuard<'_, ConnectionTable> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn log_limit(&self, limit: Limit, address: IpAddr) {
        if let Some(engine) = &self.engine {
            engine.note_limit_reached(limit, &address);
        }
    }

    /// Registers a new connection. `None` if the limits are reached and no unauthenticated connection can be closed.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<OpenConnection> {
        let network = network_of(address);
        let mut connections = self.lock_connections();
        let unauthenticated_count = connections.unauthenticated.get(&network).map_or(0, BTreeMap::len);
        if unauthenticated_count >= self.limits.connections_per_address && !self.trusted_proxies.contains(address) {
            self.log_limit(Limit::ConnectionsPerAddress, address);
            if !connections.evict(network) {
                return None;
            }
        }
        if connections.open_count >= self.limits.connections {
            self.log_limit(Limit::Connections, address);
            let fullest_network = connections.fullest_network(&self.trusted_proxies)?;
            if !connections.evict(fullest_network) {
                return None;
            }
        }
        connections.newest_number += 1;
        connections.open_count += 1;
        let connection = Connection(Arc::new(ConnectionState {
            peers: Arc::clone(self),
            number: connections.newest_number,
            network,
            busy_count: AtomicUsize::new(0),
            open_request_count: AtomicUsize::new(0),
            has_served: AtomicBool::new(false),
            answering_count: AtomicUsize::new(0),
            progressed_at: Mutex::new(Instant::now()),
            eviction: CancellationToken::new(),
            caller_share: Mutex::new(None),
        }));
        connections.unauthenticated.entry(network).or_default().insert(connection.0.number, connection.clone());
        drop(connections);
        Some(OpenConnection(connection))
    }

    /// Makes room after the system had no file handle left for a new connection: closes an unauthenticated one, and waits up to `delay`
    /// until any connection has ended.
    pub(crate) async fn make_room(&self, delay: Duration) {
        let mut connection_ended = std::pin::pin!(self.connection_ended.notified());
        // Registers for the notification first: the connection may end immediately after it is asked to.
        connection_ended.as_mut().enable();
        self.evict_fullest();
        // After the timeout the caller tries again anyway.
        tokio::time::timeout(delay, connection_ended).await.unwrap_or_default();
    }

    fn evict_fullest(&self) {
        let mut connections = self.lock_connections();
        if let Some(fullest_network) = connections.fullest_network(&self.trusted_proxies) {
            self.log_limit(Limit::Connections, fullest_network);
            connections.evict(fullest_network);
        }
    }

    /// Whether to log that a connection could not be accepted: once in every [`LOG_PERIOD`].
    pub(crate) fn may_log(&self) -> bool {
        let mut logged_at = self.logged_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = logged_at.is_none_or(|at| at.elapsed() >= LOG_PERIOD);
        if is_due {
            *logged_at = Some(Instant::now());
        }
        is_due
    }
}

impl Connection {
    /// Counts the connection for the caller of an authenticated request from now on. If that caller already has its maximum of
    /// connections, this one remains unauthenticated.
    pub(crate) fn count_for_caller(&self, caller: CallerKey) {
        let ConnectionState { peers, network, number, caller_share, .. } = &*self.0;
        let mut caller_share = caller_share.lock().unwrap_or_else(PoisonError::into_inner);
        if caller_share.is_some() {
            return;
        }
        let connection_count_max = match caller {
            CallerKey::Executor(_) => peers.limits.connections / 2,
            _ => peers.limits.connections_per_caller,
        };
        *caller_share = peers.shares_by_caller.take(caller, 1, connection_count_max);
        if caller_share.is_some() {
            peers.lock_connections().forget(*network, *number);
        }
    }

    /// Whether the connection has had a request.
    pub(crate) fn has_served(&self) -> bool {
        self.0.has_served.load(Ordering::Relaxed)
    }

    fn note_progress(&self) {
        *self.0.progressed_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits until the connection must close to make room.
    pub(crate) async fn wait_for_eviction(&self) {
        self.0.eviction.cancelled().await;
    }

    /// Waits until the connection has had no request for too long, or until its client has not read an answer for too long.
    pub(crate) async fn wait_for_stall(&self) -> StallReason {
        let HttpLimits { idle_timeout, write_timeout, .. } = self.0.peers.limits;
        loop {
            let progressed_at = *self.0.progressed_at.lock().unwrap_or_else(PoisonError::into_inner);
            let quiet_length = progressed_at.elapsed();
            let (stall_reason, timeout) = match self.0.open_request_count.load(Ordering::Relaxed) {
                0 => (StallReason::Idle, idle_timeout),
                _ => (StallReason::Answer, write_timeout),
            };
            let can_stall = stall_reason == StallReason::Idle || self.0.answering_count.load(Ordering::Relaxed) > 0;
            if quiet_length >= timeout && can_stall {
                return stall_reason;
            }
            let sleep_length = timeout.saturating_sub(quiet_length).min(write_timeout.min(idle_timeout));
            tokio::time::sleep(sleep_length.max(Duration::from_millis(20))).await;
        }
    }
}

/// Why an inactive connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StallReason {
    /// It has no request.
    Idle,
    /// Its client does not read an answer.
    Answer,
}

/// A request from its head to the end of its answer.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    connection: Connection,
    stage: RequestStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestStage {
    Working,
    Answering,
    /// The answer is an executor's stream, which has no write timeout because heartbeats supervise it.
    Session,
}

impl OpenRequest {
    pub(crate) fn new(connection: Connection) -> Self {
        connection.0.busy_count.fetch_add(1, Ordering::Relaxed);
        connection.0.open_request_count.fetch_add(1, Ordering::Relaxed);
        connection.0.has_served.store(true, Ordering::Relaxed);
        connection.note_progress();
        Self { connection, stage: RequestStage::Working }
    }

    /// Marks the beginning of the answer.
    pub(crate) fn begin_answer(&mut self, is_session: bool) {
        self.connection.0.busy_count.fetch_sub(1, Ordering::Relaxed);
        self.connection.note_progress();
        self.stage = if is_session { RequestStage::Session } else { RequestStage::Answering };
        if !is_session {
            self.connection.0.answering_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that the client has received a part of the answer.
    pub(crate) fn note_progress(&self) {
        self.connection.note_progress();
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let ConnectionState { busy_count, open_request_count, answering_count, .. } = &*self.connection.0;
        match self.stage {
            RequestStage::Working => busy_count.fetch_sub(1, Ordering::Relaxed),
            RequestStage::Answering => answering_count.fetch_sub(1, Ordering::Relaxed),
            RequestStage::Session => 0,
        };
        open_request_count.fetch_sub(1, Ordering::Relaxed);
        self.connection.note_progress();
    }
}

/// Marks a request that waits for its body. Meanwhile its connection may be closed to make room.
#[derive(Debug)]
pub(crate) struct WaitingForBody(Option<Connection>);

impl WaitingForBody {
    pub(crate) fn new(connection: Option<&Connection>) -> Self {
        if let Some(Connection(state)) = connection {
            state.busy_count.fetch_sub(1, Ordering::Relaxed);
        }
        Self(connection.cloned())
    }
}

impl Drop for WaitingForBody {
    fn drop(&mut self) {
        if let Some(Connection(state)) = &self.0 {
            state.busy_count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::TokenId;

    use super::*;

    const HERE: [u8; 4] = [192, 0, 2, 1];
    const THERE: [u8; 4] = [192, 0, 2, 2];

    fn peers(connections: usize, connections_per_address: usize) -> Arc<Peers> {
        let limits = HttpLimits { connections, connections_per_address, ..HttpLimits::default() };
        Peers::new(limits, TrustedProxies::parse(["10.0.0.1"]).unwrap(), None)
    }

    fn is_evicted(connection: &OpenConnection) -> bool {
        connection.0.0.eviction.is_cancelled()
    }

    #[test]
    fn the_oldest_idle_unauthenticated_connection_makes_room() {
        let peers = peers(10, 2);
        let working = peers.admit(HERE.into()).unwrap();
        let request = OpenRequest::new(working.0.clone());
        let idle = peers.admit(HERE.into()).unwrap();
        let third = peers.admit(HERE.into()).unwrap();
        assert!(!is_evicted(&working) && is_evicted(&idle) && !is_evicted(&third));
        let _busy = OpenRequest::new(third.0.clone());
        assert!(peers.admit(HERE.into()).is_none(), "nothing is idle");
        assert!(peers.admit(THERE.into()).is_some(), "other addresses have their own room");
        drop(request);
        assert!(peers.admit(HERE.into()).is_some() && is_evicted(&working));
    }

    #[test]
    fn an_authenticated_connection_counts_for_its_caller() {
        let peers = peers(100, 1);
        let executors: Vec<_> = (0..50)
            .map(|_| {
                let connection = peers.admit(HERE.into()).unwrap();
                connection.0.count_for_caller(CallerKey::Executor(TokenId::new(1)));
                connection
            })
            .collect();
        let first = peers.admit(HERE.into()).unwrap();
        first.0.count_for_caller(CallerKey::Executor(TokenId::new(1)));
        let second = peers.admit(HERE.into()).unwrap();
        assert!(is_evicted(&first), "one token has half of all connections");
        assert!(!executors.iter().any(is_evicted) && !is_evicted(&second));
        drop((executors, first, second));
        let connections = peers.lock_connections();
        assert_eq!((connections.open_count, connections.unauthenticated.len()), (0, 0));
    }

    #[test]
    fn the_fullest_address_makes_room_for_all() {
        let peers = peers(4, 3);
        let many: Vec<_> = (0..3).map(|_| peers.admit(HERE.into()).unwrap()).collect();
        let one = peers.admit(THERE.into()).unwrap();
        let new = peers.admit([192, 0, 2, 3].into()).unwrap();
        assert!(is_evicted(&many[0]) && !is_evicted(&one) && !is_evicted(&new));
        let proxies = peers_of_proxy();
        assert_eq!(proxies, 5, "a trusted proxy has no bound of its own");
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_made_without_a_pause() {
        let (peers, delay) = (peers(10, 10), Duration::from_millis(100));
        let idle = peers.admit(HERE.into()).unwrap();
        let began = Instant::now();
        let end = async {
            idle.0.wait_for_eviction().await;
            drop(idle);
        };
        tokio::join!(peers.make_room(delay), end);
        assert_eq!(began.elapsed(), Duration::ZERO, "a connection has ended: there is room");
        peers.make_room(delay).await;
        assert!(began.elapsed() >= delay, "there is none to end");
        assert!(peers.may_log() && !peers.may_log());
        tokio::time::advance(LOG_PERIOD).await;
        assert!(peers.may_log());
    }

    fn peers_of_proxy() -> usize {
        let peers = peers(10, 1);
        let all: Vec<_> = (0..5).filter_map(|_| peers.admit([10, 0, 0, 1].into())).collect();
        all.iter().filter(|connection| !is_evicted(connection)).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_that_is_idle_or_not_read() {
        let peers = peers(10, 10);
        let connection = peers.admit(HERE.into()).unwrap();
        let began = Instant::now();
        assert_eq!(connection.0.wait_for_stall().await, StallReason::Idle);
        assert!(began.elapsed() >= peers.limits.idle_timeout);
        let mut request = OpenRequest::new(connection.0.clone());
        let waits = tokio::time::timeout(peers.limits.idle_timeout * 10, connection.0.wait_for_stall()).await;
        assert!(waits.is_err(), "a request that is worked on is waited for");
        request.begin_answer(false);
        let began = Instant::now();
        assert_eq!(connection.0.wait_for_stall().await, StallReason::Answer);
        assert!(began.elapsed() >= peers.limits.write_timeout);
    }
}
