//! The definition of a job as users write it: the JSON document of the API, of `job apply` and of a job's versions.
//!
//! [`JobSpec::compile`] checks it and makes the [`Job`] that the engine works with. Each error has a JSON pointer to the field, and names
//! its value and the accepted form.

mod expect;
mod policies;
mod pump;
mod schedules;
mod shards;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::expect::{EXPECT_CHANNEL, ExpectSpec, SuccessBySpec};
pub use self::policies::{
    ConcurrencySpec, Delivery, MisfireKeep, MisfirePolicy, MisfireSpec, NotifySpec, OnSilence, OverlapPolicy,
    OverlapScope, OverlapSpec, RateSpec, RetrySpec, Route, RunEnd, SelectSpec,
};
pub use self::pump::{
    ITEM_COUNT_MAX, ITEM_PARAMS_LEN_MAX, ItemCountSpec, ItemSpec, ItemsSpec, PumpMode, PumpSpec, UntilCronSpec,
    UntilSpec, UntilWord,
};
pub use self::schedules::{
    AfterWhat, CalendarRule, CalendarUse, DstSpec, IfPast, JitterBy, JitterSpec, OneOrMany, ScheduleSpec,
};
pub use self::shards::with_params_of_shard;
pub(crate) use self::shards::{NamedKind, check_named};
use crate::alert::expect::Expectations;
use crate::calendar::Calendar;
use crate::field_error::FieldError;
use crate::job::Job;
use crate::labels::Labels;
use crate::overrides::Overrides;
use crate::pump::Pump;
use crate::schema::{DurationText, HANDLER_PATTERN, NAME_PATTERN};
use crate::script::ScriptRef;
pub use crate::shadow::Mode;
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(description = "A job's definition. Every field that has a default may be left out.")]
pub struct JobSpec {
    /// Unique in its namespace.
    #[schemars(regex(pattern = NAME_PATTERN))]
    pub name: String,
    /// The app whose executors run it.
    #[schemars(regex(pattern = NAME_PATTERN))]
    pub app: String,
    /// The handler in that app.
    #[schemars(regex(pattern = HANDLER_PATTERN))]
    pub handler: String,
    /// Free text.
    #[serde(default)]
    pub description: String,
    /// Labels by which users group and find the job: up to 20 keys, each with a value.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schemars(schema_with = "crate::schema::labels")]
    pub labels: Labels,
    /// The parameters of the handler: any JSON value.
    #[serde(default)]
    pub params: Value,
    /// Which parameters a caller may replace for one run. The default is `none` for the agent's handlers (`shell`, `python`,
    /// `node`, `php`, `powershell`, `http`, `pump`), `["/param"]` for the scripts of XXL-JOB's executors (`GLUE_SHELL` and
    /// the like), and `all` for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Option<Overrides>,
    /// When it fires: null (only when it is triggered), one schedule, or a list of schedules.
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
    /// The shards of a fire: their number, or a list with the name and parameters of each. The route chooses an executor for each shard.
    /// Left out for an unsharded job. A broadcast has a shard for each executor instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<ItemsSpec>,
    /// A pump job: groups that fetch and execute rows of their items until it ends, instead of one run of the handler for each fire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pump: Option<Box<PumpSpec>>,
    /// What happens to fires that were missed.
    #[serde(default)]
    pub misfire: MisfireSpec,
    /// What happens when a run is due and an earlier one has not ended.
    #[serde(default)]
    pub overlap: OverlapSpec,
    /// How many runs with the same key, of this job and others, may be on executors at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<ConcurrencySpec>,
    /// How many runs may start in a period of time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateSpec>,
    /// Priority among the runs that wait for an executor: 0 (last) to 9 (first).
    #[serde(default = "default_priority")]
    #[schemars(range(max = 9))]
    pub priority: u8,
    /// What happens to a run whose executor is lost.
    #[serde(default)]
    pub delivery: Delivery,
    /// What an executor does with a run while no server answers it; the default is `stop` if a run may be repeated and runs must not
    /// overlap, else `continue`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_silence: Option<OnSilence>,
    /// How long one attempt may take; left out for no limit.
    #[serde(default, with = "optional_duration")]
    #[schemars(with = "Option<DurationText>")]
    pub timeout: Option<Duration>,
    /// How long after its instant a run may begin. A run that waits longer is skipped.
    #[serde(default = "default_queue_timeout", with = "duration_text")]
    #[schemars(with = "DurationText")]
    pub queue_timeout: Duration,
    /// What happens after a failed attempt.
    #[serde(default)]
    pub retry: RetrySpec,
    /// When a run counts as ended: at its own end, or when the runs that follow it have ended too.
    #[serde(default)]
    pub over: RunEnd,
    /// Which verdicts besides failures are reported to the failure webhook.
    #[serde(default, skip_serializing_if = "NotifySpec::is_default")]
    pub notify: NotifySpec,
    /// Expectations of the job; a message is sent when one is not met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<Box<ExpectSpec>>,
    /// Whether its schedule fires. A disabled job can still be triggered by hand.
    #[serde(default = "enabled")]
    pub enabled: bool,
    /// Whether its runs are sent to executors.
    #[serde(default, skip_serializing_if = "is_active")]
    pub mode: Mode,
    /// The planned instant from which `mode` applies; earlier fires have the other mode. If left out, it applies to all fires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub mode_from: Option<String>,
}

