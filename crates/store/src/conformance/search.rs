//! Checks of searches among runs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::filter::{Bound, LengthRange, Pattern, ValueCondition};
use rondel_core::outcome::Outcome;
use rondel_core::visibility::VisibleJobs;
use rondel_core::{ExecutorId, NamespaceId, Run, RunId, RunStatus, Trigger};

use super::{FAILED, claim, finish, finish_all, job, join, run};
use crate::Store;
use crate::catalog::JobRecord;
use crate::ledger::{RunOrder, RunPlace, RunQuery, RunSearch, RunText};

/// Creates twenty runs of each of two jobs. Some have ended, after different durations.
async fn runs(store: &dyn Store) -> (JobRecord, JobRecord, Vec<Run>) {
    let token = join(store).await;
    let at = store.now().await.unwrap().ceil_second();
    let (first, second) = (job(store, Some(at)).await, job(store, Some(at)).await);
    let mut rows = Vec::new();
    for of in [&first, &second] {
        // A run of a backfill is never late.
        let made = |offset: u64| {
            let trigger = if offset < 18 { Trigger::Interval } else { Trigger::Backfill };
            Run { trigger, ..run(of, token, at + Duration::from_secs(offset)) }
        };
        let own: Vec<Run> = (0..20).map(made).collect();
        claim(store, token, of, own.clone()).await;
        rows.extend(own);
    }
    let mut ends = Vec::new();
    for (index, row) in rows.iter().enumerate().filter(|(index, _)| index % 3 == 0) {
        let mut end = finish(row, if index % 2 == 0 { FAILED } else { Outcome::Succeeded });
        let began = row.fire_at + Duration::from_millis(7 * u64::try_from(index).unwrap());
        end.started_at = Some(began);
        end.executor = Some((ExecutorId::new(77), format!("w{}", index % 4)));
        end.message = match index {
            39 => Some("vault failed".to_owned()),
            _ => (index % 2 == 0).then(|| format!("Connection {index} refused: 100%_ÄÖ")),
        };
        ends.push(end);
    }
    finish_all(store, &ends).await;
    (first, second, rows)
}

/// Reads all pages of a search forwards. Each page must be the same when it is read backwards from the first run after it.
async fn found(store: &dyn Store, namespace: NamespaceId, search: &RunSearch) -> Vec<RunId> {
    let mut search = RunSearch { limit: 3, ..search.clone() };
    let mut all: Vec<Run> = Vec::new();
    loop {
        let page = store.search_runs(namespace, &search).await.unwrap().runs;
        if let Some(first) = page.first() {
            let before = RunSearch { is_backward: true, from: Some(search.place(first)), ..search.clone() };
            let before = store.search_runs(namespace, &before).await.unwrap().runs;
            let expected: Vec<RunId> = all.iter().rev().take(3).rev().map(|run| run.id).collect();
            assert_eq!(before.iter().map(|run| run.id).collect::<Vec<_>>(), expected, "{search:?}");
        }
        let is_last = page.len() < 3;
        all.extend(page);
        if is_last {
            return all.into_iter().map(|run| run.id).collect();
        }
        search.from = all.last().map(|run| search.place(run));
    }
}

