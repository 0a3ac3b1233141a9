//! Checks of claims and of requested runs.

use std::time::Duration;

use rondel_core::outcome::Outcome;
use rondel_core::{JobId, NodeId, Reason, Run, RunId, RunStatus, Timestamp};

use super::{claim, due_job, finish, finish_all, finish_one, job, join, read_run, requested_run, run, verdict};
use crate::ledger::{ClaimJob, ClaimResult, DueJob, DueRange, UnsentPlace};
use crate::{LeaseToken, Store};

const NO_HOME: NodeId = NodeId::new(0);

fn range(from: Timestamp, to: Timestamp, limit: u32) -> DueRange {
    DueRange { from, to, limit }
}

/// The due jobs of these homes within the range are read, the earliest first.
pub async fn due_jobs_come_in_order(store: &dyn Store) {
    let token = join(store).await;
    // No other check uses this hour.
    let base = Timestamp::from_secs(4_000_000_000);
    let at = |seconds| base + Duration::from_secs(seconds);
    let mut jobs = Vec::new();
    for seconds in [3, 1, 2, 4] {
        jobs.push(job(store, Some(at(seconds))).await);
    }
    let never = job(store, None).await;
    claim(store, token, &jobs[2], vec![]).await;
    let ids = |due: Vec<DueJob>| due.into_iter().map(|due| due.job).collect::<Vec<JobId>>();
    let all = store.due_jobs(&[NO_HOME], range(at(0), at(10), 10)).await.unwrap();
    assert!(all.iter().all(|due| due.job != never.id));
    assert_eq!(ids(all), [jobs[1].id, jobs[0].id, jobs[3].id]);
    assert_eq!(ids(store.due_jobs(&[NO_HOME], range(at(1), at(3), 1)).await.unwrap()), [jobs[1].id]);
    assert_eq!(ids(store.due_jobs(&[NO_HOME], range(at(2), at(3), 9)).await.unwrap()), [jobs[0].id]);
    assert_eq!(ids(store.due_jobs(&[token.node], range(at(0), at(100), 9)).await.unwrap()), [jobs[2].id]);
    assert_eq!(
        ids(store.due_jobs(&[NO_HOME, token.node], range(at(0), at(100), 2)).await.unwrap()),
        [jobs[1].id, jobs[0].id]
    );
    assert_eq!(store.due_jobs(&[], range(at(0), at(10), 10)).await.unwrap(), []);

    // Many homes, most of them without jobs.
    let homes = many_homes(store, token).await;
    let all = store.due_jobs(&homes, range(at(0), at(100), 9)).await.unwrap();
    assert_eq!(ids(all), [jobs[1].id, jobs[0].id, jobs[3].id, jobs[2].id]);
    assert_eq!(ids(store.due_jobs(&homes, range(at(4), at(61), 9)).await.unwrap()), [jobs[3].id]);
    assert_eq!(ids(store.due_jobs(&homes, range(at(62), at(62), 9)).await.unwrap()), [jobs[2].id]);
}

/// The node 0 of jobs without a home, a node, and nodes without jobs.
async fn many_homes(store: &dyn Store, token: LeaseToken) -> Vec<NodeId> {
    let mut homes = vec![NO_HOME, token.node];
    for _ in 0..5 {
        homes.push(join(store).await.node);
    }
    homes
}

/// Finds instants at which many jobs of a home are due. Instants with fewer jobs are left out, and jobs that have moved on do not count.
pub async fn dense_instants_are_counted(store: &dyn Store) {
    let token = join(store).await;
    // No other check uses this hour.
    let base = Timestamp::from_secs(4_000_100_000);
    let at = |seconds| base + Duration::from_secs(seconds);
    let mut jobs = Vec::new();
    for seconds in [1, 1, 1, 2, 3, 3, 9, 9] {
        jobs.push(job(store, Some(at(seconds))).await);
    }
    // This claim moves one of the three jobs to this node and to a later instant.
    claim(store, token, &jobs[0], vec![]).await;
    let dense = async |homes: &[NodeId], limit, count_min| {
        let instants = store.dense_instants(homes, range(at(0), at(8), limit), count_min).await.unwrap();
        instants.iter().map(|dense| (dense.at.since(base).as_secs(), dense.job_count)).collect::<Vec<_>>()
    };
    assert_eq!(dense(&[NO_HOME], 10, 2).await, [(1, 2), (3, 2)]);
    assert_eq!(dense(&[NO_HOME], 1, 2).await, [(1, 2)]);
    assert_eq!(dense(&[NO_HOME, token.node], 10, 1).await, [(1, 2), (2, 1), (3, 2)]);
    assert_eq!(dense(&[NO_HOME], 10, 3).await, []);
    assert_eq!(dense(&[], 10, 1).await, []);
    let homes = many_homes(store, token).await;
    assert_eq!(dense(&homes, 10, 1).await, [(1, 2), (2, 1), (3, 2)]);
}

