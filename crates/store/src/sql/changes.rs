//! The trait `Changes` in SQL.

use async_trait::async_trait;
use rondel_core::reason::{ReasonDetail, WaitFor};
use rondel_core::{AppId, ExecutorId, JobId, NamespaceId, RunId, RunStatus, Timestamp};
use sqlx::any::AnyRow;

use super::SqlStore;
use super::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::changes::{Changes, RunSnapshot, SavedJob};
use crate::{LeaseToken, Result};

/// The detail is needed only to recognize runs that await the roll call, as `Run::awaits_roll_call` does.
macro_rules! select_snapshot {
    ($rest:literal) => {
        concat!(
            "SELECT run.id, run.namespace_id, run.app_id, run.job_id, run.fire_at_ms, run.shard_index, run.status, run.reason, \
             run.attempt, run.due_at_ms, CASE WHEN run.executor_id IS NULL THEN NULL ELSE run.executor END AS executor, \
             CASE WHEN run.status = 'running' AND run.started_at_ms IS NULL THEN run.detail ELSE NULL END AS detail FROM ",
            $rest
        )
    };
}

pub(super) const READ_RUNS_AFTER: Statement =
    Statement { name: "read_runs_after", text: select_snapshot!("run WHERE run.id > ? ORDER BY run.id LIMIT ?") };
pub(super) const READ_CURRENT_RUNS: Statement =
    Statement { name: "read_runs_now", text: select_snapshot!("run WHERE run.id {in_list}") };
pub(super) const READ_RUNS_OF_LEASE: Statement = Statement {
    name: "read_runs_of_lease",
    text: select_snapshot!(
        "open_run CROSS JOIN run WHERE run.id = open_run.id AND open_run.node_id = ? AND open_run.node_epoch = ? \
         AND open_run.status = ? ORDER BY open_run.due_at_ms LIMIT ?"
    ),
};
pub(super) const READ_JOBS_SAVED: Statement = Statement {
    name: "read_jobs_saved",
    text: "SELECT id, namespace_id, app_id, name, version, retired, updated_at_ms FROM job WHERE updated_at_ms >= ? \
           ORDER BY updated_at_ms, id LIMIT ?",
};
const READ_EXECUTOR_NAMES: Statement =
    Statement { name: "read_executor_names", text: "SELECT id, namespace_id, name FROM executor WHERE id {in_list}" };

#[async_trait]
impl Changes for SqlStore {
    async fn snapshots_after(&self, after: RunId, limit: u32) -> Result<Vec<RunSnapshot>> {
        snapshots(&self.rows(Query::new(&READ_RUNS_AFTER).int(after.get()).int(limit.into())).await?)
    }

    async fn current_snapshots(&self, ids: &[RunId]) -> Result<Vec<RunSnapshot>> {
        let mut run_snapshots = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(CHUNK_MAX) {
            let query = Query::new(&READ_CURRENT_RUNS).list(chunk.iter().map(|id| id.get()));
            run_snapshots.append(&mut snapshots(&self.rows(query).await?)?);
        }
        Ok(run_snapshots)
    }

    async fn snapshots_of_lease(&self, owner: LeaseToken, limit: u32) -> Result<Vec<RunSnapshot>> {
        let mut run_snapshots = Vec::new();
        for status in [RunStatus::Pending, RunStatus::Waiting, RunStatus::Running] {
            let query = Query::new(&READ_RUNS_OF_LEASE).int(owner.node.get()).int(owner.epoch);
            let query = query.text(status.as_str()).int(limit.into());
            run_snapshots.append(&mut snapshots(&self.rows(query).await?)?);
        }
        Ok(run_snapshots)
    }

    async fn jobs_saved(&self, since: Timestamp, limit: u32) -> Result<Vec<SavedJob>> {
        let rows = self.rows(Query::new(&READ_JOBS_SAVED).at(since).int(limit.into())).await?;
        let saved_job = |row: &AnyRow| {
            let mut columns = Reader::new(row, "job");
            Ok(SavedJob {
                id: JobId::new(columns.int("id")?),
                namespace: NamespaceId::new(columns.int("namespace_id")?),
                app: AppId::new(columns.int("app_id")?),
                name: columns.text("name")?,
                version: columns.int("version")?,
                is_deleted: columns.int("retired")? != 0,
                at: columns.at("updated_at_ms")?,
            })
        };
        rows.iter().map(saved_job).collect()
    }

    async fn executor_names(&self, ids: &[ExecutorId]) -> Result<Vec<(ExecutorId, NamespaceId, String)>> {
        let mut names = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&READ_EXECUTOR_NAMES).list(chunk.iter().map(|id| id.get()))).await? {
                let mut columns = Reader::new(&row, "executor");
                let id = ExecutorId::new(columns.int("id")?);
                names.push((id, NamespaceId::new(columns.int("namespace_id")?), columns.text("name")?));
            }
        }
        Ok(names)
    }
}

fn snapshots(rows: &[AnyRow]) -> Result<Vec<RunSnapshot>> {
    let snapshot = |row: &AnyRow| {
        let mut columns = Reader::new(row, "run");
        let mut snapshot = RunSnapshot {
            id: RunId::new(columns.int("id")?),
            namespace: NamespaceId::new(columns.int("namespace_id")?),
            app: AppId::new(columns.int("app_id")?),
            job: JobId::new(columns.int("job_id")?),
            fire_at: columns.at("fire_at_ms")?,
            shard_index: columns.int32("shard_index")?,
            status: columns.word("status")?,
            reason: columns.opt_word("reason")?,
            attempt: columns.int32("attempt")?,
            due_at: columns.at("due_at_ms")?,
            executor: columns.opt_text("executor")?,
        };
        let detail = columns.opt_text("detail")?.map(|text| ReasonDetail::from_json(&text));
        // As `Run::shown_status` decides.
        if detail.is_some_and(|detail| detail.waits_for == Some(WaitFor::RollCall)) {
            snapshot.status = RunStatus::Pending;
        }
        Ok(snapshot)
    };
    rows.iter().map(snapshot).collect()
}