/// The priority of a job that sets none.
pub const PRIORITY_DEFAULT: u8 = 5;

const fn default_priority() -> u8 {
    PRIORITY_DEFAULT
}

const fn enabled() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_active(mode: &Mode) -> bool {
    matches!(mode, Mode::Active)
}

/// The `queue_timeout` of a definition that leaves it out.
pub const QUEUE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

const fn default_queue_timeout() -> Duration {
    QUEUE_TIMEOUT_DEFAULT
}

/// A parent job, as the definition of its child refers to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentSpec<'s> {
    /// Where it is named: `/schedule/after/0`.
    pub pointer: String,
    pub name: &'s str,
    /// How it must have ended.
    pub on: AfterWhat,
}

impl JobSpec {
    /// Whether a fire is one row that is expanded into shards when it is due.
    #[must_use]
    pub const fn is_sharded(&self) -> bool {
        matches!(self.route, Route::Broadcast) || self.shards.is_some() || self.pump.is_some()
    }

    /// Checks the whole definition.
    ///
    /// # Errors
    /// Every error, in the order of the fields.
    pub fn compile(&self) -> Result<Job, Vec<FieldError>> {
        Job::compile(self, None)
    }

    /// Compiles the definition with the calendar that it names. Without the calendar, the job fires as if the definition named none.
    ///
    /// # Errors
    /// As for [`compile`](Self::compile), and if the calendar does not suit the definition's rule.
    pub fn compile_with(&self, calendar: Option<Arc<Calendar>>) -> Result<Job, Vec<FieldError>> {
        Job::compile(self, calendar)
    }

    /// The shard of a fire with this index, if shards have names.
    #[must_use]
    pub fn shard(&self, index: i32) -> Option<&ItemSpec> {
        self.shards.as_ref()?.named().get(usize::try_from(index).ok()?)
    }

    /// Checks its pump, if it has one.
    pub(crate) fn compile_pump(&self, errors: &mut Vec<FieldError>) -> Option<Pump> {
        self.pump.as_ref()?.compile(self, errors)
    }

    /// What happens to missed fires. A pump that missed its start begins late, if its window is still open.
    pub(crate) const fn misfire(&self) -> MisfireSpec {
        match self.pump {
            Some(_) => MisfireSpec { policy: MisfirePolicy::Once, ..self.misfire },
            None => self.misfire,
        }
    }

    /// The schedules, however they were written, with the pointer to each.
    pub(crate) fn schedules(&self) -> Vec<(String, &ScheduleSpec)> {
        match &self.schedule {
            None => Vec::new(),
            Some(OneOrMany::One(schedule)) => vec![("/schedule".to_owned(), schedule.as_ref())],
            Some(OneOrMany::Many(schedules)) => {
                schedules.iter().enumerate().map(|(index, spec)| (format!("/schedule/{index}"), spec)).collect()
            }
        }
    }

    fn schedules_mut(&mut self) -> &mut [ScheduleSpec] {
        match &mut self.schedule {
            None => &mut [],
            Some(OneOrMany::One(schedule)) => std::slice::from_mut(schedule.as_mut()),
            Some(OneOrMany::Many(schedules)) => schedules.as_mut_slice(),
        }
    }

