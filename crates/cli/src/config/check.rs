//! Checks shared by several sections.

use rondel_core::outgoing::{self, AllowedAddresses};

use crate::exit::Failure;
use crate::telemetry::{self, TelemetrySettings};

/// The failure for a wrong setting, with the setting's name and a sentence.
pub(super) fn bad_setting(section: &str, key: &str, sentence: impl std::fmt::Display) -> Failure {
    Failure::refused(format!("setting {section}.{key}: {sentence}"))
}

/// A count as the value of a setting, at most `u32::MAX`.
pub(super) fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Refuses a number outside of its bounds. Clap has checked numbers from flags and variables, but not numbers from the file.
pub(super) fn check_range(
    section: &str,
    key: &str,
    number: u32,
    (minimum, maximum): (u32, u32),
) -> Result<(), Failure> {
    if (minimum..=maximum).contains(&number) {
        return Ok(());
    }
    Err(bad_setting(section, key, format!("{number} is not from {minimum} to {maximum}")))
}

/// Refuses a text that is not an http or https URL with a host.
pub(super) fn check_url(section: &str, key: &str, url: &str) -> Result<(), Failure> {
    match reqwest::Url::parse(url) {
        Ok(parsed_url) if matches!(parsed_url.scheme(), "http" | "https") && parsed_url.has_host() => Ok(()),
        _ => Err(bad_setting(section, key, format!("{url:?} is not a URL such as http://rondel.example.com:8080"))),
    }
}

/// Refuses a text that is not a URL, and a URL with a path or a query: executors dial only URLs of scheme, host and port.
pub(super) fn check_address(section: &str, key: &str, text: &str) -> Result<(), Failure> {
    check_url(section, key, text)?;
    match reqwest::Url::parse(text) {
        Ok(parsed_url) if parsed_url.path() != "/" || parsed_url.query().is_some() => {
            Err(bad_setting(section, key, format!("{text:?} has a path; give scheme, host and port alone")))
        }
        _ => Ok(()),
    }
}

/// Refuses an http URL for a port that only speaks TLS: executors could not reach it, and no browser would send the console's
/// forms from that origin.
pub(super) fn check_scheme(section: &str, key: &str, text: &str, is_tls: bool) -> Result<(), Failure> {
    match reqwest::Url::parse(text) {
        Ok(parsed_url) if is_tls && parsed_url.scheme() == "http" => Err(bad_setting(
            section,
            key,
            format!("{text:?} is plain HTTP, and with tls_cert the port speaks TLS alone: https"),
        )),
        _ => Ok(()),
    }
}

/// Parses the networks that outgoing requests may reach.
pub(super) fn parse_outgoing_allow(section: &str, networks: Vec<String>) -> Result<AllowedAddresses, Failure> {
    AllowedAddresses::parse(networks).map_err(|sentence| bad_setting(section, outgoing::SETTING, sentence))
}

/// Checks the settings for the program's own logs and traces.
pub(super) fn check_telemetry(section: &str, settings: TelemetrySettings<'_>) -> Result<(), Failure> {
    if let Some(url) = settings.endpoint {
        telemetry::check_endpoint(url).map_err(|sentence| bad_setting(section, "otlp_endpoint", sentence))?;
    }
    telemetry::check_ratio(settings.ratio).map_err(|sentence| bad_setting(section, "trace_ratio", sentence))?;
    telemetry::check_filter(settings.filter).map_err(|sentence| bad_setting(section, "log_level", sentence))
}
