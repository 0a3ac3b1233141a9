//! Settings of how the server's port treats its clients.

use std::time::Duration;

use clap::Args;
use rondel_core::forwarded::TrustedProxies;
use rondel_web::HttpLimits;
use serde::{Deserialize, Serialize};

use super::{Length, Size, wrong};
use crate::exit::Failure;

const SECTION: &str = "http";
/// What is shorter cuts off clients that mean no harm.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// Event and log streams send something each 15 s; a shorter time would end those that are silent.
const WRITE_TIMEOUT_MIN: Duration = Duration::from_secs(20);
/// One list of jobs in one body, and room for another caller's.
const BODY_SIZE_MIN: u64 = 40 * 1024 * 1024;
/// Some of the largest answers for one caller, and as many for others.
const ANSWER_SIZE_MIN: u64 = 32 * 1024 * 1024;

/// One layer of settings, or several laid over each other.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HttpSettings {
    /// The network of a proxy that is believed when it names its client in Forwarded or X-Forwarded-For; once per network
    #[arg(long = "http-trusted-proxy", global = true, value_name = "NETWORK", env = "RONDEL_HTTP_TRUSTED_PROXIES")]
    #[arg(value_delimiter = ',')]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trusted_proxies: Option<Vec<String>>,
    /// How many connections are open at the same time
    #[arg(long = "http-connections", global = true, value_name = "N", env = "RONDEL_HTTP_CONNECTIONS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<u32>,
    /// How many connections of one address are open without an authenticated request; trusted proxies have no such bound
    #[arg(long = "http-connections-per-address", global = true, value_name = "N")]
    #[arg(env = "RONDEL_HTTP_CONNECTIONS_PER_ADDRESS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections_per_address: Option<u32>,
    /// How many connections of one caller count as authenticated; the executors of one token have half of all instead
    #[arg(long = "http-connections-per-caller", global = true, value_name = "N")]
    #[arg(env = "RONDEL_HTTP_CONNECTIONS_PER_CALLER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections_per_caller: Option<u32>,
    /// How many requests one HTTP/2 connection carries at the same time
    #[arg(long = "http-requests-per-connection", global = true, value_name = "N")]
    #[arg(env = "RONDEL_HTTP_REQUESTS_PER_CONNECTION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests_per_connection: Option<u32>,
    /// How many requests are worked on at the same time
    #[arg(long = "http-requests", global = true, value_name = "N", env = "RONDEL_HTTP_REQUESTS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests: Option<u32>,
    /// How many of these are kept for authenticated callers; probes need none
    #[arg(long = "http-requests-reserved", global = true, value_name = "N", env = "RONDEL_HTTP_REQUESTS_RESERVED")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests_reserved: Option<u32>,
    /// How many unauthenticated requests of one address are open at the same time
    #[arg(long = "http-requests-per-address", global = true, value_name = "N")]
    #[arg(env = "RONDEL_HTTP_REQUESTS_PER_ADDRESS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests_per_address: Option<u32>,
    /// How many requests of one caller are open at the same time
    #[arg(long = "http-requests-per-caller", global = true, value_name = "N")]
    #[arg(env = "RONDEL_HTTP_REQUESTS_PER_CALLER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests_per_caller: Option<u32>,
    /// How many unauthenticated requests of one address may wait for their bodies
    #[arg(long = "http-bodies-per-address", global = true, value_name = "N", env = "RONDEL_HTTP_BODIES_PER_ADDRESS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bodies_per_address: Option<u32>,
    /// How much memory the bodies of requests take; one caller has at most half of it
    #[arg(long = "http-body-size", global = true, value_name = "SIZE", env = "RONDEL_HTTP_BODY_SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body_size: Option<Size>,
    /// How much memory answers take that clients have not read; one caller has at most half of it
    #[arg(long = "http-answer-size", global = true, value_name = "SIZE", env = "RONDEL_HTTP_ANSWER_SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) answer_size: Option<Size>,
    /// How many requests of one caller read from the database at the same time; its others wait
    #[arg(long = "http-reads-per-caller", global = true, value_name = "N", env = "RONDEL_HTTP_READS_PER_CALLER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reads_per_caller: Option<u32>,
    /// How many exports there are at the same time
    #[arg(long = "http-exports", global = true, value_name = "N", env = "RONDEL_HTTP_EXPORTS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exports: Option<u32>,
    /// How many exports one caller makes at the same time
    #[arg(long = "http-exports-per-caller", global = true, value_name = "N", env = "RONDEL_HTTP_EXPORTS_PER_CALLER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exports_per_caller: Option<u32>,
    /// How many lists of jobs are read, compared and applied at the same time
    #[arg(long = "http-applies", global = true, value_name = "N", env = "RONDEL_HTTP_APPLIES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) applies: Option<u32>,
    /// How many lists of jobs are applied for one caller at the same time
    #[arg(long = "http-applies-per-caller", global = true, value_name = "N", env = "RONDEL_HTTP_APPLIES_PER_CALLER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) applies_per_caller: Option<u32>,
    /// How many event streams there are at the same time, and how many followed logs
    #[arg(long = "http-live-streams", global = true, value_name = "N", env = "RONDEL_HTTP_LIVE_STREAMS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) live_streams: Option<u32>,
    /// The same of one caller
    #[arg(long = "http-live-streams-per-caller", global = true, value_name = "N")]
    #[arg(env = "RONDEL_HTTP_LIVE_STREAMS_PER_CALLER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) live_streams_per_caller: Option<u32>,
    /// How long a TLS handshake may take, and the head of a request
    #[arg(long = "http-header-timeout", global = true, value_name = "DURATION", env = "RONDEL_HTTP_HEADER_TIMEOUT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) header_timeout: Option<Length>,
    /// How long the body of a request may take
    #[arg(long = "http-body-timeout", global = true, value_name = "DURATION", env = "RONDEL_HTTP_BODY_TIMEOUT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body_timeout: Option<Length>,
    /// How long a connection stays open without a request; one of HTTP/1 at most as long as a head may take
    #[arg(long = "http-idle-timeout", global = true, value_name = "DURATION", env = "RONDEL_HTTP_IDLE_TIMEOUT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idle_timeout: Option<Length>,
    /// How long a client may take nothing of an answer
    #[arg(long = "http-write-timeout", global = true, value_name = "DURATION", env = "RONDEL_HTTP_WRITE_TIMEOUT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) write_timeout: Option<Length>,
}

