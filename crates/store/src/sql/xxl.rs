//! The trait `XxlExecutors` in SQL.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use async_trait::async_trait;
use rondel_core::{AppId, ExecutorId, JobId, NamespaceId, NodeId, RunId, Timestamp};
use sqlx::any::AnyRow;

use super::query::{CHUNK_MAX, Query, Reader, Statement, read_ids};
use super::{SqlStore, Tx, failure, transact};
use crate::xxl::{
    NewXxlRun, XXL_REGISTERED_FOR, XxlExecutor, XxlReport, XxlReportOutcome, XxlReportResults, XxlRun, XxlRunState,
    XxlSettlement, apply_reports,
};
use crate::{LeaseToken, Result, XxlExecutors};

macro_rules! select_run {
    ($rest:literal) => {
        concat!(
            "SELECT log_id, run_id, attempt, job_id, number, executor_id, app_id, node_id, sent_at_ms, state, code, \
             message, reported_at_ms, log_line FROM xxl_run ",
            $rest
        )
    };
}

macro_rules! select_executor {
    ($rest:literal) => {
        concat!(
            "SELECT id, namespace_id, app_id, address, token, first_seen_at_ms, last_seen_at_ms, left_at_ms, by_hand_at_ms \
             FROM xxl_executor ",
            $rest
        )
    };
}

const INSERT_EXECUTOR: Statement = Statement {
    name: "insert_xxl_executor",
    text: "INSERT {ignore} INTO xxl_executor \
           (id, namespace_id, app_id, address, token, first_seen_at_ms, last_seen_at_ms, by_hand_at_ms) \
           VALUES (?, ?, ?, ?, ?, ?, ?, ?) {or_ignore}",
};
const REGISTER_BY_HAND: Statement = Statement {
    name: "register_xxl_by_hand",
    text: "UPDATE xxl_executor SET token = ?, by_hand_at_ms = ? WHERE app_id = ? AND address = ?",
};
const UNREGISTER_BY_HAND: Statement = Statement {
    name: "unregister_xxl_by_hand",
    text: "UPDATE xxl_executor SET by_hand_at_ms = NULL, \
           left_at_ms = CASE WHEN last_seen_at_ms + ? <= {now} THEN {now} ELSE left_at_ms END \
           WHERE app_id = ? AND address = ? AND by_hand_at_ms IS NOT NULL",
};
pub(super) const LIST_EXECUTORS_BY_HAND: Statement = Statement {
    name: "list_xxl_by_hand",
    text: select_executor!("WHERE by_hand_at_ms >= 0 ORDER BY by_hand_at_ms LIMIT ?"),
};
pub(super) const LIST_EXECUTORS_BY_HAND_OF_APP: Statement = Statement {
    name: "list_xxl_by_hand_of",
    text: select_executor!("WHERE app_id = ? AND by_hand_at_ms IS NOT NULL ORDER BY address LIMIT ?"),
};
const READ_TOKENS_BY_HAND: Statement = Statement {
    name: "read_xxl_tokens_by_hand",
    text: "SELECT id, app_id, address, token FROM xxl_executor WHERE by_hand_at_ms >= 0 ORDER BY by_hand_at_ms",
};
/// Changes nothing if the token was sealed or changed in the meantime.
const SEAL_TOKEN: Statement =
    Statement { name: "seal_xxl_token", text: "UPDATE xxl_executor SET token = ? WHERE id = ? AND token = ?" };
const REFRESH_EXECUTOR: Statement = Statement {
    name: "refresh_xxl_executor",
    text: "UPDATE xxl_executor SET token = ?, last_seen_at_ms = ?, left_at_ms = NULL WHERE app_id = ? AND address = ?",
};
pub(super) const READ_EXECUTOR: Statement =
    Statement { name: "read_xxl_executor", text: "SELECT id FROM xxl_executor WHERE app_id = ? AND address = ?" };
