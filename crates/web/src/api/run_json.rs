//! Runs as the API shows them.

use std::sync::Arc;

use rondel_core::part::Part;
use rondel_core::pump::Counts;
use rondel_core::reason::ReasonDetail;
use rondel_core::reason::words::{RunStatusFacts, sentence};
use rondel_core::run::{Attempt, ROOT_SHARD};
use rondel_core::words::Lang;
use rondel_core::{Reason, Run, RunId, RunStatus, Timestamp, Trigger};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::run_tree;
use super::run_tree::ChildJson;
use super::schedules::Sentence;
use crate::call::Call;
use crate::problem::Problem;
use crate::shown_runs::{Parts, read_attempts, rows_of_groups, run_params, shard_name, shard_runs, with_job_names};

/// A run in a list.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunItem {
    id: RunId,
    job: String,
    /// When the job was deleted, in a list of the runs of a deleted job.
    #[serde(skip_serializing_if = "Option::is_none")]
    job_deleted_at: Option<Timestamp>,
    fire_at: Timestamp,
    /// When it is due: later than planned because of jitter, or for the next attempt.
    due_at: Timestamp,
    status: RunStatus,
    attempt: i32,
    executor: Option<String>,
    /// Null on the row that stands for a whole broadcast.
    shard_index: Option<i32>,
    /// Null until the shards of a broadcast are assigned.
    shard_total: Option<i32>,
    /// Which part of its fire the run is, if the fire has several runs: of a pump job, the root or a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<Part>,
    trigger: Trigger,
    reason: Option<Reason>,
    /// The parameters of the reason, and what the run waits or waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<Arc<ReasonDetail>>,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    message: Option<String>,
    /// For a row that stands for several skipped fires: the planned instant of the last of them. `span_count` is their number.
    #[serde(skip_serializing_if = "Option::is_none")]
    span_end_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    span_count: Option<i64>,
}

/// A single run.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Run")]
pub(super) struct RunJson {
    #[serde(flatten)]
    item: RunItem,
    namespace: String,
    job_version: i64,
    /// The name of the shard, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    shard_name: Option<String>,
    /// The run's own parameters or else its job's; a shard's own parameters are merged over them.
    #[schemars(with = "Option<Value>")]
    params: Option<Box<RawValue>>,
    /// What its handler returned.
    #[schemars(with = "Option<Value>")]
    result: Option<Box<RawValue>>,
    parent: Option<RunId>,
    /// The first run of its fire: the run itself, unless it is a shard or follows another run.
    root: RunId,
    /// The runs below it: its shards, runs of jobs that follow, and manual retries.
    children: Vec<ChildJson>,
    /// Whether there are more children than these.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    has_more_children: bool,
    cancel_requested_by: Option<String>,
    /// The only executor that may get the run, if its caller named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    only_executor: Option<String>,
    /// Its key, if its caller gave it one.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// The reason in words, or what an open run waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<Sentence>,
    /// Its progress, while it is open and if its handler has reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<ProgressJson>,
    /// For the ended root run of a pump: the rows that its groups processed.
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<RowsJson>,
    /// How the run was routed to its executor.
    #[schemars(with = "Option<Value>")]
    trace: Option<Box<RawValue>>,
    attempts: Vec<AttemptJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shards: Option<Vec<RunItem>>,
}

/// The progress of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Progress")]
struct ProgressJson {
    done: u64,
    /// The total amount of work; 0 if unknown.
    total: u64,
}

/// What the groups of a pump reported at the ends of their attempts. An attempt that was lost with its executor reported nothing.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PumpRows")]
struct RowsJson {
    fetched: i64,
    done: i64,
    failed: i64,
}

impl From<Counts> for RowsJson {
    fn from(counts: Counts) -> Self {
        Self { fetched: counts.rows, done: counts.done, failed: counts.failed }
    }
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
    detail: Option<Arc<ReasonDetail>>,
    executor: Option<String>,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    message: Option<String>,
}

impl RunItem {
    fn new(run: Run, job: &str, part: Option<Part>) -> Self {
        Self {
            id: run.id,
            due_at: run.due_at,
            job: job.to_owned(),
            job_deleted_at: None,
            fire_at: run.fire_at,
            status: run.status,
            attempt: run.attempt,
            executor: run.executor,
            shard_index: (run.shard_index != ROOT_SHARD).then_some(run.shard_index),
            shard_total: run.shard_total,
            part,
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

impl RunItem {
    /// Adds the instant at which the job was deleted, for a list of the runs of one job.
    pub(super) fn with_job_deleted_at(self, job_deleted_at: Option<Timestamp>) -> Self {
        Self { job_deleted_at, ..self }
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

/// Runs with the names of their jobs, for a list.
pub(crate) async fn run_items<Q>(call: &Call<Q>, runs: Vec<Run>) -> Result<Vec<RunItem>, Problem> {
    let parts = Parts::read(call, runs.iter()).await?;
    let item = |(name, run): (String, Run)| {
        let part = parts.part_of(&run);
        RunItem::new(run, &name, part)
    };
    Ok(with_job_names(call, runs).await?.into_iter().map(item).collect())
}

/// A run with its attempts, its shards, and its parameters.
pub(super) async fn run_json<Q>(call: &Call<Q>, mut run: Run) -> Result<RunJson, Problem> {
    call.conceal(std::slice::from_mut(&mut run)).await?;
    let attempts = read_attempts(call, &run).await?.into_iter().map(AttemptJson::from).collect();
    let shards = if run.shard_index == ROOT_SHARD { Some(shard_runs(call, &run).await?) } else { None };
    let rows = match &shards {
        Some(groups) if run.status.is_terminal() => rows_of_groups(call, groups).await?.map(RowsJson::from),
        _ => None,
    };
    let shards = match shards {
        Some(shards) => Some(run_items(call, shards).await?),
        None => None,
    };
    let (params, shard_name) = (run_params(call, &run).await?, shard_name(call, &run).await?);
    let (job_version, parent) = (run.job_version, run.parent);
    let root = run.fire_root();
    let (children, has_more_children) = run_tree::children(call, &run).await?;
    let progress =
        call.engine().progress(&run).map(|progress| ProgressJson { done: progress.done, total: progress.total });
    let (result, cancel_requested_by) = (run.result.clone(), run.cancel_by.clone());
    let (trace, only_executor, key) = (run.trace.clone(), run.only_executor.clone(), run.trigger_key.clone());
    let sentence = |lang| sentence(RunStatusFacts::of(&run), lang);
    let explanation = sentence(Lang::En).zip(sentence(Lang::Zh)).map(|(en, zh)| Sentence { en, zh });
    let item = run_items(call, vec![run]).await?.pop();
    let item = item.ok_or_else(|| Problem::new(crate::problem::Code::RunNotFound, "the run is gone"))?;
    Ok(RunJson {
        item,
        namespace: call.namespace.name.clone(),
        job_version,
        shard_name,
        params: params.and_then(raw_json),
        result: result.and_then(raw_json),
        parent,
        root,
        children,
        has_more_children,
        cancel_requested_by,
        only_executor,
        key,
        why: explanation,
        progress,
        rows,
        trace: trace.and_then(raw_json),
        attempts,
        shards,
    })
}

/// The JSON text, unchanged; `None` if it is invalid.
fn raw_json(text: String) -> Option<Box<RawValue>> {
    RawValue::from_string(text).ok()
}
