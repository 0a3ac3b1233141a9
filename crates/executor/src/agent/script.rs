//! The handlers `python`, `node`, `php` and `powershell`: each runs a script with an interpreter that this host has.

use std::collections::BTreeMap;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use std::io::Write;
use tempfile::TempDir;

use super::confine::is_program;
use super::program::Program;
use crate::job_error::JobError;
use crate::shard::Shard;
use rondel_core::script::ScriptRef;

/// A language that has a handler of its own.
#[derive(Debug)]
pub(super) struct Language {
    /// The handler's name.
    pub(super) name: &'static str,
    /// Programs that run the language, the preferred one first.
    programs: &'static [&'static str],
    /// Options between the program and the script.
    options: &'static [&'static str],
    extension: &'static str,
    /// Variables set unless the job sets them, so that lines can be read as soon as they are printed.
    env: &'static [(&'static str, &'static str)],
}

/// All languages with their own handler.
pub(super) const LANGUAGES: [Language; 4] = [
    Language {
        name: "python",
        programs: &["python3", "python"],
        options: &[],
        extension: "py",
        env: &[("PYTHONUNBUFFERED", "1")],
    },
    Language { name: "node", programs: &["node", "nodejs"], options: &[], extension: "js", env: &[] },
    Language { name: "php", programs: &["php"], options: &[], extension: "php", env: &[] },
    Language {
        name: "powershell",
        programs: &["pwsh", "powershell"],
        options: &["-NoLogo", "-NoProfile", "-NonInteractive", "-File"],
        extension: "ps1",
        env: &[],
    },
];

/// A language and the program on this host that runs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interpreter {
    pub(super) language: &'static Language,
    pub(super) program: &'static str,
}

/// The text of a script, or the name of one that the server keeps.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
pub(super) enum Script {
    Text(String),
    Stored(ScriptRef),
}

/// The script's arguments: a list, or a text that is one argument.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
pub(super) enum Args {
    Text(String),
    List(Vec<String>),
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ScriptParams {
    pub(super) script: Script,
    args: Option<Args>,
    /// Whether the interpreter only checks the script's syntax and does not run it.
    #[serde(default)]
    check: bool,
    pub(super) interpreter: Option<Vec<String>>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<PathBuf>,
    stdin: Option<String>,
}

/// The interpreters found in the folders of `path`, except those of `excluded_languages`.
pub(super) fn find_interpreters(path: &std::ffi::OsStr, excluded_languages: &[String]) -> Vec<Interpreter> {
    let languages = LANGUAGES.iter().filter(|language| !excluded_languages.iter().any(|name| name == language.name));
    let is_installed = |program: &str| std::env::split_paths(path).any(|folder| is_program(&folder.join(program)));
    let interpreters = languages.filter_map(|language| {
        let program = language.programs.iter().find(|program| is_installed(program))?;
        Some(Interpreter { language, program })
    });
    interpreters.collect()
}

impl Interpreter {
    /// The program to start for the params. The text of the script is written into `folder`.
    pub(super) fn program(
        self,
        (params, script): (ScriptParams, &str),
        shard: Shard,
        folder: TempDir,
    ) -> Result<Program, JobError> {
        let Self { language, program } = self;
        let ScriptParams { script: _, args, check, interpreter, mut env, cwd, stdin } = params;
        let default_interpreter =
            || [program].iter().chain(language.options).map(|argument| (*argument).to_owned()).collect();
        let interpreter = interpreter.unwrap_or_else(default_interpreter);
        let call = if check { Call::Check } else { Call::Run(args, shard) };
        let argv = script_argv(interpreter, script, language.extension, folder.path(), call)?;
        for (name, value) in language.env {
            env.entry((*name).to_owned()).or_insert_with(|| (*value).to_owned());
        }
        Ok(Program { argv, env, cwd, stdin, own_env: Vec::new(), folder })
    }
}

/// How the interpreter is called.
#[derive(Debug)]
pub(super) enum Call {
    /// The interpreter only reads the script.
    Check,
    Run(Option<Args>, Shard),
}

/// File names of interpreters, and the options that make them read a script without running it. These options come
/// before all others, so that no other option makes the interpreter run anything. A check by an interpreter that is not
/// listed is refused, because the effect of options on it is unknown.
const SYNTAX_CHECKS: [(&[&str], &[&str]); 4] = [
    (&["sh", "bash", "dash", "ash", "ksh", "zsh"], &["-n"]),
    (&["python3", "python"], &["-c", "import sys; compile(open(sys.argv[-1], 'rb').read(), sys.argv[-1], 'exec')"]),
    (&["node", "nodejs"], &["--check"]),
    (&["php"], &["-l"]),
];

fn check_options(program: &str) -> Result<&'static [&'static str], JobError> {
    let name = Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or(program);
    let check = SYNTAX_CHECKS.iter().find(|(programs, _)| programs.contains(&name));
    check.map(|(_, options)| *options).ok_or_else(|| {
        let program_names: Vec<&str> = SYNTAX_CHECKS.iter().flat_map(|(programs, _)| programs.iter().copied()).collect();
        JobError::terminal(format_args!(
            "params: check: the agent does not know how {program} checks a script without running it; it knows this of {}",
            program_names.join(", ")
        ))
    })
}

/// Writes the script into `folder`, and returns the command line of the interpreter: its options, the script, the
/// arguments, the shard's index and the number of shards. A script with at most one argument gets the same arguments as
/// under XXL-JOB.
pub(super) fn script_argv(
    interpreter: Vec<String>,
    script: &str,
    extension: &str,
    folder: &Path,
    call: Call,
) -> Result<Vec<String>, JobError> {
    let mut argv = interpreter;
    let Some(program) = argv.first().filter(|program| !program.is_empty()) else {
        return Err(JobError::terminal("params: interpreter must begin with a program"));
    };
    if matches!(call, Call::Check) {
        let options = check_options(program)?;
        argv.splice(1..1, options.iter().map(|option| (*option).to_owned()));
    }
    let path = folder.join(format!("script.{extension}"));
    write_script(&path, script)
        .map_err(|error| JobError::failed(format_args!("cannot write the script to {}: {error}", path.display())))?;
    let path = path.to_str().ok_or_else(|| JobError::failed("the working directory's name is not UTF-8"))?;
    argv.push(path.to_owned());
    if let Call::Run(args, shard) = call {
        match args {
            None => argv.push(String::new()),
            Some(Args::Text(text)) => argv.push(text),
            Some(Args::List(texts)) => argv.extend(texts),
        }
        argv.extend([shard.index.to_string(), shard.total.to_string()]);
    }
    if let Some(position) = argv.iter().position(|text| text.contains('\0')) {
        return Err(JobError::terminal(format_args!(
            "params: argument {position} contains a NUL, which cannot be passed to a program"
        )));
    }
    Ok(argv)
}

fn write_script(path: &Path, script: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(script.as_bytes())
}

#[cfg(test)]
mod tests;
