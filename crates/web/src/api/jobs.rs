//! Jobs: defined, changed, switched, deleted.

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse as _, Response};
use http::header::{ETAG, LOCATION};
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use rondel_admin::jobs::JobError;
use rondel_core::declared::drift;
use rondel_core::run::BROADCAST;
use rondel_core::{AppId, JobSpec, Run, RunId, RunStatus, Timestamp, name};
use rondel_store::catalog::{Declared, JobQuery, JobRecord};
use rondel_store::ledger::RunQuery;
use schemars::JsonSchema;
use serde::Serialize;

use super::filling::Filling;
use super::{LIMIT_DEFAULT, LIMIT_MAX, job_body};
use crate::app::Web;
use crate::body::{JsonBody, PatchBody};
use crate::call::{Call, quoted};
use crate::cursor::{Listing, invalid};
use crate::etag::{IfMatch, mismatch, tag};
use crate::frame::json;
use crate::openapi::{Input, Taken, Unnamed};
use crate::parameter::Parameter;
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};

/// How often a change is tried again that met another one, where the caller gave no version.
const TRY_COUNT: usize = 4;
/// Among how many of the newest rows the last run is looked for: some may be claimed and not due yet, some are shards.
const LAST_RUN_ROWS: u32 = 20;

/// The `{name}` of a path.
pub(crate) struct JobName(pub(crate) String);

impl Input for JobName {
    fn tell(taken: &mut Taken) {
        taken.path.push(Parameter::name("name").about("The job."));
        taken.refusals.push(Code::JobNotFound);
    }
}

impl FromRequestParts<Web> for JobName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, web: &Web) -> Result<Self, Problem> {
        let path = axum::extract::Path::<String>::from_request_parts(parts, web).await;
        path.map(|path| Self(path.0)).map_err(|_| Problem::new(Code::JobNotFound, "the path has no readable name"))
    }
}

/// The query of the list.
#[derive(Debug)]
pub(crate) struct ListJobs {
    app: Option<String>,
    contains: Option<String>,
    limit: u32,
    cursor: Option<String>,
}

impl FromQuery for ListJobs {
    fn from_query(reader: &mut Reader) -> Self {
        let part = |text: &str| {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
            if text.len() <= name::NAME_LEN_MAX && text.chars().all(plain) {
                Ok(text.to_owned())
            } else {
                Err("is no part of a name: a-z, 0-9, '.', '_' and '-'".to_owned())
            }
        };
        Self {
            app: reader.one(Parameter::name("app").about("Only jobs of this app.")),
            contains: reader.parsed(Parameter::pattern("q", "^[a-z0-9._-]{0,100}$").about("Part of the name."), part),
            limit: reader.limit(LIMIT_DEFAULT, LIMIT_MAX),
            cursor: reader.one(Parameter::cursor()),
        }
    }
}

/// A job as the API shows it: its definition in full, and what the server knows about it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Job")]
pub(super) struct JobJson<'a> {
    #[serde(flatten)]
    spec: &'a JobSpec,
    namespace: &'a str,
    version: i64,
    next_fire_at: Option<Timestamp>,
    created_at: Timestamp,
    updated_at: Timestamp,
    /// Null for a job that no code declares.
    declared: Option<DeclaredJson>,
    /// The jobs that it follows from.
    #[serde(skip_serializing_if = "Option::is_none")]
    parents: Option<Vec<&'a str>>,
    /// Those that follow from it, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_run: Option<Option<LastRun>>,
    /// What its author should know although it was saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    warnings: Option<Vec<String>>,
}

/// What code declares of a job.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Declared")]
struct DeclaredJson {
    /// When it last declared something new.
    at: Timestamp,
    /// The fields in which the definition differs from what code declares.
    drift: Vec<String>,
    /// Since when no code declares the job any more.
    undeclared_at: Option<Timestamp>,
}

impl DeclaredJson {
    fn new(declared: &Declared, spec: &JobSpec) -> Self {
        let drift = drift(spec, &declared.spec);
        Self { at: declared.declared_at, drift, undeclared_at: declared.undeclared_at }
    }
}

