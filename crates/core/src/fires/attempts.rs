//! Sentences about two kinds of runs: runs whose last attempt never began although an earlier one did, and runs that a caller asked to
//! cancel but whose end no executor reported.

use super::bilingual::{Bilingual, bilingual, executor_clause};
use crate::reason::ReasonDetail;
use crate::reason::message::translate;
use crate::reason::unknown::unconfirmed_cancel_text;
use crate::reason::words::reason_text;
use crate::run::{Attempt, Run};
use crate::status::RunStatus;
use crate::time::Timestamp;
use crate::words::Lang;

/// The last earlier attempt of this run that began, or may have begun.
pub(super) fn last_begun_attempt<'a>(attempts: &'a [Attempt], row: &Run) -> Option<&'a Attempt> {
    attempts.iter().rfind(|attempt| attempt.attempt < row.attempt && attempt.may_have_begun())
}

/// How the attempt that began ended, and why the current attempt did not begin.
pub(super) fn attempt_not_begun_sentence(
    begun_attempt: &Attempt,
    row: &Run,
    reason_text: &Bilingual,
    instant_text: impl Fn(Timestamp) -> String,
) -> Bilingual {
    let (earlier_text, number) = (ran_text(begun_attempt, instant_text), row.attempt);
    bilingual(
        format!("{}; attempt {number} did not begin: {}.", earlier_text.0, reason_text.0),
        format!("{}；第 {number} 次尝试没有开始：{}。", earlier_text.1, reason_text.1),
    )
}

/// The answer for a run that a caller asked to cancel, and whose executor never reported the end.
pub(super) fn unconfirmed_cancel_sentence(
    row: Option<&Run>,
    actor_text: &Bilingual,
    executor_text: &Bilingual,
    instant_text: impl Fn(Timestamp) -> String,
) -> Bilingual {
    let no_detail = ReasonDetail::default();
    let detail = row.and_then(|row| row.detail.as_deref()).unwrap_or(&no_detail);
    let reason_text = bilingual(unconfirmed_cancel_text(detail, Lang::En), unconfirmed_cancel_text(detail, Lang::Zh));
    let start_text = match row.and_then(|row| row.started_at).map(instant_text) {
        Some(at) => {
            bilingual(format!("It ran at {at}{}", executor_text.0), format!("已于 {at} 执行{}", executor_text.1))
        }
        None => bilingual(format!("It may have run{}", executor_text.0), format!("可能执行过{}", executor_text.1)),
    };
    bilingual(
        format!(
            "{}, and a cancel was requested{}: {}. A late report replaces this verdict.",
            start_text.0, actor_text.0, reason_text.0
        ),
        format!("{}，已请求取消{}：{}。迟到的报告会更正这一结论。", start_text.1, actor_text.1, reason_text.1),
    )
}

fn ran_text(attempt: &Attempt, instant_text: impl Fn(Timestamp) -> String) -> Bilingual {
    let (number, executor_text) = (attempt.attempt, executor_clause(attempt.executor.as_deref()));
    let start_text = match attempt.started_at.map(instant_text) {
        Some(at) => bilingual(
            format!("Attempt {number} ran at {at}{}", executor_text.0),
            format!("第 {number} 次尝试已于 {at} 执行{}", executor_text.1),
        ),
        None => bilingual(
            format!("Attempt {number} may have run{}", executor_text.0),
            format!("第 {number} 次尝试可能执行过{}", executor_text.1),
        ),
    };
    let end_text = match attempt.status {
        RunStatus::Failed => (" and failed", "，失败"),
        RunStatus::TimedOut => (" and timed out", "，超时"),
        RunStatus::Cancelled => (" and was cancelled", "，后被取消"),
        RunStatus::Unknown => (", and its outcome is unknown", "，结果未知"),
        RunStatus::Succeeded => (" and succeeded", "，成功"),
        RunStatus::Skipped | RunStatus::Pending | RunStatus::Waiting | RunStatus::Running => ("", ""),
    };
    let cause = cause_clause(attempt).unwrap_or_default();
    bilingual(
        format!("{}{}{}", start_text.0, end_text.0, cause.0),
        format!("{}{}{}", start_text.1, end_text.1, cause.1),
    )
}

fn cause_clause(attempt: &Attempt) -> Option<Bilingual> {
    let message = attempt.message.as_deref().filter(|message| !message.is_empty());
    let (en, zh) = match attempt.reason.filter(|_| attempt.status == RunStatus::Unknown) {
        Some(reason) => {
            let no_detail = ReasonDetail::default();
            let detail = attempt.detail.as_deref().unwrap_or(&no_detail);
            bilingual(reason_text(reason, detail, Lang::En), reason_text(reason, detail, Lang::Zh))
        }
        None => message.map(|text| bilingual(text, translate(text, Lang::Zh)))?,
    };
    Some(bilingual(format!(": {en}"), format!("：{zh}")))
}
