//! Checks of webhooks and the outbox.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::outcome::Outcome;
use rondel_core::reason::ReasonDetail;
use rondel_core::{AppId, JobId, NamespaceId, OutboxId, Reason, Run, RunId, RunStatus, Timestamp};
use serde_json::json;

use super::broadcasts::expanded_broadcast;
use super::{
    DEFAULT, FAILED, claim, expect_created, finish, finish_all, finish_one, job_with, join, name, next_id, pending_run,
    run, spec,
};
use crate::catalog::{Namespace, NewJob};
use crate::ledger::AttemptEnd;
use crate::outbox::{FailureWebhook, OutboxItem, RUN_FAILED, RUN_SKIPPED, TakeOutbox};
use crate::{LeaseToken, Store};

const HOLD: Duration = Duration::from_secs(30);

const EVERYTHING: TakeOutbox<'static> =
    TakeOutbox { excluded_namespaces: &[], namespace_max: 500, messages_per_namespace_max: 500, hold: HOLD };

fn webhook(url: &str, now: Timestamp) -> FailureWebhook {
    FailureWebhook { url: url.to_owned(), secret: format!("whsec_{}", next_id()), created_at: now, updated_at: now }
}

/// Takes the due messages, and returns those about these runs.
async fn take(store: &dyn Store, now: Timestamp, runs: &[RunId]) -> Vec<OutboxItem> {
    let mut taken = store.take_outbox(now, EVERYTHING).await.unwrap();
    taken.retain(|item| item.run.is_some_and(|run| runs.contains(&run)));
    taken
}

async fn due_instant(store: &dyn Store) -> Timestamp {
    store.now().await.unwrap() + Duration::from_secs(5)
}

/// A run that failed for good gets one message if its namespace has a webhook.
pub async fn a_failed_run_is_reported_once(store: &dyn Store) {
    let token = join(store).await;
    let now = store.now().await.unwrap();
    let unheard = pending_run(store, token).await;
    finish_one(store, finish(&unheard, FAILED)).await;

    let first = webhook("http://127.0.0.1:1/a", now);
    assert!(store.put_failure_webhook(DEFAULT, &first).await.unwrap());
    let later = FailureWebhook { updated_at: now + HOLD, ..webhook("https://example.com/b", now) };
    assert!(!store.put_failure_webhook(DEFAULT, &later).await.unwrap());
    let expected = FailureWebhook { secret: first.secret.clone(), ..later };
    assert_eq!(store.failure_webhook(DEFAULT).await.unwrap(), Some(expected));

    let (fails, well, retried, timed_out, cancelled, lost) = (
        pending_run(store, token).await,
        pending_run(store, token).await,
        pending_run(store, token).await,
        pending_run(store, token).await,
        pending_run(store, token).await,
        pending_run(store, token).await,
    );
    let mut again = finish(&retried, FAILED);
    again.policy.retry_max = 1;
    let mut unknown = finish(&lost, Outcome::Lost(Reason::ExecutorLost));
    unknown.policy.at_least_once = false;
    store.mark(token, &[at_executor(&lost)]).await.unwrap();
    let failed = AttemptEnd { message: Some("it \"broke\"".to_owned()), ..finish(&fails, FAILED) };
    let batch = [
        failed.clone(),
        finish(&well, Outcome::Succeeded),
        again.clone(),
        finish(&timed_out, Outcome::TimedOut),
        finish(&cancelled, Outcome::Cancelled),
        unknown,
        failed,
    ];
    finish_all(store, &batch).await;
    let (_, shards) = expanded_broadcast(store, token, 2).await;
    let root_id = shards[0].parent.unwrap();
    for shard in &shards {
        finish_one(store, finish(shard, FAILED)).await;
    }
    let ids = [
        unheard.id,
        fails.id,
        well.id,
        retried.id,
        timed_out.id,
        cancelled.id,
        lost.id,
        root_id,
        shards[0].id,
        shards[1].id,
    ];
    let taken = take(store, due_instant(store).await, &ids).await;
    let mut runs: Vec<RunId> = taken.iter().filter_map(|item| item.run).collect();
    runs.sort_unstable();
    let mut expected = vec![fails.id, timed_out.id, lost.id, root_id];
    expected.sort_unstable();
    assert_eq!(runs, expected);
    let item = taken.iter().find(|item| item.run == Some(fails.id)).unwrap();
    assert_eq!((item.kind.as_str(), item.namespace, item.try_count), (RUN_FAILED, DEFAULT, 0));
    let payload: serde_json::Value = serde_json::from_str(&item.payload).unwrap();
    assert_eq!(payload["type"], RUN_FAILED);
    let data = &payload["data"];
    assert_eq!((&data["run_id"], &data["status"]), (&fails.id.to_string().into(), &"failed".into()));
    assert_eq!((&data["message"], &data["namespace"]), (&"it \"broke\"".into(), &"default".into()));

    // The last attempt is reported. A late result that corrects the verdict is not reported again.
    store.drop_outbox(&taken.iter().map(|item| item.id).collect::<Vec<_>>()).await.unwrap();
    store.take_waiting(token, Timestamp::MAX, 10_000).await.unwrap();
    finish_one(store, AttemptEnd { attempt: 2, ..again }).await;
    finish_one(store, finish(&lost, FAILED)).await;
    let taken = take(store, due_instant(store).await, &ids).await;
    assert_eq!(taken.iter().filter_map(|item| item.run).collect::<Vec<_>>(), [retried.id]);
    store.drop_outbox(&[taken[0].id]).await.unwrap();
    assert!(store.delete_failure_webhook(DEFAULT).await.unwrap());
    assert!(!store.delete_failure_webhook(DEFAULT).await.unwrap());
    assert_eq!(store.failure_webhook(DEFAULT).await.unwrap(), None);
}

