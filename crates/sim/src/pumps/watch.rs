//! Checks after every write of items: the rules that hold at each moment.

use std::collections::BTreeMap;

use rondel_core::JobId;
use rondel_core::pump::{Item, ItemChange};
use rondel_store::{Cluster as _, LeaseToken, Pumps as _};

use super::truth::{ItemKey, LossCause, PumpTruth, Tenure};
use crate::world::{World, lock};

/// Checks what a call has changed.
pub(crate) async fn check_changes(
    world: &World,
    token: LeaseToken,
    (job, changes): (JobId, &[(String, ItemChange)]),
    items_before: &[Item],
) {
    let items_after = world.store.pump_items(job).await.unwrap_or_default();
    if items_after == items_before {
        return;
    }
    let is_home = world
        .store
        .pump_jobs()
        .await
        .unwrap_or_default()
        .iter()
        .any(|pump_job| pump_job.job == job && pump_job.home == token.node);
    let now = world.now();
    let nodes = world.store.nodes().await.unwrap_or_default();
    let has_lease = nodes.iter().any(|node| node.token() == token && node.is_living(now));
    let now_ms = world.elapsed_ms();
    world.record("items", job.get(), || format!("{changes:?}"));
    let items_before: BTreeMap<&str, &Item> = items_before.iter().map(|item| (item.name.as_str(), item)).collect();
    let mut truth = lock(&world.pumps);
    if !is_home || !has_lease {
        truth.violate(
            "P1 fencing",
            &format!("node {} wrote items of job {job}, home {is_home}, lease {has_lease}", token.node),
        );
    }
    for item in &items_after {
        let item_key = (job, item.name.clone());
        let item_before = items_before.get(item.name.as_str()).copied();
        if item_before == Some(item) {
            continue;
        }
        check_values(&mut truth, &item_key, item_before, item);
        note_owner(&mut truth, &item_key, (item_before, item, changes), now_ms);
    }
}

/// P3: the stored values of an item never decrease.
fn check_values(truth: &mut PumpTruth, item_key: &ItemKey, item_before: Option<&Item>, item_after: &Item) {
    let name = &item_key.1;
    let highest = truth.highest_epoch(item_key);
    let is_dealt =
        item_after.owner.is_some() && item_before.is_none_or(|item_before| item_before.owner != item_after.owner);
    if is_dealt && item_after.epoch <= highest {
        truth.violate(
            "P3 epoch",
            &format!("item {name} is dealt under epoch {}, it had {highest} before", item_after.epoch),
        );
    }
    let Some(item_before) = item_before else { return };
    let mut check = |value_name: &str, value_before: i64, value_after: i64| {
        if value_after < value_before {
            truth.violate(
                &format!("P3 {value_name}"),
                &format!("of item {name} went from {value_before} to {value_after}"),
            );
        }
    };
    let number = |item: &Item| item.checkpoint.as_deref().and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
    check("epoch", item_before.epoch, item_after.epoch);
    check("checkpoint", number(item_before), number(item_after));
    let (old_counts, new_counts) = (item_before.total(), item_after.total());
    check("counts", old_counts.fetches, new_counts.fetches);
    check("counts", old_counts.rows, new_counts.rows);
    check("counts", old_counts.done, new_counts.done);
    check("counts", old_counts.failed, new_counts.failed);
    if item_before.epoch == item_after.epoch {
        check("sequence", item_before.sequence, item_after.sequence);
    }
}

fn note_owner(
    truth: &mut PumpTruth,
    item_key: &ItemKey,
    (item_before, item_after, changes): (Option<&Item>, &Item, &[(String, ItemChange)]),
    now_ms: u64,
) {
    let item_changes = changes.iter().filter(|(name, _)| *name == item_key.1).map(|(_, change)| change);
    let is_other = |owner| {
        Some(owner) != item_after.owner || item_before.is_some_and(|item_before| item_before.epoch != item_after.epoch)
    };
    if let Some(item_before) = item_before.filter(|item| item.owner.is_some_and(is_other)) {
        let mut cause = LossCause::Released;
        for change in item_changes.clone() {
            match change {
                ItemChange::Free { .. } => cause = LossCause::Freed,
                ItemChange::Fence { .. } => cause = LossCause::Fenced,
                ItemChange::Report(_)
                | ItemChange::Add
                | ItemChange::Remove
                | ItemChange::Deal { .. }
                | ItemChange::AskToRelease { .. } => {}
            }
        }
        truth.record_loss(&(item_key.clone(), item_before.epoch), now_ms, cause);
    }
    *truth.deal_counts.entry(item_key.0).or_default() +=
        item_changes.filter(|change| !matches!(change, ItemChange::Report(_))).count();
    let Some(owner) = item_after.owner else { return };
    let new_tenure = Tenure { owner, loss: None };
    let tenure = truth.tenures.entry((item_key.clone(), item_after.epoch)).or_insert(new_tenure);
    if tenure.owner != owner {
        let (epoch, first_owner) = (item_after.epoch, tenure.owner);
        truth.violate(
            "P1 one owner",
            &format!("item {} has {owner:?} at epoch {epoch}, {first_owner:?} had it before", item_key.1),
        );
    }
}