    /// The stored script that the definition refers to, if any.
    #[must_use]
    pub fn script(&self) -> Option<ScriptRef> {
        crate::script::script_ref(&self.handler, &self.params)
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

    /// Whether only time and triggers start it: it has schedules, and none of them follows other jobs.
    #[must_use]
    pub fn fires_by_time(&self) -> bool {
        let schedules = self.schedules();
        !schedules.is_empty() && schedules.iter().all(|(_, schedule)| schedule.after.is_none())
    }

    /// Its expectations; `None` if there are none, and in shadow mode.
    #[must_use]
    pub fn expectations(&self) -> Option<Expectations> {
        // No run of a job in shadow mode is sent, so it cannot succeed.
        let expect = self.expect.as_deref().filter(|expect| !expect.is_empty() && self.mode == Mode::Active)?;
        Some(Expectations::new(expect, self.expect_zone()))
    }

    /// The time zone of its expectations.
    pub(crate) fn expect_zone(&self) -> &str {
        let own_zone = self.expect.as_ref().and_then(|expect| expect.success_by.as_ref()?.zone.as_deref());
        let schedule_zone = || self.schedules().into_iter().find_map(|(_, schedule)| schedule.time_zone.as_deref());
        own_zone.or_else(schedule_zone).unwrap_or("UTC")
    }

    /// The instants of its `at` schedules, each with its pointer. Only the server can compare them with the current time.
    #[must_use]
    pub fn once_instants(&self) -> Vec<(String, Timestamp)> {
        self.instants("at", |spec| spec.at.as_deref())
    }

    /// The instants of its `at` schedules that are refused in the past: those whose `if_past` is not `run`.
    #[must_use]
    pub fn refused_past_instants(&self) -> Vec<(String, Timestamp)> {
        self.instants("at", |spec| spec.at.as_deref().filter(|_| spec.if_past != Some(IfPast::Run)))
    }

    /// The instants after which its schedules no longer fire, each with its pointer. Only the server can compare them with the current time.
    #[must_use]
    pub fn end_instants(&self) -> Vec<(String, Timestamp)> {
        self.instants("end_at", |spec| spec.end_at.as_deref())
    }

    fn instants(&self, field: &str, text: impl Fn(&ScheduleSpec) -> Option<&str>) -> Vec<(String, Timestamp)> {
        let instant =
            |(pointer, spec): (String, &ScheduleSpec)| Some((format!("{pointer}/{field}"), text(spec)?.parse().ok()?));
        self.schedules().into_iter().filter_map(instant).collect()
    }

    /// Sets each `at` in the past to `now` if its `if_past` is `run`. An `at` that is also in `before`, the replaced definition, is left as
    /// it is, because it has run already.
    pub fn replace_past_instants(&mut self, now: Timestamp, before: Option<&Self>) {
        let instants_before = before.map(Self::once_instants).unwrap_or_default();
        for schedule in self.schedules_mut().iter_mut().filter(|schedule| schedule.if_past == Some(IfPast::Run)) {
            let at = schedule.at.as_deref().and_then(|at| at.parse::<Timestamp>().ok());
            if at.is_some_and(|at| at < now && !instants_before.iter().any(|(_, before)| *before == at)) {
                schedule.at = Some(now.to_string());
            }
        }
    }
}

impl JobSpec {
    /// Keeps the instants of `before`, the definition that this one replaces, for schedules that ran immediately when they were saved
    /// ([`IfPast::Run`]), so that a document that is applied again does not run them again. Each instant is kept for one schedule, whatever
    /// its position in the list.
    pub fn keep_run_instants(&mut self, before: &Self, now: Timestamp) {
        let old_instants =
            before.schedules().into_iter().filter_map(|(_, schedule)| Some((run_instant(schedule)?, schedule)));
        let mut known_instants: Vec<(Timestamp, &ScheduleSpec)> = old_instants.filter(|(at, _)| *at <= now).collect();
        let mut moved_instants: Vec<(Timestamp, &mut ScheduleSpec)> = Vec::new();
        for schedule in self.schedules_mut() {
            let Some(instant) = run_instant(schedule) else { continue };
            // A schedule that already has an instant of `before` uses up that instant. The remaining instants are for the other schedules.
            match known_instants.iter().position(|(at, _)| *at == instant) {
                Some(position) => {
                    known_instants.remove(position);
                }
                None => moved_instants.push((instant, schedule)),
            }
        }
        for (instant, schedule) in moved_instants {
            if let Some(position) = known_instants.iter().position(|(at, _)| instant < *at) {
                schedule.at.clone_from(&known_instants.remove(position).1.at);
            }
        }
    }

