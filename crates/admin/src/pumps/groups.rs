//! The groups of pump jobs: where they run, which of them leave their executors, and their last orders.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rondel_core::homes::Switch;
use rondel_core::pump::{Group, GroupMode, Item, ItemChange, Load, Owner, Pump, Room, executor_to_unload};
use rondel_core::{ExecutorId, JobId, Run, RunId, RunStatus, Timestamp};
use rondel_store::StoreError;

use super::board::Report;
use super::orders::{OrderContent, SentOrder, message, next_number};
use super::{PumpSnapshot, progress};
use crate::dispatch::given_name;
use crate::node::Shared;
use crate::registry::OnlineExecutor;

/// How long an attempt that has ended is remembered: its last report may come after its result.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// How much later than its period a heartbeat may arrive. Until then, a new group may be missing in the number of runs that its executor
/// has reported.
const HEARTBEAT_DELAY_MAX: Duration = Duration::from_secs(1);
/// The shortest time for which a group counts as new, however often executors send heartbeats.
const UNCOUNTED_MIN: Duration = Duration::from_secs(3);

/// A group as it was seen last.
#[derive(Debug)]
struct GroupState {
    /// The root run that the group belongs to.
    root: Option<RunId>,
    executor: ExecutorId,
    mode: GroupMode,
    /// The instant of the first look that found the group's run under way.
    first_seen_at: Timestamp,
    /// The instant from which the number of runs that its executor reports includes the group.
    counted_from: Timestamp,
    /// The instant of the last look that found the group's run open.
    seen_at: Timestamp,
    /// Whether the group is to leave its executor for another executor.
    is_leaving: bool,
    /// The last order that was sent to the group.
    last_order: Option<SentOrder>,
    /// The term and the number of the last order that the group has taken.
    taken_order: (i64, i64),
}

impl GroupState {
    /// A group that a look at `now` sees for the first time. Executors send heartbeats with the period `heartbeat`.
    fn new(root: Option<RunId>, executor: ExecutorId, heartbeat: Duration, now: Timestamp) -> Self {
        Self {
            root,
            executor,
            mode: GroupMode::Takes,
            first_seen_at: now,
            counted_from: now + heartbeat.saturating_add(HEARTBEAT_DELAY_MAX).max(UNCOUNTED_MIN),
            seen_at: now,
            is_leaving: false,
            last_order: None,
            taken_order: (0, 0),
        }
    }

    /// Whether its executor may not have counted it yet. A clock that was set back makes no group new.
    fn is_new(&self, now: Timestamp) -> bool {
        now >= self.first_seen_at && now < self.counted_from
    }
}

#[derive(Debug, Default)]
pub(super) struct Groups {
    by_job: BTreeMap<JobId, BTreeMap<Owner, GroupState>>,
    /// The number of the last order.
    last_order_number: i64,
}

impl Groups {
    /// Forgets the groups of jobs that are no longer pump jobs.
    pub(super) fn retain_jobs(&mut self, jobs: &BTreeSet<JobId>) {
        self.by_job.retain(|job, _| jobs.contains(job));
    }

    /// The changes of items in the reports. A report counts only if its executor had the group when the group was last seen.
    pub(super) fn reported_changes(
        &mut self,
        job: JobId,
        reports: &BTreeMap<(ExecutorId, Owner), Report>,
    ) -> Vec<(String, ItemChange)> {
        let Some(groups) = self.by_job.get_mut(&job) else { return Vec::new() };
        let mut changes = Vec::new();
        for ((executor, owner), report) in reports {
            let Some(group_state) = groups.get_mut(owner).filter(|group_state| group_state.executor == *executor)
            else {
                continue;
            };
            group_state.taken_order = group_state.taken_order.max(report.taken_order);
            changes.extend(report.items.values().map(|item| progress::change(*owner, item)));
        }
        changes
    }

    /// The reports of groups that were never seen.
    pub(super) fn unknown_reports(
        &self,
        job: JobId,
        reports: BTreeMap<(ExecutorId, Owner), Report>,
    ) -> BTreeMap<(ExecutorId, Owner), Report> {
        let groups = self.by_job.get(&job);
        let is_unknown = |owner: &Owner| groups.is_none_or(|groups| !groups.contains_key(owner));
        reports.into_iter().filter(|((_, owner), _)| is_unknown(owner)).collect()
    }

