//! Cancel requests: for a run, for a fire, for all open runs of a job.

use rondel_core::outcome::CancelRequest;
use rondel_core::{AppId, Run, RunId, Timestamp};
use rondel_store::StoreError;
use rondel_store::catalog::JobRecord;
use rondel_store::ledger::CancelOutcome;

use crate::node::Node;

/// Maximum number of runs per transaction.
const BATCH_SIZE: u32 = 500;
/// Maximum number of batches per request; the caller repeats the request for the rest.
const BATCH_COUNT_MAX: u32 = 20;

/// Result of a cancel request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CancelledRuns {
    /// For how many runs a cancellation was requested; a broadcast counts once, whatever its number of shards.
    pub asked_count: u64,
    /// Whether open runs may be left whose cancellation was not requested yet. If true, the caller should repeat the request.
    pub has_more: bool,
}

/// Requests that a run be cancelled, and for a broadcast also all of its open shards. `actor` names the caller and the cause.
///
/// # Errors
/// The store's.
pub(crate) async fn cancel_run(node: &Node, run: RunId, actor: &str) -> Result<CancelOutcome, StoreError> {
    let outcome = node.store().ask_cancel(run, CancelRequest::requested(actor), node.now()).await?;
    if let CancelOutcome::Requested(run) = &outcome {
        let shards: Vec<RunId> = node.shared().open_shards(run).await?.iter().map(|shard| shard.id).collect();
        node.store().ask_cancels(&shards, CancelRequest::requested(actor), node.now()).await?;
        node.poke_cancels(run);
    }
    Ok(outcome)
}

/// Requests that all open runs of a job be cancelled, or only those of the fire at `fire_at`. Runs of future fires are not included. To prevent
/// these runs, pause the job. With `app`, only runs of that app are cancelled, since a job that moved to another app may still have open runs in
/// its former app. `actor` is used as in [`cancel_run`].
///
/// # Errors
///
/// The store's. The cancellation of some runs may already have been requested.
pub(crate) async fn cancel_runs(
    node: &Node,
    record: &JobRecord,
    fire_at: Option<Timestamp>,
    actor: &str,
    app: Option<AppId>,
) -> Result<CancelledRuns, StoreError> {
    let mut cancelled_runs = CancelledRuns::default();
    for _ in 0..BATCH_COUNT_MAX {
        let open_runs = node.store().open_runs(record.id, fire_at, app, BATCH_SIZE).await?;
        let ids: Vec<RunId> = open_runs.iter().map(|run| run.id).collect();
        node.store().ask_cancels(&ids, CancelRequest::requested(actor), node.now()).await?;
        let is_whole_run = |run: &&Run| run.is_root() || run.shard_total.is_some_and(|total| total <= 1);
        cancelled_runs.asked_count += u64::try_from(open_runs.iter().filter(is_whole_run).count()).unwrap_or(0);
        if let Some(run) = open_runs.first() {
            node.poke_cancels(run);
        }
        if ids.len() < usize::try_from(BATCH_SIZE).unwrap_or(usize::MAX) {
            return Ok(cancelled_runs);
        }
    }
    cancelled_runs.has_more = true;
    Ok(cancelled_runs)
}
