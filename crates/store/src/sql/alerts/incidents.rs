//! The rows of incidents.

use std::collections::BTreeSet;

use rondel_core::alert::{Incident, IncidentState, OpenIncidents, Subject, SubjectKind};
use rondel_core::{AlertRuleId, IncidentId, NamespaceId, Timestamp};
use sqlx::any::AnyRow;

use super::{chunks, json, maintenance};
use crate::Result;
use crate::alerts::{IncidentQuery, IncidentRecord, PAGE_MAX};
use crate::settle::clean_name;
use crate::sql::query::{Query, Reader, Statement, read_ids};
use crate::sql::{SqlStore, Tx};

macro_rules! select_incident {
    ($rest:literal) => {
        concat!(
            "SELECT id, rule_id, rule_spec, subject_kind, subject_id, subject_name, app_name, is_open, group_id, \
             started_at_ms, seen_at_ms, resolved_at_ms, occurrence_count, reported_count, fired_at_ms, reported_at_ms, \
             escalated_at_ms, acknowledged_by, acknowledged_at_ms, message_count, act_at_ms, samples FROM incident ",
            $rest
        )
    };
}

pub(in crate::sql) const READ_OPEN_INCIDENTS: Statement = Statement {
    name: "read_open_incidents",
    text: select_incident!("WHERE rule_id = ? AND subject_kind = ? AND subject_id {in_list} AND is_open = 1"),
};
/// Selects the open incidents of a rule in a namespace, except groups. Reads the index of open incidents by namespace, because an index by
/// rule also has the ended incidents.
macro_rules! open_of_rule {
    ($namespace:literal) => {
        concat!("WHERE namespace_id = ", $namespace, " AND is_open = 1 AND rule_id = ? AND subject_kind <> 'group'")
    };
}
/// Finds nothing for an expectation, whose rule has no row in `alert_rule`.
pub(in crate::sql) const LIST_OPEN_INCIDENTS_OF_RULE: Statement = Statement {
    name: "list_open_incidents_of",
    text: concat!(
        select_incident!(""),
        open_of_rule!("(SELECT alert_rule.namespace_id FROM alert_rule WHERE alert_rule.id = ?)"),
        " ORDER BY id LIMIT ?"
    ),
};
pub(in crate::sql) const COUNT_OPEN_INCIDENTS: Statement = Statement {
    name: "count_open_incidents",
    text: concat!(
        "SELECT CAST(COALESCE(SUM(CASE WHEN group_id IS NULL THEN 1 ELSE 0 END), 0) AS {bigint}) AS singles, \
         CAST(COALESCE(SUM(CASE WHEN group_id IS NULL AND fired_at_ms IS NULL THEN 1 ELSE 0 END), 0) AS {bigint}) \
         AS unreported, CAST(COUNT(*) AS {bigint}) AS total FROM incident ",
        open_of_rule!("?")
    ),
};
/// The plus sign prevents planners from using the index by group, which has the incidents outside groups of all namespaces.
pub(in crate::sql) const LIST_UNREPORTED_SUBJECTS: Statement = Statement {
    name: "list_unreported_subjects",
    text: concat!(
        "SELECT subject_kind, subject_id, subject_name, app_name FROM incident ",
        open_of_rule!("?"),
        " AND +group_id IS NULL AND fired_at_ms IS NULL ORDER BY id"
    ),
};
pub(in crate::sql) const LIST_DUE_INCIDENTS: Statement = Statement {
    name: "list_due_incidents",
    text: select_incident!("WHERE namespace_id = ? AND act_at_ms <= ? ORDER BY act_at_ms LIMIT ?"),
};
pub(in crate::sql) const LIST_INCIDENTS: Statement = Statement {
    name: "list_incidents",
    text: select_incident!("WHERE namespace_id = ? AND id < ? ORDER BY id DESC LIMIT ?"),
};
pub(in crate::sql) const LIST_OPEN_INCIDENTS: Statement = Statement {
    name: "list_open_incidents",
    text: select_incident!("WHERE namespace_id = ? AND is_open = 1 AND id < ? ORDER BY id DESC LIMIT ?"),
};
const LIST_INCIDENTS_OF_JOB: Statement = Statement {
    name: "list_incidents_of_job",
    text: select_incident!(
        "WHERE subject_kind = 'job' AND subject_id = ? AND namespace_id = ? AND id < ? ORDER BY id DESC LIMIT ?"
    ),
};
pub(in crate::sql) const LIST_INCIDENTS_OF_GROUP: Statement = Statement {
    name: "list_incidents_of_group",
    text: select_incident!("WHERE group_id = ? ORDER BY id DESC LIMIT ?"),
};
/// The incidents of a group are newer than the group. The plus sign prevents planners from using the index by group, which has all
/// incidents of the group.
pub(in crate::sql) const READ_COUNTED_SUBJECTS: Statement = Statement {
    name: "read_counted_subjects",
    text: "SELECT DISTINCT subject_id FROM incident WHERE subject_kind = ? AND subject_id {in_list} AND id > ? AND +group_id = ?",
};
const READ_INCIDENT: Statement =
    Statement { name: "read_incident", text: select_incident!("WHERE namespace_id = ? AND id = ?") };
