use rondel_store::ledger::{FenceRequest, RelayedAnswer};
use serde_json::json;

use super::*;
use crate::dispatch::tests_support::{definition, executor, ready};
use crate::dispatch::{FenceAnswer, Report, StartReports};
use crate::registry::OnlineExecutor;

const DEAD: LeaseToken = LeaseToken { node: NodeId::new(2), epoch: 3 };
const OTHER: LeaseToken = LeaseToken { node: NodeId::new(5), epoch: 1 };
/// A lease that no executor is asked about.
const UNASKED: LeaseToken = LeaseToken { node: NodeId::new(6), epoch: 1 };

/// A stream of this executor to the dead node, which was open until second 100.
fn open_session(executor: i64) -> Session {
    Session {
        token: DEAD,
        executor: ExecutorId::new(executor),
        app: AppId::new(1),
        last_seen_at: Timestamp::from_secs(100),
        ended_at: None,
        has_left: false,
        process: None,
    }
}

#[test]
fn every_executor_that_had_a_stream_is_asked_about_all_leases() {
    for token in [DEAD, LeaseToken { epoch: 2, ..DEAD }, OTHER] {
        let session = Session { token, ..open_session(1) };
        let (mut rollcall, mut executors) = (RollCall::default(), Executors::default());
        let run = RollCallRun { ready: ready(99, &definition(&json!({}))), sent_under: Some(DEAD) };
        rollcall.begin(&[run], &[session], &[DEAD, OTHER], &mut executors, Timestamp::from_secs(101));
        join(&mut executors, 1, 1, Report::default());
        assert_eq!(outcome(&mut rollcall, &executors), "not yet", "{token:?}");
        answer_fence(&mut executors, 1, 1, DEAD, &[]);
        assert_eq!(outcome(&mut rollcall, &executors), "not yet", "the node before may have sent it");
        answer_fence(&mut executors, 1, 1, OTHER, &[]);
        assert_eq!(outcome(&mut rollcall, &executors), "not_received", "{token:?}");
    }
}

/// An executor whose last stream ended before a run's instant cannot have the run; one with a stream at that instant may have it.
#[test]
fn only_executors_with_a_stream_at_the_instant_are_asked() {
    let session = |id, ended_at| Session {
        last_seen_at: Timestamp::from_millis(ended_at),
        ended_at: Some(Timestamp::from_millis(ended_at)),
        ..open_session(id)
    };
    let run = |second| RollCallRun { ready: ready(second, &definition(&json!({}))), sent_under: Some(DEAD) };
    let (mut rollcall, mut executors) = (RollCall::default(), Executors::default());
    let sessions = [session(1, 98_700), session(2, 100_000)];
    let now = Timestamp::from_secs(101);
    rollcall.begin(&[run(98), run(99), run(101)], &sessions, &[DEAD], &mut executors, now);
    let found: Vec<_> = rollcall.resolve(&executors).into_iter().map(|(run, found)| (run.get(), found)).collect();
    assert!(matches!(found[..], [(101_000, CallOutcome::NoExecutor(Reason::NotReceived))]), "{found:?}");
    lose(&mut executors, 1);
    assert_eq!(outcome(&mut rollcall, &executors), "not yet", "the other one may have both");
    join(&mut executors, 2, 1, Report::default());
    answer_fence(&mut executors, 2, 1, DEAD, &[]);
    let mut found: Vec<_> = rollcall.resolve(&executors);
    found.sort_by_key(|(run, _)| *run);
    let reasons: Vec<_> = found.iter().map(|(run, found)| (run.get(), format!("{found:?}"))).collect();
    let expected = [(98_000, "NoExecutor(ExecutorLost)".to_owned()), (99_000, "NoExecutor(NotReceived)".to_owned())];
    assert_eq!(reasons, expected, "the first one died before the later run was due");
}

