//! Why a run of a job in shadow mode was not sent, in words.

use super::ReasonDetail;
use crate::words::Lang;

pub(super) fn words(detail: &ReasonDetail, lang: Lang) -> String {
    let executor = detail.executor.as_deref().filter(|name| !name.is_empty());
    match (&detail.parent, executor, &detail.app, lang) {
        (Some(parent), _, _, Lang::En) => format!("parent job {parent} is in shadow mode"),
        (Some(parent), _, _, Lang::Zh) => format!("上游任务 {parent} 处于影子模式"),
        (None, Some(executor), _, Lang::En) => {
            format!("the job is in shadow mode; executor {executor} would have had the run")
        }
        (None, Some(executor), _, Lang::Zh) => format!("任务处于影子模式；本应由执行器 {executor} 执行"),
        (None, None, Some(app), Lang::En) => {
            format!("the job is in shadow mode; no executor of app {app} could have taken the run")
        }
        (None, None, Some(app), Lang::Zh) => format!("任务处于影子模式；应用 {app} 没有可以执行它的执行器"),
        (None, None, None, Lang::En) => "the job is in shadow mode".to_owned(),
        (None, None, None, Lang::Zh) => "任务处于影子模式".to_owned(),
    }
}
