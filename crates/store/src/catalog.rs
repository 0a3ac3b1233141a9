//! Namespaces, apps, jobs with their versions.

use std::time::Duration;

use async_trait::async_trait;
use rondel_core::calendar::Rule;
use rondel_core::graph::Edge;
use rondel_core::script::ScriptRef;
use rondel_core::{AppId, CalendarId, FieldError, Job, JobId, JobSpec, NamespaceId, Run, RunId, Timestamp};

use crate::error::Result;

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its id.
    pub id: NamespaceId,
    /// Its name.
    pub name: String,
}

/// A group of executors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct App {
    /// Its id.
    pub id: AppId,
    /// Its tenant.
    pub namespace: NamespaceId,
    /// Its name.
    pub name: String,
}

/// A job with its newest definition.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRecord {
    /// Its id.
    pub id: JobId,
    /// Its tenant.
    pub namespace: NamespaceId,
    /// Its app.
    pub app: AppId,
    /// Counts its definitions from 1: what `If-Match` guards.
    pub version: i64,
    /// The definition.
    pub spec: JobSpec,
    /// What fixed rates count from.
    pub anchor: Timestamp,
    /// The first fire that has no row yet; `None` where it will not fire.
    pub next_fire_at: Option<Timestamp>,
    /// The calendar that the definition uses, and the version that it is planned by.
    pub calendar: Option<PinnedCalendar>,
    /// What code declares of it; `None` for a job that no code ever declared.
    pub declared: Option<Declared>,
    /// When the first definition was saved.
    pub created_at: Timestamp,
    /// When this definition was saved.
    pub updated_at: Timestamp,
}

/// One version of a calendar, as a definition is planned by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedCalendar {
    /// The calendar.
    pub id: CalendarId,
    /// Which version of it.
    pub version: i64,
}

/// What the code of an app declares of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Declared {
    /// The definition in the code.
    pub spec: JobSpec,
    /// When code last declared something new.
    pub declared_at: Timestamp,
    /// Since when no code of the app declares it any more; `None` while some does.
    pub undeclared_at: Option<Timestamp>,
}

/// One of a job's definitions, from the newest back.
#[derive(Clone, Debug, PartialEq)]
pub struct VersionRecord {
    /// Counted from 1.
    pub version: i64,
    /// The definition.
    pub spec: JobSpec,
    /// The rule of the calendar version that it was planned by, with the calendars that it names put in.
    pub calendar: Option<Rule>,
    /// Who saved it.
    pub author: String,
    /// When: from then on it holds.
    pub created_at: Timestamp,
}

/// A definition as the engine needs it, whatever its age: even a deleted job's.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// The job.
    pub job: JobId,
    /// Which of its definitions.
    pub version: i64,
    /// Its tenant.
    pub namespace: NamespaceId,
    /// Name of its tenant.
    pub namespace_name: String,
    /// Its app.
    pub app: AppId,
    /// The definition.
    pub spec: JobSpec,
    /// What fixed rates count from.
    pub anchor: Timestamp,
    /// The rule of the calendar version that it is planned by, with the calendars that it names put in.
    pub calendar: Option<Rule>,
}

/// A job to be created.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Its id.
    pub id: JobId,
    /// Its tenant.
    pub namespace: NamespaceId,
    /// Its app, which exists.
    pub app: AppId,
    /// Its definition, checked.
    pub spec: JobSpec,
    /// What fixed rates count from: the creation instant rounded up to a second.
    pub anchor: Timestamp,
    /// Its first fire.
    pub next_fire_at: Option<Timestamp>,
    /// The length of its fixed delay, while it is enabled.
    pub delay: Option<Duration>,
    /// The calendar that it uses.
    pub calendar: Option<PinnedCalendar>,
    /// What code declares of it.
    pub declared: Option<JobSpec>,
    /// Who creates it.
    pub author: String,
    /// The present.
    pub now: Timestamp,
}

