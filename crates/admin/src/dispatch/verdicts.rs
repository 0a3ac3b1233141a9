//! What ends a run from outside: an executor's result, or somebody's wish.

use std::cmp::Reverse;

use rondel_core::outcome::{After, Outcome};
use rondel_core::{AppId, JobId, RunId, Timestamp};
use rondel_store::ledger::{Finish, Finished};

use super::messages::cancel;
use super::run_loop::{Active, DispatchLoop, Phase, Upcoming};
use super::steps::Step;
use super::{IncomingResult, Ready, SessionHandle, Settled};

impl DispatchLoop {
    pub(super) fn results(&mut self, session: &SessionHandle, results: Vec<IncomingResult>, now: Timestamp) {
        let Some((app, name)) = self.executors.get(session.executor).map(|online| (online.app, online.name.clone()))
        else {
            return;
        };
        let mut foreign = Vec::new();
        for result in results {
            match self.take_result(session, &name, result, now) {
                None => {}
                Some(result) => foreign.push(result),
            }
        }
        if !foreign.is_empty() {
            // Without room for the step they are not answered, so they come again.
            self.step(Step::Foreign(session.clone(), app, foreign));
        }
        self.unpark(app, now);
    }

    /// Gives the result of a run that is known here to its lane; gives back any other.
    pub(super) fn take_result(
        &mut self,
        session: &SessionHandle,
        name: &str,
        result: IncomingResult,
        now: Timestamp,
    ) -> Option<IncomingResult> {
        let executor = (session.executor, name.to_owned());
        let run = result.run;
        if let Some(ready) = self.rollcall.get(run).filter(|ready| ready.run.attempt == result.attempt) {
            let trace = ready.run.trace.clone();
            let finish = Finish { trace, ..result.into_finish(ready.run.job, ready.definition.job.after, executor) };
            if self.shared.results.try_submit(finish, Some(session.clone()))
                && let Some(ready) = self.rollcall.remove(run)
            {
                let active = Active {
                    ready,
                    executor: session.executor,
                    executor_name: name.to_owned(),
                    sent_at: now,
                    phase: Phase::Settling,
                };
                self.active.insert(run, active);
            }
            return None;
        }
        let is_its =
            |active: &&mut Active| active.executor == session.executor && active.ready.run.attempt == result.attempt;
        let Some(active) = self.active.get_mut(&run).filter(is_its) else { return Some(result) };
        if active.phase == Phase::Settling {
            // Sent again because its answer takes long: the answer comes when the first one is durable.
            return None;
        }
        let ready = &active.ready;
        let trace = ready.run.trace.clone();
        let finish = Finish { trace, ..result.into_finish(ready.run.job, ready.definition.job.after, executor) };
        if self.shared.results.try_submit(finish, Some(session.clone())) {
            active.phase = Phase::Settling;
            self.free_slot(session.executor);
        }
        None
    }

    pub(super) fn settled(&mut self, settled: &Settled, now: Timestamp) {
        let active = self.active.get(&settled.run).filter(|active| active.ready.run.attempt == settled.attempt);
        let parent = active.and_then(|active| active.ready.run.parent);
        if active.is_some() {
            self.active.remove(&settled.run);
        }
        self.shared.in_memory.forget([settled.run]);
        let goes_on = matches!(&settled.finished, Finished::Stored(After::Again { .. }, _));
        if !goes_on {
            self.leave_gate(settled.job, settled.run, parent, now);
        }
    }

    pub(super) fn leave_gate(&mut self, job: JobId, run: RunId, parent: Option<RunId>, now: Timestamp) {
        for ready in self.gates.leave(job, run, parent) {
            self.place_or_park(ready, now);
        }
    }

    pub(super) fn cancel(&mut self, cancels: Vec<(RunId, String)>, now: Timestamp) {
        let mut strays = Vec::new();
        for (run, by) in cancels {
            if let Some(active) = self.active.get(&run) {
                if let Some(online) = self.executors.get(active.executor).filter(|_| active.phase != Phase::Marking) {
                    online.session.send(cancel(run, active.ready.run.attempt, &by));
                }
            } else if let Some(ready) = self.take_unsent(run) {
                self.end_unsent(&ready, Outcome::Cancelled, Some(format!("cancelled by {by}")), now);
            } else if self.rollcall.get(run).is_none() {
                strays.push(run);
            }
        }
        if !strays.is_empty() {
            self.step(Step::CancelStray(strays));
        }
    }

    /// Takes a run out that waits here for its instant, its turn or an executor.
    pub(super) fn take_unsent(&mut self, run: RunId) -> Option<Ready> {
        let is_it = |next: &Reverse<Upcoming>| next.0.0.run.id == run;
        if self.upcoming.iter().any(is_it) {
            let (found, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.upcoming).into_iter().partition(is_it);
            self.upcoming = rest.into();
            return found.into_iter().next().map(|Reverse(Upcoming(ready))| ready);
        }
        let apps: Vec<AppId> = self.parked.apps();
        if let Some(ready) = apps.into_iter().find_map(|app| self.parked.remove(app, run)) {
            return Some(ready);
        }
        self.gates.remove_queued_anywhere(run)
    }
}
