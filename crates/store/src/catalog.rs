//! Namespaces, apps, jobs with their versions.

use std::time::Duration;

use async_trait::async_trait;
use rondel_core::calendar::Rule;
use rondel_core::graph::Edge;
use rondel_core::queued::QueuedRunsPolicy;
use rondel_core::script::ScriptRef;
use rondel_core::{AppId, CalendarId, FieldError, Job, JobId, JobSpec, NamespaceId, Run, RunId, Timestamp};

use crate::error::Result;

/// A namespace: a tenant, or an environment such as a test system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    pub id: NamespaceId,
    pub name: String,
}

/// A group of executors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct App {
    pub id: AppId,
    pub namespace: NamespaceId,
    pub name: String,
}

/// A job with its newest definition.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRecord {
    pub id: JobId,
    pub namespace: NamespaceId,
    pub app: AppId,
    /// The number of its definition, from 1. A save whose `If-Match` names another number is refused.
    pub version: i64,
    pub spec: JobSpec,
    /// The instant that fixed rates count from.
    pub anchor: Timestamp,
    /// The first fire that has no row yet; `None` if the job will not fire.
    pub next_fire_at: Option<Timestamp>,
    /// The calendar that the definition uses, and the version that it is planned by.
    pub calendar: Option<PinnedCalendar>,
    /// Its declaration in code; `None` for a job that no code ever declared.
    pub declared: Option<Declared>,
    /// When the first definition was saved.
    pub created_at: Timestamp,
    /// When this definition was saved.
    pub updated_at: Timestamp,
}

/// A job in a list.
#[derive(Clone, Debug, PartialEq)]
pub enum ListedJob {
    Readable(Box<JobRecord>),
    /// A newer server saved its definition, and this server cannot read it.
    Unreadable(UnreadableJob),
}

/// A job whose newest definition this server cannot read. It is listed, and cannot be changed on this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableJob {
    pub id: JobId,
    pub app: AppId,
    pub name: String,
    pub app_name: String,
    pub handler: String,
    /// The number of its definition.
    pub version: i64,
}

impl ListedJob {
    #[must_use]
    pub fn id(&self) -> JobId {
        match self {
            Self::Readable(record) => record.id,
            Self::Unreadable(job) => job.id,
        }
    }

    #[must_use]
    pub fn app(&self) -> AppId {
        match self {
            Self::Readable(record) => record.app,
            Self::Unreadable(job) => job.app,
        }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Readable(record) => &record.spec.name,
            Self::Unreadable(job) => &job.name,
        }
    }

    /// The job with its definition; `None` if this server cannot read it.
    #[must_use]
    pub fn into_record(self) -> Option<JobRecord> {
        match self {
            Self::Readable(record) => Some(*record),
            Self::Unreadable(_) => None,
        }
    }

    /// Divides jobs into readable and unreadable ones. Both lists keep the order of `jobs`.
    #[must_use]
    pub fn split(jobs: Vec<Self>) -> (Vec<JobRecord>, Vec<UnreadableJob>) {
        let (mut records, mut unreadable_jobs) = (Vec::with_capacity(jobs.len()), Vec::new());
        for job in jobs {
            match job {
                Self::Readable(record) => records.push(*record),
                Self::Unreadable(job) => unreadable_jobs.push(job),
            }
        }
        (records, unreadable_jobs)
    }
}

/// The version of a calendar by which a definition is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedCalendar {
    pub id: CalendarId,
    pub version: i64,
}

/// The declaration of a job in the code of an app.
#[derive(Clone, Debug, PartialEq)]
pub struct Declared {
    /// The definition in the code.
    pub spec: JobSpec,
    /// When the declaration last changed.
    pub declared_at: Timestamp,
    /// Since when no code of the app declares it; `None` while some code does.
    pub undeclared_at: Option<Timestamp>,
}

