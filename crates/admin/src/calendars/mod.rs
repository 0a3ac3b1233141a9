//! Saving and deleting calendars, with the consequences for the calendars that name them and the jobs that use them.
//!
//! The fires of a job are planned with one version of its calendar. [`save`] returns after every job that uses the calendar, directly or
//! through other calendars, has moved to the new version. A fire that is due more than a second after [`save`] has returned never follows the
//! old version. If a server crashes in between, or a job could not be moved, the healing loop finishes the move.

mod composition;
mod followers;
mod import;

use rondel_core::calendar::{Calendar, CalendarSpec};
use rondel_core::words::counted;
use rondel_core::{AppId, CalendarId, FieldError, NamespaceId, name};
use rondel_store::StoreError;
use rondel_store::calendars::{CalendarChange, CalendarDeleted, CalendarRecord, CalendarSaved};

use self::composition::Composition;
pub(crate) use self::composition::{composition, expand_until_settled};
pub(crate) use self::followers::replan_jobs_of_calendars;
pub use self::import::{IMPORT_LEN_MAX, ImportAs, ImportError, ImportFormat, import};
use crate::node::Node;

/// Maximum number of calendars in a namespace.
pub const CALENDAR_COUNT_MAX: usize = 1_000;
/// Maximum number of calendars that one statement reads; each calendar may list thousands of days.
const PAGE: u32 = 50;

/// Why a change of a calendar was refused.
#[derive(Debug, thiserror::Error)]
pub enum CalendarError {
    /// The document is invalid, or would invalidate a calendar that refers to it or a job that uses it.
    #[error("the calendar has {}, the first is {}", counted(.0.len(), "error"), .0.first().map_or_else(String::new, ToString::to_string))]
    Invalid(Vec<FieldError>),
    /// Another caller changed the calendar first.
    #[error("the calendar was changed meanwhile, its version is {version}")]
    Conflict {
        /// The current version, 0 if the calendar was deleted.
        version: i64,
    },
    /// The calendar is in use and cannot be deleted.
    #[error("the calendar is used by {} and {}", counted(.calendars.len(), "calendar"), counted(*.job_count, "job"))]
    Used {
        /// The names of the calendars that refer to the calendar.
        calendars: Vec<String>,
        /// The names of some of the jobs that use the calendar.
        jobs: Vec<String>,
        /// How many jobs use the calendar.
        job_count: u64,
    },
    /// The namespace has reached its maximum number of calendars.
    #[error("the namespace has {CALENDAR_COUNT_MAX} calendars, the maximum")]
    TooMany,
    /// There is no such calendar.
    #[error("there is no such calendar")]
    NotFound,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Clone, Debug, PartialEq)]
pub struct SavedCalendar {
    /// The calendar as it is stored after the save.
    pub record: CalendarRecord,
    /// Whether the calendar was created.
    pub is_new: bool,
}

/// What uses a calendar: another calendar, or a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CalendarDependent {
    /// The name of another calendar.
    Calendar(String),
    /// The name of a job.
    Job(String),
}

/// Checks a calendar as [`save`] does, without saving it.
///
/// # Errors
/// [`CalendarError::Invalid`], [`CalendarError::TooMany`], the store's.
pub async fn check(node: &Node, namespace: NamespaceId, spec: &CalendarSpec) -> Result<(), CalendarError> {
    check_with_dependents(node, namespace, spec).await.map(drop)
}

/// Saves a calendar, re-expands the calendars that depend on it, and moves the jobs that use any of them to the new versions. `None` as
/// `expected_version` saves over any version.
///
/// # Errors
/// [`CalendarError`] except `Used` and `NotFound`. After an error of the store, the calendar can already be saved while its dependents are
/// not updated yet.
pub async fn save(
    node: &Node,
    namespace: NamespaceId,
    spec: &CalendarSpec,
    expected_version: Option<i64>,
    author: &str,
) -> Result<SavedCalendar, CalendarError> {
    let parts = check_with_dependents(node, namespace, spec).await?;
    let expansion = spec.expanded(|name| parts.get(name).cloned());
    let stored_calendar = find(node, namespace, &spec.name).await?;
    let has_expected_version =
        |record: &CalendarRecord| expected_version.is_none_or(|version| version == record.version);
    let is_unchanged = |record: &CalendarRecord| {
        record.spec == *spec && record.expanded_rule == expansion && has_expected_version(record)
    };
    let is_new = if stored_calendar.is_some_and(|record| is_unchanged(&record)) {
        false
    } else {
        let change = CalendarChange {
            id: CalendarId::new(node.new_id()),
            namespace,
            expected_version,
            spec,
            expanded_rule: &expansion,
            author,
            now: node.now(),
        };
        match node.store().save_calendar(change).await? {
            CalendarSaved::Created(_) => true,
            CalendarSaved::Changed(_) => false,
            CalendarSaved::Conflict(version) => return Err(CalendarError::Conflict { version }),
        }
    };
    // Reads the composition again, after the write. If two callers save related calendars concurrently, at least one of them sees the
    // other's change, since both write before they read.
    let composition = composition(node, namespace).await?;
    let mut affected_calendars = composition.all_dependents(&spec.name);
    affected_calendars.insert(0, spec.name.clone());
    expand_until_settled(node, namespace, &affected_calendars).await?;
    replan_jobs_of_calendars(node).await?;
    let record = node.store().calendar(namespace, &spec.name).await?;
    record.map(|record| SavedCalendar { record, is_new }).ok_or(CalendarError::Conflict { version: 0 })
}

