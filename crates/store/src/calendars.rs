//! Business calendars with their versions, and the jobs that use them.
//!
//! A job's definition names a calendar, and its fires are planned by one version of that calendar. Saving a calendar changes no job. The
//! server that saved the calendar then moves the jobs that use it to the new version, one after the other. As in any other edit, a job and
//! its unsent rows change in one transaction. If that server dies before it has moved all jobs, [`Calendars::jobs_with_outdated_calendar`]
//! finds the rest.

use async_trait::async_trait;
use rondel_core::calendar::{CalendarSpec, Rule};
use rondel_core::{AppId, CalendarId, NamespaceId, Timestamp};

use crate::catalog::JobRecord;
use crate::error::Result;

/// Maximum number of jobs that a refusal to delete a calendar names.
pub const CALENDAR_JOB_COUNT_SHOWN: u32 = 10;

/// A calendar with its newest version.
#[derive(Clone, Debug, PartialEq)]
pub struct CalendarRecord {
    pub id: CalendarId,
    pub namespace: NamespaceId,
    /// The number of this version, from 1. A save whose `If-Match` names another number is refused.
    pub version: i64,
    /// The definition as saved.
    pub spec: CalendarSpec,
    /// Its rule, in which the names of other calendars are replaced by their rules. Jobs are planned by this expanded rule.
    pub expanded_rule: Rule,
    /// When its first version was saved.
    pub created_at: Timestamp,
    /// When this version was saved.
    pub updated_at: Timestamp,
}

/// A calendar in a list, without its rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalendarOutline {
    pub name: String,
    pub description: String,
    /// The number of its newest version.
    pub version: i64,
    /// Whether this server can read that version. If not, a newer server saved it.
    pub is_readable: bool,
    /// When its first version was saved.
    pub created_at: Timestamp,
    /// When this version was saved.
    pub updated_at: Timestamp,
}

/// A calendar to be saved, whether it exists or not.
#[derive(Clone, Copy, Debug)]
pub struct CalendarChange<'a> {
    /// The id to use if the calendar does not exist yet.
    pub id: CalendarId,
    pub namespace: NamespaceId,
    /// The version that the author saw, 0 for none; `None` to overwrite any version.
    pub expected_version: Option<i64>,
    /// The definition to save, validated; its name identifies the calendar.
    pub spec: &'a CalendarSpec,
    /// Its rule, in which the names of other calendars are replaced by their rules.
    pub expanded_rule: &'a Rule,
    /// Name of the caller that saves it.
    pub author: &'a str,
    pub now: Timestamp,
}

/// Outcome of saving a calendar.
#[derive(Clone, Debug, PartialEq)]
pub enum CalendarSaved {
    /// The calendar is new.
    Created(Box<CalendarRecord>),
    /// It has a new version.
    Changed(Box<CalendarRecord>),
    /// Another caller changed it first; its current version, 0 if it was deleted.
    Conflict(i64),
}

/// Outcome of deleting a calendar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CalendarDeleted {
    Deleted,
    /// These jobs use it: the first [`CALENDAR_JOB_COUNT_SHOWN`] by name, and their number.
    Used(Vec<String>, u64),
    /// Another caller changed it first; its current version.
    Conflict(i64),
    /// There is no such calendar.
    NotFound,
}

#[async_trait]
pub trait Calendars {
    async fn calendar(&self, namespace: NamespaceId, name: &str) -> Result<Option<CalendarRecord>>;

    /// Calendars of a namespace, sorted by name, after `after_name`, at most `limit`. Fails if this server cannot read one of them.
    async fn calendars(
        &self,
        namespace: NamespaceId,
        after_name: Option<&str>,
        limit: u32,
    ) -> Result<Vec<CalendarRecord>>;

    /// Like [`calendars`](Self::calendars), without the rules, and including calendars that this server cannot read.
    async fn calendar_outlines(
        &self,
        namespace: NamespaceId,
        after_name: Option<&str>,
        limit: u32,
    ) -> Result<Vec<CalendarOutline>>;

    /// Saves a version of a calendar.
    async fn save_calendar(&self, change: CalendarChange<'_>) -> Result<CalendarSaved>;

    /// Deletes a calendar that no job uses, if it has the expected version; `None` means any. The caller must check that no other calendar
    /// names it.
    async fn delete_calendar(&self, id: CalendarId, expected_version: Option<i64>) -> Result<CalendarDeleted>;

    /// Jobs of any namespace whose newest definition is planned by an outdated version of its calendar; at most `limit`.
    async fn jobs_with_outdated_calendar(&self, limit: u32) -> Result<Vec<JobRecord>>;

    /// Names of jobs that use a calendar, sorted, after `after_name`, at most `limit`; `within` limits the result to jobs of these apps.
    async fn jobs_with_calendar(
        &self,
        id: CalendarId,
        within: Option<&[AppId]>,
        after_name: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>>;
}
