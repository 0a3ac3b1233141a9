//! Jobs, what became of their fires, and their versions.

use rondel_core::JobSpec;
use serde_json::json;

use crate::access::Permission::{Edit, Operate, View};
use crate::api::{Page, applied, apply, cancels, export, fires, jobs, run_json, runs, stats, versions};
use crate::openapi::Doc;
use crate::problem::Code;
use crate::routes::Routes;

type Job = jobs::JobJson<'static>;

/// What a change of a definition can meet beside what its body can.
const EDITS: &[Code] = &[Code::JobExists, Code::JobIsParent, Code::EditConflict, Code::InvalidBody];

pub(super) fn routes() -> Routes {
    definitions().and(edits()).and(accounts())
}

fn definitions() -> Routes {
    Routes::new()
        .get(
            "/api/v1/jobs",
            View,
            jobs::list,
            Doc::new("List jobs", "By name, each with its whole definition and its next fire.")
                .json::<Page<Job>>(200, "A page of jobs.")
                .refuses(&[Code::AppNotFound]),
        )
        .post(
            "/api/v1/jobs",
            Edit,
            jobs::create,
            Doc::new("Create a job", "Everything but `name`, `app` and `handler` has a default. The app comes into being with its first job.")
                .json::<Job>(201, "The job, with what its author should know in `warnings`.")
                .with("ETag")
                .with("Location")
                .refuses(&[Code::JobExists])
                .example(json!({
                    "name": "report.daily", "app": "billing", "handler": "report", "params": {"format": "pdf"},
                    "schedule": {"cron": "0 30 2 * * ?", "time_zone": "Asia/Shanghai"},
                    "timeout": "10m", "retry": {"max": 3, "backoff": "10s"},
                })),
        )
        .post(
            apply::PATH,
            Edit,
            apply::post,
            Doc::new(
                "Create and change jobs as a list defines them",
                "Creates and changes jobs so that they are as in the list; nothing happens to those that are so already. All of it is checked \
                 before anything is saved. With `Accept: application/x-ndjson` each job is a line once it is saved, and the last line is the summary.",
            )
            .json::<applied::Answer>(200, "What became of each job, or would become of it.")
            .text("application/x-ndjson")
            .refuses(&[Code::AppNotFound, Code::JobExists])
            .example(json!([{"name": "clean-up", "app": "tools", "handler": "shell", "schedule": {"every": "1h"}}])),
        )
        .get(
            "/api/v1/jobs/export",
            View,
            export::get,
            Doc::new("Export jobs", "As a list that `apply` takes unchanged, without what is the default anyway.")
                .short::<Vec<JobSpec>>(200, "The jobs by name.")
                .yaml::<Vec<JobSpec>>()
                .refuses(&[Code::AppNotFound, Code::JobNotFound]),
        )
        .get(
            "/api/v1/jobs/{name}",
            View,
            jobs::get,
            Doc::new("Get a job", "Its definition, and what the server knows about it, the newest run too.").json::<Job>(200, "The job.").with("ETag"),
        )
        .put(
            "/api/v1/jobs/{name}",
            Edit,
            jobs::replace,
            Doc::new("Replace a job's definition", "`name` may be left out; another one renames the job. What is left out gets its default.")
                .json::<Job>(200, "The job under its new definition.")
                .with("ETag")
                .refuses(EDITS)
                .example(json!({"app": "billing", "handler": "report", "schedule": {"every": "30m"}})),
        )
        .patch(
            "/api/v1/jobs/{name}",
            Edit,
            jobs::patch,
            Doc::new("Change fields of a job", "A JSON merge patch (RFC 7396) of the definition: null gives a field its default.")
                .json::<Job>(200, "The job under its new definition.")
                .with("ETag")
                .refuses(EDITS)
                .example(json!({"timeout": "5m", "description": null})),
        )
        .delete(
            "/api/v1/jobs/{name}",
            Edit,
            jobs::delete,
            Doc::new("Delete a job", "Its runs stay. Refused while other jobs follow from it, unless it is forced.")
                .empty("It is deleted.")
                .refuses(&[Code::JobIsParent]),
        )
}

