//! Places of runs that executors have although the runs did not pass the gate: runs from before an edit that gave their job a gate, and runs that
//! turned out to be at another executor than this server had assumed.

use rondel_core::{ExecutorId, RunId};

use super::{AdmittedRun, GateEntry, GateKey, Gates, PlaceState, executor_gate, job_gate, place_at};
use crate::dispatch::ready::ReadyRun;
use crate::dispatch::runs::OpenRuns;

impl Gates {
    /// Gives `run_in_hand` an open place at the gate of `next_run`, unless it has a place already. Without that place, `next_run` could begin beside
    /// it. An executor has or may have `run_in_hand`, which passed no gate. `next_run` is a run of the job's edited definition. `executor` is `None`
    /// if it is not known which executor has `run_in_hand`.
    pub(crate) fn open_place_before(
        &mut self,
        run_in_hand: &ReadyRun,
        executor: Option<ExecutorId>,
        next_run: &ReadyRun,
    ) {
        let key = job_gate(next_run).or_else(|| executor_gate(next_run, executor?));
        if let Some(key) = key.filter(|_| !self.entries.contains_key(&run_in_hand.run.id)) {
            let entry = GateEntry { key, place: place_at(key, run_in_hand), state: PlaceState::Open };
            self.set_entry(run_in_hand.run.id, entry);
        }
    }

    /// Opens the reserved place of a run whose own definition has no gate: an edit gave its job the gate while an executor had the previous
    /// attempt. Returns whether there is such a place.
    pub(crate) fn open_reserved_place(&mut self, ready: &ReadyRun) -> bool {
        let is_ungated = ready.definition.job.concurrency_max().is_none();
        let reserved_entry =
            self.entries.get(&ready.run.id).copied().filter(|entry| entry.state == PlaceState::Reserved);
        if let Some(entry) = reserved_entry.filter(|_| is_ungated) {
            self.set_entry(ready.run.id, GateEntry { state: PlaceState::Open, ..entry });
            return true;
        }
        false
    }

    /// Frees the place of a run that `executor` has, if the place is at the gate of another executor. Returns the runs that may pass now.
    pub(crate) fn leave_other_executor(
        &mut self,
        run: RunId,
        executor: ExecutorId,
        runs: &mut OpenRuns,
    ) -> Vec<AdmittedRun> {
        match self.entries.get(&run).map(|entry| entry.key) {
            Some(GateKey::Executor(_, other)) if other != executor => self.leave(run, runs),
            Some(GateKey::Executor(..) | GateKey::Job(_)) | None => Vec::new(),
        }
    }
}
