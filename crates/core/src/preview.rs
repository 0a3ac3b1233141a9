//! Previews a schedule before it is saved: its next fires, and warnings about it.

use std::time::Duration;

use chrono::{NaiveDate, NaiveDateTime, NaiveTime, SecondsFormat, TimeZone as _};

use crate::calendar_effect::{CalendarEffect, calendar_effect};
use crate::cron::{ClockChange, ClockEffect, Tz};
use crate::local;
use crate::schedule::{Kind, Schedule, just_before};
use crate::time::Timestamp;
use crate::timetable::{AppliedCalendar, Timetable};
use crate::word_enum::word_enum;
use crate::words::{Lang, instant_text};

/// Maximum number of fires in one preview.
pub const FIRE_COUNT_MAX: usize = 10_000;
/// More fires a day than this get a warning, unless the caller sets another limit.
pub const PER_DAY_MAX: u64 = 1_440;
/// How far ahead clock changes are searched: 18 months.
const CLOCK_AHEAD: Duration = Duration::from_secs(549 * 86_400);
/// How far ahead a calendar's days are searched.
const CALENDAR_AHEAD: Duration = Duration::from_secs(366 * 86_400);
/// Maximum number of calendar days with a warning.
const CALENDAR_COUNT_MAX: usize = 5;
/// Maximum number of steps of the search for calendar days with a warning.
const CALENDAR_STEPS_MAX: usize = 2_000;

/// The input of a preview.
#[derive(Clone, Copy, Debug)]
pub struct PreviewRequest<'a> {
    /// The schedules with their calendar.
    pub timetable: &'a Timetable,
    /// The instant from which `every` schedules count.
    pub anchor: Timestamp,
    /// Only fires after this instant are listed.
    pub after: Timestamp,
    /// How many fires to list; at most [`FIRE_COUNT_MAX`].
    pub count: usize,
    /// More fires a day than this get a warning.
    pub per_day_max: u64,
}

/// The next fires of a schedule, and warnings about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// The zone of the first schedule, in which local times are shown.
    pub zone: Tz,
    /// The next fires; none for a fixed delay or a job that follows others, because their instants depend on runs.
    pub fires: Vec<PreviewFire>,
    pub warnings: Vec<Warning>,
}

/// A future fire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviewFire {
    pub at: Timestamp,
    /// The local time in the zone, with its offset from UTC: `2026-11-21T02:30:00+08:00`.
    pub local: String,
}

word_enum! {
    /// What a warning is about.
    WarningCode {
        /// There is no fire ahead.
        NeverFires = "never_fires",
        /// It fires very often.
        FiresOften = "fires_often",
        /// A clock change skips a planned time.
        ClockSkips = "clock_skips",
        /// A clock change shows a planned time twice.
        ClockRepeats = "clock_repeats",
        /// A calendar removes fires of a day.
        CalendarRemoves = "calendar_removes",
        /// A calendar moves fires of a day.
        CalendarMoves = "calendar_moves",
    }
}

/// A warning for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// What it is about.
    pub code: WarningCode,
    /// The instant that it is about, if there is one.
    pub at: Option<Timestamp>,
    /// A sentence in English.
    pub en: String,
    /// The same sentence in Chinese.
    pub zh: String,
}

impl Warning {
    /// The sentence in a language.
    #[must_use]
    pub fn sentence(&self, lang: Lang) -> &str {
        match lang {
            Lang::En => &self.en,
            Lang::Zh => &self.zh,
        }
    }
}

