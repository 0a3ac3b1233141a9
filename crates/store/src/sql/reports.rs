//! The trait `Reports` in SQL.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use rondel_core::{AppId, JobId, NamespaceId, RunId, Timestamp};
use sqlx::any::AnyRow;

use super::failure;
use super::query::{CHUNK_MAX, Query, Reader, Statement};
use super::{SqlStore, Tx, transact};
use crate::reports::{
    DUE_COUNT_MAX, FailureGains, FailureMessage, FailureQuery, MESSAGE_COUNT_MAX, MESSAGE_JOB_COUNT_MAX, ReportChange,
    ReportDeleted, ReportSaved, ReportWrite, ScheduledReport, most_frequent,
};
use crate::settle::clean_name;
use crate::upkeep::CountedRun;
use crate::{Reports, Result};

/// Maximum number of messages that are read for one part of a long list of jobs.
const PART_COUNT_MAX: u32 = 2_000;
/// Number of pairs of a message and a job that are read per message.
const PAIRS_PER_MESSAGE: u32 = 10;
/// Maximum number of pairs that are read for all messages together.
const PAIR_COUNT_MAX: u32 = 10_000;

/// Rows of two kinds: the most frequent messages with their number of jobs, and the most frequent pairs of a message and a job. A row with
/// 0 as the number of jobs is a pair. Both kinds come from one sum per job and message. Pairs are not ranked within each message, because
/// in the database that would take longer than everything else. The `job_id` of a message is any of its jobs; it is used only to find the
/// text.
macro_rules! select_failures {
    ($rest:literal) => {
        concat!(
            "WITH summed AS (SELECT failure_stat.job_id, failure_stat.fold_key, \
             CAST(SUM(failure_stat.run_count) AS {bigint}) AS run_count, MAX(failure_stat.newest_run_id) AS newest_run_id \
             FROM failure_stat WHERE ",
            $rest,
            " AND failure_stat.day_at_ms >= ? AND failure_stat.day_at_ms < ? \
             GROUP BY failure_stat.job_id, failure_stat.fold_key) \
             SELECT totals.fold_key, totals.job_id, totals.run_count, totals.job_count, totals.newest_run_id, \
             (SELECT MAX(failure_stat.message) FROM failure_stat WHERE failure_stat.job_id = totals.job_id \
             AND failure_stat.day_at_ms >= ? AND failure_stat.day_at_ms < ? \
             AND failure_stat.fold_key = totals.fold_key) AS message FROM \
             (SELECT summed.fold_key, MIN(summed.job_id) AS job_id, CAST(SUM(summed.run_count) AS {bigint}) AS run_count, \
             COUNT(*) AS job_count, MAX(summed.newest_run_id) AS newest_run_id FROM summed GROUP BY summed.fold_key \
             ORDER BY run_count DESC, summed.fold_key LIMIT ?) totals \
             UNION ALL SELECT pairs.fold_key, pairs.job_id, pairs.run_count, 0, pairs.newest_run_id, NULL FROM \
             (SELECT summed.fold_key, summed.job_id, summed.run_count, summed.newest_run_id FROM summed \
             ORDER BY summed.run_count DESC, summed.job_id LIMIT ?) pairs"
        )
    };
}
/// The jobs with the most runs that failed with one message.
macro_rules! select_jobs {
    ($rest:literal) => {
        concat!(
            "SELECT failure_stat.job_id, CAST(SUM(failure_stat.run_count) AS {bigint}) AS run_count FROM failure_stat WHERE ",
            $rest,
            " AND failure_stat.day_at_ms >= ? AND failure_stat.day_at_ms < ? AND failure_stat.fold_key = ? \
             GROUP BY failure_stat.job_id ORDER BY run_count DESC, failure_stat.job_id LIMIT ?"
        )
    };
}
macro_rules! select_schedule {
    ($rest:literal) => {
        concat!(
            "SELECT namespace_id, version, spec, author, updated_at_ms, next_at_ms, sent_at_ms FROM report_schedule ",
            $rest
        )
    };
}

pub(super) const READ_FAILURES: Statement =
    Statement { name: "read_failures", text: select_failures!("failure_stat.namespace_id = ?") };
