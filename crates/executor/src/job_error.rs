//! The error of a handler.

use std::error::Error;
use std::fmt;

use rondel_core::error_chain::chain;

/// A handler's failure, or its decision to skip the run. `?` turns any error into a failure that may be retried.
///
/// Every type that implements [`std::error::Error`] can be converted to this type, which therefore does not implement
/// that trait itself.
///
/// ```
/// # use rondel::{JobError, Params, TestRun, RunStatus};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// async fn import(Params(amount): Params<String>) -> Result<i64, JobError> {
///     if amount.is_empty() {
///         return Err(JobError::skip("nothing to import"));
///     }
///     let amount: i64 = amount.parse()?; // fails; a retry may follow
///     if amount < 0 {
///         return Err(JobError::terminal("amounts are never negative"));
///     }
///     Ok(amount)
/// }
/// let outcome = TestRun::of(import).params("x").run().await;
/// assert_eq!(outcome.status(), RunStatus::Failed);
/// assert_eq!(outcome.message(), "invalid digit found in string");
/// assert!(outcome.is_retryable());
/// assert!(!TestRun::of(import).params("-1").run().await.is_retryable());
/// assert_eq!(TestRun::of(import).params("").run().await.status(), RunStatus::Skipped);
/// # }
/// ```
#[derive(Debug)]
pub struct JobError {
    pub(crate) kind: JobErrorKind,
    pub(crate) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobErrorKind {
    Retryable,
    Terminal,
    Skip,
}

impl JobError {
    /// A failure that may be retried. Takes anything that implements `Display`, `anyhow::Error` included.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self::new(JobErrorKind::Retryable, message)
    }

    /// A failure that is not retried.
    pub fn terminal(message: impl fmt::Display) -> Self {
        Self::new(JobErrorKind::Terminal, message)
    }

    /// There is nothing to do: the run's verdict is `skipped`, with this reason.
    pub fn skip(reason: impl fmt::Display) -> Self {
        Self::new(JobErrorKind::Skip, reason)
    }

    /// The text that the run shows as its message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether a retry may follow.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.kind == JobErrorKind::Retryable
    }

    fn new(kind: JobErrorKind, message: impl fmt::Display) -> Self {
        // The alternate form shows the whole chain of error types such as anyhow's.
        Self { kind, message: format!("{message:#}") }
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for JobError {
    fn from(error: E) -> Self {
        Self { kind: JobErrorKind::Retryable, message: chain(&error) }
    }
}

/// Turns the error of a `Result` into a failure that is not retried.
///
/// ```
/// # use rondel::{JobError, ResultExt};
/// fn amount(text: &str) -> Result<i64, JobError> {
///     text.parse().terminal()
/// }
/// assert!(!amount("x").unwrap_err().is_retryable());
/// ```
pub trait ResultExt<T, E> {
    /// Turns an error into a failure that is not retried.
    ///
    /// # Errors
    /// The error, as a failure that is not retried.
    fn terminal(self) -> Result<T, JobError>;

    /// If `is_terminal` returns true for the error, turns it into a failure that is not retried. Any other error is
    /// converted as `?` does.
    ///
    /// # Errors
    /// The converted error.
    fn terminal_if(self, is_terminal: impl FnOnce(&E) -> bool) -> Result<T, JobError>;
}

impl<T, E: Into<JobError>> ResultExt<T, E> for Result<T, E> {
    fn terminal(self) -> Result<T, JobError> {
        self.terminal_if(|_| true)
    }

    fn terminal_if(self, is_terminal: impl FnOnce(&E) -> bool) -> Result<T, JobError> {
        self.map_err(|error| {
            let is_terminal_error = is_terminal(&error);
            let error: JobError = error.into();
            let kind = if is_terminal_error { JobErrorKind::Terminal } else { error.kind };
            JobError { kind, ..error }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        #[source]
        source: Option<Box<Link>>,
    }

    #[test]
    fn a_chain_is_one_line_without_echoes() {
        let root = Link { text: "no such table", source: None };
        let middle = Link { text: "query failed: no such table", source: Some(Box::new(root)) };
        let top = Link { text: "load orders", source: Some(Box::new(middle)) };
        assert_eq!(chain(&top), "load orders: query failed: no such table");
    }

    #[test]
    fn other_error_types_come_in_by_display() {
        let error = anyhow::anyhow!("inner").context("outer");
        assert_eq!(JobError::failed(error).message(), "outer: inner");
    }

    #[test]
    fn terminal_if_decides_by_the_error() {
        let terminal = |text: &str| text.parse::<i64>().terminal_if(|error| error.to_string().contains("empty"));
        assert!(!terminal("").unwrap_err().is_retryable());
        assert!(terminal("x").unwrap_err().is_retryable());
    }
}
