//! The trait `Runs` in SQL: reads runs by id, for the tick, in pages, with their attempts.

use std::sync::Arc;

use async_trait::async_trait;
use rondel_core::reason::{Reason, ReasonDetail};
use rondel_core::run::Attempt;
use rondel_core::{AppId, ExecutorId, JobId, NamespaceId, NodeId, Run, RunId, RunStatus, Timestamp};
use sqlx::any::AnyRow;

use crate::ledger::{ATTEMPT_COUNT_MAX, ExecutorRunCount, OpenPage, RunCheck, RunQuery};
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::sql::rows::{self, run_columns};
use crate::sql::run::job_page::apps_within;
use crate::sql::{SqlStore, Tx};
use crate::{LeaseToken, Result, Runs};

pub(in crate::sql) const READ_CHECKS: Statement = Statement {
    name: "read_checks",
    text: "SELECT run.id, run.status, run.attempt, run.job_version, run.started_at_ms, run.node_id, run.node_epoch, run.cancel_by, \
           run.cancel_reason, COALESCE(job_due.term, 0) AS term FROM run LEFT JOIN job_due ON job_due.job_id = run.job_id \
           WHERE run.id {in_list}",
};
/// The running runs of a namespace. Reads the running runs of all namespaces, node by node, because they are few compared with the other
/// open runs of a namespace, such as those of a backfill.
macro_rules! of_running {
    () => {
        " FROM node CROSS JOIN open_run CROSS JOIN run WHERE open_run.node_id = node.id AND run.id = open_run.id \
         AND open_run.status = 'running' AND +open_run.namespace_id = ? "
    };
}
pub(in crate::sql) const COUNT_HELD_RUNS: Statement = Statement {
    name: "count_running_by_executor",
    text: concat!(
        "SELECT run.app_id, run.executor, COUNT(*) AS held_count",
        of_running!(),
        "AND run.executor IS NOT NULL GROUP BY run.app_id, run.executor"
    ),
};
pub(in crate::sql) const LIST_HELD_RUNS: Statement = Statement {
    name: "list_held",
    text: concat!("SELECT ", run_columns!(), of_running!(), "AND open_run.app_id = ? AND run.executor = ? LIMIT ?"),
};
/// A page of running runs, in the order of their ids. `+ 0` prevents planners from reading the open runs in that order, because a backfill
/// can add a great many waiting runs to them.
pub(in crate::sql) const LIST_RUNNING_RUNS: Statement = Statement {
    name: "list_running",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM (SELECT open_run.id FROM node CROSS JOIN open_run WHERE open_run.node_id = node.id \
         AND open_run.status = 'running' AND +open_run.namespace_id = ? AND open_run.id + 0 < ? \
         AND CASE ? WHEN 1 THEN open_run.app_id ELSE 0 END {in_list} ORDER BY open_run.id + 0 DESC LIMIT ?) AS found \
         CROSS JOIN run WHERE run.id = found.id ORDER BY found.id DESC"
    ),
};
const READ_ATTEMPTS: Statement = Statement {
    name: "read_attempts",
    text: "SELECT run_id, attempt, status, reason, executor, executor_id, started_at_ms, finished_at_ms, message, detail \
           FROM run_attempt WHERE run_id = ? ORDER BY attempt DESC LIMIT ?",
};
/// Must agree with [`rondel_core::run::attempt_may_have_begun`].
const COUNT_EARLIER_ATTEMPTS: Statement = Statement {
    name: "count_earlier",
    text: "SELECT run_id, COUNT(CASE WHEN status <> 'unknown' OR reason <> 'not_received' THEN 1 END) AS begun_count, \
           COUNT(*) AS attempt_count FROM run_attempt WHERE run_id {in_list} GROUP BY run_id",
};

