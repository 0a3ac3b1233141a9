//! Broadcasts and fires that are split into shards. The row for all shards counts the open shards, and gets its verdict when the last of
//! them ends.

use std::collections::HashMap;

use rondel_core::{JobId, Reason, RunId, RunStatus, Timestamp, Trigger};

use crate::follow::EndedRun;
use crate::sql::Tx;
use crate::sql::query::{Query, Reader, Statement};
use crate::{Result, settle};

const LOCK_BROADCASTS: Statement = Statement {
    name: "lock_broadcasts",
    text: "SELECT id, job_id, fire_at_ms, cause, status, open_shards, finished_at_ms, reason, message, cancel_by, \
           open_children, cancel_reason FROM run WHERE id {in_list} AND {check}shard_index = -1 AND open_shards IS NOT NULL{end} ORDER BY id {for_update}",
};
pub(in crate::sql) const READ_SHARDS: Statement = Statement {
    name: "read_shards",
    text: "SELECT parent.id, shard.status, shard.reason, shard.finished_at_ms FROM run parent JOIN run shard \
           ON shard.job_id = parent.job_id AND shard.fire_at_ms = parent.fire_at_ms AND shard.cause = parent.cause \
           AND shard.shard_index >= 0 WHERE parent.id {in_list}",
};
const COUNT_SHARDS: Statement = Statement {
    name: "count_shards",
    text: "UPDATE {join:iititt}run SET open_shards = v.column2, status = v.column3, finished_at_ms = v.column4, \
           message = v.column5, reason = v.column6 {from:iititt} WHERE {of_rows:run.id} AND {check}run.shard_index = -1{end}",
};

/// The key that a broadcast shares with its shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FireKey {
    pub(super) job: i64,
    /// In milliseconds.
    pub(super) fire_at: i64,
    pub(super) cause: i64,
}

/// A change of a broadcast's shards: `closed_count` shards have ended. 0 means that a shard that had already ended has another verdict now.
pub(super) struct ShardChange {
    pub(super) key: FireKey,
    pub(super) closed_count: i32,
    pub(super) trigger: Trigger,
    pub(super) awaits_children: bool,
}

/// The verdict of a shard with its reason, and when it was made.
type ShardEnd = ((RunStatus, Option<Reason>), Option<Timestamp>);

/// The row of a broadcast whose shards have changed.
pub(super) struct Broadcast {
    pub(super) id: RunId,
    pub(super) key: FireKey,
    pub(super) status: RunStatus,
    /// Number of its shards without a verdict.
    open_shards: i32,
    pub(super) finished_at: Option<Timestamp>,
    pub(super) reason: Option<Reason>,
    message: Option<String>,
    cancel_by: Option<String>,
    /// Whether a row in `run_cancel` requests to cancel or to drop it.
    pub(super) has_request: bool,
    /// Whether its verdict was derived already, and only its open child runs keep it open.
    is_awaiting: bool,
    /// Whether a shard that had already ended has another verdict now.
    is_corrected: bool,
    trigger: Trigger,
    awaits_children: bool,
    pub(super) derived_verdict: Option<DerivedVerdict>,
}

/// Shows that the verdict of a broadcast was derived from the verdicts of its shards in this batch.
pub(super) struct DerivedVerdict {
    /// Whether there was no verdict before.
    pub(super) is_first: bool,
}

impl Broadcast {
    /// Whether its verdict must be derived now: its last shard has ended, or a shard got another verdict after it was derived.
    fn must_fold(&self) -> bool {
        self.open_shards == 0 && !self.is_awaiting && (!self.status.is_terminal() || self.is_corrected)
    }

    pub(in crate::sql) fn ended_run(&self) -> EndedRun {
        EndedRun {
            run: self.id,
            job: JobId::new(self.key.job),
            cause: self.key.cause,
            trigger: self.trigger,
            awaits_children: self.awaits_children && self.status == RunStatus::Succeeded,
        }
    }

    fn fold(&mut self, shards: &[ShardEnd]) {
        self.derived_verdict = Some(DerivedVerdict { is_first: !self.status.is_terminal() });
        self.finished_at = shards.iter().filter_map(|(_, finished_at)| *finished_at).max();
        let verdicts: Vec<_> = shards.iter().map(|(verdict, _)| *verdict).collect();
        let outcome = settle::fold_broadcast(&verdicts, self.cancel_by.as_deref());
        (self.status, self.reason, self.message) = (outcome.status, outcome.reason, outcome.message);
    }
}

