//! Applies one action to many jobs, for the API and for pages. The jobs are selected first and then changed; their number has a limit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rondel_admin::jobs::{self, JobError, RunRequest};
use rondel_core::access::Permission;
use rondel_core::filter::Filter;
use rondel_core::{JobSpec, RunId, Trigger, labels};
use rondel_store::catalog::JobRecord;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::audit::AuditNote;
use crate::body::refuse_value;
use crate::call::Call;
use crate::job_board::{BoardEntry, JobOrder, OfferedHandlers};
use crate::problem::{Code, Complaint, Problem};

/// Maximum number of jobs that one request may change.
pub(crate) const BULK_JOB_COUNT_MAX: usize = 500;
/// How many jobs are changed concurrently.
const CONCURRENT_CHANGE_COUNT_MAX: usize = 8;
/// How often a conflicting change is tried.
const TRY_COUNT: usize = 4;

/// An action on jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JobAction {
    /// Stops their schedules.
    Pause,
    /// Starts their schedules again.
    Resume,
    /// Runs each job now, with its own parameters.
    Run,
    /// Sets a label on each job, and replaces another value of the key.
    Label,
    /// Removes the label with this key from each job.
    Unlabel,
    /// Deletes the jobs. A job stays if a job that is not deleted follows it.
    Delete,
}

impl JobAction {
    const fn needed_permission(self) -> Permission {
        match self {
            Self::Pause | Self::Resume | Self::Run => Permission::Operate,
            Self::Label | Self::Unlabel | Self::Delete => Permission::Edit,
        }
    }
}

/// An action with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct BulkJobAction {
    pub(crate) action: JobAction,
    /// Key and value of a label.
    pub(crate) label: Option<(String, String)>,
    pub(crate) trigger: Trigger,
}

impl BulkJobAction {
    /// Checks the arguments of an action. `label` is `key=value`, or only the key if the action removes the label.
    pub(crate) fn new(action: JobAction, label: &str, trigger: Trigger) -> Result<Self, Problem> {
        let refuse = |message: String| Err(refuse_value("/label", message));
        let (key, value) = label.split_once('=').unwrap_or((label, ""));
        let label = match action {
            JobAction::Label | JobAction::Unlabel => {
                if let Err(message) = labels::check_key(key) {
                    return refuse(message);
                }
                if action == JobAction::Label
                    && let Err(message) = labels::check_value(value)
                {
                    return refuse(format!("{message}; write team=pay"));
                }
                Some((key.to_owned(), value.to_owned()))
            }
            _ if !label.is_empty() => return refuse("is allowed only for the actions label and unlabel".to_owned()),
            JobAction::Pause | JobAction::Resume | JobAction::Run | JobAction::Delete => None,
        };
        Ok(Self { action, label, trigger })
    }

    /// Whether the action would leave this job unchanged, by the job's entry on the board.
    fn is_without_effect_on(&self, entry: &BoardEntry) -> bool {
        match (self.action, &self.label) {
            (JobAction::Pause, _) => !entry.is_enabled,
            (JobAction::Resume, _) => entry.is_enabled,
            (JobAction::Label, Some((key, value))) => entry.labels.get(key) == Some(value),
            (JobAction::Unlabel, Some((key, _))) => !entry.labels.contains_key(key),
            (JobAction::Label | JobAction::Unlabel | JobAction::Run | JobAction::Delete, _) => false,
        }
    }

    /// The definition after the action. It is equal to `spec` if the action does not change it.
    fn edit(&self, spec: &JobSpec) -> JobSpec {
        let mut spec = spec.clone();
        match (self.action, &self.label) {
            (JobAction::Pause, _) => spec.enabled = false,
            (JobAction::Resume, _) => spec.enabled = true,
            (JobAction::Label, Some((key, value))) => {
                spec.labels.insert(key.clone(), value.clone());
            }
            (JobAction::Unlabel, Some((key, _))) => {
                spec.labels.remove(key);
            }
            (JobAction::Label | JobAction::Unlabel | JobAction::Run | JobAction::Delete, _) => {}
        }
        spec
    }
}

