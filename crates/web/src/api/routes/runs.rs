//! Runs and their logs.

use serde_json::json;

use crate::access::Permission::{Operate, View};
use crate::api::{Page, cancels, logs, run_json, run_tree, runs};
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::problem::Code;
use crate::routes::Routes;

const LAST_EVENT: Parameter =
    Parameter::cursor_in("Last-Event-ID").about("Of an event stream: the event that was seen last.");

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/runs",
            View,
            runs::list,
            Doc::new("List runs", "Newest first.")
                .json::<Page<run_json::RunItem>>(200, "A page of runs.")
                .refuses(&[Code::JobNotFound]),
        )
        .get(
            "/api/v1/runs/{id}",
            View,
            runs::get,
            Doc::new("Get a run", "With its attempts, its shards, and what follows from it.").json::<run_json::RunJson>(200, "The run."),
        )
        .get(
            "/api/v1/runs/{id}/tree",
            View,
            run_tree::get,
            Doc::new("Get the tree of a run's fire", "From its root on, each run behind the one that it follows from; the first 300 of them.")
                .json::<run_tree::TreeJson>(200, "The tree."),
        )
        .post(
            "/api/v1/runs/{id}/cancel",
            Operate,
            cancels::run,
            Doc::new("Cancel a run", "Its executor is notified; for a broadcast's row, all of its shards are cancelled. A second request is no error.")
                .json::<run_json::RunJson>(202, "It is asked to end.")
                .json::<run_json::RunJson>(200, "It was cancelled before.")
                .refuses(&[Code::RunFinished])
                .example(json!({"reason": "started by mistake"})),
        )
        .post(
            "/api/v1/runs/{id}/retry",
            Operate,
            runs::retry,
            Doc::new(
                "Run it again",
                "A new run with the parameters of this one, which is its `parent`. Refused with `invalid_body` where a caller replaced parameters \
                 that the job's `overrides` do not allow any more.",
            )
                .json::<run_json::RunJson>(201, "The new run.")
                .with("Location")
                .reads(runs::CLIENT)
                .refuses(&[Code::RunNotFinished, Code::ShardOfBroadcast, Code::JobDeleted, Code::InvalidBody]),
        )
        .get(
            "/api/v1/runs/{id}/logs",
            View,
            logs::get,
            Doc::new(
                "Read a run's log",
                "A page of lines. With `Accept: text/plain` the lines alone, as they were written. With `follow=true` a JSON object in each line \
                 until the run is over and its log complete, or with `Accept: text/event-stream` the same as events `line` and `end`.",
            )
            .json::<logs::LogPage>(200, "Lines; `next_cursor` is where more will be found while it is not complete.")
            .text("application/x-ndjson")
            .text("text/event-stream")
            .text("text/plain")
            .reads(LAST_EVENT)
            .refuses(&[Code::InvalidCursor]),
        )
}