/// The next fires, and warnings.
///
/// ```
/// use rondel_core::preview::{PreviewRequest, PER_DAY_MAX, preview};
///
/// let spec: rondel_core::JobSpec = serde_json::from_str(
///     r#"{"name": "a", "app": "b", "handler": "c", "schedule": {"cron": "0 30 2 * * ?", "time_zone": "Europe/Berlin"}}"#,
/// )?;
/// let job = spec.compile().expect("a valid definition");
/// let (anchor, after) = (rondel_core::Timestamp::EPOCH, "2026-03-01T00:00:00Z".parse().expect("an instant"));
/// let request = PreviewRequest { timetable: &job.timetable, anchor, after, count: 2, per_day_max: PER_DAY_MAX };
/// let preview = preview(request);
/// assert_eq!(preview.fires[0].local, "2026-03-01T02:30:00+01:00");
/// assert_eq!(preview.warnings[0].code.as_str(), "clock_skips");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[must_use]
pub fn preview(request: PreviewRequest<'_>) -> Preview {
    let zone = request.timetable.schedules.first().map_or(Tz::UTC, |schedule| schedule.zone);
    let count = request.count.min(FIRE_COUNT_MAX);
    let fires: Vec<PreviewFire> = request
        .timetable
        .fires(request.anchor, request.after, Timestamp::MAX)
        .take(count)
        .map(|fire| PreviewFire { at: fire.at, local: local_text(zone, fire.at) })
        .collect();
    let has_no_fire = if count == 0 { never_fires(&request) } else { fires.is_empty() };
    let mut warnings = Vec::new();
    if has_no_fire && request.timetable.schedules.iter().any(fires_by_clock) {
        warnings.push(never_warning(zone, &request));
    }
    warnings.extend(frequency_warning(&request));
    warnings.extend(clock_warnings(&request));
    warnings.extend(calendar_warnings(&request));
    Preview { zone, fires, warnings }
}

fn never_fires(request: &PreviewRequest<'_>) -> bool {
    request.timetable.next_after(request.anchor, request.after).is_none()
}

/// Whether the schedule's instants are known in advance, because they do not depend on runs.
const fn fires_by_clock(schedule: &Schedule) -> bool {
    matches!(schedule.kind, Kind::Cron { .. } | Kind::Every(_) | Kind::At(_))
}

fn local_text(zone: Tz, at: Timestamp) -> String {
    let Some(utc) = at.to_utc() else { return at.to_string() };
    zone.from_utc_datetime(&utc.naive_utc()).to_rfc3339_opts(SecondsFormat::AutoSi, false)
}

fn never_warning(zone: Tz, request: &PreviewRequest<'_>) -> Warning {
    let after = instant_text(zone, request.after);
    Warning {
        code: WarningCode::NeverFires,
        at: None,
        en: format!("It never fires after {after}."),
        zh: format!("在 {after} 之后永远不会触发。"),
    }
}

fn frequency_warning(request: &PreviewRequest<'_>) -> Option<Warning> {
    let times_per_day = |schedule: &Schedule| match &schedule.kind {
        Kind::Cron { expr, .. } => expr.fields().times_per_day(),
        Kind::Every(period) => 86_400 / period.as_secs().max(1),
        Kind::At(_) | Kind::Delay(_) | Kind::After(_) => 0,
    };
    let per_day: u64 = request.timetable.schedules.iter().map(times_per_day).sum();
    (per_day > request.per_day_max).then(|| Warning {
        code: WarningCode::FiresOften,
        at: None,
        en: format!("It fires up to {per_day} times a day."),
        zh: format!("每天最多触发 {per_day} 次。"),
    })
}

fn clock_warnings(request: &PreviewRequest<'_>) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for schedule in &request.timetable.schedules {
        let Kind::Cron { expr, dst } = &schedule.kind else { continue };
        let from = request.after.max(schedule.start.unwrap_or(request.after));
        let to = (request.after + CLOCK_AHEAD).min(schedule.end.unwrap_or(Timestamp::MAX));
        let changes = expr.clock_changes(schedule.zone, *dst, from, to);
        warnings.extend(changes.into_iter().map(|change| clock_warning(schedule.zone, change)));
    }
    warnings.sort_by_key(|warning| warning.at);
    warnings.dedup();
    warnings
}

fn clock_warning(zone: Tz, ClockChange { at, local, effect }: ClockChange) -> Warning {
    let (date, time, time_after) = (local.date(), time_text(local), time_text(local::time_at(zone, at)));
    let (code, en, zh) = match effect {
        ClockEffect::OnceAfter => (
            WarningCode::ClockSkips,
            format!("it fires once at {time_after}, at the end of the skipped time"),
            format!("跳过结束后在 {time_after} 补触发一次"),
        ),
        ClockEffect::Skipped => {
            (WarningCode::ClockSkips, "it does not fire then".to_owned(), "那一刻不触发".to_owned())
        }
        ClockEffect::First => {
            (WarningCode::ClockRepeats, "it fires the first time only".to_owned(), "只在第一次触发".to_owned())
        }
        ClockEffect::Second => {
            (WarningCode::ClockRepeats, "it fires the second time only".to_owned(), "只在第二次触发".to_owned())
        }
        ClockEffect::Both => (WarningCode::ClockRepeats, "it fires both times".to_owned(), "两次都触发".to_owned()),
    };
    let (effect_en, effect_zh) = match code {
        WarningCode::ClockSkips => (format!("skips {time}"), format!("跳过 {time}")),
        _ => (format!("shows {time} twice"), format!("两次显示 {time}")),
    };
    let name = zone.name();
    Warning {
        code,
        at: Some(at),
        en: format!("On {date} the clock of {name} {effect_en}: {en}."),
        zh: format!("{date}，{name} 的时钟{effect_zh}：{zh}。"),
    }
}

