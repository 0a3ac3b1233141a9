//! Pump jobs and their items. `docs/PUMPS.md` explains them.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rondel_core::pump::{Item, ItemChange, Progress, apply};
use rondel_core::{JobId, NodeId, Run, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use crate::cluster::LeaseToken;
use crate::error::Result;

/// Maximum size of a checkpoint, in bytes.
pub const CHECKPOINT_LEN_MAX: usize = 4 * 1024;

/// A job that is a pump job, or was one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PumpJob {
    pub job: JobId,
    /// The version of its newest definition.
    pub version: i64,
    /// When that definition was saved.
    pub saved_at: Timestamp,
    /// The node that owns its open runs; 0 if none does yet.
    pub home: NodeId,
    /// Rises at each change of home.
    pub term: i64,
    /// Whether it is deleted. A deleted job has no home, and its open runs must end.
    pub is_deleted: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedItems {
    /// Number of changes that were made.
    pub applied_count: u64,
    /// Whether nothing was changed, because the node is not the home of the job or its lease is not valid.
    pub is_refused: bool,
}

#[async_trait]
pub trait Pumps {
    /// All jobs that are or were pump jobs, sorted by id, except jobs that [`forget_pump`](Self::forget_pump) removed.
    async fn pump_jobs(&self) -> Result<Vec<PumpJob>>;

    /// The root rows of a job's fires that count as present or past at `now` (see [`has_come`]); a root row stands for all groups of its
    /// fire. Returns the newest ones, at most `limit`, and all that are open. The latest planned instant comes first.
    async fn pump_roots(&self, job: JobId, now: Timestamp, limit: u32) -> Result<Vec<Run>>;

    /// The items of a job, sorted by name.
    async fn pump_items(&self, job: JobId) -> Result<Vec<Item>>;

    /// Changes items of a job, in the order of `changes`. A change that expects another state of its item is left out.
    /// Only the home of the job makes changes, and only under a valid lease.
    async fn change_items(
        &self,
        token: LeaseToken,
        job: JobId,
        changes: &[(String, ItemChange)],
        now: Timestamp,
    ) -> Result<ChangedItems>;

    /// Removes a job from the list of pump jobs, if `version` is still the version of its newest definition or the job is deleted. The
    /// items of a job that is not deleted are kept, because their epochs must continue to rise if it becomes a pump job again.
    async fn forget_pump(&self, job: JobId, version: i64) -> Result<()>;
}

/// Whether a root row counts as a present or past fire at `now`. Every row does, except that of a run that was requested for a later
/// instant and has no groups yet.
#[must_use]
pub fn has_come(root: &Run, now: Timestamp) -> bool {
    root.cause == 0 || root.fire_at <= now || root.shard_total.is_some()
}

/// Applies a change as [`rondel_core::pump::apply`] does, unless a test has disabled one of the safeguards.
pub fn apply_change(items: &mut BTreeMap<String, Item>, name: &str, change: &ItemChange, now: Timestamp) -> bool {
    let Some(item) = items.get(name) else { return apply(items, name, change, now) };
    match change {
        ItemChange::Report(progress) if mutant::on(Mutant::AnyOwnerReports) => {
            let owner = item.owner.unwrap_or(progress.owner);
            let sequence = progress.sequence.max(item.sequence + 1);
            let progress = Progress { owner, epoch: item.epoch, sequence, ..progress.clone() };
            apply(items, name, &ItemChange::Report(progress), now)
        }
        ItemChange::Report(progress) if mutant::on(Mutant::SequenceIsIgnored) => {
            let progress = Progress { sequence: item.sequence + 1, ..progress.clone() };
            apply(items, name, &ItemChange::Report(progress), now)
        }
        ItemChange::Deal { .. } if mutant::on(Mutant::DealKeepsEpoch) => {
            let is_applied = apply(items, name, change, now);
            if let Some(item) = items.get_mut(name).filter(|item| is_applied && item.epoch > 1) {
                item.epoch -= 1;
            }
            is_applied
        }
        _ => apply(items, name, change, now),
    }
}

/// Splits the changes into parts of at most `items_max` items. The changes of one item stay in one part, in order.
pub(crate) fn split_by_item(changes: &[(String, ItemChange)], items_max: usize) -> Vec<Vec<&(String, ItemChange)>> {
    let mut changes_by_name: BTreeMap<&str, Vec<&(String, ItemChange)>> = BTreeMap::new();
    for change in changes {
        changes_by_name.entry(&change.0).or_default().push(change);
    }
    let groups: Vec<_> = changes_by_name.into_values().collect();
    groups.chunks(items_max).map(|part| part.iter().flatten().copied().collect()).collect()
}