const FIND_INCIDENTS: Statement =
    Statement { name: "find_incidents", text: "SELECT id FROM incident WHERE id {in_list}" };
const INSERT_INCIDENT: Statement = Statement {
    name: "insert_incident",
    text: "INSERT INTO incident (rule_id, rule_name, rule_spec, subject_kind, subject_id, subject_name, app_name, is_open, \
           group_id, started_at_ms, seen_at_ms, resolved_at_ms, occurrence_count, reported_count, fired_at_ms, \
           reported_at_ms, escalated_at_ms, acknowledged_by, acknowledged_at_ms, message_count, act_at_ms, samples, id, \
           namespace_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
};
const UPDATE_INCIDENT: Statement = Statement {
    name: "update_incident",
    text: "UPDATE incident SET rule_id = ?, rule_name = ?, rule_spec = ?, subject_kind = ?, subject_id = ?, \
           subject_name = ?, app_name = ?, is_open = ?, group_id = ?, started_at_ms = ?, seen_at_ms = ?, \
           resolved_at_ms = ?, occurrence_count = ?, reported_count = ?, fired_at_ms = ?, reported_at_ms = ?, \
           escalated_at_ms = ?, acknowledged_by = ?, acknowledged_at_ms = ?, message_count = ?, act_at_ms = ?, samples = ? \
           WHERE id = ? AND namespace_id = ?",
};
const ACKNOWLEDGE: Statement = Statement {
    name: "acknowledge_incident",
    text: "UPDATE incident SET acknowledged_by = ?, acknowledged_at_ms = ? WHERE id = ? AND namespace_id = ? \
           AND is_open = 1 AND acknowledged_at_ms IS NULL",
};
const FIND_OLD_INCIDENTS: Statement = Statement {
    name: "find_old_incidents",
    text: "SELECT id FROM incident WHERE resolved_at_ms < ? ORDER BY resolved_at_ms LIMIT ?",
};
const DELETE_INCIDENTS: Statement =
    Statement { name: "delete_incidents", text: "DELETE FROM incident WHERE id {in_list}" };
const FIND_OLD_SILENCES: Statement = Statement {
    name: "find_old_silences",
    text: "SELECT id FROM silence WHERE ends_at_ms < ? ORDER BY ends_at_ms LIMIT ?",
};
const DELETE_SILENCES: Statement =
    Statement { name: "delete_silences", text: "DELETE FROM silence WHERE id {in_list}" };

/// To fill a filtered page, this many rows are read for each row of the page. Some rows do not match the filter, and with this factor one
/// statement usually fills the page.
const ROWS_READ_PER_RECORD: i64 = 10;

