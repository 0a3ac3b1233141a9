//! Counts how often each limit of the port turned a client away; each limit is logged at most once a minute.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long log lines about a limit are suppressed after one was written.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// A limit of the port that a client reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Connections of the whole server.
    Connections,
    /// Connections of one address without an authenticated request.
    ConnectionsPerAddress,
    /// Requests in progress.
    Requests,
    /// Unauthenticated requests of one address.
    RequestsPerAddress,
    /// Requests of one caller.
    RequestsPerCaller,
    /// Unauthenticated requests of one address whose bodies have not arrived yet.
    BodiesPerAddress,
    /// Bytes of bodies in memory.
    BodySize,
    /// Bytes of answers that clients have not read yet.
    AnswerSize,
    /// Concurrent read requests of one caller.
    ReadsPerCaller,
    /// Exports of the whole server.
    Exports,
    /// Exports of one caller.
    ExportsPerCaller,
    /// Lists of jobs being applied in the whole server.
    Applies,
    /// Lists of jobs being applied for one caller.
    AppliesPerCaller,
    /// Event and log streams of the whole server.
    LiveStreams,
    /// Event or log streams of one caller.
    LiveStreamsPerCaller,
    /// Streams of executors with one token.
    ExecutorStreamsPerToken,
    /// Streams of executors at one address.
    ExecutorStreamsPerAddress,
    /// Requests per second of one caller.
    ApiRate,
    /// Time for a TLS handshake or the head of a request.
    HeaderTimeout,
    /// Time for a body.
    BodyTimeout,
    /// Time for a client to accept more of an answer.
    WriteTimeout,
}

impl Limit {
    const ALL: [Self; 21] = [
        Self::Connections,
        Self::ConnectionsPerAddress,
        Self::Requests,
        Self::RequestsPerAddress,
        Self::RequestsPerCaller,
        Self::BodiesPerAddress,
        Self::BodySize,
        Self::AnswerSize,
        Self::ReadsPerCaller,
        Self::Exports,
        Self::ExportsPerCaller,
        Self::Applies,
        Self::AppliesPerCaller,
        Self::LiveStreams,
        Self::LiveStreamsPerCaller,
        Self::ExecutorStreamsPerToken,
        Self::ExecutorStreamsPerAddress,
        Self::ApiRate,
        Self::HeaderTimeout,
        Self::BodyTimeout,
        Self::WriteTimeout,
    ];

    /// The name of its setting.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::ConnectionsPerAddress => "connections_per_address",
            Self::Requests => "requests",
            Self::RequestsPerAddress => "requests_per_address",
            Self::RequestsPerCaller => "requests_per_caller",
            Self::BodiesPerAddress => "bodies_per_address",
            Self::BodySize => "body_size",
            Self::AnswerSize => "answer_size",
            Self::ReadsPerCaller => "reads_per_caller",
            Self::Exports => "exports",
            Self::ExportsPerCaller => "exports_per_caller",
            Self::Applies => "applies",
            Self::AppliesPerCaller => "applies_per_caller",
            Self::LiveStreams => "live_streams",
            Self::LiveStreamsPerCaller => "live_streams_per_caller",
            Self::ExecutorStreamsPerToken => "executor_streams_per_token",
            Self::ExecutorStreamsPerAddress => "executor_streams_per_address",
            Self::ApiRate => "api_rate",
            Self::HeaderTimeout => "header_timeout",
            Self::BodyTimeout => "body_timeout",
            Self::WriteTimeout => "write_timeout",
        }
    }
}

/// The counts of one node, and when each limit was last logged.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    counts: [AtomicU64; Limit::ALL.len()],
    /// When each limit was last logged, and its count at that time.
    logged: Mutex<[Option<(Instant, u64)>; Limit::ALL.len()]>,
}

impl Limits {
    pub(crate) fn record_reached(&self, limit: Limit, client: &dyn Display) {
        let index = limit as usize;
        let Some(count) = self.counts.get(index) else { return };
        let total = count.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(since_last_line) = self.cases_to_log(index, total) {
            tracing::warn!(
                target: "http",
                limit = limit.as_str(),
                client = %client,
                count = since_last_line,
                "a limit of the port was reached; further cases are counted and logged once a minute"
            );
        }
    }

    /// The number of cases since the last line, if a line is to be written now; `None` while lines about the limit are suppressed.
    fn cases_to_log(&self, index: usize, total: u64) -> Option<u64> {
        let now = Instant::now();
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = logged.get_mut(index)?;
        let before = match *entry {
            Some((at, _)) if now.saturating_duration_since(at) < LOG_PERIOD => return None,
            Some((_, before)) => before,
            None => 0,
        };
        *entry = Some((now, total));
        Some(total.saturating_sub(before))
    }

    pub(crate) fn read(&self) -> impl Iterator<Item = (Limit, u64)> + '_ {
        Limit::ALL.into_iter().zip(&self.counts).map(|(limit, count)| (limit, count.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_counted_and_logged_once_a_minute() {
        let limits = Limits::default();
        let lines: Vec<u64> = (1..=10_000).filter_map(|total| limits.cases_to_log(0, total)).collect();
        assert_eq!(lines, [1]);
        tokio::time::advance(LOG_PERIOD).await;
        assert_eq!(limits.cases_to_log(0, 10_001), Some(10_000));
        assert_eq!(limits.cases_to_log(1, 1), Some(1), "each limit for itself");
        limits.record_reached(Limit::WriteTimeout, &"198.51.100.7");
        assert!(limits.read().all(|(limit, count)| count == u64::from(limit == Limit::WriteTimeout)));
    }
}
