//! One driver for all loops of a node.
//!
//! A loop is a [`Background`]: its work, its period, and what wakes it earlier. The driver waits, measures how long each tick takes, records
//! the result on the [`LoopBoard`], and tries again after a failure. It logs the first of several failures, and the recovery. The metrics show
//! the board. Each heartbeat writes the board into the node's row, so that every server shows a loop that fails.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_core::error_chain::chain;
use rondel_store::cluster::LoopReport;
use rondel_store::host::HostReport;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

/// Maximum length of a stored error text, in characters.
const ERROR_LEN_MAX: usize = 300;

/// Why a tick failed, as shown to operators.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TickError(String);

impl<E: std::error::Error> From<E> for TickError {
    fn from(error: E) -> Self {
        Self(chain(&error))
    }
}

impl TickError {
    pub(crate) const fn new(message: String) -> Self {
        Self(message)
    }
}

/// A loop of the node.
pub(crate) trait Background: Send {
    /// The loop's name in metrics, log lines and the node's report.
    const NAME: &'static str;
    /// What a tick does, such as "claim fires"; log lines about failed ticks contain it.
    const ACTION: &'static str;
    /// Whether the loop logs its failed ticks itself, with more detail than the error's text.
    const REPORTS_FAILURE: bool = false;

    /// Time from the start of a tick to the start of the next, unless the loop is woken earlier or the tick takes longer. `None` for a loop that
    /// ticks only at its start, when it is woken, and to retry.
    fn period(&self) -> Option<Duration>;

    /// Delay from the start of the loop to its first tick.
    fn first_wait(&self) -> Duration {
        Duration::ZERO
    }

    /// Delay from a failed tick to its retry, after `_failed_count` failures in a row; `None` to retry only when the period has passed.
    fn retry_wait(&self, _failed_count: u32) -> Option<Duration> {
        None
    }

    /// Resolves when something asks for a tick before the period has passed. The future must be cancel safe.
    fn wait_until_woken(&mut self) -> impl Future<Output = ()> + Send {
        pending()
    }

    /// Does the work. Returns the number of items handled.
    fn tick(&mut self, stop: &CancellationToken) -> impl Future<Output = Result<u64, TickError>> + Send;

    /// Finishes work in progress, once the loop is asked to stop.
    fn finish_work(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// Runs a loop until it is asked to stop. `holds_lease` returns whether the node has its lease; without the lease, most loops do nothing.
pub(crate) async fn drive<B: Background>(
    mut background: B,
    (board, clock): (Arc<LoopBoard>, Arc<Clock>),
    holds_lease: impl Fn() -> bool + Send,
    stop: CancellationToken,
) {
    let mut next_tick_at = Some(Instant::now() + background.first_wait());
    let mut failed_count = 0_u32;
    loop {
        let retry_wait = background.retry_wait(failed_count).filter(|_| failed_count > 0);
        tokio::select! {
            biased;
            () = stop.cancelled() => return background.finish_work().await,
            () = sleep_until_or_pend(next_tick_at) => {}
            () = sleep_or_pend(retry_wait) => {}
            () = background.wait_until_woken() => {}
        }
        let (tick_start, had_lease) = (Instant::now(), holds_lease());
        let result = background.tick(&stop).await;
        // A tick that did nothing because the node had no lease does not count as a recovery.
        let is_idle = !had_lease && result == Ok(0);
        failed_count = match result {
            Ok(_) if is_idle => failed_count,
            Ok(_) => 0,
            Err(_) => failed_count.saturating_add(1),
        };
        let change = board.record_tick(B::NAME, &result, is_idle, (clock.now(), tick_start.elapsed()));
        if !B::REPORTS_FAILURE {
            match (change, result) {
                (TickChange::Failing, Err(TickError(error))) => {
                    tracing::warn!(task = B::NAME, error, "cannot {}; trying again", B::ACTION);
                }
                (TickChange::Recovered { failed_count }, _) => {
                    tracing::info!(task = B::NAME, failed_count, "can {} again", B::ACTION);
                }
                _ => {}
            }
        }
        // From the first tick on, the period replaces the first wait. Ticks missed during a long tick are not caught up.
        next_tick_at = background.period().map(|period| (tick_start + period).max(Instant::now()));
    }
}

async fn sleep_until_or_pend(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => pending().await,
    }
}

async fn sleep_or_pend(wait: Option<Duration>) {
    match wait {
        Some(wait) => sleep(wait).await,
        None => pending().await,
    }
}

/// How the result of a tick changed the loop's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TickChange {
    Unchanged,
    /// The first failure after a success.
    Failing,
    /// The first success after this many failures.
    Recovered {
        failed_count: u64,
    },
}

