//! Pauses and resumes a job.

use axum::response::Response;
use rondel_core::JobSpec;
use rondel_core::access::Permission::Operate;

use super::change::{EDITS, change};
use super::job_json::JobJson;
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
            Doc::new("Pause a job", "Its schedule does not fire any more. Nothing happens if it is paused.")
                .json::<JobJson<'static>>(200, "The job.")
                .with("ETag")
                .refuses(EDITS),
        )
        .post(
            "/api/v1/jobs/{name}/resume",
            Operate,
            resume,
            Doc::new("Resume a job", "Its schedule fires again. Nothing happens if it is not paused.")
                .json::<JobJson<'static>>(200, "The job.")
                .with("ETag")
                .refuses(EDITS),
        )
}

async fn pause(call: Call, Named(name, ..): Named<path::Job>, if_match: IfMatch) -> Result<Response, Problem> {
    switch(&call, &name, &if_match, false).await
}

async fn resume(call: Call, Named(name, ..): Named<path::Job>, if_match: IfMatch) -> Result<Response, Problem> {
    switch(&call, &name, &if_match, true).await
}

async fn switch(call: &Call, name: &str, if_match: &IfMatch, enabled: bool) -> Result<Response, Problem> {
    change(call, name, if_match, |record| Ok(JobSpec { enabled, ..record.spec.clone() })).await
}
