//! A job's definition, checked and ready for the engine.

use std::sync::Arc;
use std::time::Duration;

use crate::alert::expect::Expectations;
use crate::calendar::Calendar;
use crate::field_error::FieldError;
use crate::outcome::AfterPolicy;
use crate::pump::Pump;
use crate::schedule::Schedule;
use crate::select::Select;
use crate::shadow::ModeFrom;
use crate::spec::{
    CalendarRule, ConcurrencySpec, Delivery, ItemSpec, JobSpec, MisfirePolicy, MisfireSpec, NotifySpec, OnSilence,
    Over, OverlapPolicy, OverlapSpec, RateSpec, Route, ScheduleSpec, ShardsSpec, check_named, with_params_of_shard,
};
use crate::timetable::{Applied, Timetable};
use crate::{labels, name};

/// The longest parameters of a job, as JSON text.
pub const PARAMS_LEN_MAX: usize = 64 * 1024;
/// How many arrays and objects of parameters may lie inside of each other.
pub const PARAMS_DEPTH_MAX: usize = 50;
/// The most schedules that one job can have.
pub const SCHEDULE_COUNT_MAX: usize = 20;
const DESCRIPTION_LEN_MAX: usize = 1000;
const RETRY_MAX: u32 = 100;
const MISFIRE_MAX: u32 = 10_000;
const PRIORITY_MAX: u8 = 9;
const RATE_COUNT_MAX: u32 = 10_000;
const RATE_PER_MAX: Duration = Duration::from_secs(24 * 3600);
/// The most shards that a fire is cut into.
pub const SHARD_COUNT_MAX: u32 = 1_000;
const LENGTH_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// What [`JobSpec::compile`] makes.
#[derive(Clone, Debug)]
pub struct Job {
    /// Unique in its namespace.
    pub name: String,
    /// The app whose executors run it.
    pub app: String,
    /// The handler in that app.
    pub handler: String,
    /// What the handler gets, as JSON text.
    pub params: String,
    /// When it fires.
    pub timetable: Timetable,
    /// Which executor gets a run.
    pub route: Route,
    /// What stands in for its id where executors are chosen by consistent hash: the id that it had in XXL-JOB.
    pub hash_key: Option<String>,
    /// Which executors may.
    pub select: Select,
    /// How many shards a fire has, where that is fixed.
    pub shards: Option<u32>,
    /// Those shards by index, where they have names and parameters of their own; else empty.
    pub named_shards: Arc<[ItemSpec]>,
    /// What a pump job's groups do; `None` for any other job. It has a shard for each group.
    pub pump: Option<Arc<Pump>>,
    /// What happens to missed fires.
    pub misfire: MisfireSpec,
    /// What happens when runs overlap.
    pub overlap: OverlapSpec,
    /// A limit that it shares with other jobs.
    pub concurrency: Option<ConcurrencySpec>,
    /// A limit on its starts.
    pub rate: Option<RateSpec>,
    /// Who goes first of those that wait: 0 (last) to 9.
    pub priority: u8,
    /// When its runs count as over.
    pub over: Over,
    /// What happens to a run whose executor is lost.
    pub delivery: Delivery,
    /// What an executor does with a run while no server answers it.
    pub on_silence: OnSilence,
    /// How long one attempt may take.
    pub timeout: Option<Duration>,
    /// How long a due run waits for an executor; groups of a pump wait as long as it runs.
    pub queue_timeout: Duration,
    /// What follows the end of an attempt.
    pub after: AfterPolicy,
    /// What is expected of it.
    pub expect: Option<Arc<Expectations>>,
    /// Whether its schedules fire.
    pub enabled: bool,
    /// Which of its fires are sent.
    pub mode: ModeFrom,
}

