//! Runs a program from its start to its verdict: writes its input, reads its output, and stops it with all its
//! processes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use serde::Serialize;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::confine::Confinement;
use super::folder::remove_all;
use super::output::{capture, copy_to_log};
use super::process_tree::{ProcessTree, WORK_DIR};
use crate::extract::{Cancel, Log};
use crate::job_error::JobError;
use crate::lifecycle::lock;
use crate::run::{RunContext, parents};

/// The variable that names the trace in which a program runs.
const TRACE_PARENT: &str = "TRACEPARENT";

/// How long output is still read after a program has ended, because its background processes may hold the pipe open.
/// Also how long background processes may take to end after the run was stopped.
const LEFTOVER_GRACE: Duration = Duration::from_secs(1);

/// How long a run waits for the removal of its working directory.
const REMOVAL_WAIT: Duration = Duration::from_secs(1);

/// The output of background processes is read and dropped for at most this many ended programs at the same time.
const DISCARDED_RUNS_MAX: usize = 256;
static DISCARD_PERMITS: Semaphore = Semaphore::const_new(DISCARDED_RUNS_MAX);
/// How many bytes of the output of background processes are read at a time.
const DISCARD_CHUNK_BYTES: usize = 16 * 1024;
/// The pause after each read of the output of background processes. It slows down a process that prints without end.
const DISCARD_PAUSE: Duration = Duration::from_millis(5);