/// A run of the dead node, and two executors that had a stream to that node until second 100.
fn begun_roll_call(executors: &mut Executors) -> RollCall {
    let mut rollcall = RollCall::default();
    let run = RollCallRun { ready: ready(99, &definition(&json!({}))), sent_under: Some(DEAD) };
    rollcall.begin(&[run], &[open_session(1), open_session(2)], &[DEAD], executors, Timestamp::from_secs(101));
    rollcall
}

fn join(executors: &mut Executors, id: i64, number: u64, report: Report) {
    let (session, online, _stream) = executor(id, number);
    executors.join(session, &online, report);
}

fn answer_fence(executors: &mut Executors, id: i64, number: u64, lease: LeaseToken, held: &[i64]) {
    let held = held.iter().map(|run| (RunId::new(*run), 1)).collect();
    let answer = FenceAnswer { lease, held_runs: held, finished_runs: [].into(), starts: StartReports::default() };
    executors.record_fence_answer(ExecutorId::new(id), number, answer);
}

fn outcome(rollcall: &mut RollCall, executors: &Executors) -> String {
    match rollcall.resolve(executors).first() {
        None => "not yet".to_owned(),
        Some((_, CallOutcome::AtExecutor(id))) => format!("held by {id}"),
        Some((_, CallOutcome::NoExecutor(reason))) => reason.to_string(),
    }
}

fn lose(executors: &mut Executors, id: i64) {
    assert!(executors.record_loss(ExecutorId::new(id), Timestamp::from_secs(130), Timestamp::EPOCH));
}

/// The executor may continue the run while no server answers, and no other run of the job may begin meanwhile.
#[test]
fn a_run_that_continues_in_silence_waits_until_its_executor_must_have_stopped_it() {
    let (id, at) = (ExecutorId::new(1), Timestamp::from_secs);
    let mut executors = Executors::default();
    let goes_on = definition(&json!({"on_silence": "continue"}));
    let run = RollCallRun { ready: ready(99, &goes_on), sent_under: Some(DEAD) };
    let mut rollcall = RollCall::default();
    rollcall.begin(&[run], &[open_session(1)], &[DEAD], &mut executors, at(101));
    lose(&mut executors, 1);
    assert_eq!(outcome(&mut rollcall, &executors), "not yet");
    assert_eq!(rollcall.silent_run_witnesses(), BTreeSet::from([id]));
    executors.suspect_again(id, at(100));
    assert!(executors.is_lost(id), "it may go on");
    executors.suspect_again(id, at(101));
    assert!(!executors.is_lost(id), "some node may have heard it since");
    assert!(executors.record_loss(id, at(221), at(101)));
    assert_eq!(outcome(&mut rollcall, &executors), "executor_lost");
}

/// The copy of a message can arrive after later messages.
#[test]
fn an_answer_that_comes_again_does_not_replace_a_later_one() {
    let earlier = LeaseToken { node: NodeId::new(8), epoch: 1 };
    let mut executors = Executors::default();
    join(&mut executors, 1, 1, Report::default());
    join(&mut executors, 2, 1, Report::default());
    answer_fence(&mut executors, 1, 1, earlier, &[99_000]);
    let mut rollcall = begun_roll_call(&mut executors);
    answer_fence(&mut executors, 1, 1, DEAD, &[]);
    answer_fence(&mut executors, 1, 1, earlier, &[99_000]);
    assert_eq!(outcome(&mut rollcall, &executors), "not yet", "it had handed the run back before it fenced the lease");
    answer_fence(&mut executors, 2, 1, DEAD, &[]);
    assert_eq!(outcome(&mut rollcall, &executors), "not_received");
}

#[test]
fn not_yet_reported_is_never_not_held() {
    let mut executors = Executors::default();
    let mut rollcall = begun_roll_call(&mut executors);
    join(&mut executors, 1, 1, Report::default());
    answer_fence(&mut executors, 1, 1, DEAD, &[]);
    assert_eq!(outcome(&mut rollcall, &executors), "not yet");
    join(&mut executors, 2, 2, Report::default());
    assert_eq!(outcome(&mut rollcall, &executors), "not yet", "a hello may be older than the last trigger");
    answer_fence(&mut executors, 2, 2, DEAD, &[]);
    assert_eq!(outcome(&mut rollcall, &executors), "not_received");
}