/// A page of all runs is ordered by id, and ids rise with time. A page of a job's runs is ordered by fire. Each order has an index.
pub(in crate::sql) const LIST_RUNS: Statement = Statement {
    name: "list_all",
    text: concat!("SELECT ", run_columns!(), " FROM run WHERE namespace_id = ? AND id < ? ORDER BY id DESC LIMIT ?"),
};
pub(in crate::sql) const LIST_RUNS_BY_STATUS: Statement = Statement {
    name: "list_by_status",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM run WHERE namespace_id = ? AND id < ? AND status IN ({words}) ORDER BY id DESC LIMIT ?"
    ),
};
/// `CROSS JOIN` makes SQLite begin with the narrow table.
pub(in crate::sql) const LIST_OPEN_RUNS: Statement = Statement {
    name: "list_open",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM open_run CROSS JOIN run WHERE run.id = open_run.id AND open_run.namespace_id = ? AND open_run.id < ? \
         AND open_run.status IN ({words}) ORDER BY open_run.id DESC LIMIT ?"
    ),
};
/// Verdicts other than success. Users search for them, and they are rare.
pub(in crate::sql) const LIST_UNSUCCESSFUL_RUNS: Statement = Statement {
    name: "list_trouble",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM unsuccessful_run CROSS JOIN run WHERE run.id = unsuccessful_run.id AND unsuccessful_run.namespace_id = ? \
         AND unsuccessful_run.id < ? AND unsuccessful_run.status IN ({words}) ORDER BY unsuccessful_run.id DESC LIMIT ?"
    ),
};
/// A page for a caller who may not see the whole namespace. The text has one argument for each of the nine statuses.
pub(in crate::sql) const LIST_RUNS_OF_APPS: Statement = Statement {
    name: "list_of_apps",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM run WHERE namespace_id = ? AND id < ? AND status IN (?, ?, ?, ?, ?, ?, ?, ?, ?) \
         AND app_id {in_list} ORDER BY id DESC LIMIT ?"
    ),
};
/// Like [`LIST_RUNS_OF_APPS`], for statuses that have their own table, so that a page of open runs does not read ended ones.
pub(in crate::sql) const LIST_OPEN_RUNS_OF_APPS: Statement = Statement {
    name: "list_open_of_apps",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM open_run CROSS JOIN run WHERE run.id = open_run.id AND open_run.namespace_id = ? AND open_run.id < ? \
         AND open_run.status IN (?, ?, ?, ?, ?, ?, ?, ?, ?) AND open_run.app_id {in_list} ORDER BY open_run.id DESC LIMIT ?"
    ),
};
pub(in crate::sql) const LIST_UNSUCCESSFUL_RUNS_OF_APPS: Statement = Statement {
    name: "list_trouble_of_apps",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM unsuccessful_run CROSS JOIN run WHERE run.id = unsuccessful_run.id AND unsuccessful_run.namespace_id = ? \
         AND unsuccessful_run.id < ? AND unsuccessful_run.status IN (?, ?, ?, ?, ?, ?, ?, ?, ?) \
         AND unsuccessful_run.app_id {in_list} ORDER BY unsuccessful_run.id DESC LIMIT ?"
    ),
};
pub(in crate::sql) const READ_NEXT_RUN_OF_JOB: Statement = Statement {
    name: "read_next_of_job",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM run WHERE job_id = ? AND fire_at_ms >= ? AND (fire_at_ms > ? OR cause > ?) \
         ORDER BY fire_at_ms, cause, shard_index LIMIT 1"
    ),
};
pub(in crate::sql) const LIST_SHARDS: Statement = Statement {
    name: "list_shards",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM run WHERE namespace_id = ? AND job_id = ? AND fire_at_ms = ? AND cause = ? AND shard_index >= 0 AND parent_id = ?"
    ),
};
pub(in crate::sql) const LIST_RUNS_BELOW: Statement = Statement {
    name: "list_below",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM run WHERE parent_id IS NOT NULL AND parent_id {in_list} ORDER BY id LIMIT ?"
    ),
};
/// Leaves out shards, whose parent is their broadcast.
pub(in crate::sql) const LIST_PLANNED_ROWS: Statement = Statement {
    name: "list_planned",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM run WHERE job_id = ? AND fire_at_ms >= ? AND fire_at_ms <= ? AND cause = 0 AND shard_index IN (0, -1) \
         AND parent_id IS NULL ORDER BY fire_at_ms, shard_index LIMIT ?"
    ),
};
pub(in crate::sql) const READ_PLANNED_ROW_BEFORE: Statement = Statement {
    name: "read_planned_before",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM run WHERE job_id = ? AND fire_at_ms < ? AND cause = 0 AND shard_index IN (0, -1) \
         AND parent_id IS NULL ORDER BY fire_at_ms DESC LIMIT 1"
    ),
};
pub(in crate::sql) const READ_OPEN_KEYS: Statement = Statement {
    name: "read_open_keys",
    text: "SELECT id, due_at_ms FROM open_run WHERE node_id = ? AND node_epoch = ? AND status = ? \
           AND due_at_ms >= ? AND due_at_ms < ? AND (due_at_ms > ? OR id > ?) ORDER BY due_at_ms, id LIMIT ?",
};

