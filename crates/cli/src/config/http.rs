//! Settings for the connections, requests and timeouts of the server's port.

use std::time::Duration;

use rondel_core::forwarded::TrustedProxies;
use rondel_web::HttpLimits;

use super::check::{bad_setting, to_u32};
use super::layer::{Layer, settings};
use super::values::{DurationText, Size};
use crate::exit::Failure;

const SECTION: &str = HttpSettings::SECTION;
/// The minimum of every timeout except `write_timeout`: a shorter timeout would cut off harmless clients.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// The minimum of `write_timeout`. An event or log stream without news sends something only every 15 s, and a shorter
/// timeout would end it.
const WRITE_TIMEOUT_MIN: Duration = Duration::from_secs(20);
/// The minimum of `body_size`. One caller may use at most half of `body_size`, and that half must hold the largest body,
/// which is a list of jobs.
const BODY_SIZE_MIN: u64 = 40 * 1024 * 1024;
/// The minimum of `answer_size`. One caller may use at most half of `answer_size`, and that half must hold several of the
/// largest answers.
const ANSWER_SIZE_MIN: u64 = 32 * 1024 * 1024;

settings! {
    /// One layer of settings, or several merged layers.
    "http", HttpSettings => HttpValues {
        /// The network of a proxy whose headers Forwarded and X-Forwarded-For are trusted; several may be given
        #[arg(long = "http-trusted-proxy", global = true, value_name = "NETWORK", env = "RONDEL_HTTP_TRUSTED_PROXIES")]
        #[arg(value_delimiter = ',')]
        trusted_proxies: Vec<String> = Vec::new();
        /// Maximum number of open connections
        #[arg(long = "http-connections", global = true, value_name = "N", env = "RONDEL_HTTP_CONNECTIONS")]
        connections: u32 = to_u32(HttpLimits::default().connections);
        /// Maximum number of open connections of one address without an authenticated request; trusted proxies have no such limit
        #[arg(long = "http-connections-per-address", global = true, value_name = "N")]
        #[arg(env = "RONDEL_HTTP_CONNECTIONS_PER_ADDRESS")]
        connections_per_address: u32 = to_u32(HttpLimits::default().connections_per_address);
        /// Maximum number of connections of one caller that count as authenticated. The executors of one token may have half
        /// of all connections instead
        #[arg(long = "http-connections-per-caller", global = true, value_name = "N")]
        #[arg(env = "RONDEL_HTTP_CONNECTIONS_PER_CALLER")]
        connections_per_caller: u32 = to_u32(HttpLimits::default().connections_per_caller);
        /// Maximum number of concurrent requests on one HTTP/2 connection
        #[arg(long = "http-requests-per-connection", global = true, value_name = "N")]
        #[arg(env = "RONDEL_HTTP_REQUESTS_PER_CONNECTION")]
        requests_per_connection: u32 = HttpLimits::default().requests_per_connection;
        /// Maximum number of concurrent requests
        #[arg(long = "http-requests", global = true, value_name = "N", env = "RONDEL_HTTP_REQUESTS")]
        requests: u32 = to_u32(HttpLimits::default().requests);
        /// How many concurrent requests are reserved for authenticated callers; requests of probes do not count
        #[arg(long = "http-requests-reserved", global = true, value_name = "N", env = "RONDEL_HTTP_REQUESTS_RESERVED")]
        requests_reserved: u32 = to_u32(HttpLimits::default().requests_reserved);
        /// Maximum number of concurrent unauthenticated requests of one address
        #[arg(long = "http-requests-per-address", global = true, value_name = "N")]
        #[arg(env = "RONDEL_HTTP_REQUESTS_PER_ADDRESS")]
        requests_per_address: u32 = to_u32(HttpLimits::default().requests_per_address);
        /// Maximum number of concurrent requests of one caller
        #[arg(long = "http-requests-per-caller", global = true, value_name = "N")]
        #[arg(env = "RONDEL_HTTP_REQUESTS_PER_CALLER")]
        requests_per_caller: u32 = to_u32(HttpLimits::default().requests_per_caller);
        /// Maximum number of unauthenticated requests of one address that wait for their bodies
        #[arg(long = "http-bodies-per-address", global = true, value_name = "N", env = "RONDEL_HTTP_BODIES_PER_ADDRESS")]
        bodies_per_address: u32 = to_u32(HttpLimits::default().bodies_per_address);
        /// Maximum memory for the bodies of requests; one caller has at most half of it
        #[arg(long = "http-body-size", global = true, value_name = "SIZE", env = "RONDEL_HTTP_BODY_SIZE")]
        body_size: Size = Size(HttpLimits::default().body_size as u64);
        /// Maximum memory for answers that clients have not read; one caller has at most half of it
        #[arg(long = "http-answer-size", global = true, value_name = "SIZE", env = "RONDEL_HTTP_ANSWER_SIZE")]
        answer_size: Size = Size(HttpLimits::default().answer_size as u64);
        /// Maximum number of requests of one caller that read from the database concurrently; its other requests wait
        #[arg(long = "http-reads-per-caller", global = true, value_name = "N", env = "RONDEL_HTTP_READS_PER_CALLER")]
        reads_per_caller: u32 = to_u32(HttpLimits::default().reads_per_caller);
        /// Maximum number of concurrent exports
        #[arg(long = "http-exports", global = true, value_name = "N", env = "RONDEL_HTTP_EXPORTS")]
        exports: u32 = to_u32(HttpLimits::default().exports);
        /// Maximum number of concurrent exports of one caller
        #[arg(long = "http-exports-per-caller", global = true, value_name = "N", env = "RONDEL_HTTP_EXPORTS_PER_CALLER")]
        exports_per_caller: u32 = to_u32(HttpLimits::default().exports_per_caller);
        /// Maximum number of lists of jobs that are read, compared and applied concurrently
        #[arg(long = "http-applies", global = true, value_name = "N", env = "RONDEL_HTTP_APPLIES")]
        applies: u32 = to_u32(HttpLimits::default().applies);
        /// Maximum number of lists of jobs that are applied concurrently for one caller
        #[arg(long = "http-applies-per-caller", global = true, value_name = "N", env = "RONDEL_HTTP_APPLIES_PER_CALLER")]
        applies_per_caller: u32 = to_u32(HttpLimits::default().applies_per_caller);
        /// Maximum number of concurrent event streams; the same limit applies separately to followed logs
        #[arg(long = "http-live-streams", global = true, value_name = "N", env = "RONDEL_HTTP_LIVE_STREAMS")]
        live_streams: u32 = to_u32(HttpLimits::default().live_streams);
        /// Maximum number of event streams of one caller; the same limit applies separately to followed logs
        #[arg(long = "http-live-streams-per-caller", global = true, value_name = "N")]
        #[arg(env = "RONDEL_HTTP_LIVE_STREAMS_PER_CALLER")]
        live_streams_per_caller: u32 = to_u32(HttpLimits::default().live_streams_per_caller);
        /// Time limit for a TLS handshake, and for the head of a request
        #[arg(long = "http-header-timeout", global = true, value_name = "DURATION", env = "RONDEL_HTTP_HEADER_TIMEOUT")]
        header_timeout: DurationText = DurationText(HttpLimits::default().header_timeout);
        /// How long the body of a request may take
        #[arg(long = "http-body-timeout", global = true, value_name = "DURATION", env = "RONDEL_HTTP_BODY_TIMEOUT")]
        body_timeout: DurationText = DurationText(HttpLimits::default().body_timeout);
        /// How long a connection stays open without a request; an HTTP/1 connection at most for the time limit of a request's head
        #[arg(long = "http-idle-timeout", global = true, value_name = "DURATION", env = "RONDEL_HTTP_IDLE_TIMEOUT")]
        idle_timeout: DurationText = DurationText(HttpLimits::default().idle_timeout);
        /// How long a client may read nothing of an answer before its connection is closed
        #[arg(long = "http-write-timeout", global = true, value_name = "DURATION", env = "RONDEL_HTTP_WRITE_TIMEOUT")]
        write_timeout: DurationText = DurationText(HttpLimits::default().write_timeout);
    }
}

