//! `rondel alert`: alerts and where they are sent.

mod channel;
mod condition;
mod incident;
mod maintenance;
mod rule;
mod rule_words;
mod silence;

use clap::{Args, Subcommand};

use crate::client::ClientArgs;
use crate::exit::Failure;
use crate::format::FormatArgs;

#[derive(Debug, Args)]
pub(crate) struct AlertArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: AlertCommand,
}

#[derive(Debug, Subcommand)]
enum AlertCommand {
    /// Show, save, test and delete the channels that alerts are sent to
    Channel(channel::ChannelArgs),
    /// Show, save, try and delete rules: what is watched, and where it is reported
    Rule(rule::RuleArgs),
    /// Show incidents, and acknowledge them
    Incident(incident::IncidentArgs),
    /// Suppress messages for a time
    Silence(silence::SilenceArgs),
    /// Stop jobs from firing for a time
    Maintenance(maintenance::MaintenanceArgs),
}

impl AlertArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let (client, format) = (self.client.client()?, self.format);
        match self.command {
            AlertCommand::Channel(args) => args.run(&client, format).await,
            AlertCommand::Rule(args) => args.run(&client, format).await,
            AlertCommand::Incident(args) => args.run(&client, format).await,
            AlertCommand::Silence(args) => args.run(&client, format).await,
            AlertCommand::Maintenance(args) => args.run(&client, format).await,
        }
    }
}
