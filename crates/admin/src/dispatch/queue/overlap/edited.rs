//! Places of runs from before an edit that gave their job a gate.

use rondel_core::ExecutorId;

use super::{GateEntry, Gates, PlaceState, executor_gate, job_gate, place_at};
use crate::dispatch::ready::Ready;

impl Gates {
    /// `in_hand` is a run that this executor has. It passed no gate, because its job had none then. `next` is a run of the job's edited
    /// definition, which has a gate. Gives `in_hand` an open place at that gate, so that the two do not run at the same time.
    pub(crate) fn open_place_before(&mut self, in_hand: &Ready, executor: ExecutorId, next: &Ready) {
        let key = job_gate(next).or_else(|| executor_gate(next, executor));
        if let Some(key) = key.filter(|_| !self.entries.contains_key(&in_hand.run.id)) {
            let entry = GateEntry { key, place: place_at(key, in_hand), state: PlaceState::Open };
            self.set_entry(in_hand.run.id, entry);
        }
    }
}
