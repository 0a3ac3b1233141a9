//! The log of XXL-JOB and the status of its jobs: read from its database, and changed there under the lock of its own scheduler.

use std::collections::BTreeMap;

use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use super::{Database, ForeignError, account, is_denied};

/// A row of `xxl_job_log`: an attempt to send a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRow {
    pub id: i64,
    /// The job's number.
    pub job: i64,
    /// When it was sent, in the zone of XXL-JOB's servers: `2026-11-23 10:00:00`.
    pub trigger_time: Option<String>,
    /// The address of the executor; empty if no executor got it.
    pub executor: String,
    /// Shard index and total: `0/3` for the first of three shards.
    pub sharding: String,
    /// 0 while it is being sent, 200 if that succeeded.
    pub trigger_code: i64,
    /// 0 while it runs, 200 if it succeeded.
    pub handle_code: i64,
    /// The beginning of the trace, which names why it was sent.
    pub message: String,
}

/// The status of a job of XXL-JOB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// Whether its schedule fires.
    pub is_running: bool,
    /// The first instant that XXL-JOB's scheduler has not queued yet, in milliseconds; 0 if there is none. XXL-JOB fires all instants
    /// before it.
    pub next_ms: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XxlHandler {
    /// `BEAN` for a handler of the executor, else the kind of its script.
    pub kind: String,
    pub name: String,
}

/// Outcome of stopping a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopOutcome {
    /// It does not fire from this instant on, in milliseconds. Every fire before this instant has happened or will happen.
    At(i64),
    /// Its next instant, in milliseconds, is too near or has passed, so the job keeps running.
    TooNear(i64),
    AlreadyStopped(JobStatus),
}

/// Outcome of starting a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOutcome {
    /// It fires from this instant on, in milliseconds.
    From(i64),
    /// Its instant has passed, so the job stays stopped.
    TooLate,
    AlreadyRunning(JobStatus),
}

/// A connection to XXL-JOB's database. It changes nothing except the status of jobs.
#[derive(Debug)]
pub struct XxlDatabase(MySqlConnection);

impl XxlDatabase {
    /// Connects to a MySQL or MariaDB database.
    ///
    /// # Errors
    /// [`ForeignError::Address`] and [`ForeignError::Database`].
    pub async fn open(url: &str) -> Result<Self, ForeignError> {
        match Database::connect(url, false).await? {
            Database::MySql(connection) => Ok(Self(connection)),
            Database::Postgres(_) => Err(ForeignError::Address("postgres://…".to_owned(), super::MYSQL_FORM)),
        }
    }

    /// Rows of `xxl_job_log` with numbers above `after`, in the order of their numbers, at most `limit`.
    ///
    /// # Errors
    ///
    /// [`ForeignError::Database`].
    pub async fn xxl_logs(&mut self, after: i64, limit: u32) -> Result<Vec<LogRow>, ForeignError> {
        let text = "SELECT CAST(id AS SIGNED), CAST(job_id AS SIGNED), CAST(trigger_time AS CHAR), COALESCE(executor_address, ''), \
                    COALESCE(executor_sharding_param, ''), CAST(trigger_code AS SIGNED), CAST(handle_code AS SIGNED), \
                    COALESCE(SUBSTRING(trigger_msg, 1, 200), '') FROM xxl_job_log WHERE id > ? ORDER BY id LIMIT ?";
        let rows = sqlx::query(text).bind(after).bind(limit).fetch_all(&mut self.0).await?;
        let read_row = |row: &sqlx::mysql::MySqlRow| -> Result<LogRow, sqlx::Error> {
            Ok(LogRow {
                id: row.try_get(0)?,
                job: row.try_get(1)?,
                trigger_time: row.try_get(2)?,
                executor: row.try_get(3)?,
                sharding: row.try_get(4)?,
                trigger_code: row.try_get(5)?,
                handle_code: row.try_get(6)?,
                message: row.try_get(7)?,
            })
        };
        Ok(rows.iter().map(read_row).collect::<Result<_, _>>()?)
    }

