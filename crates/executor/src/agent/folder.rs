//! Working directories: each run gets a fresh one, which is removed when the run ends. The directories of dead agents
//! are cleaned up.
//!
//! An agent has one folder, `agent-…`, which holds a lock file and the folders of its runs. The lock ends with the
//! process. When an agent starts, it checks the sibling folders. A folder whose lock is free belongs to a dead agent:
//! the processes still running in it are ended, and the folder is removed.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use tempfile::TempDir;

use super::confine::RunAs;
use super::process_tree::{WORK_DIR, kill_with_variable};
use crate::lifecycle::lock;
use crate::run::RunContext;

const PREFIX: &str = "agent-";
/// Prefix of a folder whose lock file does not exist yet.
const NEW_PREFIX: &str = ".new-";
const LOCK_FILE: &str = "lock";
const OWNER_ONLY_MODE: u32 = 0o700;
/// Mode of a folder that other users can enter but not list, so that each user reaches only its own folders inside.
const TRAVERSE_ONLY_MODE: u32 = 0o711;
const PRIVATE_FILE_MODE: u32 = 0o600;

/// The folder of this agent.
#[derive(Debug)]
pub(super) struct AgentFolder {
    path: PathBuf,
    is_shared: bool,
    mode: u32,
    /// The folder's lock file. It stays locked for as long as the agent lives.
    lock: Mutex<File>,
    watcher: Mutex<Option<Child>>,
}

/// The default base folder: a folder of this user in the host's temporary directory.
pub(super) fn default_base_folder() -> PathBuf {
    std::env::temp_dir().join(format!("rondel-agent-{}", own_uid()))
}

fn own_uid() -> u32 {
    rustix::process::getuid().as_raw()
}

impl AgentFolder {
    /// Makes the agent's folder in `base_folder`, after removing those of dead agents. `is_shared` is true if other
    /// users can write to the directory that contains the base folder: one of them may have made the base folder, so it
    /// must belong to this user. `watcher` is a program that cleans up immediately if this process dies: see
    /// [`clean_up_after`]. The user `run_as` can enter the working directories of runs.
    pub(super) fn open(
        base_folder: &Path,
        is_shared: bool,
        watcher: Option<&[PathBuf]>,
        run_as: Option<&RunAs>,
    ) -> io::Result<Self> {
        let mode = if run_as.is_some() { TRAVERSE_ONLY_MODE } else { OWNER_ONLY_MODE };
        let base_folder = open_base(base_folder, is_shared, mode)?;
        remove_dead_folders(&base_folder);
        let (temp_folder, lock) = new_folder(&base_folder, mode)?;
        // The folder becomes visible to other agents only now, when it is locked.
        let name = temp_folder.path().file_name().map(|name| name.to_string_lossy().replace(NEW_PREFIX, PREFIX));
        let path = base_folder.join(name.unwrap_or_else(|| format!("{PREFIX}{}", std::process::id())));
        std::fs::rename(temp_folder.path(), &path)?;
        // Keeps the guard of the temporary directory from removing a path that no longer exists.
        drop(temp_folder.keep());
        let watcher = watcher.and_then(|command| start_watcher(command, &path));
        let agent_folder = Self { path, is_shared, mode, lock: Mutex::new(lock), watcher: Mutex::new(watcher) };
        if let Some(user) = run_as {
            let probe_folder = builder("probe-").tempdir_in(&agent_folder.path)?;
            std::os::unix::fs::lchown(probe_folder.path(), Some(user.uid), Some(user.gid))?;
            user.probe(probe_folder.path())?;
        }
        Ok(agent_folder)
    }

    /// Makes a working directory for one attempt, for this user only.
    pub(super) fn make_work_dir(&self, run: &RunContext) -> io::Result<TempDir> {
        let prefix = format!("run-{}-{}-", run.run_id(), run.attempt());
        match builder(&prefix).tempdir_in(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.recreate()?;
                builder(&prefix).tempdir_in(&self.path)
            }
            result => result,
        }
    }

    /// Makes the agent's folder again if it is gone: hosts remove files from temporary directories that were not used for
    /// days.
    fn recreate(&self) -> io::Result<()> {
        let mut lock_file = lock(&self.lock);
        if self.path.exists() {
            return Ok(());
        }
        let base_folder = open_base(self.path.parent().unwrap_or(&self.path), self.is_shared, self.mode)?;
        let (temp_folder, new_lock_file) = new_folder(&base_folder, self.mode)?;
        std::fs::rename(temp_folder.path(), &self.path)?;
        drop(temp_folder.keep());
        *lock_file = new_lock_file;
        let folder = self.path.display();
        tracing::warn!(%folder, "the folder of the working directories was removed; it is created again");
        Ok(())
    }
}