/// The jobs that one request changes.
#[derive(Debug)]
pub(crate) struct SelectedJobs {
    pub(crate) names: Vec<String>,
    /// Whether further jobs match that the action would change.
    pub(crate) has_more: bool,
    /// The name after which the next request continues, whatever the outcome for the jobs of this request; `None` if no more jobs match.
    pub(crate) next_after: Option<String>,
    /// A problem for each given name without a job that the caller may see.
    pub(crate) missing_jobs: Vec<JobProblem>,
}

/// Selects the jobs with these names that the caller may see. Requests with more than [`BULK_JOB_COUNT_MAX`] names were refused before.
pub(crate) async fn select_named<Q>(call: &Call<Q>, names: &[String]) -> Result<SelectedJobs, Problem> {
    let valid_names = names.iter().map(String::as_str).filter(|name| rondel_core::name::check(name).is_ok());
    let valid_names: Vec<&str> = valid_names.collect();
    let jobs = if valid_names.is_empty() {
        Vec::new()
    } else {
        call.engine().store().jobs_named(call.namespace.id, &valid_names).await?
    };
    let (visible_jobs, hidden_jobs): (Vec<JobRecord>, Vec<JobRecord>) =
        jobs.into_iter().partition(|job| call.may_view(job.app));
    call.note.mark_hidden(hidden_jobs.len(), visible_jobs.len());
    let selected_names: Vec<String> = visible_jobs.into_iter().map(|job| job.spec.name).collect();
    let missing_jobs: BTreeSet<&String> = names.iter().filter(|name| !selected_names.contains(name)).collect();
    let missing_jobs = missing_jobs.into_iter().map(|name| JobProblem::new(name, &deleted_problem(name))).collect();
    Ok(SelectedJobs { names: selected_names, has_more: false, next_after: None, missing_jobs })
}

fn deleted_problem(name: &str) -> Problem {
    Problem::new(Code::JobNotFound, format!("there is no job {name:?} any more"))
}

/// The jobs that match a filter, in the order of their names. Refused if the board does not hold all jobs: the action would miss matching
/// jobs, and yet appear complete.
pub(crate) async fn matching_jobs<Q>(call: &Call<Q>, filter: &Filter) -> Result<Vec<Arc<BoardEntry>>, Problem> {
    let board = call.web.boards.board_for(call.engine(), call.namespace.id, filter).await?;
    if !board.has_all_jobs() {
        let message = "the namespace has too many jobs to find all that match; give the name of each";
        return Err(Problem::of_complaints(Code::InvalidQuery, vec![Complaint::query("q", "invalid_value", message)]));
    }
    let mut offers = OfferedHandlers::new(call.engine(), call.namespace.id);
    Ok(board.matching(filter, call.visible_apps().as_deref(), JobOrder::Name, &mut offers))
}

/// Selects the jobs that match a filter, in the order of their names; with `after_name`, only those whose names come after it. Jobs that are
/// already in the wanted state come last, so that they do not use up the limit.
pub(crate) async fn select_matching<Q>(
    call: &Call<Q>,
    filter: &Filter,
    (bulk_action, after_name): (&BulkJobAction, Option<&str>),
) -> Result<SelectedJobs, Problem> {
    let mut entries = matching_jobs(call, filter).await?;
    entries.retain(|entry| after_name.is_none_or(|after_name| entry.name.as_str() > after_name));
    entries.sort_by_key(|entry| bulk_action.is_without_effect_on(entry));
    let has_more = entries.get(BULK_JOB_COUNT_MAX).is_some_and(|entry| !bulk_action.is_without_effect_on(entry));
    let names: Vec<String> = entries.iter().take(BULK_JOB_COUNT_MAX).map(|entry| entry.name.clone()).collect();
    let next_after = names.last().filter(|_| has_more).cloned();
    Ok(SelectedJobs { names, has_more, next_after, missing_jobs: Vec::new() })
}

