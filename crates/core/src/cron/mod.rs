//! Cron expressions of Quartz and of Unix: when a job is due.
//!
//! An expression is read once into bit sets. The search for the next fire goes field by field with carry, in the wall-clock
//! time of a zone, and a [`DstRule`] translates the result to an instant. This module reads no clock, and knows no start dates,
//! calendars or misfires: these belong to schedules.
//!
//! Reading follows Quartz 2.3.2, with one exception: where Quartz silently ignores a part of the text (it reads `MON-FRI/2` as
//! `MON-FRI`, and `1W,15W` as `1W`), the expression is refused and the part is named.

mod changes;
mod cron_crate;
mod date;
mod days;
mod dst;
mod error;
mod field;
mod parse;
mod search;
mod spans;
mod token;
mod zone;

#[cfg(test)]
mod clock_tests;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use self::changes::{ClockChange, ClockEffect};
pub(crate) use self::days::{ALL_DAYS, ALL_WEEKDAYS, DayRule};
use self::dst::HourForm;
pub use self::dst::{DstRule, Fold, Gap};
pub use self::error::{CronError, CronField};
pub use self::field::{FIRST_YEAR, LAST_YEAR};
pub use self::zone::{Tz, ZoneError, parse_zone};

pub(crate) use self::search::Fields;
use crate::time::Timestamp;

/// The longest expression that is read, in characters.
pub const EXPRESSION_LENGTH_MAX: usize = 256;

/// The syntax of a cron expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// Quartz with six fields: second, minute, hour, day of month, month, day of week (1 is Sunday).
    Quartz6,
    /// Quartz with a seventh field, the year.
    Quartz7,
    /// Unix cron with five fields from the minute on; the day of week is 0-7, both 0 and 7 being Sunday.
    Unix5,
    /// `@hourly` to `@yearly`.
    Macro,
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quartz6 => "Quartz cron with 6 fields (weekday 1-7, 1 is Sunday)",
            Self::Quartz7 => "Quartz cron with 7 fields (weekday 1-7, 1 is Sunday)",
            Self::Unix5 => "Unix cron with 5 fields (weekday 0-7, 0 and 7 are Sunday)",
            Self::Macro => "a macro",
        })
    }
}

/// A cron expression, parsed once and evaluated often.
///
/// ```
/// use rondel_core::Timestamp;
/// use rondel_core::cron::{CronExpr, DstRule, parse_zone};
///
/// let last_weekday_at_noon = CronExpr::parse("0 0 12 LW * ?")?;
/// let after: Timestamp = "2026-11-20T00:00:00Z".parse()?;
/// let next = last_weekday_at_noon.next_after(parse_zone("Asia/Shanghai")?, DstRule::default(), after);
/// assert_eq!(next, Some("2026-11-30T04:00:00Z".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CronExpr {
    source: String,
    dialect: Dialect,
    hour_form: HourForm,
    fields: Fields,
}

impl CronExpr {
    /// Reads an expression; the number of fields decides its [`Dialect`].
    ///
    /// ```
    /// use rondel_core::cron::{CronExpr, Dialect};
    ///
    /// assert_eq!(CronExpr::parse("0 0 22-2 ? * FRI-MON")?.dialect(), Dialect::Quartz6);
    /// assert_eq!(CronExpr::parse("*/5 * * * 1-5")?.dialect(), Dialect::Unix5);
    /// let refused = CronExpr::parse("0 0 24 * * ?").unwrap_err();
    /// assert_eq!(refused.position, 4);
    /// # Ok::<(), rondel_core::cron::CronError>(())
    /// ```
    ///
    /// # Errors
    /// [`CronError`] names the field, the value, its position and what is allowed there.
    pub fn parse(text: &str) -> Result<Self, CronError> {
        parse::expression(text)
    }

    /// Reads an expression as Quartz does, which takes 6 or 7 fields and no macros.
    ///
    /// ```
    /// use rondel_core::cron::CronExpr;
    ///
    /// assert!(CronExpr::parse_quartz("*/5 * * * *").is_err());
    /// assert!(CronExpr::parse_quartz("0 */5 * * * ?").is_ok());
    /// ```
    ///
    /// # Errors
    /// As for [`parse`](Self::parse).
    pub fn parse_quartz(text: &str) -> Result<Self, CronError> {
        parse::quartz_expression(text)
    }

    /// The text that was read.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The syntax in which the text was read.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The compiled fields.
    pub(crate) const fn fields(&self) -> &Fields {
        &self.fields
    }

