//! Handles the orders of the server, a stop, and the release of items. An order lists the items that the group holds
//! from then on.

use std::collections::BTreeSet;
use std::time::Instant;

use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1::{PumpItem, PumpOrder};

use super::holding::{Holding, Phase};
use super::{Fetch, Group, Task};

// Orders and stopping.
impl<R: Clone> Group<R> {
    /// Takes an order, and returns whether it is new. A repeated or older order is only answered by a report.
    pub fn order(&mut self, order: PumpOrder, now: Instant) -> bool {
        let number = Some((order.term, order.number));
        // An older order is answered too: a server whose clock stepped back learns from the report which number to
        // continue from.
        self.is_changed = true;
        if number < self.last_order && !mutant::on(Mutant::OlderOrderIsTaken) {
            return false;
        }
        if number == self.last_order {
            return false;
        }
        self.last_order = number;
        let named_items: BTreeSet<&str> = order.items.iter().map(|item| item.name.as_str()).collect();
        let missing_items: Vec<String> =
            self.items.keys().filter(|name| !named_items.contains(name.as_str())).cloned().collect();
        missing_items.iter().for_each(|name| self.drop_item(name));
        for item in order.items {
            self.take_item(item, now);
        }
        if order.r#yield {
            self.yield_items(now);
        }
        self.abort_useless_fetch();
        self.release_finished_items();
        true
    }

    /// Releases every item once its fetched rows are executed, and then ends the group.
    pub fn yield_items(&mut self, now: Instant) {
        self.is_ending = true;
        let names: Vec<String> = self.items.keys().cloned().collect();
        names.iter().for_each(|name| self.begin_release(name, now));
        self.release_finished_items();
    }

    /// Releases every item. Rows in execution continue until `abort_at`; if that is `None`, to their end. Rows that are
    /// queued or wait for a retry are dropped.
    pub fn stop(&mut self, abort_at: Option<Instant>) {
        self.is_ending = true;
        self.abort_fetch();
        let names: Vec<String> = self.items.keys().cloned().collect();
        for name in names {
            let Some(holding) = self.items.get_mut(&name) else { continue };
            match &mut holding.phase {
                Phase::Aborting | Phase::Released => continue,
                Phase::Releasing { abort_at: earliest_abort_at } => {
                    *earliest_abort_at = (*earliest_abort_at).into_iter().chain(abort_at).min();
                }
                phase @ Phase::Held => *phase = Phase::Releasing { abort_at },
            }
            self.rows.discard(&name);
            self.releasing.insert(name);
        }
        self.is_changed = true;
        self.release_finished_items();
    }

    fn take_item(&mut self, item: PumpItem, now: Instant) {
        let PumpItem { name, epoch, params, checkpoint, release } = item;
        let was_dropped = self.dropped_epochs.get(&name).is_some_and(|dropped_epoch| epoch <= *dropped_epoch);
        if was_dropped && !mutant::on(Mutant::ReleasedIsTakenAgain) {
            return;
        }
        let held_epoch = self.items.get(&name).map(|holding| holding.epoch);
        if held_epoch.is_some_and(|held_epoch| epoch < held_epoch) {
            return;
        }
        if held_epoch != Some(epoch) {
            self.drop_item(&name);
            self.items.insert(name.clone(), Holding::new(epoch, params, checkpoint));
            if self.failed_fetch_count == 0 {
                // The group may be waiting because its other items had no rows. The new item ends that wait.
                self.fetch_after = None;
            }
        }
        // A group that ends is already releasing the items that it had. If the server asks for one of those, only the
        // time limit of its release changes.
        if release || (self.is_ending && held_epoch != Some(epoch)) {
            self.begin_release(&name, now);
        }
    }

    /// Drops an item with all its rows.
    fn drop_item(&mut self, name: &str) {
        let Some(holding) = self.items.remove(name) else { return };
        let dropped_epoch = self.dropped_epochs.entry(name.to_owned()).or_insert(holding.epoch);
        *dropped_epoch = (*dropped_epoch).max(holding.epoch);
        self.releasing.remove(name);
        self.rows.discard(name);
        self.rows.wake_resting(name);
        if !self.is_ending {
            // Forgets the item's failed rows: its next owner selects them again, so this group does not end as unfinished because of them.
            self.rows.retain_failed(|(item, _)| item != name);
        }
        self.abort_executions(name);
    }

    fn begin_release(&mut self, name: &str, now: Instant) {
        let Some(holding) = self.items.get_mut(name) else { return };
        let is_releasing_without_limit = holding.phase == Phase::Releasing { abort_at: None };
        if holding.phase != Phase::Held && !is_releasing_without_limit {
            return;
        }
        holding.phase = Phase::Releasing { abort_at: Some(now + self.limits.abort_after()) };
        self.rows.discard_retries(name);
        self.releasing.insert(name.to_owned());
        self.is_changed = true;
    }

    /// Aborts the work on items whose release has taken too long.
    pub(super) fn expire(&mut self, now: Instant) {
        let is_overdue = |name: &&String| {
            let phase = self.items.get(*name).map(|holding| holding.phase);
            matches!(phase, Some(Phase::Releasing { abort_at: Some(at) }) if at <= now)
        };
        let overdue_items: Vec<String> = self.releasing.iter().filter(is_overdue).cloned().collect();
        for name in &overdue_items {
            let Some(holding) = self.items.get_mut(name) else { continue };
            holding.phase = Phase::Aborting;
            let is_requested = |fetch: &Fetch| fetch.requested_epochs.get(name) == Some(&holding.epoch);
            if self.fetch.as_ref().is_some_and(is_requested) {
                self.abort_fetch();
            }
            self.rows.discard(name);
            self.abort_executions(name);
        }
        if !overdue_items.is_empty() {
            self.release_finished_items();
        }
    }

    fn abort_executions(&mut self, name: &str) {
        self.tasks_to_abort.extend(self.rows.abort(name).into_iter().map(Task::Execution));
    }

    fn abort_fetch(&mut self) {
        if let Some(fetch) = &mut self.fetch
            && !std::mem::replace(&mut fetch.is_aborting, true)
        {
            self.tasks_to_abort.push_back(Task::Fetch);
        }
    }

    /// Aborts a select if none of its items is held any more.
    fn abort_useless_fetch(&mut self) {
        let Some(fetch) = &self.fetch else { return };
        let is_held = |(name, epoch): (&String, &i64)| self.items.get(name).is_some_and(|item| item.epoch == *epoch);
        if !fetch.requested_epochs.iter().any(is_held) {
            self.abort_fetch();
        }
    }

    /// Releases the items that have no work left.
    pub(super) fn release_finished_items(&mut self) {
        let is_requested =
            |name: &String, epoch| self.fetch.as_ref().is_some_and(|f| f.requested_epochs.get(name) == Some(&epoch));
        let is_free = |name: &&String| {
            let epoch = self.items.get(*name).map(|holding| holding.epoch);
            let has_no_rows = !self.rows.has_rows_of(name) || mutant::on(Mutant::ReleasedWithRowsInWork);
            epoch.is_some_and(|epoch| !is_requested(name, epoch) && has_no_rows)
        };
        let free_items: Vec<String> = self.releasing.iter().filter(is_free).cloned().collect();
        for name in free_items {
            self.releasing.remove(&name);
            let Some(holding) = self.items.get_mut(&name) else { continue };
            holding.phase = Phase::Released;
            self.dropped_epochs.insert(name, holding.epoch);
            (self.is_changed, self.is_urgent) = (true, true);
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.is_ending
            && self.fetch.is_none()
            && self.rows.is_empty()
            && self.items.values().all(|holding| holding.phase == Phase::Released)
    }
}
