//! Checks of broadcasts.

use std::time::Duration;

use rondel_core::outcome::CancelRequest;
use rondel_core::outcome::Outcome;
use rondel_core::run::ROOT_SHARD;
use rondel_core::{Run, RunId, RunStatus, Timestamp};

use super::stats::roll_up;
use super::{FAILED, claim, finish, finish_all, finish_one, finisher, job, join, next_id, read_run, run};
use crate::ledger::{EndOutcome, MarkToRemove, RequestedShards, RunQuery};
use crate::{LeaseToken, Store};

async fn broadcast(store: &dyn Store, token: LeaseToken) -> Run {
    let at = store.now().await.unwrap().ceil_second();
    let job = job(store, Some(at)).await;
    let root = Run { shard_index: ROOT_SHARD, shard_total: None, ..run(&job, token, at) };
    claim(store, token, &job, vec![root.clone()]).await;
    root
}

/// Creates a broadcast of a job under this limit, and does not expand it.
pub(super) async fn limited_broadcast(store: &dyn Store, token: LeaseToken, key: &str) {
    let at = store.now().await.unwrap().ceil_second();
    let change = serde_json::json!({"schedule": {"every": "1s"}, "concurrency": {"key": key, "max": 1}});
    let job = super::job_with(store, super::spec(&super::name("job"), change), Some(at)).await;
    let root = Run { shard_index: ROOT_SHARD, shard_total: None, ..run(&job, token, at) };
    claim(store, token, &job, vec![root]).await;
}

pub(super) fn shards(root: &Run, total: i32) -> Vec<Run> {
    let shard = |index| Run {
        id: RunId::new(next_id()),
        shard_index: index,
        shard_total: Some(total),
        parent: Some(root.id),
        executor: Some(format!("executor-{index}")),
        ..root.clone()
    };
    (0..total).map(shard).collect()
}

pub(super) async fn expanded_broadcast(store: &dyn Store, token: LeaseToken, total: i32) -> (Run, Vec<Run>) {
    let root = broadcast(store, token).await;
    let shards = shards(&root, total);
    assert!(store.expand(token, root.id, &shards).await.unwrap());
    (root, shards)
}

/// The mark of this attempt, which is removed together with the executor's name.
pub(super) const fn mark_of(run: RunId, attempt: i32) -> MarkToRemove {
    MarkToRemove { run, attempt, keeps_executor: false }
}

#[track_caller]
pub(super) fn expect_shards(requested: RequestedShards) -> Vec<Run> {
    match requested {
        RequestedShards::Created(rows) => rows,
        RequestedShards::KeyInUse(open_run) => unreachable!("an open run has the key: {open_run:?}"),
    }
}

/// The number of shards of the first expansion stays, and a later expansion is refused.
pub async fn a_broadcast_is_expanded_once(store: &dyn Store) {
    let (token, other) = (join(store).await, join(store).await);
    let root = broadcast(store, token).await;
    let (three, four) = (shards(&root, 3), shards(&root, 4));
    assert!(!store.expand(other, root.id, &three).await.unwrap(), "not the owner");
    assert!(!store.expand(token, RunId::new(next_id()), &three).await.unwrap());
    let (a, b) = tokio::join!(store.expand(token, root.id, &three), store.expand(token, root.id, &four));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert!(a != b, "{a} {b}");
    let (won, total) = if a { (three, 3) } else { (four, 4) };
    let row = read_run(store, root.id).await;
    assert_eq!((row.shard_total, row.open_shards, row.status), (Some(total), Some(total), RunStatus::Running));
    for shard in &won {
        assert_eq!(read_run(store, shard.id).await, *shard);
    }
    let query = RunQuery { parent: Some(root.id), limit: 10, ..RunQuery::default() };
    let mut found = store.list_runs(root.namespace, &query).await.unwrap();
    found.reverse();
    assert_eq!(found, won);
    assert!(!store.expand(token, root.id, &shards(&root, 5)).await.unwrap());
    check_that_a_shard_stays_with_its_executor(store).await;
}

