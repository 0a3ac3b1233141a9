//! Converts pages of an executor's log to chunks of the engine's.

use rondel_proto::v1::{LogChunk, LogLine};
use rondel_store::logs::{ChunkSize, NUMBERED_BY_LINE};
use rondel_store::xxl::XxlRun;

/// Maximum number of lines per chunk.
const LINE_COUNT_MAX: usize = 500;
/// Maximum size of a chunk's text, in bytes.
const TEXT_LEN_MAX: usize = 256 * 1024;
/// Maximum length of a line, in bytes.
const LINE_LEN_MAX: usize = 16 * 1024;
/// The first sequence number for the lines of an end's message: higher than that of any line of the log.
const MESSAGE_SEQUENCE: i64 = 1 << 42;
/// A line break in XXL-JOB's own messages: its console shows logs as HTML. The line stays one line, so that its number stays the same.
const BREAK: &str = "<br>";
const LEVEL: &str = "stdout";
const MESSAGE_LEVEL: &str = "error";

/// Packs lines, the first of which has the number `first`, into chunks. The sequence number of a chunk is that of its first line, so that a
/// chunk that is sent twice is stored once.
pub(crate) fn chunks(row: &XxlRun, first: i64, lines: Vec<String>, at_ms: i64) -> Vec<LogChunk> {
    let lines = lines.into_iter().map(|line| if line.contains(BREAK) { line.replace(BREAK, " ") } else { line });
    pack(row, (NUMBERED_BY_LINE + first, LEVEL), lines.collect(), at_ms)
}

/// The number of the line that follows the stored ones; `sizes` are those of the stored chunks.
pub(crate) fn next_line(sizes: &[ChunkSize]) -> i64 {
    let last = sizes.iter().rfind(|size| (NUMBERED_BY_LINE..MESSAGE_SEQUENCE).contains(&size.sequence));
    last.map_or(1, |size| size.sequence - NUMBERED_BY_LINE + i64::try_from(size.line_count).unwrap_or_default())
}

/// Packs the lines of a message that does not fit into a result into chunks.
pub(crate) fn message_chunks(row: &XxlRun, lines: Vec<String>, at_ms: i64) -> Vec<LogChunk> {
    pack(row, (MESSAGE_SEQUENCE, MESSAGE_LEVEL), lines, at_ms)
}

fn pack(row: &XxlRun, (first, level): (i64, &str), lines: Vec<String>, at_ms: i64) -> Vec<LogChunk> {
    let mut chunks: Vec<LogChunk> = Vec::new();
    let mut len = 0;
    for (sequence, mut text) in (first..).zip(lines) {
        if text.len() > LINE_LEN_MAX {
            text.truncate(text.floor_char_boundary(LINE_LEN_MAX));
            text.push('…');
        }
        len += text.len();
        let line = LogLine { at_ms, level: level.to_owned(), text };
        match chunks.last_mut().filter(|chunk| chunk.lines.len() < LINE_COUNT_MAX && len <= TEXT_LEN_MAX) {
            Some(chunk) => chunk.lines.push(line),
            None => {
                len = line.text.len();
                let (run_id, attempt) = (row.run.get(), row.attempt);
                chunks.push(LogChunk { run_id, attempt, sequence, lines: vec![line], dropped: 0 });
            }
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use rondel_core::{AppId, ExecutorId, JobId, NodeId, RunId, Timestamp};
    use rondel_store::xxl::XxlRunState;

    use super::*;

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
        let size = |sequence, line_count| ChunkSize { sequence, line_count };
        let by_line = |line| NUMBERED_BY_LINE + line;
        let sizes = [size(by_line(1), 500), size(by_line(501), 20), size(MESSAGE_SEQUENCE, 3)];
        assert_eq!((next_line(&sizes), next_line(&sizes[..1]), next_line(&[])), (521, 501, 1));
    }
}