/// Why the action failed for a job.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BulkJobProblem")]
pub(crate) struct JobProblem {
    pub(crate) job: String,
    /// The code of the problem.
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl JobProblem {
    fn new(job: &str, problem: &Problem) -> Self {
        Self { job: job.to_owned(), code: problem.code().as_str(), message: problem.detail().to_owned() }
    }
}

/// The outcome for all jobs.
#[derive(Debug, Default)]
pub(crate) struct BulkJobsOutcome {
    pub(crate) changed: Vec<String>,
    /// How many jobs were already in the wanted state.
    pub(crate) unchanged: usize,
    pub(crate) runs: Vec<RunId>,
    pub(crate) problems: Vec<JobProblem>,
}

impl BulkJobsOutcome {
    /// Marks the request as failed for the audit log if the action failed for every job.
    pub(crate) fn mark_if_all_failed(&self, note: &AuditNote) {
        if self.changed.is_empty() && self.unchanged == 0 && !self.problems.is_empty() {
            note.mark_all_failed(self.problems.iter().map(|problem| problem.code));
        }
    }
}

/// How long after its start a bulk request may begin further actions. This is less than the timeout of the request, since a timeout would
/// lose the answer with the outcomes.
pub(crate) fn action_timeout<Q>(call: &Call<Q>) -> Duration {
    call.web.config.request_timeout * 2 / 3
}

/// The problem reported for each job or run that a bulk request had no time left for.
pub(crate) fn not_reached_problem() -> Problem {
    Problem::new(
        Code::TimedOut,
        "the time for one request was over before its turn came; nothing was done: send another request for it, with a \
         new Idempotency-Key if it has one",
    )
}

/// Awaits the action on one job or run until shortly before the timeout of the whole request: if the connection to the database breaks, an
/// action may be repeated for a long time.
pub(crate) async fn within_timeout<Q, T>(
    call: &Call<Q>,
    started_at: Instant,
    action: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    let deadline = started_at + call.web.config.request_timeout * 5 / 6;
    tokio::time::timeout_at(deadline, action).await.unwrap_or_else(|_| Err(unanswered_problem()))
}

/// The problem of a job or run whose action the database did not answer in time.
pub(crate) fn unanswered_problem() -> Problem {
    Problem::new(
        Code::TimedOut,
        "the database did not answer in time; the action may have taken effect: look before you repeat it, with a new \
         Idempotency-Key if it has one",
    )
}

/// Applies the action to each job. A job that cannot be changed does not stop the others. A job that other jobs follow is deleted after
/// these, if they are deleted too.
pub(crate) async fn apply_to_jobs<Q>(call: &Call<Q>, bulk_action: &BulkJobAction, names: &[String]) -> BulkJobsOutcome {
    let mut outcome = BulkJobsOutcome::default();
    let started_at = Instant::now();
    let mut outcomes = apply_to_each(call, bulk_action, names, started_at).await;
    let mut has_progress = outcomes.iter().any(Result::is_ok);
    while has_progress && bulk_action.action == JobAction::Delete {
        let is_parent = |result: &Result<_, Problem>| result.as_ref().is_err_and(|p| p.code() == Code::JobIsParent);
        // Backwards, since the first pass went forwards: a chain whose names ascend needs this one pass only.
        let indexes: Vec<usize> = (0..names.len()).rev().filter(|index| is_parent(&outcomes[*index])).collect();
        let parents: Vec<String> = indexes.iter().map(|index| names[*index].clone()).collect();
        let repeated_outcomes = apply_to_each(call, bulk_action, &parents, started_at).await;
        has_progress = repeated_outcomes.iter().any(Result::is_ok);
        for (index, result) in indexes.into_iter().zip(repeated_outcomes) {
            outcomes[index] = result;
        }
    }
    for (name, result) in names.iter().zip(outcomes) {
        match result {
            Ok(ChangeOutcome::Unchanged) => outcome.unchanged += 1,
            Ok(ChangeOutcome::Changed(run)) => {
                outcome.changed.push(name.clone());
                outcome.runs.extend(run);
            }
            Err(problem) => outcome.problems.push(JobProblem::new(name, &problem)),
        }
    }
    outcome.mark_if_all_failed(&call.note);
    call.note.changed_to(&serde_json::json!({
        "action": bulk_action.action,
        "label": bulk_action.label.as_ref().map(|(key, value)| format!("{key}={value}")),
        "jobs": outcome.changed,
        "unchanged": outcome.unchanged,
        "problems": outcome.problems.len(),
    }));
    outcome
}

enum ChangeOutcome {
    Changed(Option<RunId>),
    Unchanged,
}

/// The outcome for each of these jobs. Several jobs are changed concurrently, since each change waits for the database. Jobs are deleted one
/// at a time, since a job cannot be deleted before the jobs that follow it.
async fn apply_to_each<Q>(
    call: &Call<Q>,
    bulk_action: &BulkJobAction,
    names: &[String],
    started_at: Instant,
) -> Vec<Result<ChangeOutcome, Problem>> {
    let concurrent_max = if bulk_action.action == JobAction::Delete { 1 } else { CONCURRENT_CHANGE_COUNT_MAX };
    let mut outcomes = Vec::with_capacity(names.len());
    for batch in names.chunks(concurrent_max) {
        if started_at.elapsed() >= action_timeout(call) {
            outcomes.extend(batch.iter().map(|_| Err(not_reached_problem())));
            continue;
        }
        let mut changes = Vec::with_capacity(batch.len());
        for name in batch {
            changes.push(within_timeout(call, started_at, Box::pin(apply_to_job(call, bulk_action, name))));
        }
        outcomes.extend(join_all(changes).await);
    }
    outcomes
}

async fn apply_to_job<Q>(call: &Call<Q>, bulk_action: &BulkJobAction, name: &str) -> Result<ChangeOutcome, Problem> {
    let job_deleted_problem = || deleted_problem(name);
    let (engine, author) = (call.engine(), call.caller.name());
    for _ in 0..TRY_COUNT {
        let record = engine.store().job(call.namespace.id, name).await?.ok_or_else(job_deleted_problem)?;
        if !call.caller.rights.allow(bulk_action.action.needed_permission(), record.namespace, Some(record.app)) {
            return Err(if call.may_view(record.app) { app_forbidden_problem() } else { job_deleted_problem() });
        }
        // As for other edits of a job: the caller must be able to see its parent jobs, unless the job is only paused or resumed.
        let spec = bulk_action.edit(&record.spec);
        if spec.labels != record.spec.labels {
            call.check_definition(&spec).await?;
        }
        match try_apply(call, bulk_action, &record, author).await {
            Err(JobError::Conflict { .. }) => {}
            Err(error) => return Err(call.job_problem(error).await),
            Ok(outcome) => return Ok(outcome),
        }
    }
    Err(Problem::new(Code::EditConflict, "the job changed under each of several tries; try again"))
}

async fn try_apply<Q>(
    call: &Call<Q>,
    bulk_action: &BulkJobAction,
    record: &JobRecord,
    author: &str,
) -> Result<ChangeOutcome, JobError> {
    let engine = call.engine();
    match bulk_action.action {
        JobAction::Run => {
            let request = RunRequest { trace: call.trace, ..RunRequest::by(bulk_action.trigger) };
            Ok(ChangeOutcome::Changed(Some(jobs::request_run(engine, record, request).await?.id)))
        }
        JobAction::Delete => {
            let is_deleted =
                jobs::delete_without_wait(engine, record, Some(record.version), false, (None, author)).await?;
            Ok(if is_deleted { ChangeOutcome::Changed(None) } else { ChangeOutcome::Unchanged })
        }
        JobAction::Pause | JobAction::Resume | JobAction::Label | JobAction::Unlabel => {
            let spec = bulk_action.edit(&record.spec);
            if spec == record.spec {
                if bulk_action.action == JobAction::Pause {
                    jobs::end_queued_of_paused(engine, record, author).await?;
                }
                return Ok(ChangeOutcome::Unchanged);
            }
            jobs::change_without_wait(engine, record, spec, Some(record.version), author).await?;
            Ok(ChangeOutcome::Changed(None))
        }
    }
}

fn app_forbidden_problem() -> Problem {
    Problem::new(Code::Forbidden, "your roles do not allow this in the job's app")
}
