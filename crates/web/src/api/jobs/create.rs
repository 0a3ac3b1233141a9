//! Creates a job.

use axum::response::Response;
use http::header::LOCATION;
use http::{HeaderValue, StatusCode};
use rondel_admin::jobs;
use rondel_core::JobSpec;
use rondel_core::access::Permission::Edit;
use serde_json::json;

use super::body;
use super::job_json::{JobJson, job_response};
use crate::body::JsonBody;
use crate::call::Call;
use crate::openapi::Doc;
use crate::problem::{Code, Problem};
use crate::read_again::read_again;
use crate::routes::Routes;

pub(super) fn routes() -> Routes {
    Routes::new().post(
        "/api/v1/jobs",
        Edit,
        create,
        Doc::new(
            "Create a job",
            "All fields except `name`, `app` and `handler` have a default. The app is created with its first job.",
        )
        .json::<JobJson<'static>>(201, "The job, with `warnings` for its author.")
        .with("ETag")
        .with("Location")
        .refuses(&[Code::JobExists])
        .example(json!({
            "name": "report.daily", "app": "billing", "handler": "report", "params": {"format": "pdf"},
            "schedule": {"cron": "0 30 2 * * ?", "time_zone": "Asia/Shanghai"},
            "timeout": "10m", "retry": {"max": 3, "backoff": "10s"},
        })),
    )
}

async fn create(call: Call, body: JsonBody<JobSpec>) -> Result<Response, Problem> {
    let spec = body::parse(&body.bytes)?;
    call.check_definition(&spec).await?;
    call.note.set_object(&spec.name);
    let create_result = jobs::create(call.engine(), call.namespace.id, spec, call.caller.name()).await;
    let record = match create_result {
        Ok(record) => record,
        Err(error) => return Err(call.job_problem(error).await),
    };
    let mut response = read_again(|| Box::pin(job_response(&call, StatusCode::CREATED, &record, None))).await?;
    let location = call.link(&format!("/api/v1/jobs/{}", record.spec.name));
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}
