//! A job's schedule in a sentence: its instants, then its bounds and its jitter.

use std::time::Duration;

use super::{Lang, cron, instant_text, length};
use crate::cron::{DstRule, Fold, Gap};
use crate::schedule::{After, Jitter, Kind, Schedule};
use crate::spec::{AfterWhat, CalendarRule, JitterBy, ScheduleSpec};
use crate::timetable::Timetable;

/// When a schedule fires, with all of its settings.
///
/// ```
/// use rondel_core::words::{Lang, schedule};
///
/// let spec: rondel_core::JobSpec = serde_json::from_str(
///     r#"{"name": "a", "app": "b", "handler": "c", "schedule": {"cron": "0 30 2 * * ?", "time_zone": "Asia/Shanghai"}}"#,
/// )?;
/// let job = spec.compile().expect("a valid definition");
/// assert_eq!(schedule(&job.timetable.schedules[0], Lang::En), "at 02:30 every day (Asia/Shanghai)");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[must_use]
pub fn schedule(schedule: &Schedule, lang: Lang) -> String {
    let mut parts = vec![instants_text(schedule, lang)];
    parts.extend(bound_texts(schedule, lang));
    if let Kind::Cron { dst, .. } = &schedule.kind {
        parts.extend(clock_change_texts(*dst, lang));
    }
    parts.extend(schedule.jitter.map(|jitter| jitter_text(jitter, lang)));
    parts.join(match lang {
        Lang::En => "; ",
        Lang::Zh => "；",
    })
}

/// When each of a job's schedules fires, with the effect of its calendar.
#[must_use]
pub fn timetable(table: &Timetable, lang: Lang) -> Vec<String> {
    let calendar_text = table.calendar.as_ref().map(|applied| calendar(applied.calendar.name(), applied.rule, lang));
    let separator = match lang {
        Lang::En => "; ",
        Lang::Zh => "；",
    };
    let describe = |entry: &Schedule| {
        std::iter::once(schedule(entry, lang)).chain(calendar_text.clone()).collect::<Vec<_>>().join(separator)
    };
    table.schedules.iter().map(describe).collect()
}

/// When a schedule fires, from its definition; `None` if the definition is not valid.
#[must_use]
pub fn schedule_spec(spec: &ScheduleSpec, lang: Lang) -> Option<String> {
    Schedule::compile("", spec).ok().map(|compiled| schedule(&compiled, lang))
}

/// Describes the effect of a calendar on the fires of a job.
#[must_use]
pub fn calendar(name: &str, rule: CalendarRule, lang: Lang) -> String {
    match (lang, rule) {
        (Lang::En, CalendarRule::Only) => format!("only in the calendar {name}"),
        (Lang::En, CalendarRule::Except) => format!("not in the calendar {name}"),
        (Lang::En, CalendarRule::Next) => format!("days outside the calendar {name} move to the next day inside"),
        (Lang::En, CalendarRule::Previous) => {
            format!("days outside the calendar {name} move to the last day inside before")
        }
        (Lang::Zh, CalendarRule::Only) => format!("仅在日历 {name} 之内"),
        (Lang::Zh, CalendarRule::Except) => format!("日历 {name} 之内除外"),
        (Lang::Zh, CalendarRule::Next) => format!("日历 {name} 之外的日子顺延到之内的下一天"),
        (Lang::Zh, CalendarRule::Previous) => format!("日历 {name} 之外的日子提前到之内的前一天"),
    }
}

fn instants_text(schedule: &Schedule, lang: Lang) -> String {
    let zone = schedule.zone;
    match (&schedule.kind, lang) {
        (Kind::Cron { expr, .. }, Lang::En) => format!("{} ({})", cron(expr, lang), zone.name()),
        (Kind::Cron { expr, .. }, Lang::Zh) => format!("{}（{}）", cron(expr, lang), zone.name()),
        (Kind::Every(period), _) => every_text(*period, lang),
        (Kind::Delay(delay), Lang::En) => format!("{} after the end of the run before", length(*delay, lang)),
        (Kind::Delay(delay), Lang::Zh) => format!("上一次执行结束后{}", length(*delay, lang)),
        (Kind::At(at), Lang::En) => format!("once at {}", instant_text(zone, *at)),
        (Kind::At(at), Lang::Zh) => format!("单次：{}", instant_text(zone, *at)),
        (Kind::After(after), Lang::En) => after_text_en(after),
        (Kind::After(after), Lang::Zh) => after_text_zh(after),
    }
}

