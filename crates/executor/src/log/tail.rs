//! The newest lines of a log for which there is no room, and a count of those before them.

use std::collections::VecDeque;

use rondel_proto::v1::LogLine;

use super::buffer::line_cost;
use super::limit::{Bytes, LogLimit};

pub(super) struct Tail {
    limit: LogLimit,
    lines: VecDeque<LogLine>,
    byte_count: usize,
    dropped_line_count: u64,
    dropped_bytes: u64,
}

impl Tail {
    pub(super) fn new(limit: LogLimit) -> Self {
        Self { limit, lines: VecDeque::new(), byte_count: 0, dropped_line_count: 0, dropped_bytes: 0 }
    }

    /// Adds a line and drops the oldest ones that no longer fit.
    pub(super) fn push(&mut self, line: LogLine) {
        self.byte_count += line_cost(&line.text);
        self.lines.push_back(line);
        while self.byte_count > self.limit.bytes || self.lines.len() > self.limit.lines {
            let Some(oldest_line) = self.lines.pop_front() else { break };
            self.byte_count -= line_cost(&oldest_line.text);
            self.leave_out(1, oldest_line.text.len() as u64);
        }
    }

    /// Counts output that was never made into lines.
    pub(super) fn leave_out(&mut self, lines: u64, bytes: u64) {
        self.dropped_line_count += lines;
        self.dropped_bytes += bytes;
    }

    /// The last lines, and how many before them were dropped.
    pub(super) fn into_parts(self) -> (VecDeque<LogLine>, u64) {
        (self.lines, self.dropped_line_count)
    }

    /// The last lines of a log that has exceeded `limit`. If lines or bytes before them were left out, a line that counts these comes first.
    pub(super) fn into_lines(self, limit: LogLimit, at_ms: i64) -> impl Iterator<Item = LogLine> {
        let (lines, bytes) = (self.dropped_line_count, Bytes(self.dropped_bytes));
        let omission_line = (self.dropped_bytes > 0 || lines > 0).then(|| LogLine {
            at_ms: self.lines.front().map_or(at_ms, |line| line.at_ms),
            level: "warn".to_owned(),
            text: format!(
                "… {lines} lines ({bytes}) are left out here: the log of one attempt has room for {limit}; its end follows"
            ),
        });
        omission_line.into_iter().chain(self.lines)
    }
}
