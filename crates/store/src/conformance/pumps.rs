//! Checks of pump jobs and their items.

use std::time::Duration;

use rondel_core::outcome::{CancelRequest, NextStep, NextStepPolicy, Outcome};
use rondel_core::pump::{Counts, Item, ItemChange, Owner, Progress};
use rondel_core::{JobId, JobSpec, NodeId, Reason, Run, RunId, RunStatus, Timestamp};
use serde_json::json;

use super::edits::{change, expect_saved};
use super::{
    FAILED, LEASE, POLICY, compile, finish, finish_one, job_with, join, name, next_id, pending_run, read_run,
    requested_run, spec,
};
use crate::catalog::{JobDeleted, JobDeletion, JobRecord};
use crate::ledger::{AttemptEnd, EndOutcome};
use crate::pumps::{ChangedItems, PumpJob};
use crate::{LeaseToken, Store};

async fn pump(store: &dyn Store) -> JobRecord {
    let pump = json!({"pump": {"items": {"count": 4}, "groups": 2}});
    job_with(store, spec(&name("pump"), pump), None).await
}

async fn pump_job(store: &dyn Store, job: JobId) -> Option<PumpJob> {
    store.pump_jobs().await.unwrap().into_iter().find(|pump| pump.job == job)
}

/// Makes the node the home of a job by requesting a run of it.
async fn settle_home(store: &dyn Store, token: LeaseToken, job: &JobRecord, fire_at: Timestamp) -> Run {
    let run = requested_run(job, token, fire_at).for_all_shards();
    store.request_run(token, run).await.unwrap()
}

async fn items(store: &dyn Store, job: JobId) -> Vec<Item> {
    store.pump_items(job).await.unwrap()
}

fn owner(run: i64) -> Owner {
    Owner { run: RunId::new(run), attempt: 1 }
}

fn report(owner: Owner, epoch: i64, sequence: i64) -> ItemChange {
    ItemChange::Report(Progress {
        owner,
        epoch,
        sequence,
        counts: Counts { fetches: sequence, rows: 7, done: 5, failed: 2 },
        per_minute: 30,
        oldest_at: Some(Timestamp::from_secs(900)),
        is_dry: true,
        checkpoint: Some("row ä\0".to_owned()),
        is_released: false,
    })
}

fn of(name: &str, change: ItemChange) -> (String, ItemChange) {
    (name.to_owned(), change)
}

/// A job is listed as a pump job as soon as one of its definitions is a pump's, until it is forgotten.
pub async fn a_pump_job_is_known_until_it_is_forgotten(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let token = join(store).await;
    let record = pump(store).await;
    let other = job_with(store, spec(&name("plain"), json!({})), None).await;
    assert_eq!(pump_job(store, other.id).await, None);
    let found = pump_job(store, record.id).await.unwrap();
    assert_eq!((found.version, found.home, found.is_deleted), (1, NodeId::new(0), false));
    let root = settle_home(store, token, &record, now).await;
    let later = settle_home(store, token, &record, now + Duration::from_secs(1)).await;
    let found = pump_job(store, record.id).await.unwrap();
    assert_eq!((found.home, found.term), (token.node, 1));
    let ids = |roots: Vec<Run>| roots.iter().map(|run| run.id).collect::<Vec<_>>();
    let roots = async |now: Timestamp, limit: u32| ids(store.pump_roots(record.id, now, limit).await.unwrap());
    assert_eq!(roots(later.fire_at, 9).await, [later.id, root.id]);
    assert_eq!(roots(later.fire_at, 1).await, [later.id, root.id], "open ones are always there");
    for limit in [1, 9] {
        assert_eq!(roots(root.fire_at, limit).await, [root.id], "the other one was requested for a later instant");
    }

    let plain = JobSpec { pump: None, ..record.spec.clone() };
    let (record, _) = expect_saved(change(store, record.id, &plain, None, now).await);
    assert_eq!(pump_job(store, record.id).await.map(|pump| pump.version), Some(2), "its groups are still to end");
    let made = [of("0", ItemChange::Add)];
    assert_eq!(store.change_items(token, record.id, &made, now).await.unwrap().applied_count, 1);
    store.forget_pump(record.id, record.version - 1).await.unwrap();
    assert!(pump_job(store, record.id).await.is_some(), "it was saved anew since");
    store.forget_pump(record.id, record.version).await.unwrap();
    assert_eq!((pump_job(store, record.id).await, items(store, record.id).await.len()), (None, 1), "epochs are kept");
    delete(store, &record, now).await;
    assert_eq!(items(store, record.id).await, []);

    let pumped = spec(&other.spec.name, json!({"pump": {"items": {"count": 1}, "groups": 1}}));
    let (other, _) = expect_saved(change(store, other.id, &pumped, None, now).await);
    assert!(pump_job(store, other.id).await.is_some());
    delete(store, &other, now).await;
    assert!(pump_job(store, other.id).await.is_some_and(|pump| pump.is_deleted));
    store.forget_pump(other.id, other.version).await.unwrap();
    assert_eq!(pump_job(store, other.id).await, None);
}

