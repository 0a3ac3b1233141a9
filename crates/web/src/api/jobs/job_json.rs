//! A job as the API shows it.

use axum::response::Response;
use http::StatusCode;
use http::header::ETAG;
use rondel_admin::jobs;
use rondel_core::declared::drift;
use rondel_core::folded_state::FoldedState;
use rondel_core::{JobSpec, RunId, RunStatus, Timestamp};
use rondel_store::catalog::{Declared, JobRecord};
use schemars::JsonSchema;
use serde::Serialize;

use super::queued::QueuedJson;
use crate::answer::json_response;
use crate::call::Call;
use crate::etag::version_tag;
use crate::job_states;
use crate::problem::Problem;

/// A job: its full definition, and its state.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Job")]
pub(super) struct JobJson<'a> {
    #[serde(flatten)]
    spec: &'a JobSpec,
    namespace: &'a str,
    version: i64,
    /// Its state, in one word.
    state: FoldedState,
    next_fire_at: Option<Timestamp>,
    created_at: Timestamp,
    updated_at: Timestamp,
    /// The job's declaration in code; null for a job that no code declares.
    declared: Option<DeclaredJson>,
    /// The jobs that it follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    parents: Option<Vec<&'a str>>,
    /// The jobs that follow it, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_run: Option<Option<LastRun>>,
    /// In the answer to a pause: what happened to its open runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    queued: Option<QueuedJson>,
    /// Warnings about the job, which was saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    warnings: Option<Vec<String>>,
}

/// The declaration of a job in code.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Declared")]
pub(super) struct DeclaredJson {
    /// When the code last declared a change.
    at: Timestamp,
    /// The fields in which the definition differs from what code declares.
    drift: Vec<String>,
    /// Since when no living executor declares it; null while one does.
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
pub(super) struct LastRun {
    pub(super) id: RunId,
    pub(super) status: RunStatus,
    pub(super) fire_at: Timestamp,
}

impl<'a> JobJson<'a> {
    pub(super) fn new(
        record: &'a JobRecord,
        namespace: &'a str,
        (state, next_fire_at): (FoldedState, Option<Timestamp>),
    ) -> Self {
        Self {
            spec: &record.spec,
            namespace,
            version: record.version,
            state,
            next_fire_at,
            created_at: record.created_at,
            updated_at: record.updated_at,
            declared: record.declared.as_ref().map(|declared| DeclaredJson::new(declared, &record.spec)),
            parents: None,
            children: None,
            last_run: None,
            queued: None,
            warnings: None,
        }
    }
}

/// Answers with a job. After a change `last_run` is `None`, and the answer has the warnings for the job's author instead. `Some(None)`
/// means that the job has no last run.
pub(super) async fn job_response(
    call: &Call,
    status: StatusCode,
    record: &JobRecord,
    last_run: Option<Option<LastRun>>,
) -> Result<Response, Problem> {
    job_response_with_queued(call, status, record, (last_run, None)).await
}

/// Like `job_response`, and reports what happened to the job's open runs.
pub(super) async fn job_response_with_queued<Q>(
    call: &Call<Q>,
    status: StatusCode,
    record: &JobRecord,
    (last_run, queued): (Option<Option<LastRun>>, Option<QueuedJson>),
) -> Result<Response, Problem> {
    call.note.changed_to(&record.spec);
    let next_fire = jobs::next_fires(call.engine(), std::slice::from_ref(record)).await?.into_iter().next().flatten();
    let parents = Some(record.spec.parents().into_iter().map(|parent| parent.name).collect());
    let children = Some(follower_names(call, record).await?);
    let warnings = || jobs::warnings(call.engine(), record.namespace, &record.spec, next_fire);
    let warnings = last_run.is_none().then(|| warnings().iter().map(ToString::to_string).collect());
    let state = job_states::job_state(call.engine(), record).await?;
    let job_json = JobJson::new(record, &call.namespace.name, (state, next_fire));
    let body = JobJson { parents, children, last_run, queued, warnings, ..job_json };
    let mut response = json_response(status, &body)?;
    response.headers_mut().insert(ETAG, version_tag(record.version));
    Ok(response)
}

/// The names of the jobs that follow this one, except those that the caller may not see.
pub(super) async fn follower_names<Q>(call: &Call<Q>, record: &JobRecord) -> Result<Vec<String>, Problem> {
    let mut children = call.engine().store().child_names(record.id).await?;
    let hidden_names = call.hidden_jobs(&children).await?;
    children.retain(|name| !hidden_names.contains(name));
    Ok(children)
}
