//! A process under test: its output goes to files, it can be signalled and waited for, and it never outlives the test.
//!
//! All processes that it starts are found by a mark in the environment, which children inherit, or by their parents. If
//! some of this family remain after the process has ended, they are a leak, and the test fails. When the test drops the
//! process, the whole family is killed.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::{settings, wait_until};

/// The mark that the whole family of a process carries in its environment.
const MARK: &str = "TEST_PROCESS_MARK";

/// How long the children of an ended process may take to vanish.
const LEAK_LIMIT: Duration = Duration::from_secs(3);

/// How long a killed process may take to vanish.
const VANISH_LIMIT: Duration = Duration::from_secs(10);

/// A process that runs or has ended.
#[derive(Debug)]
pub struct Process {
    name: String,
    mark: String,
    child: Child,
    ended: Option<ExitStatus>,
    output: TempDir,
}

impl Process {
    /// Starts a command. Failures name it `name`.
    ///
    /// # Panics
    /// When the command cannot be started.
    pub fn start(name: &str, mut command: Command) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let output = settings::scratch_folder("rondel-output-");
        for variable in settings::product_variables() {
            command.env_remove(variable);
        }
        let child = command
            .env(MARK, &mark)
            .stdin(Stdio::null())
            .stdout(File::create(output.path().join("stdout")).expect("make a file for stdout"))
            .stderr(File::create(output.path().join("stderr")).expect("make a file for stderr"))
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("start {name}: {error}"));
        Self { name: name.to_owned(), mark, child, ended: None, output }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to stdout so far.
    pub fn stdout(&self) -> String {
        read_text(&self.output.path().join("stdout"))
    }

    /// What it has written to stderr so far.
    pub fn stderr(&self) -> String {
        read_text(&self.output.path().join("stderr"))
    }

    /// Sends a signal: `Signal::TERM`, `Signal::STOP`, `Signal::CONT`, …
    ///
    /// # Panics
    /// When the process has ended.
    pub fn signal(&mut self, signal: Signal) {
        assert!(self.has_ended().is_none(), "{} has ended before {signal:?}; {}", self.name, self.last_words());
        kill_process(Pid::from_child(&self.child), signal).expect("send a signal");
    }

    /// Kills it with SIGKILL and waits until it is gone. Its children continue to run, as after a crash.
    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait(VANISH_LIMIT).await;
    }

    /// Asks it with SIGTERM to end, and waits until it has.
    pub async fn terminate(&mut self, limit: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait(limit).await
    }

    /// Waits until it ends. Unless SIGKILL ended it, nothing that it started may outlive it.
    pub async fn wait(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("{} ends", self.name);
        let status = wait_until(limit, &what, async || self.has_ended().ok_or_else(|| self.last_words())).await;
        if status.signal() != Some(Signal::KILL.as_raw()) {
            let what = format!("{} has ended ({status}) and left nothing behind", self.name);
            wait_until(LEAK_LIMIT, &what, async || {
                let left = self.family();
                if left.is_empty() { Ok(()) } else { Err(left) }
            })
            .await;
        }
        status
    }

    /// The exit status, once it has ended.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("ask for the exit status");
        }
        self.ended
    }

    /// Waits for a line on stdout or stderr that contains `text`, and returns the first such line.
    ///
    /// # Panics
    /// When the process ends without it.
    pub async fn wait_for_line(&mut self, limit: Duration, text: &str) -> String {
        let what = format!("{} writes a line with {text:?}", self.name);
        wait_until(limit, &what, async || {
            let ended = self.has_ended();
            let (stdout, stderr) = (self.stdout(), self.stderr());
            // The last line may be half written.
            let mut lines = stdout.split_inclusive('\n').chain(stderr.split_inclusive('\n'));
            if let Some(line) = lines.find(|line| line.contains(text) && line.ends_with('\n')) {
                return Ok(line.trim_end().to_owned());
            }
            if let Some(status) = ended {
                panic!("{} has ended ({status}) without a line with {text:?}; {}", self.name, self.last_words());
            }
            Err(self.last_words())
        })
        .await
    }

    /// The end of both outputs, for a failure's message.
    pub fn last_words(&self) -> String {
        let end = |text: String| {
            let lines: Vec<_> = text.lines().collect();
            lines[lines.len().saturating_sub(15)..].join("\n  ")
        };
        format!("stdout:\n  {}\nstderr:\n  {}", end(self.stdout()), end(self.stderr()))
    }

    /// The living processes that descend from this one, itself included: (id, command).
    fn family(&self) -> Vec<(u32, String)> {
        let own_id = if self.ended.is_none() { Some(self.id()) } else { None };
        let all: Vec<_> = living().collect();
        let mut family: Vec<u32> = all
            .iter()
            .filter(|process| Some(process.id) == own_id || has_mark(process.id, &self.mark))
            .map(|process| process.id)
            .collect();
        // Processes that removed the mark from their environment are found by their parents.
        while let Some(child) = all.iter().find(|one| family.contains(&one.parent) && !family.contains(&one.id)) {
            family.push(child.id);
        }
        all.into_iter().filter(|process| family.contains(&process.id)).map(|one| (one.id, one.command)).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the last words of {}: {}", self.name, self.last_words());
        }
        let end = Instant::now() + VANISH_LIMIT;
        loop {
            let family = self.family();
            if family.is_empty() {
                return;
            }
            if Instant::now() > end {
                assert!(std::thread::panicking(), "{} cannot be killed: {family:?}", self.name);
                return;
            }
            for (id, _) in family {
                if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
                    // It may have ended by now; the next scan of the family shows this.
                    kill_process(pid, Signal::KILL).ok();
                }
            }
            self.has_ended();
            pause();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a drop cannot await")]
