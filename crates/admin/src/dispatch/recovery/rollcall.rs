//! The roll call: executors may have runs of an ended lease. Each such run waits until every executor that may have got it has answered a
//! fence for that lease, or is lost: a missing answer is never taken for *not held*.
//!
//! Only the answer to a fence counts. An earlier report, even one in a hello, may be older than the last trigger from the lease's node.
//! After the fence, the executor takes no more triggers of the lease. The runs themselves are among the [open runs](OpenRuns).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rondel_core::{AppId, ExecutorId, NodeId, Reason, RunId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::LeaseToken;
use rondel_store::cluster::Session;

use crate::dispatch::event::RollCallRun;
use crate::dispatch::executors::{ConnectedExecutor, Executors};
use crate::dispatch::ready::ReadyRun;
use crate::dispatch::recovery::elsewhere::RelayedQuestions;
use crate::dispatch::runs::OpenRuns;

#[derive(Debug)]
struct RollCallEntry {
    app: AppId,
    attempt: i32,
    /// Whether an executor may continue the run in silence, while no server answers.
    continues_in_silence: bool,
    /// The executors that may have the run, sorted by id. Many runs share one list.
    witnesses: Arc<[ExecutorId]>,
}

#[derive(Debug, Default)]
pub(crate) struct RollCall {
    runs: BTreeMap<RunId, RollCallEntry>,
    /// All ended leases, as the newest epoch of each node. A run may have been sent under any of them: nodes that adopted it may have died
    /// before they found out which executor had it.
    ended_leases: BTreeMap<NodeId, i64>,
    /// The questions through other servers to executors that are not connected here.
    relayed_questions: RelayedQuestions,
}

/// A list of witnesses, by its address, and whether their runs may continue in silence.
type GroupKey = (*const ExecutorId, bool);

/// Runs that the same executors may have.
struct Group<'r> {
    app: AppId,
    witnesses: &'r [ExecutorId],
    key: GroupKey,
}

impl RollCallEntry {
    fn group_key(&self) -> GroupKey {
        (self.witnesses.as_ptr(), self.continues_in_silence)
    }
}

/// The result of the roll call for a run.
#[derive(Debug)]
pub(crate) enum CallOutcome {
    /// This executor has it.
    AtExecutor(ExecutorId),
    /// No executor has it, and none will.
    NoExecutor(Reason),
}

/// Executors to be asked, each with the leases that it has to fence.
type LeasesToFence = BTreeMap<ExecutorId, Vec<LeaseToken>>;

impl RollCall {
    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Begins the roll call for these runs, and for all ended leases.
    pub(crate) fn begin(
        &mut self,
        runs: &[RollCallRun],
        sessions: &[Session],
        ended_leases: &[LeaseToken],
        executors: &mut Executors,
        now: Timestamp,
    ) {
        for lease in ended_leases {
            let epoch = self.ended_leases.entry(lease.node).or_insert(lease.epoch);
            *epoch = lease.epoch.max(*epoch);
        }
        // An answer about a lease does not count if it came before the lease was known to have ended. If the lease of a run is unknown, or no
        // executor is asked about it, the executors answer anew about all leases: an earlier answer may list the run although its executor has
        // handed it back since.
        let needs_new_answer = |node: &&NodeId| {
            let concerns = |lease: LeaseToken| lease.node == **node || !self.ended_leases.contains_key(&lease.node);
            runs.iter().any(|run| run.sent_under.is_none_or(concerns))
        };
        if !runs.is_empty() {
            self.relayed_questions.begin_roll_call(now);
        }
        executors.discard_fence_answers(&self.ended_leases.keys().filter(needs_new_answer).copied().collect());
        let mut witnesses_by_app: BTreeMap<AppId, Witnesses<'_>> = BTreeMap::new();
        for RollCallRun { ready, .. } in runs {
            let run = &ready.run;
            let witnesses = match run.executor_id {
                Some(id) => {
                    let last_seen_at =
                        sessions.iter().filter(|session| session.executor == id).map(|s| s.last_seen_at).max();
                    // Without a row that shows when it was heard, an executor that counts as lost stays lost.
                    if last_seen_at.is_some() || !executors.is_lost(id) {
                        executors.watch(id, last_seen_at.unwrap_or(now));
                    }
                    if sessions.iter().any(|session| session.executor == id && session.has_left) {
                        executors.record_process_end(id, now);
                    }
                    Arc::new([id])
                }
                None => {
                    let witnesses =
                        witnesses_by_app.entry(run.app).or_insert_with(|| Witnesses::new(run.app, sessions));
                    witnesses.of(run.due_at, executors, now)
                }
            };
            let continues_in_silence =
                ready.definition.job.silent_run_blocks_others() && !mutant::on(Mutant::NoHoldInSilence);
            self.runs
                .insert(run.id, RollCallEntry { app: run.app, attempt: run.attempt, continues_in_silence, witnesses });
        }
    }

