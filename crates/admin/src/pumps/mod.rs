//! Pump jobs: begins and ends their root runs, moves their groups between executors, and deals (assigns) their items to the groups.
//!
//! The groups are runs like any other runs: the dispatcher sends them, finds them again and ends them. This loop reads the rows of the jobs whose
//! home is this node, decides with [`rondel_core::pump`], writes the changes of items, and then sends orders to executors. The loop can read again
//! everything that it has in memory, so the next look repairs the effects of a lost order or a dead server. A job with nothing in progress
//! [rests](rest) until a change is noticed that may concern it.

mod board;
mod groups;
mod orders;
mod progress;
mod rest;
mod roots;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rondel_core::pump::{
    DealSettings, Item, ItemChange, Owner, Pump, PumpJobState, Root, RootStep, Totals, deal, next_step,
};
use rondel_core::{ExecutorId, Job, JobId, Run, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::StoreError;
use rondel_store::pumps::{PumpJob, apply_change};
use tokio_util::sync::CancellationToken;

pub(crate) use self::board::PumpBoard;
use self::board::Report;
use self::groups::Groups;
use self::rest::{PumpInputs, Rest, Rests};
use crate::background::{Background, TickError};
use crate::definitions::CompiledDefinition;
use crate::node::Node;

const PERIOD: Duration = Duration::from_secs(1);
/// How long reports are gathered, to be written together.
const GATHER_TIME: Duration = Duration::from_millis(200);
/// Maximum number of root runs of a job that a look reads: an open run, a run that waits behind it, and some that have ended.
const ROOT_COUNT: u32 = 8;

pub(crate) struct PumpLoop {
    node: Node,
    groups: Groups,
    rests: Rests,
    /// The totals of the items of each job that this look has handled.
    totals: BTreeMap<JobId, Totals>,
}

/// The definitions of a job's root runs, keyed by their versions.
type RootDefinitions = BTreeMap<i64, Arc<CompiledDefinition>>;

/// A pump job in one look.
struct PumpSnapshot<'a> {
    record: PumpJob,
    definition: &'a Arc<CompiledDefinition>,
    /// Whether a maintenance window of the job is under way. Also true while the windows are not known.
    is_in_maintenance: bool,
    now: Timestamp,
}

impl PumpSnapshot<'_> {
    fn job(&self) -> &Job {
        &self.definition.job
    }

    fn next_step(&self, pump: &Pump, newest_root: Option<Root>, is_dry: bool) -> RootStep {
        let state = PumpJobState {
            version: self.record.version,
            saved_at: self.record.saved_at,
            anchor: self.definition.anchor,
            is_in_maintenance: self.is_in_maintenance,
        };
        next_step((self.job(), pump), state, newest_root, is_dry, self.now)
    }
}

impl Background for PumpLoop {
    const NAME: &'static str = "pumps";
    const ACTION: &'static str = "deal the items of pump jobs";

    fn period(&self) -> Option<Duration> {
        Some(PERIOD)
    }

    async fn wait_until_woken(&mut self) {
        self.node.shared().pumps.wait_for_news().await;
        tokio::time::sleep(GATHER_TIME).await;
    }

    async fn tick(&mut self, _stop: &CancellationToken) -> Result<u64, TickError> {
        Ok(self.look().await?)
    }
}

impl PumpLoop {
    pub(crate) fn new(node: Node) -> Self {
        Self { node, groups: Groups::default(), rests: Rests::default(), totals: BTreeMap::new() }
    }