/// Checked settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpConfig {
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) limits: HttpLimits,
}

impl HttpSettings {
    /// The effective settings, checked.
    pub(crate) fn checked(self) -> Result<HttpConfig, Failure> {
        let settings = self.values();
        let trusted_proxies = TrustedProxies::parse(settings.trusted_proxies)
            .map_err(|sentence| bad_setting(SECTION, "trusted_proxies", sentence))?;
        let connections = checked_count("connections", settings.connections)?;
        let requests = checked_count("requests", settings.requests)?;
        let limits = HttpLimits {
            connections,
            connections_per_address: checked_connection_limit(
                "connections_per_address",
                settings.connections_per_address,
                connections,
            )?,
            connections_per_caller: checked_connection_limit(
                "connections_per_caller",
                settings.connections_per_caller,
                connections,
            )?,
            requests_per_connection: checked_positive("requests_per_connection", settings.requests_per_connection)?,
            requests,
            requests_reserved: checked_reserve(settings.requests_reserved, requests)?,
            requests_per_address: checked_count("requests_per_address", settings.requests_per_address)?,
            requests_per_caller: checked_count("requests_per_caller", settings.requests_per_caller)?,
            bodies_per_address: checked_count("bodies_per_address", settings.bodies_per_address)?,
            body_size: checked_size("body_size", settings.body_size, BODY_SIZE_MIN)?,
            answer_size: checked_size("answer_size", settings.answer_size, ANSWER_SIZE_MIN)?,
            reads_per_caller: checked_count("reads_per_caller", settings.reads_per_caller)?,
            exports: checked_count("exports", settings.exports)?,
            exports_per_caller: checked_count("exports_per_caller", settings.exports_per_caller)?,
            applies: checked_count("applies", settings.applies)?,
            applies_per_caller: checked_count("applies_per_caller", settings.applies_per_caller)?,
            live_streams: checked_count("live_streams", settings.live_streams)?,
            live_streams_per_caller: checked_count("live_streams_per_caller", settings.live_streams_per_caller)?,
            header_timeout: checked_timeout("header_timeout", settings.header_timeout, TIMEOUT_MIN)?,
            body_timeout: checked_timeout("body_timeout", settings.body_timeout, TIMEOUT_MIN)?,
            idle_timeout: checked_timeout("idle_timeout", settings.idle_timeout, TIMEOUT_MIN)?,
            write_timeout: checked_timeout("write_timeout", settings.write_timeout, WRITE_TIMEOUT_MIN)?,
        };
        Ok(HttpConfig { trusted_proxies, limits })
    }
}