/// The newest run that is due.
#[derive(Serialize, JsonSchema)]
struct LastRun {
    id: RunId,
    status: RunStatus,
    fire_at: Timestamp,
}

impl<'a> JobJson<'a> {
    fn new(record: &'a JobRecord, namespace: &'a str, next_fire_at: Option<Timestamp>) -> Self {
        Self {
            spec: &record.spec,
            namespace,
            version: record.version,
            next_fire_at,
            created_at: record.created_at,
            updated_at: record.updated_at,
            declared: record.declared.as_ref().map(|declared| DeclaredJson::new(declared, &record.spec)),
            parents: None,
            children: None,
            last_run: None,
            warnings: None,
        }
    }
}

pub(super) async fn create(call: Call, body: JsonBody<JobSpec>) -> Result<Response, Problem> {
    let spec = job_body::parse(&body.bytes)?;
    call.check_definition(&spec).await?;
    call.note.object(&spec.name);
    let created = call.engine().create_job(call.namespace.id, spec, call.caller.name()).await;
    let record = match created {
        Ok(record) => record,
        Err(error) => return Err(call.job_problem(error).await),
    };
    let mut response = answer(&call, StatusCode::CREATED, &record, None).await?;
    let location = call.link(&format!("/api/v1/jobs/{}", record.spec.name));
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

pub(super) async fn list(call: Call<ListJobs>) -> Result<Response, Problem> {
    let query = &call.query;
    let listing = Listing::new("jobs", (call.namespace.id, &query.app, &query.contains));
    let after_name = match &query.cursor {
        None => None,
        Some(cursor) => Some(listing.position::<String>(cursor)?),
    };
    if after_name.as_deref().is_some_and(|after| name::check(after).is_err()) {
        return Err(invalid("does not hold a name"));
    }
    let app = match &query.app {
        None => None,
        Some(app) => Some(find_app(&call, app).await?),
    };
    let mut wanted = JobQuery {
        app,
        within: call.seen_apps(),
        name_contains: query.contains.clone(),
        after_name,
        ..JobQuery::default()
    };
    let mut page = Filling::new(query.limit);
    let cursor = |last: &Option<String>| last.as_ref().map(|name| listing.cursor(name));
    while let Some(count) = page.wanted() {
        // One more says whether there are more.
        wanted.limit = count + 1;
        let mut records = call.engine().store().jobs(call.namespace.id, &wanted).await?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let has_more = records.len() > count;
        records.truncate(count);
        let fires = call.engine().next_fires(&records).await?;
        for (record, next) in records.iter().zip(fires) {
            if !page.add(&JobJson::new(record, &call.namespace.name, next))? {
                return page.answer(cursor(&wanted.after_name));
            }
            wanted.after_name = Some(record.spec.name.clone());
        }
        if !has_more {
            return page.answer(None);
        }
    }
    page.answer(cursor(&wanted.after_name))
}

pub(super) async fn get(call: Call, JobName(name): JobName) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    let last = last_run(&call, &record).await?;
    answer(&call, StatusCode::OK, &record, Some(last)).await
}

pub(super) async fn replace(
    call: Call,
    JobName(name): JobName,
    if_match: IfMatch,
    body: JsonBody<Unnamed<JobSpec>>,
) -> Result<Response, Problem> {
    let saved = edited(&call, &name, &if_match, |_| job_body::parse_named(&body.bytes, &name).map(Some)).await?;
    answer(&call, StatusCode::OK, &saved, None).await
}

pub(super) async fn patch(
    call: Call,
    JobName(name): JobName,
    if_match: IfMatch,
    body: PatchBody<JobSpec>,
) -> Result<Response, Problem> {
    change(&call, &name, &if_match, |record| job_body::patched(&record.spec, &body.bytes)).await
}

pub(super) async fn pause(call: Call, JobName(name): JobName, if_match: IfMatch) -> Result<Response, Problem> {
    switch(&call, &name, &if_match, false).await
}

pub(super) async fn resume(call: Call, JobName(name): JobName, if_match: IfMatch) -> Result<Response, Problem> {
    switch(&call, &name, &if_match, true).await
}