fn every_text(period: Duration, lang: Lang) -> String {
    let text = length(period, lang);
    match lang {
        // `every 1 minute` is written `every minute`, if it has no other unit.
        Lang::En => format!("every {}", text.strip_prefix("1 ").filter(|unit| !unit.contains(' ')).unwrap_or(&text)),
        Lang::Zh => format!(
            "每{}",
            text.strip_prefix('1').filter(|unit| !unit.contains(|c: char| c.is_ascii_digit())).unwrap_or(&text)
        ),
    }
}

fn after_text_en(After { parents, on }: &After) -> String {
    let names = super::shape::join_words(parents, ", ", " and ");
    let verb = if parents.len() == 1 { "has" } else { "have" };
    let end_words = match on {
        AfterWhat::Success => "succeeded",
        AfterWhat::Failure => "failed",
        AfterWhat::Either => "ended",
    };
    format!("after {names} {verb} {end_words}")
}

fn after_text_zh(After { parents, on }: &After) -> String {
    let all_word = if parents.len() == 1 { "" } else { "都" };
    let end_words = match on {
        AfterWhat::Success => "成功",
        AfterWhat::Failure => "失败",
        AfterWhat::Either => "结束",
    };
    format!("在 {} {all_word}{end_words}之后", super::shape::join_words(parents, "、", "和"))
}

fn bound_texts(schedule: &Schedule, lang: Lang) -> Vec<String> {
    let (start, end) = (schedule.start, schedule.end);
    let text_of = |at| instant_text(schedule.zone, at);
    let is_counted = matches!(schedule.kind, Kind::Every(_));
    let start_text = start.map(text_of).map(|at| match lang {
        Lang::En if is_counted => format!("counted from {at}"),
        Lang::En => format!("not before {at}"),
        Lang::Zh if is_counted => format!("从 {at} 起计"),
        Lang::Zh => format!("不早于 {at}"),
    });
    let end_text = end.map(text_of).map(|at| match lang {
        Lang::En => format!("not after {at}"),
        Lang::Zh => format!("不晚于 {at}"),
    });
    start_text.into_iter().chain(end_text).collect()
}

fn clock_change_texts(dst: DstRule, lang: Lang) -> Vec<String> {
    let gap = match dst.gap {
        Gap::Auto => None,
        Gap::NextValid => {
            Some(("times that the clock skips fire once right after the gap", "被跳过的时刻在跳变之后补触发一次"))
        }
        Gap::Skip => Some(("times that the clock skips do not fire", "被跳过的时刻不触发")),
    };
    let overlap = match dst.overlap {
        Fold::Auto => None,
        Fold::First => Some(("times that the clock shows twice fire the first time", "重复出现的时刻在第一次触发")),
        Fold::Second => Some(("times that the clock shows twice fire the second time", "重复出现的时刻在第二次触发")),
        Fold::Both => Some(("times that the clock shows twice fire both times", "重复出现的时刻两次都触发")),
    };
    let describe = |(en, zh): (&str, &str)| match lang {
        Lang::En => en.to_owned(),
        Lang::Zh => zh.to_owned(),
    };
    gap.into_iter().chain(overlap).map(describe).collect()
}

fn jitter_text(jitter: Jitter, lang: Lang) -> String {
    let max_text = length(jitter.max(), lang);
    match (lang, jitter.by()) {
        (Lang::En, JitterBy::Job) => format!("runs start up to {max_text} later, always by the same length"),
        (Lang::En, JitterBy::Fire) => format!("runs start up to {max_text} later, each by a length of its own"),
        (Lang::Zh, JitterBy::Job) => format!("推迟至多{max_text}开始，每次推迟相同"),
        (Lang::Zh, JitterBy::Fire) => format!("推迟至多{max_text}开始，每次推迟不同"),
    }
}