/// One of a job's definitions.
#[derive(Clone, Debug, PartialEq)]
pub struct VersionRecord {
    /// Its number, from 1.
    pub version: i64,
    /// The definition.
    pub spec: JobSpec,
    /// The rule of the calendar version that it was planned by. The names of other calendars in the rule are replaced by their rules.
    pub calendar: Option<Rule>,
    /// Name of the caller that saved it.
    pub author: String,
    /// When it was saved: it applies from then on.
    pub created_at: Timestamp,
}

/// A version of a job's definition as the engine needs it. The job may be deleted.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    pub job: JobId,
    pub version: i64,
    pub namespace: NamespaceId,
    pub namespace_name: String,
    pub app: AppId,
    pub spec: JobSpec,
    /// When this version was saved.
    pub saved_at: Timestamp,
    /// The instant that fixed rates count from.
    pub anchor: Timestamp,
    /// The rule of the calendar version that it is planned by. The names of other calendars in the rule are replaced by their rules.
    pub calendar: Option<Rule>,
}

/// A job to be created.
#[derive(Clone, Debug)]
pub struct NewJob {
    pub id: JobId,
    pub namespace: NamespaceId,
    /// Its app, which exists.
    pub app: AppId,
    /// Its definition, validated.
    pub spec: JobSpec,
    /// The instant that fixed rates count from: the creation instant rounded up to a second.
    pub anchor: Timestamp,
    /// Its first fire.
    pub next_fire_at: Option<Timestamp>,
    /// The length of its fixed delay; `None` if it has none, or is not enabled.
    pub delay: Option<Duration>,
    /// The calendar that it uses.
    pub calendar: Option<PinnedCalendar>,
    /// Its declaration in code; `None` if no code declares it.
    pub declared: Option<JobSpec>,
    /// Name of the caller that creates it.
    pub author: String,
    pub now: Timestamp,
}

/// A change of a job's definition.
#[derive(Clone, Debug)]
pub struct JobChange<'a> {
    pub id: JobId,
    /// The version that the author saw; `None` to change any version.
    pub expected_version: Option<i64>,
    /// The new definition; its name may differ.
    pub spec: &'a JobSpec,
    /// The new definition, compiled with its calendar.
    pub job: &'a Job,
    /// The definition that the author saw, compiled with its calendar.
    pub before: &'a Job,
    /// The calendar that the new definition uses.
    pub calendar: Option<PinnedCalendar>,
    /// Its app, which exists.
    pub app: AppId,
    /// Name of the caller that changes it.
    pub author: &'a str,
    /// Id for the row that records the past fires that the change skips. Most changes skip none and do not use it.
    pub skipped_row_id: RunId,
    pub now: Timestamp,
    /// When the definition was validated. A one-time fire (`at`) after this instant fires even if it has passed by now, because it was in
    /// the future when it was validated.
    pub checked_at: Timestamp,
    /// The greatest time that the database's clock has shown so far; later than `now` if the clock has stepped back.
    pub reached: Timestamp,
    /// Which queued runs end if the change pauses the job; `None` ends none.
    pub drops: Option<QueuedDrops<'a>>,
}

/// Which queued runs of a job end when it is paused or deleted. The requests to end these runs are stored in the same transaction; see
/// [`Cancel::ask_drops`](crate::Cancel::ask_drops).
#[derive(Clone, Copy, Debug)]
pub struct QueuedDrops<'a> {
    /// The caller's choice; `None` for the default: a pause ends the queued runs of the schedule, a deletion ends all queued runs.
    pub choice: Option<QueuedRunsPolicy>,
    /// Name of the caller.
    pub by: &'a str,
    /// Maximum number of open runs that are examined.
    pub limit: u32,
}

