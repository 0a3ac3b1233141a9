//! Checks of the removal of old rows.

use std::time::Duration;

use rondel_core::outcome::CancelRequest;
use rondel_core::outcome::Outcome;
use rondel_core::run::ROOT_SHARD;
use rondel_core::{Run, RunId, Timestamp, Trigger};

use super::broadcasts::shards;
use super::{DEFAULT, FAILED, app, claim, finish, finish_one, job, join, name, next_id, pending_run, run};
use crate::logs::{LogChunk, LogLine};
use crate::{LeaseToken, Store};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A run, owned by `token` and due two days ago, of a job that has no other run.
async fn old(store: &dyn Store, token: LeaseToken, shard_index: i32) -> Run {
    let at = store.now().await.unwrap().ceil_second() - DAY * 2;
    let job = job(store, Some(at)).await;
    let run = Run { shard_index, shard_total: (shard_index != ROOT_SHARD).then_some(1), ..run(&job, token, at) };
    claim(store, token, &job, vec![run.clone()]).await;
    run
}

/// Makes one pass. Returns how many runs it removed, and how many calls removed none before the last one.
async fn purge_pass(store: &dyn Store, limit: u32) -> (u64, u64) {
    let before = store.now().await.unwrap() - DAY;
    let (mut removed, mut idle_count, mut after) = (0, 0, Some(RunId::new(0)));
    while let Some(from) = after {
        let step = store.purge(before, from, limit).await.unwrap();
        assert!(step.removed_count <= limit.into(), "{step:?}");
        removed += step.removed_count;
        idle_count += u64::from(step.removed_count == 0 && step.next_after.is_some());
        after = step.next_after;
    }
    (removed, idle_count)
}

async fn purge_all(store: &dyn Store, limit: u32) -> u64 {
    purge_pass(store, limit).await.0
}

async fn existing(store: &dyn Store, ids: &[RunId]) -> Vec<RunId> {
    let mut found: Vec<RunId> = store.runs(ids).await.unwrap().into_iter().map(|run| run.id).collect();
    found.sort_unstable();
    found
}

/// Runs whose verdicts were made before a given instant are removed with all their rows. Open and recent runs stay.
pub async fn old_runs_are_removed_with_all_their_rows(store: &dyn Store) {
    let token = join(store).await;
    purge_all(store, 500).await;
    let (open, young) = (old(store, token, 0).await, pending_run(store, token).await);
    finish_one(store, finish(&young, Outcome::Succeeded)).await;
    let ended_now = old(store, token, 0).await;
    let end = crate::ledger::AttemptEnd { finished_at: store.now().await.unwrap(), ..finish(&ended_now, FAILED) };
    finish_one(store, end).await;
    let mut gone = Vec::new();
    for _ in 0..5 {
        let run = old(store, token, 0).await;
        let mut failed = finish(&run, FAILED);
        failed.policy.retry_max = 1;
        finish_one(store, failed.clone()).await;
        let line = LogLine { at: run.due_at, level: "info".to_owned(), text: "a line".to_owned() };
        let chunk = LogChunk { run: run.id, attempt: 1, sequence: 0, lines: vec![line] };
        store.append_logs(&[chunk]).await.unwrap();
        store.ask_cancel(run.id, CancelRequest::requested("mia"), run.due_at).await.unwrap();
        finish_one(store, crate::ledger::AttemptEnd { attempt: 2, ..failed }).await;
        gone.push(run);
    }
    // A retry by hand is independent of the run that it repeats, even after that run was removed.
    let parent = Some(gone[0].id);
    let by_hand = Run { id: RunId::new(next_id()), cause: next_id(), parent, ..gone[0].clone() };
    store.request_run(token, by_hand.clone()).await.unwrap();
    finish_one(store, finish(&by_hand, Outcome::Succeeded)).await;

    assert_eq!(purge_all(store, 2).await, 6);
    for run in &gone {
        assert!(store.runs(&[run.id]).await.unwrap().is_empty());
        assert!(store.attempts(run.id).await.unwrap().is_empty());
        assert!(store.log_chunks(run.id, 1, -1, 10).await.unwrap().is_empty());
    }
    assert_eq!(existing(store, &[open.id, young.id, ended_now.id]).await, [open.id, young.id, ended_now.id]);
    finish_one(store, finish(&open, Outcome::Succeeded)).await;
    assert_eq!(purge_all(store, 2).await, 1);
    fires_stay_while_they_are_open(store, token).await;
}

/// Each end of a run of a fire needs all runs of that fire to plan what follows, so they all stay while one of them is open.
async fn fires_stay_while_they_are_open(store: &dyn Store, token: LeaseToken) {
    let follow = async |first: &Run, parent: &Run| {
        let job = job(store, None).await;
        let (cause, parent) = (first.id.get(), Some(parent.id));
        let run = Run { cause, parent, trigger: Trigger::Parent, ..run(&job, token, first.fire_at) };
        store.request_run(token, run).await.unwrap()
    };
    for is_first_open in [false, true] {
        let first = old(store, token, 0).await;
        let second = follow(&first, &first).await;
        let third = follow(&first, &second).await;
        let (open, ended) = if is_first_open { (&first, &third) } else { (&third, &first) };
        for run in [&second, ended] {
            finish_one(store, finish(run, Outcome::Succeeded)).await;
        }
        assert_eq!(purge_all(store, 2).await, 0, "{is_first_open}");
        finish_one(store, finish(open, Outcome::Succeeded)).await;
        assert_eq!(purge_all(store, 2).await, 3, "{is_first_open}");
    }
}

