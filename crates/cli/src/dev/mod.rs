//! `rondel dev`: server, executor and demo jobs in one process, connected as they would be on two machines.

mod demo;
mod seeds;
mod welcome;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rondel::Executor;
use rondel::agent::{AgentConfig, AllowedAddresses, add_handlers};
use tokio_util::sync::CancellationToken;

use crate::config::{DATA_DIR, ListenAddress, ServerConfig};
use crate::exit::{Exit, Failure};
use crate::server::Node;
use crate::startup_files::StartupFiles;
use crate::telemetry::{LogFormat, TelemetrySettings};
use crate::{runtime, telemetry};

/// The app of the demo jobs and of the executor that runs them.
const APP: &str = "demo";
const EXECUTOR_NAME: &str = "dev";
const SLOTS: u32 = 16;
/// How long the runs in progress may take to end, and then how long the engine may take.
const DRAIN_GRACE: Duration = Duration::from_secs(10);
/// Maximum number of open connections. It fits the limit of 1,024 open files that most shells set. That limit is not raised, because
/// the processes of runs would inherit it.
const CONNECTION_COUNT_MAX: usize = 800;
/// The default of `--log-level`.
const LOG_LEVEL_DEFAULT: &str = "warn";

#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// The folder for the database, the API token and the executor's results
    #[arg(long, value_name = "DIR", default_value = DATA_DIR)]
    data_dir: PathBuf,
    /// The address on which console, REST and gRPC listen; port 0 selects a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: ListenAddress,
    /// Listen on external addresses without TLS; access must be restricted by other means
    #[arg(long)]
    insecure_http: bool,
    /// Run script text that comes with a job, not only programs named by it
    #[arg(long)]
    allow_scripts: bool,
    /// What is logged: a level, or filters such as info,sqlx=debug
    #[arg(long, value_name = "FILTER", env = "RUST_LOG", default_value = LOG_LEVEL_DEFAULT)]
    log_level: String,
    /// The format of log lines
    #[arg(long, value_name = "FORM", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

impl DevArgs {
    /// Runs everything until it is asked to stop.
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let config = self.config()?;
        // An empty `RUST_LOG` counts as unset.
        let filter = if self.log_level.trim().is_empty() { LOG_LEVEL_DEFAULT } else { self.log_level.as_str() };
        telemetry::check_filter(filter).map_err(|sentence| Failure::refused(format!("--log-level: {sentence}")))?;
        telemetry::start_with_runs(TelemetrySettings::without_traces(filter, self.log_format))?;
        runtime::serve(|stop| self.serve(config, stop))
    }

    fn config(&self) -> Result<ServerConfig, Failure> {
        let mut config = ServerConfig::for_dev(&self.data_dir, self.listen, self.insecure_http)?;
        config.http.limits.connections = CONNECTION_COUNT_MAX;
        Ok(config)
    }

    async fn serve(self, config: ServerConfig, stop: CancellationToken) -> Result<(), Failure> {
        let mut startup_files = StartupFiles::default();
        let node = Node::start(&config, &mut startup_files).await?;
        let start_result = self.build_executor(&node, &mut startup_files).await;
        let start_result = match start_result {
            Ok(executor) => node.sign_in_line().await.map(|line| (executor, line)),
            Err(failure) => Err(failure),
        };
        let (executor, sign_in) = match start_result {
            Ok(executor_and_line) => executor_and_line,
            Err(failure) => {
                node.abandon().await;
                return Err(failure);
            }
        };
        startup_files.commit();
        node.announce(&welcome::lines(&node, sign_in, &self.data_dir, self.listen));
        let failure_token = node.failure_token();
        let stop_signal = async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = failure_token.cancelled() => {}
            }
        };
        let result = executor.run_until(stop_signal).await;
        node.drain(DRAIN_GRACE).await?;
        Ok(result?)
    }

    async fn build_executor(&self, node: &Node, startup_files: &mut StartupFiles) -> Result<Executor, Failure> {
        seeds::create_missing(node).await?;
        let folder = self.data_dir.join("executor");
        startup_files.make_folder(&folder)?;
        let builder = Executor::builder(APP)
            .server(node.url())
            .token(node.token.reveal())
            .name(EXECUTOR_NAME)
            .slots(SLOTS)
            .data_dir(folder)
            .drain_grace(DRAIN_GRACE)
            .handler(demo::HELLO_HANDLER, demo::hello);
        let agent_config = AgentConfig {
            allow_scripts: self.allow_scripts,
            work_dir: Some(self.data_dir.join("work")),
            outgoing_allow: AllowedAddresses::loopback(),
            ..AgentConfig::default()
        };
        Ok(add_handlers(builder, &agent_config)?.build()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open_files;

    #[test]
    fn its_connections_fit_the_open_files_of_a_shell() {
        let dev = DevArgs {
            data_dir: "data".into(),
            listen: "127.0.0.1:0".parse().unwrap(),
            insecure_http: false,
            allow_scripts: false,
            log_level: LOG_LEVEL_DEFAULT.to_owned(),
            log_format: LogFormat::Text,
        };
        let limits = dev.config().unwrap().http.limits;
        assert_eq!(open_files::limits_that_fit(limits.clone(), 1_024), limits);
    }
}
