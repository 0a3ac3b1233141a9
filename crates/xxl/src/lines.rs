//! Limits log lines that a single cause would repeat.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rondel_core::error_chain::chain;
use rondel_store::StoreError;
use tokio::time::Instant;

/// The same line is logged at most once within this time.
const LINE_PERIOD: Duration = Duration::from_secs(60);
const LINE_COUNT_MAX: usize = 1_000;

/// Lines that are logged at most once a minute, with the number of occurrences.
#[derive(Debug, Default)]
pub(crate) struct LineLimit(Mutex<HashMap<String, (Instant, u64)>>);

impl LineLimit {
    /// Logs that a write to the store, or a read, failed.
    pub(crate) fn log_store_failure(&self, action: &'static str, error: &StoreError) {
        if let Some(count) = self.count(action) {
            tracing::warn!(error = %chain(error), count, "cannot {action} of executors of XXL-JOB");
        }
    }

    /// The number of occurrences since the line was last logged; `None` while it is suppressed.
    pub(crate) fn count(&self, line: &str) -> Option<u64> {
        let now = Instant::now();
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= LINE_COUNT_MAX {
            lines.retain(|_, (at, _)| now.duration_since(*at) < LINE_PERIOD);
            if lines.len() >= LINE_COUNT_MAX {
                return None;
            }
        }
        match lines.get_mut(line) {
            Some((at, count)) if now.duration_since(*at) < LINE_PERIOD => {
                *count += 1;
                None
            }
            Some(entry) => {
                let count = entry.1 + 1;
                *entry = (now, 0);
                Some(count)
            }
            None => {
                lines.insert(line.to_owned(), (now, 0));
                Some(1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_is_logged_once_a_minute() {
        let limit = LineLimit::default();
        assert_eq!((limit.count("a"), limit.count("a"), limit.count("b")), (Some(1), None, Some(1)));
        for number in 0..2 * LINE_COUNT_MAX {
            limit.count(&number.to_string());
        }
        assert!(limit.0.lock().unwrap().len() <= LINE_COUNT_MAX, "made-up lines take bounded memory");
    }
}