/// Exit code by which the program skips the run; automake and meson use the same code in tests.
const SKIP_CODE: i32 = 77;
/// Exit code of a failure that is not retried.
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
    /// The run's working directory: the program starts in it, unless `cwd` names another directory.
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
    /// Runs the program. If the run has to stop, all processes of the program are asked to end. Those that are still
    /// alive when this future is dropped, after the grace, are killed.
    pub(super) async fn run(
        self,
        confinement: &Confinement,
        run: RunContext,
        cancel: Cancel,
        log: Log,
    ) -> Result<ProgramResult, JobError> {
        let mut child = self.spawn(confinement, &run)?;
        let folder = RunFolder(Some(self.folder));
        let processes = ProcessTree::with_leader(&child, WORK_DIR, &folder.marker());
        let (last_error, has_ended) = (Mutex::new(String::new()), CancellationToken::new());
        let exit_status = {
            let run_future = run_child(&mut child, self.stdin, (&log, &last_error), (&run, &has_ended));
            tokio::pin!(run_future);
            tokio::select! {
                // A program that has already ended is not stopped.
                biased;
                status = &mut run_future => Some(status?),
                () = stop_before_end(&cancel, &has_ended) => {
                    processes.terminate();
                    // Waits until the program has ended. If it outlives the grace, this future is dropped here.
                    run_future.await?;
                    None
                }
            }
        };
        let verdict = match exit_status {
            Some(status) => {
                processes.disarm();
                verdict(status, &folder.shorten_paths(&lock(&last_error)))
            }
            None => {
                // Gives the processes a moment to end. Dropping `processes` then kills those that are still alive.
                tokio::time::timeout(LEFTOVER_GRACE, processes.wait_until_ended()).await.ok();
                drop(processes);
                Err(JobError::failed("stopped"))
            }
        };
        folder.remove(wait_end(REMOVAL_WAIT, &run)).await;
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
        let folder = RunFolder(Some(self.folder));
        let processes = ProcessTree::with_leader(&child, WORK_DIR, &folder.marker());
        let last_error = Mutex::new(String::new());
        let (status, output) = match limit {
            None => {
                let has_ended = CancellationToken::new();
                (run_child(&mut child, self.stdin, (log, &last_error), (run, &has_ended)).await?, Vec::new())
            }
            Some(limit) => run_child_captured(&mut child, self.stdin, (log, &last_error), limit).await?,
        };
        processes.disarm();
        let verdict = verdict(status, &folder.shorten_paths(&lock(&last_error)));
        folder.remove(wait_end(REMOVAL_WAIT, run)).await;
        verdict.map(|_| output)
    }

    fn spawn(&self, confinement: &Confinement, run: &RunContext) -> Result<Child, JobError> {
        let cwd = self.cwd.as_deref().unwrap_or_else(|| self.folder.path());
        let own_texts =
            run_env(run).into_iter().chain(parents_env(run)).chain(trace_env(run)).chain(self.own_env.clone());
        let mut own_variables: BTreeMap<&str, OsString> = own_texts.map(|(name, value)| (name, value.into())).collect();
        own_variables.insert(WORK_DIR, self.folder.path().into());
        let mut command = confinement.command(&self.argv, &self.env, own_variables, cwd)?;
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

/// The runs that this run follows, in a variable; `None` if there are none. Servers keep the value far below the size
/// limit of a variable.
fn parents_env(run: &RunContext) -> Option<(&'static str, String)> {
    let parents = serde_json::from_str(run.params()).ok().and_then(|mut params| parents::take(&mut params))?;
    Some(("RONDEL_PARENTS", serde_json::Value::Object(parents).to_string()))
}

/// When a wait of this length ends: at the run's deadline at the latest, unless the run was stopped. A program that has
/// ended on its own must not miss its deadline because of the wait.
fn wait_end(duration: Duration, run: &RunContext) -> Instant {
    let end = Instant::now() + duration;
    let deadline = run.deadline().filter(|_| run.stop_cause().is_none());
    deadline.map_or(end, |deadline| end.min(deadline))
}

/// Resolves when the run must stop, unless the program has ended on its own before that: its output may still be read
/// then, and a stop would discard its exit code.
async fn stop_before_end(cancel: &Cancel, has_ended: &CancellationToken) {
    tokio::select! {
        biased;
        () = has_ended.cancelled() => std::future::pending::<()>().await,
        () = cancel.cancelled() => {}
    }
}

/// Feeds the program, reads its output, and waits for its end. Cancels `has_ended` if the program has ended and its
/// output is still being read.
async fn run_child(
    child: &mut Child,
    stdin: Option<String>,
    (log, last_error): (&Log, &Mutex<String>),
    (run, has_ended): (&RunContext, &CancellationToken),
) -> Result<ExitStatus, JobError> {
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let write_input = write_stdin(child.stdin.take(), stdin);
    let copy_stdout = copy_to_log(stdout.as_mut(), "stdout", log, |_| {});
    let copy_stderr = copy_to_log(stderr.as_mut(), "stderr", log, |line| note_error(line, last_error));
    let pipes = futures_util::future::join3(write_input, copy_stdout, copy_stderr);
    // The pipes are dropped before the warning, because dropping them logs their last lines.
    let (status, is_read_to_end) = {
        tokio::pin!(pipes);
        let status = tokio::select! {
            _ = &mut pipes => return Ok(child.wait().await?),
            status = child.wait() => status?,
        };
        has_ended.cancel();
        let is_read_to_end = tokio::time::timeout_at(wait_end(LEFTOVER_GRACE, run), pipes).await.is_ok();
        (status, is_read_to_end)
    };
    if !is_read_to_end {
        log.warn("processes in the background hold the output open; it is not read any further");
        discard_output(run, stdout, stderr);
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
    let write_input = write_stdin(child.stdin.take(), stdin);
    let capture_stdout = capture(child.stdout.take(), limit);
    let copy_stderr = copy_to_log(child.stderr.take(), "stderr", log, |line| note_error(line, last_error));
    let other_pipes = async {
        futures_util::future::join(write_input, copy_stderr).await;
        Ok(())
    };
    let pipes = futures_util::future::try_join(capture_stdout, other_pipes);
    tokio::pin!(pipes);
    let status = tokio::select! {
        result = &mut pipes => {
            // If the program printed too much, this returns an error without waiting for the program's end, and the
            // caller kills the program.
            let (output, ()) = result?;
            return Ok((child.wait().await?, output));
        }
        status = child.wait() => status?,
    };
    match tokio::time::timeout(LEFTOVER_GRACE, pipes).await {
        Ok(result) => Ok((status, result?.0)),
        Err(_) => Err(JobError::failed("processes in the background hold the output open: it may not be complete")),
    }
}

/// Keeps the line for the message of a failure, unless the line belongs to the error before it. If all lines are
/// indented, the last one is kept.
fn note_error(line: &str, last_error: &Mutex<String>) {
    let mut last_error = lock(last_error);
    let (text, is_continuation) = indented_error(line).map_or((line, continues_error(line)), |text| (text, false));
    let has_error = !last_error.is_empty() && !last_error.starts_with(char::is_whitespace);
    if text.trim().is_empty() || is_continuation && has_error {
        return;
    }
    text.clone_into(&mut last_error);
}

/// The error in an indented line: `pwsh` prints it after a bar, below the line of the script; curl prints it after its
/// progress. `None` if the line has no such error.
fn indented_error(line: &str) -> Option<&str> {
    if !line.starts_with(char::is_whitespace) {
        return None;
    }
    let text_after_bar = line.trim_start().strip_prefix("| ");
    text_after_bar.or_else(|| line.find("curl: (").map(|start| &line[start..]))
}

/// Whether a line of standard error belongs to the error before it: it is indented, or it is one of the further lines
/// that Node.js and PHP print after every error.
fn continues_error(line: &str) -> bool {
    let starts_with_digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    line.starts_with(char::is_whitespace)
        || ["}", "Stack trace:"].contains(&line)
        || ["Node.js v", "(Use `node --trace-"].iter().any(|start| line.starts_with(start))
        || line.strip_prefix('#').is_some_and(starts_with_digit)
}

async fn write_stdin(stdin: Option<ChildStdin>, text: Option<String>) {
    let (Some(mut stdin), Some(text)) = (stdin, text) else { return };
    // A program need not read its input.
    if let Err(error) = stdin.write_all(text.as_bytes()).await
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        tracing::warn!(%error, "cannot write to the program's input");
    }
}

/// Continues to read the output of background processes, and drops it: a process that writes to a pipe without a
/// reader gets SIGPIPE, which ends most programs.
fn discard_output(run: &RunContext, stdout: Option<ChildStdout>, stderr: Option<ChildStderr>) {
    let Ok(permit) = DISCARD_PERMITS.try_acquire() else { return };
    let hard_stop = run.setup().lifecycle.hard.clone();
    run.tracker().spawn(async move {
        let _permit = permit;
        hard_stop.run_until_cancelled(futures_util::future::join(read_to_end(stdout), read_to_end(stderr))).await;
    });
}

async fn read_to_end(pipe: Option<impl AsyncRead + Unpin>) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; DISCARD_CHUNK_BYTES];
    while pipe.read(&mut buffer).await.is_ok_and(|length| length > 0) {
        tokio::time::sleep(DISCARD_PAUSE).await;
    }
}

