//! Limits the log lines that clients can cause: one per minute for each client and kind. Each line states how many cases occurred since the
//! previous line.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a kind of line is suppressed for a client after such a line was written.
const PERIOD: Duration = Duration::from_secs(60);
/// Maximum number of pairs of client and kind.
const COUNT_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct LogLimit(Mutex<HashMap<(&'static str, i64), Cases>>);

#[derive(Debug)]
struct Cases {
    logged_at: Instant,
    /// The number of cases since the last line.
    unlogged_count: u64,
}

impl LogLimit {
    /// Counts a case. Returns the number of cases since the last line, if a line is to be written now; `None` while this kind of line is
    /// suppressed for this client, or if too many clients are counted already.
    pub(crate) fn count(&self, kind: &'static str, client: i64) -> Option<u64> {
        let now = Instant::now();
        let mut cases_by_client = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_suppressed = |cases: &Cases| now.saturating_duration_since(cases.logged_at) < PERIOD;
        if cases_by_client.len() >= COUNT_MAX && !cases_by_client.contains_key(&(kind, client)) {
            cases_by_client.retain(|_, cases| is_suppressed(cases));
            if cases_by_client.len() >= COUNT_MAX {
                return None;
            }
        }
        let Some(cases) = cases_by_client.get_mut(&(kind, client)) else {
            cases_by_client.insert((kind, client), Cases { logged_at: now, unlogged_count: 0 });
            return Some(1);
        };
        cases.unlogged_count += 1;
        if is_suppressed(cases) {
            return None;
        }
        cases.logged_at = now;
        Some(std::mem::take(&mut cases.unlogged_count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_client_is_logged_once_a_minute_with_a_count() {
        let limit = LogLimit::default();
        let lines: Vec<u64> = (0..1_000).filter_map(|_| limit.count("a", 1)).collect();
        assert_eq!(lines, [1]);
        assert_eq!((limit.count("a", 2), limit.count("b", 1)), (Some(1), Some(1)));
        tokio::time::advance(PERIOD).await;
        assert_eq!(limit.count("a", 1), Some(1_000));
        let all: Vec<u64> = (0..20_000).filter_map(|client| limit.count("c", client)).collect();
        assert!(all.len() < COUNT_MAX, "a flood of clients is bounded");
    }
}
