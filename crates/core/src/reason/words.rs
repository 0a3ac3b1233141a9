//! Turns reasons into English and Chinese text.

use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) use super::outcome::outcome;
use super::unknown::{given_up_text, not_sent_again_text, unconfirmed_cancel_text, unreported_text};
use super::{LimitDetail, LimitKind, Obstacle, ObstacleKind, Reason, ReasonDetail, WaitFor, one_executor};
use crate::homes::Switch;
use crate::run::{Attempt, Run};
use crate::status::RunStatus;
use crate::words::Lang;

/// The facts about a run from which a sentence is made.
#[derive(Clone, Copy, Debug)]
pub struct RunStatusFacts<'a> {
    pub status: RunStatus,
    /// The code of the reason.
    pub reason: Option<Reason>,
    /// The parameters of the reason.
    pub detail: Option<&'a ReasonDetail>,
    pub attempt: i32,
}

impl<'a> RunStatusFacts<'a> {
    /// The facts about the current attempt of a run.
    #[must_use]
    pub fn of(run: &'a Run) -> Self {
        let (status, reason) = (run.shown_status(), run.reason_in_words());
        Self { status, reason, detail: run.detail.as_deref(), attempt: run.attempt }
    }
}

/// Explains the status of a run in sentences; `None` if the status is enough.
///
/// ```
/// use rondel_core::reason::words::{RunStatusFacts, sentence};
/// use rondel_core::reason::{ReasonDetail, Reason};
/// use rondel_core::{RunStatus, words::Lang};
///
/// let detail = ReasonDetail { app: Some("work".to_owned()), waited_ms: Some(300_000), ..ReasonDetail::default() };
/// let (status, reason) = (RunStatus::Skipped, Some(Reason::NoExecutor));
/// let facts = RunStatusFacts { status, reason, detail: Some(&detail), attempt: 1 };
/// let text = sentence(facts, Lang::En);
/// assert_eq!(text.as_deref(), Some("Skipped: no executor of app work was online for 5 min."));
/// ```
#[must_use]
pub fn sentence(facts: RunStatusFacts<'_>, lang: Lang) -> Option<String> {
    let no_detail = ReasonDetail::default();
    let detail = facts.detail.unwrap_or(&no_detail);
    let colon = in_lang(lang, ": ", "：");
    if facts.status.is_terminal() {
        let reason_sentence = match facts.reason {
            Some(reason) => verdict_text((facts.status, reason), detail, lang),
            None => unreported_text(detail, lang).filter(|_| facts.status == RunStatus::Unknown)?,
        };
        return Some(format!("{}{colon}{reason_sentence}{}", outcome(facts.status, lang), full_stop(lang)));
    }
    let mut parts = Vec::new();
    if let Some(reason) = facts.reason {
        let reason_text =
            if facts.attempt > 1 { retry_text(reason, detail, lang) } else { reason_text(reason, detail, lang) };
        let number = facts.attempt;
        parts.push(match lang {
            Lang::En if number > 1 => format!("Attempt {number}: {reason_text}."),
            Lang::En => capitalized(&format!("{reason_text}.")),
            Lang::Zh if number > 1 => format!("第 {number} 次尝试：{reason_text}。"),
            Lang::Zh => format!("{reason_text}。"),
        });
    }
    let wait_text = waits_for(detail, lang).filter(|_| facts.status != RunStatus::Running);
    parts.extend(wait_text.map(|wait_text| match lang {
        Lang::En => format!("Waits {wait_text}."),
        Lang::Zh => format!("正在{}。", wait_zh(&wait_text)),
    }));
    (!parts.is_empty()).then(|| parts.join(in_lang(lang, " ", "")))
}

/// Explains the end of an attempt that was followed by another one; `None` if the attempt has no reason.
#[must_use]
pub fn attempt_sentence(attempt: &Attempt, lang: Lang) -> Option<String> {
    let no_detail = ReasonDetail::default();
    let detail = attempt.detail.as_deref().unwrap_or(&no_detail);
    let reason_words = reason_text(attempt.reason?, detail, lang);
    Some(capitalized(&format!("{reason_words}{}", full_stop(lang))))
}

/// Why this attempt ended, or why the run never began, as a clause for the middle of a sentence.
#[must_use]
pub fn reason_text(reason: Reason, detail: &ReasonDetail, lang: Lang) -> String {
    if let Some(text) = given_up_text(reason, detail, lang) {
        return text;
    }
    match lang {
        Lang::En => reason_text_en(reason, detail),
        Lang::Zh => reason_text_zh(reason, detail),
    }
}