/// The report of each loop, keyed by the loop's name.
#[derive(Debug, Default)]
pub(crate) struct LoopBoard(Mutex<BTreeMap<&'static str, LoopReport>>);

impl LoopBoard {
    /// Records a tick: its result, whether it did nothing for lack of the lease, its end and its length.
    fn record_tick(
        &self,
        name: &'static str,
        result: &Result<u64, TickError>,
        is_idle: bool,
        (now, tick_length): (Timestamp, Duration),
    ) -> TickChange {
        let mut reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let report = reports.entry(name).or_insert_with(|| LoopReport { name: name.to_owned(), ..Default::default() });
        report.ticked_at = Some(now);
        report.took_ms = u64::try_from(tick_length.as_millis()).unwrap_or(u64::MAX);
        report.tick_count += 1;
        match result {
            Ok(_) if is_idle => TickChange::Unchanged,
            Ok(count) => {
                report.done_count = report.done_count.saturating_add(*count);
                if *count > 0 {
                    report.did_at = Some(now);
                }
                let failed_count = std::mem::take(&mut report.failed_in_a_row);
                report.failing_since = None;
                if failed_count == 0 { TickChange::Unchanged } else { TickChange::Recovered { failed_count } }
            }
            Err(TickError(error)) => {
                report.failed_count += 1;
                report.failed_in_a_row += 1;
                report.error = Some(error.chars().take(ERROR_LEN_MAX).collect());
                let is_first_failure = report.failing_since.is_none();
                report.failing_since.get_or_insert(now);
                if is_first_failure { TickChange::Failing } else { TickChange::Unchanged }
            }
        }
    }

    /// Stores the newest measurement of the loop that watches the host.
    pub(crate) fn put_host(&self, name: &'static str, host: HostReport) {
        let mut reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let report = reports.entry(name).or_insert_with(|| LoopReport { name: name.to_owned(), ..Default::default() });
        report.host = Some(host);
    }

    /// All reports, sorted by name.
    pub(crate) fn reports(&self) -> Vec<LoopReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn failure(text: &str) -> Result<u64, TickError> {
        Err(TickError::new(text.to_owned()))
    }

    #[test]
    fn a_failure_and_its_end_are_reported_once() {
        let board = LoopBoard::default();
        let note = |done, second| board.record_tick("adopt", &done, false, (Timestamp::from_secs(second), SECOND));
        assert_eq!(note(Ok(3), 1), TickChange::Unchanged);
        assert_eq!(note(failure("down"), 2), TickChange::Failing);
        assert_eq!(note(failure("still down"), 3), TickChange::Unchanged);
        let report = board.reports().remove(0);
        assert_eq!((report.failed_count, report.failing_since), (2, Some(Timestamp::from_secs(2))));
        assert_eq!((report.error.as_deref(), report.did_at), (Some("still down"), Some(Timestamp::from_secs(1))));
        assert_eq!(note(Ok(0), 4), TickChange::Recovered { failed_count: 2 });
        assert_eq!(note(Ok(2), 5), TickChange::Unchanged);
        let report = board.reports().remove(0);
        assert_eq!((report.failing_since, report.error.as_deref()), (None, Some("still down")));
        assert_eq!((report.tick_count, report.done_count, report.failed_in_a_row), (5, 5, 0));
        assert_eq!((report.ticked_at, report.did_at), (Some(Timestamp::from_secs(5)), Some(Timestamp::from_secs(5))));
    }

    #[test]
    fn a_tick_without_the_lease_ends_no_failure() {
        let board = LoopBoard::default();
        let note =
            |done, is_idle, second| board.record_tick("scan", &done, is_idle, (Timestamp::from_secs(second), SECOND));
        assert_eq!(note(failure("down"), false, 1), TickChange::Failing);
        assert_eq!(note(Ok(0), true, 2), TickChange::Unchanged);
        let report = board.reports().remove(0);
        assert_eq!(report.failing_since, Some(Timestamp::from_secs(1)));
        assert_eq!((report.tick_count, report.ticked_at), (2, Some(Timestamp::from_secs(2))));
        assert_eq!(note(Ok(0), false, 3), TickChange::Recovered { failed_count: 1 });
    }

    #[test]
    fn an_error_of_any_length_is_cut() {
        let board = LoopBoard::default();
        board.record_tick("heal", &failure(&"ü".repeat(10_000)), false, (Timestamp::EPOCH, SECOND));
        assert_eq!(board.reports()[0].error.as_ref().map(|error| error.chars().count()), Some(ERROR_LEN_MAX));
    }
}
