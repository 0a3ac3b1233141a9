//! The ready-made handlers of the agent: `shell` runs a program, `pump` runs two programs for each group of a pump
//! job; `python`, `node`, `php` and `powershell` run scripts; `http` makes a request.
//!
//! An agent is an executor with these handlers, for users who have no program of their own to add the SDK to.

mod config;
mod confine;
mod folder;
mod http;
mod lines;
mod output;
mod process_tree;
mod program;
mod pump;
mod script;
mod shell;
mod signature;
mod stored_scripts;

use std::sync::Arc;

use crate::builder::Builder;
use crate::error::ExecutorError;
use crate::extract::{Cancel, Log, Params};
use crate::job_error::JobError;
use crate::pump::PumpHandler;
use crate::run::RunContext;
use crate::secrets::Secrets;

pub use config::AgentConfig;
use confine::Confinement;
pub use confine::RunAs;
use folder::AgentFolder;
pub use folder::clean_up_after;
use program::ProgramResult;
pub use rondel_core::outgoing::AllowedAddresses;
use script::Interpreter;
pub use signature::ScriptKey;
use stored_scripts::StoredScripts;

/// Adds the handlers `shell`, `pump` and `http`, a handler for each script language whose interpreter this host has,
/// and the secrets for their params.
///
/// `shell` takes `{"argv": ["program", "argument"]}` or, if scripts are allowed, `{"script": "…", "args": "…",
/// "interpreter": ["sh"]}`. In place of a text, `script` may be `{"name": "close-orders", "version": 3}`, which names a
/// script that the server keeps. Both forms also take `env`, `cwd` and `stdin`. `python`, `node`, `php` and
/// `powershell` take the same without `argv`; they exist only if scripts are allowed. A script gets `args` (a text, or
/// a list of them), then the shard's index and the number of shards, as XXL-JOB's scripts do.
///
/// The output of a program goes to the run's log. Exit code 0 is a success, 77 skips the run, 99 is a failure that is
/// not retried, and every other code is a failure. The program runs in a fresh working directory, which is removed at
/// its end. When the run has to stop, the program is ended with all processes that it started.
///
/// `pump` is for pump jobs. It takes `{"select": ["program", "argument"], "execute": ["program", "argument"]}`, and
/// also `env` and `cwd`. The first program reads items and prints rows. The second reads rows and executes them. Items and
/// rows are lines of JSON.
///
/// `http` takes `{"url": "…"}`, and also `method`, `headers`, `body` (a text, or JSON), `expect_status` (`200`,
/// `"2xx"`, or a list), `timeout` and `max_body_bytes`. Requests go to public addresses and to those that
/// [`AgentConfig::outgoing_allow`] allows.
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
/// [`ExecutorError::HttpClient`] if the host's certificates cannot be used, [`ExecutorError::WorkDir`] if the folder of
/// the working directories or the script cache cannot be made.
pub fn add_handlers(builder: Builder, config: &AgentConfig) -> Result<Builder, ExecutorError> {
    let secrets = config.secrets.clone().unwrap_or_else(Secrets::from_env);
    let secrets = match &config.secrets_dir {
        Some(dir) => secrets.dir(dir),
        None => secrets,
    };
    let confinement = Arc::new(Confinement::new(config));
    let agent_folder = open_agent_folder(config)?;
    let allow_scripts = config.allow_scripts;
    let scripts = open_scripts(config)?;
    let client = http::client(config.outgoing_allow.clone())?;
    let http = move |Params(params): Params<http::HttpParams>, run: RunContext, cancel: Cancel, log: Log| {
        http::run(client.clone(), http::with_trace_header(params, run.traceparent()), cancel, log)
    };
    let mut builder = builder.secrets(secrets).handler("http", http);
    if allow_scripts {
        for interpreter in interpreters(config) {
            builder = with_language(builder, interpreter, (&agent_folder, &confinement, &scripts));
        }
    }
    let builder = builder.pump_handler("pump", program_pump(&agent_folder, &confinement));
    let shell = move |Params(params): Params<shell::ShellParams>, run: RunContext, cancel: Cancel, log: Log| {
        let (agent_folder, confinement, scripts) =
            (Arc::clone(&agent_folder), Arc::clone(&confinement), Arc::clone(&scripts));
        async move {
            let mut params = params;
            let command = match params.take_command(allow_scripts)? {
                shell::RequestedCommand::Program(argv) => {
                    confinement.check_program()?;
                    shell::ResolvedCommand::Program(argv)
                }
                shell::RequestedCommand::Script(script) => {
                    confinement.check_interpreter(params.interpreter())?;
                    shell::ResolvedCommand::Script(scripts.text(script, &run, &cancel, &log).await?)
                }
            };
            let folder = agent_folder.make_work_dir(&run)?;
            shell::program(params, command, run.shard(), folder)?.run(&confinement, run, cancel, log).await
        }
    };
    Ok(builder.handler("shell", shell))
}

