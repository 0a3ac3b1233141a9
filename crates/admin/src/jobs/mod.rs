//! Creates, changes, pauses and deletes jobs, and requests runs of them.

mod apply;
mod checks;
mod overrides;
mod params;
mod queued;
mod requests;
mod restore;
mod scripts;
mod shards;

use std::sync::Arc;

use rondel_core::calendar::Calendar;
use rondel_core::error_chain::chain;
use rondel_core::queued::QueuedRunsPolicy;
use rondel_core::request::IfOpen;
use rondel_core::words::counted;
use rondel_core::{
    AppId, FieldError, Job, JobId, JobSpec, NamespaceId, Reason, Run, RunId, Timestamp, TraceParent, Trigger,
};
use rondel_store::StoreError;
use rondel_store::catalog::{
    JobChange, JobCreated, JobDeleted, JobDeletion, JobRecord, JobSaved, NewJob, PinnedCalendar, QueuedDrops,
};

pub use self::checks::find_calendar;
pub(crate) use self::checks::missing_channel_error;
pub use self::overrides::{RunParams, params_of_repetition, run_params};
pub use self::params::{JobWarning, handlers, is_offered, params_schema, warnings};
pub use self::queued::QueuedRuns;
pub use self::requests::request_run;
pub use self::restore::restore;
pub use self::shards::{ShardsError, is_unsuccessful, request_failed_shards};
use crate::apps::{self, AppError};
use crate::jobs::checks::CheckedDefinition;
use crate::node::Node;
use crate::store_once::store_once;

pub use apply::{Action, ApplyError, ApplyPlan, ApplyRequest, PlannedJob, SavedJob, Saving, dry_run, plan};

/// Why a change of a job was refused.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The definition is invalid.
    #[error("the definition has {}, the first is {}", counted(.0.len(), "error"), .0.first().map_or_else(String::new, ToString::to_string))]
    Invalid(Vec<FieldError>),
    /// Another job of the namespace has the name.
    #[error("a job with this name exists")]
    NameTaken,
    /// Another caller changed the job first.
    #[error("the job was changed meanwhile, its version is {version}")]
    Conflict {
        /// The job's current version.
        version: i64,
    },
    /// Other jobs follow from the job.
    #[error("the job is the parent of {}", counted(.children.len(), "job"))]
    IsParent {
        /// The names of these jobs.
        children: Vec<String>,
    },
    /// There is no such job.
    #[error("there is no such job")]
    NotFound,
    /// No code has ever declared the job.
    #[error("no code declares this job: there is no declaration to restore")]
    NotDeclared,
    /// An open run of the job has the key of the request.
    #[error("run {} has the key and has not ended", .0.id)]
    KeyInUse(Box<Run>),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Clone, Debug)]
pub struct RunRequest {
    /// Parameters of this run only; `None` for the job's parameters.
    pub params: Option<RunParams>,
    /// Whether a user or a program requests the run.
    pub trigger: Trigger,
    /// The run that this run repeats; `None` if it repeats none.
    pub parent: Option<RunId>,
    /// The span of the request, whose trace the run continues; `None` if the request has no trace.
    pub trace: Option<TraceParent>,
    /// The stable name of the only executor that may execute the run; `None` for any executor.
    pub executor: Option<String>,
    /// The run's key, and how the request is handled while an open run of the job has that key.
    pub key: Option<(String, IfOpen)>,
    /// When the run is to begin; `None` for now.
    pub at: Option<Timestamp>,
}

impl RunRequest {
    /// A request for a run with the parameters of the job's definition.
    #[must_use]
    pub const fn by(trigger: Trigger) -> Self {
        Self { params: None, trigger, parent: None, trace: None, executor: None, key: None, at: None }
    }
}

