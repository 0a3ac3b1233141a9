//! Handles the unread rest of a request body after an early refusal. On HTTP/1 the next request follows the body on the same connection.
//! If the rest is short, it is read and dropped; if it is long, the answer announces that the connection closes.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, EXPECT};
use http::{HeaderValue, Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// Maximum length of the unread rest of a body that is read and dropped, in bytes.
const UNREAD_LEN_MAX: u64 = 64 * 1024;
/// Timeout for reading the unread rest of a body.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(1);

/// A request body. If it is dropped before its end, it passes its unread rest to [`UnreadBody`].
#[derive(Debug)]
pub(crate) struct DrainableBody {
    body: Option<Incoming>,
    unread_body: UnreadBody,
}

/// Receives the unread rest of a body.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnreadBody(Arc<Mutex<Option<Incoming>>>);

impl UnreadBody {
    /// Wraps the body of a request so that its unread rest can be handled. Also returns whether the client waits for `100 Continue`.
    pub(crate) fn wrap(request: Request<Incoming>) -> (Request<DrainableBody>, Self, bool) {
        let unread_body = Self::default();
        // A client that waits for `100 Continue` never sends its body after a refusal.
        let waits_for_continue = request.headers().contains_key(EXPECT);
        (
            request.map(|body| DrainableBody { body: Some(body), unread_body: unread_body.clone() }),
            unread_body,
            waits_for_continue,
        )
    }

    /// Reads and drops the rest. If it is too long or does not arrive in time, the response announces that the connection closes. The same
    /// happens if the client waits for `100 Continue`: after a refusal it never sends the rest.
    pub(crate) async fn settle<B>(self, waits_for_continue: bool, response: &mut Response<B>) {
        let Some(unread_body) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if waits_for_continue || !drain_rest(unread_body).await {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Reads the rest. Returns whether it was short enough and arrived in time.
async fn drain_rest(mut body: Incoming) -> bool {
    let drain = async {
        let mut remaining_len = UNREAD_LEN_MAX;
        while body.size_hint().lower() <= remaining_len {
            match poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(frame)) => {
                    let len = frame.data_ref().map_or(0, |data| u64::try_from(data.len()).unwrap_or(u64::MAX));
                    let Some(remaining) = remaining_len.checked_sub(len) else { return false };
                    remaining_len = remaining;
                }
            }
        }
        false
    };
    tokio::time::timeout(UNREAD_TIMEOUT, drain).await.unwrap_or(false)
}

impl Body for DrainableBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Drop for DrainableBody {
    fn drop(&mut self) {
        let unread_body = self.body.take().filter(|body| !body.is_end_stream());
        *self.unread_body.0.lock().unwrap_or_else(PoisonError::into_inner) = unread_body;
    }
}
