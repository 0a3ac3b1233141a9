//! The data that rules evaluate: events, jobs with their newest success, and the ledger.

use std::collections::BTreeMap;

use rondel_core::{AppId, JobId, JobSpec, NamespaceId, RunId, Timestamp};
use serde::Deserialize;
use sqlx::any::AnyRow;

use super::chunks;
use crate::Result;
use crate::alerts::{AlertEvent, PAGE_MAX, WatchedJob};
use crate::sql::query::{Query, Reader, Statement};
use crate::sql::{SqlStore, Tx};

macro_rules! select_watched {
    ($rest:literal) => {
        concat!(
            "SELECT job.id, job.name, job.app_id, app.name, job_version.spec, job.created_at_ms, \
             job_pulse.succeeded_at_ms FROM job JOIN app ON app.id = job.app_id \
             JOIN job_version ON job_version.job_id = job.id AND job_version.version = job.version \
             LEFT JOIN job_pulse ON job_pulse.job_id = job.id ",
            $rest
        )
    };
}

pub(in crate::sql) const LIST_WATCHED_JOBS: Statement = Statement {
    name: "list_watched",
    text: select_watched!("WHERE job.namespace_id = ? AND job.name > ? AND job.retired = 0 ORDER BY job.name LIMIT ?"),
};
pub(in crate::sql) const LIST_WATCHED_JOBS_OF_APP: Statement = Statement {
    name: "list_watched_of_app",
    text: select_watched!(
        "WHERE job.app_id = ? AND +job.namespace_id = ? AND job.name > ? AND job.retired = 0 ORDER BY job.name LIMIT ?"
    ),
};
const READ_WATCHED_JOBS: Statement =
    Statement { name: "read_watched", text: select_watched!("WHERE job.id {in_list} AND job.retired = 0") };
/// Leaves out shards, because their broadcast gets its own verdict, and groups of a pump that were moved to another executor. Each subquery
/// reads back to the newest success, and no run before it.
pub(in crate::sql) const READ_NEWEST_SUCCESSES_SINCE: Statement = Statement {
    name: "read_succeeded_since",
    text: "SELECT job.id, (SELECT run.fire_at_ms FROM run WHERE run.job_id = job.id AND run.fire_at_ms >= ? \
           AND run.status = 'succeeded' AND (run.reason IS NULL OR run.reason <> 'moved') \
           AND (run.shard_index < 0 OR COALESCE(run.shard_total, 1) <= 1) \
           ORDER BY run.fire_at_ms DESC LIMIT 1) AS succeeded_ms FROM job WHERE job.id {in_list}",
};
const LIST_EVENTS: Statement = Statement {
    name: "list_alert_events",
    text: "SELECT run_id, app_id, job_id, status, reason, fire_at_ms FROM alert_event \
           WHERE namespace_id = ? ORDER BY run_id LIMIT ?",
};
const DELETE_EVENTS: Statement =
    Statement { name: "delete_alert_events", text: "DELETE FROM alert_event WHERE run_id {in_list}" };
/// Shards are left out, because their broadcast gets its own verdict.
const READ_NEW_EVENTS: Statement = Statement {
    name: "read_new_alert_events",
    text: "SELECT run.id, run.namespace_id, run.app_id, run.job_id, run.status, run.reason, run.fire_at_ms FROM run \
           JOIN alert_space ON alert_space.namespace_id = run.namespace_id AND alert_space.watches_runs = 1 \
           WHERE run.id {in_list} AND {check}run.status IN ('failed', 'timed_out', 'unknown', 'skipped'){end} \
           AND NOT EXISTS (SELECT 1 FROM run whole WHERE whole.job_id = run.job_id \
           AND whole.fire_at_ms = run.fire_at_ms AND whole.cause = run.cause AND whole.shard_index = -1 \
           AND run.shard_index >= 0) ORDER BY run.id",
};
const INSERT_EVENTS: Statement = Statement {
    name: "insert_alert_events",
    text: "INSERT {ignore} INTO alert_event (run_id, namespace_id, app_id, job_id, status, reason, fire_at_ms) \
           {values:iiiitti} {or_ignore}",
};

impl SqlStore {
    pub(super) async fn read_alert_events(&self, namespace: NamespaceId, limit: u32) -> Result<Vec<AlertEvent>> {
        let query = Query::new(&LIST_EVENTS).int(namespace.get()).int(limit.into());
        let event = |row: &AnyRow| {
            let mut columns = Reader::new(row, "alert_event");
            Ok(AlertEvent {
                run: RunId::new(columns.int("run_id")?),
                app: AppId::new(columns.int("app_id")?),
                job: JobId::new(columns.int("job_id")?),
                status: columns.word("status")?,
                reason: columns.opt_word("reason")?,
                fire_at: columns.at("fire_at_ms")?,
            })
        };
        self.rows(query).await?.iter().map(event).collect()
    }