/// Deletes a calendar that nothing uses.
///
/// # Errors
/// [`CalendarError::NotFound`], [`CalendarError::Used`], [`CalendarError::Conflict`], the store's.
pub async fn delete(
    node: &Node,
    namespace: NamespaceId,
    name: &str,
    expected_version: Option<i64>,
) -> Result<(), CalendarError> {
    let record = find(node, namespace, name).await?.ok_or(CalendarError::NotFound)?;
    let calendars = composition(node, namespace).await?.direct_dependents(name);
    if !calendars.is_empty() {
        return Err(CalendarError::Used { calendars, jobs: Vec::new(), job_count: 0 });
    }
    match node.store().delete_calendar(record.id, expected_version).await? {
        CalendarDeleted::Deleted => Ok(()),
        CalendarDeleted::Used(jobs, job_count) => Err(CalendarError::Used { calendars: Vec::new(), jobs, job_count }),
        CalendarDeleted::Conflict(version) => Err(CalendarError::Conflict { version }),
        CalendarDeleted::NotFound => Err(CalendarError::NotFound),
    }
}

/// The calendars and jobs that use a calendar directly, starting after `after_name`, at most `limit`. Calendars are listed before jobs; both are
/// sorted by name. `visible_apps` restricts the jobs to those of these apps; `None` includes the jobs of all apps.
///
/// # Errors
///
/// The store's.
pub async fn dependents(
    node: &Node,
    record: &CalendarRecord,
    visible_apps: Option<&[AppId]>,
    after_name: Option<&CalendarDependent>,
    limit: usize,
) -> Result<Vec<CalendarDependent>, StoreError> {
    let mut dependents = Vec::new();
    if !matches!(after_name, Some(CalendarDependent::Job(_))) {
        let calendars = composition(node, record.namespace).await?.direct_dependents(&record.spec.name);
        dependents.extend(
            calendars.into_iter().map(CalendarDependent::Calendar).filter(|dependent| after_name < Some(dependent)),
        );
        dependents.truncate(limit);
    }
    let remaining_count = u32::try_from(limit - dependents.len()).unwrap_or(u32::MAX);
    if remaining_count > 0 {
        let after_name = match after_name {
            Some(CalendarDependent::Job(name)) => Some(name.as_str()),
            Some(CalendarDependent::Calendar(_)) | None => None,
        };
        let jobs = node.store().jobs_with_calendar(record.id, visible_apps, after_name, remaining_count).await?;
        dependents.extend(jobs.into_iter().map(CalendarDependent::Job));
    }
    Ok(dependents)
}

/// Finds a calendar by its name. Returns `None` if there is none, or if the text cannot be a name.
///
/// # Errors
/// The store's.
pub async fn find(node: &Node, namespace: NamespaceId, name: &str) -> Result<Option<CalendarRecord>, StoreError> {
    // Text that cannot be a name is not looked up, so that unchecked text of a caller never reaches the database.
    if name::check(name).is_ok() { node.store().calendar(namespace, name).await } else { Ok(None) }
}

/// Checks a calendar and all calendars that depend on it. Returns the calendars that the checked calendar itself depends on.
async fn check_with_dependents(
    node: &Node,
    namespace: NamespaceId,
    spec: &CalendarSpec,
) -> Result<composition::NamedCalendars, CalendarError> {
    let composition = composition(node, namespace).await?;
    if composition.len() >= CALENDAR_COUNT_MAX && !composition.has(&spec.name) {
        return Err(CalendarError::TooMany);
    }
    let parts = composition::read_dependencies(node, namespace, spec, None).await?;
    let calendar = Calendar::compile(spec, |name| parts.get(name).cloned()).map_err(CalendarError::Invalid)?;
    followers::check_jobs(node, namespace, &spec.name, &calendar).await?;
    check_dependents(node, namespace, spec, &composition).await?;
    Ok(parts)
}

/// Checks that all calendars that depend on the calendar of `spec` stay valid with this new version.
async fn check_dependents(
    node: &Node,
    namespace: NamespaceId,
    spec: &CalendarSpec,
    composition: &Composition,
) -> Result<(), CalendarError> {
    for composed in composition.all_dependents(&spec.name).iter().filter(|composed| **composed != spec.name) {
        let Some(record) = node.store().calendar(namespace, composed).await? else { continue };
        let parts = composition::read_dependencies(node, namespace, &record.spec, Some(spec)).await?;
        let calendar = Calendar::compile(&record.spec, |name| parts.get(name).cloned()).map_err(|errors| {
            let first_message = errors.first().map(|error| error.message.clone()).unwrap_or_default();
            let message = format!("the calendar {composed:?} names this one and would not be right: {first_message}");
            CalendarError::Invalid(vec![FieldError::new("/rule", message)])
        })?;
        followers::check_jobs(node, namespace, composed, &calendar).await?;
    }
    Ok(())
}
