//! Calls to the provider: without redirects, with a time limit, and with a limit on the size of an answer.
//!
//! The address comes from the operator's settings and from the provider's own document, not from users. So any address is allowed, except
//! that of a cloud's metadata service, which hands out the machine's secrets.

use std::time::Duration;

use openidconnect::{HttpRequest, HttpResponse};
use rondel_core::outgoing::AllowedAddresses;
use rondel_outgoing::{Options, Outgoing, RequestError, Url};

use rondel_core::error_chain::chain;

/// Timeout of one call; a sign-in makes three.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer, in bytes: documents have a few KiB, key sets somewhat more.
const LEN_MAX: usize = 256 * 1024;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct HttpError(String);

pub(super) fn build() -> Result<Outgoing, String> {
    let allowed_addresses = AllowedAddresses::parse(["0.0.0.0/0", "::/0"])?;
    let user_agent = concat!("rondel/", env!("CARGO_PKG_VERSION"));
    Outgoing::new(Options { allowed_addresses, redirect_count_max: 0, user_agent }).map_err(|error| chain(&error))
}

pub(super) async fn call(client: Outgoing, request: HttpRequest) -> Result<HttpResponse, HttpError> {
    let (parts, body) = request.into_parts();
    let place = parts.uri.to_string();
    let http_error = |error: RequestError| HttpError(format!("{place}: {}", chain(&error.without_url())));
    let url = Url::parse(&place).map_err(|error| HttpError(format!("{place}: {error}")))?;
    let request = client.request(parts.method, url).map_err(|refused| HttpError(format!("{place}: {refused}")))?;
    let request = request.headers(parts.headers).body(body).timeout(TIMEOUT);
    let mut response = request.send().await.map_err(http_error)?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(http_error)? {
        if body.len() + chunk.len() > LEN_MAX {
            return Err(HttpError(format!("{place}: the answer has more than {LEN_MAX} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    let mut answer = HttpResponse::new(body);
    *answer.status_mut() = response.status();
    *answer.headers_mut() = response.headers().clone();
    Ok(answer)
}
