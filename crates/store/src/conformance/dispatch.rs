//! Checks of the dispatch of open runs to executors.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::outcome::{CancelRequest, Outcome};
use rondel_core::reason::{ReasonDetail, WaitFor};
use rondel_core::{ExecutorId, NamespaceId, Reason, Run, RunId, RunStatus, Timestamp};

use super::broadcasts::{expanded_broadcast, limited_broadcast, mark_of};
use super::edits::a_run_that_an_executor_had_is_not_dropped;
use super::{DEFAULT, FAILED, claim, finish, finish_all, finish_one, job, join, next_id, pending_run, read_run, run};
use crate::ledger::{
    AttemptEnd, CancelElsewhere, CancelOutcome, LimitName, NotedWait, OpenPage, RunAtExecutor, RunCheck, WaitPlace,
};
use crate::{LeaseToken, Store};

pub(super) fn at_executor(run: &Run, executor: &str) -> RunAtExecutor {
    RunAtExecutor {
        run: run.id,
        attempt: run.attempt,
        executor_id: ExecutorId::new(7),
        executor: executor.to_owned(),
        at: run.due_at,
    }
}

/// Waiting runs of the lease become pending shortly before they are due, once each. Its pending runs are found when they are late.
pub async fn waiting_runs_wake_when_due(store: &dyn Store) {
    let (token, other) = (join(store).await, join(store).await);
    let at = store.now().await.unwrap().ceil_second();
    let job = job(store, Some(at)).await;
    let waiting = |offset| Run { status: RunStatus::Waiting, ..run(&job, token, at + Duration::from_secs(offset)) };
    let rows = vec![waiting(3), waiting(1), waiting(2), waiting(9)];
    claim(store, token, &job, rows.clone()).await;
    let until = at + Duration::from_secs(5);
    assert_eq!(store.take_waiting(other, until, 10).await.unwrap(), []);
    assert_eq!(store.take_waiting(LeaseToken { epoch: 9, ..token }, until, 10).await.unwrap(), []);
    let woken = store.take_waiting(token, until, 2).await.unwrap();
    let expected = |row: &Run| Run { status: RunStatus::Pending, ..row.clone() };
    assert_eq!(woken, [expected(&rows[1]), expected(&rows[2])]);
    let (a, b) = tokio::join!(store.take_waiting(token, until, 10), store.take_waiting(token, until, 10));
    let both = [a.unwrap(), b.unwrap()].concat();
    assert_eq!(both, [expected(&rows[0])]);
    assert_eq!(read_run(store, rows[0].id).await.status, RunStatus::Pending);

    let keys = async |token, before, after, limit| {
        store.open_keys(token, OpenPage { status: RunStatus::Pending, before, after, limit }).await.unwrap()
    };
    let (start, soon) = ((Timestamp::EPOCH, RunId::new(0)), at + Duration::from_secs(3));
    let [first, second, third] = [&rows[1], &rows[2], &rows[0]].map(|row| (row.due_at, row.id));
    assert_eq!(keys(token, soon, start, 10).await, [first, second], "not the one that is due just then");
    assert_eq!(keys(token, until, start, 1).await, [first]);
    assert_eq!(keys(token, until, first, 2).await, [second, third]);
    assert_eq!(keys(token, until, third, 2).await, []);
    assert_eq!(keys(token, until, (first.0, RunId::new(first.1.get() - 1)), 1).await, [first], "of one instant by id");
    assert_eq!(keys(other, until, start, 10).await, []);
}

/// The open runs of this lease that have this status.
pub(super) async fn open_keys(store: &dyn Store, token: LeaseToken, status: RunStatus) -> Vec<RunId> {
    let page = OpenPage { status, before: Timestamp::MAX, after: (Timestamp::EPOCH, RunId::new(0)), limit: 1_000 };
    store.open_keys(token, page).await.unwrap().into_iter().map(|(_, run)| run).collect()
}

