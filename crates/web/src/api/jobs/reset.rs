//! Restores the definition that code declares.

use axum::response::Response;
use http::StatusCode;
use rondel_admin::jobs::JobError;
use rondel_core::JobSpec;
use rondel_core::access::Permission::Edit;
use rondel_store::catalog::JobRecord;

use super::change::{EDIT_REFUSALS, Origin, save_edit};
use super::job_json::{JobJson, job_response};
use crate::call::Call;
use crate::etag::IfMatch;
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::routes::Routes;

pub(super) fn routes() -> Routes {
    Routes::new().post(
        "/api/v1/jobs/{name}/reset",
        Edit,
        reset,
        Doc::new(
            "Restore the declared definition",
            "Restores the definition that executors of the job's app declare. Nothing happens if the job already has it. \
             A paused job stays paused.",
        )
        .json::<JobJson<'static>>(200, "The job.")
        .with("ETag")
        .refuses(EDIT_REFUSALS)
        .refuses(&[Code::JobNotDeclared]),
    )
}

async fn reset(call: Call, Named(name, ..): Named<path::Job>, if_match: IfMatch) -> Result<Response, Problem> {
    let record = reset_to_declared(&call, &name, &if_match).await?;
    job_response(&call, StatusCode::OK, &record, None).await
}

/// Gives a job the definition that code declares. Does nothing if the job already has it. A paused job stays paused, since a pause is no edit;
/// a job that code declares as paused becomes paused.
pub(crate) async fn reset_to_declared<Q>(call: &Call<Q>, name: &str, if_match: &IfMatch) -> Result<JobRecord, Problem> {
    save_edit(call, name, if_match, Origin::Stored, |record| {
        let declared = record.declared.as_ref().ok_or(JobError::NotDeclared)?;
        let spec = JobSpec { enabled: record.spec.enabled && declared.spec.enabled, ..declared.spec.clone() };
        Ok(Some(spec).filter(|spec| *spec != record.spec))
    })
    .await
}
