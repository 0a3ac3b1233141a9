//! A job's definition, checked and ready for the engine.

use std::sync::Arc;
use std::time::Duration;

use crate::alert::expect::Expectations;
use crate::calendar::Calendar;
use crate::field_error::FieldError;
use crate::outcome::NextStepPolicy;
use crate::pump::Pump;
use crate::schedule::Schedule;
use crate::select::Select;
use crate::shadow::ModeFrom;
use crate::spec::{
    CalendarRule, ConcurrencySpec, Delivery, ItemSpec, ItemsSpec, JobSpec, MisfirePolicy, MisfireSpec, NamedKind,
    NotifySpec, OnSilence, OverlapPolicy, OverlapSpec, RateSpec, Route, RunEnd, ScheduleSpec, check_named,
    with_params_of_shard,
};
use crate::timetable::{AppliedCalendar, Timetable};
use crate::{labels, name};

/// The longest parameters of a job, in bytes of JSON text.
pub const PARAMS_LEN_MAX: usize = 64 * 1024;
/// How deep arrays and objects may be nested in parameters.
pub const PARAMS_DEPTH_MAX: usize = 50;
/// Maximum number of schedules of one job.
pub const SCHEDULE_COUNT_MAX: usize = 20;
/// The longest description of a job, in bytes.
pub const DESCRIPTION_LEN_MAX: usize = 1000;
/// The most retries that a definition may ask for.
const RETRY_MAX: u32 = 100;
/// The most missed fires of a job that a definition may let run late.
const MISFIRE_MAX: u32 = 10_000;
const PRIORITY_MAX: u8 = 9;
const RATE_STARTS_MAX: u32 = 10_000;
/// The longest period of a rate limit.
const RATE_PER_MAX: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of shards of a fire.
pub const SHARD_COUNT_MAX: u32 = 1_000;
/// The longest time that a definition may give for a timeout, a wait or another length.
const LENGTH_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// The result of [`JobSpec::compile`].
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
    /// The key that is hashed onto the consistent-hash ring: the id that the job had in XXL-JOB; `None` for the job's id.
    pub hash_key: Option<String>,
    /// Which executors may get its runs.
    pub select: Select,
    /// How many shards a fire has; `None` if it has none, or one for each executor (broadcast).
    pub shards: Option<u32>,
    /// The shards by index, if they have names and parameters of their own; else empty.
    pub named_shards: Arc<[ItemSpec]>,
    /// The definition of its pump; `None` for any other job. A pump job has a shard for each group.
    pub pump: Option<Arc<Pump>>,
    /// What happens to missed fires.
    pub misfire: MisfireSpec,
    /// What happens when runs overlap.
    pub overlap: OverlapSpec,
    /// A limit that it shares with other jobs.
    pub concurrency: Option<ConcurrencySpec>,
    /// A limit on its starts.
    pub rate: Option<RateSpec>,
    /// Priority among waiting runs: 0 (last) to 9 (first).
    pub priority: u8,
    /// When its runs count as ended.
    pub over: RunEnd,
    /// What happens to a run whose executor is lost.
    pub delivery: Delivery,
    /// What an executor does with a run while no server answers it.
    pub on_silence: OnSilence,
    /// How long one attempt may take; `None` for any length.
    pub timeout: Option<Duration>,
    /// How long a due run waits for an executor; groups of a pump wait as long as the pump runs.
    pub queue_timeout: Duration,
    /// What follows the end of an attempt.
    pub next_step_policy: NextStepPolicy,
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
        // The depth is not checked: a definition that was stored before this bound existed must stay valid.
        if params.len() > PARAMS_LEN_MAX {
            errors.push(FieldError::new("/params", params_too_long(params.len())));
        }
        if let Some(overrides) = &spec.overrides {
            overrides.check(&mut errors);
        }
        let timetable = Timetable {
            schedules: compile_schedules(spec, &mut errors),
            calendar: apply_calendar(spec, calendar, &mut errors),
        };
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
        // The second value is the longest wait.
        if waits.1 > LENGTH_MAX {
            let message = format!("{:?} has a wait of more than 366 days", spec.retry.backoff);
            errors.push(FieldError::new("/retry/backoff", message));
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let has_fixed_delay = timetable.delay().is_some();
        Ok(Self {
            name: spec.name.clone(),
            app: spec.app.clone(),
            handler: spec.handler.clone(),
            params,
            timetable,
            route: spec.route,
            hash_key: spec.labels.get(labels::XXL_JOB_ID).cloned(),
            select,
            shards: pump.as_ref().map_or_else(|| spec.shards.as_ref().map(ItemsSpec::count), |pump| Some(pump.groups)),
            named_shards: spec.shards.as_ref().map_or(&[][..], ItemsSpec::named).into(),
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
            next_step_policy: NextStepPolicy {
                retry_max: spec.retry.max,
                backoff: waits.0,
                backoff_max: waits.1,
                at_least_once: spec.delivery == Delivery::AtLeastOnce,
                has_fixed_delay,
                awaits_children: spec.over == RunEnd::Children,
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

    /// Whether each of its fires is a broadcast: one shard for each executor.
    #[must_use]
    pub const fn is_broadcast(&self) -> bool {
        self.is_sharded() && self.shards.is_none()
    }

    /// The shard with this index, if shards have names.
    #[must_use]
    pub fn shard(&self, index: i32) -> Option<&ItemSpec> {
        self.named_shards.get(usize::try_from(index).ok()?)
    }

    /// The parameters of a shard's run, as JSON text: the parameters of the fire (`run_params`, else the job's), into which the shard's own
    /// parameters are merged.
    #[must_use]
    pub fn params_of(&self, run_params: Option<&str>, shard: i32) -> String {
        let fire_params = run_params.unwrap_or(&self.params);
        match self.shard(shard).map(|shard| &shard.params).filter(|params| !params.is_null()) {
            Some(shard_params) => {
                // Parameters that cannot be parsed were never checked, and count as none.
                let fire_params = serde_json::from_str(fire_params).unwrap_or_default();
                with_params_of_shard(fire_params, shard_params).to_string()
            }
            None => fire_params.to_owned(),
        }
    }

    /// Whether a run whose executor is lost keeps other runs of its job from beginning, until its end is known or a
    /// bound has passed: the executor may still be running it.
    #[must_use]
    pub fn silent_run_blocks_others(&self) -> bool {
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
        return Err(format!("{depth} levels of arrays and objects; at most {PARAMS_DEPTH_MAX} are allowed"));
    }
    Ok(())
}

fn params_too_long(len: usize) -> String {
    format!("{len} bytes of JSON; at most {PARAMS_LEN_MAX} are allowed")
}

fn depth(value: &serde_json::Value) -> usize {
    let depth_below = match value {
        serde_json::Value::Array(items) => items.iter().map(depth).max(),
        serde_json::Value::Object(fields) => fields.values().map(depth).max(),
        _ => return 0,
    };
    1 + depth_below.unwrap_or_default()
}

fn check_names(spec: &JobSpec, errors: &mut Vec<FieldError>) {
    let checks = [
        ("/name", name::check(&spec.name)),
        ("/app", name::check(&spec.app)),
        ("/handler", name::check_handler(&spec.handler)),
    ];
    for (pointer, check_result) in checks {
        if let Err(message) = check_result {
            errors.push(FieldError::new(pointer, message));
        }
    }
    labels::check(&spec.labels, errors);
    if spec.description.len() > DESCRIPTION_LEN_MAX {
        let message = format!("{} bytes; at most {DESCRIPTION_LEN_MAX} are allowed", spec.description.len());
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
        let message = "delay and after cannot be combined with other schedules: their instants follow from runs, not from a clock";
        errors.push(FieldError::new(pointer.clone(), message));
        return Vec::new();
    }
    let compile = |(pointer, spec): (String, _)| {
        Schedule::compile(&pointer, spec).map_err(|schedule_errors| errors.extend(schedule_errors)).ok()
    };
    specs.into_iter().filter_map(compile).collect()
}

fn apply_calendar(
    spec: &JobSpec,
    calendar: Option<Arc<Calendar>>,
    errors: &mut Vec<FieldError>,
) -> Option<AppliedCalendar> {
    let calendar_use = spec.calendar.as_ref()?;
    if let Err(message) = name::check(&calendar_use.name) {
        errors.push(FieldError::new("/calendar/name", message));
    }
    let follows_runs = |spec: &ScheduleSpec| spec.delay.is_some() || spec.after.is_some();
    let schedules = spec.schedules();
    if schedules.is_empty() || schedules.iter().any(|(_, spec)| follows_runs(spec)) {
        errors.push(FieldError::new("/calendar", "applies only to a job with cron, every or at"));
    }
    let calendar = calendar?;
    if calendar.has_times() && matches!(calendar_use.rule, CalendarRule::Next | CalendarRule::Previous) {
        let message = format!(
            "{:?} moves fires by whole days, and the calendar {:?} has times of day; use only or except, or a calendar \
             of days",
            calendar_use.rule.as_str(),
            calendar_use.name
        );
        errors.push(FieldError::new("/calendar/rule", message));
    }
    Some(AppliedCalendar { calendar, rule: calendar_use.rule })
}

fn check_limits(spec: &JobSpec, errors: &mut Vec<FieldError>) {
    if spec.priority > PRIORITY_MAX {
        let message = format!("{} is not a priority: 0 (last) to {PRIORITY_MAX} (first)", spec.priority);
        errors.push(FieldError::new("/priority", message));
    }
    if let Some(shards) = &spec.shards {
        check_named(shards.named(), ("/shards", NamedKind::Shard), errors);
    }
    if let Some(shards) = spec.shards.as_ref().map(ItemsSpec::count)
        && (!(1..=SHARD_COUNT_MAX).contains(&shards) || spec.route == Route::Broadcast)
    {
        let message = format!("{shards} shards; 1 to {SHARD_COUNT_MAX}, and none with broadcast, which makes its own");
        errors.push(FieldError::new("/shards", message));
    }
    if let Some(limit) = &spec.concurrency {
        check_key("/concurrency/key", &limit.key, errors);
        if limit.max == 0 {
            errors.push(FieldError::new("/concurrency/max", "0 would allow no run; must be 1 or more"));
        }
    }
    if let Some(rate) = &spec.rate {
        rate.key.iter().for_each(|key| check_key("/rate/key", key, errors));
        if !(1..=RATE_STARTS_MAX).contains(&rate.max) {
            let message = format!("{} starts; 1 to {RATE_STARTS_MAX}", rate.max);
            errors.push(FieldError::new("/rate/max", message));
        }
        if rate.per < Duration::from_secs(1) || rate.per > RATE_PER_MAX {
            let message = format!("{:?} is outside 1s to 24h", crate::time::format_duration(rate.per));
            errors.push(FieldError::new("/rate/per", message));
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
        let message = format!("{} retries; at most {RETRY_MAX} are allowed", spec.retry.max);
        errors.push(FieldError::new("/retry/max", message));
    }
    if spec.misfire.policy == MisfirePolicy::All && !(1..=MISFIRE_MAX).contains(&spec.misfire.max) {
        let message = format!("{} fires; 1 to {MISFIRE_MAX} can be caught up", spec.misfire.max);
        errors.push(FieldError::new("/misfire/max", message));
    }
    for (index, reason) in spec.notify.skipped.iter().enumerate() {
        if !NotifySpec::SKIPPED_ALL.contains(reason) {
            let reason_words: Vec<&str> = NotifySpec::SKIPPED_ALL.iter().map(|reason| reason.as_str()).collect();
            let message = format!("{reason} is not reported; choose among {}", reason_words.join(", "));
            errors.push(FieldError::new(format!("/notify/skipped/{index}"), message));
        }
    }
}

fn check_length(pointer: &str, length: Option<Duration>, errors: &mut Vec<FieldError>) {
    if let Some(length) = length.filter(|length| *length < Duration::from_millis(1) || *length > LENGTH_MAX) {
        let message = format!("{:?} is outside 1ms to 366 days", crate::time::format_duration(length));
        errors.push(FieldError::new(pointer, message));
    }
}

#[cfg(test)]
mod tests;
