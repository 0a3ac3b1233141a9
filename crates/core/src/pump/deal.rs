//! Deals the items of a pump job to its groups, that is, decides which group owns which item: evenly, with as few
//! changes as possible.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::item::{Item, ItemChange, Owner};
use crate::time::Timestamp;

/// An item is kept for this long after it was removed from the definition. If it is added again in that time, it keeps its
/// epoch and its checkpoint.
const REMOVED_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

/// A group that an executor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its run and attempt.
    pub owner: Owner,
    /// What it does with items.
    pub mode: GroupMode,
}

/// What a group does with items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupMode {
    Takes,
    /// Its executor is not connected now: the group keeps its items, and gets no further ones.
    Keeps,
    /// The group leaves its executor, and releases all of its items.
    Leaves,
}

/// The settings of the definition that a deal must meet.
#[derive(Clone, Copy, Debug)]
pub struct DealSettings<'a> {
    /// The items of the definition: their names, each with its parameters as JSON text.
    pub names: &'a BTreeMap<String, String>,
    /// Maximum number of items of one group.
    pub per_group: Option<u32>,
    /// How long a group may take to release an item.
    pub hand_over: Duration,
    /// When the definition was saved.
    pub saved_at: Timestamp,
}

/// The changes after which each item of the definition has an owner, if the groups have room for all of them. The item counts
/// of the groups that take items then differ by at most one, and no item moves without need.
///
/// The changes are in the order in which they must be made. If a group must release an item, the group is only asked to. A later call
/// deals the item to another group, once the item has been released.
#[must_use]
pub fn deal(
    items: &BTreeMap<String, Item>,
    groups: &[Group],
    settings: DealSettings<'_>,
    now: Timestamp,
) -> Vec<(String, ItemChange)> {
    let mut changes = Vec::new();
    let group_indexes: HashMap<Owner, usize> =
        groups.iter().enumerate().map(|(index, group)| (group.owner, index)).collect();
    let mut kept_names: Vec<Vec<&str>> = vec![Vec::new(); groups.len()];
    let mut free_items: Vec<(&str, i64)> = Vec::new();
    for name in settings.names.keys().filter(|name| !items.contains_key(*name)) {
        changes.push((name.clone(), ItemChange::Add));
        free_items.push((name, 0));
    }
    for (name, item) in items {
        let is_defined = settings.names.contains_key(name);
        let mut change = |change| changes.push((name.clone(), change));
        let epoch = match item.owner {
            None => Some(item.epoch),
            Some(owner) => match group_indexes.get(&owner) {
                None => {
                    change(ItemChange::Free { owner });
                    Some(item.epoch)
                }
                Some(_) if item.asked_at.is_some_and(|asked_at| now >= asked_at + settings.hand_over) => {
                    change(ItemChange::Fence { epoch: item.epoch });
                    Some(item.epoch + 1)
                }
                Some(_) if item.asked_at.is_some() => None,
                Some(index) if groups[*index].mode != GroupMode::Leaves && is_defined => {
                    kept_names[*index].push(name);
                    None
                }
                Some(_) => {
                    change(ItemChange::AskToRelease { epoch: item.epoch });
                    None
                }
            },
        };
        match epoch {
            Some(epoch) if is_defined => free_items.push((name, epoch)),
            // `updated_at` alone does not suffice: in a pump that has not run for a long time, it was already old when the item was removed
            // from the definition.
            Some(_) if item.owner.is_none() && now >= item.updated_at.max(settings.saved_at) + REMOVED_AFTER => {
                change(ItemChange::Remove);
            }
            Some(_) | None => {}
        }
    }
    let quotas = quotas(groups, &kept_names, settings);
    for (index, names) in kept_names.iter().enumerate() {
        for name in names.iter().skip(quotas[index]) {
            changes.push(((*name).to_owned(), ItemChange::AskToRelease { epoch: items[*name].epoch }));
        }
    }
    let mut rooms =
        quotas.iter().zip(&kept_names).map(|(quota, names)| quota.saturating_sub(names.len())).collect::<Vec<_>>();
    let mut next_index = 0;
    for (name, epoch) in free_items {
        // The groups get items in turn, so that the first groups do not get all of their items long before the last ones.
        let Some(step) = (0..groups.len()).find(|step| rooms[(next_index + step) % groups.len()] > 0) else { break };
        let index = (next_index + step) % groups.len();
        rooms[index] -= 1;
        next_index = index + 1;
        changes.push((name.to_owned(), ItemChange::Deal { epoch, to: groups[index].owner }));
    }
    changes
}