/// Creates a job, and its app if there is none.
///
/// # Errors
/// [`JobError::Invalid`], [`JobError::NameTaken`], the store's.
pub async fn create(node: &Node, namespace: NamespaceId, spec: JobSpec, author: &str) -> Result<JobRecord, JobError> {
    let definition = checks::replace_and_check(node, namespace, spec, None).await?;
    if node.store().job(namespace, &definition.spec.name).await?.is_some() {
        return Err(JobError::NameTaken);
    }
    let app = app_of(node, namespace, &definition.spec, definition.checked_at).await?;
    let now = node.now();
    let new_job = new_job(node, (namespace, app), definition.with_save_time(now, None), author, now);
    let (calendar_error, expect) = (missing_calendar_error(&new_job.spec), new_job.spec.expect.clone());
    match store_once(|| node.store().create_job(new_job.clone())).await? {
        JobCreated::Saved(record) => {
            node.poke_scan();
            Ok(catch_up_with_calendar(node, *record).await)
        }
        JobCreated::NameTaken => match node.store().job(namespace, &new_job.spec.name).await? {
            // An earlier try of this call created the job, but the answer to that try was lost.
            Some(record) if record.id == new_job.id => {
                node.poke_scan();
                Ok(catch_up_with_calendar(node, record).await)
            }
            Some(_) | None => Err(JobError::NameTaken),
        },
        JobCreated::NoCalendar => Err(JobError::Invalid(vec![calendar_error])),
        JobCreated::NoChannel(name) => {
            Err(JobError::Invalid(vec![checks::deleted_channel_error(expect.as_deref(), &name)]))
        }
        JobCreated::NoScript(script) => Err(JobError::Invalid(vec![scripts::deleted_script_error(&script)])),
        JobCreated::BadParents(errors) => Err(JobError::Invalid(errors)),
    }
}

fn new_job(
    node: &Node,
    (namespace, app): (NamespaceId, AppId),
    definition: CheckedDefinition,
    author: &str,
    now: Timestamp,
) -> NewJob {
    let (calendar, checked_at) = (definition.pinned_calendar(), definition.checked_at);
    let CheckedDefinition { spec, job, .. } = definition;
    let anchor = now.ceil_second();
    let immediate_instant = job.timetable.once_within(checked_at, now).filter(|_| job.enabled);
    NewJob {
        id: JobId::new(node.new_id()),
        namespace,
        app,
        next_fire_at: immediate_instant.or_else(|| first_fire(&job, anchor, now)),
        delay: job.timetable.delay().filter(|_| job.enabled),
        calendar,
        declared: None,
        spec,
        anchor,
        author: author.to_owned(),
        now,
    }
}

/// A schedule whose instant was in the past when it was saved may have run immediately, at an instant that the save gave it. Copies these
/// instants from `stored_spec` to `spec` ([`JobSpec::keep_run_instants`]), so that a definition that is sent again does not run such schedules
/// again. The caller has already read `stored_spec`, so the clock, which is read here, is later than every such instant in it.
pub fn keep_run_instants(node: &Node, spec: &mut JobSpec, stored_spec: &JobSpec) {
    spec.keep_run_instants(stored_spec, checks::instant_after(node.now()));
}

/// Changes the definition of a job. If that pauses the job, the runs of its schedule that no executor has are skipped.
///
/// # Errors
/// Each variant of [`JobError`].
pub async fn change(
    node: &Node,
    record: &JobRecord,
    spec: JobSpec,
    expected_version: Option<i64>,
    author: &str,
) -> Result<JobRecord, JobError> {
    let saved_record = change_definition(node, record, spec, expected_version, (None, author)).await?;
    settle_if_paused(node, record, &saved_record, author).await?;
    Ok(saved_record)
}

/// Like [`change`], but does not wait for the ends of queued runs: their owners end them within about a second.
///
/// # Errors
/// Each variant of [`JobError`].
pub async fn change_without_wait(
    node: &Node,
    record: &JobRecord,
    spec: JobSpec,
    expected_version: Option<i64>,
    author: &str,
) -> Result<JobRecord, JobError> {
    change_definition(node, record, spec, expected_version, (None, author)).await
}

/// If a change has paused the job, skips the runs of its schedule that no executor has.
async fn settle_if_paused(
    node: &Node,
    old_record: &JobRecord,
    saved_record: &JobRecord,
    author: &str,
) -> Result<(), StoreError> {
    if old_record.spec.enabled { end_queued_of_paused(node, saved_record, author).await } else { Ok(()) }
}

