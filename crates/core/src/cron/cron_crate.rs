//! The fields that the `cron` crate reads exactly as Quartz does: lists, rising ranges, steps within the field's limits
//! and three-letter names.

use std::str::FromStr;

use cron::{Schedule, TimeUnitSpec};

use super::error::CronField;

/// The values of a field; `None` if the crate refuses it or would read it differently from Quartz.
pub(super) fn read(field: CronField, text: &str) -> Option<Vec<u32>> {
    let is_read_alike = names_are_short(text) && (field != CronField::Year || !reaches_the_last_year(text));
    if !is_read_alike || text.contains('?') {
        return None;
    }
    let schedule = Schedule::from_str(&expression_with(field, text)?).ok()?;
    Some(match field {
        CronField::Expression => return None,
        CronField::Second => values(schedule.seconds()),
        CronField::Minute => values(schedule.minutes()),
        CronField::Hour => values(schedule.hours()),
        CronField::DayOfMonth => values(schedule.days_of_month()),
        CronField::Month => values(schedule.months()),
        CronField::DayOfWeek => values(schedule.days_of_week()),
        CronField::Year => values(schedule.years()),
    })
}

/// Whether all names have three letters, and the text has no name together with a step. The crate also reads full names, even
/// in ranges and with steps. Quartz reads only their first three letters and ignores the rest.
fn names_are_short(text: &str) -> bool {
    let has_names = text.contains(|c: char| c.is_ascii_alphabetic());
    let has_short_names = text.split(|c: char| !c.is_ascii_alphabetic()).all(|name| matches!(name.len(), 0 | 3));
    has_short_names && !(has_names && text.contains('/'))
}

/// Whether an item extends to the last year. The crate's last year is 2100, the last year of this parser is later.
fn reaches_the_last_year(text: &str) -> bool {
    text.split(',').any(|item| item.contains('*') || (item.contains('/') && !item.contains('-')))
}

fn expression_with(field: CronField, text: &str) -> Option<String> {
    Some(match field {
        CronField::Expression => return None,
        CronField::Second => format!("{text} * * * * *"),
        CronField::Minute => format!("* {text} * * * *"),
        CronField::Hour => format!("* * {text} * * *"),
        CronField::DayOfMonth => format!("* * * {text} * *"),
        CronField::Month => format!("* * * * {text} *"),
        CronField::DayOfWeek => format!("* * * * * {text}"),
        CronField::Year => format!("* * * * * * {text}"),
    })
}

fn values(unit: &impl TimeUnitSpec) -> Vec<u32> {
    unit.iter().collect()
}
