//! Checks after every write of the store: the rules that must hold at each moment, not only at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_core::outcome::is_provisional;
use rondel_core::{NamespaceId, NodeId, Reason, RunId, RunStatus, Timestamp};
use rondel_proto::v1;
use rondel_proto::v1::server_message::Body;
use rondel_store::catalog::JobQuery;
use rondel_store::cluster::Node;
use rondel_store::ledger::{AttemptEnd, ClaimResult, DueRange, RunQuery};
use rondel_store::{Catalog as _, Claim as _, Cluster as _, LeaseToken, Runs as _};

use crate::process::Process;
use crate::profile::LEASE;
use crate::world::{World, lock};

const NAMESPACE: NamespaceId = NamespaceId::new(1);
const ROW_COUNT_MAX: u32 = 1_000_000;
/// How soon after a pause a node may still send a message for which it checked its lease before the pause.
const WAKES_WITHIN: Duration = Duration::from_millis(20);

/// Shows which rows a call has changed, for the reader of a trace.
pub(crate) async fn show_changed_rows(world: &World) {
    let mut rows: BTreeMap<String, String> = BTreeMap::new();
    let query = JobQuery { limit: ROW_COUNT_MAX, ..JobQuery::default() };
    let jobs = world.store.jobs(NAMESPACE, &query).await.unwrap_or_default();
    for job in &jobs {
        rows.insert(format!("job {}", job.spec.name), format!("{} version {}", job.id, job.version));
    }
    let mut homes = vec![NodeId::new(0)];
    for node in world.store.nodes().await.unwrap_or_default() {
        homes.push(node.id);
        rows.insert(format!("node {}", node.id), format!("epoch {}", node.epoch));
    }
    let range = DueRange { from: Timestamp::EPOCH, to: Timestamp::MAX, limit: ROW_COUNT_MAX };
    for due_job in world.store.due_jobs(&homes, range).await.unwrap_or_default() {
        rows.insert(format!("home of {}", due_job.job), format!("{} term {}", due_job.home, due_job.term));
    }
    let query = RunQuery { limit: ROW_COUNT_MAX, ..RunQuery::default() };
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
    let mut known_rows = lock(&world.rows);
    for (name, row) in &rows {
        if known_rows.get(name) != Some(row) {
            world.trace.add_comment(world.elapsed_ms(), &format!("  {name}: {row}"));
        }
    }
    *known_rows = rows;
}

/// The epoch of each node, which node has fenced it, and the lease that owns each open run.
pub(crate) struct OpenRows {
    epochs: BTreeMap<NodeId, i64>,
    fencers: BTreeMap<NodeId, NodeId>,
    owners: BTreeMap<RunId, LeaseToken>,
}

impl OpenRows {
    pub(crate) async fn read(world: &World) -> Self {
        let nodes = world.store.nodes().await.unwrap_or_default();
        let query = RunQuery { limit: ROW_COUNT_MAX, ..RunQuery::default() };
        let runs = world.store.list_runs(NAMESPACE, &query).await.unwrap_or_default();
        let open_runs = runs.iter().filter(|run| !run.status.is_terminal());
        Self {
            epochs: nodes.iter().map(|node| (node.id, node.epoch)).collect(),
            fencers: nodes.iter().filter_map(|node| Some((node.id, node.fenced_by?))).collect(),
            owners: open_runs.map(|run| (run.id, LeaseToken { node: run.node, epoch: run.node_epoch })).collect(),
        }
    }
}