/// Only the owner can mark an attempt, and only once. The mark can be removed.
pub async fn marks_are_won_once(store: &dyn Store) {
    let (token, other) = (join(store).await, join(store).await);
    let (first, second) = (pending_run(store, token).await, pending_run(store, token).await);
    let runs_at_executors = [at_executor(&first, "a"), at_executor(&second, "a")];
    assert_eq!(store.mark(other, &runs_at_executors).await.unwrap(), []);
    assert_eq!(store.mark(token, &[]).await.unwrap(), []);
    let later = RunAtExecutor { attempt: 2, ..runs_at_executors[0].clone() };
    assert_eq!(store.mark(token, &[later]).await.unwrap(), []);
    let (a, b) = tokio::join!(store.mark(token, &runs_at_executors), store.mark(token, &runs_at_executors));
    let mut won = [a.unwrap(), b.unwrap()].concat();
    won.sort_unstable();
    assert_eq!(won, [first.id, second.id]);
    let marked = read_run(store, first.id).await;
    assert_eq!((marked.marked_at, marked.executor.as_deref()), (Some(first.due_at), Some("a")));
    assert_eq!((marked.executor_id, marked.status), (Some(ExecutorId::new(7)), RunStatus::Pending));

    store.unmark(other, &[mark_of(first.id, 1)]).await.unwrap();
    store.unmark(token, &[mark_of(first.id, 2)]).await.unwrap();
    assert!(read_run(store, first.id).await.marked_at.is_some());
    store.unmark(token, &[mark_of(first.id, 1), mark_of(RunId::new(next_id()), 1)]).await.unwrap();
    assert_eq!(read_run(store, first.id).await, first);
    assert_eq!(store.mark(token, &runs_at_executors).await.unwrap(), [first.id]);
    // The executor accepted the run, kept it in its queue, and returned it before it began.
    store.note_running(token, &runs_at_executors[..1]).await.unwrap();
    assert_eq!(read_run(store, first.id).await.status, RunStatus::Running);
    store.unmark(token, &[mark_of(first.id, 1)]).await.unwrap();
    assert_eq!(read_run(store, first.id).await, first);
    // The same without a mark, as for an `at_least_once` job.
    store.note_running(token, &runs_at_executors[..1]).await.unwrap();
    store.unmark(token, &[mark_of(first.id, 2)]).await.unwrap();
    assert_eq!(read_run(store, first.id).await.executor.as_deref(), Some("a"));
    store.unmark(token, &[mark_of(first.id, 1)]).await.unwrap();
    assert_eq!(read_run(store, first.id).await, first);
}

/// The runs of executors are counted by app and name; open runs without an executor and ended runs are not.
pub async fn runs_in_hand_are_counted_by_executor(store: &dyn Store) {
    let token = join(store).await;
    let runs = [pending_run(store, token).await, pending_run(store, token).await, pending_run(store, token).await];
    let name = format!("läufer-{}", next_id());
    let counts = async || {
        let counts = store.count_running_by_executor(DEFAULT).await.unwrap();
        let its = counts.into_iter().filter(|held| held.executor == name);
        let mut its: Vec<_> = its.map(|held| (held.app, held.count)).collect();
        its.sort_unstable();
        its
    };
    let mut expected: std::collections::BTreeMap<_, u64> = std::collections::BTreeMap::new();
    for run in &runs[..2] {
        store.note_running(token, &[at_executor(run, &name)]).await.unwrap();
        *expected.entry(run.app).or_default() += 1;
        assert_eq!(counts().await, expected.clone().into_iter().collect::<Vec<_>>());
        let held = store.running_runs_of_executor(DEFAULT, run.app, &name, 10).await.unwrap();
        assert!(held.iter().any(|held| held.id == run.id) && held.iter().all(|held| held.id != runs[2].id), "{held:?}");
        assert_eq!(store.running_runs_of_executor(DEFAULT, run.app, &name, 0).await.unwrap(), []);
        assert_eq!(store.running_runs_of_executor(DEFAULT, run.app, "another", 10).await.unwrap(), []);
    }
    assert_eq!(store.count_running_by_executor(NamespaceId::new(next_id())).await.unwrap(), []);
    for run in &runs[..2] {
        finish_one(store, finish(run, Outcome::Succeeded)).await;
    }
    assert_eq!(counts().await, []);
    assert_eq!(store.running_runs_of_executor(DEFAULT, runs[0].app, &name, 10).await.unwrap(), []);
}

