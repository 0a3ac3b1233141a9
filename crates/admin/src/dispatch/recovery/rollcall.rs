//! The roll call: runs of a lease that is over may be in an executor's hands. Each waits until every executor that may have
//! got it has answered a fence for that lease, or is lost: *not yet reported* is never *not held*.
//!
//! Only the answer to a fence counts. What an executor reported before, in a hello too, may be older than what the lease's
//! node sent it last; after the fence it takes nothing more from there. The runs themselves are among the [open runs](OpenRuns).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rondel_core::{AppId, ExecutorId, NodeId, Reason, RunId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::LeaseToken;
use rondel_store::cluster::Session;

use crate::dispatch::event::CalledRun;
use crate::dispatch::executors::{Executors, Online};
use crate::dispatch::ready::Ready;
use crate::dispatch::runs::OpenRuns;

#[derive(Debug)]
struct Called {
    app: AppId,
    attempt: i32,
    /// Whether an executor may run it on while no server answers it.
    holds: bool,
    /// Who may have it, in order: the same list for many runs.
    witnesses: Arc<[ExecutorId]>,
}

#[derive(Debug, Default)]
pub(crate) struct RollCall {
    runs: BTreeMap<RunId, Called>,
    /// All leases that are over. A run may have been sent under any of them: those who adopted it may have died before they
    /// knew.
    over: BTreeMap<NodeId, i64>,
}

/// One list of witnesses, by its address, and whether they may run its runs on in silence.
type GroupKey = (*const ExecutorId, bool);

/// Runs that the same executors may have.
struct Group<'r> {
    app: AppId,
    witnesses: &'r [ExecutorId],
    key: GroupKey,
}

impl Called {
    fn group(&self) -> GroupKey {
        (self.witnesses.as_ptr(), self.holds)
    }
}

/// What the roll call found out about a run.
#[derive(Debug)]
pub(crate) enum Found {
    /// This executor has it.
    Held(ExecutorId),
    /// No executor has it, and none will.
    Nobody(Reason),
}

/// Executors to be asked, each with the leases that it is to fence.
type Unanswered = BTreeMap<ExecutorId, Vec<LeaseToken>>;

impl RollCall {
    /// Begins to call for these runs. `over` are all leases that are over.
    pub(crate) fn call(
        &mut self,
        runs: &[CalledRun],
        sessions: &[Session],
        over: &[LeaseToken],
        executors: &mut Executors,
        now: Timestamp,
    ) {
        for lease in over {
            let epoch = self.over.entry(lease.node).or_insert(lease.epoch);
            *epoch = lease.epoch.max(*epoch);
        }
        // What was answered about a lease before it was known to be over does not count.
        let fenced_now = |node: &&NodeId| runs.iter().any(|run| run.from.is_none_or(|from| from.node == **node));
        executors.ask_anew(&self.over.keys().filter(fenced_now).copied().collect());
        let mut of_app: BTreeMap<AppId, Witnesses<'_>> = BTreeMap::new();
        for CalledRun { ready, .. } in runs {
            let run = &ready.run;
            let witnesses = match run.executor_id {
                Some(id) => {
                    let seen = sessions.iter().filter(|session| session.executor == id).map(|s| s.last_seen_at).max();
                    executors.watch(id, seen.unwrap_or(now));
                    if sessions.iter().any(|session| session.executor == id && session.has_left) {
                        executors.end(id, now);
                    }
                    Arc::new([id])
                }
                None => {
                    let of_app = of_app.entry(run.app).or_insert_with(|| Witnesses::new(run.app, sessions));
                    of_app.of(run.due_at, executors, now)
                }
            };
            let holds = ready.definition.job.holds_in_silence() && !mutant::on(Mutant::NoHoldInSilence);
            self.runs.insert(run.id, Called { app: run.app, attempt: run.attempt, holds, witnesses });
        }
    }