impl SqlStore {
    pub(super) async fn read_open_incidents(
        &self,
        namespace: NamespaceId,
        rule: AlertRuleId,
        subjects: &[(SubjectKind, i64)],
    ) -> Result<OpenIncidents> {
        let mut open_incidents = OpenIncidents::default();
        for kind in SubjectKind::ALL.iter().filter(|kind| **kind != SubjectKind::Group) {
            let ids: Vec<i64> = subjects.iter().filter(|subject| subject.0 == *kind).map(|subject| subject.1).collect();
            for chunk in chunks(&ids) {
                let query =
                    Query::new(&READ_OPEN_INCIDENTS).int(rule.get()).text(kind.as_str()).list(chunk.iter().copied());
                for row in self.rows(query).await? {
                    open_incidents.incidents.push(incident(&row)?.incident);
                }
            }
        }
        open_incidents.incidents.sort_by_key(|incident| incident.id);
        open_incidents.incidents.dedup_by_key(|incident| incident.id);
        let group_query =
            Query::new(&READ_OPEN_INCIDENTS).int(rule.get()).text(SubjectKind::Group.as_str()).list([0].into_iter());
        open_incidents.group =
            self.row(group_query).await?.map(|row| incident(&row)).transpose()?.map(|record| record.incident);
        if let Some(group) = &open_incidents.group {
            open_incidents.counted_subjects = self.read_counted_subjects(group.id, subjects).await?;
        }
        if let Some(row) = self.row(Query::new(&COUNT_OPEN_INCIDENTS).int(namespace.get()).int(rule.get())).await? {
            let mut columns = Reader::new(&row, "incident");
            let (single_count, unreported_count) = (columns.int("singles")?, columns.int("unreported")?);
            let total_count = columns.int("total")?;
            if unreported_count > 0 {
                let query = Query::new(&LIST_UNREPORTED_SUBJECTS).int(namespace.get()).int(rule.get());
                for row in self.rows(query).await? {
                    open_incidents.unreported_subjects.push(subject(&mut Reader::new(&row, "incident"))?);
                }
            }
            open_incidents.single_count = u64::try_from(single_count).unwrap_or(0);
            open_incidents.member_count = u64::try_from(total_count - single_count).unwrap_or(0);
        }
        Ok(open_incidents)
    }

    /// The subjects among these that have or had an incident in a group.
    async fn read_counted_subjects(
        &self,
        group: IncidentId,
        subjects: &[(SubjectKind, i64)],
    ) -> Result<BTreeSet<(SubjectKind, i64)>> {
        let mut counted_subjects = BTreeSet::new();
        for kind in SubjectKind::ALL {
            let ids: Vec<i64> = subjects.iter().filter(|subject| subject.0 == *kind).map(|subject| subject.1).collect();
            for chunk in chunks(&ids) {
                let query = Query::new(&READ_COUNTED_SUBJECTS).text(kind.as_str()).list(chunk.iter().copied());
                let rows = self.rows(query.int(group.get()).int(group.get())).await?;
                counted_subjects.extend(read_ids(&rows, "incident", "subject_id")?.into_iter().map(|id| (*kind, id)));
            }
        }
        Ok(counted_subjects)
    }

    pub(super) async fn read_open_incidents_of_rule(&self, rule: AlertRuleId, limit: u32) -> Result<Vec<Incident>> {
        let query = Query::new(&LIST_OPEN_INCIDENTS_OF_RULE).int(rule.get()).int(rule.get()).int(limit.into());
        let rows = self.rows(query).await?;
        rows.iter().map(|row| incident(row).map(|record| record.incident)).collect()
    }

