//! Exit codes, and the failures that end a command.

use std::error::Error;
use std::process::ExitCode;

use rondel_core::error_chain::chain_in_one_line;

/// The exit codes, which scripts depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command is done.
    Success = 0,
    /// Any other failure.
    Failed = 1,
    /// The command line or a setting is wrong, or the server's input check refused it.
    Refused = 2,
    /// The run that the command waited for did not succeed.
    RunFailed = 3,
    /// The server requires a token, does not accept the given one, or refuses its caller the permission.
    Auth = 4,
    /// The object does not exist.
    NotFound = 5,
    /// Another caller changed the object first.
    Conflict = 6,
    /// A wait timed out.
    TimedOut = 7,
    /// No server answers at the address.
    Unreachable = 8,
    /// `plan --exit-code` found changes.
    Changes = 10,
    /// The program that the agent starts as another user cannot be started. Shells use this code too.
    CannotStart = 126,
    /// The program that the agent starts as another user does not exist. Shells use this code too.
    NoProgram = 127,
    /// SIGINT.
    Interrupted = 130,
    /// A second SIGTERM.
    Terminated = 143,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: Option<String>,
    is_temporary: bool,
}

impl Failure {
    /// A failure with a message: a sentence, which may have lines of detail below it.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: Some(message.into()), is_temporary: false }
    }

    /// A failure without a message: Ctrl-C, or a closed pipe on stdout.
    pub(crate) const fn silent(exit: Exit) -> Self {
        Self { exit, message: None, is_temporary: false }
    }

    /// A failed operation: `operation` names it, and the error and its causes give the reason.
    pub(crate) fn of(operation: impl std::fmt::Display, error: &(dyn Error + 'static)) -> Self {
        Self::new(Exit::Failed, format!("{operation}: {}", chain_in_one_line(error)))
    }

    /// A failure with the general exit code, described by a sentence because no error caused it.
    pub(crate) fn from_text(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Failed, sentence)
    }

    /// A failure because the command line or a setting is wrong.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, message)
    }

    /// Marks the failure as temporary: the server may answer again soon.
    pub(crate) fn temporary(self) -> Self {
        Self { is_temporary: true, ..self }
    }

    /// Whether the failure is temporary, so that a retry may succeed.
    pub(crate) const fn is_temporary(&self) -> bool {
        self.is_temporary
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

    /// The message; empty for a silent failure.
    pub(crate) fn message(&self) -> &str {
        self.message.as_deref().unwrap_or_default()
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(Exit::Failed, chain_in_one_line(&error))
    }
}

/// The result of a command that has written its output. A failed write takes precedence over the verdict. A closed pipe
/// is an exception: its exit code is 0, which must not turn a failed verdict into a success.
pub(crate) fn output_or_verdict(
    print_result: Result<(), Failure>,
    verdict: Result<(), Failure>,
) -> Result<(), Failure> {
    match print_result {
        Err(failure) if failure.exit() != Exit::Success => Err(failure),
        Ok(()) | Err(_) => verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_hides_no_failure() {
        let end = |written, verdict| output_or_verdict(written, verdict).map_err(|failure: Failure| failure.exit());
        let closed = || Err(Failure::silent(Exit::Success));
        assert_eq!(end(closed(), Err(Failure::silent(Exit::Changes))), Err(Exit::Changes));
        assert_eq!(end(closed(), Ok(())), Ok(()));
        assert_eq!(end(Err(Failure::from_text("disk full")), Ok(())), Err(Exit::Failed));
    }
}
