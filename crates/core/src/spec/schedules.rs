//! The schedules of a job, as definitions write them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cron::{DstRule, Fold, Gap};
use crate::schema::{DurationText, NAME_PATTERN};
use crate::time::{Timestamp, duration_text};
use crate::word_enum::word_enum;

/// One schedule, or several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum OneOrMany {
    /// `{"cron": …}`
    One(Box<ScheduleSpec>),
    /// `[{"cron": …}, {"every": …}]`
    Many(Vec<ScheduleSpec>),
}

/// One schedule: exactly one of `cron`, `every`, `delay`, `at` and `after` is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    /// A cron expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = "0 30 2 * * ?")]
    pub cron: Option<String>,
    /// The zone of the expression; UTC if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = "Europe/Berlin")]
    pub time_zone: Option<String>,
    /// What happens at the zone's clock changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst: Option<DstSpec>,
    /// A fixed rate: a duration in whole seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DurationText>")]
    pub every: Option<String>,
    /// A fixed delay after the end of the previous run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DurationText>")]
    pub delay: Option<String>,
    /// Once, at an instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Timestamp>")]
    pub at: Option<String>,
    /// What happens if `at` is in the past when the definition is saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_past: Option<IfPast>,
    /// The parent jobs. The job runs when all of them that belong to the same fire have ended as `on` requires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Vec<String>>,
    /// How the jobs of `after` must have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<AfterWhat>,
    /// Nothing fires before this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Timestamp>")]
    pub start_at: Option<String>,
    /// Nothing fires after this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Timestamp>")]
    pub end_at: Option<String>,
    /// Runs start a little later than planned, so that many jobs of one instant do not start together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<JitterSpec>,
}

/// A delay between a fire's planned instant and the start of its run, so that the runs of many jobs do not start together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JitterSpec {
    /// The longest delay.
    #[serde(with = "duration_text")]
    #[schemars(with = "DurationText")]
    pub max: Duration,
    /// Whether the delay is drawn once for each job or anew for each fire.
    #[serde(default)]
    pub by: JitterBy,
}

word_enum! {
    /// Whether jobs or fires get different delays.
    JitterBy {
        /// Each job has one delay for all of its fires, which keeps the period.
        Job = "job",
        /// Each fire has its own delay.
        Fire = "fire",
    }
}

#[expect(clippy::derivable_impls, reason = "the macro makes the enum")]
impl Default for JitterBy {
    fn default() -> Self {
        Self::Job
    }
}

word_enum! {
    /// What happens to an `at` in the past.
    IfPast {
        /// The definition is refused.
        Refuse = "refuse",
        /// It runs immediately.
        Run = "run",
    }
}

word_enum! {
    /// How a parent must have ended for its children to run.
    AfterWhat {
        /// It succeeded.
        Success = "success",
        /// It failed, timed out, or its outcome is unknown.
        Failure = "failure",
        /// Success or failure.
        Either = "either",
    }
}

#[expect(clippy::derivable_impls, reason = "the macro makes the enum")]
impl Default for AfterWhat {
    fn default() -> Self {
        Self::Success
    }
}

/// The DST rule of a cron schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DstSpec {
    /// For times that the clock skips.
    pub gap: Gap,
    /// For times that the clock shows twice.
    pub overlap: Fold,
}

impl From<DstSpec> for DstRule {
    fn from(spec: DstSpec) -> Self {
        Self { gap: spec.gap, overlap: spec.overlap }
    }
}

/// What a calendar does to a job's fires. Its days and times are read in the zone of the schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CalendarUse {
    /// The calendar, of the same namespace.
    #[schemars(regex(pattern = NAME_PATTERN))]
    pub name: String,
    /// What it does to the fires.
    #[serde(default)]
    pub rule: CalendarRule,
}

word_enum! {
    /// What a calendar does to a job's fires.
    CalendarRule {
        /// Only the fires that are in the calendar are kept.
        Only = "only",
        /// The fires that are in the calendar are removed.
        Except = "except",
        /// A fire on a day that is not in the calendar moves to the next day that is in it, at the same time of day.
        Next = "next",
        /// A fire on a day that is not in the calendar moves to the last day before that is in it, at the same time of day.
        Previous = "previous",
    }
}

#[expect(clippy::derivable_impls, reason = "the macro makes the enum")]
impl Default for CalendarRule {
    fn default() -> Self {
        Self::Only
    }
}