    pub(super) async fn read_due_incidents(
        &self,
        namespace: NamespaceId,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<IncidentRecord>> {
        let query = Query::new(&LIST_DUE_INCIDENTS).int(namespace.get()).at(now).int(limit.min(PAGE_MAX).into());
        self.rows(query).await?.iter().map(incident).collect()
    }

    pub(super) async fn list_incidents(
        &self,
        query: IncidentQuery<'_>,
        is_wanted: fn(&IncidentRecord) -> bool,
    ) -> Result<Vec<IncidentRecord>> {
        let namespace = query.namespace.get();
        let mut before_id = query.before.map_or(i64::MAX, IncidentId::get);
        let page_query = |before_id: i64| match (query.job, query.is_open) {
            (Some(job), _) => Query::new(&LIST_INCIDENTS_OF_JOB).int(job.get()).int(namespace).int(before_id),
            (None, Some(true)) => Query::new(&LIST_OPEN_INCIDENTS).int(namespace).int(before_id),
            (None, _) => Query::new(&LIST_INCIDENTS).int(namespace).int(before_id),
        };
        let limit = query.limit.min(PAGE_MAX);
        let is_filtered = query.within.is_some() || query.is_open.is_some();
        let row_count = i64::from(limit) * if is_filtered { ROWS_READ_PER_RECORD } else { 1 };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut records = Vec::new();
        // The caller takes a short page for the last one, so rows are read until the page is full or no rows remain.
        while records.len() < limit {
            let rows = self.rows(page_query(before_id).int(row_count)).await?;
            let page = rows.iter().map(incident).collect::<Result<Vec<_>>>()?;
            let is_last = i64::try_from(page.len()).is_ok_and(|count| count < row_count);
            before_id = page.last().map_or(before_id, |record| record.incident.id.get());
            records.extend(page.into_iter().filter(|record| query.admits(record) && is_wanted(record)));
            if is_last {
                break;
            }
        }
        records.truncate(limit);
        Ok(records)
    }

    pub(super) async fn list_incidents_of_group(&self, group: IncidentId, limit: u32) -> Result<Vec<IncidentRecord>> {
        let query = Query::new(&LIST_INCIDENTS_OF_GROUP).int(group.get()).int(limit.min(PAGE_MAX).into());
        self.rows(query).await?.iter().map(incident).collect()
    }

    pub(super) async fn read_incident(&self, namespace: NamespaceId, id: IncidentId) -> Result<Option<IncidentRecord>> {
        let row = self.row(Query::new(&READ_INCIDENT).int(namespace.get()).int(id.get())).await?;
        row.as_ref().map(incident).transpose()
    }

    pub(super) async fn remove_incidents(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut removed_count = 0;
        for (find_statement, delete_statement, table) in [
            (&FIND_OLD_INCIDENTS, &DELETE_INCIDENTS, "incident"),
            (&FIND_OLD_SILENCES, &DELETE_SILENCES, "silence"),
            (&maintenance::FIND_OLD_WINDOWS, &maintenance::DELETE_OLD_WINDOWS, "maintenance"),
        ] {
            let old_rows =
                self.rows(Query::new(find_statement).at(before).int(limit.clamp(1, PAGE_MAX).into())).await?;
            let old_ids = read_ids(&old_rows, table, "id")?;
            if !old_ids.is_empty() {
                removed_count += self.execute(Query::new(delete_statement).list(old_ids.into_iter())).await?;
            }
        }
        Ok(removed_count)
    }
}

impl Tx<'_> {
    /// Inserts or updates incidents. The caller has raised the version of the namespace, so no other transaction changes them until the
    /// commit.
    pub(super) async fn write_incidents(&mut self, namespace: NamespaceId, records: &[IncidentRecord]) -> Result<()> {
        for chunk in chunks(records) {
            let find_query = Query::new(&FIND_INCIDENTS).list(chunk.iter().map(|record| record.incident.id.get()));
            let stored_ids = read_ids(&self.rows(find_query).await?, "incident", "id")?;
            for record in chunk {
                let is_known = stored_ids.contains(&record.incident.id.get());
                let statement = if is_known { &UPDATE_INCIDENT } else { &INSERT_INCIDENT };
                self.execute(
                    bind_incident(Query::new(statement), record)?.int(record.incident.id.get()).int(namespace.get()),
                )
                .await?;
            }
        }
        Ok(())
    }