/// A run's working directory. The directory is also removed if the run is aborted, because dropping this value removes
/// the directory. A run may leave many files, so they are removed on a blocking thread.
struct RunFolder(Option<TempDir>);

impl RunFolder {
    /// The value of the variable [`WORK_DIR`].
    fn marker(&self) -> String {
        self.0.as_ref().map(|folder| folder.path().display().to_string()).unwrap_or_default()
    }

    /// The text without the path of this directory before the names of its files: the path differs in each run.
    fn shorten_paths(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.marker()), "")
    }

    /// Removes the directory, and waits for the removal until `deadline`.
    async fn remove(mut self, deadline: Instant) {
        let Some(folder) = self.0.take() else { return };
        let removal_task = tokio::task::spawn_blocking(move || remove_work_dir(folder));
        tokio::time::timeout_at(deadline, removal_task).await.ok();
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        let Some(folder) = self.0.take() else { return };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || remove_work_dir(folder))),
            Err(_) => remove_work_dir(folder),
        }
    }
}

fn remove_work_dir(folder: TempDir) {
    let path = folder.keep();
    if let Err(error) = remove_all(&path) {
        let folder = path.display();
        tracing::warn!(%error, %folder, "cannot remove a run's working directory; it is removed when the agent ends");
    }
}

