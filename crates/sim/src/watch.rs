//! What is looked at after every write of the store: what must hold at each moment, not only at the end.

use rondel_core::{RunId, RunStatus};
use rondel_store::ledger::{Claimed, Finish};
use rondel_store::{Cluster as _, LeaseToken, Ledger as _};

use crate::world::World;

/// A claim that won anything was made under a living lease.
pub(crate) async fn claimed(world: &World, token: LeaseToken, claimed: &Claimed) {
    if claimed.jobs.is_empty() {
        return;
    }
    let nodes = world.store.nodes().await.unwrap_or_default();
    let now = world.now();
    let holds = nodes.iter().any(|node| node.token() == token && node.is_living(now));
    if !holds {
        world.truth().violate("I5 fencing", &format!("node {} claimed under a lease that is over", token.node));
    }
}

/// A verdict stays as it is, but for `unknown`, of which the truth may come late.
pub(crate) async fn finished(world: &World, batch: &[Finish]) {
    let ids: Vec<RunId> = batch.iter().map(|finish| finish.run).collect();
    let runs = world.store.runs(&ids).await.unwrap_or_default();
    let mut truth = world.truth();
    for run in runs {
        let known = truth.verdicts.get(&run.id).copied();
        if let Some((status, attempt)) = known
            && (status, attempt) != (run.status, run.attempt)
            && !(status == RunStatus::Unknown && attempt == run.attempt)
        {
            let what =
                format!("run {}: {status} of attempt {attempt} became {} of {}", run.id, run.status, run.attempt);
            truth.violate("I6 verdicts are final", &what);
        }
        if run.status.is_terminal() {
            truth.verdicts.insert(run.id, (run.status, run.attempt));
        }
    }
}
