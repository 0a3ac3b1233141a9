//! The handler `shell`: a program, or the text of a script.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use tempfile::TempDir;

use super::program::Program;
use super::script::{Args, Call, Script, script_argv};
use crate::job_error::JobError;
use crate::shard::Shard;

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("anyOf" = [{"required": ["argv"]}, {"required": ["script"]}]))]
pub(super) struct ShellParams {
    #[schemars(extend("minItems" = 1))]
    argv: Option<Vec<String>>,
    script: Option<Script>,
    args: Option<Args>,
    /// Whether the interpreter only checks the script's syntax and does not run it.
    #[serde(default)]
    check: bool,
    interpreter: Option<Vec<String>>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<PathBuf>,
    stdin: Option<String>,
}

/// The program or script that the params ask to run.
#[derive(Debug)]
pub(super) enum RequestedCommand {
    /// A program and its arguments.
    Program(Vec<String>),
    /// A script, by its text or its name.
    Script(Script),
}

impl ShellParams {
    /// Takes the program or script out of the params.
    pub(super) fn take_command(&mut self, allow_scripts: bool) -> Result<RequestedCommand, JobError> {
        match (self.argv.take(), self.script.take()) {
            (Some(argv), None) if argv.first().is_some_and(|program| !program.is_empty()) => {
                let script_params =
                    [("interpreter", self.interpreter.is_some()), ("args", self.args.is_some()), ("check", self.check)];
                match script_params.into_iter().find(|(_, is_given)| *is_given) {
                    Some((name, _)) => {
                        Err(JobError::terminal(format_args!("params: {name} applies to script, not to argv")))
                    }
                    None => Ok(RequestedCommand::Program(argv)),
                }
            }
            (Some(_), None) => Err(JobError::terminal("params: argv must begin with a program")),
            (None, Some(Script::Text(_))) if !allow_scripts => Err(JobError::terminal(
                "this agent does not run the text of scripts: start it with --allow-scripts, or give argv",
            )),
            (None, Some(Script::Stored(_))) if !allow_scripts => Err(JobError::terminal(
                "this agent does not run scripts of the server: start it with --allow-scripts, or give argv",
            )),
            (None, Some(script)) => Ok(RequestedCommand::Script(script)),
            (Some(_), Some(_)) | (None, None) => Err(JobError::terminal("params: give either argv or script")),
        }
    }

    pub(super) fn interpreter(&self) -> Option<&[String]> {
        self.interpreter.as_deref()
    }
}

/// The program to start. If the command is a script, its text is written into `folder`.
pub(super) fn program(
    params: ShellParams,
    command: ResolvedCommand,
    shard: Shard,
    folder: TempDir,
) -> Result<Program, JobError> {
    let ShellParams { args, check, interpreter, env, cwd, stdin, .. } = params;
    let argv = match command {
        ResolvedCommand::Program(argv) => argv,
        ResolvedCommand::Script(text) => {
            let interpreter = interpreter.unwrap_or_else(|| vec!["sh".to_owned()]);
            let call = if check { Call::Check } else { Call::Run(args, shard) };
            script_argv(interpreter, &text, "sh", folder.path(), call)?
        }
    };
    Ok(Program { argv, env, cwd, stdin, own_env: Vec::new(), folder })
}

/// A requested command, with the text of its script instead of the script's name.
#[derive(Debug)]
pub(super) enum ResolvedCommand {
    Program(Vec<String>),
    Script(String),
}

#[cfg(test)]
mod tests;