/// The open unsent runs of a node for one job are read in the order of their instants, page by page.
pub async fn unsent_runs_of_a_job_come_in_order(store: &dyn Store) {
    let token = join(store).await;
    let now = store.now().await.unwrap().ceil_second();
    let (one, other) = (job(store, Some(now)).await, job(store, Some(now)).await);
    let at = |seconds| now + Duration::from_secs(seconds);
    let planned: Vec<_> = [3, 1, 2].map(|seconds| run(&one, token, at(seconds))).to_vec();
    claim(store, token, &one, planned.clone()).await;
    claim(store, token, &other, vec![run(&other, token, at(1))]).await;
    let asked = store.request_run(token, requested_run(&one, token, at(2))).await.unwrap();
    let start = UnsentPlace { fire_at: Timestamp::EPOCH, cause: 0, shard_index: 0 };
    let page = async |after, limit| {
        let runs = store.unsent_runs_of_job(token, one.id, after, limit).await.unwrap();
        runs.into_iter().map(|run| run.id).collect::<Vec<RunId>>()
    };
    let [third, first, second] = [planned[0].id, planned[1].id, planned[2].id];
    assert_eq!(page(start, 10).await, [first, second, asked.id, third]);
    assert_eq!(page(start, 2).await, [first, second]);
    assert_eq!(page(UnsentPlace::of(&planned[2]), 9).await, [asked.id, third]);
    assert_eq!(page(UnsentPlace::before(&planned[2]), 1).await, [second]);
    let stranger = LeaseToken { epoch: token.epoch + 1, ..token };
    assert_eq!(store.unsent_runs_of_job(stranger, one.id, start, 10).await.unwrap(), []);
}

/// The fires that have rows are read in order, page by page, and jobs without such rows from an instant on are left out.
pub async fn fires_with_rows_are_found(store: &dyn Store) {
    let token = join(store).await;
    let now = store.now().await.unwrap().ceil_second();
    let at = |seconds| now + Duration::from_secs(seconds);
    let (one, other, new) = (job(store, Some(now)).await, job(store, Some(now)).await, job(store, Some(now)).await);
    let span = Run {
        status: RunStatus::Skipped,
        reason: Some(Reason::Misfire),
        finished_at: Some(now),
        span_end_at: Some(at(8)),
        span_count: 5,
        ..run(&one, token, at(4))
    };
    claim(store, token, &one, vec![run(&one, token, at(2)), span, run(&one, token, at(1))]).await;
    claim(store, token, &other, vec![run(&other, token, at(3))]).await;
    let found = async |seconds| {
        let jobs = [(one.id, at(seconds)), (other.id, at(3)), (new.id, Timestamp::EPOCH)];
        store.jobs_with_rows_from(&jobs).await.unwrap()
    };
    assert_eq!(found(2).await, [one.id, other.id]);
    assert_eq!(found(5).await, [other.id], "the span begins before this instant");
    assert_eq!(store.jobs_with_rows_from(&[]).await.unwrap(), []);
    store.request_run(token, requested_run(&one, token, at(6))).await.unwrap();
    assert_eq!(found(6).await, [one.id, other.id]);

    let fires = async |from, through, limit| {
        let fires = store.fires_with_rows(one.id, (at(from), at(through)), limit).await.unwrap();
        let seconds = |at: Timestamp| at.since(now).as_secs();
        fires.into_iter().map(|(first, last)| (seconds(first), seconds(last))).collect::<Vec<_>>()
    };
    assert_eq!(fires(0, 30, 10).await, [(1, 1), (2, 2), (4, 8)]);
    assert_eq!(fires(0, 30, 2).await, [(1, 1), (2, 2)]);
    assert_eq!(fires(2, 4, 10).await, [(2, 2), (4, 8)]);
    assert_eq!(fires(5, 30, 10).await, []);
}

