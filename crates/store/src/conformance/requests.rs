//! Checks of requested runs.

use std::time::Duration;

use rondel_core::outcome::Outcome;
use rondel_core::request::IfOpen;
use rondel_core::run::ROOT_SHARD;
use rondel_core::{IdGen, Reason, Run, RunId, RunStatus, Timestamp};

use super::broadcasts::{expect_shards, shards};
use super::{FAILED, finish, finish_all, job, join, next_id, open_stream, read_run, requested_run};
use crate::catalog::JobRecord;
use crate::ledger::{KeyedRun, RequestedShards};
use crate::{LeaseToken, Store};

/// The executor that a caller named is kept with the run, through a retry and an adoption, and in the run's shards.
pub async fn a_run_keeps_the_executor_that_its_caller_named(store: &dyn Store) {
    let (dead, heir) = (join(store).await, join(store).await);
    open_stream(store, dead).await;
    let now = store.now().await.unwrap();
    let job = job(store, Some(now.ceil_second())).await;
    let only = Some("w-2".to_owned());
    let named = |run: Run| Run { only_executor: only.clone(), ..run };
    let asked = named(requested_run(&job, dead, now));
    assert_eq!(store.request_run(dead, asked.clone()).await.unwrap(), asked);
    assert_eq!(read_run(store, asked.id).await, asked);
    let any = store.request_run(dead, requested_run(&job, dead, now)).await.unwrap();
    assert_eq!(read_run(store, any.id).await.only_executor, None);

    let mut failed = finish(&asked, FAILED);
    failed.policy.retry_max = 1;
    finish_all(store, &[failed]).await;
    let again = read_run(store, asked.id).await;
    assert_eq!((again.attempt, again.only_executor.as_deref()), (2, Some("w-2")));

    let root = named(Run { shard_index: ROOT_SHARD, shard_total: None, ..requested_run(&job, dead, now) });
    store.request_run(dead, root.clone()).await.unwrap();
    let shards = shards(&root, 2);
    assert!(store.expand(dead, root.id, &shards).await.unwrap());
    for shard in &shards {
        assert_eq!(read_run(store, shard.id).await.only_executor, only);
    }
    let cut = named(Run {
        shard_index: ROOT_SHARD,
        shard_total: Some(1),
        open_shards: Some(1),
        ..requested_run(&job, dead, now)
    });
    let shard =
        Run { id: RunId::new(next_id()), shard_index: 0, parent: Some(cut.id), open_shards: None, ..cut.clone() };
    let rows = expect_shards(store.request_shards(dead, cut, vec![shard]).await.unwrap());
    for row in &rows {
        assert_eq!(read_run(store, row.id).await.only_executor, only);
    }

    store.release(dead, Timestamp::EPOCH).await.unwrap();
    let (_, adopted) = super::orphans::adopt_all(store, heir, &[dead.node]).await;
    let adopted = adopted.into_iter().find(|adopted| adopted.run.id == asked.id).unwrap();
    assert_eq!(adopted.run.only_executor, only);
    let end = Run { attempt: 2, ..asked };
    finish_all(store, &[finish(&end, Outcome::Succeeded)]).await;
    let ended = read_run(store, end.id).await;
    assert_eq!((ended.status, ended.only_executor), (RunStatus::Succeeded, only));
}

fn keyed_run(job: &JobRecord, token: LeaseToken, now: Timestamp, key: &str) -> Run {
    Run { trigger_key: Some(key.to_owned()), ..requested_run(job, token, now) }
}