/// Why a run has its verdict. For a reason that keeps attempts from beginning, the clause states that no further attempt could begin.
#[must_use]
pub fn verdict_text((status, reason): (RunStatus, Reason), detail: &ReasonDetail, lang: Lang) -> String {
    match (status, reason) {
        (RunStatus::Unknown, Reason::NotReceived) => return not_sent_again_text(detail, lang),
        (RunStatus::Cancelled, Reason::ExecutorLost) => return unconfirmed_cancel_text(detail, lang),
        _ => {}
    }
    if let Some(text) = super::pump::verdict_words((status, reason), lang) {
        return text.to_owned();
    }
    let reason_words = reason_text(reason, detail, lang);
    match lang {
        _ if status != RunStatus::Failed || !reason.keeps_from_beginning() => reason_words,
        Lang::En => format!("no further attempt could begin: {reason_words}"),
        Lang::Zh => format!("后续尝试未能开始：{reason_words}"),
    }
}

/// Why there is another attempt, as a clause about the previous one.
#[must_use]
pub fn retry_text(reason: Reason, detail: &ReasonDetail, lang: Lang) -> String {
    let name = detail.executor.as_deref().filter(|name| !name.is_empty());
    if let Some(text) = given_up_text(reason, detail, lang) {
        return text;
    }
    match (reason, name, lang) {
        (Reason::Retry, _, Lang::En) => "the previous attempt failed".to_owned(),
        (Reason::Retry, _, Lang::Zh) => "上一次尝试失败".to_owned(),
        (Reason::ExecutorLost, Some(name), Lang::En) => format!("executor {name} was lost during the previous attempt"),
        (Reason::ExecutorLost, Some(name), Lang::Zh) => format!("上一次尝试时执行器 {name} 失联"),
        (Reason::ExecutorLost, None, Lang::En) => {
            "an executor that may have had the previous attempt was lost".to_owned()
        }
        (Reason::ExecutorLost, None, Lang::Zh) => "可能持有上一次尝试的执行器失联".to_owned(),
        (Reason::NotReceived, Some(name), Lang::En) => format!("executor {name} never received the previous attempt"),
        (Reason::NotReceived, Some(name), Lang::Zh) => format!("执行器 {name} 没有收到上一次尝试"),
        (Reason::NotReceived, None, Lang::En) => "the previous attempt reached no executor".to_owned(),
        (Reason::NotReceived, None, Lang::Zh) => "上一次尝试没有送达任何执行器".to_owned(),
        _ => reason_text(reason, detail, lang),
    }
}

fn reason_text_en(reason: Reason, detail: &ReasonDetail) -> String {
    let name = detail.executor.as_deref().filter(|name| !name.is_empty());
    let text = match reason {
        Reason::Misfire => "its instant passed while no server was at work, and the job's misfire policy skips it",
        Reason::Overlap => {
            return match (detail.run, detail.queue_max) {
                _ if detail.waits_for == Some(WaitFor::Run) => expired_text(detail, Lang::En),
                (Some(run), Some(max)) => format!("{max} runs waited behind run {run} already, and the queue was full"),
                (Some(run), None) => {
                    format!("run {run} had not ended, and the job's overlap policy skips overlapping runs")
                }
                _ => "an earlier run had not ended, and the job's overlap policy skips overlapping runs".to_owned(),
            };
        }
        Reason::Paused => "the job was paused",
        Reason::Changed => "the job was changed, and its new definition does not fire at this instant",
        Reason::Deleted => "the job was deleted",
        Reason::NoExecutor => return no_executor(detail, Lang::En),
        Reason::Expired => return expired_text(detail, Lang::En),
        Reason::Retry => "it failed, and the job's retry policy allows another attempt",
        Reason::ExecutorLost => {
            return name.map_or_else(
                || "an executor that may have had it was lost before it could answer".to_owned(),
                |name| format!("executor {name} was lost while it had the run"),
            );
        }
        Reason::NotReceived => {
            return name.map_or_else(
                || "it reached no executor".to_owned(),
                |name| format!("executor {name} never received it"),
            );
        }
        Reason::Requested => "a user or a program requested it",
        Reason::Parent => {
            return match (&detail.parent, detail.parent_status) {
                (Some(parent), Some(status)) => format!("parent job {parent} ended as {status}"),
                (Some(parent), None) => format!("parent job {parent} did not end as the definition wants"),
                (None, _) => "a parent job did not end as the definition wants".to_owned(),
            };
        }
        Reason::Covered => {
            return detail.run.map_or_else(
                || "a later run of the job took its place".to_owned(),
                |run| format!("the later run {run} of the job took its place"),
            );
        }
        Reason::Handler => "the handler skipped it",
        Reason::Maintenance => "a maintenance window was open at this instant",
        Reason::Shadow => return super::shadow::words(detail, Lang::En),
        Reason::WindowOver | Reason::Dry | Reason::Moved => super::pump::words(reason, Lang::En),
        Reason::Stopped => {
            return match (&detail.app, detail.switch) {
                (Some(app), Some(switch)) => format!("app {app} is {switch}"),
                (Some(app), None) => format!("app {app} is stopped"),
                (None, _) => "its app is draining or stopped".to_owned(),
            };
        }
    };
    text.to_owned()
}

