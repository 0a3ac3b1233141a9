//! Streams a log: each line as it is stored, until the run has ended and its log is complete. API clients follow logs this way. The
//! console polls the fragment in `pages/run_log.rs` instead, and uses the stream only to download a whole log.
//!
//! The store is polled, and a reader has no state but its position. If the stream ends before the log is complete, its last item reports
//! this with a cursor to continue from. A stream of plain text has no such item: if it ends before the lines that it should have, the
//! connection breaks.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt as _, unfold};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use rondel_admin::gateway::LogReader;
use rondel_core::error_chain::chain;
use rondel_core::{Run, RunStatus};
use rondel_store::StoreError;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;

use super::events::NO_BUFFERING_HEADER;
use super::lines::{self, Line, LineFilter, Lines, LogRange, Position};
use crate::caller::Caller;
use crate::cursor::Listing;
use crate::load::{self, LongLived};
use crate::permits::{LiveShare, StreamKind};
use crate::problem::Problem;
use crate::recheck::RecheckedCaller;
use crate::shares;
use crate::state::Web;

/// How often the store is polled while no notification arrives: other nodes store lines and end runs without notifying this one.
const POLL_PERIOD: Duration = Duration::from_secs(1);
/// The poll period once the run has ended and only its last lines may still arrive.
const SETTLE_PERIOD: Duration = Duration::from_millis(200);
/// If no line arrives for this long, a keep-alive is sent, so that proxies do not close the connection.
const KEEP_ALIVE_DELAY: Duration = Duration::from_secs(15);
/// Maximum number of lines in one read of the store.
const BATCH_LINE_COUNT_MAX: usize = 500;
/// About how many bytes of text are read at a time. Each stream buffers up to this many while its client does not read.
const PIECE_LEN: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// One JSON object per line.
    Lines,
    Events,
    /// The lines without numbers, times and levels, as the job wrote them.
    Text,
}

/// The log to read, and how to read it.
#[derive(Debug)]
pub(super) struct FollowRequest {
    pub(super) run: Run,
    pub(super) listing: Listing,
    pub(super) position: Position,
    pub(super) line_filter: LineFilter,
    pub(super) format: Format,
    /// Whether to wait for lines that are not written yet.
    pub(super) waits_for_lines: bool,
    /// Whether to end with this attempt instead of continuing with the next one.
    pub(super) ends_with_attempt: bool,
}

struct LogStream {
    web: Web,
    caller: RecheckedCaller,
    follow: FollowRequest,
    ends_at: Instant,
    last_sent_at: Instant,
    /// Whether a read of the log was tried.
    has_begun: bool,
    has_ended: bool,
    log_reader: LogReader,
    _share: LiveShare,
}

/// The last item of a stream.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LogEnd")]
struct LogEnd {
    complete: bool,
    status: RunStatus,
    next_cursor: Option<String>,
}