/// Of two concurrent requests with a key at different servers, one creates a run and the other finds it. The key is free after the verdict
/// of its run. Equal keys of different jobs are independent.
pub async fn a_key_is_held_by_one_open_run(store: &dyn Store) {
    let (a, b) = (join(store).await, join(store).await);
    let now = store.now().await.unwrap();
    let one = job(store, Some(now.ceil_second())).await;
    for round in 0..8 {
        let key = format!("order-{round}");
        let (of_a, of_b) = (keyed_run(&one, a, now, &key), keyed_run(&one, b, now, &key));
        let (made_a, made_b) = tokio::join!(
            store.request_keyed_run(a, of_a.clone(), IfOpen::Refuse, now),
            store.request_keyed_run(b, of_b.clone(), IfOpen::Keep, now)
        );
        let (made_a, made_b) = (made_a.unwrap(), made_b.unwrap());
        let (winner, loser) = match (&made_a, &made_b) {
            (KeyedRun::Created(made), KeyedRun::Open(open)) => (made, (open, of_b.id)),
            (KeyedRun::Open(open), KeyedRun::Created(made)) => (made, (open, of_a.id)),
            both => unreachable!("one of both has the key: {both:?}"),
        };
        assert_eq!(read_run(store, winner.id).await, *winner);
        assert_eq!((loser.0.id, winner.trigger_key.as_deref()), (winner.id, Some(key.as_str())));
        assert_eq!(store.runs(&[loser.1]).await.unwrap(), [], "nothing is stored of the other");
    }

    let ask = async |run: &Run, if_open| store.request_keyed_run(a, run.clone(), if_open, now).await.unwrap();
    let first = keyed_run(&one, a, now, "Order");
    assert!(matches!(ask(&first, IfOpen::Refuse).await, KeyedRun::Created(_)));
    assert!(matches!(ask(&first, IfOpen::Refuse).await, KeyedRun::Created(_)), "the same run: the answer was lost");
    let mut failed = finish(&first, FAILED);
    failed.policy.retry_max = 1;
    finish_all(store, &[failed]).await;
    let second = keyed_run(&one, a, now, "Order");
    assert!(
        matches!(ask(&second, IfOpen::Refuse).await, KeyedRun::Open(open) if open.id == first.id),
        "it has a retry"
    );
    assert!(
        matches!(ask(&keyed_run(&one, a, now, "order"), IfOpen::Refuse).await, KeyedRun::Created(_)),
        "another key"
    );
    let other = job(store, Some(now.ceil_second())).await;
    assert!(
        matches!(ask(&keyed_run(&other, a, now, "Order"), IfOpen::Refuse).await, KeyedRun::Created(_)),
        "another job"
    );
    finish_all(store, &[finish(&Run { attempt: 2, ..first.clone() }, Outcome::Succeeded)]).await;
    assert!(matches!(ask(&second, IfOpen::Refuse).await, KeyedRun::Created(_)), "the first is over");

    let third = keyed_run(&one, a, now, "Order");
    let replaced = ask(&third, IfOpen::Replace).await;
    assert!(matches!(replaced, KeyedRun::Replaced(_, earlier) if earlier == second.id), "{replaced:?}");
    let earlier = read_run(store, second.id).await;
    assert_eq!(earlier.cancel_reason, Some(Reason::Covered), "it is asked to end");
    let holder = ask(&keyed_run(&one, a, now, "Order"), IfOpen::Keep).await;
    assert!(matches!(holder, KeyedRun::Open(open) if open.id == third.id));
    Box::pin(a_fire_of_some_shards_has_its_key(store, (a, b), &one)).await;
}