fn time_text(local: NaiveDateTime) -> String {
    let text = local.format("%H:%M:%S").to_string();
    text.strip_suffix(":00").map_or(text.clone(), str::to_owned)
}

/// Warnings about the first days whose fires the calendar removes or moves.
fn calendar_warnings(request: &PreviewRequest<'_>) -> Vec<Warning> {
    let Some(applied) = &request.timetable.calendar else { return Vec::new() };
    let until = request.after + CALENDAR_AHEAD;
    let (mut warnings, mut cursor) = (Vec::new(), request.after);
    for _ in 0..CALENDAR_STEPS_MAX {
        let fire_without_calendar =
            request.timetable.next_without_calendar(request.anchor, cursor).filter(|(at, _)| *at <= until);
        let Some((at, schedule)) = fire_without_calendar.filter(|_| warnings.len() < CALENDAR_COUNT_MAX) else { break };
        let local = local::time_at(schedule.zone, at);
        cursor = if applied.keeps(local) {
            local::last_before(schedule.zone, at, applied.calendar.next_edge(local))
        } else {
            warnings.push(calendar_warning(schedule.zone, applied, at, calendar_effect(schedule, applied, at)));
            let next_midnight = local.date().succ_opt().unwrap_or(NaiveDate::MAX).and_time(NaiveTime::MIN);
            just_before(local::instant(schedule.zone, next_midnight)).max(at)
        };
    }
    warnings
}

