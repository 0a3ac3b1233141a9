//! The handler `shell`: a program, or the text of a script, in a process group of its own.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};

use super::group::ProcessGroup;
use super::lines::Lines;
use crate::extract::{Cancel, Log};
use crate::job_error::JobError;
use crate::lifecycle::lock;
use crate::run::RunContext;

/// Names that belong to the agent: its own settings and secrets stay with it.
const OWN_PREFIX: &str = "RONDEL_";

/// How long the output of a program that has ended is still read: what it left in the background may hold it open.
const LEFTOVER_GRACE: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShellParams {
    argv: Option<Vec<String>>,
    script: Option<String>,
    interpreter: Option<Vec<String>>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<PathBuf>,
    stdin: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct ShellResult {
    exit_code: i32,
}

/// A command line, and the file that it runs where there is one.
struct Line {
    argv: Vec<String>,
    _script: Option<NamedTempFile>,
}

pub(super) async fn run(
    params: ShellParams,
    allow_scripts: bool,
    run: RunContext,
    cancel: Cancel,
    log: Log,
) -> Result<ShellResult, JobError> {
    let line = command_line(&params, allow_scripts)?;
    let mut child = spawn(&line.argv, &params, &run)?;
    let group = ProcessGroup::led_by(&child);
    let last_error = Mutex::new(String::new());
    let ended = {
        let work = work(&mut child, params.stdin, &log, &last_error);
        tokio::pin!(work);
        tokio::select! {
            status = &mut work => Some(status?),
            () = cancel.cancelled() => {
                group.terminate();
                // Until it is over, or the grace is and all this is dropped; then the group is killed.
                work.await?;
                None
            }
        }
    };
    match ended {
        Some(status) => {
            group.disarm();
            verdict(status, &lock(&last_error))
        }
        None => Err(JobError::failed("stopped")),
    }
}

fn command_line(params: &ShellParams, allow_scripts: bool) -> Result<Line, JobError> {
    match (&params.argv, &params.script) {
        (Some(argv), None) if argv.first().is_some_and(|program| !program.is_empty()) => {
            if params.interpreter.is_some() {
                return Err(JobError::terminal("params: interpreter goes with script, not with argv"));
            }
            Ok(Line { argv: argv.clone(), _script: None })
        }
        (Some(_), None) => Err(JobError::terminal("params: argv must begin with a program")),
        (None, Some(_)) if !allow_scripts => Err(JobError::terminal(
            "this agent does not run the text of scripts: start it with --allow-scripts, or give argv",
        )),
        (None, Some(script)) => script_line(script, params.interpreter.as_deref()),
        (Some(_), Some(_)) | (None, None) => Err(JobError::terminal("params: give either argv or script")),
    }
}

fn script_line(script: &str, interpreter: Option<&[String]>) -> Result<Line, JobError> {
    let mut argv = interpreter.map_or_else(|| vec!["sh".to_owned()], <[String]>::to_vec);
    if argv.first().is_none_or(String::is_empty) {
        return Err(JobError::terminal("params: interpreter must begin with a program"));
    }
    // Readable by this user alone, and gone when the run is over.
    let mut file = tempfile::Builder::new().prefix("rondel-script-").tempfile()?;
    file.write_all(script.as_bytes())?;
    file.flush()?;
    let path = file.path().to_str().ok_or_else(|| JobError::failed("the temporary directory's name is not UTF-8"))?;
    argv.push(path.to_owned());
    Ok(Line { argv, _script: Some(file) })
}

fn spawn(argv: &[String], params: &ShellParams, run: &RunContext) -> Result<Child, JobError> {
    let (program, arguments) = argv.split_first().ok_or_else(|| JobError::terminal("params: argv is empty"))?;
    if let Some(name) = params.env.keys().find(|name| name.starts_with(OWN_PREFIX)) {
        return Err(JobError::terminal(format_args!("params: env: {name} is a name of the agent's own")));
    }
    let mut command = Command::new(program);
    command.args(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with(OWN_PREFIX) {
            command.env_remove(name);
        }
    }
    command.envs(&params.env).envs(run_env(run));
    if let Some(cwd) = &params.cwd {
        command.current_dir(cwd);
    }
    command.stdin(if params.stdin.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
    command.spawn().map_err(|error| JobError::failed(format_args!("cannot start {program:?}: {error}")))
}

fn run_env(run: &RunContext) -> [(&'static str, String); 6] {
    let shard = run.shard();
    [
        ("RONDEL_RUN_ID", run.run_id().to_string()),
        ("RONDEL_JOB", run.job().to_owned()),
        ("RONDEL_ATTEMPT", run.attempt().to_string()),
        ("RONDEL_FIRE_AT", run.fire_at().to_string()),
        ("RONDEL_SHARD_INDEX", shard.index.to_string()),
        ("RONDEL_SHARD_TOTAL", shard.total.to_string()),
    ]
}

/// Feeds it, reads it, and waits for its end.
async fn work(
    child: &mut Child,
    stdin: Option<String>,
    log: &Log,
    last_error: &Mutex<String>,
) -> Result<ExitStatus, JobError> {
    let feed = feed(child.stdin.take(), stdin);
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let out = pump(out, |line| log.line("stdout", line));
    let err = pump(err, |line| {
        log.line("stderr", line);
        if !line.trim().is_empty() {
            line.clone_into(&mut lock(last_error));
        }
    });
    let pipes = futures_util::future::join3(feed, out, err);
    tokio::pin!(pipes);
    let ended = tokio::select! {
        _ = &mut pipes => None,
        status = child.wait() => Some(status?),
    };
    let Some(status) = ended else { return Ok(child.wait().await?) };
    if tokio::time::timeout(LEFTOVER_GRACE, pipes).await.is_err() {
        log.warn("processes in the background hold the output open; it is not read any further");
    }
    Ok(status)
}

async fn feed(stdin: Option<ChildStdin>, text: Option<String>) {
    let (Some(mut stdin), Some(text)) = (stdin, text) else { return };
    // A program need not read what it is given.
    if let Err(error) = stdin.write_all(text.as_bytes()).await
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        tracing::warn!(%error, "cannot write to the program's input");
    }
}

async fn pump(pipe: Option<impl AsyncRead + Unpin>, mut emit: impl FnMut(&str)) {
    let Some(mut pipe) = pipe else { return };
    let mut lines = Lines::default();
    let mut buffer = vec![0; 8 * 1024];
    loop {
        match pipe.read(&mut buffer).await {
            Ok(0) => break,
            Ok(length) => lines.push(&buffer[..length], &mut emit),
            Err(error) => {
                tracing::warn!(%error, "cannot read the program's output");
                break;
            }
        }
    }
    lines.finish(emit);
}

fn verdict(status: ExitStatus, last_error: &str) -> Result<ShellResult, JobError> {
    use std::os::unix::process::ExitStatusExt;
    let how = match (status.code(), status.signal()) {
        (Some(0), _) => return Ok(ShellResult { exit_code: 0 }),
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended without an exit code".to_owned(),
    };
    Err(JobError::failed(if last_error.is_empty() { how } else { format!("{how}: {last_error}") }))
}

#[cfg(test)]
mod tests;