    /// The connected executors that still have to answer, each with the leases to answer about.
    pub(crate) fn unanswered_fences(&self, executors: &Executors) -> LeasesToFence {
        let mut unanswered_fences = LeasesToFence::new();
        for Group { witnesses, .. } in self.groups() {
            for online in witnesses.iter().filter_map(|id| executors.get(*id)) {
                let missing_leases: Vec<LeaseToken> =
                    self.leases().filter(|lease| !online.has_fenced(*lease)).collect();
                if !missing_leases.is_empty() {
                    unanswered_fences.insert(online.session.executor, missing_leases);
                }
            }
        }
        unanswered_fences
    }

    /// Executors that may have some of the runs, are not connected here, do not count as lost, and have no connected successor.
    pub(crate) fn absent_witnesses(&self, executors: &Executors) -> BTreeSet<ExecutorId> {
        let is_absent =
            |app, id| executors.get(id).is_none() && !executors.is_lost(id) && executors.successor(app, id).is_none();
        let absent_of_group = |group: Group<'_>| {
            let absent_witnesses = group.witnesses.iter().copied().filter(|id| is_absent(group.app, *id));
            absent_witnesses.collect::<Vec<_>>()
        };
        self.groups().flat_map(absent_of_group).collect()
    }

    /// The questions through other servers, and the leases that they are about.
    pub(crate) fn relayed_questions(&mut self) -> (&mut RelayedQuestions, &BTreeMap<NodeId, i64>) {
        (&mut self.relayed_questions, &self.ended_leases)
    }

    /// The name of an executor whose answer another server relayed; `None` if there is no such answer.
    pub(crate) fn name_elsewhere(&self, executor: ExecutorId) -> Option<&str> {
        self.relayed_questions.executor_name(executor)
    }

    pub(crate) fn remove(&mut self, run: RunId, runs: &mut OpenRuns) -> Option<ReadyRun> {
        self.runs.remove(&run)?;
        runs.take_from_roll_call(run)
    }

    /// Whether this executor may have the run: the row names the executor itself, or a process in its `lineage`. If the row names no executor, any
    /// executor of the app that had a session at the run's instant may have it.
    pub(crate) fn may_be_claimed(
        &self,
        run: RunId,
        app: AppId,
        (executor, lineage): (ExecutorId, &[ExecutorId]),
    ) -> bool {
        let is_witness = |called: &RollCallEntry, id| called.witnesses.binary_search(id).is_ok();
        let may_have_run = |called: &RollCallEntry| {
            called.app == app && (is_witness(called, &executor) || lineage.iter().any(|id| is_witness(called, id)))
        };
        self.runs.get(&run).is_some_and(may_have_run)
    }

    /// Whether executors are asked about this lease.
    pub(crate) fn asks_about(&self, lease: LeaseToken) -> bool {
        self.ended_leases.get(&lease.node).is_some_and(|epoch| lease.epoch <= *epoch)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Ends the call for all runs.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = RunId> {
        self.runs.keys().copied()
    }

    /// Takes out every run that an executor has, and every run whose witnesses have all answered or are lost.
    pub(crate) fn resolve(&mut self, executors: &Executors) -> Vec<(RunId, CallOutcome)> {
        let mut resolved_runs = Vec::new();
        for online in executors.all() {
            let id = online.session.executor;
            let reported_runs = online.runs_at_last_fence().filter(|_| self.has_answered(online));
            // Of the executor's dead predecessor, only the results in the journal remain.
            let journaled_runs = online.report.finished_runs.iter().filter(|_| online.report.predecessor.is_some());
            let mut attempts: Vec<_> = reported_runs.chain(journaled_runs).copied().collect();
            attempts.sort_unstable();
            for (run, attempt) in attempts {
                let is_same_attempt = |called: &RollCallEntry| called.attempt == attempt;
                let may_have_run = || self.may_be_claimed(run, online.app, (id, &online.report.lineage));
                if self.runs.get(&run).is_some_and(is_same_attempt) && may_have_run() {
                    self.runs.remove(&run);
                    resolved_runs.push((run, CallOutcome::AtExecutor(id)));
                }
            }
        }
        resolved_runs.extend(self.take_runs_held_elsewhere(executors));
        let group_reasons: BTreeMap<GroupKey, Reason> =
            self.groups().filter_map(|group| Some((group.key, self.why_no_executor(&group, executors)?))).collect();
        if !group_reasons.is_empty() {
            let end_reason = |called: &RollCallEntry| group_reasons.get(&called.group_key()).copied();
            for (run, called) in self.runs.extract_if(.., |_, called| end_reason(called).is_some()) {
                let reason = end_reason(&called).unwrap_or(Reason::NotReceived);
                resolved_runs.push((run, CallOutcome::NoExecutor(reason)));
            }
        }
        resolved_runs
    }

    /// Takes out the runs that executors have according to the answers that other servers relayed.
    fn take_runs_held_elsewhere(&mut self, executors: &Executors) -> Vec<(RunId, CallOutcome)> {
        let mut held_runs = Vec::new();
        for (id, reported_runs) in self.relayed_questions.reported_runs(&self.ended_leases, executors) {
            let is_held_run = |run: &RunId, called: &mut RollCallEntry| {
                reported_runs.contains(&(*run, called.attempt)) && called.witnesses.binary_search(&id).is_ok()
            };
            held_runs.extend(self.runs.extract_if(.., is_held_run).map(|(run, _)| (run, CallOutcome::AtExecutor(id))));
        }
        held_runs
    }

    fn leases(&self) -> impl Iterator<Item = LeaseToken> {
        self.ended_leases.iter().map(|(node, epoch)| LeaseToken { node: *node, epoch: *epoch })
    }

    fn has_answered(&self, online: &ConnectedExecutor) -> bool {
        self.leases().all(|lease| online.has_fenced(lease))
    }

    /// Each list of witnesses once, or twice if some of its runs may continue in silence and others may not.
    fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let mut seen_groups = BTreeSet::new();
        let first_of_groups = self.runs.values().filter(move |called| seen_groups.insert(called.group_key()));
        first_of_groups.map(move |called| Group {
            app: called.app,
            witnesses: &called.witnesses,
            key: called.group_key(),
        })
    }

    /// The witnesses of runs that may continue in silence.
    pub(crate) fn silent_run_witnesses(&self) -> BTreeSet<ExecutorId> {
        let continues_in_silence = |group: &Group<'_>| group.key.1;
        self.groups().filter(continues_in_silence).flat_map(|group| group.witnesses.iter().copied()).collect()
    }

    /// Why no executor of the group has the group's runs; `None` until each executor has answered or is lost.
    fn why_no_executor(&self, group: &Group<'_>, executors: &Executors) -> Option<Reason> {
        let Group { app, witnesses, key: (_, continues_in_silence) } = *group;
        let is_lost = |id| if continues_in_silence { executors.has_stopped_all(id) } else { executors.is_lost(id) };
        let mut reason = Reason::NotReceived;
        for id in witnesses {
            match executors.get(*id) {
                _ if mutant::on(Mutant::NotReportedIsNotHeld) => {}
                Some(online) if self.has_answered(online) => {}
                Some(_) => return None,
                None if executors.successor(app, *id).is_some() || is_lost(*id) => {
                    reason = Reason::ExecutorLost;
                }
                None if self.relayed_questions.has_answered(*id, &self.ended_leases) => {}
                None => return None,
            }
        }
        Some(reason)
    }
}

