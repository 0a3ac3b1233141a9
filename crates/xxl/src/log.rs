//! Converts pages of an executor's log to chunks of the engine's log.

use rondel_core::RunId;
use rondel_proto::v1::{LogChunk, LogLine};
use rondel_store::logs::{ChunkSize, NUMBERED_BY_LINE};
use rondel_store::xxl::XxlRun;
use rondel_store::{Store, StoreError};

use crate::client::CallError;
use crate::wire::{self, Answer, LogPage};

/// Maximum number of lines per chunk.
const LINE_COUNT_MAX: usize = 500;
/// Maximum size of a chunk's text, in bytes.
const TEXT_LEN_MAX: usize = 256 * 1024;
/// Maximum length of a line, in bytes.
const LINE_LEN_MAX: usize = 16 * 1024;
/// Maximum number of chunks of an attempt's log whose sizes are read.
const CHUNK_COUNT_MAX: u32 = 10_000;
/// The first sequence number for the lines of an end's message: higher than that of any line of the log.
const END_MESSAGE_SEQUENCE: i64 = 1 << 42;
/// A line break in XXL-JOB's own messages, which its console shows as HTML. A line with such breaks stays one line, so that the lines keep
/// their numbers.
const LINE_BREAK: &str = "<br>";
const OUTPUT_LEVEL: &str = "stdout";
/// The beginning of the line that stands for the rest of a log; readers of logs recognise a gap by it.
const REST_LINE_START: &str = "… the rest of this log";
const REST_LEVEL: &str = "warn";
const END_MESSAGE_LEVEL: &str = "error";

/// How a read of a log ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    /// The executor has no further lines, or no logs at all.
    Whole,
    /// The maximum number of pages was read.
    Paused,
    /// The log is too long to be read further.
    Cut,
    /// The read failed, for this reason.
    Failed(String),
}

/// Parses the answer to a request for the lines from `first_line` on. Returns the page, and how the read ends if this is
/// its last page.
pub(crate) fn parse_page(answer: Result<Answer, CallError>, first_line: i64) -> (LogPage, Option<ReadEnd>) {
    let empty_page = LogPage { lines: Vec::new(), next_line: first_line };
    match answer {
        Ok(answer) => {
            let page = wire::log_page(&answer, first_line);
            let end = (page.next_line <= first_line).then_some(ReadEnd::Whole);
            (page, end)
        }
        Err(CallError::TooLong(message)) => {
            let message = format!("{REST_LINE_START} is too long to be read: it is on the executor. {message}");
            (LogPage { lines: vec![message], next_line: first_line + 1 }, Some(ReadEnd::Cut))
        }
        // An executor that refuses the request has no logs to read.
        Err(CallError::Refused(_)) => (empty_page, Some(ReadEnd::Whole)),
        Err(CallError::NotSent(message) | CallError::TooLate(message) | CallError::Unclear(message)) => {
            (empty_page, Some(ReadEnd::Failed(message)))
        }
    }
}

/// The line that replaces the rest of a log, if the rest could not be read.
pub(crate) fn unread_rest_line(reason: Option<&str>) -> String {
    match reason {
        Some(reason) => format!("{REST_LINE_START} could not be read after the end of the run: {reason}"),
        None => format!("{REST_LINE_START} was not read in time after the end of the run: it is on the executor"),
    }
}

/// Packs lines, the first of which has the number `first_line`, into chunks. The sequence number of a chunk is that of its first line, so that a
/// chunk that is sent twice is stored once.
pub(crate) fn chunks(row: &XxlRun, first_line: i64, lines: Vec<String>, at_ms: i64) -> Vec<LogChunk> {
    let lines =
        lines.into_iter().map(|line| if line.contains(LINE_BREAK) { line.replace(LINE_BREAK, " ") } else { line });
    pack(row, (NUMBERED_BY_LINE + first_line, OUTPUT_LEVEL), lines.collect(), at_ms)
}

/// The number of the line that follows the stored ones of an attempt's log.
pub(crate) async fn stored_until(store: &dyn Store, run: RunId, attempt: i32) -> Result<i64, StoreError> {
    Ok(next_line(&store.log_sizes(run, attempt, NUMBERED_BY_LINE, CHUNK_COUNT_MAX).await?))
}

/// The number of the line that follows the stored ones; `sizes` are those of the stored chunks.
fn next_line(sizes: &[ChunkSize]) -> i64 {
    let last_size = sizes.iter().rfind(|size| (NUMBERED_BY_LINE..END_MESSAGE_SEQUENCE).contains(&size.sequence));
    last_size.map_or(1, |size| size.sequence - NUMBERED_BY_LINE + i64::try_from(size.line_count).unwrap_or_default())
}

/// Packs the lines of a message that does not fit into a result. Their level is `error` unless the run succeeded.
pub(crate) fn message_chunks(row: &XxlRun, lines: Vec<String>, at_ms: i64) -> Vec<LogChunk> {
    let level = if row.code == Some(wire::CODE_SUCCESS) { OUTPUT_LEVEL } else { END_MESSAGE_LEVEL };
    pack(row, (END_MESSAGE_SEQUENCE, level), lines, at_ms)
}