fn reason_text_zh(reason: Reason, detail: &ReasonDetail) -> String {
    let name = detail.executor.as_deref().filter(|name| !name.is_empty());
    let text = match reason {
        Reason::Misfire => "到期时没有服务器在工作，按任务的错过策略跳过",
        Reason::Overlap => {
            return match (detail.run, detail.queue_max) {
                _ if detail.waits_for == Some(WaitFor::Run) => expired_text(detail, Lang::Zh),
                (Some(run), Some(max)) => format!("运行 {run} 之后已有 {max} 个运行在排队，队列已满"),
                (Some(run), None) => format!("运行 {run} 尚未结束，按任务的重叠策略跳过"),
                _ => "较早的运行尚未结束，按任务的重叠策略跳过".to_owned(),
            };
        }
        Reason::Paused => "任务已暂停",
        Reason::Changed => "任务已修改，新的定义在这一时刻不触发",
        Reason::Deleted => "任务已删除",
        Reason::NoExecutor => return no_executor(detail, Lang::Zh),
        Reason::Expired => return expired_text(detail, Lang::Zh),
        Reason::Retry => "执行失败，按任务的重试策略再次尝试",
        Reason::ExecutorLost => {
            return name.map_or_else(
                || "可能持有它的执行器在答复之前失联".to_owned(),
                |name| format!("执行器 {name} 在持有它时失联"),
            );
        }
        Reason::NotReceived => {
            return name.map_or_else(|| "没有送达任何执行器".to_owned(), |name| format!("执行器 {name} 没有收到它"));
        }
        Reason::Requested => "由用户或程序请求",
        Reason::Parent => {
            return match (&detail.parent, detail.parent_status) {
                (Some(parent), Some(status)) => format!("上游任务 {parent} {}", outcome(status, Lang::Zh)),
                (Some(parent), None) => format!("上游任务 {parent} 没有按定义要求的方式结束"),
                (None, _) => "上游任务没有按定义要求的方式结束".to_owned(),
            };
        }
        Reason::Covered => {
            return detail.run.map_or_else(
                || "被该任务更晚的一次运行取代".to_owned(),
                |run| format!("被该任务更晚的运行 {run} 取代"),
            );
        }
        Reason::Handler => "处理器跳过了它",
        Reason::Maintenance => "该时刻处于维护窗口",
        Reason::Shadow => return super::shadow::words(detail, Lang::Zh),
        Reason::WindowOver | Reason::Dry | Reason::Moved => super::pump::words(reason, Lang::Zh),
        Reason::Stopped => {
            return match (&detail.app, detail.switch) {
                (Some(app), Some(Switch::Draining)) => format!("应用 {app} 正在排空"),
                (Some(app), _) => format!("应用 {app} 已停用"),
                (None, _) => "应用正在排空或已停用".to_owned(),
            };
        }
    };
    text.to_owned()
}