/// Settings that were checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpConfig {
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) limits: HttpLimits,
}

fn number(count: usize) -> Option<u32> {
    u32::try_from(count).ok()
}

impl HttpSettings {
    /// The lowest layer.
    pub(crate) fn defaults() -> Self {
        let limits = HttpLimits::default();
        Self {
            trusted_proxies: Some(Vec::new()),
            connections: number(limits.connections),
            connections_per_address: number(limits.connections_per_address),
            connections_per_caller: number(limits.connections_per_caller),
            requests_per_connection: Some(limits.requests_per_connection),
            requests: number(limits.requests),
            requests_reserved: number(limits.requests_reserved),
            requests_per_address: number(limits.requests_per_address),
            requests_per_caller: number(limits.requests_per_caller),
            bodies_per_address: number(limits.bodies_per_address),
            body_size: u64::try_from(limits.body_size).ok().map(Size),
            answer_size: u64::try_from(limits.answer_size).ok().map(Size),
            reads_per_caller: number(limits.reads_per_caller),
            exports: number(limits.exports),
            exports_per_caller: number(limits.exports_per_caller),
            applies: number(limits.applies),
            applies_per_caller: number(limits.applies_per_caller),
            live_streams: number(limits.live_streams),
            live_streams_per_caller: number(limits.live_streams_per_caller),
            header_timeout: Some(Length(limits.header_timeout)),
            body_timeout: Some(Length(limits.body_timeout)),
            idle_timeout: Some(Length(limits.idle_timeout)),
            write_timeout: Some(Length(limits.write_timeout)),
        }
    }

    /// These settings, and those of a lower layer for those that are not set.
    pub(crate) fn over(self, lower: Self) -> Self {
        Self {
            trusted_proxies: self.trusted_proxies.or(lower.trusted_proxies),
            connections: self.connections.or(lower.connections),
            connections_per_address: self.connections_per_address.or(lower.connections_per_address),
            connections_per_caller: self.connections_per_caller.or(lower.connections_per_caller),
            requests_per_connection: self.requests_per_connection.or(lower.requests_per_connection),
            requests: self.requests.or(lower.requests),
            requests_reserved: self.requests_reserved.or(lower.requests_reserved),
            requests_per_address: self.requests_per_address.or(lower.requests_per_address),
            requests_per_caller: self.requests_per_caller.or(lower.requests_per_caller),
            bodies_per_address: self.bodies_per_address.or(lower.bodies_per_address),
            body_size: self.body_size.or(lower.body_size),
            answer_size: self.answer_size.or(lower.answer_size),
            reads_per_caller: self.reads_per_caller.or(lower.reads_per_caller),
            exports: self.exports.or(lower.exports),
            exports_per_caller: self.exports_per_caller.or(lower.exports_per_caller),
            applies: self.applies.or(lower.applies),
            applies_per_caller: self.applies_per_caller.or(lower.applies_per_caller),
            live_streams: self.live_streams.or(lower.live_streams),
            live_streams_per_caller: self.live_streams_per_caller.or(lower.live_streams_per_caller),
            header_timeout: self.header_timeout.or(lower.header_timeout),
            body_timeout: self.body_timeout.or(lower.body_timeout),
            idle_timeout: self.idle_timeout.or(lower.idle_timeout),
            write_timeout: self.write_timeout.or(lower.write_timeout),
        }
    }

