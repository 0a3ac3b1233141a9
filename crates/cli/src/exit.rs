//! How the program ends: its exit codes, and failures.

use std::error::Error;
use std::process::ExitCode;

use rondel_core::error_chain::chain_in_one_line;

/// The exit codes, which scripts depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It is done.
    Success = 0,
    /// It failed, for a reason without a code of its own.
    Failed = 1,
    /// The command line, a setting or the server's input check refuses it.
    Refused = 2,
    /// The run that was waited for did not succeed.
    RunFailed = 3,
    /// The server wants a token, or another one.
    Auth = 4,
    /// There is no such thing.
    NotFound = 5,
    /// Another caller was first.
    Conflict = 6,
    /// What was waited for did not come in time.
    TimedOut = 7,
    /// No server answers there.
    Unreachable = 8,
    /// There is something to change: what `plan --exit-code` found.
    Changes = 10,
    /// What the agent starts as another user: the program cannot be started …
    CannotStart = 126,
    /// … or is not there. As shells have it.
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

/// An end without success.
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

    /// An operation failed: `doing` names it, the error and its causes have the reason.
    pub(crate) fn of(doing: impl std::fmt::Display, error: &(dyn Error + 'static)) -> Self {
        Self::new(Exit::Failed, format!("{doing}: {}", chain_in_one_line(error)))
    }

    /// It failed, for a reason that is no error of a library.
    pub(crate) fn from_text(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Failed, sentence)
    }

    /// The command line or a setting is wrong.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, message)
    }

    /// The same with a remark behind it.
    pub(crate) fn with_hint(mut self, hint: &str) -> Self {
        if let Some(message) = &mut self.message {
            message.push_str(hint);
        }
        self
    }

    /// What the process ends with.
    pub(crate) const fn exit(&self) -> Exit {
        self.exit
    }

    /// Its message; empty where it has none.
    pub(crate) fn message(&self) -> &str {
        self.message.as_deref().unwrap_or_default()
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(Exit::Failed, chain_in_one_line(&error))
    }
}
