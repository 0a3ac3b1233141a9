//! `rondel agent`: an executor with the ready-made handlers.

use clap::{Args, Subcommand};
use rondel::{Executor, agent};
use tokio_util::sync::CancellationToken;

use crate::config::{self, AgentConfig, AgentSettings, ConfigFileArgs};
use crate::exit::{Exit, Failure};
use crate::{runtime, telemetry, token_file};

/// Settings are read from flags, then the environment, then the config file.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    file: ConfigFileArgs,
    #[command(flatten)]
    settings: AgentSettings,
    #[command(subcommand)]
    command: Option<AgentCommand>,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    /// Check the settings, print those that hold, and dial nobody
    CheckConfig,
}

impl AgentArgs {
    /// Runs the agent until it is told to stop.
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let settings = self.file.agent(self.settings)?;
        let config = AgentConfig::try_from(settings.clone())?;
        if let Some(AgentCommand::CheckConfig) = self.command {
            return config::print_agent(settings).map(|()| Exit::Success);
        }
        telemetry::start_with_runs(&config.log_level, config.log_format)?;
        runtime::serve(|stop| serve(config, stop))
    }
}

async fn serve(config: AgentConfig, stop: CancellationToken) -> Result<(), Failure> {
    let mut builder = Executor::builder(&config.app)
        .namespace(&config.namespace)
        .slots(config.slots)
        .weight(config.weight)
        .drain_grace(config.drain_grace);
    for server in &config.servers {
        builder = builder.server(server);
    }
    for (key, value) in &config.labels {
        builder = builder.label(key, value);
    }
    if let Some(name) = &config.name {
        builder = builder.name(name);
    }
    if let Some(folder) = &config.data_dir {
        builder = builder.data_dir(folder);
    }
    builder = match (token_file::from_environment()?, &config.token_file) {
        (Some(token), _) => builder.token(token.reveal()),
        // The executor reads it anew at each dial.
        (None, Some(path)) => token_file::read_existing(path).map(|_| builder.token_file(path))?,
        (None, None) => builder,
    };
    let handlers = agent::AgentConfig { allow_scripts: config.allow_scripts, secrets_dir: config.secrets_dir.clone() };
    let executor = agent::add_handlers(builder, &handlers)?.build()?;
    tracing::info!(app = config.app, name = executor.name(), servers = ?config.servers, "agent starts");
    executor.run_until(stop.cancelled_owned()).await?;
    tracing::info!("agent stopped");
    Ok(())
}
