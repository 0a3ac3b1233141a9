//! Pump jobs, as their definitions have them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cron::parse_zone;
use crate::field_error::FieldError;
use crate::job::SHARD_COUNT_MAX;
use crate::pump::{Limits, Pump, Until};
use crate::schedule::Schedule;
use crate::schema::{DurationText, NAME_PATTERN};
use crate::spec::{Delivery, JobSpec, OverlapPolicy, OverlapScope, Route, ScheduleSpec};
use crate::time::{Timestamp, duration_text};
use crate::word_enum::words;

/// The most items of a pump job.
pub const ITEM_COUNT_MAX: usize = 10_000;
/// The longest parameters of an item, as JSON text.
pub const ITEM_PARAMS_LEN_MAX: usize = 4 * 1024;
const THREADS_MAX: u32 = 1_000;
const FETCH_MAX: u32 = 100_000;
const HAND_OVER_MAX: Duration = Duration::from_secs(3600);

/// A job that works off rows: a number of groups run all the time, each with its share of the items, fetch rows of these items and
/// execute them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PumpSpec {
    /// What the work is divided into: each item belongs to one group at a time.
    pub items: ItemsSpec,
    /// How many groups run.
    #[schemars(range(min = 1, max = 1000))]
    pub groups: u32,
    /// How many groups one executor runs at most; left out for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub per_executor: Option<u32>,
    /// How many items one group has at most; left out for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub items_per_group: Option<u32>,
    /// How many workers of a group execute rows at the same time.
    #[serde(default = "default_threads")]
    #[schemars(range(min = 1, max = 1000))]
    pub threads: u32,
    /// How many rows one select may return.
    #[serde(default = "default_fetch")]
    #[schemars(range(min = 1, max = 100_000))]
    pub fetch: u32,
    /// How many rows one execute gets.
    #[serde(default = "default_batch")]
    #[schemars(range(min = 1, max = 100_000))]
    pub batch: u32,
    /// Who fetches.
    #[serde(default)]
    pub mode: PumpMode,
    /// The wait after a select that returned no rows.
    #[serde(default = "default_idle", with = "duration_text")]
    #[schemars(with = "DurationText")]
    pub idle: Duration,
    /// The wait after each select with rows.
    #[serde(default, with = "duration_text")]
    #[schemars(with = "DurationText")]
    pub pause: Duration,
    /// How long a group may take to give an item back. After that its rows in work are dropped, and the item goes to another group.
    #[serde(default = "default_hand_over", with = "duration_text")]
    #[schemars(with = "DurationText")]
    pub hand_over: Duration,
    /// When it ends after it has begun by its schedule or by hand; left out for a pump that goes on until it is paused or cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<UntilSpec>,
}

/// The items of a pump job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ItemsSpec {
    /// `{"count": 16}`: items named `0` to `15`.
    Count(ItemCountSpec),
    /// `[{"name": "eu"}, {"name": "us", "params": {"schema": "us"}}]`
    List(Vec<ItemSpec>),
}

/// So many items, named by numbers from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemCountSpec {
    /// How many.
    #[schemars(range(min = 1, max = 10000))]
    pub count: u32,
}

/// An item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemSpec {
    /// Unique in the job.
    #[schemars(regex(pattern = NAME_PATTERN))]
    pub name: String,
    /// What the code gets with it, any JSON value.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub params: Value,
}

words! {
    /// Who fetches rows in a group of a pump job.
    PumpMode {
        /// The last worker that runs dry; the others wait.
        Sleep = "sleep",
        /// A worker that runs dry, at once. Rows in work are left out by their keys.
        NotSleep = "not_sleep",
    }
}

#[expect(clippy::derivable_impls, reason = "the words macro makes the enum")]
impl Default for PumpMode {
    fn default() -> Self {
        Self::Sleep
    }
}

/// When a pump ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum UntilSpec {
    /// `"empty"`: when no item has rows left.
    Word(UntilWord),
    /// `{"cron": "0 0 6 * * ?"}`: at the first instant after its start.
    Cron(UntilCronSpec),
}

words! {
    /// When a pump ends that has no instant for it.
    UntilWord {
        /// When no item has rows left.
        Empty = "empty",
    }
}

/// The end of a pump's window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UntilCronSpec {
    /// A cron expression.
    #[schemars(example = "0 0 6 * * ?")]
    pub cron: String,
    /// The zone that it is read in; left out for that of the job's first cron schedule, or UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
}

const fn default_threads() -> u32 {
    5
}

const fn default_fetch() -> u32 {
    500
}

const fn default_batch() -> u32 {
    1
}

const fn default_idle() -> Duration {
    Duration::from_millis(500)
}

const fn default_hand_over() -> Duration {
    Duration::from_secs(45)
}