impl Job {
    pub(crate) fn compile(spec: &JobSpec, calendar: Option<Arc<Calendar>>) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        check_names(spec, &mut errors);
        let params = spec.params.to_string();
        // What was kept before there was a bound for the depth stays a definition.
        if params.len() > PARAMS_LEN_MAX {
            errors.push(FieldError::new("/params", params_too_long(params.len())));
        }
        if let Some(overrides) = &spec.overrides {
            overrides.check(&mut errors);
        }
        let timetable =
            Timetable { schedules: compile_schedules(spec, &mut errors), calendar: apply(spec, calendar, &mut errors) };
        let select = Select::compile(&spec.select, &mut errors);
        check_limits(spec, &mut errors);
        check_policies(spec, &mut errors);
        let pump = spec.compile_pump(&mut errors).map(Arc::new);
        if let Some(expect) = &spec.expect {
            expect.check(spec.expect_zone(), &mut errors);
        }
        let mode = ModeFrom::compile(spec.mode, spec.mode_from.as_deref(), &mut errors);
        check_length("/timeout", spec.timeout, &mut errors);
        check_length("/queue_timeout", Some(spec.queue_timeout), &mut errors);
        check_length("/misfire/tolerance", Some(spec.misfire.tolerance), &mut errors);
        let waits = spec.retry.waits().unwrap_or_else(|message| {
            let message = format!("{message}; write \"10s\" or \"10s..5m\"");
            errors.push(FieldError::new("/retry/backoff", message));
            (Duration::ZERO, Duration::ZERO)
        });
        if !errors.is_empty() {
            return Err(errors);
        }
        let timetable_delays = timetable.delay().is_some();
        Ok(Self {
            name: spec.name.clone(),
            app: spec.app.clone(),
            handler: spec.handler.clone(),
            params,
            timetable,
            route: spec.route,
            hash_key: spec.labels.get(labels::XXL_JOB_ID).cloned(),
            select,
            shards: pump.as_ref().map_or_else(|| spec.shards.as_ref().map(ShardsSpec::count), |pump| Some(pump.groups)),
            named_shards: spec.shards.as_ref().map_or(&[][..], ShardsSpec::named).into(),
            misfire: spec.misfire(),
            overlap: spec.overlap,
            concurrency: spec.concurrency.clone(),
            rate: spec.rate.clone(),
            priority: spec.priority,
            over: spec.over,
            delivery: spec.delivery,
            on_silence: spec.on_silence.unwrap_or_else(|| OnSilence::default_of(spec.delivery, spec.overlap.policy)),
            timeout: spec.timeout,
            queue_timeout: if pump.is_some() { LENGTH_MAX } else { spec.queue_timeout },
            after: AfterPolicy {
                retry_max: spec.retry.max,
                backoff: waits.0,
                backoff_max: waits.1,
                at_least_once: spec.delivery == Delivery::AtLeastOnce,
                delays: timetable_delays,
                awaits_children: spec.over == Over::Children,
                is_pump: pump.is_some(),
            },
            pump,
            expect: spec.expectations().map(Arc::new),
            enabled: spec.enabled,
            mode,
        })
    }

    /// Whether a fire is one row that is expanded into shards when it is due.
    #[must_use]
    pub const fn is_sharded(&self) -> bool {
        matches!(self.route, Route::Broadcast) || self.shards.is_some()
    }

    /// The shard with this index, where shards have names.
    #[must_use]
    pub fn shard(&self, index: i32) -> Option<&ItemSpec> {
        self.named_shards.get(usize::try_from(index).ok()?)
    }

    /// What the run of a shard gets, as JSON text: the parameters of its fire (`own`, else the job's), with those of the shard over them.
    #[must_use]
    pub fn params_of(&self, own: Option<&str>, shard: i32) -> String {
        let of_fire = own.unwrap_or(&self.params);
        match self.shard(shard).map(|shard| &shard.params).filter(|params| !params.is_null()) {
            Some(of_shard) => {
                // What cannot be read was never checked, and is no object.
                let of_fire = serde_json::from_str(of_fire).unwrap_or_default();
                with_params_of_shard(of_fire, of_shard).to_string()
            }
            None => of_fire.to_owned(),
        }
    }

    /// Whether a run keeps its place until it is known how it ended, or a bound has passed, when its executor is lost: it
    /// may go on there, and no other run of the job may begin beside it.
    #[must_use]
    pub fn holds_in_silence(&self) -> bool {
        self.on_silence == OnSilence::Continue && self.overlap.policy != OverlapPolicy::Allow
    }

    /// How many runs may be with executors at the same time; `None` for any number.
    #[must_use]
    pub fn concurrency_max(&self) -> Option<u32> {
        match self.overlap.policy {
            OverlapPolicy::Serial | OverlapPolicy::Discard | OverlapPolicy::Cover => Some(1),
            OverlapPolicy::Allow => (self.overlap.max > 0).then_some(self.overlap.max),
        }
    }
}

