//! `rondel executor`: who is online.

use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use serde_json::Value;

use crate::client::{ClientArgs, text_of, time_of};
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::list;
use crate::view::View;

/// Executors.
#[derive(Debug, Args)]
pub(crate) struct ExecutorArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: ExecutorCommand,
}

#[derive(Debug, Subcommand)]
enum ExecutorCommand {
    /// List the executors
    List(list::BoundArgs),
}

const VIEW: View =
    View { name: "name", headers: &["NAME", "APP", "STATUS", "BUSY", "HANDLERS", "LABELS", "LAST SEEN"], row };

impl ExecutorArgs {
    /// Runs the command.
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let ExecutorCommand::List(bounds) = self.command;
        VIEW.list(&list::read(&self.client.client()?, "executors", &[], &bounds).await?, self.format)
    }
}

fn row(executor: &Value, now: Timestamp) -> Vec<String> {
    let handlers = executor["handlers"].as_array().map(|all| all.iter().map(text_of).collect::<Vec<_>>().join(","));
    let labels = executor["labels"]
        .as_object()
        .map(|all| all.iter().map(|(key, value)| format!("{key}={}", text_of(value))).collect::<Vec<_>>().join(","));
    vec![
        text_of(&executor["name"]),
        text_of(&executor["app"]),
        text_of(&executor["status"]),
        busy(executor),
        handlers.unwrap_or_default(),
        labels.unwrap_or_default(),
        time_of(&executor["last_seen_at"], now),
    ]
}

/// `2 of 16`; with a question mark where this server does not hear the executor.
fn busy(executor: &Value) -> String {
    let slots = text_of(&executor["slots"]);
    match &executor["running"] {
        Value::Null => format!("? of {slots}"),
        running => format!("{} of {slots}", text_of(running)),
    }
}
