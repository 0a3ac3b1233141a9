//! Calendars: their rows, and the lock that saving a job and deleting its calendar have in common.

use async_trait::async_trait;
use rondel_core::calendar::Rule;
use rondel_core::{AppId, CalendarId, JobId, NamespaceId};
use serde::Deserialize;
use sqlx::any::AnyRow;

use super::query::{Query, Reader, Statement, read_ids};
use super::{SqlStore, Tx, failure, transact};
use crate::calendars::{
    CALENDAR_JOB_COUNT_SHOWN, CalendarChange, CalendarDeleted, CalendarOutline, CalendarRecord, CalendarSaved,
};
use crate::catalog::{JobRecord, PinnedCalendar};
use crate::settle::clean_name;
use crate::{Calendars, Catalog, Result, StoreError};

macro_rules! select_calendar {
    ($rest:literal) => {
        concat!(
            "SELECT calendar.id, calendar.namespace_id, calendar.version, calendar_version.spec, \
             calendar_version.expanded, calendar.created_at_ms, calendar.updated_at_ms FROM calendar \
             JOIN calendar_version ON calendar_version.calendar_id = calendar.id \
             AND calendar_version.version = calendar.version ",
            $rest
        )
    };
}

const READ_CALENDAR: Statement = Statement {
    name: "read_calendar",
    text: select_calendar!("WHERE calendar.namespace_id = ? AND calendar.name = ?"),
};
const LIST_CALENDARS: Statement = Statement {
    name: "list_calendars",
    text: select_calendar!("WHERE calendar.namespace_id = ? AND calendar.name > ? ORDER BY calendar.name LIMIT ?"),
};
const LOCK_CALENDAR: Statement =
    Statement { name: "lock_calendar", text: "SELECT id, version FROM calendar WHERE id = ? {for_update}" };
const LOCK_CALENDAR_BY_NAME: Statement = Statement {
    name: "lock_calendar_by_name",
    text: "SELECT id, version, created_at_ms FROM calendar WHERE namespace_id = ? AND name = ? {for_update}",
};
const INSERT_CALENDAR: Statement = Statement {
    name: "insert_calendar",
    text: "INSERT {ignore} INTO calendar (id, namespace_id, name, version, created_at_ms, updated_at_ms) \
           VALUES (?, ?, ?, 1, ?, ?) {or_ignore}",
};
const UPDATE_CALENDAR: Statement = Statement {
    name: "update_calendar",
    text: "UPDATE calendar SET version = ?, updated_at_ms = ? WHERE id = ? AND version = ?",
};
const INSERT_CALENDAR_VERSION: Statement = Statement {
    name: "insert_calendar_version",
    text: "INSERT INTO calendar_version (calendar_id, version, spec, expanded, author, created_at_ms) \
           VALUES (?, ?, ?, ?, ?, ?)",
};
const DELETE_CALENDAR: Statement =
    Statement { name: "delete_calendar", text: "DELETE FROM calendar WHERE id = ? AND version = ?" };
const COUNT_JOBS: Statement =
    Statement { name: "count_calendar_users", text: "SELECT COUNT(*) FROM job WHERE calendar_id = ? AND retired = 0" };
pub(super) const LIST_JOBS: Statement = Statement {
    name: "list_calendar_users",
    text: "SELECT name FROM job WHERE calendar_id = ? AND retired = 0 AND name > ? ORDER BY name LIMIT ?",
};
const LIST_JOBS_OF_APPS: Statement = Statement {
    name: "list_calendar_users_of_apps",
    text: "SELECT name FROM job WHERE calendar_id = ? AND retired = 0 AND name > ? AND +app_id {in_list} \
           ORDER BY name LIMIT ?",
};
/// Reads one index entry per calendar: that of the job that uses the oldest version. A join with the jobs would read all entries of a
/// calendar on MySQL, and all jobs on PostgreSQL, which expects that the limit ends the scan soon.
pub(super) const FIND_OUTDATED_CALENDARS: Statement = Statement {
    name: "calendars_behind",
    text: "SELECT calendar.id, calendar.version FROM calendar WHERE (SELECT job.calendar_version FROM job \
           WHERE job.calendar_id = calendar.id ORDER BY job.calendar_version LIMIT 1) < calendar.version LIMIT ?",
};
/// Needs no condition that leaves out deleted jobs, because the row of a deleted job has no calendar.
pub(super) const FIND_OUTDATED_JOBS: Statement = Statement {
    name: "jobs_behind",
    text: "SELECT id FROM job WHERE calendar_id = ? AND calendar_version < ? ORDER BY calendar_version LIMIT ?",
};

#[async_trait]
impl Calendars for SqlStore {
    async fn calendar(&self, namespace: NamespaceId, name: &str) -> Result<Option<CalendarRecord>> {
        self.row(Query::new(&READ_CALENDAR).int(namespace.get()).text(name)).await?.as_ref().map(calendar).transpose()
    }

