//! Runs as the API shows them.

use std::collections::HashMap;

use rondel_core::access::Permission;
use rondel_core::disclosure::params_for_viewer;
use rondel_core::reason::Detail;
use rondel_core::reason::words::{Subject, sentence};
use rondel_core::run::{Attempt, BROADCAST};
use rondel_core::words::Lang;
use rondel_core::{JobId, Reason, Run, RunId, RunStatus, Timestamp, Trigger};
use rondel_store::ledger::RunQuery;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::run_tree::ChildJson;
use super::schedules::Sentence;
use super::{LIMIT_MAX, parent_params, run_tree};
use crate::call::Call;
use crate::problem::Problem;

/// How many shards of a broadcast are shown with it.
const SHARD_COUNT_MAX: usize = 1000;

/// A run in a list.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RunItem {
    id: RunId,
    job: String,
    fire_at: Timestamp,
    /// When it is to start: later than planned after a jitter, or for the next attempt.
    due_at: Timestamp,
    status: RunStatus,
    attempt: i32,
    executor: Option<String>,
    /// Null on the row that stands for a whole broadcast.
    shard_index: Option<i32>,
    /// Null while a broadcast has not been dealt out.
    shard_total: Option<i32>,
    trigger: Trigger,
    reason: Option<Reason>,
    /// The parameters of the reason, and what the run waits or waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<Box<Detail>>,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    message: Option<String>,
    /// For a row that stands for several skipped fires: the last of them, and how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    span_end_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    span_count: Option<i64>,
}

/// A run by itself.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Run")]
pub(super) struct RunJson {
    #[serde(flatten)]
    item: RunItem,
    namespace: String,
    job_version: i64,
    /// Its own, else its job's.
    #[schemars(with = "Option<Value>")]
    params: Option<Box<RawValue>>,
    /// What its handler returned.
    #[schemars(with = "Option<Value>")]
    result: Option<Box<RawValue>>,
    parent: Option<RunId>,
    /// The run that its fire began with; itself, unless it is a shard or follows from others.
    root: RunId,
    /// What follows from it: shards, runs of other jobs, the same asked for again by hand.
    children: Vec<ChildJson>,
    /// Whether there are more of them than are shown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    has_more_children: bool,
    cancel_requested_by: Option<String>,
    /// The reason in words, or what an open run waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<Sentence>,
    /// How far it is, while it is open and its handler has told.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<ProgressJson>,
    /// How it came to its executor.
    #[schemars(with = "Option<Value>")]
    trace: Option<Box<RawValue>>,
    attempts: Vec<AttemptJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shards: Option<Vec<RunItem>>,
}

/// How far a run is.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Progress")]
struct ProgressJson {
    done: u64,
    /// 0 where nobody knows it.
    total: u64,
}

/// One attempt of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Attempt")]
struct AttemptJson {
    attempt: i32,
    status: RunStatus,
    reason: Option<Reason>,
    /// The parameters of the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<Box<Detail>>,
    executor: Option<String>,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    message: Option<String>,
}

impl RunItem {
    fn new(run: Run, job: &str) -> Self {
        Self {
            id: run.id,
            due_at: run.due_at,
            job: job.to_owned(),
            fire_at: run.fire_at,
            status: run.status,
            attempt: run.attempt,
            executor: run.executor,
            shard_index: (run.shard_index != BROADCAST).then_some(run.shard_index),
            shard_total: run.shard_total,
            trigger: run.trigger,
            reason: run.reason,
            detail: run.detail,
            started_at: run.started_at,
            finished_at: run.finished_at,
            message: run.message,
            span_end_at: run.span_end_at,
            span_count: run.span_end_at.map(|_| run.span_count),
        }
    }
}

impl From<Attempt> for AttemptJson {
    fn from(attempt: Attempt) -> Self {
        Self {
            attempt: attempt.attempt,
            status: attempt.status,
            reason: attempt.reason,
            detail: attempt.detail,
            executor: attempt.executor,
            started_at: attempt.started_at,
            finished_at: attempt.finished_at,
            message: attempt.message,
        }
    }
}

/// The attempt that the run itself is in.
fn present_attempt(run: &Run) -> AttemptJson {
    AttemptJson {
        attempt: run.attempt,
        status: run.status,
        reason: run.reason,
        detail: run.detail.clone(),
        // A run that waits to be tried again knows only who had it before.
        executor: run.executor.clone().filter(|_| run.executor_id.is_some()),
        started_at: run.started_at,
        finished_at: run.finished_at,
        message: run.message.clone(),
    }
}

