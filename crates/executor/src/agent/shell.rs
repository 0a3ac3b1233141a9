//! The handler `shell`: a program, or the text of a script.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use tempfile::TempDir;

use super::program::Program;
use super::script::{Args, script_line};
use crate::job_error::JobError;
use crate::shard::Shard;

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("anyOf" = [{"required": ["argv"]}, {"required": ["script"]}]))]
pub(super) struct ShellParams {
    argv: Option<Vec<String>>,
    script: Option<String>,
    args: Option<Args>,
    interpreter: Option<Vec<String>>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<PathBuf>,
    stdin: Option<String>,
}

/// The program that the params mean; a script is written into `folder`.
pub(super) fn program(
    params: ShellParams,
    allow_scripts: bool,
    shard: Shard,
    folder: TempDir,
) -> Result<Program, JobError> {
    let ShellParams { argv, script, args, interpreter, env, cwd, stdin } = params;
    let argv = match (argv, script) {
        (Some(argv), None) if argv.first().is_some_and(|program| !program.is_empty()) => {
            let with_script = [("interpreter", interpreter.is_some()), ("args", args.is_some())];
            if let Some((name, _)) = with_script.into_iter().find(|(_, is_there)| *is_there) {
                return Err(JobError::terminal(format_args!("params: {name} goes with script, not with argv")));
            }
            argv
        }
        (Some(_), None) => return Err(JobError::terminal("params: argv must begin with a program")),
        (None, Some(_)) if !allow_scripts => {
            return Err(JobError::terminal(
                "this agent does not run the text of scripts: start it with --allow-scripts, or give argv",
            ));
        }
        (None, Some(script)) => {
            let interpreter = interpreter.unwrap_or_else(|| vec!["sh".to_owned()]);
            script_line(interpreter, &script, "sh", folder.path(), (args, shard))?
        }
        (Some(_), Some(_)) | (None, None) => {
            return Err(JobError::terminal("params: give either argv or script"));
        }
    };
    Ok(Program { argv, env, cwd, stdin, own: Vec::new(), folder })
}

#[cfg(test)]
mod tests;
