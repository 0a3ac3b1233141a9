//! A schedule: a pure function from an instant to the next instant at which a job fires.

use std::time::Duration;

use crate::cron::{CronExpr, DstRule, Tz, parse_zone};
use crate::run::Trigger;
use crate::spec::{FieldError, ScheduleSpec};
use crate::time::{Timestamp, millis, parse_duration};

const EVERY_MAX: Duration = Duration::from_secs(3653 * 24 * 3600);

/// One of a job's schedules.
#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    /// At the instants whose wall-clock time matches.
    Cron {
        /// The expression.
        expr: Box<CronExpr>,
        /// The zone that it is read in.
        zone: Tz,
        /// What happens at the zone's clock changes.
        dst: DstRule,
    },
    /// At a fixed rate, counted from the job's anchor.
    Every(Duration),
    /// Once.
    At(Timestamp),
}

impl Schedule {
    pub(crate) fn compile(pointer: &str, spec: &ScheduleSpec) -> Result<Self, FieldError> {
        let given =
            [spec.cron.is_some(), spec.every.is_some(), spec.delay.is_some(), spec.at.is_some(), spec.after.is_some()];
        if given.into_iter().filter(|given| *given).count() != 1 {
            return Err(FieldError::new(pointer, "needs exactly one of cron, every, delay, at and after"));
        }
        if spec.cron.is_none() && (spec.time_zone.is_some() || spec.dst.is_some()) {
            let field = if spec.time_zone.is_some() { "time_zone" } else { "dst" };
            return Err(FieldError::new(format!("{pointer}/{field}"), "belongs to cron; the others count in UTC"));
        }
        if let Some(expr) = &spec.cron {
            return Self::compile_cron(pointer, expr, spec);
        }
        if let Some(every) = &spec.every {
            return Self::compile_every(&format!("{pointer}/every"), every);
        }
        if let Some(at) = &spec.at {
            let at: Timestamp =
                at.parse().map_err(|error| FieldError::new(format!("{pointer}/at"), format!("{error}")))?;
            return Ok(Self::At(at));
        }
        let field = if spec.delay.is_some() { "delay" } else { "after" };
        let message = format!("{field:?} is not available in this version; use cron, every or at");
        Err(FieldError::new(format!("{pointer}/{field}"), message))
    }

    fn compile_cron(pointer: &str, expr: &str, spec: &ScheduleSpec) -> Result<Self, FieldError> {
        let expr =
            CronExpr::parse(expr).map_err(|error| FieldError::new(format!("{pointer}/cron"), error.to_string()))?;
        let zone = match &spec.time_zone {
            Some(zone) => {
                parse_zone(zone).map_err(|e| FieldError::new(format!("{pointer}/time_zone"), e.to_string()))?
            }
            None => Tz::UTC,
        };
        Ok(Self::Cron { expr: Box::new(expr), zone, dst: spec.dst.unwrap_or_default().into() })
    }

    fn compile_every(pointer: &str, every: &str) -> Result<Self, FieldError> {
        let period = parse_duration(every).map_err(|error| FieldError::new(pointer, error.to_string()))?;
        if period.subsec_nanos() != 0 || period < Duration::from_secs(1) || period > EVERY_MAX {
            let message = format!("{every:?} is not a period: whole seconds, from 1s to 10 years");
            return Err(FieldError::new(pointer, message));
        }
        Ok(Self::Every(period))
    }

    /// The first instant after `after` at which this schedule fires; `None` where it never fires again.
    #[must_use]
    pub fn next_after(&self, anchor: Timestamp, after: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Cron { expr, zone, dst } => expr.next_after(*zone, *dst, after),
            Self::Every(period) => Some(next_of_period(anchor, millis(*period), after)),
            Self::At(at) => (*at > after).then_some(*at),
        }
    }

    /// What its runs are triggered by.
    #[must_use]
    pub const fn trigger(&self) -> Trigger {
        match self {
            Self::Cron { .. } => Trigger::Cron,
            Self::Every(_) => Trigger::Interval,
            Self::At(_) => Trigger::Once,
        }
    }
}

/// The first `anchor + n · period` after `after`, for n from 0.
fn next_of_period(anchor: Timestamp, period_ms: i64, after: Timestamp) -> Timestamp {
    let passed = after.as_millis().saturating_sub(anchor.as_millis());
    if passed < 0 {
        return anchor;
    }
    Timestamp::from_millis(anchor.as_millis().saturating_add((passed / period_ms + 1).saturating_mul(period_ms)))
}

/// The first instant after `after` at which any of `schedules` fires, and by which trigger: the earliest wins, and of
/// two at the same instant the first in the list.
#[must_use]
pub fn next_of_all(schedules: &[Schedule], anchor: Timestamp, after: Timestamp) -> Option<(Timestamp, Trigger)> {
    let next = |schedule: &Schedule| Some((schedule.next_after(anchor, after)?, schedule.trigger()));
    schedules.iter().filter_map(next).min_by_key(|(at, _)| *at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_anchored() {
        let anchor = Timestamp::from_secs(100);
        for (after_ms, next_secs) in [(0, 100), (99_999, 100), (100_000, 107), (100_001, 107), (107_000, 114)] {
            let next = Schedule::Every(Duration::from_secs(7)).next_after(anchor, Timestamp::from_millis(after_ms));
            assert_eq!(next, Some(Timestamp::from_secs(next_secs)), "after {after_ms}");
        }
    }

    #[test]
    fn once_is_once() {
        let at = Timestamp::from_secs(100);
        assert_eq!(Schedule::At(at).next_after(at, Timestamp::from_secs(99)), Some(at));
        assert_eq!(Schedule::At(at).next_after(at, at), None);
    }
}
