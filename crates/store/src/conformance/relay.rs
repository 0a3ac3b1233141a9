//! Checks of fences that are relayed through other servers.

use std::time::Duration;

use rondel_core::{RunId, Timestamp};

use super::{app, join, stream_end};
use crate::ledger::{FenceRequest, RelayedAnswer};
use crate::{LeaseToken, Store};

/// A request reaches the servers that have a stream to the executor. The first answer reaches the server that asked. A later request
/// replaces the earlier one.
pub async fn fences_are_relayed_by_a_server_that_hears_the_executor(store: &dyn Store) {
    let (asker, hears, deaf) = (join(store).await, join(store).await, join(store).await);
    let start = store.now().await.unwrap();
    let record = super::executor(app(store).await, start);
    let opened_at = store.open_session(hears, &record, None).await.unwrap().unwrap();
    let leases = vec![LeaseToken { epoch: 7, ..deaf }, LeaseToken { epoch: i64::MAX, ..asker }];
    let request = FenceRequest { asker: asker.node, executor: record.id, asked_at: start, leases };
    store.ask_fences(std::slice::from_ref(&request), Timestamp::EPOCH).await.unwrap();
    store.ask_fences(&[], Timestamp::EPOCH).await.unwrap();
    let asked = async |token, since| {
        let all = store.fences_to_relay(token, since, 1_000).await.unwrap();
        all.into_iter().filter(|request| request.executor == record.id).collect::<Vec<_>>()
    };
    assert_eq!(asked(hears, start).await, std::slice::from_ref(&request));
    assert_eq!(asked(hears, start + Duration::from_millis(1)).await, []);
    assert_eq!((asked(asker, start).await, asked(deaf, start).await), (vec![], vec![]));
    assert_eq!(store.fence_answers(asker.node, start, 9).await.unwrap(), []);

    let held = vec![(RunId::new(i64::MAX), 3), (RunId::new(1), 1)];
    let name = "web-1 \u{1f642}".to_owned();
    let answer = RelayedAnswer { asker: asker.node, executor: record.id, asked_at: start, name, held };
    let other = RelayedAnswer { asked_at: start - Duration::from_secs(1), ..answer.clone() };
    store.answer_fences(&[other, answer.clone()], start).await.unwrap();
    store.answer_fences(&[RelayedAnswer { held: Vec::new(), ..answer.clone() }], start).await.unwrap();
    assert_eq!(asked(hears, start).await, []);
    assert_eq!(store.fence_answers(asker.node, start, 9).await.unwrap(), std::slice::from_ref(&answer));
    assert_eq!(store.fence_answers(hears.node, start, 9).await.unwrap(), []);

    let again = FenceRequest { asked_at: start + Duration::from_secs(10), ..request.clone() };
    store.ask_fences(std::slice::from_ref(&again), Timestamp::EPOCH).await.unwrap();
    store.ask_fences(std::slice::from_ref(&again), Timestamp::EPOCH).await.unwrap();
    assert_eq!(store.fence_answers(asker.node, start, 9).await.unwrap(), []);
    assert_eq!(asked(hears, start).await, std::slice::from_ref(&again));

    // After a step back of the clock, the next request of a server that has started again is earlier than its last one.
    store.ask_fences(std::slice::from_ref(&request), Timestamp::EPOCH).await.unwrap();
    assert_eq!(asked(hears, start).await, std::slice::from_ref(&request));
    store.answer_fences(std::slice::from_ref(&answer), start).await.unwrap();
    store.ask_fences(std::slice::from_ref(&request), Timestamp::EPOCH).await.unwrap();
    assert_eq!(store.fence_answers(asker.node, start, 9).await.unwrap(), [answer], "asked twice, answered once");
    store.ask_fences(std::slice::from_ref(&again), Timestamp::EPOCH).await.unwrap();
    assert_eq!(asked(hears, start).await, std::slice::from_ref(&again));
    store.close_session(hears, record.id, stream_end(opened_at)).await.unwrap();
    assert_eq!(asked(hears, start).await, [], "the stream has ended");
}