/// The attempts of a run before its current one.
pub(in crate::sql) struct EarlierAttempts {
    pub(in crate::sql) run: RunId,
    /// Whether one of them began, or may have begun.
    pub(in crate::sql) may_have_begun: bool,
    /// How many of them no executor received.
    pub(in crate::sql) unreceived_count: i32,
}

impl Tx<'_> {
    /// The earlier attempts of these runs. Runs without earlier attempts are left out.
    pub(in crate::sql) async fn earlier_attempts(&mut self, runs: &[RunId]) -> Result<Vec<EarlierAttempts>> {
        let mut earlier_attempts = Vec::new();
        for chunk in runs.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&COUNT_EARLIER_ATTEMPTS).list(chunk.iter().map(|run| run.get()))).await? {
                let mut columns = Reader::new(&row, "run_attempt");
                let (run, begun_count) = (RunId::new(columns.int("run_id")?), columns.int("begun_count")?);
                let unreceived_count = columns.int("attempt_count")? - begun_count;
                earlier_attempts.push(EarlierAttempts {
                    run,
                    may_have_begun: begun_count > 0,
                    unreceived_count: i32::try_from(unreceived_count).unwrap_or(i32::MAX),
                });
            }
        }
        Ok(earlier_attempts)
    }
}

#[async_trait]
impl Runs for SqlStore {
    async fn runs(&self, ids: &[RunId]) -> Result<Vec<Run>> {
        let mut runs = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(CHUNK_MAX) {
            let rows = self.rows(Query::new(&rows::READ_RUNS).list(chunk.iter().map(|id| id.get()))).await?;
            runs.append(&mut rows::runs(&rows)?);
        }
        Ok(runs)
    }

