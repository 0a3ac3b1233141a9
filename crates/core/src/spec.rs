//! The definition of a job as people write it: the JSON document of the API, of `job apply` and of a job's versions.
//!
//! [`JobSpec::compile`] checks it and makes the [`Job`] that the engine works with. Each complaint names the field by
//! a JSON pointer, the value, and what would be right.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::calendar::Calendar;
use crate::cron::{DstRule, Gap, Overlap as DstOverlap};
use crate::job::{self, Job};
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
/// assert_eq!(job.timetable.schedules.len(), 1);
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
    /// The calendar that removes or moves its fires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calendar: Option<CalendarUse>,
    /// Which executor gets a run.
    #[serde(default)]
    pub route: Route,
    /// Which executors of the app may get a run at all.
    #[serde(default, skip_serializing_if = "SelectSpec::is_any")]
    pub select: SelectSpec,
    /// How many shards a fire has, dealt over the executors; nothing for an unsharded job. A broadcast has one for each
    /// executor instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<u32>,
    /// What happens to fires that were missed.
    #[serde(default)]
    pub misfire: MisfireSpec,
    /// What happens when a run is due and an earlier one is not over.
    #[serde(default)]
    pub overlap: OverlapSpec,
    /// How many runs with the same key, of this job and others, may be with executors at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<ConcurrencySpec>,
    /// How many runs may start in a length of time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateSpec>,
    /// Who goes first of the runs that wait for an executor: 0 (last) to 9 (first).
    #[serde(default = "default_priority")]
    pub priority: u8,
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
    /// When a run counts as over: with its own end, or when the runs that follow from it are over too.
    #[serde(default)]
    pub over: Over,
    /// Whether its schedule fires; it can be triggered by hand either way.
    #[serde(default = "enabled")]
    pub enabled: bool,
}

/// The priority of a job that does not say.
pub const PRIORITY_DEFAULT: u8 = 5;

const fn default_priority() -> u8 {
    PRIORITY_DEFAULT
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
    /// What is done about an `at` that lies in the past when the definition is saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_past: Option<IfPast>,
    /// After these jobs: once all of them that belong to the same fire have ended as `on` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Vec<String>>,
    /// How the jobs of `after` must have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<AfterWhat>,
    /// Nothing fires before this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<String>,
    /// Nothing fires after this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_at: Option<String>,
    /// Runs start a little later than planned, so that many jobs of one instant do not start together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<JitterSpec>,
}

/// How much later than planned runs start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JitterSpec {
    /// At most so much later.
    #[serde(with = "duration_text")]
    pub max: Duration,
    /// What the length is drawn by.
    #[serde(default)]
    pub by: JitterBy,
}

words! {
    /// What a jitter is drawn by.
    JitterBy {
        /// The job: the same for each of its fires, so that the period stays.
        Job = "job",
        /// The fire: another one for each.
        Fire = "fire",
    }
}

#[expect(clippy::derivable_impls, reason = "the words macro makes the enum")]
impl Default for JitterBy {
    fn default() -> Self {
        Self::Job
    }
}

words! {
    /// What is done about an `at` in the past.
    IfPast {
        /// The definition is refused.
        Refuse = "refuse",
        /// It runs at once.
        Run = "run",
    }
}

words! {
    /// How a parent must have ended for its children to run.
    AfterWhat {
        /// It succeeded.
        Success = "success",
        /// It failed, timed out, or its outcome is unknown.
        Failure = "failure",
        /// Either.
        Either = "either",
    }
}

#[expect(clippy::derivable_impls, reason = "the words macro makes the enum")]
impl Default for AfterWhat {
    fn default() -> Self {
        Self::Success
    }
}

words! {
    /// When a run counts as over.
    Over {
        /// With its own end.
        Run = "run",
        /// When the runs that follow from it are over too: until then it is `running`, and its verdict is folded from
        /// theirs.
        Children = "children",
    }
}

#[expect(clippy::derivable_impls, reason = "the words macro makes the enum")]
impl Default for Over {
    fn default() -> Self {
        Self::Run
    }
}

/// What a calendar does to a job's fires. Its days and times are read in the zone of the schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalendarUse {
    /// The calendar, of the same namespace.
    pub name: String,
    /// What it does.
    #[serde(default)]
    pub rule: CalendarRule,
}

words! {
    /// What a calendar does to a job's fires.
    CalendarRule {
        /// Only the fires that are in the calendar are kept.
        Only = "only",
        /// The fires that are in the calendar are removed.
        Except = "except",
        /// A fire on a day that is not in the calendar moves to the next one that is, at the same time of day.
        Next = "next",
        /// A fire on a day that is not in the calendar moves to the last one before that is, at the same time of day.
        Previous = "previous",
    }
}

#[expect(clippy::derivable_impls, reason = "the words macro makes the enum")]
impl Default for CalendarRule {
    fn default() -> Self {
        Self::Only
    }
}

/// Which executors of the app may get a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SelectSpec {
    /// Conditions on labels, all of which must hold: `zone=eu`, `gpu!=none`, `ssd` (it has the label), `!old` (it has not).
    pub labels: Vec<String>,
    /// Stable names; empty for any.
    pub executors: Vec<String>,
}