const READ_FAILURES_OF_APPS: Statement = Statement {
    name: "read_failures_of_apps",
    text: select_failures!("failure_stat.namespace_id = ? AND failure_stat.app_id {in_list}"),
};
pub(super) const READ_FAILURES_OF_JOBS: Statement =
    Statement { name: "read_failures_of_jobs", text: select_failures!("failure_stat.job_id {in_list}") };
const READ_FAILURES_IN_PRESENT_APPS: Statement = Statement {
    name: "read_failures_in_present_apps",
    text: select_failures!(
        "failure_stat.job_id {in_list} AND failure_stat.app_id = (SELECT job.app_id FROM job WHERE job.id = failure_stat.job_id)"
    ),
};
pub(super) const READ_JOBS_OF_FAILURE: Statement =
    Statement { name: "read_failing_with", text: select_jobs!("failure_stat.namespace_id = ?") };
const READ_JOBS_OF_FAILURE_OF_APPS: Statement = Statement {
    name: "read_failing_with_of_apps",
    text: select_jobs!("failure_stat.namespace_id = ? AND failure_stat.app_id {in_list}"),
};
pub(super) const READ_JOBS_OF_FAILURE_OF_JOBS: Statement =
    Statement { name: "read_failing_with_of_jobs", text: select_jobs!("failure_stat.job_id {in_list}") };
const READ_JOBS_OF_FAILURE_IN_PRESENT_APPS: Statement = Statement {
    name: "read_failing_with_in_present_apps",
    text: select_jobs!(
        "failure_stat.job_id {in_list} AND failure_stat.app_id = (SELECT job.app_id FROM job WHERE job.id = failure_stat.job_id)"
    ),
};
const READ_MESSAGES: Statement =
    Statement { name: "read_messages_of_runs", text: "SELECT id, message FROM run WHERE id {in_list}" };
const READ_FAILURE_KEYS: Statement = Statement {
    name: "read_failure_keys",
    text: "SELECT job_id, day_at_ms, fold_key, app_id FROM failure_stat WHERE job_id {in_list} AND day_at_ms >= ? AND day_at_ms < ?",
};
const ADD_FAILURES: Statement = Statement {
    name: "add_failures",
    text: "INSERT INTO failure_stat (job_id, day_at_ms, fold_key, namespace_id, app_id, message, run_count, newest_run_id) \
           {values:iiiiitii} {or_update:job_id, day_at_ms, fold_key} \
           run_count = failure_stat.run_count + {new:run_count}, \
           newest_run_id = CASE WHEN {new:newest_run_id} > failure_stat.newest_run_id THEN {new:newest_run_id} \
           ELSE failure_stat.newest_run_id END",
};
pub(super) const READ_OLD_FAILURES: Statement = Statement {
    name: "read_old_failures",
    text: "SELECT day_at_ms, job_id FROM failure_stat WHERE day_at_ms < ? ORDER BY day_at_ms LIMIT ?",
};
const DELETE_FAILURES: Statement =
    Statement { name: "delete_failures", text: "DELETE FROM failure_stat WHERE day_at_ms < ?" };
pub(super) const DELETE_FAILURES_AT: Statement =
    Statement { name: "delete_failures_at", text: "DELETE FROM failure_stat WHERE job_id {in_list} AND day_at_ms = ?" };
const READ_SCHEDULE: Statement =
    Statement { name: "read_report_schedule", text: select_schedule!("WHERE namespace_id = ?") };
pub(super) const FIND_DUE_REPORTS: Statement = Statement {
    name: "find_due_reports",
    text: select_schedule!("WHERE next_at_ms <= ? ORDER BY next_at_ms, namespace_id LIMIT ?"),
};
const INSERT_SCHEDULE: Statement = Statement {
    name: "insert_report_schedule",
    text: "INSERT {ignore} INTO report_schedule (namespace_id, version, spec, author, updated_at_ms, next_at_ms) \
           VALUES (?, 1, ?, ?, ?, ?) {or_ignore}",
};
/// A report that is already due stays due.
const UPDATE_SCHEDULE: Statement = Statement {
    name: "update_report_schedule",
    text: "UPDATE report_schedule SET version = version + 1, spec = ?, author = ?, updated_at_ms = ?, \
           next_at_ms = CASE WHEN next_at_ms <= ? THEN next_at_ms ELSE ? END WHERE namespace_id = ?",
};
const LOCK_SCHEDULE: Statement = Statement {
    name: "lock_report_schedule",
    text: "SELECT version FROM report_schedule WHERE namespace_id = ? {for_update}",
};
const DELETE_SCHEDULE: Statement =
    Statement { name: "delete_report_schedule", text: "DELETE FROM report_schedule WHERE namespace_id = ?" };