/// A pending run becomes running, and an ended run stays ended. The tick reads the states of runs.
pub async fn running_is_noted_for_pending_runs(store: &dyn Store) {
    let token = join(store).await;
    let (first, second) = (pending_run(store, token).await, pending_run(store, token).await);
    finish_one(store, finish(&second, Outcome::Succeeded)).await;
    let runs_at_executors = [at_executor(&first, "läufer"), at_executor(&second, "b")];
    store.note_running(LeaseToken { epoch: 9, ..token }, &runs_at_executors).await.unwrap();
    assert_eq!(read_run(store, first.id).await, first);
    assert!(!store.check_runs(&[first.id]).await.unwrap()[0].has_recorded_start);
    store.note_running(token, &runs_at_executors).await.unwrap();
    store.note_running(token, &[]).await.unwrap();
    let running = read_run(store, first.id).await;
    assert_eq!((running.status, running.executor.as_deref()), (RunStatus::Running, Some("läufer")));
    assert_eq!(running.started_at, Some(first.due_at));
    assert_eq!(read_run(store, second.id).await.status, RunStatus::Succeeded);

    let mut checks = store.check_runs(&[second.id, first.id, RunId::new(next_id())]).await.unwrap();
    checks.sort_by_key(|check| check.id);
    let ended = read_run(store, second.id).await;
    let check = |run: &Run, status| RunCheck {
        id: run.id,
        status,
        attempt: 1,
        job_version: 1,
        has_recorded_start: run.started_at.is_some(),
        owner: token,
        cancel_by: None,
        drop_for: None,
        term: 1,
    };
    assert_eq!(checks, [check(&running, RunStatus::Running), check(&ended, RunStatus::Succeeded)]);
}

/// A run that waits in the queue of an executor is pending without a start, and its row names the executor. This also holds for a run that
/// was adopted as running. The first recorded start is kept.
pub async fn a_run_in_an_executors_queue_has_not_begun(store: &dyn Store) {
    let (token, other) = (join(store).await, join(store).await);
    let at = store.now().await.unwrap().ceil_second() - Duration::from_secs(60);
    let claimed = job(store, Some(at)).await;
    let (run, shard) = (run(&claimed, token, at), run(&claimed, token, at + Duration::from_secs(1)));
    claim(store, token, &claimed, vec![run.clone(), shard.clone()]).await;
    let detail = ReasonDetail { waits_for: Some(WaitFor::Slot), ..ReasonDetail::default() };
    let wait = |run: &Run, attempt, hand| {
        let (run, detail, place) = (run.id, Arc::new(detail.clone()), WaitPlace::Executor(hand));
        NotedWait { run, attempt, detail, place }
    };
    let run_at_executor = at_executor(&run, "läufer");
    let both = [wait(&run, 1, Some(run_at_executor.clone())), wait(&shard, 1, None)];
    store.note_waits(LeaseToken { epoch: 9, ..token }, &both).await.unwrap();
    store.note_waits(token, &[wait(&run, 2, Some(run_at_executor.clone()))]).await.unwrap();
    assert_eq!((read_run(store, run.id).await, read_run(store, shard.id).await), (run.clone(), shard.clone()));
    store.note_waits(token, &both).await.unwrap();
    let named = Run {
        executor: Some("läufer".to_owned()),
        executor_id: Some(ExecutorId::new(7)),
        marked_at: Some(run.due_at),
        detail: Some(Arc::new(detail.clone())),
        ..run.clone()
    };
    assert_eq!(read_run(store, run.id).await, named);
    assert_eq!(read_run(store, shard.id).await, Run { detail: named.detail.clone(), ..shard.clone() });
    let now = store.now().await.unwrap();
    store.ask_cancel(run.id, CancelRequest::requested("Bo"), now).await.unwrap();
    let elsewhere = store.cancels_elsewhere(other, RunId::new(0), 10_000).await.unwrap();
    assert!(elsewhere.iter().any(|asked| asked.run == run.id), "the executor may be heard elsewhere");

    store.release(token, Timestamp::EPOCH).await.unwrap();
    super::orphans::adopt_all(store, other, &[token.node]).await;
    let adopted = read_run(store, run.id).await;
    assert_eq!((adopted.status, adopted.started_at), (RunStatus::Running, None), "it may have begun");
    store.note_waits(other, &[NotedWait { place: WaitPlace::Server, ..both[0].clone() }]).await.unwrap();
    assert_eq!(read_run(store, run.id).await, adopted, "it waits nowhere here");
    store.note_waits(other, &both[..1]).await.unwrap();
    assert_eq!(read_run(store, run.id).await.status, RunStatus::Pending);
    store.note_running(other, &[at_executor(&run, "läufer"), at_executor(&shard, "läufer")]).await.unwrap();
    let begun = [read_run(store, run.id).await, read_run(store, shard.id).await];
    let states = begun.each_ref().map(|run| (run.status, run.started_at, run.executor.as_deref()));
    assert_eq!(states, [&run, &shard].map(|run| (RunStatus::Running, Some(run.due_at), Some("läufer"))));
    store.note_waits(other, &both).await.unwrap();
    let later = RunAtExecutor { at: run.due_at + Duration::from_secs(9), ..run_at_executor };
    store.note_running(other, &[later]).await.unwrap();
    assert_eq!([read_run(store, run.id).await, read_run(store, shard.id).await], begun);
}