    pub(super) async fn read_watched_jobs(
        &self,
        namespace: NamespaceId,
        app: Option<AppId>,
        (after_name, limit): (&str, u32),
    ) -> Result<Vec<WatchedJob>> {
        let query = match app {
            Some(app) => Query::new(&LIST_WATCHED_JOBS_OF_APP).int(app.get()),
            None => Query::new(&LIST_WATCHED_JOBS),
        };
        let query = query.int(namespace.get()).text(after_name).int(limit.min(PAGE_MAX).into());
        self.rows(query).await?.iter().map(watched_job).collect()
    }

    pub(super) async fn read_watched_jobs_by_id(&self, jobs: &[JobId]) -> Result<Vec<WatchedJob>> {
        let mut watched_jobs = Vec::with_capacity(jobs.len());
        for chunk in chunks(jobs) {
            for row in self.rows(Query::new(&READ_WATCHED_JOBS).list(chunk.iter().map(|job| job.get()))).await? {
                watched_jobs.push(watched_job(&row)?);
            }
        }
        watched_jobs.sort_by_key(|job: &WatchedJob| job.id);
        watched_jobs.dedup_by_key(|job| job.id);
        Ok(watched_jobs)
    }

    pub(super) async fn read_newest_successes_since(
        &self,
        jobs: &[JobId],
        since: Timestamp,
    ) -> Result<Vec<(JobId, Timestamp)>> {
        let mut successes = Vec::new();
        for chunk in chunks(jobs) {
            let query = Query::new(&READ_NEWEST_SUCCESSES_SINCE).at(since).list(chunk.iter().map(|job| job.get()));
            for row in self.rows(query).await? {
                let mut columns = Reader::new(&row, "job");
                let job = JobId::new(columns.int("id")?);
                successes.extend(columns.opt_at("succeeded_ms")?.map(|at| (job, at)));
            }
        }
        successes.sort_unstable();
        successes.dedup();
        Ok(successes)
    }
}

impl Tx<'_> {
    /// Inserts an alert event for each of these runs that failed or was skipped, if the run's namespace has an enabled rule about events.
    pub(in crate::sql) async fn insert_alert_events(&mut self, runs: &[RunId]) -> Result<()> {
        for chunk in chunks(runs) {
            let rows = self.rows(Query::new(&READ_NEW_EVENTS).list(chunk.iter().map(|run| run.get()))).await?;
            let mut events = Vec::with_capacity(rows.len());
            for row in &rows {
                let mut columns = Reader::new(row, "run");
                let ids =
                    [columns.int("id")?, columns.int("namespace_id")?, columns.int("app_id")?, columns.int("job_id")?];
                events.push((ids, columns.text("status")?, columns.opt_text("reason")?, columns.int("fire_at_ms")?));
            }
            let size = self.size;
            let queries = size.queries(&INSERT_EVENTS, &events, |query, (ids, status, reason, fire_at)| {
                let query = ids.iter().fold(query, |query, id| query.int(*id));
                query.text(status).opt_text(reason.as_deref()).int(*fire_at)
            });
            for (query, _) in queries {
                self.execute(query).await?;
            }
        }
        Ok(())
    }

    pub(in crate::sql) async fn delete_events(&mut self, runs: &[RunId]) -> Result<()> {
        for chunk in chunks(runs) {
            self.execute(Query::new(&DELETE_EVENTS).list(chunk.iter().map(|run| run.get()))).await?;
        }
        Ok(())
    }
}

fn watched_job(row: &AnyRow) -> Result<WatchedJob> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct LabelsPart {
        labels: BTreeMap<String, String>,
    }
    let mut columns = Reader::new(row, "job");
    let (id, name) = (JobId::new(columns.int("id")?), columns.text("name")?);
    let (app, app_name) = (AppId::new(columns.int("app_id")?), columns.text("name")?);
    let spec = columns.text("spec")?;
    let labels = match spec.contains("\"labels\"") {
        true => serde_json::from_str::<LabelsPart>(&spec).unwrap_or_default().labels,
        false => BTreeMap::new(),
    };
    let expect = match spec.contains("\"expect\"") {
        true => serde_json::from_str::<JobSpec>(&spec).ok().and_then(|spec| spec.expectations()),
        false => None,
    };
    let (created_at, succeeded_at) = (columns.at("created_at_ms")?, columns.opt_at("succeeded_at_ms")?);
    Ok(WatchedJob { id, name, app, app_name, labels, created_at, succeeded_at, expect })
}
