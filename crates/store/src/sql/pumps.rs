//! The trait `Pumps` in SQL.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use rondel_core::pump::{Counts, Item, ItemChange, Owner};
use rondel_core::{JobId, NodeId, Run, RunId, Timestamp};
use sqlx::any::AnyRow;

use super::query::{Query, Reader, Statement};
use super::rows::{self, run_columns};
use super::{SqlStore, Tx, transact};
use crate::cluster::LeaseToken;
use crate::pumps::{CHECKPOINT_LEN_MAX, ChangedItems, PumpJob, apply_change, has_come, split_by_item};
use crate::settle::clean_text;
use crate::{Pumps, Result};

macro_rules! item_columns {
    () => {
        "name, owner_run_id, owner_attempt, epoch, asked_at_ms, sequence, checkpoint, fetches_before, rows_before, \
         done_before, failed_before, fetches, rows_fetched, done, failed, per_minute, oldest_at_ms, is_dry, updated_at_ms"
    };
}

const READ_PUMP_JOBS: Statement = Statement {
    name: "read_pump_jobs",
    text: "SELECT pump_job.job_id, job.version, job.updated_at_ms, job.retired, job_due.home, job_due.term FROM pump_job \
           JOIN job ON job.id = pump_job.job_id LEFT JOIN job_due ON job_due.job_id = pump_job.job_id \
           ORDER BY pump_job.job_id",
};
/// Maximum number of open root rows of one job that are read.
const OPEN_ROOTS_MAX: u32 = 1_000;
pub(super) const READ_PUMP_ROOTS: Statement = Statement {
    name: "read_pump_roots",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM run WHERE job_id = ? AND shard_index = -1 AND (cause = 0 OR fire_at_ms <= ? OR shard_total IS NOT NULL) \
         ORDER BY fire_at_ms DESC, cause DESC LIMIT ?"
    ),
};
/// Reads open root rows separately, because an open one can be older than many that have ended.
pub(super) const READ_OPEN_PUMP_ROOTS: Statement = Statement {
    name: "read_open_pump_roots",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM open_run CROSS JOIN run WHERE run.id = open_run.id AND open_run.job_id = ? AND open_run.shard_index = -1 LIMIT ?"
    ),
};
const READ_ITEMS: Statement = Statement {
    name: "read_pump_items",
    text: concat!("SELECT ", item_columns!(), " FROM pump_item WHERE job_id = ? ORDER BY name"),
};
const LOCK_ITEMS: Statement = Statement {
    name: "lock_pump_items",
    text: concat!(
        "SELECT ",
        item_columns!(),
        " FROM pump_item WHERE job_id = ? AND name IN ({words}) ORDER BY name {for_update}"
    ),
};
const LOCK_HOME_UNDER_LEASE: Statement = Statement {
    name: "lock_home_under_lease",
    text: "SELECT job_due.job_id FROM job_due JOIN node ON node.id = job_due.home \
           WHERE job_due.job_id = ? AND node.id = ? AND node.epoch = ? AND node.lease_until_ms > {now} {for_update}",
};
const WRITE_ITEMS: Statement = Statement {
    name: "write_pump_items",
    text: "INSERT INTO pump_item (job_id, name, owner_run_id, owner_attempt, epoch, asked_at_ms, sequence, checkpoint, \
           fetches_before, rows_before, done_before, failed_before, fetches, rows_fetched, done, failed, per_minute, \
           oldest_at_ms, is_dry, updated_at_ms) {values:itiiiiitiiiiiiiiiiii} {or_update:job_id, name} \
           owner_run_id = {new:owner_run_id}, owner_attempt = {new:owner_attempt}, epoch = {new:epoch}, \
           asked_at_ms = {new:asked_at_ms}, sequence = {new:sequence}, checkpoint = {new:checkpoint}, \
           fetches_before = {new:fetches_before}, rows_before = {new:rows_before}, done_before = {new:done_before}, \
           failed_before = {new:failed_before}, fetches = {new:fetches}, rows_fetched = {new:rows_fetched}, done = {new:done}, \
           failed = {new:failed}, per_minute = {new:per_minute}, oldest_at_ms = {new:oldest_at_ms}, is_dry = {new:is_dry}, \
           updated_at_ms = {new:updated_at_ms}",
};
const DELETE_ITEM: Statement =
    Statement { name: "delete_pump_item", text: "DELETE FROM pump_item WHERE job_id = ? AND name = ?" };