async fn delete(store: &dyn Store, record: &JobRecord, now: Timestamp) {
    let deletion = JobDeletion {
        id: record.id,
        expected_version: None,
        before: Some(&compile(&record.spec)),
        skipped_row_id: RunId::new(next_id()),
        now,
        reached: now,
        detaches_followers: false,
        drops: None,
    };
    assert!(matches!(store.delete_job(deletion).await.unwrap(), JobDeleted::Done));
}

/// Items are read as they were written. A change that expects another state of an item changes nothing.
pub async fn items_change_hands_one_owner_at_a_time(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let token = join(store).await;
    let record = pump(store).await;
    settle_home(store, token, &record, now).await;
    let made = |changes: Vec<(String, ItemChange)>| {
        let job = record.id;
        async move { store.change_items(token, job, &changes, now).await.unwrap().applied_count }
    };
    let deal = |epoch, to| ItemChange::Deal { epoch, to };
    let changes = vec![
        of("b", ItemChange::Add),
        of("a", ItemChange::Add),
        of("a", ItemChange::Add),
        of("a", deal(0, owner(1))),
        of("a", deal(1, owner(2))),
        of("A", ItemChange::Add),
    ];
    assert_eq!(made(changes).await, 4);
    let found = items(store, record.id).await;
    assert_eq!(found.iter().map(|item| item.name.as_str()).collect::<Vec<_>>(), ["A", "a", "b"]);
    assert_eq!((found[1].owner, found[1].epoch, found[2].owner), (Some(owner(1)), 1, None));

    assert_eq!(made(vec![of("a", report(owner(1), 1, 3)), of("a", report(owner(1), 1, 2))]).await, 1);
    let mut expected = Item::new("a", now);
    (expected.owner, expected.epoch, expected.sequence) = (Some(owner(1)), 1, 3);
    expected.counts = Counts { fetches: 3, rows: 7, done: 5, failed: 2 };
    (expected.per_minute, expected.oldest_at, expected.is_dry) = (30, Some(Timestamp::from_secs(900)), true);
    let stored = items(store, record.id).await.remove(1);
    assert!(stored.checkpoint.as_deref().is_some_and(|text| text.starts_with("row ä")));
    expected.checkpoint.clone_from(&stored.checkpoint);
    assert_eq!(stored, expected);

    assert_eq!(made(vec![of("a", ItemChange::AskToRelease { epoch: 1 })]).await, 1);
    assert_eq!(items(store, record.id).await[1].asked_at, Some(now));
    assert_eq!(made(vec![of("a", ItemChange::Fence { epoch: 1 }), of("a", deal(2, owner(2)))]).await, 2);
    assert_eq!(made(vec![of("a", report(owner(1), 1, 9))]).await, 0, "it was fenced");
    let item = items(store, record.id).await.remove(1);
    assert_eq!((item.owner, item.epoch, item.total().done, item.counts), (Some(owner(2)), 3, 5, Counts::default()));
    assert_eq!(made(vec![of("b", ItemChange::Remove), of("a", ItemChange::Remove)]).await, 1);
    assert_eq!(items(store, record.id).await.len(), 2);
}