    /// Looks at all pump jobs, and returns how many changes were made. If one job fails, the others are still handled, and the last error is
    /// returned.
    async fn look(&mut self) -> Result<u64, StoreError> {
        let shared = Arc::clone(self.node.shared());
        if !shared.membership.holds_lease() || !shared.has_begun_adoption() {
            // Groups report a change only once, so the reports stay here until the next lease.
            return Ok(0);
        }
        // Groups report a change only once, so reports are taken only after the jobs that they concern were read.
        let records = shared.store.pump_jobs().await?;
        let jobs: BTreeSet<JobId> = records.iter().map(|record| record.job).collect();
        self.groups.retain_jobs(&jobs);
        self.rests.retain_jobs(&jobs);
        if records.is_empty() {
            drop(shared.pumps.take_news());
            shared.pumps.show(BTreeMap::new());
            return Ok(0);
        }
        let windows = shared.maintenance.fresh_windows(shared.store.as_ref(), &shared.clock).await?;
        let now = shared.clock.now();
        let living_records = records.iter().filter(|record| !record.is_deleted);
        let definitions = self.node.definitions(living_records.map(|record| (record.job, record.version))).await?;
        let (mut reports, jobs_with_ends) = shared.pumps.take_news();
        jobs_with_ends.iter().for_each(|job| self.rests.end(*job));
        let (own_node, claimable_nodes) = (self.node.token().node, shared.membership.claimable_homes(now));
        let is_in_maintenance = |definition: &CompiledDefinition| match &windows {
            Some(windows) => windows.of(definition.namespace, definition.app, now).iter().any(|window| window.has(now)),
            None => true,
        };
        let (mut count, mut last_error) = (0, None);
        for record in records {
            let result = match definitions.get(&(record.job, record.version)) {
                _ if record.is_deleted => self.end_deleted(record).await,
                Some(definition) if record.home == own_node => {
                    let is_in_maintenance = is_in_maintenance(definition);
                    let snapshot = PumpSnapshot { record, definition, is_in_maintenance, now };
                    let inputs = self.read_inputs(&snapshot);
                    match reports.remove(&record.job) {
                        None if self.continues_to_rest(&snapshot, &inputs) => Ok(0),
                        reports => self.handle_job(&snapshot, inputs, reports.unwrap_or_default()).await,
                    }
                }
                Some(definition) if claimable_nodes.contains(&record.home) => {
                    let is_in_maintenance = is_in_maintenance(definition);
                    self.begin_first(&PumpSnapshot { record, definition, is_in_maintenance, now }).await
                }
                _ => Ok(0),
            };
            match result {
                Ok(change_count) => count += change_count,
                Err(error) => last_error = Some(error),
            }
        }
        shared.pumps.show(std::mem::take(&mut self.totals));
        last_error.map_or(Ok(count), Err)
    }

    fn read_inputs(&self, snapshot: &PumpSnapshot<'_>) -> PumpInputs {
        let executors = groups::executors(self.node.shared(), snapshot);
        PumpInputs { record: snapshot.record, lease: self.node.token(), executors }
    }

    /// Whether a job continues to rest.
    fn continues_to_rest(&mut self, snapshot: &PumpSnapshot<'_>, inputs: &PumpInputs) -> bool {
        let Some(pump) = &snapshot.job().pump else { return false };
        // A pump is dry if its groups find no more rows. This need not be checked here: either the pump was dry when its rest began, or the
        // report that it is dry ends the rest.
        let step = |root| snapshot.next_step(pump, root, false);
        let Some(totals) = self.rests.continue_rest(inputs, snapshot.now, step) else { return false };
        self.totals.insert(snapshot.record.job, totals);
        true
    }

