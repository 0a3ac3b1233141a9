//! The log of one attempt: its pending lines, and the chunks that no server has acknowledged.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};

use rondel_core::Timestamp;
use rondel_proto::v1::{LogChunk, LogLine};
use tokio::sync::Notify;

use super::limit::LogLimit;
use super::line;
use super::shipping::LogShipping;
use super::tail::Tail;
use crate::lifecycle::lock;
use crate::masks::Masks;
use crate::table::{RunKey, TableLog};

/// Pending lines become a chunk at this many bytes, or at the next sweep.
const CHUNK_BYTES: usize = 64 * 1024;

/// Maximum bytes of one attempt's log that no stream has got yet; further lines are dropped and counted, except the newest
/// (see [`LAST_LINES`]).
const UNSENT_BYTES_MAX: usize = 1024 * 1024;

/// Maximum bytes of one attempt's log that were sent and not acknowledged; no more is sent until an acknowledgement
/// arrives.
const UNACKED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How many of the newest dropped lines are kept until there is room or the log ends, because the last lines before an end
/// are those that its reader needs.
const LAST_LINES: LogLimit = LogLimit { bytes: 32 * 1024, lines: 100 };

/// The bytes that a line costs in addition to its text.
const LINE_OVERHEAD: usize = 32;

/// One line, for readers in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogText {
    pub(crate) level: String,
    pub(crate) text: String,
}

pub(crate) struct RunLog {
    key: RunKey,
    masks: OnceLock<Masks>,
    /// `None` if no server collects the lines: they stay here.
    shipping: Option<Arc<LogShipping>>,
    limit: LogLimit,
    state: Mutex<State>,
    /// Notified when lines were sent or acknowledged, or the log was closed, because a waiting writer may then
    /// continue.
    room_freed: Notify,
}

#[derive(Default)]
struct State {
    pending_lines: Vec<LogLine>,
    pending_bytes: usize,
    /// The newest of the lines that found no room, and the count of those before them. While it is set, lines are being
    /// dropped.
    dropped: Option<Tail>,
    /// Lines that are missing before the pending ones.
    dropped_line_count: u64,
    /// How many bytes the kept beginning of the log has so far; the limit bounds them.
    logged_bytes: usize,
    /// How many lines the kept beginning of the log has so far; the limit bounds them.
    logged_line_count: usize,
    /// Whether the attempt has ended, so that no more lines are taken.
    is_closed: bool,
    /// The end of a log that has exceeded its limit.
    tail: Option<Tail>,
    chunks: VecDeque<UnackedChunk>,
    chunk_bytes: usize,
    next_sequence: i64,
    /// The id of the stream that got the first `sent_chunk_count` chunks. Another stream gets all chunks again.
    link_id: u64,
    sent_chunk_count: usize,
    sent_bytes: usize,
}

struct UnackedChunk {
    chunk: LogChunk,
    bytes: usize,
}

impl RunLog {
    /// `link_id` is the id of the stream that the run came from.
    pub(crate) fn new(key: RunKey, link_id: u64, shipping: Option<Arc<LogShipping>>, limit: LogLimit) -> Arc<Self> {
        let state = Mutex::new(State { link_id, ..State::default() });
        Arc::new(Self { key, masks: OnceLock::new(), shipping, limit, state, room_freed: Notify::new() })
    }

    pub(crate) fn key(&self) -> RunKey {
        self.key
    }

    /// Sets the texts to hide; called once, before the handler starts.
    pub(crate) fn set_masks(&self, masks: Masks) {
        self.masks.get_or_init(|| masks);
    }

    pub(crate) fn masks(&self) -> &Masks {
        self.masks.get_or_init(Masks::default)
    }

    /// Adds a text, line by line.
    pub(crate) fn push(self: &Arc<Self>, level: &'static str, at: Timestamp, text: &str) {
        let masks = self.masks.get();
        let no_masks = Masks::default();
        // The text is masked as a whole before it is split, because a secret may span lines.
        let masked_text = masks.unwrap_or(&no_masks).apply(text);
        for text in masked_text.trim_end_matches('\n').split('\n') {
            self.push_line(level, at, line::sanitize(text, &no_masks));
        }
    }

