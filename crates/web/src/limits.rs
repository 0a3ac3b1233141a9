//! The limits that keep one client from blocking others, and the counters that enforce them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::Request;
use rondel_admin::gateway::Peer;
pub(crate) use rondel_core::forwarded::network_of;
use rondel_core::{AccountId, SessionId, TokenId};

/// The only path that accepts a body longer than the others.
pub(crate) const APPLY_PATH: &str = "/api/v1/jobs/apply";
/// Maximum length of a list of jobs to apply, in bytes.
pub(crate) const APPLY_LEN_MAX: usize = 16 * 1024 * 1024;

/// Maximum bytes of lists that are compared and applied at the same time; the definitions parsed from them take several times as much
/// memory. One caller may have at most [`APPLY_LEN_MAX`] of these bytes.
pub(crate) const APPLY_ROOM_LEN: usize = 20 * 1024 * 1024;

/// The limits of the port, for one client and for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Maximum number of open connections.
    pub connections: usize,
    /// Maximum number of open connections of one address that have not authenticated a request.
    pub connections_per_address: usize,
    /// Maximum number of open connections of one caller that have authenticated. An executor's token may have half of `connections`
    /// instead.
    pub connections_per_caller: usize,
    /// Maximum number of concurrent requests on one HTTP/2 connection.
    pub requests_per_connection: u32,
    /// Maximum number of requests that the server works on concurrently.
    pub requests: usize,
    /// How many of `requests` are reserved for authenticated callers.
    pub requests_reserved: usize,
    /// Maximum number of unauthenticated requests of one address, including those whose answers are not yet read.
    pub requests_per_address: usize,
    /// Maximum number of requests of one caller, including those whose answers are not yet read.
    pub requests_per_caller: usize,
    /// Maximum number of unauthenticated requests from one address whose bodies have not arrived.
    pub bodies_per_address: usize,
    /// Maximum bytes of request bodies in memory. One caller may have at most half of them.
    pub body_size: usize,
    /// Maximum bytes of answers that clients have not read. One caller may have at most half of them.
    pub answer_size: usize,
    /// Maximum number of one caller's requests and streams that read from the database concurrently. Further ones wait.
    pub reads_per_caller: usize,
    /// Maximum number of concurrent exports.
    pub exports: usize,
    /// Maximum number of concurrent exports of one caller.
    pub exports_per_caller: usize,
    /// Maximum number of lists of jobs that are read, compared and applied concurrently.
    pub applies: usize,
    /// Maximum number of such lists of one caller.
    pub applies_per_caller: usize,
    /// Maximum number of event streams. The same maximum applies to followed logs, which are counted separately.
    pub live_streams: usize,
    /// Maximum number of event streams of one caller, and likewise of its followed logs.
    pub live_streams_per_caller: usize,
    /// Timeout for a TLS handshake, and for the head of a request.
    pub header_timeout: Duration,
    /// Timeout for the body of a request.
    pub body_timeout: Duration,
    /// Timeout for an idle connection.
    pub idle_timeout: Duration,
    /// Timeout for a client that stops reading an answer.
    pub write_timeout: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            connections_per_address: 512,
            connections_per_caller: 128,
            requests_per_connection: 128,
            requests: 1_024,
            requests_reserved: 256,
            requests_per_address: 256,
            requests_per_caller: 128,
            bodies_per_address: 128,
            body_size: 64 * 1024 * 1024,
            answer_size: 64 * 1024 * 1024,
            reads_per_caller: 3,
            exports: 8,
            exports_per_caller: 2,
            applies: 4,
            applies_per_caller: 2,
            live_streams: 256,
            live_streams_per_caller: 32,
            header_timeout: Duration::from_secs(15),
            body_timeout: Duration::from_secs(20),
            idle_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(30),
        }
    }
}

/// Identifies a caller; requests with the same key are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum CallerKey {
    /// An account with all its tokens and sign-ins.
    Account(AccountId),
    /// A token without an account, identified by the first token of its line.
    Token(TokenId),
    /// A sign-in without an account or a token.
    Session(SessionId),
    Executor(TokenId),
}

impl std::fmt::Display for CallerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Account(id) => write!(f, "account {id}"),
            Self::Token(id) | Self::Executor(id) => write!(f, "token {id}"),
            Self::Session(id) => write!(f, "sign-in {id}"),
        }
    }
}

/// Counts how much each key occupies.
#[derive(Debug)]
pub(crate) struct Tally<K: Ord>(Arc<Mutex<BTreeMap<K, usize>>>);

impl<K: Ord> Clone for Tally<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Ord> Default for Tally<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Ord + Copy> Tally<K> {
    /// Takes `amount` for a key, unless the key would then exceed `limit`. Dropping the share releases the amount.
    pub(crate) fn take(&self, key: K, amount: usize, limit: usize) -> Option<Share<K>> {
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new_amount = shares.get(&key).copied().unwrap_or_default().saturating_add(amount);
        if new_amount > limit {
            return None;
        }
        shares.insert(key, new_amount);
        Some(Share { tally: self.clone(), key, amount })
    }
}

/// An amount taken from a [`Tally`].
#[derive(Debug)]
pub(crate) struct Share<K: Ord + Copy> {
    tally: Tally<K>,
    key: K,
    amount: usize,
}

impl<K: Ord + Copy> Drop for Share<K> {
    fn drop(&mut self) {
        let mut shares = self.tally.0.lock().unwrap_or_else(PoisonError::into_inner);
        let remaining_amount = shares.get(&self.key).copied().unwrap_or_default().saturating_sub(self.amount);
        if remaining_amount == 0 {
            shares.remove(&self.key);
        } else {
            shares.insert(self.key, remaining_amount);
        }
    }
}

/// The address that a request comes from.
pub(crate) fn client_address(request: &Request) -> Option<IpAddr> {
    request.extensions().get::<Peer>().map(|Peer(address)| *address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_holds_so_much_and_gives_it_back() {
        let tally = Tally::default();
        let first = tally.take('a', 2, 3);
        assert!(first.is_some() && tally.take('a', 2, 3).is_none());
        let more = tally.take('a', 1, 3);
        assert!(more.is_some() && tally.take('b', 3, 3).is_some());
        drop((first, more));
        assert!(tally.0.lock().unwrap().is_empty(), "nothing is kept of a key that holds nothing");
    }
}
