//! Triggers that their executors have not answered. An executor answers each trigger as it receives it, long before the
//! run begins, and a stream keeps its order: an executor whose heartbeats come without the answer has not taken the run.
//!
//! Nothing is concluded from that here, for only the executor knows. Its stream is ended instead: the hello of the next one
//! lists what it has in hand, and a run that is not on that list was not received.
//!
//! Such an executor is left alone for a while, where another one can take the run: for longer each time, until it answers a trigger.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_core::backoff::doubled;
use rondel_core::reason::{Detail, Obstacle, ObstacleKind, WaitFor};
use rondel_core::{ExecutorId, Timestamp};

use crate::dispatch::active::{Active, NOTE_AFTER, Phase};
use crate::dispatch::decision::Decision;
use crate::dispatch::effect::Effect;
use crate::registry::UnansweredTriggers;

/// Heartbeats that must have come since the trigger was sent. The answer to a trigger is at most one heartbeat behind it, and
/// a server that reads late, because its database is slow, reads both late.
const BEAT_COUNT_MIN: u64 = 3;
/// How long an executor is left alone that left a trigger unanswered: this, twice as long each time that it does so again …
const PAUSE_MIN: Duration = Duration::from_secs(30);
/// … and at most this.
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// Unanswered runs that one round describes.
pub(crate) const DESCRIBED_COUNT_MAX: usize = 1_000;

/// Executors that left triggers unanswered, until they answer one or are lost.
#[derive(Debug, Default)]
pub(crate) struct Silences(BTreeMap<ExecutorId, Silence>);

#[derive(Clone, Copy, Debug)]
struct Silence {
    triggers: UnansweredTriggers,
    paused_until: Timestamp,
}

impl Silences {
    /// Its stream is ended for a trigger that it left unanswered since then.
    pub(crate) fn left_unanswered(
        &mut self,
        executor: ExecutorId,
        since: Timestamp,
        now: Timestamp,
    ) -> UnansweredTriggers {
        let before = self.0.get(&executor).map(|silence| silence.triggers);
        let before = before.unwrap_or(UnansweredTriggers { count: 0, since });
        let triggers = UnansweredTriggers { count: before.count.saturating_add(1), ..before };
        let paused_until = now + doubled(PAUSE_MIN, PAUSE_MAX, triggers.count);
        self.0.insert(executor, Silence { triggers, paused_until });
        triggers
    }

    /// It answers, or is gone. Answers whether it had left a trigger unanswered.
    pub(crate) fn end(&mut self, executor: ExecutorId) -> bool {
        self.0.remove(&executor).is_some()
    }

    pub(crate) fn of(&self, executor: ExecutorId) -> Option<UnansweredTriggers> {
        self.0.get(&executor).map(|silence| silence.triggers)
    }

    /// Whether runs go to other executors first.
    pub(crate) fn is_paused(&self, executor: ExecutorId, now: Timestamp) -> bool {
        self.0.get(&executor).is_some_and(|silence| silence.paused_until > now)
    }
}

impl Active {
    /// The executor has answered about this attempt.
    pub(crate) const fn answered(&mut self) {
        self.beats_at_send = None;
    }

    /// It could not be noted as running.
    pub(crate) fn note_refused(&mut self) {
        if self.phase == Phase::Noted {
            self.phase = Phase::Sent;
        }
    }

    /// Whether it is on a stream, and its executor has not answered.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.phase == Phase::Sent && self.beats_at_send.is_some()
    }

    /// What an unanswered run waits for, once that takes longer than a moment.
    pub(crate) fn waits_for_answer(&self, now: Timestamp) -> Option<Detail> {
        let is_late = self.is_unanswered() && self.sent_at + NOTE_AFTER <= now;
        let silent = || Obstacle { executor: self.executor_name.clone(), kind: ObstacleKind::Silent, condition: None };
        let detail = || Detail { waits_for: Some(WaitFor::Answer), ..Detail::default() };
        is_late.then(|| detail().with_obstacles([silent()]))
    }
}

/// The stream on which answers would have come has ended: the executor's hello, or its loss, shows what became of its runs.
pub(crate) fn await_no_answers(d: &mut Decision<'_>, executor: ExecutorId) {
    d.state.runs.actives_mut().filter(|active| active.executor == executor).for_each(Active::answered);
}

/// Ends the streams of executors that go on without answering. Not without a lease: then they could not come back.
pub(crate) fn ask_unanswered(d: &mut Decision<'_>) {
    let now = d.now;
    if !d.facts.lease_holds {
        return;
    }
    let mut silent: BTreeMap<ExecutorId, Timestamp> = BTreeMap::new();
    for active in d.state.runs.actives().filter(|active| active.is_unanswered()) {
        let Some(online) = d.state.executors.get(active.executor) else { continue };
        let beats = active.beats_at_send.map_or(0, |at_send| online.beat_count.saturating_sub(at_send));
        let is_late = active.sent_at + d.facts.settings.answer_within <= now;
        if is_late && beats >= BEAT_COUNT_MIN && !online.session.stream.is_ended() {
            let since = silent.entry(active.executor).or_insert(active.sent_at);
            *since = active.sent_at.min(*since);
        }
    }
    for (executor, since) in silent {
        let Some(online) = d.state.executors.get(executor) else { continue };
        let (session, name) = (online.session.clone(), online.name.clone());
        let triggers = d.state.executors.silences.left_unanswered(executor, since, now);
        tracing::warn!(
            executor_id = %executor, executor = name, count = triggers.count, since = %triggers.since,
            "an executor does not answer triggers; its stream is ended, and its next hello says which runs it has"
        );
        d.effects.push(Effect::EndStream(session));
        d.effects.push(Effect::ShowUnanswered(executor, Some(triggers)));
    }
}

/// An executor has answered a trigger.
pub(crate) fn answers(d: &mut Decision<'_>, executor: ExecutorId) {
    if d.state.executors.silences.end(executor) {
        d.effects.push(Effect::ShowUnanswered(executor, None));
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
            assert_eq!(silences.left_unanswered(executor, at(now - 15), at(now)), expected);
            assert!(silences.is_paused(executor, at(until - 1)) && !silences.is_paused(executor, at(until)), "{count}");
        }
        silences.left_unanswered(executor, at(2_000), at(2_000));
        assert!(!silences.is_paused(executor, at(2_600)), "ten minutes at most");
        assert!(silences.end(executor) && !silences.end(executor));
        assert_eq!(silences.left_unanswered(executor, at(3_000), at(3_015)).count, 1, "it had answered");
    }
}