    fn push_line(self: &Arc<Self>, level: &'static str, at: Timestamp, text: String) {
        let mut state = lock(&self.state);
        if state.is_closed {
            return;
        }
        let bytes = line_cost(&text);
        let line = LogLine { at_ms: at.as_millis(), level: level.to_owned(), text };
        if let Some(tail) = &mut state.tail {
            return tail.push(line);
        }
        let head = self.limit.head();
        if state.logged_bytes + bytes > head.bytes || state.logged_line_count >= head.lines {
            self.append_last_dropped(&mut state);
            let mut tail = Tail::new(self.limit.tail());
            tail.push(line);
            state.tail = Some(tail);
            let text = format!(
                "… of what follows only the end is kept, and shown when the run is over: the log of one attempt has room for {}",
                self.limit
            );
            let cut_notice = LogLine { at_ms: at.as_millis(), level: "warn".to_owned(), text };
            return self.append(&mut state, cut_notice, LINE_OVERHEAD);
        }
        // After a drop, a log takes lines again only once a whole chunk has room. Otherwise each line that fits could become a
        // chunk.
        let needed_bytes = if state.dropped.is_some() { bytes.max(CHUNK_BYTES) } else { bytes };
        if !self.has_room_for(&state, needed_bytes, UNSENT_BYTES_MAX) {
            // The count of a chunk stands before the chunk's lines, so the lines before a dropped one end their chunk.
            state.seal(self.key);
            if let Some(shipping) = self.shipping.as_ref().filter(|_| state.dropped.is_none()) {
                shipping.mark_log(Arc::clone(self));
            }
            return state.dropped.get_or_insert_with(|| Tail::new(LAST_LINES)).push(line);
        }
        self.append_last_dropped(&mut state);
        state.logged_bytes += bytes;
        state.logged_line_count += 1;
        self.append(&mut state, line, bytes);
    }

    /// Whether `bytes` more bytes fit into `bytes_max`, the limit of this log's unsent bytes, and into the limit of all
    /// logs.
    fn has_room_for(&self, state: &State, bytes: usize, bytes_max: usize) -> bool {
        let unsent_bytes = state.pending_bytes + state.chunk_bytes - state.sent_bytes;
        self.shipping.as_ref().is_none_or(|shipping| unsent_bytes + bytes <= bytes_max && shipping.has_room(bytes))
    }

    /// Whether the kept beginning of the log has reached its limit. Of further lines, only the last ones are kept.
    pub(crate) fn is_head_full(&self) -> bool {
        lock(&self.state).tail.is_some()
    }

    /// Whether a writer that can wait may continue. It turns false at half of [`UNSENT_BYTES_MAX`], well before lines
    /// are dropped. A closed log always has room.
    pub(crate) fn has_room(&self) -> bool {
        let state = lock(&self.state);
        state.is_closed || self.has_room_for(&state, 0, UNSENT_BYTES_MAX / 2)
    }

    /// Resolves when there is room.
    pub(crate) async fn wait_for_room(&self) {
        loop {
            let mut room_change = std::pin::pin!(self.room_freed.notified());
            room_change.as_mut().enable();
            if self.has_room() {
                return;
            }
            room_change.await;
        }
    }

    /// Counts output that a writer did not split into lines, because the log is full.
    pub(crate) fn count_left_out(&self, lines: u64, bytes: u64) {
        if let Some(tail) = &mut lock(&self.state).tail {
            tail.leave_out(lines, bytes);
        }
    }

    fn append(self: &Arc<Self>, state: &mut State, line: LogLine, bytes: usize) {
        let is_first = state.pending_lines.is_empty();
        self.add_pending(state, line, bytes);
        let Some(shipping) = &self.shipping else { return };
        if is_first {
            shipping.mark_log(Arc::clone(self));
        }
        if state.pending_bytes >= CHUNK_BYTES {
            state.seal(self.key);
            shipping.request();
        }
    }

    /// Adds a line to the pending ones, and its bytes to those that all logs hold.
    fn add_pending(&self, state: &mut State, line: LogLine, bytes: usize) {
        state.pending_lines.push(line);
        state.pending_bytes += bytes;
        if let Some(shipping) = &self.shipping {
            shipping.add_bytes(bytes);
        }
    }

    /// Ends a drop: the newest dropped lines become pending ones, even without room. The log has been marked since the drop began.
    fn append_last_dropped(&self, state: &mut State) {
        let Some(dropped) = state.dropped.take() else { return };
        let (lines, dropped_line_count) = dropped.into_parts();
        state.dropped_line_count += dropped_line_count;
        for line in lines {
            let bytes = line_cost(&line.text);
            state.logged_bytes += bytes;
            state.logged_line_count += 1;
            self.add_pending(state, line, bytes);
        }
    }

    /// The lines that stayed here because no server collects them.
    pub(crate) fn lines(&self) -> Vec<LogText> {
        let state = lock(&self.state);
        state.pending_lines.iter().map(|line| LogText { level: line.level.clone(), text: line.text.clone() }).collect()
    }