#[test]
fn a_held_run_continues_at_its_executor() {
    let mut executors = Executors::default();
    let mut rollcall = begun_roll_call(&mut executors);
    join(&mut executors, 2, 1, Report::default());
    answer_fence(&mut executors, 2, 1, DEAD, &[5, 99_000]);
    assert_eq!(outcome(&mut rollcall, &executors), "held by 2");
}

#[test]
fn a_fence_of_an_older_lease_or_stream_is_no_answer() {
    let mut executors = Executors::default();
    join(&mut executors, 1, 1, Report::default());
    join(&mut executors, 2, 2, Report::default());
    answer_fence(&mut executors, 2, 2, DEAD, &[]);
    let mut rollcall = begun_roll_call(&mut executors);
    answer_fence(&mut executors, 1, 1, DEAD, &[]);
    assert_eq!(
        rollcall.unanswered_fences(&executors),
        LeasesToFence::from([(ExecutorId::new(2), vec![DEAD])]),
        "asked before"
    );
    answer_fence(&mut executors, 2, 2, LeaseToken { epoch: 2, ..DEAD }, &[]);
    answer_fence(&mut executors, 2, 1, DEAD, &[]);
    assert_eq!(outcome(&mut rollcall, &executors), "not yet");
    answer_fence(&mut executors, 2, 2, LeaseToken { epoch: 4, ..DEAD }, &[]);
    assert_eq!(outcome(&mut rollcall, &executors), "not_received");
}

#[test]
fn a_lost_executor_need_not_answer() {
    let mut executors = Executors::default();
    let mut rollcall = begun_roll_call(&mut executors);
    join(&mut executors, 1, 1, Report::default());
    answer_fence(&mut executors, 1, 1, DEAD, &[]);
    assert_eq!(executors.suspects(Timestamp::from_secs(101)), [ExecutorId::new(2)], "watched from the call on");
    assert_eq!(outcome(&mut rollcall, &executors), "not yet");
    lose(&mut executors, 2);
    assert_eq!(outcome(&mut rollcall, &executors), "executor_lost");
}

/// No server had heard the executor for too long. Since then it has connected to other servers, which may have sent it runs.
#[test]
fn a_lost_executor_that_another_server_heard_since_has_to_answer() {
    let (id, at) = (ExecutorId::new(1), Timestamp::from_secs);
    for (heard_at, has_ended, expected) in
        [(100, false, "executor_lost"), (101, false, "not yet"), (101, true, "executor_lost")]
    {
        let (mut rollcall, mut executors) = (RollCall::default(), Executors::default());
        executors.watch(id, at(100));
        lose(&mut executors, 1);
        if has_ended {
            executors.record_process_end(id, at(140));
        }
        let (app, last_seen_at) = (AppId::new(1), at(heard_at));
        let (ended_at, has_left, process) = (None, false, None);
        let session = Session { token: DEAD, executor: id, app, last_seen_at, ended_at, has_left, process };
        let run = RollCallRun { ready: ready(99, &definition(&json!({}))), sent_under: Some(DEAD) };
        rollcall.begin(&[run], &[session], &[DEAD], &mut executors, at(200));
        assert_eq!(outcome(&mut rollcall, &executors), expected, "{heard_at} {has_ended}");
    }
}

#[test]
fn an_executor_that_sent_goodbye_need_not_answer() {
    let session = |id, has_left| Session { has_left, ..open_session(id) };
    for (lives, expected) in [(true, "not yet"), (false, "executor_lost")] {
        let (mut rollcall, mut executors) = (RollCall::default(), Executors::default());
        let sessions = [session(1, !lives), session(2, true)];
        let run = RollCallRun { ready: ready(99, &definition(&json!({}))), sent_under: Some(DEAD) };
        rollcall.begin(&[run], &sessions, &[DEAD], &mut executors, Timestamp::from_secs(101));
        assert_eq!(outcome(&mut rollcall, &executors), expected);
    }
}

