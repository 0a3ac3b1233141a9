//! Checks the definition of a pump job.

use std::time::Duration;

use serde_json::Value;

use super::{Limits, Pump, Until};
use crate::cron::parse_zone;
use crate::field_error::FieldError;
use crate::schedule::Schedule;
use crate::spec::{
    Delivery, ITEM_COUNT_MAX, JobSpec, MisfirePolicy, MisfireSpec, NamedKind, OverlapPolicy, OverlapScope, PumpSpec,
    QUEUE_TIMEOUT_DEFAULT, Route, ScheduleSpec, UntilSpec, UntilWord, check_named,
};
use crate::time::Timestamp;

/// Maximum number of groups of a pump job.
const GROUP_COUNT_MAX: u32 = 1_000;
const THREADS_MAX: u32 = 1_000;
const FETCH_MAX: u32 = 100_000;
const HAND_OVER_MAX: Duration = Duration::from_secs(3600);

/// A setting of other jobs that has no effect on a pump job.
struct IgnoredSetting {
    pointer: &'static str,
    /// Why it has no effect, and what to write instead.
    hint: &'static str,
    is_set: fn(&JobSpec) -> bool,
    /// Whether earlier versions accepted it. If so, a stored definition may have it, and must stay valid.
    may_be_stored: bool,
}

impl IgnoredSetting {
    const fn never_stored(pointer: &'static str, hint: &'static str, is_set: fn(&JobSpec) -> bool) -> Self {
        Self { pointer, hint, is_set, may_be_stored: false }
    }

    const fn maybe_stored(pointer: &'static str, hint: &'static str, is_set: fn(&JobSpec) -> bool) -> Self {
        Self { pointer, hint, is_set, may_be_stored: true }
    }

    fn error(&self) -> FieldError {
        FieldError::new(self.pointer, self.hint)
    }

    /// Whether two definitions have the same value of it.
    fn is_same(&self, first: &JobSpec, second: &JobSpec) -> bool {
        let value = |spec: &JobSpec| {
            serde_json::to_value(spec).ok().and_then(|spec: Value| spec.pointer(self.pointer).cloned())
        };
        value(first) == value(second)
    }
}

static IGNORED_SETTINGS: [IgnoredSetting; 12] = [
    IgnoredSetting::never_stored("/shards", "a pump job has groups instead: /pump/groups", |job| job.shards.is_some()),
    IgnoredSetting::never_stored(
        "/route",
        "the groups of a pump job are dealt evenly over the executors; leave it out",
        |job| job.route != Route::default(),
    ),
    IgnoredSetting::never_stored("/overlap", "a pump job starts when its last run has ended; leave it out", |job| {
        (job.overlap.policy, job.overlap.scope) != (OverlapPolicy::Serial, OverlapScope::Cluster)
    }),
    IgnoredSetting::never_stored(
        "/delivery",
        "a group of a pump job continues on another executor when its executor is lost; leave it out",
        |job| job.delivery != Delivery::AtLeastOnce,
    ),
    IgnoredSetting::never_stored(
        "/on_silence",
        "a group of a pump job stops when it hears no server; leave it out",
        |job| job.on_silence.is_some(),
    ),
    IgnoredSetting::never_stored("/timeout", "a pump job ends by /pump/until; leave it out", |job| {
        job.timeout.is_some()
    }),
    IgnoredSetting::never_stored(
        "/concurrency",
        "a pump job is bounded by its groups and their workers; leave it out",
        |job| job.concurrency.is_some(),
    ),
    IgnoredSetting::never_stored("/rate", "a pump job is bounded by /pump/pause; leave it out", |job| {
        job.rate.is_some()
    }),
    IgnoredSetting::maybe_stored(
        "/queue_timeout",
        "a pump job waits for executors while its window is open; leave it out",
        |job| job.queue_timeout != QUEUE_TIMEOUT_DEFAULT,
    ),
    // A given `skip` looks like the default, and `once` is the policy of every pump job.
    IgnoredSetting::maybe_stored(
        "/misfire/policy",
        "a pump job begins once after missed starts: the policy is always once; leave it out",
        |job| job.misfire.policy == MisfirePolicy::All,
    ),
    IgnoredSetting::maybe_stored(
        "/misfire/max",
        "a pump job begins once after missed starts, however many there are; leave it out",
        |job| job.misfire.max != MisfireSpec::default().max,
    ),
    IgnoredSetting::maybe_stored(
        "/misfire/keep",
        "a pump job begins once after missed starts, for the newest of them; leave it out",
        |job| job.misfire.keep != MisfireSpec::default().keep,
    ),
];

