//! Completions: the shell asks this program itself, so that names of jobs are those of the server.

use std::ffi::OsStr;
use std::time::Duration;

use clap::{Args, CommandFactory as _, ValueEnum};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{Bash, CompleteEnv, Elvish, EnvCompleter, Fish, Powershell, Zsh};

use crate::args::Cli;
use crate::client::{ClientArgs, text_of};
use crate::exit::Failure;
use crate::{output, runtime};

/// The variable by which the shell asks.
const VARIABLE: &str = "RONDEL_COMPLETE";
/// A name is not worth a longer wait.
const TIMEOUT: Duration = Duration::from_secs(1);
/// As many names as a person looks through.
const COUNT_MAX: &str = "100";

/// A completion script.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  source <(rondel completions bash)\n  rondel completions zsh > ~/.zfunc/_rondel\n  rondel completions fish > ~/.config/fish/completions/rondel.fish\n\n\
    Names of jobs, apps and contexts are completed too: the shell asks rondel, and rondel the server."
)]
pub(crate) struct CompletionArgs {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    Elvish,
    Powershell,
}

/// Answers a shell that asks, and ends the process; else does nothing.
pub(crate) fn answer() {
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).complete();
}

impl CompletionArgs {
    /// Prints the script.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let shell: &dyn EnvCompleter = match self.shell {
            Shell::Bash => &Bash,
            Shell::Zsh => &Zsh,
            Shell::Fish => &Fish,
            Shell::Elvish => &Elvish,
            Shell::Powershell => &Powershell,
        };
        let mut script = Vec::new();
        shell.write_registration(VARIABLE, "rondel", "rondel", "rondel", &mut script)?;
        output::data(&String::from_utf8_lossy(&script))
    }
}

/// Completes the name of a job.
pub(crate) fn jobs() -> ArgValueCompleter {
    ArgValueCompleter::new(|part: &OsStr| names("jobs", part))
}

/// Completes the name of an app.
pub(crate) fn apps() -> ArgValueCompleter {
    ArgValueCompleter::new(|part: &OsStr| names("apps", part))
}

/// Names that the server knows; none where it cannot be asked. The environment and the context name the server: flags
/// are not known here.
fn names(collection: &'static str, part: &OsStr) -> Vec<CompletionCandidate> {
    let Some(part) = part.to_str() else { return Vec::new() };
    let mut found = Vec::new();
    let asked = runtime::run(async {
        let args = ClientArgs::of_environment();
        let client = args.client()?;
        // The list of apps is short, and has no filter.
        let query = [("q", part), ("limit", COUNT_MAX)];
        let query = if collection == "jobs" && !part.is_empty() {
            &query[..]
        } else if collection == "jobs" {
            &query[1..]
        } else {
            &[]
        };
        if let Ok(body) = tokio::time::timeout(TIMEOUT, client.get(&[collection], query)).await {
            let body = body?.value()?;
            found.extend(body["items"].as_array().into_iter().flatten().map(|item| text_of(&item["name"])));
        }
        Ok(())
    });
    // The shell shows no errors of completions.
    drop(asked);
    found.retain(|name| name.starts_with(part));
    found.into_iter().map(CompletionCandidate::new).collect()
}
