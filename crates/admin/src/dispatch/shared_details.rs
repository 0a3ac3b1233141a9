//! Recorded waits of runs in memory. Many thousand runs of a server that has died may wait for the same: they share one detail.

use std::collections::HashSet;
use std::sync::Arc;

use rondel_core::Run;
use rondel_core::reason::ReasonDetail;

/// With fewer details, those that no run has any more are not removed.
const SWEEP_COUNT_MIN: usize = 1_000;

/// The details that runs in memory have.
#[derive(Debug, Default)]
pub(crate) struct SharedDetails {
    details: HashSet<Arc<ReasonDetail>>,
    /// How many details the last sweep left.
    swept_count: usize,
}

impl SharedDetails {
    /// Replaces the detail of a run by the equal one of earlier runs, if there is one.
    pub(crate) fn share(&mut self, run: &mut Run) {
        // A detail of several owners is a shared one, or one that a decision in progress reads.
        let Some(detail) = run.detail.as_mut().filter(|detail| Arc::strong_count(detail) == 1) else { return };
        if let Some(shared) = self.details.get(detail) {
            *detail = Arc::clone(shared);
            return;
        }
        if self.details.len() >= SWEEP_COUNT_MIN.max(2 * self.swept_count) {
            self.details.retain(|detail| Arc::strong_count(detail) > 1);
            self.swept_count = self.details.len();
        }
        self.details.insert(Arc::clone(detail));
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::Timestamp;

    use super::*;
    use crate::dispatch::tests_support::run_due_at;

    fn waiting_run(app: usize) -> Run {
        let detail = ReasonDetail { app: Some(format!("app-{app}")), ..ReasonDetail::default() };
        Run { detail: Some(Arc::new(detail)), ..run_due_at(Timestamp::EPOCH) }
    }

    #[test]
    fn runs_that_wait_for_the_same_share_one_detail() {
        let mut shared = SharedDetails::default();
        let mut runs: Vec<Run> = (0..300).map(|number| waiting_run(number % 3)).collect();
        runs.iter_mut().for_each(|run| shared.share(run));
        let owners: Vec<usize> = runs.iter().filter_map(|run| run.detail.as_ref()).map(Arc::strong_count).collect();
        assert_eq!(owners, [101; 300], "100 runs each, and the set");
        assert!(runs.iter().zip(0..).all(|(run, number)| run.detail == waiting_run(number % 3).detail));
        shared.share(&mut run_due_at(Timestamp::EPOCH));
        assert_eq!(shared.details.len(), 3);
    }

    #[test]
    fn details_that_no_run_has_are_removed() {
        let mut shared = SharedDetails::default();
        let mut kept: Vec<Run> = (0..600).map(waiting_run).collect();
        kept.iter_mut().for_each(|run| shared.share(run));
        for app in 600..10_000 {
            shared.share(&mut waiting_run(app));
            assert!(shared.details.len() <= 2 * 600 + 1, "{}", shared.details.len());
        }
        assert!(kept.iter().all(|run| shared.details.contains(run.detail.as_ref().unwrap())));
    }
}
