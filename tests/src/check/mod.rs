//! The checker: compares what a system promised with what its handlers saw.
//!
//! Ground truth is the journal, files that handlers append to outside of Rondel. It is compared with the ledger, as the
//! REST API returns it, and with the history of the API calls made meanwhile. [`check`] is pure: it judges [`Evidence`] and
//! returns a [`Report`], whichever run the evidence is from. `cargo run -p rondel-tests --bin check` does the same by hand.
//!
//! | invariant | what must hold |
//! |---|---|
//! | I1 complete | each planned instant of each job has exactly one row, or lies in exactly one recorded span of skips; an at-least-once run that failed has begun |
//! | I2 not early | no handler begins before its fire's instant |
//! | I3 no duplicate | one start per run and attempt; a further attempt has a reason; at most once means one start |
//! | I4 no overlap | the starts and ends of a serial job's runs do not overlap |
//! | I5 fencing | a serial job's fencing tokens rise from start to start |
//! | I6 durable | the end that a handler reported is the ledger's verdict, and a verdict that was seen stays |
//! | I7 liveness | no run is open that should have ended, and each job continues to fire |
//! | I8 conservation | every row has a known status, and the fields that its verdict requires |
//! | I11 API | acknowledged changes exist, and a paused or deleted job no longer fires |

mod calls;
mod collect;
mod evidence;
mod fires;
mod journal;
mod report;
mod results;
mod starts;
#[cfg(test)]
mod tests;

pub use collect::collect;
pub use evidence::{Attempt, Call, Died, Evidence, JobFacts, Paused, RunRow, Start};
pub use journal::read_journal;
pub use report::{Invariant, Lateness, Report, Violation};

/// How strictly to judge.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Fires that are due less than this many milliseconds before the reading may have no row yet.
    pub settle_ms: i64,
    /// A start up to this many milliseconds before its instant is not early, because instants are rounded.
    pub early_ms: i64,
    /// Runs may be open: the system was read while it worked.
    pub may_be_open: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { settle_ms: 5_000, early_ms: 0, may_be_open: false }
    }
}

/// Judges the evidence by all invariants.
#[must_use]
pub fn check(evidence: &Evidence, rules: Rules) -> Report {
    let mut report = Report::new(evidence);
    fires::check(evidence, rules, &mut report);
    starts::check(evidence, rules, &mut report);
    results::check(evidence, rules, &mut report);
    calls::check(evidence, rules, &mut report);
    report
}