    /// Whether this was a group of the root run when it was seen last.
    pub(super) fn is_of_root(&self, job: JobId, owner: Owner, root: RunId) -> bool {
        let group_state = self.by_job.get(&job).and_then(|groups| groups.get(&owner));
        group_state.is_some_and(|group_state| group_state.root == Some(root))
    }

    /// The groups of a job that this look has seen.
    pub(super) fn of(&self, job: JobId, now: Timestamp) -> Vec<Group> {
        let groups = self.by_job.get(&job).into_iter().flatten().filter(|(_, group_state)| group_state.seen_at == now);
        let mut groups: Vec<Group> =
            groups.map(|(owner, group_state)| Group { owner: *owner, mode: group_state.mode }).collect();
        groups.sort_by_key(|group| group.owner);
        groups
    }

    /// Reads which executors have the groups of open root runs, and decides which groups leave their executors.
    pub(super) async fn read_groups(
        &mut self,
        shared: &Shared,
        snapshot: &PumpSnapshot<'_>,
        pump: &Pump,
        roots: &[&Run],
    ) -> Result<(), StoreError> {
        let expanded_roots: Vec<_> =
            roots.iter().filter(|root| root.shard_total.is_some()).map(|root| root.id).collect();
        let ending_roots: BTreeSet<_> =
            roots.iter().filter(|root| root.cancel_by.is_some()).map(|root| root.id).collect();
        let runs = match expanded_roots.is_empty() {
            true => Vec::new(),
            false => shared.store.runs_below(&expanded_roots, rondel_core::job::SHARD_COUNT_MAX).await?,
        };
        let groups = self.by_job.entry(snapshot.record.job).or_default();
        for run in runs.iter().filter(|run| run.status == RunStatus::Running && run.started_at.is_some()) {
            let Some(executor) = run.executor_id else { continue };
            let owner = Owner { run: run.id, attempt: run.attempt };
            let new_group = || GroupState::new(run.parent, executor, shared.config.heartbeat, snapshot.now);
            let group_state = groups.entry(owner).or_insert_with(new_group);
            (group_state.executor, group_state.seen_at) = (executor, snapshot.now);
            // A group that was queued when the job was paused, and began anyway, has no cancel request, but its root run has one.
            let must_end = run.cancel_by.is_some() || run.parent.is_some_and(|root| ending_roots.contains(&root));
            group_state.mode = if must_end || group_state.is_leaving {
                GroupMode::Leaves
            } else if shared.pumps.stream(executor).is_some() {
                GroupMode::Takes
            } else {
                GroupMode::Keeps
            };
        }
        groups.retain(|_, group_state| group_state.seen_at + KEPT_FOR > snapshot.now);
        let executors = capable_executors(shared, snapshot);
        let unbegun_groups = UnbegunGroups::of(snapshot.record.job, &runs);
        choose_leaving_groups(groups, &executors, (shared, snapshot), (&unbegun_groups, pump.per_executor));
        let shutting_down: BTreeSet<ExecutorId> =
            executors.iter().filter(|(executor, _)| executor.is_draining).map(|(executor, _)| executor.id).collect();
        for group_state in groups.values_mut().filter(|group_state| shutting_down.contains(&group_state.executor)) {
            if group_state.mode == GroupMode::Takes {
                // The group releases its items on its own. If it got them again, they would wait for its end.
                group_state.mode = GroupMode::Keeps;
            }
        }
        Ok(())
    }

    /// Whether exactly `count` groups of a job work, none of them is new or about to leave, and each has taken its last order.
    pub(super) fn are_settled(&self, job: JobId, count: usize, now: Timestamp) -> bool {
        let groups = self.by_job.get(&job).into_iter().flat_map(BTreeMap::values);
        let groups_in_look: Vec<&GroupState> = groups.filter(|group_state| group_state.seen_at == now).collect();
        let is_settled = |group_state: &&GroupState| {
            let has_taken_order =
                group_state.last_order.as_ref().is_some_and(|order| order.is_taken(group_state.taken_order));
            let is_steady = !group_state.is_leaving && group_state.mode == GroupMode::Takes;
            has_taken_order && is_steady && !group_state.is_new(now)
        };
        groups_in_look.len() == count && groups_in_look.iter().all(is_settled)
    }

