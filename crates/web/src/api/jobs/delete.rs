//! Deletes a job.

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use rondel_admin::jobs::{self, JobError, QueuedRuns};
use rondel_core::access::Permission::Edit;
use rondel_core::queued::QueuedRunsPolicy;

use super::change::{TRY_COUNT, changed_too_often_problem, edit_problem};
use super::find::{JobOfRuns, find, find_for_runs, missing_job_problem};
use super::queued::DeletedJson;
use crate::answer::json_response;
use crate::call::Call;
use crate::etag::IfMatch;
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;

#[derive(Debug)]
pub(super) struct DeleteQuery {
    is_forced: bool,
    queued: Option<QueuedRunsPolicy>,
}

impl FromQuery for DeleteQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let about = "Deletes the job although other jobs follow it; these then follow only their other parents.";
        let is_forced = reader.flag("force", about);
        let about = "What happens to the job's queued runs: `run` or `drop`; if left out, they are skipped.";
        Self { is_forced, queued: reader.parsed(Parameter::text("queued").about(about), str::parse) }
    }
}

pub(super) fn routes() -> Routes {
    Routes::new().delete(
        "/api/v1/jobs/{name}",
        Edit,
        delete,
        Doc::new(
            "Delete a job",
            "The runs of the job are kept. Refused while other jobs follow it, unless `force` is true.",
        )
        .empty("The job was deleted; none of its runs was queued.")
        .json::<DeletedJson>(200, "The job was deleted; the answer states what happened to its open runs.")
        .refuses(&[Code::JobIsParent]),
    )
}

async fn delete(
    call: Call<DeleteQuery>,
    Named(name, ..): Named<path::Job>,
    if_match: IfMatch,
) -> Result<Response, Problem> {
    let runs = remove(&call, &name, &if_match, (call.query.is_forced, call.query.queued)).await?;
    if runs.dropped_count == 0 && runs.kept_count == 0 {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    json_response(StatusCode::OK, &DeletedJson { queued: runs.into() })
}

/// Deletes a job if it still has the version for which the caller's permission was checked. After a conflict with another change it tries
/// again, unless the caller gave a version. If the job is already deleted, ends the queued runs that an interrupted deletion left, and
/// returns the error that the job does not exist.
pub(crate) async fn remove<Q>(
    call: &Call<Q>,
    name: &str,
    if_match: &IfMatch,
    (is_forced, queued_policy): (bool, Option<QueuedRunsPolicy>),
) -> Result<QueuedRuns, Problem> {
    let queued_policy = (queued_policy, call.caller.name());
    for _ in 0..TRY_COUNT {
        let record = match find(call, name).await {
            Ok(record) => record,
            Err(problem) => {
                if let Ok(JobOfRuns { id, deleted_at: Some(_) }) = find_for_runs(call, name).await {
                    jobs::end_queued_of_deleted(call.engine(), id, queued_policy).await?;
                }
                return Err(problem);
            }
        };
        if_match.expected_version(record.version)?;
        match jobs::delete(call.engine(), &record, Some(record.version), is_forced, queued_policy).await {
            Ok(Some(runs)) => return Ok(runs),
            Ok(None) => return Err(missing_job_problem(call, name)),
            Err(JobError::Conflict { .. }) if !if_match.is_given() => {}
            Err(error) => return Err(edit_problem(call, error).await),
        }
    }
    Err(changed_too_often_problem())
}
