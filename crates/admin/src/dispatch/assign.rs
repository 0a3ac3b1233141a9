//! Assigns a run to the executor that was chosen for it.

use rondel_core::ExecutorId;

use super::active::{ActiveRun, Phase};
use super::decision::Decision;
use super::queue::turns;
use super::ready::ReadyRun;
use super::{ahead, ends, shadow};

pub(super) fn assign(d: &mut Decision<'_>, ready: ReadyRun, executor: ExecutorId, executor_name: String) {
    let now = d.now;
    let Some(ready) = shadow::unless_shadow(d, ready) else { return };
    let Some(ready) = turns::admit(d, ready, executor) else { return };
    let (run, attempt) = (ready.run.id, ready.run.attempt);
    if d.state.runs.active(run).is_some_and(|before| before.ready.run.attempt < attempt) {
        // The previous attempt has ended at another server, and this server has not read that yet.
        ends::remove_from_executor(d, run);
        d.state.deadlines.forget(run);
    }
    if let Some(online) = d.state.executors.get_mut(executor) {
        online.in_flight += 1;
    }
    let is_marked_first = ready.is_marked_first();
    let phase = if is_marked_first { Phase::Marking } else { Phase::Placed };
    let active = ActiveRun::new(ready, executor, executor_name, now, phase);
    if is_marked_first {
        d.state.outbox.marks.push(active.run_at_executor(active.sent_or_chosen_at));
    } else if may_be_sent(d, executor, &active.ready) {
        d.state.outbox.triggers.entry(executor).or_default().push(active.ready.run.id);
    } else {
        d.state.outbox.not_yet_due.insert((active.ready.run.due_at, active.ready.run.id));
    }
    d.state.runs.put_active(active);
}

/// Whether the run's trigger may be sent now: its instant has come, or the executor takes the trigger ahead and starts the run on time.
fn may_be_sent(d: &Decision<'_>, executor: ExecutorId, ready: &ReadyRun) -> bool {
    ready.run.due_at <= d.now
        || d.state.executors.get(executor).is_some_and(|online| ahead::may_leave(d, online, ready))
}
