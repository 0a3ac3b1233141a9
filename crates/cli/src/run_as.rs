//! `rondel agent --run-as`: starts programs as another user of this host, with that user's groups.
//!
//! The standard library can start programs as another user, but without supplementary groups. So the agent starts this
//! binary a second time. That process has one thread; it changes its groups, group and user, and then becomes the
//! program.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use rondel::agent::RunAs;
use uzers::User;
use uzers::os::unix::UserExt as _;

use crate::config::AgentConfig;
use crate::exit::{Exit, Failure};

/// The ids of a user.
#[derive(Debug, Args)]
pub(crate) struct Ids {
    #[arg(long)]
    uid: u32,
    #[arg(long)]
    gid: u32,
    #[arg(long, value_delimiter = ',')]
    groups: Vec<u32>,
}

/// Becomes a program as this user.
#[derive(Debug, Args)]
pub(crate) struct ExecAs {
    #[command(flatten)]
    ids: Ids,
    #[arg(long)]
    cwd: PathBuf,
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// Checks as this user that a folder is accessible, and that the agent's own files are not.
#[derive(Debug, Args)]
pub(crate) struct ProbeAs {
    #[command(flatten)]
    ids: Ids,
    /// Files that it must not be able to open, and folders that it must not be able to enter
    #[arg(long = "closed")]
    closed: Vec<PathBuf>,
    folder: PathBuf,
}

/// The user with this name, and the commands that start programs as that user.
pub(crate) fn find_user(name: &str, config: &AgentConfig) -> Result<RunAs, Failure> {
    let refusal = |sentence: String| Failure::refused(format!("agent.run_as: {sentence}"));
    let own_uid = uzers::get_effective_uid();
    if own_uid != 0 {
        return Err(refusal(format!(
            "only root can start programs as {name:?}, and this agent runs as user {own_uid}: start it as root, or as {name} \
             without --run-as"
        )));
    }
    let user =
        uzers::get_user_by_name(name).ok_or_else(|| refusal(format!("there is no user {name:?} on this host")))?;
    let (uid, gid) = (user.uid(), user.primary_group_id());
    if uid == 0 {
        return Err(refusal(format!("{name:?} is root: name a user who may do less than the agent")));
    }
    let mut groups = groups_of(name, &user).ok_or_else(|| refusal(format!("cannot look the groups of {name:?} up")))?;
    // The primary group belongs to the user's groups even if the host has no entry for it.
    if !groups.contains(&gid) {
        groups.push(gid);
    }
    let program = std::env::current_exe().map_err(|error| Failure::of("cannot find this program", &error))?;
    let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
    let ids = [("--uid", uid.to_string()), ("--gid", gid.to_string()), ("--groups", groups.join(","))];
    let ids: Vec<OsString> = ids.into_iter().flat_map(|(flag, value)| [flag.into(), value.into()]).collect();
    let start_command = |word: &str| -> Vec<OsString> {
        [program.clone().into_os_string(), "agent".into(), word.into()].into_iter().chain(ids.clone()).collect()
    };
    let closed_flags = own_files(config).into_iter().flat_map(|path| ["--closed".into(), path.into_os_string()]);
    Ok(RunAs {
        launcher: start_command("exec-as"),
        probe: start_command("probe-as").into_iter().chain(closed_flags).chain(["--".into()]).collect(),
        uid,
        gid,
        home: user.home_dir().to_owned(),
        shell: user.shell().to_owned(),
        name: name.to_owned(),
    })
}

#[cfg(target_os = "linux")]
fn groups_of(name: &str, user: &User) -> Option<Vec<u32>> {
    let groups = uzers::get_user_groups(name, user.primary_group_id())?;
    Some(groups.iter().map(uzers::Group::gid).collect())
}

/// Supplementary groups are only set on Linux.
#[cfg(not(target_os = "linux"))]
fn groups_of(_: &str, _: &User) -> Option<Vec<u32>> {
    None
}

/// The files that belong to the agent alone: its token, its key, its secrets, and the results in its data folder.
fn own_files(config: &AgentConfig) -> Vec<PathBuf> {
    let configured_files = [&config.settings.token_file, &config.settings.data_dir].into_iter().flatten().cloned();
    let key = config.certificate_and_key.iter().map(|(_, key)| key.clone());
    let secrets = config.settings.secrets_dir.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten());
    let secrets = secrets.flatten().map(|entry| entry.path()).filter(|path| path.is_file());
    let paths = configured_files.chain(key).chain(secrets);
    // Absolute paths, because the probe is started in another folder.
    paths.map(|path| std::path::absolute(&path).unwrap_or(path)).collect()
}

impl Ids {
    /// Switches this single-threaded process to the user. This cannot be undone.
    #[cfg(target_os = "linux")]
    fn become_user(&self) -> Result<(), Failure> {
        use rustix::fs::{Gid, Uid};

        let failure = |error: rustix::io::Errno| Failure::of(format!("cannot become user {}", self.uid), &error);
        let groups: Vec<Gid> = self.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        rustix::thread::set_thread_groups(&groups).map_err(failure)?;
        rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(failure)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(failure)?;
        if rustix::thread::set_thread_uid(Uid::ROOT).is_ok() {
            return Err(Failure::from_text(format!("user {} can become root again", self.uid)));
        }
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    fn become_user(&self) -> Result<(), Failure> {
        Err(Failure::from_text("that is possible on Linux alone"))
    }
}

impl ExecAs {
    /// Becomes the program; returns only if that fails.
    pub(crate) fn run(self) -> Failure {
        if let Err(failure) = self.ids.become_user() {
            return failure;
        }
        let Some((program, arguments)) = self.program.split_first() else {
            return Failure::refused("there is no program to start");
        };
        if let Err(error) = std::env::set_current_dir(&self.cwd) {
            return Failure::new(Exit::CannotStart, format!("cannot enter {}: {error}", self.cwd.display()));
        }
        let error = Command::new(program).args(arguments).env_clear().envs(program_variables()).exec();
        let exit = if error.kind() == ErrorKind::NotFound { Exit::NoProgram } else { Exit::CannotStart };
        Failure::new(exit, format!("cannot start {}: {error}", program.display()))
    }
}

/// The variables that the agent passed to this process for the program.
fn program_variables() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter_map(|(name, value)| {
        let name = name.as_bytes().strip_prefix(RunAs::VARIABLE_PREFIX.as_bytes())?;
        Some((OsStr::from_bytes(name).to_owned(), value))
    })
}

impl ProbeAs {
    /// Fails with a sentence if the user cannot work in the folder, or can read what belongs to the agent.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        self.ids.become_user()?;
        let uid = self.ids.uid;
        if let Err(error) = std::fs::write(self.folder.join("probe"), "") {
            return Err(Failure::from_text(format!(
                "user {uid} cannot work in {} ({error}): with --run-as, --work-dir must name a folder that the user can reach",
                self.folder.display()
            )));
        }
        match self.closed.iter().find(|path| can_open(path)) {
            None => Ok(()),
            Some(path) => Err(Failure::from_text(format!(
                "user {uid} can read {}, which belongs to the agent alone: take the permissions of others away (chmod go= {})",
                path.display(),
                path.display()
            ))),
        }
    }
}

fn can_open(path: &Path) -> bool {
    path.join(".").metadata().is_ok() || std::fs::File::open(path).is_ok()
}
