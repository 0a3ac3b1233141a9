//! Finds the job or app that a request names.

use rondel_core::{AppId, JobId, Timestamp, name};
use rondel_store::catalog::JobRecord;

use crate::call::{Call, quoted_input};
use crate::problem::{Code, Problem};

/// The job with this name in the namespace of the call.
pub(crate) async fn find<Q>(call: &Call<Q>, wanted: &str) -> Result<JobRecord, Problem> {
    // An invalid name is not looked up: the database never gets unchecked text from a caller.
    let is_name = name::check(wanted).is_ok();
    let found = if is_name { call.engine().store().job(call.namespace.id, wanted).await? } else { None };
    let record = found.ok_or_else(|| missing_job(call, wanted))?;
    call.check(Some(record.app), || missing_job(call, wanted))?;
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
pub(crate) async fn find_for_runs<Q>(call: &Call<Q>, wanted: &str) -> Result<JobOfRuns, Problem> {
    let store = call.engine().store();
    let is_name = name::check(wanted).is_ok();
    if is_name && store.job(call.namespace.id, wanted).await?.is_none() {
        let deleted = store.deleted_job(call.namespace.id, wanted).await?;
        let deleted = deleted.ok_or_else(|| missing_job(call, wanted))?;
        call.check(Some(deleted.app), || missing_job(call, wanted))?;
        return Ok(JobOfRuns { id: deleted.id, deleted_at: Some(deleted.deleted_at) });
    }
    Ok(JobOfRuns { id: find(call, wanted).await?.id, deleted_at: None })
}

/// The app with this name in the namespace of the call.
pub(crate) async fn find_app<Q>(call: &Call<Q>, wanted: &str) -> Result<AppId, Problem> {
    let is_name = name::check(wanted).is_ok();
    let found = if is_name { call.engine().store().app(call.namespace.id, wanted).await? } else { None };
    let missing = || format!("there is no app {} in namespace {}", quoted_input(wanted), call.namespace.name);
    let missing = || Problem::new(Code::AppNotFound, missing());
    let app = found.map(|app| app.id).ok_or_else(missing)?;
    call.check(Some(app), missing)?;
    Ok(app)
}

pub(super) fn missing_job<Q>(call: &Call<Q>, name: &str) -> Problem {
    let detail = format!("there is no job {} in namespace {}", quoted_input(name), call.namespace.name);
    Problem::new(Code::JobNotFound, detail)
}