impl Tx<'_> {
    /// Counts down the open shards of broadcasts, and decides the verdict of each broadcast whose last shard has ended.
    /// Returns the broadcasts.
    pub(super) async fn count_shards(&mut self, changes: &[(RunId, ShardChange)]) -> Result<Vec<Broadcast>> {
        let mut broadcasts = self.lock_broadcasts(changes).await?;
        let ended_ids: Vec<i64> = broadcasts.iter().filter(|row| row.must_fold()).map(|row| row.id.get()).collect();
        if !ended_ids.is_empty() {
            let mut shards = self.read_shards(&ended_ids).await?;
            for broadcast in broadcasts.iter_mut().filter(|row| row.must_fold()) {
                broadcast.fold(&shards.remove(&broadcast.id).unwrap_or_default());
            }
        }
        if !broadcasts.is_empty() {
            let query = Query::new(&COUNT_SHARDS).rows(&broadcasts, |query, row| {
                query
                    .int(row.id.get())
                    .int(row.open_shards.into())
                    .text(row.status.as_str())
                    .opt_at(row.finished_at)
                    .opt_text(row.message.as_deref())
                    .opt_text(row.reason.map(Reason::as_str))
            });
            self.execute_all(query, broadcasts.len()).await?;
            let folded_runs = |is_first: bool| -> Vec<(RunId, RunStatus)> {
                let has_verdict =
                    |row: &&Broadcast| row.derived_verdict.as_ref().is_some_and(|v| v.is_first == is_first);
                broadcasts.iter().filter(has_verdict).map(|row| (row.id, row.status)).collect()
            };
            self.sync_rows(&folded_runs(true)).await?;
            self.sync_corrected_rows(&folded_runs(false)).await?;
        }
        Ok(broadcasts)
    }

    /// Locks these broadcasts, and returns them with their open shards counted down.
    async fn lock_broadcasts(&mut self, changes: &[(RunId, ShardChange)]) -> Result<Vec<Broadcast>> {
        let changes_by_id: HashMap<RunId, &ShardChange> = changes.iter().map(|(id, change)| (*id, change)).collect();
        let mut broadcasts = Vec::with_capacity(changes.len());
        for row in self.rows(Query::new(&LOCK_BROADCASTS).list(changes.iter().map(|(id, _)| id.get()))).await? {
            let mut columns = Reader::new(&row, "run");
            let mut broadcast = Broadcast {
                id: RunId::new(columns.int("id")?),
                key: FireKey {
                    job: columns.int("job_id")?,
                    fire_at: columns.int("fire_at_ms")?,
                    cause: columns.int("cause")?,
                },
                status: columns.word("status")?,
                open_shards: columns.int32("open_shards")?,
                finished_at: columns.opt_at("finished_at_ms")?,
                reason: columns.opt_word("reason")?,
                message: columns.opt_text("message")?,
                cancel_by: columns.opt_text("cancel_by")?,
                has_request: false,
                is_awaiting: columns.opt_int("open_children")?.is_some(),
                is_corrected: false,
                trigger: Trigger::Parent,
                awaits_children: false,
                derived_verdict: None,
            };
            broadcast.has_request = broadcast.cancel_by.is_some() || columns.opt_text("cancel_reason")?.is_some();
            // A run that follows from a broadcast without being its shard, such as a retry by hand, has another key.
            if let Some(change) = changes_by_id.get(&broadcast.id).filter(|change| change.key == broadcast.key) {
                broadcast.open_shards = (broadcast.open_shards - change.closed_count).max(0);
                broadcast.is_corrected = change.closed_count == 0;
                (broadcast.trigger, broadcast.awaits_children) = (change.trigger, change.awaits_children);
                broadcasts.push(broadcast);
            }
        }
        Ok(broadcasts)
    }

    async fn read_shards(&mut self, ids: &[i64]) -> Result<HashMap<RunId, Vec<ShardEnd>>> {
        let mut shards: HashMap<RunId, Vec<_>> = HashMap::with_capacity(ids.len());
        for row in self.rows(Query::new(&READ_SHARDS).list(ids.iter().copied())).await? {
            let mut columns = Reader::new(&row, "run");
            let parent = RunId::new(columns.int("id")?);
            let verdict = (columns.word("status")?, columns.opt_word("reason")?);
            shards.entry(parent).or_default().push((verdict, columns.opt_at("finished_at_ms")?));
        }
        Ok(shards)
    }
}
