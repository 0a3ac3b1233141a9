//! Checks of the counts per job and hour.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_core::outcome::{NextStepPolicy, Outcome};
use rondel_core::run::ROOT_SHARD;
use rondel_core::{AppId, JobId, JobSpec, Reason, Run, RunId, RunStatus, Timestamp};

use super::edits::{change, with_four_rows};
use super::{DEFAULT, FAILED, POLICY, claim, compile, expect_saved, finish, finish_all, job, join, name, next_id, run};
use crate::catalog::JobChange;
use crate::ledger::{AttemptEnd, RunSearch};
use crate::upkeep::JobStat;
use crate::{LeaseToken, Store};

/// A little later than the instants that the ids of checks contain.
fn after_ids() -> Timestamp {
    Timestamp::from_millis(1_704_067_200_000 + (next_id() >> 22) + 1_000)
}

async fn stats(store: &dyn Store, job: JobId) -> BTreeMap<(i64, RunStatus), (u64, u64)> {
    let all = store.job_stats(job, Timestamp::EPOCH, Timestamp::MAX).await.unwrap();
    let stat = |stat: JobStat| {
        ((stat.hour.second() / 3600, stat.status), (stat.run_count, u64::try_from(stat.duration.as_millis()).unwrap()))
    };
    all.into_iter().map(stat).collect()
}

/// Counts all runs, in steps of two rows.
pub(super) async fn roll_up(store: &dyn Store) {
    let before = after_ids();
    while store.roll_up(before, 2).await.unwrap() > 0 {}
}

/// The same counts, computed directly from the ledger.
async fn counts_of_ledger(store: &dyn Store, runs: &[RunId]) -> BTreeMap<(i64, RunStatus), (u64, u64)> {
    let mut counts: BTreeMap<(i64, RunStatus), (u64, u64)> = BTreeMap::new();
    for run in store.runs(runs).await.unwrap() {
        let is_shard = run.shard_index >= 0 && run.shard_total.is_some_and(|total| total > 1);
        if is_shard || !run.status.is_terminal() {
            continue;
        }
        let sum = counts.entry((run.fire_at.second() / 3600, run.status)).or_default();
        sum.0 += u64::try_from(run.span_count).unwrap();
        if let (Some(started_at), Some(finished_at)) = (run.started_at, run.finished_at) {
            let is_known = run.status != RunStatus::Unknown;
            sum.1 += if is_known { u64::try_from(finished_at.since(started_at).as_millis()).unwrap() } else { 0 };
        }
    }
    counts
}