/// How many items each group gets. The groups that have the most get the remainder, so that the fewest items move.
fn quotas(groups: &[Group], kept_names: &[Vec<&str>], settings: DealSettings<'_>) -> Vec<usize> {
    let indexes_of_mode = |mode| (0..groups.len()).filter(move |index| groups[*index].mode == mode);
    let mut takers: Vec<usize> = indexes_of_mode(GroupMode::Takes).collect();
    let mut quotas = vec![0; groups.len()];
    indexes_of_mode(GroupMode::Keeps).for_each(|index| quotas[index] = kept_names[index].len());
    if takers.is_empty() {
        return quotas;
    }
    let item_count = settings.names.len() - quotas.iter().sum::<usize>();
    let (per_taker, remainder) = (item_count / takers.len(), item_count % takers.len());
    let per_group = settings.per_group.map_or(usize::MAX, |per_group| usize::try_from(per_group).unwrap_or(usize::MAX));
    takers.sort_by_key(|index| std::cmp::Reverse(kept_names[*index].len()));
    for (rank, index) in takers.into_iter().enumerate() {
        quotas[index] = (per_taker + usize::from(rank < remainder)).min(per_group);
    }
    quotas
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::item::{Progress, apply};
    use super::*;
    use crate::id::RunId;
    use crate::pump::Counts;

    const NOW: Timestamp = Timestamp::from_secs(1_000);
    const HAND_OVER: Duration = Duration::from_secs(45);

    fn owner(run: i64) -> Owner {
        Owner { run: RunId::new(run), attempt: 1 }
    }

    fn settings(names: &BTreeMap<String, String>) -> DealSettings<'_> {
        DealSettings { names, per_group: None, hand_over: HAND_OVER, saved_at: NOW }
    }

    fn groups(runs: impl IntoIterator<Item = i64>) -> Vec<Group> {
        runs.into_iter().map(|run| Group { owner: owner(run), mode: GroupMode::Takes }).collect()
    }

    fn names(count: usize) -> BTreeMap<String, String> {
        (0..count).map(|item| (format!("{item:05}"), String::new())).collect()
    }

    /// Deals once, and returns how many items their owners were asked to release.
    fn step(items: &mut BTreeMap<String, Item>, groups: &[Group], names: &BTreeMap<String, String>) -> usize {
        let changes = deal(items, groups, settings(names), NOW);
        for (name, change) in &changes {
            assert!(apply(items, name, change, NOW), "{name}: {change:?}");
        }
        changes.iter().filter(|(_, change)| matches!(change, ItemChange::AskToRelease { .. })).count()
    }

    /// Each owner releases the items that it was asked to release.
    fn give_back(items: &mut BTreeMap<String, Item>) {
        for item in items.values_mut().filter(|item| item.asked_at.is_some()) {
            let Some(owner) = item.owner else { continue };
            let progress = Progress {
                owner,
                epoch: item.epoch,
                sequence: item.sequence + 1,
                counts: Counts::default(),
                per_minute: 0,
                oldest_at: None,
                is_dry: false,
                checkpoint: None,
                is_released: true,
            };
            let mut one = BTreeMap::from([(item.name.clone(), item.clone())]);
            assert!(apply(&mut one, &item.name.clone(), &ItemChange::Report(progress), NOW));
            *item = one.remove(&item.name).unwrap();
        }
    }

    fn loads(items: &BTreeMap<String, Item>, groups: &[Group]) -> Vec<usize> {
        groups.iter().map(|group| items.values().filter(|item| item.owner == Some(group.owner)).count()).collect()
    }

    proptest! {
        /// For any groups that join and leave: the numbers of items differ by at most one, and no more items move than necessary.
        #[test]
        fn items_are_shared_evenly_and_few_move(
            count in 1..200_usize,
            turns in prop::collection::vec(prop::collection::btree_set(0..12_i64, 1..12), 1..8),
        ) {
            let (names, mut items) = (names(count), BTreeMap::new());
            for runs in turns {
                let groups = groups(runs);
                let before = loads(&items, &groups);
                let asked = step(&mut items, &groups, &names);
                let (each, more) = (count / groups.len(), count % groups.len());
                let mut sorted = before.clone();
                sorted.sort_unstable_by(|a, b| b.cmp(a));
                let must_move: usize = sorted
                    .iter()
                    .enumerate()
                    .map(|(place, load)| load.saturating_sub(each + usize::from(place < more)))
                    .sum();
                prop_assert_eq!(asked, must_move, "loads {:?}", before);
                give_back(&mut items);
                prop_assert_eq!(step(&mut items, &groups, &names), 0);
                let loads = loads(&items, &groups);
                prop_assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1, "{:?}", loads);
                prop_assert_eq!(loads.iter().sum::<usize>(), count);
                prop_assert_eq!(deal(&items, &groups, settings(&names), NOW), vec![]);
            }
        }
    }

    #[test]
    fn an_item_that_is_not_given_back_is_fenced() {
        let (names, mut items) = (names(2), BTreeMap::new());
        step(&mut items, &groups([1]), &names);
        assert_eq!(step(&mut items, &groups([1, 2]), &names), 1);
        assert_eq!(step(&mut items, &groups([1, 2]), &names), 0, "it was asked for");
        let settings = settings(&names);
        assert_eq!(deal(&items, &groups([1, 2]), settings, NOW + HAND_OVER - Duration::from_millis(1)), []);
        let late = deal(&items, &groups([1, 2]), settings, NOW + HAND_OVER);
        let fenced = ("00001".to_owned(), ItemChange::Fence { epoch: 1 });
        assert_eq!(late, [fenced, ("00001".to_owned(), ItemChange::Deal { epoch: 2, to: owner(2) })]);
    }

    #[test]
    fn items_that_the_definition_has_no_longer_are_given_back_and_go_on_with_their_epoch_when_they_come_back() {
        let mut items = BTreeMap::new();
        step(&mut items, &groups([1]), &names(3));
        assert_eq!(step(&mut items, &groups([1]), &names(2)), 1);
        give_back(&mut items);
        step(&mut items, &groups([1]), &names(2));
        assert_eq!((items["00002"].owner, items["00002"].epoch), (None, 1));
        step(&mut items, &groups([1]), &names(3));
        assert_eq!((items["00002"].owner, items["00002"].epoch), (Some(owner(1)), 2));
    }

    #[test]
    fn items_that_the_definition_has_not_had_for_long_are_removed() {
        let (names, mut items) = (names(1), BTreeMap::new());
        step(&mut items, &groups([1]), &names);
        items.insert("old".to_owned(), Item::new("old", NOW));
        let settings = settings(&names);
        assert_eq!(deal(&items, &groups([1]), settings, NOW + REMOVED_AFTER - Duration::from_millis(1)), []);
        let removed = [("old".to_owned(), ItemChange::Remove)];
        assert_eq!(deal(&items, &groups([1]), settings, NOW + REMOVED_AFTER), removed);
    }

    #[test]
    fn an_item_that_rested_for_long_is_kept_when_the_definition_loses_it() {
        let (names, items) = (names(1), BTreeMap::from([("old".to_owned(), Item::new("old", NOW))]));
        let lost_at = NOW + REMOVED_AFTER;
        let settings = DealSettings { saved_at: lost_at, ..settings(&names) };
        let removed = ("old".to_owned(), ItemChange::Remove);
        let is_removed = |now| deal(&items, &groups([1]), settings, now).contains(&removed);
        assert!(!is_removed(lost_at), "it keeps its epoch and its checkpoint");
        assert!(is_removed(lost_at + REMOVED_AFTER));
    }

    #[test]
    fn a_group_has_at_most_as_many_as_it_may() {
        let (names, mut items) = (names(10), BTreeMap::new());
        let settings = DealSettings { per_group: Some(3), ..settings(&names) };
        for (name, change) in deal(&items, &groups([1, 2]), settings, NOW) {
            apply(&mut items, &name, &change, NOW);
        }
        assert_eq!(loads(&items, &groups([1, 2])), [3, 3]);
    }

    #[test]
    fn a_group_that_leaves_gives_everything_back_and_gets_nothing() {
        let (names, mut items) = (names(4), BTreeMap::new());
        step(&mut items, &groups([1, 2]), &names);
        let mut leaving = groups([1, 2]);
        leaving[0].mode = GroupMode::Leaves;
        assert_eq!(step(&mut items, &leaving, &names), 2);
        give_back(&mut items);
        step(&mut items, &leaving, &names);
        assert_eq!(loads(&items, &leaving), [0, 4]);
    }

    #[test]
    fn a_group_without_a_connection_keeps_its_items_and_gets_none() {
        let (names, mut items) = (names(6), BTreeMap::new());
        step(&mut items, &groups([1, 2]), &names);
        let mut some = groups([1, 2, 3]);
        some[0].mode = GroupMode::Keeps;
        assert_eq!(step(&mut items, &some, &names), 1);
        give_back(&mut items);
        step(&mut items, &some, &names);
        assert_eq!(loads(&items, &some), [3, 2, 1]);
    }

    #[test]
    fn many_items_are_dealt_at_once() {
        let (names, mut items) = (names(10_000), BTreeMap::new());
        let groups = groups(0..200);
        step(&mut items, &groups, &names);
        assert!(loads(&items, &groups).iter().all(|load| *load == 50));
    }
}
