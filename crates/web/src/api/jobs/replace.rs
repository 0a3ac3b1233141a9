//! Replaces a job's definition.

use axum::response::Response;
use http::StatusCode;
use rondel_admin::jobs;
use rondel_core::JobSpec;
use rondel_core::access::Permission::Edit;
use serde_json::json;

use super::body;
use super::change::{EDIT_REFUSALS, Origin, save_edit};
use super::job_json::{JobJson, job_response};
use crate::body::JsonBody;
use crate::call::Call;
use crate::etag::IfMatch;
use crate::openapi::{Doc, Unnamed};
use crate::path::{self, Named};
use crate::problem::Problem;
use crate::routes::Routes;

pub(super) fn routes() -> Routes {
    Routes::new().put(
        "/api/v1/jobs/{name}",
        Edit,
        replace,
        Doc::new(
            "Replace a job's definition",
            "`name` may be left out; another name renames the job. Other fields that are left out get their defaults.",
        )
        .json::<JobJson<'static>>(200, "The job under its new definition.")
        .with("ETag")
        .refuses(EDIT_REFUSALS)
        .example(json!({"app": "billing", "handler": "report", "schedule": {"every": "30m"}})),
    )
}

async fn replace(
    call: Call,
    Named(name, ..): Named<path::Job>,
    if_match: IfMatch,
    body: JsonBody<Unnamed<JobSpec>>,
) -> Result<Response, Problem> {
    let saved_record = save_edit(&call, &name, &if_match, Origin::Caller, |record| {
        let mut spec = body::parse_named(&body.bytes, &name)?;
        // An `at` schedule in the past must not run again if the client repeats the request.
        jobs::keep_run_instants(call.engine(), &mut spec, &record.spec);
        Ok(Some(spec))
    })
    .await?;
    job_response(&call, StatusCode::OK, &saved_record, None).await
}