/// The owner reads the request until the run has ended. A failed attempt of a run with such a request is not retried.
pub async fn a_cancel_is_recorded_until_the_run_has_ended(store: &dyn Store) {
    let (token, other) = (join(store).await, join(store).await);
    let now = store.now().await.unwrap();
    let run = pending_run(store, token).await;
    assert_eq!(
        store.ask_cancel(RunId::new(next_id()), CancelRequest::requested("x"), now).await.unwrap(),
        CancelOutcome::NotFound
    );
    let CancelOutcome::Requested(row) = store.ask_cancel(run.id, CancelRequest::requested("Änne"), now).await.unwrap()
    else {
        unreachable!()
    };
    let (cancel_by, cancel_reason) = (Some("Änne".to_owned()), Some(Reason::Requested));
    assert_eq!(*row, Run { cancel_by, cancel_reason, ..run.clone() });
    let CancelOutcome::Requested(again) = store.ask_cancel(run.id, CancelRequest::requested("leo"), now).await.unwrap()
    else {
        unreachable!()
    };
    assert_eq!(again, row);
    let expected = [(run.id, "Änne".to_owned())];
    assert_eq!(store.cancels(token).await.unwrap(), expected);
    assert_eq!(store.cancels(token).await.unwrap(), expected);
    assert_eq!(store.cancels(other).await.unwrap(), []);
    assert_eq!(store.check_runs(&[run.id]).await.unwrap()[0].cancel_by.as_deref(), Some("Änne"));

    let mut failed = finish(&run, FAILED);
    failed.policy.retry_max = 5;
    assert_eq!(finish_one(store, failed).await, super::verdict(RunStatus::Failed));
    assert_eq!(store.cancels(token).await.unwrap(), []);
    assert_eq!(
        store.ask_cancel(run.id, CancelRequest::requested("x"), now).await.unwrap(),
        CancelOutcome::AlreadyEnded(RunStatus::Failed)
    );
}

/// A node that has a stream to the executor finds the request, even if another node owns the run.
pub async fn a_cancel_is_read_by_nodes_that_hear_the_executor(store: &dyn Store) {
    let (token, other) = (join(store).await, join(store).await);
    let now = store.now().await.unwrap();
    let (held, unsent) = (pending_run(store, token).await, pending_run(store, token).await);
    store.note_running(token, &[at_executor(&held, "a")]).await.unwrap();
    store.ask_cancels(&[held.id, unsent.id], CancelRequest::requested("Bo"), now).await.unwrap();
    let is_of_here = |cancel: &CancelElsewhere| [held.id, unsent.id].contains(&cancel.run);
    let mut elsewhere = store.cancels_elsewhere(other, RunId::new(0), 10_000).await.unwrap();
    elsewhere.retain(is_of_here);
    let expected = CancelElsewhere { run: held.id, attempt: 1, executor: ExecutorId::new(7), by: "Bo".to_owned() };
    assert_eq!(elsewhere, [expected]);
    let later = pending_run(store, token).await;
    store.note_running(token, &[at_executor(&later, "a")]).await.unwrap();
    store.ask_cancel(later.id, CancelRequest::requested("Bo"), now).await.unwrap();
    let (first, last) = (held.id.min(later.id), held.id.max(later.id));
    assert_eq!(store.cancels_elsewhere(other, RunId::new(0), 1).await.unwrap().len(), 1);
    let behind = store.cancels_elsewhere(other, first, 10_000).await.unwrap();
    let has = |run: RunId| behind.iter().any(|cancel| cancel.run == run);
    assert_eq!((has(first), has(last)), (false, true), "a page begins behind the last run of the page before");
    finish_one(store, finish(&later, Outcome::Cancelled)).await;
    assert!(!store.cancels_elsewhere(token, RunId::new(0), 10_000).await.unwrap().iter().any(is_of_here), "its own");
    finish_one(store, finish(&held, Outcome::Cancelled)).await;
    assert!(!store.cancels_elsewhere(other, RunId::new(0), 10_000).await.unwrap().iter().any(is_of_here));
}

