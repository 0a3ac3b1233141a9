//! Finds the highest rate at which runs start in time, by repeated measurements on the same database. A rate is sustained if the system
//! keeps up with it. The number of jobs doubles until a rate is not sustained. The search then continues between the last sustained rate and
//! the first that was not.

use std::time::Duration;

use serde::Serialize;

use crate::BenchError;
use crate::plan::Plan;
use crate::report::Report;
use crate::steps::{measure, open, probe_unless_idle};
use crate::usage;

/// The search ends when the step to the next rate is less than the highest sustained rate divided by this.
const STEP_DIVISOR: u32 = 10;
/// Minimum percentage of the rate that must become durable within the window. The other runs may be in flight at the window's beginning and
/// end.
const DURABLE_PERCENT_MIN: f64 = 95.0;

/// One measurement of the search.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// The jobs, which fired each second.
    pub jobs: u32,
    /// What was measured.
    pub report: Report,
    /// Why the rate was not sustained; `None` if it was.
    pub failure: Option<String>,
}

/// The result of a search.
#[derive(Clone, Debug, Serialize)]
pub struct MaxReport {
    /// The bound of the 99th percentile of the start's lateness, in milliseconds.
    pub late_max_ms: f64,
    /// All measurements, in the order in which they were made.
    pub rounds: Vec<Round>,
    /// The report of the highest sustained rate, with the probe of the database before and after the search; `None` if
    /// no rate was sustained.
    pub highest: Option<Report>,
    /// Why the search ended early: a round overloaded the system so much that it could not be measured.
    pub stopped: Option<String>,
}

/// The bounds of a search.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The bound of the 99th percentile of the start's lateness.
    pub late_max: Duration,
    /// The highest rate that is tried.
    pub jobs_max: u32,
}

/// Searches for the highest rate within these bounds, from `plan.jobs` on. `on_round` is called after each measurement.
///
/// # Errors
/// Those of [`BenchError`]. A round that overloads the system is an error only if it is the first one and could not be
/// measured.
pub async fn find_max(plan: &Plan, bounds: Bounds, mut on_round: impl FnMut(&Round)) -> Result<MaxReport, BenchError> {
    let load_before = usage::load();
    let store = open(plan).await?;
    let lanes_before = probe_unless_idle(&store, plan).await?;
    let late_max_ms = bounds.late_max.as_secs_f64() * 1_000.0;
    let (mut search, mut rounds, mut stopped) = (Search::new(plan.jobs, bounds.jobs_max), Vec::new(), None);
    while let Some(jobs) = search.next_rate {
        let plan = Plan { jobs, must_settle: true, ..plan.clone() };
        let report = match measure(&store, &plan, load_before.clone()).await {
            Ok(report) => report,
            // The earlier rounds remain valid. There are no further rounds, because work that is left in the database
            // would disturb them.
            Err(BenchError::Failed { message }) if !rounds.is_empty() => {
                stopped = Some(format!("{jobs} runs per second: {message}"));
                break;
            }
            Err(error) => return Err(error),
        };
        let round = Round { jobs, failure: failure(&report, late_max_ms), report };
        on_round(&round);
        search.record(jobs, round.failure.is_none());
        rounds.push(round);
    }
    let mut lanes_after = Vec::new();
    // After a round that could not be measured, its servers still use the database and would slow the probe down.
    if stopped.is_none() {
        lanes_after = probe_unless_idle(&store, plan).await?;
        store.close().await;
    }
    let best_round = rounds.iter().filter(|round| round.failure.is_none()).max_by_key(|round| round.jobs);
    let mut highest = best_round.map(|round| round.report.clone());
    if let Some(highest) = &mut highest {
        highest.add_probe(lanes_before, lanes_after);
    }
    Ok(MaxReport { late_max_ms, rounds, highest, stopped })
}

/// Which rate is tried next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Search {
    /// The highest rate that was sustained.
    highest_sustained: u32,
    /// The lowest rate that was not sustained.
    lowest_failed: Option<u32>,
    /// The highest rate that is tried.
    max_rate: u32,
    /// The rate to try next; `None` once the search has ended.
    next_rate: Option<u32>,
}

impl Search {
    fn new(jobs: u32, max_rate: u32) -> Self {
        Self { highest_sustained: 0, lowest_failed: None, max_rate, next_rate: Some(jobs.min(max_rate)) }
    }

    fn record(&mut self, jobs: u32, is_sustained: bool) {
        match is_sustained {
            true => self.highest_sustained = self.highest_sustained.max(jobs),
            false => {
                self.lowest_failed = Some(self.lowest_failed.map_or(jobs, |lowest_failed| lowest_failed.min(jobs)))
            }
        }
        let next_rate = match self.lowest_failed {
            None => self.highest_sustained.saturating_mul(2).min(self.max_rate),
            Some(lowest_failed) => self.highest_sustained.midpoint(lowest_failed),
        };
        let step = next_rate.saturating_sub(self.highest_sustained);
        self.next_rate = (step > 0 && step >= self.highest_sustained / STEP_DIVISOR).then_some(next_rate);
    }
}

