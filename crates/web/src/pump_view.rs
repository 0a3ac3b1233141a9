//! The current state of a pump job, for the API and for pages: its root run, the groups below it, and the items of each group.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use rondel_core::access::Permission;
use rondel_core::disclosure::params_for_viewer;
use rondel_core::job::SHARD_COUNT_MAX;
use rondel_core::pump::{Item, ItemState, Pump, Totals};
use rondel_core::run::ROOT_SHARD;
use rondel_core::{Run, RunId, Timestamp};
use rondel_store::catalog::JobRecord;
use serde_json::Value;

use crate::call::Call;
use crate::problem::Problem;

/// How many of the newest root runs are searched for one with groups.
const SEARCHED_ROOT_COUNT: u32 = 8;

/// The current state of a pump job.
#[derive(Debug)]
pub(crate) struct PumpView {
    /// The oldest open root run with groups, else the oldest open root run, else the newest one. Chosen from those of the newest
    /// [`SEARCHED_ROOT_COUNT`] root runs that the caller may see; `None` if there is none.
    pub(crate) root: Option<RootView>,
    /// The groups of the root run, in the order of their indexes.
    pub(crate) groups: Vec<GroupView>,
    /// The items in the order of their names; numbers in the order of their values.
    pub(crate) items: Vec<ItemView>,
    /// The totals of the items.
    pub(crate) totals: Totals,
}

/// The root run, which stands for all groups.
#[derive(Debug)]
pub(crate) struct RootView {
    pub(crate) run: Run,
    /// When the job's `until` ends the run. `None` if no instant ends the run, or if the run has ended.
    pub(crate) ends_at: Option<Timestamp>,
}

/// A group: one long run below the root run.
#[derive(Debug)]
pub(crate) struct GroupView {
    pub(crate) run: Run,
    pub(crate) item_count: u32,
    /// Rows that its items executed in the last minute.
    pub(crate) per_minute: u64,
}

/// An item, and the group that owns it.
#[derive(Debug)]
pub(crate) struct ItemView {
    pub(crate) item: Item,
    /// The index of the group that owns the item.
    pub(crate) group: Option<i32>,
    pub(crate) executor: Option<String>,
}

impl PumpView {
    /// At most `limit` items in these states, beginning after the item `after_name`. An empty list of states means all.
    pub(crate) fn page(&self, after_name: Option<&str>, states: &[ItemState], limit: u32) -> Vec<&ItemView> {
        let is_after = |view: &&ItemView| {
            after_name.is_none_or(|after_name| compare_names(&view.item.name, after_name) == Ordering::Greater)
        };
        let is_asked_for = |view: &&ItemView| states.is_empty() || states.contains(&view.item.state());
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.items.iter().filter(is_after).filter(is_asked_for).take(limit).collect()
    }
}

impl ItemView {
    /// The progress that the item's owners have stored. Like the parameters of runs, it may contain secrets, so likely secrets are shown
    /// only to callers who may edit the app.
    pub(crate) fn checkpoint<Q>(&self, call: &Call<Q>, record: &JobRecord) -> Option<String> {
        let text = self.item.checkpoint.clone()?;
        if call.caller.rights.allow(Permission::Edit, record.namespace, Some(record.app)) {
            return Some(text);
        }
        let value = serde_json::from_str::<Value>(&text).unwrap_or(Value::String(text));
        Some(match params_for_viewer(value) {
            Value::String(text) => text,
            value => value.to_string(),
        })
    }
}

/// Reads the state of a pump job; `None` for jobs of other kinds.
pub(crate) async fn read_pump<Q>(call: &Call<Q>, record: &JobRecord) -> Result<Option<PumpView>, Problem> {
    let job = record.spec.compile().ok();
    let Some(pump) = job.as_ref().and_then(|job| job.pump.as_deref()) else { return Ok(None) };
    let store = call.engine().store();
    // Runs are read before items: a run that becomes the owner of an item in between is not among them, and is looked up below.
    let mut roots = store.pump_roots(record.id, call.engine().now(), SEARCHED_ROOT_COUNT).await?;
    // Runs from before the job moved to its current app belong to its previous app.
    roots.retain(|run| call.may_view(run.app));
    let root = root_run(roots);
    let groups = match &root {
        Some(root) => group_runs(call, root).await?,
        None => Vec::new(),
    };
    let items = with_unsaved(store.pump_items(record.id).await?, pump, record.updated_at);
    let items = with_groups(call, items, &groups).await?;
    Ok(Some(PumpView {
        totals: Totals::of(items.iter().map(|view| &view.item)),
        groups: with_items(groups, &items),
        root: root.map(|run| root_view(run, pump)),
        items,
    }))
}

