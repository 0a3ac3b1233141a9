//! Cancels a run, the runs of a fire, or all open runs of a job.

use axum::response::Response;
use http::StatusCode;
use rondel_core::access::Permission::Operate;
use rondel_core::{Run, RunStatus, Timestamp, plain};
use rondel_store::ledger::CancelOutcome;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::runs::{find, missing_run_problem};
use super::{jobs, run_json};
use crate::answer::json_response;
use crate::body::{OptionalJsonBody, refuse_value};
use crate::call::Call;
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::routes::Routes;

/// Maximum length of a reason, in characters. The reason and the caller's name share one column.
pub(crate) const REASON_LEN_MAX: usize = 150;

/// The body of a request to cancel a run.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CancelRun {
    /// The reason, for the message of the cancelled run.
    #[schemars(length(max = 150))]
    reason: Option<String>,
}

/// The body of a request to cancel runs of a job.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CancelJob {
    /// The reason, for the messages of the cancelled runs.
    #[schemars(length(max = 150))]
    reason: Option<String>,
    /// Only the runs of this planned instant.
    #[schemars(with = "Option<Timestamp>")]
    fire_at: Option<String>,
}

/// How many runs were asked to end.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Cancelled")]
pub(super) struct CancelledJson {
    asked: u64,
    /// Whether there are more: repeat the request.
    has_more: bool,
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .post(
            "/api/v1/jobs/{name}/cancel",
            Operate,
            cancel_job,
            Doc::new(
                "Cancel a job's open runs",
                "All open runs, or those of the fire that `fire_at` names; at most 10,000 per call. Upcoming fires are not affected: to \
                 stop them, pause the job.",
            )
            .json::<CancelledJson>(202, "The runs were asked to end. A broadcast counts once.")
            .example(json!({"reason": "the disk is full"})),
        )
        .post(
            "/api/v1/runs/{id}/cancel",
            Operate,
            cancel_run,
            Doc::new(
                "Cancel a run",
                "Notifies the run's executor. Cancelling a broadcast cancels all of its shards. A repeated request is no error.",
            )
            .json::<run_json::RunJson>(202, "The run was asked to end.")
            .json::<run_json::RunJson>(200, "The run was already cancelled.")
            .refuses(&[Code::RunFinished])
            .example(json!({"reason": "started by mistake"})),
        )
}

async fn cancel_run(
    call: Call,
    path: Named<path::Run>,
    body: OptionalJsonBody<CancelRun>,
) -> Result<Response, Problem> {
    let body = body.read()?;
    let cancel_text = cancel_message(call.caller.name(), body.reason.as_deref())?;
    let run = find(&call, &path).await?;
    audit_cancel(&call, &run, body.reason.as_deref());
    match call.engine().cancel_run(run.id, &cancel_text).await? {
        CancelOutcome::Requested(run) => {
            json_response(StatusCode::ACCEPTED, &run_json::run_json(&call, run.for_reader()).await?)
        }
        // Cancelling a run twice is no error.
        CancelOutcome::AlreadyEnded(RunStatus::Cancelled) => {
            let run = find(&call, &path).await?;
            json_response(StatusCode::OK, &run_json::run_json(&call, run).await?)
        }
        CancelOutcome::AlreadyEnded(status) => {
            Err(Problem::new(Code::RunFinished, format!("the run has ended: {status}")))
        }
        CancelOutcome::NotFound => Err(missing_run_problem(&call, &path)),
    }
}

async fn cancel_job(
    call: Call,
    Named(name, ..): Named<path::Job>,
    body: OptionalJsonBody<CancelJob>,
) -> Result<Response, Problem> {
    let body = body.read()?;
    let cancel_text = cancel_message(call.caller.name(), body.reason.as_deref())?;
    let instant = |text: &String| {
        let complaint =
            |_| refuse_value("/fire_at", format!("{text:?} is not an instant; write \"2026-03-08T07:00:00Z\""));
        text.parse::<Timestamp>().map_err(complaint)
    };
    let fire_at = body.fire_at.as_ref().map(instant).transpose()?;
    let record = jobs::find(&call, &name).await?;
    // The job may have belonged to another app before. Runs of that app are cancelled only if the caller may cancel in the whole
    // namespace.
    let app = call.apps_with(Operate).map(|_| record.app);
    let cancelled = call.engine().cancel_runs(&record, fire_at, &cancel_text, app).await?;
    let body_json = CancelledJson { asked: cancelled.asked_count, has_more: cancelled.has_more };
    call.note.changed_to(&serde_json::json!({"fire_at": fire_at, "reason": body.reason, "cancelled": body_json}));
    json_response(StatusCode::ACCEPTED, &body_json)
}

/// Records in the audit log the reason, and the state of the run at the time of the request.
pub(crate) fn audit_cancel<Q>(call: &Call<Q>, run: &Run, reason: Option<&str>) {
    call.note.before(&serde_json::json!({"job": run.job, "status": run.status, "attempt": run.attempt}));
    call.note.changed_to(&serde_json::json!({"cancel_asked": true, "reason": reason}));
}

/// The message of the verdict: who cancelled the run, and why.
pub(crate) fn cancel_message(name: &str, reason: Option<&str>) -> Result<String, Problem> {
    let Some(reason) = reason.map(str::trim).filter(|reason| !reason.is_empty()) else { return Ok(name.to_owned()) };
    let len = reason.chars().count();
    if len > REASON_LEN_MAX {
        return Err(refuse_value("/reason", format!("{len} characters; at most {REASON_LEN_MAX} are kept")));
    }
    if reason.contains(|c| plain::is_control_or_invisible(c) && !plain::is_joiner(c)) {
        let message = "must be one line without control or invisible characters";
        return Err(refuse_value("/reason", message));
    }
    Ok(format!("{name}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caller_and_reason_are_one_line() {
        assert_eq!(cancel_message("ann", None).unwrap(), "ann");
        assert_eq!(cancel_message("ann", Some("  ")).unwrap(), "ann");
        assert_eq!(cancel_message("ann", Some("the disk is full")).unwrap(), "ann: the disk is full");
        assert!(cancel_message("ann", Some("می\u{200c}خواهم")).is_ok());
        assert!(cancel_message("ann", Some("the\u{202e}disk")).is_err());
        assert!(cancel_message("ann", Some(&"é".repeat(150))).is_ok());
        assert!(cancel_message("ann", Some(&"é".repeat(151))).is_err());
    }
}