/// Checks that the row of a shard that has not been received keeps the executor that the shard is meant for, if the caller asks for that, also
/// when the lease is released.
async fn check_that_a_shard_stays_with_its_executor(store: &dyn Store) {
    let token = join(store).await;
    let (_, shards) = expanded_broadcast(store, token, 2).await;
    let at_its_executor = |index: usize| super::dispatch::at_executor(&shards[index], &format!("executor-{index}"));
    let runs_at_executors: Vec<_> = (0..shards.len()).map(at_its_executor).collect();
    let keeps = MarkToRemove { keeps_executor: true, ..mark_of(shards[0].id, 1) };
    for is_begun in [false, true] {
        assert_eq!(store.mark(token, &runs_at_executors).await.unwrap().len(), 2);
        if is_begun {
            store.note_running(token, &runs_at_executors).await.unwrap();
        }
        store.unmark(token, &[keeps, mark_of(shards[1].id, 1)]).await.unwrap();
        assert_eq!(read_run(store, shards[0].id).await, shards[0]);
        assert_eq!(read_run(store, shards[1].id).await, Run { executor: None, ..shards[1].clone() });
    }
    assert_eq!(store.shelve(token, &[]).await.unwrap(), 2);
    for (shard, executor) in [(&shards[0], Some("executor-0")), (&shards[1], None)] {
        let shelved = read_run(store, shard.id).await;
        assert_eq!((shelved.status, shelved.executor.as_deref()), (RunStatus::Waiting, executor));
        assert_eq!((shelved.executor_id, shelved.marked_at), (None, None));
    }
}

/// The verdict of a broadcast is the worst verdict of its shards, and its message counts the shards with that verdict. A shard that is
/// retried stays open.
pub async fn the_last_shard_gives_the_verdict(store: &dyn Store) {
    let token = join(store).await;
    let (root, shards) = expanded_broadcast(store, token, 3).await;
    store.ask_cancel(root.id, CancelRequest::requested("x"), root.due_at).await.unwrap();
    let mut retried = finish(&shards[1], FAILED);
    retried.policy.retry_max = 1;
    let batch = [finish(&shards[0], FAILED), retried.clone(), finish(&shards[0], FAILED)];
    finish_all(store, &batch).await;
    let row = read_run(store, root.id).await;
    assert_eq!((row.status, row.open_shards), (RunStatus::Running, Some(2)));
    retried.attempt = 2;
    finish_all(store, &[finish(&shards[2], Outcome::Succeeded), retried]).await;
    let row = read_run(store, root.id).await;
    assert_eq!((row.status, row.open_shards), (RunStatus::Failed, Some(0)));
    assert_eq!(row.message.as_deref(), Some("2 of 3 shards failed"));
    assert_eq!(row.finished_at, Some(root.due_at + Duration::from_millis(105)));
    assert_eq!(store.cancels(token).await.unwrap(), []);

    let (root, shards) = expanded_broadcast(store, token, 2).await;
    let batch: Vec<_> = shards.iter().map(|shard| finish(shard, Outcome::Succeeded)).collect();
    finish_all(store, &batch).await;
    let row = read_run(store, root.id).await;
    assert_eq!((row.status, row.message, row.open_shards), (RunStatus::Succeeded, None, Some(0)));

    // A late result of a shard corrects the verdict of the broadcast.
    let (root, shards) = expanded_broadcast(store, token, 1).await;
    let mut lost = finish(&shards[0], Outcome::Lost(rondel_core::Reason::ExecutorLost));
    lost.policy.at_least_once = false;
    store
        .mark(
            token,
            &[crate::ledger::RunAtExecutor {
                run: shards[0].id,
                attempt: 1,
                executor_id: rondel_core::ExecutorId::new(1),
                executor: "e".to_owned(),
                at: root.due_at,
            }],
        )
        .await
        .unwrap();
    finish_all(store, &[lost]).await;
    assert_eq!(read_run(store, root.id).await.status, RunStatus::Unknown);
    assert_eq!(finish_one(store, finish(&shards[0], Outcome::Succeeded)).await, EndOutcome::Late);
    assert_eq!(read_run(store, root.id).await.status, RunStatus::Succeeded);
    check_that_one_shard_counts_once(store, token).await;
}

