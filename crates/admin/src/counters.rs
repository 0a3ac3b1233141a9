//! Counters of rare events, for operators and tests: each is 0 in a quiet cluster.

use std::sync::atomic::{AtomicU64, Ordering};

rondel_core::plain_word_enum! {
    /// A rare event that is counted. Its word is the name of the metric, without the suffix of a counter.
    pub Count {
        /// Triggers that an executor refused because their epoch was fenced: this node was suspended beyond its lease.
        TriggersFenced = "rondel_triggers_fenced",
        /// Statements that the store refused because this node's epoch was replaced or its lease had ended.
        StatementsRefused = "rondel_statements_refused",
        /// Results of attempts that a later attempt had replaced.
        ResultsSuperseded = "rondel_results_superseded",
        /// Results that came after the verdict `unknown`.
        ResultsLate = "rondel_results_late",
        /// Results for runs that do not exist.
        ResultsUnknown = "rondel_results_unknown",
        /// Results for runs that the executor does not hold: they belong to another app or to another executor.
        ResultsRefused = "rondel_results_refused",
        /// Executors that no server heard for so long that their runs were given up.
        ExecutorsLost = "rondel_executors_lost",
        /// Runs handed over to another node, which has a stream to a suitable executor or is the home of the run's limit.
        RunsHandedOver = "rondel_runs_handed_over",
        /// How often the database had lost writes of this node: a restored backup, or a failover without the last transactions.
        DatabaseRegressions = "rondel_database_regressions",
    }
}

impl Count {
    /// Help text of the metric.
    pub(crate) const fn help(self) -> &'static str {
        match self {
            Self::TriggersFenced => "Triggers that executors refused because this node had lost its lease",
            Self::StatementsRefused => {
                "Statements that the database refused because another node owns the lease or the run by now, or an executor may have the run"
            }
            Self::ResultsSuperseded => "Results of attempts that a later one had followed",
            Self::ResultsLate => "Results that came after the verdict unknown",
            Self::ResultsUnknown => "Results of runs that do not exist",
            Self::ResultsRefused => "Results of runs that the reporting executor does not have",
            Self::ExecutorsLost => "Executors that no server heard for so long that their runs were given up",
            Self::RunsHandedOver => "Runs that were handed over to another node",
            Self::DatabaseRegressions => "How often the database had lost data that this node had written",
        }
    }

    /// Name in the API: the name of the metric without prefix and suffix.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.as_str().trim_start_matches("rondel_")
    }
}

/// The counts of this process since its start.
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; Count::ALL.len()]);

impl Counters {
    /// Adds `count` to a counter.
    pub(crate) fn add(&self, counter: Count, count: usize) {
        self.0[counter as usize].fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The current count.
    #[must_use]
    pub fn get(&self, counter: Count) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }

    /// All counts, each with its name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Count::ALL.into_iter().map(|what| (what.name(), self.get(what)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_counts_separately() {
        let counters = Counters::default();
        for (index, what) in Count::ALL.into_iter().enumerate() {
            assert_eq!(what as usize, index, "{what:?} stands elsewhere in the list");
            assert_eq!(what.as_str(), format!("rondel_{}", what.name()));
            counters.add(what, index);
        }
        let names: std::collections::BTreeSet<_> = counters.all().map(|(name, _)| name).collect();
        assert_eq!(names.len(), Count::ALL.len());
        assert!(counters.all().map(|(_, count)| count).eq((0..).take(Count::ALL.len())));
    }
}