/// A skipped run is reported if its job asks for that reason. A row that stands for several fires gives one message.
pub async fn a_skip_is_reported_where_its_job_asks_for_it(store: &dyn Store) {
    let token = join(store).await;
    let now = store.now().await.unwrap();
    store.put_failure_webhook(DEFAULT, &webhook("http://127.0.0.1:1/", now)).await.unwrap();
    let (unserved, overlap, requested) =
        (pending_run(store, token).await, pending_run(store, token).await, pending_run(store, token).await);
    let skipped =
        |run: &Run, reason| AttemptEnd { executor: None, started_at: None, ..finish(run, Outcome::Skipped(reason)) };
    let detail = ReasonDetail { app: Some("work".to_owned()), waited_ms: Some(60_000), ..ReasonDetail::default() };
    let batch = [
        AttemptEnd { detail: Some(Arc::new(detail)), ..skipped(&unserved, Reason::NoExecutor) },
        skipped(&overlap, Reason::Overlap),
        skipped(&requested, Reason::Requested),
    ];
    finish_all(store, &batch).await;
    let change = json!({"schedule": {"every": "1s"}, "notify": {"skipped": ["overlap"]}});
    let chosen = job_with(store, spec(&name("job"), change), Some(now.ceil_second())).await;
    let span = Run {
        status: RunStatus::Skipped,
        reason: Some(Reason::Overlap),
        finished_at: Some(now),
        span_end_at: Some(now),
        span_count: 5,
        ..run(&chosen, token, now - HOLD)
    };
    let missed = Run { id: RunId::new(next_id()), reason: Some(Reason::Misfire), fire_at: now, ..span.clone() };
    claim(store, token, &chosen, vec![span.clone(), missed.clone()]).await;
    let taken =
        take(store, due_instant(store).await, &[unserved.id, overlap.id, requested.id, span.id, missed.id]).await;
    store.delete_failure_webhook(DEFAULT).await.unwrap();
    let runs: Vec<Option<RunId>> = taken.iter().map(|item| item.run).collect();
    assert_eq!(runs, [Some(unserved.id), Some(span.id)]);
    let data = |item: &OutboxItem| serde_json::from_str::<serde_json::Value>(&item.payload).unwrap()["data"].clone();
    let first = data(&taken[0]);
    assert_eq!((taken[0].kind.as_str(), &first["reason"]), (RUN_SKIPPED, &json!("no_executor")));
    assert_eq!(first["why"], "Skipped: no executor of app work was online for 1 min.");
    assert!(first["app"].is_string(), "{first}");
    assert_eq!((&data(&taken[1])["count"], &data(&taken[1])["last_fire_at"]), (&json!(5), &json!(now)));
}

fn at_executor(run: &Run) -> crate::ledger::RunAtExecutor {
    crate::ledger::RunAtExecutor {
        run: run.id,
        attempt: 1,
        executor_id: rondel_core::ExecutorId::new(77),
        executor: "executor-a".to_owned(),
        at: run.due_at,
    }
}

