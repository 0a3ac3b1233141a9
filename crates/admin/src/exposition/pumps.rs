//! Metrics of individual pump jobs that have their own series.

use rondel_core::Timestamp;
use rondel_core::pump::{ItemState, Totals};

use super::family::{Family, Label, label};
use super::to_f64;

/// The totals of each job's items, with the labels of the job.
pub(super) fn families(pumps: &[(Vec<Label>, Totals)], now: Timestamp) -> Vec<Family> {
    let with_label = |labels: &[Label], name: &'static str, value: &str| {
        labels.iter().cloned().chain([label(name, value)]).collect::<Vec<_>>()
    };
    let items = pumps.iter().flat_map(|(labels, totals)| {
        let states = [
            (ItemState::Free, totals.free),
            (ItemState::Dealt, totals.dealt),
            (ItemState::Releasing, totals.releasing),
        ];
        states.map(|(state, count)| (with_label(labels, "state", state.as_str()), f64::from(count)))
    });
    let rows = pumps.iter().flat_map(|(labels, totals)| {
        let results = [("done", totals.counts.done), ("failed", totals.counts.failed)];
        results.map(|(result, count)| (with_label(labels, "result", result), u64::try_from(count).unwrap_or(0)))
    });
    let oldest_row_ages = pumps.iter().filter_map(|(labels, totals)| {
        let age = now.since(totals.oldest_at?);
        Some((labels.clone(), to_f64(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)) / 1_000.0))
    });
    vec![
        Family::gauges("rondel_pump_items", "Items of a pump job, by whether a group has them", items),
        Family::counters("rondel_pump_rows", "Rows of a pump job that were executed, by their result", rows),
        Family::gauges(
            "rondel_pump_oldest_row_age_seconds",
            "Since the oldest row in work was fetched",
            oldest_row_ages,
        ),
    ]
}
