//! The log of one attempt: lines that wait, chunks that were made of them, and what was acknowledged.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};

use rondel_core::Timestamp;
use rondel_proto::v1::{LogChunk, LogLine};

use super::line;
use super::shipping::Shipping;
use crate::lifecycle::lock;
use crate::masks::Masks;
use crate::run::RunKey;

/// Lines become a chunk when they are this many bytes, or at the next sweep.
const CHUNK_BYTES: usize = 64 * 1024;

/// What one attempt may keep that no session has taken yet; more is dropped and counted.
const UNSENT_BYTES_MAX: usize = 1024 * 1024;

/// What one attempt may keep that was sent and not acknowledged; no more is sent until it is.
const UNACKED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What one attempt may log.
const ATTEMPT_BYTES_MAX: usize = 10 * 1024 * 1024;

/// A line costs this much beside its text.
const LINE_OVERHEAD: usize = 32;

/// One line, for whoever reads the log on the spot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogText {
    pub(crate) level: String,
    pub(crate) text: String,
}

pub(crate) struct RunLog {
    key: RunKey,
    masks: OnceLock<Masks>,
    /// `None` where nobody collects the lines: they stay.
    shipping: Option<Arc<Shipping>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pending: Vec<LogLine>,
    pending_bytes: usize,
    dropped: u64,
    logged_bytes: usize,
    /// Nothing more is taken: the attempt is over, or it has logged too much.
    closed: bool,
    chunks: VecDeque<Kept>,
    chunk_bytes: usize,
    next_sequence: i64,
    /// The session that has the first `sent` chunks; another one gets them all again.
    link: u64,
    sent: usize,
    sent_bytes: usize,
}

struct Kept {
    chunk: LogChunk,
    bytes: usize,
}

impl RunLog {
    /// `link` is the session that the run came by.
    pub(crate) fn new(key: RunKey, link: u64, shipping: Option<Arc<Shipping>>) -> Arc<Self> {
        let state = Mutex::new(State { link, ..State::default() });
        Arc::new(Self { key, masks: OnceLock::new(), shipping, state })
    }

    pub(crate) fn key(&self) -> RunKey {
        self.key
    }

    /// The session that has, or will get, its chunks.
    pub(crate) fn link(&self) -> u64 {
        lock(&self.state).link
    }

    /// What to hide from now on; set once, before the handler starts.
    pub(crate) fn set_masks(&self, masks: Masks) {
        self.masks.get_or_init(|| masks);
    }

    pub(crate) fn masks(&self) -> &Masks {
        self.masks.get_or_init(Masks::default)
    }

    /// Adds what was said, line by line.
    pub(crate) fn push(self: &Arc<Self>, level: &'static str, at: Timestamp, text: &str) {
        let masks = self.masks.get();
        let none = Masks::default();
        // Masked as a whole first: a secret may span lines.
        let masked = masks.unwrap_or(&none).apply(text);
        for text in masked.trim_end_matches('\n').split('\n') {
            self.push_line(level, at, line::tidy(text, &none));
        }
    }

    fn push_line(self: &Arc<Self>, level: &'static str, at: Timestamp, text: String) {
        let mut state = lock(&self.state);
        if state.closed {
            return;
        }
        let bytes = text.len() + LINE_OVERHEAD;
        if state.logged_bytes + bytes > ATTEMPT_BYTES_MAX {
            let text = format!("the log ends here: {} MiB is the most for one attempt", ATTEMPT_BYTES_MAX >> 20);
            let last = LogLine { at_ms: at.as_millis(), level: "warn".to_owned(), text };
            state.closed = true;
            return self.keep(&mut state, last, LINE_OVERHEAD);
        }
        if !self.has_room(&state, bytes) {
            state.dropped += 1;
            return;
        }
        state.logged_bytes += bytes;
        self.keep(&mut state, LogLine { at_ms: at.as_millis(), level: level.to_owned(), text }, bytes);
    }

    fn has_room(&self, state: &State, bytes: usize) -> bool {
        let unsent = state.pending_bytes + state.chunk_bytes - state.sent_bytes;
        self.shipping.as_ref().is_none_or(|shipping| unsent + bytes <= UNSENT_BYTES_MAX && shipping.has_room(bytes))
    }

    fn keep(self: &Arc<Self>, state: &mut State, line: LogLine, bytes: usize) {
        let first = state.pending.is_empty();
        state.pending.push(line);
        state.pending_bytes += bytes;
        let Some(shipping) = &self.shipping else { return };
        shipping.add_bytes(bytes);
        if first {
            shipping.mark(Arc::clone(self));
        }
        if state.pending_bytes >= CHUNK_BYTES {
            state.seal(self.key);
            shipping.hurry();
        }
    }

