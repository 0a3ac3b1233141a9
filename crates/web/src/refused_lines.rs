//! Limits the log lines about refused requests, so that a flood of them cannot fill the log. Requests without a line are counted.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use crate::limits::network_of;

/// Maximum number of lines within [`COUNT_PERIOD`] for one address and status.
const LINE_COUNT_PER_CLIENT_MAX: u64 = 10;
/// Maximum number of lines within [`COUNT_PERIOD`] in total.
const LINE_COUNT_MAX: u64 = 600;
const COUNT_PERIOD: Duration = Duration::from_secs(60);
/// How many pairs of address and status are counted separately within [`COUNT_PERIOD`].
const CLIENT_COUNT_MAX: usize = 10_000;
/// Maximum number of summary lines at the end of a [`COUNT_PERIOD`].
const SUMMARY_COUNT_MAX: usize = 20;

/// A client's address, and the status of the answer. Clients beyond [`CLIENT_COUNT_MAX`] are counted together, without an address.
type ClientStatus = (Option<IpAddr>, u16);

#[derive(Clone, Debug)]
pub(crate) struct RefusedLines(Arc<Mutex<RefusalCounts>>);

#[derive(Debug)]
struct RefusalCounts {
    began_at: Instant,
    line_count: u64,
    /// For each client and status: how many requests there were, and how many of them got a line in the log.
    by_client: BTreeMap<ClientStatus, (u64, u64)>,
}

/// How many requests got no line in the log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnloggedRequests {
    /// The client's address; `None` if several clients were counted together.
    pub(crate) client: Option<IpAddr>,
    pub(crate) status: u16,
    pub(crate) count: u64,
}

impl Default for RefusedLines {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(RefusalCounts::new())))
    }
}

impl RefusalCounts {
    fn new() -> Self {
        Self { began_at: Instant::now(), line_count: 0, by_client: BTreeMap::new() }
    }
}

/// Whether the log lines for answers with this status to this caller are limited; `caller` is empty for an unauthenticated client.
/// Unauthenticated clients, and callers beyond their limits, can send as many requests as the network carries. Other failures of the server
/// are always logged.
pub(crate) fn has_line_limit(status: StatusCode, caller: &str) -> bool {
    let is_overload = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    // A 303 is a redirect to the sign-in page.
    let is_refusal = status == StatusCode::SEE_OTHER || status.is_client_error();
    is_overload || (caller.is_empty() && is_refusal)
}

impl RefusedLines {
    /// Counts a request. Returns whether it gets its own line.
    pub(crate) fn take(&self, client: Option<IpAddr>, status: StatusCode) -> bool {
        let mut refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = (client.map(network_of), status.as_u16());
        if refusals.by_client.len() >= CLIENT_COUNT_MAX && !refusals.by_client.contains_key(&key) {
            key.0 = None;
        }
        let has_room = refusals.line_count < LINE_COUNT_MAX;
        let (total, logged) = refusals.by_client.entry(key).or_default();
        *total += 1;
        let is_logged = has_room && *logged < LINE_COUNT_PER_CLIENT_MAX;
        if is_logged {
            *logged += 1;
            refusals.line_count += 1;
        }
        is_logged
    }

    /// The requests without a line in the period that has just ended, the largest counts first. Empty while the period lasts.
    pub(crate) fn take_unlogged(&self) -> Vec<UnloggedRequests> {
        let ended_period = {
            let mut refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if refusals.began_at.elapsed() < COUNT_PERIOD {
                return Vec::new();
            }
            std::mem::replace(&mut *refusals, RefusalCounts::new())
        };
        let unlogged_of_client = |((client, status), (total, logged)): (ClientStatus, (u64, u64))| {
            let count = total.saturating_sub(logged);
            (count > 0).then_some(UnloggedRequests { client, status, count })
        };
        let mut unlogged_requests: Vec<UnloggedRequests> =
            ended_period.by_client.into_iter().filter_map(unlogged_of_client).collect();
        unlogged_requests.sort_by_key(|unlogged| std::cmp::Reverse(unlogged.count));
        let mut counts_by_status = BTreeMap::<u16, u64>::new();
        for unlogged in unlogged_requests.drain(SUMMARY_COUNT_MAX.min(unlogged_requests.len())..) {
            *counts_by_status.entry(unlogged.status).or_default() += unlogged.count;
        }
        unlogged_requests.extend(counts_by_status.into_iter().map(|(status, count)| UnloggedRequests {
            client: None,
            status,
            count,
        }));
        unlogged_requests
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const UNKNOWN: StatusCode = StatusCode::UNAUTHORIZED;

    fn client(number: u32) -> Option<IpAddr> {
        Some(Ipv4Addr::from(0x0a00_0000 + number).into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_some_lines_and_then_a_count() {
        let lines = RefusedLines::default();
        assert_eq!((0..100_000).filter(|_| lines.take(client(1), UNKNOWN)).count(), 10);
        assert!(lines.take(client(1), StatusCode::SERVICE_UNAVAILABLE), "each status by itself");
        assert!(lines.take(client(2), UNKNOWN), "one client does not hide the lines of others");
        assert_eq!(lines.take_unlogged(), []);
        tokio::time::advance(COUNT_PERIOD).await;
        assert_eq!(lines.take_unlogged(), [UnloggedRequests { client: client(1), status: 401, count: 99_990 }]);
        assert_eq!(lines.take_unlogged(), []);
        assert!(lines.take(client(1), UNKNOWN), "the next minute has lines again");
    }

    #[tokio::test(start_paused = true)]
    async fn many_clients_are_bounded_too() {
        let lines = RefusedLines::default();
        let taken = (0..200_000).filter(|number| lines.take(client(number % 20_000), UNKNOWN)).count();
        assert_eq!(taken, usize::try_from(LINE_COUNT_MAX).unwrap());
        assert!(lines.0.lock().unwrap().by_client.len() <= CLIENT_COUNT_MAX + 1);
        tokio::time::advance(COUNT_PERIOD).await;
        let left_out = lines.take_unlogged();
        assert_eq!(left_out.len(), SUMMARY_COUNT_MAX + 1);
        assert_eq!(left_out.iter().map(|one| one.count).sum::<u64>(), 200_000 - LINE_COUNT_MAX);
    }

    #[test]
    fn unauthenticated_refusals_and_those_of_limits_are_bounded() {
        for (status, caller, bounded) in [
            (401, "", true),
            (303, "", true),
            (404, "", true),
            (200, "", false),
            (304, "", false),
            (500, "", false),
            (404, "ann", false),
            (403, "ann", false),
            (429, "ann", true),
            (503, "ann", true),
        ] {
            assert_eq!(has_line_limit(StatusCode::from_u16(status).unwrap(), caller), bounded, "{status} {caller}");
        }
    }
}
