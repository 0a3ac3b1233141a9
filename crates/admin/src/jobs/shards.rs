//! Runs the failed shards of a fire again, as a new fire that consists of these shards only.

use rondel_core::run::{ROOT_SHARD, RunJob};
use rondel_core::{JobSpec, Reason, Route, Run, RunId, RunStatus};
use rondel_store::StoreError;
use rondel_store::catalog::JobRecord;
use rondel_store::ledger::{RequestedShards, RunQuery};

use super::RunRequest;
use super::requests::acknowledge_repeated_run;
use crate::node::Node;
use crate::store_once::store_once;

/// Number of shards that one statement reads.
const PAGE_LEN: u32 = 500;
/// Maximum number of shards of a fire that are read.
const SHARD_COUNT_MAX: usize = 10_000;

/// Why shards cannot run again.
#[derive(Debug, thiserror::Error)]
pub enum ShardsError {
    /// The run has no shards.
    #[error("the run has no shards; run it again as a whole")]
    NoShards,
    /// The job is no longer split into shards.
    #[error("the job is no longer split into shards; run it again as a whole")]
    JobNotSharded,
    /// The fire had another number of shards than the definition names now.
    #[error(
        "the job names {now} shards, and this fire had {then}: the index of a shard would mean another one; run it again as a whole"
    )]
    OtherShards {
        /// How many shards the definition names.
        now: usize,
        /// How many shards the fire had.
        then: i32,
    },
    /// The shard with this index has another name in the definition than in the fire.
    #[error("the job's shard {index} has another name than in this fire; run it again as a whole")]
    RenamedShard { index: i32 },
    /// The job is a pump job: its groups have no work that could be repeated separately.
    #[error("a pump job can be run again only as a whole: its items are dealt to its present groups")]
    IsPump,
    /// No shard failed.
    #[error("each of its shards succeeded")]
    NoneFailed,
    /// An open run of the job has the key of the run.
    #[error("run {} has the key and has not ended", .0.id)]
    KeyInUse(Box<Run>),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Whether a shard can be run again: it has ended without success, and its handler did not skip it.
#[must_use]
pub fn is_unsuccessful(shard: &Run) -> bool {
    let has_succeeded_or_skipped = shard.status == RunStatus::Succeeded || shard.reason == Some(Reason::Handler);
    shard.status.is_terminal() && !has_succeeded_or_skipped
}

/// The unsuccessful shards of a run, sorted by index.
async fn unsuccessful_shards(node: &Node, fire_run: &Run) -> Result<Vec<Run>, StoreError> {
    let mut query = RunQuery { parent: Some(fire_run.id), limit: PAGE_LEN, ..RunQuery::default() };
    let (mut shards, mut read_count) = (Vec::new(), 0);
    while read_count < SHARD_COUNT_MAX {
        let page = node.store().list_runs(fire_run.namespace, &query).await?;
        let is_last = page.len() < usize::try_from(PAGE_LEN).unwrap_or(usize::MAX);
        read_count += page.len();
        query.after = page.last().map(|run| run.id);
        // Repetitions of the whole run have the same parent, but another cause.
        shards.extend(page.into_iter().filter(|shard| shard.cause == fire_run.cause && is_unsuccessful(shard)));
        if is_last {
            break;
        }
    }
    shards.sort_by_key(|shard| shard.shard_index);
    Ok(shards)
}

