//! What ends a run from outside: an executor's result, or somebody's wish.

use std::collections::BTreeSet;
use std::sync::Arc;

use rondel_core::outcome::{After, Outcome, cancelled_by};
use rondel_core::{RunId, Timestamp};
use rondel_store::ledger::{AttemptEnd, Finished};

use super::messages::cancel;
use super::reporter::Reporter;
use super::run_loop::DispatchLoop;
use super::state::{Active, Phase};
use super::steps::Step;
use super::{IncomingResult, SessionHandle, Settled};
use crate::counters::Count;
use crate::metrics::Counted;

impl DispatchLoop {
    pub(super) fn results(&mut self, session: &SessionHandle, results: Vec<IncomingResult>, now: Timestamp) {
        let Some(online) = self.executors.get(session.executor) else { return };
        let app = online.app;
        let reporter = Reporter {
            session: session.clone(),
            app,
            name: online.name.clone(),
            lineage: Arc::clone(&online.report.lineage),
        };
        rondel_failpoint::pass("result.received");
        let mut foreign = Vec::new();
        for result in results {
            match self.take_result(&reporter, result, now) {
                None => {}
                Some(result) => foreign.push(result),
            }
        }
        if !foreign.is_empty() {
            self.shared.foreign.offer(&reporter, foreign);
        }
        self.unpark(app, now);
    }
    /// Gives the result of a run that is known here to its lane; gives back any other.
    pub(super) fn take_result(
        &mut self,
        reporter: &Reporter,
        result: IncomingResult,
        now: Timestamp,
    ) -> Option<IncomingResult> {
        let (session, executor) = (&reporter.session, reporter.as_executor());
        let run = result.run;
        let result = IncomingResult { outcome: self.deadlines.judge(run, result.outcome), ..result };
        if let Some(ready) = self.runs.called(run).filter(|ready| ready.run.attempt == result.attempt) {
            if !self.rollcall.may_be_claimed(run, reporter.app, (session.executor, &reporter.lineage)) {
                self.refuse_result(reporter, &result);
                return None;
            }
            let trace = ready.run.trace.clone();
            let finish = AttemptEnd { trace, ..result.into_finish(&ready.run, ready.definition.job.after, executor) };
            if self.shared.results.try_submit(finish, Counted::of_ready(ready), Some(session.clone()))
                && let Some(ready) = self.rollcall.remove(run, &mut self.runs)
            {
                let (executor, name) = reporter.as_executor();
                self.runs.put_active(Active::new(ready, executor, name, now, Phase::Settling));
            }
            return None;
        }
        let is_this = |active: &&mut Active| active.ready.run.attempt == result.attempt;
        let Some(active) = self.runs.active_mut(run).filter(is_this) else { return Some(result) };
        let is_its_app = reporter.app == active.ready.run.app;
        if !is_its_app || !reporter.is(active.executor) {
            self.refuse_result(reporter, &result);
            return None;
        }
        if matches!(active.phase, Phase::Marking | Phase::Placed) {
            // It was never sent.
            self.refuse_result(reporter, &result);
            return None;
        }
        if active.phase == Phase::Settling {
            // Sent again because its answer takes long: the answer comes when the first one is durable.
            return None;
        }
        let ready = &active.ready;
        let trace = ready.run.trace.clone();
        let finish = AttemptEnd { trace, ..result.into_finish(&ready.run, ready.definition.job.after, executor) };
        if self.shared.results.try_submit(finish, Counted::of_ready(ready), Some(session.clone())) {
            let was_ending = active.phase == Phase::Ending;
            active.phase = Phase::Settling;
            let executor = active.executor;
            if !was_ending {
                self.free_slot(executor);
            }
        }
        None
    }
    /// A result of a run that the executor cannot have had changes nothing. It is answered, so that it does not come again.
    fn refuse_result(&self, reporter: &Reporter, result: &IncomingResult) {
        if let Some(count) = self.shared.log_limit.count("results", reporter.session.executor.get()) {
            tracing::warn!(run_id = %result.run, attempt = result.attempt, executor = reporter.name, count, "an executor reported a run that is not its own; further cases are logged once a minute");
        }
        self.shared.counters.add(Count::ResultsRefused, 1);
        self.shared.results.refuse(&reporter.session, result.run, result.attempt);
    }
    pub(super) fn settled(&mut self, settled: &Settled, now: Timestamp) {
        let is_this = |active: &Active| active.ready.run.attempt == settled.attempt;
        if self.runs.active(settled.run).is_some_and(is_this) {
            self.runs.take_active(settled.run);
        }
        let is_newer = settled.owner.is_some_and(|owner| self.shared.in_memory.is_newer(settled.run, owner));
        // It was settled by another way than the roll call: what that finds of it is over.
        if !is_newer && self.runs.called(settled.run).is_some_and(|called| called.run.attempt <= settled.attempt) {
            self.rollcall.remove(settled.run, &mut self.runs);
        }
        let is_superseded = settled.finished == Finished::Superseded;
        if is_superseded && !self.shared.in_memory.forget_through(settled.run, settled.attempt) {
            // The word of an attempt that was given up: a later one may be anywhere by now.
            return;
        }
        match settled.owner {
            // What is here by now was taken over since: this was not about it.
            Some(owner) if self.shared.in_memory.is_newer(settled.run, owner) => return,
            // It was not here as it ended, and its next attempt came meanwhile: that has its own place.
            _ if self.shared.in_memory.has_later(settled.run, settled.attempt) => return,
            _ => self.shared.in_memory.forget([settled.run]),
        }
        self.deadlines.forget(settled.run);
        let passed = match settled.finished {
            Finished::Stored(After::Retry { .. }, _) => self.gates.again(settled.run, &mut self.runs),
            Finished::Superseded => {
                // It was stored before, and the answer was lost; or another node went on with it. Until that is known it has
                // the place of one that waits for its next attempt: that is found here by the standing queries, perhaps
                // together with others that were open at once, and then it must not pass before its turn.
                self.step(Step::Look(vec![settled.run]));
                self.gates.again(settled.run, &mut self.runs)
            }
            _ => self.gates.leave(settled.run, &mut self.runs),
        };
        self.release_limit(settled.run);
        self.go_on(passed);
        self.work_off(now);
    }
    pub(super) fn cancel(&mut self, cancels: Vec<(RunId, String)>, now: Timestamp) {
        let mut not_here: BTreeSet<RunId> = BTreeSet::new();
        for (run, by) in cancels {
            if let Some(active) = self.runs.active(run) {
                if let Some(online) = self
                    .executors
                    .get(active.executor)
                    .filter(|_| !matches!(active.phase, Phase::Marking | Phase::Placed))
                {
                    online.session.send(cancel(run, active.ready.run.attempt, &by));
                }
            } else if let Some(ready) = self.take_waiting(run) {
                self.end_unsent(&ready, Outcome::Cancelled, Some(cancelled_by(&by)), now);
            } else if self.runs.called(run).is_some() {
                // It ends, or is cancelled, once it is known who has it.
            } else if let Some((ready, _)) = self.runs.take_scheduled(run) {
                self.end_unsent(&ready, Outcome::Cancelled, Some(cancelled_by(&by)), now);
            } else {
                not_here.insert(run);
            }
        }
        if !not_here.is_empty() {
            self.step(Step::CancelStray(not_here.into_iter().collect()));
        }
    }
}
