//! The HTTP client for URLs chosen by users: the server's webhooks, and the agent's handler `http`; with the feature `smtp` also a mail
//! client.
//!
//! Both clients connect only to addresses that [`AllowedAddresses`] permits. A name is resolved once, the resulting
//! addresses are checked, and the connection goes to one of the checked addresses. A resolver that answers differently a
//! moment later therefore has no effect. The same applies to each redirect. Proxies of the environment are not used, because
//! they would resolve the name again.

#[cfg(feature = "smtp")]
mod mail_stream;
pub mod posts;
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

use resolve::{GuardedResolver, SystemResolver};

/// Maximum time for a connection, from the resolution of the name to the end of the TLS handshake.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an idle connection is kept for the next request: shorter than servers keep theirs, because a request fails
/// if the server closes the connection just then.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why the client cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// TLS cannot be set up.
    #[error("set up TLS")]
    Tls(#[from] rustls::Error),
    /// The HTTP client cannot be built.
    #[error("set up the HTTP client")]
    Client(#[from] reqwest::Error),
}

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct Options {
    /// Non-public addresses to which the client may connect.
    pub allowed_addresses: AllowedAddresses,
    /// Maximum number of redirects that are followed; with 0, a redirect is returned like any other answer.
    pub redirect_count_max: usize,
    /// The value of the `User-Agent` header.
    pub user_agent: &'static str,
}

/// The client. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Outgoing {
    client: Client,
    allowed_addresses: AllowedAddresses,
}

impl Outgoing {
    /// A client that uses the host's resolver.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn new(options: Options) -> Result<Self, BuildError> {
        Self::with_resolver(options, Arc::new(SystemResolver))
    }

    /// Like [`new`](Self::new), with another resolver; its answers are checked as well.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn with_resolver(options: Options, resolver: Arc<dyn Resolve>) -> Result<Self, BuildError> {
        let Options { allowed_addresses, redirect_count_max, user_agent } = options;
        let client = Client::builder()
            .tls_backend_preconfigured(tls::client_config()?)
            .dns_resolver(GuardedResolver::new(resolver, allowed_addresses.clone()))
            .redirect(redirect_policy(redirect_count_max, allowed_addresses.clone()))
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .no_proxy()
            .user_agent(user_agent)
            .build()?;
        Ok(Self { client, allowed_addresses })
    }

    /// Builds a request.
    ///
    /// # Errors
    /// [`AddressRefused`] if the URL contains an address that is not allowed. The addresses of a host name are checked when the request is
    /// sent.
    pub fn request(&self, method: Method, url: Url) -> Result<RequestBuilder, AddressRefused> {
        check_host(&url, &self.allowed_addresses)?;
        Ok(self.client.request(method, url))
    }
}

/// Checks the host of a URL, if it is an address. A host name passes: its addresses are checked when it is resolved.
///
/// The URL parser has already normalized the many ways to write an address (`0x7f.1`, `2130706433`, `0177.0.0.1`).
///
/// # Errors
/// [`AddressRefused`].
pub fn check_host(url: &Url, allowed_addresses: &AllowedAddresses) -> Result<(), AddressRefused> {
    // The resolver never sees an IP address in a URL, so the address is checked here.
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host.parse::<IpAddr>().map_or(Ok(()), |address| allowed_addresses.check(address))
}

/// The refusal that made a request fail, if there was one. It concerns either a resolved address or a redirect.
#[must_use]
pub fn refusal(error: &RequestError) -> Option<AddressRefused> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(refusal) = error.downcast_ref::<AddressRefused>() {
            return Some(*refusal);
        }
        cause = error.source();
    }
    None
}

/// Describes why a request failed, without its URL. If no connection could be made, the text contains only the root cause: the outer errors
/// repeat the root cause in other words.
#[must_use]
pub fn failure_text(error: RequestError) -> String {
    let error = error.without_url();
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    if error.is_connect() { format!("no connection: {}", root_cause(&error)) } else { chain(&error) }
}

/// The innermost error of the chain.
fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner_cause) = cause.source() {
        cause = inner_cause;
    }
    cause.to_string()
}

fn redirect_policy(count_max: usize, allowed_addresses: AllowedAddresses) -> Policy {
    if count_max == 0 {
        return Policy::none();
    }
    Policy::custom(move |attempt: Attempt<'_>| {
        if attempt.previous().len() > count_max {
            return attempt.error(format!("more than {count_max} redirects"));
        }
        match check_host(attempt.url(), &allowed_addresses) {
            Ok(()) => attempt.follow(),
            Err(refusal) => attempt.error(refusal),
        }
    })
}