    /// Handles a job whose home is this node.
    async fn handle_job(
        &mut self,
        snapshot: &PumpSnapshot<'_>,
        inputs: PumpInputs,
        reports: BTreeMap<(ExecutorId, Owner), Report>,
    ) -> Result<u64, StoreError> {
        let shared = Arc::clone(self.node.shared());
        let job = snapshot.record.job;
        self.rests.end(job);
        let (mut items, mut count) = match self.write_reports(snapshot, &reports).await {
            Ok(written) => written,
            Err(error) => {
                shared.pumps.put_back(BTreeMap::from([(job, reports)]));
                return Err(error);
            }
        };
        let unknown_reports = self.groups.unknown_reports(job, reports);
        shared.pumps.put_back(BTreeMap::from([(job, unknown_reports)]));
        let Some(pump) = snapshot.job().pump.clone() else {
            return Ok(count + self.end_as_no_pump(snapshot, items.len()).await?);
        };
        let roots = shared.store.pump_roots(job, snapshot.now, ROOT_COUNT).await?;
        let definitions = self.root_definitions(&roots).await?;
        count += self.step_roots(snapshot, &pump, &roots, (&items, &definitions)).await?;
        let pump_roots: Vec<&Run> = roots.iter().filter(|run| is_of_pump(run, &definitions)).collect();
        let open_roots: Vec<&Run> = pump_roots.iter().copied().filter(|run| !run.status.is_terminal()).collect();
        // The groups of a root run work under the definition of that run until they end.
        let working_root = open_roots.iter().rev().find(|run| run.shard_total.is_some());
        let definition = working_root.and_then(|run| definitions.get(&run.job_version)).unwrap_or(snapshot.definition);
        let working_pump = definition.job.pump.clone().unwrap_or_else(|| Arc::clone(&pump));
        let (record, is_in_maintenance, now) = (snapshot.record, snapshot.is_in_maintenance, snapshot.now);
        let working_snapshot = PumpSnapshot { record, definition, is_in_maintenance, now };
        self.groups.read_groups(&shared, &working_snapshot, &working_pump, &open_roots).await?;
        count += self.write_late_reports(snapshot, &mut items).await?;
        let deal_settings = DealSettings {
            names: &working_pump.items,
            per_group: working_pump.items_per_group,
            hand_over: working_pump.limits.hand_over,
            saved_at: snapshot.record.saved_at,
        };
        let changes = deal(&items, &self.groups.of(job, snapshot.now), deal_settings, snapshot.now);
        let changes = apply_mutants(changes, &items);
        let is_dealt = changes.is_empty() && items.values().all(|item| item.asked_at.is_none());
        count += self.write_changes(snapshot, &mut items, changes).await?;
        self.groups.send_orders(&shared, snapshot, &working_pump, &items);
        let is_shown = |item: &&Item| item.owner.is_some() || pump.items.contains_key(&item.name);
        // Counters must not fall when an item is removed from the definition.
        let totals = Totals::of(items.values().filter(is_shown)).with_counts_of(items.values());
        self.totals.insert(job, totals);
        if is_dealt && works_alike(definition, snapshot.definition) && self.are_settled(job, &open_roots, snapshot.now)
        {
            let root = open_roots.first().or(pump_roots.first()).copied().map(roots::root);
            self.rests.begin(Rest { since: snapshot.now, inputs, root, totals });
        }
        Ok(count)
    }

    /// The definitions of root runs. A run that a user triggered may continue under an earlier definition while its job is paused, and a run of a
    /// version that is no pump job continues after each edit.
    async fn root_definitions(&self, roots: &[Run]) -> Result<RootDefinitions, StoreError> {
        let keys: BTreeSet<(JobId, i64)> = roots.iter().map(|run| (run.job, run.job_version)).collect();
        let definitions = self.node.definitions(keys).await?;
        Ok(definitions.into_values().map(|definition| (definition.version, definition)).collect())
    }

    /// Whether the open root run, if there is one, has all of its groups, and nothing is about to change.
    fn are_settled(&self, job: JobId, open_roots: &[&Run], now: Timestamp) -> bool {
        let count = match open_roots {
            [] => Some(0),
            [root] if root.cancel_by.is_none() => root.shard_total.and_then(|total| usize::try_from(total).ok()),
            _ => None,
        };
        count.is_some_and(|count| self.groups.are_settled(job, count, now))
    }

    /// Writes the changes that groups have reported for the items of a job. Returns the items, and how many changes were applied.
    async fn write_reports(
        &mut self,
        snapshot: &PumpSnapshot<'_>,
        reports: &BTreeMap<(ExecutorId, Owner), Report>,
    ) -> Result<(BTreeMap<String, Item>, u64), StoreError> {
        let items = self.node.store().pump_items(snapshot.record.job).await?;
        let mut items: BTreeMap<String, Item> = items.into_iter().map(|item| (item.name.clone(), item)).collect();
        let reported_changes = self.groups.reported_changes(snapshot.record.job, reports);
        let count = self.write_changes(snapshot, &mut items, reported_changes).await?;
        Ok((items, count))
    }

