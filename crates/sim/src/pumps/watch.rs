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
    before: &[Item],
) {
    let after = world.store.pump_items(job).await.unwrap_or_default();
    if after == before {
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
    let before: BTreeMap<&str, &Item> = before.iter().map(|item| (item.name.as_str(), item)).collect();
    let mut truth = lock(&world.pumps);
    if !is_home || !has_lease {
        truth.violate(
            "P1 fencing",
            &format!("node {} wrote items of job {job}, home {is_home}, lease {has_lease}", token.node),
        );
    }
    for item in &after {
        let item_key = (job, item.name.clone());
        let item_before = before.get(item.name.as_str()).copied();
        if item_before == Some(item) {
            continue;
        }
        check_values(&mut truth, &item_key, item_before, item);
        note_owner(&mut truth, &item_key, (item_before, item, changes), now_ms);
    }
}

/// P3: the stored values of an item never decrease.
fn check_values(truth: &mut PumpTruth, item_key: &ItemKey, before: Option<&Item>, after: &Item) {
    let name = &item_key.1;
    let highest = truth.highest_epoch(item_key);
    let is_dealt = after.owner.is_some() && before.is_none_or(|before| before.owner != after.owner);
    if is_dealt && after.epoch <= highest {
        truth
            .violate("P3 epoch", &format!("item {name} is dealt under epoch {}, it had {highest} before", after.epoch));
    }
    let Some(before) = before else { return };
    let mut check = |value_name: &str, before: i64, after: i64| {
        if after < before {
            truth.violate(&format!("P3 {value_name}"), &format!("of item {name} went from {before} to {after}"));
        }
    };
    let number = |item: &Item| item.checkpoint.as_deref().and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
    check("epoch", before.epoch, after.epoch);
    check("checkpoint", number(before), number(after));
    let (old, new) = (before.total(), after.total());
    check("counts", old.fetches, new.fetches);
    check("counts", old.rows, new.rows);
    check("counts", old.done, new.done);
    check("counts", old.failed, new.failed);
    if before.epoch == after.epoch {
        check("sequence", before.sequence, after.sequence);
    }
}

fn note_owner(
    truth: &mut PumpTruth,
    item_key: &ItemKey,
    (before, after, changes): (Option<&Item>, &Item, &[(String, ItemChange)]),
    now_ms: u64,
) {
    let item_changes = changes.iter().filter(|(name, _)| *name == item_key.1).map(|(_, change)| change);
    let is_other = |owner| Some(owner) != after.owner || before.is_some_and(|before| before.epoch != after.epoch);
    if let Some(before) = before.filter(|item| item.owner.is_some_and(is_other)) {
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
        truth.record_loss(&(item_key.clone(), before.epoch), now_ms, cause);
    }
    *truth.deal_counts.entry(item_key.0).or_default() +=
        item_changes.filter(|change| !matches!(change, ItemChange::Report(_))).count();
    let Some(owner) = after.owner else { return };
    let new_tenure = Tenure { owner, loss: None };
    let tenure = truth.tenures.entry((item_key.clone(), after.epoch)).or_insert(new_tenure);
    if tenure.owner != owner {
        let (epoch, first_owner) = (after.epoch, tenure.owner);
        truth.violate(
            "P1 one owner",
            &format!("item {} has {owner:?} at epoch {epoch}, {first_owner:?} had it before", item_key.1),
        );
    }
}