/// A fire that is stored with its shards does not run beside an open run with its key, and gets the key otherwise.
async fn a_fire_of_some_shards_has_its_key(store: &dyn Store, (a, b): (LeaseToken, LeaseToken), job: &JobRecord) {
    let now = store.now().await.unwrap();
    let fire = || {
        let whole = Run {
            shard_index: ROOT_SHARD,
            shard_total: Some(1),
            open_shards: Some(1),
            status: RunStatus::Running,
            started_at: Some(now),
            ..keyed_run(job, a, now, "part")
        };
        let shard = shards(&whole, 1).remove(0);
        let shard = Run { status: RunStatus::Pending, started_at: None, open_shards: None, ..shard };
        (whole, shard)
    };
    let ask = async |token: LeaseToken, (whole, shard): &(Run, Run)| {
        store.request_shards(token, whole.clone(), vec![shard.clone()]).await.unwrap()
    };
    let earlier = keyed_run(job, a, now, "part");
    let made = store.request_keyed_run(a, earlier.clone(), IfOpen::Refuse, now).await.unwrap();
    assert!(matches!(made, KeyedRun::Created(_)));
    let refused = fire();
    let requested = ask(b, &refused).await;
    assert!(matches!(&requested, RequestedShards::KeyInUse(open) if open.id == earlier.id), "{requested:?}");
    assert_eq!(store.runs(&[refused.0.id, refused.1.id]).await.unwrap(), [], "nothing is stored");
    finish_all(store, &[finish(&earlier, FAILED)]).await;

    let (of_a, of_b) = (fire(), fire());
    let (made_a, made_b) = tokio::join!(ask(a, &of_a), ask(b, &of_b));
    let (rows, open) = match (made_a, made_b) {
        (RequestedShards::Created(rows), RequestedShards::KeyInUse(open))
        | (RequestedShards::KeyInUse(open), RequestedShards::Created(rows)) => (rows, open),
        both => unreachable!("one of both has the key: {both:?}"),
    };
    assert_eq!((open.id, read_run(store, rows[0].id).await.trigger_key.as_deref()), (rows[0].id, Some("part")));
    let later = keyed_run(job, a, now, "part");
    let made = store.request_keyed_run(a, later.clone(), IfOpen::Refuse, now).await.unwrap();
    assert!(matches!(made, KeyedRun::Open(open) if open.id == rows[0].id), "the fire has the key");
    let again = (rows[0].clone(), rows[1].clone());
    assert_eq!(expect_shards(ask(b, &again).await), rows, "the same fire: the answer was lost");
    finish_all(store, &[finish(&rows[1], Outcome::Succeeded)]).await;
    let made = store.request_keyed_run(a, later, IfOpen::Refuse, now).await.unwrap();
    assert!(matches!(made, KeyedRun::Created(_)), "the fire has ended");
}

/// The key is removed with its run.
pub async fn a_key_is_forgotten_with_its_run(store: &dyn Store) {
    let token = join(store).await;
    let now = store.now().await.unwrap();
    let job = job(store, Some(now.ceil_second())).await;
    let old = Timestamp::from_secs(1_704_412_800);
    let run = keyed_run(&job, token, old, "order");
    let run = Run { id: RunId::new(IdGen::first_at(old) + next_id() % 1_000_000), ..run };
    let made = store.request_keyed_run(token, run.clone(), IfOpen::Refuse, now).await.unwrap();
    assert!(matches!(made, KeyedRun::Created(_)));
    finish_all(store, &[finish(&run, Outcome::Succeeded)]).await;
    let mut after = Some(RunId::new(0));
    while let Some(from) = after {
        after = store.purge(old + Duration::from_secs(3_600), from, 100).await.unwrap().next_after;
    }
    assert_eq!(store.runs(&[run.id]).await.unwrap(), []);
    let again = keyed_run(&job, token, now, "order");
    let made = store.request_keyed_run(token, again, IfOpen::Refuse, now).await.unwrap();
    assert!(matches!(made, KeyedRun::Created(_)));
}

/// A run that is planned ahead waits in the store until it is due, even if its server dies in the meantime.
pub async fn a_planned_run_is_taken_up_when_it_comes_due(store: &dyn Store) {
    let (dead, heir) = (join(store).await, join(store).await);
    let now = store.now().await.unwrap();
    let at = now + Duration::from_secs(7_200);
    let job = job(store, Some(now.ceil_second())).await;
    let run = Run { status: RunStatus::Waiting, ..requested_run(&job, dead, at) };
    store.request_run(dead, run.clone()).await.unwrap();
    assert_eq!(store.take_waiting(dead, now + Duration::from_secs(7_199), 10).await.unwrap(), []);
    store.release(dead, Timestamp::EPOCH).await.unwrap();
    super::orphans::adopt_all(store, heir, &[dead.node]).await;
    let adopted = read_run(store, run.id).await;
    assert_eq!((adopted.status, adopted.node, adopted.due_at), (RunStatus::Waiting, heir.node, at));
    let due: Vec<RunId> = store.take_waiting(heir, at, 10).await.unwrap().iter().map(|run| run.id).collect();
    assert_eq!(due, [run.id]);
}