fn calendar_warning(
    zone: Tz,
    applied: &AppliedCalendar,
    at: Timestamp,
    CalendarEffect { day, moved_to }: CalendarEffect,
) -> Warning {
    let (at_text, calendar) = (instant_text(zone, at), applied.calendar.name());
    let (en, zh) = day.map_or((String::new(), String::new()), |day| (format!(" ({day})"), format!("（{day}）")));
    match moved_to {
        Some(to) => {
            let to = instant_text(zone, to);
            Warning {
                code: WarningCode::CalendarMoves,
                at: Some(at),
                en: format!("The calendar {calendar} moves the fire of {at_text}{en} to {to}."),
                zh: format!("日历 {calendar} 把 {at_text}{zh} 的触发移到 {to}。"),
            }
        }
        None => Warning {
            code: WarningCode::CalendarRemoves,
            at: Some(at),
            en: format!("The calendar {calendar} removes the fire of {at_text}{en}."),
            zh: format!("日历 {calendar} 排除了 {at_text}{zh} 的触发。"),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::calendar::{Calendar, CalendarSpec};

    fn of(schedule: &Value, rule: Option<&str>, after: &str) -> Preview {
        let days = json!([{"date": "2026-10-01..2026-10-07", "name": "National Day"}]);
        let calendar: CalendarSpec = serde_json::from_value(json!({"name": "cn", "rule": {"days": days}})).unwrap();
        let open: CalendarSpec =
            serde_json::from_value(json!({"name": "cn", "rule": {"not": {"days": days}}})).unwrap();
        let calendar = if rule == Some("except") { calendar } else { open };
        let calendar = Arc::new(Calendar::compile(&calendar, |_| None).unwrap());
        let mut job = json!({"name": "a", "app": "b", "handler": "c", "schedule": schedule});
        if let Some(rule) = rule {
            job["calendar"] = json!({"name": "cn", "rule": rule});
        }
        let job: crate::JobSpec = serde_json::from_value(job).unwrap();
        let job = job.compile_with(rule.map(|_| calendar)).unwrap();
        let after = after.parse().unwrap();
        let anchor = Timestamp::EPOCH;
        preview(PreviewRequest { timetable: &job.timetable, anchor, after, count: 3, per_day_max: PER_DAY_MAX })
    }

    #[track_caller]
    fn check(preview: &Preview, warnings: &[(&str, &str, &str)]) {
        let found: Vec<_> = preview
            .warnings
            .iter()
            .map(|warning| {
                let [en, zh] = [Lang::En, Lang::Zh].map(|lang| warning.sentence(lang));
                (warning.code.as_str(), en, zh)
            })
            .collect();
        assert_eq!(found, warnings);
    }

    #[test]
    fn fires_are_listed_in_utc_and_local_time() {
        let schedule = json!([{"cron": "0 0 9 * * ?", "time_zone": "Asia/Shanghai"}, {"every": "12h"}]);
        let preview = of(&schedule, None, "2026-06-01T00:30:00Z");
        let fires: Vec<_> = preview.fires.iter().map(|fire| (fire.at.to_string(), fire.local.as_str())).collect();
        let expected = [
            ("2026-06-01T01:00:00Z", "2026-06-01T09:00:00+08:00"),
            ("2026-06-01T12:00:00Z", "2026-06-01T20:00:00+08:00"),
            ("2026-06-02T00:00:00Z", "2026-06-02T08:00:00+08:00"),
        ];
        assert_eq!(fires, expected.map(|(at, local)| (at.to_owned(), local)));
        check(&preview, &[]);
    }

    #[test]
    fn a_schedule_that_never_fires_is_reported() {
        let never = |schedule: Value| of(&schedule, None, "2026-06-01T00:00:00Z");
        let expected =
            ("never_fires", "It never fires after 2026-06-01 00:00 UTC.", "在 2026-06-01 00:00 UTC 之后永远不会触发。");
        check(&never(json!({"cron": "0 0 0 31 2 ?"})), &[expected]);
        check(&never(json!({"at": "2026-01-01T00:00:00Z"})), &[expected]);
        check(&never(json!({"delay": "5s"})), &[]);
        check(&never(json!(null)), &[]);
    }

    #[test]
    fn a_schedule_that_fires_often_is_reported() {
        let often = |schedule: Value| of(&schedule, None, "2026-06-01T00:00:00Z");
        check(&often(json!({"cron": "0 * * * * ?"})), &[]);
        let seconds = ("fires_often", "It fires up to 86400 times a day.", "每天最多触发 86400 次。");
        check(&often(json!({"cron": "* * * * * ?"})), &[seconds]);
        let both = ("fires_often", "It fires up to 1441 times a day.", "每天最多触发 1441 次。");
        check(&often(json!([{"every": "1m"}, {"cron": "0 0 9 * * ?"}])), &[both]);
    }

    #[test]
    fn clock_changes_are_reported_for_eighteen_months() {
        let berlin = |cron: &str, dst: Value| json!({"cron": cron, "time_zone": "Europe/Berlin", "dst": dst});
        let after = "2026-04-01T00:00:00Z";
        check(
            &of(&berlin("0 30 2 * * ?", json!({})), None, after),
            &[
                (
                    "clock_repeats",
                    "On 2026-10-25 the clock of Europe/Berlin shows 02:30 twice: it fires the first time only.",
                    "2026-10-25，Europe/Berlin 的时钟两次显示 02:30：只在第一次触发。",
                ),
                (
                    "clock_skips",
                    "On 2027-03-28 the clock of Europe/Berlin skips 02:30: it fires once at 03:00, at the end of the \
                     skipped time.",
                    "2027-03-28，Europe/Berlin 的时钟跳过 02:30：跳过结束后在 03:00 补触发一次。",
                ),
            ],
        );
        check(
            &of(&berlin("0 30 2 * * ?", json!({"gap": "skip", "overlap": "second"})), None, "2026-12-01T00:00:00Z"),
            &[
                (
                    "clock_skips",
                    "On 2027-03-28 the clock of Europe/Berlin skips 02:30: it does not fire then.",
                    "2027-03-28，Europe/Berlin 的时钟跳过 02:30：那一刻不触发。",
                ),
                (
                    "clock_repeats",
                    "On 2027-10-31 the clock of Europe/Berlin shows 02:30 twice: it fires the second time only.",
                    "2027-10-31，Europe/Berlin 的时钟两次显示 02:30：只在第二次触发。",
                ),
                (
                    "clock_skips",
                    "On 2028-03-26 the clock of Europe/Berlin skips 02:30: it does not fire then.",
                    "2028-03-26，Europe/Berlin 的时钟跳过 02:30：那一刻不触发。",
                ),
            ],
        );
        check(&of(&berlin("0 30 4 * * ?", json!({})), None, after), &[]);
        let every_hour = of(&berlin("0 0 * * * ?", json!({})), None, after);
        let codes: Vec<_> = every_hour.warnings.iter().map(|warning| warning.en.rsplit(": ").next().unwrap()).collect();
        assert_eq!(codes, ["it fires both times.", "it does not fire then."]);
    }

    #[test]
    fn days_that_a_calendar_takes_are_named() {
        let daily = json!({"cron": "0 0 9 * * ?", "time_zone": "Asia/Shanghai"});
        let removed = of(&daily, Some("except"), "2026-10-05T12:00:00Z");
        assert_eq!(removed.fires[0].local, "2026-10-08T09:00:00+08:00");
        check(
            &removed,
            &[
                (
                    "calendar_removes",
                    "The calendar cn removes the fire of 2026-10-06 09:00 Asia/Shanghai (National Day).",
                    "日历 cn 排除了 2026-10-06 09:00 Asia/Shanghai（National Day） 的触发。",
                ),
                (
                    "calendar_removes",
                    "The calendar cn removes the fire of 2026-10-07 09:00 Asia/Shanghai (National Day).",
                    "日历 cn 排除了 2026-10-07 09:00 Asia/Shanghai（National Day） 的触发。",
                ),
            ],
        );
        let monthly = json!({"cron": "0 0 9 7 10 ?", "time_zone": "Asia/Shanghai"});
        check(
            &of(&monthly, Some("next"), "2026-10-01T00:00:00Z"),
            &[(
                "calendar_moves",
                "The calendar cn moves the fire of 2026-10-07 09:00 Asia/Shanghai (National Day) to 2026-10-08 09:00 \
                 Asia/Shanghai.",
                "日历 cn 把 2026-10-07 09:00 Asia/Shanghai（National Day） 的触发移到 2026-10-08 09:00 Asia/Shanghai。",
            )],
        );
    }

    #[test]
    fn a_schedule_that_never_fires_is_reported_even_if_no_fires_are_requested() {
        let codes = |at: &str, count| {
            let job = json!({"name": "a", "app": "b", "handler": "c", "schedule": {"at": at}});
            let job = serde_json::from_value::<crate::JobSpec>(job).unwrap().compile().unwrap();
            let (anchor, after) = (Timestamp::EPOCH, "2026-06-01T00:00:00Z".parse().unwrap());
            let request = PreviewRequest { timetable: &job.timetable, anchor, after, count, per_day_max: PER_DAY_MAX };
            preview(request).warnings.iter().map(|warning| warning.code.as_str()).collect::<Vec<_>>()
        };
        for count in [0, 3] {
            assert_eq!(codes("2026-05-01T00:00:00Z", count), ["never_fires"]);
            assert!(codes("2026-07-01T00:00:00Z", count).is_empty());
        }
    }

    #[test]
    fn local_times_have_their_offset_in_utc_too() {
        let fires = of(&json!({"every": "12h"}), None, "2026-06-01T00:30:00Z").fires;
        assert_eq!(fires[0].local, "2026-06-01T12:00:00+00:00");
    }

    #[test]
    fn a_period_fires_so_often_a_day() {
        let often = |period: &str, per_day_max| {
            let job = json!({"name": "a", "app": "b", "handler": "c", "schedule": {"every": period}});
            let job = serde_json::from_value::<crate::JobSpec>(job).unwrap().compile().unwrap();
            let (anchor, after) = (Timestamp::EPOCH, Timestamp::from_secs(0));
            let request = PreviewRequest { timetable: &job.timetable, anchor, after, count: 1, per_day_max };
            preview(request).warnings.iter().map(|warning| warning.en.clone()).collect::<Vec<_>>()
        };
        assert_eq!(often("1s", 86_399), ["It fires up to 86400 times a day."]);
        assert!(often("1s", 86_400).is_empty());
        assert_eq!(often("1h", 23), ["It fires up to 24 times a day."]);
    }

    #[test]
    fn clock_changes_before_the_start_are_not_reported() {
        let schedule = |start: &str| json!({"cron": "0 30 2 * * ?", "time_zone": "Europe/Berlin", "start_at": start});
        let winter = "2026-12-01T00:00:00Z".parse::<Timestamp>().unwrap();
        let early = |start| {
            let warnings = of(&schedule(start), None, "2026-01-01T00:00:00Z").warnings;
            warnings.iter().filter(|warning| warning.at.is_some_and(|at| at < winter)).count()
        };
        assert_eq!((early("2026-01-01T00:00:00Z"), early("2026-12-01T00:00:00Z")), (2, 0));
    }
}