impl ItemsSpec {
    /// The items with their parameters as JSON text, in the order of the definition.
    #[must_use]
    pub fn all(&self) -> Vec<(String, String)> {
        match self {
            Self::Count(ItemCountSpec { count }) => (0..*count).map(|item| (item.to_string(), String::new())).collect(),
            Self::List(items) => items.iter().map(|item| (item.name.clone(), params_text(&item.params))).collect(),
        }
    }

    fn count(&self) -> usize {
        match self {
            Self::Count(ItemCountSpec { count }) => usize::try_from(*count).unwrap_or(usize::MAX),
            Self::List(items) => items.len(),
        }
    }
}

fn params_text(params: &Value) -> String {
    if params.is_null() { String::new() } else { params.to_string() }
}

impl PumpSpec {
    /// Checks it within its job's definition.
    pub(crate) fn compile(&self, job: &JobSpec, errors: &mut Vec<FieldError>) -> Option<Pump> {
        let before = errors.len();
        self.check_items(errors);
        self.check_numbers(errors);
        refuse_others(job, errors);
        let until = self.compile_until(job, errors);
        if errors.len() > before {
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
        let mut refuse = |pointer: String, message: String| errors.push(FieldError::new(pointer, message));
        let count = self.items.count();
        if !(1..=ITEM_COUNT_MAX).contains(&count) {
            return refuse("/pump/items".to_owned(), format!("{count} items; 1 to {ITEM_COUNT_MAX}"));
        }
        let ItemsSpec::List(items) = &self.items else { return };
        let mut seen = std::collections::HashMap::new();
        for (index, item) in items.iter().enumerate() {
            if let Err(message) = crate::name::check(&item.name) {
                refuse(format!("/pump/items/{index}/name"), message);
            }
            if let Some(first) = seen.insert(&item.name, index) {
                let message = format!("{:?} is the name of item {first} too; each item has its own", item.name);
                refuse(format!("/pump/items/{index}/name"), message);
            }
            let len = params_text(&item.params).len();
            if len > ITEM_PARAMS_LEN_MAX {
                let message = format!("{len} bytes of JSON; at most {ITEM_PARAMS_LEN_MAX} are kept for one item");
                refuse(format!("/pump/items/{index}/params"), message);
            }
        }
    }

    fn check_numbers(&self, errors: &mut Vec<FieldError>) {
        let mut refuse = |field: &str, message: String| {
            errors.push(FieldError::new(format!("/pump/{field}"), message));
        };
        let items = u32::try_from(self.items.count()).unwrap_or(u32::MAX);
        if !(1..=SHARD_COUNT_MAX).contains(&self.groups) {
            refuse("groups", format!("{} groups; 1 to {SHARD_COUNT_MAX}", self.groups));
        } else if self.groups > items {
            refuse("groups", format!("{} groups for {items} items: some would have nothing to do", self.groups));
        }
        if self.per_executor == Some(0) {
            refuse("per_executor", "0 groups would let no executor work; 1 or more".to_owned());
        }
        if let Some(max) = self.items_per_group
            && u64::from(max) * u64::from(self.groups) < u64::from(items)
        {
            let message = format!("{max} items for each of {} groups leave some of {items} items over", self.groups);
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
        let (shortest, hour) = (Duration::from_millis(10), Duration::from_secs(3600));
        if self.idle < shortest || self.idle > hour {
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
                let of_start = || schedules.iter().find_map(|(_, schedule)| schedule.time_zone.clone());
                let time_zone = end.time_zone.clone().or_else(of_start);
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
                        let message = format!("{:?} never comes, so the pump would never end", end.cron);
                        errors.push(FieldError::new("/pump/until/cron", message));
                        None
                    }
                    Err(found) => {
                        errors.extend(found);
                        None
                    }
                }
            }
        }
    }
}

/// What goes with a pump job only as it is.
fn refuse_others(job: &JobSpec, errors: &mut Vec<FieldError>) {
    let mut refuse = |pointer: &str, message: &str| errors.push(FieldError::new(pointer, message));
    if job.shards.is_some() {
        refuse("/shards", "a pump job has groups instead: /pump/groups");
    }
    if job.route != Route::default() {
        refuse("/route", "the groups of a pump job are dealt evenly over the executors; leave it out");
    }
    if (job.overlap.policy, job.overlap.scope) != (OverlapPolicy::Serial, OverlapScope::Cluster) {
        refuse("/overlap", "a pump job starts when its last run is over; leave it out");
    }
    if job.delivery != Delivery::AtLeastOnce {
        refuse("/delivery", "a group of a pump job goes on elsewhere when its executor is lost; leave it out");
    }
    if job.on_silence.is_some() {
        refuse("/on_silence", "a group of a pump job stops when it hears no server; leave it out");
    }
    if job.timeout.is_some() {
        refuse("/timeout", "a pump job ends by /pump/until; leave it out");
    }
    if job.concurrency.is_some() {
        refuse("/concurrency", "a pump job is bounded by its groups and their workers; leave it out");
    }
    if job.rate.is_some() {
        refuse("/rate", "a pump job is bounded by /pump/pause; leave it out");
    }
}
