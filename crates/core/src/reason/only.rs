//! What a run that was triggered for one executor alone waits for, or waited for, in words.

use super::Detail;
use super::words::obstacles;
use crate::words::Lang;

/// What a run waits for, if it was triggered for one executor.
pub(super) fn waits_for(detail: &Detail, lang: Lang) -> Option<String> {
    let name = detail.only_executor.as_deref()?;
    let why = obstacles(detail, lang);
    Some(match lang {
        Lang::En => {
            format!("for executor {name}, for which alone it was triggered{}", wrapped(why, " (", ")"))
        }
        Lang::Zh => format!("触发时指定的执行器 {name}{}", wrapped(why, "（", "）")),
    })
}

/// Why a run was skipped, if it was triggered for one executor; `waited` is the text for how long it waited.
pub(super) fn no_executor(detail: &Detail, waited: &str, lang: Lang) -> Option<String> {
    let name = detail.only_executor.as_deref()?;
    let why = obstacles(detail, lang);
    Some(match lang {
        Lang::En => {
            format!(
                "executor {name}, for which alone it was triggered, could not take it{waited}{}",
                wrapped(why, ": ", "")
            )
        }
        Lang::Zh => format!("{waited}触发时指定的执行器 {name} 无法接收它{}", wrapped(why, "：", "")),
    })
}

fn wrapped(why: Option<String>, before: &str, after: &str) -> String {
    why.map_or_else(String::new, |why| format!("{before}{why}{after}"))
}