/// Only the home of a job assigns its items to groups, and only under a valid lease.
pub async fn items_are_changed_by_their_home_alone(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let record = pump(store).await;
    let refused = ChangedItems { applied_count: 0, is_refused: true };
    let (home, other) = (join(store).await, join(store).await);
    let add = [of("a", ItemChange::Add)];
    assert_eq!(store.change_items(home, record.id, &add, now).await.unwrap(), refused, "it has no home yet");
    settle_home(store, home, &record, now).await;
    assert_eq!(store.change_items(other, record.id, &add, now).await.unwrap(), refused);
    let stale = LeaseToken { epoch: home.epoch - 1, ..home };
    assert_eq!(store.change_items(stale, record.id, &add, now).await.unwrap(), refused);
    store.release(home, now).await.unwrap();
    assert_eq!(store.change_items(home, record.id, &add, now).await.unwrap(), refused, "its lease is over");
    assert!(store.renew(other, LEASE).await.unwrap().is_some());
    assert_eq!(items(store, record.id).await, []);
}

/// A group that returns its items continues with its next attempt, without a limit on the number of attempts.
pub async fn a_group_that_yields_continues_as_its_next_attempt(store: &dyn Store) {
    let token = join(store).await;
    let mut run = pending_run(store, token).await;
    let policy = NextStepPolicy { is_pump: true, ..POLICY };
    for (outcome, reason) in
        [(Outcome::Yielded, Reason::Moved), (Outcome::Yielded, Reason::Moved), (FAILED, Reason::Retry)]
    {
        let end = AttemptEnd { policy, ..finish(&run, outcome) };
        let stored = finish_one(store, end).await;
        assert!(matches!(stored, EndOutcome::Stored(NextStep::Retry { .. }, _)), "{stored:?}");
        let attempt = store.attempts(run.id).await.unwrap().pop().unwrap();
        let status = if outcome == FAILED { RunStatus::Failed } else { RunStatus::Succeeded };
        assert_eq!((attempt.status, attempt.attempt), (status, run.attempt));
        run = read_run(store, run.id).await;
        assert_eq!((run.status, run.reason), (RunStatus::Waiting, Some(reason)));
    }
    let of_run = store.attempts(run.id).await.unwrap();
    let reasons: Vec<_> = of_run.iter().map(|attempt| attempt.reason).collect();
    assert_eq!(reasons, [Some(Reason::Moved), Some(Reason::Moved), Some(Reason::Retry)], "why the next ones exist");
    let request = CancelRequest { by: "the end of the pump", reason: Reason::WindowOver };
    store.ask_cancel(run.id, request, run.due_at).await.unwrap();
    let end = AttemptEnd { policy, ..finish(&run, Outcome::Cancelled) };
    assert!(matches!(finish_one(store, end).await, EndOutcome::Stored(NextStep::Verdict { .. }, _)));
    let run = read_run(store, run.id).await;
    assert_eq!((run.status, run.reason), (RunStatus::Succeeded, Some(Reason::WindowOver)));
    let run = pending_run(store, token).await;
    store.ask_cancel(run.id, request, run.due_at).await.unwrap();
    finish_one(store, AttemptEnd { policy, is_unfinished: true, ..finish(&run, Outcome::Cancelled) }).await;
    let run = read_run(store, run.id).await;
    assert_eq!((run.status, run.reason), (RunStatus::Failed, Some(Reason::WindowOver)), "it left rows that failed");
    // The executor was lost while the pump ended. The group's own report shows how it ended.
    for (outcome, is_unfinished, status) in
        [(Outcome::Cancelled, false, RunStatus::Succeeded), (Outcome::Yielded, true, RunStatus::Failed)]
    {
        let run = pending_run(store, token).await;
        store.ask_cancel(run.id, request, run.due_at).await.unwrap();
        let lost = AttemptEnd { policy, executor: None, ..finish(&run, Outcome::Lost(Reason::ExecutorLost)) };
        finish_one(store, lost).await;
        assert_eq!(read_run(store, run.id).await.status, RunStatus::Cancelled);
        let late = AttemptEnd { policy, is_unfinished, ..finish(&run, outcome) };
        assert_eq!(finish_one(store, late).await, EndOutcome::Late);
        let run = read_run(store, run.id).await;
        assert_eq!((run.status, run.reason), (status, Some(Reason::WindowOver)), "{outcome:?}");
    }
    let record = pump(store).await;
    let root = settle_home(store, token, &record, run.due_at).await;
    store.ask_cancel(root.id, request, run.due_at).await.unwrap();
    finish_one(store, AttemptEnd { policy, executor: None, ..finish(&root, Outcome::Cancelled) }).await;
    let root = read_run(store, root.id).await;
    assert_eq!((root.status, root.reason), (RunStatus::Skipped, Some(Reason::WindowOver)), "no executor took it");
}