/// The row of a broadcast outlives its shards, and none of them is removed while one is open.
pub async fn a_broadcast_is_removed_as_a_whole(store: &dyn Store) {
    let token = join(store).await;
    purge_all(store, 500).await;
    let root = old(store, token, ROOT_SHARD).await;
    let shards = shards(&root, 5);
    assert!(store.expand(token, root.id, &shards).await.unwrap());
    let ids: Vec<RunId> = std::iter::once(root.id).chain(shards.iter().map(|shard| shard.id)).collect();
    for shard in &shards[1..] {
        finish_one(store, finish(shard, Outcome::Succeeded)).await;
    }
    assert_eq!(purge_all(store, 2).await, 0);
    assert_eq!(existing(store, &ids).await, ids);
    finish_one(store, finish(&shards[0], Outcome::Succeeded)).await;
    let before = store.now().await.unwrap() - DAY;
    let mut step = store.purge(before, RunId::new(0), 2).await.unwrap();
    while step.removed_count == 0 {
        step = store.purge(before, step.next_after.expect("runs are left"), 2).await.unwrap();
    }
    assert_eq!(step.removed_count, 2);
    let remaining = existing(store, &ids).await;
    assert!(remaining.len() == 4 && remaining[0] == root.id, "{remaining:?}");
    assert_eq!(purge_all(store, 2).await, 4);
    assert!(existing(store, &ids).await.is_empty());
    runs_that_stay_are_read_once(store, token).await;
}

/// A pass reads runs that stay once, and not again for each batch of the runs after them.
async fn runs_that_stay_are_read_once(store: &dyn Store, token: LeaseToken) {
    // Runs of other checks.
    let (_, stay_count) = purge_pass(store, 1).await;
    let mut open_runs = Vec::new();
    for _ in 0..3 {
        let whole = old(store, token, ROOT_SHARD).await;
        let shards = shards(&whole, 2);
        assert!(store.expand(token, whole.id, &shards).await.unwrap());
        finish_one(store, finish(&shards[0], Outcome::Succeeded)).await;
        open_runs.push(shards[1].clone());
    }
    let mut gone = Vec::new();
    for _ in 0..4 {
        let run = old(store, token, 0).await;
        finish_one(store, finish(&run, Outcome::Succeeded)).await;
        gone.push(run.id);
    }
    let (removed, idle_count) = purge_pass(store, 1).await;
    assert_eq!(removed, 4);
    assert!(idle_count <= stay_count + 3, "the shards that have ended are examined once: {idle_count}");
    assert!(existing(store, &gone).await.is_empty());
    for run in &open_runs {
        finish_one(store, finish(run, Outcome::Succeeded)).await;
    }
    assert_eq!(purge_all(store, 1).await, 9);
}

/// One node begins a pass per period. The next pass can begin after most of the period.
pub async fn a_pass_is_begun_by_one(store: &dyn Store) {
    let task = name("task");
    let period = Duration::from_secs(3600);
    let (a, b) = tokio::join!(store.begin_pass(&task, period), store.begin_pass(&task, period));
    assert!(a.unwrap() != b.unwrap());
    assert!(!store.begin_pass(&task, period).await.unwrap());
    assert!(store.begin_pass(&name("another"), period).await.unwrap());
    tokio::time::sleep(Duration::from_millis(20)).await;
    let period = Duration::from_millis(20);
    assert!(store.begin_pass(&task, period).await.unwrap());
}

/// Executors that no node has heard for a long time are removed.
pub async fn executors_are_forgotten(store: &dyn Store) {
    let token = join(store).await;
    let record = async |first_seen_at: Timestamp| super::executor(app(store).await, first_seen_at);
    let now = store.now().await.unwrap();
    let here = record(now - DAY * 9).await;
    store.open_session(token, &here, None).await.unwrap();
    let heard_here = async || {
        let all = store.executors(DEFAULT, Timestamp::EPOCH).await.unwrap();
        all.iter().any(|executor| executor.id == here.id)
    };
    while store.forget_executors(now - DAY, 100).await.unwrap() > 0 {}
    assert!(heard_here().await);
    let later = store.now().await.unwrap() + Duration::from_secs(1);
    assert!(store.forget_executors(later, 100).await.unwrap() >= 2);
    while store.forget_executors(later, 100).await.unwrap() > 0 {}
    assert!(!heard_here().await);
    assert!(store.sessions(Timestamp::EPOCH).await.unwrap().iter().all(|session| session.executor != here.id));
}
