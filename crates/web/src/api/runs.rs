//! Runs: triggers, shows and repeats them.

use axum::response::Response;
use http::header::LOCATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use rondel_admin::jobs::{self, JobError, RunRequest, ShardsError};
use rondel_core::access::Permission::{Operate, View};
use rondel_core::request::{IfOpen, check_key, parse_planned_at};
use rondel_core::run::ROOT_SHARD;
use rondel_core::tree::Link;
use rondel_core::{Run, RunId, Trigger};
use rondel_store::catalog::JobRecord;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::jobs::find as find_job;
use super::run_json;
use super::trigger_executor::checked_executor;
use crate::answer::json_response;
use crate::body::{OptionalJsonBody, refuse_value};
use crate::call::{Call, quoted_input};
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::read_again::read_again;
use crate::routes::Routes;
use crate::trace;

/// The header by which the console and the command line mark a request that a user made.
const CLIENT_HEADER: &str = "rondel-client";
/// The header `Rondel-Client`, as the OpenAPI document describes it.
const CLIENT_PARAMETER: Parameter = Parameter::word("Rondel-Client", &["cli", "console"])
    .about("Marks a request by a user: the run's `trigger` is then `manual`, otherwise `api`.");

/// The body of a trigger.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TriggerBody {
    /// Parameters of this run only; if left out or null, those of the job. They may differ from the job's only where its `overrides`
    /// allow it; parameters that may not differ can be left out.
    #[serde(default)]
    params: Option<Value>,
    /// The name of an executor of the job's app. Only this executor gets the run, its retries and its shards; no router is asked.
    /// If it is not connected, the run waits for it, up to the job's `queue_timeout`. Refused with `invalid_body` if no executor of
    /// the app has the name, if its switch is `draining` or `stopped`, or if it is connected and cannot run the job.
    #[serde(default)]
    executor: Option<String>,
    /// A key of 1 to 200 visible ASCII characters: at most one open run of the job has it. It is free again once that run has its verdict.
    #[serde(default)]
    key: Option<String>,
    /// What happens to this trigger if an open run of the job has the key; `refuse` if left out. `replace` asks the open run to
    /// end. `keep` answers 200 with the open run.
    #[serde(default)]
    if_open: Option<IfOpen>,
    /// When the run is due: an instant, or a time from now such as `+10m`; at most 366 days ahead. Until then the run is `waiting`: it can
    /// be cancelled, survives restarts, and has the definition of the job as it is now.
    #[serde(default)]
    at: Option<String>,
}

/// The body of a retry.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RetryBody {
    /// The part of the run to repeat; all of it if left out.
    #[serde(default)]
    only: Option<RetryOnly>,
}

/// The part of a run to repeat.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum RetryOnly {
    /// The shards that did not succeed.
    Failed,
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .post(
            "/api/v1/jobs/{name}/runs",
            Operate,
            trigger,
            Doc::new(
                "Trigger a job",
                "Creates a run now or at a later instant, with the job's parameters or those of the body. The job may be paused.",
            )
            .json::<run_json::RunJson>(201, "The run.")
            .with("Location")
            .json::<run_json::RunJson>(200, "The open run that has the key, if `if_open` is `keep`.")
            .reads(CLIENT_PARAMETER)
            .refuses(&[Code::TriggerKeyInUse])
            .example(json!({"params": {"day": "2026-03-08"}})),
        )
        .get(
            "/api/v1/runs/{id}",
            View,
            get,
            Doc::new("Get a run", "The run with its attempts, its shards, and the runs that follow it.")
                .json::<run_json::RunJson>(200, "The run."),
        )
        .post(
            "/api/v1/runs/{id}/retry",
            Operate,
            retry,
            Doc::new(
                "Retry a run",
                "A new run with the parameters of this one, which is its `parent`. Refused with `invalid_body` if a caller replaced \
                 parameters that the job's `overrides` no longer allow. A run that was triggered for one executor goes to that executor \
                 again, and a run with a key gets the key again, unless an open run has it. With `{\"only\": \"failed\"}` the new run has \
                 the shards of this one that did not succeed, with the same numbers; refused with `invalid_body` if there are none.",
            )
                .json::<run_json::RunJson>(201, "The new run.")
                .with("Location")
                .reads(CLIENT_PARAMETER)
                .refuses(&[Code::RunNotFinished, Code::TriggerKeyInUse, Code::ShardOfBroadcast, Code::JobDeleted, Code::InvalidBody]),
        )
}

