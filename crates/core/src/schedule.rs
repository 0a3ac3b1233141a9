//! A schedule: a pure function from an instant to the next instant at which a job fires. Calendars are applied to its fires: see
//! [`timetable`](crate::timetable).

use std::time::Duration;

use crate::cron::{CronExpr, DstRule, Tz, parse_zone};
use crate::field_error::FieldError;
use crate::id::JobId;
use crate::spec::{AfterWhat, JitterBy, ScheduleSpec};
use crate::status::Trigger;
use crate::time::{Timestamp, millis, parse_duration};

const PERIOD_MAX: Duration = Duration::from_secs(3653 * 24 * 3600);
const JITTER_MAX: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of parents that one schedule names.
pub const PARENT_COUNT_MAX: usize = 50;

/// One of a job's schedules.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// When it fires.
    pub kind: Kind,
    /// The zone that its expression and the job's calendar are read in.
    pub zone: Tz,
    /// Nothing fires before this instant.
    pub start: Option<Timestamp>,
    /// Nothing fires after this instant.
    pub end: Option<Timestamp>,
    /// How much later than planned its runs start.
    pub jitter: Option<Jitter>,
}

/// The kinds of schedules.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// At the instants whose wall-clock time matches.
    Cron {
        expr: Box<CronExpr>,
        /// What happens at the zone's clock changes.
        dst: DstRule,
    },
    /// At a fixed rate, counted from the start instant if there is one, else from the job's anchor.
    Every(Duration),
    /// This long after the end of the previous run.
    Delay(Duration),
    /// Once, at this instant.
    At(Timestamp),
    /// When other jobs have ended.
    After(After),
}

/// The parents of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct After {
    /// Their names.
    pub parents: Vec<String>,
    /// How they must have ended.
    pub on: AfterWhat,
}

/// A delay between a fire's planned instant and the start of its run, so that the runs of many jobs do not start together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter {
    /// The longest delay.
    max: Duration,
    by: JitterBy,
}

