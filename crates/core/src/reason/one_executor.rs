//! Describes what a run waits or waited for in two cases: the run was triggered for one executor alone, or its server stopped
//! before it recorded the wait.

use super::words::obstacles_text;
use super::{ReasonDetail, WaitFor};
use crate::words::Lang;

/// Whether the run's server stopped before it recorded what the run waits for. Nothing is known about the executors: they may be
/// full, switched off or absent.
fn is_unrecorded(detail: &ReasonDetail) -> bool {
    detail.waits_for == Some(WaitFor::Executor) && detail.app.is_none() && detail.obstacles.is_empty()
}

/// What a run waits for if it was triggered for one executor, or if the wait is not recorded; `None` in all other cases.
pub(super) fn waits_for(detail: &ReasonDetail, lang: Lang) -> Option<String> {
    if is_unrecorded(detail) && detail.only_executor.is_none() {
        return Some(if lang == Lang::En { "for an executor" } else { "执行器" }.to_owned());
    }
    let name = detail.only_executor.as_deref()?;
    let obstacle_text = obstacles_text(detail, lang);
    Some(match lang {
        Lang::En => {
            format!("for executor {name}, for which alone it was triggered{}", optional_part(obstacle_text, " (", ")"))
        }
        Lang::Zh => format!("触发时指定的执行器 {name}{}", optional_part(obstacle_text, "（", "）")),
    })
}

/// Why a run was skipped if it was triggered for one executor, or if its wait is not recorded; `None` in all other cases.
/// `waited` is the text for the length of the wait.
pub(super) fn no_executor(detail: &ReasonDetail, waited: &str, lang: Lang) -> Option<String> {
    if is_unrecorded(detail) && detail.only_executor.is_none() {
        return Some(match lang {
            Lang::En => format!("no executor took it{waited} (its server stopped before it recorded why)"),
            Lang::Zh => format!("{waited}没有执行器接收它（服务器停止前没有记录原因）"),
        });
    }
    let name = detail.only_executor.as_deref()?;
    let obstacle_text = obstacles_text(detail, lang);
    Some(match lang {
        Lang::En => {
            format!(
                "executor {name}, for which alone it was triggered, could not take it{waited}{}",
                optional_part(obstacle_text, ": ", "")
            )
        }
        Lang::Zh => format!("{waited}触发时指定的执行器 {name} 无法接收它{}", optional_part(obstacle_text, "：", "")),
    })
}

fn optional_part(text: Option<String>, before: &str, after: &str) -> String {
    text.map_or_else(String::new, |text| format!("{before}{text}{after}"))
}

#[cfg(test)]
mod tests {
    use crate::reason::words::{reason_text, waits_for};
    use crate::reason::{Reason, ReasonDetail, WaitFor};
    use crate::words::Lang;

    /// The executors may have been full: nothing is known about them.
    #[test]
    fn an_unrecorded_wait_claims_nothing_about_executors() {
        let left = ReasonDetail { waits_for: Some(WaitFor::Executor), ..ReasonDetail::default() };
        assert_eq!(waits_for(&left, Lang::En).as_deref(), Some("for an executor"));
        assert_eq!(waits_for(&left, Lang::Zh).as_deref(), Some("执行器"));
        let skipped = ReasonDetail { waited_ms: Some(300_000), ..left };
        let text = |lang| reason_text(Reason::NoExecutor, &skipped, lang);
        assert_eq!(text(Lang::En), "no executor took it for 5 min (its server stopped before it recorded why)");
        assert_eq!(text(Lang::Zh), "5 分钟内没有执行器接收它（服务器停止前没有记录原因）");
    }
}