/// A run that a later run of its job replaces is cancelled as covered. If its executor was lost, that loss is the reason instead.
pub async fn a_covered_run_has_that_reason(store: &dyn Store) {
    let token = join(store).await;
    let now = store.now().await.unwrap();
    let (stopped, lost) = (pending_run(store, token).await, pending_run(store, token).await);
    assert_eq!(store.ask_cancels(&[stopped.id, lost.id], CancelRequest::LATER_RUN, now).await.unwrap(), 2);
    // The executor of this run has not reported its end, so a late report may still replace the verdict.
    let lost_with = Reason::ExecutorLost;
    for (run, outcome, reason) in
        [(&stopped, Outcome::Cancelled, Reason::Covered), (&lost, Outcome::Lost(lost_with), lost_with)]
    {
        finish_one(store, finish(run, outcome)).await;
        let ended = read_run(store, run.id).await;
        assert_eq!((ended.status, ended.reason), (RunStatus::Cancelled, Some(reason)));
    }
    let (root, shards) = expanded_broadcast(store, token, 2).await;
    store.ask_cancels(&[root.id, shards[0].id, shards[1].id], CancelRequest::LATER_RUN, now).await.unwrap();
    finish_one(store, finish(&shards[0], Outcome::Cancelled)).await;
    assert_eq!(read_run(store, root.id).await.reason, None);
    finish_one(store, finish(&shards[1], Outcome::Cancelled)).await;
    let ended = read_run(store, root.id).await;
    assert_eq!((ended.status, ended.reason), (RunStatus::Cancelled, Some(Reason::Covered)));
    assert_eq!(ended.message, Some(format!("2 of 2 shards were cancelled by {}", CancelRequest::LATER_RUN.by)));
    assert_eq!(store.cancels(token).await.unwrap(), []);
}

/// A request cancels many runs in one call. Ended runs are skipped, and the first request for a run stays.
pub async fn all_open_runs_of_a_job_are_found_and_cancelled(store: &dyn Store) {
    let token = join(store).await;
    let now = store.now().await.unwrap();
    let at = now.ceil_second();
    let claimed = job(store, Some(at)).await;
    let rows: Vec<Run> = (0..4).map(|offset| run(&claimed, token, at + Duration::from_secs(offset))).collect();
    claim(store, token, &claimed, rows.clone()).await;
    let job = claimed.id;
    assert_eq!(finish_one(store, finish(&rows[0], Outcome::Succeeded)).await, super::verdict(RunStatus::Succeeded));
    store.ask_cancel(rows[1].id, CancelRequest::requested("Änne"), now).await.unwrap();
    let ids = |runs: Vec<Run>| runs.iter().map(|run| run.id).collect::<Vec<_>>();
    assert_eq!(ids(store.open_runs(job, None, None, 10).await.unwrap()), [rows[2].id, rows[3].id]);
    assert_eq!(ids(store.open_runs(job, None, None, 1).await.unwrap()), [rows[2].id]);
    assert_eq!(ids(store.open_runs(job, Some(rows[3].fire_at), None, 10).await.unwrap()), [rows[3].id]);
    assert_eq!(ids(store.open_runs(job, Some(rows[0].fire_at), None, 10).await.unwrap()), []);
    let (own, other) = (Some(rows[3].app), Some(rondel_core::AppId::new(rows[3].app.get() + 1)));
    assert_eq!(ids(store.open_runs(job, None, own, 10).await.unwrap()), [rows[2].id, rows[3].id]);
    assert_eq!(ids(store.open_runs(job, None, other, 10).await.unwrap()), []);
    assert_eq!(ids(store.open_runs(job, Some(rows[3].fire_at), own, 10).await.unwrap()), [rows[3].id]);
    assert_eq!(ids(store.open_runs(job, Some(rows[3].fire_at), other, 10).await.unwrap()), []);

    let all: Vec<RunId> = rows.iter().map(|run| run.id).collect();
    assert_eq!(store.ask_cancels(&all, CancelRequest::requested("Bo: too many"), now).await.unwrap(), 3);
    let expected = [
        (rows[1].id, "Änne".to_owned()),
        (rows[2].id, "Bo: too many".to_owned()),
        (rows[3].id, "Bo: too many".to_owned()),
    ];
    assert_eq!(store.cancels(token).await.unwrap(), expected);
    assert_eq!(read_run(store, rows[3].id).await.cancel_by.as_deref(), Some("Bo: too many"));
    assert_eq!(store.ask_cancels(&all, CancelRequest::requested("Cy"), now).await.unwrap(), 3);
    assert_eq!(store.cancels(token).await.unwrap(), expected);
    assert_eq!(store.open_runs(job, None, None, 10).await.unwrap(), []);
    assert_eq!(store.ask_cancels(&[], CancelRequest::requested("Cy"), now).await.unwrap(), 0);
}