const LEAVE_EXECUTOR: Statement = Statement {
    name: "leave_xxl_executor",
    text: "UPDATE xxl_executor SET left_at_ms = ? WHERE app_id = ? AND address = ? AND left_at_ms IS NULL",
};
pub(super) const LIST_EXECUTORS: Statement = Statement {
    name: "list_xxl_executors",
    text: select_executor!("WHERE last_seen_at_ms >= ? ORDER BY last_seen_at_ms DESC LIMIT ?"),
};
/// The statement contains `state < 2` because that is the condition of the partial index.
pub(super) const LIST_EXECUTORS_WITH_UNSETTLED_ENDS: Statement = Statement {
    name: "list_reported_xxl",
    text: select_executor!(
        "WHERE last_seen_at_ms < ? AND EXISTS (SELECT 1 FROM xxl_run WHERE xxl_run.executor_id = xxl_executor.id \
         AND xxl_run.state < 2 AND xxl_run.state = 1) ORDER BY last_seen_at_ms DESC LIMIT ?"
    ),
};
/// Locks the row until the transaction ends, so that no other node fences the lease before the commit.
const LOCK_LEASE: Statement = Statement {
    name: "lock_xxl_lease",
    text: "SELECT id FROM node WHERE id = ? AND epoch = ? AND lease_until_ms > {now} {for_update}",
};
const LOCK_COUNTER: Statement =
    Statement { name: "lock_xxl_counter", text: "SELECT next_value FROM xxl_counter WHERE name = ? {for_update}" };
const MOVE_COUNTER: Statement =
    Statement { name: "move_xxl_counter", text: "UPDATE xxl_counter SET next_value = next_value + ? WHERE name = ?" };
const READ_NUMBERS: Statement =
    Statement { name: "read_xxl_numbers", text: "SELECT job_id, number FROM xxl_job WHERE job_id {in_list}" };
const INSERT_NUMBERS: Statement = Statement {
    name: "insert_xxl_numbers",
    text: "INSERT {ignore} INTO xxl_job (job_id, number) {values:ii} {or_ignore}",
};
const INSERT_RUNS: Statement = Statement {
    name: "insert_xxl_runs",
    text: "INSERT {ignore} INTO xxl_run (log_id, run_id, attempt, job_id, number, executor_id, app_id, node_id, sent_at_ms, state, log_line) \
           {values:iiiiiiiiiii} {or_ignore}",
};
pub(super) const READ_UNSETTLED_RUNS: Statement = Statement {
    name: "read_unsettled_xxl",
    text: select_run!("WHERE executor_id = ? AND state < 2 ORDER BY log_id LIMIT ?"),
};
/// Writes one end for several attempts that ended alike.
const REPORT_RUNS: Statement = Statement {
    name: "report_xxl_runs",
    text: "UPDATE xxl_run SET state = 1, code = ?, message = ?, reported_at_ms = ? WHERE log_id {in_list}",
};
const LOCK_RUNS: Statement =
    Statement { name: "lock_xxl_runs", text: select_run!("WHERE log_id {in_list} ORDER BY log_id {for_update}") };
const SETTLE_RUNS: Statement = Statement {
    name: "settle_xxl_runs",
    text: "UPDATE xxl_run SET state = 2, reported_at_ms = COALESCE(reported_at_ms, ?) \
           WHERE log_id {in_list} AND {check}state < 2{end}",
};
/// Only ends that are still assumed: the same condition as in [`crate::xxl::is_assumed`].
const SETTLE_ASSUMED_RUNS: Statement = Statement {
    name: "settle_assumed_xxl_runs",
    text: "UPDATE xxl_run SET state = 2, reported_at_ms = COALESCE(reported_at_ms, ?) \
           WHERE log_id {in_list} AND {check}state < 2 AND code < -1{end}",
};
const NOTE_LOG: Statement =
    Statement { name: "note_xxl_log", text: "UPDATE xxl_run SET log_line = ? WHERE log_id = ? AND log_line < ?" };
pub(super) const FIND_OLD_RUNS: Statement = Statement {
    name: "find_old_xxl_runs",
    text: "SELECT log_id FROM xxl_run WHERE state = 2 AND reported_at_ms < ? ORDER BY reported_at_ms LIMIT ?",
};
/// If an executor vanished, its attempts are never settled. A run that is no longer in the table has ended.
pub(super) const FIND_ABANDONED_RUNS: Statement = Statement {
    name: "find_left_xxl_runs",
    text: "SELECT log_id FROM xxl_run WHERE state < 2 AND sent_at_ms < ? AND NOT EXISTS (SELECT 1 FROM run \
           WHERE run.id = xxl_run.run_id AND run.status IN ('pending', 'waiting', 'running')) LIMIT ?",
};
const DELETE_RUNS: Statement =
    Statement { name: "delete_xxl_runs", text: "DELETE FROM xxl_run WHERE log_id {in_list}" };
