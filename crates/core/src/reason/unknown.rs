//! Clauses for runs whose end no executor reported, and for attempts that executors stopped or handed back themselves.

use std::time::Duration;

use super::words::short_length;
use super::{Reason, ReasonDetail};
use crate::words::Lang;

/// Why the outcome of a run that passed its timeout is unknown: its executor was not lost, but reported no end.
///
/// ```
/// use rondel_core::reason::ReasonDetail;
/// use rondel_core::reason::unknown::unreported_text;
/// use rondel_core::words::Lang;
///
/// let executor = Some("w1".to_owned());
/// let detail = ReasonDetail { executor, unreported_after_ms: Some(30_000), ..ReasonDetail::default() };
/// let text = unreported_text(&detail, Lang::En);
/// assert_eq!(text.as_deref(), Some("it ran past its timeout of 30 s, and executor w1 never reported that it ended"));
/// ```
#[must_use]
pub fn unreported_text(detail: &ReasonDetail, lang: Lang) -> Option<String> {
    let timeout = short_length(Duration::from_millis(detail.unreported_after_ms?), lang);
    let name = detail.executor.as_deref().filter(|name| !name.is_empty());
    Some(match (name, lang) {
        (Some(name), Lang::En) => {
            format!("it ran past its timeout of {timeout}, and executor {name} never reported that it ended")
        }
        (None, Lang::En) => {
            format!("it ran past its timeout of {timeout}, and its executor never reported that it ended")
        }
        (Some(name), Lang::Zh) => format!("执行超过时限 {timeout}，执行器 {name} 始终没有报告它已结束"),
        (None, Lang::Zh) => format!("执行超过时限 {timeout}，执行器始终没有报告它已结束"),
    })
}

/// Why it is not known how a run ended after a cancel was requested: its executor reported no end.
pub(crate) fn unconfirmed_cancel_text(detail: &ReasonDetail, lang: Lang) -> String {
    if let Some(text) = unreported_text(detail, lang) {
        return text;
    }
    let name = detail.executor.as_deref().filter(|name| !name.is_empty());
    match (name, lang) {
        (Some(name), Lang::En) => format!("executor {name} was lost before it reported how the run ended"),
        (None, Lang::En) => "its executor was lost before it reported how the run ended".to_owned(),
        (Some(name), Lang::Zh) => format!("执行器 {name} 在报告运行如何结束之前失联"),
        (None, Lang::Zh) => "执行器在报告运行如何结束之前失联".to_owned(),
    }
}

/// Why an executor itself stopped an attempt or handed it back; `None` if it did neither.
pub(super) fn given_up_text(reason: Reason, detail: &ReasonDetail, lang: Lang) -> Option<String> {
    match reason {
        Reason::ExecutorLost => silenced_text(detail, lang),
        Reason::NotReceived => not_begun_text(detail, lang),
        _ => None,
    }
}

/// Why an executor handed back an attempt that it had received.
fn not_begun_text(detail: &ReasonDetail, lang: Lang) -> Option<String> {
    let name = detail.executor.as_deref().filter(|name| !name.is_empty());
    let subject = match (name, lang) {
        (Some(name), Lang::En) => format!("executor {name}"),
        (None, Lang::En) => "its executor".to_owned(),
        (Some(name), Lang::Zh) => format!("执行器 {name} "),
        (None, Lang::Zh) => "执行器".to_owned(),
    };
    Some(match (detail.shutting_down, lang) {
        (true, Lang::En) => format!("{subject} was shutting down, and the handler had not begun"),
        (true, Lang::Zh) => format!("{subject}正在退出，处理器尚未开始执行"),
        (false, Lang::En) => {
            let silent_length = short_length(Duration::from_millis(detail.silent_ms?), lang);
            format!("{subject} heard no server for {silent_length}, and the handler had not begun")
        }
        (false, Lang::Zh) => {
            let silent_length = short_length(Duration::from_millis(detail.silent_ms?), lang);
            format!("{subject}有 {silent_length}收不到任何服务器的应答，处理器尚未开始执行")
        }
    })
}

/// Why an executor stopped an attempt; `None` unless it did so because no server answered.
fn silenced_text(detail: &ReasonDetail, lang: Lang) -> Option<String> {
    let silent_length = short_length(Duration::from_millis(detail.silent_ms?), lang);
    let name = detail.executor.as_deref().filter(|name| !name.is_empty());
    Some(match (name, lang) {
        (Some(name), Lang::En) => format!("executor {name} heard no server for {silent_length} and stopped it"),
        (None, Lang::En) => format!("its executor heard no server for {silent_length} and stopped it"),
        (Some(name), Lang::Zh) => format!("执行器 {name} 有 {silent_length} 收不到任何服务器的应答，因此停止了它"),
        (None, Lang::Zh) => format!("执行器有 {silent_length} 收不到任何服务器的应答，因此停止了它"),
    })
}

/// Why a run that may start at most once is not sent again: a stored mark records that it may have been sent, and no executor
/// has it.
pub(super) fn not_sent_again_text(detail: &ReasonDetail, lang: Lang) -> String {
    let name = detail.executor.as_deref().filter(|name| !name.is_empty());
    match (name, lang) {
        (Some(name), Lang::En) => format!(
            "it was sent to executor {name}, which did not acknowledge it and has no record of it, and a run that may \
             start at most once is not sent again"
        ),
        (None, Lang::En) => {
            "it may have been sent, no executor has a record of it, and a run that may start at most once \
                             is not sent again"
                .to_owned()
        }
        (Some(name), Lang::Zh) => {
            format!("已发送给执行器 {name}，它没有确认收到，也没有这次运行的记录；最多执行一次的运行不会再次发送")
        }
        (None, Lang::Zh) => "可能已经发送，但没有执行器有它的记录；最多执行一次的运行不会再次发送".to_owned(),
    }
}
