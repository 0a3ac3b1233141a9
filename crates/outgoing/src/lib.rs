//! The HTTP client for URLs chosen by users: webhooks of the server, and the agent's handler `http`; with the feature `smtp` the
//! client for mail too.
//!
//! It goes to the addresses that [`AllowedAddresses`] permit, and to no other. A name is resolved once, what comes of it is
//! judged, and the connection is made to one of the addresses that were judged: no resolver can answer differently a moment
//! later. Each redirect is held to the same. The environment's proxies are not used, for they would resolve anew.

mod resolve;
#[cfg(feature = "smtp")]
pub mod smtp;
mod tls;

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Client;
use reqwest::redirect::{Attempt, Policy};
use rondel_core::error_chain::chain;
use rondel_core::outgoing::{AddressRefused, AllowedAddresses};

pub use reqwest::dns::{Addrs, Name, Resolve, Resolving};
pub use reqwest::{Error as RequestError, Method, RequestBuilder, Response, StatusCode, Url, header};

use resolve::{Guarded, SystemResolver};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// TLS cannot be set up.
    #[error("set up TLS")]
    Tls(#[from] rustls::Error),
    /// The client cannot be.
    #[error("set up the HTTP client")]
    Client(#[from] reqwest::Error),
}

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it may go beside the public internet.
    pub allowed: AllowedAddresses,
    /// How many redirects are followed; with 0 a redirect is an answer like any other.
    pub redirect_count_max: usize,
    /// As what it introduces itself.
    pub user_agent: &'static str,
    /// How long a connection stays open for the next request; `None` for the client's own time.
    pub idle_timeout: Option<Duration>,
}

/// The client. A clone is the same one.
#[derive(Clone, Debug)]
pub struct Outgoing {
    client: Client,
    allowed: AllowedAddresses,
}

impl Outgoing {
    /// A client that asks the host's resolver for addresses.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn new(options: Options) -> Result<Self, BuildError> {
        Self::with_resolver(options, Arc::new(SystemResolver))
    }

    /// The same with another resolver; what it answers is judged all the same.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn with_resolver(options: Options, resolver: Arc<dyn Resolve>) -> Result<Self, BuildError> {
        let Options { allowed, redirect_count_max, user_agent, idle_timeout } = options;
        let builder = match idle_timeout {
            Some(timeout) => Client::builder().pool_idle_timeout(timeout),
            None => Client::builder(),
        };
        let client = builder
            .tls_backend_preconfigured(tls::client_config()?)
            .dns_resolver(Guarded::new(resolver, allowed.clone()))
            .redirect(redirects(redirect_count_max, allowed.clone()))
            .connect_timeout(CONNECT_TIMEOUT)
            .no_proxy()
            .user_agent(user_agent)
            .build()?;
        Ok(Self { client, allowed })
    }

    /// A request to be sent.
    ///
    /// # Errors
    /// [`AddressRefused`] if the URL holds an address that is not allowed. What a name resolves to is judged when it is sent.
    pub fn request(&self, method: Method, url: Url) -> Result<RequestBuilder, AddressRefused> {
        check_host(&url, &self.allowed)?;
        Ok(self.client.request(method, url))
    }
}

/// Whether the host of a URL is not an address that is refused. A name passes: it is judged when it is resolved.
///
/// The parser has made one of the many ways to write an address (`0x7f.1`, `2130706433`, `0177.0.0.1`).
///
/// # Errors
/// [`AddressRefused`].
pub fn check_host(url: &Url, allowed: &AllowedAddresses) -> Result<(), AddressRefused> {
    // No resolver is asked about an address.
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host.parse::<IpAddr>().map_or(Ok(()), |address| allowed.check(address))
}

/// The refusal that made a request fail, if it was one: where the name led to, or a redirect.
#[must_use]
pub fn refusal(error: &RequestError) -> Option<AddressRefused> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(refused) = error.downcast_ref::<AddressRefused>() {
            return Some(*refused);
        }
        cause = error.source();
    }
    None
}

/// Why a request failed, without its URL. Of a connection that could not be made the first cause alone: those above repeat it in other words.
#[must_use]
pub fn failure(error: RequestError) -> String {
    let error = error.without_url();
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    let mut first: &dyn Error = &error;
    while let Some(cause) = first.source() {
        first = cause;
    }
    if error.is_connect() { format!("no connection: {first}") } else { chain(&error) }
}

fn redirects(count_max: usize, allowed: AllowedAddresses) -> Policy {
    if count_max == 0 {
        return Policy::none();
    }
    Policy::custom(move |attempt: Attempt<'_>| {
        if attempt.previous().len() > count_max {
            return attempt.error(format!("more than {count_max} redirects"));
        }
        match check_host(attempt.url(), &allowed) {
            Ok(()) => attempt.follow(),
            Err(refused) => attempt.error(refused),
        }
    })
}
