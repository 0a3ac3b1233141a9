//! Triggers that their executors have not answered. An executor answers each trigger when it receives it, not only when the run begins. A
//! stream keeps its order, so an executor that sends heartbeats but no answer has probably not received the trigger.
//!
//! The run is not given up for this alone, because only the executor knows whether it has the run. The executor's stream is ended instead: its
//! next hello lists the runs that it has, and a run that is not listed was not received.
//!
//! Routing avoids such an executor for a while if another executor can take the run. Each further unanswered trigger makes that time longer, until
//! the executor answers a trigger.

use std::collections::BTreeMap;

use rondel_core::reason::{Obstacle, ObstacleKind, ReasonDetail, WaitFor};
use rondel_core::{ExecutorId, RunId, Timestamp};

use crate::dispatch::active::{ActiveRun, NOTE_RUNNING_AFTER};
use crate::dispatch::decision::Decision;
use crate::dispatch::effect::Effect;

/// How many heartbeats must have arrived since the trigger was sent. An executor answers a trigger at most one heartbeat later. Heartbeats
/// are counted, and not time, because a server that is delayed by a slow database reads answers and heartbeats equally late.
const BEAT_COUNT_MIN: u64 = 3;
/// Maximum number of runs with unanswered triggers whose waits one round describes.
pub(crate) const UNANSWERED_WAITS_MAX: usize = 1_000;

/// The wait of a run whose trigger has been unanswered for at least [`NOTE_RUNNING_AFTER`]; `None` for any other run.
pub(crate) fn answer_wait(active: &ActiveRun, now: Timestamp) -> Option<ReasonDetail> {
    let is_late = active.is_unanswered() && active.sent_or_chosen_at + NOTE_RUNNING_AFTER <= now;
    let silent_obstacle =
        || Obstacle { executor: active.executor_name.clone(), kind: ObstacleKind::Silent, condition: None };
    let detail = || ReasonDetail { waits_for: Some(WaitFor::Answer), ..ReasonDetail::default() };
    is_late.then(|| detail().with_obstacles([silent_obstacle()]))
}

/// Stops waiting for answers, because the stream on which they would have come has ended: the executor's next hello, or its loss, shows the state
/// of its runs.
pub(crate) fn stop_awaiting_answers(d: &mut Decision<'_>, executor: ExecutorId) {
    let runs: Vec<RunId> = d.state.runs.of_executor(executor).map(|active| active.ready.run.id).collect();
    for run in runs {
        d.state.runs.active_mut(run).into_iter().for_each(ActiveRun::record_answer);
    }
}

/// Ends the streams of executors that send heartbeats but no answers. Does nothing without a lease, because the executors could not connect
/// again then.
pub(crate) fn end_silent_streams(d: &mut Decision<'_>) {
    let now = d.now;
    if !d.facts.lease_holds {
        return;
    }
    let mut unanswered_since: BTreeMap<ExecutorId, Timestamp> = BTreeMap::new();
    for active in d.state.runs.active_runs().filter(|active| active.is_unanswered()) {
        let Some(online) = d.state.executors.get(active.executor) else { continue };
        let beats_since_send = active.beats_at_send.map_or(0, |at_send| online.beat_count.saturating_sub(at_send));
        let is_late = active.sent_or_chosen_at + d.facts.settings.answer_within <= now;
        if is_late && beats_since_send >= BEAT_COUNT_MIN && !online.session.stream.is_ended() {
            let first_sent_at = unanswered_since.entry(active.executor).or_insert(active.sent_or_chosen_at);
            *first_sent_at = active.sent_or_chosen_at.min(*first_sent_at);
        }
    }
    for (executor, first_sent_at) in unanswered_since {
        let Some(online) = d.state.executors.get(executor) else { continue };
        let (session, name) = (online.session.clone(), online.name.clone());
        let triggers = d.state.executors.silences.record_unanswered(executor, first_sent_at, now);
        tracing::warn!(
            executor_id = %executor, executor = name, count = triggers.count, since = %triggers.since,
            "an executor does not answer triggers; its stream is ended, and its next hello lists its runs"
        );
        d.effects.push(Effect::EndStream(session));
        d.effects.push(Effect::ShowUnanswered(executor, Some(triggers)));
    }
}

/// Records that an executor has answered a trigger.
pub(crate) fn record_answer(d: &mut Decision<'_>, executor: ExecutorId) {
    if d.state.executors.silences.end(executor) {
        d.effects.push(Effect::ShowUnanswered(executor, None));
    }
}
