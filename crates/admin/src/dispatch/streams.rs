//! Executors come, go, and answer triggers: what that means for the runs in their hands.

use std::time::Duration;

use rondel_core::outcome::Outcome;
use rondel_core::{ExecutorId, Reason, RunId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1;
use rondel_store::ledger::AttemptEnd;

use super::run_loop::DispatchLoop;
use super::state::{Active, Phase};
use super::waits::{explained, lost_detail};
use super::{Reply, Report, SessionHandle, finish_unsent};
use crate::counters::Count;
use crate::metrics::Counted;
use crate::registry::OnlineExecutor;

/// How long an executor that said it was full is left alone.
const FULL_PAUSE: Duration = Duration::from_millis(200);

impl DispatchLoop {
    pub(super) fn joined(&mut self, session: SessionHandle, executor: OnlineExecutor, report: Report, now: Timestamp) {
        // Of two streams one counts. Which of them lives only the executor knows: the other one is ended, so that it comes anew
        // where it was that one.
        match self.executors.get(executor.id).map(|online| &online.session) {
            Some(newer) if newer.number > session.number => return session.replaced.cancel(),
            Some(older) => older.replaced.cancel(),
            None => {}
        }
        let name = self.executors.distinct_name(&executor, report.predecessor);
        let executor = OnlineExecutor { name, ..executor };
        let id = executor.id;
        if let Some(predecessor) = report.predecessor {
            self.succeed(predecessor, &executor, &report, now);
        }
        self.reconcile(id, &report, now);
        self.await_no_answers(id);
        // The end of its stream before may have taken it off the list after the hello put it there.
        self.shared.registry.insert(executor.clone());
        self.executors.join(session, &executor, report);
        let is_its =
            |active: &&Active| active.executor == id && !matches!(active.phase, Phase::Ending | Phase::Settling);
        let in_flight = self.runs.actives().filter(is_its).count();
        if let Some(online) = self.executors.get_mut(id) {
            online.in_flight = in_flight;
        }
        self.resolve_rollcall(now);
        self.ask_witnesses();
        self.unpark(executor.app, now);
    }

    /// The same incarnation is back: what it does not know of was lost on the way.
    pub(super) fn reconcile(&mut self, id: ExecutorId, report: &Report, now: Timestamp) {
        if mutant::on(Mutant::NoReconcile) {
            return;
        }
        let unknown = self.sent_to(id, |active| {
            let this = (active.ready.run.id, active.ready.run.attempt);
            !report.held.contains(&this) && !report.finished.contains(&this)
        });
        for run in unknown {
            self.lose(run, Reason::NotReceived, now);
        }
    }

    /// A restarted executor proved its predecessor: the journal's results follow, the remainder died with it. The proof is its
    /// word, so it holds for runs of its own app alone.
    fn succeed(&mut self, predecessor: ExecutorId, executor: &OnlineExecutor, report: &Report, now: Timestamp) {
        for run in self.sent_to(predecessor, |active| active.ready.run.app == executor.app) {
            let Some(active) = self.runs.active_mut(run) else { continue };
            if report.finished.contains(&(run, active.ready.run.attempt)) {
                active.executor = executor.id;
            } else {
                self.lose(run, Reason::ExecutorLost, now);
            }
        }
    }

    pub(super) fn sent_to(&self, id: ExecutorId, which: impl Fn(&Active) -> bool) -> Vec<RunId> {
        let is_sent = |active: &&Active| {
            active.executor == id && matches!(active.phase, Phase::Sent | Phase::Noted) && which(active)
        };
        let mut runs: Vec<RunId> = self.runs.actives().filter(is_sent).map(|active| active.ready.run.id).collect();
        runs.sort_unstable();
        runs
    }

    pub(super) fn left(&mut self, id: ExecutorId, number: u64, now: Timestamp) {
        if self.executors.leave(id, number, now).is_none() {
            return;
        }
        self.await_no_answers(id);
        self.shared.registry.remove(id);
    }

    /// The executor was lost with this run, or never received it.
    pub(super) fn lose(&mut self, run: RunId, reason: Reason, now: Timestamp) {
        let Some(active) = self.runs.active_mut(run) else { return };
        let executor = (active.executor, active.executor_name.clone());
        let detail = lost_detail(Some(&active.executor_name));
        let finish = AttemptEnd {
            executor: Some(executor),
            ..finish_unsent(&active.ready.run, &active.ready.definition, Outcome::Lost(reason), now, None)
        };
        let finish = explained(finish, reason, detail);
        if self.shared.results.try_submit(finish, Counted::of_ready(&active.ready), None) {
            active.phase = Phase::Ending;
            let executor = active.executor;
            self.free_slot(executor);
        }
    }

    pub(super) fn replied(&mut self, executor: ExecutorId, replies: Vec<(RunId, i32, Reply)>, now: Timestamp) {
        self.executors.heard(executor, now);
        rondel_failpoint::pass("accept.received");
        for (run, attempt, reply) in replies {
            // Counted first: who lost its lease has dropped the run by now.
            if matches!(reply, Reply::Refused(v1::RefusedWhy::Fenced, _)) {
                tracing::warn!(%run, executor_id = %executor, "an executor refused this node's epoch");
                self.shared.counters.add(Count::TriggersFenced, 1);
            }
            // A stream that is told of late may say what was refused before the run was sent again, to the same executor.
            let is_its = |active: &&mut Active| {
                let is_earlier = matches!(reply, Reply::Refused(_, Some(number)) if number != active.number);
                active.executor == executor && active.ready.run.attempt == attempt && !is_earlier
            };
            let Some(active) = self.runs.active_mut(run).filter(is_its) else { continue };
            active.answered();
            let waited = now.since(active.sent_at);
            if let Some(span) = active.span.take() {
                span.answered(matches!(reply, Reply::Refused(..)).then_some("the executor refused it"), now);
            }
            match reply {
                Reply::Accepted => self.shared.metrics.accepted.observe(waited),
                Reply::Refused(..) => self.shared.metrics.refused.observe(waited),
                Reply::Started => self.deadlines.began(&active.ready, self.shared.clock.boot_micros()),
            }
            if let Reply::Refused(why, _) = reply {
                let handler = active.ready.definition.job.handler.clone();
                self.unsend(&[run], now);
                self.refused(executor, &handler, why, now);
            }
        }
    }

    pub(super) fn refused(&mut self, executor: ExecutorId, handler: &str, why: v1::RefusedWhy, now: Timestamp) {
        match why {
            v1::RefusedWhy::NoHandler => self.executors.forget_handler(executor, handler),
            v1::RefusedWhy::Draining => {
                if let Some(online) = self.executors.get_mut(executor) {
                    online.draining = true;
                }
            }
            v1::RefusedWhy::Full | v1::RefusedWhy::Unspecified => {
                if let Some(online) = self.executors.get_mut(executor) {
                    online.full_until = Some(now + FULL_PAUSE);
                }
            }
            v1::RefusedWhy::Fenced => {
                if let Some(online) = self.executors.get_mut(executor) {
                    online.full_until = Some(now + FULL_PAUSE.saturating_mul(5));
                }
            }
        }
    }
}