/// The handlers that an agent with this config offers on this host.
#[must_use]
pub fn handlers(config: &AgentConfig) -> Vec<&'static str> {
    let interpreters_found = if config.allow_scripts { interpreters(config) } else { Vec::new() };
    ["shell", "http", "pump"]
        .into_iter()
        .chain(interpreters_found.iter().map(|interpreter| interpreter.language.name))
        .collect()
}

/// The interpreters that this host has and this agent may start.
fn interpreters(config: &AgentConfig) -> Vec<Interpreter> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let confinement = Confinement::new(config);
    let mut interpreters = script::find_interpreters(&path, &config.without_languages);
    interpreters.retain(|interpreter| confinement.allows(interpreter.program));
    interpreters
}

/// The languages that have their own handler, whether or not this host has their interpreters.
pub fn languages() -> impl Iterator<Item = &'static str> {
    script::LANGUAGES.iter().map(|language| language.name)
}

fn with_language(
    builder: Builder,
    interpreter: Interpreter,
    (agent_folder, confinement, scripts): (&Arc<AgentFolder>, &Arc<Confinement>, &Arc<StoredScripts>),
) -> Builder {
    let (agent_folder, confinement, scripts) = (Arc::clone(agent_folder), Arc::clone(confinement), Arc::clone(scripts));
    let handler = move |Params(params): Params<script::ScriptParams>, run: RunContext, cancel: Cancel, log: Log| {
        let (agent_folder, confinement, scripts) =
            (Arc::clone(&agent_folder), Arc::clone(&confinement), Arc::clone(&scripts));
        async move {
            let mut params = params;
            confinement.check_interpreter(params.interpreter.as_deref())?;
            let script = std::mem::replace(&mut params.script, script::Script::Text(String::new()));
            let text = scripts.text(script, &run, &cancel, &log).await?;
            let folder = agent_folder.make_work_dir(&run)?;
            let result: Result<ProgramResult, JobError> =
                interpreter.program((params, &text), run.shard(), folder)?.run(&confinement, run, cancel, log).await;
            result
        }
    };
    builder.handler(interpreter.language.name, handler)
}

fn program_pump(agent_folder: &Arc<AgentFolder>, confinement: &Arc<Confinement>) -> PumpHandler<pump::ProgramPump> {
    let pump = PumpHandler::new(pump::ProgramPump::new(agent_folder, confinement));
    pump.with_schema(schemars::schema_for!(pump::PumpParams))
}

fn open_scripts(config: &AgentConfig) -> Result<Arc<StoredScripts>, ExecutorError> {
    let scripts = StoredScripts::open(config.script_cache.as_deref(), config.script_keys.clone());
    let path = || config.script_cache.clone().unwrap_or_default();
    scripts.map(Arc::new).map_err(|source| ExecutorError::WorkDir { path: path(), source })
}

fn open_agent_folder(config: &AgentConfig) -> Result<Arc<AgentFolder>, ExecutorError> {
    let base_folder = config.work_dir.clone().unwrap_or_else(folder::default_base_folder);
    let agent_folder =
        AgentFolder::open(&base_folder, config.work_dir.is_none(), config.watcher.as_deref(), config.run_as.as_ref());
    agent_folder.map(Arc::new).map_err(|source| ExecutorError::WorkDir { path: base_folder, source })
}

#[cfg(test)]
mod tests {
    use schemars::schema_for;
    use serde_json::Value;

    use super::*;

    /// The schemas that servers know are those that the agent declares; `RONDEL_BLESS=1` rewrites them.
    #[test]
    fn servers_know_the_schemas() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/src/agent_handlers");
        let schemas = [
            ("shell", "shell", schema_for!(shell::ShellParams)),
            ("http", "http", schema_for!(http::HttpParams)),
            ("pump", "pump", schema_for!(pump::PumpParams)),
            ("script", "python", schema_for!(script::ScriptParams)),
        ];
        for (file, handler, schema) in schemas {
            let declared = Value::from(schema);
            if std::env::var_os("RONDEL_BLESS").is_some() {
                let text = serde_json::to_string_pretty(&declared).unwrap() + "\n";
                std::fs::write(folder.join(file).with_extension("json"), text).unwrap();
                continue;
            }
            assert_eq!(
                rondel_core::agent_handlers::params_schema(handler),
                Some(declared),
                "{handler}: RONDEL_BLESS=1"
            );
        }
        for language in languages() {
            let known = rondel_core::agent_handlers::params_schema(language);
            assert_eq!(known, rondel_core::agent_handlers::params_schema("python"), "{language}");
        }
    }
}
