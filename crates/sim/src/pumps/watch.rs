//! Checks after every write of items: the rules that hold at each moment.

use std::collections::BTreeMap;

use rondel_core::JobId;
use rondel_core::pump::{Change, Item};
use rondel_store::{Cluster as _, LeaseToken, Pumps as _};

use super::truth::{Loss, Place, PumpTruth, Tenure};
use crate::world::{World, lock};

/// Checks what a call has changed.
pub(crate) async fn changed(
    world: &World,
    token: LeaseToken,
    (job, changes): (JobId, &[(String, Change)]),
    before: &[Item],
) {
    let after = world.store.pump_items(job).await.unwrap_or_default();
    if after == before {
        return;
    }
    let is_home =
        world.store.pump_jobs().await.unwrap_or_default().iter().any(|one| one.job == job && one.home == token.node);
    let now = world.now();
    let nodes = world.store.nodes().await.unwrap_or_default();
    let holds = nodes.iter().any(|node| node.token() == token && node.is_living(now));
    let now_ms = world.elapsed_ms();
    world.record("items", job.get(), || format!("{changes:?}"));
    let before: BTreeMap<&str, &Item> = before.iter().map(|item| (item.name.as_str(), item)).collect();
    let mut truth = lock(&world.pumps);
    if !is_home || !holds {
        truth.violate(
            "P1 fencing",
            &format!("node {} wrote items of job {job}, home {is_home}, lease {holds}", token.node),
        );
    }
    for item in &after {
        let place = (job, item.name.clone());
        let known = before.get(item.name.as_str()).copied();
        if known == Some(item) {
            continue;
        }
        compare(&mut truth, &place, known, item);
        note_owner(&mut truth, &place, (known, item, changes), now_ms);
    }
}

/// P3: the stored values of an item never go back.
fn compare(truth: &mut PumpTruth, place: &Place, before: Option<&Item>, after: &Item) {
    let name = &place.1;
    let highest = truth.highest_epoch(place);
    let is_dealt = after.owner.is_some() && before.is_none_or(|before| before.owner != after.owner);
    if is_dealt && after.epoch <= highest {
        truth
            .violate("P3 epoch", &format!("item {name} is dealt under epoch {}, it had {highest} before", after.epoch));
    }
    let Some(before) = before else { return };
    let mut check = |what: &str, before: i64, after: i64| {
        if after < before {
            truth.violate(&format!("P3 {what}"), &format!("of item {name} went from {before} to {after}"));
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
    place: &Place,
    (before, after, changes): (Option<&Item>, &Item, &[(String, Change)]),
    now_ms: u64,
) {
    let of_item = changes.iter().filter(|(name, _)| *name == place.1).map(|(_, change)| change);
    let is_other = |owner| Some(owner) != after.owner || before.is_some_and(|before| before.epoch != after.epoch);
    if let Some(before) = before.filter(|item| item.owner.is_some_and(is_other)) {
        let mut how = Loss::Released;
        for change in of_item.clone() {
            match change {
                Change::Free { .. } => how = Loss::Freed,
                Change::Fence { .. } => how = Loss::Fenced,
                Change::Report(_) | Change::Add | Change::Remove | Change::Deal { .. } | Change::Ask { .. } => {}
            }
        }
        truth.owner_lost(&(place.clone(), before.epoch), now_ms, how);
    }
    *truth.deal_counts.entry(place.0).or_default() +=
        of_item.filter(|change| !matches!(change, Change::Report(_))).count();
    let Some(owner) = after.owner else { return };
    let tenure = Tenure { owner, lost: None };
    let known = truth.tenures.entry((place.clone(), after.epoch)).or_insert(tenure);
    if known.owner != owner {
        let (epoch, first) = (after.epoch, known.owner);
        truth.violate(
            "P1 one owner",
            &format!("item {} has {owner:?} at epoch {epoch}, {first:?} had it before", place.1),
        );
    }
}