/// A job to be deleted.
#[derive(Clone, Copy, Debug)]
pub struct JobDeletion<'a> {
    pub id: JobId,
    /// The version that the author saw; `None` to delete any version.
    pub expected_version: Option<i64>,
    /// The definition that the author saw, compiled with its calendar; `None` if it can no longer be read.
    pub before: Option<&'a Job>,
    /// Id for the row that records the past fires that the deletion skips. Most deletions skip none and do not use it.
    pub skipped_row_id: RunId,
    pub now: Timestamp,
    /// The greatest time that the database's clock has shown so far; later than `now` if the clock has stepped back.
    pub reached: Timestamp,
    /// Whether to delete the job even if other jobs follow from it. These jobs then no longer follow from it.
    pub detaches_followers: bool,
    /// Which queued runs end; `None` ends none.
    pub drops: Option<QueuedDrops<'a>>,
}

/// Outcome of creating a job.
#[derive(Clone, Debug, PartialEq)]
pub enum JobCreated {
    /// It is saved, with version 1.
    Saved(Box<JobRecord>),
    /// Another job of the namespace has the name.
    NameTaken,
    /// The calendar that the job uses was deleted.
    NoCalendar,
    /// The job's expectations name this channel, which does not exist.
    NoChannel(String),
    /// The job's parameters name this script, or this version of a script, which does not exist.
    NoScript(ScriptRef),
    /// A parent that the job names does not exist, the job would follow from itself, or the graph would be too deep.
    BadParents(Vec<FieldError>),
}

/// Outcome of changing a job.
#[derive(Clone, Debug, PartialEq)]
pub enum JobSaved {
    /// The job is saved. The runs are those that the change reopened. Their instants are in the future, and the caller must notify their
    /// home.
    Saved(Box<JobRecord>, Vec<Run>),
    /// Another caller changed it first; its current version.
    Conflict(i64),
    /// Another job of the namespace has the new name.
    NameTaken,
    /// The calendar that the job uses was deleted.
    NoCalendar,
    /// The job's expectations name this channel, which does not exist.
    NoChannel(String),
    /// The job's parameters name this script, or this version of a script, which does not exist.
    NoScript(ScriptRef),
    /// A parent that the job names does not exist, the job would follow from itself, or the graph would be too deep.
    BadParents(Vec<FieldError>),
    /// The job cannot be renamed, because these jobs follow from it. At most a hundred are listed.
    IsParent(Vec<String>),
    /// There is no such job.
    NotFound,
}

/// Outcome of deleting a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobDeleted {
    /// It is deleted.
    Done,
    /// There was no such job.
    NotFound,
    /// Another caller changed it first; its current version.
    Conflict(i64),
    /// The job is not deleted, because these jobs follow from it. At most a hundred are listed.
    IsParent(Vec<String>),
}

/// A job that was deleted. Its runs are kept as long as those of other jobs, so they can still be listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedJob {
    pub id: JobId,
    /// Its last app.
    pub app: AppId,
    pub deleted_at: Timestamp,
}

/// Selects a page of jobs, sorted by name.
#[derive(Clone, Debug, Default)]
pub struct JobQuery {
    /// Only jobs of this app.
    pub app: Option<AppId>,
    /// Only jobs of these apps, which are the ones that the caller may see.
    pub within: Option<Vec<AppId>>,
    /// Only jobs whose name contains this.
    pub name_contains: Option<String>,
    /// Only jobs whose name comes after this one.
    pub after_name: Option<String>,
    /// Maximum number of jobs.
    pub limit: u32,
}

/// Outcome of removing a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceDeleted {
    /// It is removed, with its apps and with every role in it.
    Done,
    /// There is no such namespace.
    NotFound,
    /// It has jobs, calendars or scripts, or it had jobs whose runs and versions are kept.
    Used,
}

#[async_trait]
pub trait Namespaces {
    /// A namespace by its name. `default` exists from the start.
    async fn namespace(&self, name: &str) -> Result<Option<Namespace>>;

    /// Every namespace, sorted by name.
    async fn namespaces(&self) -> Result<Vec<Namespace>>;

    /// Creates a namespace; `false` if the name is taken.
    async fn create_namespace(&self, namespace: &Namespace, now: Timestamp) -> Result<bool>;

