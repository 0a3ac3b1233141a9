//! The answer about a list of jobs as it is sent: each job is turned into text as it comes, since a long list of large
//! changes takes a multiple of that as values.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use super::applied::{Item, Summary};

/// How long the pieces are that an answer is sent in.
const PIECE_LEN: usize = 64 * 1024;

/// The items of an answer so far, with their places in the list.
#[derive(Default)]
pub(super) struct Items {
    texts: Vec<(usize, Box<[u8]>)>,
    summary: Summary,
}

impl Items {
    pub(super) fn add(&mut self, item: &Item) {
        self.summary.add(item);
        let text = serde_json::to_vec(item).unwrap_or_default();
        self.texts.push((item.index.unwrap_or(usize::MAX), text.into_boxed_slice()));
    }

    /// The whole answer, in the order of the list.
    pub(super) fn into_response(mut self, is_dry_run: bool) -> Response {
        self.texts.sort_by_key(|(index, _)| *index);
        let mut pieces = Pieces::default();
        pieces.add(format!("{{\"dry_run\":{is_dry_run},\"items\":[").as_bytes());
        for (number, (_, text)) in self.texts.into_iter().enumerate() {
            if number > 0 {
                pieces.add(b",");
            }
            pieces.add(&text);
        }
        let summary = serde_json::to_string(&self.summary).unwrap_or_default();
        pieces.add(format!("],\"summary\":{summary}}}").as_bytes());
        pieces.end();
        let mut response = Response::new(Body::new(pieces));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

/// A body of known length in pieces that are freed as they are sent.
#[derive(Default)]
struct Pieces {
    ready: VecDeque<Bytes>,
    last: Vec<u8>,
    len: u64,
}

impl Pieces {
    fn add(&mut self, text: &[u8]) {
        self.last.extend_from_slice(text);
        if self.last.len() >= PIECE_LEN {
            self.end();
        }
    }

    fn end(&mut self) {
        let piece = std::mem::take(&mut self.last).into_boxed_slice();
        self.len += u64::try_from(piece.len()).unwrap_or(u64::MAX);
        self.ready.push_back(piece.into());
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(piece) = self.ready.pop_front() else { return Poll::Ready(None) };
        self.len = self.len.saturating_sub(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len)
    }
}
