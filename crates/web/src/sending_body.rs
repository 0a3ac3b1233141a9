//! The body of an answer that is being sent. It is split into small pieces, so that the permits and memory shares of the answer are
//! released only after the client has received nearly all of it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

use crate::peers::OpenRequest;

/// Maximum length of a piece, in bytes. The HTTP library asks for the next piece only when it has room for it.
const PIECE_LEN_MAX: usize = 32 * 1024;

/// Extension of a response: permits and shares that are released when the answer has ended.
#[derive(Clone)]
pub(crate) struct ReleasedAtEnd {
    _resource: Arc<dyn Send + Sync>,
}

impl ReleasedAtEnd {
    pub(crate) fn new(resource: impl Send + Sync + 'static) -> Self {
        Self { _resource: Arc::new(resource) }
    }
}

/// A body that keeps its [`ReleasedAtEnd`] until it ends.
pub(crate) struct SendingBody {
    body: Body,
    unsent: Bytes,
    request: OpenRequest,
    _released_at_end: Option<ReleasedAtEnd>,
}

/// The response, with a body that releases its permits and shares at its end.
pub(crate) fn release_at_end(
    response: Response,
    mut request: OpenRequest,
    is_session: bool,
) -> http::Response<SendingBody> {
    request.begin_answer(is_session);
    let (mut parts, body) = response.into_parts();
    let released_at_end = parts.extensions.remove::<ReleasedAtEnd>();
    http::Response::from_parts(
        parts,
        SendingBody { body, unsent: Bytes::new(), request, _released_at_end: released_at_end },
    )
}

impl HttpBody for SendingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        this.request.note_progress();
        if this.unsent.is_empty() {
            match std::task::ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.unsent = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let len = this.unsent.len().min(PIECE_LEN_MAX);
        Poll::Ready(Some(Ok(Frame::data(this.unsent.split_to(len)))))
    }

    fn is_end_stream(&self) -> bool {
        self.unsent.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let unsent_len = u64::try_from(self.unsent.len()).unwrap_or(u64::MAX);
        let body_hint = self.body.size_hint();
        let mut size_hint = SizeHint::new();
        size_hint.set_lower(body_hint.lower().saturating_add(unsent_len));
        if let Some(upper) = body_hint.upper() {
            size_hint.set_upper(upper.saturating_add(unsent_len));
        }
        size_hint
    }
}