/// The executors of an app that had a stream to any node, sorted by the end of that stream, the latest first. Executors whose streams had
/// all ended before a run's instant cannot have received the run. The start of a stream excludes no executor, because a session's row is
/// overwritten when the executor connects again after a restart of the node.
struct Witnesses<'a> {
    sessions: Vec<&'a Session>,
    /// Maps a number of sessions to the executors of that many of the first `sessions`. Many runs share one list.
    lists: BTreeMap<usize, Arc<[ExecutorId]>>,
}

impl<'a> Witnesses<'a> {
    fn new(app: AppId, sessions: &'a [Session]) -> Self {
        let mut sessions: Vec<&Session> = sessions.iter().filter(|session| session.app == app).collect();
        sessions.sort_by_key(|session| Reverse(session.ended_at.unwrap_or(Timestamp::MAX)));
        Self { sessions, lists: BTreeMap::new() }
    }

    /// The executors that may have received a run that was due at `due_at`.
    fn of(&mut self, due_at: Timestamp, executors: &mut Executors, now: Timestamp) -> Arc<[ExecutorId]> {
        let count = self.sessions.partition_point(|session| session.may_have_carried(due_at));
        let sessions = self.sessions.iter().take(count);
        let witness_list = self.lists.entry(count).or_insert_with(|| {
            let mut witness_ids = BTreeSet::new();
            for session in sessions {
                executors.watch(session.executor, session.last_seen_at);
                // The executor has left, or its process has died: it has no runs.
                if session.has_left {
                    executors.record_process_end(session.executor, now);
                }
                witness_ids.insert(session.executor);
            }
            witness_ids.into_iter().collect()
        });
        Arc::clone(witness_list)
    }
}

#[cfg(test)]
mod tests;
