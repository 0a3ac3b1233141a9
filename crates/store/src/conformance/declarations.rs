//! Sets of declared jobs.

use std::time::Duration;

use rondel_core::AppId;

use super::{DEFAULT, name, next_id};
use crate::Store;

/// A set is stored once, with the instant at which it was first seen.
pub async fn declared_sets_are_as_old_as_first_seen(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let app = store.ensure_app(AppId::new(next_id()), DEFAULT, &name("declares"), now).await.unwrap().id;
    let later = now + Duration::from_secs(5);
    let (old, new) = ("a".repeat(64), "b".repeat(64));
    let big = format!("[\"{}\"]", "ä".repeat(300_000));
    store.record_declared_set(app, &old, "[1]", now).await.unwrap();
    store.record_declared_set(app, &old, "[1]", now).await.unwrap();
    store.record_declared_set(app, &new, &big, later).await.unwrap();
    // A late report from another node does not move the instants of the set back.
    store.record_declared_set(app, &new, &big, now).await.unwrap();
    let sets = store.declared_sets(app).await.unwrap();
    let seen: Vec<_> = sets.iter().map(|set| (set.header.first_seen_at, set.header.last_seen_at)).collect();
    assert_eq!(seen, [(later, later), (now, now)]);
    assert_eq!((sets[0].specs.as_str(), sets[1].specs.as_str()), (big.as_str(), "[1]"));
    store.record_declared_set(app, &old, "[1]", later).await.unwrap();
    let of_app = |headers: Vec<crate::declarations::DeclaredSetHeader>| {
        headers.into_iter().filter(|header| header.app == app).collect::<Vec<_>>()
    };
    let headers = of_app(store.declared_set_headers(later).await.unwrap());
    assert_eq!(headers.iter().map(|header| &header.hash).collect::<Vec<_>>(), [&old, &new]);
    assert_eq!((headers[0].first_seen_at, headers[0].last_seen_at), (now, later));
    assert!(of_app(store.declared_set_headers(later + Duration::from_secs(1)).await.unwrap()).is_empty());

    // A set that was seen again in the meantime is not removed.
    store.forget_declared_set(&sets[1].header).await.unwrap();
    assert_eq!(store.declared_sets(app).await.unwrap().len(), 2);
    store.forget_declared_set(&headers[0]).await.unwrap();
    let remaining = store.declared_sets(app).await.unwrap();
    assert_eq!(remaining.iter().map(|set| &set.header.hash).collect::<Vec<_>>(), [&new]);
}