async fn trigger(
    call: Call,
    Named(name, ..): Named<path::Job>,
    headers: HeaderMap,
    body: OptionalJsonBody<TriggerBody>,
) -> Result<Response, Problem> {
    let body = body.read()?;
    let record = find_job(&call, &name).await?;
    let params = match &body.params {
        Some(params_json) => jobs::run_params(call.engine(), &record, params_json)?,
        None => None,
    };
    let executor = match &body.executor {
        Some(name) => Some(checked_executor(&call, &record, ("/executor", name)).await?),
        None => None,
    };
    let key = checked_key(("/key", body.key.as_deref()), body.if_open)?;
    let if_open = key.as_ref().map(|(_, if_open)| *if_open);
    let at = body.at.as_deref().map(|text| parse_planned_at(text, call.engine().now())).transpose();
    let at = at.map_err(|message| refuse_value("/at", message))?;
    let request =
        RunRequest { params, executor, key, at, trace: call.trace, ..RunRequest::by(trigger_of_client(&headers)) };
    match jobs::request_run(call.engine(), &record, request).await {
        Err(JobError::KeyInUse(open_run)) if if_open == Some(IfOpen::Keep) && !open_run.is_asked_to_end() => {
            answer_open_run(&call, *open_run).await
        }
        result => answer_created(&call, &result?).await,
    }
}

/// Checks the key of a trigger. Returns the key, and the action for the case that an open run has this key; `None` without a key.
pub(crate) fn checked_key(
    (pointer, key): (&str, Option<&str>),
    if_open: Option<IfOpen>,
) -> Result<Option<(String, IfOpen)>, Problem> {
    match (key, if_open) {
        (Some(key), if_open) => {
            check_key(key).map_err(|message| refuse_value(pointer, message))?;
            Ok(Some((key.to_owned(), if_open.unwrap_or(IfOpen::Refuse))))
        }
        (None, None) => Ok(None),
        (None, Some(_)) => Err(refuse_value("/if_open", "it needs a key")),
    }
}

/// Answers with the open run that has the key of a trigger.
async fn answer_open_run(call: &Call, open_run: Run) -> Result<Response, Problem> {
    call.check(Some(open_run.app), || Problem::new(Code::RunNotFound, "the run is gone"))?;
    json_response(StatusCode::OK, &run_json::run_json(call, open_run.for_reader()).await?)
}

async fn get(call: Call, path: Named<path::Run>) -> Result<Response, Problem> {
    let run = find(&call, &path).await?;
    json_response(StatusCode::OK, &run_json::run_json(&call, run).await?)
}

async fn retry(
    call: Call,
    path: Named<path::Run>,
    headers: HeaderMap,
    body: OptionalJsonBody<RetryBody>,
) -> Result<Response, Problem> {
    let body = body.read()?;
    let run = find(&call, &path).await?;
    let (record, request) = retry_request(&call, &run, trigger_of_client(&headers)).await?;
    match body.only {
        Some(RetryOnly::Failed) => {
            answer_created(&call, &retry_failed_shards(&call, (&record, &run), request).await?).await
        }
        None => create_run(&call, &record, request).await,
    }
}

/// Repeats the shards of a broadcast that did not succeed.
pub(crate) async fn retry_failed_shards<Q>(
    call: &Call<Q>,
    job_and_run: (&JobRecord, &Run),
    request: RunRequest,
) -> Result<Run, Problem> {
    jobs::request_failed_shards(call.engine(), job_and_run, request).await.map_err(|error| match error {
        ShardsError::KeyInUse(open_run) => JobError::KeyInUse(open_run).into(),
        ShardsError::Store(error) => error.into(),
        error => refuse_value("/only", error.to_string()),
    })
}