/// Creates a fire of the shards that did not succeed, with the same indexes and total; shards of a broadcast go to the executors that had
/// them. The whole run and its shards are stored together, so that no other server can divide the fire into shards in between. The new fire
/// gets the key of the request, and never replaces an open run that has it.
///
/// # Errors
/// [`ShardsError`].
pub async fn request_failed_shards(
    node: &Node,
    (record, fire_run): (&JobRecord, &Run),
    request: RunRequest,
) -> Result<Run, ShardsError> {
    if !fire_run.is_root() || fire_run.shard_total.is_none() {
        return Err(ShardsError::NoShards);
    }
    if !record.spec.is_sharded() {
        return Err(ShardsError::JobNotSharded);
    }
    if record.spec.pump.is_some() {
        return Err(ShardsError::IsPump);
    }
    let failed_shards = unsuccessful_shards(node, fire_run).await?;
    if failed_shards.is_empty() {
        return Err(ShardsError::NoneFailed);
    }
    let shard_count = record.spec.shards.as_ref().map_or(0, |shards| shards.named().len());
    let is_of_other_definition = |shard: &&Run| {
        shard_count > 0 && shard.shard_total.and_then(|total| usize::try_from(total).ok()) != Some(shard_count)
    };
    if let Some(other_shard) = failed_shards.iter().find(is_of_other_definition) {
        return Err(ShardsError::OtherShards { now: shard_count, then: other_shard.shard_total.unwrap_or(0) });
    }
    if let Some(index) = renamed_shard(node, record, &failed_shards).await? {
        return Err(ShardsError::RenamedShard { index });
    }
    let (new_fire, shards) = rows_of_repetition(node, (record, &failed_shards), &request);
    if let Some(trace) = request.trace {
        node.store().note_trace(new_fire.id, trace).await?;
    }
    let store = || node.store().request_shards(node.token(), new_fire.clone(), shards.clone());
    let mut rows = match store_once(store).await? {
        RequestedShards::Created(rows) => rows,
        RequestedShards::KeyInUse(open_run) => return Err(ShardsError::KeyInUse(open_run)),
    };
    let new_fire = if rows.is_empty() { new_fire } else { rows.remove(0) };
    node.try_put_own(rows);
    acknowledge_repeated_run(node, &new_fire).await;
    Ok(new_fire)
}

/// The first index of these shards that now belongs to a shard with another name in the definition. The repetition of the shard would get the
/// parameters of that other shard.
async fn renamed_shard(node: &Node, record: &JobRecord, failed_shards: &[Run]) -> Result<Option<i32>, StoreError> {
    let Some(version) =
        failed_shards.first().map(|shard| shard.job_version).filter(|version| *version != record.version)
    else {
        return Ok(None);
    };
    let Some(run_definition) = node.store().definitions(&[(record.id, version)]).await?.pop() else { return Ok(None) };
    let name = |spec: &JobSpec, index| spec.shard(index).map(|shard| shard.name.clone());
    let is_renamed = |index: &i32| name(&run_definition.spec, *index) != name(&record.spec, *index);
    Ok(failed_shards.iter().map(|shard| shard.shard_index).find(is_renamed))
}

fn rows_of_repetition(
    node: &Node,
    (record, failed_shards): (&JobRecord, &[Run]),
    request: &RunRequest,
) -> (Run, Vec<Run>) {
    let (now, id, token) = (node.now(), node.new_id(), node.token());
    let run_job = RunJob { namespace: record.namespace, job: record.id, job_version: record.version, app: record.app };
    let new_fire = Run {
        cause: id,
        params: request.params.clone().map(super::RunParams::into_text),
        only_executor: request.executor.clone(),
        trigger_key: request.key.as_ref().map(|(name, _)| name.clone()),
        ..Run::new(RunId::new(id), run_job, now, request.trigger, (token.node, token.epoch))
    };
    let count = i32::try_from(failed_shards.len()).unwrap_or(i32::MAX);
    let fire_row = Run {
        shard_index: ROOT_SHARD,
        shard_total: Some(count),
        open_shards: Some(count),
        status: RunStatus::Running,
        started_at: Some(now),
        parent: request.parent,
        ..new_fire.clone()
    };
    let is_broadcast = record.spec.route == Route::Broadcast;
    let repeated_shard = |failed_shard: &Run| Run {
        id: RunId::new(node.new_id()),
        shard_index: failed_shard.shard_index,
        shard_total: failed_shard.shard_total,
        parent: Some(fire_row.id),
        executor: failed_shard.executor.clone().filter(|_| is_broadcast),
        ..new_fire.clone()
    };
    let shards = failed_shards.iter().map(repeated_shard).collect();
    (fire_row, shards)
}
