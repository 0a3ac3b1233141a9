//! Checks of jobs whose next fire follows from the end of a run.

use std::time::Duration;

use rondel_core::outcome::Outcome;
use rondel_core::run::ROOT_SHARD;
use rondel_core::{JobId, JobSpec, Reason, Run, RunStatus, Timestamp};

use super::broadcasts::shards;
use super::edits::delete;
use super::followers::child;
use super::{
    DEFAULT, FAILED, app, change, due_job, expect_created, expect_saved, finish, finish_all, finisher, join, name,
    next_id, read_run, run, spec,
};
use crate::catalog::{JobDeleted, JobRecord, NewJob};
use crate::ledger::{AttemptEnd, ClaimJob, Ends};
use crate::{LeaseToken, Store};

const DELAY: Duration = Duration::from_secs(2);

pub(super) async fn delayed_job(store: &dyn Store, next_fire_at: Timestamp) -> JobRecord {
    let now = store.now().await.unwrap();
    let new = NewJob {
        id: JobId::new(next_id()),
        namespace: DEFAULT,
        app: app(store).await,
        spec: spec(&name("delay"), serde_json::json!({"schedule": {"delay": "2s"}})),
        anchor: now.ceil_second(),
        next_fire_at: Some(next_fire_at),
        delay: Some(DELAY),
        calendar: None,
        declared: None,
        author: "conformance".to_owned(),
        now: now - Duration::from_secs(60),
    };
    expect_created(store.create_job(new).await.unwrap())
}

/// Claims the due fire. The end of its run sets the next fire.
pub(super) async fn claim_followed(store: &dyn Store, token: LeaseToken, job: &JobRecord, run: Run) -> Run {
    let seen_row = due_job(store, job, &[rondel_core::NodeId::new(0), token.node]).await.unwrap();
    let claim = ClaimJob {
        recent_fires: seen_row.recent_fires,
        expected_row: seen_row,
        held_from: None,
        next_fire_at: None,
        awaited_run: Some(run.id),
        runs: vec![run.clone()],
    };
    let claimed = store.claim(token, &[claim]).await.unwrap();
    assert_eq!((claimed.jobs.len(), claimed.existing.len()), (1, 0));
    run
}

/// Creates a job with a delay and a claimed run of it that was planned ten seconds ago.
async fn claimed_delayed_run(store: &dyn Store, token: LeaseToken, shard_index: i32) -> (JobRecord, Run) {
    let at = store.now().await.unwrap().ceil_second() - Duration::from_secs(10);
    let job = delayed_job(store, at).await;
    let run = Run { shard_index, shard_total: (shard_index != ROOT_SHARD).then_some(1), ..run(&job, token, at) };
    let run = claim_followed(store, token, &job, run).await;
    assert_eq!(due_job(store, &job, &[token.node]).await, None, "not before its run ends");
    (job, run)
}

fn attempt_end(run: &Run, outcome: Outcome) -> AttemptEnd {
    let mut finish = finish(run, outcome);
    finish.policy.has_fixed_delay = true;
    finish
}

async fn finish_batch(store: &dyn Store, token: LeaseToken, batch: &[AttemptEnd]) -> Ends {
    store.finish(finisher(token), batch).await.unwrap()
}