fn checked_positive(key: &str, number: u32) -> Result<u32, Failure> {
    if number == 0 {
        return Err(bad_setting(SECTION, key, "0 would admit nothing, the minimum is 1"));
    }
    Ok(number)
}

fn checked_count(key: &str, number: u32) -> Result<usize, Failure> {
    Ok(usize::try_from(checked_positive(key, number)?).unwrap_or(usize::MAX))
}

fn checked_connection_limit(key: &str, number: u32, connections: usize) -> Result<usize, Failure> {
    match checked_count(key, number)? {
        number if number > connections => {
            Err(bad_setting(SECTION, key, format!("{number} is more than http.connections, which is {connections}")))
        }
        number => Ok(number),
    }
}

fn checked_reserve(number: u32, requests: usize) -> Result<usize, Failure> {
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    if number >= requests {
        let sentence = format!("{number} leaves none of http.requests = {requests} for signing in");
        return Err(bad_setting(SECTION, "requests_reserved", sentence));
    }
    Ok(number)
}

fn checked_size(key: &str, size: Size, minimum: u64) -> Result<usize, Failure> {
    if size.0 < minimum {
        return Err(bad_setting(SECTION, key, format!("{size} is too little, the minimum is {}", Size(minimum))));
    }
    Ok(size.as_usize())
}

fn checked_timeout(key: &str, length: DurationText, minimum: Duration) -> Result<Duration, Failure> {
    if length.0 < minimum {
        return Err(bad_setting(
            SECTION,
            key,
            format!("{length} is too short, the minimum is {}", DurationText(minimum)),
        ));
    }
    Ok(length.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_settings_are_named() {
        let check = |text: &str| {
            let settings: HttpSettings = toml::from_str(text).map_err(|error| error.to_string())?;
            settings.checked().map_err(|failure| format!("{failure:?}"))
        };
        for (text, part) in [
            ("trusted_proxies = [\"10.0.0.1/8\"]", "the network is 10.0.0.0/8"),
            ("connections = 0", "http.connections"),
            ("connections = 100", "http.connections_per_address: 512 is more than http.connections"),
            ("requests = 256", "http.requests_reserved"),
            ("requests_per_caller = -1", "requests_per_caller"),
            ("body_size = \"1MiB\"", "the minimum is 40MiB"),
            ("answer_size = \"1MiB\"", "http.answer_size: 1MiB is too little, the minimum is 32MiB"),
            ("exports_per_caller = 0", "http.exports_per_caller"),
            ("header_timeout = \"10ms\"", "http.header_timeout"),
            ("write_timeout = \"5s\"", "the minimum is 20s"),
            ("read_timeout = \"5s\"", "read_timeout"),
        ] {
            let refusal = check(text).unwrap_err();
            assert!(refusal.contains(part), "{text}: {refusal}");
        }
        let good = check("trusted_proxies = [\"10.0.0.0/8\"]\nbody_timeout = \"5s\"").unwrap();
        assert!(good.trusted_proxies.contains([10, 9, 8, 7].into()));
        let expected = HttpLimits { body_timeout: Duration::from_secs(5), ..HttpLimits::default() };
        assert_eq!(good.limits, expected);
    }
}