/// An executor's report about runs and its predecessors counts for its own app only.
#[test]
fn executors_of_another_app_are_not_heard() {
    for (app, expected) in [(2, "not yet"), (1, "held by 7")] {
        let mut executors = Executors::default();
        let mut rollcall = begun_roll_call(&mut executors);
        for (id, predecessor) in [(7, 1), (8, 2)] {
            let (session, online, _stream) = executor(id, 1);
            let online = OnlineExecutor { app: AppId::new(app), ..online };
            let (predecessor, finished) = (Some(ExecutorId::new(predecessor)), [(RunId::new(99_000), 1)].into());
            executors.join(
                session,
                &online,
                Report {
                    predecessor,
                    finished_runs: finished,
                    lineage: predecessor.into_iter().collect(),
                    ..Report::default()
                },
            );
            answer_fence(&mut executors, id, 1, DEAD, &[99_000]);
        }
        assert_eq!(outcome(&mut rollcall, &executors), expected, "app {app}");
    }
}

/// Only the executor that the row names may claim its run, or a process that proved that it succeeds this executor.
#[test]
fn no_executor_claims_a_run_that_was_sent_to_another_one() {
    for (claimant, lineage, expected) in
        [(2, None, "not yet"), (7, None, "not yet"), (1, None, "held by 1"), (7, Some(1), "held by 7")]
    {
        let mut executors = Executors::default();
        let mut rollcall = RollCall::default();
        let mut ready = ready(99, &definition(&json!({})));
        ready.run.executor_id = Some(ExecutorId::new(1));
        rollcall.begin(
            &[RollCallRun { ready, sent_under: Some(DEAD) }],
            &[],
            &[DEAD],
            &mut executors,
            Timestamp::from_secs(101),
        );
        // The report names no `predecessor`: the roll call would treat that process as lost.
        let lineage: Arc<[ExecutorId]> = lineage.map(ExecutorId::new).into_iter().collect();
        join(&mut executors, claimant, 1, Report { lineage, ..Report::default() });
        answer_fence(&mut executors, claimant, 1, DEAD, &[99_000]);
        assert_eq!(outcome(&mut rollcall, &executors), expected, "{claimant}");
    }
    // The row names no executor: only an executor that had a session can have the run.
    let mut executors = Executors::default();
    let mut rollcall = begun_roll_call(&mut executors);
    join(&mut executors, 7, 1, Report::default());
    answer_fence(&mut executors, 7, 1, DEAD, &[99_000]);
    assert_eq!(outcome(&mut rollcall, &executors), "not yet");
}

#[test]
fn a_successor_answers_for_its_predecessor() {
    let mut executors = Executors::default();
    let mut rollcall = begun_roll_call(&mut executors);
    join(&mut executors, 1, 1, Report::default());
    answer_fence(&mut executors, 1, 1, DEAD, &[]);
    let (predecessor, lineage) = (Some(ExecutorId::new(2)), [ExecutorId::new(2)].into());
    let successor = Report { predecessor, lineage, ..Report::default() };
    join(&mut executors, 3, 2, successor);
    assert_eq!(outcome(&mut rollcall, &executors), "executor_lost");
}

