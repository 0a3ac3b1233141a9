//! Deletes a job.

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use rondel_admin::jobs::{self, JobError};
use rondel_core::access::Permission::Edit;

use super::change::{TRY_COUNT, changed_too_often, refused};
use super::find::{find, missing};
use crate::call::Call;
use crate::etag::IfMatch;
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;

/// How a job is deleted.
#[derive(Debug)]
pub(super) struct DeleteQuery {
    is_forced: bool,
}

impl FromQuery for DeleteQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let about = "Delete it although other jobs follow from it; these follow from their other parents alone.";
        Self { is_forced: reader.flag("force", about) }
    }
}

pub(super) fn routes() -> Routes {
    Routes::new().delete(
        "/api/v1/jobs/{name}",
        Edit,
        delete,
        Doc::new("Delete a job", "Its runs stay. Refused while other jobs follow from it, unless it is forced.")
            .empty("It is deleted.")
            .refuses(&[Code::JobIsParent]),
    )
}

async fn delete(
    call: Call<DeleteQuery>,
    Named(name, ..): Named<path::Job>,
    if_match: IfMatch,
) -> Result<Response, Problem> {
    remove(&call, &name, &if_match, call.query.is_forced).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Deletes the version that the caller was found to have a right to; again if another change was faster, unless the caller
/// gave a version.
pub(crate) async fn remove<Q>(call: &Call<Q>, name: &str, if_match: &IfMatch, is_forced: bool) -> Result<(), Problem> {
    for _ in 0..TRY_COUNT {
        let record = find(call, name).await?;
        if_match.against(record.version)?;
        match jobs::delete(call.engine(), &record, Some(record.version), is_forced).await {
            Ok(true) => return Ok(()),
            Ok(false) => return Err(missing(call, name)),
            Err(JobError::Conflict { .. }) if !if_match.is_given() => {}
            Err(error) => return Err(refused(call, error).await),
        }
    }
    Err(changed_too_often())
}
