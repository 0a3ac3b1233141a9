//! The rows of requests to end runs.

use rondel_core::outcome::{CancelRequest, Outcome};
use rondel_core::{IdGen, Reason, Run, RunId};
use rondel_store::ledger::{AttemptEnd, Finisher};
use rondel_store::{Cancel as _, Finish as _, SqlStore};

use super::packets::succeeded;
use super::{TestDatabase, pending};
use crate::support::assert_open_rows;

/// All rows of requests are read each second, so a row must not outlive its run.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_goes_with_its_run() {
    for database in TestDatabase::all().await {
        let store = SqlStore::open(&database.config).await.unwrap();
        let (token, runs) = pending(&store, 3).await;
        let ids: Vec<RunId> = runs.iter().map(|run| run.id).collect();
        let now = runs[0].due_at;
        store.ask_cancel(ids[0], CancelRequest::requested("ann"), now).await.unwrap();
        store.ask_drops(&ids[1..], CancelRequest { by: "ann", reason: Reason::Paused }, now).await.unwrap();
        assert_eq!(database.number("SELECT COUNT(*) FROM run_cancel").await, 3);

        let end = |run: &Run, outcome: Outcome| AttemptEnd {
            outcome,
            executor: None,
            result: None,
            ..succeeded(run, String::new())
        };
        let cancelled = end(&runs[0], Outcome::Cancelled);
        let (dropped, ran) = (end(&runs[1], Outcome::Skipped(Reason::Paused)), end(&runs[2], Outcome::Succeeded));
        let ids = IdGen::new(1023);
        store.finish(Finisher { token, ids: &ids }, &[cancelled, dropped, ran]).await.unwrap();
        assert_eq!(database.number("SELECT COUNT(*) FROM run_cancel").await, 0);
        assert_open_rows(&store).await;
        store.close().await;
        database.end().await;
    }
}