/// An answer that another server relays counts for the leases that were asked about, until the next roll call.
#[test]
fn an_executor_that_is_not_connected_answers_by_way_of_another_server() {
    let at = Timestamp::from_secs;
    let mut executors = Executors::default();
    let mut rollcall = begun_roll_call(&mut executors);
    join(&mut executors, 1, 1, Report::default());
    answer_fence(&mut executors, 1, 1, DEAD, &[]);
    assert_eq!(rollcall.absent_witnesses(&executors), BTreeSet::from([ExecutorId::new(2)]));
    let ask = |rollcall: &mut RollCall, executors: &Executors, now| {
        let absent = rollcall.absent_witnesses(executors);
        let (elsewhere, leases) = rollcall.relayed_questions();
        elsewhere.ask(NodeId::new(9), &absent, leases, now)
    };
    assert_eq!(ask(&mut rollcall, &executors, at(102)), [], "it may connect by itself");
    let asked = ask(&mut rollcall, &executors, at(103));
    let [request] = &asked[..] else { unreachable!("{asked:?}") };
    assert_eq!((request.executor, &request.leases), (ExecutorId::new(2), &vec![DEAD]));
    assert_eq!(ask(&mut rollcall, &executors, at(112)), [], "its answer is on its way");
    let again = ask(&mut rollcall, &executors, at(113));
    assert_eq!(again.len(), 1);
    let answer = |request: &FenceRequest, held: &[i64]| RelayedAnswer {
        asker: request.asker,
        executor: request.executor,
        asked_at: request.asked_at,
        name: "two".to_owned(),
        held: held.iter().map(|run| (RunId::new(*run), 1)).collect(),
    };
    assert!(!rollcall.relayed_questions().0.record_answer(answer(request, &[])), "to a question of before");
    assert_eq!(outcome(&mut rollcall, &executors), "not yet");
    assert!(rollcall.relayed_questions().0.record_answer(answer(&again[0], &[98_000])));
    assert_eq!(outcome(&mut rollcall, &executors), "not_received");

    let mut rollcall = begun_roll_call(&mut executors);
    let asked = ask(&mut rollcall, &executors, at(103));
    assert!(rollcall.relayed_questions().0.record_answer(answer(&asked[0], &[99_000])));
    assert_eq!(outcome(&mut rollcall, &executors), "held by 2");
    assert_eq!(rollcall.name_elsewhere(ExecutorId::new(2)), Some("two"));
}

/// An answer to a fence proves nothing if it came before the lease was known to have ended. This holds for each node that runs came from.
#[test]
fn a_roll_call_asks_again_about_the_leases_of_all_its_runs() {
    let session = |token| Session { token, ..open_session(1) };
    for (from, expected) in [
        ([Some(DEAD), Some(OTHER)], vec![DEAD, OTHER]),
        ([Some(DEAD), Some(DEAD)], vec![DEAD]),
        ([Some(DEAD), None], vec![DEAD, OTHER]),
        ([Some(DEAD), Some(UNASKED)], vec![DEAD, OTHER]),
    ] {
        let (mut rollcall, mut executors) = (RollCall::default(), Executors::default());
        join(&mut executors, 1, 1, Report::default());
        answer_fence(&mut executors, 1, 1, DEAD, &[]);
        answer_fence(&mut executors, 1, 1, OTHER, &[]);
        let seconds = [98, 99].into_iter().zip(from);
        let runs = seconds
            .map(|(second, from)| RollCallRun { ready: ready(second, &definition(&json!({}))), sent_under: from });
        let runs: Vec<RollCallRun> = runs.collect();
        let now = Timestamp::from_secs(101);
        rollcall.begin(&runs, &[session(DEAD), session(OTHER)], &[DEAD, OTHER], &mut executors, now);
        assert_eq!(
            rollcall.unanswered_fences(&executors),
            LeasesToFence::from([(ExecutorId::new(1), expected)]),
            "{from:?}"
        );
    }
}

/// The row names the executor of a run. A report that another executor made when it left does not concern that run.
#[test]
fn only_the_goodbye_of_the_named_executor_counts_for_its_run() {
    let session = |id, has_left| Session { has_left, ..open_session(id) };
    for (one_left, two_left, expected) in
        [(false, true, "not yet"), (true, false, "executor_lost"), (false, false, "not yet")]
    {
        let (mut rollcall, mut executors) = (RollCall::default(), Executors::default());
        let mut ready = ready(99, &definition(&json!({})));
        ready.run.executor_id = Some(ExecutorId::new(1));
        let sessions = [session(1, one_left), session(2, two_left)];
        let run = RollCallRun { ready, sent_under: Some(DEAD) };
        rollcall.begin(&[run], &sessions, &[DEAD], &mut executors, Timestamp::from_secs(101));
        assert_eq!(outcome(&mut rollcall, &executors), expected, "{one_left} {two_left}");
    }
}

