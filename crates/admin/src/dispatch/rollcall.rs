//! The roll call: runs of a lease that is over may be in an executor's hands. Each waits until everyone who may have
//! got it has answered a fence for that lease, or is lost: *not yet reported* is never *not held*.
//!
//! Only the answer to a fence counts. What an executor said before, in a hello too, may be older than what the lease's
//! node sent it last; after the fence it takes nothing more from there.

use std::collections::BTreeMap;
use std::sync::Arc;

use rondel_core::{ExecutorId, NodeId, Reason, RunId, Timestamp};
use rondel_store::LeaseToken;
use rondel_store::cluster::Session;

use super::executors::{Executors, Online};
use super::{CalledRun, Ready};

#[derive(Debug)]
struct Called {
    ready: Ready,
    /// Who may have it.
    witnesses: Vec<ExecutorId>,
    /// The leases under which it may have been sent: all that are over.
    leases: Arc<[LeaseToken]>,
}

#[derive(Debug, Default)]
pub(crate) struct RollCall(BTreeMap<RunId, Called>);

/// What the roll call found out about a run.
#[derive(Debug)]
pub(crate) enum Found {
    /// This executor has it.
    Held(Ready, ExecutorId),
    /// Nobody has it, and nobody will.
    Nobody(Ready, Reason),
}

/// Executors to be asked, each with the newest leases that it is to fence.
type Unanswered = BTreeMap<ExecutorId, BTreeMap<NodeId, i64>>;

impl RollCall {
    /// Begins to call for these runs. `over` are all leases that are over: it may have been sent under any of them, for
    /// those who adopted it may have died before they knew.
    pub(crate) fn call(
        &mut self,
        runs: Vec<CalledRun>,
        sessions: &[Session],
        over: &[LeaseToken],
        executors: &mut Executors,
        now: Timestamp,
    ) {
        let all: Arc<[LeaseToken]> = over.into();
        // What was said of a lease before it was known to be over does not count.
        let fenced_now =
            |lease: &&LeaseToken| runs.iter().any(|run| run.from.is_none_or(|from| from.node == lease.node));
        executors.ask_anew(&over.iter().filter(fenced_now).map(|lease| lease.node).collect());
        for called in runs {
            let run = &called.ready.run;
            // Whoever had a stream to anybody: a session's row is overwritten when its executor comes back to a later start
            // of the node.
            let may_have_it = |session: &&Session| session.app == run.app;
            let seen = |session: &Session| (session.executor, session.last_seen_at);
            let mut seen: BTreeMap<_, _> = sessions.iter().filter(may_have_it).map(seen).collect();
            if let Some(id) = run.executor_id {
                let last_seen = sessions.iter().filter(|session| session.executor == id).map(|s| s.last_seen_at).max();
                seen = BTreeMap::from([(id, last_seen.unwrap_or(now))]);
            }
            for (id, at) in &seen {
                executors.watch(*id, *at);
            }
            let (id, witnesses) = (run.id, seen.into_keys().collect());
            self.0.insert(id, Called { ready: called.ready, witnesses, leases: Arc::clone(&all) });
        }
    }

    /// Who has still to answer what.
    pub(crate) fn unanswered(&self, executors: &Executors) -> Unanswered {
        let mut unanswered = Unanswered::new();
        for called in self.0.values() {
            let online = called.witnesses.iter().filter_map(|id| executors.get(*id));
            for (online, lease) in online.flat_map(|online| called.leases.iter().map(move |lease| (online, lease))) {
                if !online.has_fenced(*lease) {
                    let leases = unanswered.entry(online.session.executor).or_default();
                    let epoch = leases.entry(lease.node).or_insert(lease.epoch);
                    *epoch = lease.epoch.max(*epoch);
                }
            }
        }
        unanswered
    }

    pub(crate) fn get(&self, run: RunId) -> Option<&Ready> {
        self.0.get(&run).map(|called| &called.ready)
    }

    pub(crate) fn remove(&mut self, run: RunId) -> Option<Ready> {
        self.0.remove(&run).map(|called| called.ready)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn drain(&mut self) -> Vec<Ready> {
        std::mem::take(&mut self.0).into_values().map(|called| called.ready).collect()
    }

    /// The runs that are called for.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &Ready> {
        self.0.values().map(|called| &called.ready)
    }

