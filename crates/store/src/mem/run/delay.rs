//! Sets the next fire of a job with a fixed delay when a run ends.

use rondel_core::{JobId, Timestamp};

use crate::mem::State;
use crate::settle;

impl State {
    /// If the run that sets a job's next fire has ended, sets and returns that next fire. A job that no longer has a delay keeps the next
    /// fire of its new schedule.
    pub(in crate::mem) fn set_delayed_fire(&mut self, job: JobId, now: Timestamp) -> Option<Timestamp> {
        let due = self.due.get_mut(&job)?;
        let run = due.awaited_run.and_then(|run| self.runs.get(&run)).filter(|run| run.status.is_terminal())?;
        let fired_and_finished_at = (run.fire_at, run.finished_at.unwrap_or(now));
        let defined_at = self.jobs.get(&job).map_or(Timestamp::EPOCH, |job| job.record.updated_at);
        let next_fire_at =
            due.delay.map(|delay| settle::fire_after_delay(fired_and_finished_at, (delay, defined_at), now));
        due.next_fire_at = next_fire_at.or(due.next_fire_at);
        (due.is_over, due.awaited_run) = (due.next_fire_at.is_none(), None);
        next_fire_at
    }
}