/// The condition compares with a value instead of NULL, so that the planner does not use the index of executors registered by hand.
pub(super) const FIND_OLD_EXECUTORS: Statement = Statement {
    name: "find_old_xxl_executors",
    text: "SELECT id FROM xxl_executor WHERE last_seen_at_ms < ? AND COALESCE(left_at_ms, 0) < ? \
           AND COALESCE(by_hand_at_ms, -1) < 0 AND NOT EXISTS (SELECT 1 FROM xxl_run \
           WHERE xxl_run.executor_id = xxl_executor.id AND xxl_run.state < 2) ORDER BY last_seen_at_ms LIMIT ?",
};
/// Checks the condition again, because an executor may have registered again in the meantime.
const DELETE_EXECUTORS: Statement = Statement {
    name: "delete_xxl_executors",
    text: "DELETE FROM xxl_executor WHERE id {in_list} AND last_seen_at_ms < ? AND by_hand_at_ms IS NULL",
};

/// The context with which an executor's token is sealed. A text that was sealed with another context cannot be opened with it.
fn seal_context(app: AppId, address: &str) -> String {
    format!("xxl_executor.token {app} {address}")
}

#[async_trait]
impl XxlExecutors for SqlStore {
    async fn register_xxl(&self, executor: &XxlExecutor) -> Result<ExecutorId> {
        let (app, address) = (executor.app.get(), executor.address.as_str());
        let sealed_token = self.sealer.seal(&seal_context(executor.app, address), &executor.token);
        let token = sealed_token.map_err(|message| failure::refused("register_xxl", &message))?;
        let refresh = || Query::new(&REFRESH_EXECUTOR).text(&token).at(executor.last_seen_at).int(app).text(address);
        self.save_xxl_executor(executor, refresh, &token).await
    }

    async fn register_xxl_by_hand(&self, executor: &XxlExecutor, now: Timestamp) -> Result<ExecutorId> {
        let (app, address) = (executor.app.get(), executor.address.as_str());
        let sealed_token = self.sealer.seal(&seal_context(executor.app, address), &executor.token);
        let token = sealed_token.map_err(|message| failure::refused("register_xxl_by_hand", &message))?;
        let register = || Query::new(&REGISTER_BY_HAND).text(&token).at(now).int(app).text(address);
        // Only a user has registered this executor. It was never seen.
        let unseen_executor = XxlExecutor { last_seen_at: Timestamp::EPOCH, by_hand_at: Some(now), ..executor.clone() };
        self.save_xxl_executor(&unseen_executor, register, &token).await
    }

    async fn unregister_xxl_by_hand(&self, app: AppId, address: &str) -> Result<bool> {
        let registered_ms = i64::try_from(XXL_REGISTERED_FOR.as_millis()).unwrap_or(i64::MAX);
        Ok(self.execute(Query::new(&UNREGISTER_BY_HAND).int(registered_ms).int(app.get()).text(address)).await? > 0)
    }

    async fn xxl_registered_by_hand(&self, app: Option<AppId>, limit: u32) -> Result<Vec<XxlExecutor>> {
        let query = match app {
            Some(app) => Query::new(&LIST_EXECUTORS_BY_HAND_OF_APP).int(app.get()),
            None => Query::new(&LIST_EXECUTORS_BY_HAND),
        };
        Ok(self.readable_xxl_executors(&self.rows(query.int(limit.into())).await?))
    }

    async fn unregister_xxl(&self, app: AppId, address: &str, now: Timestamp) -> Result<bool> {
        let query = Query::new(&LEAVE_EXECUTOR).at(now).int(app.get()).text(address);
        Ok(self.execute(query).await? > 0)
    }

    async fn xxl_executors(&self, since: Timestamp, limit: u32) -> Result<Vec<XxlExecutor>> {
        Ok(self.readable_xxl_executors(&self.rows(Query::new(&LIST_EXECUTORS).at(since).int(limit.into())).await?))
    }

    async fn xxl_executors_with_unsettled_ends(&self, before: Timestamp, limit: u32) -> Result<Vec<XxlExecutor>> {
        Ok(self.readable_xxl_executors(
            &self.rows(Query::new(&LIST_EXECUTORS_WITH_UNSETTLED_ENDS).at(before).int(limit.into())).await?,
        ))
    }