    async fn check_runs(&self, ids: &[RunId]) -> Result<Vec<RunCheck>> {
        let mut checks = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&READ_CHECKS).list(chunk.iter().map(|id| id.get()))).await? {
                let mut columns = Reader::new(&row, "run");
                let check = RunCheck {
                    id: RunId::new(columns.int("id")?),
                    status: columns.word("status")?,
                    attempt: columns.int32("attempt")?,
                    job_version: columns.int("job_version")?,
                    has_recorded_start: columns.opt_at("started_at_ms")?.is_some(),
                    owner: LeaseToken { node: NodeId::new(columns.int("node_id")?), epoch: columns.int("node_epoch")? },
                    cancel_by: columns.opt_text("cancel_by")?,
                    drop_for: columns
                        .opt_word::<Reason>("cancel_reason")?
                        .filter(|reason| reason.applies_only_to_queued()),
                    term: columns.int("term")?,
                };
                checks.push(check);
            }
        }
        Ok(checks)
    }

    async fn open_keys(&self, token: LeaseToken, page: OpenPage) -> Result<Vec<(Timestamp, RunId)>> {
        let (due_at, id) = page.after;
        let query = Query::new(&READ_OPEN_KEYS).int(token.node.get()).int(token.epoch).text(page.status.as_str());
        let query = query.at(due_at).at(page.before).at(due_at).int(id.get()).int(page.limit.into());
        let key = |row: &AnyRow| {
            let mut columns = Reader::new(row, "open_run");
            let id = RunId::new(columns.int("id")?);
            Ok((columns.at("due_at_ms")?, id))
        };
        self.rows(query).await?.iter().map(key).collect()
    }

    async fn list_runs(&self, namespace: NamespaceId, query: &RunQuery) -> Result<Vec<Run>> {
        if let Some(parent) = query.parent {
            return self.read_shards_page(namespace, parent, query).await;
        }
        if let Some(job) = query.job {
            return self.read_page_of_job(namespace, job, query).await;
        }
        if query.statuses == [RunStatus::Running] {
            return self.read_running_page(namespace, query).await;
        }
        if let Some(apps) = &query.within {
            return self.read_page_of_apps(namespace, query, apps).await;
        }
        let statement = match &query.statuses[..] {
            [] => &LIST_RUNS,
            statuses if are_open(statuses) => &LIST_OPEN_RUNS,
            statuses if are_unsuccessful(statuses) => &LIST_UNSUCCESSFUL_RUNS,
            _ => &LIST_RUNS_BY_STATUS,
        };
        let page = Query::new(statement).int(namespace.get()).int(query.after.map_or(i64::MAX, RunId::get));
        let page = bind_statuses(page, &query.statuses).int(query.limit.into());
        rows::runs(&self.rows(page).await?)
    }

    async fn count_running_by_executor(&self, namespace: NamespaceId) -> Result<Vec<ExecutorRunCount>> {
        let rows = self.rows(Query::new(&COUNT_HELD_RUNS).int(namespace.get())).await?;
        let held_count = |row: &AnyRow| {
            let mut columns = Reader::new(row, "run");
            Ok(ExecutorRunCount {
                app: AppId::new(columns.int("app_id")?),
                executor: columns.text("executor")?,
                count: u64::try_from(columns.int("held_count")?).unwrap_or(0),
            })
        };
        rows.iter().map(held_count).collect()
    }

    async fn running_runs_of_executor(
        &self,
        namespace: NamespaceId,
        app: AppId,
        executor: &str,
        limit: u32,
    ) -> Result<Vec<Run>> {
        let query = Query::new(&LIST_HELD_RUNS).int(namespace.get()).int(app.get()).text(executor).int(limit.into());
        rows::runs(&self.rows(query).await?)
    }

    async fn next_fire_after(&self, run: &Run) -> Result<Option<Run>> {
        let query = Query::new(&READ_NEXT_RUN_OF_JOB).int(run.job.get()).at(run.fire_at).at(run.fire_at).int(run.cause);
        self.row(query).await?.as_ref().map(rows::run).transpose()
    }

    async fn runs_below(&self, parents: &[RunId], limit: u32) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for chunk in parents.chunks(CHUNK_MAX) {
            let query = Query::new(&LIST_RUNS_BELOW).list(chunk.iter().map(|id| id.get())).int(limit.into());
            runs.append(&mut rows::runs(&self.rows(query).await?)?);
        }
        runs.sort_by_key(|run| run.id);
        runs.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(runs)
    }

    async fn planned_rows(&self, job: JobId, from: Timestamp, to: Timestamp, limit: u32) -> Result<Vec<Run>> {
        let row_before = self.row(Query::new(&READ_PLANNED_ROW_BEFORE).int(job.get()).at(from)).await?;
        let run_before = row_before.as_ref().map(rows::run).transpose()?;
        let reaches = |run: &Run| run.span_end_at.is_some_and(|end| end >= from);
        let mut planned_runs: Vec<Run> = run_before.into_iter().filter(reaches).collect();
        let query = Query::new(&LIST_PLANNED_ROWS).int(job.get()).at(from).at(to).int(limit.into());
        planned_runs.append(&mut rows::runs(&self.rows(query).await?)?);
        planned_runs.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(planned_runs)
    }

    async fn attempts(&self, run: RunId) -> Result<Vec<Attempt>> {
        let mut attempts = Vec::new();
        for row in self.rows(Query::new(&READ_ATTEMPTS).int(run.get()).int(i64::from(ATTEMPT_COUNT_MAX))).await? {
            let mut columns = Reader::new(&row, "run_attempt");
            columns.int("run_id")?;
            attempts.push(Attempt {
                attempt: columns.int32("attempt")?,
                status: columns.word("status")?,
                reason: columns.opt_word("reason")?,
                executor: columns.opt_text("executor")?,
                executor_id: columns.opt_int("executor_id")?.map(ExecutorId::new),
                started_at: columns.opt_at("started_at_ms")?,
                finished_at: columns.opt_at("finished_at_ms")?,
                message: columns.opt_text("message")?,
                detail: columns.opt_text("detail")?.map(|text| Arc::new(ReasonDetail::from_json(&text))),
            });
        }
        attempts.reverse();
        Ok(attempts)
    }
}