    /// Sends each group its order, if that is new or may have been lost.
    pub(super) fn send_orders(
        &mut self,
        shared: &Shared,
        snapshot: &PumpSnapshot<'_>,
        pump: &Pump,
        items: &BTreeMap<String, Item>,
    ) {
        let now = snapshot.now;
        let Some(groups) = self.by_job.get_mut(&snapshot.record.job) else { return };
        let mut orders: BTreeMap<ExecutorId, Vec<_>> = BTreeMap::new();
        for (owner, group_state) in groups.iter_mut().filter(|(_, group_state)| group_state.seen_at == now) {
            let content = OrderContent::of(*owner, items, group_state.is_leaving);
            if group_state
                .last_order
                .as_ref()
                .is_some_and(|sent| sent.makes_redundant(&content, group_state.taken_order, now))
            {
                continue;
            }
            self.last_order_number =
                next_number(snapshot.record.term, self.last_order_number, group_state.taken_order, now);
            let order_number = (snapshot.record.term, self.last_order_number);
            orders.entry(group_state.executor).or_default().push(content.order(*owner, order_number, pump, items));
            group_state.last_order = Some(SentOrder::new(content, order_number, now));
        }
        for (executor, orders) in orders {
            if let Some(stream) = shared.pumps.stream(executor) {
                // If the stream has no room for the message, the orders are sent again later.
                stream.send(message(shared.membership.token(), orders));
            }
        }
    }
}

/// Open groups that no executor has begun.
#[derive(Debug, Default)]
struct UnbegunGroups {
    /// How many groups no executor has.
    unsent_count: u32,
    /// How many groups each executor has without having begun them.
    sent_counts: BTreeMap<ExecutorId, u32>,
}

impl UnbegunGroups {
    /// `runs` are runs below the root runs of the job.
    fn of(job: JobId, runs: &[Run]) -> Self {
        let mut unbegun_groups = Self::default();
        for run in runs.iter().filter(|run| run.job == job && !run.is_root() && !run.status.is_terminal()) {
            match run.executor_id.filter(|_| run.status == RunStatus::Running) {
                Some(executor) if run.started_at.is_none() => {
                    *unbegun_groups.sent_counts.entry(executor).or_default() += 1;
                }
                Some(_) => {}
                None => unbegun_groups.unsent_count += 1,
            }
        }
        unbegun_groups
    }

    fn sent_to(&self, executor: ExecutorId) -> u32 {
        self.sent_counts.get(&executor).copied().unwrap_or_default()
    }
}

