//! Checks of the repair of stuck jobs, and of the rows of planned fires.

use std::time::Duration;

use rondel_core::outcome::Outcome;
use rondel_core::run::ROOT_SHARD;
use rondel_core::{JobId, NodeId, Reason, Run, RunId, RunStatus, Timestamp};

use super::delays::{claim_followed, delayed_job};
use super::{claim, due_job, finish, finish_all, job, join, next_id, requested_run, run};
use crate::Store;
use crate::catalog::JobRecord;
use crate::ledger::ClaimJob;
use crate::upkeep::StuckJob;

async fn stuck_job(store: &dyn Store, job: &JobRecord) -> Option<StuckJob> {
    store.stuck_jobs(10_000).await.unwrap().into_iter().find(|stuck| stuck.job == job.id)
}

/// A job with a fixed delay is stuck if its run has ended and its next fire was not set.
pub async fn a_job_whose_run_has_ended_is_healed(store: &dyn Store) {
    let token = join(store).await;
    let at = store.now().await.unwrap().ceil_second() - Duration::from_secs(10);
    let next = at + Duration::from_secs(60);
    let job = delayed_job(store, at).await;
    let run = claim_followed(store, token, &job, run(&job, token, at)).await;
    assert_eq!(stuck_job(store, &job).await, None, "it waits for its run");
    let seen_job = StuckJob { job: job.id, version: 1, awaited_run: None };
    assert!(!store.heal_job(seen_job, Some(next)).await.unwrap(), "its run is open");
    assert!(!store.heal_job(StuckJob { awaited_run: Some(run.id), ..seen_job }, Some(next)).await.unwrap());
    finish_all(store, &[finish(&run, Outcome::Succeeded)]).await;
    assert_eq!(stuck_job(store, &job).await, Some(seen_job));
    assert!(!store.heal_job(StuckJob { version: 2, ..seen_job }, Some(next)).await.unwrap(), "it was edited");
    let (first, second) = tokio::join!(store.heal_job(seen_job, Some(next)), store.heal_job(seen_job, Some(next)));
    assert!(first.unwrap() != second.unwrap(), "one of two heals it");
    assert_eq!(due_job(store, &job, &[token.node]).await.unwrap().next_fire_at, next);
    assert_eq!(stuck_job(store, &job).await, None);
    assert!(!store.heal_job(seen_job, None).await.unwrap());

    // The job waits for the end of a run that does not exist, and has no further fire.
    let job = delayed_job(store, at).await;
    let seen_row = due_job(store, &job, &[NodeId::new(0)]).await.unwrap();
    let claim = ClaimJob {
        recent_fires: seen_row.recent_fires,
        expected_row: seen_row,
        held_from: None,
        next_fire_at: None,
        awaited_run: Some(RunId::new(next_id())),
        runs: Vec::new(),
    };
    assert_eq!(store.claim(token, &[claim]).await.unwrap().jobs.len(), 1);
    let found = stuck_job(store, &job).await.unwrap();
    assert_eq!(found.awaited_run, None);
    assert!(store.heal_job(found, None).await.unwrap());
    assert_eq!((stuck_job(store, &job).await, due_job(store, &job, &[token.node]).await), (None, None));
}

/// Jobs that will not fire again, or that are switched off, are not stuck.
pub async fn a_completed_job_is_not_stuck(store: &dyn Store) {
    let token = join(store).await;
    let at = store.now().await.unwrap().ceil_second();
    let never = job(store, None).await;
    let last = job(store, Some(at)).await;
    let seen_row = due_job(store, &last, &[NodeId::new(0)]).await.unwrap();
    let claim = ClaimJob {
        recent_fires: seen_row.recent_fires,
        expected_row: seen_row,
        held_from: None,
        next_fire_at: None,
        awaited_run: None,
        runs: vec![run(&last, token, at)],
    };
    store.claim(token, &[claim]).await.unwrap();
    assert_eq!((stuck_job(store, &never).await, stuck_job(store, &last).await), (None, None));
    let seen_job = StuckJob { job: never.id, version: 1, awaited_run: None };
    assert!(!store.heal_job(seen_job, Some(at)).await.unwrap());
    assert!(!store.heal_job(StuckJob { job: JobId::new(next_id()), ..seen_job }, Some(at)).await.unwrap());
}