/// If a job is paused, skips the runs of its schedule that no executor has. A repeated pause also skips runs that were queued since, or
/// that an earlier pause kept.
///
/// # Errors
/// The store's.
pub async fn end_queued_of_paused(node: &Node, record: &JobRecord, author: &str) -> Result<(), StoreError> {
    if !record.spec.enabled {
        queued::end_queued(node, record.id, (Reason::Paused, None), author, Vec::new()).await?;
    }
    Ok(())
}

/// Skips or keeps the runs of a deleted job that no executor has. This is for a repeated deletion, which may choose differently from the first
/// deletion.
///
/// # Errors
/// The store's.
pub async fn end_queued_of_deleted(
    node: &Node,
    job: JobId,
    (queued_policy, author): (Option<QueuedRunsPolicy>, &str),
) -> Result<QueuedRuns, StoreError> {
    queued::end_queued(node, job, (Reason::Deleted, queued_policy), author, Vec::new()).await
}

/// Changes the definition of a job. If that pauses the job, its transaction also stores the requests to end queued runs.
async fn change_definition(
    node: &Node,
    record: &JobRecord,
    spec: JobSpec,
    expected_version: Option<i64>,
    choice_and_author: (Option<QueuedRunsPolicy>, &str),
) -> Result<JobRecord, JobError> {
    check_name(record, &spec)?;
    let definition = checks::replace_and_check(node, record.namespace, spec, Some(&record.spec)).await?;
    let saved_record = save(node, record, definition, expected_version, choice_and_author).await?;
    Ok(catch_up_with_calendar(node, saved_record).await)
}

/// Moves a job to the newest version of its calendar, which the caller has read, without any other change.
pub(crate) async fn follow_calendar(
    node: &Node,
    record: &JobRecord,
    calendar: Option<(PinnedCalendar, Arc<Calendar>)>,
    author: &str,
) -> Result<(), JobError> {
    let calendar_rule = calendar.as_ref().map(|(_, calendar)| Arc::clone(calendar));
    let definition = CheckedDefinition {
        spec: record.spec.clone(),
        job: record.spec.compile_with(calendar_rule).map_err(JobError::Invalid)?,
        calendar,
        checked_at: node.now(),
        is_restored: true,
    };
    if record.spec.calendar.is_some() && definition.calendar.is_none() {
        return Err(JobError::Invalid(vec![missing_calendar_error(&record.spec)]));
    }
    save(node, record, definition, Some(record.version), (None, author)).await.map(drop)
}

/// Saves a checked definition. The same transaction settles the runs that the change affects.
async fn save(
    node: &Node,
    record: &JobRecord,
    definition: CheckedDefinition,
    expected_version: Option<i64>,
    (queued_policy, author): (Option<QueuedRunsPolicy>, &str),
) -> Result<JobRecord, JobError> {
    let app = app_of(node, record.namespace, &definition.spec, definition.checked_at).await?;
    let previous_job = checks::compile_newest(node, record).await?;
    let now = node.now();
    let definition = definition.with_save_time(now, Some(&record.spec));
    let change = JobChange {
        id: record.id,
        expected_version,
        spec: &definition.spec,
        job: &definition.job,
        before: &previous_job,
        calendar: definition.pinned_calendar(),
        app,
        author,
        skipped_row_id: RunId::new(node.new_id()),
        now,
        checked_at: definition.checked_at,
        reached: node.shared().latest_time(),
        drops: Some(queued_drops(node, queued_policy, author)),
    };
    match node.store().change_job(change).await? {
        JobSaved::Saved(record, reopened) => {
            node.try_put_own(reopened);
            node.poke_scan();
            Ok(*record)
        }
        JobSaved::Conflict(version) => Err(JobError::Conflict { version }),
        JobSaved::NameTaken => Err(JobError::NameTaken),
        JobSaved::NoCalendar => Err(JobError::Invalid(vec![missing_calendar_error(&definition.spec)])),
        JobSaved::NoChannel(name) => {
            Err(JobError::Invalid(vec![checks::deleted_channel_error(definition.spec.expect.as_deref(), &name)]))
        }
        JobSaved::NoScript(script) => Err(JobError::Invalid(vec![scripts::deleted_script_error(&script)])),
        JobSaved::BadParents(errors) => Err(JobError::Invalid(errors)),
        JobSaved::IsParent(children) => Err(JobError::IsParent { children }),
        JobSaved::NotFound => Err(JobError::NotFound),
    }
}