/// Each run counts once, in the hour for which it was planned, whatever the size of the steps and whenever its verdict arrives.
pub async fn runs_are_counted_by_hour(store: &dyn Store) {
    let token = join(store).await;
    let at = Timestamp::from_secs(1_900_000_800);
    let job = job(store, Some(at)).await;
    let row = |offset: u64| run(&job, token, at + Duration::from_secs(offset));
    let mut rows: Vec<Run> = (0..6).map(|number| row(number * 1_200)).collect();
    let span = Run {
        status: RunStatus::Skipped,
        reason: Some(Reason::Misfire),
        finished_at: Some(at),
        span_end_at: Some(at + Duration::from_secs(9_000)),
        span_count: 5,
        ..row(8_000)
    };
    rows.push(span);
    rows.push(Run { shard_index: ROOT_SHARD, shard_total: None, ..row(8_500) });
    claim(store, token, &job, rows.clone()).await;
    let shard = |index| Run {
        id: RunId::new(next_id()),
        shard_index: index,
        shard_total: Some(2),
        parent: Some(rows[7].id),
        ..rows[7].clone()
    };
    let shards = [shard(0), shard(1)];
    assert!(store.expand(token, rows[7].id, &shards).await.unwrap());
    let all: Vec<RunId> = rows.iter().chain(&shards).map(|run| run.id).collect();
    let at_most_once = NextStepPolicy { at_least_once: false, ..POLICY };
    finish_all(store, &[finish(&rows[0], Outcome::Succeeded), finish(&rows[1], FAILED)]).await;
    // The run is marked because only a run that may have begun gets the verdict unknown.
    store.mark(token, &[super::dispatch::at_executor(&rows[2], "one")]).await.unwrap();
    let lost =
        AttemptEnd { policy: at_most_once, started_at: None, ..finish(&rows[2], Outcome::Lost(Reason::ExecutorLost)) };
    finish_all(store, &[lost]).await;

    roll_up(store).await;
    let first = stats(store, job.id).await;
    assert_eq!(first, counts_of_ledger(store, &all).await);
    assert_eq!(first.values().map(|(count, _)| count).sum::<u64>(), 3 + 5, "{first:?}");
    roll_up(store).await;
    assert_eq!(stats(store, job.id).await, first, "nothing counts twice");

    // Open runs end. A run with the verdict unknown turns out to have succeeded.
    finish_all(store, &[finish(&rows[3], Outcome::Succeeded), finish(&rows[2], Outcome::Succeeded)]).await;
    finish_all(store, &shards.iter().map(|shard| finish(shard, Outcome::Succeeded)).collect::<Vec<_>>()).await;
    roll_up(store).await;
    let second = stats(store, job.id).await;
    assert_eq!(second, counts_of_ledger(store, &all).await);
    assert_eq!(second.values().map(|(count, _)| count).sum::<u64>(), 5 + 5, "{second:?}");
    assert!(second.keys().all(|(_, status)| *status != RunStatus::Unknown));

    // This run was still open when the count passed it. It is lost and counted as unknown. Further below it turns out to have succeeded.
    store.mark(token, &[super::dispatch::at_executor(&rows[4], "one")]).await.unwrap();
    let lost =
        AttemptEnd { policy: at_most_once, started_at: None, ..finish(&rows[4], Outcome::Lost(Reason::ExecutorLost)) };
    finish_all(store, &[lost]).await;
    roll_up(store).await;
    assert!(stats(store, job.id).await.keys().any(|(_, status)| *status == RunStatus::Unknown));

    // Two callers count at the same time.
    finish_all(store, &[finish(&rows[4], Outcome::Succeeded), finish(&rows[5], FAILED)]).await;
    let (one, two) = tokio::join!(store.roll_up(after_ids(), 100), store.roll_up(after_ids(), 100));
    one.unwrap();
    two.unwrap();
    roll_up(store).await;
    assert_eq!(stats(store, job.id).await, counts_of_ledger(store, &all).await);

    let hour = Timestamp::from_secs(at.second() / 3600 * 3600);
    let from_second = store.job_stats(job.id, hour + Duration::from_secs(3600), Timestamp::MAX).await.unwrap();
    assert!(from_second.iter().all(|stat| stat.hour > hour) && !from_second.is_empty());
    let until_second = store.job_stats(job.id, Timestamp::EPOCH, hour + Duration::from_secs(3600)).await.unwrap();
    assert!(until_second.iter().all(|stat| stat.hour == hour) && !until_second.is_empty());

    // A removal keeps to its limit even if many jobs have counts in the same hour.
    let other = super::job(store, Some(at)).await;
    let row = run(&other, token, at);
    claim(store, token, &other, vec![row.clone()]).await;
    finish_all(store, &[finish(&row, FAILED)]).await;
    roll_up(store).await;
    let forget = async || store.forget_stats(hour + Duration::from_secs(1), 1).await.unwrap();
    assert!(forget().await > 0);
    let of_hour = async |job: JobId| {
        let to = hour + Duration::from_secs(3600);
        store.job_stats(job, hour, to).await.unwrap().len()
    };
    assert!(of_hour(job.id).await + of_hour(other.id).await > 0, "not the counts of all jobs");
    while forget().await > 0 {}
    let remaining = store.job_stats(job.id, Timestamp::EPOCH, Timestamp::MAX).await.unwrap();
    assert_eq!(remaining, from_second);
}

/// Sums are added once, whatever the number of sums in a batch.
pub async fn batches_of_any_size_are_counted_once(store: &dyn Store) {
    let token = join(store).await;
    let at = Timestamp::from_secs(1_900_000_800);
    for sum_count in [3_u64, 5, 7] {
        let job = job(store, Some(at)).await;
        let rows: Vec<Run> =
            (0..sum_count).map(|hour| run(&job, token, at + Duration::from_secs(hour * 3_600))).collect();
        claim(store, token, &job, rows.clone()).await;
        // The length of the message depends on the run's number, so the rows have different lengths.
        let end = |run: &Run| AttemptEnd {
            message: Some("x".repeat(usize::try_from(run.id.get() % 7).unwrap())),
            ..finish(run, FAILED)
        };
        finish_all(store, &rows.iter().map(end).collect::<Vec<_>>()).await;
        while store.roll_up(after_ids(), 100).await.unwrap() > 0 {}
        let ids: Vec<RunId> = rows.iter().map(|run| run.id).collect();
        assert_eq!(stats(store, job.id).await, counts_of_ledger(store, &ids).await, "{sum_count} sums");
    }
}

