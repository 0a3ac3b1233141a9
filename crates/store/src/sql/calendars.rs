//! Calendars.

use async_trait::async_trait;
use rondel_core::{CalendarId, NamespaceId};

use super::SqlStore;
use crate::calendars::{CalendarChange, CalendarDeleted, CalendarRecord, CalendarSaved};
use crate::catalog::JobRecord;
use crate::{Calendars, Result};

#[async_trait]
impl Calendars for SqlStore {
    async fn calendar(&self, _namespace: NamespaceId, _name: &str) -> Result<Option<CalendarRecord>> {
        Ok(None)
    }

    async fn calendars(
        &self,
        _namespace: NamespaceId,
        _after_name: Option<&str>,
        _limit: u32,
    ) -> Result<Vec<CalendarRecord>> {
        Ok(Vec::new())
    }

    async fn save_calendar(&self, _change: CalendarChange<'_>) -> Result<CalendarSaved> {
        Ok(CalendarSaved::Conflict(0))
    }

    async fn delete_calendar(&self, _id: CalendarId, _expected_version: Option<i64>) -> Result<CalendarDeleted> {
        Ok(CalendarDeleted::NotFound)
    }

    async fn jobs_behind(&self, _limit: u32) -> Result<Vec<JobRecord>> {
        Ok(Vec::new())
    }

    async fn calendar_users(&self, _id: CalendarId, _after_name: Option<&str>, _limit: u32) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}