/// A change of a job's definition.
#[derive(Clone, Debug)]
pub struct JobChange<'a> {
    /// The job.
    pub id: JobId,
    /// The version that the author saw; `None` to change whatever is there.
    pub expected_version: Option<i64>,
    /// The new definition; its name may differ.
    pub spec: &'a JobSpec,
    /// The same, compiled, with its calendar.
    pub job: &'a Job,
    /// The definition that the author saw, compiled with its calendar.
    pub before: &'a Job,
    /// The calendar that the new definition uses.
    pub calendar: Option<PinnedCalendar>,
    /// Its app, which exists.
    pub app: AppId,
    /// Who changes it.
    pub author: &'a str,
    /// An id for the row of fires that are over and do not happen any more; seldom used.
    pub spare: RunId,
    /// The present.
    pub now: Timestamp,
    /// When the definition was checked: an `at` after this instant was ahead then, and fires although it may be over by now.
    pub checked_at: Timestamp,
    /// The latest that the database's clock is known to have been: later than the present after a step back.
    pub reached: Timestamp,
}

/// A job that is to go.
#[derive(Clone, Copy, Debug)]
pub struct JobDeletion<'a> {
    /// The job.
    pub id: JobId,
    /// The version that the author saw; `None` to delete whatever is there.
    pub expected_version: Option<i64>,
    /// The definition that the author saw, compiled with its calendar; `None` where that cannot be read any more.
    pub before: Option<&'a Job>,
    /// An id for the row of fires that are over and do not happen any more; seldom used.
    pub spare: RunId,
    /// The present.
    pub now: Timestamp,
    /// The latest that the database's clock is known to have been: later than the present after a step back.
    pub reached: Timestamp,
    /// Whether it goes although other jobs follow from it: these follow from it no more.
    pub leaves_followers: bool,
}

/// What creating a job did.
#[derive(Clone, Debug, PartialEq)]
pub enum Created {
    /// It is saved, with version 1.
    Saved(Box<JobRecord>),
    /// Another job of the namespace has the name.
    NameTaken,
    /// The calendar that it is to use is gone.
    NoCalendar,
    /// Its expectations name this channel, which does not exist.
    NoChannel(String),
    /// Its parameters name this script, or this version of one, which does not exist.
    NoScript(ScriptRef),
    /// The parents that it names do not exist, or it would follow from itself.
    BadParents(Vec<FieldError>),
}

/// What a change of a job did.
#[derive(Clone, Debug, PartialEq)]
pub enum Changed {
    /// It is saved. The runs are those whose instant is ahead and that became open again: their home must hear of it.
    Saved(Box<JobRecord>, Vec<Run>),
    /// Another caller changed it first; its version now.
    Conflict(i64),
    /// Another job of the namespace has the new name.
    NameTaken,
    /// The calendar that it is to use is gone.
    NoCalendar,
    /// Its expectations name this channel, which does not exist.
    NoChannel(String),
    /// Its parameters name this script, or this version of one, which does not exist.
    NoScript(ScriptRef),
    /// The parents that it names do not exist, or it would follow from itself.
    BadParents(Vec<FieldError>),
    /// It cannot have another name: these jobs follow from it.
    IsParent(Vec<String>),
    /// There is no such job.
    NotFound,
}

/// What deleting a job did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// It is gone.
    Done,
    /// There was no such job.
    NotFound,
    /// Another caller changed it first; its version now.
    Conflict(i64),
    /// These jobs follow from it.
    IsParent(Vec<String>),
}

/// A job that was deleted, whose runs may be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedJob {
    /// Its id.
    pub id: JobId,
    /// Its last app.
    pub app: AppId,
    /// When it was deleted.
    pub deleted_at: Timestamp,
}

/// A page of jobs by name.
#[derive(Clone, Debug, Default)]
pub struct JobQuery {
    /// Only jobs of this app.
    pub app: Option<AppId>,
    /// Only jobs of these apps: what the caller may see.
    pub within: Option<Vec<AppId>>,
    /// Only jobs whose name contains this.
    pub name_contains: Option<String>,
    /// Only jobs whose name comes after this one.
    pub after_name: Option<String>,
    /// At most so many.
    pub limit: u32,
}

