//! Conversion of rows of `run` to values of the domain and back, and the statements that several files use.

use std::sync::Arc;

use rondel_core::reason::ReasonDetail;
use rondel_core::{AppId, ExecutorId, JobId, NamespaceId, NodeId, Run, RunId};
use sqlx::any::AnyRow;

use super::query::{Query, Reader, Statement};
use crate::Result;

/// The columns of `run` in the order in which [`run`] reads them, as text for `concat!`.
macro_rules! run_columns {
    () => {
        "run.id, run.namespace_id, run.job_id, run.job_version, run.app_id, run.fire_at_ms, run.cause, \
         run.shard_index, run.shard_total, run.trigger_kind, run.status, run.reason, run.attempt, run.due_at_ms, \
         run.node_id, run.node_epoch, run.params, run.executor, run.executor_id, run.marked_at_ms, \
         run.started_at_ms, run.finished_at_ms, run.message, run.result, run.lost_attempt_count, run.open_shards, \
         run.open_children, run.parent_id, run.trace, run.cancel_by, run.span_end_at_ms, run.span_count, run.detail, \
         run.cancel_reason, run.only_executor, run.trigger_key"
    };
}
pub(super) use run_columns;

/// An assignment for runs that move to another server before they are sent. A first attempt that is due and has no recorded wait gets the
/// wait in the argument, as [`crate::settle::note_unsent`] decides.
macro_rules! noted_detail {
    () => {
        "detail = CASE WHEN detail IS NULL AND attempt = 1 AND due_at_ms <= {now} THEN ? ELSE detail END"
    };
}
pub(super) use noted_detail;

pub(super) const READ_RUNS: Statement =
    Statement { name: "read_runs", text: concat!("SELECT ", run_columns!(), " FROM run WHERE id {in_list}") };
pub(super) const LOCK_RUN: Statement =
    Statement { name: "lock_run", text: concat!("SELECT ", run_columns!(), " FROM run WHERE id = ? {for_update}") };
/// Locks a job's row in `job_due`, as every change of the owner of its runs does.
pub(super) const LOCK_HOME: Statement =
    Statement { name: "lock_home", text: "SELECT job_id, home, term FROM job_due WHERE job_id = ? {for_update}" };
pub(super) const DELETE_CANCELS: Statement =
    Statement { name: "delete_cancels", text: "DELETE FROM run_cancel WHERE run_id {in_list}" };

/// Leaves out the columns that are empty until a run begins. Most new rows need no others.
pub(super) const INSERT_FRESH_RUNS: Statement = Statement {
    name: "insert_fresh_runs",
    text: "INSERT {ignore} INTO run (id, namespace_id, job_id, job_version, app_id, fire_at_ms, cause, shard_index, \
           shard_total, trigger_kind, status, attempt, due_at_ms, node_id, node_epoch, params, parent_id, span_count) \
           {values:iiiiiiiiittiiiitii} {or_ignore}",
};

pub(super) const INSERT_RUNS: Statement = Statement {
    name: "insert_runs",
    text: "INSERT {ignore} INTO run (id, namespace_id, job_id, job_version, app_id, fire_at_ms, cause, shard_index, \
           shard_total, trigger_kind, status, attempt, due_at_ms, node_id, node_epoch, params, parent_id, span_count, \
           reason, executor, executor_id, marked_at_ms, started_at_ms, finished_at_ms, message, result, lost_attempt_count, \
           open_shards, cancel_by, span_end_at_ms, open_children, trace, detail, cancel_reason, \
           only_executor, trigger_key) {values:iiiiiiiiittiiiitiittiiiittiitiittttt} {or_ignore}",
};

/// Whether [`INSERT_FRESH_RUNS`] writes everything of this run.
pub(super) fn is_fresh(run: &Run) -> bool {
    run.reason.is_none()
        && run.executor.is_none()
        && run.executor_id.is_none()
        && run.marked_at.is_none()
        && run.started_at.is_none()
        && run.finished_at.is_none()
        && run.message.is_none()
        && run.result.is_none()
        && run.lost_count == 0
        && run.open_shards.is_none()
        && run.cancel_by.is_none()
        && run.span_end_at.is_none()
        && run.open_children.is_none()
        && run.trace.is_none()
        && run.detail.is_none()
        && run.cancel_reason.is_none()
        && run.only_executor.is_none()
        && run.trigger_key.is_none()
}