    async fn send_xxl(&self, token: LeaseToken, runs: &[NewXxlRun], now: Timestamp) -> Result<Option<Vec<XxlRun>>> {
        transact!(self, "send_xxl", |tx| {
            let lease_row = tx.row(Query::new(&LOCK_LEASE).int(token.node.get()).int(token.epoch)).await?;
            match lease_row {
                None => Ok(None),
                Some(_) => tx.number_xxl_runs(token.node, runs, now).await.map(Some),
            }
        })
    }

    async fn unsettled_xxl(&self, executor: ExecutorId, limit: u32) -> Result<Vec<XxlRun>> {
        let rows = self.rows(Query::new(&READ_UNSETTLED_RUNS).int(executor.get()).int(limit.into())).await?;
        rows.iter().map(read_run).collect()
    }

    async fn report_xxl(&self, app: AppId, reports: &[XxlReport], now: Timestamp) -> Result<XxlReportResults> {
        transact!(self, "report_xxl", |tx| {
            let mut results = XxlReportResults::default();
            for chunk in reports.chunks(CHUNK_MAX) {
                let ids: BTreeSet<i64> = chunk.iter().map(|report| report.log_id).collect();
                let rows = tx.rows(Query::new(&LOCK_RUNS).list(ids.into_iter())).await?;
                let runs = rows.iter().map(|row| read_run(row).map(|run| (run.log_id, run)));
                let mut runs = runs.collect::<Result<BTreeMap<i64, XxlRun>>>()?;
                let outcomes = apply_reports(app, chunk, &mut runs, now);
                runs.retain(|_, run| run.app == app);
                let accepted_id = |report: &XxlReport, outcome: XxlReportOutcome| {
                    (outcome == XxlReportOutcome::Accepted).then_some(report.log_id)
                };
                let changed_ids: BTreeSet<i64> =
                    chunk.iter().zip(&outcomes).filter_map(|(report, outcome)| accepted_id(report, *outcome)).collect();
                tx.write_xxl_ends(runs.values().filter(|run| changed_ids.contains(&run.log_id)), now).await?;
                results.outcomes.extend(outcomes);
                results.runs.extend(runs.into_values());
            }
            Ok(results)
        })
    }

    async fn settle_xxl(&self, settlements: &[XxlSettlement], now: Timestamp) -> Result<()> {
        let (assumed, known): (Vec<XxlSettlement>, Vec<XxlSettlement>) =
            settlements.iter().copied().partition(XxlSettlement::is_assumed);
        for (statement, group) in [(&SETTLE_RUNS, known), (&SETTLE_ASSUMED_RUNS, assumed)] {
            for chunk in group.chunks(CHUNK_MAX) {
                let log_ids = chunk.iter().map(|settlement| settlement.log_id);
                self.execute(Query::new(statement).at(now).list(log_ids)).await?;
            }
        }
        Ok(())
    }

    async fn note_xxl_log(&self, log_id: i64, next_line: i64) -> Result<()> {
        self.execute(Query::new(&NOTE_LOG).int(next_line).int(log_id).int(next_line)).await.map(drop)
    }

    async fn forget_xxl(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let limit = i64::from(limit).min(i64::try_from(CHUNK_MAX).unwrap_or(i64::MAX));
        let mut count = 0;
        for find_statement in [&FIND_OLD_RUNS, &FIND_ABANDONED_RUNS] {
            let rows = self.rows(Query::new(find_statement).at(before).int(limit)).await?;
            let ids = read_ids(&rows, "xxl_run", "log_id")?;
            if !ids.is_empty() {
                count += self.execute(Query::new(&DELETE_RUNS).list(ids.into_iter())).await?;
            }
        }
        let rows = self.rows(Query::new(&FIND_OLD_EXECUTORS).at(before).at(before).int(limit)).await?;
        let ids = read_ids(&rows, "xxl_executor", "id")?;
        if !ids.is_empty() {
            count += self.execute(Query::new(&DELETE_EXECUTORS).list(ids.into_iter()).at(before)).await?;
        }
        Ok(count)
    }
}

