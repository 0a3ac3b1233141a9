//! What keeps an executor from starting. Once it runs, it reconnects and goes on: nothing ends it but its `run_until`.

use std::fmt;
use std::path::PathBuf;

use rondel_core::error_chain::chain;

/// Why an executor did not start.
///
/// Its `Debug` is the same sentence as its `Display`, with the causes behind it: `main` prints an error by `Debug`, and
/// `Error: no server is named: call .server(url)` helps more than the name of a variant.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// A namespace, app, executor or handler has a name that it cannot have.
    #[error("{what}: {reason}")]
    Name {
        /// What bears the name.
        what: &'static str,
        /// What is allowed.
        reason: String,
    },
    /// Two handlers have the same name.
    #[error("handler {0:?} is there twice")]
    DuplicateHandler(String),
    /// A job that the code declares is not a definition.
    #[error("the declared job {job:?}: {pointer}{}{message}", if pointer.is_empty() { "" } else { ": " })]
    Declaration {
        /// Its name.
        job: String,
        /// Where in the definition, as a JSON pointer; empty for the whole.
        pointer: String,
        /// What is wrong, and what would be right.
        message: String,
    },
    /// Two declared jobs have the same name.
    #[error("job {0:?} is declared twice")]
    DuplicateJob(String),
    /// More jobs are declared than a server takes.
    #[error("{count} jobs with {bytes} bytes of JSON are declared; at most 1,000 and 1 MiB can be")]
    TooManyJobs {
        /// How many.
        count: usize,
        /// How long their definitions are together.
        bytes: usize,
    },
    /// No server to dial.
    #[error("no server is named: call .server(url)")]
    NoServer,
    /// Not the URL of a server.
    #[error("{url:?} is not a server's URL such as https://rondel.example.com:8080")]
    ServerUrl {
        /// What was given.
        url: String,
        /// What is wrong with it.
        #[source]
        source: Option<tonic::transport::Error>,
    },
    /// A number outside its range.
    #[error("{what} must be at least 1")]
    Zero {
        /// Which number.
        what: &'static str,
    },
    /// A file with a token or a certificate cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Another living process uses the data directory.
    #[error("the data directory {} is used by another executor", path.display())]
    DataDirInUse {
        /// Which.
        path: PathBuf,
    },
    /// The data directory cannot be used.
    #[error("{operation} in the data directory {}", path.display())]
    DataDir {
        /// What was tried.
        operation: &'static str,
        /// Which file or directory.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The working directories of the agent's runs cannot be made.
    #[error("make working directories in {}", path.display())]
    WorkDir {
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The thread that talks to the servers cannot be started.
    #[error("start the executor's thread")]
    Thread(#[source] std::io::Error),
    /// The HTTP client of the agent's `http` handler cannot be made.
    #[error("set up the http client")]
    HttpClient(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Debug for ExecutorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&chain(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_prints_a_sentence_with_its_causes() {
        let source = std::io::Error::other("no such file");
        let error = ExecutorError::File { path: "/etc/rondel/token".into(), source };
        assert_eq!(format!("{error:?}"), "cannot read /etc/rondel/token: no such file");
        assert_eq!(format!("{:?}", ExecutorError::NoServer), "no server is named: call .server(url)");
    }
}
