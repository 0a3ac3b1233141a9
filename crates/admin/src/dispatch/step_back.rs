//! If the database's clock steps back, a short wait that was set before the step would last until the clock has caught up. Such waits are
//! ended here.

use std::time::Duration;

use super::decision::Decision;

/// A step back up to this size is ignored: it lengthens a wait by no more than this.
const STEP_MIN: Duration = Duration::from_secs(1);

/// Ends such waits if the clock has stepped back by more than [`STEP_MIN`] since the last event.
pub(super) fn end_waits(d: &mut Decision<'_>) {
    let (now, state) = (d.now, &mut *d.state);
    let previous_now = std::mem::replace(&mut state.last_now, now);
    if previous_now <= now + STEP_MIN {
        return;
    }
    (state.recovery.next_look_at, state.recovery.next_seek_at) = (now, now);
    state.executors.step_back(now);
    state.runs.active_runs_mut().for_each(|active| active.step_back(now));
    state.probes.step_back(now, &mut state.runs);
    state.limits.step_back(now);
}
