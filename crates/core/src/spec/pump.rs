//! Pump jobs, as definitions write them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema::{DurationText, NAME_PATTERN};
use crate::time::duration_text;
use crate::word_enum::word_enum;

/// Maximum number of items of a pump job.
pub const ITEM_COUNT_MAX: u32 = 10_000;
/// The longest parameters of an item, in bytes of JSON text.
pub const ITEM_PARAMS_LEN_MAX: usize = 4 * 1024;

/// A job that processes rows. Groups run all the time; each fetches and executes the rows of its share of the items.
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
    /// Maximum number of rows that one call of execute gets.
    #[serde(default = "default_batch")]
    #[schemars(range(min = 1, max = 100_000))]
    pub batch: u32,
    /// Which worker of a group fetches rows, and when.
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
    /// How long a group may take to give an item back. After that its unfinished rows are dropped, and the item goes to another group.
    #[serde(default = "default_hand_over", with = "duration_text")]
    #[schemars(with = "DurationText")]
    pub hand_over: Duration,
    /// When a run ends that the schedule or a trigger started; left out for a pump that runs until it is paused or cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<UntilSpec>,
}

/// The items of a pump job, or the shards of a fire: how many, or which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ItemsSpec {
    /// `16`: this many, without parameters of their own. Items are named `0` to `15`.
    Number(#[schemars(range(min = 1, max = 10000))] u32),
    /// `{"count": 16}`, which is the same.
    Count(ItemCountSpec),
    /// `[{"name": "eu"}, {"name": "us", "params": {"schema": "us"}}]`
    List(Vec<ItemSpec>),
}

/// A number of items or shards.
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
    /// The parameters that the code gets with the item or the shard: any JSON value.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub params: Value,
}

word_enum! {
    /// Who fetches rows in a group of a pump job.
    PumpMode {
        /// Only the last worker that runs out of rows fetches; the others wait.
        Sleep = "sleep",
        /// Each worker that runs out of rows fetches at once. Rows that are being executed are excluded by their keys.
        NotSleep = "not_sleep",
    }
}

#[expect(clippy::derivable_impls, reason = "the macro makes the enum")]
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
    /// `{"cron": "0 0 6 * * ?"}`: at the first instant of this expression after the start of the pump.
    Cron(UntilCronSpec),
}

word_enum! {
    /// When a pump ends whose end is not an instant.
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
    /// The zone of the expression; left out for that of the job's first schedule with a `time_zone`, or UTC.
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
            Self::Number(count) | Self::Count(ItemCountSpec { count }) => {
                (0..*count).map(|item| (item.to_string(), String::new())).collect()
            }
            Self::List(items) => items.iter().map(|item| (item.name.clone(), params_text(&item.params))).collect(),
        }
    }

    /// How many items there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        match self {
            Self::Number(count) | Self::Count(ItemCountSpec { count }) => *count,
            Self::List(items) => u32::try_from(items.len()).unwrap_or(u32::MAX),
        }
    }

    /// The items with names, in their order; empty if only their number is given.
    #[must_use]
    pub fn named(&self) -> &[ItemSpec] {
        match self {
            Self::List(items) => items,
            Self::Number(_) | Self::Count(_) => &[],
        }
    }
}

/// Parameters as JSON text; empty for none.
pub(crate) fn params_text(params: &Value) -> String {
    if params.is_null() { String::new() } else { params.to_string() }
}