/// Two nodes see the same job due: one gets it, with its rows.
pub async fn a_job_is_claimed_once(store: &dyn Store) {
    let (a, b) = (join(store).await, join(store).await);
    let at = store.now().await.unwrap().ceil_second();
    let job = job(store, Some(at)).await;
    let seen_row = due_job(store, &job, &[NO_HOME]).await.unwrap();
    let claim_of = |token: LeaseToken| ClaimJob {
        recent_fires: seen_row.recent_fires,
        expected_row: seen_row,
        held_from: None,
        next_fire_at: Some(at + Duration::from_secs(2)),
        runs: vec![run(&job, token, at), run(&job, token, at + Duration::from_secs(1))],
        awaited_run: None,
    };
    let (claim_a, claim_b) = (claim_of(a), claim_of(b));
    let (won_a, won_b) =
        tokio::join!(store.claim(a, std::slice::from_ref(&claim_a)), store.claim(b, std::slice::from_ref(&claim_b)));
    let (won_a, won_b) = (won_a.unwrap(), won_b.unwrap());
    let (winner, won, lost) = if won_a.jobs.is_empty() { (b, won_b, won_a) } else { (a, won_a, won_b) };
    assert_eq!(won, ClaimResult { jobs: vec![(job.id, 1)], ..ClaimResult::default() });
    assert_eq!(lost, ClaimResult::default());
    let now = due_job(store, &job, &[winner.node]).await.unwrap();
    assert_eq!((now.next_fire_at, now.home, now.term), (at + Duration::from_secs(2), winner.node, 1));
    let runs = if winner == a { &claim_a.runs } else { &claim_b.runs };
    for run in runs {
        assert_eq!(read_run(store, run.id).await, *run);
    }

    // The row as it was seen is now outdated for the winner, too. A claim by the same home keeps the term, and a new home raises it.
    assert_eq!(store.claim(winner, &[claim_of(winner)]).await.unwrap(), ClaimResult::default());
    let again = |seen_row: DueJob| ClaimJob {
        recent_fires: seen_row.recent_fires,
        expected_row: seen_row,
        held_from: None,
        next_fire_at: Some(at + Duration::from_secs(3)),
        runs: vec![],
        awaited_run: None,
    };
    assert_eq!(store.claim(winner, &[again(now)]).await.unwrap().jobs, [(job.id, 1)]);
    let other = if winner == a { b } else { a };
    let now = due_job(store, &job, &[winner.node]).await.unwrap();
    assert_eq!(store.claim(other, &[again(now)]).await.unwrap(), ClaimResult::default(), "its home lives");
    store.release(winner, Timestamp::EPOCH).await.unwrap();
    assert_eq!(store.claim(other, &[again(now)]).await.unwrap(), ClaimResult::default(), "it may renew its lease");
    let fenced = store.orphaned_jobs(other, &[winner.node.into()], 0).await.unwrap();
    assert_eq!((fenced.jobs, fenced.fenced), (vec![], vec![winner.node]), "its epoch has ended");
    assert_eq!(
        store.claim(other, &[again(now)]).await.unwrap(),
        ClaimResult::default(),
        "its runs are not taken over yet"
    );
    finish_all(store, &runs.iter().map(|run| finish(run, Outcome::Succeeded)).collect::<Vec<_>>()).await;
    let asked = store.request_run(other, requested_run(&job, other, at)).await.unwrap();
    assert_eq!((asked.node, asked.node_epoch), (winner.node, winner.epoch), "its home may come back");
    assert_eq!(store.claim(other, &[again(now)]).await.unwrap(), ClaimResult::default(), "it would find that run");
    finish_one(store, finish(&asked, Outcome::Succeeded)).await;
    assert_eq!(store.claim(other, &[again(now), again(now)]).await.unwrap().jobs, [(job.id, 2)]);
    let last = due_job(store, &job, &[other.node]).await.unwrap();
    assert_eq!(
        store
            .claim(
                other,
                &[ClaimJob {
                    recent_fires: last.recent_fires,
                    expected_row: last,
                    held_from: None,
                    next_fire_at: None,
                    runs: vec![],
                    awaited_run: None
                }]
            )
            .await
            .unwrap()
            .jobs
            .len(),
        1
    );
    assert_eq!(due_job(store, &job, &[other.node]).await, None);
}

/// A claim needs a valid lease with the current epoch.
pub async fn a_claim_needs_its_lease(store: &dyn Store) {
    let token = join(store).await;
    let at = store.now().await.unwrap().ceil_second();
    let job = job(store, Some(at)).await;
    let seen_row = due_job(store, &job, &[NO_HOME]).await.unwrap();
    let row = run(&job, token, at);
    let claims = [ClaimJob {
        recent_fires: seen_row.recent_fires,
        expected_row: seen_row,
        held_from: None,
        next_fire_at: None,
        runs: vec![row.clone()],
        awaited_run: None,
    }];
    let old = LeaseToken { epoch: token.epoch - 1, ..token };
    let refused = ClaimResult { is_refused: true, ..ClaimResult::default() };
    assert_eq!(store.claim(old, &claims).await.unwrap(), refused);
    store.release(token, Timestamp::EPOCH).await.unwrap();
    assert_eq!(store.claim(token, &claims).await.unwrap(), refused);
    assert_eq!(due_job(store, &job, &[NO_HOME]).await, Some(seen_row));
    assert_eq!(store.runs(&[row.id]).await.unwrap(), []);
    assert_eq!(store.claim(join(store).await, &[]).await.unwrap(), ClaimResult::default());
}