    /// Writes the changes that groups have reported since this look began. A group that has ended has sent its last counts by now. These counts are
    /// written before the group's items are dealt to other groups, because they would be refused after that.
    async fn write_late_reports(
        &mut self,
        snapshot: &PumpSnapshot<'_>,
        items: &mut BTreeMap<String, Item>,
    ) -> Result<u64, StoreError> {
        let job = snapshot.record.job;
        let shared = Arc::clone(self.node.shared());
        let reports = shared.pumps.take_of(job);
        let reported_changes = self.groups.reported_changes(job, &reports);
        let result = self.write_changes(snapshot, items, reported_changes).await;
        let unwritten_reports = match result {
            // An executor that connects may report before its groups are read: reports of unknown groups wait for one more look.
            Ok(_) => {
                self.groups.unknown_reports(job, reports).into_iter().filter_map(Report::keep_for_next_look).collect()
            }
            Err(_) => reports,
        };
        shared.pumps.put_back(BTreeMap::from([(job, unwritten_reports)]));
        result
    }

    /// Writes changes of items to the store, and updates `items` to match the rows. Returns how many changes were applied.
    async fn write_changes(
        &self,
        snapshot: &PumpSnapshot<'_>,
        items: &mut BTreeMap<String, Item>,
        changes: Vec<(String, ItemChange)>,
    ) -> Result<u64, StoreError> {
        let mut items_after = items.clone();
        // A report has the complete state of a group, so a change without effect is not written.
        let changes: Vec<_> = changes
            .into_iter()
            .filter(|(name, change)| apply_change(&mut items_after, name, change, snapshot.now))
            .collect();
        if changes.is_empty() {
            return Ok(0);
        }
        let (store, token) = (self.node.store(), self.node.token());
        let write_outcome = store.change_items(token, snapshot.record.job, &changes, snapshot.now).await?;
        let has_applied_all = !write_outcome.is_refused
            && usize::try_from(write_outcome.applied_count).is_ok_and(|applied_count| applied_count == changes.len());
        *items = if has_applied_all {
            items_after
        } else {
            // Another writer was faster: the rows have the current state.
            let items = store.pump_items(snapshot.record.job).await?;
            items.into_iter().map(|item| (item.name.clone(), item)).collect()
        };
        Ok(write_outcome.applied_count)
    }
}

/// Whether a root run is a run of the pump. A root run with shards, under a version of the job that is no pump job, is not. A run whose definition
/// cannot be read counts as a run of the pump.
fn is_of_pump(root: &Run, definitions: &RootDefinitions) -> bool {
    definitions.get(&root.job_version).is_none_or(|definition| definition.job.pump.is_some())
}

/// Whether groups work alike under two definitions of a job. A rest knows only the newest definition.
fn works_alike(earlier: &CompiledDefinition, later: &CompiledDefinition) -> bool {
    let (job, other_job) = (&earlier.job, &later.job);
    let is_alike = || job.handler == other_job.handler && job.select == other_job.select && job.pump == other_job.pump;
    earlier.version == later.version || (earlier.app == later.app && is_alike())
}

/// Returns the changes unchanged, unless a mutant removes one of their safeguards.
fn apply_mutants(changes: Vec<(String, ItemChange)>, items: &BTreeMap<String, Item>) -> Vec<(String, ItemChange)> {
    let weakened_change = |(name, change): (String, ItemChange)| match change {
        ItemChange::Free { .. } if mutant::on(Mutant::EndedAttemptsKeepItems) => None,
        ItemChange::AskToRelease { .. } if mutant::on(Mutant::DealtBeforeReleased) => {
            let owner = items.get(&name).and_then(|item| item.owner)?;
            Some((name, ItemChange::Free { owner }))
        }
        change => Some((name, change)),
    };
    changes.into_iter().filter_map(weakened_change).collect()
}

/// Whether each item of the definition is owned by a group of this root run, and that group has found no rows for the item. The owner is checked
/// because an item may still be dry from the previous root run, and owned by one of its groups.
fn is_dry(pump: &Pump, items: &BTreeMap<String, Item>, is_of_root: impl Fn(Owner) -> bool) -> bool {
    let has_owner = |item: &Item| item.owner.is_some_and(&is_of_root) || mutant::on(Mutant::DryWithoutOwner);
    let is_dry = |item: &Item| has_owner(item) && item.asked_at.is_none() && item.is_dry;
    pump.items.keys().all(|name| items.get(name).is_some_and(is_dry))
}
