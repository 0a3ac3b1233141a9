//! Why a pump or one of its groups ended, in words.

use super::Reason;
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

/// Why a pump has failed that ended as planned.
pub(super) fn unfinished(reason: Reason, lang: Lang) -> Option<String> {
    if !matches!(reason, Reason::WindowOver | Reason::Dry) {
        return None;
    }
    let because = words(reason, lang);
    Some(match lang {
        Lang::En => format!("rows that failed for good were left, or rows could not be selected, when {because}"),
        Lang::Zh => format!("{because}时仍有最终失败的行，或无法查询行"),
    })
}
