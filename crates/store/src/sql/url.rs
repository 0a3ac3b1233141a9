use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::dialect::Dialect;
use crate::OpenError;

/// The address of a database: `sqlite:///path`, `postgres://…`, `mysql://…`. Printed without its password.
///
/// ```
/// let url: rondel_store::DatabaseUrl = "postgres://rondel:secret@db/rondel".parse()?;
/// assert_eq!(url.to_string(), "postgres://rondel:***@db/rondel");
/// # Ok::<(), rondel_store::OpenError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(Location);

#[derive(Clone, PartialEq, Eq)]
enum Location {
    File(PathBuf),
    Server(Dialect, String),
}

impl DatabaseUrl {
    #[must_use]
    pub fn sqlite_file(path: impl Into<PathBuf>) -> Self {
        Self(Location::File(path.into()))
    }

    /// The database file; `None` if the database is not SQLite.
    #[must_use]
    pub fn sqlite_path(&self) -> Option<&Path> {
        match &self.0 {
            Location::File(path) => Some(path),
            Location::Server(..) => None,
        }
    }

    /// The user and the database that the URL names, as they are written there.
    pub(super) fn user_and_name(&self) -> (Option<&str>, Option<&str>) {
        let Location::Server(_, url) = &self.0 else { return (None, None) };
        let address = url.split_once("://").map_or("", |(_, address)| address);
        let address = address.split('?').next().unwrap_or_default();
        let (authority, path) = address.split_once('/').unwrap_or((address, ""));
        let user = authority.rsplit_once('@').map(|(user, _)| user.split(':').next().unwrap_or_default());
        let is_named = |text: &&str| !text.is_empty();
        (user.filter(is_named), Some(path).filter(is_named))
    }

    pub(super) fn dialect(&self) -> Dialect {
        match &self.0 {
            Location::File(_) => Dialect::Sqlite,
            Location::Server(dialect, _) => *dialect,
        }
    }

    /// Whether a pooler in front of the database gives each transaction another session. `None` unless the URL has `pooler=transaction` or
    /// `pooler=none`.
    pub(super) fn shares_sessions(&self) -> Option<bool> {
        let Location::Server(Dialect::Postgres, url) = &self.0 else { return None };
        pooler_parameter(url).map(|word| word == "transaction")
    }

    /// The URL for the driver, including the password.
    pub(super) fn expose(&self) -> String {
        match &self.0 {
            Location::File(path) => format!("sqlite://{}?mode=rwc", percent_encode(&path.to_string_lossy())),
            // A batch statement is prepared once for each power of two of its row count. These are more statements than the driver keeps by
            // default.
            Location::Server(_, url) => {
                let (address, query) = url.split_once('?').unwrap_or((url, ""));
                let kept_pairs = query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with(POOLER));
                let kept_pairs: String = kept_pairs.map(|pair| format!("{pair}&")).collect();
                format!("{address}?{kept_pairs}statement-cache-capacity=500")
            }
        }
    }
}

impl FromStr for DatabaseUrl {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let unknown_error = || OpenError::Url { url: without_password(text) };
        let (scheme, after_scheme) = text.split_once(':').ok_or_else(unknown_error)?;
        let server_url = |dialect, name: &str| {
            let authority =
                after_scheme.strip_prefix("//").filter(|authority| !authority.is_empty()).ok_or_else(unknown_error)?;
            if has_unencoded_password(authority) {
                return Err(OpenError::Unencoded { url: without_password(text) });
            }
            if let Some(word) = pooler_parameter(authority).filter(|word| !["transaction", "none"].contains(word)) {
                return Err(OpenError::Pooler { url: without_password(text), word: word.to_owned() });
            }
            Ok(Self(Location::Server(dialect, format!("{name}://{authority}"))))
        };
        match scheme {
            "sqlite" => {
                let path = after_scheme.strip_prefix("//").unwrap_or(after_scheme);
                let path = path.split('?').next().unwrap_or_default();
                // Each connection would open its own database in memory.
                if path.is_empty() || path.contains(":memory:") {
                    return Err(unknown_error());
                }
                Ok(Self::sqlite_file(percent_decode(path)))
            }
            "postgres" | "postgresql" => server_url(Dialect::Postgres, "postgres"),
            "mysql" | "mariadb" => server_url(Dialect::MySql, "mysql"),
            _ => Err(unknown_error()),
        }
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Location::File(path) => write!(f, "sqlite://{}", path.display()),
            Location::Server(_, url) => f.write_str(&without_password(url)),
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The parameter in the URL's query that only Rondel reads.
const POOLER: &str = "pooler=";

fn pooler_parameter(url: &str) -> Option<&str> {
    url.split_once('?')?.1.split('&').find_map(|pair| pair.strip_prefix(POOLER))
}

/// Whether a password seems not to be percent-encoded: an @ follows the first slash, or there is a #. A correct URL has neither.
fn has_unencoded_password(address: &str) -> bool {
    let path = address.split('?').next().unwrap_or_default().split_once('/').map_or("", |(_, path)| path);
    path.contains('@') || address.contains('#')
}

fn without_password(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    // A password in the query that has an @ or # may also have an &, so its end is unknown.
    if let Some((key_start, value_start)) = query_password(url)
        && url[value_start..].contains(['@', '#'])
    {
        return format!("{}{}***", without_password(&url[..key_start]), &url[key_start..value_start]);
    }
    // A password may contain characters that are not encoded, so the last @ of the whole address ends it.
    let shown_url = match url[start..].rfind('@').map(|at| start + at) {
        Some(at) => {
            let (user, secret) = match url[start..at].split_once(':') {
                Some((user, _)) => (user, ":***"),
                None => (&url[start..at], ""),
            };
            format!("{}{user}{secret}{}", &url[..start], &url[at..])
        }
        None => mask_non_numeric_port(url, start),
    };
    let Some((head, query)) = shown_url.split_once('?') else { return shown_url };
    let hide_password = |pair: &str| match pair.split_once('=') {
        Some((key, _)) if is_password(key) => format!("{key}=***"),
        _ => pair.to_owned(),
    };
    let shown_pairs: Vec<String> = query.split('&').map(hide_password).collect();
    format!("{head}?{}", shown_pairs.join("&"))
}

/// Where the key and the value of the first password in a URL's query begin.
fn query_password(url: &str) -> Option<(usize, usize)> {
    let mut key_start = url.find('?')? + 1;
    for pair in url[key_start..].split('&') {
        match pair.split_once('=') {
            Some((name, _)) if is_password(name) => return Some((key_start, key_start + name.len() + 1)),
            _ => key_start += pair.len() + 1,
        }
    }
    None
}

fn is_password(key: &str) -> bool {
    key.to_ascii_lowercase().contains("password")
}

/// Without an @, the text after the colon should be a port. Any other text may be a password whose host was forgotten, and is masked.
fn mask_non_numeric_port(url: &str, start: usize) -> String {
    let end = url[start..].find(['/', '?']).map_or(url.len(), |at| start + at);
    match url[start..end].split_once(':') {
        Some((host, port)) if !host.starts_with('[') && !port.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{}{host}:***{}", &url[..start], &url[end..])
        }
        _ => url.to_owned(),
    }
}

