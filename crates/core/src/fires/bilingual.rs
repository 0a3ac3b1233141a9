//! Texts in English and Chinese side by side.

use crate::maintenance::FiresInside;
use crate::status::Trigger;

/// A text in English and in Chinese.
pub(super) type Bilingual = (String, String);

pub(super) fn bilingual(en: impl Into<String>, zh: impl Into<String>) -> Bilingual {
    (en.into(), zh.into())
}

pub(super) fn empty_text() -> Bilingual {
    bilingual("", "")
}

pub(super) fn executor_clause(name: Option<&str>) -> Bilingual {
    let name = name.filter(|name| !name.is_empty());
    name.map_or_else(empty_text, |name| bilingual(format!(" on {name}"), format!("（执行器 {name}）")))
}

/// Describes what a maintenance window does to a fire.
pub(super) fn maintenance_window_text(at: &str, end: &str, fires: FiresInside) -> Bilingual {
    match fires {
        FiresInside::Skip => bilingual(
            format!("It does not run: {at} is in a maintenance window, up to {end}."),
            format!("不会执行：{at} 处于维护窗口内（至 {end}）。"),
        ),
        FiresInside::Hold => bilingual(
            format!(
                "It does not run at {at}: a maintenance window holds it back until {end}; the misfire policy decides then."
            ),
            format!("{at} 不会执行：维护窗口将其保留到 {end}，届时按错过策略处理。"),
        ),
    }
}

/// The effect of a calendar on a fire: it removes the fire, or moves it. `day` is the calendar's name for the day, if it has
/// one; `ahead` is the instant of a fire that is still in the future.
pub(super) fn taken_by_calendar_text(
    (calendar, day): (&str, Option<&str>),
    moved_to: Option<&str>,
    ahead: Option<&str>,
) -> Bilingual {
    let name = day.map_or_else(empty_text, |day| bilingual(format!(" ({day})"), format!("（{day}）")));
    let (en, zh) = match (ahead, moved_to) {
        (Some(at), _) => bilingual(format!("It will not run at {at}"), format!("{at} 不会执行")),
        (None, Some(_)) => bilingual("It did not run then", "当时没有执行"),
        (None, None) => bilingual("It did not run", "没有执行"),
    };
    match moved_to {
        Some(to) => bilingual(
            format!("{en}: the calendar {calendar:?}{} moves this fire to {to}.", name.0),
            format!("{zh}：日历 {calendar:?}{} 把这次触发移到了 {to}。", name.1),
        ),
        None => bilingual(
            format!("{en}: the calendar {calendar:?} removes this fire{}.", name.0),
            format!("{zh}：日历 {calendar:?} 排除了这次触发{}。", name.1),
        ),
    }
}

/// The sentence about a future fire of a job in shadow mode.
pub(super) fn shadow_mode_text(at: &str) -> Bilingual {
    bilingual(
        format!("It will not run at {at}: the job is in shadow mode."),
        format!("{at} 不会执行：任务处于影子模式。"),
    )
}

/// The trigger of a run, in words.
pub(super) const fn trigger_words(trigger: Trigger) -> (&'static str, &'static str) {
    match trigger {
        Trigger::Cron | Trigger::Interval | Trigger::Once => ("made by the schedule", "由调度产生"),
        Trigger::Manual => ("triggered by a user", "由用户触发"),
        Trigger::Api => ("triggered through the API", "通过 API 触发"),
        Trigger::Parent => ("which follows from a parent job", "由上游任务引出"),
        Trigger::Backfill => ("a backfill", "补跑"),
        Trigger::Misfire => ("a missed fire that runs late", "错过后补执行"),
    }
}
