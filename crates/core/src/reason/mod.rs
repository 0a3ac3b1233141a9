//! Why a run has its status: one vocabulary of codes with typed parameters, put into words in one place.
//!
//! [`Reason`] is the code, as stored in SQL and JSON. [`ReasonDetail`] has its parameters, stored as a small JSON document next to
//! the code. Only the submodules, above all [`words`], turn both into English and Chinese text.

mod answer;
pub mod message;
mod one_executor;
mod outcome;
mod pump;
mod shadow;
pub mod unknown;
pub mod words;

#[cfg(test)]
mod tests;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::homes::Switch;
use crate::id::RunId;
use crate::status::RunStatus;
use crate::word_enum::word_enum;

/// The longest stored [`ReasonDetail`], in bytes of JSON.
pub const DETAIL_LEN_MAX: usize = 3_000;
/// Maximum number of executors that one [`ReasonDetail`] names; the others are only counted.
pub const OBSTACLE_COUNT_MAX: usize = 8;
/// The longest name or condition in a [`ReasonDetail`], in characters.
const TEXT_LEN_MAX: usize = 100;

word_enum! {
    /// Why a run has its status, if the status alone does not imply it.
    Reason {
        /// The fire was missed (the servers or the database were down), and the job's misfire policy skips it.
        Misfire = "misfire",
        /// The overlap policy skipped it, because an earlier run was open or the queue was full.
        Overlap = "overlap",
        /// The job was paused.
        Paused = "paused",
        /// The job was changed and its new definition does not fire at this instant.
        Changed = "changed",
        /// The job was deleted.
        Deleted = "deleted",
        /// No executor could take it until the queue timeout: none was online, had the handler and met the job's conditions.
        NoExecutor = "no_executor",
        /// It waited until the queue timeout for a free slot or a limit.
        Expired = "expired",
        /// The previous attempt failed, and the job's retry policy gave another.
        Retry = "retry",
        /// The executor was lost during the previous attempt.
        ExecutorLost = "executor_lost",
        /// No executor began the previous attempt: it reached none, or the executor was shutting down or heard no server before that.
        NotReceived = "not_received",
        /// A user or a program requested it.
        Requested = "requested",
        /// A parent job did not end as the definition requires.
        Parent = "parent",
        /// A later run of the job took its place.
        Covered = "covered",
        /// The handler skipped it.
        Handler = "handler",
        /// Its app is draining or stopped.
        Stopped = "stopped",
        /// It was in a maintenance window.
        Maintenance = "maintenance",
        /// The job is in shadow mode.
        Shadow = "shadow",
        /// The time window of a pump has ended.
        WindowOver = "window_over",
        /// No item of a pump had rows left.
        Dry = "dry",
        /// A group of a pump left its executor for another one.
        Moved = "moved",
    }
}

impl Reason {
    /// Whether it keeps an attempt from beginning. If no attempt of a run began, the run is skipped for this reason; otherwise
    /// it fails.
    #[must_use]
    pub const fn keeps_from_beginning(self) -> bool {
        match self {
            Self::Misfire
            | Self::Overlap
            | Self::Paused
            | Self::Changed
            | Self::Deleted
            | Self::NoExecutor
            | Self::Expired
            | Self::Parent
            | Self::Covered
            | Self::Stopped
            | Self::Maintenance
            | Self::Shadow
            | Self::WindowOver => true,
            Self::Retry
            | Self::ExecutorLost
            | Self::NotReceived
            | Self::Requested
            | Self::Handler
            | Self::Dry
            | Self::Moved => false,
        }
    }

    /// Whether a pump that ends for this reason has ended as planned.
    #[must_use]
    pub const fn ends_pump(self) -> bool {
        matches!(self, Self::WindowOver | Self::Dry | Self::Paused | Self::Changed)
    }

    /// Whether the reason ends a pump's window, so that no later run processes the rows that are left.
    #[must_use]
    pub const fn ends_window(self) -> bool {
        matches!(self, Self::WindowOver | Self::Dry)
    }
}

word_enum! {
    /// What a due run waits for.
    WaitFor {
        /// For an earlier run of its job to end.
        Run = "run",
        /// For a concurrency or rate limit.
        Limit = "limit",
        /// For an executor that can take it.
        Executor = "executor",
        /// For a free slot on an executor that can take it.
        Slot = "slot",
        /// For its app to be active again.
        App = "app",
        /// For the answer of the executor that it was sent to, which has neither accepted nor refused it yet.
        Answer = "answer",
        /// For the executors to report whether they have it: its server stopped and handed nothing over, so it may have begun.
        RollCall = "roll_call",
    }
}

word_enum! {
    /// Why an online executor does not take a run.
    ObstacleKind {
        /// It does not have the handler.
        Handler = "handler",
        /// Its labels do not meet a condition of the job.
        Label = "label",
        /// The job selects executors by name, and not this one.
        NotSelected = "not_selected",
        /// All its slots are taken.
        Full = "full",
        /// It is shutting down.
        Draining = "draining",
        /// A user set its switch to `draining`.
        Drained = "drained",
        /// A user set its switch to `stopped`.
        Stopped = "stopped",
        /// It did not answer the router's question, or the trigger.
        Silent = "silent",
        /// It is running this job already.
        Busy = "busy",
        /// The shard belongs to this executor, and it is not online.
        Offline = "offline",
    }
}

