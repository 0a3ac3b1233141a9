//! The trait `Upkeep` in SQL: removes old runs.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use rondel_core::graph::DEPTH_MAX;
use rondel_core::run::ROOT_SHARD;
use rondel_core::{IdGen, RunId, RunStatus, Timestamp, Trigger};
use sqlx::any::AnyRow;

use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement, read_ids};
use crate::sql::{SqlStore, rows, transact};
use crate::upkeep::{PurgeStep, pass_gap};
use crate::{Result, Upkeep};

/// Maximum number of shards that one call reads. The call may remove fewer.
const SHARD_PAGE_LEN: u32 = 2_000;

const READ_PASS: Statement =
    Statement { name: "read_pass", text: "SELECT last_at_ms, {now} FROM housekeeping_pass WHERE task = ?" };
const INSERT_PASS: Statement = Statement {
    name: "insert_pass",
    text: "INSERT {ignore} INTO housekeeping_pass (task, last_at_ms) VALUES (?, {now}) {or_ignore}",
};
const TAKE_PASS: Statement = Statement {
    name: "take_pass",
    text: "UPDATE housekeeping_pass SET last_at_ms = {now} WHERE task = ? AND last_at_ms = ?",
};
/// Ids rise with time, so the primary key finds old runs. An index by the instant of the verdict would slow down the storing of results.
const READ_OLD_RUNS: Statement = Statement {
    name: "read_old_runs",
    text: "SELECT id, job_id, fire_at_ms, cause, shard_index, parent_id, trigger_kind FROM run WHERE id > ? AND id < ? \
           AND status NOT IN ('pending', 'waiting', 'running') AND fire_at_ms < ? \
           AND COALESCE(finished_at_ms, fire_at_ms) < ? ORDER BY id LIMIT ?",
};
const READ_PARENTS: Statement = Statement {
    name: "read_parents",
    text: "SELECT id, job_id, fire_at_ms, cause, shard_index, parent_id, trigger_kind FROM run WHERE id {in_list}",
};
const READ_OPEN_ROOTS: Statement = Statement {
    name: "read_open_roots",
    text: "SELECT id FROM run WHERE id {in_list} AND {check}status IN ('pending', 'waiting', 'running'){end}",
};
/// The runs that follow from some runs. A broadcast is represented by the row for all its shards. A shard that is also found does no harm.
pub(super) const READ_FOLLOWERS: Statement = Statement {
    name: "read_followers",
    text: "SELECT id, cause, status FROM run WHERE parent_id IS NOT NULL AND parent_id {in_list} \
           AND {check}trigger_kind = 'parent' AND shard_index <= 0{end}",
};
const READ_SHARDS: Statement = Statement {
    name: "read_shards_of_old",
    text: "SELECT whole.id, shard.id, shard.status FROM run whole JOIN run shard ON shard.job_id = whole.job_id \
           AND shard.fire_at_ms = whole.fire_at_ms AND shard.cause = whole.cause AND shard.shard_index >= 0 \
           WHERE whole.id {in_list} ORDER BY whole.id, shard.id LIMIT ?",
};
/// The newest ended root run of each of these jobs that is a pump job, among the root runs planned before an instant. Walks backwards
/// through the index of fires, and stops at the first one.
pub(super) const READ_NEWEST_PUMP_ROOTS: Statement = Statement {
    name: "read_newest_pump_roots",
    text: "SELECT pump_job.job_id, (SELECT run.fire_at_ms FROM run WHERE run.job_id = pump_job.job_id AND run.fire_at_ms < ? \
           AND run.shard_index = -1 AND run.status NOT IN ('pending', 'waiting', 'running') \
           ORDER BY run.fire_at_ms DESC LIMIT 1) AS fire_at_ms FROM pump_job WHERE pump_job.job_id {in_list}",
};
const LOCK_OLD_RUNS: Statement = Statement {
    name: "lock_old_runs",
    text: "SELECT id FROM run WHERE id {in_list} AND {check}status NOT IN ('pending', 'waiting', 'running'){end} ORDER BY id \
           {skip_locked}",
};
const DELETE_LOGS: Statement = Statement { name: "delete_logs", text: "DELETE FROM run_log WHERE run_id {in_list}" };
const DELETE_ATTEMPTS: Statement =
    Statement { name: "delete_attempts", text: "DELETE FROM run_attempt WHERE run_id {in_list}" };
