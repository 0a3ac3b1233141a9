//! The trait `Cancel` in SQL.

use async_trait::async_trait;
use rondel_core::outcome::CancelRequest;
use rondel_core::{AppId, ExecutorId, JobId, Reason, Run, RunId, Timestamp};

use crate::catalog::QueuedDrops;
use crate::ledger::{CancelElsewhere, CancelOutcome};
use crate::settle::{clean_name, queued_to_drop};
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::sql::rows::{self, run_columns};
use crate::sql::{SqlStore, Tx, transact};
use crate::{Cancel, LeaseToken, Result};

const SET_CANCEL: Statement = Statement {
    name: "set_cancel",
    text: "UPDATE run SET cancel_by = ?, cancel_reason = ? WHERE id = ? AND status IN ('pending', 'waiting', 'running')",
};
const INSERT_CANCEL: Statement = Statement {
    name: "insert_cancel",
    text: "INSERT {ignore} INTO run_cancel (run_id, requested_by, asked_at_ms) VALUES (?, ?, ?) {or_ignore}",
};
/// `CROSS JOIN` makes SQLite begin with the requests, which are few, and not with the open runs.
pub(in crate::sql) const READ_CANCELS: Statement = Statement {
    name: "read_cancels",
    text: "SELECT run_cancel.run_id, run.cancel_by FROM run_cancel CROSS JOIN run \
           WHERE run.id = run_cancel.run_id AND run.node_id = ? AND run.node_epoch = ? AND run.status IN ('pending', 'waiting', 'running') \
           AND run.cancel_by IS NOT NULL ORDER BY run_cancel.run_id",
};
pub(in crate::sql) const READ_DROP_REQUESTS: Statement = Statement {
    name: "read_drops",
    text: "SELECT run_cancel.run_id, run.cancel_reason FROM run_cancel CROSS JOIN run \
           WHERE run.id = run_cancel.run_id AND run_cancel.run_id > ? AND run.node_id = ? AND run.node_epoch = ? \
           AND run.status IN ('pending', 'waiting', 'running') AND run.cancel_by IS NULL \
           AND run.cancel_reason IN ('paused', 'deleted') ORDER BY run_cancel.run_id LIMIT ?",
};
const SET_DROP_REQUESTS: Statement = Statement {
    name: "set_drops",
    text: "UPDATE run SET cancel_reason = ? WHERE id {in_list} AND {check}cancel_by IS NULL \
           AND status IN ('pending', 'waiting', 'running'){end}",
};
pub(in crate::sql) const READ_CANCELS_ELSEWHERE: Statement = Statement {
    name: "read_cancels_elsewhere",
    text: "SELECT run_cancel.run_id, run.attempt, run.executor_id, run.cancel_by \
           FROM run_cancel CROSS JOIN run \
           WHERE run.id = run_cancel.run_id AND run_cancel.run_id > ? AND (run.node_id <> ? OR run.node_epoch <> ?) \
           AND run.status IN ('pending', 'running') \
           AND run.executor_id IS NOT NULL AND run.cancel_by IS NOT NULL ORDER BY run_cancel.run_id LIMIT ?",
};
const LOCK_OPEN_RUNS: Statement = Statement {
    name: "lock_open",
    text: "SELECT id, cancel_by, cancel_reason FROM run WHERE id {in_list} AND {check}status IN ('pending', 'waiting', 'running'){end} \
           ORDER BY id {for_update}",
};
const SET_CANCELS: Statement = Statement {
    name: "set_cancels",
    text: "UPDATE run SET cancel_by = ?, cancel_reason = ? WHERE id {in_list} AND {check}status IN ('pending', 'waiting', 'running'){end}",
};
const INSERT_CANCELS: Statement = Statement {
    name: "insert_cancels",
    text: "INSERT {ignore} INTO run_cancel (run_id, requested_by, asked_at_ms) {values:iti} {or_ignore}",
};
/// The runs that a user's request to cancel applies to, as [`CancelRequest::replaces`] decides.
macro_rules! accepts_cancel_request {
    () => {
        "(run.cancel_by IS NULL OR run.cancel_reason IN ('window_over', 'dry', 'paused', 'changed'))"
    };
}
/// Runs of ended leases are read as well, because their adoption may take a while.
pub(in crate::sql) const READ_OPEN_RUNS: Statement = Statement {
    name: "read_open",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM open_run CROSS JOIN run WHERE run.id = open_run.id AND open_run.job_id = ? AND ",
        accepts_cancel_request!(),
        " AND (? = 0 OR open_run.app_id = ?) ORDER BY open_run.id LIMIT ?"
    ),
};
pub(in crate::sql) const READ_OPEN_RUNS_OF_FIRE: Statement = Statement {
    name: "read_open_of_fire",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM open_run CROSS JOIN run WHERE run.id = open_run.id AND open_run.job_id = ? \
         AND open_run.status IN ('pending', 'waiting', 'running') AND open_run.fire_at_ms = ? AND ",
        accepts_cancel_request!(),
        " AND (? = 0 OR open_run.app_id = ?) ORDER BY open_run.id LIMIT ?"
    ),
};

