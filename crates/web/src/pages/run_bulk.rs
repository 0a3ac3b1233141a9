//! Cancels, repeats or acknowledges many runs. The first page counts the runs and asks for confirmation, the second page reports the
//! outcome.

use std::collections::BTreeMap;

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_core::filter::{Filter, Scope};
use rondel_core::words::Lang;
use rondel_core::{Run, RunId, Trigger};
use rondel_store::ledger::RunOrder;

use super::form::Fields;
use super::run_line::RunLine;
use super::sentences::localized;
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use super::zones;
use crate::api::cancels::cancel_message;
use crate::body::refuse_value;
use crate::problem::Problem;
use crate::redirect::{own_path, redirect_to};
use crate::run_bulk::{
    BULK_RUN_COUNT_MAX, RunAction, RunProblem, RunSelection, SelectedRuns, apply_to_runs, select_runs,
};
use crate::run_filter;
use crate::shown_runs::{Parts, with_job_names};

/// How many runs are shown before the action, and how many problems after it.
const SHOWN_RUN_COUNT_MAX: usize = 20;

/// A problem that several runs have in common.
struct CommonProblem {
    count: usize,
    message: String,
    /// The first of these runs.
    id: RunId,
}

#[derive(Template)]
#[template(path = "run_bulk.html")]
struct BulkPage {
    shell: Shell,
    t: &'static Texts,
    title: String,
    is_retry: bool,
    is_cancel: bool,
    action: &'static str,
    rows: Vec<RunLine>,
    count: usize,
    hidden_count: usize,
    left_out_count: usize,
    has_more: bool,
    /// The run after which this selection begins, in the order from the newest to the oldest.
    after_id: Option<RunId>,
    /// The run after which the next selection begins, if there is one.
    next_after: Option<RunId>,
    /// Maximum number of runs that one request may change.
    max: usize,
    /// The selected runs.
    ids: Vec<RunId>,
    /// The filter by which they were selected.
    filter: String,
    /// Whether the action applies to all runs that match `filter`.
    is_all: bool,
    /// The URL of the list to return to.
    return_url: String,
    /// Whether the action was performed.
    is_done: bool,
    problems: Vec<CommonProblem>,
}

pub(super) async fn act(page: Page, fields: Fields) -> Result<Response, Problem> {
    let t = page.t;
    let action = match fields.get("do") {
        "cancel" => RunAction::Cancel,
        "retry" => RunAction::Retry,
        "acknowledge" => RunAction::Acknowledge,
        word => return Err(refuse_value("/do", format!("{word:?} is none of cancel, retry and acknowledge"))),
    };
    let ids: Vec<RunId> = fields.with_prefix("run").filter_map(|(_, id)| id.parse().ok()).collect();
    let filter = fields.get("q").to_owned();
    // If no rows are selected, the action applies to all runs that match the filter.
    let is_all = fields.get("scope") == "all" || (ids.is_empty() && !filter.trim().is_empty());
    let return_url = own_path(fields.get("back")).unwrap_or("/runs").to_owned();
    if !is_all && ids.is_empty() {
        return Ok(redirect_to(&return_url));
    }
    if !is_all && ids.len() > BULK_RUN_COUNT_MAX {
        let message = format!("{} runs; at most {BULK_RUN_COUNT_MAX} at once", ids.len());
        return Err(refuse_value("/run", message));
    }
    let after_id = fields.get("after").parse::<RunId>().ok();
    let selection = match is_all {
        true => {
            let filter = Filter::parse(&filter, Scope::Runs).map_err(|error| run_filter::filter_problem(&error))?;
            let zone = zones::clock_and_zone().1;
            let search = run_filter::build_search(&page.call, &filter, RunOrder::Newest, zone).await?;
            RunSelection::Matching(Box::new(search), after_id)
        }
        false => RunSelection::Ids(ids.clone()),
    };
    let SelectedRuns { runs, left_out_count, has_more, next_after } =
        select_runs(&page.call, action, selection).await?;
    // The request that confirms the action names the runs that were shown, since other runs may match by now. It also has the run after
    // which the next selection begins.
    let has_more = has_more || !fields.get("more").is_empty();
    let next_after = next_after.or_else(|| fields.get("rest").parse().ok());
    let ids: Vec<RunId> = if is_all { runs.iter().map(|run| run.id).collect() } else { ids };
    let expected_count = fields.get("expected").parse::<usize>().ok();
    // If more runs match than were counted, nothing is changed: the page shows the new count and asks again.
    let is_confirmed = expected_count.is_some_and(|expected_count| runs.len() <= expected_count && !runs.is_empty());
    let count = runs.len();
    let (mut done_count, mut problems) = (count, Vec::new());
    if is_confirmed {
        let cancel_text = cancel_message(page.call.caller.name(), Some(fields.get("reason")))?;
        let result = apply_to_runs(&page.call, action, &runs, (&cancel_text, Trigger::Manual)).await;
        done_count = result.done_count;
        problems = group_by_message(result.problems, t.lang());
    } else {
        page.call.note.mark_dry_run();
    }
    let now = page.engine().now();
    let shown_runs: Vec<_> = runs.into_iter().rev().take(SHOWN_RUN_COUNT_MAX).collect();
    let parts = Parts::read(&page.call, shown_runs.iter()).await?;
    let line = |(job, run): (String, Run)| RunLine::new(&run, job, parts.part_of(&run), now, t);
    let rows: Vec<RunLine> = with_job_names(&page.call, shown_runs).await?.into_iter().map(line).collect();
    let is_retry = action == RunAction::Retry;
    let template = BulkPage {
        shell: page.shell(Nav::Runs),
        t,
        title: match (action, is_confirmed) {
            (RunAction::Retry, false) => t.bulk_retry_ask(count),
            (RunAction::Cancel, false) => t.bulk_cancel_ask(count),
            (RunAction::Acknowledge, false) => t.bulk_acknowledge_ask(count),
            (RunAction::Retry, true) => t.bulk_retry_done(done_count),
            (RunAction::Cancel, true) => t.bulk_cancel_done(done_count),
            (RunAction::Acknowledge, true) => t.bulk_acknowledge_done(done_count),
        },
        is_retry,
        is_cancel: action == RunAction::Cancel,
        action: match action {
            RunAction::Retry => "retry",
            RunAction::Cancel => "cancel",
            RunAction::Acknowledge => "acknowledge",
        },
        hidden_count: count.saturating_sub(rows.len()),
        rows,
        count,
        left_out_count,
        has_more,
        after_id,
        next_after,
        max: BULK_RUN_COUNT_MAX,
        ids,
        filter,
        is_all,
        return_url,
        is_done: is_confirmed,
        problems,
    };
    html(StatusCode::OK, &template)
}

/// Groups problems by their messages, the most frequent first.
fn group_by_message(problems: Vec<RunProblem>, lang: Lang) -> Vec<CommonProblem> {
    let mut problems_by_message: BTreeMap<String, (usize, RunId)> = BTreeMap::new();
    for problem in problems {
        let message = localized(lang, &problem.message).into_owned();
        problems_by_message.entry(message).or_insert((0, problem.id)).0 += 1;
    }
    let common_problem = |(message, (count, id))| CommonProblem { count, message, id };
    let mut common_problems: Vec<CommonProblem> = problems_by_message.into_iter().map(common_problem).collect();
    common_problems.sort_by_key(|problem| std::cmp::Reverse(problem.count));
    common_problems.truncate(SHOWN_RUN_COUNT_MAX);
    common_problems
}