    /// Who has still to answer what.
    pub(crate) fn unanswered(&self, executors: &Executors) -> Unanswered {
        let mut unanswered = Unanswered::new();
        for Group { witnesses, .. } in self.groups() {
            for online in witnesses.iter().filter_map(|id| executors.get(*id)) {
                let missing: Vec<LeaseToken> = self.leases().filter(|lease| !online.has_fenced(*lease)).collect();
                if !missing.is_empty() {
                    unanswered.insert(online.session.executor, missing);
                }
            }
        }
        unanswered
    }

    pub(crate) fn remove(&mut self, run: RunId, runs: &mut OpenRuns) -> Option<Ready> {
        self.runs.remove(&run)?;
        runs.take_called(run)
    }

    /// Whether an executor of this app, with these processes before it, may have the run: the one that its row names, else one
    /// that had a session with a node.
    pub(crate) fn may_be_claimed(
        &self,
        run: RunId,
        app: AppId,
        (executor, lineage): (ExecutorId, &[ExecutorId]),
    ) -> bool {
        let is_witness = |called: &Called, id| called.witnesses.binary_search(id).is_ok();
        let may_be = |called: &Called| {
            called.app == app && (is_witness(called, &executor) || lineage.iter().any(|id| is_witness(called, id)))
        };
        self.runs.get(&run).is_some_and(may_be)
    }

    /// Whether executors are asked about this lease.
    pub(crate) fn asks_about(&self, lease: LeaseToken) -> bool {
        self.over.get(&lease.node).is_some_and(|epoch| lease.epoch <= *epoch)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Calls for nothing any more.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
    }

    /// The runs that are called for.
    pub(crate) fn runs(&self) -> impl Iterator<Item = RunId> {
        self.runs.keys().copied()
    }

    /// Takes out every run that an executor has, and every one about which all have answered or are lost.
    pub(crate) fn resolve(&mut self, executors: &Executors) -> Vec<(RunId, Found)> {
        let mut found = Vec::new();
        for online in executors.all() {
            let id = online.session.executor;
            let held = online.held().filter(|_| self.has_answered(online));
            // The process before it is dead: all that is left of that is what its journal holds.
            let journaled = online.report.finished.iter().filter(|_| online.report.predecessor.is_some());
            let mut its: Vec<_> = held.chain(journaled).copied().collect();
            its.sort_unstable();
            for (run, attempt) in its {
                let is_this = |called: &Called| called.attempt == attempt;
                let may_be = || self.may_be_claimed(run, online.app, (id, &online.report.lineage));
                if self.runs.get(&run).is_some_and(is_this) && may_be() {
                    self.runs.remove(&run);
                    found.push((run, Found::Held(id)));
                }
            }
        }
        let ended: BTreeMap<GroupKey, Reason> =
            self.groups().filter_map(|group| Some((group.key, self.nobody(&group, executors)?))).collect();
        if !ended.is_empty() {
            let is_ended = |called: &Called| ended.get(&called.group()).copied();
            for (run, called) in self.runs.extract_if(.., |_, called| is_ended(called).is_some()) {
                let reason = is_ended(&called).unwrap_or(Reason::NotReceived);
                found.push((run, Found::Nobody(reason)));
            }
        }
        found
    }

    fn leases(&self) -> impl Iterator<Item = LeaseToken> {
        self.over.iter().map(|(node, epoch)| LeaseToken { node: *node, epoch: *epoch })
    }

    fn has_answered(&self, online: &Online) -> bool {
        self.leases().all(|lease| online.has_fenced(lease))
    }