#[async_trait]
impl Cancel for SqlStore {
    async fn ask_cancel(&self, run: RunId, request: CancelRequest<'_>, now: Timestamp) -> Result<CancelOutcome> {
        let by = clean_name(request.by);
        let request = CancelRequest { by: &by, ..request };
        transact!(self, "ask_cancel", |tx| {
            let Some(row) = tx.row(Query::new(&rows::LOCK_RUN).int(run.get())).await? else {
                return Ok(CancelOutcome::NotFound);
            };
            let mut run_row = rows::run(&row)?;
            if run_row.status.is_terminal() {
                return Ok(CancelOutcome::AlreadyEnded(run_row.status));
            }
            tx.note_cancel(&mut run_row, request, now).await?;
            Ok(CancelOutcome::Requested(Box::new(run_row)))
        })
    }

    async fn ask_cancels(&self, runs: &[RunId], request: CancelRequest<'_>, now: Timestamp) -> Result<u64> {
        let (by, reason) = (clean_name(request.by), request.reason);
        let mut ids: Vec<i64> = runs.iter().map(|run| run.get()).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut asked_count = 0;
        for chunk in ids.chunks(CHUNK_MAX) {
            asked_count += transact!(self, "ask_cancels", |tx| {
                let (mut open_ids, mut new_ids) = (Vec::with_capacity(chunk.len()), Vec::with_capacity(chunk.len()));
                let open_rows = tx.rows(Query::new(&LOCK_OPEN_RUNS).list(chunk.iter().copied())).await?;
                for row in &open_rows {
                    let mut columns = Reader::new(row, "run");
                    let id = columns.int("id")?;
                    open_ids.push(id);
                    if request.replaces(cancel_request_reason(&mut columns)?) {
                        new_ids.push(id);
                    }
                }
                if !new_ids.is_empty() {
                    let query = Query::new(&SET_CANCELS).text(&by).text(reason.as_str()).list(new_ids.iter().copied());
                    tx.execute_all(query, new_ids.len()).await?;
                }
                if !open_ids.is_empty() {
                    // A run that succeeded despite an earlier request, and awaits its children, no longer has a row in `run_cancel`.
                    let query =
                        Query::new(&INSERT_CANCELS).rows(&open_ids, |query, id| query.int(*id).text(&by).at(now));
                    tx.execute(query).await?;
                }
                Ok(u64::try_from(open_rows.len()).unwrap_or(u64::MAX))
            })?;
        }
        Ok(asked_count)
    }

    async fn ask_drops(&self, runs: &[RunId], request: CancelRequest<'_>, now: Timestamp) -> Result<()> {
        let mut ids: Vec<i64> = runs.iter().map(|run| run.get()).collect();
        ids.sort_unstable();
        ids.dedup();
        for chunk in ids.chunks(CHUNK_MAX) {
            transact!(self, "ask_cancels", |tx| tx.note_drops(chunk, request, now).await)?;
        }
        Ok(())
    }

    async fn drops(&self, token: LeaseToken, after: RunId, limit: u32) -> Result<Vec<(RunId, Reason)>> {
        let query =
            Query::new(&READ_DROP_REQUESTS).int(after.get()).int(token.node.get()).int(token.epoch).int(limit.into());
        let mut drops = Vec::new();
        for row in self.rows(query).await? {
            let mut columns = Reader::new(&row, "run");
            let run = RunId::new(columns.int("run_id")?);
            drops.extend(columns.opt_word("cancel_reason")?.map(|reason| (run, reason)));
        }
        Ok(drops)
    }

    async fn cancels(&self, token: LeaseToken) -> Result<Vec<(RunId, String)>> {
        let query = Query::new(&READ_CANCELS).int(token.node.get()).int(token.epoch);
        let mut cancels = Vec::new();
        for row in self.rows(query).await? {
            let mut columns = Reader::new(&row, "run_cancel");
            cancels.push((RunId::new(columns.int("run_id")?), columns.text("cancel_by")?));
        }
        Ok(cancels)
    }

