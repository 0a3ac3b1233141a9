//! Edits of a job: its definition and its unsent rows change in one transaction.

use async_trait::async_trait;
use rondel_core::edit::{EditContext, EditPlan, FutureRow, MovedRow, look_back_period, plan_edit};
use rondel_core::maintenance::SKIPPED_AHEAD_MAX;
use rondel_core::plan::{join_all_spans, spans_without_rows};
use rondel_core::time::millis;
use rondel_core::{Job, JobId, NodeId, Reason, Run, RunId, RunStatus, Timestamp};

use crate::catalog::{JobChange, JobDeleted, JobDeletion, JobRecord, JobSaved};
use crate::parents;
use crate::settle::{NO_NODE, shard_of, skipped_row};
use crate::sql::calendars::bind_pin;
use crate::sql::catalog::versions::NewVersion;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::sql::{SqlStore, Tx, is_duplicate_key, rows, transact};
use crate::{ChangeJobs, Result, StoreError};

const FIND_OTHER_JOB: Statement = Statement {
    name: "find_other_job",
    text: "SELECT id FROM job WHERE namespace_id = ? AND name = ? AND retired = 0 AND id <> ?",
};
const UPDATE_JOB: Statement = Statement {
    name: "update_job",
    text: "UPDATE job SET name = ?, app_id = ?, version = ?, updated_at_ms = ?, calendar_id = ?, calendar_version = ? \
           WHERE id = ? AND version = ? AND retired = 0",
};
const RETIRE_JOB: Statement = Statement {
    name: "retire_job",
    text: "UPDATE job SET retired = id, updated_at_ms = ?, calendar_id = NULL, calendar_version = NULL WHERE id = ? AND version = ? AND retired = 0",
};
const DELETE_DUE_ROW: Statement = Statement { name: "delete_due", text: "DELETE FROM job_due WHERE job_id = ?" };
const LOCK_DUE_ROW: Statement = Statement {
    name: "lock_standing",
    text: "SELECT job_id, home, follows_run_id FROM job_due WHERE job_id = ? {for_update}",
};
const READ_STATUS: Statement = Statement { name: "read_status", text: "SELECT id, status FROM run WHERE id = ?" };
const UPDATE_DUE_ROW: Statement = Statement {
    name: "update_due",
    text: "UPDATE job_due SET next_fire_at_ms = ?, is_over = ?, delay_ms = ?, follows_run_id = ?, version = ?, \
           held_from_ms = NULL WHERE job_id = ?",
};
/// Rows that are marked or have a later attempt are left out, because they may have been sent. A row that jitter delays counts as future
/// until its due instant.
pub(in crate::sql) const LOCK_FUTURE_RUNS: Statement = Statement {
    name: "lock_future",
    text: "SELECT id, fire_at_ms, due_at_ms, status, node_id FROM run WHERE job_id = ? AND fire_at_ms > ? \
           AND (fire_at_ms > ? OR due_at_ms > ?) AND cause = 0 AND shard_index IN (0, -1) AND parent_id IS NULL \
           AND attempt = 1 AND marked_at_ms IS NULL AND (status IN ('pending', 'waiting') \
           OR (status = 'skipped' AND reason IN ('changed', 'paused'))) ORDER BY id {for_update}",
};
const SETTLE_FUTURE_RUNS: Statement = Statement {
    name: "settle_future",
    text: "UPDATE run SET status = 'skipped', reason = ?, finished_at_ms = ? WHERE id {in_list} \
           AND {check}status IN ('pending', 'waiting'){end}",
};
const KEEP_FUTURE_RUNS: Statement = Statement {
    name: "keep_future",
    text: "UPDATE {join:iiiiii}run SET due_at_ms = v.column2, job_version = v.column3, app_id = v.column4, \
           shard_index = v.column5, shard_total = v.column6 {from:iiiiii} WHERE {of_rows:run.id} \
           AND {check}run.status IN ('pending', 'waiting'){end}",
};
const REOPEN_FUTURE_RUNS: Statement = Statement {
    name: "reopen_future",
    text: "UPDATE {join:iiiiii}run SET due_at_ms = v.column2, job_version = v.column3, app_id = v.column4, \
           shard_index = v.column5, shard_total = v.column6, status = 'pending', reason = NULL, finished_at_ms = NULL, \
           cancel_by = NULL, cancel_reason = NULL {from:iiiiii} WHERE {of_rows:run.id} AND {check}run.status = 'skipped'{end}",
};
const HAND_RUNS_TO_HOME: Statement = Statement {
    name: "hand_to_home",
    text: "UPDATE run SET node_id = ?, node_epoch = ? WHERE id {in_list} AND {check}status = 'pending'{end}",
};

