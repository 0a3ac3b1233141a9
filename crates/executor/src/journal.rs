//! The data directory: a lock, the identity of the previous process, and the results that no server has acknowledged
//! yet.
//!
//! `lock` keeps a second process out. `state.json` stores the incarnation and its secret, so that the next process can
//! prove to a server that this process is dead. `results.jsonl` gets one line per result, made durable in batches. The
//! file is emptied when all results are acknowledged. A line that a crash or a full disk left half-written is skipped;
//! the other lines count.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rondel_proto::v1;
use serde::{Deserialize, Serialize};

use crate::error::ExecutorError;
use crate::identity::Secret;
use crate::lifecycle::lock;

/// A journal larger than this is rewritten if most of its lines are no longer needed.
const REWRITE_BYTES: usize = 16 * 1024 * 1024;

/// The usual length of a line in bytes, for estimating how much of the journal is needed.
const LINE_BYTES: usize = 512;

#[derive(Debug)]
pub(crate) struct Journal {
    dir: PathBuf,
    state: Mutex<State>,
    results: Mutex<File>,
    /// The size of the file of results.
    results_bytes: AtomicUsize,
    /// The size of the file of results after it was last rewritten.
    rewritten_bytes: AtomicUsize,
    /// The number of results in the file after it was last rewritten.
    rewritten_count: AtomicUsize,
    /// Whether the last write failed, perhaps in the middle of a line.
    is_torn: AtomicBool,
    /// Whether a server has welcomed this incarnation, and this is not on disk yet.
    is_welcome_pending: AtomicBool,
    /// Keeps the directory locked until the process ends.
    _lock: File,
}

/// The contents of a data directory, opened by an executor.
#[derive(Debug)]
pub(crate) struct OpenedJournal {
    pub(crate) journal: Journal,
    pub(crate) name: String,
    /// Proves the identity of this incarnation.
    pub(crate) secret: Secret,
    pub(crate) predecessor: Predecessor,
    pub(crate) results: Vec<v1::Result>,
}

/// The previous incarnation with this data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Predecessor {
    /// The incarnation's number; 0 if there was no previous one.
    pub(crate) incarnation: i64,
    /// The incarnation's secret; empty if it had none.
    pub(crate) secret: Secret,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    name: String,
    incarnation: i64,
    /// The previous incarnation; 0 once a server has welcomed this one.
    predecessor: i64,
    /// Whether a server has welcomed this incarnation.
    welcomed: bool,
    #[serde(default)]
    secret: Secret,
    #[serde(default)]
    predecessor_secret: Secret,
}

