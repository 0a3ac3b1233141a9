//! Cancels, repeats or acknowledges many runs in one request.

use axum::response::Response;
use http::{HeaderMap, StatusCode};
use rondel_core::RunId;
use rondel_core::access::Permission::Operate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::cancels::cancel_message;
use super::run_list::parse_search;
use super::runs::trigger_of_client;
use crate::answer::json_response;
use crate::body::{JsonBody, refuse_value};
use crate::call::Call;
use crate::openapi::Doc;
use crate::problem::Problem;
use crate::routes::Routes;
use crate::run_bulk::{BULK_RUN_COUNT_MAX, RunAction, RunProblem, RunSelection, apply_to_runs, select_runs};

/// An action, and the runs to which it applies.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BulkRuns {
    action: RunAction,
    /// The ids of the runs; either `ids` or `q` is required.
    #[serde(default)]
    #[schemars(length(max = 500))]
    ids: Option<Vec<RunId>>,
    /// The runs that match this filter, the newest 500.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    q: Option<String>,
    /// With `q`: only runs that come after this one, the newest first. Use the `after` of the previous answer.
    #[serde(default)]
    after: Option<RunId>,
    /// Whether to count the runs without changing them.
    #[serde(default)]
    dry_run: bool,
    /// How many runs a dry run found. If more match now, nothing is done.
    #[serde(default)]
    expected_count: Option<usize>,
    /// The reason, for the messages of the cancelled runs.
    #[serde(default)]
    #[schemars(length(max = 150))]
    reason: Option<String>,
}

/// What was done.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BulkRunsDone")]
struct BulkRunsJson {
    /// How many runs the action applies to.
    matched: usize,
    /// How many of the chosen runs the action does not apply to.
    left_out: usize,
    /// Whether more runs match than one request accepts. If so, repeat the request with `after`.
    has_more: bool,
    /// The `after` of a request for the rest. Null with `has_more` means that the search cannot continue: add `until:` to the filter.
    after: Option<RunId>,
    /// To how many runs the action was applied; 0 for a dry run.
    done: usize,
    /// The runs that the action created.
    made: Vec<RunId>,
    /// Runs for which the action failed.
    problems: Vec<RunProblem>,
}

pub(super) fn routes() -> Routes {
    Routes::new().post(
        "/api/v1/runs:bulk",
        Operate,
        bulk,
        Doc::new(
            "Cancel, retry or acknowledge many runs",
            "Applies to the runs in `ids`, or to those that match the filter `q`: the newest 500. With `dry_run` the runs are \
             only counted; with that count as `expected_count`, a later request is refused if more runs match. `after` \
             continues with the rest. A run for which the action fails is named in `problems` and does not stop the others.",
        )
        .json::<BulkRunsJson>(200, "What was done.")
        .example(json!({"action": "retry", "q": "status:failed app:orders since:8h", "dry_run": true})),
    )
}

async fn bulk(call: Call, headers: HeaderMap, body: JsonBody<BulkRuns>) -> Result<Response, Problem> {
    let body = body.read()?;
    let cancel_text = cancel_message(call.caller.name(), body.reason.as_deref())?;
    let selection = match (&body.ids, &body.q) {
        (Some(ids), None) if ids.len() > BULK_RUN_COUNT_MAX => {
            return Err(refuse_value("/ids", format!("{} runs; at most {BULK_RUN_COUNT_MAX} at once", ids.len())));
        }
        (Some(_), None) if body.after.is_some() => {
            return Err(refuse_value("/after", "goes with q; leave it out with ids"));
        }
        (Some(ids), None) => RunSelection::Ids(ids.clone()),
        (None, Some(q)) => {
            let search = parse_search(&call, q).await.map_err(|problem| problem.in_body("q"))?;
            RunSelection::Matching(Box::new(search), body.after)
        }
        _ => return Err(refuse_value("/q", "give either ids or q")),
    };
    let selected_runs = select_runs(&call, body.action, selection).await?;
    let matched_count = selected_runs.runs.len();
    if body.expected_count.is_some_and(|expected| matched_count > expected) {
        let message = format!("{matched_count} runs match now, more than expected; count them again");
        return Err(refuse_value("/expected_count", message));
    }
    let outcome = match body.dry_run {
        true => {
            call.note.mark_dry_run();
            Default::default()
        }
        false => {
            apply_to_runs(&call, body.action, &selected_runs.runs, (&cancel_text, trigger_of_client(&headers))).await
        }
    };
    let body_json = BulkRunsJson {
        matched: matched_count,
        left_out: selected_runs.left_out_count,
        has_more: selected_runs.has_more,
        after: selected_runs.next_after,
        done: outcome.done_count,
        made: outcome.new_runs,
        problems: outcome.problems,
    };
    json_response(StatusCode::OK, &body_json)
}
