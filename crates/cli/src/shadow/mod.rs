//! `rondel shadow`: compares jobs in shadow mode with the scheduler that they are to replace, and switches them over.

mod follow;
mod jobs;
mod report;
mod switchover;

use clap::{Args, Subcommand};

use crate::client::ClientArgs;
use crate::exit::Failure;
use crate::format::FormatArgs;
use follow::FollowArgs;
use report::ReportArgs;
use switchover::{PromoteArgs, SwitchoverArgs};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    rondel shadow follow --source mysql://reader:PASSWORD@db/xxl_job --time-zone Asia/Shanghai\n  \
    rondel shadow report --days 7\n  \
    rondel shadow promote report-17 --source mysql://writer:PASSWORD@db/xxl_job --yes\n  \
    rondel shadow promote --app billing --source mysql://writer:PASSWORD@db/xxl_job --yes")]
pub(crate) struct ShadowArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: ShadowCommand,
}

#[derive(Debug, Subcommand)]
enum ShadowCommand {
    /// Read the fires of XXL-JOB from its log, and report them to the server; the command continues where it stopped
    Follow(FollowArgs),
    /// Compare the fires of jobs in shadow mode with the fires of the other scheduler
    Report(ReportArgs),
    /// Switch jobs over to Rondel: stop them in XXL-JOB, and run them here from the first fire that XXL-JOB has not taken up
    Promote(PromoteArgs),
    /// Switch jobs back to XXL-JOB: stop them in Rondel at an instant, and start them in XXL-JOB with the first fire after it
    Demote(SwitchoverArgs),
}

impl ShadowArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let (client, format) = (self.client.client()?, self.format);
        match self.command {
            ShadowCommand::Follow(args) => args.run(&client).await,
            ShadowCommand::Report(args) => args.run(&client, format).await,
            ShadowCommand::Promote(args) => args.run(&client, format).await,
            ShadowCommand::Demote(args) => args.demote(&client, format).await,
        }
    }
}