/// Each search in each order finds exactly the runs that match. A text is not a pattern.
pub async fn runs_are_found_by_all_that_a_search_names(store: &dyn Store) {
    let (first, second, rows) = runs(store).await;
    let namespace = first.namespace;
    let now = store.now().await.unwrap() + Duration::from_secs(60);
    let query = RunQuery { limit: 1000, ..RunQuery::default() };
    let all = store.list_runs(namespace, &query).await.unwrap();
    let any = || RunSearch::new(now, 100);
    let text = |text: &str| RunText { text: text.to_owned(), ..RunText::default() };
    let over = |millis| Bound { length: Duration::from_millis(millis), is_inclusive: true };
    let ids_of = |jobs: &[&JobRecord]| Some(jobs.iter().map(|job| job.id).collect());
    let named = |name: &str| ValueCondition { any: vec![Pattern(name.to_owned())], none: Vec::new() };
    let both = || RunSearch { jobs: ids_of(&[&first, &second]), ..any() };
    let hidden =
        || Some(Arc::new(VisibleJobs { hidden_names: BTreeSet::from(["vault".to_owned()]), ..VisibleJobs::default() }));
    let searches = [
        (any(), None),
        (both(), Some(40)),
        (RunSearch { jobs: ids_of(&[&second]), ..any() }, Some(20)),
        (RunSearch { excluded_jobs: vec![first.id], ..both() }, Some(20)),
        (RunSearch { jobs: Some(Vec::new()), ..any() }, Some(0)),
        (RunSearch { apps: Some(vec![second.app]), ..both() }, None),
        (RunSearch { apps: Some(Vec::new()), ..any() }, Some(0)),
        (RunSearch { statuses: vec![RunStatus::Failed], ..both() }, Some(7)),
        (RunSearch { statuses: vec![RunStatus::Succeeded], ..both() }, Some(7)),
        (RunSearch { statuses: vec![RunStatus::Pending, RunStatus::Running], ..both() }, Some(26)),
        (RunSearch { triggers: vec![Trigger::Manual], ..any() }, None),
        (RunSearch { since: Some(rows[15].fire_at), until: Some(rows[17].fire_at), ..both() }, None),
        (RunSearch { executors: named("w2"), ..both() }, None),
        (RunSearch { executors: named("*2"), ..both() }, None),
        (
            RunSearch { executors: ValueCondition { none: vec![Pattern("w0".to_owned())], ..named("w*") }, ..both() },
            None,
        ),
        (RunSearch { late: LengthRange { over: Some(over(100)), under: None }, ..both() }, Some(7)),
        (RunSearch { late: LengthRange { over: None, under: Some(over(100)) }, ..both() }, None),
        (RunSearch { duration: LengthRange { over: Some(over(0)), under: None }, ..both() }, None),
        (RunSearch { texts: vec![text("refused")], ..any() }, Some(7)),
        (RunSearch { texts: vec![text("100%_äö")], ..any() }, Some(7)),
        (RunSearch { texts: vec![text("on%ref")], ..any() }, Some(0)),
        (RunSearch { texts: vec![text("refused"), text("on 6 ")], ..any() }, Some(1)),
        (RunSearch { texts: vec![RunText { jobs: vec![second.id], ..text("refused") }], ..any() }, None),
        (RunSearch { texts: vec![RunText { is_not: true, ..text("refused") }], ..both() }, Some(33)),
        (RunSearch { texts: vec![text("vault")], ..any() }, Some(1)),
        (RunSearch { texts: vec![text("vault")], visible_jobs: hidden(), ..any() }, Some(0)),
        (RunSearch { texts: vec![text("a child")], visible_jobs: hidden(), ..any() }, Some(1)),
        (
            RunSearch { texts: vec![RunText { is_not: true, ..text("vault") }], visible_jobs: hidden(), ..both() },
            Some(40),
        ),
    ];
    for (search, count) in searches {
        for order in [RunOrder::Newest, RunOrder::Longest, RunOrder::Latest] {
            let search = RunSearch { order, ..search.clone() };
            let mut expected: Vec<&Run> = all.iter().filter(|run| search.admits(run)).collect();
            expected.sort_by_key(|run| std::cmp::Reverse(search.place(run)));
            let expected: Vec<RunId> = expected.into_iter().map(|run| run.id).collect();
            assert!(count.is_none_or(|count| count == expected.len()), "{search:?}: {}", expected.len());
            assert_eq!(found(store, namespace, &search).await, expected, "{search:?}");
        }
    }
    assert_eq!(found(store, NamespaceId::new(99), &any()).await, []);
}

