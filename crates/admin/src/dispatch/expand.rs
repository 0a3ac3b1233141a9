//! Expands broadcasts, and fires with a fixed number of shards, into their shards.

use std::collections::BTreeSet;
use std::sync::Arc;

use rondel_core::{Run, RunId, RunStatus};

use super::decision::{Decision, lease_of};
use super::effect::{Effect, Measure};
use super::event::Shards;
use super::queue::turns;
use super::ready::ReadyRun;
use super::step::Step;
use super::{flow, place};

/// Stores again the shards that the database has not confirmed.
pub(super) fn expand_again(d: &mut Decision<'_>) {
    for (root, shards) in d.state.runs.take_unconfirmed() {
        d.step(Step::Expand(Box::new(root), shards));
    }
}

/// Handles the result of storing a broadcast's shards. The shards take their places at the gate before the broadcast's row gives up its own place,
/// so that no other run of the job can start in between. The periodic queries find shards that another node wrote, or that were written under
/// another lease.
pub(super) fn on_expanded(d: &mut Decision<'_>, submitted_root: &Run, shards: Shards) {
    let Shards { requested_shards, open_shards } = shards;
    let Some(root) = d.state.runs.take_expanding(submitted_root) else {
        // A later lease has taken the broadcast over, and its place at the gate with it.
        d.forget_shards(&requested_shards);
        return d.forget_under_lease([(submitted_root.id, lease_of(submitted_root))]);
    };
    if root.token() != d.facts.token {
        // The lease has ended since: the broadcast's next owner finds its shards.
        d.forget_shards(&requested_shards);
        d.forget_under_lease([(submitted_root.id, root.token())]);
        turns::leave_gate(d, submitted_root.id);
        return flow::offer_freed_places(d);
    }
    let Some(open_shards) = open_shards else { return d.state.runs.wait_for_expansion(root, requested_shards) };
    if !open_shards.is_empty() {
        let measure = Measure::Dispatched(Arc::clone(&root.definition), root.run.trigger);
        d.effects.push(Effect::Measure(measure));
    }
    let ready = |run| ReadyRun {
        term: root.term,
        trace: root.trace.clone(),
        queued_at: root.queued_at,
        ..ReadyRun::new(run, Arc::clone(&root.definition))
    };
    open_shards.iter().for_each(|shard| d.state.gates.open_place(&ready(shard.clone())));
    let shard_ids: BTreeSet<RunId> = requested_shards.iter().map(|shard| shard.id).collect();
    let lease = |run: &Run| (run.node, run.node_epoch);
    let is_unsent = |shard: &Run| shard.status == RunStatus::Pending && lease(shard) == lease(&root.run);
    let unsent_shards: Vec<Run> =
        open_shards.into_iter().filter(|shard| shard_ids.contains(&shard.id) && is_unsent(shard)).collect();
    let unsent_ids: BTreeSet<RunId> = unsent_shards.iter().map(|shard| shard.id).collect();
    let forgotten_shards: Vec<Run> =
        requested_shards.into_iter().filter(|shard| !unsent_ids.contains(&shard.id)).collect();
    d.forget_shards(&forgotten_shards);
    unsent_shards.into_iter().for_each(|shard| turns::accept_run(d, ready(shard)));
    place::forget_unsent(d, &root);
    turns::leave_gate(d, root.run.id);
    flow::offer_freed_places(d);
}