/// What a run waits for, as the words after "waits" or "waited 38 s" (`for a free slot on w1`), or after 等待 (`w1 上的空闲槽位`).
#[must_use]
pub fn waits_for(detail: &ReasonDetail, lang: Lang) -> Option<String> {
    let app = app_text(detail, lang);
    if let Some(wait) = one_executor::waits_for(detail, lang).filter(|_| detail.waits_for == Some(WaitFor::Executor)) {
        return Some(wait);
    }
    Some(match (detail.waits_for?, lang) {
        (WaitFor::Run, Lang::En) => match detail.run {
            Some(run) => format!("behind run {run} of the job"),
            None => "behind an earlier run of the job".to_owned(),
        },
        (WaitFor::Run, Lang::Zh) => match detail.run {
            Some(run) => format!("该任务的运行 {run} 结束"),
            None => "该任务较早的运行结束".to_owned(),
        },
        (WaitFor::Limit, Lang::En) => format!("for {}", limit(detail.limit.as_ref(), lang)),
        (WaitFor::Limit, Lang::Zh) => limit(detail.limit.as_ref(), lang),
        (WaitFor::Slot, _) => slots_text(detail, lang),
        (WaitFor::Executor, Lang::En) => match obstacles_text(detail, lang) {
            Some(obstacles) => format!("for an executor of {app} ({obstacles})"),
            None => format!("for an executor of {app} (none online)"),
        },
        (WaitFor::Executor, Lang::Zh) => match obstacles_text(detail, lang) {
            Some(obstacles) => format!("{app}的执行器（{obstacles}）"),
            None => format!("{app}的执行器（没有在线的执行器）"),
        },
        (WaitFor::App, Lang::En) => format!("until {app} is active again"),
        (WaitFor::App, Lang::Zh) => format!("{app}恢复启用"),
        (WaitFor::Answer, _) => super::answer::words(detail, lang),
        (WaitFor::RollCall, Lang::En) => {
            "for the executors to report whether they have it (its server stopped and handed nothing over)".to_owned()
        }
        (WaitFor::RollCall, Lang::Zh) => "各执行器报告是否持有它（原服务器中断，没有移交）".to_owned(),
    })
}

/// Puts 等待 before a Chinese text, with a space between them if the text begins with an ASCII character.
#[must_use]
pub fn wait_zh(awaited: &str) -> String {
    let space = if awaited.starts_with(|first: char| first.is_ascii_graphic()) { " " } else { "" };
    format!("等待{space}{awaited}")
}

fn slots_text(detail: &ReasonDetail, lang: Lang) -> String {
    let full_executors: Vec<&str> = detail
        .obstacles
        .iter()
        .filter(|obstacle| matches!(obstacle.kind, ObstacleKind::Full | ObstacleKind::Busy))
        .map(|obstacle| obstacle.executor.as_str())
        .collect();
    match (full_executors.is_empty(), lang) {
        (true, Lang::En) => "for a free slot".to_owned(),
        (true, Lang::Zh) => "空闲槽位".to_owned(),
        (false, Lang::En) => format!("for a free slot on {}{}", full_executors.join(", "), more_text(detail, lang)),
        (false, Lang::Zh) => format!("{}{} 上的空闲槽位", full_executors.join("、"), more_text(detail, lang)),
    }
}

fn no_executor(detail: &ReasonDetail, lang: Lang) -> String {
    let (app, waited) = (app_text(detail, lang), waited_text(detail, lang));
    if let Some(clause) = one_executor::no_executor(detail, &waited, lang) {
        return clause;
    }
    let handler = detail.handler.as_deref().unwrap_or_default();
    let are_all = |kind| !detail.obstacles.is_empty() && detail.obstacles.iter().all(|obstacle| obstacle.kind == kind);
    let names = || {
        join_names(detail.obstacles.iter().map(|obstacle| obstacle.executor.as_str()), lang) + &more_text(detail, lang)
    };
    match lang {
        Lang::En if detail.obstacles.is_empty() => format!("no executor of {app} was online{waited}"),
        Lang::En if are_all(ObstacleKind::Handler) => {
            format!("no executor of {app} had handler \"{handler}\"{waited} ({} online without it)", names())
        }
        Lang::En if are_all(ObstacleKind::Draining) => {
            format!("no executor of {app} took new runs{waited} ({} draining)", names())
        }
        Lang::En => {
            format!("no executor of {app} could take it{waited}: {}", obstacles_text(detail, lang).unwrap_or_default())
        }
        Lang::Zh if detail.obstacles.is_empty() => format!("{waited}{app}没有在线的执行器"),
        Lang::Zh if are_all(ObstacleKind::Handler) => {
            format!("{waited}{app}没有执行器具有处理器 \"{handler}\"（{} 在线但没有它）", names())
        }
        Lang::Zh if are_all(ObstacleKind::Draining) => {
            format!("{waited}{app}没有执行器接受新的运行（{} 正在排空）", names())
        }
        Lang::Zh => {
            format!("{waited}{app}没有执行器可以接收它：{}", obstacles_text(detail, lang).unwrap_or_default())
        }
    }
}