    /// The highest number in `xxl_job_log`; 0 if it is empty.
    ///
    /// # Errors
    /// [`ForeignError::Database`].
    pub async fn xxl_last_log(&mut self) -> Result<i64, ForeignError> {
        let last_log_id: Option<i64> =
            sqlx::query_scalar("SELECT CAST(MAX(id) AS SIGNED) FROM xxl_job_log").fetch_one(&mut self.0).await?;
        Ok(last_log_id.unwrap_or(0))
    }

    /// The highest number of a row that was sent before `at`, such as `2026-11-23 10:00:00` in XXL-JOB's zone; 0 if there is none.
    ///
    /// # Errors
    /// [`ForeignError::Database`].
    pub async fn xxl_log_before(&mut self, at: &str) -> Result<i64, ForeignError> {
        let text = "SELECT CAST(MIN(id) - 1 AS SIGNED) FROM xxl_job_log WHERE trigger_time >= ?";
        let first_log_id: Option<i64> = sqlx::query_scalar(text).bind(at).fetch_one(&mut self.0).await?;
        match first_log_id {
            Some(before) => Ok(before.max(0)),
            None => self.xxl_last_log().await,
        }
    }

    /// The status of jobs; jobs that do not exist are left out.
    ///
    /// # Errors
    /// [`ForeignError::Database`].
    pub async fn xxl_jobs(&mut self, jobs: &[i64]) -> Result<BTreeMap<i64, JobStatus>, ForeignError> {
        Ok(read_jobs(&mut self.0, jobs, "").await?)
    }

    /// The handlers of jobs; jobs that do not exist are left out.
    ///
    /// # Errors
    /// [`ForeignError::Database`].
    pub async fn xxl_handlers(&mut self, jobs: &[i64]) -> Result<BTreeMap<i64, XxlHandler>, ForeignError> {
        if jobs.is_empty() {
            return Ok(BTreeMap::new());
        }
        let text = format!(
            "SELECT CAST(id AS SIGNED), COALESCE(glue_type, ''), COALESCE(executor_handler, '') FROM xxl_job_info WHERE id IN ({})",
            placeholders(jobs.len())
        );
        let query = jobs.iter().fold(sqlx::query(AssertSqlSafe(text)), |query, job| query.bind(job));
        let read_row = |row: &sqlx::mysql::MySqlRow| -> Result<(i64, XxlHandler), sqlx::Error> {
            Ok((row.try_get(0)?, XxlHandler { kind: row.try_get(1)?, name: row.try_get(2)? }))
        };
        Ok(query.fetch_all(&mut self.0).await?.iter().map(read_row).collect::<Result<_, _>>()?)
    }

