//! Handlers of the SDK that misbehave: their runs get their verdicts, and other runs are not affected.

use std::path::Path;
use std::time::Duration;

use rondel_tests::{Api, Process, ScratchDb, Server, example, wait_until};
use serde_json::{Value, json};

use crate::agent::{flood_mib, forget_peak, log, peak_kib};
use crate::on_each_database;
use crate::verdicts::{trigger, wait_for_verdict};

const LIMIT: Duration = Duration::from_secs(30);

fn program(server: &Server, app: &str, data: Option<&Path>) -> Process {
    let mut command = std::process::Command::new(example("unruly"));
    command.arg(server.url()).arg(server.token_file()).args([app, app]).args(data);
    Process::start(app, command)
}

async fn create(api: &Api, app: &str, handler: &str, extra_fields: Value) {
    let mut job = json!({"name": format!("{app}-{handler}"), "app": app, "handler": handler});
    job.as_object_mut().expect("an object").extend(extra_fields.as_object().expect("an object").clone());
    api.post("/api/v1/jobs", job).await.expect(201);
}

/// Creates a steady job that runs each second during the test.
async fn start_steady_job(api: &Api, app: &str) {
    create(api, app, "steady", json!({"schedule": {"every": "1s"}})).await;
    wait_until(LIMIT, "the steady job runs", async || {
        let runs = api.runs(&format!("{app}-steady")).await;
        if runs.iter().any(|run| run["status"] == "succeeded") { Ok(()) } else { Err(runs) }
    })
    .await;
}

/// Asserts that each finished run of the steady job succeeded in its first attempt, and that the job still runs.
async fn steady_job_was_not_affected(api: &Api, app: &str) {
    let job = format!("{app}-steady");
    let fire_at = |run: &Value| run["fire_at"].as_str().unwrap_or_default().to_owned();
    let newest = api.runs(&job).await.first().map(fire_at).unwrap_or_default();
    wait_until(LIMIT, "the steady job continues", async || {
        let runs = api.runs(&job).await;
        let is_on = runs.iter().any(|run| run["status"] == "succeeded" && fire_at(run) > newest);
        if is_on { Ok(()) } else { Err(runs.len()) }
    })
    .await;
    for run in api.runs(&job).await {
        let is_well = ["pending", "waiting", "running", "succeeded"].iter().any(|status| run["status"] == *status);
        assert!(is_well && run["attempt"] == 1, "{run:#}");
    }
}

/// Each start of the program settles the runs that died with the previous process. A run that crashes every executor is
/// not sent forever.
async fn a_handler_that_aborts_its_process_takes_down_no_other_run(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let data = tempfile::tempdir().expect("make a folder");
    for app in ["unruly", "calm"] {
        api.post("/api/v1/apps", json!({ "name": app })).await.expect(201);
    }
    let _calm = program(&server, "calm", None);
    start_steady_job(&api, "calm").await;
    // A process that dies within milliseconds of its welcome has not recorded the welcome yet. Its successor then proves
    // nothing, and the server waits for the silence of the dead process.
    create(&api, "unruly", "abort", json!({"params": {"ms": 500}})).await;
    let run = trigger(&api, "unruly-abort").await;
    let mut starts = 0;
    let run = loop {
        starts += 1;
        assert!(
            starts <= 8,
            "the run is sent again and again: {:#}",
            api.get(&format!("/api/v1/runs/{run}")).await.body
        );
        let mut process = program(&server, "unruly", Some(data.path()));
        let over = wait_until(LIMIT, "the process has aborted, or the run is over", async || {
            let run = api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
            let is_open = ["pending", "waiting", "running"].iter().any(|open| run["status"] == *open);
            match (is_open, process.has_ended()) {
                (false, _) => Ok(Some(run)),
                (true, Some(_)) => Ok(None),
                (true, None) => Err(run),
            }
        })
        .await;
        if let Some(run) = over {
            break run;
        }
    };
    assert_eq!(run["status"], "failed", "{run:#}");
    assert_eq!(run["attempt"], 4, "sent once, and three times again: {run:#}");
    steady_job_was_not_affected(&api, "calm").await;
}
on_each_database!(a_handler_that_aborts_its_process_takes_down_no_other_run);

