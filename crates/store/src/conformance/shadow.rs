//! Checks of the fires of other schedulers.

use std::time::Duration;

use rondel_core::shadow::compare::{OldFire, OldOutcome};
use rondel_core::{JobId, NamespaceId, Timestamp};

use crate::Store;
use crate::shadow::{SHADOW_EXECUTOR_LEN_MAX, ShadowFire, ShadowSpan};

fn fire(job: i64, id: i64, second: i64) -> ShadowFire {
    let fire = OldFire {
        source_id: id,
        due_at: (id % 2 == 0).then(|| Timestamp::from_secs(second - 1)),
        started_at: Timestamp::from_secs(second),
        executor: format!("http://10.0.0.{id}:9999/ä"),
        outcome: OldOutcome::ALL[usize::try_from(id).unwrap() % OldOutcome::ALL.len()],
    };
    ShadowFire { job: JobId::new(job), fire }
}

/// A fire is stored once, and a repetition changes nothing. Fires are read by job, source and time, and removed by age.
pub async fn observed_fires_are_kept_once_and_removed_by_age(store: &dyn Store) {
    let (space, other) = (NamespaceId::new(771), NamespaceId::new(772));
    assert_eq!(store.shadow_span(space, "old").await.unwrap(), None);
    let fires: Vec<ShadowFire> = (1..=250).map(|id| fire(7 + id % 2, id, 1_000 + id)).collect();
    assert_eq!(store.add_shadow_fires(space, "old", &fires[..200]).await.unwrap(), 200);
    let mut again = fires.clone();
    again[0].fire.executor = "changed".to_owned();
    assert_eq!(store.add_shadow_fires(space, "old", &again).await.unwrap(), 50, "what is known stays");
    assert_eq!(store.add_shadow_fires(space, "older", &fires[..1]).await.unwrap(), 1, "another source");
    assert_eq!(store.add_shadow_fires(other, "old", &fires[..1]).await.unwrap(), 1, "another namespace");
    let at = Timestamp::from_secs;
    let span = ShadowSpan { first_at: at(1_001), last_at: at(1_250), last_id: 250 };
    assert_eq!(store.shadow_span(space, "old").await.unwrap(), Some(span));
    let found = store.shadow_fires((space, "old"), JobId::new(8), (at(1_001), at(1_006)), 100).await.unwrap();
    let expected: Vec<OldFire> = [1, 3, 5].iter().map(|id| fires[*id - 1].fire.clone()).collect();
    assert_eq!(found, expected, "in order, from the first instant to before the last");
    let two = store.shadow_fires((space, "old"), JobId::new(8), (at(0), at(9_999)), 2).await.unwrap();
    assert_eq!(two, expected[..2]);
    let mut long = fire(7, 900, 1_300);
    long.fire.executor = format!("\0{}", "x".repeat(SHADOW_EXECUTOR_LEN_MAX + 10));
    assert_eq!(store.add_shadow_fires(space, "old", &[long]).await.unwrap(), 1);
    let kept = store.shadow_fires((space, "old"), JobId::new(7), (at(1_300), at(1_301)), 2).await.unwrap();
    assert_eq!(kept[0].executor, format!("\u{fffd}{}", "x".repeat(SHADOW_EXECUTOR_LEN_MAX - 1)));
    let before = at(1_011);
    assert!(store.forget_shadow_fires(before, 5).await.unwrap() >= 5);
    while store.forget_shadow_fires(before, 5).await.unwrap() > 0 {}
    let remaining =
        store.shadow_fires((space, "old"), JobId::new(8), (at(0), before + Duration::from_secs(1)), 9).await.unwrap();
    assert_eq!(remaining.iter().map(|fire| fire.source_id).collect::<Vec<_>>(), [11]);
    store.forget_shadow_fires(Timestamp::MAX, 10_000).await.unwrap();
}
