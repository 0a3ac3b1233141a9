//! Alert rules, their incidents and silences.

pub(super) mod dead;
pub(super) mod expects;
pub(super) mod facts;
pub(super) mod incidents;
pub(super) mod maintenance;
mod rules;

use async_trait::async_trait;
use rondel_core::alert::{Incident, OpenIncidents, SubjectKind};
use rondel_core::{AlertRuleId, AppId, IncidentId, JobId, MaintenanceId, NamespaceId, RunId, SilenceId, Timestamp};

use super::query::{CHUNK_MAX, Query, Reader, Statement, read_ids};
use super::{SqlStore, Tx, failure, transact};
use crate::alerts::{
    AlertEvent, AlertWrite, ExpectCheck, IncidentQuery, IncidentRecord, MaintenanceRecord, OpenRunExpectations,
    PAGE_MAX, RuleChange, RuleDeleted, RuleRecord, RuleSaved, SILENCE_COUNT_MAX, SilenceRecord, WatchedJob,
};
use crate::{Alerts, Result};

/// Needs at most four index lookups per row of `alert_space`.
pub(super) const FIND_DUE_SPACES: Statement = Statement {
    name: "find_due_spaces",
    text: "SELECT alert_space.namespace_id FROM alert_space WHERE EXISTS (SELECT 1 FROM alert_event \
           WHERE alert_event.namespace_id = alert_space.namespace_id) OR EXISTS (SELECT 1 FROM alert_rule \
           WHERE alert_rule.namespace_id = alert_space.namespace_id AND alert_rule.check_at_ms <= ?) \
           OR EXISTS (SELECT 1 FROM incident WHERE incident.namespace_id = alert_space.namespace_id \
           AND incident.act_at_ms <= ?) OR EXISTS (SELECT 1 FROM job_expect \
           WHERE job_expect.namespace_id = alert_space.namespace_id AND job_expect.look_at_ms <= ?) \
           OR alert_space.open_look_at_ms <= ? ORDER BY alert_space.namespace_id",
};
const READ_SPACE: Statement =
    Statement { name: "read_alert_space", text: "SELECT version FROM alert_space WHERE namespace_id = ?" };
const INSERT_SPACE: Statement = Statement {
    name: "insert_alert_space",
    text: "INSERT {ignore} INTO alert_space (namespace_id, version, watches_runs) VALUES (?, 0, 0) {or_ignore}",
};
const RAISE_SPACE_VERSION: Statement = Statement {
    name: "raise_alert_space",
    text: "UPDATE alert_space SET version = version + 1 WHERE namespace_id = ?",
};
const RAISE_SPACE_VERSION_FROM: Statement = Statement {
    name: "raise_alert_space_from",
    text: "UPDATE alert_space SET version = version + 1 WHERE namespace_id = ? AND version = ?",
};
const LIST_SILENCES: Statement = Statement {
    name: "list_silences",
    text: "SELECT id, namespace_id, spec, author, reason, created_at_ms, ends_at_ms FROM silence \
           WHERE namespace_id = ? AND ends_at_ms > ? ORDER BY ends_at_ms, id LIMIT ?",
};
const INSERT_SILENCE: Statement = Statement {
    name: "insert_silence",
    text: "INSERT INTO silence (id, namespace_id, spec, author, reason, created_at_ms, ends_at_ms) \
           VALUES (?, ?, ?, ?, ?, ?, ?)",
};
const END_SILENCE: Statement = Statement {
    name: "end_silence",
    text: "UPDATE silence SET ends_at_ms = ? WHERE id = ? AND namespace_id = ? AND ends_at_ms > ?",
};

#[async_trait]
impl Alerts for SqlStore {
    async fn alert_rules(&self, namespace: NamespaceId) -> Result<Vec<RuleRecord>> {
        self.read_alert_rules(namespace).await
    }

    async fn save_alert_rule(&self, change: RuleChange<'_>) -> Result<RuleSaved> {
        transact!(self, "save_alert_rule", |tx| tx.save_alert_rule(change).await)
    }

    async fn delete_alert_rule(
        &self,
        namespace: NamespaceId,
        name: &str,
        expected_version: Option<i64>,
        now: Timestamp,
    ) -> Result<RuleDeleted> {
        transact!(self, "delete_alert_rule", |tx| tx.delete_alert_rule(namespace, name, expected_version, now).await)
    }

