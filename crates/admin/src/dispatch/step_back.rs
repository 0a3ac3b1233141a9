//! Steps back of the database's clock: a short wait that was set by the clock before would last until the clock has caught up.

use std::time::Duration;

use super::decision::Decision;

/// A smaller step makes such a wait only as much longer.
const STEP_MIN: Duration = Duration::from_secs(1);

/// Ends these waits if the clock has stepped back since the last event.
pub(super) fn end_waits(d: &mut Decision<'_>) {
    let (now, state) = (d.now, &mut *d.state);
    let before = std::mem::replace(&mut state.last_now, now);
    if before <= now + STEP_MIN {
        return;
    }
    (state.recovery.next_look_at, state.recovery.next_seek_at) = (now, now);
    state.executors.forget_pauses();
    state.runs.actives_mut().for_each(|active| active.step_back(now));
    state.probes.step_back(now, &mut state.runs);
    state.limits.step_back(now);
}