/// The errors for settings that have no effect on a pump job and that earlier versions accepted. A value that `stored_spec` already has is
/// accepted, so that the job can still be paused.
#[must_use]
pub fn ignored_setting_errors(spec: &JobSpec, stored_spec: Option<&JobSpec>) -> Vec<FieldError> {
    if spec.pump.is_none() {
        return Vec::new();
    }
    let stored_pump = stored_spec.filter(|stored| stored.pump.is_some());
    let is_kept = |setting: &&IgnoredSetting| stored_pump.is_some_and(|stored| setting.is_same(spec, stored));
    let new_settings = IGNORED_SETTINGS.iter().filter(|setting| setting.may_be_stored && (setting.is_set)(spec));
    new_settings.filter(|setting| !is_kept(setting)).map(IgnoredSetting::error).collect()
}

impl PumpSpec {
    /// Checks the pump together with the other parts of its job's definition.
    pub(crate) fn compile(&self, job: &JobSpec, errors: &mut Vec<FieldError>) -> Option<Pump> {
        let error_count_before = errors.len();
        self.check_items(errors);
        self.check_numbers(errors);
        let refused = IGNORED_SETTINGS.iter().filter(|setting| !setting.may_be_stored && (setting.is_set)(job));
        errors.extend(refused.map(IgnoredSetting::error));
        let until = self.compile_until(job, errors);
        if errors.len() > error_count_before {
            return None;
        }
        Some(Pump {
            items: self.items.all().into_iter().collect(),
            groups: self.groups,
            per_executor: self.per_executor,
            items_per_group: self.items_per_group,
            limits: Limits {
                threads: self.threads,
                fetch: self.fetch,
                batch: self.batch,
                mode: self.mode,
                idle: self.idle,
                pause: self.pause,
                hand_over: self.hand_over,
            },
            until: until?,
        })
    }

    fn check_items(&self, errors: &mut Vec<FieldError>) {
        let count = self.items.count();
        if !(1..=ITEM_COUNT_MAX).contains(&count) {
            return errors.push(FieldError::new("/pump/items", format!("{count} items; 1 to {ITEM_COUNT_MAX}")));
        }
        check_named(self.items.named(), ("/pump/items", NamedKind::Item), errors);
    }

    fn check_numbers(&self, errors: &mut Vec<FieldError>) {
        let mut refuse = |field: &str, message: String| {
            errors.push(FieldError::new(format!("/pump/{field}"), message));
        };
        let items = self.items.count();
        if !(1..=GROUP_COUNT_MAX).contains(&self.groups) {
            refuse("groups", format!("{} groups; 1 to {GROUP_COUNT_MAX}", self.groups));
        } else if self.groups > items {
            refuse("groups", format!("{} groups for {items} items: some would have nothing to do", self.groups));
        }
        if self.per_executor == Some(0) {
            refuse("per_executor", "0 groups would let no executor work; 1 or more".to_owned());
        }
        if let Some(max) = self.items_per_group
            && u64::from(max) * u64::from(self.groups) < u64::from(items)
        {
            let message =
                format!("{max} items for each of {} groups leave some of {items} items without a group", self.groups);
            refuse("items_per_group", message);
        }
        if !(1..=THREADS_MAX).contains(&self.threads) {
            refuse("threads", format!("{} workers; 1 to {THREADS_MAX}", self.threads));
        }
        if !(1..=FETCH_MAX).contains(&self.fetch) {
            refuse("fetch", format!("{} rows; 1 to {FETCH_MAX}", self.fetch));
        }
        if !(1..=self.fetch.max(1)).contains(&self.batch) {
            refuse("batch", format!("{} rows; 1 to {}, which one select may return", self.batch, self.fetch));
        }
        let (idle_min, hour) = (Duration::from_millis(10), Duration::from_secs(3600));
        if self.idle < idle_min || self.idle > hour {
            refuse("idle", "is outside 10ms to 1h".to_owned());
        }
        if self.pause > hour {
            refuse("pause", "is longer than 1h".to_owned());
        }
        if self.hand_over < Duration::from_secs(1) || self.hand_over > HAND_OVER_MAX {
            refuse("hand_over", "is outside 1s to 1h".to_owned());
        }
    }