/// The end of the run sets the next fire, whatever the verdict. A repeated result does not set it again.
pub async fn the_end_of_a_run_gives_the_next_fire_of_a_delay(store: &dyn Store) {
    let token = join(store).await;
    let outcomes = [Outcome::Succeeded, FAILED, Outcome::Cancelled, Outcome::Skipped(Reason::Expired)];
    let mut batch = Vec::new();
    let mut jobs = Vec::new();
    for outcome in outcomes {
        let (job, run) = claimed_delayed_run(store, token, 0).await;
        batch.push(attempt_end(&run, outcome));
        jobs.push(job);
    }
    // A run that fails and gets another attempt sets no next fire yet, nor does a run whose job has no delay.
    let (again, run) = claimed_delayed_run(store, token, 0).await;
    batch.push(attempt_end(&run, FAILED));
    batch[4].policy.retry_max = 1;
    let other = finish(&super::pending_run(store, token).await, Outcome::Succeeded);
    assert!(finish_batch(store, token, &[other, batch[4].clone()]).await.due_at.is_none());
    assert_eq!(due_job(store, &again, &[token.node]).await, None);

    let earliest = batch[..4].iter().map(|finish| finish.finished_at + DELAY).min();
    assert_eq!(finish_batch(store, token, &batch[..4]).await.due_at, earliest);
    for (job, finish) in jobs.iter().zip(&batch) {
        let found = due_job(store, job, &[token.node]).await.unwrap();
        assert_eq!(found.next_fire_at, finish.finished_at + DELAY, "{:?}", finish.outcome);
    }
    assert!(finish_batch(store, token, &batch[..4]).await.due_at.is_none(), "it is known");
    let second = AttemptEnd { attempt: 2, ..batch[4].clone() };
    assert!(finish_batch(store, token, &[second]).await.due_at.is_some());
    assert!(due_job(store, &again, &[token.node]).await.is_some());

    // If a run ends with its children, the end of the last child sets the next fire.
    let (job, run) = claimed_delayed_run(store, token, 0).await;
    child(store, "after-delay", &[&job], serde_json::json!({})).await;
    let mut own = attempt_end(&run, Outcome::Succeeded);
    own.policy.awaits_children = true;
    let ends = finish_batch(store, token, &[own]).await;
    assert_eq!((ends.due_at, ends.awaiting_runs.len(), ends.released_runs.len()), (None, 1, 1));
    assert_eq!(due_job(store, &job, &[token.node]).await, None);
    let before = store.now().await.unwrap();
    let of_child = finish(&ends.released_runs[0], Outcome::Succeeded);
    assert!(finish_batch(store, token, &[of_child]).await.due_at >= Some(before + DELAY));
    let next = due_job(store, &job, &[token.node]).await.unwrap().next_fire_at;
    assert!(before + DELAY <= next && next <= store.now().await.unwrap() + DELAY, "{next}");
}

/// An executor's clock that is ahead does not postpone the next fire.
pub async fn a_delay_counts_by_the_clock_of_the_database(store: &dyn Store) {
    let token = join(store).await;
    let (job, run) = claimed_delayed_run(store, token, 0).await;
    let before = store.now().await.unwrap();
    let ahead = before + Duration::from_secs(3600);
    assert!(
        finish_batch(store, token, &[AttemptEnd { finished_at: ahead, ..attempt_end(&run, Outcome::Succeeded) }])
            .await
            .due_at
            .is_some()
    );
    let next = due_job(store, &job, &[token.node]).await.unwrap().next_fire_at;
    assert!(before + DELAY <= next && next <= store.now().await.unwrap() + DELAY, "{next}");
}

/// The end of the last shard of a broadcast sets the next fire. A broadcast without shards sets it with its own verdict.
pub async fn the_last_shard_gives_the_next_fire_of_a_delay(store: &dyn Store) {
    let token = join(store).await;
    let (job, root) = claimed_delayed_run(store, token, ROOT_SHARD).await;
    let shards = shards(&root, 3);
    assert!(store.expand(token, root.id, &shards).await.unwrap());
    let ends: Vec<AttemptEnd> = shards.iter().map(|shard| attempt_end(shard, Outcome::Succeeded)).collect();
    assert!(finish_batch(store, token, &ends[..2]).await.due_at.is_none());
    assert_eq!(due_job(store, &job, &[token.node]).await, None);
    assert!(finish_batch(store, token, &ends[2..]).await.due_at.is_some());
    assert_eq!(due_job(store, &job, &[token.node]).await.unwrap().next_fire_at, ends[2].finished_at + DELAY);

    let (job, root) = claimed_delayed_run(store, token, ROOT_SHARD).await;
    assert!(
        finish_batch(store, token, &[attempt_end(&root, Outcome::Skipped(Reason::NoExecutor))]).await.due_at.is_some()
    );
    assert!(due_job(store, &job, &[token.node]).await.is_some());
}