fn verdict(status: ExitStatus, last_error: &str) -> Result<ProgramResult, JobError> {
    use std::os::unix::process::ExitStatusExt;
    let cause = match (status.code(), status.signal()) {
        (Some(0), _) => return Ok(ProgramResult { exit_code: 0 }),
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended without an exit code".to_owned(),
    };
    let message = if last_error.is_empty() { cause } else { format!("{cause}: {last_error}") };
    Err(match status.code() {
        Some(SKIP_CODE) => JobError::skip(message),
        Some(TERMINAL_CODE) => JobError::terminal(message),
        _ => JobError::failed(message),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rondel_proto::v1::Trigger;

    use super::*;
    use crate::run::StopCause;
    use crate::setup::{Setup, States, Timing};

    #[test]
    fn the_message_of_a_failure_is_the_line_with_the_error() {
        let noted = |lines: &[&str]| {
            let last_error = Mutex::new(String::new());
            for line in lines {
                note_error(line, &last_error);
            }
            last_error.into_inner().unwrap()
        };
        let node = ["/w/script.js:1", "foo()", "^", "", "ReferenceError: foo is not defined"];
        let after = ["    at Module.load (node:internal:1266:32) {", "  code: 'E'", "}", "", "Node.js v20.20.2"];
        assert_eq!(noted(&[node, after].concat()), "ReferenceError: foo is not defined");
        let php =
            ["PHP Fatal error:  Uncaught Error: x in s:1", "Stack trace:", "#0 {main}", "  thrown in s on line 1"];
        assert_eq!(noted(&php), "PHP Fatal error:  Uncaught Error: x in s:1");
        assert_eq!(noted(&["first", "# last", " "]), "# last");
        assert_eq!(noted(&["\tat Main.main(Main.java:5)"]), "\tat Main.main(Main.java:5)", "the only line");
        assert_eq!(noted(&["  step 1", "  cannot connect"]), "  cannot connect", "all lines are indented");
        let thrown = ["throw \"text\"", "^", "text", "(Use `node --trace-uncaught ...` to show where it was thrown)"];
        assert_eq!(noted(&[&thrown[..], &after[3..]].concat()), "text");
        let progress = "\r  0     0    0     0    0     0      0      0 --:--:-- --:--:-- --:--:--     0";
        let unresolved = format!("{progress}curl: (6) Could not resolve host: gone");
        let curl = ["+ curl http://gone/", "  % Total    % Received % Xferd", unresolved.as_str()];
        assert_eq!(noted(&curl), "curl: (6) Could not resolve host: gone");
        let power_shell =
            ["Exception: /w/script.ps1:1", "Line |", "   1 |  throw 'boom'", "     |  ~~~~~~~~~~~~", "     | boom"];
        assert_eq!(noted(&power_shell), "boom");
    }

    #[test]
    fn the_message_of_a_failure_is_the_same_in_each_run() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script.sh");
        let folder = RunFolder(Some(folder));
        let line = format!("{}: 1: nosuch: not found", script.display());
        assert_eq!(folder.shorten_paths(&line), "script.sh: 1: nosuch: not found");
    }

    #[test]
    fn cleaning_up_after_a_program_makes_no_run_miss_its_deadline() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().max_blocking_threads(1).build().unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        runtime.block_on(async {
            let busy = tokio::task::spawn_blocking(move || released.recv().is_ok());
            RunFolder(Some(folder)).remove(Instant::now()).await;
            assert!(path.exists(), "no thread was free to remove it");
            drop(release);
            assert!(!busy.await.unwrap());
        });
        drop(runtime);
        assert!(!path.exists());

        let setup = Arc::new(Setup::new(States::default(), Timing::default()));
        let trigger = Trigger { timeout_ms: 60_000, ..Trigger::default() };
        let run = RunContext::new(&setup, trigger, 0);
        let (hour, deadline) = (Duration::from_secs(3_600), run.deadline().unwrap());
        assert_eq!(wait_end(hour, &run), deadline);
        assert!(wait_end(Duration::from_secs(1), &run) < deadline);
        run.stop(StopCause::Drained);
        assert!(wait_end(hour, &run) > deadline);
    }
}