    async fn calendars(
        &self,
        namespace: NamespaceId,
        after_name: Option<&str>,
        limit: u32,
    ) -> Result<Vec<CalendarRecord>> {
        let query =
            Query::new(&LIST_CALENDARS).int(namespace.get()).text(after_name.unwrap_or_default()).int(limit.into());
        self.rows(query).await?.iter().map(calendar).collect()
    }

    async fn calendar_outlines(
        &self,
        namespace: NamespaceId,
        after_name: Option<&str>,
        limit: u32,
    ) -> Result<Vec<CalendarOutline>> {
        let query =
            Query::new(&LIST_CALENDARS).int(namespace.get()).text(after_name.unwrap_or_default()).int(limit.into());
        self.rows(query).await?.iter().map(calendar_outline).collect()
    }

    async fn save_calendar(&self, change: CalendarChange<'_>) -> Result<CalendarSaved> {
        transact!(self, "save_calendar", |tx| tx.save_calendar(change).await)
    }

    async fn delete_calendar(&self, id: CalendarId, expected_version: Option<i64>) -> Result<CalendarDeleted> {
        transact!(self, "delete_calendar", |tx| {
            let Some(version) = tx.lock_calendar(id).await? else { return Ok(CalendarDeleted::NotFound) };
            if expected_version.is_some_and(|expected| expected != version) {
                return Ok(CalendarDeleted::Conflict(version));
            }
            let query = jobs_that_use(id, None, CALENDAR_JOB_COUNT_SHOWN);
            let job_names = tx.rows(query).await?.iter().map(job_name).collect::<Result<Vec<_>>>()?;
            if !job_names.is_empty() {
                let count_row = tx.row(Query::new(&COUNT_JOBS).int(id.get())).await?;
                let count = count_row.map(|row| Reader::new(&row, "job").int("count")).transpose()?;
                return Ok(CalendarDeleted::Used(
                    job_names,
                    count.and_then(|n| u64::try_from(n).ok()).unwrap_or_default(),
                ));
            }
            // The calendar's versions are kept, because stored versions of jobs refer to them.
            tx.execute_all(Query::new(&DELETE_CALENDAR).int(id.get()).int(version), 1).await?;
            Ok(CalendarDeleted::Deleted)
        })
    }

    async fn jobs_with_outdated_calendar(&self, limit: u32) -> Result<Vec<JobRecord>> {
        let mut ids = Vec::new();
        for row in self.rows(Query::new(&FIND_OUTDATED_CALENDARS).int(limit.into())).await? {
            let mut columns = Reader::new(&row, "calendar");
            let (calendar, version) = (columns.int("id")?, columns.int("version")?);
            let room = limit.saturating_sub(u32::try_from(ids.len()).unwrap_or(u32::MAX));
            if room == 0 {
                break;
            }
            let query = Query::new(&FIND_OUTDATED_JOBS).int(calendar).int(version).int(room.into());
            ids.extend(read_ids(&self.rows(query).await?, "job", "id")?.into_iter().map(JobId::new));
        }
        self.jobs_by_id(&ids).await
    }

    async fn jobs_with_calendar(
        &self,
        id: CalendarId,
        within: Option<&[AppId]>,
        after_name: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>> {
        let query = match within {
            None => jobs_that_use(id, after_name, limit),
            Some([]) => return Ok(Vec::new()),
            Some(apps) => Query::new(&LIST_JOBS_OF_APPS)
                .int(id.get())
                .text(after_name.unwrap_or_default())
                .list(apps.iter().map(|app| app.get()))
                .int(limit.into()),
        };
        self.rows(query).await?.iter().map(job_name).collect()
    }
}

impl Tx<'_> {
    /// Locks a calendar; returns its newest version, or `None` if it was deleted.
    async fn lock_calendar(&mut self, id: CalendarId) -> Result<Option<i64>> {
        let Some(row) = self.row(Query::new(&LOCK_CALENDAR).int(id.get())).await? else { return Ok(None) };
        let mut columns = Reader::new(&row, "calendar");
        columns.int("id")?;
        columns.int("version").map(Some)
    }

    /// Whether a job may use this version of a calendar. The lock prevents the deletion of the calendar until this transaction ends.
    pub(super) async fn lock_pinned_calendar(&mut self, pin: Option<PinnedCalendar>) -> Result<bool> {
        let Some(pin) = pin else { return Ok(true) };
        Ok(self.lock_calendar(pin.id).await?.is_some_and(|newest_version| (1..=newest_version).contains(&pin.version)))
    }

