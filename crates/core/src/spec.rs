//! The definition of a job as people write it: the JSON document of the API, of `job apply` and of a job's versions.
//!
//! [`JobSpec::compile`] checks it and makes the [`Job`] that the engine works with. Each complaint names the field by
//! a JSON pointer, the value, and what would be right.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cron::{DstRule, Gap, Overlap as DstOverlap};
use crate::job::Job;
use crate::run::words;
use crate::time::{Timestamp, duration_text, format_duration, parse_duration};

/// A job's definition. Every field that has a default may be left out.
///
/// ```
/// let spec: rondel_core::JobSpec = serde_json::from_str(
///     r#"{"name": "report", "app": "billing", "handler": "report.daily",
///         "schedule": {"cron": "0 30 2 * * ?", "time_zone": "Asia/Shanghai"}}"#,
/// )?;
/// let job = spec.compile().expect("a valid definition");
/// assert_eq!(job.schedules.len(), 1);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// Unique in its namespace.
    pub name: String,
    /// The app whose executors run it.
    pub app: String,
    /// The handler in that app.
    pub handler: String,
    /// For people.
    #[serde(default)]
    pub description: String,
    /// What the handler gets, any JSON value.
    #[serde(default)]
    pub params: Value,
    /// When it fires: nothing (manual only), one schedule, or a list of them.
    #[serde(default)]
    pub schedule: Option<OneOrMany>,
    /// Which executor gets a run.
    #[serde(default)]
    pub route: Route,
    /// What happens to fires that were missed.
    #[serde(default)]
    pub misfire: MisfireSpec,
    /// What happens when a run is due and an earlier one is not over.
    #[serde(default)]
    pub overlap: OverlapSpec,
    /// What happens to a run whose executor is lost.
    #[serde(default)]
    pub delivery: Delivery,
    /// How long one attempt may take; nothing for no limit.
    #[serde(default, with = "optional_duration")]
    pub timeout: Option<Duration>,
    /// How long a due run waits for an executor before it is skipped.
    #[serde(default = "default_queue_timeout", with = "duration_text")]
    pub queue_timeout: Duration,
    /// What happens after a failed attempt.
    #[serde(default)]
    pub retry: RetrySpec,
    /// Whether its schedule fires; it can be triggered by hand either way.
    #[serde(default = "enabled")]
    pub enabled: bool,
}

const fn enabled() -> bool {
    true
}

const fn default_queue_timeout() -> Duration {
    Duration::from_secs(60)
}

/// One schedule, or several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    /// `{"cron": …}`
    One(Box<ScheduleSpec>),
    /// `[{"cron": …}, {"every": …}]`
    Many(Vec<ScheduleSpec>),
}

/// One schedule: exactly one of `cron`, `every`, `delay`, `at` and `after` is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    /// A cron expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// The zone that the expression is read in; UTC if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// What happens at the zone's clock changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst: Option<DstSpec>,
    /// A fixed rate: a duration in whole seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// A fixed delay after the end of the run before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<String>,
    /// Once, at an instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// After these jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Vec<String>>,
}

/// The DST rule of a cron schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DstSpec {
    /// For times that the clock skips.
    pub gap: Gap,
    /// For times that the clock shows twice.
    pub overlap: DstOverlap,
}

impl From<DstSpec> for DstRule {
    fn from(spec: DstSpec) -> Self {
        Self { gap: spec.gap, overlap: spec.overlap }
    }
}

words! {
    /// Which executor of the app gets a run.
    Route {
        /// The first by name.
        First = "first",
        /// The last by name.
        Last = "last",
        /// Each in turn.
        Round = "round",
        /// Any.
        Random = "random",
        /// The same for the same job, and few changes when executors come and go.
        ConsistentHash = "consistent_hash",
        /// The one that this job used least often.
        Lfu = "lfu",
        /// The one that this job used least recently.
        Lru = "lru",
        /// The first by name that answers.
        Failover = "failover",
        /// The first by name that is free for this job.
        Busyover = "busyover",
        /// All of them, each with its index and the total.
        Broadcast = "broadcast",
    }
}

#[expect(clippy::derivable_impls, reason = "the words macro makes the enum")]
impl Default for Route {
    fn default() -> Self {
        Self::Round
    }
}

/// What happens to fires that are later than the tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MisfireSpec {
    /// What to do.
    pub policy: MisfirePolicy,
    /// For `all`: how many of the newest missed fires run.
    pub max: u32,
    /// A fire that is later than this was missed.
    #[serde(with = "duration_text")]
    pub tolerance: Duration,
}

impl Default for MisfireSpec {
    fn default() -> Self {
        Self { policy: MisfirePolicy::Skip, max: 100, tolerance: Duration::from_secs(5) }
    }
}

