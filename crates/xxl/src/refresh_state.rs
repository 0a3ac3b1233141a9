//! State that each refresh of the links passes on to the next one.

use std::collections::HashSet;
use std::time::Duration;

use rondel_core::{ExecutorId, Timestamp};
use rondel_store::xxl::{XXL_REGISTERED_FOR, XxlExecutor};
use tokio::time::Instant;

/// How long an executor counts as registered after its last registration.
pub(crate) const REGISTERED_FOR: Duration = XXL_REGISTERED_FOR;
/// How often the store is read for ends that no link has reported.
const REPORTING_READ_PERIOD: Duration = Duration::from_secs(10);

/// The state between two refreshes of the links.
#[derive(Debug, Default)]
pub(crate) struct RefreshState {
    failed_at: Option<Instant>,
    /// The executors registered by hand, including those that a user has removed and that still have attempts.
    registered_by_hand: Vec<XxlExecutor>,
    /// The executors that are no longer registered but have ends to report.
    reporting_executors: Vec<XxlExecutor>,
    /// When `reporting_executors` was read from the store.
    reporting_read_at: Option<Instant>,
    /// The executors that are expected back, as determined after the first refresh: see [`Self::note_expected_executors`].
    expected_executors: Vec<XxlExecutor>,
    /// When the first refresh was.
    first_refresh_at: Option<Instant>,
}

impl RefreshState {
    /// Records that a refresh failed.
    pub(crate) fn note_failure(&mut self, now: Instant) {
        self.failed_at = Some(now);
    }

    /// Whether executors may count as gone. While the store fails, no registration is stored. After a failure, each executor therefore
    /// first gets the time for a new registration.
    pub(crate) fn may_expire(&self, now: Instant) -> bool {
        self.failed_at.is_none_or(|at| now.duration_since(at) >= REGISTERED_FOR)
    }

    /// The executors registered by hand. Those that a user has removed are included, as signed off, while they have attempts. Sign-offs
    /// that the executors made themselves are ignored.
    pub(crate) fn by_hand_with_removed(
        &mut self,
        executors_by_hand: Vec<XxlExecutor>,
        now: Timestamp,
        has_attempts: impl Fn(ExecutorId) -> bool,
    ) -> Vec<XxlExecutor> {
        // A removed executor counts as registered by hand, so that it stays until its attempts are done.
        let known_ids: HashSet<ExecutorId> = executors_by_hand.iter().map(|executor| executor.id).collect();
        let previous_executors = std::mem::take(&mut self.registered_by_hand).into_iter();
        let removed_executors =
            previous_executors.filter(|executor| !known_ids.contains(&executor.id) && has_attempts(executor.id));
        let removed_executors =
            removed_executors.map(|executor| XxlExecutor { left_at: executor.left_at.or(Some(now)), ..executor });
        let executors_by_hand = executors_by_hand.into_iter().map(|executor| XxlExecutor { left_at: None, ..executor });
        self.registered_by_hand = executors_by_hand.chain(removed_executors).collect();
        self.registered_by_hand.clone()
    }

    /// Whether the store is to be read again for ends that no link has reported.
    pub(crate) fn is_reporting_read_due(&self, now: Instant) -> bool {
        self.reporting_read_at.is_none_or(|at| now.duration_since(at) >= REPORTING_READ_PERIOD)
    }

    /// Records the executors that are no longer registered but have ends to report.
    pub(crate) fn note_reporting_executors(&mut self, reporting_executors: Vec<XxlExecutor>, now: Instant) {
        (self.reporting_executors, self.reporting_read_at) = (reporting_executors, Some(now));
    }

    /// Adds the executors that are no longer registered but have ends to report. They get no runs: they have signed
    /// off, or were last seen too long ago.
    pub(crate) fn with_reporting_executors(&self, executors: Vec<XxlExecutor>) -> Vec<XxlExecutor> {
        with_leaving(executors, &self.reporting_executors)
    }

    /// Whether the executors that are expected back have not been determined yet.
    pub(crate) const fn is_before_first_refresh(&self) -> bool {
        self.first_refresh_at.is_none()
    }