impl Journal {
    /// Opens and locks the directory for an executor with this incarnation. `name` replaces the stored name.
    pub(crate) fn open(dir: &Path, name: Option<&str>, incarnation: i64) -> Result<OpenedJournal, ExecutorError> {
        let dir_error = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| ExecutorError::DataDir { operation, path, source }
        };
        create_dir(dir).map_err(dir_error("create", dir))?;
        let lock_file = lock_dir(dir)?;
        let state_path = dir.join("state.json");
        let stored_state = read_state(&state_path).map_err(dir_error("read", &state_path))?;
        // If no server ever welcomed the last process, the predecessor of that process still counts.
        let predecessor = match stored_state.welcomed {
            true => Predecessor { incarnation: stored_state.incarnation, secret: stored_state.secret },
            false => Predecessor { incarnation: stored_state.predecessor, secret: stored_state.predecessor_secret },
        };
        let name = name.map(str::to_owned).or_else(|| (!stored_state.name.is_empty()).then_some(stored_state.name));
        let name = name.unwrap_or_else(crate::identity::default_name);
        let secret = Secret::new();
        let state = State {
            name: name.clone(),
            incarnation,
            predecessor: predecessor.incarnation,
            welcomed: false,
            secret: secret.clone(),
            predecessor_secret: predecessor.secret.clone(),
        };
        write_state(dir, &state).map_err(dir_error("write", &state_path))?;
        let results_path = dir.join("results.jsonl");
        let results = read_results(&results_path).map_err(dir_error("read", &results_path))?;
        let file = open_for_append(&results_path).map_err(dir_error("open", &results_path))?;
        let journal = Self {
            dir: dir.to_owned(),
            state: Mutex::new(state),
            results: Mutex::new(file),
            results_bytes: AtomicUsize::new(0),
            rewritten_bytes: AtomicUsize::new(0),
            rewritten_count: AtomicUsize::new(0),
            is_torn: AtomicBool::new(false),
            is_welcome_pending: AtomicBool::new(false),
            _lock: lock_file,
        };
        // A half-written line that a crash left at the end must not be joined with the next one.
        journal.rewrite(&results).map_err(dir_error("write", &results_path))?;
        Ok(OpenedJournal { journal, name, secret, predecessor, results })
    }

    /// Makes results durable.
    pub(crate) fn append(&self, results: &[v1::Result]) -> io::Result<()> {
        let text = journal_text(results)?;
        let mut file = lock(&self.results);
        if self.is_torn.load(Ordering::Relaxed) {
            // The last write failed, so the file may end with half a line: the next line must not become part of it.
            file.write_all(b"\n")?;
            self.results_bytes.fetch_add(1, Ordering::Relaxed);
            self.is_torn.store(false, Ordering::Relaxed);
        }
        let write_result = file.write_all(&text).and_then(|()| file.sync_data());
        self.is_torn.store(write_result.is_err(), Ordering::Relaxed);
        self.results_bytes.fetch_add(text.len(), Ordering::Relaxed);
        write_result
    }

    /// Whether the journal should be rewritten, because few of its lines are still needed. `needed_count` is their number.
    /// Lines can be much longer than usual. A journal whose lines are all needed is therefore rewritten only each time
    /// that its size has doubled, or that half of them are no longer needed, and not with every result.
    pub(crate) fn needs_shrinking(&self, needed_count: usize) -> bool {
        let bytes = self.results_bytes.load(Ordering::Relaxed);
        let has_doubled = bytes / 2 >= self.rewritten_bytes.load(Ordering::Relaxed);
        let has_halved = needed_count <= self.rewritten_count.load(Ordering::Relaxed) / 2;
        let is_mostly_unneeded =
            bytes > REWRITE_BYTES && (has_doubled || has_halved) && needed_count * LINE_BYTES < bytes / 2;
        bytes > 0 && (needed_count == 0 || is_mostly_unneeded)
    }

    /// Replaces all lines with these results.
    pub(crate) fn rewrite(&self, results: &[v1::Result]) -> io::Result<()> {
        let mut file = lock(&self.results);
        let text = journal_text(results)?;
        if text.is_empty() {
            file.set_len(0)?;
        } else {
            let path = self.dir.join("results.jsonl");
            replace_file(&self.dir, &path, &text)?;
            *file = open_for_append(&path)?;
        }
        self.results_bytes.store(text.len(), Ordering::Relaxed);
        self.rewritten_bytes.store(text.len(), Ordering::Relaxed);
        self.rewritten_count.store(results.len(), Ordering::Relaxed);
        self.is_torn.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Records in memory that a server has welcomed this incarnation, so that the next incarnation may name this one as
    /// its predecessor. [`Self::store_welcome`] writes this to disk.
    pub(crate) fn record_welcome(&self) {
        if !lock(&self.state).welcomed {
            self.is_welcome_pending.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the welcome is still to be written to disk.
    pub(crate) fn is_welcome_pending(&self) -> bool {
        self.is_welcome_pending.load(Ordering::Relaxed)
    }

    /// Writes to disk that a server has welcomed this incarnation.
    pub(crate) fn store_welcome(&self) -> io::Result<()> {
        let old_state = lock(&self.state).clone();
        let state = State { welcomed: true, predecessor: 0, predecessor_secret: Secret::default(), ..old_state };
        write_state(&self.dir, &state)?;
        *lock(&self.state) = state;
        self.is_welcome_pending.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// Creates the directory for this user only: results may contain anything.
fn create_dir(dir: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

fn lock_dir(dir: &Path) -> Result<File, ExecutorError> {
    let path = dir.join("lock");
    let lock_error = |source| ExecutorError::DataDir { operation: "lock", path: path.clone(), source };
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(lock_error)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(ExecutorError::DataDirInUse { path: dir.to_owned() }),
        Err(std::fs::TryLockError::Error(source)) => Err(lock_error(source)),
    }
}

fn read_state(path: &Path) -> io::Result<State> {
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(State::default()),
        Err(error) => Err(error),
    }
}

fn write_state(dir: &Path, state: &State) -> io::Result<()> {
    let text = serde_json::to_vec(state).map_err(io::Error::other)?;
    replace_file(dir, &dir.join("state.json"), &text)
}

/// Replaces a file atomically: a crash leaves the old one or the new one.
fn replace_file(dir: &Path, path: &Path, text: &[u8]) -> io::Result<()> {
    let temp_path = path.with_extension("new");
    let mut file = owner_only_options().write(true).create(true).truncate(true).open(&temp_path)?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(&temp_path, path)?;
    File::open(dir)?.sync_all()
}

fn open_for_append(path: &Path) -> io::Result<File> {
    owner_only_options().create(true).append(true).open(path)
}

/// Options for files that only this user may read, even in a folder that another user made.
fn owner_only_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn read_results(path: &Path) -> io::Result<Vec<v1::Result>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let (mut results, mut unreadable_count) = (Vec::new(), 0);
    for line in BufReader::new(file).split(b'\n') {
        let line = line?;
        match serde_json::from_slice::<Line>(&line) {
            Ok(line) => results.push(line.into()),
            Err(_) if line.is_empty() => {}
            Err(_) => unreadable_count += 1,
        }
    }
    if unreadable_count > 0 {
        let (path, result_count) = (path.display(), results.len());
        tracing::warn!(
            %path, unreadable = unreadable_count, read = result_count,
            "the journal has lines that were only partly written; the other lines are kept"
        );
    }
    Ok(results)
}

fn journal_text(results: &[v1::Result]) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for result in results {
        serde_json::to_writer(&mut text, &Line::from(result)).map_err(io::Error::other)?;
        text.push(b'\n');
    }
    Ok(text)
}

/// A result as a line of the journal.
#[derive(Serialize, Deserialize)]
struct Line {
    run_id: i64,
    attempt: i32,
    job_id: i64,
    status: i32,
    message: String,
    result: String,
    retryable: bool,
    started_at_ms: i64,
    finished_at_ms: i64,
    /// Journals of older executors lack this field and the following ones.
    #[serde(default)]
    silent_ms: i64,
    #[serde(default)]
    unfinished: bool,
    #[serde(default)]
    shutting_down: bool,
}

impl From<&v1::Result> for Line {
    fn from(result: &v1::Result) -> Self {
        Self {
            run_id: result.run_id,
            attempt: result.attempt,
            job_id: result.job_id,
            status: result.status,
            message: result.message.clone(),
            result: result.result.clone(),
            retryable: result.retryable,
            started_at_ms: result.started_at_ms,
            finished_at_ms: result.finished_at_ms,
            silent_ms: result.silent_ms,
            unfinished: result.unfinished,
            shutting_down: result.shutting_down,
        }
    }
}

impl From<Line> for v1::Result {
    fn from(line: Line) -> Self {
        Self {
            run_id: line.run_id,
            attempt: line.attempt,
            status: line.status,
            message: line.message,
            result: line.result,
            retryable: line.retryable,
            started_at_ms: line.started_at_ms,
            finished_at_ms: line.finished_at_ms,
            job_id: line.job_id,
            silent_ms: line.silent_ms,
            unreported_ms: 0,
            unfinished: line.unfinished,
            shutting_down: line.shutting_down,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(run_id: i64) -> v1::Result {
        v1::Result {
            run_id,
            attempt: 1,
            message: "line\nbreak".to_owned(),
            silent_ms: 15_000,
            unfinished: true,
            shutting_down: true,
            ..v1::Result::default()
        }
    }

    fn open(dir: &Path, incarnation: i64) -> OpenedJournal {
        Journal::open(dir, None, incarnation).unwrap()
    }

    #[test]
    fn results_outlive_the_process_until_they_are_not_needed() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path(), 11);
        assert_eq!((first.predecessor, first.results.len()), (Predecessor::default(), 0));
        first.journal.append(&[result(1), result(2)]).unwrap();
        first.journal.record_welcome();
        first.journal.store_welcome().unwrap();
        drop(first.journal);
        let second = open(dir.path(), 12);
        let before = Predecessor { incarnation: 11, secret: first.secret };
        assert_eq!((&second.predecessor, &second.name), (&before, &first.name));
        assert!(second.secret != before.secret && before.secret.bytes().len() == 32);
        assert_eq!(second.results, [result(1), result(2)]);
        assert!(!second.journal.needs_shrinking(2) && second.journal.needs_shrinking(0));
        second.journal.rewrite(&[]).unwrap();
        second.journal.append(&[result(3)]).unwrap();
        drop(second.journal);
        let third = open(dir.path(), 13);
        assert_eq!(third.predecessor, before, "no server has heard of the second");
        assert_eq!(third.results, [result(3)]);
    }

    #[test]
    fn a_large_journal_whose_lines_are_needed_is_not_rewritten_with_every_result() {
        let dir = tempfile::tempdir().unwrap();
        let journal = open(dir.path(), 11).journal;
        let long_result = |run_id| v1::Result { result: "x".repeat(60_000), ..result(run_id) };
        let mut unacked_results = Vec::new();
        let mut rewrite_count = 0;
        for batch in 0..6 {
            let results: Vec<_> = (0..100).map(|index| long_result(100 * batch + index)).collect();
            journal.append(&results).unwrap();
            unacked_results.extend(results);
            if journal.needs_shrinking(unacked_results.len()) {
                rewrite_count += 1;
                journal.rewrite(&unacked_results).unwrap();
            }
        }
        assert!(rewrite_count <= 2, "beyond 16 MiB, the size has doubled once: {rewrite_count}");
        assert!(journal.needs_shrinking(0), "no line is needed");
    }

    #[test]
    fn a_directory_of_a_version_without_secrets_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"name":"pod","incarnation":7,"predecessor":0,"welcomed":true}"#;
        std::fs::write(dir.path().join("state.json"), text).unwrap();
        let next = open(dir.path(), 8);
        assert_eq!(next.predecessor, Predecessor { incarnation: 7, secret: Secret::default() });
    }

    #[cfg(unix)]
    #[test]
    fn its_files_are_the_owners_alone_in_a_folder_that_everybody_reads() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let first = open(dir.path(), 1);
        first.journal.append(&[result(1)]).unwrap();
        first.journal.rewrite(&[result(1)]).unwrap();
        first.journal.record_welcome();
        first.journal.store_welcome().unwrap();
        for name in ["results.jsonl", "state.json"] {
            let mode = dir.path().join(name).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }

    #[test]
    fn a_half_written_line_ends_the_journal() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path(), 1);
        first.journal.append(&[result(1)]).unwrap();
        drop(first.journal);
        let path = dir.path().join("results.jsonl");
        open_for_append(&path).unwrap().write_all(b"{\"run_id\":2,\"att").unwrap();
        let second = open(dir.path(), 2);
        assert_eq!(second.results, [result(1)]);
        second.journal.append(&[result(3)]).unwrap();
        drop(second.journal);
        assert_eq!(open(dir.path(), 3).results, [result(1), result(3)]);
    }

    #[test]
    fn a_full_disk_costs_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let journal = open(dir.path(), 1).journal;
        journal.append(&[result(1)]).unwrap();
        let path = dir.path().join("results.jsonl");
        let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let file = std::mem::replace(&mut *lock(&journal.results), full);
        let error = journal.append(&[result(2)]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        // The disk had room for part of the line only. Then there is room again.
        open_for_append(&path).unwrap().write_all(b"{\"run_id\":2,\"att").unwrap();
        *lock(&journal.results) = file;
        journal.append(&[result(3)]).unwrap();
        journal.append(&[result(4)]).unwrap();
        drop(journal);
        assert_eq!(open(dir.path(), 2).results, [result(1), result(3), result(4)]);
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_named() {
        let error = Journal::open(Path::new("/proc/no-such-folder"), None, 1).unwrap_err().to_string();
        assert!(error.contains("/proc/no-such-folder"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("state.json"), "{\"name\":").unwrap();
        let error = Journal::open(dir.path(), None, 1).unwrap_err().to_string();
        assert!(error.contains("state.json"), "{error}");
    }

    #[test]
    fn a_directory_belongs_to_one_process() {
        let dir = tempfile::tempdir().unwrap();
        let _first = open(dir.path(), 1);
        let second = Journal::open(dir.path(), None, 2);
        assert!(matches!(second, Err(ExecutorError::DataDirInUse { .. })), "{second:?}");
    }
}