/// The first node that asks for a limit counts its runs, until it gives the limit away or is fenced and its runs are adopted.
pub async fn a_limit_has_one_home(store: &dyn Store) {
    let (first, second) = (join(store).await, join(store).await);
    let limit = || LimitName { namespace: DEFAULT, key: super::name("limit") };
    let (one, two) = (limit(), limit());
    assert_eq!(store.limit_homes(second, std::slice::from_ref(&one)).await.unwrap(), [second.node]);
    let both = [two.clone(), one.clone()];
    assert_eq!(store.limit_homes(first, &both).await.unwrap(), [first.node, second.node]);
    assert_eq!(store.limit_homes(second, &both).await.unwrap(), [first.node, second.node]);
    assert_eq!(super::orphans::adopt_all(store, first, &[second.node]).await.0.fenced, [], "it lives");
    assert_eq!(store.limit_homes(first, &both).await.unwrap(), [first.node, second.node]);
    store.release(second, Timestamp::EPOCH).await.unwrap();
    assert_eq!(super::orphans::adopt_all(store, first, &[second.node]).await.0.fenced, [second.node]);
    assert_eq!(store.limit_homes(first, &both).await.unwrap(), [first.node, first.node]);
    let third = join(store).await;
    assert_eq!(store.give_limits(third, &both, None).await.unwrap(), [], "they are not its own");
    assert_eq!(store.give_limits(first, &both[..1], None).await.unwrap(), []);
    assert_eq!(store.limit_homes(third, &both).await.unwrap(), [third.node, first.node]);
    assert_eq!(store.give_limits(first, &both, Some(third.node)).await.unwrap(), []);
    assert_eq!(store.limit_homes(first, &both).await.unwrap(), [third.node, third.node]);
    limited_broadcast(store, third, &one.key).await;
    assert_eq!(store.give_limits(third, &both, None).await.unwrap(), [one], "its shards cannot move");
    assert_eq!(store.limit_homes(first, &both).await.unwrap(), [first.node, third.node]);
}

/// Runs that were never sent move to another living node, and their job with them.
pub async fn unsent_runs_are_handed_over(store: &dyn Store) {
    let (token, other, dead) = (join(store).await, join(store).await, join(store).await);
    store.release(dead, Timestamp::EPOCH).await.unwrap();
    let at = store.now().await.unwrap().ceil_second();
    let job = job(store, Some(at)).await;
    let rows: Vec<Run> = (0..3).map(|offset| run(&job, token, at + Duration::from_secs(offset))).collect();
    claim(store, token, &job, rows.clone()).await;
    store.note_running(token, &[at_executor(&rows[0], "one")]).await.unwrap();
    store.mark(token, &[at_executor(&rows[1], "one")]).await.unwrap();
    let all: Vec<RunId> = rows.iter().map(|run| run.id).collect();
    assert_eq!(store.hand_over(token, &all, other.node).await.unwrap(), [], "it has a run in hand, and a mark");
    finish_all(store, &[finish(&rows[0], Outcome::Succeeded)]).await;
    store.unmark(token, &[mark_of(rows[1].id, 1)]).await.unwrap();
    assert_eq!(store.hand_over(token, &all, dead.node).await.unwrap(), []);
    assert_eq!(store.hand_over(other, &all, token.node).await.unwrap(), [], "they are not its own");
    assert_eq!(store.hand_over(token, &all[1..2], other.node).await.unwrap(), [], "the third would stay behind");
    assert_eq!(store.hand_over(token, &all, other.node).await.unwrap(), all[1..]);
    for run in &rows[1..] {
        let given = read_run(store, run.id).await;
        assert_eq!((given.node, given.node_epoch, given.status), (other.node, other.epoch, RunStatus::Waiting));
    }
    assert_eq!(read_run(store, rows[0].id).await.node, token.node);
    let asked = run(&job, token, at + Duration::from_secs(9));
    let requested = store.request_run(token, Run { cause: asked.id.get(), ..asked }).await.unwrap();
    assert_eq!(requested.node, other.node, "the job has another home");
    // The handover stores a wait for a run that was due and had none. Otherwise the next home would treat the run as missed.
    let second = super::job(store, Some(at)).await;
    let [due, ahead] = [at - Duration::from_secs(60), at + Duration::from_secs(60)].map(|at| run(&second, token, at));
    claim(store, token, &second, vec![due.clone(), ahead.clone()]).await;
    let both = [due.id, ahead.id];
    assert_eq!(store.hand_over(token, &both, other.node).await.unwrap(), both);
    let waits = [read_run(store, due.id).await.waits_for(), read_run(store, ahead.id).await.waits_for()];
    assert_eq!(waits, [Some(WaitFor::Executor), None]);
}