/// Makes groups leave executors that no longer take groups, as far as other executors have places for them. Also makes one group at a time leave an
/// executor that has at least two groups more than another executor.
fn choose_leaving_groups(
    groups: &mut BTreeMap<Owner, GroupState>,
    executors: &[(OnlineExecutor, Room)],
    (shared, snapshot): (&Shared, &PumpSnapshot<'_>),
    (unbegun_groups, per_executor): (&UnbegunGroups, Option<u32>),
) {
    let now = snapshot.now;
    for (executor, _) in executors.iter().filter(|(executor, _)| is_stopped(shared, snapshot, executor)) {
        // The groups of a stopped executor leave it whether or not another executor takes them.
        for group_state in
            groups.values_mut().filter(|group_state| group_state.seen_at == now && group_state.executor == executor.id)
        {
            (group_state.is_leaving, group_state.mode) = (true, GroupMode::Leaves);
        }
    }
    let count = |is_counted: &dyn Fn(&GroupState) -> bool| {
        let groups_in_look = groups.values().filter(|group_state| group_state.seen_at == now);
        u32::try_from(groups_in_look.filter(|group_state| is_counted(group_state)).count()).unwrap_or(u32::MAX)
    };
    let load = |(executor, room): &(OnlineExecutor, Room)| Load {
        groups: count(&|group_state| group_state.executor == executor.id && !group_state.is_leaving),
        room: *room,
    };
    let mut loads: Vec<Load> = executors.iter().map(load).collect();
    let free_places = |((executor, _), load): (&(OnlineExecutor, Room), &Load)| {
        let is_here = |group_state: &GroupState| group_state.executor == executor.id;
        let sent_count = unbegun_groups.sent_to(executor.id);
        let group_count = count(&is_here) + sent_count;
        let uncounted_count = count(&|group_state| is_here(group_state) && group_state.is_new(now)) + sent_count;
        let load = Load { groups: load.groups + sent_count, ..*load };
        free_place_count(executor, load, (group_count, uncounted_count), per_executor)
    };
    let free_count = executors.iter().zip(&loads).map(free_places).fold(0, u32::saturating_add);
    let mut leaving_count = count(&|group_state| group_state.is_leaving);
    while let Some(from) = executor_to_unload(&loads, per_executor) {
        let may_leave = if loads[from].room == Room::Off {
            // A group that leaves and finds no place would wait, while its executor could still run it.
            leaving_count + unbegun_groups.unsent_count < free_count
        } else {
            leaving_count == 0
        };
        if !may_leave {
            return;
        }
        let is_staying = |(_, group_state): &(&Owner, &mut GroupState)| {
            group_state.seen_at == now
                && group_state.executor == executors[from].0.id
                && group_state.mode == GroupMode::Takes
        };
        let Some((owner, group_state)) = groups.iter_mut().filter(is_staying).max_by_key(|(owner, _)| **owner) else {
            return;
        };
        tracing::info!(run = %owner.run, executor = executors[from].0.name, "a group of a pump leaves its executor");
        (group_state.is_leaving, group_state.mode) = (true, GroupMode::Leaves);
        loads[from].groups -= 1;
        leaving_count += 1;
    }
}

/// How many further groups of a job an executor has a place for. It has `group_count` groups of the job, those that leave included. Its last
/// heartbeat may not count `uncounted_count` of them.
fn free_place_count(
    executor: &OnlineExecutor,
    load: Load,
    (group_count, uncounted_count): (u32, u32),
    per_executor: Option<u32>,
) -> u32 {
    if load.room != Room::Open {
        return 0;
    }
    let used_slot_count = executor.running.saturating_add(uncounted_count).max(group_count);
    let free_slot_count = executor.slots.saturating_sub(used_slot_count);
    per_executor.map_or(free_slot_count, |max| free_slot_count.min(max.saturating_sub(load.groups)))
}

/// The executors that have the job's handler, sorted by id: their room, whether they are stopped, and the number of
/// their stream.
pub(super) fn executors(shared: &Shared, snapshot: &PumpSnapshot<'_>) -> Vec<(ExecutorId, Room, bool, Option<u64>)> {
    let executor_row = |(executor, room): (OnlineExecutor, Room)| {
        let stream = shared.pumps.stream(executor.id).map(|stream| stream.number);
        (executor.id, room, is_stopped(shared, snapshot, &executor), stream)
    };
    let mut executors: Vec<_> = capable_executors(shared, snapshot).into_iter().map(executor_row).collect();
    executors.sort_by_key(|(id, ..)| *id);
    executors
}

fn is_stopped(shared: &Shared, snapshot: &PumpSnapshot<'_>, executor: &OnlineExecutor) -> bool {
    shared.switches.of_executor(snapshot.definition.app, given_name(&executor.name)) == Switch::Stopped
}

/// The executors that have the job's handler, sorted by name, and whether they take groups.
fn capable_executors(shared: &Shared, snapshot: &PumpSnapshot<'_>) -> Vec<(OnlineExecutor, Room)> {
    let (job, app) = (snapshot.job(), snapshot.definition.app);
    let is_app_switched_on = shared.switches.of_app(app) == Switch::Active;
    let room = |executor: &OnlineExecutor| {
        let name = given_name(&executor.name);
        let is_switched_on = is_app_switched_on && shared.switches.of_executor(app, name) == Switch::Active;
        if executor.is_draining || !is_switched_on || !job.select.admits(name, &executor.labels) {
            return Room::Off;
        }
        if executor.running < executor.slots && !executor.is_avoided(snapshot.now) { Room::Open } else { Room::Full }
    };
    let has_handler = |executor: &OnlineExecutor| executor.app == app && executor.handlers.contains(&job.handler);
    shared.registry.all().into_iter().filter(has_handler).map(|executor| (executor.clone(), room(&executor))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a long period of heartbeats, an executor may report for a long time that it has a free slot, although a new group took it.
    #[test]
    fn a_group_is_new_until_a_heartbeat_has_counted_it() {
        for (heartbeat_ms, counted_ms) in [(500, 3_000), (2_000, 3_000), (10_000, 11_000)] {
            let at = |ms: i64| Timestamp::from_millis(1_000_000 + ms);
            let group_state = GroupState::new(None, ExecutorId::new(1), Duration::from_millis(heartbeat_ms), at(0));
            let is_new = [-1, 0, counted_ms - 1, counted_ms].map(|ms| group_state.is_new(at(ms)));
            assert_eq!(is_new, [false, true, true, false], "a heartbeat each {heartbeat_ms} ms");
        }
    }
}