#[async_trait]
impl ChangeJobs for SqlStore {
    async fn change_job(&self, change: JobChange<'_>) -> Result<JobSaved> {
        let result = transact!(self, "change_job", |tx| tx.change_job(&change).await);
        match result {
            // Another caller took the name between the check and the update.
            Err(error) if is_duplicate_key(&error) && is_from_update_job(&error) => Ok(JobSaved::NameTaken),
            other => other,
        }
    }

    async fn delete_job(&self, deletion: JobDeletion<'_>) -> Result<JobDeleted> {
        let JobDeletion { id, expected_version, before, skipped_row_id, now, reached, detaches_followers, drops } =
            deletion;
        transact!(self, "delete_job", |tx| {
            let Some(record) = tx.job_by_id(id).await? else { return Ok(JobDeleted::NotFound) };
            tx.lock_graph(record.namespace).await?;
            let Some((record, due_row)) = tx.lock_job(id).await? else { return Ok(JobDeleted::NotFound) };
            if expected_version.is_some_and(|version| version != record.version) {
                return Ok(JobDeleted::Conflict(record.version));
            }
            let children = tx.child_names(id).await?;
            if !children.is_empty() && !detaches_followers {
                return Ok(JobDeleted::IsParent(children));
            }
            tx.detach_followers(id).await?;
            tx.write_parents(id, &[]).await?;
            if record.spec.expect.is_some() {
                // Voids alert decisions that were made before the deletion. Like transactions that write decisions, locks the row of the
                // namespace's alerts before the job's expectations.
                tx.raise_alert_version(record.namespace).await?;
                tx.delete_expects(id).await?;
            }
            tx.write_script_use((record.namespace, id), None, Some(&record.spec)).await?;
            let instants = Instants { now, checked_at: now, reached };
            let plan = tx.plan(&record, due_row, (None, before), instants).await?;
            tx.skip_rows(&plan.skipped_rows, plan.reason, now).await?;
            tx.write_skipped_row(&record, before, &plan, skipped_row_id, now).await?;
            if let Some(drops) = drops {
                tx.drop_queued(id, Reason::Deleted, drops, now).await?;
            }
            tx.execute_all(Query::new(&RETIRE_JOB).at(now).int(id.get()).int(record.version), 1).await?;
            tx.execute_all(Query::new(&DELETE_DUE_ROW).int(id.get()), 1).await?;
            tx.delete_items(id).await?;
            Ok(JobDeleted::Done)
        })
    }
}

fn is_from_update_job(error: &StoreError) -> bool {
    matches!(error, StoreError::Query { operation: "update_job", .. })
}

/// The locked part of a job's row in `job_due`.
#[derive(Clone, Copy)]
struct DueRowLock {
    home: i64,
    /// The open run whose end sets the next fire.
    awaited_run: Option<RunId>,
}

/// The instants that an edit depends on, see [`JobChange`].
#[derive(Clone, Copy)]
struct Instants {
    now: Timestamp,
    checked_at: Timestamp,
    reached: Timestamp,
}