fn root_view(run: Run, pump: &Pump) -> RootView {
    let ends_at = pump.until.end_of(run.fire_at).filter(|_| !run.status.is_terminal());
    RootView { run: run.for_reader(), ends_at }
}

/// The root run to show. A root run that waits for another one to end has no groups yet.
fn root_run(mut newest_first: Vec<Run>) -> Option<Run> {
    let has_groups = |run: &Run| !run.status.is_terminal() && run.shard_total.is_some();
    let is_open = |run: &Run| !run.status.is_terminal();
    let index = newest_first.iter().rposition(has_groups).or_else(|| newest_first.iter().rposition(is_open));
    (!newest_first.is_empty()).then(|| newest_first.swap_remove(index.unwrap_or_default()))
}

async fn group_runs<Q>(call: &Call<Q>, root: &Run) -> Result<Vec<Run>, Problem> {
    let mut runs = call.engine().store().runs_below(&[root.id], SHARD_COUNT_MAX).await?;
    // Runs of other jobs, and runs repeated by hand, may be below the root run too.
    runs.retain(|run| run.job == root.job && run.shard_index != ROOT_SHARD && run.fire_at == root.fire_at);
    runs.sort_by_key(|run| run.shard_index);
    call.conceal(&mut runs).await?;
    Ok(runs.into_iter().map(Run::for_reader).collect())
}

/// Adds the items of the definition that no server has stored yet, as free ones. Items that were removed from the definition remain
/// stored for a while, in case they are added again. They are shown only while a group owns them.
fn with_unsaved(mut items: Vec<Item>, pump: &Pump, saved_at: Timestamp) -> Vec<Item> {
    items.retain(|item| item.owner.is_some() || pump.items.contains_key(&item.name));
    let saved_names: BTreeSet<String> = items.iter().map(|item| item.name.clone()).collect();
    let unsaved_names = pump.items.keys().filter(|name| !saved_names.contains(*name));
    items.extend(unsaved_names.map(|name| Item::new(name, saved_at)));
    items.sort_by(|one, other| compare_names(&one.name, &other.name));
    items
}

async fn with_groups<Q>(call: &Call<Q>, items: Vec<Item>, groups: &[Run]) -> Result<Vec<ItemView>, Problem> {
    let mut owners: HashMap<RunId, Run> = groups.iter().map(|run| (run.id, run.clone())).collect();
    let other_owners: BTreeSet<RunId> = items
        .iter()
        .filter_map(|item| item.owner)
        .map(|owner| owner.run)
        .filter(|run| !owners.contains_key(run))
        .collect();
    if !other_owners.is_empty() {
        let runs = call.engine().store().runs(&other_owners.into_iter().collect::<Vec<_>>()).await?;
        let visible_runs = runs.into_iter().filter(|run| call.may_view(run.app));
        owners.extend(visible_runs.map(|run| (run.id, run.for_reader())));
    }
    let with_group = |item: Item| {
        let run = item.owner.and_then(|owner| owners.get(&owner.run));
        ItemView { group: run.map(|run| run.shard_index), executor: run.and_then(|run| run.executor.clone()), item }
    };
    Ok(items.into_iter().map(with_group).collect())
}

fn with_items(runs: Vec<Run>, items: &[ItemView]) -> Vec<GroupView> {
    let mut sums_by_run: BTreeMap<RunId, (u32, u64)> = BTreeMap::new();
    for (owner, item) in items.iter().filter_map(|view| Some((view.item.owner?, &view.item))) {
        let (count, per_minute) = sums_by_run.entry(owner.run).or_default();
        *count += 1;
        *per_minute += u64::from(item.per_minute);
    }
    let with_sums = |run: Run| {
        let (item_count, per_minute) = sums_by_run.get(&run.id).copied().unwrap_or_default();
        GroupView { run, item_count, per_minute }
    };
    runs.into_iter().map(with_sums).collect()
}

/// Compares names. Numbers are in the order of their values, and before all other names.
fn compare_names(left: &str, right: &str) -> Ordering {
    let length_key = |name: &str| if name.bytes().all(|byte| byte.is_ascii_digit()) { name.len() } else { usize::MAX };
    length_key(left).cmp(&length_key(right)).then_with(|| left.cmp(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_the_order_of_their_values() {
        let mut names = ["eu", "10", "2", "a1", "0", "1"];
        names.sort_by(|one, other| compare_names(one, other));
        assert_eq!(names, ["0", "1", "2", "10", "a1", "eu"]);
    }
}