/// A user's request to cancel replaces the planned end of a pump, because a pump begins again after a planned end. No other request
/// replaces it.
pub async fn a_users_cancel_replaces_the_planned_end_of_a_pump(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let token = join(store).await;
    let record = pump(store).await;
    let first = settle_home(store, token, &record, now).await;
    let second = settle_home(store, token, &record, now + Duration::from_secs(1)).await;
    let both = [first.id, second.id];
    let planned = CancelRequest { by: "the end of the pump", reason: Reason::Changed };
    store.ask_cancel(first.id, planned, now).await.unwrap();
    store.ask_cancels(&both[1..], planned, now).await.unwrap();
    store.ask_cancels(&both, CancelRequest::LATER_RUN, now).await.unwrap();
    for id in both {
        assert_eq!(read_run(store, id).await.cancel_request_reason(), Some(Reason::Changed));
    }
    assert_eq!(store.open_runs(record.id, None, None, 10).await.unwrap().len(), 2, "a user may still cancel them");
    assert_eq!(store.open_runs(record.id, Some(first.fire_at), None, 10).await.unwrap().len(), 1);

    store.ask_cancel(first.id, CancelRequest::requested("mia"), now).await.unwrap();
    assert_eq!(store.ask_cancels(&both, CancelRequest::requested("leo"), now).await.unwrap(), 2);
    store.ask_cancel(first.id, planned, now).await.unwrap();
    store.ask_cancels(&both, planned, now).await.unwrap();
    for (id, by) in [(first.id, "mia"), (second.id, "leo")] {
        let run = read_run(store, id).await;
        assert_eq!((run.cancel_by.as_deref(), run.cancel_reason), (Some(by), Some(Reason::Requested)));
    }
    let expected = [(first.id, "mia".to_owned()), (second.id, "leo".to_owned())];
    assert_eq!(store.cancels(token).await.unwrap(), expected);
    assert_eq!(store.open_runs(record.id, None, None, 10).await.unwrap(), []);
    assert_eq!(store.open_runs(record.id, Some(first.fire_at), None, 10).await.unwrap(), []);
}

/// One call assigns many items.
pub async fn many_items_are_dealt_at_once(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let token = join(store).await;
    let record = pump(store).await;
    settle_home(store, token, &record, now).await;
    let names: Vec<String> = (0..1_000).map(|item| format!("{item:04}")).collect();
    let changes: Vec<_> = names.iter().map(|name| of(name, ItemChange::Add)).collect();
    let deals = names.iter().map(|name| of(name, ItemChange::Deal { epoch: 0, to: owner(1) }));
    let changes: Vec<_> = changes.into_iter().chain(deals).collect();
    let changed = store.change_items(token, record.id, &changes, now).await.unwrap();
    assert_eq!(changed, ChangedItems { applied_count: 2_000, is_refused: false });
    let found = items(store, record.id).await;
    assert!(found.len() == 1_000 && found.iter().all(|item| item.owner == Some(owner(1))));
}