impl SqlStore {
    async fn read_running_page(&self, namespace: NamespaceId, query: &RunQuery) -> Result<Vec<Run>> {
        let (is_within, apps) = apps_within(query);
        if apps.is_empty() {
            return Ok(Vec::new());
        }
        let page = Query::new(&LIST_RUNNING_RUNS).int(namespace.get()).int(query.after.map_or(i64::MAX, RunId::get));
        let page = page.int(is_within).list(apps.into_iter()).int(query.limit.into());
        rows::runs(&self.rows(page).await?)
    }

    async fn read_page_of_apps(&self, namespace: NamespaceId, query: &RunQuery, apps: &[AppId]) -> Result<Vec<Run>> {
        if apps.is_empty() {
            return Ok(Vec::new());
        }
        let statement = match &query.statuses[..] {
            [] => &LIST_RUNS_OF_APPS,
            statuses if are_open(statuses) => &LIST_OPEN_RUNS_OF_APPS,
            statuses if are_unsuccessful(statuses) => &LIST_UNSUCCESSFUL_RUNS_OF_APPS,
            _ => &LIST_RUNS_OF_APPS,
        };
        let page = Query::new(statement).int(namespace.get()).int(query.after.map_or(i64::MAX, RunId::get));
        let page = bind_all_statuses(page, &query.statuses);
        rows::runs(&self.rows(page.list(apps.iter().map(|app| app.get())).int(query.limit.into())).await?)
    }

    /// The shards of a broadcast are few enough to be read in one statement.
    async fn read_shards_page(&self, namespace: NamespaceId, parent: RunId, query: &RunQuery) -> Result<Vec<Run>> {
        let Some(broadcast) = self.runs(&[parent]).await?.pop() else { return Ok(Vec::new()) };
        let shards_query = Query::new(&LIST_SHARDS)
            .int(namespace.get())
            .int(broadcast.job.get())
            .at(broadcast.fire_at)
            .int(broadcast.cause)
            .int(parent.get());
        let mut shards = rows::runs(&self.rows(shards_query).await?)?;
        shards.retain(|run| {
            query.job.is_none_or(|job| run.job == job)
                && query.after.is_none_or(|after| run.id < after)
                && (query.statuses.is_empty() || query.statuses.contains(&run.status))
        });
        shards.sort_by_key(|run| std::cmp::Reverse(run.id));
        shards.truncate(usize::try_from(query.limit).unwrap_or(usize::MAX));
        Ok(shards)
    }
}

/// Whether all runs with these statuses are open.
pub(super) fn are_open(statuses: &[RunStatus]) -> bool {
    statuses.iter().all(|status| !status.is_terminal())
}

/// Whether the table of unsuccessful runs contains all runs with these statuses.
fn are_unsuccessful(statuses: &[RunStatus]) -> bool {
    statuses.iter().all(|status| status.is_terminal() && *status != RunStatus::Succeeded)
}

/// Adds as many arguments as there are statuses, by repeating some. This is needed because a statement can have only one list of variable
/// length.
pub(super) fn bind_all_statuses(query: Query, statuses: &[RunStatus]) -> Query {
    let asked_statuses = if statuses.is_empty() { RunStatus::ALL } else { statuses };
    let cycled_statuses = asked_statuses.iter().cycle().take(RunStatus::ALL.len());
    cycled_statuses.fold(query, |query, status| query.text(status.as_str()))
}

pub(super) fn bind_statuses(query: Query, statuses: &[RunStatus]) -> Query {
    if statuses.is_empty() {
        return query;
    }
    let words: Vec<&str> = statuses.iter().map(|status| status.as_str()).collect();
    query.words(&words)
}
