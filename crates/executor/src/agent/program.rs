//! The life of a program from start to verdict: feeding it, reading its output, stopping it with all that it started.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use serde::Serialize;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin};

use super::confine::Confinement;
use super::family::{Family, WORK_DIR};
use super::folder::remove_all;
use super::output::{capture, copy_to_log};
use crate::extract::{Cancel, Log};
use crate::job_error::JobError;
use crate::lifecycle::lock;
use crate::run::{RunContext, parents};

/// The variable that passes on the trace a program runs in.
const TRACE_PARENT: &str = "TRACEPARENT";

/// How long output is still read after a program has ended, because its background processes may hold the pipe open.
/// Also how long these may take to end if the run was stopped.
const LEFTOVER_GRACE: Duration = Duration::from_secs(1);

/// Exit code by which the program skips the run; automake and meson use the same one in tests.
const SKIP_CODE: i32 = 77;
/// Exit code of a failure for which a retry is of no use.
const TERMINAL_CODE: i32 = 99;

/// A program to start.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) argv: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: Option<PathBuf>,
    pub(super) stdin: Option<String>,
    /// Further variables that the agent sets for this run.
    pub(super) own_env: Vec<(&'static str, String)>,
    /// The run's working directory: the program starts in it, unless `cwd` names another.
    pub(super) folder: TempDir,
}

/// The most that a program may print while its output is captured.
#[derive(Clone, Copy, Debug)]
pub(super) struct CaptureLimit {
    pub(super) bytes: usize,
    pub(super) lines: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct ProgramResult {
    exit_code: i32,
}

impl Program {
    /// Runs the program. If the run has to stop, all its processes are asked to end; those still alive when this future
    /// is dropped, after the grace, are killed.
    pub(super) async fn run(
        self,
        confinement: &Confinement,
        run: RunContext,
        cancel: Cancel,
        log: Log,
    ) -> Result<ProgramResult, JobError> {
        let mut child = self.spawn(confinement, &run)?;
        let family = Family::led_by(&child, WORK_DIR, &self.folder.path().display().to_string());
        let last_error = Mutex::new(String::new());
        let ended = {
            let work = run_child(&mut child, self.stdin, &log, &last_error);
            tokio::pin!(work);
            tokio::select! {
                status = &mut work => Some(status?),
                () = cancel.cancelled() => {
                    family.terminate();
                    // Waits until the program has ended, or this future is dropped at the end of the grace.
                    work.await?;
                    None
                }
            }
        };
        let verdict = match ended {
            Some(status) => {
                family.disarm();
                verdict(status, &lock(&last_error))
            }
            None => {
                // What is still alive after that is killed.
                tokio::time::timeout(LEFTOVER_GRACE, family.ended()).await.ok();
                drop(family);
                Err(JobError::failed("stopped"))
            }
        };
        remove(self.folder).await;
        verdict
    }

    /// Runs the program to its own end. With `limit`, its standard output is captured and returned, else it goes to the
    /// log. If the program prints more than the limit, or this future is dropped, all its processes are killed.
    pub(super) async fn run_to_end(
        self,
        confinement: &Confinement,
        run: &RunContext,
        log: &Log,
        limit: Option<CaptureLimit>,
    ) -> Result<Vec<u8>, JobError> {
        let mut child = self.spawn(confinement, run)?;
        let family = Family::led_by(&child, WORK_DIR, &self.folder.path().display().to_string());
        let last_error = Mutex::new(String::new());
        let (status, printed) = match limit {
            None => (run_child(&mut child, self.stdin, log, &last_error).await?, Vec::new()),
            Some(limit) => run_child_captured(&mut child, self.stdin, (log, &last_error), limit).await?,
        };
        family.disarm();
        let verdict = verdict(status, &lock(&last_error));
        remove(self.folder).await;
        verdict.map(|_| printed)
    }

