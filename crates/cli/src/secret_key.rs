//! The key that stored secrets are encrypted with: from a file that the settings name, else made once in the data folder of
//! a server that has its database for itself.

use std::io::ErrorKind;
use std::path::Path;

use rondel_store::SecretKeys;

use crate::config::ServerConfig;
use crate::exit::Failure;
use crate::startup_files::StartupFiles;

const FILE: &str = "secret.key";

/// The key of this server; none for a cluster that was given none.
pub(crate) fn read_or_make(
    config: &ServerConfig,
    startup_files: &mut StartupFiles,
) -> Result<Option<SecretKeys>, Failure> {
    if let Some(path) = &config.secret_key_file {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| {
            let hint =
                "; secret_key_file names the file with the key of stored secrets: openssl rand -hex 32 makes one";
            Failure::of(format!("cannot read {}", path.display()), &error).with_hint(hint)
        })?;
        return parse(path, &text).map(Some);
    }
    if config.database.0.sqlite_path().is_none() {
        return Ok(None);
    }
    startup_files.folder(&config.data_dir)?;
    let path = config.data_dir.join(FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => parse(&path, &text).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let made = SecretKeys::generate().ok_or_else(|| Failure::from_text("the system has no random numbers"))?;
            startup_files.secret_file(&path, &format!("{made}\n"))?;
            parse(&path, &made).map(Some)
        }
        Err(error) => Err(Failure::of(format!("cannot read {}", path.display()), &error)),
    }
}

fn parse(path: &Path, text: &str) -> Result<SecretKeys, Failure> {
    text.parse().map_err(|sentence| Failure::from_text(format!("{}: {sentence}", path.display())))
}