/// Checks that a broadcast to one executor counts as one run.
async fn check_that_one_shard_counts_once(store: &dyn Store, token: LeaseToken) {
    let (root, shards) = expanded_broadcast(store, token, 1).await;
    finish_one(store, finish(&shards[0], FAILED)).await;
    roll_up(store).await;
    let stats = store.job_stats(root.job, Timestamp::EPOCH, Timestamp::MAX).await.unwrap();
    assert_eq!(stats.iter().map(|stat| (stat.status, stat.run_count)).collect::<Vec<_>>(), [(RunStatus::Failed, 1)]);
    let mut runs = store.chart_runs(&[root.job], Timestamp::EPOCH, Timestamp::MAX, 10).await.unwrap();
    runs.sort_by_key(|run| run.id);
    assert_eq!(
        runs.iter().map(|run| (run.id, run.parent)).collect::<Vec<_>>(),
        [(root.id, None), (shards[0].id, Some(root.id))]
    );
}

/// Two callers store the last two shards concurrently: exactly one of them derives the verdict of the broadcast.
pub async fn shards_that_end_at_once_give_one_verdict(store: &dyn Store) {
    let token = join(store).await;
    for _ in 0..5 {
        let (root, shards) = expanded_broadcast(store, token, 4).await;
        let ends: Vec<_> = shards.iter().map(|shard| [finish(shard, Outcome::Succeeded)]).collect();
        let (a, b, c, d) = tokio::join!(
            store.finish(finisher(token), &ends[0]),
            store.finish(finisher(token), &ends[1]),
            store.finish(finisher(token), &ends[2]),
            store.finish(finisher(token), &ends[3])
        );
        for answers in [a, b, c, d] {
            assert_eq!(answers.unwrap().outcomes, [super::verdict(RunStatus::Succeeded)]);
        }
        let row = read_run(store, root.id).await;
        assert_eq!((row.status, row.open_shards), (RunStatus::Succeeded, Some(0)));
    }
}

/// A retry by hand has the broadcast as its parent, but does not count as one of its shards.
pub async fn a_retry_by_hand_is_not_a_shard(store: &dyn Store) {
    let token = join(store).await;
    let (root, shards) = expanded_broadcast(store, token, 2).await;
    let id = RunId::new(next_id());
    let again = Run { id, cause: id.get(), parent: Some(root.id), ..shards[1].clone() };
    let again = store.request_run(token, again).await.unwrap();
    finish_all(store, &[finish(&again, Outcome::Succeeded)]).await;
    assert_eq!(read_run(store, root.id).await.open_shards, Some(2));
    finish_all(store, &[finish(&shards[0], Outcome::Succeeded), finish(&shards[1], FAILED)]).await;
    assert_eq!(read_run(store, root.id).await.message.as_deref(), Some("1 of 2 shards failed"));
}

/// Some shards of a fire run again. The new fire is already expanded: it has only these shards, with their old numbers, and ends with them.
pub async fn a_fire_may_be_of_some_shards(store: &dyn Store) {
    let (token, other) = (join(store).await, join(store).await);
    let (root, shards) = expanded_broadcast(store, token, 5).await;
    let id = RunId::new(next_id());
    let again = Run {
        id,
        cause: id.get(),
        parent: Some(root.id),
        shard_total: Some(2),
        open_shards: Some(2),
        status: RunStatus::Running,
        started_at: Some(root.due_at),
        ..root.clone()
    };
    let rerun_of = |shard: &Run| Run { id: RunId::new(next_id()), cause: id.get(), parent: Some(id), ..shard.clone() };
    let wanted = vec![rerun_of(&shards[1]), rerun_of(&shards[4])];
    let rows = expect_shards(store.request_shards(other, again.clone(), wanted.clone()).await.unwrap());
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [id, wanted[0].id, wanted[1].id]);
    for (row, asked) in rows.iter().zip([&again, &wanted[0], &wanted[1]]) {
        assert_eq!(*row, Run { node: token.node, node_epoch: token.epoch, ..asked.clone() }, "the home owns it");
        assert_eq!(read_run(store, row.id).await, *row);
    }
    let repeated_rows = expect_shards(store.request_shards(other, again, wanted.clone()).await.unwrap());
    assert_eq!(repeated_rows, rows, "once more changes nothing");
    finish_all(store, &[finish(&rows[1], Outcome::Succeeded)]).await;
    assert_eq!((read_run(store, id).await.open_shards, read_run(store, root.id).await.open_shards), (Some(1), Some(5)));
    finish_all(store, &[finish(&rows[2], FAILED)]).await;
    let row = read_run(store, id).await;
    assert_eq!((row.status, row.message.as_deref()), (RunStatus::Failed, Some("1 of 2 shards failed")));
}
