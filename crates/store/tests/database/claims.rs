//! Claims whose rows a database refuses.

use std::collections::BTreeSet;

use rondel_core::{JobId, JobSpec, NamespaceId, NodeId, Run, RunId, Timestamp};
use rondel_store::catalog::{JobCreated, NewJob};
use rondel_store::ledger::{ClaimJob, DueJob, DueRange};
use rondel_store::{Catalog as _, Claim as _, CreateJobs as _, SqlStore};

use super::{TestDatabase, pending};
use crate::support::assert_open_rows;

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_rows_are_refused_leaves_the_job_due() {
    for database in TestDatabase::all().await {
        let store = SqlStore::open(&database.config).await.unwrap();
        let (token, runs) = pending(&store, 1).await;
        database.execute("UPDATE job_due SET next_fire_at_ms = 7").await;
        let range = DueRange { from: Timestamp::EPOCH, to: Timestamp::MAX, limit: 9 };
        let seen_row = store.due_jobs(&[token.node], range).await.unwrap()[0];
        // Another run has this id. The fire must not be lost because of that.
        let twin = Run { fire_at: Timestamp::from_millis(7), ..runs[0].clone() };
        let claims = [ClaimJob {
            recent_fires: seen_row.recent_fires,
            expected_row: seen_row,
            held_from: None,
            next_fire_at: None,
            runs: vec![twin],
            awaited_run: None,
        }];
        assert!(store.claim(token, &claims).await.unwrap().jobs.is_empty());
        assert_eq!(store.due_jobs(&[token.node], range).await.unwrap(), [seen_row]);
        assert_open_rows(&store).await;
        store.close().await;
        database.end().await;
    }
}

/// A fire that cannot be written does not hold back the other fires of its batch.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_rows_are_refused_lets_the_others_of_its_batch_pass() {
    for database in TestDatabase::all().await {
        let store = SqlStore::open(&database.config).await.unwrap();
        let (token, runs) = pending(&store, 1).await;
        let record = store.job(NamespaceId::new(1), "job").await.unwrap().unwrap();
        for number in 2..=3 {
            let spec = JobSpec { name: format!("job-{number}"), ..record.spec.clone() };
            let new = NewJob {
                id: JobId::new(number),
                namespace: record.namespace,
                app: record.app,
                spec,
                anchor: record.anchor,
                next_fire_at: Some(record.anchor),
                delay: None,
                calendar: None,
                declared: None,
                author: "t".to_owned(),
                now: record.anchor,
            };
            assert!(matches!(store.create_job(new).await.unwrap(), JobCreated::Saved(_)));
        }
        database.execute("UPDATE job_due SET next_fire_at_ms = 7").await;
        let range = DueRange { from: Timestamp::EPOCH, to: Timestamp::MAX, limit: 9 };
        let mut seen_rows = store.due_jobs(&[token.node, NodeId::new(0)], range).await.unwrap();
        seen_rows.sort_by_key(|due| due.job);
        let claim = |due: &DueJob| {
            // The run of the second job gets the id of an existing run.
            let id = if due.job == JobId::new(2) { runs[0].id } else { RunId::new(1_000 + due.job.get()) };
            let run = Run { id, job: due.job, fire_at: Timestamp::from_millis(7), ..runs[0].clone() };
            let (seen_row, recent_fires) = (*due, due.recent_fires);
            ClaimJob {
                recent_fires,
                expected_row: seen_row,
                held_from: None,
                next_fire_at: None,
                runs: vec![run],
                awaited_run: None,
            }
        };
        let claims: Vec<ClaimJob> = seen_rows.iter().map(claim).collect();
        // The call halves the batch until the refused job is alone.
        let won_jobs = store.claim(token, &claims).await.unwrap().jobs;
        let won: BTreeSet<JobId> = won_jobs.into_iter().map(|(job, _)| job).collect();
        assert_eq!(won, BTreeSet::from([JobId::new(1), JobId::new(3)]), "{}", database.url);
        let remaining = store.due_jobs(&[token.node, NodeId::new(0)], range).await.unwrap();
        assert_eq!(remaining.iter().map(|due| due.job).collect::<Vec<_>>(), [JobId::new(2)]);
        assert_open_rows(&store).await;
        store.close().await;
        database.end().await;
    }
}
