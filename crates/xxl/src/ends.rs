//! Converts the stored end of an attempt to the result for the engine.

use rondel_core::Timestamp;
use rondel_proto::v1;
use rondel_proto::v1::result::Status;
use rondel_store::xxl::{XXL_STOPPED, XxlRun, XxlRunState};

use crate::wire::{CODE_FAILED, CODE_SUCCESS, CODE_TIMED_OUT};

/// The executor stopped the attempt on request.
pub(crate) const CODE_KILLED: i32 = XXL_STOPPED;
/// The executor has no run of the job, and no callback came: the outcome of the attempt is unknown.
pub(crate) const CODE_UNKNOWN: i32 = -2;
/// As [`CODE_UNKNOWN`], and it is also unknown whether the attempt ever reached the executor.
pub(crate) const CODE_LOST: i32 = -3;
/// Maximum length of a result's message, in characters.
const MESSAGE_LEN_MAX: usize = 1_000;

/// The result of an attempt whose end is known.
pub(crate) fn result(row: &XxlRun, started_at_ms: i64) -> v1::Result {
    let code = row.code.unwrap_or(CODE_FAILED);
    let status = match code {
        CODE_SUCCESS => Status::Succeeded,
        CODE_TIMED_OUT => Status::TimedOut,
        CODE_KILLED => Status::Cancelled,
        _ => Status::Failed,
    };
    let finished_at_ms = row.reported_at.unwrap_or(row.sent_at).as_millis();
    let unreported_ms = finished_at_ms.saturating_sub(row.sent_at.as_millis()).max(1);
    v1::Result {
        run_id: row.run.get(),
        attempt: row.attempt,
        status: status.into(),
        message: message(code, row.message.as_deref().unwrap_or_default()),
        result: String::new(),
        retryable: code != CODE_UNKNOWN,
        started_at_ms,
        finished_at_ms,
        job_id: row.job.get(),
        silent_ms: 0,
        unreported_ms: if matches!(code, CODE_UNKNOWN | CODE_LOST) { unreported_ms } else { 0 },
        unfinished: false,
        shutting_down: false,
    }
}

/// Whether the executor reported a failure that has no stored verdict.
pub(crate) fn is_failure(row: &XxlRun) -> bool {
    row.state == XxlRunState::Reported && row.code.is_some_and(|code| code >= 0 && code != CODE_SUCCESS)
}

/// Returns the attempt as open if its failure was reported after this instant, else as it is.
pub(crate) fn without_new_failure(row: XxlRun, new_since: Timestamp) -> XxlRun {
    match row.reported_at {
        Some(at) if at > new_since && is_failure(&row) => {
            XxlRun { state: XxlRunState::Open, code: None, message: None, reported_at: None, ..row }
        }
        _ => row,
    }
}

/// Returns the attempt as open if its success was reported after this instant, else as it is.
pub(crate) fn without_new_success(row: XxlRun, new_since: Timestamp) -> XxlRun {
    match row.reported_at {
        Some(at) if at > new_since && row.state == XxlRunState::Reported && row.code == Some(CODE_SUCCESS) => {
            XxlRun { state: XxlRunState::Open, code: None, message: None, reported_at: None, ..row }
        }
        _ => row,
    }
}

/// The exception that wraps an exception of a Java handler. It has no message of its own.
const WRAPPER_EXCEPTION: &str = "java.lang.reflect.InvocationTargetException";
const CAUSED_BY: &str = "Caused by: ";

/// The first line of the message, and the root cause of a Java stack trace, shortened together. The log has the whole text.
fn message(code: i32, text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first_line = lines.next().unwrap_or_default();
    let mut causes = lines.filter_map(|line| line.strip_prefix(CAUSED_BY));
    let first_line = if first_line == WRAPPER_EXCEPTION { causes.next().unwrap_or(first_line) } else { first_line };
    let line = match causes.next_back() {
        Some(root_cause) => format!("{first_line}; caused by {root_cause}"),
        None => first_line.to_owned(),
    };
    let line: String = line.chars().take(MESSAGE_LEN_MAX).collect();
    match code {
        _ if !line.is_empty() => line,
        code if code > 0 && !matches!(code, CODE_SUCCESS | CODE_TIMED_OUT | CODE_FAILED) => format!("code {code}"),
        _ => line,
    }
}

