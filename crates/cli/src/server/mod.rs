//! `rondel server`: one server of a cluster, or the only one.

mod node;
mod xxl;

use clap::{Args, Subcommand};
use tokio_util::sync::CancellationToken;

use crate::config::{self, ConfigFileArgs, HttpSettings, OidcSettings, ServerConfig, ServerSettings};
use crate::exit::{Exit, Failure};
use crate::failpoints::Failpoints;
use crate::startup_files::StartupFiles;
use crate::{open_files, output, runtime, telemetry};

pub(crate) use node::Node;

/// A flag overrides the environment, which overrides the config file.
#[derive(Debug, Args)]
#[command(subcommand_negates_reqs = true)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    file: ConfigFileArgs,
    #[command(flatten)]
    settings: ServerSettings,
    #[command(flatten)]
    oidc: OidcSettings,
    #[command(flatten)]
    http: HttpSettings,
    #[command(flatten)]
    failpoints: Failpoints,
    #[command(subcommand)]
    command: Option<ServerCommand>,
}

#[derive(Debug, Subcommand)]
enum ServerCommand {
    /// Check and print the effective settings, and open nothing
    CheckConfig,
}

impl ServerArgs {
    /// Runs the server until it is asked to stop.
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let settings = self.file.server(self.settings)?;
        let oidc = self.file.oidc(self.oidc)?;
        let http = self.file.http(self.http)?;
        let config = config::checked_server(settings.clone(), oidc.clone(), http.clone())?;
        if let Some(ServerCommand::CheckConfig) = self.command {
            config::report_unknown_variables();
            return config::print_server(settings, oidc, http).map(|()| Exit::Success);
        }
        let Self { failpoints, .. } = self;
        runtime::serve(|stop| async move {
            let telemetry = telemetry::start(config.telemetry())?;
            failpoints.arm()?;
            let result = serve(config, stop).await;
            telemetry.end().await;
            result
        })
    }
}

async fn serve(config: ServerConfig, stop: CancellationToken) -> Result<(), Failure> {
    config::warn_of_unknown_variables();
    open_files::raise_to_hard_limit();
    let mut startup_files = StartupFiles::default();
    let node = Node::start(&config, &mut startup_files).await?;
    let entry = match node.entry_line().await {
        Ok(entry) => entry,
        Err(failure) => {
            node.abandon().await;
            return Err(failure);
        }
    };
    startup_files.commit();
    node.announce(&[]);
    output::print_message(&entry);
    node.wait_for_stop(&stop).await;
    node.drain(config.settings.drain_grace.0).await
}