    /// Takes out every run about which everyone has answered or is lost.
    pub(crate) fn resolve(&mut self, executors: &Executors) -> Vec<Found> {
        let found: Vec<(RunId, Answer)> =
            self.0.iter().filter_map(|(id, called)| Some((*id, answer(called, executors)?))).collect();
        found.into_iter().filter_map(|(id, answer)| Some(answer.about(self.0.remove(&id)?.ready))).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Held(ExecutorId),
    Nobody(Reason),
}

impl Answer {
    fn about(self, ready: Ready) -> Found {
        match self {
            Self::Held(executor) => Found::Held(ready, executor),
            Self::Nobody(reason) => Found::Nobody(ready, reason),
        }
    }
}

/// `None` while somebody has not answered and nobody has it.
fn answer(called: &Called, executors: &Executors) -> Option<Answer> {
    let this = (called.ready.run.id, called.ready.run.attempt);
    let has_answered = |online: &Online| called.leases.iter().all(|lease| online.has_fenced(*lease));
    let mut reason = Reason::NotReceived;
    let mut all_answered = true;
    for id in &called.witnesses {
        if let Some(online) = executors.get(*id) {
            match has_answered(online) {
                true if online.holds(this) => return Some(Answer::Held(*id)),
                answered => all_answered &= answered,
            }
        } else if let Some(online) = executors.successor(*id) {
            // The process is dead: all that is left of it is what its journal holds.
            if online.report.finished.contains(&this) {
                return Some(Answer::Held(online.session.executor));
            }
            reason = Reason::ExecutorLost;
        } else {
            all_answered &= executors.is_lost(*id);
            reason = Reason::ExecutorLost;
        }
    }
    all_answered.then_some(Answer::Nobody(reason))
}

#[cfg(test)]
mod tests {
    use rondel_core::AppId;
    use serde_json::json;

    use super::*;
    use crate::dispatch::tests_support::{definition, executor, ready};
    use crate::dispatch::{FenceAnswer, Report};

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
                open: true,
            };
            let (mut rollcall, mut executors) = (RollCall::default(), Executors::default());
            let run = CalledRun { ready: ready(99, &definition(&json!({}))), from: Some(DEAD) };
            rollcall.call(vec![run], &[session], &[DEAD, OTHER], &mut executors, Timestamp::from_secs(101));
            join(&mut executors, 1, 1, Report::default());
            assert_eq!(resolve(&mut rollcall, &executors), "not yet", "{token:?}");
            fences(&mut executors, 1, 1, DEAD, &[]);
            assert_eq!(resolve(&mut rollcall, &executors), "not yet", "the node before may have sent it");
            fences(&mut executors, 1, 1, OTHER, &[]);
            assert_eq!(resolve(&mut rollcall, &executors), "not_received", "{token:?}");
        }
    }

    /// A run that was with the dead node, and two executors that had a stream to it until second 100.
    fn called(executors: &mut Executors) -> RollCall {
        let session = |id| Session {
            token: DEAD,
            executor: ExecutorId::new(id),
            app: AppId::new(1),
            last_seen_at: Timestamp::from_secs(100),
            open: true,
        };
        let mut rollcall = RollCall::default();
        let run = CalledRun { ready: ready(99, &definition(&json!({}))), from: Some(DEAD) };
        rollcall.call(vec![run], &[session(1), session(2)], &[DEAD], executors, Timestamp::from_secs(101));
        rollcall
    }

    fn join(executors: &mut Executors, id: i64, number: u64, report: Report) {
        let (session, online, _stream) = executor(id, number);
        executors.join(session, &online, report);
    }

    fn fences(executors: &mut Executors, id: i64, number: u64, lease: LeaseToken, held: &[i64]) {
        let held = held.iter().map(|run| (RunId::new(*run), 1)).collect();
        let answer = FenceAnswer { lease, held, finished: [].into() };
        executors.fenced(ExecutorId::new(id), number, answer);
    }

    fn resolve(rollcall: &mut RollCall, executors: &Executors) -> String {
        match rollcall.resolve(executors).first() {
            None => "not yet".to_owned(),
            Some(Found::Held(_, id)) => format!("held by {id}"),
            Some(Found::Nobody(_, reason)) => reason.to_string(),
        }
    }

    fn lose(executors: &mut Executors, id: i64) {
        assert!(executors.lose(ExecutorId::new(id), Timestamp::from_secs(130)));
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
        let newest = BTreeMap::from([(DEAD.node, DEAD.epoch)]);
        assert_eq!(rollcall.unanswered(&executors), Unanswered::from([(ExecutorId::new(2), newest)]), "asked before");
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
    fn a_successor_answers_for_its_predecessor() {
        let mut executors = Executors::default();
        let mut rollcall = called(&mut executors);
        join(&mut executors, 1, 1, Report::default());
        fences(&mut executors, 1, 1, DEAD, &[]);
        let successor = Report { predecessor: Some(ExecutorId::new(2)), ..Report::default() };
        join(&mut executors, 3, 2, successor);
        assert_eq!(resolve(&mut rollcall, &executors), "executor_lost");
    }
}
