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

/// Maximum bytes of one attempt's log that no stream has got yet; further lines are dropped and counted.
const UNSENT_BYTES_MAX: usize = 1024 * 1024;

/// Maximum bytes of one attempt's log that were sent and not acknowledged; no more is sent until an acknowledgement
/// arrives.
const UNACKED_BYTES_MAX: usize = 4 * 1024 * 1024;

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
    /// Lines dropped since the last chunk was made.
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
        let is_dropping = state.dropped_line_count > 0 && state.pending_lines.is_empty();
        let needed_bytes = if is_dropping { bytes.max(CHUNK_BYTES) } else { bytes };
        if !self.has_room_for(&state, needed_bytes, UNSENT_BYTES_MAX) {
            // The count of a chunk stands before the chunk's lines, so the lines before a dropped one end their chunk.
            state.seal(self.key);
            state.dropped_line_count += 1;
            return;
        }
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
        state.pending_lines.push(line);
        state.pending_bytes += bytes;
        let Some(shipping) = &self.shipping else { return };
        shipping.add_bytes(bytes);
        if is_first {
            shipping.mark_log(Arc::clone(self));
        }
        if state.pending_bytes >= CHUNK_BYTES {
            state.seal(self.key);
            shipping.request();
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
        let mut chunks = Vec::new();
        while let Some(entry) = state.chunks.get(state.sent_chunk_count) {
            if !flush && state.sent_bytes + entry.bytes > UNACKED_BYTES_MAX {
                break;
            }
            chunks.push(entry.chunk.clone());
            state.sent_bytes += entry.bytes;
            state.sent_chunk_count += 1;
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
        !state.pending_lines.is_empty() || state.sent_chunk_count < state.chunks.len()
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> (Arc<RunLog>, Arc<LogShipping>) {
        let shipping = Arc::new(LogShipping::default());
        (RunLog::new(RunKey::new(7, 1), 1, Some(Arc::clone(&shipping)), LogLimit::default()), shipping)
    }

    fn push(log: &Arc<RunLog>, text: &str) {
        log.push("info", Timestamp::EPOCH, text);
    }

    #[test]
    fn a_chunk_is_sent_once_to_each_session() {
        let (log, _) = log();
        push(&log, "a\nb\n");
        let chunks = log.collect(1, false);
        assert_eq!((chunks.len(), chunks[0].sequence, chunks[0].lines.len()), (1, 0, 2));
        assert!(log.collect(1, false).is_empty());
        push(&log, "c");
        assert_eq!(log.collect(1, false)[0].sequence, 1);
        log.record_ack(0);
        let again: Vec<i64> = log.collect(2, false).iter().map(|chunk| chunk.sequence).collect();
        assert_eq!(again, [1]);
        log.record_ack(1);
        assert!(!log.has_chunks() && !log.has_unsent());
    }

    /// Pushes more lines than a log takes: 200 lines of 10,000 bytes.
    fn flood(log: &Arc<RunLog>) {
        let line = "x".repeat(10_000);
        for _ in 0..200 {
            push(log, &line);
        }
    }

    #[test]
    fn lines_that_do_not_fit_are_dropped_and_counted() {
        let (log, shipping) = log();
        flood(&log);
        log.close();
        let chunks = log.collect(1, true);
        let (kept, dropped): (usize, u64) =
            chunks.iter().fold((0, 0), |(kept, dropped), chunk| (kept + chunk.lines.len(), dropped + chunk.dropped));
        assert_eq!(kept as u64 + dropped, 200);
        assert!(dropped > 0 && kept > 90, "{kept} kept, {dropped} dropped");
        log.record_ack(i64::MAX);
        assert_eq!(shipping.buffered_bytes(), 0);
    }

    #[test]
    fn dropped_lines_are_counted_where_they_are_missing() {
        let (log, _) = log();
        flood(&log);
        let chunks = log.collect(1, true);
        let kept: usize = chunks.iter().map(|chunk| chunk.lines.len()).sum();
        assert!(kept > 90 && chunks.iter().all(|chunk| chunk.dropped == 0), "no line is missing before these: {kept}");
        push(&log, "after");
        let [chunk] = &log.collect(1, true)[..] else { panic!("one chunk") };
        assert_eq!((chunk.lines.len(), chunk.dropped), (1, 200 - kept as u64));
    }

    #[test]
    fn dropped_lines_are_counted_with_the_next_line_or_at_the_end() {
        let (log, _) = log();
        lock(&log.state).dropped_line_count = 5;
        assert!(log.collect(1, false).is_empty() && !log.has_unsent(), "there is no chunk without a line");
        push(&log, "a");
        let counted = |chunks: Vec<LogChunk>| -> Vec<(usize, u64)> {
            chunks.iter().map(|chunk| (chunk.lines.len(), chunk.dropped)).collect()
        };
        assert_eq!(counted(log.collect(1, false)), [(1, 5)]);
        lock(&log.state).dropped_line_count = 7;
        assert!(log.collect(1, false).is_empty());
        log.close();
        assert_eq!(counted(log.collect(1, false)), [(0, 7)]);
    }

    /// All lines that a log with this limit sends.
    fn logged(limit: LogLimit, lines: impl IntoIterator<Item = String>) -> Vec<String> {
        let shipping = Arc::new(LogShipping::default());
        let log = RunLog::new(RunKey::new(7, 1), 1, Some(Arc::clone(&shipping)), limit);
        let mut texts = Vec::new();
        let mut collect = || {
            for chunk in log.collect(1, true) {
                assert_eq!(chunk.dropped, 0);
                log.record_ack(chunk.sequence);
                texts.extend(chunk.lines.into_iter().map(|line| line.text));
            }
        };
        for line in lines {
            push(&log, &line);
            collect();
        }
        log.close();
        collect();
        shipping.take_marked_logs();
        drop(log);
        assert_eq!(shipping.buffered_bytes(), 0);
        texts
    }

    #[test]
    fn of_a_log_that_is_too_long_both_ends_stay() {
        let limit = LogLimit { lines: 40, ..LogLimit::default() };
        let texts = logged(limit, (0..1_000).map(|number| format!("line {number}")));
        assert_eq!((texts.len(), texts[29].as_str(), texts[32].as_str()), (42, "line 29", "line 990"));
        assert!(texts[30].contains("only the end is kept"), "{}", texts[30]);
        assert!(texts[31].contains("960 lines") && texts[31].contains("10 MiB or 40 lines"), "{}", texts[31]);
        assert_eq!(texts[41], "line 999");
    }

    #[test]
    fn bytes_are_limited_too_and_a_complete_log_has_no_count() {
        let limit = LogLimit { bytes: 10_000, lines: 1_000 };
        let texts = logged(limit, (0..500).map(|number| format!("{number:0100}")));
        let bytes: usize = texts.iter().map(|text| line_cost(text)).sum();
        assert!(bytes < 10_500 && texts.last().unwrap().ends_with("499"), "{bytes}");
        assert_eq!(logged(limit, (0..56).map(|number| format!("{number:0100}"))).len(), 56);
        let few = logged(limit, (0..60).map(|number| format!("{number:0100}")));
        assert_eq!(few.len(), 61, "the word that the end follows, and every line");
    }

    #[test]
    fn a_closed_log_takes_nothing() {
        let (log, _) = log();
        push(&log, "a");
        log.close();
        push(&log, "b");
        assert_eq!(log.collect(1, true).iter().map(|chunk| chunk.lines.len()).sum::<usize>(), 1);
    }

    #[test]
    fn memory_is_given_back_when_a_log_is_forgotten() {
        let (log, shipping) = log();
        push(&log, "a line");
        assert!(shipping.buffered_bytes() > 0);
        shipping.take_marked_logs();
        drop(log);
        assert_eq!(shipping.buffered_bytes(), 0);
    }
}
