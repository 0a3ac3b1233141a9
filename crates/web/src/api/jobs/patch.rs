//! Changes fields of a job's definition.

use axum::response::Response;
use rondel_admin::jobs;
use rondel_core::JobSpec;
use rondel_core::access::Permission::Edit;
use serde_json::json;

use super::body;
use super::change::{EDIT_REFUSALS, change};
use super::job_json::JobJson;
use crate::body::PatchBody;
use crate::call::Call;
use crate::etag::IfMatch;
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::Problem;
use crate::routes::Routes;

pub(super) fn routes() -> Routes {
    Routes::new().patch(
        "/api/v1/jobs/{name}",
        Edit,
        patch,
        Doc::new(
            "Change fields of a job",
            "A JSON merge patch (RFC 7396) of the definition: null resets a field to its default.",
        )
        .json::<JobJson<'static>>(200, "The job under its new definition.")
        .with("ETag")
        .refuses(EDIT_REFUSALS)
        .example(json!({"timeout": "5m", "description": null})),
    )
}

async fn patch(
    call: Call,
    Named(name, ..): Named<path::Job>,
    if_match: IfMatch,
    body: PatchBody<JobSpec>,
) -> Result<Response, Problem> {
    change(&call, &name, &if_match, |record| {
        let mut spec = body::apply_patch(&record.spec, &body.bytes)?;
        // An `at` schedule in the past must not run again if the client repeats the request.
        jobs::keep_run_instants(call.engine(), &mut spec, &record.spec);
        Ok(spec)
    })
    .await
}