const DELETE_TRIGGER_KEYS: Statement =
    Statement { name: "delete_trigger_keys", text: "DELETE FROM trigger_key WHERE run_id {in_list}" };
const DELETE_RUNS: Statement = Statement { name: "delete_runs", text: "DELETE FROM run WHERE id {in_list}" };

#[async_trait]
impl Upkeep for SqlStore {
    async fn begin_pass(&self, task: &str, period: Duration) -> Result<bool> {
        let Some(row) = self.row(Query::new(&READ_PASS).text(task)).await? else {
            return Ok(self.execute(Query::new(&INSERT_PASS).text(task)).await? == 1);
        };
        let mut columns = Reader::new(&row, "housekeeping_pass");
        let (last_at, now) = (columns.at("last_at_ms")?, columns.at("now")?);
        // If the clock has stepped back far, the last pass is in the future. It must not prevent all further passes.
        let distance = if last_at > now { last_at.since(now) } else { now.since(last_at) };
        if distance < pass_gap(period) {
            return Ok(false);
        }
        Ok(self.execute(Query::new(&TAKE_PASS).text(task).at(last_at)).await? == 1)
    }

    async fn purge(&self, finished_before: Timestamp, after: RunId, limit: u32) -> Result<PurgeStep> {
        let limit = limit.clamp(1, u32::try_from(CHUNK_MAX).unwrap_or(u32::MAX));
        let query = Query::new(&READ_OLD_RUNS)
            .int(after.get())
            .int(IdGen::first_at(finished_before))
            .at(finished_before)
            .at(finished_before)
            .int(limit.into());
        let old_runs = self.rows(query).await?.iter().map(old_run).collect::<Result<Vec<_>>>()?;
        let (Some(first_run), Some(last_run)) = (old_runs.first(), old_runs.last()) else {
            return Ok(PurgeStep { removed_count: 0, next_after: None });
        };
        let removal = self.plan_removal(&old_runs, (finished_before, limit)).await?;
        let removed_count = self.remove_runs(&removal.ids).await?;
        let next_after = if removal.is_partial && removed_count > 0 {
            // Some of these runs are left. The next call examines them again.
            first_run.id - 1
        } else {
            removal.unread_after.unwrap_or(last_run.id)
        };
        Ok(PurgeStep { removed_count, next_after: Some(RunId::new(next_after)) })
    }
}

/// A run whose verdict is old enough for its removal.
struct OldRun {
    id: i64,
    /// The job, the planned instant in milliseconds, and the cause.
    key: (i64, i64, i64),
    shard_index: i32,
    parent: Option<i64>,
    trigger: Trigger,
}

impl OldRun {
    const fn is_broadcast(&self) -> bool {
        self.shard_index == ROOT_SHARD
    }

    fn is_follower(&self) -> bool {
        self.trigger == Trigger::Parent
    }

    /// The first run of its fire.
    fn root(&self) -> i64 {
        if self.is_follower() { self.key.2 } else { self.id }
    }
}