impl Tx<'_> {
    /// Locks a job; `None` if it is deleted.
    async fn lock_job(&mut self, id: JobId) -> Result<Option<(JobRecord, DueRowLock)>> {
        let Some(row) = self.row(Query::new(&LOCK_DUE_ROW).int(id.get())).await? else { return Ok(None) };
        let mut columns = Reader::new(&row, "job_due");
        columns.int("job_id")?;
        let home = columns.int("home")?;
        let awaited_run = match columns.opt_int("follows_run_id")?.map(RunId::new) {
            Some(run) => self.is_open(run).await?.then_some(run),
            None => None,
        };
        Ok(self.job_by_id(id).await?.map(|record| (record, DueRowLock { home, awaited_run })))
    }

    /// Whether this run exists and has no verdict.
    pub(in crate::sql) async fn is_open(&mut self, run: RunId) -> Result<bool> {
        let Some(row) = self.row(Query::new(&READ_STATUS).int(run.get())).await? else { return Ok(false) };
        let mut columns = Reader::new(&row, "run");
        columns.int("id")?;
        let status: RunStatus = columns.word("status")?;
        Ok(!status.is_terminal())
    }

    async fn change_job(&mut self, change: &JobChange<'_>) -> Result<JobSaved> {
        let Some(record) = self.job_by_id(change.id).await? else { return Ok(JobSaved::NotFound) };
        let names_parents = !change.spec.parents().is_empty();
        if names_parents || change.spec.name != record.spec.name {
            self.lock_graph(record.namespace).await?;
        }
        let Some((record, due_row)) = self.lock_job(change.id).await? else { return Ok(JobSaved::NotFound) };
        if change.expected_version.is_some_and(|version| version != record.version) {
            return Ok(JobSaved::Conflict(record.version));
        }
        if change.spec.name != record.spec.name {
            let other_job_query =
                Query::new(&FIND_OTHER_JOB).int(record.namespace.get()).text(&change.spec.name).int(change.id.get());
            if self.row(other_job_query).await?.is_some() {
                return Ok(JobSaved::NameTaken);
            }
            let children = self.child_names(change.id).await?;
            if !children.is_empty() {
                return Ok(JobSaved::IsParent(children));
            }
        }
        let mut new_edges = None;
        if !parents::have_same_parents(change.spec, &record.spec) {
            match self.check_parents(change.id, record.namespace, change.spec).await? {
                Ok(edges) => new_edges = Some(edges),
                Err(errors) => return Ok(JobSaved::BadParents(errors)),
            }
        }
        if !self.lock_pinned_calendar(change.calendar).await? {
            return Ok(JobSaved::NoCalendar);
        }
        let new_and_old_spec = std::iter::once((change.spec, Some(&record.spec)));
        if let Some(channel) = self.lock_expect_channels(record.namespace, new_and_old_spec).await? {
            return Ok(JobSaved::NoChannel(channel));
        }
        let new_and_old_spec = std::iter::once((change.spec, Some(&record.spec)));
        if let Some(script) = self.lock_scripts(record.namespace, new_and_old_spec).await? {
            return Ok(JobSaved::NoScript(script));
        }
        let version = record.version + 1;
        self.write_definition(change, version).await?;
        if let Some(edges) = new_edges {
            self.write_parents(change.id, &edges).await?;
        }
        if change.spec.expect.is_some() || record.spec.expect.is_some() {
            let specs = (Some(&record.spec), change.spec);
            self.write_expect_checks((record.namespace, change.id), specs, change.now).await?;
        }
        self.write_script_use((record.namespace, change.id), Some(change.spec), Some(&record.spec)).await?;

        let instants = Instants { now: change.now, checked_at: change.checked_at, reached: change.reached };
        let plan = self.plan(&record, due_row, (Some(change.job), Some(change.before)), instants).await?;
        self.skip_rows(&plan.skipped_rows, plan.reason, change.now).await?;
        self.write_skipped_row(&record, Some(change.before), &plan, change.skipped_row_id, change.now).await?;
        let skipped_ids: Vec<RunId> =
            plan.skipped_rows.iter().copied().chain(plan.skipped_span.map(|_| change.skipped_row_id)).collect();
        self.insert_alert_events(&skipped_ids).await?;
        self.move_rows(&KEEP_FUTURE_RUNS, &plan.kept_rows, change, version).await?;
        self.move_rows(&REOPEN_FUTURE_RUNS, &plan.reopened_rows, change, version).await?;
        let reopened_ids: Vec<RunId> = plan.reopened_rows.iter().map(|row| row.id).collect();
        self.remove_unsuccessful_rows(&reopened_ids.iter().map(|run| run.get()).collect::<Vec<i64>>()).await?;
        self.delete_events(&reopened_ids).await?;
        self.hand_to_home(&reopened_ids, due_row.home).await?;
        let delay = change.job.timetable.delay().filter(|_| change.job.enabled);
        let update = Query::new(&UPDATE_DUE_ROW)
            .opt_at(plan.next_fire_at)
            .int(plan.next_fire_at.is_none().into())
            .opt_int(delay.map(millis))
            .opt_int(plan.awaited_run.map(RunId::get))
            .int(version)
            .int(change.id.get());
        self.execute_all(update, 1).await?;
        if let Some(drops) = change.drops.filter(|_| record.spec.enabled && !change.spec.enabled) {
            self.drop_queued(change.id, Reason::Paused, drops, change.now).await?;
        }

        let mut reopened_runs = self.runs_by_id(&reopened_ids).await?;
        reopened_runs.sort_by_key(|run| (run.due_at, run.id));
        match self.job_by_id(change.id).await? {
            Some(saved_job) => Ok(JobSaved::Saved(Box::new(saved_job), reopened_runs)),
            None => Ok(JobSaved::NotFound),
        }
    }

    async fn write_definition(&mut self, change: &JobChange<'_>, version: i64) -> Result<()> {
        let update = Query::new(&UPDATE_JOB).text(&change.spec.name).int(change.app.get()).int(version).at(change.now);
        let update = bind_pin(update, change.calendar).int(change.id.get()).int(version - 1);
        self.execute_all(update, 1).await?;
        self.insert_version(NewVersion {
            job: change.id,
            version,
            app: change.app,
            spec: change.spec,
            calendar: change.calendar,
            author: change.author,
            now: change.now,
        })
        .await
    }

    /// Locks the rows that an edit concerns, and plans the edit. `after` and `before` are the definitions after and before the edit.
    async fn plan(
        &mut self,
        record: &JobRecord,
        due_row: DueRowLock,
        (after, before): (Option<&Job>, Option<&Job>),
        Instants { now, checked_at, reached }: Instants,
    ) -> Result<EditPlan> {
        let from = now - look_back_period(before, after);
        let query = Query::new(&LOCK_FUTURE_RUNS).int(record.id.get()).at(from).at(now).at(now);
        let mut future_rows = Vec::new();
        for row in self.rows(query).await? {
            let mut columns = Reader::new(&row, "run");
            future_rows.push(FutureRow {
                id: RunId::new(columns.int("id")?),
                fire_at: columns.at("fire_at_ms")?,
                due_at: columns.at("due_at_ms")?,
                status: columns.word("status")?,
                is_span: NodeId::new(columns.int("node_id")?) == NO_NODE,
            });
        }
        let context = EditContext {
            job: record.id,
            anchor: record.anchor,
            now,
            checked_at,
            // The clock decides only which rows may have been sent, so it is read only if there are rows.
            read_at: if future_rows.is_empty() { now } else { self.now().await?.max(reached) },
            rows: &future_rows,
            before,
            next_fire_at: record.next_fire_at,
            awaited_run: due_row.awaited_run,
        };
        let mut plan = plan_edit(after, context);
        if let Some((span, job)) = plan.skipped_span.zip(before) {
            let range = (span.first - SKIPPED_AHEAD_MAX, span.last);
            let stored = self.fires_with_rows(record.id, range).await?;
            plan.skipped_span = join_all_spans(spans_without_rows(job, record.anchor, span, &stored));
        }
        Ok(plan)
    }

    /// Writes the row that records the past fires that the edit skips.
    async fn write_skipped_row(
        &mut self,
        record: &JobRecord,
        before: Option<&Job>,
        plan: &EditPlan,
        id: RunId,
        now: Timestamp,
    ) -> Result<()> {
        let Some(row) = skipped_row(record, before, plan, id, now) else { return Ok(()) };
        self.insert_runs(&[&row]).await.map(drop)
    }

    async fn skip_rows(&mut self, runs: &[RunId], reason: Reason, now: Timestamp) -> Result<()> {
        for chunk in runs.chunks(CHUNK_MAX) {
            let ids: Vec<i64> = chunk.iter().map(|run| run.get()).collect();
            let query = Query::new(&SETTLE_FUTURE_RUNS).text(reason.as_str()).at(now).list(ids.iter().copied());
            self.execute_all(query, chunk.len()).await?;
            self.remove_open_rows(&ids).await?;
            self.write_unsuccessful_rows(&ids).await?;
            self.execute(Query::new(&rows::DELETE_CANCELS).list(ids.into_iter())).await?;
        }
        Ok(())
    }

    /// Changes rows of runs to the new version of the definition, and to the `due_at` that this version gives them.
    async fn move_rows(
        &mut self,
        statement: &'static Statement,
        rows: &[MovedRow],
        change: &JobChange<'_>,
        version: i64,
    ) -> Result<()> {
        let (shard_index, shard_total) = shard_of(change.job);
        for chunk in rows.chunks(CHUNK_MAX) {
            let query = Query::new(statement).rows(chunk, |query, row| {
                let query = query.int(row.id.get()).at(row.due_at).int(version).int(change.app.get());
                query.int(shard_index.into()).opt_int(shard_total.map(i64::from))
            });
            self.execute_all(query, chunk.len()).await?;
            let ids: Vec<i64> = chunk.iter().map(|row| row.id.get()).collect();
            self.write_open_rows(&ids).await?;
        }
        Ok(())
    }

    /// Makes the job's home the owner of reopened rows, because their old owner may no longer exist.
    async fn hand_to_home(&mut self, runs: &[RunId], home: i64) -> Result<()> {
        if runs.is_empty() {
            return Ok(());
        }
        let Some(lease) = self.lease_for_home(home).await? else { return Ok(()) };
        for chunk in runs.chunks(CHUNK_MAX) {
            let ids: Vec<i64> = chunk.iter().map(|run| run.get()).collect();
            let query = Query::new(&HAND_RUNS_TO_HOME).int(lease.node.get()).int(lease.epoch);
            self.execute_all(query.list(ids.iter().copied()), ids.len()).await?;
            self.write_open_rows(&ids).await?;
        }
        Ok(())
    }

    async fn runs_by_id(&mut self, ids: &[RunId]) -> Result<Vec<Run>> {
        let mut runs = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(CHUNK_MAX) {
            let rows = self.rows(Query::new(&rows::READ_RUNS).list(chunk.iter().map(|run| run.get()))).await?;
            runs.append(&mut rows::runs(&rows)?);
        }
        Ok(runs)
    }
}
