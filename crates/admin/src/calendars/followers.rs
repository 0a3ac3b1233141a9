//! The jobs that use a calendar. They are checked before the calendar changes, and moved to its new version afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::calendars;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use rondel_core::calendar::Calendar;
use rondel_core::spec::CalendarRule;
use rondel_core::{FieldError, JobId, NamespaceId};
use rondel_store::StoreError;
use rondel_store::catalog::{JobRecord, PinnedCalendar};

use super::CalendarError;
use crate::jobs::{self, JobError};
use crate::node::Node;
use rondel_core::error_chain::chain;

/// Number of jobs moved concurrently.
const PARALLEL_COUNT: usize = 8;
/// Number of jobs that one statement reads.
const JOB_PAGE: u32 = 200;

/// Maximum number of tries to move a job within one call of [`replan_jobs_of_calendars`]. A try fails if another caller changes the job or its
/// calendar meanwhile.
const TRY_COUNT_MAX: u32 = 3;

type CurrentCalendar = Option<(PinnedCalendar, Arc<Calendar>)>;

/// Checks that `calendar`, the new version of the calendar `name`, can plan the calendar's jobs. A job whose rule moves its fires by whole days
/// (next or previous) needs a calendar without times of day.
pub(super) async fn check_jobs(
    node: &Node,
    namespace: NamespaceId,
    name: &str,
    calendar: &Calendar,
) -> Result<(), CalendarError> {
    let Some(record) = calendars::find(node, namespace, name).await?.filter(|_| calendar.has_times()) else {
        return Ok(());
    };
    let mut after_name: Option<String> = None;
    loop {
        let job_names = node.store().jobs_with_calendar(record.id, None, after_name.as_deref(), JOB_PAGE).await?;
        let Some(last_name) = job_names.last() else { return Ok(()) };
        after_name = Some(last_name.clone());
        let job_names: Vec<&str> = job_names.iter().map(String::as_str).collect();
        for job in node.store().jobs_named(namespace, &job_names).await? {
            if let Some(calendar_use) = job.spec.calendar.filter(|used| moves_fires(used.rule)) {
                let job_name = &job.spec.name;
                let message = format!(
                    "has times of day, and the job {job_name:?} moves its fires by whole days ({}) by the calendar {name:?}",
                    calendar_use.rule
                );
                return Err(CalendarError::Invalid(vec![FieldError::new("/rule", message)]));
            }
        }
    }
}

/// Moves every job that is planned by an earlier version of its calendar to the newest version, in the same way as an edit of the job. Returns
/// the number of jobs moved. A job keeps its version if its edit fails, which is logged, or if other callers changed the job or its calendar
/// during each of [`TRY_COUNT_MAX`] tries.
pub(crate) async fn replan_jobs_of_calendars(node: &Node) -> Result<u64, StoreError> {
    let mut tries_by_job: BTreeMap<JobId, u32> = BTreeMap::new();
    let mut replanned_jobs = BTreeSet::new();
    loop {
        // Each query also returns the jobs that could not be moved so far, so the limit grows by their number.
        let given_up_jobs: BTreeSet<JobId> =
            tries_by_job.iter().filter(|(_, tries)| **tries >= TRY_COUNT_MAX).map(|(job, _)| *job).collect();
        let limit = JOB_PAGE.saturating_add(u32::try_from(given_up_jobs.len()).unwrap_or(u32::MAX));
        let mut outdated_jobs = node.store().jobs_with_outdated_calendar(limit).await?;
        outdated_jobs.retain(|record| !given_up_jobs.contains(&record.id));
        if outdated_jobs.is_empty() {
            return Ok(u64::try_from(replanned_jobs.len()).unwrap_or(u64::MAX));
        }
        let calendars = calendars_of(node, &outdated_jobs).await?;
        for batch in outdated_jobs.chunks(PARALLEL_COUNT) {
            let replannings: Vec<_> = batch.iter().map(|record| replan(node, record, &calendars).boxed()).collect();
            for (record, result) in batch.iter().zip(join_all(replannings).await) {
                *tries_by_job.entry(record.id).or_default() += 1;
                match result {
                    Ok(true) => drop(replanned_jobs.insert(record.id)),
                    Ok(false) => {}
                    Err(JobError::Store(error)) if error.is_transient() => return Err(error),
                    Err(error) => {
                        let (job, error) = (&record.spec.name, chain(&error));
                        tracing::error!(job, job_id = %record.id, error, "job cannot follow its calendar");
                        tries_by_job.insert(record.id, TRY_COUNT_MAX);
                    }
                }
            }
        }
    }
}

/// The current calendars of these jobs, keyed by namespace and name. Each calendar is read once.
async fn calendars_of(
    node: &Node,
    records: &[JobRecord],
) -> Result<BTreeMap<(NamespaceId, String), CurrentCalendar>, StoreError> {
    let mut calendars = BTreeMap::new();
    for record in records {
        let Some(calendar_use) = &record.spec.calendar else { continue };
        let key = (record.namespace, calendar_use.name.clone());
        if let std::collections::btree_map::Entry::Vacant(entry) = calendars.entry(key) {
            entry.insert(jobs::find_calendar(node, record.namespace, &calendar_use.name).await?);
        }
    }
    Ok(calendars)
}

/// Moves one job. Returns false if another caller changed or deleted the job first, so that it must be read again.
async fn replan(
    node: &Node,
    record: &JobRecord,
    calendars: &BTreeMap<(NamespaceId, String), CurrentCalendar>,
) -> Result<bool, JobError> {
    let name = record.spec.calendar.as_ref().map(|used| used.name.clone()).unwrap_or_default();
    let calendar = calendars.get(&(record.namespace, name.clone())).cloned().flatten();
    match jobs::follow_calendar(node, record, calendar, &format!("calendar {name}")).await {
        Ok(()) => Ok(true),
        Err(JobError::Conflict { .. } | JobError::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

const fn moves_fires(rule: CalendarRule) -> bool {
    match rule {
        CalendarRule::Next | CalendarRule::Previous => true,
        CalendarRule::Only | CalendarRule::Except => false,
    }
}
