//! `rondel alert maintenance`: times in which jobs do not fire.

use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use serde_json::{Value, json};

use crate::client::{Client, text_of, time_text};
use crate::delete::delete;
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::view::View;

#[derive(Debug, Args)]
pub(crate) struct MaintenanceArgs {
    #[command(subcommand)]
    command: MaintenanceCommand,
}

#[derive(Debug, Subcommand)]
enum MaintenanceCommand {
    /// List the windows that have not ended
    List,
    /// Plan a window: no job of the namespace, or of an app, fires inside
    #[command(
        after_help = "Examples:\n  rondel alert maintenance add --app billing --for 2h --reason \"database upgrade\"\n  rondel alert maintenance add --from 2026-11-30T22:00:00Z --until 2026-12-01T02:00:00Z --fires hold --reason \"move to new hosts\""
    )]
    Add {
        /// Only the jobs of this app
        #[arg(long, value_name = "APP")]
        app: Option<String>,
        /// When the window begins, RFC 3339; by default a little more than a minute from now, because fires are claimed ahead
        #[arg(long, value_name = "INSTANT")]
        from: Option<String>,
        /// For how long, such as 2h
        #[arg(long = "for", value_name = "DURATION", required_unless_present = "until")]
        length: Option<String>,
        /// Until this RFC 3339 instant
        #[arg(long, value_name = "INSTANT", conflicts_with = "length")]
        until: Option<String>,
        /// What happens to the fires inside the window: skip them, or hold them until its end, when the misfire policy of their job applies
        #[arg(long, value_name = "WHAT", default_value = "skip", value_parser = ["skip", "hold"])]
        fires: String,
        /// The reason; shown on every page of the console
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// End a window now; jobs fire again within about a minute
    End {
        /// The window's id
        #[arg(value_name = "ID")]
        id: String,
    },
}

const VIEW: View = View { name: "id", headers: &["ID", "APP", "STARTS", "ENDS", "FIRES", "AUTHOR", "REASON"], row };

impl MaintenanceArgs {
    pub(crate) async fn run(self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        match self.command {
            MaintenanceCommand::List => VIEW.print_list(&client.get(&["maintenance"], &[]).await?, format),
            MaintenanceCommand::Add { app, from, length, until, fires, reason } => {
                let body = json!({
                    "app": app, "starts_at": from, "ends_at": until, "length": length, "fires": fires, "reason": reason,
                });
                VIEW.print_row(&client.post(&["maintenance"], &body.to_string()).await?, format)
            }
            MaintenanceCommand::End { id } => {
                delete(client, &["maintenance", &id], &[], &format!("ended maintenance window {id}"), format).await
            }
        }
    }
}

fn row(window: &Value, now: Timestamp) -> Vec<String> {
    vec![
        text_of(&window["id"]),
        text_of(&window["app"]),
        time_text(&window["starts_at"], now),
        time_text(&window["ends_at"], now),
        text_of(&window["fires"]),
        text_of(&window["author"]),
        text_of(&window["reason"]),
    ]
}
