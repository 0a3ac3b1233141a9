//! Cancel requests: for a run, for a fire, for all open runs of a job.

use rondel_core::outcome::CancelRequest;
use rondel_core::{AppId, Run, RunId, Timestamp};
use rondel_store::StoreError;
use rondel_store::catalog::JobRecord;
use rondel_store::ledger::CancelAsked;

use crate::node::Node;

/// Runs per transaction.
const BATCH: u32 = 500;
/// Maximum number of batches per request; the caller repeats the request for the rest.
const BATCH_COUNT_MAX: u32 = 20;

/// How many runs were asked to cancel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CancelledRuns {
    /// Runs asked to cancel; a broadcast counts once, whatever its number of shards.
    pub asked: u64,
    /// More runs are open: repeat the request.
    pub has_more: bool,
}

/// Asks for a run to be cancelled; for a broadcast, all of its shards. `by` names the caller and the cause.
///
/// # Errors
/// The store's.
pub(crate) async fn cancel_run(node: &Node, run: RunId, by: &str) -> Result<CancelAsked, StoreError> {
    let asked = node.store().ask_cancel(run, CancelRequest::requested(by), node.now()).await?;
    if let CancelAsked::Requested(run) = &asked {
        let shards: Vec<RunId> = node.shared().open_shards(run).await?.iter().map(|shard| shard.id).collect();
        node.store().ask_cancels(&shards, CancelRequest::requested(by), node.now()).await?;
        node.poke_cancels(run);
    }
    Ok(asked)
}

/// Asks for all open runs of a job to be cancelled, or for those of one planned instant; `by` as for [`cancel_run`]. Runs of future fires
/// are not included: pause the job for that. With an app, only runs of that app: a job that moved to another app leaves runs behind.
///
/// # Errors
/// The store's; some runs may have been asked by then.
pub(crate) async fn cancel_runs(
    node: &Node,
    record: &JobRecord,
    fire_at: Option<Timestamp>,
    by: &str,
    app: Option<AppId>,
) -> Result<CancelledRuns, StoreError> {
    let mut cancelled = CancelledRuns::default();
    for _ in 0..BATCH_COUNT_MAX {
        let open = node.store().open_runs(record.id, fire_at, app, BATCH).await?;
        let ids: Vec<RunId> = open.iter().map(|run| run.id).collect();
        node.store().ask_cancels(&ids, CancelRequest::requested(by), node.now()).await?;
        let whole = |run: &&Run| run.is_root() || run.shard_total.is_some_and(|total| total <= 1);
        cancelled.asked += u64::try_from(open.iter().filter(whole).count()).unwrap_or(0);
        if let Some(run) = open.first() {
            node.poke_cancels(run);
        }
        if ids.len() < usize::try_from(BATCH).unwrap_or(usize::MAX) {
            return Ok(cancelled);
        }
    }
    cancelled.has_more = true;
    Ok(cancelled)
}
