//! Broadcasts: each shard that ends is counted, and the last one decides the verdict of the broadcast.

use rondel_core::run::ROOT_SHARD;
use rondel_core::{Run, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use crate::ledger::AttemptEnd;
use crate::mem::State;
use crate::rollups::decides_failing;
use crate::settle;

impl State {
    /// Counts down the open shards of a shard's broadcast. The last shard decides the verdict of the broadcast.
    pub(super) fn count_shards(&mut self, attempt_end: &AttemptEnd, closed_count: i32, now: Timestamp) {
        let Some(shard) = self.runs.get(&attempt_end.run).filter(|run| run.shard_index != ROOT_SHARD).cloned() else {
            return;
        };
        let is_sibling = |run: &&Run| (run.job, run.fire_at, run.cause) == (shard.job, shard.fire_at, shard.cause);
        let shards = self.runs.values().filter(is_sibling).filter(|run| run.shard_index != ROOT_SHARD);
        let (shards, ends): (Vec<_>, Vec<Option<Timestamp>>) =
            shards.map(|run| ((run.status, run.reason), run.finished_at)).unzip();
        let parent = shard.parent.and_then(|parent| self.runs.get_mut(&parent));
        let is_broadcast = |run: &&mut Run| run.shard_index == ROOT_SHARD && is_sibling(&&**run);
        let Some(broadcast) = parent.filter(is_broadcast) else { return };
        let Some(open_shards) = &mut broadcast.open_shards else { return };
        *open_shards = (*open_shards - closed_count * i32::from(!mutant::on(Mutant::NoShardCount))).max(0);
        let is_awaiting = broadcast.open_children.is_some();
        if *open_shards == 0 && !is_awaiting && (!broadcast.status.is_terminal() || closed_count == 0) {
            let (id, is_first) = (broadcast.id, !broadcast.status.is_terminal());
            let outcome = settle::fold_broadcast(&shards, broadcast.cancel_by.as_deref());
            (broadcast.status, broadcast.reason, broadcast.message) = (outcome.status, outcome.reason, outcome.message);
            broadcast.finished_at = ends.into_iter().flatten().max();
            self.cancels.remove(&id);
            if is_first {
                self.add_message(id, now);
                self.note_ended_run(id, attempt_end.policy.awaits_children);
            } else if decides_failing(outcome.status) != Some(true) {
                self.dead_letters.remove(&id);
            }
        }
    }
}