impl SqlStore {
    /// The rows to remove now, in order: a broadcast comes after all of its shards. A shard is removed only once its broadcast can be
    /// removed, and a run stays while its fire has an open run. The newest root run of a pump job stays with its shards.
    async fn plan_removal(&self, old_runs: &[OldRun], (finished_before, limit): (Timestamp, u32)) -> Result<Removal> {
        let parents: Vec<i64> =
            old_runs.iter().filter(|run| !run.is_broadcast()).filter_map(|run| run.parent).collect();
        let mut broadcasts = HashMap::new();
        if !parents.is_empty() {
            for row in self.rows(Query::new(&READ_PARENTS).list(parents.into_iter())).await? {
                let parent = old_run(&row)?;
                broadcasts.insert(parent.id, (parent.is_broadcast(), parent.key));
            }
        }
        // A retry by hand also names its parent, but has another key.
        let is_shard = |run: &OldRun| {
            !run.is_broadcast() && run.parent.and_then(|parent| broadcasts.get(&parent)) == Some(&(true, run.key))
        };
        let runs_without_shards: Vec<&OldRun> = old_runs.iter().filter(|run| !is_shard(run)).collect();
        let open_fires = self.open_fires(&runs_without_shards).await?;
        let kept_roots = self.kept_pump_roots(old_runs, finished_before).await?;
        let is_removable_broadcast = |run: &&OldRun| run.is_broadcast() && !kept_roots.contains(&run.id);
        let shards = self.shards_of(old_runs.iter().filter(is_removable_broadcast).map(|run| run.id).collect()).await?;
        let mut removable_ids = Vec::with_capacity(old_runs.len());
        for run in runs_without_shards.into_iter().filter(|run| !open_fires.contains(&run.root())) {
            if kept_roots.contains(&run.id)
                || shards.open_broadcasts.contains(&run.id)
                || shards.unread_after.is_some_and(|from| run.is_broadcast() && run.id > from)
            {
                continue;
            }
            removable_ids.extend(shards.ids.get(&run.id).into_iter().flatten());
            if shards.unread_after != Some(run.id) {
                removable_ids.push(run.id);
            }
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let is_partial = removable_ids.len() > limit || shards.unread_after.is_some();
        removable_ids.truncate(limit);
        Ok(Removal { ids: removable_ids, is_partial, unread_after: shards.unread_after })
    }

    /// The root runs among these runs that are the newest one of their pump job. Such a run shows that its pump has ended, for instance
    /// because a user cancelled it: without the run, a pump whose window has no end would begin again.
    async fn kept_pump_roots(&self, runs: &[OldRun], finished_before: Timestamp) -> Result<HashSet<i64>> {
        let jobs: BTreeSet<i64> = runs.iter().filter(|run| run.is_broadcast()).map(|run| run.key.0).collect();
        if jobs.is_empty() {
            return Ok(HashSet::new());
        }
        let query = Query::new(&READ_NEWEST_PUMP_ROOTS).at(finished_before).list(jobs.into_iter());
        let mut newest_instants: HashMap<i64, i64> = HashMap::new();
        for row in self.rows(query).await? {
            let mut columns = Reader::new(&row, "run");
            let (job, newest_instant) = (columns.int("job_id")?, columns.opt_int("fire_at_ms")?);
            newest_instants.extend(newest_instant.map(|at| (job, at)));
        }
        let is_newest = |run: &&OldRun| newest_instants.get(&run.key.0).is_some_and(|newest| run.key.1 >= *newest);
        Ok(runs.iter().filter(|run| run.is_broadcast()).filter(is_newest).map(|run| run.id).collect())
    }

    /// The fires of these runs that have an open run, identified by their first runs. When that open run ends, its followers are planned
    /// from all runs of the fire. Without the first run nothing would follow, and a job whose run was removed would run again.
    async fn open_fires(&self, runs: &[&OldRun]) -> Result<BTreeSet<i64>> {
        let mut open_roots = BTreeSet::new();
        let follower_roots: BTreeSet<i64> = runs.iter().filter(|run| run.is_follower()).map(|run| run.root()).collect();
        let follower_roots: Vec<i64> = follower_roots.into_iter().collect();
        for chunk in follower_roots.chunks(CHUNK_MAX) {
            let rows = self.rows(Query::new(&READ_OPEN_ROOTS).list(chunk.iter().copied())).await?;
            open_roots.extend(read_ids(&rows, "run", "id")?);
        }
        let roots: BTreeSet<i64> = runs.iter().map(|run| run.root()).collect();
        let mut level_ids: Vec<i64> = roots.into_iter().collect();
        for _ in 0..DEPTH_MAX {
            let mut next_level = Vec::new();
            for chunk in level_ids.chunks(CHUNK_MAX) {
                for row in self.rows(Query::new(&READ_FOLLOWERS).list(chunk.iter().copied())).await? {
                    let mut columns = Reader::new(&row, "run");
                    let (id, root) = (columns.int("id")?, columns.int("cause")?);
                    if columns.word::<RunStatus>("status")?.is_terminal() {
                        next_level.push(id);
                    } else {
                        open_roots.insert(root);
                    }
                }
            }
            if next_level.is_empty() {
                break;
            }
            level_ids = next_level;
        }
        Ok(open_roots)
    }

    async fn shards_of(&self, broadcasts: Vec<i64>) -> Result<Shards> {
        let mut shards = Shards::default();
        if broadcasts.is_empty() {
            return Ok(shards);
        }
        let rows = self.rows(Query::new(&READ_SHARDS).list(broadcasts.into_iter()).int(SHARD_PAGE_LEN.into())).await?;
        let is_full = u32::try_from(rows.len()).unwrap_or(u32::MAX) >= SHARD_PAGE_LEN;
        for row in &rows {
            let mut columns = Reader::new(row, "run");
            let (broadcast, id) = (columns.int("id")?, columns.int("id")?);
            let status: RunStatus = columns.word("status")?;
            if !status.is_terminal() {
                shards.open_broadcasts.insert(broadcast);
            }
            shards.ids.entry(broadcast).or_default().push(id);
            shards.unread_after = is_full.then_some(broadcast);
        }
        Ok(shards)
    }

    async fn remove_runs(&self, ids: &[i64]) -> Result<u64> {
        if ids.is_empty() {
            return Ok(0);
        }
        transact!(self, "purge", |tx| {
            let locked_ids =
                read_ids(&tx.rows(Query::new(&LOCK_OLD_RUNS).list(ids.iter().copied())).await?, "run", "id")?;
            if locked_ids.is_empty() {
                return Ok(0);
            }
            for statement in [&DELETE_LOGS, &DELETE_ATTEMPTS, &DELETE_TRIGGER_KEYS, &rows::DELETE_CANCELS] {
                tx.execute(Query::new(statement).list(locked_ids.iter().copied())).await?;
            }
            rondel_failpoint::pass("purge.deleted");
            let count = locked_ids.len();
            tx.delete_dead_letters(&locked_ids.iter().map(|id| RunId::new(*id)).collect::<Vec<_>>()).await?;
            tx.remove_unsuccessful_rows(&locked_ids).await?;
            tx.execute_all(Query::new(&DELETE_RUNS).list(locked_ids.into_iter()), count).await?;
            Ok(u64::try_from(count).unwrap_or(u64::MAX))
        })
    }
}

/// The part of a page of old runs that is removed now.
struct Removal {
    ids: Vec<i64>,
    /// Whether further runs of the page can be removed after these.
    is_partial: bool,
    /// See [`Shards::unread_after`].
    unread_after: Option<i64>,
}

/// The shards of some broadcasts that one page contains.
#[derive(Default)]
struct Shards {
    /// The shards of each broadcast.
    ids: HashMap<i64, Vec<i64>>,
    /// Broadcasts with a shard that has no verdict.
    open_broadcasts: HashSet<i64>,
    /// The broadcast within which the page ended; `None` if the page has all shards. Nothing is known about the broadcasts after it.
    unread_after: Option<i64>,
}

fn old_run(row: &AnyRow) -> Result<OldRun> {
    let mut columns = Reader::new(row, "run");
    Ok(OldRun {
        id: columns.int("id")?,
        key: (columns.int("job_id")?, columns.int("fire_at_ms")?, columns.int("cause")?),
        shard_index: columns.int32("shard_index")?,
        parent: columns.opt_int("parent_id")?,
        trigger: columns.word("trigger_kind")?,
    })
}
