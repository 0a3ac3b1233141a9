//! Executors that leave triggers unanswered although they send heartbeats, and how long routing avoids them.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_core::backoff::backoff;
use rondel_core::{ExecutorId, Timestamp};

use crate::registry::UnansweredTriggers;

/// How long routing avoids an executor that left triggers unanswered once. The time doubles with each further silence.
const PAUSE_MIN: Duration = Duration::from_secs(30);
/// Maximum time for which routing avoids such an executor.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Executors that left triggers unanswered, until they answer one or are lost.
#[derive(Debug, Default)]
pub(crate) struct Silences(BTreeMap<ExecutorId, Silence>);

#[derive(Clone, Copy, Debug)]
struct Silence {
    triggers: UnansweredTriggers,
    /// Until when routing avoids the executor.
    avoided_until: Timestamp,
}

impl Silences {
    /// Records that the executor's stream is ended, because the executor has left a trigger unanswered since `since`.
    pub(crate) fn record_unanswered(
        &mut self,
        executor: ExecutorId,
        since: Timestamp,
        now: Timestamp,
    ) -> UnansweredTriggers {
        let earlier_triggers = self.0.get(&executor).map(|silence| silence.triggers);
        let earlier_triggers = earlier_triggers.unwrap_or(UnansweredTriggers { count: 0, since });
        let triggers = UnansweredTriggers { count: earlier_triggers.count.saturating_add(1), ..earlier_triggers };
        let avoided_until = now + backoff(PAUSE_MIN, PAUSE_MAX, triggers.count);
        self.0.insert(executor, Silence { triggers, avoided_until });
        triggers
    }

    /// Ends the silence: the executor answered, or is lost. Returns whether it had left a trigger unanswered.
    pub(crate) fn end(&mut self, executor: ExecutorId) -> bool {
        self.0.remove(&executor).is_some()
    }

    pub(crate) fn of(&self, executor: ExecutorId) -> Option<UnansweredTriggers> {
        self.0.get(&executor).map(|silence| silence.triggers)
    }

    /// Until when runs go to other executors first; `None` if the executor has answered its last triggers.
    pub(crate) fn avoided_until(&self, executor: ExecutorId) -> Option<Timestamp> {
        self.0.get(&executor).map(|silence| silence.avoided_until)
    }

    /// Whether runs go to other executors first.
    pub(crate) fn is_avoided(&self, executor: ExecutorId, now: Timestamp) -> bool {
        self.avoided_until(executor).is_some_and(|until| until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_until_the_executor_answers() {
        let (mut silences, executor, at) = (Silences::default(), ExecutorId::new(1), Timestamp::from_secs);
        for (count, now, until) in [(1, 100, 130), (2, 200, 260), (3, 300, 420), (4, 500, 740), (5, 800, 1_280)] {
            let expected = UnansweredTriggers { count, since: at(85) };
            assert_eq!(silences.record_unanswered(executor, at(now - 15), at(now)), expected);
            assert!(
                silences.is_avoided(executor, at(until - 1)) && !silences.is_avoided(executor, at(until)),
                "{count}"
            );
        }
        silences.record_unanswered(executor, at(2_000), at(2_000));
        assert!(!silences.is_avoided(executor, at(2_600)), "ten minutes at most");
        assert!(silences.end(executor) && !silences.end(executor));
        assert_eq!(silences.record_unanswered(executor, at(3_000), at(3_015)).count, 1, "it had answered");
    }
}