    /// Records the executors that are expected back: they have runs, and either a user has removed them, or their registrations have ended
    /// or end before the next ones are due.
    pub(crate) fn note_expected_executors(&mut self, expected_executors: Vec<XxlExecutor>, now: Instant) {
        let known_ids: HashSet<ExecutorId> = self.registered_by_hand.iter().map(|executor| executor.id).collect();
        let is_new = |executor: &&XxlExecutor| is_removed_by_hand(executor) && !known_ids.contains(&executor.id);
        self.registered_by_hand.extend(expected_executors.iter().filter(is_new).cloned());
        (self.expected_executors, self.first_refresh_at) = (expected_executors, Some(now));
    }

    /// The executors that are still expected back.
    pub(crate) fn expected_ids(&self, now: Instant) -> HashSet<ExecutorId> {
        let expected_executors: &[XxlExecutor] = if self.is_expecting(now) { &self.expected_executors } else { &[] };
        expected_executors.iter().map(|executor| executor.id).collect()
    }

    fn is_expecting(&self, now: Instant) -> bool {
        self.first_refresh_at.is_some_and(|at| now.duration_since(at) < REGISTERED_FOR)
    }

    /// Adds the executors that are expected back, for a while and without giving them runs. Before the first refresh, there may have been
    /// no server to receive their registrations, so each executor gets the time for a new registration.
    pub(crate) fn with_expected_executors(&self, executors: Vec<XxlExecutor>, now: Instant) -> Vec<XxlExecutor> {
        if self.is_expecting(now) { with_leaving(executors, &self.expected_executors) } else { executors }
    }
}

/// Whether a user registered the executor and has removed it, and it did not register itself at that time. An executor that signs off itself
/// does so while it is registered.
pub(crate) fn is_removed_by_hand(executor: &XxlExecutor) -> bool {
    let never_registered = executor.last_seen_at == Timestamp::EPOCH;
    let was_unregistered = |left_at: Timestamp| left_at.since(executor.last_seen_at) >= REGISTERED_FOR;
    executor.by_hand_at.is_none() && (never_registered || executor.left_at.is_some_and(was_unregistered))
}

/// Adds executors that are not among the registered ones, as leaving.
fn with_leaving(mut executors: Vec<XxlExecutor>, leaving_executors: &[XxlExecutor]) -> Vec<XxlExecutor> {
    let known_ids: HashSet<ExecutorId> = executors.iter().map(|executor| executor.id).collect();
    let to_leaving = |executor: &XxlExecutor| XxlExecutor {
        left_at: executor.left_at.or(Some(executor.last_seen_at)),
        ..executor.clone()
    };
    executors.extend(leaving_executors.iter().filter(|executor| !known_ids.contains(&executor.id)).map(to_leaving));
    executors
}

#[cfg(test)]
mod tests {
    use rondel_core::{AppId, NamespaceId};

    use super::*;

    fn executor(id: i64) -> XxlExecutor {
        XxlExecutor {
            id: ExecutorId::new(id),
            namespace: NamespaceId::new(1),
            app: AppId::new(2),
            address: format!("http://10.0.0.{id}:9999"),
            token: String::new(),
            first_seen_at: Timestamp::EPOCH,
            last_seen_at: Timestamp::EPOCH,
            left_at: None,
            by_hand_at: Some(Timestamp::EPOCH),
        }
    }

    fn shown(found: &[XxlExecutor]) -> Vec<(i64, bool)> {
        found.iter().map(|one| (one.id.get(), one.left_at.is_some())).collect()
    }

    #[test]
    fn an_executor_that_was_removed_leaves_once_it_has_no_attempts() {
        let (mut state, now) = (RefreshState::default(), Timestamp::from_secs(100));
        let mut refresh = |executors_by_hand: &[i64], busy: &[i64]| {
            let executors_by_hand = executors_by_hand.iter().map(|id| executor(*id)).collect();
            shown(&state.by_hand_with_removed(executors_by_hand, now, |id| busy.contains(&id.get())))
        };
        assert_eq!(refresh(&[1, 2, 3], &[1, 2]), [(1, false), (2, false), (3, false)]);
        assert_eq!(refresh(&[1], &[1, 2]), [(1, false), (2, true)], "3 has no attempts");
        assert_eq!(refresh(&[1], &[1, 2]), [(1, false), (2, true)]);
        assert_eq!(refresh(&[1, 2], &[2]), [(1, false), (2, false)], "it was added again");
        assert_eq!(refresh(&[], &[2]), [(2, true)]);
        assert!(refresh(&[], &[]).is_empty() && refresh(&[], &[2]).is_empty());
    }