/// A row whose key exists stays unchanged, and is returned.
pub async fn a_claim_leaves_existing_rows_as_they_are(store: &dyn Store) {
    let token = join(store).await;
    let at = store.now().await.unwrap().ceil_second();
    let job = job(store, Some(at)).await;
    let first = run(&job, token, at);
    claim(store, token, &job, vec![first.clone()]).await;
    let (same, other) = (run(&job, token, at), run(&job, token, at + Duration::from_secs(9)));
    let span = Run {
        status: RunStatus::Skipped,
        reason: Some(Reason::Misfire),
        finished_at: Some(at),
        span_end_at: Some(at + Duration::from_secs(5)),
        span_count: 5,
        message: Some("missed".to_owned()),
        ..run(&job, token, at + Duration::from_secs(1))
    };
    let claimed = claim(store, token, &job, vec![same.clone(), other.clone(), span.clone()]).await;
    assert_eq!(claimed, ClaimResult { jobs: vec![(job.id, 1)], existing: vec![same.id], is_refused: false });
    assert_eq!(store.runs(&[same.id]).await.unwrap(), []);
    for run in [first, other, span] {
        assert_eq!(read_run(store, run.id).await, run);
    }
}

/// One call can write thousands of rows.
pub async fn a_batch_may_be_large(store: &dyn Store) {
    let token = join(store).await;
    let at = store.now().await.unwrap().ceil_second();
    let job = job(store, Some(at)).await;
    let runs: Vec<_> = (0..2_000).map(|second| run(&job, token, at + Duration::from_secs(second))).collect();
    claim(store, token, &job, runs.clone()).await;
    let ids: Vec<RunId> = runs.iter().map(|run| run.id).collect();
    assert_eq!(store.runs(&ids).await.unwrap().len(), 2_000);
    assert_eq!(store.check_runs(&ids).await.unwrap().len(), 2_000);
    // The batch is not in the order of ids, and has one run twice.
    let mut batch: Vec<_> = runs.iter().rev().map(|run| finish(run, Outcome::Succeeded)).collect();
    batch.push(batch[0].clone());
    let mut answers = finish_all(store, &batch).await;
    assert_eq!(answers.pop(), Some(crate::ledger::EndOutcome::Duplicate));
    assert_eq!(answers, vec![verdict(RunStatus::Succeeded); 2_000]);
    let found = store.runs(&ids).await.unwrap();
    assert!(found.iter().all(|run| run.status == RunStatus::Succeeded && run.finished_at.is_some()));
    assert_eq!(finish_all(store, &[]).await, []);
}

/// The job's home owns a requested run. If the home is dead, the run waits and is adopted with the job's other open runs.
pub async fn a_requested_run_belongs_to_the_home(store: &dyn Store) {
    let (a, b) = (join(store).await, join(store).await);
    let now = store.now().await.unwrap();
    let job = job(store, Some(now + Duration::from_secs(3600))).await;

    let first = store.request_run(a, requested_run(&job, a, now)).await.unwrap();
    assert_eq!((first.node, first.node_epoch), (a.node, a.epoch));
    let due_now = due_job(store, &job, &[a.node]).await.unwrap();
    assert_eq!((due_now.home, due_now.term), (a.node, 1));

    let second = store.request_run(b, requested_run(&job, b, now)).await.unwrap();
    assert_eq!((second.node, second.node_epoch), (a.node, a.epoch), "the home is alive");
    assert_eq!(read_run(store, second.id).await, second);

    let same_key = Run { id: RunId::new(super::next_id()), ..second.clone() };
    assert_eq!(store.request_run(b, same_key).await.unwrap(), second);

    store.release(a, Timestamp::EPOCH).await.unwrap();
    let now = store.now().await.unwrap();
    let third = store.request_run(b, requested_run(&job, b, now)).await.unwrap();
    assert_eq!((third.node, third.node_epoch), (a.node, a.epoch), "the others are not adopted yet");
    let mut adopted: Vec<RunId> =
        super::orphans::adopt_all(store, b, &[a.node]).await.1.into_iter().map(|adopted| adopted.run.id).collect();
    adopted.sort_unstable();
    assert_eq!(adopted, [first.id, second.id, third.id]);
    let late = store.request_run(a, requested_run(&job, a, now)).await.unwrap();
    assert_eq!((late.node, late.node_epoch), (b.node, b.epoch), "it moved along");
    let due_now = due_job(store, &job, &[b.node]).await.unwrap();
    assert_eq!((due_now.home, due_now.term), (b.node, 2));
}