    /// Stops each job from its next instant on, if that instant is `not_before` or later. `not_before` is called once the lock of XXL-JOB's
    /// scheduler is held. The scheduler waits for the lock in the meantime, so it has queued exactly the fires before the next instant.
    /// That instant stays in the row and shows that Rondel stopped the job.
    ///
    /// # Errors
    /// [`ForeignError`].
    pub async fn xxl_stop(
        &mut self,
        jobs: &[i64],
        not_before: impl Fn() -> i64,
    ) -> Result<BTreeMap<i64, StopOutcome>, ForeignError> {
        let mut transaction = self.0.begin().await?;
        lock_scheduler(&mut transaction).await?;
        let current_jobs = read_jobs(&mut transaction, jobs, " FOR UPDATE").await?;
        let not_before = not_before();
        // XXL-JOB fires an instant within a second at the beginning of that second.
        let fires_at = |status: JobStatus| status.next_ms.div_euclid(1_000) * 1_000;
        let stop_outcome = |status: JobStatus| match status.is_running {
            true if fires_at(status) >= not_before => StopOutcome::At(status.next_ms),
            true => StopOutcome::TooNear(status.next_ms),
            false => StopOutcome::AlreadyStopped(status),
        };
        let outcomes: BTreeMap<i64, StopOutcome> =
            current_jobs.into_iter().map(|(job, status)| (job, stop_outcome(status))).collect();
        let is_stopped = |(job, outcome): (&i64, &StopOutcome)| matches!(outcome, StopOutcome::At(_)).then_some(*job);
        let jobs: Vec<i64> = outcomes.iter().filter_map(is_stopped).collect();
        // One statement for all jobs, because each round trip shortens the time that is left until they must have stopped.
        if !jobs.is_empty() {
            let text = format!("UPDATE xxl_job_info SET trigger_status = 0 WHERE id IN ({})", placeholders(jobs.len()));
            let query = jobs.iter().fold(sqlx::query(AssertSqlSafe(text)), |query, job| query.bind(job));
            query.execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
        Ok(outcomes)
    }

    /// Checks whether the account may change jobs. Changes and locks no row.
    ///
    /// # Errors
    /// [`ForeignError::Denied`] if it may not, and [`ForeignError::Database`].
    pub async fn xxl_check_rights(&mut self) -> Result<(), ForeignError> {
        let mut denied_grants = Vec::new();
        for (table, text) in RIGHT_CHECKS {
            match sqlx::query(text).execute(&mut self.0).await {
                Ok(_) => {}
                Err(error) if is_denied(&error) => denied_grants.push(table),
                Err(error) => return Err(error.into()),
            }
        }
        if denied_grants.is_empty() {
            return Ok(());
        }
        let (schema, account) = account(&mut self.0).await?;
        let grant = |table: &&str| format!("GRANT SELECT, UPDATE ON {schema}.{table} TO {account}");
        Err(ForeignError::Denied(denied_grants.iter().map(grant).collect::<Vec<_>>().join("; ")))
    }

    /// Marks stopped jobs without a next instant as switched over to Rondel. The mark is an instant in the job's row: a stopped job has one
    /// only if it was switched over, or if a demotion was about to start it. XXL-JOB resets the instant when it starts or stops the job.
    ///
    /// # Errors
    /// [`ForeignError::Database`].
    pub async fn xxl_mark(&mut self, jobs: &[i64], at_ms: i64) -> Result<(), ForeignError> {
        self.set_mark(jobs, at_ms, "AND trigger_next_time = 0").await
    }

    /// Removes the mark from stopped jobs.
    ///
    /// # Errors
    /// [`ForeignError::Database`].
    pub async fn xxl_unmark(&mut self, jobs: &[i64]) -> Result<(), ForeignError> {
        self.set_mark(jobs, 0, "").await
    }

    async fn set_mark(&mut self, jobs: &[i64], at_ms: i64, condition: &str) -> Result<(), ForeignError> {
        if jobs.is_empty() {
            return Ok(());
        }
        let text = format!(
            "UPDATE xxl_job_info SET trigger_next_time = ? WHERE id IN ({}) AND trigger_status = 0 {condition}",
            placeholders(jobs.len())
        );
        let query = sqlx::query(AssertSqlSafe(text)).bind(at_ms);
        jobs.iter().fold(query, |query, job| query.bind(*job)).execute(&mut self.0).await?;
        Ok(())
    }

    /// Checks whether these jobs may be changed. Changes nothing.
    ///
    /// # Errors
    /// [`ForeignError`] if they may not.
    pub async fn xxl_may_write(&mut self, jobs: &[i64]) -> Result<(), ForeignError> {
        let mut transaction = self.0.begin().await?;
        lock_scheduler(&mut transaction).await?;
        let text = format!(
            "UPDATE xxl_job_info SET trigger_status = trigger_status, trigger_last_time = trigger_last_time, \
             trigger_next_time = trigger_next_time WHERE id IN ({})",
            placeholders(jobs.len())
        );
        let query = jobs.iter().fold(sqlx::query(AssertSqlSafe(text)), |query, job| query.bind(job));
        query.execute(&mut *transaction).await?;
        Ok(transaction.rollback().await?)
    }

    /// Starts stopped jobs. `jobs` has the number of each job and the instant, in milliseconds, from which it fires. A job whose instant is
    /// before `not_before` stays stopped. `not_before` is called once the lock of XXL-JOB's scheduler is held. Jobs that do not exist are
    /// left out.
    ///
    /// # Errors
    /// [`ForeignError`].
    pub async fn xxl_start(
        &mut self,
        jobs: &[(i64, i64)],
        not_before: impl Fn() -> i64,
    ) -> Result<BTreeMap<i64, StartOutcome>, ForeignError> {
        let mut transaction = self.0.begin().await?;
        lock_scheduler(&mut transaction).await?;
        let job_ids: Vec<i64> = jobs.iter().map(|(job, _)| *job).collect();
        let current_jobs = read_jobs(&mut transaction, &job_ids, " FOR UPDATE").await?;
        let not_before = not_before();
        let start_outcome = |(job, next_ms): &(i64, i64)| {
            let start_outcome = match current_jobs.get(job)? {
                status if status.is_running => StartOutcome::AlreadyRunning(*status),
                _ if *next_ms < not_before => StartOutcome::TooLate,
                _ => StartOutcome::From(*next_ms),
            };
            Some((*job, start_outcome))
        };
        let outcomes: BTreeMap<i64, StartOutcome> = jobs.iter().filter_map(start_outcome).collect();
        let job_and_start = |(job, outcome): (&i64, &StartOutcome)| match outcome {
            StartOutcome::From(next_ms) => Some((*job, *next_ms)),
            StartOutcome::TooLate | StartOutcome::AlreadyRunning(_) => None,
        };
        let starts: Vec<(i64, i64)> = outcomes.iter().filter_map(job_and_start).collect();
        if !starts.is_empty() {
            let text = format!(
                "UPDATE xxl_job_info SET trigger_status = 1, trigger_last_time = 0, trigger_next_time = CASE id{} END WHERE id IN ({})",
                " WHEN ? THEN ?".repeat(starts.len()),
                placeholders(starts.len())
            );
            let bind_pair = |query: MySqlQuery, (job, next_ms): &(i64, i64)| query.bind(*job).bind(*next_ms);
            let query = starts.iter().fold(sqlx::query(AssertSqlSafe(text)), bind_pair);
            let query = starts.iter().fold(query, |query, (job, _)| query.bind(*job));
            query.execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
        Ok(outcomes)
    }
}

/// The tables that are changed or locked when jobs are stopped and started, each with a statement that needs the same rights and finds no
/// row.
const RIGHT_CHECKS: [(&str, &str); 2] = [
    (
        "xxl_job_info",
        "UPDATE xxl_job_info SET trigger_status = trigger_status, trigger_last_time = trigger_last_time, \
         trigger_next_time = trigger_next_time WHERE 1 = 0",
    ),
    ("xxl_job_lock", "SELECT lock_name FROM xxl_job_lock WHERE 1 = 0 FOR UPDATE"),
];
type MySqlQuery = sqlx::query::Query<'static, sqlx::MySql, sqlx::mysql::MySqlArguments>;

fn placeholders(count: usize) -> String {
    vec!["?"; count].join(", ")
}

/// Locks the row that XXL-JOB's servers lock while they plan. Waits for the server that holds the lock.
async fn lock_scheduler(connection: &mut MySqlConnection) -> Result<(), ForeignError> {
    let text = "SELECT lock_name FROM xxl_job_lock WHERE lock_name = 'schedule_lock' FOR UPDATE";
    match sqlx::query(text).fetch_optional(connection).await? {
        Some(_) => Ok(()),
        None => Err(ForeignError::NoLock),
    }
}

async fn read_jobs(
    connection: &mut MySqlConnection,
    jobs: &[i64],
    lock_clause: &str,
) -> Result<BTreeMap<i64, JobStatus>, sqlx::Error> {
    if jobs.is_empty() {
        return Ok(BTreeMap::new());
    }
    let placeholders = placeholders(jobs.len());
    let text = format!(
        "SELECT CAST(id AS SIGNED), CAST(trigger_status AS SIGNED), CAST(COALESCE(trigger_next_time, 0) AS SIGNED) \
         FROM xxl_job_info WHERE id IN ({placeholders}) ORDER BY id{lock_clause}"
    );
    let mut query = sqlx::query(AssertSqlSafe(text));
    for job in jobs {
        query = query.bind(job);
    }
    let rows = query.fetch_all(connection).await?;
    let read_row = |row: &sqlx::mysql::MySqlRow| -> Result<(i64, JobStatus), sqlx::Error> {
        let status: i64 = row.try_get(1)?;
        Ok((row.try_get(0)?, JobStatus { is_running: status == 1, next_ms: row.try_get(2)? }))
    };
    rows.iter().map(read_row).collect()
}
