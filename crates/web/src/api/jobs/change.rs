//! Saves changes of a definition, provided that the version on which they are based is still the newest.

use axum::response::Response;
use http::StatusCode;
use rondel_admin::jobs::{self, JobError};
use rondel_core::JobSpec;
use rondel_store::catalog::JobRecord;

use super::find::find;
use super::job_json::answer;
use crate::call::Call;
use crate::etag::{IfMatch, mismatch};
use crate::problem::{Code, Problem};

/// The codes with which a change of a definition can be refused, apart from those of its body.
pub(super) const EDITS: &[Code] = &[Code::JobExists, Code::JobIsParent, Code::EditConflict, Code::InvalidBody];

/// How often a change that conflicts with others is tried if the caller gave no version.
pub(super) const TRY_COUNT: usize = 4;

/// Saves the result of `edit` on the newest definition, and answers with the job.
pub(super) async fn change(
    call: &Call,
    name: &str,
    if_match: &IfMatch,
    edit: impl Fn(&JobRecord) -> Result<JobSpec, Problem> + Send + Sync,
) -> Result<Response, Problem> {
    let edit = |record: &JobRecord| Ok(Some(edit(record)?).filter(|spec| *spec != record.spec));
    let saved = save_edit(call, name, if_match, edit).await?;
    answer(call, StatusCode::OK, &saved, None).await
}

/// Reads the job, applies `edit`, checks the result, and saves it in place of the version that was read. After a conflict it tries again,
/// unless the caller gave a version, so the result is always checked against the version that it replaces. If `edit` returns no definition,
/// the definition stays as it is; if the job is paused, the runs of its schedule that are queued are skipped.
pub(super) async fn save_edit<Q>(
    call: &Call<Q>,
    name: &str,
    if_match: &IfMatch,
    edit: impl Fn(&JobRecord) -> Result<Option<JobSpec>, Problem> + Send + Sync,
) -> Result<JobRecord, Problem> {
    for _ in 0..TRY_COUNT {
        let record = find(call, name).await?;
        if_match.against(record.version)?;
        let Some(spec) = edit(&record)? else {
            jobs::settle_paused(call.engine(), &record, call.caller.name()).await?;
            return Ok(record);
        };
        // A caller who may no longer see a parent may switch the job on and off, and change nothing else: the next run would pass the
        // parent's parameters to the new definition.
        if (JobSpec { enabled: record.spec.enabled, ..spec.clone() }) != record.spec {
            call.check_definition(&spec).await?;
        }
        match jobs::change(call.engine(), &record, spec, Some(record.version), call.caller.name()).await {
            Ok(changed) => return Ok(changed),
            Err(JobError::Conflict { .. }) if !if_match.is_given() => {}
            Err(error) => return Err(refused(call, error).await),
        }
    }
    Err(changed_too_often())
}

pub(super) fn changed_too_often() -> Problem {
    Problem::new(Code::EditConflict, "the job changed under each of several tries; try again")
}

pub(super) async fn refused<Q>(call: &Call<Q>, error: JobError) -> Problem {
    match error {
        JobError::Conflict { version } => mismatch(version),
        error => call.job_problem(error).await,
    }
}
