//! Cancels, repeats or acknowledges many runs, for the API and for pages. The runs are selected first and then changed; their number has a
//! limit.

use rondel_admin::jobs;
use rondel_core::{Run, RunId, RunStatus, Trigger};
use rondel_store::ledger::{CancelOutcome, RunPlace, RunSearch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::api::runs::retry_request;
use crate::call::Call;
use crate::job_bulk::{action_timeout, not_reached_problem, within_timeout};
use crate::problem::{Code, Problem};
use crate::run_filter::can_continue;

/// Maximum number of runs that one request may change.
pub(crate) const BULK_RUN_COUNT_MAX: usize = 500;

/// The action on the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunAction {
    /// Asks open runs to end.
    Cancel,
    /// Repeats ended runs, with their parameters.
    Retry,
    /// Marks failed runs as acknowledged.
    Acknowledge,
}

/// How the runs for an action are selected.
#[derive(Debug)]
pub(crate) enum RunSelection {
    Ids(Vec<RunId>),
    /// The runs that match the search. With an id, only the runs after this run, in the order from the newest to the oldest.
    Matching(Box<RunSearch>, Option<RunId>),
}

/// The runs that an action applies to.
#[derive(Debug)]
pub(crate) struct SelectedRuns {
    pub(crate) runs: Vec<Run>,
    /// How many of the selected runs have a status to which the action does not apply. For example, a cancel does not apply to an ended
    /// run.
    pub(crate) left_out_count: usize,
    /// Whether further runs may match, because one request cannot change them all or because the search stopped early.
    pub(crate) has_more: bool,
    /// The run after which the next request continues, whatever the outcome for these runs; `None` if no request can continue.
    pub(crate) next_after: Option<RunId>,
}

/// A run for which the action failed, and why.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BulkRunProblem")]
pub(crate) struct RunProblem {
    pub(crate) id: RunId,
    /// The code of the problem.
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

/// The outcome for all runs.
#[derive(Debug, Default)]
pub(crate) struct BulkRunsOutcome {
    pub(crate) done_count: usize,
    pub(crate) new_runs: Vec<RunId>,
    pub(crate) problems: Vec<RunProblem>,
}

impl RunAction {
    fn applies_to(self, run: &Run) -> bool {
        match self {
            Self::Cancel => !run.status.is_terminal(),
            Self::Retry => run.status.is_terminal(),
            Self::Acknowledge => matches!(run.status, RunStatus::Failed | RunStatus::TimedOut | RunStatus::Unknown),
        }
    }
}

/// Finds the runs that an action applies to.
pub(crate) async fn select_runs<Q>(
    call: &Call<Q>,
    action: RunAction,
    selection: RunSelection,
) -> Result<SelectedRuns, Problem> {
    let store = call.engine().store();
    let (mut runs, has_more, next_after) = match selection {
        RunSelection::Ids(mut ids) => {
            ids.sort_unstable();
            ids.dedup();
            let has_more = ids.len() > BULK_RUN_COUNT_MAX;
            ids.truncate(BULK_RUN_COUNT_MAX);
            let mut runs = store.runs(&ids).await?;
            runs.retain(|run| run.namespace == call.namespace.id);
            let count = runs.len();
            runs.retain(|run| call.may_view(run.app));
            call.note.mark_hidden(count - runs.len(), runs.len());
            (runs, has_more, None)
        }
        RunSelection::Matching(mut search, after_id) => {
            search.from = after_id.map(|id| RunPlace { value: 0, id });
            search.is_dead |= action == RunAction::Acknowledge;
            let applies_to_status = |status: &RunStatus| (action != RunAction::Cancel) == status.is_terminal();
            let statuses = if search.statuses.is_empty() { RunStatus::ALL } else { &search.statuses };
            let statuses: Vec<RunStatus> = statuses.iter().copied().filter(applies_to_status).collect();
            if statuses.is_empty() {
                return Ok(SelectedRuns { runs: Vec::new(), left_out_count: 0, has_more: false, next_after: None });
            }
            search.statuses = statuses;
            search.limit = u32::try_from(BULK_RUN_COUNT_MAX).unwrap_or(u32::MAX) + 1;
            let mut searched_runs = store.search_runs(call.namespace.id, &search).await?;
            let is_full = searched_runs.runs.len() > BULK_RUN_COUNT_MAX;
            searched_runs.runs.truncate(BULK_RUN_COUNT_MAX);
            let next_after = match is_full {
                true => searched_runs.runs.last().map(|run| run.id),
                false => searched_runs.stopped_at.filter(|_| can_continue(&search)),
            };
            (searched_runs.runs, is_full || searched_runs.stopped_at.is_some(), next_after)
        }
    };
    let count = runs.len();
    runs.retain(|run| action.applies_to(run));
    runs.sort_by_key(|run| run.id);
    Ok(SelectedRuns { left_out_count: count - runs.len(), runs, has_more, next_after })
}

/// Applies the action to one run after the other, beginning with the oldest. A run that fails does not stop the others.
pub(crate) async fn apply_to_runs<Q>(
    call: &Call<Q>,
    action: RunAction,
    runs: &[Run],
    (cancel_text, trigger): (&str, Trigger),
) -> BulkRunsOutcome {
    let mut outcome = BulkRunsOutcome::default();
    let started_at = Instant::now();
    for run in runs {
        let apply_result = match started_at.elapsed() < action_timeout(call) {
            true => {
                within_timeout(call, started_at, Box::pin(apply_to_run(call, action, run, (cancel_text, trigger))))
                    .await
            }
            false => Err(not_reached_problem()),
        };
        match apply_result {
            Ok(new_runs) => {
                outcome.done_count += 1;
                outcome.new_runs.extend(new_runs);
            }
            Err(problem) => {
                let (code, message) = (problem.code().as_str(), problem.detail().to_owned());
                outcome.problems.push(RunProblem { id: run.id, code, message });
            }
        }
    }
    if outcome.done_count == 0 && !outcome.problems.is_empty() {
        call.note.mark_all_failed(outcome.problems.iter().map(|problem| problem.code));
    }
    call.note.changed_to(&serde_json::json!({
        "action": action,
        "done": outcome.done_count,
        "problems": outcome.problems.len(),
        "runs": runs.iter().map(|run| run.id).collect::<Vec<_>>(),
    }));
    outcome
}

async fn apply_to_run<Q>(
    call: &Call<Q>,
    action: RunAction,
    run: &Run,
    (cancel_text, trigger): (&str, Trigger),
) -> Result<Option<RunId>, Problem> {
    let gone_problem = || Problem::new(Code::RunNotFound, "the run is gone");
    call.check(Some(run.app), gone_problem)?;
    match action {
        RunAction::Cancel => match call.engine().cancel_run(run.id, cancel_text).await? {
            CancelOutcome::Requested(_) | CancelOutcome::AlreadyEnded(RunStatus::Cancelled) => Ok(None),
            CancelOutcome::AlreadyEnded(status) => {
                Err(Problem::new(Code::RunFinished, format!("the run has ended: {status}")))
            }
            CancelOutcome::NotFound => Err(gone_problem()),
        },
        RunAction::Retry => {
            let (record, run_request) = retry_request(call, run, trigger).await?;
            Ok(Some(jobs::request_run(call.engine(), &record, run_request).await?.id))
        }
        RunAction::Acknowledge => {
            call.engine().store().acknowledge_dead_letters(run.namespace, &[run.id]).await?;
            Ok(None)
        }
    }
}