fn expired_text(detail: &ReasonDetail, lang: Lang) -> String {
    let waited = waited_text(detail, lang);
    let wait_text = waits_for(detail, lang);
    match (wait_text, lang) {
        (Some(wait_text), Lang::En) => format!("it waited{} {wait_text}", waited.replacen(" for", "", 1)),
        (Some(wait_text), Lang::Zh) => format!("{waited}一直在{}", wait_zh(&wait_text)),
        (None, Lang::En) => format!("no slot was free{waited}"),
        (None, Lang::Zh) => format!("{waited}没有空闲槽位"),
    }
}

fn limit(limit: Option<&LimitDetail>, lang: Lang) -> String {
    let Some(limit) = limit else { return in_lang(lang, "a limit", "限制").to_owned() };
    let max = limit.max.unwrap_or(0);
    let per = short_length(Duration::from_millis(limit.per_ms.unwrap_or(0)), lang);
    let key = limit.key.as_deref();
    match (limit.kind, key, lang) {
        (LimitKind::Concurrency, key, Lang::En) => {
            format!("concurrency limit \"{}\" ({max} at a time)", key.unwrap_or_default())
        }
        (LimitKind::Concurrency, key, Lang::Zh) => {
            format!("并发限制 \"{}\"（同时最多 {max} 个）", key.unwrap_or_default())
        }
        (LimitKind::Rate, Some(key), Lang::En) => format!("rate limit \"{key}\" ({max} per {per})"),
        (LimitKind::Rate, Some(key), Lang::Zh) => format!("速率限制 \"{key}\"（每 {per}最多 {max} 个）"),
        (LimitKind::Rate, None, Lang::En) => format!("the job's rate limit ({max} per {per})"),
        (LimitKind::Rate, None, Lang::Zh) => format!("任务的速率限制（每 {per}最多 {max} 个）"),
        (LimitKind::Home, key, Lang::En) => {
            format!("the server that counts limit \"{}\"", key.unwrap_or_default())
        }
        (LimitKind::Home, key, Lang::Zh) => format!("负责限制 \"{}\" 计数的服务器", key.unwrap_or_default()),
    }
}

/// Which executors do not take the run and why, grouped by the obstacle.
pub(super) fn obstacles_text(detail: &ReasonDetail, lang: Lang) -> Option<String> {
    let mut groups: BTreeMap<(ObstacleKind, Option<&str>), Vec<&str>> = BTreeMap::new();
    for Obstacle { executor, kind, condition } in &detail.obstacles {
        groups.entry((*kind, condition.as_deref())).or_default().push(executor);
    }
    let handler = detail.handler.as_deref().unwrap_or_default();
    let mut parts: Vec<String> = groups
        .into_iter()
        .map(|((kind, condition), executors)| {
            let (is_single_executor, condition) = (executors.len() == 1, condition.unwrap_or_default());
            let names = join_names(executors.into_iter(), lang);
            let verb =
                |singular: &'static str, plural: &'static str| if is_single_executor { singular } else { plural };
            match (kind, lang) {
                (ObstacleKind::Handler, Lang::En) => format!("{names} {} handler \"{handler}\"", verb("lacks", "lack")),
                (ObstacleKind::Handler, Lang::Zh) => format!("{names} 没有处理器 \"{handler}\""),
                (ObstacleKind::Label, Lang::En) => {
                    format!("{names} {} not meet label condition {condition}", verb("does", "do"))
                }
                (ObstacleKind::Label, Lang::Zh) => format!("{names} 不满足标签条件 {condition}"),
                (ObstacleKind::NotSelected, Lang::En) => format!("{names} {} not selected by name", verb("is", "are")),
                (ObstacleKind::NotSelected, Lang::Zh) => format!("{names} 不在指定的执行器之列"),
                (ObstacleKind::Full, Lang::En) => format!("{names} {} no free slot", verb("has", "have")),
                (ObstacleKind::Full, Lang::Zh) => format!("{names} 没有空闲槽位"),
                (ObstacleKind::Draining, Lang::En) => format!("{names} {} draining", verb("is", "are")),
                (ObstacleKind::Draining, Lang::Zh) => format!("{names} 正在排空"),
                (ObstacleKind::Drained, Lang::En) => format!("{names} {} switched to draining", verb("is", "are")),
                (ObstacleKind::Drained, Lang::Zh) => format!("{names} 的开关设为排空"),
                (ObstacleKind::Stopped, Lang::En) => format!("{names} {} switched to stopped", verb("is", "are")),
                (ObstacleKind::Stopped, Lang::Zh) => format!("{names} 的开关设为停用"),
                (ObstacleKind::Silent, Lang::En) => format!("{names} did not answer"),
                (ObstacleKind::Silent, Lang::Zh) => format!("{names} 没有应答"),
                (ObstacleKind::Busy, Lang::En) => format!("{names} {} running the job already", verb("is", "are")),
                (ObstacleKind::Offline, Lang::En) => format!("{names} {} not online", verb("is", "are")),
                (ObstacleKind::Offline, Lang::Zh) => format!("{names} 不在线"),
                (ObstacleKind::Busy, Lang::Zh) => format!("{names} 已在执行该任务"),
            }
        })
        .collect();
    let count = detail.obstacles_more;
    parts.extend((count > 0).then(|| match lang {
        Lang::En => format!("{count} more cannot take it either"),
        Lang::Zh => format!("另有 {count} 个也不能接收"),
    }));
    (!parts.is_empty()).then(|| parts.join(in_lang(lang, "; ", "；")))
}

