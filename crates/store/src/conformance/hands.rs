//! Checks of open runs on their way into an executor's hands.

use std::time::Duration;

use rondel_core::outcome::Outcome;
use rondel_core::{ExecutorId, Run, RunId, RunStatus};

use super::{FAILED, claim, finish, finish_one, job, join, next_id, pending, read, run};
use crate::ledger::{CancelAsked, InHand, RunCheck};
use crate::{LeaseToken, Store};

fn in_hand(run: &Run, executor: &str) -> InHand {
    InHand {
        run: run.id,
        attempt: run.attempt,
        executor_id: ExecutorId::new(7),
        executor: executor.to_owned(),
        at: run.due_at,
    }
}

/// Own waiting runs become pending near their time, once; own pending ones are found when they are late.
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
    assert_eq!(read(store, rows[0].id).await.status, RunStatus::Pending);

    let overdue = store.overdue(token, at + Duration::from_secs(3), 10).await.unwrap();
    assert_eq!(overdue, woken, "not the one that is due just then");
    assert_eq!(store.overdue(token, until, 1).await.unwrap(), woken[..1]);
    assert_eq!(store.overdue(other, until, 10).await.unwrap(), []);
}

/// A mark is set once, by the owner, for the attempt; and taken off.
pub async fn marks_are_won_once(store: &dyn Store) {
    let (token, other) = (join(store).await, join(store).await);
    let (first, second) = (pending(store, token).await, pending(store, token).await);
    let hands = [in_hand(&first, "a"), in_hand(&second, "a")];
    assert_eq!(store.mark(other, &hands).await.unwrap(), []);
    assert_eq!(store.mark(token, &[]).await.unwrap(), []);
    let later = InHand { attempt: 2, ..hands[0].clone() };
    assert_eq!(store.mark(token, &[later]).await.unwrap(), []);
    let (a, b) = tokio::join!(store.mark(token, &hands), store.mark(token, &hands));
    let mut won = [a.unwrap(), b.unwrap()].concat();
    won.sort_unstable();
    assert_eq!(won, [first.id, second.id]);
    let marked = read(store, first.id).await;
    assert_eq!((marked.marked_at, marked.executor.as_deref()), (Some(first.due_at), Some("a")));
    assert_eq!((marked.executor_id, marked.status), (Some(ExecutorId::new(7)), RunStatus::Pending));

    store.unmark(other, &[(first.id, 1)]).await.unwrap();
    store.unmark(token, &[(first.id, 2)]).await.unwrap();
    assert!(read(store, first.id).await.marked_at.is_some());
    store.unmark(token, &[(first.id, 1), (RunId::new(next_id()), 1)]).await.unwrap();
    assert_eq!(read(store, first.id).await, first);
    assert_eq!(store.mark(token, &hands).await.unwrap(), [first.id]);
}

/// Pending becomes running; what is over stays over. The tick reads where runs stand.
pub async fn running_is_noted_for_pending_runs(store: &dyn Store) {
    let token = join(store).await;
    let (first, second) = (pending(store, token).await, pending(store, token).await);
    finish_one(store, finish(&second, Outcome::Succeeded)).await;
    let hands = [in_hand(&first, "läufer"), in_hand(&second, "b")];
    store.note_running(LeaseToken { epoch: 9, ..token }, &hands).await.unwrap();
    assert_eq!(read(store, first.id).await, first);
    store.note_running(token, &hands).await.unwrap();
    store.note_running(token, &[]).await.unwrap();
    let running = read(store, first.id).await;
    assert_eq!((running.status, running.executor.as_deref()), (RunStatus::Running, Some("läufer")));
    assert_eq!(running.started_at, Some(first.due_at));
    assert_eq!(read(store, second.id).await.status, RunStatus::Succeeded);

    let mut checks = store.check_runs(&[second.id, first.id, RunId::new(next_id())]).await.unwrap();
    checks.sort_by_key(|check| check.id);
    let check = |run: &Run, status| RunCheck {
        id: run.id,
        status,
        attempt: 1,
        job_version: 1,
        owner: token,
        cancel_asked: false,
    };
    assert_eq!(checks, [check(&first, RunStatus::Running), check(&second, RunStatus::Succeeded)]);
}

/// The request is read by the owner until the run is over, and no attempt follows a failed one.
pub async fn a_cancel_is_noted_until_the_run_is_over(store: &dyn Store) {
    let (token, other) = (join(store).await, join(store).await);
    let now = store.now().await.unwrap();
    let run = pending(store, token).await;
    assert_eq!(store.ask_cancel(RunId::new(next_id()), "x", now).await.unwrap(), CancelAsked::NotFound);
    let CancelAsked::Noted(noted) = store.ask_cancel(run.id, "Änne", now).await.unwrap() else { unreachable!() };
    assert_eq!(*noted, Run { cancel_by: Some("Änne".to_owned()), ..run.clone() });
    let CancelAsked::Noted(again) = store.ask_cancel(run.id, "somebody else", now).await.unwrap() else {
        unreachable!()
    };
    assert_eq!(again, noted);
    let expected = [(run.id, "Änne".to_owned())];
    assert_eq!(store.cancels(token).await.unwrap(), expected);
    assert_eq!(store.cancels(token).await.unwrap(), expected);
    assert_eq!(store.cancels(other).await.unwrap(), []);
    assert!(store.check_runs(&[run.id]).await.unwrap()[0].cancel_asked);

    let mut failed = finish(&run, FAILED);
    failed.policy.retry_max = 5;
    assert_eq!(finish_one(store, failed).await, super::verdict(RunStatus::Failed));
    assert_eq!(store.cancels(token).await.unwrap(), []);
    assert_eq!(store.ask_cancel(run.id, "x", now).await.unwrap(), CancelAsked::Over(RunStatus::Failed));
}