impl Jitter {
    /// How much later the run of a fire starts: the same for the same job and fire, on every node.
    #[must_use]
    pub fn of(self, job: JobId, fire_at: Timestamp) -> Duration {
        let salt = match self.by {
            JitterBy::Job => 0,
            JitterBy::Fire => fire_at.as_millis().unsigned_abs(),
        };
        let hash = mix(mix(job.get().unsigned_abs()) ^ salt);
        let max = u64::try_from(self.max.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(hash % (max + 1))
    }

    /// The longest delay that it can add.
    #[must_use]
    pub const fn max(self) -> Duration {
        self.max
    }

    /// The longest delay that it can add to a fire of this job. If each job has one delay, this is the delay of all its fires.
    #[must_use]
    pub fn max_of(self, job: JobId) -> Duration {
        match self.by {
            JitterBy::Job => self.of(job, Timestamp::EPOCH),
            JitterBy::Fire => self.max,
        }
    }

    /// Whether it is drawn for each job or for each fire.
    #[must_use]
    pub const fn by(self) -> JitterBy {
        self.by
    }
}

/// Spreads a number over 64 bits (the finalizer of `SplitMix64`).
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl Schedule {
    pub(crate) fn compile(pointer: &str, spec: &ScheduleSpec) -> Result<Self, Vec<FieldError>> {
        let given_kinds: Vec<&str> = [
            ("cron", spec.cron.is_some()),
            ("every", spec.every.is_some()),
            ("delay", spec.delay.is_some()),
            ("at", spec.at.is_some()),
            ("after", spec.after.is_some()),
        ]
        .into_iter()
        .filter_map(|(name, is_given)| is_given.then_some(name))
        .collect();
        if given_kinds.len() != 1 {
            let message = match given_kinds.join(", ") {
                given_kinds if given_kinds.is_empty() => {
                    "needs exactly one of cron, every, delay, at and after".to_owned()
                }
                given_kinds => {
                    format!("has {given_kinds} together: needs exactly one of cron, every, delay, at and after")
                }
            };
            return Err(vec![FieldError::new(pointer, message)]);
        }
        let mut errors = misplaced_fields(pointer, spec);
        let mut push_error = |error| errors.push(error);
        let zone = compile_zone(pointer, spec).map_err(&mut push_error).ok();
        let start =
            compile_instant(pointer, "start_at", spec.start_at.as_deref()).map_err(&mut push_error).ok().flatten();
        let end = compile_instant(pointer, "end_at", spec.end_at.as_deref()).map_err(&mut push_error).ok().flatten();
        let jitter = compile_jitter(pointer, spec).map_err(&mut push_error).ok().flatten();
        let kind = compile_kind(pointer, spec).map_err(&mut push_error).ok();
        if let (Some(start), Some(end)) = (start, end)
            && end < start
        {
            push_error(FieldError::new(
                format!("{pointer}/end_at"),
                format!("{end} is before start_at, which is {start}"),
            ));
        }
        match (kind, zone) {
            (Some(kind), Some(zone)) if errors.is_empty() => Ok(Self { kind, zone, start, end, jitter }),
            _ => Err(errors),
        }
    }

    /// The first instant after `after` at which this schedule fires. `None` if it never fires again, and for a fixed
    /// delay or a schedule that follows parents, because their instants depend on runs.
    #[must_use]
    pub fn next_after(&self, anchor: Timestamp, after: Timestamp) -> Option<Timestamp> {
        let after = match self.start {
            Some(start) => after.max(just_before(start)),
            None => after,
        };
        let next = match &self.kind {
            Kind::Cron { expr, dst } => expr.next_after(self.zone, *dst, after)?,
            Kind::Every(period) => next_of_period(self.start.unwrap_or(anchor), millis(*period), after),
            Kind::At(at) => Some(*at).filter(|at| *at > after)?,
            Kind::Delay(_) | Kind::After(_) => return None,
        };
        self.end.is_none_or(|end| next <= end).then_some(next)
    }

    /// The last instant before `before` at which this schedule fires, not before its start or the anchor of its period; `None` if
    /// there is none, and for a fixed delay or a schedule that follows parents.
    #[must_use]
    pub fn prev_before(&self, anchor: Timestamp, before: Timestamp) -> Option<Timestamp> {
        let search_before = match self.end {
            Some(end) => before.min(end + Duration::from_millis(1)),
            None => before,
        };
        let previous_at = match &self.kind {
            Kind::Cron { expr, dst } => expr.prev_before(self.zone, *dst, search_before)?,
            Kind::Every(period) => prev_of_period(self.start.unwrap_or(anchor), millis(*period), search_before)?,
            Kind::At(at) => Some(*at).filter(|at| *at < search_before)?,
            Kind::Delay(_) | Kind::After(_) => return None,
        };
        self.start.is_none_or(|start| previous_at >= start).then_some(previous_at)
    }

    /// How many times it fires from `first` to `last`, both of which are fires.
    #[must_use]
    pub(crate) fn count_between(&self, anchor: Timestamp, first: Timestamp, last: Timestamp) -> u64 {
        match &self.kind {
            Kind::Every(period) => {
                let period = u64::try_from(millis(*period)).unwrap_or(1).max(1);
                u64::try_from(last.as_millis() - first.as_millis()).unwrap_or(0) / period + 1
            }
            Kind::Cron { expr, dst } => expr.count_between(self.zone, *dst, just_before(first), last),
            Kind::At(_) | Kind::Delay(_) | Kind::After(_) => {
                u64::from(self.next_after(anchor, just_before(first)).is_some_and(|at| at <= last))
            }
        }
    }

    /// The trigger of its runs.
    #[must_use]
    pub const fn trigger(&self) -> Trigger {
        match self.kind {
            Kind::Cron { .. } => Trigger::Cron,
            Kind::Every(_) | Kind::Delay(_) => Trigger::Interval,
            Kind::At(_) => Trigger::Once,
            Kind::After(_) => Trigger::Parent,
        }
    }
}

/// The last millisecond before an instant.
pub(crate) fn just_before(at: Timestamp) -> Timestamp {
    Timestamp::from_millis(at.as_millis().saturating_sub(1))
}

/// Errors for fields that do not belong to the chosen kind of schedule.
fn misplaced_fields(pointer: &str, spec: &ScheduleSpec) -> Vec<FieldError> {
    let has_zone = spec.cron.is_some() || spec.every.is_some() || spec.at.is_some();
    let has_bounds = spec.cron.is_some() || spec.every.is_some() || spec.delay.is_some();
    let checks = [
        ("time_zone", spec.time_zone.is_some() && !has_zone, "applies only to cron, every and at"),
        ("dst", spec.dst.is_some() && spec.cron.is_none(), "applies only to cron; the others count in UTC"),
        ("if_past", spec.if_past.is_some() && spec.at.is_none(), "applies only to at"),
        ("on", spec.on.is_some() && spec.after.is_none(), "applies only to after"),
        ("start_at", spec.start_at.is_some() && !has_bounds, "applies only to cron, every and delay"),
        ("end_at", spec.end_at.is_some() && !has_bounds, "applies only to cron, every and delay"),
        ("jitter", spec.jitter.is_some() && spec.after.is_some(), "does not apply to after"),
    ];
    let failed_checks = checks.into_iter().filter(|(_, has_failed, _)| *has_failed);
    failed_checks.map(|(field, _, message)| FieldError::new(format!("{pointer}/{field}"), message)).collect()
}

fn compile_kind(pointer: &str, spec: &ScheduleSpec) -> Result<Kind, FieldError> {
    if let Some(expr) = &spec.cron {
        let expr =
            CronExpr::parse(expr).map_err(|error| FieldError::new(format!("{pointer}/cron"), error.to_string()))?;
        return Ok(Kind::Cron { expr: Box::new(expr), dst: spec.dst.unwrap_or_default().into() });
    }
    if let Some(every) = &spec.every {
        return compile_period(&format!("{pointer}/every"), every).map(Kind::Every);
    }
    if let Some(delay) = &spec.delay {
        return compile_period(&format!("{pointer}/delay"), delay).map(Kind::Delay);
    }
    if let Some(parents) = &spec.after {
        return compile_after(&format!("{pointer}/after"), parents, spec.on.unwrap_or_default());
    }
    match compile_instant(pointer, "at", spec.at.as_deref())? {
        Some(at) => Ok(Kind::At(at)),
        None => Err(FieldError::new(pointer, "needs exactly one of cron, every, delay, at and after")),
    }
}

fn compile_zone(pointer: &str, spec: &ScheduleSpec) -> Result<Tz, FieldError> {
    match &spec.time_zone {
        Some(zone) => parse_zone(zone).map_err(|e| FieldError::new(format!("{pointer}/time_zone"), e.to_string())),
        None => Ok(Tz::UTC),
    }
}

fn compile_instant(pointer: &str, field: &str, text: Option<&str>) -> Result<Option<Timestamp>, FieldError> {
    let parse = |text: &str| {
        text.parse().map_err(|error: crate::TimeError| FieldError::new(format!("{pointer}/{field}"), error.to_string()))
    };
    text.map(parse).transpose()
}

fn compile_period(pointer: &str, text: &str) -> Result<Duration, FieldError> {
    let period = parse_duration(text).map_err(|error| FieldError::new(pointer, error.to_string()))?;
    if period < Duration::from_secs(1) || period.subsec_nanos() != 0 {
        let message = format!(
            "{text:?} is not a whole number of seconds from 1s: the granularity of schedules is one second; a job that \
             must work more often loops inside its run"
        );
        return Err(FieldError::new(pointer, message));
    }
    if period > PERIOD_MAX {
        return Err(FieldError::new(pointer, format!("{text:?} is longer than 10 years")));
    }
    Ok(period)
}

fn compile_jitter(pointer: &str, spec: &ScheduleSpec) -> Result<Option<Jitter>, FieldError> {
    let Some(jitter) = spec.jitter else { return Ok(None) };
    if jitter.max > JITTER_MAX || jitter.max.is_zero() {
        let message = format!("{:?} is outside 1ms to 24h", crate::time::format_duration(jitter.max));
        return Err(FieldError::new(format!("{pointer}/jitter/max"), message));
    }
    Ok(Some(Jitter { max: jitter.max, by: jitter.by }))
}

fn compile_after(pointer: &str, parents: &[String], on: AfterWhat) -> Result<Kind, FieldError> {
    if parents.is_empty() || parents.len() > PARENT_COUNT_MAX {
        let message = format!("names {} jobs; 1 to {PARENT_COUNT_MAX} can be waited for", parents.len());
        return Err(FieldError::new(pointer, message));
    }
    for (index, parent) in parents.iter().enumerate() {
        if let Err(message) = crate::name::check(parent) {
            return Err(FieldError::new(format!("{pointer}/{index}"), message));
        }
        if parents[..index].contains(parent) {
            return Err(FieldError::new(format!("{pointer}/{index}"), format!("{parent:?} is named twice")));
        }
    }
    Ok(Kind::After(After { parents: parents.to_vec(), on }))
}

/// The first `anchor + n · period` after `after`, for n from 0.
fn next_of_period(anchor: Timestamp, period_ms: i64, after: Timestamp) -> Timestamp {
    let elapsed_ms = after.as_millis().saturating_sub(anchor.as_millis());
    if elapsed_ms < 0 {
        return anchor;
    }
    Timestamp::from_millis(anchor.as_millis().saturating_add((elapsed_ms / period_ms + 1).saturating_mul(period_ms)))
}

/// The last `anchor + n · period` before `before`, for n from 0.
fn prev_of_period(anchor: Timestamp, period_ms: i64, before: Timestamp) -> Option<Timestamp> {
    let elapsed_ms = before.as_millis().saturating_sub(anchor.as_millis());
    (elapsed_ms > 0).then(|| Timestamp::from_millis(anchor.as_millis() + (elapsed_ms - 1) / period_ms * period_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every(seconds: u64) -> Schedule {
        let kind = Kind::Every(Duration::from_secs(seconds));
        Schedule { kind, zone: Tz::UTC, start: None, end: None, jitter: None }
    }

    #[test]
    fn a_period_is_anchored() {
        let anchor = Timestamp::from_secs(100);
        for (after_ms, next_secs) in [(0, 100), (99_999, 100), (100_000, 107), (100_001, 107), (107_000, 114)] {
            let next = every(7).next_after(anchor, Timestamp::from_millis(after_ms));
            assert_eq!(next, Some(Timestamp::from_secs(next_secs)), "after {after_ms}");
        }
        for (before_ms, prev_secs) in [(100_001, 100), (107_000, 100), (107_001, 107), (121_000, 114)] {
            let prev = every(7).prev_before(anchor, Timestamp::from_millis(before_ms));
            assert_eq!(prev, Some(Timestamp::from_secs(prev_secs)), "before {before_ms}");
        }
        assert_eq!(every(7).prev_before(anchor, anchor), None);
    }

    #[test]
    fn a_start_is_the_anchor_and_the_end_is_the_last() {
        let bounded =
            Schedule { start: Some(Timestamp::from_secs(1003)), end: Some(Timestamp::from_secs(1013)), ..every(5) };
        let next = |after| bounded.next_after(Timestamp::EPOCH, Timestamp::from_secs(after)).map(Timestamp::second);
        assert_eq!((next(0), next(1003), next(1008), next(1013)), (Some(1003), Some(1008), Some(1013), None));
        let prev = |before| bounded.prev_before(Timestamp::EPOCH, Timestamp::from_secs(before)).map(Timestamp::second);
        assert_eq!((prev(5000), prev(1013), prev(1003)), (Some(1013), Some(1008), None));
    }

    #[test]
    fn once_is_once() {
        let at = Timestamp::from_secs(100);
        let once = Schedule { kind: Kind::At(at), ..every(1) };
        assert_eq!(once.next_after(at, Timestamp::from_secs(99)), Some(at));
        assert_eq!(once.next_after(at, at), None);
    }

    #[test]
    fn jitter_is_stable_by_job_and_bounded() {
        let max = Duration::from_secs(30);
        let at = Timestamp::from_secs;
        let (by_job, by_fire) = (Jitter { max, by: JitterBy::Job }, Jitter { max, by: JitterBy::Fire });
        assert_eq!(by_job.of(JobId::new(7), at(100)), by_job.of(JobId::new(7), at(200)));
        assert_ne!(by_fire.of(JobId::new(7), at(100)), by_fire.of(JobId::new(7), at(200)));
        assert_eq!(by_job.max_of(JobId::new(7)), by_job.of(JobId::new(7), at(200)));
        assert_eq!(by_fire.max_of(JobId::new(7)), max);
        let drawn: Vec<Duration> = (0..1000).map(|job| by_job.of(JobId::new(job), at(0))).collect();
        assert!(drawn.iter().all(|length| *length <= max));
        let late = drawn.iter().filter(|length| **length > max / 2).count();
        assert!((400..600).contains(&late), "{late} of 1000 in the later half");
    }

    #[test]
    fn a_single_instant_is_before_later_instants() {
        let at = Timestamp::from_secs(100);
        let once = Schedule { kind: Kind::At(at), ..every(1) };
        assert_eq!(once.prev_before(at, Timestamp::from_millis(100_001)), Some(at));
        assert_eq!(once.prev_before(at, at), None);
        assert_eq!(once.count_between(at, at, at), 1);
        assert_eq!(once.count_between(at, Timestamp::from_secs(101), Timestamp::from_secs(102)), 0);
        assert_eq!(every(7).count_between(at, at, Timestamp::from_secs(100 + 21)), 4);
        assert_eq!(every(1).count_between(at, at, at), 1);
    }

    #[test]
    fn the_end_and_the_start_are_fires_themselves() {
        let at = Timestamp::from_secs;
        let bounded = Schedule { start: Some(at(100)), end: Some(at(110)), ..every(10) };
        assert_eq!(bounded.prev_before(at(100), at(999)), Some(at(110)));
        assert_eq!(bounded.prev_before(at(100), at(101)), Some(at(100)));
        assert_eq!(bounded.next_after(at(100), at(0)), Some(at(100)));
    }

    #[test]
    fn jitter_takes_every_length_up_to_its_maximum() {
        let jitter = Jitter { max: Duration::from_millis(2), by: JitterBy::Job };
        let mut drawn: Vec<u128> =
            (0..100).map(|job| jitter.of(JobId::new(job), Timestamp::EPOCH).as_millis()).collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn, [0, 1, 2]);
    }

    #[test]
    fn lengths_and_lists_have_bounds() {
        let errors = |schedule: serde_json::Value| {
            let spec: ScheduleSpec = serde_json::from_value(schedule).unwrap();
            Schedule::compile("", &spec).err().map_or(0, |errors| errors.len())
        };
        let every = |length: String| errors(serde_json::json!({"every": length}));
        assert_eq!([every("1s".to_owned()), every("999ms".to_owned()), every("1500ms".to_owned())], [0, 1, 1]);
        let years = PERIOD_MAX.as_secs();
        assert_eq!([every(format!("{years}s")), every(format!("{}s", years + 1))], [0, 1]);
        let jitter = |ms: u128| errors(serde_json::json!({"every": "1s", "jitter": {"max": format!("{ms}ms")}}));
        let longest = JITTER_MAX.as_millis();
        assert_eq!([jitter(0), jitter(1), jitter(longest), jitter(longest + 1)], [1, 0, 0, 1]);
        let after = |count: usize| {
            let parents: Vec<String> = (0..count).map(|n| format!("p{n}")).collect();
            errors(serde_json::json!({"after": parents}))
        };
        assert_eq!([after(1), after(PARENT_COUNT_MAX), after(PARENT_COUNT_MAX + 1)], [0, 0, 1]);
        let ends = |start: i64, end: i64| {
            let at = |second| Timestamp::from_secs(second).to_string();
            errors(serde_json::json!({"every": "1s", "start_at": at(start), "end_at": at(end)}))
        };
        assert_eq!([ends(10, 10), ends(10, 9)], [0, 1]);
    }
}
