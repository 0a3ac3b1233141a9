//! Checks of results and what follows from them.

use std::time::Duration;

use rondel_core::outcome::{CancelRequest, NextStep, NextStepPolicy, Outcome};
use rondel_core::run::{Attempt, RESULT_LEN_MAX};
use rondel_core::{ExecutorId, Reason, Run, RunId, RunStatus};

use super::broadcasts::expanded_broadcast;
use super::dispatch::at_executor;
use super::stats::dead_letters_of;
use super::{FAILED, finish, finish_all, finish_one, finisher, join, next_id, pending_run, read_run, verdict};
use crate::ledger::{AttemptEnd, EndOutcome, RunAtExecutor};
use crate::{LeaseToken, Store};

/// A stored result is durable and complete, and never changes. A result of a missing run is reported as such.
pub async fn a_result_is_stored_once(store: &dyn Store) {
    let token = join(store).await;
    let run = pending_run(store, token).await;
    let first = AttemptEnd {
        message: Some("done \u{1f980}".to_owned()),
        result: Some(r#"{"rows": 3}"#.to_owned()),
        ..finish(&run, Outcome::Succeeded)
    };
    let unknown = AttemptEnd { run: RunId::new(next_id()), ..first.clone() };
    let ahead = AttemptEnd { attempt: 2, ..first.clone() };
    let answers = finish_all(store, &[unknown, ahead, first.clone()]).await;
    assert_eq!(answers, [EndOutcome::NoSuchRun, EndOutcome::NoSuchRun, verdict(RunStatus::Succeeded)]);
    let stored = read_run(store, run.id).await;
    let expected = Run {
        status: RunStatus::Succeeded,
        executor: Some("executor-a".to_owned()),
        executor_id: Some(ExecutorId::new(77)),
        started_at: first.started_at,
        finished_at: Some(first.finished_at),
        message: first.message.clone(),
        result: first.result.clone(),
        trace: first.trace.clone(),
        ..run.clone()
    };
    assert_eq!(stored, expected);
    assert_eq!(finish_one(store, first).await, EndOutcome::Duplicate);
    assert_eq!(finish_one(store, finish(&run, FAILED)).await, EndOutcome::Duplicate);
    assert_eq!(read_run(store, run.id).await, expected);
    assert_eq!(store.attempts(run.id).await.unwrap(), []);

    // An end that names neither an executor nor a start keeps the stored ones.
    let run = pending_run(store, token).await;
    let run_at_executor = RunAtExecutor {
        run: run.id,
        attempt: 1,
        executor_id: ExecutorId::new(9),
        executor: "b".to_owned(),
        at: run.due_at,
    };
    store.note_running(token, &[run_at_executor]).await.unwrap();
    let end = AttemptEnd { executor: None, started_at: None, ..finish(&run, Outcome::Cancelled) };
    finish_one(store, end).await;
    let stored = read_run(store, run.id).await;
    assert_eq!((stored.status, stored.reason), (RunStatus::Cancelled, Some(Reason::Requested)));
    assert_eq!((stored.executor.as_deref(), stored.started_at), (Some("b"), Some(run.due_at)));
}

/// An end that a server decides on its own is refused if another lease owns the run by now. An executor's result is stored in any case.
pub async fn only_the_owner_ends_a_run_by_itself(store: &dyn Store) {
    let token = join(store).await;
    let run = pending_run(store, token).await;
    let zombie = LeaseToken { epoch: token.epoch - 1, ..token };
    let skipped =
        |owner| AttemptEnd { owner: Some(owner), executor: None, ..finish(&run, Outcome::Skipped(Reason::Expired)) };
    let lost = AttemptEnd { outcome: Outcome::Lost(Reason::ExecutorLost), ..skipped(zombie) };
    assert_eq!(finish_all(store, &[skipped(zombie), lost]).await, [EndOutcome::NotOwner, EndOutcome::NotOwner]);
    assert_eq!(read_run(store, run.id).await, run);
    assert_eq!(finish_one(store, finish(&run, Outcome::Succeeded)).await, verdict(RunStatus::Succeeded));
    assert_eq!(finish_one(store, skipped(token)).await, EndOutcome::Duplicate);

    let other = pending_run(store, token).await;
    let unknown =
        AttemptEnd { owner: Some(token), executor: None, ..finish(&other, Outcome::Skipped(Reason::Expired)) };
    assert!(matches!(finish_one(store, unknown).await, EndOutcome::Stored(..)), "its own");
}

/// A server ends a run that it takes for unsent. Meanwhile another server has sent the run, and this server has taken it over again.
pub async fn a_run_under_way_does_not_end_as_unsent(store: &dyn Store) {
    let token = join(store).await;
    let run = pending_run(store, token).await;
    let begun = RunAtExecutor {
        run: run.id,
        attempt: 1,
        executor_id: ExecutorId::new(9),
        executor: "b".to_owned(),
        at: run.due_at,
    };
    store.note_running(token, &[begun]).await.unwrap();
    let under_way = read_run(store, run.id).await;
    assert_eq!(under_way.status, RunStatus::Running);
    for outcome in [Outcome::Skipped(Reason::Expired), Outcome::Cancelled] {
        let end = AttemptEnd { owner: Some(token), executor: None, is_unsent: true, ..finish(&run, outcome) };
        assert_eq!(finish_one(store, end).await, EndOutcome::UnderWay, "{outcome:?}");
        assert_eq!(read_run(store, run.id).await, under_way);
    }
    assert_eq!(finish_one(store, finish(&run, Outcome::Succeeded)).await, verdict(RunStatus::Succeeded));
}

/// Skipped means that no attempt began. If an attempt began or may have begun, and no further attempt can begin, the run has failed, with
/// the reason why none can begin.
pub async fn a_run_that_began_is_never_skipped(store: &dyn Store) {
    let token = join(store).await;
    let skipped = |run: &Run, attempt| AttemptEnd {
        attempt,
        executor: None,
        started_at: None,
        trace: None,
        ..finish(run, Outcome::Skipped(Reason::NoExecutor))
    };
    let failed = RunStatus::Failed;
    for (first, expected) in [
        (FAILED, failed),
        (Outcome::TimedOut, failed),
        (Outcome::Lost(Reason::ExecutorLost), failed),
        (Outcome::Lost(Reason::NotReceived), RunStatus::Skipped),
    ] {
        for is_one_batch in [true, false] {
            let run = pending_run(store, token).await;
            let policy = NextStepPolicy { retry_max: 1, ..finish(&run, first).policy };
            let ends = [AttemptEnd { policy, ..finish(&run, first) }, skipped(&run, 2)];
            let answers = if is_one_batch {
                finish_all(store, &ends).await
            } else {
                let [first, second] = ends;
                vec![finish_one(store, first).await, finish_one(store, second).await]
            };
            let reason = Some(Reason::NoExecutor);
            let verdict = EndOutcome::Stored(NextStep::Verdict { status: expected, reason }, None);
            assert_eq!(answers.get(1), Some(&verdict), "{first:?} {is_one_batch}");
            let stored = read_run(store, run.id).await;
            assert_eq!((stored.status, stored.reason), (expected, reason), "{first:?} {is_one_batch}");
            assert_eq!(store.attempts(run.id).await.unwrap().len(), 1);
        }
    }
    let run = pending_run(store, token).await;
    let answers = finish_one(store, skipped(&run, 1)).await;
    let reason = Some(Reason::NoExecutor);
    assert_eq!(answers, EndOutcome::Stored(NextStep::Verdict { status: RunStatus::Skipped, reason }, None));
}

/// An attempt that no executor received does not use up one of the job's retries.
pub async fn an_attempt_without_executor_uses_no_retry(store: &dyn Store) {
    let token = join(store).await;
    for is_one_batch in [true, false] {
        let run = pending_run(store, token).await;
        let policy = NextStepPolicy { retry_max: 1, ..finish(&run, FAILED).policy };
        let end = |attempt, outcome| AttemptEnd { attempt, policy, ..finish(&run, outcome) };
        let unreceived = |attempt| end(attempt, Outcome::Lost(Reason::NotReceived));
        let ends = [unreceived(1), unreceived(2), end(3, FAILED), unreceived(4), end(5, Outcome::TimedOut)];
        let answers = if is_one_batch {
            finish_all(store, &ends).await
        } else {
            let mut answers = Vec::new();
            for end in ends {
                answers.push(finish_one(store, end).await);
            }
            answers
        };
        let next = |answer: &EndOutcome| match answer {
            EndOutcome::Stored(NextStep::Retry { reason, .. }, _) => Some(*reason),
            _ => None,
        };
        let reasons: Vec<Option<Reason>> = answers.iter().map(next).collect();
        let (unreceived, retry) = (Some(Reason::NotReceived), Some(Reason::Retry));
        assert_eq!(reasons, [unreceived, unreceived, retry, unreceived, None], "{is_one_batch}");
        assert_eq!(read_run(store, run.id).await.status, RunStatus::TimedOut, "{is_one_batch}");
    }
}

/// The end of the newest attempt decides about the run. The end of an older attempt is stored with that attempt.
pub async fn results_of_other_attempts_are_kept_beside(store: &dyn Store) {
    let token = join(store).await;
    let run = pending_run(store, token).await;
    let lost = AttemptEnd { executor: None, started_at: None, ..finish(&run, Outcome::Lost(Reason::ExecutorLost)) };
    let EndOutcome::Stored(NextStep::Retry { lost_count: 1, .. }, Some(waiting)) = finish_one(store, lost).await else {
        unreachable!("another attempt follows")
    };
    assert_eq!(waiting.attempt, 2);
    let attempt = |status, executor: Option<&str>, started_at| Attempt {
        attempt: 1,
        status,
        reason: Some(Reason::ExecutorLost),
        executor: executor.map(str::to_owned),
        executor_id: executor.and_then(|_| finish(&run, FAILED).executor).map(|(id, _)| id),
        started_at,
        finished_at: Some(run.due_at + Duration::from_millis(105)),
        message: None,
        detail: None,
    };
    assert_eq!(store.attempts(run.id).await.unwrap(), [attempt(RunStatus::Unknown, None, None)]);
    let given_up = AttemptEnd { owner: Some(token), executor: None, ..finish(&run, Outcome::Skipped(Reason::Misfire)) };
    assert_eq!(finish_one(store, given_up).await, EndOutcome::Superseded);
    assert_eq!(store.attempts(run.id).await.unwrap(), [attempt(RunStatus::Unknown, None, None)], "no report");
    let late = finish(&run, Outcome::Succeeded);
    assert_eq!(finish_all(store, &[late.clone(), late.clone()]).await, vec![EndOutcome::Superseded; 2]);
    let expected = attempt(RunStatus::Succeeded, Some("executor-a"), late.started_at);
    assert_eq!(store.attempts(run.id).await.unwrap(), std::slice::from_ref(&expected));
    assert_eq!(finish_one(store, finish(&run, FAILED)).await, EndOutcome::Superseded);
    assert_eq!(store.attempts(run.id).await.unwrap(), std::slice::from_ref(&expected));
    // Ends of attempts that never began add no row and change none.
    for attempt in [0, -1, i32::MIN, 3] {
        let invented = AttemptEnd { attempt, ..late.clone() };
        assert_eq!(finish_one(store, invented).await, EndOutcome::NoSuchRun, "{attempt}");
    }
    assert_eq!(store.attempts(run.id).await.unwrap(), [expected]);
    assert_eq!(read_run(store, run.id).await, *waiting);
}

/// Only a late result changes a verdict.
pub async fn an_unknown_verdict_becomes_the_true_one(store: &dyn Store) {
    let token = join(store).await;
    let run = pending_run(store, token).await;
    let run_at_executor = RunAtExecutor {
        run: run.id,
        attempt: 1,
        executor_id: ExecutorId::new(77),
        executor: "executor-a".to_owned(),
        at: run.due_at,
    };
    store.mark(token, &[run_at_executor]).await.unwrap();
    let mut lost = AttemptEnd { executor: None, ..finish(&run, Outcome::Lost(Reason::ExecutorLost)) };
    lost.policy.at_least_once = false;
    let after = NextStep::Verdict { status: RunStatus::Unknown, reason: Some(Reason::ExecutorLost) };
    assert_eq!(finish_one(store, lost.clone()).await, EndOutcome::Stored(after, None));
    assert_eq!(finish_one(store, lost).await, EndOutcome::Duplicate, "still unknown");
    let late = AttemptEnd { message: Some("it failed".to_owned()), ..finish(&run, FAILED) };
    assert_eq!(finish_all(store, &[late.clone(), late]).await, [EndOutcome::Late, EndOutcome::Duplicate]);
    let stored = read_run(store, run.id).await;
    assert_eq!((stored.status, stored.reason), (RunStatus::Failed, None));
    assert_eq!(stored.message.as_deref(), Some("it failed"));
    assert_eq!(finish_one(store, finish(&run, Outcome::Succeeded)).await, EndOutcome::Duplicate);
}

/// A run whose end was unknown turns out to have succeeded, and so does the broadcast of which it is a shard.
pub(super) async fn a_report_of_success_ends_a_dead_letter(store: &dyn Store, token: LeaseToken) {
    let run = pending_run(store, token).await;
    let (root, shards) = expanded_broadcast(store, token, 1).await;
    for (run, listed) in [(&run, &run), (&shards[0], &root)] {
        store.mark(token, &[at_executor(run, "one")]).await.unwrap();
        let mut lost = finish(run, Outcome::Lost(Reason::ExecutorLost));
        lost.policy.at_least_once = false;
        finish_one(store, lost).await;
        assert_eq!(dead_letters_of(store, listed.job).await, [listed.id]);
        assert_eq!(finish_one(store, finish(run, Outcome::Succeeded)).await, EndOutcome::Late);
        assert_eq!(dead_letters_of(store, listed.job).await, []);
    }
}

/// An executor is lost while it has a run with a request to cancel. When the executor reports the handler's end, the ledger stores that
/// end.
pub async fn a_cancel_without_a_report_becomes_the_true_end(store: &dyn Store) {
    let token = join(store).await;
    for (outcome, status) in [(Outcome::Succeeded, RunStatus::Succeeded), (Outcome::Cancelled, RunStatus::Cancelled)] {
        let run = pending_run(store, token).await;
        store.ask_cancels(&[run.id], CancelRequest::requested("li"), run.due_at).await.unwrap();
        let lost = AttemptEnd {
            executor: None,
            started_at: None,
            owner: Some(token),
            ..finish(&run, Outcome::Lost(Reason::ExecutorLost))
        };
        let after = NextStep::Verdict { status: RunStatus::Cancelled, reason: Some(Reason::ExecutorLost) };
        assert_eq!(finish_one(store, lost.clone()).await, EndOutcome::Stored(after, None));
        assert_eq!(finish_one(store, lost).await, EndOutcome::Duplicate);
        let late = finish(&run, outcome);
        assert_eq!(finish_all(store, &[late.clone(), late]).await, [EndOutcome::Late, EndOutcome::Duplicate]);
        let stored = read_run(store, run.id).await;
        let reason = (status == RunStatus::Cancelled).then_some(Reason::Requested);
        assert_eq!((stored.status, stored.reason), (status, reason));
        assert_eq!(finish_one(store, finish(&run, FAILED)).await, EndOutcome::Duplicate, "it is final now");
    }
}

/// The ended attempt is stored with the earlier ones, and the run waits for its next attempt.
pub async fn a_failed_attempt_is_followed_by_another(store: &dyn Store) {
    let token = join(store).await;
    let run = pending_run(store, token).await;
    let mut failed = AttemptEnd { message: Some("boom".to_owned()), ..finish(&run, FAILED) };
    failed.policy.retry_max = 1;
    let due_at = failed.finished_at + Duration::from_secs(10);
    let again = NextStep::Retry { due_at, reason: Reason::Retry, lost_count: 0 };
    // The executor's name is kept because the router needs it. The trace is the one of the ended attempt.
    let waiting = Run {
        status: RunStatus::Waiting,
        reason: Some(Reason::Retry),
        attempt: 2,
        due_at,
        executor: Some("executor-a".to_owned()),
        ..run.clone()
    };
    assert_eq!(finish_one(store, failed.clone()).await, EndOutcome::Stored(again, Some(Box::new(waiting.clone()))));
    assert_eq!(read_run(store, run.id).await, waiting);
    let snapshots = store.current_snapshots(&[run.id]).await.unwrap();
    let shown: Vec<Option<&str>> = snapshots.iter().map(|snapshot| snapshot.executor.as_deref()).collect();
    assert_eq!((shown, waiting.present_executor()), (vec![None], None), "no executor has the next attempt yet");
    let first = Attempt {
        attempt: 1,
        status: RunStatus::Failed,
        reason: Some(Reason::Retry),
        executor: Some("executor-a".to_owned()),
        executor_id: failed.executor.as_ref().map(|(id, _)| *id),
        started_at: failed.started_at,
        finished_at: Some(failed.finished_at),
        message: failed.message.clone(),
        detail: None,
    };
    assert_eq!(store.attempts(run.id).await.unwrap(), std::slice::from_ref(&first));
    assert_eq!(finish_one(store, failed.clone()).await, EndOutcome::Superseded);
    let woken = store.take_waiting(token, due_at, 10_000).await.unwrap();
    assert!(woken.iter().any(|woken| woken.id == run.id));
    assert_eq!(finish_one(store, AttemptEnd { attempt: 2, ..failed }).await, verdict(RunStatus::Failed));
    assert_eq!(store.attempts(run.id).await.unwrap(), [first]);
    let stored = read_run(store, run.id).await;
    assert_eq!((stored.attempt, stored.reason, stored.message.as_deref()), (2, None, Some("boom")));
}

/// The second of two results in one batch sees the effect of the first.
pub async fn one_batch_may_hold_two_results_of_a_run(store: &dyn Store) {
    let token = join(store).await;
    let (run, other) = (pending_run(store, token).await, pending_run(store, token).await);
    let mut failed = finish(&run, FAILED);
    failed.policy.retry_max = 3;
    let second = AttemptEnd { attempt: 2, ..finish(&run, Outcome::Succeeded) };
    let batch = [failed.clone(), finish(&other, Outcome::Succeeded), failed, second.clone(), second];
    let answers = finish_all(store, &batch).await;
    assert!(
        matches!(&answers[0], EndOutcome::Stored(NextStep::Retry { .. }, Some(run)) if run.attempt == 2),
        "{answers:?}"
    );
    let done = verdict(RunStatus::Succeeded);
    assert_eq!(answers[1..], [done.clone(), EndOutcome::Superseded, done, EndOutcome::Duplicate]);
    assert_eq!(read_run(store, run.id).await.status, RunStatus::Succeeded);
    assert_eq!(store.attempts(run.id).await.unwrap().len(), 1);
}

/// One batch has the end of the second attempt, and a late report that the first attempt began after all. The second end sees that report.
pub async fn a_batch_may_hold_a_late_report_and_the_next_end(store: &dyn Store) {
    let token = join(store).await;
    for is_one_batch in [true, false] {
        let run = pending_run(store, token).await;
        let unreceived =
            AttemptEnd { executor: None, started_at: None, ..finish(&run, Outcome::Lost(Reason::NotReceived)) };
        let EndOutcome::Stored(NextStep::Retry { .. }, Some(_)) = finish_one(store, unreceived).await else {
            unreachable!("another attempt follows")
        };
        let reported = finish(&run, Outcome::Succeeded);
        let expired = AttemptEnd { attempt: 2, executor: None, ..finish(&run, Outcome::Skipped(Reason::Expired)) };
        let answers = match is_one_batch {
            true => finish_all(store, &[reported, expired]).await,
            false => vec![finish_one(store, reported).await, finish_one(store, expired).await],
        };
        let failed = NextStep::Verdict { status: RunStatus::Failed, reason: Some(Reason::Expired) };
        assert_eq!(answers, [EndOutcome::Superseded, EndOutcome::Stored(failed, None)], "{is_one_batch}");
    }
}

/// Two nodes store the same batch in different orders: each result is stored once, by one of them.
pub async fn results_that_arrive_twice_at_once_are_stored_once(store: &dyn Store) {
    let token = join(store).await;
    let mut batch = Vec::new();
    for _ in 0..20 {
        batch.push(finish(&pending_run(store, token).await, Outcome::Succeeded));
    }
    let reversed: Vec<_> = batch.iter().rev().cloned().collect();
    let (a, b) = tokio::join!(store.finish(finisher(token), &batch), store.finish(finisher(token), &reversed));
    let (a, mut b) = (a.unwrap().outcomes, b.unwrap().outcomes);
    b.reverse();
    for pair in a.into_iter().zip(b) {
        let done = verdict(RunStatus::Succeeded);
        let once = pair == (done.clone(), EndOutcome::Duplicate) || pair == (EndOutcome::Duplicate, done);
        assert!(once, "{pair:?}");
    }
}

/// NUL is replaced, a text that is too long is cut between characters, and all other text is stored unchanged.
pub async fn text_is_kept_as_far_as_it_fits(store: &dyn Store) {
    let token = join(store).await;
    let (first, second, third) =
        (pending_run(store, token).await, pending_run(store, token).await, pending_run(store, token).await);
    let longest_result = format!("\"{}\"", "x".repeat(RESULT_LEN_MAX - 2));
    let batch = [
        AttemptEnd {
            message: Some("a\0b \u{1f980} 'quoted' ? $1".to_owned()),
            result: Some(longest_result.clone()),
            ..finish(&first, Outcome::Succeeded)
        },
        AttemptEnd {
            message: Some("日".repeat(400_000)),
            result: Some("x".repeat(1 << 20)),
            executor: Some((ExecutorId::new(1), "ü".repeat(1000))),
            ..finish(&second, Outcome::Succeeded)
        },
        finish(&third, Outcome::Succeeded),
    ];
    assert_eq!(finish_all(store, &batch).await, vec![verdict(RunStatus::Succeeded); 3]);
    let stored = read_run(store, first.id).await;
    assert_eq!(stored.message.as_deref(), Some("a\u{fffd}b \u{1f980} 'quoted' ? $1"));
    assert!(stored.result == Some(longest_result), "it is kept whole");
    let long = read_run(store, second.id).await;
    let (message, result) = (long.message.unwrap(), long.result.unwrap());
    assert!(message.len() <= 4 * 1024 && message.ends_with("日…"), "{}", message.len());
    assert_eq!(result, r#"{"omitted":"1048576 bytes of JSON"}"#);
    assert_eq!(long.executor, Some("ü".repeat(255)));
}
