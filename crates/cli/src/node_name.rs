//! A server's name: configured, or generated once and stored in the data folder.

use std::io::ErrorKind;
use std::path::Path;

use rand::RngExt as _;
use rondel_core::name;

use crate::exit::Failure;
use crate::startup_files::StartupFiles;

const FILE_NAME: &str = "node-name";
/// Maximum length of the part made of the host's name; a random part follows.
const HOST_LEN_MAX: usize = 60;

/// Reads the name from the data folder. The first start generates it.
pub(crate) fn read_or_make(data_dir: &Path, startup_files: &mut StartupFiles) -> Result<String, Failure> {
    let path = data_dir.join(FILE_NAME);
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let stored_name = text.trim().to_owned();
            let name_failure = |sentence| Failure::from_text(format!("{} holds no name: {sentence}", path.display()));
            name::check(&stored_name).map(|()| stored_name).map_err(name_failure)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let new_name = format!("{}-{:08x}", sanitized_name(&host), rand::rng().random::<u32>());
            startup_files.write_secret_file(&path, &format!("{new_name}\n"))?;
            Ok(new_name)
        }
        Err(error) => Err(Failure::of(format!("cannot read {}", path.display()), &error)),
    }
}

/// Replaces every character of a host's name that a name cannot contain, and cuts long names; `node` if nothing is left.
fn sanitized_name(host: &str) -> String {
    let valid_chars = host.chars().map(|c| match c.to_ascii_lowercase() {
        c if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' => c,
        _ => '-',
    });
    let short_name: String = valid_chars.take(HOST_LEN_MAX).collect();
    let trimmed_name = short_name.trim_matches(['.', '-']);
    if trimmed_name.is_empty() { "node".to_owned() } else { trimmed_name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_made_once() {
        let root = tempfile::tempdir().unwrap();
        let mut startup_files = StartupFiles::default();
        let made = read_or_make(root.path(), &mut startup_files).unwrap();
        startup_files.commit();
        assert_eq!(read_or_make(root.path(), &mut StartupFiles::default()).unwrap(), made);
        std::fs::write(root.path().join(FILE_NAME), "No Name\n").unwrap();
        assert!(read_or_make(root.path(), &mut StartupFiles::default()).is_err());
    }

    #[test]
    fn hosts_become_names() {
        for (host, expected) in [("Web-01.Example.com", "web-01.example.com"), ("_ä_", "node"), ("", "node")] {
            assert_eq!(sanitized_name(host), expected);
            assert_eq!(name::check(&sanitized_name(host)), Ok(()));
        }
        assert!(name::check(&format!("{}-00000000", sanitized_name(&"x".repeat(300)))).is_ok());
    }
}
