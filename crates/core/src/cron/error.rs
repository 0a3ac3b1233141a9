//! The error for an expression that is refused.

use std::fmt;

use serde::Serialize;

/// The part of an expression that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CronField {
    /// The expression as a whole: its length or its number of fields.
    Expression,
    /// Seconds, 0-59.
    Second,
    /// Minutes, 0-59.
    Minute,
    /// Hours, 0-23.
    Hour,
    /// Days of the month, 1-31.
    DayOfMonth,
    /// Months, 1-12.
    Month,
    /// Days of the week: 1-7 from Sunday in Quartz, 0-7 in Unix cron.
    DayOfWeek,
    /// Years.
    Year,
}

impl fmt::Display for CronField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expression => "expression",
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::DayOfMonth => "day of month",
            Self::Month => "month",
            Self::DayOfWeek => "day of week",
            Self::Year => "year",
        })
    }
}

/// Why an expression was refused, in one sentence.
///
/// ```
/// use rondel_core::cron::CronExpr;
///
/// let refused = CronExpr::parse("0 0 0 1 13 ?").unwrap_err();
/// assert_eq!(
///     refused.to_string(),
///     "month at position 8: \"13\" is not allowed, only 1-12, JAN-DEC, lists (1,5), ranges (10-2), steps (1/2) and *"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{field} at position {position}: {value:?} is not allowed, only {allowed}")]
pub struct CronError {
    pub field: CronField,
    /// The part of the text that is wrong, shortened if it is long.
    pub value: String,
    /// Its position in the text: the number of characters before it.
    pub position: usize,
    /// What is allowed there instead.
    pub allowed: String,
}
