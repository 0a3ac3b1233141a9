//! The address that an executor registers, and the executor's name derived from it.

use rondel_core::name;
use rondel_outgoing::Url;
use sha2::{Digest as _, Sha256};

/// Maximum length of an address, in bytes.
const LEN_MAX: usize = 255;
/// Number of hash bytes that keep names distinct.
const HASH_BYTES: usize = 4;

/// The address at which an executor listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Without a slash at the end.
    text: String,
    url: Url,
}

impl Address {
    /// Parses an address such as `http://10.0.0.5:9999/`; it may have a path.
    ///
    /// # Errors
    /// A sentence with the text and the expected form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim().trim_end_matches('/');
        let excerpt: String = text.chars().take(100).collect();
        let error = |why: &str| Err(format!("{excerpt:?} {why}; write it as http://10.0.0.5:9999/"));
        if text.len() > LEN_MAX {
            return error(&format!("has more than {LEN_MAX} bytes"));
        }
        // The parser accepts control characters, and PostgreSQL does not store NUL.
        let is_plain = !text.contains(char::is_control);
        let Some(url) = Url::parse(text).ok().filter(|_| is_plain) else { return error("is not an address") };
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
            return error("is not an address of HTTP");
        }
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
            return error("has more than a host, a port and a path");
        }
        Ok(Self { text: text.to_owned(), url })
    }

    /// The address, without a slash at the end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    #[must_use]
    pub const fn url(&self) -> &Url {
        &self.url
    }

    /// The name of the executor: host and port, if the address consists of them and they form a valid name; otherwise `x-`, host and port, and a
    /// hash of the address.
    #[must_use]
    pub fn name(&self) -> String {
        let host = self.url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let port = self.url.port_or_known_default().unwrap_or_default();
        let host_and_port = format!("{host}-{port}");
        let is_kept = |character: char| {
            character.is_ascii_lowercase() || character.is_ascii_digit() || matches!(character, '.' | '-')
        };
        let is_whole = self.text == format!("http://{host}:{port}") && host_and_port.chars().all(is_kept);
        if is_whole && name::check(&host_and_port).is_ok() {
            return host_and_port;
        }
        let digest = Sha256::digest(self.text.as_bytes());
        let hash: String = digest.iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
        let name: String =
            host_and_port.chars().map(|character| if is_kept(character) { character } else { '-' }).take(60).collect();
        format!("x-{name}-{hash}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_to_urls_and_names() {
        for (text, url, begins) in [
            ("http://10.0.0.5:9999/", "http://10.0.0.5:9999/", "10.0.0.5-9999"),
            ("http://10.0.0.5:9999", "http://10.0.0.5:9999/", "10.0.0.5-9999"),
            ("http://10.0.0.5:9999/job/", "http://10.0.0.5:9999/job", "x-10.0.0.5-9999-"),
            ("https://worker.example/", "https://worker.example/", "x-worker.example-443-"),
            ("http://[fd00::1]:80/", "http://[fd00::1]/", "x-fd00--1-80-"),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!(address.url().as_str(), url);
            assert!(address.name().starts_with(begins), "{}", address.name());
            name::check(&address.name()).unwrap();
        }
        let names = ["http://h:1/a", "http://h:1/b", "https://h:1", "http://h:1"];
        let names: std::collections::BTreeSet<String> =
            names.iter().map(|text| Address::parse(text).unwrap().name()).collect();
        assert_eq!(names.len(), 4, "{names:?}");
    }

    #[test]
    fn an_invalid_address_is_refused_with_a_valid_one() {
        let long = format!("http://h/{}", "a".repeat(300));
        let of_parts = ["", "10.0.0.5:9999", "ftp://h/", "http://", "http://u:p@h/", "http://h/?a=b", "file:///etc"];
        for text in of_parts.into_iter().chain(["http://h/\0", "http://h\n:80/", &long]) {
            let sentence = Address::parse(text).unwrap_err();
            assert!(sentence.ends_with("; write it as http://10.0.0.5:9999/"), "{text}: {sentence}");
        }
    }
}
