//! `rondel node`: the servers of the cluster.

use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use serde_json::Value;

use crate::client::{ClientArgs, text_of, time_of};
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::view::View;

/// Servers.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(Debug, Subcommand)]
enum NodeCommand {
    /// List the servers
    List,
}

const VIEW: View =
    View { name: "name", headers: &["NAME", "STATUS", "EPOCH", "VERSION", "STARTED", "LEASE UNTIL", "URL"], row };

impl NodeArgs {
    /// Runs the command.
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let NodeCommand::List = self.command;
        VIEW.list(&self.client.client()?.get(&["nodes"], &[]).await?, self.format)
    }
}

fn row(node: &Value, now: Timestamp) -> Vec<String> {
    vec![
        if node["is_this"] == true { format!("{} (answers)", text_of(&node["name"])) } else { text_of(&node["name"]) },
        text_of(&node["status"]),
        text_of(&node["epoch"]),
        text_of(&node["server_version"]),
        time_of(&node["started_at"], now),
        time_of(&node["lease_until"], now),
        text_of(&node["advertise_url"]),
    ]
}
