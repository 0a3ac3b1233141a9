//! Copies the output of a process to the run's log.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use super::lines::Lines;
use super::program::CaptureLimit;
use crate::extract::Log;
use crate::job_error::JobError;
use crate::log::Bytes;

/// Size of one read: large enough that a flood of output needs few calls, small enough that a thousand quiet
/// processes need little memory.
const BUFFER_BYTES: usize = 16 * 1024;

/// After this many bytes in a row, the task yields to others.
const TURN_BYTES: usize = 128 * 1024;

/// How long a process is blocked while its lines cannot be sent. After that, lines are dropped and counted until there
/// is room again.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// How much of the end of the output is kept once the log is full.
const TAIL_BYTES: usize = 64 * 1024;

/// Reads a pipe to its end into the log.
pub(super) async fn copy_to_log(
    pipe: Option<impl AsyncRead + Unpin>,
    level: &'static str,
    log: &Log,
    on_line: impl FnMut(&str),
) {
    let Some(mut pipe) = pipe else { return };
    let (buffer, lines) = (vec![0; BUFFER_BYTES], Lines::default());
    let mut output =
        PipeOutput { log, level, buffer, unprocessed_bytes: 0, lines, tail: None, may_block: true, on_line };
    let mut turn_bytes = 0;
    loop {
        match pipe.read(&mut output.buffer).await {
            Ok(0) => break,
            Ok(length) => {
                output.log_bytes(length).await;
                turn_bytes += length;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read the program's output");
                break;
            }
        }
        if turn_bytes >= TURN_BYTES {
            turn_bytes = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Reads a pipe to its end and returns the output. More output than `limit` allows is an error; the caller then kills
/// the program. Blank lines do not count.
pub(super) async fn capture(pipe: Option<impl AsyncRead + Unpin>, limit: CaptureLimit) -> Result<Vec<u8>, JobError> {
    let Some(mut pipe) = pipe else { return Ok(Vec::new()) };
    let (mut output, mut buffer, mut lines_with_text) = (Vec::new(), vec![0; BUFFER_BYTES], LinesWithText::default());
    loop {
        let length = pipe.read(&mut buffer).await?;
        if length == 0 {
            return Ok(output);
        }
        output.extend_from_slice(&buffer[..length]);
        lines_with_text.add(&buffer[..length]);
        if output.len() > limit.bytes {
            let bytes = Bytes(limit.bytes as u64);
            return Err(JobError::failed(format_args!("it printed more than {bytes} and was killed")));
        }
        if lines_with_text.count > limit.lines {
            let lines = limit.lines;
            return Err(JobError::failed(format_args!(
                "it printed more than the requested {lines} lines and was killed"
            )));
        }
    }
}

/// Counts the lines that are not blank, piece by piece.
#[derive(Debug, Default)]
struct LinesWithText {
    count: usize,
    /// Whether the line that the next piece continues is counted already.
    is_line_counted: bool,
}

impl LinesWithText {
    /// Takes the next piece of the output. A line counts from its first byte that is not white space.
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' {
                self.is_line_counted = false;
            } else if !self.is_line_counted && !byte.is_ascii_whitespace() {
                self.is_line_counted = true;
                self.count += 1;
            }
        }
    }
}

/// The output that was read from a pipe. Its last lines are logged on drop, because the reader may be dropped before
/// the pipe ends: when the program outlives the grace of its run, or when a background process keeps the pipe open.
struct PipeOutput<'a, S: FnMut(&str)> {
    log: &'a Log,
    level: &'static str,
    buffer: Vec<u8>,
    /// How many bytes of `buffer` were read but are not in `lines` or `tail` yet.
    unprocessed_bytes: usize,
    lines: Lines,
    /// The end of the output, from where the log was full; `None` before that.
    tail: Option<OutputTail>,
    /// Whether the process may be blocked until its lines can be sent.
    may_block: bool,
    /// Called with each line that is logged.
    on_line: S,
}

impl<S: FnMut(&str)> PipeOutput<'_, S> {
    /// Logs the first `length` bytes of `self.buffer`, which were just read. While the log still keeps all lines, waits for room first.
    async fn log_bytes(&mut self, length: usize) {
        self.unprocessed_bytes = length;
        if !self.log.buffer().is_head_full() {
            self.wait_for_room().await;
        }
        self.process_buffer();
    }

    fn process_buffer(&mut self) {
        let bytes = &self.buffer[..std::mem::take(&mut self.unprocessed_bytes)];
        if self.log.buffer().is_head_full() {
            // The log keeps only its last lines from here on, so only the end of the output is made into lines.
            let tail = self.tail.get_or_insert_with(|| OutputTail::following(std::mem::take(&mut self.lines)));
            return tail.push(bytes);
        }
        let (log, level, on_line) = (self.log, self.level, &mut self.on_line);
        self.lines.push(bytes, |line| {
            log.log_line(level, line);
            on_line(line);
        });
    }

    /// Blocks a process that prints faster than its lines can be sent, for at most [`BLOCK_TIMEOUT`]. After that, the
    /// process is blocked again only once there has been room.
    async fn wait_for_room(&mut self) {
        if self.log.buffer().has_room() {
            self.may_block = true;
        } else if self.may_block {
            self.may_block = timeout(BLOCK_TIMEOUT, self.log.buffer().wait_for_room()).await.is_ok();
        }
    }
}