fn pause() {
    std::thread::sleep(Duration::from_millis(2));
}

struct Living {
    id: u32,
    parent: u32,
    command: String,
}

/// All processes that are not zombies.
fn living() -> impl Iterator<Item = Living> {
    let entries = std::fs::read_dir("/proc").expect("list /proc");
    entries.filter_map(|entry| {
        let id = entry.ok()?.file_name().to_str()?.parse().ok()?;
        // "id (command) state parent …", where the command may contain anything.
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let (head, rest) = stat.rsplit_once(')')?;
        let mut rest = rest.split_whitespace();
        let state = rest.next()?;
        let parent = rest.next()?.parse().ok()?;
        let command = head.split_once('(')?.1.to_owned();
        (state != "Z" && state != "X").then_some(Living { id, parent, command })
    })
}

fn has_mark(id: u32, mark: &str) -> bool {
    let wanted = format!("{MARK}={mark}");
    // A process of another user, or one just gone, is not ours.
    std::fs::read(format!("/proc/{id}/environ"))
        .is_ok_and(|all| all.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes()))
}

fn read_text(path: &Path) -> String {
    let bytes = std::fs::read(path).expect("read the output of a process");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start("the shell", command)
    }

    #[tokio::test]
    async fn a_line_is_found_and_a_signal_ends_it() {
        let mut process = shell("trap 'exit 7' TERM; echo one; echo two >&2; while :; do sleep 0.05; done");
        assert_eq!(process.wait_for_line(LIMIT, "tw").await, "two");
        assert_eq!(process.terminate(LIMIT).await.code(), Some(7));
        assert_eq!(process.stdout(), "one\n");
    }

    #[tokio::test]
    #[should_panic(expected = "without a line with \"three\"")]
    async fn waiting_for_a_line_ends_with_the_process() {
        shell("echo one").wait_for_line(LIMIT, "three").await;
    }

    #[tokio::test]
    #[should_panic(expected = "and left nothing behind; seen last: [")]
    async fn a_child_that_outlives_a_process_is_a_leak() {
        shell("sleep 60 & exit 0").wait(LIMIT).await;
    }

    #[tokio::test]
    async fn a_drop_takes_the_whole_family_along() {
        let mut process = shell("setsid env -i sleep 60 & sh -c 'setsid sleep 61 &'; echo ready; wait");
        process.wait_for_line(LIMIT, "ready").await;
        let family = wait_until(LIMIT, "the shell and two sleepers", async || {
            let family = process.family();
            let sleepers = family.iter().filter(|(_, command)| command == "sleep").count();
            if sleepers == 2 && family.len() == 3 { Ok(family) } else { Err(family) }
        })
        .await;
        drop(process);
        assert!(living().all(|one| family.iter().all(|(id, _)| *id != one.id)));
    }

    #[tokio::test]
    async fn a_paused_process_writes_nothing_until_it_continues() {
        let mut process = shell("while :; do echo tick; sleep 0.02; done");
        process.wait_for_line(LIMIT, "tick").await;
        process.signal(Signal::STOP);
        let id = process.id();
        wait_until(LIMIT, "it is stopped", async || {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
            if stat.contains(") T ") { Ok(()) } else { Err(stat) }
        })
        .await;
        let printed = process.stdout();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(process.stdout(), printed);
        process.signal(Signal::CONT);
        wait_until(LIMIT, "it continues", async || if process.stdout() == printed { Err(()) } else { Ok(()) }).await;
        process.kill().await;
    }
}
