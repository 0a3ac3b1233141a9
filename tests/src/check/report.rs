//! The result of the checker.

use std::collections::BTreeMap;
use std::fmt;

use super::Evidence;

/// How many rows of one violation are printed.
const ROW_COUNT_MAX: usize = 12;

/// An invariant that must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// I1: each planned fire has its row.
    Complete,
    /// I2: nothing begins before its instant.
    NotEarly,
    /// I3: nothing begins twice without a reason.
    NoDuplicate,
    /// I4: a serial job's runs do not overlap.
    NoOverlap,
    /// I5: a serial job's fencing tokens rise.
    Fencing,
    /// I6: results are durable, verdicts final.
    Durable,
    /// I7: nothing is open for ever.
    Liveness,
    /// I8: each row has a status, and the fields that it requires.
    Conservation,
    /// I11: acknowledged calls survive.
    Acknowledged,
}

impl fmt::Display for Invariant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Complete => "I1 complete",
            Self::NotEarly => "I2 not early",
            Self::NoDuplicate => "I3 no duplicate",
            Self::NoOverlap => "I4 no overlap",
            Self::Fencing => "I5 fencing",
            Self::Durable => "I6 durable",
            Self::Liveness => "I7 liveness",
            Self::Conservation => "I8 conservation",
            Self::Acknowledged => "I11 acknowledged",
        })
    }
}

/// A violation of an invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// What is wrong, as a sentence.
    pub what: String,
    /// The rows that show it.
    pub rows: Vec<String>,
}

/// How late the handlers of scheduled first attempts began, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lateness {
    /// The median.
    pub p50: i64,
    /// The 99th percentile.
    pub p99: i64,
    /// The maximum.
    pub max: i64,
}

impl Lateness {
    /// The lateness of these handlers, in any order; all zero if there are none.
    #[must_use]
    pub fn of(mut late: Vec<i64>) -> Self {
        late.sort_unstable();
        let at = |percent: usize| late.get((late.len() * percent / 100).min(late.len().saturating_sub(1))).copied();
        Self { p50: at(50).unwrap_or(0), p99: at(99).unwrap_or(0), max: late.last().copied().unwrap_or(0) }
    }
}

/// Counts of the evidence, and the violations.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The violations, in the order of the invariants.
    pub violations: Vec<Violation>,
    /// The number of handlers that began.
    pub start_count: usize,
    /// The number of rows of the ledger.
    pub run_count: usize,
    /// The number of planned fires that were looked for.
    pub fire_count: usize,
    /// Jobs whose schedule the checker cannot enumerate: their fires were not looked for.
    pub unplanned_jobs: Vec<String>,
    /// Rows by status and, where there is one, reason.
    pub statuses: BTreeMap<String, usize>,
    /// Attempts that were given up, by reason.
    pub retried: BTreeMap<String, usize>,
    /// The lateness of scheduled first attempts.
    pub lateness: Lateness,
}

impl Report {
    pub(super) fn new(evidence: &Evidence) -> Self {
        Self { start_count: evidence.starts.len(), run_count: evidence.runs.len(), ..Self::default() }
    }

    pub(super) fn add(&mut self, invariant: Invariant, what: impl Into<String>, rows: Vec<String>) {
        self.violations.push(Violation { invariant, what: what.into(), rows });
    }

    /// Whether there is no violation.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// Fails a test if there is a violation.
    ///
    /// # Panics
    /// With the whole report.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "{} starts, {} rows, {} planned fires; late by p50 {} ms, p99 {} ms, at most {} ms",
            self.start_count, self.run_count, self.fire_count, self.lateness.p50, self.lateness.p99, self.lateness.max
        )?;
        writeln!(out, "rows by status: {:?}; attempts given up: {:?}", self.statuses, self.retried)?;
        if !self.unplanned_jobs.is_empty() {
            writeln!(out, "completeness not checked of: {}", self.unplanned_jobs.join(", "))?;
        }
        for violation in &self.violations {
            writeln!(out, "{}: {}", violation.invariant, violation.what)?;
            for row in violation.rows.iter().take(ROW_COUNT_MAX) {
                writeln!(out, "    {row}")?;
            }
            if violation.rows.len() > ROW_COUNT_MAX {
                writeln!(out, "    … and {} more", violation.rows.len() - ROW_COUNT_MAX)?;
            }
        }
        match self.violations.len() {
            0 => write!(out, "nothing is violated"),
            1 => write!(out, "1 violation"),
            count => write!(out, "{count} violations"),
        }
    }
}