/// A lease that is released shelves the runs that it did not send, marked or not: the next lease treats them as never sent.
pub async fn runs_that_a_lease_did_not_send_wait_for_the_next(store: &dyn Store) {
    let (token, other) = (join(store).await, join(store).await);
    super::open_stream(store, token).await;
    let at = store.now().await.unwrap().ceil_second();
    let job = job(store, Some(at)).await;
    let before = at - Duration::from_secs(60);
    let rows: Vec<Run> = (0..5).map(|offset| run(&job, token, before + Duration::from_secs(offset))).collect();
    claim(store, token, &job, rows.clone()).await;
    store.note_running(token, &[at_executor(&rows[0], "one")]).await.unwrap();
    store.mark(token, &[at_executor(&rows[1], "one"), at_executor(&rows[2], "one")]).await.unwrap();
    assert_eq!(store.shelve(other, &[]).await.unwrap(), 0, "they are not its own");
    assert_eq!(store.shelve(token, &[rows[2].id, rows[3].id]).await.unwrap(), 2);
    let state = async |run: &Run| {
        let run = read_run(store, run.id).await;
        (run.status, run.marked_at.is_some(), run.executor)
    };
    let one = Some("one".to_owned());
    assert_eq!(state(&rows[0]).await, (RunStatus::Running, false, one.clone()));
    assert_eq!(state(&rows[1]).await, (RunStatus::Waiting, false, None));
    assert_eq!(state(&rows[2]).await, (RunStatus::Pending, true, one));
    assert_eq!(state(&rows[3]).await, (RunStatus::Pending, false, None));
    assert_eq!(state(&rows[4]).await, (RunStatus::Waiting, false, None));
    assert_eq!(read_run(store, rows[4].id).await.waits_for(), Some(WaitFor::Executor), "it is due, and was not missed");
    store.release(token, Timestamp::EPOCH).await.unwrap();
    let adopted = super::orphans::adopt_all(store, other, &[token.node]).await.1;
    let of_it = |run: &Run| adopted.iter().find(|adopted| adopted.run.id == run.id).map(|adopted| adopted.run.status);
    assert_eq!(of_it(&rows[1]), Some(RunStatus::Waiting), "no executor has to be asked about it");
    assert_eq!(of_it(&rows[3]), Some(RunStatus::Running), "it may have been sent");
    let woken: Vec<RunId> = store.take_waiting(other, at, 10).await.unwrap().into_iter().map(|run| run.id).collect();
    assert_eq!(woken, [rows[1].id, rows[4].id]);
}

