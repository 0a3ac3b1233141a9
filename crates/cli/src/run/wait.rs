//! Waiting for a run's verdict.

use std::time::Duration;

use clap::Args;
use rondel_core::RunStatus;
use serde_json::Value;
use tokio::time::Instant;

use super::VIEW;
use crate::client::{Body, Client, text_of};
use crate::config::Length;
use crate::exit::{Exit, Failure};
use crate::format::FormatArgs;
use crate::output;
use crate::terminal::harmless;

/// How often the server is asked at first, and at most later.
const POLL_MIN: Duration = Duration::from_millis(100);
const POLL_MAX: Duration = Duration::from_secs(2);

/// Whether to wait.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Wait for the verdict; any other than succeeded ends with exit code 3
    #[arg(long)]
    wait: bool,
    /// Wait, and tell on stderr how it goes
    #[arg(long)]
    watch: bool,
    /// Wait no longer than this, then end with exit code 7; the run goes on
    #[arg(long, value_name = "DURATION")]
    wait_timeout: Option<Length>,
}

/// `rondel run wait`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 succeeded, 3 ended otherwise, 7 the timeout is over\n\nExamples:\n  rondel run wait 7301234567890123456\n  \
    rondel run wait $(rondel job trigger report.daily -o name) --watch --timeout 10m"
)]
pub(super) struct WaitForArgs {
    /// The run's id
    #[arg(value_name = "RUN")]
    id: String,
    /// Tell on stderr how it goes
    #[arg(long)]
    watch: bool,
    /// Wait no longer than this, then end with exit code 7; the run goes on
    #[arg(long, value_name = "DURATION")]
    timeout: Option<Length>,
}

impl WaitForArgs {
    pub(super) async fn run(self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let body = client.get(&["runs", &self.id], &[]).await?;
        print_or_wait(client, body, &WaitArgs { wait: true, watch: self.watch, wait_timeout: self.timeout }, format)
            .await
    }
}

/// Prints a run that was just made; with `--wait`, once its verdict is there.
pub(crate) async fn print_or_wait(
    client: &Client,
    made: Body,
    args: &WaitArgs,
    format: FormatArgs,
) -> Result<(), Failure> {
    if !args.wait && !args.watch && args.wait_timeout.is_none() {
        return VIEW.line(&made, format);
    }
    let id = text_of(&made.value()?["id"]);
    let deadline = args.wait_timeout.map(|Length(timeout)| Instant::now() + timeout);
    let mut body = made;
    let mut period = POLL_MIN;
    let mut told = String::new();
    loop {
        let status = status_of(&body)?;
        let now = how_it_goes(&body.value()?);
        if args.watch && now != told {
            output::talk(&now);
            told = now;
            period = POLL_MIN;
        }
        if status.is_terminal() {
            VIEW.line(&body, format)?;
            return if status == RunStatus::Succeeded { Ok(()) } else { Err(Failure::silent(Exit::RunFailed)) };
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(Failure::new(Exit::TimedOut, format!("run {id} is still {status}")));
        }
        tokio::time::sleep(deadline.map_or(period, |end| period.min(end - Instant::now()))).await;
        period = (period * 2).min(POLL_MAX);
        body = client.get(&["runs", &id], &[]).await?;
    }
}

/// `running on executor-1, attempt 2, 30 of 100`
fn how_it_goes(run: &Value) -> String {
    let mut words = text_of(&run["status"]);
    let executor = text_of(&run["executor"]);
    if !executor.is_empty() {
        words.push_str(&format!(" on {executor}"));
    }
    if let Some(attempt) = run["attempt"].as_i64().filter(|attempt| *attempt > 1) {
        words.push_str(&format!(", attempt {attempt}"));
    }
    if let (Some(done), Some(total)) = (run["progress"]["done"].as_u64(), run["progress"]["total"].as_u64()) {
        words.push_str(&if total > 0 { format!(", {done} of {total}") } else { format!(", {done}") });
    }
    harmless(&words).into_owned()
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
    fn it_is_told_how_a_run_goes() {
        assert_eq!(how_it_goes(&json!({"status": "waiting", "executor": null, "attempt": 1})), "waiting");
        let run = json!({"status": "running", "executor": "a", "attempt": 2, "progress": {"done": 3, "total": 10}});
        assert_eq!(how_it_goes(&run), "running on a, attempt 2, 3 of 10");
    }
}
