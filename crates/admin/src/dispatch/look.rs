//! Looks at the rows where this node's memory may be behind: executors that only other nodes hear, and runs that ended
//! on other nodes. Nodes do not talk to each other; rows do.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use rondel_core::{ExecutorId, Reason, RunId, RunStatus, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::ledger::{CancelElsewhere, Finished, RunCheck};

use super::messages::cancel;
use super::run_loop::DispatchLoop;
use super::state::Phase;
use super::steps::Step;
use super::{Ready, Settled};
use crate::counters::Count;

/// How often runs in executors' hands are looked at, and how long they must have been there.
const LOOK_PERIOD: Duration = Duration::from_secs(5);
/// Runs that one look sees; the longest held first.
const LOOK_MAX: usize = 5_000;

/// What a row means for a run that this node has in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// It is as it was.
    Same,
    /// It has its verdict.
    Over,
    /// Another attempt follows.
    Again,
    /// It is another node's.
    Moved,
}

impl DispatchLoop {
    /// Asks when other nodes last heard those who are silent here for too long. Where the database's clock stepped ahead
    /// since, nobody can tell: everyone gets that time anew. A server that started since can't either: the clock may have
    /// stepped before, and whom it knows only from rows may have been silent for less than they say.
    pub(super) fn look_for_lost(&mut self, now: Timestamp) {
        let lost_after = self.shared.config.lost_after;
        if self.shared.clock.may_have_stepped_ahead_within(lost_after) {
            return;
        }
        let suspects = self.executors.suspects(now - lost_after);
        if !suspects.is_empty() && !self.is_looking_for_lost {
            self.is_looking_for_lost = self.try_step(Step::LastHeard(suspects));
        }
    }

    /// A lost stream is not a lost executor while another node hears it.
    pub(super) fn heard_elsewhere(
        &mut self,
        suspects: &[ExecutorId],
        heard: &BTreeMap<ExecutorId, Timestamp>,
        now: Timestamp,
    ) {
        self.is_looking_for_lost = false;
        for executor in suspects {
            match heard.get(executor) {
                Some(at) if *at + self.shared.config.lost_after > now => self.executors.watch(*executor, *at),
                _ if self.executors.lose(*executor, now) => self.lost(*executor, now),
                _ => {}
            }
        }
        self.resolve_rollcall(now);
    }

    /// One that has ended in order is not waited for. Where a result of it is missing, that may be in its journal, and its next
    /// start brings it.
    pub(super) fn gone(&mut self, executor: ExecutorId, now: Timestamp) {
        if self.sent_to(executor, |_| true).is_empty() && self.executors.lose(executor, now) {
            self.step(Step::NoteLeft(executor));
            self.resolve_rollcall(now);
        }
    }

    /// One whose process was seen to have died need not be silent for long first. It has no journal that would bring results.
    pub(super) fn died(&mut self, executor: ExecutorId, now: Timestamp) {
        if self.executors.lose(executor, now) {
            self.lost(executor, now);
            self.step(Step::NoteLeft(executor));
            self.resolve_rollcall(now);
        }
    }

    fn lost(&mut self, executor: ExecutorId, now: Timestamp) {
        let runs = self.sent_to(executor, |_| true);
        tracing::warn!(executor_id = %executor, count = runs.len(), "an executor is lost");
        self.shared.counters.add(Count::ExecutorsLost, 1);
        for run in runs {
            self.lose(run, Reason::ExecutorLost, now);
        }
    }

    /// A result may have been stored by another node: then nothing comes here any more. And a run that is not here at all,
    /// since its next attempt waits in the store, keeps its place in its job's order only while that is so.
    pub(super) fn look_at_rows(&mut self, now: Timestamp) {
        if now < self.next_look_at || mutant::on(Mutant::NoLook) {
            return;
        }
        self.next_look_at = now + LOOK_PERIOD;
        let mut runs = if self.shared.store.is_single_server() { Vec::new() } else { self.held_for_long(now) };
        runs.extend(self.shared.in_memory.missing(self.gates.holding_up()).into_iter().take(LOOK_MAX));
        if !runs.is_empty() {
            self.try_step(Step::Look(runs));
        }
    }

    fn held_for_long(&mut self, now: Timestamp) -> Vec<RunId> {
        let is_old = |sent_at: Timestamp| sent_at + LOOK_PERIOD <= now;
        let is_held = |phase| matches!(phase, Phase::Sent | Phase::Noted);
        let mut held: Vec<(Timestamp, RunId)> = self
            .runs
            .actives()
            .filter(|active| is_held(active.phase) && is_old(active.sent_at))
            .map(|active| (active.looked_at, active.ready.run.id))
            .collect();
        held.sort_unstable();
        held.truncate(LOOK_MAX);
        for (_, run) in &held {
            if let Some(active) = self.runs.active_mut(*run) {
                active.looked_at = now;
            }
        }
        let called = self.rollcall.runs().take(LOOK_MAX);
        held.into_iter().map(|(_, run)| run).chain(called).collect()
    }

