//! The URLs of servers.

use reqwest::Url;

use crate::exit::Failure;

pub(super) const SERVER_DEFAULT: &str = "http://127.0.0.1:8080";

/// Parses the URL of a server, and refuses one that contains a user or a password. `flag` is the name of the flag or
/// setting for messages.
pub(crate) fn check_server(flag: &str, server: &str) -> Result<Url, Failure> {
    let url = Url::parse(server).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let url =
        url.ok_or_else(|| Failure::refused(format!("{flag}: {server:?} is not a URL such as {SERVER_DEFAULT}")))?;
    if url.username().is_empty() && url.password().is_none() {
        return Ok(url);
    }
    // The password would be printed with the URL, and would replace the token in the request.
    Err(Failure::refused(format!(
        "{flag}: the URL holds a user or a password; only a token gives access, see --token-file"
    )))
}

/// Whether two URLs are equal, apart from slashes at the end.
pub(super) fn is_same_server(first_url: &str, second_url: &str) -> bool {
    first_url.trim_end_matches('/') == second_url.trim_end_matches('/')
}

/// Whether a URL names this machine: `localhost` or a loopback address.
pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_holds_no_password() {
        assert!(check_server("--server", "https://rondel.example.com/team").is_ok());
        for url in ["https://me:secret@rondel.example.com", "https://secret@rondel.example.com"] {
            let failure = check_server("--server", url).unwrap_err();
            assert!(!failure.message().contains("secret"), "{}", failure.message());
        }
        assert!(check_server("--server", "rondel.example.com").is_err());
    }

    #[test]
    fn this_machine_is_known_by_its_names() {
        for (url, here) in [
            ("http://127.0.0.1:8080", true),
            ("http://localhost", true),
            ("http://[::1]:1", true),
            ("http://10.0.0.1", false),
            ("https://localhost.example.com", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(url).unwrap()), here, "{url}");
        }
    }
}
