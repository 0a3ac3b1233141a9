//! Failures by message, and schedules of reports.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use rondel_core::{JobId, NamespaceId, RunId, Timestamp};
use sqlx::any::AnyRow;

use super::failure;
use super::query::{CHUNK_MAX, Query, Reader, Statement};
use super::{SqlStore, Tx, transact};
use crate::reports::{
    DUE_COUNT_MAX, FailureGains, FailureMessage, FailureQuery, MESSAGE_COUNT_MAX, MESSAGE_JOB_COUNT, ReportChange,
    ReportSaved, ReportWrite, ScheduledReport, most_frequent,
};
use crate::settle::clean_name;
use crate::upkeep::CountedRun;
use crate::{Reports, Result};

/// Maximum number of messages that are read of one part of a long list of jobs.
const PART_COUNT_MAX: u32 = 2_000;

/// The most frequent messages, each with the jobs that had it most: a row for each of these jobs. Of a message the first row alone has
/// the text. The failures are summed up once, by message and job; windows over these sums do the rest.
macro_rules! select_failures {
    ($rest:literal) => {
        concat!(
            "SELECT placed.fold_key, CAST(placed.total AS {bigint}) AS total, placed.job_count, placed.newest_run_id, \
             placed.job_id, placed.run_count, CASE WHEN placed.place = 1 THEN \
             (SELECT MAX(failure_stat.message) FROM failure_stat \
             WHERE failure_stat.job_id = placed.job_id AND failure_stat.day_at_ms >= ? AND failure_stat.day_at_ms < ? \
             AND failure_stat.fold_key = placed.fold_key) END AS message FROM \
             (SELECT summed.fold_key, summed.job_id, summed.run_count, \
             ROW_NUMBER() OVER (PARTITION BY summed.fold_key ORDER BY summed.run_count DESC, summed.job_id) AS place, \
             SUM(summed.run_count) OVER (PARTITION BY summed.fold_key) AS total, \
             COUNT(*) OVER (PARTITION BY summed.fold_key) AS job_count, \
             MAX(summed.newest_run_id) OVER (PARTITION BY summed.fold_key) AS newest_run_id FROM \
             (SELECT failure_stat.fold_key, failure_stat.job_id, \
             CAST(SUM(failure_stat.run_count) AS {bigint}) AS run_count, \
             MAX(failure_stat.newest_run_id) AS newest_run_id FROM failure_stat WHERE ",
            $rest,
            " AND failure_stat.day_at_ms >= ? AND failure_stat.day_at_ms < ? \
             GROUP BY failure_stat.fold_key, failure_stat.job_id) summed) placed WHERE placed.place <= ? \
             ORDER BY placed.total DESC, placed.fold_key, placed.place LIMIT ?"
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
const READ_MESSAGES: Statement =
    Statement { name: "read_messages_of_runs", text: "SELECT id, message FROM run WHERE id {in_list}" };
const READ_FAILURE_KEYS: Statement = Statement {
    name: "read_failure_keys",
    text: "SELECT job_id, day_at_ms, fold_key FROM failure_stat WHERE job_id {in_list} AND day_at_ms >= ? AND day_at_ms <= ?",
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
    text: "SELECT day_at_ms FROM failure_stat WHERE day_at_ms < ? ORDER BY day_at_ms LIMIT ?",
};
const DELETE_FAILURES: Statement =
    Statement { name: "delete_failures", text: "DELETE FROM failure_stat WHERE day_at_ms <= ?" };
const READ_SCHEDULE: Statement =
    Statement { name: "read_report_schedule", text: select_schedule!("WHERE namespace_id = ?") };
pub(super) const FIND_DUE: Statement = Statement {
    name: "find_due_reports",
    text: select_schedule!("WHERE next_at_ms <= ? ORDER BY next_at_ms, namespace_id LIMIT ?"),
};
const INSERT_SCHEDULE: Statement = Statement {
    name: "insert_report_schedule",
    text: "INSERT {ignore} INTO report_schedule (namespace_id, version, spec, author, updated_at_ms, next_at_ms) \
           VALUES (?, 1, ?, ?, ?, ?) {or_ignore}",
};
const UPDATE_SCHEDULE: Statement = Statement {
    name: "update_report_schedule",
    text: "UPDATE report_schedule SET version = version + 1, spec = ?, author = ?, updated_at_ms = ?, next_at_ms = ? \
           WHERE namespace_id = ?",
};
const DELETE_SCHEDULE: Statement =
    Statement { name: "delete_report_schedule", text: "DELETE FROM report_schedule WHERE namespace_id = ?" };
/// Changes nothing if another server has moved the schedule on, or a user has changed it.
const MOVE_SCHEDULE: Statement = Statement {
    name: "move_report_schedule",
    text: "UPDATE report_schedule SET next_at_ms = ?, sent_at_ms = ? WHERE namespace_id = ? AND version = ? AND next_at_ms = ?",
};

#[async_trait]
impl Reports for SqlStore {
    async fn failure_messages(&self, query: &FailureQuery<'_>) -> Result<Vec<FailureMessage>> {
        // A message that is rare in one part of a long list of jobs may be frequent in all of it.
        let is_in_parts = query.jobs.is_some_and(|jobs| jobs.len() > CHUNK_MAX);
        let limit = if is_in_parts { PART_COUNT_MAX } else { query.limit.min(MESSAGE_COUNT_MAX) };
        let mut found: BTreeMap<i64, FailureMessage> = BTreeMap::new();
        for read in reads(query, limit) {
            for row in self.rows(read).await? {
                add_row(&mut found, &row)?;
            }
        }
        Ok(most_frequent(found.into_values().collect(), query.limit))
    }

    async fn forget_failure_stats(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let rows = self.rows(Query::new(&READ_OLD_FAILURES).at(before).int(limit.max(1).into())).await?;
        let Some(last) = rows.last() else { return Ok(0) };
        let day = Reader::new(last, "failure_stat").at("day_at_ms")?;
        self.execute(Query::new(&DELETE_FAILURES).at(day)).await
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
            if !tx.hold_channels(change.namespace, &channel).await?.is_empty() {
                return Ok(ReportSaved::NoChannel);
            }
            let insert = Query::new(&INSERT_SCHEDULE).int(namespace).text(&spec).text(&author);
            if tx.execute(insert.at(change.now).opt_at(change.next_at)).await? == 1 {
                return Ok(ReportSaved::Created);
            }
            let update = Query::new(&UPDATE_SCHEDULE).text(&spec).text(&author).at(change.now);
            tx.execute(update.opt_at(change.next_at).int(namespace)).await?;
            Ok(ReportSaved::Changed)
        })
    }

    async fn delete_report_schedule(&self, namespace: NamespaceId) -> Result<bool> {
        Ok(self.execute(Query::new(&DELETE_SCHEDULE).int(namespace.get())).await? == 1)
    }

    async fn due_reports(&self, now: Timestamp, limit: u32) -> Result<Vec<ScheduledReport>> {
        let rows = self.rows(Query::new(&FIND_DUE).at(now).int(limit.min(DUE_COUNT_MAX).into())).await?;
        rows.iter().map(schedule).collect()
    }

    async fn write_report(&self, write: &ReportWrite<'_>) -> Result<bool> {
        transact!(self, "write_report", |tx| {
            let schedule = write.schedule;
            let moved = Query::new(&MOVE_SCHEDULE).opt_at(write.next_at).at(write.now).int(schedule.namespace.get());
            if tx.execute(moved.int(schedule.version).opt_at(schedule.next_at)).await? != 1 {
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
    /// Counts the messages of runs that failed. The caller holds the cursor: no other transaction changes these rows meanwhile.
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
        let (jobs, first, last) = gains.range();
        let jobs: Vec<JobId> = jobs.into_iter().collect();
        let mut known = BTreeSet::new();
        for chunk in jobs.chunks(CHUNK_MAX) {
            let read = Query::new(&READ_FAILURE_KEYS).list(chunk.iter().map(|job| job.get())).at(first).at(last);
            for row in self.rows(read).await? {
                let mut columns = Reader::new(&row, "failure_stat");
                known.insert((JobId::new(columns.int("job_id")?), columns.at("day_at_ms")?, columns.int("fold_key")?));
            }
        }
        let gains: Vec<_> = gains.bounded(&known).gains.into_iter().collect();
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

/// The queries for one question: about the namespace, about apps, or about jobs in parts.
fn reads(query: &FailureQuery<'_>, limit: u32) -> Vec<Query> {
    let begin = |statement| Query::new(statement).at(query.from).at(query.to);
    let row_count = limit.saturating_mul(MESSAGE_JOB_COUNT);
    let finish = |read: Query| read.at(query.from).at(query.to).int(MESSAGE_JOB_COUNT.into()).int(row_count.into());
    match (query.jobs, query.apps) {
        (Some(jobs), _) => jobs
            .chunks(CHUNK_MAX)
            .map(|chunk| finish(begin(&READ_FAILURES_OF_JOBS).list(chunk.iter().map(|job| job.get()))))
            .collect(),
        (None, Some([])) => Vec::new(),
        (None, Some(apps)) => {
            let apps = apps.iter().take(CHUNK_MAX).map(|app| app.get());
            vec![finish(begin(&READ_FAILURES_OF_APPS).int(query.namespace.get()).list(apps))]
        }
        (None, None) => vec![finish(begin(&READ_FAILURES).int(query.namespace.get()))],
    }
}

/// Adds a job to a message; the first job of a message in each part brings the sums of that part.
fn add_row(found: &mut BTreeMap<i64, FailureMessage>, row: &AnyRow) -> Result<()> {
    let mut columns = Reader::new(row, "failure_stat");
    let number = |value: i64| u64::try_from(value).unwrap_or(0);
    let (key, count) = (columns.int("fold_key")?, number(columns.int("total")?));
    let (job_count, newest) = (number(columns.int("job_count")?), RunId::new(columns.int("newest_run_id")?));
    let job = (JobId::new(columns.int("job_id")?), number(columns.int("run_count")?));
    let message = found.entry(key).or_insert_with(|| FailureMessage {
        key,
        message: String::new(),
        count: 0,
        job_count: 0,
        jobs: Vec::new(),
        newest,
    });
    if let Some(text) = columns.opt_text("message")? {
        message.message = text;
        message.count += count;
        message.job_count += job_count;
        message.newest = message.newest.max(newest);
    }
    message.name_jobs([job]);
    Ok(())
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
