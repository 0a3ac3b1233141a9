//! Pauses and resumes a job.

use axum::response::Response;
use http::StatusCode;
use rondel_admin::jobs::{self, JobError};
use rondel_core::JobSpec;
use rondel_core::access::Permission::Operate;

use super::change::{EDIT_REFUSALS, TRY_COUNT, change, changed_too_often_problem, edit_problem};
use super::find::find;
use super::job_json::{JobJson, job_response_with_queued};
use super::queued::QueuedQuery;
use crate::call::Call;
use crate::etag::IfMatch;
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::Problem;
use crate::routes::Routes;

pub(super) fn routes() -> Routes {
    Routes::new()
        .post(
            "/api/v1/jobs/{name}/pause",
            Operate,
            pause,
            Doc::new(
                "Pause a job",
                "The job's schedule no longer fires. Its queued runs are skipped or kept; runs that executors already have continue.",
            )
                .json::<JobJson<'static>>(200, "The job.")
                .with("ETag")
                .refuses(EDIT_REFUSALS),
        )
        .post(
            "/api/v1/jobs/{name}/resume",
            Operate,
            resume,
            Doc::new("Resume a job", "Its schedule fires again. Nothing happens if it is not paused.")
                .json::<JobJson<'static>>(200, "The job.")
                .with("ETag")
                .refuses(EDIT_REFUSALS),
        )
}

async fn pause(
    call: Call<QueuedQuery>,
    Named(name, ..): Named<path::Job>,
    if_match: IfMatch,
) -> Result<Response, Problem> {
    for _ in 0..TRY_COUNT {
        let record = find(&call, &name).await?;
        if_match.expected_version(record.version)?;
        match jobs::pause(call.engine(), &record, call.caller.name(), call.query.queued).await {
            Ok((paused_job, runs)) => {
                return job_response_with_queued(&call, StatusCode::OK, &paused_job, (None, Some(runs.into()))).await;
            }
            Err(JobError::Conflict { .. }) if !if_match.is_given() => {}
            Err(error) => return Err(edit_problem(&call, error).await),
        }
    }
    Err(changed_too_often_problem())
}

async fn resume(call: Call, Named(name, ..): Named<path::Job>, if_match: IfMatch) -> Result<Response, Problem> {
    change(&call, &name, &if_match, |record| Ok(JobSpec { enabled: true, ..record.spec.clone() })).await
}
