//! How runs ended, in words.

use crate::status::RunStatus;
use crate::words::Lang;

/// The outcome of a run, to begin a sentence with.
pub(crate) const fn outcome(status: RunStatus, lang: Lang) -> &'static str {
    match (status, lang) {
        (RunStatus::Succeeded, Lang::En) => "Succeeded",
        (RunStatus::Succeeded, Lang::Zh) => "成功",
        (RunStatus::Failed, Lang::En) => "Failed",
        (RunStatus::Failed, Lang::Zh) => "失败",
        (RunStatus::TimedOut, Lang::En) => "Timed out",
        (RunStatus::TimedOut, Lang::Zh) => "超时",
        (RunStatus::Cancelled, Lang::En) => "Cancelled",
        (RunStatus::Cancelled, Lang::Zh) => "已取消",
        (RunStatus::Unknown, Lang::En) => "Outcome unknown",
        (RunStatus::Unknown, Lang::Zh) => "结果未知",
        (RunStatus::Skipped, Lang::En) => "Skipped",
        (RunStatus::Skipped, Lang::Zh) => "已跳过",
        (RunStatus::Pending | RunStatus::Waiting | RunStatus::Running, Lang::En) => "Open",
        (RunStatus::Pending | RunStatus::Waiting | RunStatus::Running, Lang::Zh) => "未结束",
    }
}
