//! The end of the program: its exit codes, and failures.

use std::error::Error;
use std::process::ExitCode;

use rondel_core::error_chain::chain_in_one_line;

/// The exit codes, which scripts depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command is done.
    Success = 0,
    /// A failure without a code of its own.
    Failed = 1,
    /// The command line or a setting is wrong, or the server's input check refused it.
    Refused = 2,
    /// The run that the command waited for did not succeed.
    RunFailed = 3,
    /// The server wants a token, or another one.
    Auth = 4,
    /// The object does not exist.
    NotFound = 5,
    /// Another caller changed it first.
    Conflict = 6,
    /// A wait timed out.
    TimedOut = 7,
    /// No server answers at the address.
    Unreachable = 8,
    /// `plan --exit-code` found changes.
    Changes = 10,
    /// The program that the agent starts as another user cannot be started. Shells use this code too.
    CannotStart = 126,
    /// That program does not exist. Shells use this code too.
    NoProgram = 127,
    /// SIGINT.
    Interrupted = 130,
    /// SIGTERM, a second time.
    Terminated = 143,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An end of the program without success.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: Option<String>,
}

impl Failure {
    /// An end with a message: a sentence, perhaps with lines of detail below it.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: Some(message.into()) }
    }

    /// An end without a message: Ctrl-C, or a closed pipe on stdout.
    pub(crate) const fn silent(exit: Exit) -> Self {
        Self { exit, message: None }
    }

    /// A failed operation: `doing` names it, and the error and its causes give the reason.
    pub(crate) fn of(doing: impl std::fmt::Display, error: &(dyn Error + 'static)) -> Self {
        Self::new(Exit::Failed, format!("{doing}: {}", chain_in_one_line(error)))
    }

    /// A failure without an error as its cause, and without an exit code of its own.
    pub(crate) fn from_text(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Failed, sentence)
    }

    /// The command line or a setting is wrong.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, message)
    }

    /// Appends a hint to the message.
    pub(crate) fn with_hint(mut self, hint: &str) -> Self {
        if let Some(message) = &mut self.message {
            message.push_str(hint);
        }
        self
    }

    /// The exit code of the process.
    pub(crate) const fn exit(&self) -> Exit {
        self.exit
    }

    /// Its message; empty if it has none.
    pub(crate) fn message(&self) -> &str {
        self.message.as_deref().unwrap_or_default()
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(Exit::Failed, chain_in_one_line(&error))
    }
}