const DELETE_SCHEDULE_VERSION: Statement = Statement {
    name: "delete_report_schedule_version",
    text: "DELETE FROM report_schedule WHERE namespace_id = ? AND version = ?",
};
/// Changes nothing if another server has already set the next instant, or a user has changed the schedule.
const MOVE_SCHEDULE: Statement = Statement {
    name: "move_report_schedule",
    text: "UPDATE report_schedule SET next_at_ms = ?, sent_at_ms = ? WHERE namespace_id = ? AND version = ? AND next_at_ms = ?",
};

#[async_trait]
impl Reports for SqlStore {
    async fn failure_messages(&self, query: &FailureQuery<'_>) -> Result<Vec<FailureMessage>> {
        let of_jobs = [&READ_FAILURES_OF_JOBS, &READ_FAILURES_IN_PRESENT_APPS];
        let queries = queries_by_jobs(query, [&READ_FAILURES, &READ_FAILURES_OF_APPS], of_jobs);
        // A message that is rare in one part of a long list of jobs can be frequent in the whole list.
        let limit = if queries.len() > 1 { PART_COUNT_MAX } else { query.limit.min(MESSAGE_COUNT_MAX) };
        let mut messages_by_key: BTreeMap<i64, FailureMessage> = BTreeMap::new();
        let pair_limit = limit.saturating_mul(PAIRS_PER_MESSAGE).min(PAIR_COUNT_MAX);
        // Maximum number of runs of a pair that was not read.
        let mut unread_run_count_max = 0;
        for part_query in queries {
            let part_query = part_query.at(query.from).at(query.to).at(query.from).at(query.to).int(limit.into());
            let (mut pair_count, mut run_count_min) = (0, u64::MAX);
            for row in self.rows(part_query.int(pair_limit.into())).await? {
                if let Some(run_count) = add_row(&mut messages_by_key, &row)? {
                    (pair_count, run_count_min) = (pair_count + 1, run_count_min.min(run_count));
                }
            }
            if pair_count >= pair_limit {
                unread_run_count_max = unread_run_count_max.max(run_count_min);
            }
        }
        messages_by_key.retain(|_, message| message.job_count > 0);
        let mut messages = most_frequent(messages_by_key.into_values().collect(), query.limit);
        for message in messages.iter_mut().filter(|message| !message.has_final_jobs(unread_run_count_max)) {
            message.jobs.clear();
            for read in failing_with_queries(query) {
                let read = read.at(query.from).at(query.to).int(message.key).int(MESSAGE_JOB_COUNT_MAX.into());
                for row in self.rows(read).await? {
                    let mut columns = Reader::new(&row, "failure_stat");
                    message.name_jobs([(JobId::new(columns.int("job_id")?), count(columns.int("run_count")?))]);
                }
            }
        }
        Ok(messages)
    }

    async fn forget_failure_stats(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let statements = [&READ_OLD_FAILURES, &DELETE_FAILURES, &DELETE_FAILURES_AT];
        self.remove_oldest(statements, |query| query, (before, limit)).await
    }

    async fn report_schedule(&self, namespace: NamespaceId) -> Result<Option<ScheduledReport>> {
        let row = self.row(Query::new(&READ_SCHEDULE).int(namespace.get())).await?;
        row.map(|row| schedule(&row)).transpose()
    }

