//! Files with API tokens: one line, readable by one user.

use std::ffi::OsString;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rondel_admin::auth::Token;
use rondel_core::access::is_token;
use rondel_core::secret_file::exposure;

use crate::exit::Failure;
use crate::startup_files::StartupFiles;

/// Minimum length of a token: shorter texts are no secrets.
const LEN_MIN: usize = 16;
const LEN_MAX: usize = 512;

/// Reads the token in a file; `None` if there is no such file.
pub(crate) fn read(path: &Path) -> Result<Option<Token>, Failure> {
    if path.to_str().is_some_and(is_token) {
        return Err(Failure::refused(
            "a token file is named by its path, and this is a token itself, which others on the machine could see: \
             write it into a file of mode 0600, name that, and put a new token in its place (rondel token rotate)",
        ));
    }
    let mut text = String::new();
    let limit = LEN_MAX as u64 + 2;
    let result = std::fs::File::open(path).and_then(|file| {
        let metadata = file.metadata()?;
        file.take(limit).read_to_string(&mut text).map(|_| metadata)
    });
    let metadata = match result {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => return Err(Failure::of(format!("cannot read the token file {}", path.display()), &error)),
    };
    let path_text = path.display();
    if text.trim().is_empty() {
        return Err(Failure::from_text(format!(
            "the token file {path_text} holds no token: the file is empty; write a token into it, one line of {LEN_MIN} to \
             {LEN_MAX} visible characters"
        )));
    }
    let token = parse_token(&text).ok_or_else(|| {
        Failure::from_text(format!(
            "the token file {path_text} holds no token: it must be one line of {LEN_MIN} to {LEN_MAX} visible characters"
        ))
    })?;
    match exposure(metadata.mode(), metadata.uid()).filter(|_| metadata.is_file()) {
        Some(fault) => Err(Failure::refused(format!("the token file {path_text} {fault}"))),
        None => Ok(Some(token)),
    }
}

/// Reads the token in a file that must exist.
pub(crate) fn read_existing(path: &Path) -> Result<Token, Failure> {
    let missing_failure = || Failure::from_text(format!("there is no token file {}", path.display()));
    read(path)?.ok_or_else(missing_failure)
}

/// Reads the token in a file. Without the file, generates a token and writes it.
pub(crate) fn read_or_make(path: &Path, startup_files: &mut StartupFiles) -> Result<Token, Failure> {
    if let Some(token) = read(path)? {
        return Ok(token);
    }
    let token = Token::generate();
    startup_files.write_secret_file(path, &format!("{}\n", token.reveal()))?;
    Ok(token)
}

/// The token in the environment variable `RONDEL_TOKEN`.
pub(crate) fn from_environment() -> Result<Option<Token>, Failure> {
    let Some(text) = env_variable("RONDEL_TOKEN") else { return Ok(None) };
    let token = text.to_str().and_then(parse_token);
    token.map(Some).ok_or_else(|| Failure::refused("the environment variable RONDEL_TOKEN holds no token"))
}

/// The file that the environment variable `RONDEL_TOKEN_FILE` names.
pub(crate) fn path_from_environment() -> Option<PathBuf> {
    env_variable("RONDEL_TOKEN_FILE").map(PathBuf::from)
}

/// Reads a variable without clap, which would add a flag for it: every user of the machine can see a flag's value. `None` if
/// the variable is not set or empty.
pub(crate) fn env_variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Parses a text as a token; `None` if it cannot be one.
pub(crate) fn parse_token(text: &str) -> Option<Token> {
    let text = text.trim_end_matches(['\n', '\r']);
    let is_token = (LEN_MIN..=LEN_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_token.then(|| Token::from_text(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_once() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("data/admin.token");
        let mut startup_files = StartupFiles::default();
        let made = read_or_make(&path, &mut startup_files).unwrap();
        startup_files.commit();
        let again = read_or_make(&path, &mut StartupFiles::default()).unwrap();
        assert_eq!(made.reveal(), again.reveal());
    }

    #[test]
    fn an_empty_file_is_named() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("token");
        for text in ["", "\n", "  \r\n"] {
            std::fs::write(&path, text).unwrap();
            let message = read(&path).unwrap_err().message().to_owned();
            assert!(message.contains("the file is empty") && message.contains(&*path.to_string_lossy()), "{message}");
        }
    }

    #[test]
    fn a_token_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;

        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("token");
        std::fs::write(&path, Token::generate().reveal()).unwrap();
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

    #[test]
    fn a_file_without_a_token_is_refused() {
        let long = "x".repeat(600);
        for text in [
            "",
            "\n",
            "short",
            "two words that are long",
            "a-first-line-of-many\na-second-line",
            "ünfzehn-und-mehr",
            &long,
        ] {
            assert!(parse_token(text).is_none(), "{text}");
        }
        assert!(parse_token("rondel_0123456789abcdef\r\n").is_some());
        assert!(read(Path::new("/")).is_err());
        assert!(read(Path::new("/nowhere/token")).unwrap().is_none());
        let token = Token::generate();
        let message = read(Path::new(token.reveal())).unwrap_err().message().to_owned();
        assert!(!message.contains(token.reveal()) && message.contains("is named by its path"), "{message}");
    }
}
