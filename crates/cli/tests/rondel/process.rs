//! Runs the binary, and kills it when the test ends.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The longest wait for a condition.
const LIMIT: Duration = Duration::from_secs(60);

/// The binary, without Rondel's variables in its environment.
pub(crate) fn rondel() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rondel"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RONDEL_") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// The output of a command that ended.
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the output is UTF-8");
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl CommandOutput {
    /// Asserts that the command ended with this code, and that stderr is one line with these words.
    #[track_caller]
    pub(crate) fn refused(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        let lines: Vec<_> = self.stderr.lines().collect();
        let [line] = lines.as_slice() else { panic!("not one line: {:?}", self.stderr) };
        assert!(line.starts_with("error: "), "{line}");
        for word in words {
            assert!(line.contains(word), "{word:?} is not in {line:?}");
        }
        assert_eq!(self.stdout, "");
    }
}

/// Runs a command to its end.
pub(crate) fn run(args: &[&str]) -> CommandOutput {
    run_in(Path::new("/"), args)
}

/// Runs a command to its end in this folder.
pub(crate) fn run_in(folder: &Path, args: &[&str]) -> CommandOutput {
    end(rondel().args(args).current_dir(folder))
}

/// Runs a command to its end with this standard input.
pub(crate) fn run_with_input(args: &[&str], input: &str) -> CommandOutput {
    let mut command = rondel();
    command.args(args).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("start the binary");
    child.stdin.take().expect("its input is a pipe").write_all(input.as_bytes()).expect("write its input");
    child.wait_with_output().expect("wait for the binary").into()
}

/// Runs a command to its end.
pub(crate) fn end(command: &mut Command) -> CommandOutput {
    command.output().expect("run the binary").into()
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn until(description: &str, holds: impl Fn() -> bool) {
    let mut waited = Duration::ZERO;
    while !holds() {
        assert!(waited < LIMIT, "not within {LIMIT:?}: {description}");
        waited += pause();
    }
}

/// A program that runs until it is asked to stop, with its output in files. Killed when dropped.
pub(crate) struct Program {
    child: Child,
    output: TempDir,
}

impl Program {
    pub(crate) fn start(args: &[&str]) -> Self {
        let output = tempfile::tempdir().expect("make a folder");
        let file = |name: &str| File::create(output.path().join(name)).expect("make a file");
        let mut command = rondel();
        let child = command.args(args).current_dir(output.path()).stdout(file("stdout")).stderr(file("stderr")).spawn();
        Self { child: child.expect("start the binary"), output }
    }

    /// Waits until it prints where it listens, and returns the URL.
    pub(crate) fn url(&mut self) -> String {
        self.wait_for("it listens", |program| {
            let stdout = program.output("stdout");
            let line = stdout.split_inclusive('\n').find_map(|line| line.strip_prefix("listening on "))?;
            line.strip_suffix('\n').map(str::to_owned)
        })
    }

    /// What it has written so far to `stdout` or `stderr`.
    pub(crate) fn output(&self, name: &str) -> String {
        std::fs::read_to_string(self.output.path().join(name)).expect("read its output")
    }

    /// Waits for a value.
    #[track_caller]
    pub(crate) fn wait_for<T>(&mut self, description: &str, mut probe: impl FnMut(&mut Self) -> Option<T>) -> T {
        let mut waited = Duration::ZERO;
        loop {
            if let Some(value) = probe(self) {
                return value;
            }
            let ended = self.child.try_wait().expect("ask for its status");
            let words = || format!("{}{}", self.output("stdout"), self.output("stderr"));
            assert!(ended.is_none(), "ended with {ended:?} before {description}: {}", words());
            assert!(waited < LIMIT, "not within {LIMIT:?}: {description}: {}", words());
            waited += pause();
        }
    }

    /// Waits until the program has installed its handler of SIGINT.
    #[track_caller]
    pub(crate) fn wait_until_interrupts_are_caught(&mut self) {
        let status = format!("/proc/{}/status", self.child.id());
        self.wait_for("it catches interrupts", |_| {
            let status = std::fs::read_to_string(&status).ok()?;
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
            let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
            (caught & (1 << (Signal::INT.as_raw() - 1)) != 0).then_some(())
        });
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("send a signal");
    }

    /// Waits until the program has ended without being killed.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut waited = Duration::ZERO;
        loop {
            if let Some(status) = self.child.try_wait().expect("ask for its status") {
                return status;
            }
            assert!(waited < LIMIT, "did not end: {}", self.output("stderr"));
            waited += pause();
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}{}", self.output("stdout"), self.output("stderr"));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[expect(clippy::disallowed_methods, reason = "these tests have no runtime")]
fn pause() -> Duration {
    let pause = Duration::from_millis(50);
    std::thread::sleep(pause);
    pause
}