    async fn save_report_schedule(&self, change: ReportChange<'_>) -> Result<ReportSaved> {
        let spec = serde_json::to_string(change.spec)
            .map_err(|error| failure::refused("save_report_schedule", &error.to_string()))?;
        let (namespace, author) = (change.namespace.get(), clean_name(change.author));
        transact!(self, "save_report_schedule", |tx| {
            let channel = BTreeSet::from([change.spec.channel.as_str()]);
            if !tx.lock_channels(change.namespace, &channel).await?.is_empty() {
                return Ok(ReportSaved::NoChannel);
            }
            let expected = change.expected_version;
            let insert = Query::new(&INSERT_SCHEDULE).int(namespace).text(&spec).text(&author);
            let insert = insert.at(change.now).opt_at(change.next_at);
            if expected.is_none_or(|expected| expected == 0) && tx.execute(insert).await? == 1 {
                return Ok(ReportSaved::Created);
            }
            let schedule_row = tx.row(Query::new(&LOCK_SCHEDULE).int(namespace)).await?;
            let version = schedule_row.map(|row| Reader::new(&row, "report_schedule").int("version")).transpose()?;
            let version = version.unwrap_or_default();
            if version == 0 || expected.is_some_and(|expected| expected != version) {
                return Ok(ReportSaved::Conflict(version));
            }
            let update = Query::new(&UPDATE_SCHEDULE).text(&spec).text(&author).at(change.now).at(change.now);
            tx.execute(update.opt_at(change.next_at).int(namespace)).await?;
            Ok(ReportSaved::Changed)
        })
    }

    async fn delete_report_schedule(
        &self,
        namespace: NamespaceId,
        expected_version: Option<i64>,
    ) -> Result<ReportDeleted> {
        let delete = match expected_version {
            Some(version) => Query::new(&DELETE_SCHEDULE_VERSION).int(namespace.get()).int(version),
            None => Query::new(&DELETE_SCHEDULE).int(namespace.get()),
        };
        if self.execute(delete).await? == 1 {
            return Ok(ReportDeleted::Deleted);
        }
        let stored_report = self.report_schedule(namespace).await?.filter(|_| expected_version.is_some());
        Ok(stored_report
            .map_or(ReportDeleted::NotFound, |stored_report| ReportDeleted::Conflict(stored_report.version)))
    }

    async fn due_reports(&self, now: Timestamp, limit: u32) -> Result<Vec<ScheduledReport>> {
        let rows = self.rows(Query::new(&FIND_DUE_REPORTS).at(now).int(limit.min(DUE_COUNT_MAX).into())).await?;
        rows.iter().map(schedule).collect()
    }

    async fn write_report(&self, write: &ReportWrite<'_>) -> Result<bool> {
        transact!(self, "write_report", |tx| {
            let schedule = write.schedule;
            let query = Query::new(&MOVE_SCHEDULE).opt_at(write.next_at).at(write.now).int(schedule.namespace.get());
            if tx.execute(query.int(schedule.version).opt_at(schedule.next_at)).await? != 1 {
                return Ok(false);
            }
            if let Some(message) = write.message {
                tx.write_messages(std::slice::from_ref(message)).await?;
            }
            Ok(true)
        })
    }
}

impl Tx<'_> {
    /// Counts the messages of runs that failed. The caller has locked the cursor, so no other transaction changes these rows until the
    /// commit.
    pub(super) async fn add_failures(&mut self, runs: &[CountedRun]) -> Result<()> {
        let mut gains = FailureGains::default();
        for chunk in runs.chunks(CHUNK_MAX) {
            let mut messages = std::collections::HashMap::new();
            let read = Query::new(&READ_MESSAGES).list(chunk.iter().map(|run| run.id.get()));
            for row in self.rows(read).await? {
                let mut columns = Reader::new(&row, "run");
                messages.insert(columns.int("id")?, columns.opt_text("message")?);
            }
            for run in chunk {
                gains.add(run, messages.get(&run.id.get()).and_then(|message| message.as_deref()));
            }
        }
        let (jobs, from, to) = gains.range();
        let jobs: Vec<JobId> = jobs.into_iter().collect();
        let mut stored_apps = BTreeMap::new();
        for chunk in jobs.chunks(CHUNK_MAX) {
            let read = Query::new(&READ_FAILURE_KEYS).list(chunk.iter().map(|job| job.get())).at(from).at(to);
            for row in self.rows(read).await? {
                let mut columns = Reader::new(&row, "failure_stat");
                let key = (JobId::new(columns.int("job_id")?), columns.at("day_at_ms")?, columns.int("fold_key")?);
                stored_apps.insert(key, AppId::new(columns.int("app_id")?));
            }
        }
        let gains: Vec<_> = gains.bounded(stored_apps).into_iter().collect();
        for chunk in gains.chunks(CHUNK_MAX) {
            let add = Query::new(&ADD_FAILURES).rows(chunk, |query, ((job, day, key), gain)| {
                let query = query.int(job.get()).at(*day).int(*key).int(gain.namespace.get()).int(gain.app.get());
                query.text(&gain.message.replace('\0', "")).int(gain.count).int(gain.newest.get())
            });
            self.execute(add).await?;
        }
        Ok(())
    }
}