impl<S: FnMut(&str)> Drop for PipeOutput<'_, S> {
    fn drop(&mut self) {
        self.process_buffer();
        let (mut lines, tail) = (std::mem::take(&mut self.lines), self.tail.take());
        let (log, level, on_line) = (self.log, self.level, &mut self.on_line);
        let mut emit = |line: &str| {
            log.log_line(level, line);
            on_line(line);
        };
        if let Some(shown_end) = tail.and_then(OutputTail::into_shown_end) {
            log.buffer().count_left_out(shown_end.left_out_line_count, shown_end.left_out_bytes);
            lines.push(&shown_end.bytes, &mut emit);
        }
        lines.finish(emit);
    }
}

/// The last bytes of a stream, and the number of lines and bytes dropped before them.
#[derive(Default)]
struct OutputTail {
    /// Whether the stream begins with the rest of a line that was logged as cut.
    begins_in_line: bool,
    older_part: Vec<u8>,
    newer_part: Vec<u8>,
    dropped_line_count: u64,
    dropped_bytes: u64,
}

struct OutputEnd {
    bytes: Vec<u8>,
    left_out_line_count: u64,
    left_out_bytes: u64,
}

impl OutputTail {
    /// The tail of a stream whose output so far is in `lines`. It begins with the incomplete line, because that line
    /// was not logged.
    fn following(lines: Lines) -> Self {
        match lines.into_partial_line() {
            Some(partial_line) => Self { newer_part: partial_line, ..Self::default() },
            None => Self { begins_in_line: true, ..Self::default() },
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        if self.newer_part.len() + bytes.len() > TAIL_BYTES {
            let dropped_part = std::mem::replace(&mut self.older_part, std::mem::take(&mut self.newer_part));
            self.dropped_line_count += count_lines(&dropped_part);
            self.dropped_bytes += dropped_part.len() as u64;
            // The freed buffer is reused.
            self.newer_part = dropped_part;
            self.newer_part.clear();
        }
        self.newer_part.extend_from_slice(bytes);
    }

    /// The bytes to show; they begin with a whole line, unless a single line is longer than the tail. `None` if there
    /// are none.
    fn into_shown_end(self) -> Option<OutputEnd> {
        let Self { begins_in_line, mut older_part, newer_part, dropped_line_count, dropped_bytes } = self;
        older_part.extend_from_slice(&newer_part);
        if older_part.is_empty() {
            return None;
        }
        let second_line_start =
            older_part.iter().position(|byte| *byte == b'\n').map_or(older_part.len(), |end| end + 1);
        let is_complete = dropped_bytes == 0 && !begins_in_line;
        let cut_position = if is_complete {
            0
        } else if second_line_start >= older_part.len() {
            // A single endless line has no beginning to cut at, so its end is shown.
            older_part.len().saturating_sub(TAIL_BYTES / 8)
        } else {
            second_line_start
        };
        let bytes = older_part.split_off(cut_position);
        Some(OutputEnd {
            bytes,
            left_out_line_count: dropped_line_count + count_lines(&older_part),
            left_out_bytes: dropped_bytes + older_part.len() as u64,
        })
    }
}

fn count_lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use rondel_proto::v1::Trigger;
    use tokio::io::AsyncWriteExt as _;

    use super::*;
    use crate::log::{LINE_BYTES_MAX as LOGGED_LINE_BYTES_MAX, LogLimit};
    use crate::masks::Masks;
    use crate::run::RunContext;
    use crate::setup::{Setup, States, Timing};
    use crate::table::TableLog as _;

    /// Drops the reader of a pipe that stays open. Returns the lines of the log, and the last line that the reader has
    /// logged.
    async fn log_of_dropped_reader(limit: LogLimit, text: &str) -> (Vec<String>, String) {
        let setup = Setup { log_limit: limit, ..Setup::new(States::default(), Timing::default()) };
        let run = RunContext::new(&std::sync::Arc::new(setup), Trigger::default(), 0);
        let (log, mut last) = (Log::of(&run), String::new());
        let (mut program, pipe) = tokio::io::duplex(text.len());
        program.write_all(text.as_bytes()).await.unwrap();
        let mut copy = Box::pin(copy_to_log(Some(pipe), "stdout", &log, |line| line.clone_into(&mut last)));
        assert!(copy.as_mut().now_or_never().is_none());
        drop(copy);
        run.log().close();
        (run.log().lines().into_iter().map(|line| line.text).collect(), last)
    }

    #[tokio::test]
    async fn the_last_lines_are_logged_although_the_pipe_stays_open() {
        let (lines, last) = log_of_dropped_reader(LogLimit::default(), "first\nlast").await;
        assert_eq!((lines, last.as_str()), (vec!["first".to_owned(), "last".to_owned()], "last"));

        let text: String = (0..10_000).map(|number| format!("line {number}\n")).collect();
        let (lines, last) = log_of_dropped_reader(LogLimit { lines: 40, ..LogLimit::default() }, &text).await;
        assert_eq!((lines.last().map(String::as_str), last.as_str()), (Some("line 9999"), "line 9999"));
    }

