//! Resolves secrets that refer to a file or an environment variable. The operator chooses the folder of the files and the prefix of the
//! variables.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use rondel_core::channel::{Reference, Values, parse_reference};
use tokio::io::AsyncReadExt as _;

/// Maximum size of a secret file, in bytes; the rest is not read.
const FILE_BYTES_MAX: u64 = 8 * 1024;

/// The files and variables that channel secrets may refer to.
#[derive(Clone, Default)]
pub struct SecretSources {
    /// The folder of the files; `None` if secrets may not refer to files.
    pub folder: Option<PathBuf>,
    /// The variables that may be read, with their values.
    pub variables: BTreeMap<String, String>,
}

impl fmt::Debug for SecretSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.variables.keys().collect();
        f.debug_struct("SecretSources").field("folder", &self.folder).field("variables", &names).finish()
    }
}

impl SecretSources {
    /// The secrets, with references replaced by their values.
    pub(super) async fn resolve(&self, secrets: &Values) -> Result<Values, String> {
        let mut resolved_secrets = Values::new();
        for (name, value) in secrets {
            let value = match parse_reference(value) {
                None => value.clone(),
                Some(Reference::Variable(variable)) => self.variable(variable)?,
                Some(Reference::File(file)) => self.read_file(file).await?,
            };
            resolved_secrets.insert(name.clone(), value);
        }
        Ok(resolved_secrets)
    }

    fn variable(&self, name: &str) -> Result<String, String> {
        let missing_error = || {
            format!(
                "the server has no variable {name}, or its name does not begin with the setting alert_secrets_env_prefix"
            )
        };
        self.variables.get(name).map(|value| value.trim().to_owned()).ok_or_else(missing_error)
    }

    async fn read_file(&self, name: &str) -> Result<String, String> {
        let folder = self.folder.as_ref().ok_or("the server has no setting alert_secrets_dir: files cannot be read")?;
        if name.contains(['/', '\\']) || name.starts_with('.') {
            return Err(format!("{name:?} is not the name of a file in alert_secrets_dir"));
        }
        let read_error = |error: std::io::Error| format!("file {name} of alert_secrets_dir: {error}");
        let file = tokio::fs::File::open(folder.join(name)).await.map_err(read_error)?;
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).await.map_err(read_error)?;
        match text.trim() {
            "" => Err(format!("file {name} of alert_secrets_dir is empty")),
            text => Ok(text.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn references_read_only_sources_that_the_operator_allows() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("slack"), "https://hooks.example.com/x\n").unwrap();
        let sources = SecretSources {
            folder: Some(folder.path().to_owned()),
            variables: [("RONDEL_SECRET_A".to_owned(), "from-a".to_owned())].into(),
        };
        assert!(!format!("{sources:?}").contains("from-a"));
        let resolve = async |value: &str| {
            let secrets = [("url".to_owned(), value.to_owned())].into();
            sources.resolve(&secrets).await.map(|mut resolved| resolved.remove("url").unwrap())
        };
        assert_eq!(resolve("plain").await.unwrap(), "plain");
        assert_eq!(resolve("file:slack").await.unwrap(), "https://hooks.example.com/x");
        assert_eq!(resolve("env:RONDEL_SECRET_A").await.unwrap(), "from-a");
        assert!(resolve("env:PATH").await.unwrap_err().contains("alert_secrets_env_prefix"));
        assert!(resolve("file:../slack").await.unwrap_err().contains("is not the name"));
        assert!(resolve("file:missing").await.unwrap_err().contains("missing"));
        let none = SecretSources::default();
        let secrets = [("url".to_owned(), "file:slack".to_owned())].into();
        assert!(none.resolve(&secrets).await.unwrap_err().contains("alert_secrets_dir"));
    }
}