const DELETE_ITEMS: Statement = Statement { name: "delete_pump_items", text: "DELETE FROM pump_item WHERE job_id = ?" };
const DELETE_PUMP_JOB: Statement = Statement { name: "delete_pump_job", text: "DELETE FROM pump_job WHERE job_id = ?" };
const INSERT_PUMP_JOBS: Statement =
    Statement { name: "insert_pump_jobs", text: "INSERT {ignore} INTO pump_job (job_id) {values:i} {or_ignore}" };
/// Maximum number of items in one transaction.
const ITEMS_MAX: usize = 100;

#[async_trait]
impl Pumps for SqlStore {
    async fn pump_jobs(&self) -> Result<Vec<PumpJob>> {
        let job = |row: &AnyRow| {
            let mut columns = Reader::new(row, "pump_job");
            Ok(PumpJob {
                job: JobId::new(columns.int("job_id")?),
                version: columns.int("version")?,
                saved_at: columns.at("updated_at_ms")?,
                is_deleted: columns.int("retired")? != 0,
                home: NodeId::new(columns.opt_int("home")?.unwrap_or(0)),
                term: columns.opt_int("term")?.unwrap_or(0),
            })
        };
        self.rows(Query::new(&READ_PUMP_JOBS)).await?.iter().map(job).collect()
    }

    async fn pump_roots(&self, job: JobId, now: Timestamp, limit: u32) -> Result<Vec<Run>> {
        let newest_roots_query = Query::new(&READ_PUMP_ROOTS).int(job.get()).at(now).int(limit.into());
        let mut roots = rows::runs(&self.rows(newest_roots_query).await?)?;
        if roots.len() >= usize::try_from(limit).unwrap_or(usize::MAX) {
            let query = Query::new(&READ_OPEN_PUMP_ROOTS).int(job.get()).int(OPEN_ROOTS_MAX.into());
            let open_roots = rows::runs(&self.rows(query).await?)?;
            let known_ids: BTreeSet<RunId> = roots.iter().map(|root| root.id).collect();
            roots.extend(open_roots.into_iter().filter(|root| !known_ids.contains(&root.id) && has_come(root, now)));
            roots.sort_by_key(|root| std::cmp::Reverse((root.fire_at, root.cause)));
        }
        Ok(roots)
    }

    async fn pump_items(&self, job: JobId) -> Result<Vec<Item>> {
        self.rows(Query::new(&READ_ITEMS).int(job.get())).await?.iter().map(item).collect()
    }

    async fn change_items(
        &self,
        token: LeaseToken,
        job: JobId,
        changes: &[(String, ItemChange)],
        now: Timestamp,
    ) -> Result<ChangedItems> {
        let mut result = ChangedItems::default();
        for part in split_by_item(changes, ITEMS_MAX) {
            let changed_items = transact!(self, "change_items", |tx| tx.change_items((token, job), &part, now).await)?;
            match changed_items {
                Some(applied_count) => result.applied_count += applied_count,
                None => return Ok(ChangedItems { is_refused: true, ..result }),
            }
        }
        Ok(result)
    }

    async fn forget_pump(&self, job: JobId, version: i64) -> Result<()> {
        transact!(self, "forget_pump", |tx| {
            // An edit locks this row, too. The version therefore stays the newest until this transaction has ended.
            let is_living = tx.row(Query::new(&rows::LOCK_HOME).int(job.get())).await?.is_some();
            if is_living && tx.job_by_id(job).await?.is_some_and(|record| record.version != version) {
                return Ok(());
            }
            tx.execute(Query::new(&DELETE_PUMP_JOB).int(job.get())).await?;
            Ok(())
        })
    }
}

