//! Applies one action to many jobs.

use axum::response::Response;
use http::{HeaderMap, StatusCode};
use rondel_core::RunId;
use rondel_core::access::Permission::Operate;
use rondel_core::filter::Scope;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::answer::json_response;
use crate::api::runs::trigger_of_client;
use crate::body::{JsonBody, refuse_value};
use crate::call::Call;
use crate::job_bulk::{
    BULK_JOB_COUNT_MAX, BulkJobAction, BulkJobsOutcome, JobAction, JobProblem, apply_to_jobs, select_matching,
    select_named,
};
use crate::openapi::Doc;
use crate::problem::Problem;
use crate::routes::Routes;
use crate::run_filter;

/// An action, and the jobs to which it applies.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BulkJobs {
    action: JobAction,
    /// The names of the jobs; either `names` or `q` is required.
    #[serde(default)]
    #[schemars(length(max = 500))]
    names: Option<Vec<String>>,
    /// The jobs that match this filter, the first 500 by name.
    #[serde(default)]
    q: Option<String>,
    /// With `q`: only jobs whose names come after this one. Use the `after` of the previous answer.
    #[serde(default)]
    after: Option<String>,
    /// For `label` a key and a value, `team=pay`; for `unlabel` the key.
    #[serde(default)]
    label: Option<String>,
    /// Whether to count the jobs without changing them.
    #[serde(default)]
    dry_run: bool,
    /// How many jobs a dry run found. If more match now, nothing is done.
    #[serde(default)]
    expected_count: Option<usize>,
}

/// What was done.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BulkJobsDone")]
struct BulkJobsJson {
    /// How many jobs were chosen.
    matched: usize,
    /// Whether more jobs match than one request accepts. If so, repeat the request with `after`.
    has_more: bool,
    /// The `after` of a request for the rest; null if there is no rest.
    after: Option<String>,
    /// The jobs that were changed; in a dry run, those that match.
    jobs: Vec<String>,
    /// How many jobs were already in the wanted state.
    unchanged: usize,
    /// The runs that the action created.
    runs: Vec<RunId>,
    /// Jobs for which the action failed.
    problems: Vec<JobProblem>,
}

pub(super) fn routes() -> Routes {
    Routes::new().post(
        "/api/v1/jobs:bulk",
        Operate,
        bulk,
        Doc::new(
            "Change many jobs",
            "Pauses, resumes, runs, labels or deletes the jobs in `names`, or those that match the filter `q`: the first 500 by \
             name. Labels and deletion need the role editor. With `dry_run` the jobs are only counted; with that count as \
             `expected_count`, a later request is refused if more jobs match. `after` continues with the rest. Jobs that are \
             already in the wanted state are not changed. A job for which the action fails is named in `problems` and does not \
             stop the others.",
        )
        .json::<BulkJobsJson>(200, "What was done.")
        .example(json!({"action": "pause", "q": "app:orders", "dry_run": true})),
    )
}

async fn bulk(call: Call, headers: HeaderMap, body: JsonBody<BulkJobs>) -> Result<Response, Problem> {
    let body = body.read()?;
    let bulk_action =
        BulkJobAction::new(body.action, body.label.as_deref().unwrap_or_default(), trigger_of_client(&headers))?;
    let selection = match (&body.names, &body.q) {
        (Some(names), None) if names.len() > BULK_JOB_COUNT_MAX => {
            return Err(refuse_value("/names", format!("{} jobs; at most {BULK_JOB_COUNT_MAX} at once", names.len())));
        }
        (Some(_), None) if body.after.is_some() => {
            return Err(refuse_value("/after", "goes with q; leave it out with names"));
        }
        (Some(names), None) => select_named(&call, names).await?,
        (None, Some(q)) => {
            let filter = run_filter::parse_filter(q, Scope::Jobs).map_err(|problem| problem.in_body("q"))?;
            let selection_result = select_matching(&call, &filter, (&bulk_action, body.after.as_deref())).await;
            selection_result.map_err(|problem| problem.in_body("q"))?
        }
        _ => return Err(refuse_value("/q", "give either names or q")),
    };
    let matched_count = selection.names.len();
    if body.expected_count.is_some_and(|expected| matched_count > expected) {
        let message = format!("{matched_count} jobs match now, more than expected; count them again");
        return Err(refuse_value("/expected_count", message));
    }
    let mut outcome = match body.dry_run {
        true => {
            call.note.mark_dry_run();
            BulkJobsOutcome { changed: selection.names, ..BulkJobsOutcome::default() }
        }
        false => apply_to_jobs(&call, &bulk_action, &selection.names).await,
    };
    outcome.problems.extend(selection.missing_jobs);
    if !body.dry_run {
        outcome.mark_if_all_failed(&call.note);
    }
    let BulkJobsOutcome { changed: jobs, unchanged, runs, problems } = outcome;
    let (has_more, next_after) = (selection.has_more, selection.next_after);
    json_response(
        StatusCode::OK,
        &BulkJobsJson { matched: matched_count, has_more, after: next_after, jobs, unchanged, runs, problems },
    )
}