word_enum! {
    /// What a limit counts.
    LimitKind {
        /// Runs at the same time.
        Concurrency = "concurrency",
        /// Starts per period.
        Rate = "rate",
        /// Not known yet: the server that counts it has not been found.
        Home = "home",
    }
}

/// An online executor that does not take a run, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Obstacle {
    /// The executor's stable name.
    pub executor: String,
    /// Why it does not take the run.
    pub kind: ObstacleKind,
    /// The label condition that is not met; only if the kind is `label`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
}

/// A limit that holds a run back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct LimitDetail {
    /// What it counts.
    pub kind: LimitKind,
    /// The key that jobs share; left out for the job's own rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How many it allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// For a rate: its period in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_ms: Option<u64>,
}

/// The parameters of a reason, and what the run waits or waited for. Parameters that do not apply are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ReasonDetail {
    /// What the run waits for, or waited for before it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<WaitFor>,
    /// How long the run waited before it ended, in milliseconds. If no executor received the attempt before, this is how long the
    /// run had waited when that attempt ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// The app whose executors were asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// The handler that the run needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
    /// The switch of the app.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<Switch>,
    /// The executor that had the attempt; of a run in shadow mode, the one that would have had it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// The only executor that may have the run, if its caller named one and the run waits or waited for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_executor: Option<String>,
    /// The attempt's timeout, in milliseconds, if it passed and the executor reported no end. The verdict is then `unknown`, without a
    /// reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreported_after_ms: Option<u64>,
    /// How long no server had answered the executor when it stopped the attempt, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_ms: Option<u64>,
    /// Whether the executor was shutting down and handed the attempt back, before its handler began.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shutting_down: bool,
    /// The other run: the earlier one that it waits behind, or the later one that took its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// How many runs the job's queue may hold, if it is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_max: Option<u64>,
    /// The limit that holds the run back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitDetail>,
    /// The parent job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// How the parent's run ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_status: Option<RunStatus>,
    /// The online executors of the app that do not take it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub obstacles: Vec<Obstacle>,
    /// How many obstacles are not listed.
    #[serde(skip_serializing_if = "is_zero")]
    pub obstacles_more: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A length of time in milliseconds, as [`ReasonDetail`] stores it.
#[must_use]
pub fn milliseconds(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

impl ReasonDetail {
    /// As JSON text of at most [`DETAIL_LEN_MAX`] bytes; `None` without parameters.
    #[must_use]
    pub fn to_json(&self) -> Option<String> {
        if *self == Self::default() {
            return None;
        }
        let mut bounded = self.bounded();
        loop {
            let text = serde_json::to_string(&bounded).ok()?;
            if text.len() <= DETAIL_LEN_MAX {
                return Some(text);
            }
            bounded.obstacles.pop()?;
            bounded.obstacles_more += 1;
        }
    }

    /// Reads stored JSON text. Text that this version cannot parse counts as having no parameters; the reason itself is stored as a
    /// separate code.
    #[must_use]
    pub fn from_json(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Adds executors that do not take the run; more than [`OBSTACLE_COUNT_MAX`] are only counted.
    #[must_use]
    pub fn with_obstacles(mut self, obstacles: impl IntoIterator<Item = Obstacle>) -> Self {
        for obstacle in obstacles {
            if self.obstacles.len() < OBSTACLE_COUNT_MAX {
                self.obstacles.push(obstacle);
            } else {
                self.obstacles_more += 1;
            }
        }
        self
    }

    /// Replaces what the run waits for by `wait`; the parameters of the reason stay.
    #[must_use]
    pub fn with_wait(&self, wait: Self) -> Self {
        let Self { executor, parent, parent_status, waited_ms, silent_ms, shutting_down, .. } = self.clone();
        let waited_ms = waited_ms.or(wait.waited_ms);
        Self { executor, parent, parent_status, waited_ms, silent_ms, shutting_down, ..wait }
    }

    fn bounded(&self) -> Self {
        let truncate = |text: &String| text.chars().take(TEXT_LEN_MAX).collect::<String>();
        let mut bounded = self.clone();
        for text in [
            &mut bounded.app,
            &mut bounded.handler,
            &mut bounded.executor,
            &mut bounded.only_executor,
            &mut bounded.parent,
        ]
        .into_iter()
        .flatten()
        {
            *text = truncate(text);
        }
        if let Some(key) = bounded.limit.as_mut().and_then(|limit| limit.key.as_mut()) {
            *key = truncate(key);
        }
        for obstacle in &mut bounded.obstacles {
            obstacle.executor = truncate(&obstacle.executor);
            obstacle.condition = obstacle.condition.as_ref().map(truncate);
        }
        let left_out_count = bounded.obstacles.len().saturating_sub(OBSTACLE_COUNT_MAX);
        bounded.obstacles.truncate(OBSTACLE_COUNT_MAX);
        bounded.obstacles_more += left_out_count;
        bounded
    }
}