/// A job that is paused while its run is open does not fire when the run ends, but fires after the job is enabled again.
pub async fn an_edit_finds_the_run_that_a_delay_follows(store: &dyn Store) {
    let token = join(store).await;
    let (job, run) = claimed_delayed_run(store, token, 0).await;
    let now = store.now().await.unwrap();
    let paused = JobSpec { enabled: false, ..job.spec.clone() };
    expect_saved(change(store, job.id, &paused, None, now).await);
    assert!(finish_batch(store, token, &[attempt_end(&run, Outcome::Succeeded)]).await.due_at.is_none());
    assert_eq!(due_job(store, &job, &[token.node]).await, None);
    let (record, _) = expect_saved(change(store, job.id, &job.spec, None, now).await);
    assert_eq!(record.next_fire_at, Some(now + DELAY));

    // The job is disabled and enabled again before the end of its run is stored.
    let (job, run) = claimed_delayed_run(store, token, 0).await;
    let done = attempt_end(&run, Outcome::Succeeded);
    let paused = JobSpec { enabled: false, ..job.spec.clone() };
    expect_saved(change(store, job.id, &paused, None, now).await);
    let on_at = now + Duration::from_millis(1);
    tokio::time::sleep(Duration::from_millis(10)).await;
    expect_saved(change(store, job.id, &job.spec, None, on_at).await);
    assert!(finish_batch(store, token, &[done]).await.due_at.is_some());
    assert_eq!(due_job(store, &job, &[token.node]).await.unwrap().next_fire_at, on_at + DELAY);

    // The job is edited while its run is open. The end of the run still sets the next fire, by the new delay.
    let (job, run) = claimed_delayed_run(store, token, 0).await;
    let three = spec(&job.spec.name, serde_json::json!({"schedule": {"delay": "3s"}}));
    let (record, _) = expect_saved(change(store, job.id, &three, None, run.due_at).await);
    assert_eq!(record.next_fire_at, None);
    let done = attempt_end(&run, Outcome::Succeeded);
    assert!(finish_batch(store, token, std::slice::from_ref(&done)).await.due_at.is_some());
    let next = due_job(store, &job, &[token.node]).await.unwrap();
    assert_eq!((next.next_fire_at, next.version), (done.finished_at + Duration::from_secs(3), 2));

    // A run that the edit settles sets no next fire. Instead the delay starts again at the edit, because no end of the run will be
    // reported.
    let (job, run) = {
        let at = store.now().await.unwrap().ceil_second() + Duration::from_secs(2);
        let job = delayed_job(store, at).await;
        let ahead = super::run(&job, token, at);
        let run = claim_followed(store, token, &job, ahead).await;
        (job, run)
    };
    let now = store.now().await.unwrap();
    let three = spec(&job.spec.name, serde_json::json!({"schedule": {"delay": "3s"}}));
    let (record, _) = expect_saved(change(store, job.id, &three, None, now).await);
    assert_eq!(record.next_fire_at, Some(now + Duration::from_secs(3)));
    assert_eq!(read_run(store, run.id).await.status, RunStatus::Skipped);
    // A job that got another schedule while its run was open keeps the next fire of the new schedule when the run ends.
    let (job, run) = claimed_delayed_run(store, token, 0).await;
    let every = spec(&job.spec.name, serde_json::json!({"schedule": {"every": "1h"}}));
    let (record, _) = expect_saved(change(store, job.id, &every, None, now).await);
    assert!(record.next_fire_at.is_some());
    assert!(finish_batch(store, token, &[attempt_end(&run, Outcome::Succeeded)]).await.due_at.is_none());
    assert_eq!(due_job(store, &job, &[token.node]).await.map(|due| due.next_fire_at), record.next_fire_at);
    // A run that ended while its job had no delay does not block the job when the delay returns.
    let (job, run) = claimed_delayed_run(store, token, 0).await;
    let every = spec(&job.spec.name, serde_json::json!({"schedule": {"every": "1h"}}));
    expect_saved(change(store, job.id, &every, None, now).await);
    finish_all(store, &[finish(&run, Outcome::Succeeded)]).await;
    let (record, _) = expect_saved(change(store, job.id, &job.spec, None, now).await);
    assert_eq!(record.next_fire_at, Some(now + DELAY));
}