/// When a job moves to another app, its counts stay with it, and runs that end afterwards are added to them.
pub async fn counts_stay_with_a_job_that_moves(store: &dyn Store) {
    let token = join(store).await;
    let at = Timestamp::from_secs(1_900_000_800);
    let job = job(store, Some(at)).await;
    let rows = [0, 60].map(|offset| run(&job, token, at + Duration::from_secs(offset)));
    claim(store, token, &job, rows.to_vec()).await;
    finish_all(store, &[finish(&rows[0], Outcome::Succeeded)]).await;
    roll_up(store).await;

    let now = store.now().await.unwrap();
    let other = store.ensure_app(AppId::new(next_id()), job.namespace, &name("app"), now).await.unwrap().id;
    let compiled = compile(&job.spec);
    let change = JobChange {
        id: job.id,
        expected_version: Some(job.version),
        spec: &job.spec,
        job: &compiled,
        before: &compiled,
        calendar: None,
        app: other,
        author: "conformance",
        skipped_row_id: RunId::new(next_id()),
        now,
        checked_at: now,
        reached: now,
        drops: None,
    };
    let (moved, _) = expect_saved(store.change_job(change).await.unwrap());
    assert_eq!(moved.app, other);
    finish_all(store, &[finish(&rows[1], FAILED)]).await;
    roll_up(store).await;

    let counted = stats(store, job.id).await;
    assert_eq!(counted, counts_of_ledger(store, &rows.each_ref().map(|run| run.id)).await);
    let verdicts: Vec<(RunStatus, u64)> = counted.iter().map(|((_, status), (count, _))| (*status, *count)).collect();
    assert_eq!(verdicts.len(), 2, "{verdicts:?}");
    assert!(verdicts.iter().all(|(_, count)| *count == 1), "{verdicts:?}");
    reopened_fires_are_counted_by_their_ends(store).await;
}

/// A pause skips fires ahead of their instants, and the resumption opens them again after they were counted.
async fn reopened_fires_are_counted_by_their_ends(store: &dyn Store) {
    let (_, job, rows, now) = with_four_rows(store).await;
    let ids: Vec<RunId> = rows.iter().map(|run| run.id).collect();
    let paused = JobSpec { enabled: false, ..job.spec.clone() };
    expect_saved(change(store, job.id, &paused, None, now).await);
    roll_up(store).await;
    let counted = stats(store, job.id).await;
    assert_eq!(counted, counts_of_ledger(store, &ids).await);
    assert!(counted.keys().all(|(_, status)| *status == RunStatus::Skipped), "{counted:?}");
    expect_saved(change(store, job.id, &job.spec, None, now).await);
    roll_up(store).await;
    let ends = [Outcome::Succeeded, FAILED, Outcome::Succeeded, FAILED];
    let ends = rows.iter().zip(ends).map(|(run, outcome)| finish(run, outcome));
    finish_all(store, &ends.collect::<Vec<_>>()).await;
    roll_up(store).await;
    let counted = stats(store, job.id).await;
    assert_eq!(counted, counts_of_ledger(store, &ids).await);
    assert!(counted.keys().all(|(_, status)| *status != RunStatus::Skipped), "{counted:?}");
}

/// The dead letters of a job, the newest first, read in pages.
pub(super) async fn dead_letters_of(store: &dyn Store, job: JobId) -> Vec<RunId> {
    let all = RunSearch::new(store.now().await.unwrap(), 100);
    let mut search = RunSearch { is_dead: true, jobs: Some(vec![job]), ..all };
    let mut dead = Vec::new();
    loop {
        let page = store.search_runs(DEFAULT, &search).await.unwrap().runs;
        dead.extend(page.iter().map(|run| run.id));
        let Some(last) = page.last().filter(|_| page.len() == 100) else { return dead };
        search.from = Some(search.place(last));
    }
}

/// Failed runs are dead letters until a later run succeeds, however many there are and in whichever order they end.
pub(super) async fn failures_are_dead_until_a_later_success(store: &dyn Store, token: LeaseToken) {
    let at = store.now().await.unwrap().ceil_second();
    let job = job(store, Some(at)).await;
    let rows: Vec<Run> = (0..520).map(|number| run(&job, token, at + Duration::from_secs(number))).collect();
    claim(store, token, &job, rows.clone()).await;
    let count = async || while store.roll_up(after_ids(), 1_000).await.unwrap() > 0 {};
    finish_all(store, &rows[1..518].iter().map(|run| finish(run, FAILED)).collect::<Vec<_>>()).await;
    count().await;
    let failed: Vec<RunId> = rows[1..518].iter().rev().map(|run| run.id).collect();
    assert_eq!(dead_letters_of(store, job.id).await, failed);
    finish_all(store, &[finish(&rows[518], Outcome::Succeeded), finish(&rows[519], FAILED)]).await;
    count().await;
    assert_eq!(dead_letters_of(store, job.id).await, [rows[519].id]);
    finish_all(store, &[finish(&rows[0], FAILED)]).await;
    assert_eq!(dead_letters_of(store, job.id).await, [rows[519].id, rows[0].id]);
    count().await;
    assert_eq!(dead_letters_of(store, job.id).await, [rows[519].id], "it was overtaken before it ended");
}