    fn release_bytes(&self, bytes: usize) {
        if let Some(shipping) = &self.shipping {
            shipping.subtract_bytes(bytes);
        }
    }
}

impl TableLog for RunLog {
    /// The id of the stream that has, or will get, the log's chunks.
    fn link_id(&self) -> u64 {
        lock(&self.state).link_id
    }

    /// Accepts no more lines. If the log exceeded its limit, its last lines are appended to the kept beginning.
    fn close(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        self.append_last_dropped(&mut state);
        let at_ms = state.pending_lines.last().map_or(0, |line| line.at_ms);
        for line in state.tail.take().into_iter().flat_map(|tail| tail.into_lines(self.limit, at_ms)) {
            let bytes = line_cost(&line.text);
            self.append(&mut state, line, bytes);
        }
        if self.shipping.is_some() {
            state.seal(self.key);
        }
        drop(state);
        self.room_freed.notify_waiters();
    }

    /// The chunks that the stream `link_id` has not got yet, up to the limit of unacknowledged bytes; with `flush`, all of them.
    fn collect(&self, link_id: u64, flush: bool) -> Vec<LogChunk> {
        let mut state = lock(&self.state);
        state.seal(self.key);
        if state.link_id != link_id {
            (state.link_id, state.sent_chunk_count, state.sent_bytes) = (link_id, 0, 0);
        }
        let mut chunks = state.take_unsent(flush);
        if state.dropped.is_some() && self.has_room_for(&state, CHUNK_BYTES, UNSENT_BYTES_MAX) {
            self.append_last_dropped(&mut state);
            state.seal(self.key);
            chunks.extend(state.take_unsent(flush));
        }
        drop(state);
        self.room_freed.notify_waiters();
        chunks
    }

    /// Forgets the chunks up to `sequence`, which are durable.
    fn record_ack(&self, sequence: i64) {
        let mut state = lock(&self.state);
        while state.chunks.front().is_some_and(|entry| entry.chunk.sequence <= sequence) {
            let Some(entry) = state.chunks.pop_front() else { break };
            state.chunk_bytes -= entry.bytes;
            if state.sent_chunk_count > 0 {
                state.sent_chunk_count -= 1;
                state.sent_bytes -= entry.bytes;
            }
            self.release_bytes(entry.bytes);
        }
        drop(state);
        self.room_freed.notify_waiters();
    }

    /// Whether chunks are left that no server has acknowledged.
    fn has_chunks(&self) -> bool {
        !lock(&self.state).chunks.is_empty()
    }

    /// Whether lines or chunks are left that no stream has got.
    fn has_unsent(&self) -> bool {
        let state = lock(&self.state);
        !state.pending_lines.is_empty() || state.dropped.is_some() || state.sent_chunk_count < state.chunks.len()
    }
}

impl Drop for RunLog {
    fn drop(&mut self) {
        let buffered_bytes = {
            let state = lock(&self.state);
            state.pending_bytes + state.chunk_bytes
        };
        self.release_bytes(buffered_bytes);
    }
}

/// The bytes that a line takes in memory. They count against the limit.
pub(super) fn line_cost(text: &str) -> usize {
    text.len() + LINE_OVERHEAD
}

impl State {
    /// Makes a chunk of the pending lines. The chunk also carries the count of dropped lines; without pending lines, the
    /// count waits for the next line or for the end of the log.
    fn seal(&mut self, key: RunKey) {
        if self.pending_lines.is_empty() && (self.dropped_line_count == 0 || !self.is_closed) {
            return;
        }
        let chunk = LogChunk {
            run_id: key.run.get(),
            attempt: key.attempt,
            sequence: self.next_sequence,
            lines: std::mem::take(&mut self.pending_lines),
            dropped: std::mem::take(&mut self.dropped_line_count),
        };
        self.next_sequence += 1;
        let bytes = std::mem::take(&mut self.pending_bytes);
        self.chunk_bytes += bytes;
        self.chunks.push_back(UnackedChunk { chunk, bytes });
    }

    /// The chunks that the stream has not got yet, up to the limit of unacknowledged bytes; with `flush`, all of them.
    fn take_unsent(&mut self, flush: bool) -> Vec<LogChunk> {
        let mut chunks = Vec::new();
        while let Some(entry) = self.chunks.get(self.sent_chunk_count) {
            if !flush && self.sent_bytes + entry.bytes > UNACKED_BYTES_MAX {
                break;
            }
            chunks.push(entry.chunk.clone());
            self.sent_bytes += entry.bytes;
            self.sent_chunk_count += 1;
        }
        chunks
    }
}

#[cfg(test)]
mod tests;
