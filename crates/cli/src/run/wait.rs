//! Waiting for a run's verdict.

use std::time::Duration;

use clap::Args;
use rondel_core::RunStatus;
use serde_json::Value;
use tokio::time::Instant;

use super::VIEW;
use super::cells::MESSAGE_LEN_MAX;
use crate::client::{Body, Client, text_of};
use crate::config::DurationText;
use crate::exit::{Exit, Failure, output_or_verdict};
use crate::format::{Format, FormatArgs};
use crate::output;
use crate::retry::retry_while_unreachable;
use crate::terminal::harmless_text;

/// The first period between requests for the run; it doubles up to [`POLL_MAX`].
const POLL_MIN: Duration = Duration::from_millis(100);
const POLL_MAX: Duration = Duration::from_secs(2);
/// How long the last request may take after a wait has timed out.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a run may wait to begin before a missing executor is reported.
const EXECUTOR_CHECK_AFTER: Duration = Duration::from_secs(3);

/// The flags for waiting for the verdict.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Wait for the verdict; any other than succeeded ends with exit code 3
    #[arg(long)]
    wait: bool,
    /// Wait, and print the progress on stderr
    #[arg(long)]
    watch: bool,
    /// Wait no longer than this, then end with exit code 7; the run continues
    #[arg(long, value_name = "DURATION")]
    wait_timeout: Option<DurationText>,
}

/// `rondel run wait`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 succeeded, 3 ended otherwise, 7 the timeout has passed\n\nExamples:\n  rondel run wait 7301234567890123456\n  \
    rondel run wait $(rondel job trigger report.daily -o name) --watch --timeout 10m"
)]
pub(super) struct WaitForArgs {
    /// The run's id
    #[arg(value_name = "RUN")]
    id: String,
    /// Print the progress on stderr
    #[arg(long)]
    watch: bool,
    /// Wait no longer than this, then end with exit code 7; the run continues
    #[arg(long, value_name = "DURATION")]
    timeout: Option<DurationText>,
}

impl WaitArgs {
    /// Whether a flag requests waiting for the verdict.
    pub(crate) const fn is_given(&self) -> bool {
        self.wait || self.watch || self.wait_timeout.is_some()
    }
}

impl WaitForArgs {
    pub(super) async fn run(self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let body = client.get(&["runs", &self.id], &[]).await?;
        print_or_wait(client, body, &WaitArgs { wait: true, watch: self.watch, wait_timeout: self.timeout }, format)
            .await
    }
}

/// Prints a run that was just created. If a flag of `args` requests it, waits for the verdict first.
pub(crate) async fn print_or_wait(
    client: &Client,
    created_run: Body,
    args: &WaitArgs,
    format: FormatArgs,
) -> Result<(), Failure> {
    if !args.is_given() {
        return VIEW.print_row(&created_run, format);
    }
    let id = text_of(&created_run.value()?["id"]);
    let deadline = args.wait_timeout.and_then(|DurationText(timeout)| Instant::now().checked_add(timeout));
    let mut body = created_run;
    let mut period = POLL_MIN;
    let mut shown_text = String::new();
    let mut not_running_since = Some(Instant::now());
    loop {
        let status = status_of(&body)?;
        let current_text = progress_text(&body.value()?);
        if args.watch && current_text != shown_text {
            output::print_message(&current_text);
            shown_text = current_text;
            period = POLL_MIN;
        }
        if status.is_terminal() {
            let print_result = VIEW.print_row(&body, format);
            if let Some(message) = uncut_message(&body.value()?, format.format) {
                output::print_message(&message);
            }
            let is_success = status == RunStatus::Succeeded;
            return output_or_verdict(
                print_result,
                if is_success { Ok(()) } else { Err(Failure::silent(Exit::RunFailed)) },
            );
        }
        if status == RunStatus::Running {
            not_running_since = None;
        } else if not_running_since.is_some_and(|since| since.elapsed() >= EXECUTOR_CHECK_AFTER) {
            not_running_since = None;
            report_missing_executor(client, &body.value()?).await;
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(Failure::new(Exit::TimedOut, format!("run {id} is still {status}")));
        }
        tokio::time::sleep(deadline.map_or(period, |end| period.min(end - Instant::now()))).await;
        period = (period * 2).min(POLL_MAX);
        let request = retry_while_unreachable(deadline, async || client.get(&["runs", &id], &[]).await);
        let call_result = match deadline.and_then(|deadline| deadline.checked_add(LAST_REQUEST_TIMEOUT)) {
            Some(end) => tokio::time::timeout_at(end, request).await.unwrap_or_else(|_| {
                let sentence = format!("run {id} was still {status}, and the server does not answer");
                Err(Failure::new(Exit::TimedOut, sentence))
            }),
            None => request.await,
        };
        body = call_result.map_err(|failure| {
            let has_timed_out = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            let failure = match failure.is_temporary() && has_timed_out {
                true => Failure::new(Exit::TimedOut, format!("run {id} was still {status}: {}", failure.message())),
                false => failure,
            };
            failure.with_hint(&format!("; its verdict is shown by: rondel run wait {id}"))
        })?;
    }
}