    /// Removes a namespace that has no jobs, calendars or scripts.
    async fn delete_namespace(&self, id: NamespaceId) -> Result<NamespaceDeleted>;

    async fn app(&self, namespace: NamespaceId, name: &str) -> Result<Option<App>>;

    /// Every app of a namespace, sorted by name.
    async fn apps(&self, namespace: NamespaceId) -> Result<Vec<App>>;

    /// The app with this name, created with this id if there is none yet.
    async fn ensure_app(&self, id: AppId, namespace: NamespaceId, name: &str, now: Timestamp) -> Result<App>;
}

/// Reads jobs and their definitions.
#[async_trait]
pub trait Catalog {
    async fn job(&self, namespace: NamespaceId, name: &str) -> Result<Option<JobRecord>>;

    /// The job with this name that was deleted last.
    async fn deleted_job(&self, namespace: NamespaceId, name: &str) -> Result<Option<DeletedJob>>;

    /// A page of jobs, including jobs that this server cannot read.
    async fn listed_jobs(&self, namespace: NamespaceId, query: &JobQuery) -> Result<Vec<ListedJob>>;

    /// Like [`listed_jobs`](Self::listed_jobs), except the jobs that this server cannot read.
    async fn jobs(&self, namespace: NamespaceId, query: &JobQuery) -> Result<Vec<JobRecord>>;

    /// The jobs with these names, sorted by name, including jobs that this server cannot read. Names without a job are left out.
    async fn listed_jobs_named(&self, namespace: NamespaceId, names: &[&str]) -> Result<Vec<ListedJob>>;

    /// Like [`listed_jobs_named`](Self::listed_jobs_named), except the jobs that this server cannot read.
    async fn jobs_named(&self, namespace: NamespaceId, names: &[&str]) -> Result<Vec<JobRecord>>;

    /// The jobs with these ids, except deleted and unreadable jobs, ordered by id.
    async fn jobs_by_id(&self, ids: &[JobId]) -> Result<Vec<JobRecord>>;

    /// The names of these jobs, including deleted ones.
    async fn job_names(&self, ids: &[JobId]) -> Result<Vec<(JobId, String)>>;

    /// Definitions by job and version, for the engine; those that do not exist or cannot be read are left out.
    async fn definitions(&self, keys: &[(JobId, i64)]) -> Result<Vec<Definition>>;

    /// Definitions of a job that were in force at some instant from `from` to `to`, the newest first, at most `limit`.
    async fn versions(&self, job: JobId, from: Timestamp, to: Timestamp, limit: u32) -> Result<Vec<VersionRecord>>;

    /// The edges between the jobs of a namespace.
    async fn edges(&self, namespace: NamespaceId) -> Result<Vec<Edge>>;

    /// The names of the jobs that follow directly from a job, sorted, at most a hundred.
    async fn child_names(&self, job: JobId) -> Result<Vec<String>>;
}

#[async_trait]
pub trait CreateJobs {
    /// Creates a job with version 1.
    async fn create_job(&self, job: NewJob) -> Result<JobCreated>;

    /// Creates jobs with version 1, in this order, many per transaction; a job may follow from those before it. A rejected job does not
    /// prevent the creation of the others. Returns the outcome of each.
    async fn create_jobs(&self, jobs: &[NewJob]) -> Result<Vec<JobCreated>>;
}

/// Changes and deletes jobs.
#[async_trait]
pub trait ChangeJobs {
    /// Saves a new definition, and in the same transaction makes the job's unsent rows agree with it as
    /// [`rondel_core::edit::plan_edit`] decides.
    async fn change_job(&self, change: JobChange<'_>) -> Result<JobSaved>;

    /// Deletes a job. Its unsent runs get the verdict `skipped`, its name is free, and its runs and versions stay.
    async fn delete_job(&self, deletion: JobDeletion<'_>) -> Result<JobDeleted>;
}
