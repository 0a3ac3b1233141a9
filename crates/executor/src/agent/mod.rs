//! The ready-made handlers of the agent: `shell` runs a program, `http` makes a request.
//!
//! An agent is an executor with these handlers, for whoever has no program of their own to put the SDK in.

mod group;
mod http;
mod lines;
mod shell;
mod tls;

use std::path::PathBuf;

use crate::builder::Builder;
use crate::error::ExecutorError;
use crate::extract::{Cancel, Log, Params};
use crate::run::RunContext;
use crate::secrets::Secrets;

/// What an agent may do.
///
/// ```
/// let config = rondel::agent::AgentConfig { allow_scripts: true, ..Default::default() };
/// ```
#[derive(Clone, Debug, Default)]
pub struct AgentConfig {
    /// Whether `shell` takes the text of a script. Off, jobs can only start programs that this host has.
    pub allow_scripts: bool,
    /// Where the files with secrets are, beside the environment's `RONDEL_SECRET_*`.
    pub secrets_dir: Option<PathBuf>,
}

/// Adds the handlers `shell` and `http`, and the secrets for their params.
///
/// `shell` takes `{"argv": ["program", "argument"]}` or, where scripts are allowed, `{"script": "…", "interpreter":
/// ["sh"]}`; beside them `env`, `cwd` and `stdin`. What it prints is the run's log; an exit code other than 0 is a
/// failure. It runs in a process group of its own, which is ended as a whole when the run is to stop.
///
/// `http` takes `{"url": "…"}` and beside it `method`, `headers`, `body` (a text, or JSON), `expect_status` (`200`,
/// `"2xx"`, or a list), `timeout` and `max_body_bytes`.
///
/// ```no_run
/// use rondel::{Executor, agent};
///
/// # async fn start() -> Result<(), rondel::ExecutorError> {
/// let builder = Executor::builder("agents").server("http://127.0.0.1:8080");
/// agent::add_handlers(builder, &agent::AgentConfig::default())?
///     .run_until(rondel::signal::terminate())
///     .await
/// # }
/// ```
///
/// # Errors
/// [`ExecutorError::HttpClient`] where the host's certificates cannot be used.
pub fn add_handlers(builder: Builder, config: &AgentConfig) -> Result<Builder, ExecutorError> {
    let secrets = Secrets::from_env();
    let secrets = match &config.secrets_dir {
        Some(dir) => secrets.dir(dir),
        None => secrets,
    };
    let allow_scripts = config.allow_scripts;
    let shell = move |Params(params): Params<shell::ShellParams>, run: RunContext, cancel: Cancel, log: Log| {
        shell::run(params, allow_scripts, run, cancel, log)
    };
    let client = http::client()?;
    let http = move |Params(params): Params<http::HttpParams>, cancel: Cancel, log: Log| {
        http::run(client.clone(), params, cancel, log)
    };
    Ok(builder.secrets(secrets).handler("shell", shell).handler("http", http))
}
