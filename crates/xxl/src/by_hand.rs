//! The last answers of executors that users registered by address. Each server calls their `/beat`, and serves those that answer.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_core::ExecutorId;
use rondel_store::xxl::XxlExecutor;
use tokio::time::Instant;

/// The period of the calls to one executor.
const BEAT_PERIOD: Duration = Duration::from_secs(5);
/// How long an answer remains valid.
const BEAT_VALID_FOR: Duration = Duration::from_secs(30);

/// The outcome of a call to an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeatOutcome {
    Available,
    /// The executor answers, but its token has ended, so its callbacks would be refused.
    TokenEnded {
        /// Whether the executor has attempts of open runs, according to the store.
        has_runs: bool,
    },
    NoAnswer,
}

/// The state of one executor.
#[derive(Debug, Default)]
struct ExecutorBeat {
    asked_at: Option<Instant>,
    succeeded_at: Option<Instant>,
    /// When the executor last answered although its token had ended.
    token_ended_at: Option<Instant>,
    /// Whether the executor had attempts of open runs at `token_ended_at`.
    has_runs: bool,
    is_asking: bool,
}

impl ExecutorBeat {
    fn is_due(&self, now: Instant) -> bool {
        !self.is_asking && self.asked_at.is_none_or(|at| now.duration_since(at) >= BEAT_PERIOD)
    }

    fn is_available(&self, now: Instant) -> bool {
        self.succeeded_at.is_some_and(|at| now.duration_since(at) < BEAT_VALID_FOR)
    }

    fn is_leaving(&self, now: Instant) -> bool {
        let has_ended_token = self.token_ended_at.is_some_and(|at| now.duration_since(at) < BEAT_VALID_FOR);
        has_ended_token && !self.is_available(now)
    }
}

/// The states of all executors registered by hand.
#[derive(Debug, Default)]
pub(crate) struct Beats(BTreeMap<ExecutorId, ExecutorBeat>);

impl Beats {
    /// The executors that are due for a call. `executors` are all executors registered by hand. The caller must record each answer with
    /// [`Self::note_answer`].
    pub(crate) fn take_due(&mut self, executors: &[XxlExecutor], now: Instant) -> Vec<XxlExecutor> {
        self.0.retain(|id, _| executors.iter().any(|executor| executor.id == *id));
        let mut due_executors = Vec::new();
        for executor in executors {
            let beat = self.0.entry(executor.id).or_default();
            if beat.is_due(now) {
                (beat.is_asking, beat.asked_at) = (true, Some(now));
                due_executors.push(executor.clone());
            }
        }
        due_executors
    }

    /// Whether the last answer that showed the executor as available is still valid.
    pub(crate) fn is_available(&self, id: ExecutorId, now: Instant) -> bool {
        self.0.get(&id).is_some_and(|beat| beat.is_available(now))
    }

    /// Whether the executor had attempts of open runs when it last answered although its token had ended. After a restart, this server has no link
    /// that knows of them.
    pub(crate) fn has_runs(&self, id: ExecutorId) -> bool {
        self.0.get(&id).is_some_and(|beat| beat.has_runs)
    }

    /// Whether the executor still answers but is no longer available, because its token has ended. Its runs are not lost.
    pub(crate) fn is_leaving(&self, id: ExecutorId, now: Instant) -> bool {
        self.0.get(&id).is_some_and(|beat| beat.is_leaving(now))
    }

    /// Records an answer. Returns true if the executor was not available before and is available now.
    pub(crate) fn note_answer(&mut self, id: ExecutorId, outcome: BeatOutcome, now: Instant) -> bool {
        let Some(beat) = self.0.get_mut(&id) else { return false };
        beat.is_asking = false;
        let was_available = beat.is_available(now);
        match outcome {
            BeatOutcome::Available => beat.succeeded_at = Some(now),
            BeatOutcome::TokenEnded { has_runs } => (beat.token_ended_at, beat.has_runs) = (Some(now), has_runs),
            BeatOutcome::NoAnswer => {}
        }
        outcome == BeatOutcome::Available && !was_available
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::{AppId, NamespaceId, Timestamp};

    use super::*;

    #[test]
    fn an_executor_is_available_while_its_last_answer_counts() {
        let id = ExecutorId::new(3);
        let all = [XxlExecutor {
            id,
            namespace: NamespaceId::new(1),
            app: AppId::new(2),
            address: "http://10.0.0.5:9999".to_owned(),
            token: String::new(),
            first_seen_at: Timestamp::EPOCH,
            last_seen_at: Timestamp::EPOCH,
            left_at: None,
            by_hand_at: Some(Timestamp::EPOCH),
        }];
        let (mut beats, now) = (Beats::default(), Instant::now());
        assert_eq!(beats.take_due(&all, now).len(), 1);
        assert!(beats.take_due(&all, now + BEAT_PERIOD).is_empty(), "one question at a time");
        assert!(!beats.is_available(id, now));
        let available = BeatOutcome::Available;
        assert!(beats.note_answer(id, available, now) && !beats.note_answer(id, available, now), "it is news once");
        assert!(beats.take_due(&all, now + BEAT_PERIOD / 2).is_empty());
        assert_eq!(beats.take_due(&all, now + BEAT_PERIOD).len(), 1);
        assert!(!beats.note_answer(id, BeatOutcome::NoAnswer, now + BEAT_PERIOD));
        assert!(beats.is_available(id, now + BEAT_VALID_FOR / 2) && !beats.is_available(id, now + BEAT_VALID_FOR));
        assert!(!beats.is_leaving(id, now + BEAT_VALID_FOR), "it does not answer");
        let ended_at = now + BEAT_VALID_FOR / 2;
        assert!(!beats.note_answer(id, BeatOutcome::TokenEnded { has_runs: true }, ended_at) && beats.has_runs(id));
        assert!(beats.is_available(id, ended_at) && !beats.is_leaving(id, ended_at));
        assert!(!beats.is_available(id, now + BEAT_VALID_FOR) && beats.is_leaving(id, now + BEAT_VALID_FOR));
        assert!(!beats.is_leaving(id, ended_at + BEAT_VALID_FOR));
        assert!(!beats.note_answer(id, BeatOutcome::TokenEnded { has_runs: false }, ended_at) && !beats.has_runs(id));
        assert!(beats.take_due(&[], now).is_empty());
        assert!(!beats.note_answer(id, available, now), "it was removed meanwhile");
    }
}