/// Jobs of a removed node are freed for all nodes. Jobs of any other node, dead or alive, keep their home.
pub async fn homeless_jobs_are_freed(store: &dyn Store) {
    let (forgotten, dead, known) = (join(store).await, join(store).await, join(store).await);
    let at = store.now().await.unwrap().ceil_second();
    let mut jobs = Vec::new();
    for (token, next) in [(known, Some(at)), (dead, Some(at)), (forgotten, None), (forgotten, None)] {
        let job = delayed_job(store, at).await;
        let seen_row = due_job(store, &job, &[NodeId::new(0)]).await.unwrap();
        let awaited_run = next.is_none().then(|| RunId::new(next_id()));
        let claim = ClaimJob {
            recent_fires: seen_row.recent_fires,
            expected_row: seen_row,
            held_from: None,
            next_fire_at: next,
            awaited_run,
            runs: Vec::new(),
        };
        assert_eq!(store.claim(token, &[claim]).await.unwrap().jobs.len(), 1);
        jobs.push(job);
    }
    store.release(forgotten, Timestamp::EPOCH).await.unwrap();
    store.release(dead, Timestamp::EPOCH).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let now = store.now().await.unwrap();
    while store.forget_nodes(now, 100).await.unwrap() > 0 {}
    assert_eq!(store.free_homeless(10).await.unwrap(), 0);
    for job in &jobs[2..] {
        let seen_job = stuck_job(store, job).await.unwrap();
        assert!(store.heal_job(seen_job, Some(at)).await.unwrap());
    }
    assert_eq!(store.free_homeless(1).await.unwrap(), 1);
    assert_eq!(store.free_homeless(10).await.unwrap(), 1);
    assert_eq!(store.free_homeless(10).await.unwrap(), 0);
    assert!(due_job(store, &jobs[0], &[known.node]).await.is_some());
    assert!(due_job(store, &jobs[1], &[dead.node]).await.is_some());
    for job in &jobs[2..] {
        let freed = due_job(store, job, &[NodeId::new(0)]).await.unwrap();
        let moved = ClaimJob {
            recent_fires: freed.recent_fires,
            expected_row: freed,
            held_from: None,
            next_fire_at: Some(at),
            awaited_run: None,
            runs: Vec::new(),
        };
        let claimed = store.claim(known, &[moved]).await.unwrap();
        assert_eq!(claimed.jobs, [(job.id, freed.term + 1)], "another home, another term");
    }
}

/// Rows are returned in order, without shards and requested runs. A span that began before the range is included if it reaches the range.
pub async fn planned_rows_are_those_of_the_schedule(store: &dyn Store) {
    let token = join(store).await;
    let start = store.now().await.unwrap().ceil_second() - Duration::from_secs(100);
    let at = |second: u64| start + Duration::from_secs(second);
    let job = job(store, Some(start)).await;
    let span = Run {
        status: RunStatus::Skipped,
        reason: Some(Reason::Misfire),
        span_end_at: Some(at(20)),
        span_count: 11,
        ..run(&job, token, at(10))
    };
    let root = Run { shard_index: ROOT_SHARD, shard_total: None, ..run(&job, token, at(40)) };
    let rows = [span, run(&job, token, at(30)), root.clone(), run(&job, token, at(50))];
    claim(store, token, &job, rows.to_vec()).await;
    assert!(store.expand(token, root.id, &super::broadcasts::shards(&root, 2)).await.unwrap());
    let by_hand = requested_run(&job, token, at(35));
    store.request_run(token, by_hand).await.unwrap();

    let planned = async |from: Timestamp, to: Timestamp, limit| {
        let found = store.planned_rows(job.id, from, to, limit).await.unwrap();
        found.iter().map(|run| rows.iter().position(|row| row.id == run.id)).collect::<Vec<_>>()
    };
    assert_eq!(planned(at(0), at(99), 9).await, [Some(0), Some(1), Some(2), Some(3)]);
    assert_eq!(planned(at(15), at(40), 9).await, [Some(0), Some(1), Some(2)]);
    assert_eq!(planned(at(15), at(40), 2).await, [Some(0), Some(1)]);
    assert_eq!(planned(at(20), at(29), 9).await, [Some(0)]);
    assert_eq!(planned(at(21), at(29), 9).await, Vec::<Option<usize>>::new());
    assert_eq!(planned(at(41), at(50), 9).await, [Some(3)]);
    assert_eq!(planned(at(0), at(9), 9).await, Vec::<Option<usize>>::new());
    assert_eq!(store.planned_rows(JobId::new(next_id()), at(0), at(99), 9).await.unwrap(), []);
}
