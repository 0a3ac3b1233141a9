//! Removes the agent's token and secrets from its environment.
//!
//! `/proc/PID/environ` keeps the environment that a process started with, whatever the process does later. Root can read it.
//! All processes of the same user, such as the programs that the agent runs, can read it too, until the process denies them
//! access ([`deny_other_processes`]). An agent that finds a token or secrets in its environment therefore restarts without
//! them, and reads them from its standard input: a file in memory, which it then empties and closes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rondel_admin::auth::Token;
use serde::{Deserialize, Serialize};

use crate::exit::Failure;
use crate::token_file;

const TOKEN_VARIABLE: &str = "RONDEL_TOKEN";
const SECRET_PREFIX: &str = "RONDEL_SECRET_";
/// Set when standard input holds the token and the secrets.
pub(crate) const HANDOVER_VARIABLE: &str = "RONDEL_AGENT_HANDOVER";

/// The token and the secrets that were in the environment.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Handover {
    token: Option<String>,
    /// The value of each secret, by its name without `RONDEL_SECRET_`.
    secrets: BTreeMap<String, String>,
}

impl std::fmt::Debug for Handover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handover").finish_non_exhaustive()
    }
}

impl Handover {
    /// Returns the token and the secrets from the environment. If the environment still holds them, restarts the
    /// program without them and does not return.
    pub(crate) fn take_from_environment() -> Result<Self, Failure> {
        if std::env::var_os(HANDOVER_VARIABLE).is_some() {
            return receive_from_stdin();
        }
        let handover = Self::read_environment()?;
        if handover.token.is_none() && handover.secrets.is_empty() {
            return Ok(handover);
        }
        Err(handover.restart())
    }

    fn read_environment() -> Result<Self, Failure> {
        let token = token_file::from_environment()?.map(|token| token.reveal().to_owned());
        let mut secrets = BTreeMap::new();
        for (name, value) in std::env::vars_os() {
            let Some(name) = name.to_str().and_then(|name| name.strip_prefix(SECRET_PREFIX)) else { continue };
            let value = value.into_string().map_err(|_| {
                Failure::refused(format!("the environment variable {SECRET_PREFIX}{name} is not UTF-8"))
            })?;
            secrets.insert(name.to_owned(), value);
        }
        Ok(Self { token, secrets })
    }

    /// Replaces this process with the same program and arguments, without the variables; returns only if that fails.
    fn restart(&self) -> Failure {
        let failure = |error: &dyn std::fmt::Display| {
            Failure::from_text(format!(
                "cannot take the token and the secrets out of the environment, where the programs that this agent starts could \
                 read them ({error}): give --token-file and --secrets-dir in their place"
            ))
        };
        let file = match self.write_to_memory_file() {
            Ok(file) => file,
            Err(error) => return failure(&error),
        };
        let mut arguments = std::env::args_os();
        let program_name = arguments.next().unwrap_or_else(|| "rondel".into());
        // If the program's file was replaced or removed since its start, `/proc/self/exe` still is the running program.
        let program = std::env::current_exe().ok().filter(|path| path.is_file());
        let mut command = Command::new(program.unwrap_or_else(|| PathBuf::from("/proc/self/exe")));
        command
            .arg0(program_name)
            .args(arguments)
            .env(HANDOVER_VARIABLE, "1")
            .env_remove(TOKEN_VARIABLE)
            .stdin(Stdio::from(file));
        for name in self.secrets.keys() {
            command.env_remove(format!("{SECRET_PREFIX}{name}"));
        }
        failure(&command.exec())
    }

    fn write_to_memory_file(&self) -> std::io::Result<File> {
        let mut file = create_memory_file()?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.rewind()?;
        Ok(file)
    }

    /// The token that was in `RONDEL_TOKEN`.
    pub(crate) fn token(&self) -> Option<Token> {
        self.token.as_deref().map(Token::from_text)
    }

    /// The secrets that were in `RONDEL_SECRET_…`.
    pub(crate) fn secrets(&self) -> rondel::Secrets {
        let secrets = rondel::Secrets::from_env();
        self.secrets.iter().fold(secrets, |secrets, (name, value)| secrets.value(name, value))
    }
}

fn receive_from_stdin() -> Result<Handover, Failure> {
    let failure = |error: &(dyn std::error::Error + 'static)| {
        Failure::of(
            format!("cannot read standard input, which {HANDOVER_VARIABLE} announces; unset that variable"),
            error,
        )
    };
    let mut text = Vec::new();
    let mut stdin = std::io::stdin().lock();
    stdin.read_to_end(&mut text).map_err(|error| failure(&error))?;
    let handover = serde_json::from_slice(&text).map_err(|error| failure(&error))?;
    // Root can open this process's standard input, so the file is emptied and standard input is replaced.
    rustix::fs::ftruncate(&stdin, 0).map_err(|error| failure(&error))?;
    let null_file = File::open("/dev/null").map_err(|error| failure(&error))?;
    rustix::stdio::dup2_stdin(&null_file).map_err(|error| failure(&error))?;
    Ok(handover)
}

#[cfg(target_os = "linux")]
fn create_memory_file() -> std::io::Result<File> {
    let memory = rustix::fs::memfd_create("rondel-agent", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(File::from(memory))
}

#[cfg(not(target_os = "linux"))]
fn create_memory_file() -> std::io::Result<File> {
    tempfile::tempfile()
}

/// On Linux, denies other processes of the same user, and debuggers, access to this process's environment, memory and open
/// files (`/proc/PID`). Root still has access.
pub(crate) fn deny_other_processes() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "programs of this agent's user can look into its memory");
    }
}