/// What removing a namespace did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceDeleted {
    /// It is gone, with its apps and with every role there.
    Done,
    /// There is no such namespace.
    NotFound,
    /// It has jobs, calendars or scripts, or it had jobs: their runs and versions are kept.
    Used,
}

/// Namespaces and apps.
#[async_trait]
pub trait Namespaces {
    /// A namespace by its name. `default` exists from the start.
    async fn namespace(&self, name: &str) -> Result<Option<Namespace>>;

    /// Every namespace, by name.
    async fn namespaces(&self) -> Result<Vec<Namespace>>;

    /// Makes a namespace; false where the name is taken.
    async fn create_namespace(&self, namespace: &Namespace, now: Timestamp) -> Result<bool>;

    /// Removes a namespace that no job, no calendar and no script is in.
    async fn delete_namespace(&self, id: NamespaceId) -> Result<NamespaceDeleted>;

    /// An app by its name.
    async fn app(&self, namespace: NamespaceId, name: &str) -> Result<Option<App>>;

    /// Every app of a namespace, by name.
    async fn apps(&self, namespace: NamespaceId) -> Result<Vec<App>>;

    /// The app with this name, made with this id if there is none yet.
    async fn ensure_app(&self, id: AppId, namespace: NamespaceId, name: &str, now: Timestamp) -> Result<App>;
}

/// Reads jobs and their definitions.
#[async_trait]
pub trait Catalog {
    /// A job by its name.
    async fn job(&self, namespace: NamespaceId, name: &str) -> Result<Option<JobRecord>>;

    /// The job with this name that was deleted last.
    async fn deleted_job(&self, namespace: NamespaceId, name: &str) -> Result<Option<DeletedJob>>;

    /// A page of jobs, by name.
    async fn jobs(&self, namespace: NamespaceId, query: &JobQuery) -> Result<Vec<JobRecord>>;

    /// Those of the jobs with these names that exist, by name.
    async fn jobs_named(&self, namespace: NamespaceId, names: &[&str]) -> Result<Vec<JobRecord>>;

    /// Those of these jobs that are not deleted, in the order of their ids.
    async fn jobs_by_id(&self, ids: &[JobId]) -> Result<Vec<JobRecord>>;

    /// Names of these jobs, deleted ones too.
    async fn job_names(&self, ids: &[JobId]) -> Result<Vec<(JobId, String)>>;

    /// Definitions by job and version, for the engine; those that do not exist are left out.
    async fn definitions(&self, keys: &[(JobId, i64)]) -> Result<Vec<Definition>>;

    /// Definitions of a job that held at some instant from `from` to `to`, the newest first, at most `limit`.
    async fn versions(&self, job: JobId, from: Timestamp, to: Timestamp, limit: u32) -> Result<Vec<VersionRecord>>;

    /// Which jobs of a namespace follow from which.
    async fn edges(&self, namespace: NamespaceId) -> Result<Vec<Edge>>;

    /// The names of the jobs that follow from a job directly, in order, at most a hundred.
    async fn child_names(&self, job: JobId) -> Result<Vec<String>>;
}

/// Creates jobs.
#[async_trait]
pub trait CreateJobs {
    /// Creates a job with version 1.
    async fn create_job(&self, job: NewJob) -> Result<Created>;

    /// Creates jobs with version 1, in this order, many to a transaction: one may follow from those before it. A job that
    /// is refused does not keep the others from being created. Answers for each.
    async fn create_jobs(&self, jobs: &[NewJob]) -> Result<Vec<Created>>;
}

/// Changes and deletes jobs.
#[async_trait]
pub trait ChangeJobs {
    /// Saves a new definition, and in the same transaction makes the job's unsent rows agree with it as
    /// [`rondel_core::edit::plan_edit`] decides.
    async fn change_job(&self, change: JobChange<'_>) -> Result<Changed>;

    /// Deletes a job: its unsent rows are settled, its name is free, its runs and versions stay.
    async fn delete_job(&self, deletion: JobDeletion<'_>) -> Result<Deleted>;
}