impl Drop for AgentFolder {
    fn drop(&mut self) {
        if let Err(error) = remove_all(&self.path) {
            tracing::warn!(%error, folder = %self.path.display(), "cannot remove the working directories");
        }
        if let Some(mut watcher) = lock(&self.watcher).take() {
            drop(watcher.stdin.take());
            if let Err(error) = watcher.wait() {
                tracing::warn!(%error, "cannot wait for the watcher's end");
            }
        }
    }
}

/// Makes the base folder, which contains the folders of all agents, if it does not exist. Returns its path without
/// symbolic links. If other users can write to its parent directory (`is_shared`), it must belong to this user.
fn open_base(base_folder: &Path, is_shared: bool, mode: u32) -> io::Result<PathBuf> {
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(base_folder)?;
    let metadata = base_folder.symlink_metadata()?;
    if is_shared && (metadata.uid() != own_uid() || !metadata.is_dir()) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    let base_folder = base_folder.canonicalize()?;
    if is_shared && mode == TRAVERSE_ONLY_MODE {
        // Another agent of this user may have made the base folder so that only this user can enter it.
        std::fs::set_permissions(&base_folder, Permissions::from_mode(mode))?;
    }
    Ok(base_folder)
}

/// Makes an agent's folder under a name that other agents ignore, and locks it.
fn new_folder(base_folder: &Path, mode: u32) -> io::Result<(TempDir, File)> {
    let temp_folder = builder(NEW_PREFIX).tempdir_in(base_folder)?;
    std::fs::set_permissions(temp_folder.path(), Permissions::from_mode(mode))?;
    // A run must not be able to open the lock file: it could lock the file and keep the next agent from cleaning up.
    let lock = File::options()
        .write(true)
        .create_new(true)
        .mode(PRIVATE_FILE_MODE)
        .open(temp_folder.path().join(LOCK_FILE))?;
    lock.lock()?;
    Ok((temp_folder, lock))
}

fn builder(prefix: &str) -> tempfile::Builder<'_, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).permissions(Permissions::from_mode(OWNER_ONLY_MODE));
    builder
}

fn start_watcher(command: &[PathBuf], path: &Path) -> Option<Child> {
    let (program, arguments) = command.split_first()?;
    let mut command = Command::new(program);
    // The watcher gets no variables: it needs none, and other users could read them.
    command.args(arguments).arg(path).env_clear().stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
    let spawn_result = command.spawn();
    let log_failure = |error: &io::Error| {
        tracing::warn!(%error, "no watcher: if this agent is killed, the processes of its runs continue until an agent starts here");
    };
    spawn_result.inspect_err(log_failure).ok()
}

/// Waits until standard input ends, which happens when the agent that started this process exits or is killed. Then
/// ends the processes that the agent's runs left, and removes the folder.
///
/// # Errors
/// The error of reading the input, or of the removal.
pub fn clean_up_after(folder: &Path) -> io::Result<()> {
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    clean_up(folder)
}

/// Ends the processes that dead agents left running, and removes the folders of these agents.
fn remove_dead_folders(base_folder: &Path) {
    let Ok(entries) = std::fs::read_dir(base_folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(PREFIX)
            && is_dead_folder(&path)
            && let Err(error) = clean_up(&path)
        {
            tracing::warn!(%error, folder = %path.display(), "cannot remove the folder of a dead agent");
        }
    }
}

/// Whether the path is a folder of this user whose lock is free.
fn is_dead_folder(path: &Path) -> bool {
    let is_ours = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == own_uid());
    is_ours && File::open(path.join(LOCK_FILE)).is_ok_and(|lock| lock.try_lock().is_ok())
}

fn clean_up(folder: &Path) -> io::Result<()> {
    let count = kill_with_variable(WORK_DIR, &format!("{}/", folder.display()));
    if count > 0 {
        tracing::warn!(count, folder = %folder.display(), "ended processes that a dead agent had left running");
    }
    match remove_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes a folder with everything in it. A run may leave directories without write permission, such as the module
/// cache of Go; these are made writable first.
pub(super) fn remove_all(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if may_make_writable(own_uid()) && error.kind() == io::ErrorKind::PermissionDenied => {
            make_writable(folder)?;
            std::fs::remove_dir_all(folder)
        }
        result => result,
    }
}

/// Whether this user changes permissions in a tree that others write to. Root need not do so, because root can remove
/// files whatever their permissions. It would also be dangerous for root: a process that a run left could replace a
/// directory with a symbolic link just before the permissions are changed.
const fn may_make_writable(uid: u32) -> bool {
    uid != 0
}

