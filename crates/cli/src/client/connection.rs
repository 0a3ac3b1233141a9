//! Failures of the connection to a server, and answers that come from a proxy in front of it.

use reqwest::Response;
use reqwest::header::{CONTENT_TYPE, LOCATION};
use rondel_core::error_chain::chain_in_one_line;

use crate::exit::{Exit, Failure};

/// The failure of a call that the server at `url` did not answer.
pub(super) fn unreachable_failure(url: &str, error: reqwest::Error) -> Failure {
    let (is_timeout, is_connect) = (error.is_timeout(), error.is_connect());
    let error = error.without_url();
    let cause = if is_connect { last_cause(&error) } else { chain_in_one_line(&error) };
    if cause.contains("InvalidContentType") {
        let sentence = format!("the server {url} does not speak TLS there; use http:// in the place of https://");
        return Failure::new(Exit::Unreachable, sentence);
    }
    if cause.contains("invalid HTTP version") && url.starts_with("http:") {
        let sentence = format!(
            "the server {url} does not answer in HTTP: {cause}; if it speaks TLS there, use https:// in the place of \
             http://"
        );
        return Failure::new(Exit::Unreachable, sentence);
    }
    if cause.contains("invalid peer certificate") {
        let hint = if cause.contains("UnknownIssuer") {
            "; --ca-file or RONDEL_CA_FILE names a file with the certificate of the authority that it is from"
        } else {
            ""
        };
        return Failure::new(Exit::Unreachable, format!("cannot trust the server {url}: {cause}{hint}"));
    }
    let sentence = match (is_timeout, is_connect) {
        (_, true) => format!(
            "cannot reach the server {url}: {cause}; does it run? another one is named by --server, RONDEL_SERVER or \
             rondel context use"
        ),
        (true, false) => format!("the server {url} does not answer: {cause}"),
        (false, false) => format!("the connection to the server {url} broke: {cause}"),
    };
    Failure::new(Exit::Unreachable, sentence).temporary()
}

/// The innermost cause of a failed connection: the outer layers only state that it failed.
fn last_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    chain_in_one_line(innermost)
}

/// Refuses a redirect and a web page. Both come from a proxy in front of the server, such as a proxy that asks users to sign
/// in: the call has not reached the server.
pub(super) fn check_origin(url: &str, response: &Response) -> Result<(), Failure> {
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    let (status, content_type) = (response.status(), header(CONTENT_TYPE).unwrap_or_default());
    if let Some(location) = header(LOCATION).filter(|_| status.is_redirection()) {
        let sentence = format!("the server {url} redirects to {}", redirect_target(response, location));
        let hint = "redirects are not followed: name the URL of the server itself by --server, RONDEL_SERVER or \
                    rondel context add";
        return Err(Failure::new(Exit::Unreachable, format!("{sentence}; {hint}")));
    }
    if status.is_success() && content_type.starts_with("text/html") {
        let sentence = format!("a web page was answered at {url}; is that the URL of a server of Rondel?");
        return Err(Failure::new(Exit::Unreachable, sentence));
    }
    Ok(())
}

/// The target of a redirect without its query and fragment, which may contain secrets.
fn redirect_target(response: &Response, location: &str) -> String {
    match response.url().join(location) {
        Ok(mut url) => {
            url.set_query(None);
            url.set_fragment(None);
            url.to_string()
        }
        Err(_) => "another place".to_owned(),
    }
}
