//! Checks of pages of runs.

use std::time::Duration;

use rondel_core::outcome::Outcome;
use rondel_core::{AppId, NamespaceId, Run, RunId, RunStatus};

use super::broadcasts::expanded_broadcast;
use super::{FAILED, claim, finish, finish_all, job, join, requested_run, run};
use crate::Store;
use crate::catalog::JobRecord;
use crate::ledger::RunQuery;

/// Creates twenty-five runs of one job, the newest last. Two of them have ended, one of these successfully.
async fn runs(store: &dyn Store) -> (JobRecord, Vec<Run>) {
    let token = join(store).await;
    let at = store.now().await.unwrap().ceil_second();
    let job = job(store, Some(at)).await;
    let rows: Vec<Run> = (0..25).map(|offset| run(&job, token, at + Duration::from_secs(offset))).collect();
    claim(store, token, &job, rows.clone()).await;
    finish_all(store, &[finish(&rows[3], Outcome::Succeeded), finish(&rows[20], FAILED)]).await;
    (job, rows)
}

async fn all_pages(store: &dyn Store, namespace: NamespaceId, mut query: RunQuery) -> Vec<RunId> {
    let mut ids = Vec::new();
    loop {
        let page = store.list_runs(namespace, &query).await.unwrap();
        ids.extend(page.iter().map(|run| run.id));
        match page.last() {
            Some(last) if page.len() == usize::try_from(query.limit).unwrap() => query.after = Some(last.id),
            _ => return ids,
        }
    }
}

/// Consecutive pages return each run once, whatever the page size.
pub async fn pages_of_runs_have_no_gaps(store: &dyn Store) {
    let (job, rows) = runs(store).await;
    let expected: Vec<RunId> = rows.iter().rev().map(|run| run.id).collect();
    for limit in [1, 7, 25, 100] {
        let query = RunQuery { job: Some(job.id), limit, ..RunQuery::default() };
        assert_eq!(all_pages(store, job.namespace, query).await, expected, "{limit}");
        let query = RunQuery { limit, ..RunQuery::default() };
        let all = all_pages(store, job.namespace, query).await;
        assert!(all.windows(2).all(|pair| pair[0] > pair[1]));
        assert_eq!(all.into_iter().filter(|id| expected.contains(id)).collect::<Vec<_>>(), expected);
    }
    assert_eq!(all_pages(store, NamespaceId::new(99), RunQuery { limit: 5, ..RunQuery::default() }).await, []);

    // Two runs of one instant are adjacent.
    let cause = super::next_id();
    let twin = Run { id: RunId::new(super::next_id()), cause, ..rows[10].clone() };
    let token = join(store).await;
    store.request_run(token, twin.clone()).await.unwrap();
    let query = RunQuery { job: Some(job.id), limit: 4, ..RunQuery::default() };
    let mut expected = expected;
    expected.insert(14, twin.id);
    assert_eq!(all_pages(store, job.namespace, query).await, expected);
}

/// Pages are filtered by status, with and without a job.
pub async fn pages_keep_to_their_filters(store: &dyn Store) {
    use RunStatus::{Failed, Pending, Running, Succeeded, Waiting};
    let (job, rows) = runs(store).await;
    let page = |statuses: &[RunStatus], of_job: bool| RunQuery {
        job: of_job.then_some(job.id),
        statuses: statuses.to_vec(),
        limit: 3,
        ..RunQuery::default()
    };
    let own = |ids: Vec<RunId>| ids.into_iter().filter(|id| rows.iter().any(|run| run.id == *id)).collect::<Vec<_>>();
    for of_job in [true, false] {
        let ended = own(all_pages(store, job.namespace, page(&[Succeeded, Failed], of_job)).await);
        assert_eq!(ended, [rows[20].id, rows[3].id]);
        let failed = own(all_pages(store, job.namespace, page(&[Failed], of_job)).await);
        assert_eq!(failed, [rows[20].id]);
        let open = own(all_pages(store, job.namespace, page(&[Pending, Waiting, Running], of_job)).await);
        assert_eq!(open.len(), 23);
    }
    let until = |run: &Run| RunQuery { until: Some(run.fire_at), ..page(&[], true) };
    let upto: Vec<RunId> = rows[..=7].iter().rev().map(|run| run.id).collect();
    assert_eq!(all_pages(store, job.namespace, until(&rows[7])).await, upto, "planned up to an instant, inclusive");
    for pair in rows.windows(2) {
        let next = store.next_fire_after(&pair[0]).await.unwrap().expect("a later fire");
        assert_eq!(next.id, pair[1].id);
    }
    assert_eq!(store.next_fire_after(rows.last().unwrap()).await.unwrap(), None);
    pages_of_many_runs_keep_to_their_filters(store).await;
}