impl Tx<'_> {
    /// Records that jobs are pump jobs.
    pub(in crate::sql) async fn insert_pump_jobs(&mut self, jobs: &[JobId]) -> Result<()> {
        for chunk in jobs.chunks(ITEMS_MAX) {
            self.execute(Query::new(&INSERT_PUMP_JOBS).rows(chunk, |query, job| query.int(job.get()))).await?;
        }
        Ok(())
    }

    pub(in crate::sql) async fn delete_items(&mut self, job: JobId) -> Result<()> {
        self.execute(Query::new(&DELETE_ITEMS).int(job.get())).await?;
        Ok(())
    }

    /// Changes items, and returns how many changes were made; `None` if the node is not the job's home or its lease is not valid.
    async fn change_items(
        &mut self,
        (token, job): (LeaseToken, JobId),
        changes: &[&(String, ItemChange)],
        now: Timestamp,
    ) -> Result<Option<u64>> {
        let home_query = Query::new(&LOCK_HOME_UNDER_LEASE).int(job.get()).int(token.node.get()).int(token.epoch);
        if self.row(home_query).await?.is_none() {
            return Ok(None);
        }
        let names: BTreeSet<&str> = changes.iter().map(|(name, _)| name.as_str()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let locked_rows = self.rows(Query::new(&LOCK_ITEMS).int(job.get()).words(&names)).await?;
        let old_items = locked_rows.iter().map(item).collect::<Result<Vec<Item>>>()?;
        let items_before: BTreeMap<String, Item> =
            old_items.into_iter().map(|item| (item.name.clone(), item)).collect();
        let mut items_after = items_before.clone();
        let applied_count =
            changes.iter().filter(|(name, change)| apply_change(&mut items_after, name, change, now)).count();
        for name in items_before.keys().filter(|name| !items_after.contains_key(*name)) {
            self.execute_all(Query::new(&DELETE_ITEM).int(job.get()).text(name), 1).await?;
        }
        let changed_items: Vec<&Item> =
            items_after.values().filter(|item| items_before.get(&item.name) != Some(item)).collect();
        let size = self.size;
        for (write, _) in size.queries(&WRITE_ITEMS, &changed_items, |query, item| add_item(query.int(job.get()), item))
        {
            self.execute(write).await?;
        }
        Ok(Some(u64::try_from(applied_count).unwrap_or(u64::MAX)))
    }
}

fn add_item(query: Query, item: &Item) -> Query {
    let add_counts =
        |query: Query, counts: Counts| query.int(counts.fetches).int(counts.rows).int(counts.done).int(counts.failed);
    let checkpoint = item.checkpoint.as_deref().map(|text| clean_text(text, CHECKPOINT_LEN_MAX));
    let query = query
        .text(&item.name)
        .opt_int(item.owner.map(|owner| owner.run.get()))
        .opt_int(item.owner.map(|owner| owner.attempt.into()))
        .int(item.epoch)
        .opt_at(item.asked_at)
        .int(item.sequence)
        .opt_text(checkpoint.as_deref());
    let query = add_counts(add_counts(query, item.before), item.counts);
    query.int(item.per_minute.into()).opt_at(item.oldest_at).int(item.is_dry.into()).at(item.updated_at)
}

fn item(row: &AnyRow) -> Result<Item> {
    let mut columns = Reader::new(row, "pump_item");
    let name = columns.text("name")?;
    let (run, attempt) = (columns.opt_int("owner_run_id")?, columns.opt_int32("owner_attempt")?);
    let owner = run.zip(attempt).map(|(run, attempt)| Owner { run: RunId::new(run), attempt });
    let (epoch, asked_at, sequence) = (columns.int("epoch")?, columns.opt_at("asked_at_ms")?, columns.int("sequence")?);
    let checkpoint = columns.opt_text("checkpoint")?;
    let counts_before = Counts {
        fetches: columns.int("fetches_before")?,
        rows: columns.int("rows_before")?,
        done: columns.int("done_before")?,
        failed: columns.int("failed_before")?,
    };
    let counts = Counts {
        fetches: columns.int("fetches")?,
        rows: columns.int("rows_fetched")?,
        done: columns.int("done")?,
        failed: columns.int("failed")?,
    };
    Ok(Item {
        name,
        owner,
        epoch,
        asked_at,
        sequence,
        checkpoint,
        before: counts_before,
        counts,
        per_minute: u32::try_from(columns.int("per_minute")?).unwrap_or(0),
        oldest_at: columns.opt_at("oldest_at_ms")?,
        is_dry: columns.int("is_dry")? == 1,
        updated_at: columns.at("updated_at_ms")?,
    })
}