    /// Keeps `mode_from` of `before`, the definition that this one replaces, if this one has the same mode and no `mode_from`. A document
    /// that is applied again then does not undo a planned change of mode.
    pub fn keep_mode_from(&mut self, before: &Self) {
        if self.mode_from.is_none() && self.mode == before.mode {
            self.mode_from.clone_from(&before.mode_from);
        }
    }
}

/// The `at` of a schedule that runs immediately if this instant is in the past when the definition is saved; `None` for
/// any other schedule.
fn run_instant(schedule: &ScheduleSpec) -> Option<Timestamp> {
    let at = schedule.at.as_deref().filter(|_| schedule.if_past == Some(IfPast::Run))?;
    at.parse().ok()
}

pub(crate) mod optional_duration {
    use super::{Duration, format_duration, parse_duration};
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(crate) fn serialize<S: Serializer>(length: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match length {
            Some(length) => serializer.serialize_some(&format_duration(*length)),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| parse_duration(&text)).transpose().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> String {
        Timestamp::from_secs(second).to_string()
    }

    fn once(second: i64, if_past: Option<&str>) -> Value {
        let mut schedule = json!({"at": at(second)});
        if let Some(word) = if_past {
            schedule["if_past"] = json!(word);
        }
        schedule
    }

    fn spec(schedules: &[Value]) -> JobSpec {
        serde_json::from_value(json!({"name": "a", "app": "b", "handler": "c", "schedule": schedules})).unwrap()
    }

    fn instants(spec: &JobSpec) -> Vec<String> {
        spec.schedules().iter().map(|(_, schedule)| schedule.at.clone().unwrap_or_default()).collect()
    }

    #[test]
    fn only_an_instant_in_the_past_that_is_to_run_moves_to_the_present() {
        let now = Timestamp::from_secs(100);
        let moved = |second, if_past, before: &[Value]| {
            let mut spec = spec(&[once(second, if_past)]);
            let before = self::spec(before);
            spec.replace_past_instants(now, Some(&before));
            instants(&spec)[0] == at(100) && second != 100
        };
        let run = Some("run");
        assert!(moved(99, run, &[]));
        assert!(!moved(101, run, &[]) && !moved(99, None, &[]));
        assert!(!moved(99, run, &[once(99, run)]), "it ran when it was saved before");
        assert!(moved(99, run, &[once(98, run)]));
        // An `at` that equals the present is not in the past.
        let mut present = spec(&[json!({"at": "1970-01-01T01:01:40+01:00", "if_past": "run"})]);
        present.replace_past_instants(now, None);
        assert_eq!(instants(&present), ["1970-01-01T01:01:40+01:00"]);
    }

    #[test]
    fn a_document_of_the_same_mode_keeps_the_seam() {
        let (first, second) = ("2026-11-23T10:00:00Z", "2026-11-24T10:00:00Z");
        let spec_with_mode = |mode: &str, from: Option<&str>| -> JobSpec {
            let from = from.map_or(Value::Null, Value::from);
            serde_json::from_value(json!({"name": "a", "app": "b", "handler": "c", "mode": mode, "mode_from": from}))
                .unwrap()
        };
        let kept = |mut wanted: JobSpec| {
            wanted.keep_mode_from(&spec_with_mode("shadow", Some(first)));
            wanted.mode_from
        };
        assert_eq!(kept(spec_with_mode("shadow", None)).as_deref(), Some(first));
        assert_eq!(kept(spec_with_mode("shadow", Some(second))).as_deref(), Some(second));
        assert_eq!(kept(spec_with_mode("active", None)), None, "it is switched at once");
    }

    #[test]
    fn a_document_that_is_applied_again_keeps_the_instant_at_which_it_ran() {
        let now = Timestamp::from_secs(100);
        let kept = |wanted, wanted_if_past, known, known_if_past| {
            let mut spec = spec(&[once(wanted, wanted_if_past)]);
            spec.keep_run_instants(&self::spec(&[once(known, known_if_past)]), now);
            instants(&spec)[0].clone()
        };
        let run = Some("run");
        assert_eq!(kept(50, run, 90, run), at(90));
        assert_eq!(kept(50, run, 100, run), at(100), "it has run at this very instant");
        assert_eq!(kept(50, run, 101, run), at(50), "it has not run yet");
        assert_eq!(kept(95, run, 90, run), at(95), "a later instant is a new wish");
        assert_eq!(kept(50, None, 90, run), at(50));
        assert_eq!(kept(50, run, 90, None), at(50));
    }

    #[test]
    fn schedules_in_another_order_keep_the_instants_at_which_they_ran() {
        let (run, every) = (Some("run"), json!({"every": "1m"}));
        let kept = |wanted: &[Value], known: &[Value]| {
            let mut spec = spec(wanted);
            spec.keep_run_instants(&self::spec(known), Timestamp::from_secs(100));
            instants(&spec)
        };
        let known = [once(90, run), every.clone()];
        assert_eq!(kept(&[every, once(50, run)], &known), [String::new(), at(90)]);
        assert_eq!(kept(&[once(50, run), once(60, run)], &known), [at(90), at(60)], "the second one is new");
        assert_eq!(kept(&[once(50, run), once(90, run)], &known), [at(50), at(90)], "the first one is new");
        let both = [once(80, run), once(90, run)];
        assert_eq!(kept(&[once(50, run), once(80, run)], &both), [at(90), at(80)]);
    }

    #[test]
    fn the_waits_of_a_retry_are_in_order() {
        let waits = |backoff: &str| {
            let spec = json!({"name": "a", "app": "b", "handler": "c", "retry": {"max": 1, "backoff": backoff}});
            serde_json::from_value::<JobSpec>(spec).unwrap().compile().is_ok()
        };
        assert!(waits("5s..5s") && waits("5s..6s") && !waits("5s..4s"));
    }
}