/// The wait of a pending run is stored, and stays until the verdict brings parameters of its own. After a retry the row has the parameters
/// of the attempt that ended.
pub async fn waits_and_reasons_keep_their_parameters(store: &dyn Store) {
    let token = join(store).await;
    let (run, other) = (pending_run(store, token).await, pending_run(store, token).await);
    let behind = ReasonDetail { waits_for: Some(WaitFor::Run), run: Some(other.id), ..ReasonDetail::default() };
    let behind = Arc::new(behind);
    let wait =
        |run: &Run, attempt| NotedWait { run: run.id, attempt, detail: Arc::clone(&behind), place: WaitPlace::Server };
    store.note_waits(token, &[wait(&run, 1), wait(&other, 2)]).await.unwrap();
    store.note_waits(LeaseToken { epoch: 9, ..token }, &[wait(&other, 1)]).await.unwrap();
    store.note_waits(token, &[]).await.unwrap();
    assert_eq!(read_run(store, run.id).await.detail.as_ref(), Some(&behind));
    assert_eq!(read_run(store, other.id).await.detail, None, "another attempt, another lease");
    finish_one(store, finish(&run, Outcome::Succeeded)).await;
    assert_eq!(read_run(store, run.id).await.detail.as_ref(), Some(&behind), "what it waited for stays");
    store.note_waits(token, &[wait(&run, 1)]).await.unwrap();

    let lost = ReasonDetail { executor: Some("w1".to_owned()), ..ReasonDetail::default() };
    let detail = Some(Arc::new(lost.clone()));
    finish_one(store, AttemptEnd { detail, ..finish(&other, Outcome::Lost(Reason::ExecutorLost)) }).await;
    assert_eq!(store.attempts(other.id).await.unwrap()[0].detail.as_deref(), Some(&lost));
    assert_eq!(read_run(store, other.id).await.detail.as_deref(), Some(&lost));
    let full = ReasonDetail { waited_ms: Some(5), ..ReasonDetail::default() };
    let ended = AttemptEnd {
        attempt: 2,
        detail: Some(Arc::new(full.clone())),
        ..finish(&other, Outcome::Skipped(Reason::Expired))
    };
    finish_one(store, ended).await;
    assert_eq!(read_run(store, other.id).await.detail.as_deref(), Some(&full));
}

/// A request to end a run unless an executor has it does not count as a request to cancel. A request to cancel replaces it.
pub async fn a_request_to_drop_is_not_a_request_to_cancel(store: &dyn Store) {
    let token = join(store).await;
    let runs = [pending_run(store, token).await, pending_run(store, token).await, pending_run(store, token).await];
    let ids: Vec<RunId> = runs.iter().map(|run| run.id).collect();
    let paused = CancelRequest { by: "li", reason: Reason::Paused };
    store.ask_cancel(ids[2], CancelRequest::requested("bo"), runs[2].due_at).await.unwrap();
    store.ask_drops(&ids, paused, runs[0].due_at).await.unwrap();
    store.ask_drops(&[], paused, runs[0].due_at).await.unwrap();
    let drops = async |token, after, limit| store.drops(token, after, limit).await.unwrap();
    let both = [(ids[0], Reason::Paused), (ids[1], Reason::Paused)];
    assert_eq!(drops(token, RunId::new(0), 9).await, both);
    assert_eq!(drops(token, RunId::new(0), 1).await, both[..1]);
    assert_eq!(drops(token, ids[0], 9).await, both[1..]);
    assert_eq!(drops(LeaseToken { epoch: token.epoch + 1, ..token }, RunId::new(0), 9).await, []);
    assert_eq!(store.cancels(token).await.unwrap(), [(ids[2], "bo".to_owned())]);
    assert_eq!(read_run(store, ids[0]).await.cancel_by, None);
    let mut checks = store.check_runs(&ids).await.unwrap();
    checks.sort_unstable_by_key(|check| check.id);
    let asked: Vec<_> = checks.iter().map(|check| (check.drop_for, check.cancel_by.as_deref())).collect();
    assert_eq!(asked, [(Some(Reason::Paused), None), (Some(Reason::Paused), None), (None, Some("bo"))]);

    store.ask_cancels(&ids[1..2], CancelRequest::requested("bo"), runs[0].due_at).await.unwrap();
    assert_eq!(drops(token, RunId::new(0), 9).await, both[..1]);
    assert_eq!(store.cancels(token).await.unwrap().len(), 2);
    let ended = AttemptEnd { executor: None, ..finish(&runs[0], Outcome::Skipped(Reason::Paused)) };
    finish_one(store, ended).await;
    let dropped = read_run(store, ids[0]).await;
    assert_eq!((dropped.status, dropped.reason), (RunStatus::Skipped, Some(Reason::Paused)));
    store.ask_drops(&ids[..1], paused, runs[0].due_at).await.unwrap();
    assert_eq!(drops(token, RunId::new(0), 9).await, []);
    a_run_that_an_executor_had_is_not_dropped(store, token, paused).await;
}