fn join_names<'a>(names: impl Iterator<Item = &'a str>, lang: Lang) -> String {
    names.collect::<Vec<_>>().join(in_lang(lang, ", ", "、"))
}

fn more_text(detail: &ReasonDetail, lang: Lang) -> String {
    match (detail.obstacles_more, lang) {
        (0, _) => String::new(),
        (count, Lang::En) => format!(" and {count} more"),
        (count, Lang::Zh) => format!(" 等另外 {count} 个"),
    }
}

fn app_text(detail: &ReasonDetail, lang: Lang) -> String {
    match (&detail.app, lang) {
        (Some(app), Lang::En) => format!("app {app}"),
        (Some(app), Lang::Zh) => format!("应用 {app} "),
        (None, Lang::En) => "the app".to_owned(),
        (None, Lang::Zh) => "应用".to_owned(),
    }
}

/// How long the run waited: ` for 5 min`, or `5 分钟内`.
fn waited_text(detail: &ReasonDetail, lang: Lang) -> String {
    match (detail.waited_ms, lang) {
        (None, Lang::En) => " until the queue timeout".to_owned(),
        (None, Lang::Zh) => "直到排队超时，".to_owned(),
        (Some(ms), Lang::En) => format!(" for {}", short_length(Duration::from_millis(ms), lang)),
        (Some(ms), Lang::Zh) => format!("{}内", short_length(Duration::from_millis(ms), lang)),
    }
}

/// A length of time in its two largest units: `38 s`, `1 min 30 s`, `5 分钟`.
#[must_use]
pub fn short_length(length: Duration, lang: Lang) -> String {
    // Milliseconds next to minutes, or tenths next to seconds, would not inform the reader.
    let seconds = if length >= Duration::from_secs(1) { (length + Duration::from_millis(500)).as_secs() } else { 0 };
    let parts = [
        (seconds / 86_400, "d", "天"),
        (seconds / 3_600 % 24, "h", "小时"),
        (seconds / 60 % 60, "min", "分钟"),
        (seconds % 60, "s", "秒"),
    ];
    let first_index = parts.iter().position(|(count, ..)| *count > 0);
    let Some(first_index) = first_index else {
        return format!("{} {}", length.as_millis(), in_lang(lang, "ms", "毫秒"));
    };
    let units = parts.iter().skip(first_index).take(2).filter(|(count, ..)| *count > 0);
    units.map(|(count, en, zh)| format!("{count} {}", in_lang(lang, en, zh))).collect::<Vec<_>>().join(" ")
}

const fn in_lang<'a>(lang: Lang, en: &'a str, zh: &'a str) -> &'a str {
    match lang {
        Lang::En => en,
        Lang::Zh => zh,
    }
}

const fn full_stop(lang: Lang) -> &'static str {
    in_lang(lang, ".", "。")
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