    async fn namespaces_with_due_alerts(&self, now: Timestamp) -> Result<Vec<NamespaceId>> {
        let rows = self.rows(Query::new(&FIND_DUE_SPACES).at(now).at(now).at(now).at(now)).await?;
        Ok(read_ids(&rows, "alert_space", "namespace_id")?.into_iter().map(NamespaceId::new).collect())
    }

    async fn alert_version(&self, namespace: NamespaceId) -> Result<Option<i64>> {
        let row = self.row(Query::new(&READ_SPACE).int(namespace.get())).await?;
        row.map(|row| Reader::new(&row, "alert_space").int("version")).transpose()
    }

    async fn alert_events(&self, namespace: NamespaceId, limit: u32) -> Result<Vec<AlertEvent>> {
        self.read_alert_events(namespace, limit).await
    }

    async fn open_incidents(
        &self,
        namespace: NamespaceId,
        rule: AlertRuleId,
        subjects: &[(SubjectKind, i64)],
    ) -> Result<OpenIncidents> {
        self.read_open_incidents(namespace, rule, subjects).await
    }

    async fn open_incidents_of_rule(&self, rule: AlertRuleId, limit: u32) -> Result<Vec<Incident>> {
        self.read_open_incidents_of_rule(rule, limit).await
    }

    async fn due_incidents(&self, namespace: NamespaceId, now: Timestamp, limit: u32) -> Result<Vec<IncidentRecord>> {
        self.read_due_incidents(namespace, now, limit).await
    }

    async fn due_expectations(&self, namespace: NamespaceId, now: Timestamp, limit: u32) -> Result<Vec<ExpectCheck>> {
        self.read_due_expectations(namespace, now, limit).await
    }

    async fn expect_checks_of_jobs(&self, jobs: &[JobId]) -> Result<Vec<ExpectCheck>> {
        self.read_expects_of(jobs).await
    }

    async fn open_run_expectations(&self, namespace: NamespaceId) -> Result<OpenRunExpectations> {
        self.read_open_run_expects(namespace).await
    }

    async fn write_alerts(&self, write: &AlertWrite<'_>) -> Result<bool> {
        transact!(self, "write_alerts", |tx| {
            if !tx.raise_alert_version_from(write.namespace, write.version).await? {
                return Ok(false);
            }
            tx.write_incidents(write.namespace, write.incidents).await?;
            tx.write_checks(write.checks).await?;
            tx.move_expects(write.expect_checks).await?;
            if let Some(open_runs_check) = write.open_runs_check {
                tx.set_open_runs_check(write.namespace, open_runs_check.at).await?;
            }
            tx.delete_events(write.evaluated_events).await?;
            tx.write_messages(write.messages).await?;
            Ok(true)
        })
    }

    async fn incidents(&self, query: IncidentQuery<'_>) -> Result<Vec<IncidentRecord>> {
        self.list_incidents(query, |_| true).await
    }

    async fn ungrouped_incidents(&self, query: IncidentQuery<'_>) -> Result<Vec<IncidentRecord>> {
        self.list_incidents(query, IncidentRecord::is_ungrouped).await
    }

    async fn incidents_of_group(&self, group: IncidentId, limit: u32) -> Result<Vec<IncidentRecord>> {
        self.list_incidents_of_group(group, limit).await
    }

    async fn incident(&self, namespace: NamespaceId, id: IncidentId) -> Result<Option<IncidentRecord>> {
        self.read_incident(namespace, id).await
    }

    async fn acknowledge_incident(
        &self,
        namespace: NamespaceId,
        id: IncidentId,
        by: &str,
        now: Timestamp,
    ) -> Result<bool> {
        transact!(self, "acknowledge_incident", |tx| {
            tx.raise_alert_version(namespace).await?;
            tx.acknowledge(namespace, id, by, now).await
        })
    }

    async fn silences(&self, namespace: NamespaceId, after: Timestamp) -> Result<Vec<SilenceRecord>> {
        let query = Query::new(&LIST_SILENCES).int(namespace.get()).at(after).int(PAGE_MAX.into());
        let silence = |row| {
            let mut columns = Reader::new(row, "silence");
            Ok(SilenceRecord {
                id: SilenceId::new(columns.int("id")?),
                namespace: NamespaceId::new(columns.int("namespace_id")?),
                spec: columns.json("spec")?,
                author: columns.text("author")?,
                reason: columns.text("reason")?,
                created_at: columns.at("created_at_ms")?,
                ends_at: columns.at("ends_at_ms")?,
            })
        };
        self.rows(query).await?.iter().map(silence).collect()
    }