/// A job has many runs at one instant, and few of them have the status that the query names.
async fn pages_of_many_runs_keep_to_their_filters(store: &dyn Store) {
    use RunStatus::{Failed, Pending, Running, Waiting};
    let token = join(store).await;
    let at = store.now().await.unwrap().ceil_second();
    let job = job(store, Some(at)).await;
    let row = |number: u32| Run {
        cause: number.into(),
        ..run(&job, token, at + Duration::from_secs(u64::from(number / 60)))
    };
    let rows: Vec<Run> = (0..120).map(row).collect();
    claim(store, token, &job, rows.clone()).await;
    finish_all(store, &[finish(&rows[0], FAILED), finish(&rows[70], FAILED)]).await;
    let page = |statuses: &[RunStatus], within: Option<AppId>, limit: u32| RunQuery {
        job: Some(job.id),
        statuses: statuses.to_vec(),
        within: within.map(|app| vec![app]),
        limit,
        ..RunQuery::default()
    };
    let failed = [rows[70].id, rows[0].id];
    let is_open = |run: &&Run| !failed.contains(&run.id);
    let open: Vec<RunId> = rows.iter().rev().filter(is_open).map(|run| run.id).collect();
    for within in [None, Some(job.app)] {
        assert_eq!(all_pages(store, job.namespace, page(&[Failed], within, 1)).await, failed);
        assert_eq!(all_pages(store, job.namespace, page(&[Failed, Running], within, 1)).await, failed);
        assert_eq!(all_pages(store, job.namespace, page(&[Pending, Waiting, Running], within, 50)).await, open);
        assert_eq!(all_pages(store, job.namespace, page(&[Running], within, 50)).await, []);
    }
    // Broadcasts are running until their shards have ended.
    let (first, _) = expanded_broadcast(store, token, 1).await;
    let (second, _) = expanded_broadcast(store, token, 1).await;
    // Many open runs come before them.
    let many = super::job(store, Some(at)).await;
    claim(store, token, &many, (0..250).map(|cause| Run { cause, ..run(&many, token, at) }).collect()).await;
    let running = |within: Option<AppId>, limit| RunQuery { job: None, ..page(&[Running], within, limit) };
    for (within, limit) in [(None, 1), (None, 10), (Some(first.app), 1)] {
        let found = all_pages(store, job.namespace, running(within, limit)).await;
        let found: Vec<RunId> = found.into_iter().filter(|id| [first.id, second.id].contains(id)).collect();
        assert_eq!(found, [second.id, first.id]);
    }
    let other = Some(AppId::new(super::next_id()));
    assert_eq!(all_pages(store, job.namespace, running(other, 10)).await, []);
    for statuses in [Vec::new(), vec![Failed], vec![Pending]] {
        assert_eq!(all_pages(store, job.namespace, page(&statuses, other, 50)).await, []);
    }
}

/// Shards, children and retries by hand are found by their parents, for several parents in one call.
pub async fn runs_that_follow_are_found_by_their_parents(store: &dyn Store) {
    let (job, rows) = runs(store).await;
    let token = join(store).await;
    let below = |parents: Vec<RunId>, limit| async move {
        let found = store.runs_below(&parents, limit).await.unwrap();
        found.into_iter().map(|run| run.id).collect::<Vec<_>>()
    };
    assert_eq!(below(rows.iter().map(|run| run.id).collect(), 100).await, []);
    let mut made = Vec::new();
    for parent in [&rows[1], &rows[2], &rows[1]] {
        let run = Run { parent: Some(parent.id), ..requested_run(&job, token, parent.fire_at) };
        made.push(store.request_run(token, run).await.unwrap().id);
    }
    assert_eq!(below(vec![rows[1].id, rows[2].id, rows[3].id], 100).await, made);
    assert_eq!(below(vec![rows[1].id, rows[2].id], 2).await, made[..2]);
    assert_eq!(below(vec![rows[1].id], 100).await, [made[0], made[2]]);
    assert_eq!(below(vec![made[0]], 100).await, []);
    assert_eq!(below(Vec::new(), 100).await, []);
}
