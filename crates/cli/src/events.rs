//! `rondel events`: prints events as they happen.

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::client::{Client, ClientArgs, Lines, text_of};
use crate::exit::{Exit, Failure};
use crate::format::{Format, FormatArgs};
use crate::output;
use crate::retry::retry_while_unreachable;
use crate::terminal::harmless_text;

/// The pause before a stream that has ended is opened again.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// Prints changes of runs, jobs, executors and servers, until the command is interrupted or has printed `--count` events.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rondel events --kind run --job report.daily\n  rondel events -o jsonl --count 1")]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    /// Only events of these kinds, with commas between them: run, job, executor, node
    #[arg(long, value_name = "KINDS")]
    kind: Option<String>,
    /// Only events of this job and its runs
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Only events of this app
    #[arg(long, value_name = "NAME")]
    app: Option<String>,
    /// End after this many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

impl EventsArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        if self.format.format == Format::Name {
            return Err(Failure::refused("events have no names: use -o table or jsonl"));
        }
        let client = self.client.client()?;
        let (mut cursor, mut remaining_count) = (None::<String>, self.count);
        let mut lines = self.open(&client, None).await?;
        loop {
            let reason = loop {
                let line = match lines.next().await {
                    Ok(Some(line)) => line,
                    Ok(None) => break "stopping".to_owned(),
                    Err(failure) if failure.is_temporary() => break "stopping".to_owned(),
                    Err(failure) => return Err(failure),
                };
                let event: Value = serde_json::from_str(&line)
                    .map_err(|error| Failure::of("the server's answer is not understood", &error))?;
                cursor = event["id"].as_str().map(str::to_owned).or(cursor);
                match event["event"].as_str().unwrap_or_default() {
                    "ready" => {}
                    "end" => break text_of(&event["data"]["reason"]),
                    kind => {
                        self.print(kind, &line, &event["data"])?;
                        remaining_count = remaining_count.map(|remaining_count| remaining_count - 1);
                        if remaining_count == Some(0) {
                            return Ok(());
                        }
                    }
                }
            };
            match reason.as_str() {
                // The stream has reached its maximum duration, or its server is stopping or cannot reach its database.
                // A new stream continues after the last event, also from another server.
                end @ ("timeout" | "stopping" | "unavailable") => {
                    if end != "timeout" {
                        output::print_message("the stream broke off; reconnecting");
                    }
                    tokio::time::sleep(RECONNECT_DELAY).await;
                    lines = retry_while_unreachable(None, async || self.open(&client, cursor.as_deref()).await).await?;
                }
                "token_over" => {
                    return Err(Failure::new(Exit::Auth, "the token has ended, or may no longer view events"));
                }
                unknown_reason => {
                    let unknown_reason = harmless_text(unknown_reason);
                    return Err(Failure::new(
                        Exit::Unreachable,
                        format!("the server ended the stream: {unknown_reason}"),
                    ));
                }
            }
        }
    }

    /// Opens the stream after the event with the id `after`, or from now on if `after` is `None`.
    async fn open(&self, client: &Client, after: Option<&str>) -> Result<Lines, Failure> {
        let parameters = [("kind", self.kind.as_deref()), ("job", self.job.as_deref()), ("app", self.app.as_deref())];
        let parameters = parameters.into_iter().chain([("after", after)]);
        let query: Vec<(&str, &str)> = parameters.filter_map(|(key, value)| Some((key, value?))).collect();
        client.follow(&["events"], &query).await
    }

    fn print(&self, kind: &str, line: &str, data: &Value) -> Result<(), Failure> {
        match self.format.format {
            Format::Table | Format::Wide => output::print_lines(&event_line(kind, data)),
            Format::Json | Format::Jsonl | Format::Yaml | Format::Name => output::print_json(line),
        }
    }
}

/// An event as a line: `2026-03-08T07:00:00.250Z run      report.daily 7301… running, attempt 2, on a-1`.
fn event_line(kind: &str, data: &Value) -> String {
    let text = |key: &str| text_of(&data[key]);
    let subject = match kind {
        "run" => {
            let reason_text = data["reason"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
            let attempt = data["attempt"].as_i64().filter(|attempt| *attempt > 1);
            let attempt_text = attempt.map(|attempt| format!(", attempt {attempt}")).unwrap_or_default();
            let executor_text =
                data["executor"].as_str().map(|executor| format!(", on {executor}")).unwrap_or_default();
            format!("{} {} {}{reason_text}{attempt_text}{executor_text}", text("job"), text("id"), text("status"))
        }
        "job" => format!("{} {}, version {}", text("name"), text("change"), text("version")),
        "executor" => format!("{} of {} {}", text("name"), text("app"), text("status")),
        "node" => format!("{} {}", text("name"), text("status")),
        _ => "events may be missing: read the lists again".to_owned(),
    };
    format!("{:<24} {:<8} {}", harmless_text(&text("at")), harmless_text(kind), harmless_text(&subject))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let at = "2026-03-08T07:00:00.250Z";
        let run = json!({"at": at, "job": "a", "id": "7", "status": "failed", "reason": "handler", "attempt": 2, "executor": "x"});
        assert_eq!(event_line("run", &run), format!("{at} run      a 7 failed: handler, attempt 2, on x"));
        let job = json!({"at": at, "name": "a\u{1b}", "change": "changed", "version": 3});
        assert_eq!(event_line("job", &job), format!("{at} job      a\\x1b changed, version 3"));
        let executor = json!({"at": at, "name": "x", "app": "billing", "status": "offline"});
        assert_eq!(event_line("executor", &executor), format!("{at} executor x of billing offline"));
        assert!(event_line("gap", &json!({"at": at})).ends_with("read the lists again"));
    }
}