/// The whole message, if the table had to cut it: its end often has the remedy.
fn uncut_message(run: &Value, format: Format) -> Option<String> {
    let message = text_of(&run["message"]);
    let is_cut = format == Format::Table && message.chars().count() > MESSAGE_LEN_MAX;
    is_cut.then(|| harmless_text(&message).into_owned())
}

/// Reports, once, that the app of the job has no executor online.
async fn report_missing_executor(client: &Client, run: &Value) {
    let job = text_of(&run["job"]);
    if let Some(app) = app_without_executors(client, &job).await {
        output::print_message(&format!(
            "still waiting: app {app} of job {job} has no executor online (rondel executor list); Ctrl-C ends the waiting, \
             the run continues"
        ));
    }
}

/// The app of a job, if the app has no executor online; `None` also if a call fails.
async fn app_without_executors(client: &Client, job: &str) -> Option<String> {
    let job = client.get(&["jobs", job], &[]).await.and_then(|body| body.value()).ok()?;
    let apps = client.get(&["apps"], &[]).await.and_then(|body| body.value()).ok()?;
    let app = apps["items"].as_array()?.iter().find(|app| app["name"] == job["app"])?;
    (app["executor_count"].as_u64() == Some(0)).then(|| text_of(&app["name"]))
}

/// The progress of a run: `running on executor-1, attempt 2, 30 of 100`.
fn progress_text(run: &Value) -> String {
    let mut text = text_of(&run["status"]);
    let executor = text_of(&run["executor"]);
    if !executor.is_empty() {
        text.push_str(&format!(" on {executor}"));
    }
    if let Some(attempt) = run["attempt"].as_i64().filter(|attempt| *attempt > 1) {
        text.push_str(&format!(", attempt {attempt}"));
    }
    if let (Some(done_count), Some(total_count)) = (run["progress"]["done"].as_u64(), run["progress"]["total"].as_u64())
    {
        text.push_str(&if total_count > 0 {
            format!(", {done_count} of {total_count}")
        } else {
            format!(", {done_count}")
        });
    }
    harmless_text(&text).into_owned()
}

/// The status of a run in an answer.
pub(super) fn status_of(body: &Body) -> Result<RunStatus, Failure> {
    let status = text_of(&body.value()?["status"]);
    status
        .parse()
        .map_err(|message| Failure::from_text(format!("the server's answer is not understood: status {message}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_that_a_table_cuts_is_printed_in_full() {
        let run = |message: &str| json!({"status": "failed", "message": message});
        let long = "x".repeat(MESSAGE_LEN_MAX + 1);
        assert_eq!(uncut_message(&run(&long), Format::Table), Some(long.clone()));
        assert_eq!(uncut_message(&run(&long), Format::Json), None);
        assert_eq!(uncut_message(&run("short"), Format::Table), None);
    }

    #[test]
    fn the_progress_of_a_run_is_reported() {
        assert_eq!(progress_text(&json!({"status": "waiting", "executor": null, "attempt": 1})), "waiting");
        let run = json!({"status": "running", "executor": "a", "attempt": 2, "progress": {"done": 3, "total": 10}});
        assert_eq!(progress_text(&run), "running on a, attempt 2, 3 of 10");
    }
}