/// Why a rate was not sustained.
fn failure(report: &Report, late_max_ms: f64) -> Option<String> {
    let counts = &report.counts;
    let missing_count = counts.planned.saturating_sub(counts.durable);
    if missing_count > 0 {
        return Some(format!("{missing_count} of {} fires had no durable verdict in time", counts.planned));
    }
    let unexpected_count = counts.repeated + counts.early + counts.other_answers;
    if unexpected_count > 0 || counts.started != counts.planned {
        return Some(format!(
            "{} of {} fires started, {unexpected_count} repeated, early or odd",
            counts.started, counts.planned
        ));
    }
    let p99 = report.start_lateness.p99_ms;
    if p99 > late_max_ms {
        return Some(format!("p99 of the start is {p99:.1} ms late"));
    }
    let durable_percent = 100.0 * report.runs_per_second / f64::from(report.jobs.max(1));
    (durable_percent < DURABLE_PERCENT_MIN).then(|| format!("{durable_percent:.0} % of the rate became durable"))
}

impl MaxReport {
    /// The headings of [`rows`](Self::rows).
    pub const HEADINGS: [&str; 7] =
        ["RUNS/S", "P50 LATE", "P99 LATE", "LAST DURABLE", "CPU S/1000", "SERVER", "RESULT"];

    /// A row for each round.
    #[must_use]
    pub fn rows(&self) -> Vec<Vec<String>> {
        self.rounds.iter().map(Round::row).collect()
    }

    /// What was found, as lines of names and values.
    #[must_use]
    pub fn lines(&self) -> Vec<(String, String)> {
        let bound_text = format!("p99 of the start at most {} ms late", self.late_max_ms);
        let rate = match &self.highest {
            Some(highest) => format!("{} runs per second, {bound_text}", highest.jobs),
            None => format!("none: no round was sustained, {bound_text}"),
        };
        let mut lines = vec![("highest rate".to_owned(), rate)];
        lines.extend(self.stopped.iter().map(|reason| ("ended early".to_owned(), reason.clone())));
        lines.extend(self.highest.iter().flat_map(Report::lines));
        lines
    }
}

impl Round {
    /// The round as a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let sustained_text =
            || format!("sustained, p99 of the start is {:.1} ms late", self.report.start_lateness.p99_ms);
        let result = self.failure.as_deref().map_or_else(sustained_text, |failure| format!("not sustained, {failure}"));
        format!("{} runs per second: {result}", self.jobs)
    }

    fn row(&self) -> Vec<String> {
        let Report { start_lateness, durability, cpu, memory, .. } = &self.report;
        vec![
            self.jobs.to_string(),
            format!("{:.1} ms", start_lateness.p50_ms),
            format!("{:.1} ms", start_lateness.p99_ms),
            format!("{:.0} ms", durability.max_ms),
            format!("{:.3}", cpu.per_1000_runs_s),
            format!("{:.0} MB", memory.server_peak_mb),
            self.failure.clone().unwrap_or_else(|| "sustained".to_owned()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rates that a search tries on a system that sustains at most `capacity`, and the rate that it finds.
    fn tried_rates(first_rate: u32, capacity: u32) -> (Vec<u32>, u32) {
        let (mut search, mut tried_rates) = (Search::new(first_rate, 1_000_000), Vec::new());
        while let Some(jobs) = search.next_rate {
            tried_rates.push(jobs);
            assert!(tried_rates.len() < 40, "{tried_rates:?}");
            search.record(jobs, jobs <= capacity);
        }
        (tried_rates, search.highest_sustained)
    }

    #[test]
    fn an_early_end_has_its_reason() {
        let stopped = Some("64000 runs per second: creating the jobs took too long".to_owned());
        let report = MaxReport { late_max_ms: 100.0, rounds: Vec::new(), highest: None, stopped };
        let lines = report.lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(lines[1].0, "ended early");
    }

    #[test]
    fn the_highest_rate_is_found_to_a_tenth() {
        assert_eq!(
            tried_rates(1_000, 11_300),
            (vec![1_000, 2_000, 4_000, 8_000, 16_000, 12_000, 10_000, 11_000], 11_000)
        );
        assert_eq!(tried_rates(8_000, 900).1, 875);
        assert_eq!(tried_rates(1_000, 0).1, 0);
        assert_eq!(tried_rates(1, 3), (vec![1, 2, 4, 3], 3));
        assert_eq!(tried_rates(1_000, u32::MAX).1, 1_000_000);
        for capacity in [17, 999, 1_000, 1_001, 31_999, 250_000] {
            let (_, sustained) = tried_rates(1_000, capacity);
            assert!(
                sustained <= capacity && f64::from(sustained) * 1.2 >= f64::from(capacity),
                "{sustained} of {capacity}"
            );
        }
    }
}