/// Whether parameters are small and flat enough to be kept, sent and checked.
///
/// # Errors
/// A sentence with the size and the bound.
pub fn check_params_size(params: &serde_json::Value) -> Result<(), String> {
    let len = params.to_string().len();
    if len > PARAMS_LEN_MAX {
        return Err(params_too_long(len));
    }
    let depth = depth(params);
    if depth > PARAMS_DEPTH_MAX {
        return Err(format!("{depth} levels of arrays and objects; at most {PARAMS_DEPTH_MAX} are kept"));
    }
    Ok(())
}

fn params_too_long(len: usize) -> String {
    format!("{len} bytes of JSON; at most {PARAMS_LEN_MAX} are kept")
}

fn depth(value: &serde_json::Value) -> usize {
    let deepest = match value {
        serde_json::Value::Array(items) => items.iter().map(depth).max(),
        serde_json::Value::Object(fields) => fields.values().map(depth).max(),
        _ => return 0,
    };
    1 + deepest.unwrap_or_default()
}

fn check_names(spec: &JobSpec, errors: &mut Vec<FieldError>) {
    let checks = [
        ("/name", name::check(&spec.name)),
        ("/app", name::check(&spec.app)),
        ("/handler", name::check_handler(&spec.handler)),
    ];
    for (pointer, check) in checks {
        if let Err(message) = check {
            errors.push(FieldError::new(pointer, message));
        }
    }
    labels::check(&spec.labels, errors);
    if spec.description.len() > DESCRIPTION_LEN_MAX {
        let message = format!("{} bytes; at most {DESCRIPTION_LEN_MAX} are kept", spec.description.len());
        errors.push(FieldError::new("/description", message));
    }
}

fn compile_schedules(spec: &JobSpec, errors: &mut Vec<FieldError>) -> Vec<Schedule> {
    let specs = spec.schedules();
    if specs.len() > SCHEDULE_COUNT_MAX {
        let message = format!("{} schedules; one job can have {SCHEDULE_COUNT_MAX}", specs.len());
        errors.push(FieldError::new("/schedule", message));
        return Vec::new();
    }
    let stands_alone = |spec: &ScheduleSpec| spec.delay.is_some() || spec.after.is_some();
    if specs.len() > 1
        && let Some((pointer, _)) = specs.iter().find(|(_, spec)| stands_alone(spec))
    {
        let message = "delay and after stand alone: their instants follow from runs, not from a clock";
        errors.push(FieldError::new(pointer.clone(), message));
        return Vec::new();
    }
    let compile =
        |(pointer, spec): (String, _)| Schedule::compile(&pointer, spec).map_err(|found| errors.extend(found)).ok();
    specs.into_iter().filter_map(compile).collect()
}

fn apply(spec: &JobSpec, calendar: Option<Arc<Calendar>>, errors: &mut Vec<FieldError>) -> Option<Applied> {
    let used = spec.calendar.as_ref()?;
    if let Err(message) = name::check(&used.name) {
        errors.push(FieldError::new("/calendar/name", message));
    }
    let follows_runs = |spec: &ScheduleSpec| spec.delay.is_some() || spec.after.is_some();
    let schedules = spec.schedules();
    if schedules.is_empty() || schedules.iter().any(|(_, spec)| follows_runs(spec)) {
        errors.push(FieldError::new("/calendar", "belongs to a job with cron, every or at"));
    }
    let calendar = calendar?;
    if calendar.has_times() && matches!(used.rule, CalendarRule::Next | CalendarRule::Previous) {
        let message = format!(
            "{:?} moves fires by whole days, and the calendar {:?} has times of day; use only or except, or a calendar \
             of days",
            used.rule.as_str(),
            used.name
        );
        errors.push(FieldError::new("/calendar/rule", message));
    }
    Some(Applied { calendar, rule: used.rule })
}