    /// Java states the error in the first line on standard error.
    #[tokio::test]
    async fn a_short_output_is_logged_completely_although_another_one_has_filled_the_log() {
        let limit = LogLimit { lines: 40, ..LogLimit::default() };
        let setup = Setup { log_limit: limit, ..Setup::new(States::default(), Timing::default()) };
        let run = RunContext::new(&std::sync::Arc::new(setup), Trigger::default(), 0);
        let (log, mut found) = (Log::of(&run), Vec::new());
        let (mut program, pipe) = tokio::io::duplex(1_024);
        let mut copy = Box::pin(copy_to_log(Some(pipe), "stderr", &log, |line| found.push(line.to_owned())));
        program.write_all(b"java.lang.Illegal").await.unwrap();
        assert!(copy.as_mut().now_or_never().is_none());
        let flood: String = (0..100).map(|number| format!("line {number}\n")).collect();
        copy_to_log(Some(flood.as_bytes()), "stdout", &log, |_| {}).await;
        program.write_all(b"StateException: no database\n\tat Main.main(Main.java:5)\n").await.unwrap();
        drop(program);
        copy.await;
        let expected = ["java.lang.IllegalStateException: no database", "\tat Main.main(Main.java:5)"];
        assert_eq!(found, expected);
        run.log().close();
        let logged: Vec<String> = run.log().lines().into_iter().map(|line| line.text).collect();
        assert_eq!(logged[logged.len() - 2..], expected, "{logged:?}");
    }

    #[tokio::test]
    async fn a_secret_at_the_cut_of_a_long_line_is_hidden_completely() {
        let setup = Setup::new(States::default(), Timing::default());
        let run = RunContext::new(&std::sync::Arc::new(setup), Trigger::default(), 0);
        let secret = "opensesame".repeat(6);
        run.log().set_masks(Masks::new([secret.clone()]));
        let log = Log::of(&run);
        for before in (LOGGED_LINE_BYTES_MAX - 100..LOGGED_LINE_BYTES_MAX).step_by(3) {
            let line = format!("{}{secret}{}\n", "x".repeat(before), "x".repeat(100));
            copy_to_log(Some(line.as_bytes()), "stdout", &log, |_| {}).await;
        }
        for line in run.log().lines() {
            assert!(line.text.ends_with("[line cut]") && !line.text.contains("open"), "{}", line.text);
        }
    }

    #[tokio::test]
    async fn blank_lines_do_not_count_towards_the_limit_of_lines() {
        let limit = CaptureLimit { bytes: 100, lines: 2 };
        for text in ["", "\n\n\n", "a\n\n \t\r\nb\n\n", "\n\na\r\n\nb"] {
            assert_eq!(capture(Some(text.as_bytes()), limit).await.unwrap(), text.as_bytes(), "{text:?}");
        }
        for text in ["a\nb\nc\n", "a\n\nb\n c"] {
            assert!(capture(Some(text.as_bytes()), limit).await.is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_line_that_arrives_in_pieces_counts_once() {
        let mut lines_with_text = LinesWithText::default();
        for piece in ["a", "b\n", " ", "\n ", "c", "\n"] {
            lines_with_text.add(piece.as_bytes());
        }
        assert_eq!(lines_with_text.count, 2);
    }

    #[test]
    fn the_tail_keeps_the_last_lines_and_counts_the_others() {
        let mut tail = OutputTail::default();
        let count = 100_000;
        for number in 0..count {
            tail.push(format!("line {number}\n").as_bytes());
        }
        let kept_tail = tail.into_shown_end().unwrap();
        let text = String::from_utf8(kept_tail.bytes).unwrap();
        let first: u64 = text.lines().next().unwrap().strip_prefix("line ").unwrap().parse().unwrap();
        assert_eq!(first, kept_tail.left_out_line_count);
        assert!(text.ends_with(&format!("line {}\n", count - 1)) && text.len() <= 2 * TAIL_BYTES);
        let written: usize = (0..count).map(|number| format!("line {number}\n").len()).sum();
        assert_eq!(kept_tail.left_out_bytes + text.len() as u64, written as u64);
    }

    #[test]
    fn of_a_line_without_end_the_end_is_kept() {
        let mut tail = OutputTail::default();
        for _ in 0..100 {
            tail.push(&vec![b'x'; BUFFER_BYTES]);
        }
        tail.push(b"END");
        let kept_tail = tail.into_shown_end().unwrap();
        assert!(kept_tail.bytes.ends_with(b"xEND") && kept_tail.bytes.len() <= TAIL_BYTES);
        assert_eq!(usize::try_from(kept_tail.left_out_bytes).unwrap() + kept_tail.bytes.len(), 100 * BUFFER_BYTES + 3);
        assert!(OutputTail::default().into_shown_end().is_none());
    }
}
