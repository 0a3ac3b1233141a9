//! The trait `Calendars` for the store in memory.

use async_trait::async_trait;
use rondel_core::calendar::Rule;
use rondel_core::{AppId, CalendarId, NamespaceId};

use super::{MemStore, State, to_usize};
use crate::calendars::{
    CALENDAR_JOB_COUNT_SHOWN, CalendarChange, CalendarDeleted, CalendarOutline, CalendarRecord, CalendarSaved,
};
use crate::catalog::{JobRecord, PinnedCalendar};
use crate::{Calendars, Result};

#[async_trait]
impl Calendars for MemStore {
    async fn calendar(&self, namespace: NamespaceId, name: &str) -> Result<Option<CalendarRecord>> {
        Ok(self.state().calendar(namespace, name).cloned())
    }

    async fn calendars(
        &self,
        namespace: NamespaceId,
        after_name: Option<&str>,
        limit: u32,
    ) -> Result<Vec<CalendarRecord>> {
        let state = self.state();
        let mut calendars: Vec<CalendarRecord> =
            state.calendars.values().filter(|calendar| calendar.namespace == namespace).cloned().collect();
        calendars.retain(|calendar| after_name.is_none_or(|name| calendar.spec.name.as_str() > name));
        calendars.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
        calendars.truncate(to_usize(limit));
        Ok(calendars)
    }

    async fn calendar_outlines(
        &self,
        namespace: NamespaceId,
        after_name: Option<&str>,
        limit: u32,
    ) -> Result<Vec<CalendarOutline>> {
        let calendars = self.calendars(namespace, after_name, limit).await?;
        let outline = |calendar: CalendarRecord| CalendarOutline {
            name: calendar.spec.name,
            description: calendar.spec.description,
            version: calendar.version,
            is_readable: true,
            created_at: calendar.created_at,
            updated_at: calendar.updated_at,
        };
        Ok(calendars.into_iter().map(outline).collect())
    }

    async fn save_calendar(&self, change: CalendarChange<'_>) -> Result<CalendarSaved> {
        let mut state = self.state();
        let calendar_before = state.calendar(change.namespace, &change.spec.name).cloned();
        let version = calendar_before.as_ref().map_or(0, |calendar| calendar.version);
        if change.expected_version.is_some_and(|expected| expected != version) {
            return Ok(CalendarSaved::Conflict(version));
        }
        let record = CalendarRecord {
            id: calendar_before.as_ref().map_or(change.id, |calendar| calendar.id),
            namespace: change.namespace,
            version: version + 1,
            spec: change.spec.clone(),
            expanded_rule: change.expanded_rule.clone(),
            created_at: calendar_before.as_ref().map_or(change.now, |calendar| calendar.created_at),
            updated_at: change.now,
        };
        state.calendar_rules.insert((record.id, record.version), record.expanded_rule.clone());
        state.calendars.insert(record.id, record.clone());
        let record = Box::new(record);
        Ok(if calendar_before.is_none() { CalendarSaved::Created(record) } else { CalendarSaved::Changed(record) })
    }

    async fn delete_calendar(&self, id: CalendarId, expected_version: Option<i64>) -> Result<CalendarDeleted> {
        let mut state = self.state();
        let Some(calendar) = state.calendars.get(&id) else { return Ok(CalendarDeleted::NotFound) };
        if expected_version.is_some_and(|expected| expected != calendar.version) {
            return Ok(CalendarDeleted::Conflict(calendar.version));
        }
        let mut job_names = state.jobs_that_use(id, None);
        if !job_names.is_empty() {
            let count = u64::try_from(job_names.len()).unwrap_or(u64::MAX);
            job_names.truncate(to_usize(CALENDAR_JOB_COUNT_SHOWN));
            return Ok(CalendarDeleted::Used(job_names, count));
        }
        state.calendars.remove(&id);
        Ok(CalendarDeleted::Deleted)
    }

    async fn jobs_with_outdated_calendar(&self, limit: u32) -> Result<Vec<JobRecord>> {
        let state = self.state();
        let is_outdated = |job: &JobRecord| {
            job.calendar
                .is_some_and(|pin| state.calendars.get(&pin.id).is_some_and(|calendar| pin.version < calendar.version))
        };
        Ok(state.living_jobs().filter(is_outdated).take(to_usize(limit)).collect())
    }

    async fn jobs_with_calendar(
        &self,
        id: CalendarId,
        within: Option<&[AppId]>,
        after_name: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>> {
        let mut job_names = self.state().jobs_that_use(id, within);
        job_names.retain(|name| after_name.is_none_or(|after| name.as_str() > after));
        job_names.truncate(to_usize(limit));
        Ok(job_names)
    }
}

impl State {
    fn calendar(&self, namespace: NamespaceId, name: &str) -> Option<&CalendarRecord> {
        self.calendars.values().find(|calendar| calendar.namespace == namespace && calendar.spec.name == name)
    }

    /// Sorted names of the jobs that use a calendar.
    fn jobs_that_use(&self, id: CalendarId, within: Option<&[AppId]>) -> Vec<String> {
        let uses = |job: &JobRecord| {
            job.calendar.is_some_and(|pin| pin.id == id) && within.is_none_or(|apps| apps.contains(&job.app))
        };
        let mut job_names: Vec<String> = self.living_jobs().filter(uses).map(|job| job.spec.name).collect();
        job_names.sort();
        job_names
    }

    /// Whether a job may use this version of a calendar.
    pub(super) fn has_calendar(&self, pin: Option<PinnedCalendar>) -> bool {
        let newest_version = |id| self.calendars.get(&id).map_or(0, |calendar: &CalendarRecord| calendar.version);
        pin.is_none_or(|pin| (1..=newest_version(pin.id)).contains(&pin.version))
    }

    /// The rule of the calendar version that a definition is pinned to.
    pub(super) fn pinned_rule(&self, pin: Option<PinnedCalendar>) -> Option<Rule> {
        pin.and_then(|pin| self.calendar_rules.get(&(pin.id, pin.version))).cloned()
    }
}