/// The queries for the jobs that `query` selects: all jobs of the namespace, the jobs of some apps, or a list of jobs, which is split into
/// several queries. Only the arguments that select the jobs are added. The first array has the statements for the first two cases. The
/// second array has the statements for a list of jobs: with all failures of these jobs, and with only the failures in their present apps.
fn queries_by_jobs(
    query: &FailureQuery<'_>,
    [all, of_apps]: [&'static Statement; 2],
    [of_jobs, in_present_apps]: [&'static Statement; 2],
) -> Vec<Query> {
    match (query.jobs, query.apps) {
        (Some(jobs), apps) => {
            let statement = if apps.is_some() { in_present_apps } else { of_jobs };
            jobs.chunks(CHUNK_MAX).map(|chunk| Query::new(statement).list(chunk.iter().map(|job| job.get()))).collect()
        }
        (None, Some([])) => Vec::new(),
        (None, Some(apps)) => {
            let apps = apps.iter().take(CHUNK_MAX).map(|app| app.get());
            vec![Query::new(of_apps).int(query.namespace.get()).list(apps)]
        }
        (None, None) => vec![Query::new(all).int(query.namespace.get())],
    }
}

fn failing_with_queries(query: &FailureQuery<'_>) -> Vec<Query> {
    let of_jobs = [&READ_JOBS_OF_FAILURE_OF_JOBS, &READ_JOBS_OF_FAILURE_IN_PRESENT_APPS];
    queries_by_jobs(query, [&READ_JOBS_OF_FAILURE, &READ_JOBS_OF_FAILURE_OF_APPS], of_jobs)
}

/// Adds a row of [`select_failures`]. The row of a message adds its sums. The row of a pair adds the job to its message. Returns the number
/// of the pair's runs; `None` for the row of a message. The rows may come in any order. A message for which only pairs have come has a
/// `job_count` of 0.
fn add_row(messages: &mut BTreeMap<i64, FailureMessage>, row: &AnyRow) -> Result<Option<u64>> {
    let mut columns = Reader::new(row, "failure_stat");
    let (key, job) = (columns.int("fold_key")?, JobId::new(columns.int("job_id")?));
    let (run_count, job_count) = (count(columns.int("run_count")?), count(columns.int("job_count")?));
    let newest_run = RunId::new(columns.int("newest_run_id")?);
    let new_message =
        || FailureMessage { key, message: String::new(), count: 0, job_count: 0, jobs: Vec::new(), newest: newest_run };
    let message = messages.entry(key).or_insert_with(new_message);
    if job_count == 0 {
        message.name_jobs([(job, run_count)]);
        return Ok(Some(run_count));
    }
    message.message = columns.opt_text("message")?.unwrap_or_default();
    message.count += run_count;
    message.job_count += job_count;
    message.newest = message.newest.max(newest_run);
    Ok(None)
}

fn count(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

fn schedule(row: &AnyRow) -> Result<ScheduledReport> {
    let mut columns = Reader::new(row, "report_schedule");
    Ok(ScheduledReport {
        namespace: NamespaceId::new(columns.int("namespace_id")?),
        version: columns.int("version")?,
        spec: columns.json("spec")?,
        author: columns.text("author")?,
        updated_at: columns.at("updated_at_ms")?,
        next_at: columns.opt_at("next_at_ms")?,
        sent_at: columns.opt_at("sent_at_ms")?,
    })
}