impl SelectSpec {
    fn is_any(&self) -> bool {
        self.labels.is_empty() && self.executors.is_empty()
    }
}

/// A limit that several jobs share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConcurrencySpec {
    /// Jobs of a namespace with the same key share the limit.
    pub key: String,
    /// How many of their runs may be with executors at the same time.
    pub max: u32,
}

/// A limit on starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateSpec {
    /// Jobs of a namespace with the same key share the limit; nothing for this job alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How many runs may start …
    pub max: u32,
    /// … in any span of this length.
    #[serde(with = "duration_text")]
    pub per: Duration,
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
        /// By chance, in proportion to the weights that they declare.
        Weight = "weight",
        /// The one with the fewest runs in hand.
        LeastActive = "least_active",
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
    /// For `all`: how many of the missed fires run.
    pub max: u32,
    /// For `all`: which of them.
    pub keep: MisfireKeep,
    /// A fire that is later than this was missed.
    #[serde(with = "duration_text")]
    pub tolerance: Duration,
}

impl Default for MisfireSpec {
    fn default() -> Self {
        Self { policy: MisfirePolicy::Skip, max: 100, keep: MisfireKeep::Newest, tolerance: Duration::from_secs(5) }
    }
}

words! {
    /// What to do about missed fires.
    MisfirePolicy {
        /// Pass them over, with a verdict.
        Skip = "skip",
        /// Run the newest of them, pass over the others.
        Once = "once",
        /// Run up to `max` of them in order, pass over the others.
        All = "all",
    }
}

words! {
    /// Which of the missed fires run, where not all of them do.
    MisfireKeep {
        /// The newest.
        Newest = "newest",
        /// The oldest.
        Oldest = "oldest",
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

/// A job that another one follows from, as its definition names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentSpec<'s> {
    /// Where it is named: `/schedule/after/0`.
    pub pointer: String,
    /// Its name.
    pub name: &'s str,
    /// How it must have ended.
    pub on: AfterWhat,
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
    /// Whether a fire is one row that is expanded into shards when it is due.
    #[must_use]
    pub const fn is_sharded(&self) -> bool {
        job::is_sharded(self.route, self.shards)
    }

    /// Checks the whole definition.
    ///
    /// # Errors
    /// Every complaint, in the order of the fields.
    pub fn compile(&self) -> Result<Job, Vec<FieldError>> {
        Job::compile(self, None)
    }

    /// The same with the calendar that the definition names. A job that is compiled without it fires as if it had none.
    ///
    /// # Errors
    /// As for [`compile`](Self::compile), and where the calendar does not go with the definition's rule.
    pub fn compile_with(&self, calendar: Option<Arc<Calendar>>) -> Result<Job, Vec<FieldError>> {
        Job::compile(self, calendar)
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

    /// The jobs that it follows from, with the pointer to each.
    #[must_use]
    pub fn parents(&self) -> Vec<ParentSpec<'_>> {
        let mut parents = Vec::new();
        for (pointer, schedule) in self.schedules() {
            let on = schedule.on.unwrap_or_default();
            for (index, name) in schedule.after.iter().flatten().enumerate() {
                parents.push(ParentSpec { pointer: format!("{pointer}/after/{index}"), name, on });
            }
        }
        parents
    }

    /// The instants at which a once-schedule fires, for the check against the present that only the server can make.
    #[must_use]
    pub fn once_instants(&self) -> Vec<(String, Timestamp)> {
        self.instants("at", |spec| spec.at.as_deref())
    }

    /// The instants after which its schedules do not fire any more, for the same check.
    #[must_use]
    pub fn end_instants(&self) -> Vec<(String, Timestamp)> {
        self.instants("end_at", |spec| spec.end_at.as_deref())
    }

    fn instants(&self, field: &str, text: impl Fn(&ScheduleSpec) -> Option<&str>) -> Vec<(String, Timestamp)> {
        let instant =
            |(pointer, spec): (String, &ScheduleSpec)| Some((format!("{pointer}/{field}"), text(spec)?.parse().ok()?));
        self.schedules().into_iter().filter_map(instant).collect()
    }

    /// Moves each `at` in the past that is to run at once to `now`; one of `before`, the definition that this one
    /// replaces, ran already and stays.
    pub fn run_past_at(&mut self, now: Timestamp, before: Option<&Self>) {
        let known = before.map(Self::once_instants).unwrap_or_default();
        let schedules = match &mut self.schedule {
            None => &mut [],
            Some(OneOrMany::One(one)) => std::slice::from_mut(one.as_mut()),
            Some(OneOrMany::Many(many)) => many.as_mut_slice(),
        };
        for schedule in schedules.iter_mut().filter(|schedule| schedule.if_past == Some(IfPast::Run)) {
            let at = schedule.at.as_deref().and_then(|at| at.parse::<Timestamp>().ok());
            if at.is_some_and(|at| at < now && !known.iter().any(|(_, before)| *before == at)) {
                schedule.at = Some(now.to_string());
            }
        }
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
