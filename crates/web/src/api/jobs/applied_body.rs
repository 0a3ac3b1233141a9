//! The body of the answer to an applied list. Each job is serialized immediately: the values of many large changes would take several
//! times the memory of their text.

use std::collections::{BTreeMap, VecDeque};
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

/// Length of the pieces in which the answer is sent, in bytes.
const PIECE_LEN: usize = 64 * 1024;

/// The items of an answer so far, in the order of the applied list.
#[derive(Default)]
pub(super) struct Items {
    pieces: Pieces,
    /// How many items were added.
    added_count: usize,
    /// How many of the added items are in `pieces`.
    written_count: usize,
    /// Serialized items that wait for an item before them, by their index in the list. Items that are not in the list come last, in the
    /// order in which they were added.
    waiting_items: BTreeMap<(usize, usize), Vec<u8>>,
    summary: Summary,
}

impl Items {
    pub(super) fn add(&mut self, item: &Item) {
        self.summary.add(item);
        let text = serde_json::to_vec(item).unwrap_or_default();
        match item.index {
            Some(index) if index == self.written_count => self.append(&text),
            index => drop(self.waiting_items.insert((index.unwrap_or(usize::MAX), self.added_count), text)),
        }
        self.added_count += 1;
        while let Some(entry) = self.waiting_items.first_entry()
            && entry.key().0 == self.written_count
        {
            let text = entry.remove();
            self.append(&text);
        }
    }

    fn append(&mut self, text: &[u8]) {
        if self.written_count > 0 {
            self.pieces.add(b",");
        }
        self.pieces.add(text);
        self.written_count += 1;
    }

    /// The answer; `removals` is the digest of the jobs that the list would remove.
    pub(super) fn into_response(mut self, is_dry_run: bool, removals: Option<&str>) -> Response {
        for (_, text) in std::mem::take(&mut self.waiting_items) {
            self.append(&text);
        }
        let summary = serde_json::to_string(&self.summary).unwrap_or_default();
        let removals_field = removals.map(|digest| format!("\"removals\":\"{digest}\",")).unwrap_or_default();
        self.pieces.add(format!("],{removals_field}\"summary\":{summary}}}").as_bytes());
        self.pieces.finish_piece();
        self.pieces.put_first(format!("{{\"dry_run\":{is_dry_run},\"items\":["));
        let mut response = Response::new(Body::new(self.pieces));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

/// A body of known length. Each piece is freed as soon as it is sent.
#[derive(Default)]
struct Pieces {
    /// The finished pieces that are not sent yet.
    unsent_pieces: VecDeque<Bytes>,
    /// The piece to which text is still added.
    open_piece: Vec<u8>,
    /// How many bytes the pieces in `unsent_pieces` have.
    len: u64,
}

impl Pieces {
    fn add(&mut self, text: &[u8]) {
        if self.open_piece.len() + text.len() > self.open_piece.capacity() {
            self.finish_piece();
            self.open_piece = Vec::with_capacity(PIECE_LEN.max(text.len()));
        }
        self.open_piece.extend_from_slice(text);
    }

    fn finish_piece(&mut self) {
        if !self.open_piece.is_empty() {
            self.len += u64::try_from(self.open_piece.len()).unwrap_or(u64::MAX);
            self.unsent_pieces.push_back(std::mem::take(&mut self.open_piece).into());
        }
    }

    fn put_first(&mut self, text: String) {
        self.len += u64::try_from(text.len()).unwrap_or(u64::MAX);
        self.unsent_pieces.push_front(text.into());
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(piece) = self.unsent_pieces.pop_front() else { return Poll::Ready(None) };
        self.len = self.len.saturating_sub(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.unsent_pieces.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len)
    }
}

#[cfg(test)]
mod tests {
    use rondel_admin::jobs::{Action, PlannedJob};

    use super::*;

    fn item(name: &str, index: Option<usize>) -> Item {
        let (name, action, changes) = (name.to_owned(), Action::Keep, Vec::new());
        let (version, app, fires, warnings) = (None, None, None, Vec::new());
        Item::planned(PlannedJob { index, name, action, version, app, changes, fires, warnings })
    }

    #[tokio::test]
    async fn items_are_in_the_order_of_the_list_however_they_come() {
        let mut items = Items::default();
        let came =
            [("x", None), ("d", Some(3)), ("y", None), ("a", Some(0)), ("c", Some(2)), ("b", Some(1)), ("z", None)];
        came.iter().for_each(|(name, index)| items.add(&item(name, *index)));
        let response = items.into_response(true, None);
        let declared = HttpBody::size_hint(response.body()).exact();
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        assert_eq!(declared, u64::try_from(bytes.len()).ok());
        let answer: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let names: Vec<_> =
            answer["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "b", "c", "d", "x", "y", "z"]);
        assert_eq!(answer["summary"]["unchanged"], 7);
    }

    #[test]
    fn long_items_are_in_several_pieces() {
        let mut items = Items::default();
        for index in 0..3 {
            items.add(&item(&"n".repeat(PIECE_LEN), Some(index)));
        }
        assert!(items.pieces.unsent_pieces.len() >= 2, "{}", items.pieces.unsent_pieces.len());
    }
}
