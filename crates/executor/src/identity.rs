//! The identity of this process: its incarnation number, and the stable name that users and routers see.

use rondel_core::name;
use serde::{Deserialize, Serialize};

/// A new incarnation number. It is positive, and its 63 random bits make it practically unique.
pub(crate) fn new_incarnation() -> i64 {
    (rand::random::<i64>() & i64::MAX).max(1)
}

/// Proves to servers that a hello comes from this process. Later, the next process with the same data directory uses
/// this secret to prove that it succeeds this process.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    /// A new random secret.
    pub(crate) fn new() -> Self {
        Self(rand::random::<[u8; 32]>().to_vec())
    }

    /// The bytes as they are sent.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.clone()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The host's name and a few random letters, so that two executors on one host differ.
pub(crate) fn default_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let suffix: String = (0..4).map(|_| char::from(b'a' + rand::random_range(0..26_u8))).collect();
    format!("{}-{suffix}", to_valid_name(&host))
}

/// Makes a valid name of the text: in lower case, with `-` for each character that a name cannot contain, and cut so
/// that a suffix fits. `executor` if nothing is left.
fn to_valid_name(text: &str) -> String {
    let mapped_chars = text.chars().map(|c| match c.to_ascii_lowercase() {
        c if c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_') => c,
        _ => '-',
    });
    let truncated_name: String = mapped_chars.take(name::NAME_LEN_MAX - 10).collect();
    let trimmed_name = truncated_name.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if trimmed_name.is_empty() { "executor".to_owned() } else { trimmed_name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_become_names() {
        for (host, expected) in
            [("Web-01.Example.com", "web-01.example.com"), ("_ä_", "executor"), ("", "executor"), ("a b", "a-b")]
        {
            assert_eq!(to_valid_name(host), expected);
            assert_eq!(name::check(&to_valid_name(host)), Ok(()));
        }
        assert_eq!(name::check(&default_name()), Ok(()));
        assert_eq!(name::check(&format!("{}-abcd", to_valid_name(&"x".repeat(300)))), Ok(()));
    }

    #[test]
    fn incarnations_are_positive_and_differ() {
        let (a, b) = (new_incarnation(), new_incarnation());
        assert!(a > 0 && b > 0 && a != b);
    }
}