    /// The first fire strictly after an instant, on a whole second; `None` if the expression never fires again.
    ///
    /// ```
    /// use rondel_core::cron::{CronExpr, DstRule, Tz};
    ///
    /// let never = CronExpr::parse("0 0 0 31 2 ?")?;
    /// assert_eq!(never.next_after(Tz::UTC, DstRule::default(), rondel_core::Timestamp::EPOCH), None);
    /// # Ok::<(), rondel_core::cron::CronError>(())
    /// ```
    #[must_use]
    pub fn next_after(&self, zone: Tz, dst: DstRule, after: Timestamp) -> Option<Timestamp> {
        dst::next_after(&self.fields, zone, dst.resolve(self.hour_form), after)
    }

    /// The last fire strictly before an instant; `None` if there is none since [`FIRST_YEAR`].
    ///
    /// ```
    /// use rondel_core::cron::{CronExpr, DstRule, Tz};
    ///
    /// let daily = CronExpr::parse("@daily")?;
    /// let noon = "2026-06-15T12:00:00Z".parse()?;
    /// assert_eq!(daily.prev_before(Tz::UTC, DstRule::default(), noon), Some("2026-06-15T00:00:00Z".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn prev_before(&self, zone: Tz, dst: DstRule, before: Timestamp) -> Option<Timestamp> {
        dst::prev_before(&self.fields, zone, dst.resolve(self.hour_form), before)
    }

    /// The fires after `from_exclusive` and up to `to_inclusive`, oldest first, at most `max` of them.
    ///
    /// ```
    /// use rondel_core::cron::{CronExpr, DstRule, Tz};
    ///
    /// let each_second = CronExpr::parse("* * * * * ?")?;
    /// let (from, to) = ("2026-06-15T12:00:00Z".parse()?, "2026-06-15T12:00:05Z".parse()?);
    /// assert_eq!(each_second.fires_between(Tz::UTC, DstRule::default(), from, to, 1000).len(), 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn fires_between(
        &self,
        zone: Tz,
        dst: DstRule,
        from_exclusive: Timestamp,
        to_inclusive: Timestamp,
        max: usize,
    ) -> Vec<Timestamp> {
        std::iter::successors(Some(from_exclusive), |&at| self.next_after(zone, dst, at))
            .skip(1)
            .take_while(|&at| at <= to_inclusive)
            .take(max)
            .collect()
    }

    /// The changes of the zone's clock after `from_exclusive` and up to `to_inclusive` that affect a fire, with their effect on it;
    /// at most the first 12.
    ///
    /// ```
    /// use rondel_core::cron::{ClockEffect, CronExpr, DstRule, parse_zone};
    ///
    /// let half_past_two = CronExpr::parse("0 30 2 * * ?")?;
    /// let (zone, from, to) = (parse_zone("Europe/Berlin")?, "2026-01-01T00:00:00Z".parse()?, "2027-01-01T00:00:00Z".parse()?);
    /// let changes = half_past_two.clock_changes(zone, DstRule::default(), from, to);
    /// assert_eq!(changes.len(), 2);
    /// assert_eq!((changes[0].at.to_string(), changes[0].effect), ("2026-03-29T01:00:00Z".to_owned(), ClockEffect::OnceAfter));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn clock_changes(
        &self,
        zone: Tz,
        dst: DstRule,
        from_exclusive: Timestamp,
        to_inclusive: Timestamp,
    ) -> Vec<ClockChange> {
        changes::clock_changes(&self.fields, zone, dst.resolve(self.hour_form), (from_exclusive, to_inclusive))
    }

    /// How many fires lie after `from_exclusive` and up to `to_inclusive`. Whole days are counted in one step each, so long
    /// periods are fast.
    #[must_use]
    pub fn count_between(&self, zone: Tz, dst: DstRule, from_exclusive: Timestamp, to_inclusive: Timestamp) -> u64 {
        dst::count_between(&self.fields, zone, dst.resolve(self.hour_form), from_exclusive, to_inclusive)
    }
}

impl fmt::Display for CronExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

impl FromStr for CronExpr {
    type Err = CronError;
    fn from_str(text: &str) -> Result<Self, CronError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for CronExpr {
    type Error = CronError;
    fn try_from(text: String) -> Result<Self, CronError> {
        Self::parse(&text)
    }
}

impl From<CronExpr> for String {
    fn from(expression: CronExpr) -> Self {
        expression.source
    }
}
