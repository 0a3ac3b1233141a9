//! The roll call: runs of a lease that is over may be in an executor's hands. Each waits until everyone who may have
//! got it has answered or is lost: *not yet reported* is never *not held*.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_core::{ExecutorId, Reason, RunId, Timestamp};
use rondel_store::LeaseToken;
use rondel_store::cluster::Session;

use super::executors::Executors;
use super::{CalledRun, Ready};

#[derive(Debug)]
struct Called {
    ready: Ready,
    /// Who may have it, and when some node last heard of them.
    witnesses: Vec<(ExecutorId, Timestamp)>,
    /// Only what was said on streams opened since counts.
    since_session: u64,
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

impl RollCall {
    /// Begins to call for these runs. `since_session` is the number of the next stream where the lease was another
    /// node's: what executors said before may be older than what that node sent.
    pub(crate) fn call(
        &mut self,
        runs: Vec<CalledRun>,
        sessions: &[Session],
        since_session: impl Fn(Option<LeaseToken>) -> u64,
        now: Timestamp,
    ) {
        for called in runs {
            let run = &called.ready.run;
            // Whoever had a stream to anybody: which lease the run was sent under is not known for certain, since those
            // who adopted it before may have died over it, and a session's row is overwritten when its executor comes back
            // to a later start of the node.
            let may_have_it = |session: &&Session| session.app == run.app;
            let seen = |session: &Session| (session.executor, session.last_seen_at);
            let mut witnesses: Vec<_> = sessions.iter().filter(may_have_it).map(seen).collect();
            if let Some(id) = run.executor_id {
                let last_seen = sessions.iter().filter(|session| session.executor == id).map(|s| s.last_seen_at).max();
                witnesses = vec![(id, last_seen.unwrap_or(now))];
            }
            let since_session = since_session(called.from);
            self.0.insert(run.id, Called { ready: called.ready, witnesses, since_session });
        }
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

    /// Takes out every run about which everyone has answered or is lost.
    pub(crate) fn resolve(&mut self, executors: &Executors, lost_after: Duration, now: Timestamp) -> Vec<Found> {
        let found: Vec<(RunId, Answer)> =
            self.0.iter().filter_map(|(id, called)| Some((*id, answer(called, executors, lost_after, now)?))).collect();
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
fn answer(called: &Called, executors: &Executors, lost_after: Duration, now: Timestamp) -> Option<Answer> {
    let this = (called.ready.run.id, called.ready.run.attempt);
    let mut reason = Reason::NotReceived;
    let mut all_answered = true;
    for (id, last_seen_at) in &called.witnesses {
        let online = executors.get(*id).or_else(|| executors.successor(*id));
        match online.filter(|online| online.session.number >= called.since_session) {
            Some(online) if online.report.held.contains(&this) || online.report.finished.contains(&this) => {
                return Some(Answer::Held(online.session.executor));
            }
            Some(online) if online.session.executor != *id => reason = Reason::ExecutorLost,
            Some(_) => {}
            None => {
                let silent_since = executors.gone_since(*id).unwrap_or(*last_seen_at).max(*last_seen_at);
                all_answered &= now >= silent_since + lost_after;
                reason = Reason::ExecutorLost;
            }
        }
    }
    all_answered.then_some(Answer::Nobody(reason))
}

#[cfg(test)]
mod tests {
    use rondel_core::{AppId, NodeId};
    use serde_json::json;

    use super::*;
    use crate::dispatch::Report;
    use crate::dispatch::tests_support::{definition, executor, ready};

    const DEAD: LeaseToken = LeaseToken { node: NodeId::new(2), epoch: 1 };
    const LOST_AFTER: Duration = Duration::from_secs(30);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_secs(second)
    }

    #[test]
    fn whoever_had_a_stream_to_anybody_is_asked() {
        let [later, elsewhere] = [LeaseToken { epoch: 2, ..DEAD }, LeaseToken { node: NodeId::new(3), ..DEAD }];
        for token in [DEAD, later, elsewhere] {
            let executor = ExecutorId::new(1);
            let session = Session { token, executor, app: AppId::new(1), last_seen_at: at(100), open: true };
            let mut rollcall = RollCall::default();
            let run = CalledRun { ready: ready(99, &definition(&json!({}))), from: Some(DEAD) };
            rollcall.call(vec![run], &[session], |_| 1, at(101));
            assert_eq!(rollcall.resolve(&Executors::default(), LOST_AFTER, at(102)).len(), 0, "{token:?}");
        }
    }

    /// One run, which was with the dead node, and two executors that had a stream to it until second 100.
    fn called(since_session: u64) -> RollCall {
        let session = |id| Session {
            token: DEAD,
            executor: ExecutorId::new(id),
            app: AppId::new(1),
            last_seen_at: at(100),
            open: true,
        };
        let mut rollcall = RollCall::default();
        let run = CalledRun { ready: ready(99, &definition(&json!({}))), from: Some(DEAD) };
        rollcall.call(vec![run], &[session(1), session(2)], |_| since_session, at(101));
        rollcall
    }

    fn holds(run: i64) -> Report {
        Report { held: [(RunId::new(run), 1)].into(), ..Report::default() }
    }

    fn join(executors: &mut Executors, id: i64, number: u64, report: Report) {
        let (session, online, _stream) = executor(id, number);
        executors.join(session, &online, report);
    }

    fn resolve(rollcall: &mut RollCall, executors: &Executors, second: i64) -> String {
        match rollcall.resolve(executors, LOST_AFTER, at(second)).first() {
            None => "not yet".to_owned(),
            Some(Found::Held(_, id)) => format!("held by {id}"),
            Some(Found::Nobody(_, reason)) => reason.to_string(),
        }
    }

    #[test]
    fn not_yet_reported_is_never_not_held() {
        let (mut rollcall, mut executors) = (called(0), Executors::default());
        join(&mut executors, 1, 1, Report::default());
        assert_eq!(resolve(&mut rollcall, &executors, 129), "not yet");
        join(&mut executors, 2, 2, Report::default());
        assert_eq!(resolve(&mut rollcall, &executors, 129), "not_received");
    }

    #[test]
    fn who_holds_it_goes_on() {
        let (mut rollcall, mut executors) = (called(0), Executors::default());
        assert_eq!(resolve(&mut rollcall, &executors, 101), "not yet");
        join(&mut executors, 2, 1, holds(99_000));
        assert_eq!(resolve(&mut rollcall, &executors, 101), "held by 2");
    }

    #[test]
    fn who_is_silent_for_long_is_lost() {
        let (mut rollcall, mut executors) = (called(0), Executors::default());
        join(&mut executors, 1, 1, Report::default());
        assert_eq!(resolve(&mut rollcall, &executors, 130), "executor_lost");
    }

    #[test]
    fn what_was_said_before_the_other_node_died_does_not_count() {
        let (mut rollcall, mut executors) = (called(5), Executors::default());
        join(&mut executors, 1, 4, Report::default());
        join(&mut executors, 2, 6, Report::default());
        assert_eq!(resolve(&mut rollcall, &executors, 101), "not yet");
        join(&mut executors, 1, 7, Report::default());
        assert_eq!(resolve(&mut rollcall, &executors, 101), "not_received");
    }

    #[test]
    fn a_successor_answers_for_its_predecessor() {
        let (mut rollcall, mut executors) = (called(0), Executors::default());
        join(&mut executors, 1, 1, Report::default());
        let successor = Report { predecessor: Some(ExecutorId::new(2)), ..Report::default() };
        join(&mut executors, 3, 2, successor);
        assert_eq!(resolve(&mut rollcall, &executors, 101), "executor_lost");
    }
}
