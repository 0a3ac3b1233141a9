//! Calls to executors: only to allowed addresses, without redirects, with limits on time, size and number.

use std::sync::Arc;
use std::time::Duration;

use rondel_admin::xxl::Address;
use rondel_core::AppId;
use rondel_outgoing::header::{HeaderName, HeaderValue};
use rondel_outgoing::posts::{Limits, PostClient, PostError, Target};
use rondel_outgoing::{BuildError, StatusCode};
use tokio::time::Instant;

use crate::config::XxlConfig;
use crate::room::Room;
use crate::wire::{self, Answer};

const TOKEN_HEADER: HeaderName = HeaderName::from_static("xxl-job-access-token");
/// Timeout for accepting a run: the executor may have to compile a script first.
const RUN_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout of the other calls.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an idle connection stays open: less than the 5 s after which some executors close it without notice.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of an answer, in KiB; a log may be long.
pub(crate) const ANSWER_KIB_MAX: u32 = 8 * 1024;
/// Maximum number of concurrent calls to all executors. The executors of one app get at most half of it. A high number does not burden the
/// database, because answers that arrive at the same time are stored in one transaction.
const CALL_COUNT_MAX: usize = 512;

/// Why a call has no usable answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallError {
    /// The request was not sent: the executor got no part of it.
    NotSent(String),
    /// The request was not sent: the time in which the run may begin has passed, or the lease under which the run was accepted has ended.
    TooLate(String),
    /// The executor refused the request.
    Refused(String),
    /// The executor may have received the request.
    Unclear(String),
    /// The executor may have received the request; its answer is longer than the limit.
    TooLong(String),
}

impl CallError {
    pub(crate) fn message(&self) -> &str {
        match self {
            Self::NotSent(message)
            | Self::TooLate(message)
            | Self::Refused(message)
            | Self::Unclear(message)
            | Self::TooLong(message) => message,
        }
    }
}

/// Calls executors.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    post_client: PostClient,
    room: Arc<Room>,
}

impl Client {
    pub(crate) fn new(config: &XxlConfig) -> Result<Self, BuildError> {
        let post_client = PostClient::new(config.networks.clone().without_public(), "rondel", IDLE_TIMEOUT)?;
        Ok(Self { post_client, room: Arc::new(Room::new(CALL_COUNT_MAX)) })
    }

    /// Prepares calls to an executor of this app that registered with this token.
    pub(crate) fn peer(&self, app: AppId, address: &Address, token: &str) -> Arc<Peer> {
        let target = self.post_client.target(address.url());
        let header = HeaderValue::from_str(token).map_err(|_| "its token cannot be sent as a header".to_owned());
        let target = target.and_then(|target| header.map(|header| (target, header)));
        Arc::new(Peer { app, address: address.as_str().to_owned(), token: token.to_owned(), target })
    }

    /// Asks an executor to run an attempt, unless the time in which it may begin has passed.
    pub(crate) async fn run(
        &self,
        peer: &Peer,
        body: Vec<u8>,
        begin_until: Option<Instant>,
    ) -> Result<Answer, CallError> {
        self.call(peer, "run", body, (RUN_TIMEOUT, begin_until)).await
    }

    /// Makes any call other than `/run`.
    pub(crate) async fn ask(&self, peer: &Peer, method: &str, body: Vec<u8>) -> Result<Answer, CallError> {
        self.call(peer, method, body, (CALL_TIMEOUT, None)).await
    }

    /// Waits for a permit, and makes a call unless `deadline` has passed by then.
    async fn call(
        &self,
        peer: &Peer,
        method: &str,
        body: Vec<u8>,
        (timeout, deadline): (Duration, Option<Instant>),
    ) -> Result<Answer, CallError> {
        let not_sent = |message: &str| CallError::NotSent(format!("POST {method} to {}: {message}", peer.address));
        let unclear_error = |message: &str| CallError::Unclear(format!("POST {method} to {}: {message}", peer.address));
        let (target, token) = peer.target.as_ref().map_err(|message| not_sent(message))?;
        let Some(_permits) = self.room.take(peer.app, 1).await else { return Err(not_sent("the server is stopping")) };
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            let message = format!("POST {method} to {}: the time in which the run may begin has passed", peer.address);
            return Err(CallError::TooLate(message));
        }
        let limits = Limits { timeout, len_max: ANSWER_KIB_MAX as usize * 1024 };
        let answer = self.post_client.send(target, method, (TOKEN_HEADER, token.clone()), body, limits).await;
        let answer = answer.map_err(|error| match &error {
            PostError::NotSent(message) => not_sent(message),
            PostError::Unclear(message) => unclear_error(message),
            PostError::TooLong(_) => CallError::TooLong(format!("POST {method} to {}: {error}", peer.address)),
        })?;
        let is_refusal = matches!(
            answer.status,
            StatusCode::BAD_REQUEST
                | StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::NOT_FOUND
                | StatusCode::METHOD_NOT_ALLOWED
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::UNSUPPORTED_MEDIA_TYPE
        );
        if is_refusal {
            return Err(CallError::Refused(format!(
                "POST {method} to {}: it answered {}",
                peer.address, answer.status
            )));
        }
        if !answer.status.is_success() {
            return Err(unclear_error(&format!("it answered {}", answer.status)));
        }
        wire::executor_answer(&answer.body).map_err(|message| unclear_error(&message))
    }
}

/// The executor that is called.
pub(crate) struct Peer {
    app: AppId,
    /// Its address, without a slash at the end.
    pub(crate) address: String,
    /// The token with which it registered.
    pub(crate) token: String,
    /// The target of the calls and the header with the token, or the reason why the executor cannot be called.
    target: Result<(Target, HeaderValue), String>,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("address", &self.address).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::outgoing::AllowedAddresses;

    use super::*;

    #[tokio::test]
    async fn a_run_whose_time_to_begin_has_passed_is_not_sent() {
        let networks = AllowedAddresses::parse(["127.0.0.0/8"]).expect("a network");
        let config = XxlConfig { networks, prefix: None, callback_timeout: Duration::from_secs(60) };
        let client = Client::new(&config).expect("a client");
        // Nothing listens on this port, so the host refuses a request that is sent.
        let peer = client.peer(AppId::new(1), &Address::parse("http://127.0.0.1:1").expect("an address"), "token");
        let now = Instant::now();
        for (begin_until, is_too_late) in [(Some(now), true), (Some(now + RUN_TIMEOUT), false), (None, false)] {
            let answer = client.run(&peer, wire::empty_body(), begin_until).await;
            assert_eq!(matches!(answer, Err(CallError::TooLate(_))), is_too_late, "{answer:?}");
            assert_eq!(matches!(answer, Err(CallError::NotSent(_))), !is_too_late, "{answer:?}");
        }
    }
}
