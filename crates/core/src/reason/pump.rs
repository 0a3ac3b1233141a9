//! Why a pump or one of its groups ended, in words.

use super::Reason;
use crate::status::RunStatus;
use crate::words::Lang;

pub(super) const fn words(reason: Reason, lang: Lang) -> &'static str {
    match (reason, lang) {
        (Reason::Dry, Lang::En) => "no item of the pump had rows left",
        (Reason::Dry, Lang::Zh) => "泵任务的所有任务项都没有剩余的行",
        (Reason::Moved, Lang::En) => "the group left its executor for another one",
        (Reason::Moved, Lang::Zh) => "该组离开原执行器，转到另一个执行器",
        (_, Lang::En) => "the window of the pump was over",
        (_, Lang::Zh) => "泵任务的窗口已结束",
    }
}

/// Why a pump or one of its groups has this verdict; `None` if the general words of the reason fit.
pub(super) const fn verdict_words((status, reason): (RunStatus, Reason), lang: Lang) -> Option<&'static str> {
    match (status, reason, lang) {
        (RunStatus::Failed, _, _) => failed_end_words(reason, lang),
        // The new definition may have no pump.
        (RunStatus::Succeeded, Reason::Changed, Lang::En) => {
            Some("the job was changed, which ended the pump; if the new definition has a pump, it begins anew")
        }
        (RunStatus::Succeeded, Reason::Changed, Lang::Zh) => {
            Some("任务已修改，泵任务因此结束；新的定义若仍是泵任务，将重新开始")
        }
        _ => None,
    }
}

/// Why a pump that ended as planned has failed.
const fn failed_end_words(reason: Reason, lang: Lang) -> Option<&'static str> {
    match (reason, lang) {
        (Reason::Dry, Lang::En) => Some("the rows that were left had failed for good"),
        (Reason::Dry, Lang::Zh) => Some("剩余的行都已最终失败"),
        (Reason::WindowOver, Lang::En) => {
            Some("at the end of the window, rows were left that had failed for good, or no rows could be selected")
        }
        (Reason::WindowOver, Lang::Zh) => Some("窗口结束时仍有最终失败的行，或无法查询行"),
        _ => None,
    }
}