impl SqlStore {
    /// Changes the row of an executor, or inserts it, and returns its id.
    async fn save_xxl_executor(
        &self,
        executor: &XxlExecutor,
        change: impl Fn() -> Query,
        token: &str,
    ) -> Result<ExecutorId> {
        let (app, address) = (executor.app.get(), executor.address.as_str());
        if self.execute(change()).await? == 0 {
            let insert = Query::new(&INSERT_EXECUTOR).int(executor.id.get()).int(executor.namespace.get()).int(app);
            let insert = insert.text(address).text(token).at(executor.first_seen_at).at(executor.last_seen_at);
            if self.execute(insert.opt_at(executor.by_hand_at)).await? == 0 {
                // Another call has inserted the row in the meantime.
                self.execute(change()).await?;
            }
        }
        let row = self.row(Query::new(&READ_EXECUTOR).int(app).text(address)).await?;
        let Some(row) = row else { return Ok(executor.id) };
        Reader::new(&row, "xxl_executor").int("id").map(ExecutorId::new)
    }

    /// Seals the tokens of executors that are registered by hand, if they are plain or sealed with an older key, so that they stay readable
    /// without that key. Nothing else writes these rows again. An executor that registers itself sends its token again.
    pub(super) async fn seal_xxl_by_hand(&self) -> Result<()> {
        for row in self.rows(Query::new(&READ_TOKENS_BY_HAND)).await? {
            let mut columns = Reader::new(&row, "xxl_executor");
            let (id, app) = (columns.int("id")?, AppId::new(columns.int("app_id")?));
            let (address, sealed_token) = (columns.text("address")?, columns.text("token")?);
            let token = match self.sealer.open(&seal_context(app, &address), &sealed_token) {
                Ok(token) => token,
                Err(reason) => {
                    tracing::warn!(
                        address,
                        reason,
                        "the token of an executor of XXL-JOB cannot be read; register it again"
                    );
                    continue;
                }
            };
            if self.sealer.is_stale(&sealed_token) {
                let resealed_token = self.sealer.seal(&seal_context(app, &address), &token);
                let resealed_token = resealed_token.map_err(|message| failure::refused("seal_xxl_token", &message))?;
                self.execute(Query::new(&SEAL_TOKEN).text(&resealed_token).int(id).text(&sealed_token)).await?;
            }
        }
        Ok(())
    }

    fn readable_xxl_executors(&self, rows: &[AnyRow]) -> Vec<XxlExecutor> {
        let mut executors = Vec::with_capacity(rows.len());
        for row in rows {
            match self.xxl_executor(row) {
                Ok(executor) => executors.push(executor),
                // No key of this server opens the token. The executor sends it again when it registers again.
                Err(error) => tracing::debug!(%error, "leaving out an executor until it registers again"),
            }
        }
        executors
    }

    fn xxl_executor(&self, row: &AnyRow) -> Result<XxlExecutor> {
        let mut columns = Reader::new(row, "xxl_executor");
        let id = ExecutorId::new(columns.int("id")?);
        let namespace = NamespaceId::new(columns.int("namespace_id")?);
        let app = AppId::new(columns.int("app_id")?);
        let address = columns.text("address")?;
        let sealed_token = columns.text("token")?;
        let open_result = self.sealer.open(&seal_context(app, &address), &sealed_token);
        let token = open_result.map_err(|message| columns.corrupt("token", message))?;
        let (first_seen_at, last_seen_at) = (columns.at("first_seen_at_ms")?, columns.at("last_seen_at_ms")?);
        let (left_at, by_hand_at) = (columns.opt_at("left_at_ms")?, columns.opt_at("by_hand_at_ms")?);
        Ok(XxlExecutor { id, namespace, app, address, token, first_seen_at, last_seen_at, left_at, by_hand_at })
    }
}

