//! Waiting for a run's verdict.

use std::time::Duration;

use clap::Args;
use rondel_core::RunStatus;
use tokio::time::Instant;

use super::VIEW;
use crate::client::{Body, Client, text_of};
use crate::config::Length;
use crate::exit::{Exit, Failure};
use crate::format::FormatArgs;

/// How often the server is asked at first, and at most later.
const POLL_MIN: Duration = Duration::from_millis(100);
const POLL_MAX: Duration = Duration::from_secs(2);

/// Whether to wait.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Wait for the verdict; any other than succeeded ends with exit code 3
    #[arg(long)]
    wait: bool,
    /// Wait no longer than this, then end with exit code 7; the run goes on
    #[arg(long, value_name = "DURATION", requires = "wait")]
    wait_timeout: Option<Length>,
}

/// Prints a run that was just made; with `--wait`, once its verdict is there.
pub(crate) async fn print_or_wait(
    client: &Client,
    made: Body,
    args: &WaitArgs,
    format: FormatArgs,
) -> Result<(), Failure> {
    if !args.wait {
        return VIEW.line(&made, format);
    }
    let id = text_of(&made.value()?["id"]);
    let deadline = args.wait_timeout.map(|Length(timeout)| Instant::now() + timeout);
    let mut body = made;
    let mut period = POLL_MIN;
    loop {
        let status = status_of(&body)?;
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

/// The status of a run in an answer.
pub(super) fn status_of(body: &Body) -> Result<RunStatus, Failure> {
    let status = text_of(&body.value()?["status"]);
    status
        .parse()
        .map_err(|message| Failure::from_text(format!("the server's answer is not understood: status {message}")))
}