    /// Takes no more lines.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        if self.shipping.is_some() {
            state.seal(self.key);
        }
    }

    /// The chunks that `link` has not been given, as far as it may have them; all of them for a last `flush`.
    pub(crate) fn collect(&self, link: u64, flush: bool) -> Vec<LogChunk> {
        let mut state = lock(&self.state);
        state.seal(self.key);
        if state.link != link {
            (state.link, state.sent, state.sent_bytes) = (link, 0, 0);
        }
        let mut chunks = Vec::new();
        while let Some(kept) = state.chunks.get(state.sent) {
            if !flush && state.sent_bytes + kept.bytes > UNACKED_BYTES_MAX {
                break;
            }
            chunks.push(kept.chunk.clone());
            state.sent_bytes += kept.bytes;
            state.sent += 1;
        }
        chunks
    }

    /// Forgets what is durable.
    pub(crate) fn acked(&self, sequence: i64) {
        let mut state = lock(&self.state);
        while state.chunks.front().is_some_and(|kept| kept.chunk.sequence <= sequence) {
            let Some(kept) = state.chunks.pop_front() else { break };
            state.chunk_bytes -= kept.bytes;
            if state.sent > 0 {
                state.sent -= 1;
                state.sent_bytes -= kept.bytes;
            }
            self.give_back(kept.bytes);
        }
    }

    /// Whether chunks are left that nobody has acknowledged.
    pub(crate) fn has_chunks(&self) -> bool {
        !lock(&self.state).chunks.is_empty()
    }

    /// Whether lines or chunks are left that no session has.
    pub(crate) fn has_unsent(&self) -> bool {
        let state = lock(&self.state);
        !state.pending.is_empty() || state.dropped > 0 || state.sent < state.chunks.len()
    }

    /// The lines that stayed, where nobody collects them.
    pub(crate) fn lines(&self) -> Vec<LogText> {
        let state = lock(&self.state);
        state.pending.iter().map(|line| LogText { level: line.level.clone(), text: line.text.clone() }).collect()
    }

    fn give_back(&self, bytes: usize) {
        if let Some(shipping) = &self.shipping {
            shipping.take_bytes(bytes);
        }
    }
}

impl Drop for RunLog {
    fn drop(&mut self) {
        let left = {
            let state = lock(&self.state);
            state.pending_bytes + state.chunk_bytes
        };
        self.give_back(left);
    }
}

impl State {
    fn seal(&mut self, key: RunKey) {
        if self.pending.is_empty() && self.dropped == 0 {
            return;
        }
        let chunk = LogChunk {
            run_id: key.run.get(),
            attempt: key.attempt,
            sequence: self.next_sequence,
            lines: std::mem::take(&mut self.pending),
            dropped: std::mem::take(&mut self.dropped),
        };
        self.next_sequence += 1;
        let bytes = std::mem::take(&mut self.pending_bytes);
        self.chunk_bytes += bytes;
        self.chunks.push_back(Kept { chunk, bytes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> (Arc<RunLog>, Arc<Shipping>) {
        let shipping = Arc::new(Shipping::default());
        (RunLog::new(RunKey::new(7, 1), 1, Some(Arc::clone(&shipping))), shipping)
    }

    fn push(log: &Arc<RunLog>, text: &str) {
        log.push("info", Timestamp::EPOCH, text);
    }

    #[test]
    fn a_chunk_goes_to_a_session_once_and_to_another_one_again() {
        let (log, _) = log();
        push(&log, "a\nb\n");
        let chunks = log.collect(1, false);
        assert_eq!((chunks.len(), chunks[0].sequence, chunks[0].lines.len()), (1, 0, 2));
        assert!(log.collect(1, false).is_empty());
        push(&log, "c");
        assert_eq!(log.collect(1, false)[0].sequence, 1);
        log.acked(0);
        let again: Vec<i64> = log.collect(2, false).iter().map(|chunk| chunk.sequence).collect();
        assert_eq!(again, [1]);
        log.acked(1);
        assert!(!log.has_chunks() && !log.has_unsent());
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let (log, shipping) = log();
        let line = "x".repeat(10_000);
        for _ in 0..200 {
            push(&log, &line);
        }
        let chunks = log.collect(1, true);
        let (kept, dropped): (usize, u64) =
            chunks.iter().fold((0, 0), |(kept, dropped), chunk| (kept + chunk.lines.len(), dropped + chunk.dropped));
        assert_eq!(kept as u64 + dropped, 200);
        assert!(dropped > 0 && kept > 90, "{kept} kept, {dropped} dropped");
        log.acked(i64::MAX);
        assert_eq!(shipping.bytes(), 0);
    }

    #[test]
    fn an_attempt_that_logs_too_much_is_cut_with_a_word() {
        let (log, _) = log();
        let line = "x".repeat(16_000);
        for sequence in 0..1_000 {
            push(&log, &line);
            log.collect(1, true);
            log.acked(sequence - 1);
        }
        push(&log, "never seen");
        let state = lock(&log.state);
        let last = state.chunks.back().and_then(|kept| kept.chunk.lines.last()).map(|line| line.text.clone());
        drop(state);
        assert!(last.is_none_or(|text| text.contains("log ends here")));
        assert!(lock(&log.state).logged_bytes <= ATTEMPT_BYTES_MAX);
        assert!(lock(&log.state).next_sequence < 700);
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
        assert!(shipping.bytes() > 0);
        shipping.take_marked();
        drop(log);
        assert_eq!(shipping.bytes(), 0);
    }
}