#[test]
fn the_leases_that_are_asked_about_are_those_that_have_ended() {
    let rollcall = begun_roll_call(&mut Executors::default());
    let of_epoch = |epoch| rollcall.asks_about(LeaseToken { epoch, ..DEAD });
    assert_eq!([2, 3, 4].map(of_epoch), [true, true, false]);
    assert!(!rollcall.asks_about(OTHER));
}

/// A report of another attempt does not count for the attempt in the roll call.
#[test]
fn another_attempt_is_not_the_one_that_is_called_for() {
    for (attempt, expected) in [(2, "not yet"), (1, "held by 1")] {
        let mut executors = Executors::default();
        let mut rollcall = begun_roll_call(&mut executors);
        join(&mut executors, 1, 1, Report::default());
        let answer = FenceAnswer {
            lease: DEAD,
            held_runs: [(RunId::new(99_000), attempt)].into(),
            finished_runs: [].into(),
            starts: StartReports::default(),
        };
        executors.record_fence_answer(ExecutorId::new(1), 1, answer);
        assert_eq!(outcome(&mut rollcall, &executors), expected);
    }
}

/// A run that executor 1 or 2 may have can be claimed by both, and by a successor of either, but by no executor of another app.
#[test]
fn executors_that_may_claim_a_run_that_no_row_names() {
    let rollcall = begun_roll_call(&mut Executors::default());
    let run = RunId::new(99_000);
    for (app, executor, lineage, expected) in [
        (1, 1, vec![], true),
        (1, 2, vec![], true),
        (1, 7, vec![], false),
        (1, 7, vec![8, 2], true),
        (1, 7, vec![8], false),
        (2, 1, vec![], false),
    ] {
        let lineage: Vec<ExecutorId> = lineage.into_iter().map(ExecutorId::new).collect();
        let claims = rollcall.may_be_claimed(run, AppId::new(app), (ExecutorId::new(executor), &lineage));
        assert_eq!(claims, expected, "{app} {executor} {lineage:?}");
    }
    assert!(!rollcall.may_be_claimed(RunId::new(1), AppId::new(1), (ExecutorId::new(1), &[])));
}

/// The executor that a row names counts as heard at the last instant at which any node heard it.
#[test]
fn the_named_executor_is_watched_from_when_it_was_last_heard() {
    let session = |executor, second| Session { last_seen_at: Timestamp::from_secs(second), ..open_session(executor) };
    for (sessions, heard_at) in
        [(vec![session(1, 50), session(1, 80), session(1, 60), session(2, 90)], 80), (vec![session(2, 90)], 101)]
    {
        let (mut rollcall, mut executors) = (RollCall::default(), Executors::default());
        let mut ready = ready(99, &definition(&json!({})));
        ready.run.executor_id = Some(ExecutorId::new(1));
        let run = RollCallRun { ready, sent_under: Some(DEAD) };
        rollcall.begin(&[run], &sessions, &[DEAD], &mut executors, Timestamp::from_secs(101));
        let suspects = |second| executors.suspects(Timestamp::from_secs(second)).len();
        assert_eq!((suspects(heard_at), suspects(heard_at + 1)), (0, 1), "{heard_at}");
    }
}

/// The journal of a process that has ended is complete, so its results count immediately. The results of a live process count once it has
/// answered the fence.
#[test]
fn a_journal_counts_before_the_fence_is_answered() {
    for (id, predecessor, expected) in [(7, Some(1), "held by 7"), (1, None, "not yet")] {
        let mut executors = Executors::default();
        let mut rollcall = begun_roll_call(&mut executors);
        let predecessor = predecessor.map(ExecutorId::new);
        let finished = [(RunId::new(99_000), 1)].into();
        let lineage = predecessor.into_iter().collect();
        join(&mut executors, id, 1, Report { finished_runs: finished, predecessor, lineage, ..Report::default() });
        assert_eq!(outcome(&mut rollcall, &executors), expected, "{id}");
    }
}