fn queued_drops<'a>(node: &Node, queued_policy: Option<QueuedRunsPolicy>, author: &'a str) -> QueuedDrops<'a> {
    QueuedDrops { choice: queued_policy, by: author, limit: node.shared().config.end_queued_max }
}

/// Moves a saved job to the newest version of its calendar, if the calendar was saved concurrently and that save did not see the job. An error
/// would make the caller save the job again, so the job then stays as it is stored: the loop that follows calendars moves it later.
async fn catch_up_with_calendar(node: &Node, record: JobRecord) -> JobRecord {
    Box::pin(try_catch_up_with_calendar(node, record.clone())).await.unwrap_or_else(|error| {
        tracing::warn!(job = record.spec.name, error = %chain(&error), "a saved job may have an older version of its calendar for now");
        record
    })
}

async fn try_catch_up_with_calendar(node: &Node, record: JobRecord) -> Result<JobRecord, JobError> {
    let (Some(pin), Some(calendar_use)) = (record.calendar, &record.spec.calendar) else { return Ok(record) };
    let newest_calendar = find_calendar(node, record.namespace, &calendar_use.name).await?;
    if newest_calendar.as_ref().is_none_or(|(newest, _)| *newest == pin) {
        return Ok(record);
    }
    match follow_calendar(node, &record, newest_calendar, &format!("calendar {}", calendar_use.name)).await {
        // Another caller changed the job meanwhile, and that call moves the job to the newest version of the calendar.
        Ok(()) | Err(JobError::Conflict { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(node.store().job(record.namespace, &record.spec.name).await?.unwrap_or(record))
}

/// Enables or disables a job's schedules. If they are already in that state, the definition is not changed. If schedules that are already
/// disabled are disabled again, the runs that an earlier pause left queued are skipped.
///
/// # Errors
/// [`JobError::Conflict`], [`JobError::NotFound`], the store's.
pub async fn set_enabled(node: &Node, record: &JobRecord, enabled: bool, author: &str) -> Result<JobRecord, JobError> {
    if record.spec.enabled == enabled {
        end_queued_of_paused(node, record, author).await?;
        return Ok(record.clone());
    }
    let spec = JobSpec { enabled, ..record.spec.clone() };
    change(node, record, spec, Some(record.version), author).await
}

/// Pauses a job, and skips or keeps its queued runs. By default, the queued runs of its schedule are skipped.
///
/// # Errors
/// [`JobError::Conflict`], [`JobError::NotFound`], the store's.
pub async fn pause(
    node: &Node,
    record: &JobRecord,
    author: &str,
    queued_policy: Option<QueuedRunsPolicy>,
) -> Result<(JobRecord, QueuedRuns), JobError> {
    let spec = JobSpec { enabled: false, ..record.spec.clone() };
    let runs_open_before = queued::open_runs(node, record.id).await?;
    let paused_record = match record.spec.enabled {
        true => change_definition(node, record, spec, Some(record.version), (queued_policy, author)).await?,
        false => record.clone(),
    };
    let runs =
        queued::end_queued(node, paused_record.id, (Reason::Paused, queued_policy), author, runs_open_before).await?;
    Ok((paused_record, runs))
}

/// Deletes a job. The job's runs stay. Runs that no executor has are skipped or kept, as the caller chooses. With `detaches_followers`, the job
/// is deleted even if other jobs follow from it. Returns `None` if the job did not exist.
///
/// # Errors
/// [`JobError::Conflict`], [`JobError::IsParent`], the store's.
pub async fn delete(
    node: &Node,
    record: &JobRecord,
    expected_version: Option<i64>,
    detaches_followers: bool,
    (queued_policy, author): (Option<QueuedRunsPolicy>, &str),
) -> Result<Option<QueuedRuns>, JobError> {
    let open_runs = queued::open_runs(node, record.id).await?;
    match delete_without_wait(node, record, expected_version, detaches_followers, (queued_policy, author)).await? {
        true => {
            Ok(Some(queued::end_queued(node, record.id, (Reason::Deleted, queued_policy), author, open_runs).await?))
        }
        false => Ok(None),
    }
}

/// Like [`delete`], but does not wait for the ends of queued runs: their owners end them within about a second. Returns whether the job
/// existed.
///
/// # Errors
/// Those of [`delete`].
pub async fn delete_without_wait(
    node: &Node,
    record: &JobRecord,
    expected_version: Option<i64>,
    detaches_followers: bool,
    (queued_policy, author): (Option<QueuedRunsPolicy>, &str),
) -> Result<bool, JobError> {
    let (now, skipped_row_id) = (node.now(), RunId::new(node.new_id()));
    let last_definition = checks::compile_newest(node, record).await.ok();
    let latest_time = node.shared().latest_time();
    let (id, last_definition, queued_drops) =
        (record.id, last_definition.as_ref(), Some(queued_drops(node, queued_policy, author)));
    let deletion = JobDeletion {
        id,
        expected_version,
        before: last_definition,
        skipped_row_id,
        now,
        reached: latest_time,
        detaches_followers,
        drops: queued_drops,
    };
    match node.store().delete_job(deletion).await? {
        JobDeleted::Done => {
            node.shared().definitions.job_series.forget(record.id);
            Ok(true)
        }
        JobDeleted::NotFound => Ok(false),
        JobDeleted::Conflict(version) => Err(JobError::Conflict { version }),
        JobDeleted::IsParent(children) => Err(JobError::IsParent { children }),
    }
}

/// The next fire of each of these jobs, claimed or not. `None` for a job that does not fire any more, and for a job whose next fire depends
/// on a run that has not ended.
///
/// # Errors
/// The store's.
pub async fn next_fires(node: &Node, records: &[JobRecord]) -> Result<Vec<Option<Timestamp>>, StoreError> {
    let definitions = node.definitions(records.iter().map(|record| (record.id, record.version))).await?;
    let now = node.now();
    let next_fire_at = |record: &JobRecord| {
        let job = &definitions.get(&(record.id, record.version))?.job;
        match job.timetable.delay() {
            Some(_) => record.next_fire_at,
            None => first_fire(job, record.anchor, now),
        }
    };
    Ok(records.iter().map(next_fire_at).collect())
}

async fn app_of(node: &Node, namespace: NamespaceId, spec: &JobSpec, now: Timestamp) -> Result<AppId, JobError> {
    match apps::ensure(node.store(), AppId::new(node.new_id()), (namespace, &spec.app), now).await {
        Ok(app) => Ok(app.id),
        Err(AppError::Store(error)) => Err(error.into()),
        Err(refused @ AppError::TooMany) => Err(JobError::Invalid(vec![FieldError::new("/app", refused.to_string())])),
    }
}

fn missing_calendar_error(spec: &JobSpec) -> FieldError {
    checks::missing_calendar_error(spec.calendar.as_ref().map_or("", |used| &used.name))
}

/// Refuses to rename a declared job: code refers to its jobs by name, and would create a second job.
fn check_name(record: &JobRecord, spec: &JobSpec) -> Result<(), JobError> {
    let is_declared = record.declared.as_ref().is_some_and(|declared| declared.undeclared_at.is_none());
    if !is_declared || spec.name == record.spec.name {
        return Ok(());
    }
    let message = format!("code declares this job as {:?}; change its name there", record.spec.name);
    Err(JobError::Invalid(vec![FieldError::new("/name", message)]))
}

fn first_fire(job: &Job, anchor: Timestamp, now: Timestamp) -> Option<Timestamp> {
    if !job.enabled {
        return None;
    }
    job.timetable.next_scan_after(anchor, now).or_else(|| job.timetable.first_delayed(now))
}
