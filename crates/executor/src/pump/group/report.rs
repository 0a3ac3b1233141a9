//! The reports of a group on its items, and when they are due.

use std::time::{Duration, Instant};

use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1::{PumpProgress, PumpReport};
use rondel_proto::{ITEM_COUNT_MAX, encoded_len};

use super::holding::Phase;
use super::limits::REPORT_PERIOD;
use super::{Group, Holding};

/// If a select finds nothing, only a count changes. Such a change is reported only once in this period, so that an idle
/// pump costs almost nothing.
const IDLE_PERIOD: Duration = Duration::from_secs(10);
/// The period in which a released item is reported again, until an order of the server no longer names it. An item
/// whose rate is not 0 is reported again in the same period, because the rate falls without any event.
const REPEAT_PERIOD: Duration = Duration::from_secs(5);

/// Maximum number of items in a report: the server's limit counts the report itself as one more.
const REPORT_ITEMS_MAX: usize = ITEM_COUNT_MAX - 1;
/// The largest size of a report in one message, in bytes, unless one item alone is larger.
const REPORT_BYTES_MAX: usize = 500 * 1000;
/// Bytes that an item adds to a report beyond its own encoded size.
const ITEM_OVERHEAD: usize = 8;

impl<R: Clone> Group<R> {
    /// When the next report is due; `None` if there is nothing to report before the next event.
    #[must_use]
    pub fn report_at(&self) -> Option<Instant> {
        let Some(reported_at) = self.reported_at else { return self.is_changed.then_some(self.created_at) };
        if self.is_urgent {
            return Some(reported_at);
        }
        let is_released = |item: &Holding| item.phase == Phase::Released && !mutant::on(Mutant::ReleasedIsReportedOnce);
        let is_repeated = |item: &Holding| is_released(item) || item.last_progress.per_minute > 0;
        let delay = if self.is_changed {
            Some(REPORT_PERIOD)
        } else if self.items.values().any(is_repeated) {
            Some(REPEAT_PERIOD)
        } else {
            self.is_fetch_count_changed.then_some(IDLE_PERIOD)
        };
        delay.map(|delay| reported_at + delay)
    }

    /// The state of all items, if a report is due.
    pub fn report(&mut self, now: Instant) -> Option<PumpReport> {
        self.report_at().is_some_and(|at| at <= now).then(|| self.full_report(now))
    }

    /// The state of all items.
    pub fn full_report(&mut self, now: Instant) -> PumpReport {
        (self.reported_at, self.is_changed, self.is_urgent) = (Some(now), false, false);
        self.is_fetch_count_changed = false;
        let (term, number) = self.last_order.unwrap_or_default();
        let since_creation = now.saturating_duration_since(self.created_at);
        let oldest_fetches = self.rows.oldest_fetched_at();
        let items = self.items.iter_mut().map(|(name, item)| {
            let oldest_at = oldest_fetches.get(&(name.as_str(), item.epoch));
            let counts = item.counts;
            let progress = PumpProgress {
                name: name.clone(),
                epoch: item.epoch,
                sequence: item.last_progress.sequence,
                fetches: counts.fetches,
                rows: counts.rows,
                done: counts.done,
                failed: counts.failed,
                per_minute: item.rate.per_minute(since_creation),
                oldest_at_ms: oldest_at.map_or(0, |at| at.as_millis()),
                dry: item.last_select_was_empty && oldest_at.is_none(),
                checkpoint: item.checkpoint.clone(),
                released: item.phase == Phase::Released,
            };
            if progress != item.last_progress {
                item.last_progress = PumpProgress { sequence: progress.sequence + 1, ..progress };
            }
            item.last_progress.clone()
        });
        let items = items.collect();
        let (run_id, attempt) = (self.key.run.get(), self.key.attempt);
        PumpReport { run_id, attempt, job_id: self.job_id, term, number, items }
    }
}

/// Splits a report into parts that each fit into one message.
#[must_use]
pub fn split(report: PumpReport) -> Vec<PumpReport> {
    let PumpReport { items, .. } = &report;
    if items.len() <= REPORT_ITEMS_MAX && encoded_len(&report) <= REPORT_BYTES_MAX {
        return vec![report];
    }
    let mut messages = Vec::new();
    let header = PumpReport { items: Vec::new(), ..report };
    let header_bytes = encoded_len(&header);
    let (mut message, mut message_bytes) = (header.clone(), header_bytes);
    for item in report.items {
        let item_bytes = encoded_len(&item) + ITEM_OVERHEAD;
        if message.items.len() == REPORT_ITEMS_MAX
            || (message_bytes + item_bytes > REPORT_BYTES_MAX && !message.items.is_empty())
        {
            messages.push(std::mem::replace(&mut message, header.clone()));
            message_bytes = header_bytes;
        }
        message_bytes += item_bytes;
        message.items.push(item);
    }
    messages.push(message);
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_bounded_and_have_every_item_once() {
        for (count, checkpoint) in [(0, 0), (1_000, 10), (1_001, 0), (10_000, 4_096)] {
            let item = |n: i64| PumpProgress {
                name: format!("{n:05}"),
                epoch: n,
                checkpoint: "x".repeat(checkpoint),
                ..PumpProgress::default()
            };
            let report =
                PumpReport { run_id: 7, number: 3, items: (0..count).map(item).collect(), ..Default::default() };
            let parts = split(report.clone());
            for part in &parts {
                assert!(part.items.len() < ITEM_COUNT_MAX && encoded_len(part) <= REPORT_BYTES_MAX);
                assert_eq!((part.run_id, part.number), (7, 3));
            }
            let items: Vec<_> = parts.into_iter().flat_map(|part| part.items).collect();
            assert_eq!(items, report.items);
        }
    }
}
