//! Cancel requests: for a run, for a fire, for all open runs of a job.

use std::collections::BTreeSet;

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
    let (mut cancelled_runs, mut roots) = (CancelledRuns::default(), BTreeSet::new());
    for _ in 0..BATCH_COUNT_MAX {
        let open_runs = node.store().open_runs(record.id, fire_at, app, BATCH_SIZE).await?;
        let ids: Vec<RunId> = open_runs.iter().map(|run| run.id).collect();
        node.store().ask_cancels(&ids, CancelRequest::requested(actor), node.now()).await?;
        cancelled_runs.asked_count += count_whole_runs(&open_runs, &mut roots);
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

/// Counts the runs that are not shards. `roots` collects the rows that stand for all shards of their fires: a row has a lower id than its shards, and
/// may belong to an earlier batch.
fn count_whole_runs(open_runs: &[Run], roots: &mut BTreeSet<RunId>) -> u64 {
    roots.extend(open_runs.iter().filter(|run| run.is_root()).map(|run| run.id));
    // The only shard of a fire has the same number of shards as a run without shards.
    let is_only_shard = |run: &Run| run.parent.is_some_and(|parent| roots.contains(&parent));
    let is_whole = |run: &&Run| run.is_root() || !run.is_shard() && !is_only_shard(run);
    u64::try_from(open_runs.iter().filter(is_whole).count()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use rondel_core::run::RunJob;
    use rondel_core::{JobId, NamespaceId, NodeId, Trigger};

    use super::*;

    fn run(id: i64) -> Run {
        let (namespace, job, app) = (NamespaceId::new(1), JobId::new(2), AppId::new(3));
        let run_job = RunJob { namespace, job, job_version: 1, app };
        Run::new(RunId::new(id), run_job, Timestamp::from_secs(60), Trigger::Cron, (NodeId::new(1), 1))
    }

    fn shards(root: &Run, count: i32) -> Vec<Run> {
        let shard = |index: i32| Run {
            shard_index: index,
            shard_total: Some(count),
            parent: Some(root.id),
            ..run(root.id.get() + 1 + i64::from(index))
        };
        (0..count).map(shard).collect()
    }

    #[test]
    fn a_fire_counts_once_however_many_shards_it_has() {
        for shard_count in [1, 2, 3] {
            let root = run(10).for_all_shards();
            let repeated_run = Run { parent: Some(RunId::new(5)), ..run(90) };
            let second_batch = [shards(&root, shard_count), vec![repeated_run]].concat();
            let mut roots = BTreeSet::new();
            let counts = [vec![run(1), root], second_batch].map(|runs| count_whole_runs(&runs, &mut roots));
            assert_eq!(counts, [2, 1], "{shard_count} shards");
        }
    }
}