    async fn cancels_elsewhere(&self, token: LeaseToken, after: RunId, limit: u32) -> Result<Vec<CancelElsewhere>> {
        let query = Query::new(&READ_CANCELS_ELSEWHERE).int(after.get());
        let query = query.int(token.node.get()).int(token.epoch).int(limit.into());
        let mut cancels = Vec::new();
        for row in self.rows(query).await? {
            let mut columns = Reader::new(&row, "run_cancel");
            cancels.push(CancelElsewhere {
                run: RunId::new(columns.int("run_id")?),
                attempt: columns.int32("attempt")?,
                executor: ExecutorId::new(columns.int("executor_id")?),
                by: columns.text("cancel_by")?,
            });
        }
        Ok(cancels)
    }

    async fn open_runs(
        &self,
        job: JobId,
        fire_at: Option<Timestamp>,
        app: Option<AppId>,
        limit: u32,
    ) -> Result<Vec<Run>> {
        let app = app.map_or(0, AppId::get);
        let query = match fire_at {
            Some(fire_at) => Query::new(&READ_OPEN_RUNS_OF_FIRE).int(job.get()).at(fire_at),
            None => Query::new(&READ_OPEN_RUNS).int(job.get()),
        };
        rows::runs(&self.rows(query.int(app).int(app).int(limit.into())).await?)
    }
}

impl Tx<'_> {
    /// Records which queued runs of a job must end, because the job is paused or deleted (`reason`). The job's row is locked, so the job
    /// gets no further runs until the commit.
    pub(in crate::sql) async fn drop_queued(
        &mut self,
        job: JobId,
        reason: Reason,
        drops: QueuedDrops<'_>,
        now: Timestamp,
    ) -> Result<()> {
        let query = Query::new(&READ_OPEN_RUNS).int(job.get()).int(0).int(0).int(drops.limit.into());
        let open_runs = rows::runs(&self.rows(query).await?)?;
        let ids: Vec<i64> = queued_to_drop(open_runs, reason, drops).into_iter().map(RunId::get).collect();
        for chunk in ids.chunks(CHUNK_MAX) {
            self.note_drops(chunk, CancelRequest { by: drops.by, reason }, now).await?;
        }
        Ok(())
    }

    /// Records that these runs, at most [`CHUNK_MAX`], must end unless an executor has them.
    async fn note_drops(&mut self, runs: &[i64], request: CancelRequest<'_>, now: Timestamp) -> Result<()> {
        let (by, reason) = (clean_name(request.by), request.reason);
        let mut new_ids = Vec::with_capacity(runs.len());
        for row in self.rows(Query::new(&LOCK_OPEN_RUNS).list(runs.iter().copied())).await? {
            let mut columns = Reader::new(&row, "run");
            let id = columns.int("id")?;
            if columns.opt_text("cancel_by")?.is_none() {
                new_ids.push(id);
            }
        }
        if !new_ids.is_empty() {
            let query = Query::new(&SET_DROP_REQUESTS).text(reason.as_str()).list(new_ids.iter().copied());
            self.execute_all(query, new_ids.len()).await?;
            let query = Query::new(&INSERT_CANCELS).rows(&new_ids, |query, id| query.int(*id).text(&by).at(now));
            self.execute(query).await?;
        }
        Ok(())
    }

    /// Records a request to cancel an open run that is locked. If an earlier request has precedence, the run's owner only reads that one again.
    pub(super) async fn note_cancel(
        &mut self,
        run: &mut Run,
        request: CancelRequest<'_>,
        now: Timestamp,
    ) -> Result<()> {
        if request.replaces(run.cancel_request_reason()) {
            let CancelRequest { by, reason } = request;
            self.execute_all(Query::new(&SET_CANCEL).text(by).text(reason.as_str()).int(run.id.get()), 1).await?;
            (run.cancel_by, run.cancel_reason) = (Some(by.to_owned()), Some(reason));
        }
        // A run that succeeded despite an earlier request, and awaits its children, no longer has a row in `run_cancel`.
        self.execute(Query::new(&INSERT_CANCEL).int(run.id.get()).text(request.by).at(now)).await?;
        Ok(())
    }
}

fn cancel_request_reason(columns: &mut Reader<'_>) -> Result<Option<Reason>> {
    let (by, reason) = (columns.opt_text("cancel_by")?, columns.opt_word("cancel_reason")?);
    Ok(by.map(|_| reason.unwrap_or(Reason::Requested)))
}
