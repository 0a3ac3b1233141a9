//! Gates: how many runs of a job may be open at the same time, and who waits in which order.
//!
//! A job's home holds its gate. A broadcast passes once and counts as one until all of its shards are over; a run keeps
//! its place while it waits for a retry.

use std::collections::{BTreeMap, HashMap};

use rondel_core::spec::OverlapPolicy;
use rondel_core::{Job, JobId, RunId, Timestamp};

use super::Ready;

/// How many runs of one serial job wait in memory where its definition does not say.
const QUEUE_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub(crate) struct Gates(HashMap<JobId, Gate>);

#[derive(Debug, Default)]
struct Gate {
    /// What passed, with the number of open runs behind it: the shards of a broadcast, else one.
    open: HashMap<RunId, usize>,
    /// In the order of their instants.
    queue: BTreeMap<(Timestamp, RunId), Ready>,
}

/// What a gate says.
#[derive(Debug)]
pub(crate) enum Entry {
    /// It may go on.
    Passed(Ready),
    /// It waits for its turn.
    Queued,
    /// The overlap policy passes it over.
    Discarded(Ready),
}

/// What a run counts as: the shards of a broadcast count as their broadcast.
fn key(ready: &Ready) -> RunId {
    ready.run.parent.filter(|_| ready.definition.job.is_sharded() && !ready.run.is_root()).unwrap_or(ready.run.id)
}

impl Gates {
    pub(crate) fn enter(&mut self, ready: Ready) -> Entry {
        let Some(max) = ready.definition.job.concurrency_max() else { return Entry::Passed(ready) };
        let gate = self.0.entry(ready.run.job).or_default();
        let key = key(&ready);
        if gate.open.contains_key(&key) {
            return Entry::Passed(ready);
        }
        if gate.open.len() < usize::try_from(max).unwrap_or(usize::MAX) {
            gate.open.insert(key, 1);
            return Entry::Passed(ready);
        }
        if gate.queue.len() >= queue_max(&ready.definition.job) {
            return Entry::Discarded(ready);
        }
        gate.queue.insert((ready.run.fire_at, ready.run.id), ready);
        Entry::Queued
    }

    /// A run is open that did not come through here: it was adopted.
    pub(crate) fn hold(&mut self, ready: &Ready) {
        if ready.definition.job.concurrency_max().is_some() {
            let gate = self.0.entry(ready.run.job).or_default();
            *gate.open.entry(key(ready)).or_insert(0) += 1;
        }
    }

    /// A run that passed ends, and keeps its place until its children are over too. False where it has none here.
    pub(crate) fn keep(&mut self, job: JobId, run: RunId) -> bool {
        match self.0.get_mut(&job).and_then(|gate| gate.open.get_mut(&run)) {
            Some(count) => {
                *count += 1;
                true
            }
            None => false,
        }
    }

    /// A broadcast that passed has this many shards now.
    pub(crate) fn expand(&mut self, job: JobId, root: RunId, shard_count: usize) {
        if let Some(count) = self.0.get_mut(&job).and_then(|gate| gate.open.get_mut(&root)) {
            *count = shard_count;
        }
    }

    /// A run is over. Answers who may go on now.
    pub(crate) fn leave(&mut self, job: JobId, run: RunId, parent: Option<RunId>) -> Vec<Ready> {
        let Some(gate) = self.0.get_mut(&job) else { return Vec::new() };
        let left = parent.filter(|parent| gate.open.contains_key(parent)).unwrap_or(run);
        match gate.open.get_mut(&left) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => drop(gate.open.remove(&left)),
            None => {}
        }
        let mut passed = Vec::new();
        while let Some(next) = gate.queue.first_entry() {
            let max = next
                .get()
                .definition
                .job
                .concurrency_max()
                .map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX));
            if gate.open.len() >= max {
                break;
            }
            let ready = next.remove();
            gate.open.insert(key(&ready), 1);
            passed.push(ready);
        }
        if gate.open.is_empty() && gate.queue.is_empty() {
            self.0.remove(&job);
        }
        passed
    }

    /// Takes a waiting run out, whatever its job.
    pub(crate) fn remove_queued_anywhere(&mut self, run: RunId) -> Option<Ready> {
        self.0.values_mut().find_map(|gate| {
            let at = gate.queue.keys().find(|(_, id)| *id == run).copied()?;
            gate.queue.remove(&at)
        })
    }

    /// Takes every waiting run out: they are durable and somebody else's.
    pub(crate) fn drain_queues(&mut self) -> Vec<Ready> {
        self.0.values_mut().flat_map(|gate| std::mem::take(&mut gate.queue).into_values()).collect()
    }
}

