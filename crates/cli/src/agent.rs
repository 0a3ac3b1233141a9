//! `rondel agent`: an executor with the ready-made handlers.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use rondel::{Executor, agent};
use tokio_util::sync::CancellationToken;

use crate::config::{self, AgentConfig, AgentSettings, ConfigFileArgs};
use crate::exit::{Exit, Failure};
use crate::failpoints::Failpoints;
use crate::handover::{self, Handover};
use crate::run_as::{self, ExecAs, ProbeAs};
use crate::{open_files, runtime, telemetry, token_file};

/// A flag overrides the environment, which overrides the config file.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    file: ConfigFileArgs,
    #[command(flatten)]
    settings: AgentSettings,
    #[command(flatten)]
    failpoints: Failpoints,
    #[command(subcommand)]
    command: Option<AgentCommand>,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    /// Check and print the effective settings, and connect to no server
    CheckConfig,
    /// Wait for the end of the agent that started this process, then end the processes that its runs left
    #[command(hide = true)]
    CleanUpAfter {
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Become a program as another user
    #[command(hide = true)]
    ExecAs(ExecAs),
    /// Check what another user can reach
    #[command(hide = true)]
    ProbeAs(ProbeAs),
}

const NO_TOKEN: &str = "no token: give --token-file, RONDEL_AGENT_TOKEN_FILE, the config file's agent.token_file or, as \
    the token itself, the variable RONDEL_TOKEN; rondel token create NAME --kind executor --role executor:NAMESPACE/APP \
    makes one";

/// Maximum number of files that the agent has open for one run: pipes to its process, the process handle, and the files
/// that are written for it.
const FILES_PER_RUN: usize = 6;
/// Maximum number of other files that the agent has open, including the output of background processes.
const OTHER_FILE_COUNT_MAX: usize = 768;

/// The arguments that start this program as the watcher, which cleans up after the agent.
const CLEAN_UP_ARGUMENTS: [&str; 2] = ["agent", "clean-up-after"];

impl AgentArgs {
    /// Runs the agent until it is asked to stop.
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        match self.command {
            Some(AgentCommand::CleanUpAfter { folder }) => {
                let result = agent::clean_up_after(&folder);
                return result.map(|()| Exit::Success).map_err(|error| Failure::of("cannot clean up", &error));
            }
            Some(AgentCommand::ExecAs(exec)) => return Err(exec.run()),
            Some(AgentCommand::ProbeAs(probe)) => return probe.run().map(|()| Exit::Success),
            Some(AgentCommand::CheckConfig) | None => {}
        }
        let settings = self.file.agent(self.settings)?;
        let config = AgentConfig::try_from(settings.clone())?;
        if let Some(AgentCommand::CheckConfig) = self.command {
            config::report_unknown_variables();
            return config::print_agent(settings).map(|()| Exit::Success);
        }
        let handover = Handover::take_from_environment()?;
        self.failpoints.arm()?;
        runtime::serve(|stop| async move {
            let telemetry = telemetry::start_with_runs(config.telemetry())?;
            handover::deny_other_processes();
            let serve_result = serve(config, &handover, stop).await;
            telemetry.end().await;
            serve_result
        })
    }
}

/// Raises the process's limit of open files to what `slots` runs need, and logs a warning if the system allows less.
fn raise_open_files_limit(slots: u32) {
    let file_count =
        usize::try_from(slots).unwrap_or(usize::MAX).saturating_mul(FILES_PER_RUN).saturating_add(OTHER_FILE_COUNT_MAX);
    let open_files_max = open_files::raise_to_count(file_count);
    if open_files_max < file_count {
        tracing::warn!(
            open_files_max,
            file_count,
            "the limit of open files is too low for {slots} runs at the same time; raise it (LimitNOFILE, ulimit -n)"
        );
    }
}

async fn serve(config: AgentConfig, handover: &Handover, stop: CancellationToken) -> Result<(), Failure> {
    config::warn_of_unknown_variables();
    raise_open_files_limit(config.settings.slots);
    let mut builder = Executor::builder(&config.app)
        .namespace(&config.settings.namespace)
        .slots(config.settings.slots)
        .weight(config.settings.weight)
        .log_limit(config.log_limit)
        .drain_grace(config.settings.drain_grace.0);
    for server in &config.servers {
        builder = builder.server(server);
    }
    for (key, value) in &config.labels {
        builder = builder.label(key, value);
    }
    if let Some(name) = &config.settings.name {
        builder = builder.name(name);
    }
    if let Some(folder) = &config.settings.data_dir {
        builder = builder.data_dir(folder);
    }
    if let Some(path) = &config.settings.ca_file {
        builder = builder.ca_file(path);
    }
    if let Some((certificate, key)) = &config.certificate_and_key {
        builder = builder.client_certificate(certificate, key);
    }
    builder = match (handover.token(), &config.settings.token_file) {
        (Some(token), _) => builder.token(token.reveal()),
        // The executor reads the file again at each dial. This read only checks that the file holds a token.
        (None, Some(path)) => token_file::read_existing(path).map(|_| builder.token_file(path))?,
        (None, None) => return Err(Failure::refused(NO_TOKEN)),
    };
    let agent_config = handler_config(&config, handover)?;
    let executor = agent::add_handlers(builder, &agent_config)?.build()?;
    let handler_names = agent::handlers(&agent_config).join(", ");
    tracing::info!(app = config.app, name = executor.name(), servers = ?config.servers, handlers = handler_names, "agent starts");
    if std::process::id() == 1 {
        tracing::warn!(
            "this agent is process 1 of its container and does not reap the processes that its runs leave behind: start the \
             container with an init (docker run --init; shareProcessNamespace: true in Kubernetes)"
        );
    }
    executor.run_until(stop.cancelled_owned()).await?;
    tracing::info!("agent stopped");
    Ok(())
}

fn handler_config(config: &AgentConfig, handover: &Handover) -> Result<agent::AgentConfig, Failure> {
    let run_as = config.settings.run_as.as_deref().map(|name| run_as::find_user(name, config)).transpose()?;
    // Another user cannot enter the data folder, so the working directories of that user's runs are outside of it.
    let default_work_dir =
        config.settings.data_dir.as_ref().filter(|_| run_as.is_none()).map(|folder| folder.join("work"));
    let watcher = |program: PathBuf| [program].into_iter().chain(CLEAN_UP_ARGUMENTS.map(PathBuf::from)).collect();
    Ok(agent::AgentConfig {
        allow_scripts: config.settings.allow_scripts,
        script_keys: config.script_keys.clone(),
        script_cache: config.settings.data_dir.as_ref().map(|folder| folder.join("scripts")),
        secrets_dir: config.settings.secrets_dir.clone(),
        secrets: Some(handover.secrets()),
        pass_env: config.settings.pass_env.clone(),
        allow_programs: config.settings.allow_programs.clone(),
        run_as,
        work_dir: config.settings.work_dir.clone().or(default_work_dir),
        without_languages: config.settings.without_languages.clone(),
        outgoing_allow: config.outgoing_allow.clone(),
        watcher: std::env::current_exe().ok().map(watcher),
    })
}