/// Runs with the names of their jobs, for a list.
pub(super) async fn items<Q>(call: &Call<Q>, mut runs: Vec<Run>) -> Result<Vec<RunItem>, Problem> {
    call.conceal(&mut runs).await?;
    let names = names(call, &runs).await?;
    // A job that was purged with its name leaves its runs the number.
    let name = |run: &Run| names.get(&run.job).cloned().unwrap_or_else(|| run.job.to_string());
    Ok(runs.into_iter().map(|run| (name(&run), run)).map(|(name, run)| RunItem::new(run, &name)).collect())
}

pub(crate) async fn names<Q>(call: &Call<Q>, runs: &[Run]) -> Result<HashMap<JobId, String>, Problem> {
    let mut ids: Vec<JobId> = runs.iter().map(|run| run.job).collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    Ok(call.engine().store().job_names(&ids).await?.into_iter().collect())
}

/// A run with its attempts, its shards, and the parameters that it has or had.
pub(super) async fn whole<Q>(call: &Call<Q>, mut run: Run) -> Result<RunJson, Problem> {
    call.conceal(std::slice::from_mut(&mut run)).await?;
    let before = call.engine().store().attempts(run.id).await?;
    let mut attempts: Vec<AttemptJson> = before.into_iter().map(AttemptJson::from).collect();
    attempts.push(present_attempt(&run));
    let shards = if run.shard_index == BROADCAST { Some(shards(call, &run).await?) } else { None };
    let params = params(call, &run).await?;
    let (job_version, parent) = (run.job_version, run.parent);
    let root = run.fire_root();
    let (children, has_more_children) = run_tree::children(call, &run).await?;
    let progress = call.engine().progress(&run).map(|told| ProgressJson { done: told.done, total: told.total });
    let (result, cancel_requested_by) = (run.result.clone(), run.cancel_by.clone());
    let trace = run.trace.clone();
    let said = |lang| sentence(Subject::of(&run), lang);
    let why = said(Lang::En).zip(said(Lang::Zh)).map(|(en, zh)| Sentence { en, zh });
    let item = items(call, vec![run]).await?.pop();
    let item = item.ok_or_else(|| Problem::new(crate::problem::Code::RunNotFound, "the run is gone"))?;
    Ok(RunJson {
        item,
        namespace: call.namespace.name.clone(),
        job_version,
        params: params.and_then(raw),
        result: result.and_then(raw),
        parent,
        root,
        children,
        has_more_children,
        cancel_requested_by,
        why,
        progress,
        trace: trace.and_then(raw),
        attempts,
        shards,
    })
}

/// JSON text as it stands.
fn raw(text: String) -> Option<Box<RawValue>> {
    RawValue::from_string(text).ok()
}

/// The run's own parameters, else those of the definition that it runs under, as JSON text. They may hold a secret that the job
/// does not have any more, so what looks like one is for callers who may edit the app of the run. What parents passed on is for
/// callers who may look at those.
pub(crate) async fn params<Q>(call: &Call<Q>, run: &Run) -> Result<Option<String>, Problem> {
    let text = match &run.params {
        Some(own) => Some(own.clone()),
        None => {
            let definitions = call.engine().store().definitions(&[(run.job, run.job_version)]).await?;
            definitions.first().map(|definition| definition.spec.params.to_string())
        }
    };
    let may_edit = call.caller.rights.allow(Permission::Edit, run.namespace, Some(run.app));
    let Some(params) = text.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
        return Ok(text.filter(|_| may_edit));
    };
    let has_parents = parent_params::are_there(&params);
    if may_edit && !has_parents {
        return Ok(text);
    }
    let params = if may_edit { params } else { params_for_viewer(params) };
    let params = if has_parents { parent_params::as_seen(call, params).await? } else { params };
    Ok(Some(params.to_string()))
}

async fn shards<Q>(call: &Call<Q>, whole: &Run) -> Result<Vec<RunItem>, Problem> {
    items(call, shard_runs(call, whole).await?).await
}

/// The shards of a broadcast, in order.
pub(crate) async fn shard_runs<Q>(call: &Call<Q>, whole: &Run) -> Result<Vec<Run>, Problem> {
    let mut shards = Vec::new();
    let mut query = RunQuery { parent: Some(whole.id), limit: LIMIT_MAX, ..RunQuery::default() };
    while shards.len() < SHARD_COUNT_MAX {
        let page = call.engine().store().list_runs(whole.namespace, &query).await?;
        query.after = page.last().map(|run| run.id);
        let is_last = page.len() < usize::try_from(LIMIT_MAX).unwrap_or(usize::MAX);
        // A run that repeats the broadcast names it as its parent too.
        shards.extend(page.into_iter().filter(|run| run.shard_index != BROADCAST && run.fire_at == whole.fire_at));
        if is_last {
            break;
        }
    }
    shards.sort_by_key(|run| run.shard_index);
    call.conceal(&mut shards).await?;
    Ok(shards)
}