    fn spawn(&self, confinement: &Confinement, run: &RunContext) -> Result<Child, JobError> {
        let cwd = self.cwd.as_deref().unwrap_or_else(|| self.folder.path());
        let texts = run_env(run).into_iter().chain(parents_env(run)).chain(trace_env(run)).chain(self.own_env.clone());
        let mut own: BTreeMap<&str, OsString> = texts.map(|(name, value)| (name, value.into())).collect();
        own.insert(WORK_DIR, self.folder.path().into());
        let mut command = confinement.command(&self.argv, &self.env, own, cwd)?;
        confinement.chown_to_user(self.folder.path())?;
        command.stdin(if self.stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        let program = &self.argv[0];
        command.spawn().map_err(|error| match &self.cwd {
            Some(cwd) if !cwd.is_dir() => {
                JobError::failed(format_args!("cannot start {program:?} in {}: it is not a folder", cwd.display()))
            }
            _ => JobError::failed(format_args!("cannot start {program:?}: {error}")),
        })
    }
}

fn run_env(run: &RunContext) -> [(&'static str, String); 11] {
    let (shard, token) = (run.shard(), run.fencing_token());
    [
        ("RONDEL_RUN_ID", run.run_id().to_string()),
        ("RONDEL_NAMESPACE", run.namespace().to_owned()),
        ("RONDEL_JOB", run.job().to_owned()),
        ("RONDEL_ATTEMPT", run.attempt().to_string()),
        ("RONDEL_TRIGGER", run.trigger().to_owned()),
        ("RONDEL_FIRE_AT", run.fire_at().to_string()),
        ("RONDEL_SHARD_INDEX", shard.index.to_string()),
        ("RONDEL_SHARD_TOTAL", shard.total.to_string()),
        ("RONDEL_SHARD_NAME", run.shard_name().unwrap_or_default().to_owned()),
        ("RONDEL_FENCE_TERM", token.term.to_string()),
        ("RONDEL_FENCE_N", token.n.to_string()),
    ]
}

/// The parent span of the program's own spans, in the variable that other tools use too.
fn trace_env(run: &RunContext) -> Option<(&'static str, String)> {
    run.traceparent().map(|parent| (TRACE_PARENT, parent.to_string()))
}

/// The runs that this run follows. Servers keep the value far below the size limit of a variable.
fn parents_env(run: &RunContext) -> Option<(&'static str, String)> {
    let parents = serde_json::from_str(run.params()).ok().and_then(|mut params| parents::take(&mut params))?;
    Some(("RONDEL_PARENTS", serde_json::Value::Object(parents).to_string()))
}

/// Feeds the program, reads its output, and waits for its end.
async fn run_child(
    child: &mut Child,
    stdin: Option<String>,
    log: &Log,
    last_error: &Mutex<String>,
) -> Result<ExitStatus, JobError> {
    let feed = feed(child.stdin.take(), stdin);
    let out = copy_to_log(child.stdout.take(), "stdout", log, |_| {});
    let err = copy_to_log(child.stderr.take(), "stderr", log, |line| note_error(line, last_error));
    let pipes = futures_util::future::join3(feed, out, err);
    // The pipes are dropped before the warning, because their last lines are logged then.
    let (status, is_read) = {
        tokio::pin!(pipes);
        let status = tokio::select! {
            _ = &mut pipes => return Ok(child.wait().await?),
            status = child.wait() => status?,
        };
        let is_read = tokio::time::timeout(LEFTOVER_GRACE, pipes).await.is_ok();
        (status, is_read)
    };
    if !is_read {
        log.warn("processes in the background hold the output open; it is not read any further");
    }
    Ok(status)
}

/// Like [`run_child`], with the standard output captured.
async fn run_child_captured(
    child: &mut Child,
    stdin: Option<String>,
    (log, last_error): (&Log, &Mutex<String>),
    limit: CaptureLimit,
) -> Result<(ExitStatus, Vec<u8>), JobError> {
    let feed = feed(child.stdin.take(), stdin);
    let out = capture(child.stdout.take(), limit);
    let err = copy_to_log(child.stderr.take(), "stderr", log, |line| note_error(line, last_error));
    let others = async {
        futures_util::future::join(feed, err).await;
        Ok(())
    };
    let pipes = futures_util::future::try_join(out, others);
    tokio::pin!(pipes);
    let status = tokio::select! {
        printed = &mut pipes => return Ok((child.wait().await?, printed?.0)),
        status = child.wait() => status?,
    };
    match tokio::time::timeout(LEFTOVER_GRACE, pipes).await {
        Ok(printed) => Ok((status, printed?.0)),
        Err(_) => Err(JobError::failed("processes in the background hold the output open: it may not be complete")),
    }
}

fn note_error(line: &str, last_error: &Mutex<String>) {
    if !line.trim().is_empty() {
        line.clone_into(&mut lock(last_error));
    }
}

async fn feed(stdin: Option<ChildStdin>, text: Option<String>) {
    let (Some(mut stdin), Some(text)) = (stdin, text) else { return };
    // A program need not read its input.
    if let Err(error) = stdin.write_all(text.as_bytes()).await
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        tracing::warn!(%error, "cannot write to the program's input");
    }
}

/// A run may leave many files, so they are removed on a blocking thread.
async fn remove(folder: TempDir) {
    let path = folder.path().to_owned();
    let removed = tokio::task::spawn_blocking(move || remove_all(&folder.keep())).await;
    if let Ok(Err(error)) = removed {
        let folder = path.display();
        tracing::warn!(%error, %folder, "cannot remove a run's working directory; it goes with the agent");
    }
}

fn verdict(status: ExitStatus, last_error: &str) -> Result<ProgramResult, JobError> {
    use std::os::unix::process::ExitStatusExt;
    let how = match (status.code(), status.signal()) {
        (Some(0), _) => return Ok(ProgramResult { exit_code: 0 }),
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended without an exit code".to_owned(),
    };
    let message = if last_error.is_empty() { how } else { format!("{how}: {last_error}") };
    Err(match status.code() {
        Some(SKIP_CODE) => JobError::skip(message),
        Some(TERMINAL_CODE) => JobError::terminal(message),
        _ => JobError::failed(message),
    })
}