fn edits() -> Routes {
    Routes::new()
        .post(
            "/api/v1/jobs/{name}/pause",
            Operate,
            jobs::pause,
            Doc::new("Pause a job", "Its schedule does not fire any more. Nothing happens if it is paused.")
                .json::<Job>(200, "The job.")
                .with("ETag")
                .refuses(EDITS),
        )
        .post(
            "/api/v1/jobs/{name}/resume",
            Operate,
            jobs::resume,
            Doc::new("Resume a job", "Its schedule fires again. Nothing happens if it is not paused.")
                .json::<Job>(200, "The job.")
                .with("ETag")
                .refuses(EDITS),
        )
        .post(
            "/api/v1/jobs/{name}/reset",
            Edit,
            jobs::reset,
            Doc::new("Put back what code declares", "The definition that executors of the job's app declare. Nothing happens if the job has it.")
                .json::<Job>(200, "The job.")
                .with("ETag")
                .refuses(EDITS)
                .refuses(&[Code::JobNotDeclared]),
        )
        .post(
            "/api/v1/jobs/{name}/restore",
            Edit,
            versions::restore,
            Doc::new(
                "Put back an earlier version",
                "Makes an earlier version the newest one. The job keeps its name, and stays on or off.",
            )
            .json::<Job>(200, "The job under its new definition.")
            .with("ETag")
            .refuses(EDITS)
            .example(json!({"version": 1})),
        )
        .post(
            "/api/v1/jobs/{name}/runs",
            Operate,
            runs::trigger,
            Doc::new("Trigger a job", "Makes a run of it now, with its own parameters or those of the body. It need not be on.")
                .json::<run_json::RunJson>(201, "The run.")
                .with("Location")
                .reads(runs::CLIENT)
                .example(json!({"params": {"day": "2026-03-08"}})),
        )
        .post(
            "/api/v1/jobs/{name}/cancel",
            Operate,
            cancels::job,
            Doc::new(
                "Cancel a job's open runs",
                "All of them, or those of the fire that `fire_at` names. At most 10,000 at once. Fires to come are not meant: pause the job.",
            )
            .json::<cancels::CancelledJson>(202, "They are asked to end. A broadcast counts once.")
            .example(json!({"reason": "the disk is full"})),
        )
}

fn accounts() -> Routes {
    Routes::new()
        .get(
            "/api/v1/jobs/{name}/fires",
            View,
            fires::list,
            Doc::new(
                "List what became of a job's fires",
                "Each planned fire of the range in order, with the run or the reason why there is none. A long stretch with one verdict is one item.",
            )
            .json::<Page<fires::EntryJson>>(200, "A page of fires."),
        )
        .get(
            "/api/v1/jobs/{name}/why",
            View,
            fires::why,
            Doc::new("Ask why a job ran or did not run at an instant", "A sentence, the fire where one was planned, and its neighbours.")
                .json::<fires::WhyJson>(200, "The answer."),
        )
        .get(
            "/api/v1/jobs/{name}/versions",
            View,
            fires::versions,
            Doc::new("List a job's versions", "Its definitions, newest first; `limit` is at most 50.")
                .json::<Page<fires::VersionJson>>(200, "A page of versions."),
        )
        .get(
            "/api/v1/jobs/{name}/versions/diff",
            View,
            versions::diff,
            Doc::new("Compare two versions of a job", "Field by field, scripts line by line in `text`; with `Accept: text/plain`, the text alone.")
                .json::<versions::DiffJson>(200, "What differs.")
                .text("text/plain"),
        )
        .get(
            "/api/v1/jobs/{name}/stats",
            View,
            stats::get,
            Doc::new("Count how a job's runs ended", "By the hour for which they were planned. Counted once a minute, and kept 400 days.")
                .json::<Page<stats::HourJson>>(200, "The hours in which runs were planned."),
        )
}
