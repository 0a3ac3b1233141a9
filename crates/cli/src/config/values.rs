//! Values of settings that are parsed from text, in a flag, the environment or the file.

use std::ffi::OsStr;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use rondel_admin::gateway::Certificates;
use rondel_admin::oidc::GroupRole;
use rondel_core::size::{format_size, parse_size};
use rondel_core::time::{format_duration, parse_duration};
use rondel_store::{DatabaseUrl, OpenError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! text_value {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

/// A duration such as `5s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DurationText(pub(crate) Duration);

impl FromStr for DurationText {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        parse_duration(text).map(Self).map_err(|error| error.to_string())
    }
}

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_duration(self.0))
    }
}

text_value!(DurationText);

/// A number of bytes such as `64KiB`, `10MiB` or `5GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl Size {
    pub(crate) fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        parse_size(text).map(Self)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_size(self.0))
    }
}

text_value!(Size);

/// An address to listen on, such as `127.0.0.1:8080`; port 0 selects a free port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenAddress(pub(crate) SocketAddr);

impl FromStr for ListenAddress {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let numeric_text = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}"),
            None => text.to_owned(),
        };
        let address = numeric_text.parse();
        address.map(Self).map_err(|_| format!("{text:?} is not an address such as 127.0.0.1:8080 or [::]:8080"))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

text_value!(ListenAddress);

/// The URL of a database. It is printed without its password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Database(pub(crate) DatabaseUrl);

impl FromStr for Database {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|error: OpenError| error.to_string())
    }
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

text_value!(Database);

/// Parses a database's URL from a flag or its variable. An error leaves the password out: clap's own message would
/// repeat the text as given.
#[derive(Clone, Debug)]
pub(crate) struct DatabaseParser;

impl TypedValueParser for DatabaseParser {
    type Value = Database;

    fn parse_ref(
        &self,
        command: &clap::Command,
        _: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Database, clap::Error> {
        let result = value.to_str().ok_or_else(|| "it is not UTF-8".to_owned()).and_then(str::parse);
        result.map_err(|sentence| {
            let message = format!("the database's URL (--database or its variable): {sentence}");
            command.clone().error(ErrorKind::ValueValidation, message)
        })
    }
}

/// Which certificates executors need in addition to a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ExecutorCertificates {
    /// Any certificate that the client CA has signed
    Required,
    /// One with the DNS name NAME.APP.NAMESPACE or *.APP.NAMESPACE, or with both APP.NAMESPACE and NAME
    Named,
}

impl From<ExecutorCertificates> for Certificates {
    fn from(certificates: ExecutorCertificates) -> Self {
        match certificates {
            ExecutorCertificates::Required => Self::Required,
            ExecutorCertificates::Named => Self::Named,
        }
    }
}

/// A role that a group of the provider gives, such as `ops=operator:default`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupRoleText(pub(crate) GroupRole);

impl FromStr for GroupRoleText {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl fmt::Display for GroupRoleText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

text_value!(GroupRoleText);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_databases_are_not_shown() {
        let database: Database = "postgres://me:secret@db:5432/rondel".parse().unwrap();
        assert_eq!(database.to_string(), "postgres://me:***@db:5432/rondel");
        assert_eq!(format!("{database:?}"), database.to_string());
        assert!(!"me:secret@db".parse::<Database>().unwrap_err().contains("secret"));
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [("0B", 0), ("1000B", 1_000), ("64KiB", 65_536), ("10MiB", 10 << 20), ("5GiB", 5 << 30)] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, text));
        }
        for text in ["", "10", "10MB", "-1B", "1.5GiB", "99999999999GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn addresses() {
        assert_eq!("localhost:0".parse::<ListenAddress>().unwrap().to_string(), "127.0.0.1:0");
        assert_eq!("[::]:8080".parse::<ListenAddress>().unwrap().to_string(), "[::]:8080");
        for text in ["", "8080", "127.0.0.1", "127.0.0.1:99999", "host:1"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }
}