fn pack(row: &XxlRun, (first_sequence, level): (i64, &str), lines: Vec<String>, at_ms: i64) -> Vec<LogChunk> {
    let mut chunks: Vec<LogChunk> = Vec::new();
    let mut chunk_len = 0;
    for (sequence, mut text) in (first_sequence..).zip(lines) {
        if text.len() > LINE_LEN_MAX {
            text.truncate(text.floor_char_boundary(LINE_LEN_MAX));
            text.push('…');
        }
        chunk_len += text.len();
        let level = if text.starts_with(REST_LINE_START) { REST_LEVEL } else { level };
        let line = LogLine { at_ms, level: level.to_owned(), text };
        match chunks.last_mut().filter(|chunk| chunk.lines.len() < LINE_COUNT_MAX && chunk_len <= TEXT_LEN_MAX) {
            Some(chunk) => chunk.lines.push(line),
            None => {
                chunk_len = line.text.len();
                let (run_id, attempt) = (row.run.get(), row.attempt);
                chunks.push(LogChunk { run_id, attempt, sequence, lines: vec![line], dropped: 0 });
            }
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use rondel_core::log_line::{MissingLines, missing_lines};
    use rondel_core::{AppId, ExecutorId, JobId, NodeId, Timestamp};
    use rondel_store::xxl::XxlRunState;

    use super::*;

    #[test]
    fn a_read_ends_with_the_log_or_fails() {
        let answer = |body: &str| wire::executor_answer(body.as_bytes()).map_err(CallError::Unclear);
        let read = |text: &str, next_line| LogPage { lines: vec![text.to_owned()], next_line };
        let nothing = LogPage { lines: Vec::new(), next_line: 3 };
        let more = r#"{"code":200,"data":{"fromLineNum":3,"toLineNum":3,"logContent":"three"}}"#;
        assert_eq!(parse_page(answer(more), 3), (read("three", 4), None));
        for (asked, end) in [
            (answer(r#"{"code":200,"data":{"fromLineNum":3,"toLineNum":0,"logContent":""}}"#), ReadEnd::Whole),
            (Err(CallError::Refused("404".to_owned())), ReadEnd::Whole),
            (Err(CallError::NotSent("refused".to_owned())), ReadEnd::Failed("refused".to_owned())),
            (Err(CallError::Unclear("no answer".to_owned())), ReadEnd::Failed("no answer".to_owned())),
        ] {
            assert_eq!(parse_page(asked, 3), (nothing.clone(), Some(end)));
        }
        let (cut, end) = parse_page(Err(CallError::TooLong("9 MiB".to_owned())), 3);
        assert_eq!((cut.lines.len(), cut.next_line, end), (1, 4, Some(ReadEnd::Cut)));
    }

    #[test]
    fn chunks_are_bounded_and_numbered_by_their_first_lines() {
        let row = XxlRun {
            log_id: 1,
            run: RunId::new(5),
            attempt: 1,
            job: JobId::new(2),
            number: 1,
            executor: ExecutorId::new(3),
            app: AppId::new(4),
            node: NodeId::new(5),
            sent_at: Timestamp::EPOCH,
            state: XxlRunState::Open,
            code: None,
            message: None,
            reported_at: None,
            log_line: 1,
        };
        let short: Vec<String> = (0..1_100).map(|number| number.to_string()).collect();
        let numbers = |chunks: &[LogChunk]| {
            chunks.iter().map(|one| (one.sequence - NUMBERED_BY_LINE, one.lines.len())).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&chunks(&row, 7, short, 0)), [(7, 500), (507, 500), (1_007, 100)]);
        let long = vec!["ä".repeat(20_000); 40];
        let packed = chunks(&row, 1, long, 0);
        assert!(packed.iter().flat_map(|chunk| &chunk.lines).all(|line| line.text.len() <= LINE_LEN_MAX + 3));
        assert_eq!(numbers(&packed), [(1, 15), (16, 15), (31, 10)]);
        assert!(chunks(&row, 1, Vec::new(), 0).is_empty());
        let marked = chunks(&row, 1, vec!["[12] <br>----- start -----<br>----- Param:".to_owned()], 0);
        assert_eq!(marked[0].lines[0].text, "[12]  ----- start ----- ----- Param:");
        for text in [
            unread_rest_line(None),
            unread_rest_line(Some("no answer")),
            parse_page(Err(CallError::TooLong(String::new())), 1).0.lines.remove(0),
        ] {
            let line = &chunks(&row, 1, vec![text], 0)[0].lines[0];
            assert_eq!(missing_lines(&line.level, &line.text), Some(MissingLines::Part), "{line:?}");
        }
        for (code, level) in [(Some(wire::CODE_SUCCESS), OUTPUT_LEVEL), (Some(wire::CODE_FAILED), END_MESSAGE_LEVEL)] {
            let ended = XxlRun { code, ..row.clone() };
            assert_eq!(message_chunks(&ended, vec!["one".to_owned()], 0)[0].lines[0].level, level, "{code:?}");
        }
        let size = |sequence, line_count| ChunkSize { sequence, line_count };
        let by_line = |line| NUMBERED_BY_LINE + line;
        let sizes = [size(by_line(1), 500), size(by_line(501), 20), size(END_MESSAGE_SEQUENCE, 3)];
        assert_eq!((next_line(&sizes), next_line(&sizes[..1]), next_line(&[])), (521, 501, 1));
    }
}
