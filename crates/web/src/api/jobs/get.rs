//! Shows a job with its last run.

use axum::response::Response;
use http::StatusCode;
use rondel_core::access::Permission::View;
use rondel_store::catalog::JobRecord;
use rondel_store::ledger::RunQuery;

use super::find::find;
use super::job_json::{JobJson, LastRun, job_response};
use crate::api::runs::broadcast_of_shard;
use crate::call::Call;
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::Problem;
use crate::routes::Routes;

/// How many of the newest rows are searched for the last run: some rows may be claimed but not due yet, others are shards.
const LAST_RUN_ROWS: u32 = 20;

pub(super) fn routes() -> Routes {
    Routes::new().get(
        "/api/v1/jobs/{name}",
        View,
        get,
        Doc::new("Get a job", "The job's definition and state, with its newest run.")
            .json::<JobJson<'static>>(200, "The job.")
            .with("ETag"),
    )
}

async fn get(call: Call, Named(name, ..): Named<path::Job>) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    let last_run_json = last_run(&call, &record).await?;
    job_response(&call, StatusCode::OK, &record, Some(last_run_json)).await
}

/// The newest run that is due. For a broadcast it is the root row, which stands for all shards.
async fn last_run(call: &Call, record: &JobRecord) -> Result<Option<LastRun>, Problem> {
    let store = call.engine().store();
    let query =
        RunQuery { job: Some(record.id), within: call.visible_apps(), limit: LAST_RUN_ROWS, ..RunQuery::default() };
    let now = call.engine().now();
    let newest_run = store.list_runs(record.namespace, &query).await?.into_iter().find(|run| run.fire_at <= now);
    let Some(newest_run) = newest_run else { return Ok(None) };
    let run = broadcast_of_shard(call, &newest_run).await?.unwrap_or(newest_run);
    Ok(Some(LastRun { id: run.id, status: run.status, fire_at: run.fire_at }))
}
