//! Errors that keep an executor from starting. Once it runs, it reconnects after every failure and ends only when the
//! future given to `run_until` resolves.

use std::fmt;
use std::path::PathBuf;

use rondel_core::error_chain::chain;

/// Why an executor did not start.
///
/// Its `Debug` is the sentence of its `Display`, followed by the causes: `main` prints an error by `Debug`, and
/// `Error: no server is named: call .server(url)` helps more than the name of a variant.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// The name of a namespace, app, executor or handler is not valid.
    #[error("{setting}: {reason}")]
    Name {
        /// What is named: `namespace`, `app`, `executor` or `handler`.
        setting: &'static str,
        /// Why the name is not valid.
        reason: String,
    },
    /// Two handlers have the same name.
    #[error("handler {0:?} is registered twice")]
    DuplicateHandler(String),
    /// The definition of a job declared in the code is not valid.
    #[error("the declared job {job:?}: {pointer}{}{message}", if pointer.is_empty() { "" } else { ": " })]
    Declaration {
        /// The job's name.
        job: String,
        /// JSON pointer to the wrong part of the definition; empty if it is the whole definition.
        pointer: String,
        /// What is wrong, and what would be right.
        message: String,
    },
    /// Two declared jobs have the same name.
    #[error("job {0:?} is declared twice")]
    DuplicateJob(String),
    /// The declared jobs are more than a server accepts, or their definitions are too large together.
    #[error("{count} jobs with {bytes} bytes of JSON are declared; at most 1,000 jobs and 1 MiB are allowed")]
    TooManyJobs {
        /// The number of jobs.
        count: usize,
        /// The total size of the jobs' definitions, in bytes of JSON.
        bytes: usize,
    },
    /// The builder got no server to dial.
    #[error("no server is named: call .server(url)")]
    NoServer,
    /// The URL that was given for a server is not valid or, if there is a `source`, the files for TLS cannot be used.
    #[error("{}", describe_url(url, source.is_some()))]
    ServerUrl {
        /// The text that was given as the URL.
        url: String,
        /// The transport's reason, if it gave one.
        #[source]
        source: Option<tonic::transport::Error>,
    },
    /// A number that must be at least 1 is zero.
    #[error("{setting} must be at least 1")]
    Zero {
        /// The name of the setting.
        setting: &'static str,
    },
    /// A file with a token or a certificate cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file that cannot be read.
        path: PathBuf,
        /// The error of the read.
        #[source]
        source: std::io::Error,
    },
    /// Another living process uses the data directory.
    #[error("the data directory {} is used by another executor", path.display())]
    DataDirInUse {
        /// The path of the data directory.
        path: PathBuf,
    },
    /// The data directory cannot be used.
    #[error("the data directory: cannot {operation} {}", path.display())]
    DataDir {
        /// The operation that failed: `create`, `lock`, `read`, `write` or `open`.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why the operation failed.
        #[source]
        source: std::io::Error,
    },
    /// The directory for the working directories of the agent's runs, or for its cached scripts, cannot be used.
    #[error("cannot make working directories in {}", path.display())]
    WorkDir {
        /// The directory that cannot be used.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// The thread that talks to the servers cannot be started.
    #[error("cannot start the executor's thread")]
    Thread(#[source] std::io::Error),
    /// The HTTP client of the agent's `http` handler cannot be made.
    #[error("cannot set up the http client")]
    HttpClient(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Debug for ExecutorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&chain(self))
    }
}

fn describe_url(url: &str, is_tls_unusable: bool) -> String {
    if is_tls_unusable {
        format!("the files for TLS cannot be used with {url:?}")
    } else {
        format!("{url:?} is not a server's URL such as https://rondel.example.com:8080")
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
        let source = std::io::Error::other("no space left");
        let error = ExecutorError::DataDir { operation: "write", path: "/var/lib/app/state.json".into(), source };
        assert_eq!(format!("{error:?}"), "the data directory: cannot write /var/lib/app/state.json: no space left");
    }
}