fn queue_max(job: &Job) -> usize {
    match job.overlap.policy {
        OverlapPolicy::Discard | OverlapPolicy::Cover => 0,
        OverlapPolicy::Serial if job.overlap.max > 0 => usize::try_from(job.overlap.max).unwrap_or(usize::MAX),
        OverlapPolicy::Serial | OverlapPolicy::Allow => QUEUE_MAX,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dispatch::tests_support::{definition, ready};

    fn overlap(policy: &str, max: u32) -> std::sync::Arc<crate::definitions::Compiled> {
        definition(&json!({"overlap": {"policy": policy, "max": max}}))
    }

    fn enter(gates: &mut Gates, ready: Ready) -> &'static str {
        match gates.enter(ready) {
            Entry::Passed(_) => "passed",
            Entry::Queued => "queued",
            Entry::Discarded(_) => "discarded",
        }
    }

    fn leave(gates: &mut Gates, run: &Ready) -> Vec<i64> {
        let passed = gates.leave(run.run.job, run.run.id, run.run.parent);
        passed.iter().map(|ready| ready.run.due_at.second()).collect()
    }

    #[test]
    fn serial_runs_wait_in_the_order_of_their_instants() {
        let (mut gates, serial) = (Gates::default(), overlap("serial", 0));
        let first = ready(1, &serial);
        assert_eq!(enter(&mut gates, first.clone()), "passed");
        assert_eq!(enter(&mut gates, ready(3, &serial)), "queued");
        assert_eq!(enter(&mut gates, ready(2, &serial)), "queued");
        assert_eq!(leave(&mut gates, &first), [2]);
        assert_eq!(leave(&mut gates, &ready(2, &serial)), [3]);
        assert_eq!(leave(&mut gates, &ready(3, &serial)), Vec::<i64>::new());
        assert_eq!(gates.0.len(), 0);
    }

    #[test]
    fn a_retry_keeps_its_place() {
        let (mut gates, serial) = (Gates::default(), overlap("serial", 0));
        let first = ready(1, &serial);
        assert_eq!(enter(&mut gates, first.clone()), "passed");
        assert_eq!(enter(&mut gates, ready(2, &serial)), "queued");
        assert_eq!(enter(&mut gates, first), "passed");
    }

    #[test]
    fn the_queue_is_bounded_and_discard_has_none() {
        let (mut gates, bounded) = (Gates::default(), overlap("serial", 1));
        let entries: Vec<_> = (1..4).map(|second| enter(&mut gates, ready(second, &bounded))).collect();
        assert_eq!(entries, ["passed", "queued", "discarded"]);
        let (mut gates, discard) = (Gates::default(), overlap("discard", 0));
        let entries: Vec<_> = (1..3).map(|second| enter(&mut gates, ready(second, &discard))).collect();
        assert_eq!(entries, ["passed", "discarded"]);
    }

    #[test]
    fn allow_lets_as_many_through_as_it_says() {
        let (mut gates, two) = (Gates::default(), overlap("allow", 2));
        let entries: Vec<_> = (1..4).map(|second| enter(&mut gates, ready(second, &two))).collect();
        assert_eq!(entries, ["passed", "passed", "queued"]);
        let (mut gates, any) = (Gates::default(), overlap("allow", 0));
        assert!((1..100).all(|second| enter(&mut gates, ready(second, &any)) == "passed"));
    }

    #[test]
    fn a_broadcast_is_over_when_its_last_shard_is() {
        let broadcast = definition(&json!({"route": "broadcast"}));
        let mut gates = Gates::default();
        let mut root = ready(1, &broadcast);
        (root.run.shard_index, root.run.shard_total) = (rondel_core::run::BROADCAST, None);
        assert_eq!(enter(&mut gates, root.clone()), "passed");
        gates.expand(root.run.job, root.run.id, 2);
        let shards = [10, 11].map(|id| {
            let mut shard = ready(id, &broadcast);
            (shard.run.parent, shard.run.shard_total) = (Some(root.run.id), Some(2));
            shard
        });
        for shard in &shards {
            assert_eq!(enter(&mut gates, shard.clone()), "passed");
        }
        assert_eq!(enter(&mut gates, ready(2, &broadcast)), "queued");
        assert!(leave(&mut gates, &shards[0]).is_empty());
        assert_eq!(leave(&mut gates, &shards[1]), [2]);
    }
}
