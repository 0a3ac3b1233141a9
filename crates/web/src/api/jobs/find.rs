//! Finds the job or app that a request names.

use rondel_core::{AppId, JobId, Timestamp, name};
use rondel_store::catalog::JobRecord;

use crate::call::{Call, quoted_input};
use crate::problem::{Code, Problem};

/// The job with this name in the namespace of the call.
pub(crate) async fn find<Q>(call: &Call<Q>, name_text: &str) -> Result<JobRecord, Problem> {
    // An invalid name is not looked up: the database never gets unchecked text from a caller.
    let is_name = name::check(name_text).is_ok();
    let record = if is_name { call.engine().store().job(call.namespace.id, name_text).await? } else { None };
    let record = record.ok_or_else(|| missing_job_problem(call, name_text))?;
    call.check(Some(record.app), || missing_job_problem(call, name_text))?;
    call.note.before(&record.spec);
    Ok(record)
}

/// A job whose runs are listed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobOfRuns {
    pub(crate) id: JobId,
    /// When the job was deleted, if it was; its runs are kept as long as those of other jobs.
    pub(crate) deleted_at: Option<Timestamp>,
}

/// The job whose runs are to be listed: the existing job with this name, else the one that was deleted last.
pub(crate) async fn find_for_runs<Q>(call: &Call<Q>, name_text: &str) -> Result<JobOfRuns, Problem> {
    let store = call.engine().store();
    let is_name = name::check(name_text).is_ok();
    if is_name && store.job(call.namespace.id, name_text).await?.is_none() {
        let deleted_job = store.deleted_job(call.namespace.id, name_text).await?;
        let deleted_job = deleted_job.ok_or_else(|| missing_job_problem(call, name_text))?;
        call.check(Some(deleted_job.app), || missing_job_problem(call, name_text))?;
        return Ok(JobOfRuns { id: deleted_job.id, deleted_at: Some(deleted_job.deleted_at) });
    }
    Ok(JobOfRuns { id: find(call, name_text).await?.id, deleted_at: None })
}

/// The app with this name in the namespace of the call.
pub(crate) async fn find_app<Q>(call: &Call<Q>, name_text: &str) -> Result<AppId, Problem> {
    let is_name = name::check(name_text).is_ok();
    let app_record = if is_name { call.engine().store().app(call.namespace.id, name_text).await? } else { None };
    let not_found = || format!("there is no app {} in namespace {}", quoted_input(name_text), call.namespace.name);
    let not_found = || Problem::new(Code::AppNotFound, not_found());
    let app = app_record.map(|app| app.id).ok_or_else(not_found)?;
    call.check(Some(app), not_found)?;
    Ok(app)
}

pub(super) fn missing_job_problem<Q>(call: &Call<Q>, name: &str) -> Problem {
    let detail = format!("there is no job {} in namespace {}", quoted_input(name), call.namespace.name);
    Problem::new(Code::JobNotFound, detail)
}