fn check_limits(spec: &JobSpec, errors: &mut Vec<FieldError>) {
    if spec.priority > PRIORITY_MAX {
        let message = format!("{} is not a priority: 0 (last) to {PRIORITY_MAX} (first)", spec.priority);
        errors.push(FieldError::new("/priority", message));
    }
    if let Some(shards) = &spec.shards {
        check_named(shards.named(), ("/shards", "shard"), errors);
    }
    if let Some(shards) = spec.shards.as_ref().map(ShardsSpec::count)
        && (!(1..=SHARD_COUNT_MAX).contains(&shards) || spec.route == Route::Broadcast)
    {
        let message = format!("{shards} shards; 1 to {SHARD_COUNT_MAX}, and none with broadcast, which makes its own");
        errors.push(FieldError::new("/shards", message));
    }
    if let Some(limit) = &spec.concurrency {
        check_key("/concurrency/key", &limit.key, errors);
        if limit.max == 0 {
            errors.push(FieldError::new("/concurrency/max", "0 would let nothing run; 1 or more"));
        }
    }
    if let Some(rate) = &spec.rate {
        rate.key.iter().for_each(|key| check_key("/rate/key", key, errors));
        if !(1..=RATE_COUNT_MAX).contains(&rate.max) {
            let message = format!("{} starts; 1 to {RATE_COUNT_MAX}", rate.max);
            errors.push(FieldError::new("/rate/max", message));
        }
        if rate.per < Duration::from_secs(1) || rate.per > RATE_PER_MAX {
            errors.push(FieldError::new("/rate/per", "is outside 1s to 24h"));
        }
    }
}

fn check_key(pointer: &str, key: &str, errors: &mut Vec<FieldError>) {
    if let Err(message) = name::check(key) {
        errors.push(FieldError::new(pointer, message));
    }
}

fn check_policies(spec: &JobSpec, errors: &mut Vec<FieldError>) {
    if spec.retry.max > RETRY_MAX {
        let message = format!("{} retries; at most {RETRY_MAX} are made", spec.retry.max);
        errors.push(FieldError::new("/retry/max", message));
    }
    if spec.misfire.policy == MisfirePolicy::All && !(1..=MISFIRE_MAX).contains(&spec.misfire.max) {
        let message = format!("{} fires; 1 to {MISFIRE_MAX} can be made up for", spec.misfire.max);
        errors.push(FieldError::new("/misfire/max", message));
    }
    for (index, reason) in spec.notify.skipped.iter().enumerate() {
        if !NotifySpec::SKIPPED_ALL.contains(reason) {
            let known: Vec<&str> = NotifySpec::SKIPPED_ALL.iter().map(|reason| reason.as_str()).collect();
            let message = format!("{reason} is not reported; choose among {}", known.join(", "));
            errors.push(FieldError::new(format!("/notify/skipped/{index}"), message));
        }
    }
}

