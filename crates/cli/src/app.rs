//! `rondel app`: groups of executors that run the same handlers.

use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use serde_json::{Value, json};

use crate::client::{ClientArgs, text_of};
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::view::View;

/// Apps.
#[derive(Debug, Args)]
pub(crate) struct AppArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: AppCommand,
}

#[derive(Debug, Subcommand)]
enum AppCommand {
    /// List the apps
    List,
    /// Create an app, so that its executors can come before its first job
    Create {
        /// Its name
        #[arg(value_name = "APP")]
        name: String,
    },
}

const VIEW: View = View { name: "name", headers: &["NAME", "EXECUTORS"], row };

impl AppArgs {
    /// Runs the command.
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let client = self.client.client()?;
        match self.command {
            AppCommand::List => VIEW.list(&client.get(&["apps"], &[]).await?, self.format),
            AppCommand::Create { name } => {
                VIEW.line(&client.post(&["apps"], &json!({ "name": name }).to_string()).await?, self.format)
            }
        }
    }
}

fn row(app: &Value, _now: Timestamp) -> Vec<String> {
    vec![text_of(&app["name"]), text_of(&app["executor_count"])]
}