/// Gives the owner of each directory of the tree all rights to it. Symbolic links are not followed.
fn make_writable(folder: &Path) -> io::Result<()> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let mode = folder.symlink_metadata()?.permissions().mode();
        std::fs::set_permissions(&folder, Permissions::from_mode(mode | OWNER_ONLY_MODE))?;
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rondel_proto::v1::Trigger;
    use tokio::time::Instant;

    use super::*;
    use crate::setup::{Setup, States, Timing};

    #[tokio::test]
    async fn folders_are_private_and_go_with_their_runs() {
        let base = tempfile::tempdir().unwrap();
        let folders = AgentFolder::open(base.path(), true, None, None).unwrap();
        let setup = Arc::new(Setup::new(States::default(), Timing::default()));
        let run = folders.make_work_dir(&RunContext::new(&setup, Trigger::default(), 0)).unwrap();
        assert_eq!(run.path().metadata().unwrap().mode() & 0o777, OWNER_ONLY_MODE);
        let path = run.path().to_owned();
        drop(run);
        assert!(!path.exists() && folders.path.exists());
        drop(folders);
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_folder_that_the_host_has_removed_is_made_again() {
        let place = tempfile::tempdir().unwrap();
        let base = place.path().join("agents");
        let folders = AgentFolder::open(&base, true, None, None).unwrap();
        let setup = Arc::new(Setup::new(States::default(), Timing::default()));
        for gone in [&folders.path, &base] {
            std::fs::remove_dir_all(gone).unwrap();
            let run = folders.make_work_dir(&RunContext::new(&setup, Trigger::default(), 0)).unwrap();
            let mode = |folder: &Path| folder.metadata().unwrap().mode() & 0o777;
            assert_eq!((mode(run.path()), mode(&folders.path)), (OWNER_ONLY_MODE, OWNER_ONLY_MODE));
            assert!(File::open(folders.path.join(LOCK_FILE)).unwrap().try_lock().is_err(), "it is locked again");
            let next = AgentFolder::open(&base, true, None, None).unwrap();
            assert!(run.path().exists() && next.path.exists(), "it is not taken for that of a dead agent");
        }
    }

    #[test]
    fn root_changes_no_permissions_in_the_folder_of_a_run() {
        assert_eq!([0, 1_000].map(may_make_writable), [false, true]);
    }

    #[test]
    fn a_read_only_directory_is_removed_with_the_others() {
        let base = tempfile::tempdir().unwrap();
        let (run, outside) = (base.path().join("run"), base.path().join("outside"));
        let (read_only, closed) = (run.join("mod"), run.join("mod/closed"));
        for folder in [&closed, &outside] {
            std::fs::create_dir_all(folder).unwrap();
        }
        File::create(read_only.join("go.mod")).unwrap();
        std::os::unix::fs::symlink(&outside, run.join("link")).unwrap();
        let mode = |folder: &Path| folder.metadata().unwrap().mode() & 0o777;
        for (folder, mode) in [(&closed, 0o000), (&read_only, 0o555), (&outside, 0o555)] {
            std::fs::set_permissions(folder, Permissions::from_mode(mode)).unwrap();
        }
        // Root can write to every directory, so the test compares the permissions themselves.
        make_writable(&run).unwrap();
        assert_eq!((mode(&closed), mode(&read_only), mode(&outside)), (0o700, 0o755, 0o555));
        std::fs::set_permissions(&read_only, Permissions::from_mode(0o555)).unwrap();
        remove_all(&run).unwrap();
        assert!(!run.exists() && outside.exists());
    }

    #[tokio::test]
    async fn folders_of_dead_agents_are_removed_at_the_next_start() {
        let base = tempfile::tempdir().unwrap();
        let living = AgentFolder::open(base.path(), true, None, None).unwrap();
        let dead = base.path().join("agent-dead");
        std::fs::create_dir_all(dead.join("run-1-1-x")).unwrap();
        File::create(dead.join(LOCK_FILE)).unwrap();
        let not_one = base.path().join("agent-without-lock");
        std::fs::create_dir(&not_one).unwrap();
        let mut left = Command::new("sleep");
        let mut left = left.arg("60").env(WORK_DIR, dead.join("run-1-1-x").canonicalize().unwrap()).spawn().unwrap();
        // A process that has just begun has no environment to be read yet.
        let environment = format!("/proc/{}/environ", left.id());
        let begun = Instant::now();
        while std::fs::read(&environment).unwrap().is_empty() && begun.elapsed() < Duration::from_secs(10) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }

        let next = AgentFolder::open(base.path(), true, None, None).unwrap();
        assert!(!dead.exists() && not_one.exists() && living.path.exists() && next.path.exists());
        assert!(!left.wait().unwrap().success());
    }
}