/// An edit and a result at the same time: the one that commits second sees the other.
pub async fn an_edit_meets_the_end_of_the_run_that_a_delay_follows(store: &dyn Store) {
    let token = join(store).await;
    for _ in 0..5 {
        let (job, run) = claimed_delayed_run(store, token, 0).await;
        let now = store.now().await.unwrap();
        let three = spec(&job.spec.name, serde_json::json!({"schedule": {"delay": "3s"}}));
        let done = [attempt_end(&run, Outcome::Succeeded)];
        let (_, ends) = tokio::join!(change(store, job.id, &three, None, now), store.finish(finisher(token), &done));
        ends.unwrap();
        let next = due_job(store, &job, &[token.node]).await.unwrap().next_fire_at;
        let possible = [done[0].finished_at + Duration::from_secs(3), now + Duration::from_secs(3)];
        assert!(possible.contains(&next), "{next}");
    }
}

/// An edit settles and reopens a row that jitter delays, until the row's due instant. It does not touch a row that waits for its next
/// attempt.
pub async fn an_edit_sees_rows_that_jitter_puts_off(store: &dyn Store) {
    let token = join(store).await;
    let now = store.now().await.unwrap();
    let at = now.ceil_second() - Duration::from_secs(30);
    // Jitter is drawn for each fire, so at least one of these thirty fires is delayed far enough, whatever the job's id is.
    let schedule = serde_json::json!({"cron": "* * * * * ?", "jitter": {"max": "60s", "by": "fire"}});
    let spec = spec(&name("jitter"), serde_json::json!({"schedule": schedule}));
    let job = super::job_with(store, spec, Some(at)).await;
    let timetable = super::compile(&job.spec).timetable;
    let planned = |fire_at| timetable.fire_at(job.anchor, fire_at).unwrap().due_at(job.id);
    let row = |offset: u64, wait: Option<u64>| {
        let run = run(&job, token, at + Duration::from_secs(offset));
        let due_at = wait.map_or_else(|| planned(run.fire_at), |wait| run.fire_at + Duration::from_secs(wait));
        Run { due_at, status: RunStatus::Waiting, ..run }
    };
    // The first row whose jitter delays it well beyond now.
    let put_off =
        (2..30).map(|offset| row(offset, None)).find(|run| run.due_at > now + Duration::from_secs(10)).unwrap();
    let (started, retried) = (row(0, Some(10)), Run { attempt: 2, ..row(1, Some(55)) });
    super::claim(store, token, &job, vec![put_off.clone(), started.clone(), retried.clone()]).await;
    // Waiting rows are woken when they are due, not earlier.
    let woken = store.take_waiting(token, now, 10).await.unwrap();
    assert_eq!(woken.iter().map(|run| run.id).collect::<Vec<_>>(), [started.id]);

    let paused = JobSpec { enabled: false, ..job.spec.clone() };
    expect_saved(change(store, job.id, &paused, None, now).await);
    let status = async |run: &Run| read_run(store, run.id).await.status;
    assert_eq!(status(&put_off).await, RunStatus::Skipped);
    assert_eq!((status(&started).await, status(&retried).await), (RunStatus::Pending, RunStatus::Waiting));
    let (_, reopened) = expect_saved(change(store, job.id, &job.spec, None, now).await);
    assert_eq!(reopened.iter().map(|run| (run.id, run.due_at)).next(), Some((put_off.id, put_off.due_at)));

    assert_eq!(delete(store, job.id, None, now).await, JobDeleted::Done);
    assert_eq!(status(&put_off).await, RunStatus::Skipped);
}