    /// Each list of witnesses once, for runs that go on in silence and for others.
    fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let mut seen = BTreeSet::new();
        let first = self.runs.values().filter(move |called| seen.insert(called.group()));
        first.map(move |called| Group { app: called.app, witnesses: &called.witnesses, key: called.group() })
    }

    /// The witnesses of runs that one of them may run on in silence.
    pub(crate) fn holding_witnesses(&self) -> BTreeSet<ExecutorId> {
        let groups = self.groups().filter(|group| group.key.1);
        groups.flat_map(|group| group.witnesses.iter().copied()).collect()
    }

    /// Why a run that none of these has was not received; `None` while one has not answered.
    fn nobody(&self, group: &Group<'_>, executors: &Executors) -> Option<Reason> {
        let Group { app, witnesses, key: (_, holds) } = *group;
        let is_lost = |id| if holds { executors.is_over(id) } else { executors.is_lost(id) };
        let mut reason = Reason::NotReceived;
        for id in witnesses {
            match executors.get(*id) {
                _ if mutant::on(Mutant::NotReportedIsNotHeld) => {}
                Some(online) if self.has_answered(online) => {}
                Some(_) => return None,
                None if executors.successor(app, *id).is_some() || is_lost(*id) => {
                    reason = Reason::ExecutorLost;
                }
                None => return None,
            }
        }
        Some(reason)
    }
}

/// The executors of an app that had a stream to any node, the one whose last stream ended last first: a session's row is overwritten
/// when its executor comes back to a later start of the node. Those whose streams had all ended before a run's instant cannot
/// have received it.
struct Witnesses<'a> {
    sessions: Vec<&'a Session>,
    /// The executors of so many of the sessions: the same list for many runs.
    lists: BTreeMap<usize, Arc<[ExecutorId]>>,
}

impl<'a> Witnesses<'a> {
    fn new(app: AppId, sessions: &'a [Session]) -> Self {
        let mut sessions: Vec<&Session> = sessions.iter().filter(|session| session.app == app).collect();
        sessions.sort_by_key(|session| Reverse(session.ended_at.unwrap_or(Timestamp::MAX)));
        Self { sessions, lists: BTreeMap::new() }
    }

