//! Schedules in plain words, where there are plain words for them.

use rondel_core::JobSpec;
use rondel_core::spec::{OneOrMany, ScheduleSpec};
use rondel_core::time::parse_duration;

use super::moment::period;
use super::texts::Texts;

/// A schedule on a page.
#[derive(Clone, Debug)]
pub(crate) struct ScheduleText {
    pub(crate) words: String,
    /// The expression and the zone that the words stand for.
    pub(crate) code: Option<String>,
}

/// Every schedule of a job; none for a job that is only triggered.
pub(crate) fn of_job(spec: &JobSpec, t: &Texts) -> Vec<ScheduleText> {
    let schedules: &[ScheduleSpec] = match &spec.schedule {
        None => &[],
        Some(OneOrMany::One(one)) => std::slice::from_ref(one),
        Some(OneOrMany::Many(many)) => many,
    };
    schedules.iter().map(|schedule| of_schedule(schedule, t)).collect()
}

fn of_schedule(schedule: &ScheduleSpec, t: &Texts) -> ScheduleText {
    let plain = |words: String| ScheduleText { words, code: None };
    if let Some(every) = &schedule.every {
        return plain(t.sched_every(parse_duration(every).map_or_else(|_| every.clone(), |every| period(every, t))));
    }
    if let Some(at) = &schedule.at {
        return plain(t.sched_once(at));
    }
    let Some(cron) = &schedule.cron else { return plain(t.sched_other.to_owned()) };
    let zone = schedule.time_zone.as_deref().unwrap_or("UTC");
    match cron_words(cron, t) {
        Some(words) => ScheduleText { words, code: Some(format!("{cron} · {zone}")) },
        None => ScheduleText { words: cron.clone(), code: Some(zone.to_owned()) },
    }
}

/// Words for the expressions that most jobs have.
fn cron_words(cron: &str, t: &Texts) -> Option<String> {
    let fields: Vec<&str> = cron.split_whitespace().collect();
    let (second, minute, hour, day, month, weekday) = match fields.as_slice() {
        [minute, hour, day, month, weekday] => ("0", *minute, *hour, *day, *month, *weekday),
        [second, minute, hour, day, month, weekday] => (*second, *minute, *hour, *day, *month, *weekday),
        _ => return None,
    };
    let is_any = |field: &str| matches!(field, "*" | "?");
    if !is_any(month) {
        return None;
    }
    let is_daily = is_any(weekday);
    if !is_any(day) {
        return monthly(day, step(hour), step(minute), step(second), t).filter(|_| is_daily);
    }
    match (step(second), step(minute), step(hour)) {
        (Step::Each(n), Step::Any, Step::Any) if is_daily => Some(t.sched_every(format_args!("{n} {}", t.unit_s))),
        (Step::Any, Step::Any, Step::Any) if is_daily => Some(t.sched_every(format_args!("1 {}", t.unit_s))),
        (Step::At(0), Step::Each(n), Step::Any) if is_daily => Some(t.sched_every(format_args!("{n} {}", t.unit_min))),
        (Step::At(0), Step::Any, Step::Any) if is_daily => Some(t.sched_every(format_args!("1 {}", t.unit_min))),
        (Step::At(0), Step::At(0), Step::Each(n)) if is_daily => Some(t.sched_every(format_args!("{n} {}", t.unit_h))),
        (Step::At(0), Step::At(minute), Step::Any) if is_daily => Some(t.sched_hourly(format_args!("{minute:02}"))),
        (Step::At(second), Step::At(minute), Step::At(hour)) if is_daily => {
            Some(t.sched_daily(clock(hour, minute, second)))
        }
        (Step::At(second), Step::At(minute), Step::At(hour)) if weekday.eq_ignore_ascii_case("MON-FRI") => {
            Some(t.sched_weekdays(clock(hour, minute, second)))
        }
        _ => None,
    }
}

fn monthly(day: &str, hour: Step, minute: Step, second: Step, t: &Texts) -> Option<String> {
    match (day.parse::<u8>(), hour, minute, second) {
        (Ok(day), Step::At(hour), Step::At(minute), Step::At(second)) => {
            Some(t.sched_monthly(day, clock(hour, minute, second)))
        }
        _ => None,
    }
}

fn clock(hour: u8, minute: u8, second: u8) -> String {
    if second == 0 { format!("{hour:02}:{minute:02}") } else { format!("{hour:02}:{minute:02}:{second:02}") }
}

#[derive(Clone, Copy)]
enum Step {
    Any,
    At(u8),
    Each(u8),
    Other,
}

fn step(field: &str) -> Step {
    if field == "*" {
        return Step::Any;
    }
    if let Ok(at) = field.parse() {
        return Step::At(at);
    }
    let period = field.strip_prefix("*/").or_else(|| field.strip_prefix("0/"));
    period.and_then(|period| period.parse().ok()).map_or(Step::Other, Step::Each)
}

#[cfg(test)]
mod tests {
    use super::super::texts::Lang;
    use super::*;

    #[track_caller]
    fn check(cron: &str, expected: Option<&str>) {
        assert_eq!(cron_words(cron, Lang::En.texts()).as_deref(), expected, "{cron}");
    }

    #[test]
    fn common_expressions_have_words() {
        check("0/10 * * * * ?", Some("every 10 s"));
        check("0 */5 * * * ?", Some("every 5 min"));
        check("*/5 * * * *", Some("every 5 min"));
        check("0 0 * * * ?", Some("hourly at minute 00"));
        check("0 30 2 * * ?", Some("daily at 02:30"));
        check("0 0 9 ? * MON-FRI", Some("Monday to Friday at 09:00"));
        check("0 0 1 1 * ?", Some("monthly on day 1 at 01:00"));
        check("0 0 12 LW * ?", None);
        check("0 0 12 1 1 ?", None);
        check("0 0 9 ? * 2", None);
        check("0 0-5 * * * ?", None);
        check("@daily", None);
    }
}