fn percent_encode(path: &str) -> String {
    let mut encoded_path = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => encoded_path.push(char::from(byte)),
            _ => encoded_path.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded_path
}

fn percent_decode(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut remaining_bytes = path.as_bytes();
    while let Some((first, tail)) = remaining_bytes.split_first() {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match (first, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                remaining_bytes = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                remaining_bytes = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_hidden() {
        for (given, shown) in [
            ("postgres://u:p@h/d", "postgres://u:***@h/d"),
            ("postgresql://u@h/d", "postgres://u@h/d"),
            ("mysql://u:p@h:3306/d?ssl-mode=DISABLED", "mysql://u:***@h:3306/d?ssl-mode=DISABLED"),
            ("mariadb://u:a@c@h/d", "mysql://u:***@h/d"),
            ("postgres://u:forgotten", "postgres://u:***"),
            ("postgres://[::1]:5432/d", "postgres://[::1]:5432/d"),
            ("postgres://h/d?user=u&password=p", "postgres://h/d?user=u&password=***"),
            ("postgres://h:5432/d?user=u&password=p@tail&x=1", "postgres://h:5432/d?user=u&password=***"),
            ("mysql://u:p@h/d?a=1&keyStorePassword=q&b=2", "mysql://u:***@h/d?a=1&keyStorePassword=***&b=2"),
        ] {
            let url: DatabaseUrl = given.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), shown);
        }
    }

    #[test]
    fn a_password_that_ends_too_early_is_not_dialled() {
        for given in ["postgres://u:p@ss/w#rd@h/d", "mariadb://u:a/b@c@h/d", "mysql://u:p#x@h/d"] {
            let error = given.parse::<DatabaseUrl>().unwrap_err().to_string();
            assert!(error.contains("u:***@h/d") && error.contains("@ as %40"), "{error}");
        }
        let error = "mysql://h:3306/d?user=u&password=p@tail#tail&tail".parse::<DatabaseUrl>().unwrap_err().to_string();
        assert!(error.contains("mysql://h:3306/d?user=u&password=***") && !error.contains("tail"), "{error}");
        assert!("postgres://u:p%40ss%2Fw%23rd@h/d".parse::<DatabaseUrl>().is_ok());
    }

    #[test]
    fn parameters_that_the_driver_does_not_know_are_removed() {
        let url = |query: &str| format!("postgres://u:p@h/d{query}").parse::<DatabaseUrl>();
        for (query, is_shared, exposed) in [
            ("", None, "?"),
            ("?pooler=transaction", Some(true), "?"),
            ("?sslmode=require&pooler=none", Some(false), "?sslmode=require&"),
        ] {
            let url = url(query).unwrap();
            assert_eq!(url.shares_sessions(), is_shared);
            assert_eq!(url.expose(), format!("postgres://u:p@h/d{exposed}statement-cache-capacity=500"));
        }
        let error = url("?pooler=session").unwrap_err().to_string();
        assert!(error.contains("pooler=session") && error.contains("transaction or none"), "{error}");
    }

    #[test]
    fn files_are_found() {
        for (given, path) in [
            ("sqlite:///var/lib/rondel.db", "/var/lib/rondel.db"),
            ("sqlite:rondel.db", "rondel.db"),
            ("sqlite:///a%20b.db?mode=rwc", "/a b.db"),
        ] {
            assert_eq!(given.parse::<DatabaseUrl>().unwrap().sqlite_path(), Some(Path::new(path)));
        }
    }

    #[test]
    fn other_addresses_are_refused_without_their_password() {
        for given in ["oracle://u:secret@h", "rondel.db", "sqlite::memory:", "postgres:", "sqlite://"] {
            let error = given.parse::<DatabaseUrl>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
