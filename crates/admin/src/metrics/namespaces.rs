//! Counts fires and runs per namespace.
//!
//! A definition refers to the counts of its namespace, so that counting a run needs no look-up. The number of namespaces is bounded: later
//! namespaces share one set of counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rondel_core::outcome::Outcome;
use rondel_core::{NamespaceId, Reason, RunStatus, Trigger};

/// Maximum number of namespaces with their own counts.
const NAMESPACE_COUNT_MAX: usize = 1_000;
/// The name under which further namespaces, apps and label values are counted together. No namespace and no app can have it.
pub(super) const OTHER_NAME: &str = "_other";

rondel_core::plain_word_enum! {
    /// The outcome of a fire, as it is counted.
    pub(crate) FireOutcome {
        Dispatched = "dispatched",
        Missed = "missed",
        NoExecutor = "no_executor",
        Expired = "expired",
        SkippedOverlap = "skipped_overlap",
        SkippedStopped = "skipped_stopped",
        SkippedParent = "skipped_parent",
        SkippedMaintenance = "skipped_maintenance",
        /// The job is in shadow mode.
        SkippedShadow = "skipped_shadow",
        Cancelled = "cancelled",
    }
}

impl FireOutcome {
    /// Whether the fire should have run and was not skipped on purpose.
    pub(crate) const fn is_missed(self) -> bool {
        matches!(self, Self::Missed | Self::NoExecutor | Self::Expired)
    }

    /// The outcome of a fire whose run ended before any executor had it; `None` if it is not counted.
    pub(crate) const fn of_unsent(outcome: Outcome) -> Option<Self> {
        match outcome {
            Outcome::Skipped(reason) => Some(match reason {
                Reason::NoExecutor => Self::NoExecutor,
                Reason::Expired => Self::Expired,
                Reason::Overlap | Reason::Covered => Self::SkippedOverlap,
                Reason::Stopped => Self::SkippedStopped,
                Reason::Parent => Self::SkippedParent,
                Reason::Misfire => Self::Missed,
                Reason::Maintenance => Self::SkippedMaintenance,
                Reason::Shadow => Self::SkippedShadow,
                Reason::Paused
                | Reason::Changed
                | Reason::Deleted
                | Reason::Retry
                | Reason::ExecutorLost
                | Reason::NotReceived
                | Reason::Requested
                | Reason::Handler
                | Reason::WindowOver
                | Reason::Dry
                | Reason::Moved => return None,
            }),
            Outcome::Cancelled => Some(Self::Cancelled),
            Outcome::Succeeded
            | Outcome::Failed { .. }
            | Outcome::TimedOut
            | Outcome::Lost(_)
            | Outcome::Silenced { .. }
            | Outcome::Unreported
            | Outcome::Yielded => None,
        }
    }
}

type Fires = [[AtomicU64; FireOutcome::ALL.len()]; Trigger::ALL.len()];

#[derive(Debug)]
pub(crate) struct NamespaceCounts {
    pub(crate) name: String,
    fires: Fires,
    runs: [AtomicU64; RunStatus::ALL.len()],
    retries: [AtomicU64; Reason::ALL.len()],
}

impl NamespaceCounts {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            fires: Default::default(),
            runs: Default::default(),
            retries: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    pub(crate) fn count_fires(&self, trigger: Trigger, outcome: FireOutcome, count: u64) {
        self.fires[trigger as usize][outcome as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn count_run(&self, status: RunStatus) {
        self.runs[status as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_retry(&self, reason: Reason) {
        self.retries[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The counts of fires, by trigger and outcome, including counts of 0.
    pub(crate) fn read_fires(&self) -> impl Iterator<Item = (Trigger, FireOutcome, u64)> {
        let triggers = Trigger::ALL.iter().zip(&self.fires);
        triggers.flat_map(|(trigger, outcomes)| {
            let outcome_counts = FireOutcome::ALL.into_iter().zip(outcomes);
            outcome_counts.map(|(outcome, count)| (*trigger, outcome, count.load(Ordering::Relaxed)))
        })
    }

    pub(crate) fn read_runs(&self) -> impl Iterator<Item = (RunStatus, u64)> {
        let status_counts = RunStatus::ALL.iter().zip(&self.runs);
        status_counts.map(|(status, count)| (*status, count.load(Ordering::Relaxed)))
    }

    pub(crate) fn read_retries(&self) -> impl Iterator<Item = (Reason, u64)> {
        let reason_counts = Reason::ALL.iter().zip(&self.retries);
        reason_counts.map(|(why, count)| (*why, count.load(Ordering::Relaxed)))
    }
}

/// The counts of all namespaces that this process has seen.
#[derive(Debug, Default)]
pub(crate) struct Namespaces(Mutex<BTreeMap<NamespaceId, Arc<NamespaceCounts>>>);

impl Namespaces {
    pub(crate) fn of(&self, id: NamespaceId, name: &str) -> Arc<NamespaceCounts> {
        let mut namespaces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counts) = namespaces.get(&id) {
            return Arc::clone(counts);
        }
        let (id, name) =
            if namespaces.len() < NAMESPACE_COUNT_MAX { (id, name) } else { (NamespaceId::new(0), OTHER_NAME) };
        Arc::clone(namespaces.entry(id).or_insert_with(|| Arc::new(NamespaceCounts::new(name))))
    }

    /// The ids and names of the namespaces with counts.
    pub(crate) fn namespace_names(&self) -> Vec<(NamespaceId, String)> {
        let namespaces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        namespaces.iter().map(|(id, counts)| (*id, counts.name.clone())).collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<NamespaceCounts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_counted_by_itself() {
        let counts = NamespaceCounts::new("default");
        for (index, outcome) in FireOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index, "{outcome:?} stands elsewhere in the list");
        }
        for trigger in Trigger::ALL {
            for outcome in FireOutcome::ALL {
                counts.count_fires(*trigger, outcome, *trigger as u64 * 100 + outcome as u64);
            }
        }
        for (trigger, outcome, count) in counts.read_fires() {
            assert_eq!(count, trigger as u64 * 100 + outcome as u64);
        }
        RunStatus::ALL.iter().for_each(|status| counts.count_run(*status));
        counts.count_run(RunStatus::Failed);
        assert!(counts.read_runs().all(|(status, count)| count == 1 + u64::from(status == RunStatus::Failed)));
        counts.count_retry(Reason::NotReceived);
        assert!(counts.read_retries().all(|(why, count)| count == u64::from(why == Reason::NotReceived)));
    }

    #[test]
    fn namespaces_without_end_share_one_count() {
        let namespaces = Namespaces::default();
        for id in 1..=2_000 {
            namespaces.of(NamespaceId::new(id), &format!("n{id}")).count_run(RunStatus::Succeeded);
        }
        let all = namespaces.all();
        assert_eq!(all.len(), NAMESPACE_COUNT_MAX + 1);
        let succeeded = |counts: &NamespaceCounts| counts.read_runs().map(|(_, count)| count).sum::<u64>();
        let others = all.iter().find(|counts| counts.name == OTHER_NAME).unwrap();
        assert_eq!(succeeded(others), 1_000);
        assert_eq!(all.iter().map(|counts| succeeded(counts)).sum::<u64>(), 2_000);
    }
}
