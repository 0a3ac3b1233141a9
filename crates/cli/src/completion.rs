//! Completion scripts: the shell asks this program for completions.

use clap::{Args, Command, ValueEnum};
use clap_complete::env::{Bash, CompleteEnv, Elvish, EnvCompleter, Fish, Powershell, Zsh};

use crate::exit::Failure;
use crate::output;

/// The environment variable by which a completion script requests completions.
const SHELL_VARIABLE: &str = "RONDEL_COMPLETE";

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

/// Answers a shell that asks for completions of these commands, and ends the process; otherwise does nothing.
pub(crate) fn answer_shell(commands: impl Fn() -> Command) {
    CompleteEnv::with_factory(commands).var(SHELL_VARIABLE).complete();
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
        shell.write_registration(SHELL_VARIABLE, "rondel", "rondel", "rondel", &mut script)?;
        output::print_lines(&String::from_utf8_lossy(&script))
    }
}
