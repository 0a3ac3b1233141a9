//! Checks of calls with idempotency keys.

use std::time::Duration;

use super::name;
use crate::Store;
use crate::request_keys::{CallState, KeyedCall, StoredAnswer};

/// A call with a key is executed once. A repetition gets the stored answer. A different call with the same key is refused.
pub async fn a_keyed_call_is_made_once(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let (scope, key) = (name("scope"), name("key"));
    let (fingerprint, another) = ("a".repeat(64), "b".repeat(64));
    let call = KeyedCall { scope: &scope, key: &key, fingerprint: &fingerprint };
    let other = KeyedCall { fingerprint: &another, ..call };
    let given_up = now - Duration::from_secs(60);
    let (first, second) = tokio::join!(store.begin_call(call, now, given_up), store.begin_call(call, now, given_up));
    let mut both = [first.unwrap(), second.unwrap()];
    both.sort_by_key(|begun| *begun != CallState::New);
    assert_eq!(both, [CallState::New, CallState::InFlight]);
    assert_eq!(store.begin_call(other, now, given_up).await.unwrap(), CallState::KeyReused);
    assert_eq!(
        store.begin_call(KeyedCall { scope: "elsewhere", ..call }, now, given_up).await.unwrap(),
        CallState::New
    );

    // The server that began the call is presumed dead, so another server takes the call over.
    let later = now + Duration::from_secs(120);
    assert_eq!(store.begin_call(call, later, later - Duration::from_secs(60)).await.unwrap(), CallState::New);
    assert_eq!(store.begin_call(call, later, later - Duration::from_secs(60)).await.unwrap(), CallState::InFlight);

    // A call that is renewed counts as in progress, however long ago it began. A renewal must name the same call.
    let latest = later + Duration::from_secs(120);
    store.renew_call(call, latest - Duration::from_secs(10)).await.unwrap();
    store.renew_call(other, latest).await.unwrap();
    assert_eq!(store.begin_call(call, latest, latest - Duration::from_secs(60)).await.unwrap(), CallState::InFlight);
    assert_eq!(store.begin_call(call, latest, latest - Duration::from_secs(5)).await.unwrap(), CallState::New);

    let answer = StoredAnswer { status: 201, headers: "{}".to_owned(), body: "ä".repeat(100_000) };
    store.end_call(other, Some(&answer)).await.unwrap();
    store.end_call(call, Some(&answer)).await.unwrap();
    store.end_call(call, None).await.unwrap();
    assert_eq!(store.begin_call(call, later, given_up).await.unwrap(), CallState::Answered(answer));
    assert_eq!(store.begin_call(other, later, given_up).await.unwrap(), CallState::KeyReused);
    store.renew_call(call, latest).await.unwrap();
    assert!(matches!(store.begin_call(call, latest, latest).await.unwrap(), CallState::Answered(_)));
}

/// A failed call can be made again, and old calls are removed.
pub async fn keyed_calls_are_forgotten(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let (scope, fingerprint) = (name("scope"), "a".repeat(64));
    let call = |key| KeyedCall { scope: &scope, key, fingerprint: &fingerprint };
    // Older than any other call that checks make.
    let old = now - Duration::from_secs(20 * 365 * 86_400);
    for (index, key) in ["1", "2", "3"].into_iter().enumerate() {
        let at = old + Duration::from_secs(index as u64);
        assert_eq!(store.begin_call(call(key), at, at).await.unwrap(), CallState::New);
    }
    store.end_call(call("3"), None).await.unwrap();
    let at = old + Duration::from_secs(2);
    assert_eq!(store.begin_call(call("3"), at, at).await.unwrap(), CallState::New);
    let before = old + Duration::from_secs(100);
    assert_eq!(store.forget_calls(before, 2).await.unwrap(), 2);
    assert_eq!(store.begin_call(call("3"), at, at).await.unwrap(), CallState::InFlight);
    assert_eq!(store.forget_calls(before, 2).await.unwrap(), 1);
    assert_eq!(store.forget_calls(before, 2).await.unwrap(), 0);
    assert_eq!(store.begin_call(call("1"), at, at).await.unwrap(), CallState::New);
    store.forget_calls(before, 10).await.unwrap();
}