/// Puts back what code declares.
pub(super) async fn reset(call: Call, JobName(name): JobName, if_match: IfMatch) -> Result<Response, Problem> {
    let saved = put_back(&call, &name, &if_match).await?;
    answer(&call, StatusCode::OK, &saved, None).await
}

/// Gives a job the definition that code declares; does nothing where it has it.
pub(crate) async fn put_back<Q>(call: &Call<Q>, name: &str, if_match: &IfMatch) -> Result<JobRecord, Problem> {
    edited(call, name, if_match, |record| {
        let declared = record.declared.as_ref().ok_or(JobError::NotDeclared)?;
        Ok(Some(declared.spec.clone()).filter(|spec| *spec != record.spec))
    })
    .await
}

/// How a job is deleted.
#[derive(Debug)]
pub(super) struct DeleteQuery {
    is_forced: bool,
}

impl FromQuery for DeleteQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let about = "Delete it although other jobs follow from it; these follow from their other parents alone.";
        Self { is_forced: reader.flag("force", about) }
    }
}

pub(super) async fn delete(
    call: Call<DeleteQuery>,
    JobName(name): JobName,
    if_match: IfMatch,
) -> Result<Response, Problem> {
    remove(&call, &name, &if_match, call.query.is_forced).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Deletes the version that the caller was found to have a right to; again if another change was faster, unless the caller
/// gave a version.
pub(crate) async fn remove<Q>(call: &Call<Q>, name: &str, if_match: &IfMatch, is_forced: bool) -> Result<(), Problem> {
    for _ in 0..TRY_COUNT {
        let record = find(call, name).await?;
        if_match.against(record.version)?;
        match call.engine().delete_job(&record, Some(record.version), is_forced).await {
            Ok(true) => return Ok(()),
            Ok(false) => return Err(missing(call, name)),
            Err(JobError::Conflict { .. }) if !if_match.is_given() => {}
            Err(error) => return Err(refused(call, error).await),
        }
    }
    Err(changed_too_often())
}

async fn switch(call: &Call, name: &str, if_match: &IfMatch, enabled: bool) -> Result<Response, Problem> {
    change(call, name, if_match, |record| Ok(JobSpec { enabled, ..record.spec.clone() })).await
}

/// Saves what `edit` makes of the newest definition, and answers it.
pub(super) async fn change(
    call: &Call,
    name: &str,
    if_match: &IfMatch,
    edit: impl Fn(&JobRecord) -> Result<JobSpec, Problem> + Send + Sync,
) -> Result<Response, Problem> {
    let edit = |record: &JobRecord| Ok(Some(edit(record)?).filter(|spec| *spec != record.spec));
    let saved = edited(call, name, if_match, edit).await?;
    answer(call, StatusCode::OK, &saved, None).await
}

/// Reads, checks and saves; again if another change was faster, unless the caller gave a version. What is saved was checked
/// against the very version that it replaces. Without a definition the job is left as it is.
async fn edited<Q>(
    call: &Call<Q>,
    name: &str,
    if_match: &IfMatch,
    edit: impl Fn(&JobRecord) -> Result<Option<JobSpec>, Problem> + Send + Sync,
) -> Result<JobRecord, Problem> {
    for _ in 0..TRY_COUNT {
        let record = find(call, name).await?;
        if_match.against(record.version)?;
        let Some(spec) = edit(&record)? else { return Ok(record) };
        // Whoever has lost sight of a parent may switch the job on and off, and change nothing else: the next run would hand the
        // parent's parameters to the new definition.
        if (JobSpec { enabled: record.spec.enabled, ..spec.clone() }) != record.spec {
            call.check_definition(&spec).await?;
        }
        match call.engine().change_job(&record, spec, Some(record.version), call.caller.name()).await {
            Ok(changed) => return Ok(changed),
            Err(JobError::Conflict { .. }) if !if_match.is_given() => {}
            Err(error) => return Err(refused(call, error).await),
        }
    }
    Err(changed_too_often())
}

fn changed_too_often() -> Problem {
    Problem::new(Code::EditConflict, "the job changed under each of several tries; try again")
}

async fn refused<Q>(call: &Call<Q>, error: JobError) -> Problem {
    match error {
        JobError::Conflict { version } => mismatch(version),
        error => call.job_problem(error).await,
    }
}

/// The job with this name in the namespace of the call.
pub(crate) async fn find<Q>(call: &Call<Q>, wanted: &str) -> Result<JobRecord, Problem> {
    // What cannot be a name is not looked up: no text of the caller's reaches the database unchecked.
    let is_name = name::check(wanted).is_ok();
    let found = if is_name { call.engine().store().job(call.namespace.id, wanted).await? } else { None };
    let record = found.ok_or_else(|| missing(call, wanted))?;
    call.check(Some(record.app), || missing(call, wanted))?;
    call.note.before(&record.spec);
    Ok(record)
}

/// The app with this name in the namespace of the call.
pub(super) async fn find_app<Q>(call: &Call<Q>, wanted: &str) -> Result<AppId, Problem> {
    let is_name = name::check(wanted).is_ok();
    let found = if is_name { call.engine().store().app(call.namespace.id, wanted).await? } else { None };
    let missing = || format!("there is no app {} in namespace {}", quoted(wanted), call.namespace.name);
    let missing = || Problem::new(Code::AppNotFound, missing());
    let app = found.map(|app| app.id).ok_or_else(missing)?;
    call.check(Some(app), missing)?;
    Ok(app)
}

fn missing<Q>(call: &Call<Q>, name: &str) -> Problem {
    let detail = format!("there is no job {} in namespace {}", quoted(name), call.namespace.name);
    Problem::new(Code::JobNotFound, detail)
}

/// The jobs that follow from it, as far as the caller may see them.
async fn children<Q>(call: &Call<Q>, record: &JobRecord) -> Result<Vec<String>, Problem> {
    let mut children = call.engine().store().child_names(record.id).await?;
    let hidden = call.hidden_jobs(&children).await?;
    children.retain(|name| !hidden.contains(name));
    Ok(children)
}

/// A job by itself with its last run; or, without one, the answer to a change of it, with what its author should know.
async fn answer(
    call: &Call,
    status: StatusCode,
    record: &JobRecord,
    last_run: Option<Option<LastRun>>,
) -> Result<Response, Problem> {
    call.note.after(&record.spec);
    let next = call.engine().next_fires(std::slice::from_ref(record)).await?.into_iter().next().flatten();
    let parents = Some(record.spec.parents().into_iter().map(|parent| parent.name).collect());
    let children = Some(children(call, record).await?);
    let warnings = || call.engine().warnings(record.namespace, &record.spec).iter().map(ToString::to_string).collect();
    let warnings = last_run.is_none().then(warnings);
    let body = JobJson { parents, children, last_run, warnings, ..JobJson::new(record, &call.namespace.name, next) };
    let mut response = json(status, &body)?;
    response.headers_mut().insert(ETAG, tag(record.version));
    Ok(response)
}

/// The newest run that is due; for a broadcast the row that stands for all of its shards.
async fn last_run(call: &Call, record: &JobRecord) -> Result<Option<LastRun>, Problem> {
    let store = call.engine().store();
    let query =
        RunQuery { job: Some(record.id), within: call.seen_apps(), limit: LAST_RUN_ROWS, ..RunQuery::default() };
    let now = call.engine().now();
    let newest = store.list_runs(record.namespace, &query).await?.into_iter().find(|run| run.fire_at <= now);
    let Some(newest) = newest else { return Ok(None) };
    let of = |run: &Run| LastRun { id: run.id, status: run.status, fire_at: run.fire_at };
    let Some(parent) = newest.parent.filter(|_| newest.shard_index != BROADCAST) else { return Ok(Some(of(&newest))) };
    let parents = store.runs(&[parent]).await?;
    let whole = parents.first().filter(|parent| parent.shard_index == BROADCAST && parent.fire_at == newest.fire_at);
    Ok(Some(of(whole.unwrap_or(&newest))))
}
