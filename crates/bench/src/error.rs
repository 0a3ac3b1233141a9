//! The errors of measurements.

use rondel::ExecutorError;
use rondel_admin::StartError;
use rondel_store::{OpenError, StoreError};

/// Why a measurement was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The database has jobs or runs, which would disturb the measurement.
    #[error("the database is not empty: it has {first_item}; name an empty one, or set --reuse")]
    NotEmpty {
        /// The first job or run that was found.
        first_item: String,
    },
    /// The database could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The engine did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// An executor did not start.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// The operating system refused an operation.
    #[error("cannot {operation}")]
    System {
        /// The operation, as a verb and its object.
        operation: &'static str,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// A flag cannot be used.
    #[error("{message}")]
    Refused {
        /// The flag, and why it cannot be used.
        message: String,
    },
    /// The peer does not answer.
    #[error("--peer-url: cannot reach {url}")]
    Unreachable {
        /// The URL that was called.
        url: String,
        /// The error of the client.
        #[source]
        source: reqwest::Error,
    },
    /// The peer refused the user, the password or the token.
    #[error("{message}")]
    Auth {
        /// The flag, and what was answered.
        message: String,
    },
    /// The measurement was stopped before its end.
    #[error("stopped before the end")]
    Stopped,
    /// A part of the measurement failed, so that the figures would be useless.
    #[error("{message}")]
    Failed {
        /// The part, and what it did.
        message: String,
    },
}

impl BenchError {
    pub(crate) fn system(operation: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { operation, source }
    }

    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::Refused { message: message.into() }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into() }
    }
}