fn check_length(pointer: &str, length: Option<Duration>, errors: &mut Vec<FieldError>) {
    if length.is_some_and(|length| length < Duration::from_millis(1) || length > LENGTH_MAX) {
        errors.push(FieldError::new(pointer, "is outside 1ms to 366 days"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(change: Value) -> JobSpec {
        let mut base = json!({"name": "a", "app": "b", "handler": "c"});
        let (Value::Object(base_map), Value::Object(change)) = (&mut base, change) else { unreachable!() };
        base_map.extend(change);
        serde_json::from_value(base).unwrap()
    }

    #[track_caller]
    fn check_refused(change: Value, pointer: &str, part: &str) {
        let errors = spec(change).compile().unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(errors[0].pointer, pointer);
        assert!(errors[0].message.contains(part), "{}", errors[0].message);
    }

    #[test]
    fn a_bad_field_is_named() {
        check_refused(json!({"name": "A"}), "/name", "\"A\"");
        check_refused(json!({"app": ""}), "/app", "\"\"");
        check_refused(json!({"handler": "a b"}), "/handler", "\"a b\"");
        check_refused(json!({"schedule": {"cron": "99 * * * * ?"}}), "/schedule/cron", "99");
        check_refused(json!({"schedule": [{"every": "1s"}, {"every": "0s"}]}), "/schedule/1/every", "0s");
        check_refused(json!({"schedule": {"cron": "0 * * * * ?", "time_zone": "X/Y"}}), "/schedule/time_zone", "X/Y");
        check_refused(json!({"route": "broadcast", "shards": 3}), "/shards", "3 shards");
        check_refused(json!({"shards": 0}), "/shards", "0 shards");
        check_refused(json!({"shards": []}), "/shards", "0 shards");
        check_refused(json!({"shards": {"count": 1_001}}), "/shards", "1001 shards");
        check_refused(json!({"shards": [{"name": "eu"}, {"name": "eu"}]}), "/shards/1/name", "the name of shard 0 too");
        check_refused(json!({"shards": [{"name": " "}]}), "/shards/0/name", "name");
        let long = json!({"text": "x".repeat(5_000)});
        check_refused(json!({"shards": [{"name": "a", "params": long}]}), "/shards/0/params", "at most 4096");
        check_refused(json!({"timeout": "0s"}), "/timeout", "1ms");
        check_refused(json!({"overrides": ["/a", "b"]}), "/overrides/1", "\"b\" is not a JSON pointer");
        check_refused(json!({"retry": {"max": 1, "backoff": "soon"}}), "/retry/backoff", "\"soon\" is not");
        check_refused(json!({"retry": {"max": 1, "backoff": "5m..1s"}}), "/retry/backoff", "\"5m..1s\" begins at 5m");
        check_refused(json!({"misfire": {"policy": "all", "max": 0}}), "/misfire/max", "0");
    }

    #[track_caller]
    fn check_bounds(change: impl Fn(u64) -> Value, (first, last): (u64, u64), pointer: &str) {
        for good in [first, last] {
            assert_eq!(spec(change(good)).compile().err(), None, "{good} is good for {pointer}");
        }
        for bad in [first.checked_sub(1), Some(last + 1)].into_iter().flatten() {
            let errors = spec(change(bad)).compile().unwrap_err();
            assert_eq!(errors.iter().map(|error| error.pointer.as_str()).collect::<Vec<_>>(), [pointer], "{bad}");
        }
    }

    #[test]
    fn numbers_and_lengths_have_bounds() {
        check_bounds(|n| json!({"priority": n}), (0, PRIORITY_MAX.into()), "/priority");
        check_bounds(|n| json!({"shards": n}), (1, SHARD_COUNT_MAX.into()), "/shards");
        check_bounds(|n| json!({"retry": {"max": n}}), (0, RETRY_MAX.into()), "/retry/max");
        let misfire = |n| json!({"misfire": {"policy": "all", "max": n}});
        check_bounds(misfire, (1, MISFIRE_MAX.into()), "/misfire/max");
        assert!(spec(json!({"misfire": {"policy": "once", "max": 0}})).compile().is_ok());
        let rate = |n| json!({"rate": {"max": n, "per": "1m"}});
        check_bounds(rate, (1, RATE_COUNT_MAX.into()), "/rate/max");
        let per = |ms| json!({"rate": {"max": 1, "per": format!("{ms}ms")}});
        check_bounds(per, (1_000, 86_400_000), "/rate/per");
        let year = 366 * 86_400_000;
        for field in ["timeout", "queue_timeout"] {
            check_bounds(|ms| json!({field: format!("{ms}ms")}), (1, year), &format!("/{field}"));
        }
        let described = |n: u64| json!({"description": "d".repeat(usize::try_from(n).unwrap())});
        check_bounds(described, (0, DESCRIPTION_LEN_MAX as u64), "/description");
        let scheduled = |n: u64| json!({"schedule": vec![json!({"every": "1s"}); usize::try_from(n).unwrap()]});
        check_bounds(scheduled, (1, SCHEDULE_COUNT_MAX as u64), "/schedule");
        let limited = |n| json!({"concurrency": {"key": "k", "max": n}});
        assert!(spec(limited(1)).compile().is_ok());
        check_refused(limited(0), "/concurrency/max", "1 or more");
    }

    #[test]
    fn parameters_have_a_size_and_a_depth() {
        let text = |len: usize| json!("x".repeat(len - 2));
        assert!(
            check_params_size(&text(PARAMS_LEN_MAX)).is_ok() && check_params_size(&text(PARAMS_LEN_MAX + 1)).is_err()
        );
        for wrap in [|value: Value| json!([value]), |value: Value| json!({"a": value})] {
            let nested = |depth: usize| (0..depth).fold(json!(1), |value, _| wrap(value));
            assert!(check_params_size(&nested(PARAMS_DEPTH_MAX)).is_ok());
            assert!(check_params_size(&nested(PARAMS_DEPTH_MAX + 1)).is_err());
        }
    }

    #[test]
    fn what_is_expected_has_bounds_and_places() {
        let expect = |change: Value| json!({"expect": change});
        check_refused(expect(json!({})), "/expect", "expects nothing");
        check_refused(expect(json!({"late": "0s"})), "/expect/late", "0s is not from 1s");
        check_refused(expect(json!({"no_success_for": "10000h"})), "/expect/no_success_for", "is not from 1s");
        check_refused(expect(json!({"late": "1m", "channels": ["a", "a"]})), "/expect/channels/1", "twice");
        check_refused(expect(json!({"late": "1m", "channels": ["A"]})), "/expect/channels/0", "is not a name");
        let by = |change: Value| expect(json!({"success_by": change}));
        check_refused(by(json!({"time": "25:00"})), "/expect/success_by/time", "\"25:00\"");
        check_refused(by(json!({"time": "6:00"})), "/expect/success_by/time", "expected HH:MM");
        check_refused(by(json!({"time": "06:00", "zone": "Mars"})), "/expect/success_by/zone", "Mars");
        let both = json!({"time": "06:00", "weekdays": ["mon"], "calendar": "c"});
        check_refused(by(both), "/expect/success_by/calendar", "either weekdays or a calendar");
        let unknown = json!({"name": "a", "app": "b", "handler": "c", "expect": {"succes_by": {}}});
        assert!(serde_json::from_value::<JobSpec>(unknown).unwrap_err().to_string().contains("succes_by"));
        assert!(spec(expect(json!({"longer_than": "2h"}))).compile().unwrap().expect.is_some());
    }

    #[test]
    fn what_follows_runs_stands_alone_and_has_no_calendar() {
        for follows in [json!({"delay": "5s"}), json!({"after": ["p"]})] {
            assert!(spec(json!({"schedule": follows})).compile().is_ok());
            check_refused(json!({"schedule": [{"every": "1s"}, follows]}), "/schedule/1", "stand alone");
            let with_calendar = json!({"schedule": follows, "calendar": {"name": "c"}});
            check_refused(with_calendar, "/calendar", "belongs to a job with cron");
        }
        check_refused(json!({"calendar": {"name": "c"}}), "/calendar", "belongs to a job with cron");
    }

    #[test]
    fn days_only_move_fires_and_times_do_not() {
        let calendar = |rule: &str| {
            let rule = serde_json::from_str(rule).unwrap();
            Some(Arc::new(Calendar::of_rule("c", &rule).unwrap()))
        };
        let used = |rule: &str| spec(json!({"schedule": {"every": "1s"}, "calendar": {"name": "c", "rule": rule}}));
        for rule in ["only", "except", "next", "previous"] {
            assert!(Job::compile(&used(rule), calendar(r#"{"days": []}"#)).is_ok(), "{rule}");
            let timed = Job::compile(&used(rule), calendar(r#"{"times": ["01:00-02:00"]}"#));
            assert_eq!(timed.is_err(), matches!(rule, "next" | "previous"), "{rule}");
        }
    }

    #[test]
    fn the_policy_for_ends_is_that_of_the_definition() {
        let after = |change| spec(change).compile().unwrap().after;
        let plain = after(json!({}));
        assert!(plain.at_least_once && !plain.awaits_children && !plain.delays);
        assert!(!after(json!({"delivery": "at_most_once"})).at_least_once);
        assert!(after(json!({"over": "children"})).awaits_children);
        assert!(after(json!({"schedule": {"delay": "5s"}})).delays);
    }

    #[test]
    fn so_many_runs_go_on_at_the_same_time() {
        let max = |change| spec(json!({"overlap": change})).compile().unwrap().concurrency_max();
        for policy in ["serial", "discard", "cover"] {
            assert_eq!(max(json!({"policy": policy})), Some(1));
        }
        let allow = |n| max(json!({"policy": "allow", "max": n}));
        assert_eq!((allow(0), allow(1), allow(7)), (None, Some(1), Some(7)));
    }

    #[test]
    fn a_bad_wait_is_named_once() {
        for backoff in ["soon", "1s..soon"] {
            let errors = spec(json!({"retry": {"max": 1, "backoff": backoff}})).compile().unwrap_err();
            let expected = "\"soon\" is not a duration such as 30s, 5m or 1h30m; write \"10s\" or \"10s..5m\"";
            assert_eq!(errors[0].message, expected, "{backoff}");
        }
    }

    #[test]
    fn every_complaint_is_listed() {
        let errors = spec(json!({"name": "", "app": "", "timeout": "0s"})).compile().unwrap_err();
        assert!(errors.iter().map(|error| error.pointer.as_str()).eq(["/name", "/app", "/timeout"]), "{errors:?}");
    }
}
