//! Calls to executors: only to allowed addresses, without redirects, with limits on time, size and number.

use std::sync::Arc;
use std::time::Duration;

use rondel_admin::xxl::Address;
use rondel_outgoing::header::{CONTENT_TYPE, HeaderName};
use rondel_outgoing::{BuildError, Method, Options, Outgoing, StatusCode, failure};
use tokio::sync::Semaphore;

use crate::config::XxlConfig;
use crate::wire::{self, Answer};

const TOKEN_HEADER: HeaderName = HeaderName::from_static("xxl-job-access-token");
const JSON: &str = "application/json;charset=UTF-8";
/// Timeout for accepting a run: the executor may have to compile a script first.
const RUN_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout of the other calls.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Shorter than 5 s, after which some executors close idle connections without notice.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of an answer, in bytes; a log may be long.
const ANSWER_LEN_MAX: usize = 8 * 1024 * 1024;
/// Maximum number of concurrent calls to all executors.
const CALL_COUNT_MAX: usize = 256;

/// Why a call has no usable answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallError {
    /// The request was not sent: the executor has no part of it.
    NotSent(String),
    /// The executor refused the request.
    Refused(String),
    /// The executor may have received the request.
    Unclear(String),
    /// The executor may have received the request; its answer is longer than the limit.
    TooLong(String),
}

impl CallError {
    pub(crate) fn words(&self) -> &str {
        match self {
            Self::NotSent(words) | Self::Refused(words) | Self::Unclear(words) | Self::TooLong(words) => words,
        }
    }
}

/// Calls executors.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    outgoing: Outgoing,
    permits: Arc<Semaphore>,
}

impl Client {
    pub(crate) fn new(config: &XxlConfig) -> Result<Self, BuildError> {
        let outgoing = Outgoing::new(Options {
            allowed: config.networks.clone().without_public(),
            redirect_count_max: 0,
            user_agent: "rondel",
            idle_timeout: Some(IDLE_TIMEOUT),
        })?;
        Ok(Self { outgoing, permits: Arc::new(Semaphore::new(CALL_COUNT_MAX)) })
    }

    /// Asks an executor to run an attempt.
    pub(crate) async fn run(&self, to: &Peer, body: Vec<u8>) -> Result<Answer, CallError> {
        self.call(to, "run", body, RUN_TIMEOUT).await
    }

    /// Makes another call, which must be safe to repeat.
    pub(crate) async fn ask(&self, to: &Peer, method: &str, body: Vec<u8>) -> Result<Answer, CallError> {
        self.call(to, method, body, CALL_TIMEOUT).await
    }

    async fn call(&self, to: &Peer, method: &str, body: Vec<u8>, timeout: Duration) -> Result<Answer, CallError> {
        let not_sent = |words: String| CallError::NotSent(format!("POST {method} to {}: {words}", to.address.as_str()));
        let unclear = |words: String| CallError::Unclear(format!("POST {method} to {}: {words}", to.address.as_str()));
        let url = to.address.method(method).map_err(not_sent)?;
        let Ok(_permit) = self.permits.acquire().await else { return Err(not_sent("the server stops".to_owned())) };
        let request = self.outgoing.request(Method::POST, url).map_err(|refused| not_sent(refused.to_string()))?;
        let request = request.header(CONTENT_TYPE, JSON).header(TOKEN_HEADER, to.token.as_str());
        let answered = request.timeout(timeout).body(body).send().await;
        let mut response = answered.map_err(|error| {
            let was_sent = !(error.is_connect() || error.is_builder());
            let words = failure(error);
            if was_sent { unclear(words) } else { not_sent(words) }
        })?;
        let status = response.status();
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() <= ANSWER_LEN_MAX => body.extend_from_slice(&chunk),
                Ok(Some(_)) => {
                    let address = to.address.as_str();
                    let words = format!("POST {method} to {address}: the answer has more than {ANSWER_LEN_MAX} bytes");
                    return Err(CallError::TooLong(words));
                }
                Ok(None) => break,
                Err(error) => return Err(unclear(failure(error))),
            }
        }
        let refuses = matches!(
            status,
            StatusCode::BAD_REQUEST
                | StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::NOT_FOUND
                | StatusCode::METHOD_NOT_ALLOWED
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::UNSUPPORTED_MEDIA_TYPE
        );
        if refuses {
            return Err(CallError::Refused(format!("POST {method} to {}: it answered {status}", to.address.as_str())));
        }
        if !status.is_success() {
            return Err(unclear(format!("it answered {status}")));
        }
        wire::executor_answer(&body).map_err(unclear)
    }
}

/// The executor that is called.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) address: Address,
    /// The token with which it registered.
    pub(crate) token: String,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("address", &self.address).finish_non_exhaustive()
    }
}