    async fn save_calendar(&mut self, change: CalendarChange<'_>) -> Result<CalendarSaved> {
        let lock_query = || {
            Query::new(&LOCK_CALENDAR_BY_NAME).int(change.namespace.get()).text(clean_name(&change.spec.name).as_ref())
        };
        let mut row = self.row(lock_query()).await?;
        if row.is_none() {
            if change.expected_version.is_some_and(|expected| expected != 0) {
                return Ok(CalendarSaved::Conflict(0));
            }
            let insert = Query::new(&INSERT_CALENDAR)
                .int(change.id.get())
                .int(change.namespace.get())
                .text(&change.spec.name)
                .at(change.now)
                .at(change.now);
            if self.execute(insert).await? == 1 {
                return Ok(CalendarSaved::Created(Box::new(self.add_version(change, change.id, 1, change.now).await?)));
            }
            // Another caller inserted the calendar first.
            row = self.row(lock_query()).await?;
        }
        let Some(row) = row else { return Err(failure::unexpected_count("insert_calendar", 1, 0)) };
        let mut columns = Reader::new(&row, "calendar");
        let (id, version) = (CalendarId::new(columns.int("id")?), columns.int("version")?);
        let created_at = columns.at("created_at_ms")?;
        if change.expected_version.is_some_and(|expected| expected != version) {
            return Ok(CalendarSaved::Conflict(version));
        }
        let update = Query::new(&UPDATE_CALENDAR).int(version + 1).at(change.now).int(id.get()).int(version);
        self.execute_all(update, 1).await?;
        Ok(CalendarSaved::Changed(Box::new(self.add_version(change, id, version + 1, created_at).await?)))
    }

    async fn add_version(
        &mut self,
        change: CalendarChange<'_>,
        id: CalendarId,
        version: i64,
        created_at: rondel_core::Timestamp,
    ) -> Result<CalendarRecord> {
        let insert = Query::new(&INSERT_CALENDAR_VERSION)
            .int(id.get())
            .int(version)
            .text(&json(change.spec)?)
            .text(&json(change.expanded_rule)?)
            .text(&clean_name(change.author))
            .at(change.now);
        self.execute_all(insert, 1).await?;
        Ok(CalendarRecord {
            id,
            namespace: change.namespace,
            version,
            spec: change.spec.clone(),
            expanded_rule: change.expanded_rule.clone(),
            created_at,
            updated_at: change.now,
        })
    }
}

fn jobs_that_use(id: CalendarId, after_name: Option<&str>, limit: u32) -> Query {
    Query::new(&LIST_JOBS).int(id.get()).text(after_name.unwrap_or_default()).int(limit.into())
}

fn job_name(row: &AnyRow) -> Result<String> {
    Reader::new(row, "job").text("name")
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| failure::refused("insert_calendar_version", &error.to_string()))
}

fn calendar(row: &AnyRow) -> Result<CalendarRecord> {
    let mut columns = Reader::new(row, "calendar");
    Ok(CalendarRecord {
        id: CalendarId::new(columns.int("id")?),
        namespace: NamespaceId::new(columns.int("namespace_id")?),
        version: columns.int("version")?,
        spec: columns.json("spec")?,
        expanded_rule: columns.json("expanded")?,
        created_at: columns.at("created_at_ms")?,
        updated_at: columns.at("updated_at_ms")?,
    })
}

/// The fields of a calendar that servers of every version can read.
#[derive(Deserialize)]
struct NameAndDescription {
    name: String,
    #[serde(default)]
    description: String,
}

fn calendar_outline(row: &AnyRow) -> Result<CalendarOutline> {
    let is_readable = match calendar(row) {
        Ok(_) => true,
        // A newer server may have saved this calendar. The other calendars are still listed.
        Err(StoreError::Corrupt { column: "spec" | "expanded", .. }) => false,
        Err(error) => return Err(error),
    };
    let mut columns = Reader::new(row, "calendar");
    // The ids are not needed, but columns are read in their order.
    columns.int("id")?;
    columns.int("namespace_id")?;
    let version = columns.int("version")?;
    let NameAndDescription { name, description } = columns.json("spec")?;
    columns.text("expanded")?;
    let (created_at, updated_at) = (columns.at("created_at_ms")?, columns.at("updated_at_ms")?);
    Ok(CalendarOutline { name, description, version, is_readable, created_at, updated_at })
}

/// The calendar version that a definition is pinned to, from its two columns.
pub(super) fn read_pin(columns: &mut Reader<'_>) -> Result<Option<PinnedCalendar>> {
    let (id, version) = (columns.opt_int("calendar_id")?, columns.opt_int("calendar_version")?);
    Ok(id.zip(version).map(|(id, version)| PinnedCalendar { id: CalendarId::new(id), version }))
}

/// Adds the two columns of a pinned calendar version to a query.
pub(super) fn bind_pin(query: Query, pin: Option<PinnedCalendar>) -> Query {
    query.opt_int(pin.map(|pin| pin.id.get())).opt_int(pin.map(|pin| pin.version))
}

/// The rule of the version that a definition is pinned to.
pub(super) fn read_pinned_rule(columns: &mut Reader<'_>) -> Result<Option<Rule>> {
    columns.opt_json("expanded")
}