impl Tx<'_> {
    /// Writes ends. Attempts that ended alike are written by one statement.
    async fn write_xxl_ends(&mut self, runs: impl Iterator<Item = &XxlRun>, now: Timestamp) -> Result<()> {
        let mut runs_by_end: BTreeMap<(Option<i32>, Option<&str>), Vec<i64>> = BTreeMap::new();
        for run in runs {
            runs_by_end.entry((run.code, run.message.as_deref())).or_default().push(run.log_id);
        }
        for ((code, message), ids) in runs_by_end {
            let write = Query::new(&REPORT_RUNS).opt_int(code.map(i64::from)).opt_text(message).at(now);
            let count = ids.len();
            self.execute_all(write.list(ids.into_iter()), count).await?;
        }
        Ok(())
    }

    /// Takes `count` consecutive numbers, and returns the first.
    async fn take_xxl_numbers(&mut self, name: &str, count: usize) -> Result<i64> {
        let row = self.row(Query::new(&LOCK_COUNTER).text(name)).await?;
        let row = row.ok_or_else(|| failure::refused("send_xxl", "xxl_counter has lost a row"))?;
        let first_number = Reader::new(&row, "xxl_counter").int("next_value")?;
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.execute_all(Query::new(&MOVE_COUNTER).int(count).text(name), 1).await?;
        Ok(first_number)
    }

    async fn number_xxl_runs(&mut self, node: NodeId, runs: &[NewXxlRun], now: Timestamp) -> Result<Vec<XxlRun>> {
        let mut numbered_runs = Vec::with_capacity(runs.len());
        for chunk in runs.chunks(CHUNK_MAX) {
            let first_number = self.take_xxl_numbers("log", chunk.len()).await?;
            let numbers = self.xxl_job_numbers(chunk).await?;
            let rows = (first_number..).zip(chunk).map(|(log_id, run)| XxlRun {
                log_id,
                run: run.run,
                attempt: run.attempt,
                job: run.job,
                number: numbers.get(&run.job).copied().unwrap_or_default(),
                executor: run.executor,
                app: run.app,
                node,
                sent_at: now,
                state: XxlRunState::Open,
                code: None,
                message: None,
                reported_at: None,
                log_line: 1,
            });
            let rows: Vec<XxlRun> = rows.collect();
            let insert = Query::new(&INSERT_RUNS).rows(&rows, |query, row| {
                let query = query.int(row.log_id).int(row.run.get()).int(row.attempt.into()).int(row.job.get());
                let query = query.int(row.number.into()).int(row.executor.get()).int(row.app.get());
                let query = query.int(row.node.get()).at(row.sent_at);
                query.int(XxlRunState::Open.number()).int(1)
            });
            self.execute_all(insert, rows.len()).await?;
            numbered_runs.extend(rows);
        }
        Ok(numbered_runs)
    }

    /// The numbers of these jobs. The caller has locked the counter of runs, so no other transaction assigns a number to a job until the
    /// commit.
    async fn xxl_job_numbers(&mut self, runs: &[NewXxlRun]) -> Result<HashMap<JobId, i32>> {
        let mut jobs: Vec<JobId> = runs.iter().map(|run| run.job).collect();
        jobs.sort_unstable();
        jobs.dedup();
        let mut numbers = HashMap::with_capacity(jobs.len());
        for row in self.rows(Query::new(&READ_NUMBERS).list(jobs.iter().map(|job| job.get()))).await? {
            let mut columns = Reader::new(&row, "xxl_job");
            let job = JobId::new(columns.int("job_id")?);
            numbers.insert(job, columns.int32("number")?);
        }
        jobs.retain(|job| !numbers.contains_key(job));
        if !jobs.is_empty() {
            let first_number = self.take_xxl_numbers("job", jobs.len()).await?;
            let new_numbers: Vec<(JobId, i64)> = jobs.into_iter().zip(first_number..).collect();
            let insert = Query::new(&INSERT_NUMBERS)
                .rows(&new_numbers, |query, (job, number)| query.int(job.get()).int(*number));
            self.execute_all(insert, new_numbers.len()).await?;
            for (job, number) in new_numbers {
                let number =
                    i32::try_from(number).map_err(|_| failure::refused("send_xxl", "no number is left for a job"))?;
                numbers.insert(job, number);
            }
        }
        Ok(numbers)
    }
}

fn read_run(row: &AnyRow) -> Result<XxlRun> {
    let mut columns = Reader::new(row, "xxl_run");
    Ok(XxlRun {
        log_id: columns.int("log_id")?,
        run: RunId::new(columns.int("run_id")?),
        attempt: columns.int32("attempt")?,
        job: JobId::new(columns.int("job_id")?),
        number: columns.int32("number")?,
        executor: ExecutorId::new(columns.int("executor_id")?),
        app: AppId::new(columns.int("app_id")?),
        node: NodeId::new(columns.int("node_id")?),
        sent_at: columns.at("sent_at_ms")?,
        state: {
            let number = columns.int("state")?;
            XxlRunState::of_number(number)
                .ok_or_else(|| columns.corrupt("state", format!("{number} is not a state")))?
        },
        code: columns.opt_int32("code")?,
        message: columns.opt_text("message")?,
        reported_at: columns.opt_at("reported_at_ms")?,
        log_line: columns.int("log_line")?,
    })
}