    pub(super) fn looked(&mut self, asked: &[RunId], checks: &[RunCheck], now: Timestamp) {
        let rows: HashMap<RunId, &RunCheck> = checks.iter().map(|check| (check.id, check)).collect();
        let this = self.shared.membership.token();
        let is_own = |check: &RunCheck| check.owner.node == this.node;
        for run in asked {
            let row = rows.get(run).copied();
            let held = self.runs.active(*run).filter(|active| matches!(active.phase, Phase::Sent | Phase::Noted));
            if let Some(ready) = held.map(|active| &active.ready).or_else(|| self.runs.called(*run)) {
                let attempt = ready.run.attempt;
                self.went_on(*run, attempt, known(attempt, row, is_own), now);
            } else if !self.shared.in_memory.missing([*run]).is_empty() {
                let passed = match place_of(row.filter(|row| is_own(row))) {
                    Place::Open => continue,
                    Place::Reserved => self.gates.again(*run, &mut self.runs),
                    Place::None => self.gates.leave(*run, &mut self.runs),
                };
                self.go_on(passed);
                self.work_off(now);
            }
        }
    }

    /// What became of an attempt that was thought to be in an executor's hands.
    fn went_on(&mut self, run: RunId, attempt: i32, known: Known, now: Timestamp) {
        if known == Known::Same {
            return;
        }
        self.forget_attempt(run, attempt);
        if known == Known::Again && self.shared.in_memory.has_later(run, attempt) {
            // Its next attempt is here by now, and has its place. Under a limit that counts from when it is on its way.
            if self.runs.active(run).is_none() {
                self.release_limit(run);
                self.work_off(now);
            }
            return;
        }
        if known == Known::Moved {
            // What may have been sent is given to nobody: somebody has taken it over, for whom this node's lease is over. Its
            // own clock may say that it holds; nothing is sent under it any more, least of all what waits behind this run.
            self.shared.membership.end();
            self.shared.beat_poke.notify_one();
        }
        if known == Known::Again || known == Known::Moved {
            self.shared.in_memory.forget([run]);
            self.release_limit(run);
            let passed = self.gates.again(run, &mut self.runs);
            self.go_on(passed);
            self.work_off(now);
        } else {
            self.settled(&Settled { run, attempt, owner: None, finished: Finished::Duplicate }, now);
        }
    }

    /// This attempt, or one before it, is in nobody's hands any more.
    pub(super) fn forget_attempt(&mut self, run: RunId, attempt: i32) {
        let is_past = |ready: &Ready| ready.run.attempt <= attempt;
        if self.runs.active(run).is_some_and(|active| is_past(&active.ready)) {
            self.free_active(run);
            self.deadlines.forget(run);
        }
        if self.runs.called(run).is_some_and(is_past) {
            self.rollcall.remove(run, &mut self.runs);
        }
    }

    /// Tells executors that are connected here of requests that the owners of their runs may have no stream for.
    pub(super) fn cancel_elsewhere(&self, cancels: Vec<CancelElsewhere>) {
        for asked in cancels {
            if let Some(online) = self.executors.get(asked.executor) {
                online.session.send(cancel(asked.run, asked.attempt, &asked.by));
            }
        }
    }
}

fn known(attempt: i32, row: Option<&RunCheck>, is_own: impl Fn(&RunCheck) -> bool) -> Known {
    match row {
        None => Known::Over,
        Some(check) if check.status.is_terminal() => Known::Over,
        Some(check) if !is_own(check) => Known::Moved,
        Some(check) if check.attempt > attempt => Known::Again,
        Some(_) => Known::Same,
    }
}

/// The place that a run has in its job's order which is not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It is under way: the standing queries find who has it.
    Open,
    /// It waits for another attempt.
    Reserved,
    /// It is over, or another node's.
    None,
}

/// By its row, where that is this node's.
fn place_of(row: Option<&RunCheck>) -> Place {
    match row.map(|row| row.status) {
        Some(RunStatus::Running) => Place::Open,
        Some(RunStatus::Pending | RunStatus::Waiting) => Place::Reserved,
        _ => Place::None,
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::NodeId;
    use rondel_store::LeaseToken;

    use super::*;

    fn row(status: RunStatus, attempt: i32, node: i64) -> RunCheck {
        RunCheck {
            id: RunId::new(1),
            status,
            attempt,
            job_version: 1,
            owner: LeaseToken { node: NodeId::new(node), epoch: 1 },
            cancel_by: None,
            term: 1,
        }
    }

    #[test]
    fn what_a_row_says_about_a_held_run() {
        let known = |row: Option<RunCheck>| known(2, row.as_ref(), |check| check.owner.node == NodeId::new(1));
        for (row, expected) in [
            (None, Known::Over),
            (Some(row(RunStatus::Succeeded, 2, 1)), Known::Over),
            (Some(row(RunStatus::Failed, 3, 2)), Known::Over),
            (Some(row(RunStatus::Waiting, 3, 1)), Known::Again),
            (Some(row(RunStatus::Running, 2, 2)), Known::Moved),
            (Some(row(RunStatus::Waiting, 3, 2)), Known::Moved),
            (Some(row(RunStatus::Pending, 2, 2)), Known::Moved),
            (Some(row(RunStatus::Running, 2, 1)), Known::Same),
            (Some(row(RunStatus::Pending, 2, 1)), Known::Same),
        ] {
            assert_eq!(known(row.clone()), expected, "{row:?}");
        }
    }

    #[test]
    fn a_run_that_is_not_here_keeps_its_place_while_it_is_open_and_this_nodes() {
        for (status, expected) in [
            (RunStatus::Running, Place::Open),
            (RunStatus::Waiting, Place::Reserved),
            (RunStatus::Pending, Place::Reserved),
            (RunStatus::Failed, Place::None),
            (RunStatus::Unknown, Place::None),
        ] {
            assert_eq!(place_of(Some(&row(status, 2, 1))), expected, "{status}");
        }
        assert_eq!(place_of(None), Place::None, "it is another node's, or gone");
    }
}
