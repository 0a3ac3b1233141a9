//! Limits the number of refusals in the audit log, so that a flood of refusals cannot fill it or hide those of other callers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::limits::CallerKey;

/// Maximum number of refusals of all callers that are stored within [`REFUSAL_PERIOD`]. Further refusals are only in the server's log.
const REFUSAL_COUNT_MAX: u32 = 600;
/// Maximum number of refusals of one caller that are stored within [`REFUSAL_PERIOD`].
const REFUSAL_COUNT_MAX_PER_CALLER: u32 = 60;
const REFUSAL_PERIOD: Duration = Duration::from_secs(60);

/// Counts the refusals of the current period.
#[derive(Clone, Debug)]
pub(crate) struct RefusalAuditBudget(Arc<Mutex<RefusalCounts>>);

#[derive(Debug)]
struct RefusalCounts {
    /// When the period began.
    since: Instant,
    count: u32,
    counts_by_caller: BTreeMap<CallerKey, u32>,
}

impl RefusalCounts {
    fn new() -> Self {
        Self { since: Instant::now(), count: 0, counts_by_caller: BTreeMap::new() }
    }
}

impl Default for RefusalAuditBudget {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(RefusalCounts::new())))
    }
}

impl RefusalAuditBudget {
    /// Counts a refusal of this caller. Returns false if a limit is reached and the refusal must not be stored.
    pub(crate) fn count_refusal(&self, caller: CallerKey) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.since.elapsed() >= REFUSAL_PERIOD {
            *counts = RefusalCounts::new();
        }
        let caller_count = counts.counts_by_caller.get(&caller).copied().unwrap_or_default();
        if counts.count >= REFUSAL_COUNT_MAX || caller_count >= REFUSAL_COUNT_MAX_PER_CALLER {
            return false;
        }
        counts.count += 1;
        counts.counts_by_caller.insert(caller, caller_count + 1);
        true
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::TokenId;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_refusals_is_bounded() {
        let denials = RefusalAuditBudget::default();
        let of = |id| CallerKey::Token(TokenId::new(id));
        assert_eq!((0..10_000).filter(|_| denials.count_refusal(of(1))).count(), 60);
        assert!(denials.count_refusal(of(2)), "one caller does not hide the refusals of others");
        assert_eq!((0..10_000).filter(|number| denials.count_refusal(of(*number))).count(), 600 - 61);
        tokio::time::advance(REFUSAL_PERIOD).await;
        assert!(denials.count_refusal(of(1)));
    }
}