words! {
    /// What to do about missed fires.
    MisfirePolicy {
        /// Pass them over, with a verdict.
        Skip = "skip",
        /// Run the newest of them, pass over the others.
        Once = "once",
        /// Run the newest `max` of them in order, pass over the others.
        All = "all",
    }
}

/// What happens when a run is due and an earlier one is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OverlapSpec {
    /// What to do.
    pub policy: OverlapPolicy,
    /// Where runs count as overlapping.
    pub scope: OverlapScope,
    /// For `allow`: how many at once; 0 for any number. For `serial`: how many may wait.
    pub max: u32,
}

impl Default for OverlapSpec {
    fn default() -> Self {
        Self { policy: OverlapPolicy::Serial, scope: OverlapScope::Cluster, max: 0 }
    }
}

words! {
    /// What to do with a run that comes due while an earlier one is not over.
    OverlapPolicy {
        /// It waits for its turn.
        Serial = "serial",
        /// It is skipped.
        Discard = "discard",
        /// The earlier one is cancelled.
        Cover = "cover",
        /// They run at the same time.
        Allow = "allow",
    }
}

words! {
    /// Where runs of one job count as overlapping.
    OverlapScope {
        /// Anywhere.
        Cluster = "cluster",
        /// On the same executor.
        Executor = "executor",
    }
}

words! {
    /// What happens to a run whose executor is lost.
    Delivery {
        /// It is sent again.
        AtLeastOnce = "at_least_once",
        /// Its verdict is `unknown`.
        AtMostOnce = "at_most_once",
    }
}

#[expect(clippy::derivable_impls, reason = "the words macro makes the enum")]
impl Default for Delivery {
    fn default() -> Self {
        Self::AtLeastOnce
    }
}

/// What happens after a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetrySpec {
    /// Attempts beyond the first.
    pub max: u32,
    /// The wait before the second attempt, doubled for each further one up to an hour; or `"5s..5m"` for another cap.
    pub backoff: String,
}

impl Default for RetrySpec {
    fn default() -> Self {
        Self { max: 0, backoff: "10s".to_owned() }
    }
}

impl RetrySpec {
    /// First wait and cap.
    pub(crate) fn waits(&self) -> Result<(Duration, Duration), String> {
        let hour = Duration::from_secs(3600);
        let (first, cap) = match self.backoff.split_once("..") {
            Some((first, cap)) => (parse_duration(first), parse_duration(cap)),
            None => (parse_duration(&self.backoff), Ok(hour)),
        };
        match (first, cap) {
            (Ok(first), Ok(cap)) if first <= cap => Ok((first, cap)),
            (Ok(first), Ok(_)) if !self.backoff.contains("..") => Ok((first, first)),
            (Ok(first), Ok(cap)) => {
                Err(format!("begins at {} and ends at {}", format_duration(first), format_duration(cap)))
            }
            (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
        }
    }
}

/// A complaint about one field of a definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// Where: a JSON pointer into the document, `/schedule/cron`.
    pub pointer: String,
    /// What is wrong and what would be right, in a sentence that names the value.
    pub message: String,
}

impl FieldError {
    /// A complaint about the field at `pointer`.
    pub fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), message: message.into() }
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.pointer, self.message)
    }
}

impl JobSpec {
    /// Checks the whole definition.
    ///
    /// # Errors
    /// Every complaint, in the order of the fields.
    pub fn compile(&self) -> Result<Job, Vec<FieldError>> {
        Job::compile(self)
    }

    /// The schedules, however they were written, with the pointer to each.
    pub(crate) fn schedules(&self) -> Vec<(String, &ScheduleSpec)> {
        match &self.schedule {
            None => Vec::new(),
            Some(OneOrMany::One(one)) => vec![("/schedule".to_owned(), one.as_ref())],
            Some(OneOrMany::Many(many)) => {
                many.iter().enumerate().map(|(index, spec)| (format!("/schedule/{index}"), spec)).collect()
            }
        }
    }

    /// The instants at which a once-schedule fires, for the check against the present that only the server can make.
    #[must_use]
    pub fn once_instants(&self) -> Vec<(String, Timestamp)> {
        let at = |(pointer, spec): (String, &ScheduleSpec)| {
            Some((format!("{pointer}/at"), spec.at.as_deref()?.parse().ok()?))
        };
        self.schedules().into_iter().filter_map(at).collect()
    }
}

mod optional_duration {
    use super::{Duration, format_duration, parse_duration};
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(length: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match length {
            Some(length) => serializer.serialize_some(&format_duration(*length)),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| parse_duration(&text)).transpose().map_err(serde::de::Error::custom)
    }
}
