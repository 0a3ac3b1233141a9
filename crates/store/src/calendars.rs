//! Business calendars with their versions, and the jobs that use them.
//!
//! A definition names a calendar and is planned by one version of it. Saving a calendar changes no job by itself:
//! the server that saved it moves the jobs that use it on, one by one and each in one transaction with its unsent rows, as for
//! any other edit; [`Calendars::jobs_behind`] finds those that are left where that server died in between.

use async_trait::async_trait;
use rondel_core::calendar::{CalendarSpec, Rule};
use rondel_core::{AppId, CalendarId, NamespaceId, Timestamp};

use crate::catalog::JobRecord;
use crate::error::Result;

/// How many of the jobs that keep a calendar from being deleted are named.
pub const USER_COUNT_SHOWN: u32 = 10;

/// A calendar with its newest version.
#[derive(Clone, Debug, PartialEq)]
pub struct CalendarRecord {
    /// Its id.
    pub id: CalendarId,
    /// Its tenant.
    pub namespace: NamespaceId,
    /// Counts its versions from 1: what `If-Match` guards.
    pub version: i64,
    /// What was saved.
    pub spec: CalendarSpec,
    /// The same rule with the calendars that it names put in: what jobs are planned by.
    pub expanded: Rule,
    /// When its first version was saved.
    pub created_at: Timestamp,
    /// When this version was saved.
    pub updated_at: Timestamp,
}

/// A calendar to be saved, whether it exists or not.
#[derive(Clone, Copy, Debug)]
pub struct CalendarChange<'a> {
    /// Its id, where it does not exist.
    pub id: CalendarId,
    /// Its tenant.
    pub namespace: NamespaceId,
    /// The version that the author saw, 0 for none; `None` to change whatever is there.
    pub expected_version: Option<i64>,
    /// What is saved, checked; its name identifies the calendar.
    pub spec: &'a CalendarSpec,
    /// Its rule with the calendars that it names put in.
    pub expanded: &'a Rule,
    /// Who saves it.
    pub author: &'a str,
    /// The present.
    pub now: Timestamp,
}

/// What saving a calendar did.
#[derive(Clone, Debug, PartialEq)]
pub enum CalendarSaved {
    /// It is there now, and was not before.
    Created(Box<CalendarRecord>),
    /// It has a new version.
    Changed(Box<CalendarRecord>),
    /// Another caller changed it first; its version now, 0 where it is gone.
    Conflict(i64),
}

/// What deleting a calendar did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CalendarDeleted {
    /// It is gone.
    Deleted,
    /// These jobs use it: the first [`USER_COUNT_SHOWN`] by name, and how many they are.
    Used(Vec<String>, u64),
    /// Another caller changed it first; its version now.
    Conflict(i64),
    /// There is no such calendar.
    NotFound,
}

/// Calendars.
#[async_trait]
pub trait Calendars {
    /// A calendar by its name.
    async fn calendar(&self, namespace: NamespaceId, name: &str) -> Result<Option<CalendarRecord>>;

    /// Calendars of a namespace by name, after `after_name`, at most `limit`.
    async fn calendars(
        &self,
        namespace: NamespaceId,
        after_name: Option<&str>,
        limit: u32,
    ) -> Result<Vec<CalendarRecord>>;

    /// Saves a version of a calendar.
    async fn save_calendar(&self, change: CalendarChange<'_>) -> Result<CalendarSaved>;

    /// Deletes a calendar that no job uses. Whether another calendar names it is for the caller to know.
    async fn delete_calendar(&self, id: CalendarId, expected_version: Option<i64>) -> Result<CalendarDeleted>;

    /// Jobs, of any namespace, whose newest definition is planned by a version of its calendar that is not the newest.
    async fn jobs_behind(&self, limit: u32) -> Result<Vec<JobRecord>>;

    /// Names of jobs that use a calendar, in order, after `after_name`, at most `limit`; `within` keeps to the jobs of these
    /// apps.
    async fn calendar_users(
        &self,
        id: CalendarId,
        within: Option<&[AppId]>,
        after_name: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>>;
}