/// All lines of a message that does not fit into a result; empty if the message fits.
pub(crate) fn further_lines(row: &XxlRun) -> Vec<String> {
    let text = row.message.as_deref().unwrap_or_default().trim();
    if !text.contains('\n') && text.chars().count() <= MESSAGE_LEN_MAX {
        return Vec::new();
    }
    text.lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use rondel_core::{AppId, ExecutorId, JobId, NodeId, RunId};

    use super::*;

    fn row(code: i32, message: Option<&str>) -> XxlRun {
        XxlRun {
            log_id: 1,
            run: RunId::new(1),
            attempt: 2,
            job: JobId::new(2),
            number: 1,
            executor: ExecutorId::new(3),
            app: AppId::new(4),
            node: NodeId::new(5),
            sent_at: Timestamp::from_secs(10),
            state: XxlRunState::Reported,
            code: Some(code),
            message: message.map(str::to_owned),
            reported_at: Some(Timestamp::from_secs(70)),
            log_line: 1,
        }
    }

    const INVOKED: &str = "java.lang.reflect.InvocationTargetException\n\tat a.B.c(B.java:1)\n\
        Caused by: java.lang.IllegalStateException: no order\n\tat d\n\t... 7 more";
    const NESTED: &str =
        "a.B: batch 5\n\tat a\nCaused by: c.D: read\n\tat b\nCaused by: java.io.IOException: reset\n\tat c";

    #[test]
    fn codes_become_verdicts() {
        for (code, message, status, shown, retryable, unreported_ms) in [
            (200, Some("done"), Status::Succeeded, "done", true, 0),
            (200, None, Status::Succeeded, "", true, 0),
            (500, Some("\n java.lang.Error: x\n\tat a"), Status::Failed, "java.lang.Error: x", true, 0),
            (500, Some(INVOKED), Status::Failed, "java.lang.IllegalStateException: no order", true, 0),
            (500, Some(NESTED), Status::Failed, "a.B: batch 5; caused by java.io.IOException: reset", true, 0),
            (502, Some("job execute timeout "), Status::TimedOut, "job execute timeout", true, 0),
            (201, None, Status::Failed, "code 201", true, 0),
            (CODE_KILLED, Some("cancelled by ann"), Status::Cancelled, "cancelled by ann", true, 0),
            (CODE_UNKNOWN, Some("no callback"), Status::Failed, "no callback", false, 60_000),
            (CODE_LOST, Some("no callback"), Status::Failed, "no callback", true, 60_000),
        ] {
            let result = result(&row(code, message), 11_000);
            let found = (result.status(), result.message.as_str(), result.retryable, result.unreported_ms);
            assert_eq!(found, (status, shown, retryable, unreported_ms), "{code}");
        }
        assert_eq!(further_lines(&row(500, Some("one\ntwo"))), ["one", "two"]);
        assert!(further_lines(&row(200, Some("done"))).is_empty());
    }

    #[test]
    fn only_a_new_success_is_left_out() {
        let left_out = |code, since| {
            let row = without_new_success(row(code, Some("x")), Timestamp::from_secs(since));
            row.state == XxlRunState::Open && row.code.is_none() && row.message.is_none()
        };
        for (code, since, expected) in [(200, 69, true), (200, 70, false), (500, 69, false), (CODE_KILLED, 69, false)] {
            assert_eq!(left_out(code, since), expected, "{code} since {since}");
        }
        let settled = XxlRun { state: XxlRunState::Settled, ..row(200, None) };
        assert_eq!(without_new_success(settled.clone(), Timestamp::EPOCH), settled);
    }

    #[test]
    fn only_a_new_failure_is_left_out() {
        let left_out = |code, since| {
            let row = without_new_failure(row(code, Some("x")), Timestamp::from_secs(since));
            row.state == XxlRunState::Open && row.code.is_none() && row.message.is_none()
        };
        for (code, since, expected) in [
            (500, 69, true),
            (502, 69, true),
            (500, 70, false),
            (200, 69, false),
            (CODE_KILLED, 69, false),
            (CODE_LOST, 69, false),
        ] {
            assert_eq!(left_out(code, since), expected, "{code} since {since}");
        }
    }
}
