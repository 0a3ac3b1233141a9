//! `rondel executor`: executors and their switches.

use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use serde_json::{Value, json};

use crate::client::{Client, ClientArgs, text_of, time_text};
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::list;
use crate::view::View;

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
    /// Send no new runs to an executor; it finishes its current runs
    Drain(SwitchArgs),
    /// Send new runs to an executor again
    Activate(SwitchArgs),
    /// Send no new runs to an executor, and cancel its current runs; its process keeps running
    Stop(SwitchArgs),
}

/// The executor to switch. The state belongs to its name, and survives restarts.
#[derive(Debug, Args)]
struct SwitchArgs {
    /// The executor's name
    #[arg(value_name = "EXECUTOR")]
    name: String,
    /// Its app, if executors of several apps have the name
    #[arg(long, value_name = "APP")]
    app: Option<String>,
}

const VIEW: View = View {
    name: "name",
    headers: &["NAME", "APP", "STATUS", "STATE", "RUNS", "BUSY", "HANDLERS", "LABELS", "LAST SEEN"],
    row,
};

impl ExecutorArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let client = self.client.client()?;
        match self.command {
            ExecutorCommand::List(bounds) => {
                VIEW.print_list(&list::read(&client, "executors", &[], &bounds).await?, self.format)
            }
            ExecutorCommand::Drain(switch) => set_state(&client, &switch, "draining", self.format).await,
            ExecutorCommand::Activate(switch) => set_state(&client, &switch, "active", self.format).await,
            ExecutorCommand::Stop(switch) => set_state(&client, &switch, "stopped", self.format).await,
        }
    }
}

async fn set_state(client: &Client, switch: &SwitchArgs, state: &str, format: FormatArgs) -> Result<(), Failure> {
    let mut body = json!({ "state": state });
    if let Some(app) = &switch.app {
        body["app"] = json!(app);
    }
    VIEW.print_row(&client.put(&["executors", &switch.name, "state"], &body.to_string()).await?, format)
}

fn row(executor: &Value, now: Timestamp) -> Vec<String> {
    let handlers =
        executor["handlers"].as_array().map(|values| values.iter().map(text_of).collect::<Vec<_>>().join(","));
    let labels = executor["labels"].as_object().map(|values| {
        values.iter().map(|(key, value)| format!("{key}={}", text_of(value))).collect::<Vec<_>>().join(",")
    });
    vec![
        text_of(&executor["name"]),
        text_of(&executor["app"]),
        text_of(&executor["status"]),
        text_of(&executor["state"]),
        text_of(&executor["run_count"]),
        slots_text(executor),
        handlers.unwrap_or_default(),
        labels.unwrap_or_default(),
        time_text(&executor["last_seen_at"], now),
    ]
}

/// The runs and the slots of an executor: `2 of 16`, or `? of 16` if it is not connected to this server.
fn slots_text(executor: &Value) -> String {
    let slots = text_of(&executor["slots"]);
    match &executor["running"] {
        Value::Null => format!("? of {slots}"),
        running_count => format!("{} of {slots}", text_of(running_count)),
    }
}
