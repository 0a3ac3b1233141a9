//! Measures how long it takes to deal the items of a pump job to its groups.
//!
//! `cargo bench -p rondel-core --bench deal`: 10,000 items, dealt to 200 groups, one per executor, and then to one group more.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use rondel_core::pump::{DealSettings, Group, GroupMode, Item, ItemChange, Owner, apply, deal};
use rondel_core::{RunId, Timestamp};

const ITEM_COUNT: usize = 10_000;
const EXECUTOR_COUNT: i64 = 200;
const NOW: Timestamp = Timestamp::from_secs(1_000);

fn groups(count: i64) -> Vec<Group> {
    let owner = |run| Owner { run: RunId::new(run), attempt: 1 };
    (0..count).map(|run| Group { owner: owner(run), mode: GroupMode::Takes }).collect()
}

fn of_items(c: &mut Criterion) {
    let names: BTreeMap<String, String> =
        (0..ITEM_COUNT).map(|item| (format!("region-{item}"), String::new())).collect();
    let wanted = DealSettings { names: &names, per_group: None, hand_over: Duration::from_secs(45), saved_at: NOW };
    let make = |items: &mut BTreeMap<String, Item>, changes: Vec<(String, ItemChange)>| {
        changes.iter().filter(|(name, change)| apply(items, name, change, NOW)).count()
    };
    let (before, after) = (groups(EXECUTOR_COUNT), groups(EXECUTOR_COUNT + 1));
    let mut dealt = BTreeMap::new();
    let first = deal(&dealt, &before, wanted, NOW);
    make(&mut dealt, first);
    let asked = deal(&dealt, &after, wanted, NOW);
    let must_move = ITEM_COUNT / after.len();
    assert!(
        asked.len() == must_move && asked.iter().all(|(_, change)| matches!(change, ItemChange::AskToRelease { .. }))
    );

    let mut group = c.benchmark_group("10,000 items");
    group.bench_function("to 200 executors, and the changes made", |b| {
        b.iter(|| {
            let mut items = BTreeMap::new();
            let changes = deal(&items, &before, wanted, NOW);
            black_box(make(&mut items, changes))
        });
    });
    group.bench_function("with 200 executors, one is added", |b| {
        b.iter(|| black_box(deal(&dealt, &after, wanted, NOW)))
    });
    group.bench_function("with 200 executors, nothing is to be done", |b| {
        b.iter(|| black_box(deal(&dealt, &before, wanted, NOW)));
    });
    group.finish();
}

criterion_group!(benches, of_items);
criterion_main!(benches);
