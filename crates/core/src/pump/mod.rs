//! Pump jobs: which group has which item, when a group releases one, and when a root run begins and ends.
//!
//! A pump job keeps groups running; each group is a long run below the root run of its fire. The job's items are dealt to the
//! groups ([`mod@deal`]). An item has at most one owner at a time, which is an attempt of a group's run, and an epoch that
//! rises with each owner. It changes owner only after its owner has released it, after that owner's attempt has ended, or after
//! `hand_over` has passed ([`item`]). [`root`] decides when a root run begins and ends, [`place`] on which executors groups
//! run, [`totals`] adds up the items' counts.

mod compile;
pub mod deal;
pub mod item;
pub mod place;
pub mod root;
pub mod totals;

use std::collections::BTreeMap;
use std::time::Duration;

pub use self::compile::ignored_setting_errors;
pub use self::deal::{DealSettings, Group, GroupMode, deal};
pub use self::item::{Counts, Item, ItemChange, ItemState, Owner, Progress, apply};
pub use self::place::{Load, Room, executor_to_unload, least_loaded};
pub use self::root::{PumpJobState, Root, RootStep, next_step, trigger_of_continued};
pub use self::totals::Totals;
use crate::schedule::Schedule;
use crate::spec::PumpMode;
use crate::time::Timestamp;

/// A pump job's definition, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Pump {
    /// The parameters of each item as JSON text (empty for none), keyed by the item's name.
    pub items: BTreeMap<String, String>,
    /// How many groups run.
    pub groups: u32,
    /// Maximum number of groups on one executor.
    pub per_executor: Option<u32>,
    /// Maximum number of items of one group.
    pub items_per_group: Option<u32>,
    /// How a group works.
    pub limits: Limits,
    /// When its root runs end.
    pub until: Until,
}

/// How a group processes its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many workers execute rows at the same time.
    pub threads: u32,
    /// How many rows one select may return.
    pub fetch: u32,
    /// Maximum number of rows that one call of execute gets.
    pub batch: u32,
    /// Which worker of a group fetches, and when.
    pub mode: PumpMode,
    /// The wait after a select without rows.
    pub idle: Duration,
    /// The wait after each select with rows.
    pub pause: Duration,
    /// How long a group may take to release an item.
    pub hand_over: Duration,
}

/// When a pump ends.
#[derive(Clone, Debug, PartialEq)]
pub enum Until {
    /// When it is paused or cancelled.
    Stopped,
    /// When no item has rows left.
    Empty,
    /// At the first instant of this schedule after the pump's start.
    At(Box<Schedule>),
}

impl Until {
    /// When a root run that was planned for `start` ends at the latest; `None` if no instant ends it.
    #[must_use]
    pub fn end_of(&self, start: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Stopped | Self::Empty => None,
            Self::At(schedule) => schedule.next_after(Timestamp::EPOCH, start),
        }
    }
}
