//! Saves changes of a definition if the version on which they are based is still the newest.

use axum::response::Response;
use http::StatusCode;
use rondel_admin::jobs::{self, JobError};
use rondel_core::JobSpec;
use rondel_store::catalog::JobRecord;

use super::find::find;
use super::job_json::job_response;
use crate::call::Call;
use crate::etag::{IfMatch, mismatch_problem};
use crate::problem::{Code, Problem};

/// The codes with which a change of a definition can be refused, in addition to those of every request with a body.
pub(super) const EDIT_REFUSALS: &[Code] = &[Code::JobExists, Code::JobIsParent, Code::EditConflict, Code::InvalidBody];

/// How often a conflicting change is tried if the caller gave no version.
pub(super) const TRY_COUNT: usize = 4;

/// The origin of the definition that an edit saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The caller wrote it.
    Caller,
    /// It was stored before, as a version or as the declaration in code.
    Stored,
}

/// Applies `edit` to the newest definition, saves the result, and answers with the job.
pub(super) async fn change(
    call: &Call,
    name: &str,
    if_match: &IfMatch,
    edit: impl Fn(&JobRecord) -> Result<JobSpec, Problem> + Send + Sync,
) -> Result<Response, Problem> {
    let edit_if_different = |record: &JobRecord| Ok(Some(edit(record)?).filter(|spec| *spec != record.spec));
    let saved_record = save_edit(call, name, if_match, Origin::Caller, edit_if_different).await?;
    job_response(call, StatusCode::OK, &saved_record, None).await
}

/// Reads the job, applies `edit`, checks the result, and saves it over the version that was read. After a conflict it tries again
/// with the new version, unless the caller gave a version. If `edit` returns `None`, nothing is saved. If the job is then paused and the
/// caller wrote the definition, its queued scheduled runs are skipped, so a repeated pause also skips runs that were queued after the first one.
pub(super) async fn save_edit<Q>(
    call: &Call<Q>,
    name: &str,
    if_match: &IfMatch,
    origin: Origin,
    edit: impl Fn(&JobRecord) -> Result<Option<JobSpec>, Problem> + Send + Sync,
) -> Result<JobRecord, Problem> {
    for _ in 0..TRY_COUNT {
        let record = find(call, name).await?;
        if_match.expected_version(record.version)?;
        let Some(spec) = edit(&record)? else {
            // A restored definition is no pause: the runs that the caller's pause kept stay queued.
            if origin == Origin::Caller {
                jobs::end_queued_of_paused(call.engine(), &record, call.caller.name()).await?;
            }
            return Ok(record);
        };
        // A caller who may no longer see a parent job may only switch this job on and off. With another definition, the caller would get
        // the parent's parameters from the job's next run.
        if (JobSpec { enabled: record.spec.enabled, ..spec.clone() }) != record.spec {
            call.check_definition(&spec).await?;
        }
        let (engine, author) = (call.engine(), call.caller.name());
        let save_result = match origin {
            Origin::Caller => jobs::change(engine, &record, spec, Some(record.version), author).await,
            Origin::Stored => jobs::restore(engine, &record, spec, Some(record.version), author).await,
        };
        match save_result {
            Ok(changed_record) => return Ok(changed_record),
            Err(JobError::Conflict { .. }) if !if_match.is_given() => {}
            Err(error) => return Err(edit_problem(call, error).await),
        }
    }
    Err(changed_too_often_problem())
}

pub(super) fn changed_too_often_problem() -> Problem {
    Problem::new(Code::EditConflict, "the job changed under each of several tries; try again")
}

pub(super) async fn edit_problem<Q>(call: &Call<Q>, error: JobError) -> Problem {
    match error {
        JobError::Conflict { version } => mismatch_problem(version),
        error => call.job_problem(error).await,
    }
}
