//! `rondel bench --peer-url`: measures another admin server in place of Rondel.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use rondel_bench::{BenchError, PeerKind, PeerPlan, PeerSecret};
use rondel_core::error_chain::chain_in_one_line;

use super::name_value_lines;
use crate::exit::{Exit, Failure};
use crate::format::{Format, FormatArgs};
use crate::input::read_text;
use crate::token_file::env_variable;
use crate::{output, runtime};

const USER_DEFAULT: &str = "admin";
const PASSWORD_VARIABLE: &str = "RONDEL_PEER_PASSWORD";
const TOKEN_VARIABLE: &str = "RONDEL_PEER_TOKEN";

/// The flags about another server.
#[derive(Debug, Args)]
pub(super) struct PeerArgs {
    /// Measure a running XXL-JOB (2.3 to 3.4) or ratch-job in place of Rondel, with jobs and an app that are removed again:
    /// the URL that its executors are configured with, such as `http://127.0.0.1:8080/xxl-job-admin`
    #[arg(
        long,
        value_name = "URL",
        conflicts_with_all = [
            "database", "mode", "late_max", "jobs_max", "nodes", "slots", "flood", "separate", "database_pid", "probe",
            "reuse",
        ],
    )]
    peer_url: Option<String>,
    /// The kind of server at --peer-url; by default, the server is asked
    #[arg(long, value_enum, value_name = "KIND", requires = "peer_url")]
    peer_kind: Option<Kind>,
    /// The URL of ratch-job's console; by default at the port of --peer-url plus 100
    #[arg(long, value_name = "URL", requires = "peer_url")]
    peer_console: Option<String>,
    /// The user that creates the jobs at --peer-url, an administrator; by default admin
    #[arg(long, value_name = "NAME", requires = "peer_url")]
    peer_user: Option<String>,
    /// The file with that user's password, - for stdin; by default `RONDEL_PEER_PASSWORD`
    #[arg(long, value_name = "FILE", requires = "peer_url")]
    peer_password_file: Option<PathBuf>,
    /// The file with the access token that the server at --peer-url requires from executors; by default `RONDEL_PEER_TOKEN`
    #[arg(long, value_name = "FILE", requires = "peer_url")]
    peer_token_file: Option<PathBuf>,
    /// A process of the server at --peer-url, or of its database, to count what it and its children use; repeatable
    #[arg(long = "peer-pid", value_name = "PID", requires = "peer_url")]
    peer_pids: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// XXL-JOB's own admin
    Xxl,
    /// ratch-job
    Ratch,
}

/// The flags that measurements of Rondel and of another server share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) jobs: u32,
    pub(super) seconds: u32,
    /// The time before the measurement, in seconds.
    pub(super) warm_up: u32,
    pub(super) executors: u32,
}

impl PeerArgs {
    /// The plan for `--peer-url`; `None` without that flag.
    pub(super) fn plan(&self, load: Load) -> Result<Option<PeerPlan>, Failure> {
        let Some(url) = &self.peer_url else {
            // Clap does not check that these flags require --peer-url if another flag is given that conflicts with
            // --peer-url, such as --database.
            let given_flags = [
                ("--peer-kind", self.peer_kind.is_some()),
                ("--peer-console", self.peer_console.is_some()),
                ("--peer-user", self.peer_user.is_some()),
                ("--peer-password-file", self.peer_password_file.is_some()),
                ("--peer-token-file", self.peer_token_file.is_some()),
                ("--peer-pid", !self.peer_pids.is_empty()),
            ];
            let flag = given_flags.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag);
            return flag.map_or(Ok(None), |flag| Err(Failure::refused(format!("{flag} needs --peer-url"))));
        };
        let password = secret("--peer-password-file", self.peer_password_file.as_deref(), PASSWORD_VARIABLE)?;
        let Some(password) = password else {
            let message =
                format!("--peer-password-file is missing: name a file with the password, or set {PASSWORD_VARIABLE}");
            return Err(Failure::refused(message));
        };
        let token = secret("--peer-token-file", self.peer_token_file.as_deref(), TOKEN_VARIABLE)?;
        Ok(Some(PeerPlan {
            url: url.clone(),
            console: self.peer_console.clone(),
            kind: self.peer_kind.map(|kind| match kind {
                Kind::Xxl => PeerKind::Xxl,
                Kind::Ratch => PeerKind::Ratch,
            }),
            user: self.peer_user.clone().unwrap_or_else(|| USER_DEFAULT.to_owned()),
            password,
            // A server that needs no token accepts an empty one.
            token: token.unwrap_or_else(|| PeerSecret::new("")),
            pids: self.peer_pids.clone(),
            jobs: load.jobs,
            seconds: load.seconds,
            warm_up: load.warm_up,
            executors: load.executors,
        }))
    }
}

/// Reads a secret from the first line of `file` or, without a file, from an environment variable; `None` if the variable is
/// not set.
fn secret(flag: &str, file: Option<&Path>, variable_name: &str) -> Result<Option<PeerSecret>, Failure> {
    let text = match file {
        Some(path) => {
            let text = read_text(path)?;
            let line = text.lines().next().unwrap_or_default();
            if line.is_empty() {
                return Err(Failure::refused(format!("{flag}: the first line of {} is empty", path.display())));
            }
            Some(line.to_owned())
        }
        None => match env_variable(variable_name).map(std::ffi::OsString::into_string) {
            Some(Ok(text)) => Some(text),
            Some(Err(_)) => {
                return Err(Failure::refused(format!("the environment variable {variable_name} is not UTF-8")));
            }
            None => None,
        },
    };
    Ok(text.map(PeerSecret::new))
}

/// Measures another server, and prints the report.
pub(super) fn measure(plan: &PeerPlan, format: FormatArgs) -> Result<Exit, Failure> {
    runtime::serve(|stop| async move {
        let report = rondel_bench::run_peer(plan, &stop).await.map_err(measurement_failure)?;
        match format.format {
            Format::Json | Format::Jsonl | Format::Yaml => {
                output::print_document(&serde_json::to_string(&report)?, format.format)
            }
            Format::Table | Format::Wide | Format::Name => output::print_lines(&name_value_lines(report.lines())),
        }
    })
}

fn measurement_failure(error: BenchError) -> Failure {
    match error {
        BenchError::Refused { message } => Failure::refused(message),
        BenchError::Auth { message } => Failure::new(Exit::Auth, message),
        BenchError::Stopped => Failure::silent(Exit::Interrupted),
        error @ BenchError::Unreachable { .. } => Failure::new(Exit::Unreachable, chain_in_one_line(&error)),
        error => Failure::of("nothing was measured", &error),
    }
}
