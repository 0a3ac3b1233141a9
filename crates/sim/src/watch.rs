//! What is looked at after every write of the store: what must hold at each moment, not only at the end.

use std::collections::BTreeMap;

use rondel_core::{NamespaceId, NodeId, RunId, RunStatus, Timestamp};
use rondel_store::catalog::JobQuery;
use rondel_store::ledger::{Claimed, DueRange, Finish, RunQuery};
use rondel_store::{Catalog as _, Cluster as _, LeaseToken, Ledger as _};

use crate::world::{World, lock};

const NAMESPACE: NamespaceId = NamespaceId::new(1);
const ALL: u32 = 1_000_000;

/// Tells which rows a call has changed: only for the reader of a trace.
pub(crate) async fn rows(world: &World) {
    let mut rows: BTreeMap<String, String> = BTreeMap::new();
    let query = JobQuery { limit: ALL, ..JobQuery::default() };
    let jobs = world.store.jobs(NAMESPACE, &query).await.unwrap_or_default();
    for job in &jobs {
        rows.insert(format!("job {}", job.spec.name), format!("{} version {}", job.id, job.version));
    }
    let mut homes = vec![NodeId::new(0)];
    for node in world.store.nodes().await.unwrap_or_default() {
        homes.push(node.id);
        rows.insert(format!("node {}", node.id), format!("epoch {}", node.epoch));
    }
    let range = DueRange { from: Timestamp::EPOCH, to: Timestamp::MAX, limit: ALL };
    for due in world.store.due_jobs(&homes, range).await.unwrap_or_default() {
        rows.insert(format!("home of {}", due.job), format!("{} term {}", due.home, due.term));
    }
    let query = RunQuery { limit: ALL, ..RunQuery::default() };
    for run in world.store.list_runs(NAMESPACE, &query).await.unwrap_or_default() {
        let name = jobs.iter().find(|job| job.id == run.job).map_or("?", |job| job.spec.name.as_str());
        let row = format!(
            "{name} {} shard {} of {:?}: {} {:?} attempt {} owner {} {} due {} marked {:?} on {:?} cancel {:?}",
            run.fire_at,
            run.shard_index,
            run.shard_total,
            run.status,
            run.reason,
            run.attempt,
            run.node,
            run.node_epoch,
            run.due_at,
            run.marked_at,
            run.executor_id,
            run.cancel_by,
        );
        rows.insert(format!("run {}", run.id), row);
    }
    let mut known = lock(&world.rows);
    for (name, row) in &rows {
        if known.get(name) != Some(row) {
            world.trace.tell(world.elapsed_ms(), &format!("  {name}: {row}"));
        }
    }
    *known = rows;
}

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
