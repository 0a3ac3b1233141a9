//! The parts of a definition that choose the executor and handle misfires, overlaps, lost executors and failures.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::reason::Reason;
use crate::schema::DurationText;
use crate::time::{duration_text, format_duration, parse_duration};
use crate::word_enum::word_enum;

word_enum! {
    /// Which executor of the app gets a run.
    Route {
        /// The first by name.
        First = "first",
        /// The last by name.
        Last = "last",
        /// Each in turn.
        Round = "round",
        /// One at random.
        Random = "random",
        /// Each job stays on one executor; few jobs move when executors join or leave.
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
        /// The one with the fewest runs.
        LeastActive = "least_active",
        /// All of them, each with its index and the total.
        Broadcast = "broadcast",
    }
}

#[expect(clippy::derivable_impls, reason = "the macro makes the enum")]
impl Default for Route {
    fn default() -> Self {
        Self::Round
    }
}

/// What happens to fires that are later than the tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MisfireSpec {
    /// What to do.
    pub policy: MisfirePolicy,
    /// For `all`: how many of the missed fires run.
    pub max: u32,
    /// For `all`: which of the missed fires run, if there are more.
    pub keep: MisfireKeep,
    /// A fire counts as missed if it is later than this.
    #[serde(with = "duration_text")]
    #[schemars(with = "DurationText")]
    pub tolerance: Duration,
}

impl Default for MisfireSpec {
    fn default() -> Self {
        Self { policy: MisfirePolicy::Skip, max: 100, keep: MisfireKeep::Newest, tolerance: Duration::from_secs(5) }
    }
}

word_enum! {
    /// What happens to missed fires.
    MisfirePolicy {
        /// Skip them, with a verdict.
        Skip = "skip",
        /// Run the newest of them, skip the others.
        Once = "once",
        /// Run up to `max` of them in order, skip the others.
        All = "all",
    }
}

word_enum! {
    /// Which of the missed fires run, if not all of them do.
    MisfireKeep {
        /// The newest.
        Newest = "newest",
        /// The oldest.
        Oldest = "oldest",
    }
}

/// What happens when a run is due and an earlier one has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OverlapSpec {
    /// What to do.
    pub policy: OverlapPolicy,
    /// Whether all open runs of the job count as overlapping, or only those on one executor.
    pub scope: OverlapScope,
    /// For `allow`: how many at once; 0 for any number. For `serial`: how many may wait.
    pub max: u32,
}

impl Default for OverlapSpec {
    fn default() -> Self {
        Self { policy: OverlapPolicy::Serial, scope: OverlapScope::Cluster, max: 0 }
    }
}

word_enum! {
    /// What to do with a run that is due while an earlier one has not ended.
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

word_enum! {
    /// Where runs of one job count as overlapping.
    OverlapScope {
        /// Anywhere.
        Cluster = "cluster",
        /// On the same executor.
        Executor = "executor",
    }
}

word_enum! {
    /// What happens to a run whose executor is lost.
    Delivery {
        /// It is sent again.
        AtLeastOnce = "at_least_once",
        /// Its verdict is `unknown`.
        AtMostOnce = "at_most_once",
    }
}

#[expect(clippy::derivable_impls, reason = "the macro makes the enum")]
impl Default for Delivery {
    fn default() -> Self {
        Self::AtLeastOnce
    }
}

word_enum! {
    /// What an executor does with a run while no server answers it.
    OnSilence {
        /// The run continues, for a bounded time if runs of the job must not overlap; the next run waits meanwhile.
        Continue = "continue",
        /// It stops the run after 15 s. The run is then sent again, like a run whose executor was lost.
        Stop = "stop",
    }
}

impl OnSilence {
    /// The default if a definition sets none. Work that may be repeated is stopped, so that the job continues soon if the executor is dead.
    /// Work that must not be repeated continues, because nothing else would finish it. It continues as well if runs may overlap, because
    /// then nothing waits for it.
    #[must_use]
    pub const fn default_of(delivery: Delivery, overlap: OverlapPolicy) -> Self {
        match (delivery, overlap) {
            (Delivery::AtMostOnce, _) | (Delivery::AtLeastOnce, OverlapPolicy::Allow) => Self::Continue,
            (Delivery::AtLeastOnce, OverlapPolicy::Serial | OverlapPolicy::Discard | OverlapPolicy::Cover) => {
                Self::Stop
            }
        }
    }
}

/// What happens after a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// The first wait and the longest one.
    pub(crate) fn waits(&self) -> Result<(Duration, Duration), String> {
        let hour = Duration::from_secs(3600);
        let (first_text, cap_text) = match self.backoff.split_once("..") {
            Some((first, cap)) => (parse_duration(first), parse_duration(cap)),
            None => (parse_duration(&self.backoff), Ok(hour)),
        };
        match (first_text, cap_text) {
            (Ok(first), Ok(cap)) if first <= cap => Ok((first, cap)),
            (Ok(first), Ok(_)) if !self.backoff.contains("..") => Ok((first, first)),
            (Ok(first), Ok(cap)) => {
                let (first, cap) = (format_duration(first), format_duration(cap));
                Err(format!("{:?} begins at {first} and ends at {cap}", self.backoff))
            }
            (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
        }
    }
}

word_enum! {
    /// When a run counts as ended.
    RunEnd ("Over") {
        /// When it ends itself.
        Run = "run",
        /// When the runs that follow it have ended too. Until then it is `running`; its verdict depends on theirs.
        Children = "children",
    }
}

#[expect(clippy::derivable_impls, reason = "the macro makes the enum")]
impl Default for RunEnd {
    fn default() -> Self {
        Self::Run
    }
}

/// Which verdicts besides failures are reported to the namespace's failure webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NotifySpec {
    /// Skipped runs are reported if they were skipped for one of these reasons: `no_executor`, `misfire`, `expired`, `overlap`,
    /// `covered`, `stopped` or `handler`. If the list is empty, none is reported.
    pub skipped: Vec<Reason>,
}

impl NotifySpec {
    /// The reasons that can be reported.
    pub const SKIPPED_ALL: [Reason; 7] = [
        Reason::NoExecutor,
        Reason::Misfire,
        Reason::Expired,
        Reason::Overlap,
        Reason::Covered,
        Reason::Stopped,
        Reason::Handler,
    ];

    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for NotifySpec {
    fn default() -> Self {
        Self { skipped: vec![Reason::NoExecutor, Reason::Misfire, Reason::Expired] }
    }
}

/// Which executors of the app may get a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SelectSpec {
    /// Conditions on labels, all of which must hold: `zone=eu`, `gpu!=none`, `ssd` (it has the label), `!old` (it has not).
    pub labels: Vec<String>,
    /// Stable names; empty for any.
    pub executors: Vec<String>,
}

impl SelectSpec {
    pub(super) fn is_any(&self) -> bool {
        self.labels.is_empty() && self.executors.is_empty()
    }
}

/// A limit that several jobs share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConcurrencySpec {
    /// Jobs of a namespace with the same key share the limit.
    pub key: String,
    /// How many of their runs may be on executors at the same time.
    pub max: u32,
}

/// A limit on starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateSpec {
    /// Jobs of a namespace with the same key share the limit; left out for a limit of this job alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How many runs may start in any span of the length `per`.
    pub max: u32,
    /// The length of the span.
    #[serde(with = "duration_text")]
    #[schemars(with = "DurationText")]
    pub per: Duration,
}
