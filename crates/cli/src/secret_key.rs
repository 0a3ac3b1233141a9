//! The key that encrypts stored secrets. It comes from a file that the settings name. Otherwise a server that does not
//! share its database generates it once in its data folder.

use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rondel_core::secret_file::exposure;
use rondel_store::SecretKeys;

use crate::config::ServerConfig;
use crate::exit::Failure;
use crate::startup_files::StartupFiles;

const FILE_NAME: &str = "secret.key";
/// Maximum number of bytes read from a file with keys.
const FILE_LEN_MAX: u64 = 64 * 1024;

/// The keys of this server; `None` for a cluster without configured keys.
pub(crate) fn read_or_make(
    config: &ServerConfig,
    startup_files: &mut StartupFiles,
) -> Result<Option<SecretKeys>, Failure> {
    if let Some(path) = &config.settings.secret_key_file {
        let text = read(path)?.ok_or_else(|| {
            let hint =
                "; secret_key_file names the file with the key of stored secrets: openssl rand -hex 32 makes one";
            Failure::from_text(format!("there is no file {}", path.display())).with_hint(hint)
        })?;
        return parse(path, &text).map(Some);
    }
    if config.database.0.sqlite_path().is_none() {
        return Ok(None);
    }
    startup_files.make_folder(&config.settings.data_dir)?;
    let path = config.settings.data_dir.join(FILE_NAME);
    if let Some(text) = read(&path)? {
        return parse(&path, &text).map(Some);
    }
    let new_keys = SecretKeys::generate().ok_or_else(|| Failure::from_text("the system has no random numbers"))?;
    startup_files.write_secret_file(&path, &format!("{new_keys}\n"))?;
    parse(&path, &new_keys).map(Some)
}

/// The text of a file with keys; `None` if there is no such file. A file that other users can read is refused, as files with
/// tokens are: the keys decrypt all stored secrets.
fn read(path: &Path) -> Result<Option<String>, Failure> {
    let path_text = path.display();
    let mut text = String::new();
    let result = std::fs::File::open(path).and_then(|file| {
        let metadata = file.metadata()?;
        file.take(FILE_LEN_MAX).read_to_string(&mut text).map(|_| metadata)
    });
    let metadata = match result {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => return Err(Failure::of(format!("cannot read {path_text}"), &error)),
    };
    match exposure(metadata.mode(), metadata.uid()).filter(|_| metadata.is_file()) {
        Some(fault) => Err(Failure::refused(format!("the key file {path_text} {fault}"))),
        None => Ok(Some(text)),
    }
}

fn parse(path: &Path, text: &str) -> Result<SecretKeys, Failure> {
    text.parse().map_err(|sentence| Failure::from_text(format!("{}: {sentence}", path.display())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(FILE_NAME);
        assert!(read(&path).unwrap().is_none());
        std::fs::write(&path, SecretKeys::generate().unwrap()).unwrap();
        let read_as = |mode: u32| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read(&path)
        };
        for mode in [0o644, 0o604, 0o666, 0o660] {
            let message = read_as(mode).unwrap_err().message().to_owned();
            assert!(message.contains("chmod 600") && message.contains(&format!("{mode:04o}")), "{message}");
        }
        for mode in [0o600, 0o400] {
            assert!(read_as(mode).unwrap().is_some());
        }
    }
}
