//! Counts how often each limit of the port turned a client away; each limit is logged at most once a minute.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long log lines about a limit are suppressed after such a line was written.
const LOG_PERIOD: Duration = Duration::from_secs(60);

rondel_core::plain_word_enum! {
    /// A limit of the port that a client reached.
    pub Limit {
        /// Connections of the whole server.
        Connections = "connections",
        /// Connections of one address without an authenticated request.
        ConnectionsPerAddress = "connections_per_address",
        /// Requests in progress.
        Requests = "requests",
        /// Unauthenticated requests of one address.
        RequestsPerAddress = "requests_per_address",
        RequestsPerCaller = "requests_per_caller",
        /// Unauthenticated requests of one address whose bodies have not arrived yet.
        BodiesPerAddress = "bodies_per_address",
        /// Bytes of bodies in memory.
        BodySize = "body_size",
        /// Bytes of answers that clients have not read yet.
        AnswerSize = "answer_size",
        /// Concurrent read requests of one caller.
        ReadsPerCaller = "reads_per_caller",
        /// Exports of the whole server.
        Exports = "exports",
        ExportsPerCaller = "exports_per_caller",
        /// Lists of jobs being applied in the whole server.
        Applies = "applies",
        /// Lists of jobs being applied for one caller.
        AppliesPerCaller = "applies_per_caller",
        /// Event and log streams of the whole server.
        LiveStreams = "live_streams",
        /// Event or log streams of one caller.
        LiveStreamsPerCaller = "live_streams_per_caller",
        ExecutorStreamsPerToken = "executor_streams_per_token",
        ExecutorStreamsPerAddress = "executor_streams_per_address",
        /// Requests per second of one caller.
        ApiRate = "api_rate",
        /// Time for a TLS handshake or the head of a request.
        HeaderTimeout = "header_timeout",
        /// Time for the body of a request.
        BodyTimeout = "body_timeout",
        /// Time for a client to accept more of an answer.
        WriteTimeout = "write_timeout",
    }
}

/// The counts of one node, and when each limit was last logged.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    counts: [AtomicU64; Limit::ALL.len()],
    /// When each limit was last logged, and its count at that time.
    last_logged: Mutex<[Option<(Instant, u64)>; Limit::ALL.len()]>,
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

    /// Decides whether to log now that the limit was reached. If so, records that and returns how often it was reached since the last line;
    /// `None` while further lines are suppressed.
    fn cases_to_log(&self, index: usize, total: u64) -> Option<u64> {
        let now = Instant::now();
        let mut last_logged = self.last_logged.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = last_logged.get_mut(index)?;
        let logged_count = match *entry {
            Some((at, _)) if now.saturating_duration_since(at) < LOG_PERIOD => return None,
            Some((_, logged_count)) => logged_count,
            None => 0,
        };
        *entry = Some((now, total));
        Some(total.saturating_sub(logged_count))
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