pub(super) fn add_fresh_run(query: Query, run: &Run) -> Query {
    query
        .int(run.id.get())
        .int(run.namespace.get())
        .int(run.job.get())
        .int(run.job_version)
        .int(run.app.get())
        .at(run.fire_at)
        .int(run.cause)
        .int(run.shard_index.into())
        .opt_int(run.shard_total.map(i64::from))
        .text(run.trigger.as_str())
        .text(run.status.as_str())
        .int(run.attempt.into())
        .at(run.due_at)
        .int(run.node.get())
        .int(run.node_epoch)
        .opt_text(run.params.as_deref())
        .opt_int(run.parent.map(RunId::get))
        .int(run.span_count)
}

pub(super) fn add_run(query: Query, run: &Run) -> Query {
    add_fresh_run(query, run)
        .opt_text(run.reason.map(rondel_core::Reason::as_str))
        .opt_text(run.executor.as_deref())
        .opt_int(run.executor_id.map(ExecutorId::get))
        .opt_at(run.marked_at)
        .opt_at(run.started_at)
        .opt_at(run.finished_at)
        .opt_text(run.message.as_deref())
        .opt_text(run.result.as_deref())
        .int(run.lost_count.into())
        .opt_int(run.open_shards.map(i64::from))
        .opt_text(run.cancel_by.as_deref())
        .opt_at(run.span_end_at)
        .opt_int(run.open_children.map(i64::from))
        .opt_text(run.trace.as_deref())
        .opt_text(run.detail.as_deref().and_then(ReasonDetail::to_json).as_deref())
        .opt_text(run.cancel_reason.map(rondel_core::Reason::as_str))
        .opt_text(run.only_executor.as_deref())
        .opt_text(run.trigger_key.as_deref())
}

/// Reads the columns of [`run_columns`].
pub(super) fn run(row: &AnyRow) -> Result<Run> {
    let mut columns = Reader::new(row, "run");
    Ok(Run {
        id: RunId::new(columns.int("id")?),
        namespace: NamespaceId::new(columns.int("namespace_id")?),
        job: JobId::new(columns.int("job_id")?),
        job_version: columns.int("job_version")?,
        app: AppId::new(columns.int("app_id")?),
        fire_at: columns.at("fire_at_ms")?,
        cause: columns.int("cause")?,
        shard_index: columns.int32("shard_index")?,
        shard_total: columns.opt_int32("shard_total")?,
        trigger: columns.word("trigger_kind")?,
        status: columns.word("status")?,
        reason: columns.opt_word("reason")?,
        attempt: columns.int32("attempt")?,
        due_at: columns.at("due_at_ms")?,
        node: NodeId::new(columns.int("node_id")?),
        node_epoch: columns.int("node_epoch")?,
        params: columns.opt_text("params")?,
        executor: columns.opt_text("executor")?,
        executor_id: columns.opt_int("executor_id")?.map(ExecutorId::new),
        marked_at: columns.opt_at("marked_at_ms")?,
        started_at: columns.opt_at("started_at_ms")?,
        finished_at: columns.opt_at("finished_at_ms")?,
        message: columns.opt_text("message")?,
        result: columns.opt_text("result")?,
        lost_count: columns.int32("lost_attempt_count")?,
        open_shards: columns.opt_int32("open_shards")?,
        open_children: columns.opt_int32("open_children")?,
        parent: columns.opt_int("parent_id")?.map(RunId::new),
        trace: columns.opt_text("trace")?,
        cancel_by: columns.opt_text("cancel_by")?,
        span_end_at: columns.opt_at("span_end_at_ms")?,
        span_count: columns.int("span_count")?,
        detail: columns.opt_text("detail")?.map(|text| Arc::new(ReasonDetail::from_json(&text))),
        cancel_reason: columns.opt_word("cancel_reason")?,
        only_executor: columns.opt_text("only_executor")?,
        trigger_key: columns.opt_text("trigger_key")?,
    })
}

pub(super) fn runs(rows: &[AnyRow]) -> Result<Vec<Run>> {
    rows.iter().map(run).collect()
}