/// The job of a run, and a request to run it again with the same parameters.
pub(crate) async fn retry_request<Q>(
    call: &Call<Q>,
    run: &Run,
    trigger: Trigger,
) -> Result<(JobRecord, RunRequest), Problem> {
    if !run.status.is_terminal() {
        return Err(Problem::new(Code::RunNotFinished, format!("the run is {}; cancel it first", run.status)));
    }
    if let Some(broadcast) = broadcast_of_shard(call, run).await? {
        let message =
            format!("this is one shard of run {}: retry that run, all of it or only its failed shards", broadcast.id);
        return Err(Problem::new(Code::ShardOfBroadcast, message));
    }
    let record = job_of_run(call, run).await?;
    // The new run has the parameters of the old run, even if the job was edited since.
    let params = jobs::params_of_repetition(call.engine(), &record, run).await?;
    let executor = match &run.only_executor {
        Some(name) => Some(checked_executor(call, &record, ("/executor", name)).await?),
        None => None,
    };
    let key = run.trigger_key.clone().map(|key| (key, IfOpen::Refuse));
    let request =
        RunRequest { params, executor, key, parent: Some(run.id), trace: call.trace, ..RunRequest::by(trigger) };
    Ok((record, request))
}

async fn create_run(call: &Call, record: &JobRecord, request: RunRequest) -> Result<Response, Problem> {
    answer_created(call, &jobs::request_run(call.engine(), record, request).await?).await
}

async fn answer_created(call: &Call, run: &Run) -> Result<Response, Problem> {
    trace::record_run(run.id);
    call.note.changed_to(&serde_json::json!({"run": run.id}));
    let location = call.link(&format!("/api/v1/runs/{}", run.id));
    let body = read_again(|| Box::pin(run_json::run_json(call, run.clone()))).await?;
    let mut response = json_response(StatusCode::CREATED, &body)?;
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// The run with this id, if it is in the namespace of the call and the caller has the route's permission on its app.
pub(crate) async fn find<Q>(call: &Call<Q>, path: &Named<path::Run>) -> Result<Run, Problem> {
    let id = path.0.parse::<RunId>().ok().filter(|id| id.get() > 0);
    let run = match id {
        Some(id) => call.engine().store().runs(&[id]).await?.pop(),
        None => None,
    };
    let mut run =
        run.filter(|run| run.namespace == call.namespace.id).ok_or_else(|| missing_run_problem(call, path))?;
    call.check(Some(run.app), || missing_run_problem(call, path))?;
    trace::record_run(run.id);
    call.conceal(std::slice::from_mut(&mut run)).await?;
    Ok(run.for_reader())
}

pub(super) fn missing_run_problem<Q>(call: &Call<Q>, path: &Named<path::Run>) -> Problem {
    let detail = format!("there is no run {} in namespace {}", quoted_input(&path.0), call.namespace.name);
    Problem::new(Code::RunNotFound, detail)
}

/// The root run of the broadcast of which this run is one shard; `None` for other runs.
pub(crate) async fn broadcast_of_shard<Q>(call: &Call<Q>, run: &Run) -> Result<Option<Run>, Problem> {
    let Some(parent) = run.parent.filter(|_| run.shard_index != ROOT_SHARD) else { return Ok(None) };
    let parents = call.engine().store().runs(&[parent]).await?;
    // The parent of a run of a child job can be a broadcast too, with the same planned instant.
    Ok(parents.into_iter().find(|parent| run.link_to(parent) == Link::Shard))
}

/// The job of a run, in its current definition.
pub(crate) async fn job_of_run<Q>(call: &Call<Q>, run: &Run) -> Result<JobRecord, Problem> {
    let store = call.engine().store();
    let name = store.job_names(&[run.job]).await?.pop().map(|(_, name)| name);
    let record = match name {
        Some(name) => store.job(run.namespace, &name).await?,
        None => None,
    };
    // The job may have been deleted, and another one created with its name.
    let record = record.filter(|record| record.id == run.job);
    let job_deleted_problem = || Problem::new(Code::JobDeleted, "the job of this run was deleted, it cannot run again");
    let record = record.ok_or_else(job_deleted_problem)?;
    // The job may have moved to another app since.
    call.check(Some(record.app), job_deleted_problem)?;
    Ok(record)
}

pub(crate) fn trigger_of_client(headers: &HeaderMap) -> Trigger {
    match headers.get(CLIENT_HEADER).map(HeaderValue::as_bytes) {
        Some(b"cli" | b"console") => Trigger::Manual,
        _ => Trigger::Api,
    }
}