    #[tokio::test]
    async fn an_executor_that_was_removed_before_a_restart_leaves_once_it_has_no_attempts() {
        let (mut state, start) = (RefreshState::default(), Instant::now());
        let removed = XxlExecutor { by_hand_at: None, left_at: Some(Timestamp::from_secs(90)), ..executor(1) };
        state.note_expected_executors(vec![removed], start);
        let mut refresh = |now: Instant, busy: &[i64]| {
            let expected_ids = state.expected_ids(now);
            let may_have_attempts = |id: ExecutorId| busy.contains(&id.get()) || expected_ids.contains(&id);
            shown(&state.by_hand_with_removed(Vec::new(), Timestamp::from_secs(100), may_have_attempts))
        };
        assert_eq!(refresh(start, &[]), [(1, true)], "its link is not open yet");
        assert_eq!(refresh(start + REGISTERED_FOR, &[1]), [(1, true)]);
        assert!(refresh(start + REGISTERED_FOR, &[]).is_empty());
    }

    #[test]
    fn an_executor_was_removed_if_it_left_without_a_registration_of_its_own() {
        let (seen, registered_until) = (Timestamp::from_secs(50_000), Timestamp::from_secs(50_000) + REGISTERED_FOR);
        for (last_seen_at, left_at, wanted) in [
            (Timestamp::EPOCH, Some(seen), true),
            (Timestamp::EPOCH, None, true),
            // It registered itself long before a user removed it.
            (seen, Some(registered_until), true),
            (seen, Some(seen + REGISTERED_FOR / 3), false),
            (seen, None, false),
        ] {
            let removed = XxlExecutor { last_seen_at, left_at, by_hand_at: None, ..executor(1) };
            assert_eq!(is_removed_by_hand(&removed), wanted, "{removed:?}");
            assert!(!is_removed_by_hand(&XxlExecutor { by_hand_at: Some(seen), ..removed }), "it is not removed");
        }
    }

    #[tokio::test]
    async fn no_executor_expires_soon_after_the_store_failed() {
        let (mut state, now) = (RefreshState::default(), Instant::now());
        assert!(state.may_expire(now));
        state.note_failure(now);
        assert!(!state.may_expire(now) && !state.may_expire(now + REGISTERED_FOR / 2));
        assert!(state.may_expire(now + REGISTERED_FOR));
    }

    #[tokio::test]
    async fn executors_with_ends_to_report_are_leaving() {
        let (mut state, now) = (RefreshState::default(), Instant::now());
        assert!(state.is_reporting_read_due(now));
        state.note_reporting_executors(vec![executor(1), executor(2)], now);
        assert!(!state.is_reporting_read_due(now) && state.is_reporting_read_due(now + REPORTING_READ_PERIOD));
        assert_eq!(
            shown(&state.with_reporting_executors(vec![executor(1)])),
            [(1, false), (2, true)],
            "1 is registered"
        );
    }

    #[tokio::test]
    async fn executors_with_runs_get_the_time_for_a_new_registration() {
        let (mut state, now) = (RefreshState::default(), Instant::now());
        assert!(state.is_before_first_refresh() && state.with_expected_executors(Vec::new(), now).is_empty());
        state.note_expected_executors(vec![executor(1), executor(2)], now);
        assert!(!state.is_before_first_refresh());
        let soon = now + REGISTERED_FOR / 2;
        assert_eq!(
            shown(&state.with_expected_executors(vec![executor(1)], soon)),
            [(1, false), (2, true)],
            "1 is registered"
        );
        let later = now + REGISTERED_FOR;
        assert_eq!(shown(&state.with_expected_executors(vec![executor(1)], later)), [(1, false)], "2 did not register");
    }
}
