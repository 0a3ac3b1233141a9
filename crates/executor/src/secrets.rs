//! The secrets of an executor: from its own files, its program or its environment. The server never has them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crate::job_error::JobError;

/// The prefix of the environment variables that hold secrets.
const ENV_PREFIX: &str = "RONDEL_SECRET_";

/// Maximum size of a secret file.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// Resolves `{{secret.NAME}}` in the string values of params, before the handler sees them: from the file `NAME` in the
/// directory that [`dir`](Self::dir) sets, else from [`value`](Self::value), else from the environment variable
/// `RONDEL_SECRET_NAME`. Resolved secrets are hidden in the run's log, message and result.
///
/// ```no_run
/// # fn configure(builder: rondel::Builder) -> rondel::Builder {
/// builder.secrets(rondel::Secrets::from_env().dir("/run/secrets"))
/// # }
/// ```
#[derive(Clone)]
pub struct Secrets {
    dir: Option<PathBuf>,
    values: BTreeMap<String, String>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.values.keys().collect();
        f.debug_struct("Secrets").field("dir", &self.dir).field("values", &names).finish()
    }
}

impl Secrets {
    /// Reads secrets from the environment. [`dir`](Self::dir) and [`value`](Self::value) add sources that take
    /// precedence.
    #[must_use]
    pub fn from_env() -> Self {
        Self { dir: None, values: BTreeMap::new() }
    }

    /// Reads secrets from the files of this directory first. A file has at most 64 KiB; a line break at its end is not
    /// part of the secret.
    #[must_use]
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Adds a secret that the program itself has, for instance because the program has removed it from its environment.
    /// A file with the same name takes precedence.
    #[must_use]
    pub fn value(mut self, name: impl Into<String>, secret: impl Into<String>) -> Self {
        self.values.insert(name.into(), secret.into());
        self
    }

    /// The secret, or a failure that names it.
    pub(crate) async fn get(&self, name: &str) -> Result<String, JobError> {
        if !is_name(name) {
            return Err(JobError::terminal(format_args!(
                "{name:?} is not a secret's name: letters, digits, '_', '-', '.'"
            )));
        }
        if let Some(secret) = self.read_file(name).await? {
            return Ok(secret);
        }
        let own_value = self.values.get(name).cloned();
        own_value
            .or_else(|| from_variable(name))
            .ok_or_else(|| JobError::terminal(format_args!("secret {name:?} is not known to this executor")))
    }

    async fn read_file(&self, name: &str) -> Result<Option<String>, JobError> {
        let Some(dir) = &self.dir else { return Ok(None) };
        let unreadable_error =
            |error: &dyn fmt::Display| JobError::terminal(format_args!("secret {name:?} cannot be read: {error}"));
        let path = dir.join(name);
        match tokio::fs::metadata(&path).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable_error(&error)),
            Ok(metadata) if !metadata.is_file() => return Err(unreadable_error(&"not a file")),
            Ok(metadata) if metadata.len() > SECRET_BYTES_MAX => return Err(unreadable_error(&"larger than 64 KiB")),
            Ok(_) => {}
        }
        let text = tokio::fs::read_to_string(&path).await.map_err(|error| unreadable_error(&error))?;
        let trimmed_text = text.strip_suffix('\n').unwrap_or(&text);
        Ok(Some(trimmed_text.strip_suffix('\r').unwrap_or(trimmed_text).to_owned()))
    }
}

#[expect(clippy::disallowed_methods, reason = "secrets may be in the executor's environment")]
fn from_variable(name: &str) -> Option<String> {
    std::env::var(format!("{ENV_PREFIX}{name}")).ok()
}

/// Whether the text is a secret's name. It has no separators and no leading dot, so that it is never a path.
fn is_name(name: &str) -> bool {
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(is_name_char)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_come_without_their_last_line_break() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("api_key"), "s3cret\n")?;
        let secrets = Secrets::from_env().dir(dir.path());
        assert_eq!(secrets.get("api_key").await.unwrap(), "s3cret");
        let secrets = secrets.value("api_key", "other").value("db", "hidden");
        assert_eq!(
            (secrets.get("api_key").await.unwrap(), secrets.get("db").await.unwrap()),
            ("s3cret".to_owned(), "hidden".to_owned())
        );
        assert!(!format!("{secrets:?}").contains("hidden"));
        Ok(())
    }

    #[tokio::test]
    async fn missing_secrets_are_named_and_paths_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let secrets = Secrets::from_env().dir(dir.path());
        let missing = secrets.get("nope").await.unwrap_err();
        assert!(missing.message().contains("\"nope\"") && !missing.is_retryable());
        for name in ["../passwd", "/etc/passwd", ".hidden", "", "a b"] {
            assert!(secrets.get(name).await.unwrap_err().message().contains("not a secret's name"), "{name:?}");
        }
    }
}