    /// The settings that hold.
    pub(crate) fn checked(self) -> Result<HttpConfig, Failure> {
        let settings = self.over(Self::defaults());
        let trusted_proxies = TrustedProxies::parse(settings.trusted_proxies.unwrap_or_default())
            .map_err(|sentence| wrong(SECTION, "trusted_proxies", sentence))?;
        let connections = count("connections", settings.connections)?;
        let requests = count("requests", settings.requests)?;
        let limits = HttpLimits {
            connections,
            connections_per_address: within("connections_per_address", settings.connections_per_address, connections)?,
            connections_per_caller: within("connections_per_caller", settings.connections_per_caller, connections)?,
            requests_per_connection: at_least_one("requests_per_connection", settings.requests_per_connection)?,
            requests,
            requests_reserved: reserved(settings.requests_reserved, requests)?,
            requests_per_address: count("requests_per_address", settings.requests_per_address)?,
            requests_per_caller: count("requests_per_caller", settings.requests_per_caller)?,
            bodies_per_address: count("bodies_per_address", settings.bodies_per_address)?,
            body_size: size("body_size", settings.body_size, BODY_SIZE_MIN)?,
            answer_size: size("answer_size", settings.answer_size, ANSWER_SIZE_MIN)?,
            reads_per_caller: count("reads_per_caller", settings.reads_per_caller)?,
            exports: count("exports", settings.exports)?,
            exports_per_caller: count("exports_per_caller", settings.exports_per_caller)?,
            applies: count("applies", settings.applies)?,
            applies_per_caller: count("applies_per_caller", settings.applies_per_caller)?,
            live_streams: count("live_streams", settings.live_streams)?,
            live_streams_per_caller: count("live_streams_per_caller", settings.live_streams_per_caller)?,
            header_timeout: timeout("header_timeout", settings.header_timeout, TIMEOUT_MIN)?,
            body_timeout: timeout("body_timeout", settings.body_timeout, TIMEOUT_MIN)?,
            idle_timeout: timeout("idle_timeout", settings.idle_timeout, TIMEOUT_MIN)?,
            write_timeout: timeout("write_timeout", settings.write_timeout, WRITE_TIMEOUT_MIN)?,
        };
        Ok(HttpConfig { trusted_proxies, limits })
    }
}

fn at_least_one(key: &str, value: Option<u32>) -> Result<u32, Failure> {
    match value {
        Some(0) => Err(wrong(SECTION, key, "0 would let nothing through, the least is 1")),
        Some(number) => Ok(number),
        None => Err(wrong(SECTION, key, "is missing")),
    }
}

fn count(key: &str, value: Option<u32>) -> Result<usize, Failure> {
    Ok(usize::try_from(at_least_one(key, value)?).unwrap_or(usize::MAX))
}

fn within(key: &str, value: Option<u32>, connections: usize) -> Result<usize, Failure> {
    match count(key, value)? {
        number if number > connections => {
            Err(wrong(SECTION, key, format!("{number} is more than http.connections, which is {connections}")))
        }
        number => Ok(number),
    }
}

fn reserved(value: Option<u32>, requests: usize) -> Result<usize, Failure> {
    let number = usize::try_from(value.unwrap_or_default()).unwrap_or(usize::MAX);
    if number >= requests {
        let sentence = format!("{number} leaves none of http.requests = {requests} for signing in");
        return Err(wrong(SECTION, "requests_reserved", sentence));
    }
    Ok(number)
}

fn size(key: &str, value: Option<Size>, least: u64) -> Result<usize, Failure> {
    match value {
        Some(size) if size.0 >= least => Ok(size.as_usize()),
        size => {
            let given = size.unwrap_or(Size(0));
            let sentence = format!("{given} is too little, the least is {}", Size(least));
            Err(wrong(SECTION, key, sentence))
        }
    }
}

fn timeout(key: &str, value: Option<Length>, least: Duration) -> Result<Duration, Failure> {
    match value {
        Some(Length(length)) if length >= least => Ok(length),
        Some(length) => Err(wrong(SECTION, key, format!("{length} is too short, the shortest is {}", Length(least)))),
        None => Err(wrong(SECTION, key, "is missing")),
    }
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
            ("body_size = \"1MiB\"", "the least is 40MiB"),
            ("answer_size = \"1MiB\"", "http.answer_size: 1MiB is too little, the least is 32MiB"),
            ("exports_per_caller = 0", "http.exports_per_caller"),
            ("header_timeout = \"10ms\"", "http.header_timeout"),
            ("write_timeout = \"5s\"", "the shortest is 20s"),
            ("read_timeout = \"5s\"", "read_timeout"),
        ] {
            let refused = check(text).unwrap_err();
            assert!(refused.contains(part), "{text}: {refused}");
        }
        let good = check("trusted_proxies = [\"10.0.0.0/8\"]\nbody_timeout = \"5s\"").unwrap();
        assert!(good.trusted_proxies.contains([10, 9, 8, 7].into()));
        let expected = HttpLimits { body_timeout: Duration::from_secs(5), ..HttpLimits::default() };
        assert_eq!(good.limits, expected);
    }
}