pub(super) fn log_response(web: &Web, caller: Caller, follow: FollowRequest) -> Result<Response, Problem> {
    let share = load::take_live_share(web, StreamKind::Log, caller.key())?;
    let content_type = match follow.format {
        Format::Lines => "application/x-ndjson",
        Format::Events => "text/event-stream",
        Format::Text => "text/plain; charset=utf-8",
    };
    let waits_for_lines = follow.waits_for_lines;
    let now = Instant::now();
    let ends_at = now + web.config.follow_timeout;
    // Subscribes before the first read, so that no line stored in between is missed.
    let log_reader = web.engine.follow_log(follow.run.id);
    let (web, caller) = (web.clone(), RecheckedCaller::new(caller));
    let log_stream = LogStream {
        web,
        caller,
        follow,
        ends_at,
        last_sent_at: now,
        has_begun: false,
        has_ended: false,
        log_reader,
        _share: share,
    };
    let mut response = Response::new(Body::from_stream(stream(log_stream).fuse()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().extend(waits_for_lines.then_some(NO_BUFFERING_HEADER));
    response.extensions_mut().insert(LongLived);
    Ok(response)
}

fn stream(log_stream: LogStream) -> impl Stream<Item = io::Result<Bytes>> {
    unfold(log_stream, async |mut log_stream| {
        let bytes = log_stream.next_bytes().await?;
        Some((bytes, log_stream))
    })
}

impl LogStream {
    /// The next piece of the stream, or the error that breaks the connection.
    async fn next_bytes(&mut self) -> Option<io::Result<Bytes>> {
        while !self.has_ended {
            // Each stream reads at least once: a client that reopens the stream repeatedly while the server stops still gets new lines.
            if std::mem::replace(&mut self.has_begun, true) && self.must_end() {
                return Some(self.end_early());
            }
            let (namespace, app) = (self.follow.run.namespace, self.follow.run.app);
            if self.caller.access_loss(&self.web, namespace, Some(app)).await.is_some() {
                return Some(self.end_early());
            }
            // Each read waits for a turn, as each request does: a caller could otherwise search whole logs in many streams at once, for
            // text that no line has.
            let Ok(turn) = shares::wait_for_turn(&self.web, self.caller.caller().key()).await else {
                self.last_sent_at = Instant::now();
                return Some(Ok(self.keep_alive()));
            };
            let read_result = self.read().await;
            drop(turn);
            let (batch, is_settled) = match read_result {
                Ok(read_result) => read_result,
                Err(error) => {
                    tracing::warn!(target: "http", run_id = %self.follow.run.id, error = chain(&error), "the stream of a log was aborted");
                    return Some(self.end_early());
                }
            };
            self.follow.position = batch.position;
            if !batch.lines.is_empty() {
                self.last_sent_at = Instant::now();
                return Some(Ok(self.lines_in_format(&batch.lines)));
            }
            // If the log is not drained, a search has found no line yet and continues at once. It can read a large log for minutes.
            if batch.is_drained && is_settled {
                if self.follow.ends_with_attempt || self.follow.position.attempt >= self.follow.run.attempt {
                    return self.end(true).map(Ok);
                }
                self.follow.position = Position::before_first_line(self.follow.position.attempt + 1);
            } else if batch.is_drained && !self.follow.waits_for_lines {
                return self.end(false).map(Ok);
            } else if self.must_end() {
                return Some(self.end_early());
            } else if self.last_sent_at.elapsed() >= KEEP_ALIVE_DELAY {
                self.last_sent_at = Instant::now();
                return Some(Ok(self.keep_alive()));
            } else if batch.is_drained {
                self.wait().await;
            }
        }
        None
    }

    /// Whether the stream ends before its log does. A stream that does not wait for lines continues while the server stops: it only reads
    /// what is stored.
    fn must_end(&self) -> bool {
        let is_stopped = self.follow.waits_for_lines && self.web.config.shutdown.is_cancelled();
        is_stopped || Instant::now() >= self.ends_at
    }

    /// Reads the run before its lines: if the run is settled at that point, the lines read afterwards are complete.
    async fn read(&mut self) -> Result<(Lines, bool), StoreError> {
        let store = self.web.engine.store();
        if let Some(run) = store.runs(&[self.follow.run.id]).await?.pop() {
            self.follow.run = run;
        }
        let now = self.web.engine.now();
        let is_settled = lines::is_settled(&self.follow.run, self.follow.position.attempt, now);
        let range = LogRange {
            from: self.follow.position,
            before_line: None,
            line_filter: &self.follow.line_filter,
            limit: BATCH_LINE_COUNT_MAX,
            bytes_max: PIECE_LEN,
        };
        Ok((lines::read(store, &self.follow.run, range, now).await?, is_settled))
    }

    async fn wait(&mut self) {
        let period = if self.follow.run.status.is_terminal() { SETTLE_PERIOD } else { POLL_PERIOD };
        tokio::select! {
            () = tokio::time::sleep(period) => {}
            () = self.log_reader.wait_for_lines() => {}
            () = self.web.config.shutdown.cancelled() => {}
        }
    }

    /// Ends the stream before the lines that it should have. Plain text ends with an error, which breaks the connection, so that the
    /// client cannot mistake it for the whole log.
    fn end_early(&mut self) -> io::Result<Bytes> {
        self.end(false).ok_or_else(|| io::Error::other("the log was cut off"))
    }

    fn end(&mut self, complete: bool) -> Option<Bytes> {
        self.has_ended = true;
        let next_cursor = (!complete).then(|| self.follow.listing.cursor(self.follow.position));
        let end_event = LogEnd { complete, status: self.follow.run.status, next_cursor };
        let text = serde_json::to_string(&end_event).unwrap_or_default();
        match self.follow.format {
            Format::Lines => Some(Bytes::from(text + "\n")),
            Format::Events => Some(Bytes::from(format!("event: end\ndata: {text}\n\n"))),
            Format::Text => None,
        }
    }

    fn keep_alive(&self) -> Bytes {
        match self.follow.format {
            Format::Lines => Bytes::from_static(b"\n"),
            Format::Events => Bytes::from_static(b":\n\n"),
            // A keep-alive would become part of the text, so the piece is empty; hyper sends nothing for it.
            Format::Text => Bytes::new(),
        }
    }

    fn lines_in_format(&self, lines: &[Line]) -> Bytes {
        let mut text = String::new();
        for (index, line) in lines.iter().enumerate() {
            let json = serde_json::to_string(line).unwrap_or_default();
            match self.follow.format {
                Format::Lines => text.extend([&json, "\n"]),
                Format::Text => text.extend([line.line.as_str(), "\n"]),
                Format::Events => {
                    // Only the last event of a batch has an id, from which a client can continue.
                    if index + 1 == lines.len() {
                        text.extend(["id: ", &self.follow.listing.cursor(self.follow.position), "\n"]);
                    }
                    text.extend(["event: line\ndata: ", &json, "\n\n"]);
                }
            }
        }
        Bytes::from(text)
    }
}
