//! Limits on the messages of an executor after its hello. Correct executors stay far below these limits: the SDK sends messages of at most 500
//! parts and about 1 MiB.

use rondel_proto::v1::executor_message::Body;
use rondel_proto::{
    ATTEMPT_COUNT_MAX, CHUNK_BYTES_MAX, ITEM_COUNT_MAX, LINE_COUNT_MAX, PROBED_COUNT_MAX, encoded_len, v1,
};
use tonic::{Code, Status};

/// Memory overhead of a message part in addition to its text.
pub(super) const PART_OVERHEAD: usize = 128;

/// Rejects a message with too many parts, or with a part that is too large.
pub(super) fn check(body: &Body) -> Result<(), Status> {
    match body {
        Body::Replies(replies) => check_item_count("replies", replies.replies.len(), ITEM_COUNT_MAX),
        Body::Results(results) => check_item_count("results", results.results.len(), ITEM_COUNT_MAX),
        Body::Logs(logs) => check_logs(logs),
        Body::ProbeReplies(replies) => check_item_count("free_job_ids", replies.free_job_ids.len(), PROBED_COUNT_MAX),
        Body::FenceReply(reply) => check_attempts(&reply.held, &reply.finished),
        Body::PumpReports(reports) => {
            let items = reports.reports.iter().map(|report| report.items.len() + 1).sum();
            check_item_count("reports and their items", items, ITEM_COUNT_MAX)
        }
        Body::Hello(_) | Body::Heartbeat(_) | Body::Draining(_) | Body::Goodbye(_) | Body::ScriptRequest(_) => Ok(()),
    }
}

/// Rejects a list of attempts that is too long.
pub(super) fn check_attempts(held_runs: &[v1::RunRef], finished_runs: &[v1::RunRef]) -> Result<(), Status> {
    check_item_count("held and finished", held_runs.len() + finished_runs.len(), ATTEMPT_COUNT_MAX)
}

fn check_logs(logs: &v1::Logs) -> Result<(), Status> {
    check_item_count("chunks", logs.chunks.len(), ITEM_COUNT_MAX)?;
    check_item_count("lines", logs.chunks.iter().map(|chunk| chunk.lines.len()).sum(), LINE_COUNT_MAX)?;
    match logs.chunks.iter().map(encoded_len).max() {
        Some(bytes) if bytes > CHUNK_BYTES_MAX => {
            Err(refusal(&format!("chunks: one has {bytes} bytes; at most {CHUNK_BYTES_MAX} are accepted")))
        }
        _ => Ok(()),
    }
}

fn check_item_count(field: &str, count: usize, max: usize) -> Result<(), Status> {
    if count <= max {
        return Ok(());
    }
    Err(refusal(&format!("{field}: there are {count}; at most {max} are accepted")))
}

fn refusal(message: &str) -> Status {
    Status::invalid_argument(message)
}

/// The status sent to the executor for a message that could not be decoded; `None` if its stream broke.
pub(super) fn undecodable_status(status: &Status) -> Option<Status> {
    let cause = status.message().trim_start_matches("Error, ");
    (status.code() == Code::OutOfRange).then(|| refusal(&format!("message: {cause}")))
}

/// Memory that a message takes until it is processed, in KiB: its bytes, and the overhead of each part.
pub(super) fn charge_kib(bytes: usize, part_count: usize) -> u32 {
    u32::try_from((bytes + part_count * PART_OVERHEAD) / 1024 + 1).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use rondel_proto::MESSAGE_BYTES_MAX;

    use super::*;

    fn refused(body: &Body) -> String {
        check(body).err().map(|status| status.message().to_owned()).unwrap_or_default()
    }

    #[track_caller]
    fn check_count(field: &str, max: usize, body: impl Fn(usize) -> Body) {
        assert_eq!(refused(&body(max)), "", "{field}");
        assert_eq!(refused(&body(max + 1)), format!("{field}: there are {}; at most {max} are accepted", max + 1));
    }

    fn chunk(count: usize) -> v1::LogChunk {
        v1::LogChunk { lines: vec![v1::LogLine::default(); count], ..v1::LogChunk::default() }
    }

    #[test]
    fn each_list_has_a_bound_that_the_refusal_names() {
        check_count("replies", ITEM_COUNT_MAX, |n| {
            Body::Replies(v1::Replies { replies: vec![v1::Reply::default(); n] })
        });
        check_count("results", ITEM_COUNT_MAX, |n| {
            Body::Results(v1::Results { results: vec![v1::Result::default(); n] })
        });
        check_count("chunks", ITEM_COUNT_MAX, |n| Body::Logs(v1::Logs { chunks: vec![chunk(0); n] }));
        check_count("lines", LINE_COUNT_MAX, |n| Body::Logs(v1::Logs { chunks: vec![chunk(1), chunk(n - 1)] }));
        check_count("free_job_ids", PROBED_COUNT_MAX, |n| {
            Body::ProbeReplies(v1::ProbeReplies { probe_id: 1, free_job_ids: vec![1; n] })
        });
        check_count("held and finished", ATTEMPT_COUNT_MAX, |n| {
            let (held, finished) = (vec![v1::RunRef::default(); n - 7], vec![v1::RunRef::default(); 7]);
            Body::FenceReply(v1::FenceReply { held, finished, ..v1::FenceReply::default() })
        });
    }

    #[test]
    fn the_size_of_a_log_chunk_is_bounded() {
        let of = |bytes: usize| {
            let line = v1::LogLine { text: "x".repeat(bytes), ..v1::LogLine::default() };
            v1::LogChunk { lines: vec![line], ..v1::LogChunk::default() }
        };
        let beside = encoded_len(&of(CHUNK_BYTES_MAX - 100)) - (CHUNK_BYTES_MAX - 100);
        let body = |bytes| Body::Logs(v1::Logs { chunks: vec![chunk(1), of(bytes - beside)] });
        assert_eq!(refused(&body(CHUNK_BYTES_MAX)), "");
        assert_eq!(refused(&body(CHUNK_BYTES_MAX + 1)), "chunks: one has 262145 bytes; at most 262144 are accepted");
    }

    #[test]
    fn a_message_that_is_too_large_is_refused_by_its_size_and_the_bound() {
        let limit = MESSAGE_BYTES_MAX;
        let found =
            format!("Error, decoded message length too large: found 3000000 bytes, the limit is: {limit} bytes");
        let refused = undecodable_status(&Status::out_of_range(found)).unwrap();
        let expected = "message: decoded message length too large: found 3000000 bytes, the limit is: 2097152 bytes";
        assert_eq!(refused.message(), expected);
        assert!(undecodable_status(&Status::unavailable("broken pipe")).is_none());
    }

    #[test]
    fn parts_without_a_text_are_charged_too() {
        assert_eq!(charge_kib(0, 0), 1);
        assert_eq!(charge_kib(2_000, 1_000), 127);
    }
}