/// Records which leases a call of a node has fenced, and whether it has taken over runs of a lease that another node had fenced long before.
pub(crate) async fn record_adoption(world: &World, caller_index: usize, rows_before: &OpenRows) {
    let rows_after = OpenRows::read(world).await;
    let mut truth = world.truth();
    for (node, epoch) in &rows_before.epochs {
        if rows_after.epochs.get(node).is_some_and(|epoch_after| epoch_after > epoch) {
            truth.fenced_leases.insert((*node, *epoch), (world.elapsed_ms(), caller_index));
        }
    }
    let mut moved_owners = rows_before.owners.iter().filter_map(|(run, old_lease)| {
        let owner = rows_after.owners.get(run).filter(|owner| *owner != old_lease)?;
        Some((*old_lease, owner.node))
    });
    let is_split = moved_owners.any(|(old_lease, owner)| {
        let fenced_lease =
            truth.fenced_leases.range((old_lease.node, old_lease.epoch)..=(old_lease.node, i64::MAX)).next();
        // The clocks of hosts drift, so a host may count two leases as passed some milliseconds early.
        let is_long_ago = |fenced_ms: u64| u128::from(world.elapsed_ms() - fenced_ms) + 10 >= LEASE.as_millis() * 2;
        // A node that takes over a fencer gets the limits of the leases that it has fenced.
        let has_limits = rows_after.fencers.get(&old_lease.node) == Some(&owner);
        fenced_lease
            .is_some_and(|(_, (fenced_ms, fencer))| *fencer != caller_index && !has_limits && is_long_ago(*fenced_ms))
    });
    if is_split && truth.split_adoption_ms.is_none() {
        truth.split_adoption_ms = Some(world.elapsed_ms());
    }
}

/// Checks that a claim that won anything was made under a live lease.
pub(crate) async fn check_claim(world: &World, token: LeaseToken, claim_result: &ClaimResult) {
    if claim_result.jobs.is_empty() {
        return;
    }
    let nodes = world.store.nodes().await.unwrap_or_default();
    let now = world.now();
    let is_live_lease = nodes.iter().any(|node| node.token() == token && node.is_living(now));
    if !is_live_lease {
        world.truth().violate("I5 fencing", &format!("node {} claimed under a lease that has ended", token.node));
    }
}

/// Checks that a node sends only under a lease that is valid for the server that would adopt its runs, unless the node
/// was paused just before. It is not enough that executors refuse messages of a fenced server: they may not know of
/// the adoption yet.
pub(crate) async fn check_sent(world: &World, process: &Process, message: &v1::ServerMessage) {
    let Some(Body::Triggers(triggers)) = &message.body else { return };
    let was_asleep = process.resumed_at().is_some_and(|at| at.elapsed() < WAKES_WITHIN);
    if was_asleep || world.profile.has_clock_faults {
        return;
    }
    let (nodes, now) = (world.store.nodes().await.unwrap_or_default(), world.now());
    let (id, epoch) = (triggers.node_id, triggers.node_epoch);
    let is_live_lease = |node: &Node| (node.id.get(), node.epoch) == (id, epoch) && node.is_living(now);
    if !nodes.iter().any(is_live_lease) {
        world.truth().violate("I5 lease", &format!("node {id} sent something under epoch {epoch}, which has ended"));
    }
}

/// Whether an edit may reopen a run. It may if a pause has skipped the run and its fire is still ahead when the job is
/// resumed.
fn may_be_reopened(status: RunStatus, reason: Option<Reason>) -> bool {
    status == RunStatus::Skipped && reason == Some(Reason::Paused)
}

/// Checks that a verdict is final, unless it was given without a report of the executor, which may come late.
pub(crate) async fn check_verdicts(world: &World, batch: &[AttemptEnd]) {
    let ids: Vec<RunId> = batch.iter().map(|attempt_end| attempt_end.run).collect();
    let runs = world.store.runs(&ids).await.unwrap_or_default();
    let mut truth = world.truth();
    for run in runs {
        let known_verdict = truth.verdicts.get(&run.id).copied();
        if let Some((status, reason, attempt)) = known_verdict
            && (status, attempt) != (run.status, run.attempt)
            && !(is_provisional(status, reason) && attempt == run.attempt)
            && !may_be_reopened(status, reason)
        {
            let description =
                format!("run {}: {status} of attempt {attempt} became {} of {}", run.id, run.status, run.attempt);
            truth.violate("I6 verdicts are final", &description);
        }
        if known_verdict.is_some_and(|(status, reason, _)| (status, reason) != (run.status, run.reason)) {
            // If the run is a shard, the verdict of its broadcast is corrected too.
            truth.corrected_runs.extend([Some(run.id), run.parent].into_iter().flatten());
        }
        if run.status.is_terminal() {
            truth.verdicts.insert(run.id, (run.status, run.reason, run.attempt));
        }
    }
}