/// The handler occupies its slot and its thread until it returns. Its run, the heartbeats and the other runs do not
/// wait for it.
async fn a_handler_that_never_yields_has_its_verdict(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    api.post("/api/v1/apps", json!({"name": "unruly"})).await.expect(201);
    let _program = program(&server, "unruly", None);
    start_steady_job(&api, "unruly").await;
    create(&api, "unruly", "spin", json!({"params": {"ms": 120_000}, "timeout": "1s"})).await;
    let run = trigger(&api, "unruly-spin").await;
    let run = wait_for_verdict(&api, &run).await;
    assert_eq!(run["status"], "timed_out", "{run:#}");
    let message = run["message"].as_str().unwrap_or_default();
    assert!(message.contains("still runs") || message.contains("does not stop") || !message.is_empty(), "{run:#}");
    steady_job_was_not_affected(&api, "unruly").await;
    let executors = api.get("/api/v1/executors").await.expect(200);
    assert_eq!(executors["items"][0]["status"], "online", "{executors:#}");
}
on_each_database!(a_handler_that_never_yields_has_its_verdict);

/// `TEST_FLOOD_MIB=1024` writes a gibibyte.
async fn a_flood_into_a_log_is_bounded(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let api = server.api();
    api.post("/api/v1/apps", json!({"name": "unruly"})).await.expect(201);
    let program = program(&server, "unruly", None);
    start_steady_job(&api, "unruly").await;
    let (program_id, server_id) = (program.id(), server.process().id());
    [program_id, server_id].into_iter().for_each(forget_peak);
    let before = (peak_kib(program_id), peak_kib(server_id));
    create(&api, "unruly", "flood", json!({"params": {"mib": flood_mib()}})).await;
    let run = trigger(&api, "unruly-flood").await;
    let shown = wait_for_verdict(&api, &run).await;
    assert_eq!(shown["status"], "succeeded", "{shown:#}");
    let logged = log(&api, &run).await;
    assert_eq!(logged.first().map(String::as_str), Some("first"));
    assert_eq!(logged.last().map(String::as_str), Some("last"));
    assert!(logged.iter().any(|line| line.contains("left out here") || line.contains("dropped")), "{}", logged.len());
    assert!(logged.iter().map(String::len).sum::<usize>() <= 10 << 20);
    let after = (peak_kib(program_id), peak_kib(server_id));
    let limit = 32 * 1024;
    assert!(after.0 - before.0 < limit && after.1 - before.1 < limit, "{before:?} KiB → {after:?} KiB");
    steady_job_was_not_affected(&api, "unruly").await;
}
on_each_database!(a_flood_into_a_log_is_bounded);

/// Any result of a handler can be stored and is shown.
async fn results_that_are_not_text_are_stored_as_text(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    api.post("/api/v1/apps", json!({"name": "unruly"})).await.expect(201);
    let _program = program(&server, "unruly", None);
    start_steady_job(&api, "unruly").await;
    create(&api, "unruly", "garble", json!({})).await;
    let run = trigger(&api, "unruly-garble").await;
    let shown = wait_for_verdict(&api, &run).await;
    assert_eq!(shown["status"], "succeeded", "{shown:#}");
    let result = shown["result"].to_string();
    assert!(result.contains("second"), "{shown:#}");
    let logged = log(&api, &run).await.join("\n");
    assert!(logged.contains("red") && logged.contains("\u{fffd}") && !logged.contains('\0'), "{logged:?}");
    let failed = api.post("/api/v1/jobs/unruly-garble/runs", json!({"params": {"fails": true}})).await.expect(201);
    let failed = wait_for_verdict(&api, failed["id"].as_str().expect("an id")).await;
    assert_eq!(failed["status"], "failed", "{failed:#}");
    let message = failed["message"].as_str().unwrap_or_default();
    assert!(message.contains("red") && !message.contains('\0'), "{message:?}");
    steady_job_was_not_affected(&api, "unruly").await;
}
on_each_database!(results_that_are_not_text_are_stored_as_text);
