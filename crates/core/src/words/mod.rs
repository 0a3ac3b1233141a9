//! Sentences for users, in each language: when a job runs.
//!
//! A cron expression is described from the sets that it was compiled into, never from its text: two spellings of one schedule read alike,
//! and the sentence describes what really fires.

mod asked;
mod cron_parts;
mod en;
mod length;
mod moment;
mod schedule;
mod shape;
mod zh;

#[cfg(test)]
mod tests;

use std::fmt;

use crate::cron::{CronExpr, Dialect};
use crate::word_enum::word_enum;

pub use self::asked::asked_instants;
pub use self::length::length;
pub use self::moment::{instant_text, instants};
pub use self::schedule::{calendar, schedule, schedule_spec, timetable};

word_enum! {
    /// A language of sentences.
    Lang {
        /// English.
        En = "en",
        /// Chinese.
        Zh = "zh",
    }
}

/// A number with its noun, which is in the plural unless the number is 1.
///
/// ```
/// use rondel_core::words::counted;
///
/// assert_eq!([counted(0, "job"), counted(1, "job"), counted(2, "job")], ["0 jobs", "1 job", "2 jobs"]);
/// ```
#[must_use]
pub fn counted<N: Copy + fmt::Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let plural_s = if count == N::from(1) { "" } else { "s" };
    format!("{count} {noun}{plural_s}")
}

/// When an expression fires, without its zone.
///
/// ```
/// use rondel_core::cron::CronExpr;
/// use rondel_core::words::{Lang, cron};
///
/// let expression = CronExpr::parse("0 0 9 LW * ?")?;
/// assert_eq!(cron(&expression, Lang::En), "at 09:00 on the last weekday of each month");
/// assert_eq!(cron(&expression, Lang::Zh), "每月最后一个工作日 09:00");
/// # Ok::<(), rondel_core::cron::CronError>(())
/// ```
#[must_use]
pub fn cron(expression: &CronExpr, lang: Lang) -> String {
    let parts = cron_parts::Parts::of(expression.fields());
    match lang {
        Lang::En => en::sentence(&parts),
        Lang::Zh => zh::sentence(&parts),
    }
}

/// The syntax in which an expression was read, as a clause.
#[must_use]
pub const fn dialect(dialect: Dialect, lang: Lang) -> &'static str {
    match (lang, dialect) {
        (Lang::En, Dialect::Quartz6) => {
            "read as Quartz cron with 6 fields, the first being the second (weekday 1-7, 1 is Sunday)"
        }
        (Lang::En, Dialect::Quartz7) => {
            "read as Quartz cron with 7 fields, the last being the year (weekday 1-7, 1 is Sunday)"
        }
        (Lang::En, Dialect::Unix5) => {
            "read as Unix cron with 5 fields, the first being the minute (weekday 0-7, 0 and 7 are Sunday)"
        }
        (Lang::En, Dialect::Macro) => "read as a macro",
        (Lang::Zh, Dialect::Quartz6) => "按 6 个字段的 Quartz cron 解读，第一个字段是秒（星期 1-7，1 是周日）",
        (Lang::Zh, Dialect::Quartz7) => "按 7 个字段的 Quartz cron 解读，最后一个字段是年（星期 1-7，1 是周日）",
        (Lang::Zh, Dialect::Unix5) => "按 5 个字段的 Unix cron 解读，第一个字段是分（星期 0-7，0 和 7 是周日）",
        (Lang::Zh, Dialect::Macro) => "按宏解读",
    }
}