/// Of two nodes that take messages at the same time, one gets each message. A postponed message is returned again when it is due.
pub async fn a_message_is_in_one_hand(store: &dyn Store) {
    let token = join(store).await;
    let now = store.now().await.unwrap();
    store.put_failure_webhook(DEFAULT, &webhook("http://127.0.0.1:1/", now)).await.unwrap();
    let run = pending_run(store, token).await;
    finish_one(store, finish(&run, FAILED)).await;
    store.delete_failure_webhook(DEFAULT).await.unwrap();
    let ids = [run.id];
    let soon = due_instant(store).await;
    let (a, b) = tokio::join!(take(store, soon, &ids), take(store, soon, &ids));
    let [taken] = [a, b].concat().try_into().unwrap();
    assert_eq!(taken.held_until, soon + HOLD);
    assert!(take(store, soon + HOLD - Duration::from_secs(1), &ids).await.is_empty());
    let due_at = soon + Duration::from_secs(60);
    store.postpone_outbox(&taken, 1, due_at).await.unwrap();
    store.postpone_outbox(&taken, 7, soon).await.unwrap();
    assert!(take(store, due_at - Duration::from_secs(1), &ids).await.is_empty());
    let again = take(store, due_at, &ids).await;
    assert_eq!(again, [OutboxItem { try_count: 1, held_until: due_at + HOLD, ..taken }]);
    store.drop_outbox(&[again[0].id, OutboxId::new(next_id())]).await.unwrap();
    assert!(take(store, Timestamp::MAX - HOLD, &ids).await.is_empty());
}

/// Creates a job in this namespace, and a failed run of it.
async fn failed_in(store: &dyn Store, namespace: &Namespace, token: LeaseToken) -> RunId {
    let now = store.now().await.unwrap();
    let app = store.ensure_app(AppId::new(next_id()), namespace.id, "app", now).await.unwrap();
    let new = NewJob {
        id: JobId::new(next_id()),
        namespace: namespace.id,
        app: app.id,
        spec: spec(&name("job"), json!({"schedule": {"every": "1h"}})),
        anchor: now.ceil_second(),
        next_fire_at: Some(now.ceil_second()),
        delay: None,
        calendar: None,
        declared: None,
        author: "conformance".to_owned(),
        now,
    };
    let job = expect_created(store.create_job(new).await.unwrap());
    let run = run(&job, token, now.ceil_second());
    assert!(claim(store, token, &job, vec![run.clone()]).await.existing.is_empty());
    finish_one(store, finish(&run, FAILED)).await;
    run.id
}

/// Messages of one namespace are taken even if many messages of another are due. Namespaces whose messages are being sent are left out.
pub async fn no_namespace_waits_behind_the_messages_of_another(store: &dyn Store) {
    let token = join(store).await;
    let now = store.now().await.unwrap();
    let mut namespaces = Vec::new();
    for _ in 0..2 {
        let namespace = Namespace { id: NamespaceId::new(next_id()), name: name("ns") };
        assert!(store.create_namespace(&namespace, now).await.unwrap());
        store.put_failure_webhook(namespace.id, &webhook("http://127.0.0.1:1/", now)).await.unwrap();
        namespaces.push(namespace);
    }
    let [many, one] = [&namespaces[0], &namespaces[1]];
    for _ in 0..4 {
        failed_in(store, many, token).await;
    }
    failed_in(store, one, token).await;
    let soon = due_instant(store).await;
    let both = |items: &[OutboxItem]| {
        let count = |id| items.iter().filter(|item| item.namespace == id).count();
        (count(many.id), count(one.id))
    };
    let taken = store.take_outbox(soon, TakeOutbox { messages_per_namespace_max: 2, ..EVERYTHING }).await.unwrap();
    assert_eq!(both(&taken), (2, 1));
    for item in taken.iter().filter(|item| item.namespace == one.id) {
        store.postpone_outbox(item, 0, soon).await.unwrap();
    }
    let without = [many.id];
    let taken = store.take_outbox(soon, TakeOutbox { excluded_namespaces: &without, ..EVERYTHING }).await.unwrap();
    assert_eq!(both(&taken), (0, 1));
    store.postpone_outbox(taken.iter().find(|item| item.namespace == one.id).unwrap(), 0, soon).await.unwrap();
    // The namespace whose message has been due longest comes first.
    let first = TakeOutbox { excluded_namespaces: &[DEFAULT], namespace_max: 1, ..EVERYTHING };
    assert_eq!(both(&store.take_outbox(soon, first).await.unwrap()), (2, 0));
    assert_eq!(both(&store.take_outbox(soon, first).await.unwrap()), (0, 1));
    assert_eq!(both(&store.take_outbox(soon, EVERYTHING).await.unwrap()), (0, 0));
    // Old messages of one namespace are removed, also while they are held.
    let forget =
        async |namespace: &Namespace, before, limit| store.forget_outbox(namespace.id, before, limit).await.unwrap();
    assert_eq!(forget(many, now, 500).await, 0, "they were written later");
    assert_eq!((forget(many, soon, 3).await, forget(many, soon, 500).await), (3, 1));
    assert_eq!((forget(many, soon, 500).await, forget(one, soon, 500).await), (0, 1));
}