    fn compile_until(&self, job: &JobSpec, errors: &mut Vec<FieldError>) -> Option<Until> {
        let schedules = job.schedules();
        match &self.until {
            None if !schedules.is_empty() => {
                let message =
                    "a pump with a schedule ends before its next start: \"empty\" or {\"cron\": \"0 0 6 * * ?\"}";
                errors.push(FieldError::new("/pump/until", message));
                None
            }
            None => Some(Until::Stopped),
            Some(UntilSpec::Word(UntilWord::Empty)) => Some(Until::Empty),
            Some(UntilSpec::Cron(end)) => {
                let start_zone = || schedules.iter().find_map(|(_, schedule)| schedule.time_zone.clone());
                let time_zone = end.time_zone.clone().or_else(start_zone);
                if let Some(Err(error)) = time_zone.as_deref().map(parse_zone) {
                    errors.push(FieldError::new("/pump/until/time_zone", error.to_string()));
                    return None;
                }
                let spec = ScheduleSpec { cron: Some(end.cron.clone()), time_zone, ..ScheduleSpec::default() };
                match Schedule::compile("/pump/until", &spec) {
                    Ok(schedule) if schedule.next_after(Timestamp::EPOCH, Timestamp::EPOCH).is_some() => {
                        Some(Until::At(Box::new(schedule)))
                    }
                    Ok(_) => {
                        let message = format!("{:?} never occurs, so the pump would never end", end.cron);
                        errors.push(FieldError::new("/pump/until/cron", message));
                        None
                    }
                    Err(schedule_errors) => {
                        errors.extend(schedule_errors);
                        None
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pump_job(field: &str, value: &Value) -> JobSpec {
        let pump = json!({"items": {"count": 4}, "groups": 2});
        let mut spec = json!({"name": "a", "app": "b", "handler": "c", "pump": pump});
        spec[field] = value.clone();
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn each_ignored_setting_is_refused_at_its_field() {
        for (field, value, pointer) in [
            ("shards", json!(2), "/shards"),
            ("route", json!("first"), "/route"),
            ("overlap", json!({"policy": "allow"}), "/overlap"),
            ("delivery", json!("at_most_once"), "/delivery"),
            ("on_silence", json!("stop"), "/on_silence"),
            ("timeout", json!("1h"), "/timeout"),
            ("concurrency", json!({"key": "k", "max": 1}), "/concurrency"),
            ("rate", json!({"max": 1, "per": "1s"}), "/rate"),
            ("queue_timeout", json!("5m"), "/queue_timeout"),
            ("misfire", json!({"policy": "all"}), "/misfire/policy"),
            ("misfire", json!({"policy": "once", "max": 3}), "/misfire/max"),
            ("misfire", json!({"keep": "oldest"}), "/misfire/keep"),
        ] {
            let spec = pump_job(field, &value);
            let mut errors = spec.compile().err().unwrap_or_default();
            errors.extend(ignored_setting_errors(&spec, None));
            let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
            assert_eq!(pointers, [pointer], "{field}: {value}");
        }
        for (field, value) in [("misfire", json!({"policy": "once", "tolerance": "1m"})), ("priority", json!(7))] {
            let spec = pump_job(field, &value);
            assert!(spec.compile().is_ok() && ignored_setting_errors(&spec, None).is_empty(), "{field}: {value}");
        }
    }

    #[test]
    fn a_setting_that_a_stored_pump_job_has_stays_valid() {
        let other_job = |spec: JobSpec| JobSpec { pump: None, ..spec };
        let misfire = |max: u32| pump_job("misfire", &json!({"max": max}));
        let timeout = |text: &str| pump_job("queue_timeout", &json!(text));
        for (given, before, is_refused) in [
            (misfire(3), misfire(3), false),
            (misfire(3), misfire(4), true),
            (misfire(3), other_job(misfire(3)), true),
            (other_job(misfire(3)), misfire(4), false),
            (timeout("5m"), timeout("5m"), false),
            (timeout("5m"), timeout("6m"), true),
            (timeout("5m"), other_job(timeout("5m")), true),
            (timeout("1m"), timeout("5m"), false),
        ] {
            assert!(given.compile().is_ok(), "a stored definition must stay valid: {given:?}");
            let errors = ignored_setting_errors(&given, Some(&before));
            assert_eq!(!errors.is_empty(), is_refused, "{given:?} {before:?}");
        }
    }
}