    pub(super) async fn acknowledge(
        &mut self,
        namespace: NamespaceId,
        id: IncidentId,
        by: &str,
        now: Timestamp,
    ) -> Result<bool> {
        let query = Query::new(&ACKNOWLEDGE).text(&clean_name(by)).at(now).int(id.get()).int(namespace.get());
        Ok(self.execute(query).await? == 1)
    }
}

/// Adds the values that [`INSERT_INCIDENT`] and [`UPDATE_INCIDENT`] have in common.
fn bind_incident(query: Query, record: &IncidentRecord) -> Result<Query> {
    let incident = &record.incident;
    let query = query
        .int(record.rule.get())
        .text(&record.spec.name)
        .text(&json("write_alerts", &record.spec)?)
        .text(incident.subject.kind.as_str())
        .int(incident.subject.id)
        .text(&clean_name(&incident.subject.name))
        .opt_text(incident.subject.app.as_deref())
        .opt_int((incident.state == IncidentState::Firing).then_some(1))
        .opt_int(incident.group.map(IncidentId::get));
    Ok(query
        .at(incident.started_at)
        .at(incident.seen_at)
        .opt_at(incident.resolved_at)
        .int(i64::try_from(incident.count).unwrap_or(i64::MAX))
        .int(i64::try_from(incident.reported_count).unwrap_or(i64::MAX))
        .opt_at(incident.fired_at)
        .opt_at(incident.reported_at)
        .opt_at(incident.escalated_at)
        .opt_text(incident.acknowledged_by.as_deref().map(clean_name).as_deref())
        .opt_at(incident.acknowledged_at)
        .int(incident.message_count.into())
        .opt_at(incident.check_at)
        .text(&json("write_alerts", &incident.samples)?.replace("\\u0000", "\\ufffd")))
}

fn subject(columns: &mut Reader<'_>) -> Result<Subject> {
    Ok(Subject {
        kind: columns.word("subject_kind")?,
        id: columns.int("subject_id")?,
        name: columns.text("subject_name")?,
        app: columns.opt_text("app_name")?,
    })
}

fn incident(row: &AnyRow) -> Result<IncidentRecord> {
    let mut columns = Reader::new(row, "incident");
    let (id, rule) = (IncidentId::new(columns.int("id")?), AlertRuleId::new(columns.int("rule_id")?));
    let spec = columns.json("rule_spec")?;
    let subject = subject(&mut columns)?;
    let state = if columns.opt_int("is_open")?.is_some() { IncidentState::Firing } else { IncidentState::Resolved };
    let incident = Incident {
        id,
        subject,
        state,
        group: columns.opt_int("group_id")?.map(IncidentId::new),
        started_at: columns.at("started_at_ms")?,
        seen_at: columns.at("seen_at_ms")?,
        resolved_at: columns.opt_at("resolved_at_ms")?,
        count: u64::try_from(columns.int("occurrence_count")?).unwrap_or(0),
        reported_count: u64::try_from(columns.int("reported_count")?).unwrap_or(0),
        fired_at: columns.opt_at("fired_at_ms")?,
        reported_at: columns.opt_at("reported_at_ms")?,
        escalated_at: columns.opt_at("escalated_at_ms")?,
        acknowledged_by: columns.opt_text("acknowledged_by")?,
        acknowledged_at: columns.opt_at("acknowledged_at_ms")?,
        message_count: u32::try_from(columns.int("message_count")?).unwrap_or(0),
        check_at: columns.opt_at("act_at_ms")?,
        samples: columns.json("samples")?,
    };
    Ok(IncidentRecord { incident, rule, spec })
}