    async fn add_silence(&self, silence: &SilenceRecord) -> Result<bool> {
        let spec = json("add_silence", &silence.spec)?;
        transact!(self, "add_silence", |tx| {
            tx.raise_alert_version(silence.namespace).await?;
            let query = Query::new(&LIST_SILENCES).int(silence.namespace.get()).at(silence.created_at);
            let open_ids = read_ids(&tx.rows(query.int(SILENCE_COUNT_MAX.into())).await?, "silence", "id")?;
            if open_ids.contains(&silence.id.get()) {
                // An earlier try stored the silence, but the answer was lost.
                return Ok(true);
            }
            if open_ids.len() >= usize::try_from(SILENCE_COUNT_MAX).unwrap_or(0) {
                return Ok(false);
            }
            let insert = Query::new(&INSERT_SILENCE).int(silence.id.get()).int(silence.namespace.get()).text(&spec);
            let insert =
                insert.text(&crate::settle::clean_name(&silence.author)).text(&silence.reason.replace('\0', ""));
            tx.execute_all(insert.at(silence.created_at).at(silence.ends_at), 1).await?;
            Ok(true)
        })
    }

    async fn end_silence(&self, namespace: NamespaceId, id: SilenceId, now: Timestamp) -> Result<bool> {
        transact!(self, "end_silence", |tx| {
            tx.raise_alert_version(namespace).await?;
            let end = Query::new(&END_SILENCE).at(now).int(id.get()).int(namespace.get()).at(now);
            Ok(tx.execute(end).await? == 1)
        })
    }

    async fn maintenance(&self, namespace: Option<NamespaceId>, after: Timestamp) -> Result<Vec<MaintenanceRecord>> {
        self.read_maintenance(namespace, after).await
    }

    async fn add_maintenance(&self, record: &MaintenanceRecord) -> Result<bool> {
        transact!(self, "add_maintenance", |tx| tx.insert_maintenance(record).await)
    }

    async fn end_maintenance(&self, namespace: NamespaceId, id: MaintenanceId, now: Timestamp) -> Result<bool> {
        transact!(self, "end_maintenance", |tx| tx.close_maintenance(namespace, id, now).await)
    }

    async fn forget_incidents(&self, before: Timestamp, limit: u32) -> Result<u64> {
        self.remove_incidents(before, limit).await
    }

    async fn watched_jobs(
        &self,
        namespace: NamespaceId,
        app: Option<AppId>,
        after_name: &str,
        limit: u32,
    ) -> Result<Vec<WatchedJob>> {
        self.read_watched_jobs(namespace, app, (after_name, limit)).await
    }

    async fn watched_jobs_by_id(&self, jobs: &[JobId]) -> Result<Vec<WatchedJob>> {
        self.read_watched_jobs_by_id(jobs).await
    }

    async fn acknowledge_dead_letters(&self, namespace: NamespaceId, runs: &[RunId]) -> Result<u64> {
        self.acknowledge_dead_runs(namespace, runs).await
    }

    async fn dead_letter_count(&self, namespace: NamespaceId, limit: u32) -> Result<u64> {
        self.count_dead_letters(namespace, limit).await
    }

    async fn newest_successes_since(&self, jobs: &[JobId], since: Timestamp) -> Result<Vec<(JobId, Timestamp)>> {
        self.read_newest_successes_since(jobs, since).await
    }
}

impl Tx<'_> {
    /// Raises the version of a namespace's alerts, which voids all decisions that are based on an earlier version. The row stays locked
    /// until the transaction ends.
    pub(in crate::sql) async fn raise_alert_version(&mut self, namespace: NamespaceId) -> Result<()> {
        self.execute(Query::new(&INSERT_SPACE).int(namespace.get())).await?;
        self.execute_all(Query::new(&RAISE_SPACE_VERSION).int(namespace.get()), 1).await
    }

    async fn raise_alert_version_from(&mut self, namespace: NamespaceId, version: i64) -> Result<bool> {
        Ok(self.execute(Query::new(&RAISE_SPACE_VERSION_FROM).int(namespace.get()).int(version)).await? == 1)
    }
}

fn json(operation: &'static str, value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| failure::refused(operation, &error.to_string()))
}

fn chunks<T>(items: &[T]) -> std::slice::Chunks<'_, T> {
    items.chunks(CHUNK_MAX)
}