/// A search reads only the newest rows, reports where it stopped, and continues from there.
pub async fn a_search_looks_at_a_bounded_number_of_rows(store: &dyn Store) {
    let (first, _, rows) = runs(store).await;
    let now = store.now().await.unwrap();
    let jobs = Some(vec![first.id, rows[20].job]);
    let mut search = RunSearch {
        jobs,
        texts: vec![RunText { text: "on 6 ".to_owned(), ..RunText::default() }],
        row_limit: 10,
        ..RunSearch::new(now, 5)
    };
    let (mut count, mut rounds) = (0, 0);
    loop {
        let page = store.search_runs(first.namespace, &search).await.unwrap();
        count += page.runs.len();
        rounds += 1;
        assert!(rounds < 1000, "the search does not end");
        let Some(id) = page.stopped_at else { break };
        assert!(page.runs.iter().all(|run| run.id >= id));
        search.from = Some(RunPlace { value: 0, id });
    }
    assert_eq!(count, 1);

    // A search in one job reads the runs in the order of their planned instants.
    let mut in_one_job = RunSearch { jobs: Some(vec![first.id]), row_limit: 7, from: None, ..search.clone() };
    let (mut count, mut rounds) = (0, 0);
    loop {
        let page = store.search_runs(first.namespace, &in_one_job).await.unwrap();
        count += page.runs.len();
        rounds += 1;
        assert!(rounds < 1000, "the search does not end");
        let Some(id) = page.stopped_at else { break };
        let stopped_at = rows.iter().find(|run| run.id == id).unwrap();
        assert!(page.runs.iter().all(|run| run.fire_at >= stopped_at.fire_at));
        in_one_job.from = Some(RunSearch::place_below(stopped_at));
    }
    assert_eq!(count, 1);

    // A search backwards, starting before the oldest of these runs.
    let oldest = rows.iter().map(|run| run.id.get()).min().unwrap();
    let mut search = RunSearch {
        texts: vec![RunText { text: "on 36 ".to_owned(), ..RunText::default() }],
        from: Some(RunPlace { value: 0, id: RunId::new(oldest - 1) }),
        is_backward: true,
        ..search
    };
    let (mut count, mut rounds) = (0, 0);
    loop {
        let page = store.search_runs(first.namespace, &search).await.unwrap();
        count += page.runs.len();
        rounds += 1;
        assert!(rounds < 1000, "the search does not end");
        let Some(id) = page.stopped_at else { break };
        assert!(page.runs.iter().all(|run| run.id <= id));
        search.from = Some(RunPlace { value: 0, id });
    }
    assert_eq!(count, 1);

    // Old runs of a job that are open or did not succeed are found although newer runs of it succeeded.
    let busy = job(store, Some(now.ceil_second())).await;
    let token = join(store).await;
    let rows: Vec<Run> =
        (0..15).map(|offset| run(&busy, token, now.ceil_second() + Duration::from_secs(offset))).collect();
    claim(store, token, &busy, rows.clone()).await;
    let mut ends = vec![finish(&rows[1], FAILED)];
    ends.extend(rows[2..].iter().map(|row| finish(row, Outcome::Succeeded)));
    finish_all(store, &ends).await;
    for (status, row) in [(RunStatus::Pending, &rows[0]), (RunStatus::Failed, &rows[1])] {
        let (statuses, jobs) = (vec![status], Some(vec![busy.id]));
        let search = RunSearch { statuses, jobs, row_limit: 10, ..RunSearch::new(now, 5) };
        assert_eq!(search.job_by_fires(), None);
        let found = store.search_runs(busy.namespace, &search).await.unwrap();
        assert_eq!(found.runs.iter().map(|run| run.id).collect::<Vec<_>>(), [row.id], "{status:?}");
    }

    // The runs of a job with few runs are found although another job has many newer runs.
    let (few, many) = (job(store, Some(now.ceil_second())).await, job(store, Some(now.ceil_second())).await);
    let rows: Vec<Run> =
        (0..2).map(|offset| run(&few, token, now.ceil_second() + Duration::from_secs(offset))).collect();
    claim(store, token, &few, rows.clone()).await;
    let newer: Vec<Run> =
        (0..30).map(|offset| run(&many, token, now.ceil_second() + Duration::from_secs(offset))).collect();
    claim(store, token, &many, newer.clone()).await;
    let failed = [&rows[1]].into_iter().chain(&newer[15..]);
    finish_all(store, &failed.map(|row| finish(row, FAILED)).collect::<Vec<_>>()).await;
    for (status, row) in [(RunStatus::Pending, &rows[0]), (RunStatus::Failed, &rows[1])] {
        let (statuses, jobs) = (vec![status], Some(vec![few.id]));
        let search = RunSearch { statuses, jobs, row_limit: 10, ..RunSearch::new(now, 5) };
        let found = store.search_runs(few.namespace, &search).await.unwrap();
        assert_eq!(found.runs.iter().map(|run| run.id).collect::<Vec<_>>(), [row.id], "{status:?}");
        assert_eq!(found.stopped_at, None);
    }
}