    /// Those that may have received a run which was due then.
    fn of(&mut self, due_at: Timestamp, executors: &mut Executors, now: Timestamp) -> Arc<[ExecutorId]> {
        let count = self.sessions.partition_point(|session| session.may_have_carried(due_at));
        let sessions = self.sessions.iter().take(count);
        let list = self.lists.entry(count).or_insert_with(|| {
            let mut seen = BTreeSet::new();
            for session in sessions {
                executors.watch(session.executor, session.last_seen_at);
                // It has reported that it has nothing in hand.
                if session.has_left {
                    executors.end(session.executor, now);
                }
                seen.insert(session.executor);
            }
            seen.into_iter().collect()
        });
        Arc::clone(list)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dispatch::tests_support::{definition, executor, ready};
    use crate::dispatch::{Begins, FenceAnswer, Report};
    use crate::registry::OnlineExecutor;

    const DEAD: LeaseToken = LeaseToken { node: NodeId::new(2), epoch: 3 };
    const OTHER: LeaseToken = LeaseToken { node: NodeId::new(5), epoch: 1 };

    #[test]
    fn whoever_had_a_stream_to_anybody_is_asked_about_all_leases() {
        for token in [DEAD, LeaseToken { epoch: 2, ..DEAD }, OTHER] {
            let session = Session {
                token,
                executor: ExecutorId::new(1),
                app: AppId::new(1),
                last_seen_at: Timestamp::from_secs(100),
                ended_at: None,
                has_left: false,
                process: None,
            };
            let (mut rollcall, mut executors) = (RollCall::default(), Executors::default());
            let run = CalledRun { ready: ready(99, &definition(&json!({}))), from: Some(DEAD) };
            rollcall.call(&[run], &[session], &[DEAD, OTHER], &mut executors, Timestamp::from_secs(101));
            join(&mut executors, 1, 1, Report::default());
            assert_eq!(resolve(&mut rollcall, &executors), "not yet", "{token:?}");
            fences(&mut executors, 1, 1, DEAD, &[]);
            assert_eq!(resolve(&mut rollcall, &executors), "not yet", "the node before may have sent it");
            fences(&mut executors, 1, 1, OTHER, &[]);
            assert_eq!(resolve(&mut rollcall, &executors), "not_received", "{token:?}");
        }
    }

    /// Who had its last stream before a run's instant cannot have it; who had one at that instant may.
    #[test]
    fn only_who_had_a_stream_at_the_instant_is_asked() {
        let session = |id, ended_at| Session {
            token: DEAD,
            executor: ExecutorId::new(id),
            app: AppId::new(1),
            last_seen_at: Timestamp::from_millis(ended_at),
            ended_at: Some(Timestamp::from_millis(ended_at)),
            has_left: false,
            process: None,
        };
        let run = |second| CalledRun { ready: ready(second, &definition(&json!({}))), from: Some(DEAD) };
        let (mut rollcall, mut executors) = (RollCall::default(), Executors::default());
        let sessions = [session(1, 98_700), session(2, 100_000)];
        let now = Timestamp::from_secs(101);
        rollcall.call(&[run(98), run(99), run(101)], &sessions, &[DEAD], &mut executors, now);
        let found: Vec<_> = rollcall.resolve(&executors).into_iter().map(|(run, found)| (run.get(), found)).collect();
        assert!(matches!(found[..], [(101_000, Found::Nobody(Reason::NotReceived))]), "{found:?}");
        lose(&mut executors, 1);
        assert_eq!(resolve(&mut rollcall, &executors), "not yet", "the other one may have both");
        join(&mut executors, 2, 1, Report::default());
        fences(&mut executors, 2, 1, DEAD, &[]);
        let mut found: Vec<_> = rollcall.resolve(&executors);
        found.sort_by_key(|(run, _)| *run);
        let reasons: Vec<_> = found.iter().map(|(run, found)| (run.get(), format!("{found:?}"))).collect();
        let expected = [(98_000, "Nobody(ExecutorLost)".to_owned()), (99_000, "Nobody(NotReceived)".to_owned())];
        assert_eq!(reasons, expected, "the first one died before the later run was due");
    }

    /// A run that was with the dead node, and two executors that had a stream to it until second 100.
    fn called(executors: &mut Executors) -> RollCall {
        let session = |id| Session {
            token: DEAD,
            executor: ExecutorId::new(id),
            app: AppId::new(1),
            last_seen_at: Timestamp::from_secs(100),
            ended_at: None,
            has_left: false,
            process: None,
        };
        let mut rollcall = RollCall::default();
        let run = CalledRun { ready: ready(99, &definition(&json!({}))), from: Some(DEAD) };
        rollcall.call(&[run], &[session(1), session(2)], &[DEAD], executors, Timestamp::from_secs(101));
        rollcall
    }

    fn join(executors: &mut Executors, id: i64, number: u64, report: Report) {
        let (session, online, _stream) = executor(id, number);
        executors.join(session, &online, report);
    }

    fn fences(executors: &mut Executors, id: i64, number: u64, lease: LeaseToken, held: &[i64]) {
        let held = held.iter().map(|run| (RunId::new(*run), 1)).collect();
        let answer = FenceAnswer { lease, held, finished: [].into(), begins: Begins::default() };
        executors.fenced(ExecutorId::new(id), number, answer);
    }

    fn resolve(rollcall: &mut RollCall, executors: &Executors) -> String {
        match rollcall.resolve(executors).first() {
            None => "not yet".to_owned(),
            Some((_, Found::Held(id))) => format!("held by {id}"),
            Some((_, Found::Nobody(reason))) => reason.to_string(),
        }
    }

    fn lose(executors: &mut Executors, id: i64) {
        assert!(executors.lose(ExecutorId::new(id), Timestamp::from_secs(130), Timestamp::EPOCH));
    }

    /// Its executor may be running it on while no server answers, and no other run of the job may begin beside it.
    #[test]
    fn a_run_that_goes_on_in_silence_waits_until_its_executor_must_have_stopped_it() {
        let (id, at) = (ExecutorId::new(1), Timestamp::from_secs);
        let mut executors = Executors::default();
        let session = Session {
            token: DEAD,
            executor: id,
            app: AppId::new(1),
            last_seen_at: at(100),
            ended_at: None,
            has_left: false,
            process: None,
        };
        let goes_on = definition(&json!({"on_silence": "continue"}));
        let run = CalledRun { ready: ready(99, &goes_on), from: Some(DEAD) };
        let mut rollcall = RollCall::default();
        rollcall.call(&[run], &[session], &[DEAD], &mut executors, at(101));
        lose(&mut executors, 1);
        assert_eq!(resolve(&mut rollcall, &executors), "not yet");
        assert_eq!(rollcall.holding_witnesses(), BTreeSet::from([id]));
        executors.suspect_again(id, at(100));
        assert!(executors.is_lost(id), "it may go on");
        executors.suspect_again(id, at(101));
        assert!(!executors.is_lost(id), "some node may have heard it since");
        assert!(executors.lose(id, at(221), at(101)));
        assert_eq!(resolve(&mut rollcall, &executors), "executor_lost");
    }

    #[test]
    fn not_yet_reported_is_never_not_held() {
        let mut executors = Executors::default();
        let mut rollcall = called(&mut executors);
        join(&mut executors, 1, 1, Report::default());
        fences(&mut executors, 1, 1, DEAD, &[]);
        assert_eq!(resolve(&mut rollcall, &executors), "not yet");
        join(&mut executors, 2, 2, Report::default());
        assert_eq!(resolve(&mut rollcall, &executors), "not yet", "a hello may be older than the last trigger");
        fences(&mut executors, 2, 2, DEAD, &[]);
        assert_eq!(resolve(&mut rollcall, &executors), "not_received");
    }

    #[test]
    fn who_holds_it_goes_on() {
        let mut executors = Executors::default();
        let mut rollcall = called(&mut executors);
        join(&mut executors, 2, 1, Report::default());
        fences(&mut executors, 2, 1, DEAD, &[5, 99_000]);
        assert_eq!(resolve(&mut rollcall, &executors), "held by 2");
    }

    #[test]
    fn a_fence_of_an_older_lease_or_stream_is_no_answer() {
        let mut executors = Executors::default();
        join(&mut executors, 1, 1, Report::default());
        join(&mut executors, 2, 2, Report::default());
        fences(&mut executors, 2, 2, DEAD, &[]);
        let mut rollcall = called(&mut executors);
        fences(&mut executors, 1, 1, DEAD, &[]);
        assert_eq!(
            rollcall.unanswered(&executors),
            Unanswered::from([(ExecutorId::new(2), vec![DEAD])]),
            "asked before"
        );
        fences(&mut executors, 2, 2, LeaseToken { epoch: 2, ..DEAD }, &[]);
        fences(&mut executors, 2, 1, DEAD, &[]);
        assert_eq!(resolve(&mut rollcall, &executors), "not yet");
        fences(&mut executors, 2, 2, LeaseToken { epoch: 4, ..DEAD }, &[]);
        assert_eq!(resolve(&mut rollcall, &executors), "not_received");
    }

    #[test]
    fn who_is_lost_need_not_answer() {
        let mut executors = Executors::default();
        let mut rollcall = called(&mut executors);
        join(&mut executors, 1, 1, Report::default());
        fences(&mut executors, 1, 1, DEAD, &[]);
        assert_eq!(executors.suspects(Timestamp::from_secs(101)), [ExecutorId::new(2)], "watched from the call on");
        assert_eq!(resolve(&mut rollcall, &executors), "not yet");
        lose(&mut executors, 2);
        assert_eq!(resolve(&mut rollcall, &executors), "executor_lost");
    }

    #[test]
    fn who_has_said_goodbye_need_not_answer() {
        let session = |id, has_left| Session {
            token: DEAD,
            executor: ExecutorId::new(id),
            app: AppId::new(1),
            last_seen_at: Timestamp::from_secs(100),
            ended_at: None,
            has_left,
            process: None,
        };
        for (lives, expected) in [(true, "not yet"), (false, "executor_lost")] {
            let (mut rollcall, mut executors) = (RollCall::default(), Executors::default());
            let sessions = [session(1, !lives), session(2, true)];
            let run = CalledRun { ready: ready(99, &definition(&json!({}))), from: Some(DEAD) };
            rollcall.call(&[run], &sessions, &[DEAD], &mut executors, Timestamp::from_secs(101));
            assert_eq!(resolve(&mut rollcall, &executors), expected);
        }
    }

    /// An executor's report about runs and its predecessors counts for its own app only.
    #[test]
    fn executors_of_another_app_are_not_heard() {
        for (app, expected) in [(2, "not yet"), (1, "held by 7")] {
            let mut executors = Executors::default();
            let mut rollcall = called(&mut executors);
            for (id, predecessor) in [(7, 1), (8, 2)] {
                let (session, online, _stream) = executor(id, 1);
                let online = OnlineExecutor { app: AppId::new(app), ..online };
                let (predecessor, finished) = (Some(ExecutorId::new(predecessor)), [(RunId::new(99_000), 1)].into());
                executors.join(
                    session,
                    &online,
                    Report { predecessor, finished, lineage: predecessor.into_iter().collect(), ..Report::default() },
                );
                fences(&mut executors, id, 1, DEAD, &[99_000]);
            }
            assert_eq!(resolve(&mut rollcall, &executors), expected, "app {app}");
        }
    }

    /// Of the executors of an app, only the one that the row names claims its run, or a process that proved to succeed it.
    #[test]
    fn nobody_claims_what_was_sent_to_another_executor() {
        for (claimant, lineage, expected) in
            [(2, None, "not yet"), (7, None, "not yet"), (1, None, "held by 1"), (7, Some(1), "held by 7")]
        {
            let mut executors = Executors::default();
            let mut rollcall = RollCall::default();
            let mut ready = ready(99, &definition(&json!({})));
            ready.run.executor_id = Some(ExecutorId::new(1));
            rollcall.call(
                &[CalledRun { ready, from: Some(DEAD) }],
                &[],
                &[DEAD],
                &mut executors,
                Timestamp::from_secs(101),
            );
            // A living one has no predecessor that the roll call would give up.
            let lineage: Arc<[ExecutorId]> = lineage.map(ExecutorId::new).into_iter().collect();
            join(&mut executors, claimant, 1, Report { lineage, ..Report::default() });
            fences(&mut executors, claimant, 1, DEAD, &[99_000]);
            assert_eq!(resolve(&mut rollcall, &executors), expected, "{claimant}");
        }
        // No row names it: only one that had a session can have it.
        let mut executors = Executors::default();
        let mut rollcall = called(&mut executors);
        join(&mut executors, 7, 1, Report::default());
        fences(&mut executors, 7, 1, DEAD, &[99_000]);
        assert_eq!(resolve(&mut rollcall, &executors), "not yet");
    }

    #[test]
    fn a_successor_answers_for_its_predecessor() {
        let mut executors = Executors::default();
        let mut rollcall = called(&mut executors);
        join(&mut executors, 1, 1, Report::default());
        fences(&mut executors, 1, 1, DEAD, &[]);
        let (predecessor, lineage) = (Some(ExecutorId::new(2)), [ExecutorId::new(2)].into());
        let successor = Report { predecessor, lineage, ..Report::default() };
        join(&mut executors, 3, 2, successor);
        assert_eq!(resolve(&mut rollcall, &executors), "executor_lost");
    }
}
