//! Checks of edits: how they change rows that are not sent yet.

use std::time::Duration;

use rondel_core::outcome::{CancelRequest, NextStepPolicy, Outcome};
use rondel_core::run::ROOT_SHARD;
use rondel_core::{Job, JobId, JobSpec, NodeId, Reason, Run, RunId, RunStatus, Timestamp};

use super::{
    FAILED, POLICY, app, claim, compile, due_job, finish, finish_one, job, job_with, join, name, next_id, pending_run,
    read_run, requested_run, run, spec,
};
use crate::catalog::{JobChange, JobDeleted, JobDeletion, JobRecord, JobSaved, QueuedDrops};
use crate::ledger::{AttemptEnd, ClaimJob};
use crate::{LeaseToken, Store};

pub(super) async fn change(
    store: &dyn Store,
    id: JobId,
    spec: &JobSpec,
    expected_version: Option<i64>,
    now: Timestamp,
) -> JobSaved {
    change_after(store, id, spec, expected_version, (now, now)).await
}

/// Like [`change`]; `reached` is the greatest time that the database's clock has shown.
async fn change_after(
    store: &dyn Store,
    id: JobId,
    spec: &JobSpec,
    expected_version: Option<i64>,
    (now, reached): (Timestamp, Timestamp),
) -> JobSaved {
    change_checked_at(store, (id, spec, expected_version), now, (now, reached)).await
}

async fn change_checked_at(
    store: &dyn Store,
    (id, spec, expected_version): (JobId, &JobSpec, Option<i64>),
    checked_at: Timestamp,
    (now, reached): (Timestamp, Timestamp),
) -> JobSaved {
    let before = newest_definition(store, id).await.unwrap_or_else(|| compile(spec));
    let change = JobChange {
        id,
        expected_version,
        spec,
        job: &compile(spec),
        before: &before,
        calendar: None,
        app: app(store).await,
        author: "editor",
        skipped_row_id: RunId::new(next_id()),
        now,
        checked_at,
        reached,
        drops: None,
    };
    store.change_job(change).await.unwrap()
}

/// Deletes a job although other jobs follow from it.
pub(super) async fn delete_parent(store: &dyn Store, id: JobId, now: Timestamp) -> JobDeleted {
    let (before, skipped_row_id) = (newest_definition(store, id).await, RunId::new(next_id()));
    let (expected_version, before) = (None, before.as_ref());
    let (reached, drops) = (now, None);
    let deletion =
        JobDeletion { id, expected_version, before, skipped_row_id, now, reached, detaches_followers: true, drops };
    store.delete_job(deletion).await.unwrap()
}

pub(super) async fn delete(store: &dyn Store, id: JobId, expected_version: Option<i64>, now: Timestamp) -> JobDeleted {
    let before = newest_definition(store, id).await;
    let skipped_row_id = RunId::new(next_id());
    let deletion = JobDeletion {
        id,
        expected_version,
        before: before.as_ref(),
        skipped_row_id,
        now,
        reached: now,
        detaches_followers: false,
        drops: None,
    };
    store.delete_job(deletion).await.unwrap()
}

async fn newest_definition(store: &dyn Store, id: JobId) -> Option<Job> {
    let versions: Vec<_> = (1..20).map(|version| (id, version)).collect();
    store.definitions(&versions).await.unwrap().pop().map(|held| compile(&held.spec))
}

#[track_caller]
pub(super) fn expect_saved(changed: JobSaved) -> (JobRecord, Vec<Run>) {
    match changed {
        JobSaved::Saved(record, reopened) => (*record, reopened),
        other => unreachable!("not saved: {other:?}"),
    }
}

/// Creates a job with a claimed row at each of the next four seconds. The returned instant is just before the first of them.
pub(super) async fn with_four_rows(store: &dyn Store) -> (LeaseToken, JobRecord, Vec<Run>, Timestamp) {
    let token = join(store).await;
    // An even second, so that "every 2s" always keeps the same rows.
    let second = store.now().await.unwrap().second() / 2 * 2 + 10;
    let at = |offset| Timestamp::from_secs(second + offset);
    let spec = spec(&name("job"), serde_json::json!({"schedule": {"cron": "* * * * * ?"}}));
    let job = job_with(store, spec, Some(at(1))).await;
    let rows: Vec<Run> = (1..=4).map(|offset| run(&job, token, at(offset))).collect();
    claim(store, token, &job, rows.clone()).await;
    // No row is due within a second of that instant. An edit does not change rows that are due within a second, because they may have been
    // sent.
    (token, job, rows, at(0))
}

async fn statuses(store: &dyn Store, rows: &[Run]) -> Vec<(RunStatus, Option<Reason>, i64)> {
    let mut found = Vec::new();
    for row in rows {
        let row = read_run(store, row.id).await;
        found.push((row.status, row.reason, row.job_version));
    }
    found
}

/// If the new definition also fires at the instant of a row, the row moves to that definition, and is reopened if it was settled. The other
/// rows are settled.
pub async fn an_edit_keeps_settles_and_reopens(store: &dyn Store) {
    use RunStatus::{Pending, Skipped};
    let (token, job, rows, now) = with_four_rows(store).await;
    let every_two = JobSpec {
        schedule: spec("x", serde_json::json!({"schedule": {"cron": "0/2 * * * * ?"}})).schedule,
        ..job.spec.clone()
    };
    let (record, reopened) = expect_saved(change(store, job.id, &every_two, Some(1), now).await);
    assert_eq!((record.version, reopened.len()), (2, 0));
    let changed = Some(Reason::Changed);
    let expected = [(Skipped, changed, 1), (Pending, None, 2), (Skipped, changed, 1), (Pending, None, 2)];
    assert_eq!(statuses(store, &rows).await, expected);
    let next = rows[3].fire_at + Duration::from_secs(2);
    assert_eq!((record.next_fire_at, record.anchor), (Some(next), job.anchor));
    let seen_row = due_job(store, &job, &[token.node]).await.unwrap();
    assert_eq!((seen_row.next_fire_at, seen_row.version, seen_row.home), (next, 2, token.node));
    assert_eq!(read_run(store, rows[0].id).await.finished_at, Some(now));

    let paused = JobSpec { enabled: false, ..every_two };
    let (record, _) = expect_saved(change(store, job.id, &paused, Some(2), now).await);
    assert_eq!(record.next_fire_at, None);
    let expected = [(Skipped, changed, 1), (Skipped, Some(Reason::Paused), 2)];
    assert_eq!(statuses(store, &rows[..2]).await, expected);
    assert_eq!(due_job(store, &job, &[token.node]).await, None);

    let (record, reopened) = expect_saved(change(store, job.id, &job.spec, None, now).await);
    assert_eq!(record.version, 4);
    let ids: Vec<_> = reopened.iter().map(|run| run.id).collect();
    assert_eq!(ids, rows.iter().map(|run| run.id).collect::<Vec<_>>(), "in the order of their instants");
    assert!(reopened.iter().all(|run| (run.node, run.node_epoch) == (token.node, token.epoch)));
    assert_eq!(statuses(store, &rows).await, vec![(Pending, None, 4); 4]);
    assert_eq!(read_run(store, rows[0].id).await, reopened[0]);
    assert_eq!((reopened[0].finished_at, reopened[0].due_at), (None, reopened[0].fire_at));
    assert_eq!(record.next_fire_at, Some(rows[3].fire_at + Duration::from_secs(1)));
    queued_runs_are_asked_to_end(store).await;
}

/// Fires that an edit skips leave alert events, also those that share a row; a row that is reopened leaves none. Expects a rule about events.
/// Returns the runs whose events are left.
pub(super) async fn skipped_fires_leave_events(store: &dyn Store) -> Vec<RunId> {
    let (_, job, rows, now) = with_four_rows(store).await;
    let events = async |job: JobId| {
        let events = store.alert_events(super::DEFAULT, 500).await.unwrap();
        let of_job = events.into_iter().filter(|event| event.job == job);
        of_job.map(|event| (event.run, event.fire_at, event.reason)).collect::<Vec<_>>()
    };
    let every_two = JobSpec {
        schedule: spec("x", serde_json::json!({"schedule": {"cron": "0/2 * * * * ?"}})).schedule,
        ..job.spec.clone()
    };
    expect_saved(change(store, job.id, &every_two, None, now).await);
    let event = |row: &Run| (row.id, row.fire_at, Some(Reason::Changed));
    assert_eq!(events(job.id).await, [event(&rows[0]), event(&rows[2])]);
    expect_saved(change(store, job.id, &job.spec, None, now).await);
    assert_eq!(events(job.id).await, [], "the fires happen");

    let second = store.now().await.unwrap().second();
    let (first, last) = (Timestamp::from_secs(second - 3), Timestamp::from_secs(second));
    let overdue = job_with(store, JobSpec { name: name("job"), ..job.spec.clone() }, Some(first)).await;
    let paused = JobSpec { enabled: false, ..overdue.spec.clone() };
    expect_saved(change(store, overdue.id, &paused, None, last).await);
    let left = events(overdue.id).await;
    assert_eq!(left.iter().map(|(_, at, reason)| (*at, *reason)).collect::<Vec<_>>(), [(first, Some(Reason::Paused))]);
    left.into_iter().map(|(run, ..)| run).collect()
}

/// A pause and a deletion store the requests to end queued runs together with the definition. Other changes store none.
async fn queued_runs_are_asked_to_end(store: &dyn Store) {
    let (token, job, _, now) = with_four_rows(store).await;
    let late = now - Duration::from_secs(60);
    let queued = run(&job, token, late);
    claim(store, token, &job, vec![queued.clone()]).await;
    let asked = store.request_run(token, requested_run(&job, token, late)).await.unwrap();
    let drops = async || {
        let drops = store.drops(token, RunId::new(0), 1_000).await.unwrap();
        let is_of_job = |(run, _): &(RunId, Reason)| [queued.id, asked.id].contains(run);
        drops.into_iter().filter(is_of_job).collect::<Vec<_>>()
    };
    let ends = Some(QueuedDrops { choice: None, by: "editor", limit: 100 });
    let (other, paused) =
        (JobSpec { name: name("job"), ..job.spec.clone() }, JobSpec { enabled: false, ..job.spec.clone() });
    for (spec, expected) in [(&other, vec![]), (&paused, vec![(queued.id, Reason::Paused)])] {
        let change = JobChange {
            id: job.id,
            expected_version: None,
            spec,
            job: &compile(spec),
            before: &compile(&job.spec),
            calendar: None,
            app: app(store).await,
            author: "editor",
            skipped_row_id: RunId::new(next_id()),
            now,
            checked_at: now,
            reached: now,
            drops: ends,
        };
        expect_saved(store.change_job(change).await.unwrap());
        assert_eq!(drops().await, expected);
    }
    let deletion = JobDeletion {
        id: job.id,
        expected_version: None,
        before: None,
        skipped_row_id: RunId::new(next_id()),
        now,
        reached: now,
        detaches_followers: false,
        drops: ends,
    };
    assert_eq!(store.delete_job(deletion).await.unwrap(), JobDeleted::Done);
    let mut expected = [(queued.id, Reason::Deleted), (asked.id, Reason::Deleted)];
    expected.sort_unstable_by_key(|(run, _)| *run);
    assert_eq!(drops().await, expected);
}

/// Rows that were due before the clock stepped back may have been sent. An edit leaves them alone, although their instants are in the
/// future again.
pub async fn runs_that_may_have_been_sent_before_a_step_back_stay(store: &dyn Store) {
    let (_, job, rows, now) = with_four_rows(store).await;
    let paused = JobSpec { enabled: false, ..job.spec.clone() };
    expect_saved(change_after(store, job.id, &paused, None, (now, rows[1].due_at)).await);
    let (left, settled) = ((RunStatus::Pending, None), (RunStatus::Skipped, Some(Reason::Paused)));
    let found: Vec<_> = statuses(store, &rows).await.into_iter().map(|(status, reason, _)| (status, reason)).collect();
    assert_eq!(found, [left, left, settled, settled]);
    let (_, second, rows, now) = with_four_rows(store).await;
    let before = newest_definition(store, second.id).await;
    let (skipped_row_id, reached) = (RunId::new(next_id()), rows[1].due_at);
    let deletion = JobDeletion {
        id: second.id,
        expected_version: None,
        before: before.as_ref(),
        skipped_row_id,
        now,
        reached,
        detaches_followers: false,
        drops: None,
    };
    assert_eq!(store.delete_job(deletion).await.unwrap(), JobDeleted::Done);
    let pending = async |row: &Run| read_run(store, row.id).await.status == RunStatus::Pending;
    assert!(pending(&rows[1]).await && !pending(&rows[2]).await);
}

/// An edit reopens a row while the job's home is dead and fenced. The row is adopted like any other open run of that home, and until then
/// no node can claim the job.
pub async fn a_run_that_is_reopened_at_a_dead_home_is_adopted(store: &dyn Store) {
    let (token, job, rows, now) = with_four_rows(store).await;
    let paused = JobSpec { enabled: false, ..job.spec.clone() };
    expect_saved(change(store, job.id, &paused, None, now).await);
    let other = join(store).await;
    store.release(token, Timestamp::EPOCH).await.unwrap();
    assert_eq!(super::orphans::adopt_all(store, other, &[token.node]).await.1, [], "nothing of it is open");
    let (record, reopened) = expect_saved(change(store, job.id, &job.spec, None, now).await);
    assert_eq!((record.version, reopened.len()), (3, 4));
    let seen_row = due_job(store, &record, &[token.node]).await.unwrap();
    let jobs = [ClaimJob {
        recent_fires: seen_row.recent_fires,
        expected_row: seen_row,
        held_from: None,
        next_fire_at: Some(seen_row.next_fire_at),
        runs: Vec::new(),
        awaited_run: None,
    }];
    assert!(store.claim(other, &jobs).await.unwrap().jobs.is_empty(), "something is open");
    let adopted = super::orphans::adopt_all(store, other, &[token.node]).await.1;
    let expected: Vec<_> = rows.iter().map(|run| (run.id, token)).collect();
    assert_eq!(adopted.iter().map(|adopted| (adopted.run.id, adopted.from)).collect::<Vec<_>>(), expected);
    assert_eq!(due_job(store, &job, &[other.node]).await.unwrap().home, other.node);
}

/// An unsent row becomes a broadcast, and later an unsharded run again. A marked row may have been sent and stays unchanged.
pub async fn a_change_of_route_moves_unsent_rows(store: &dyn Store) {
    let (token, job, rows, now) = with_four_rows(store).await;
    let run_at_executor = crate::ledger::RunAtExecutor {
        run: rows[0].id,
        attempt: 1,
        executor_id: rondel_core::ExecutorId::new(1),
        executor: "e".to_owned(),
        at: now,
    };
    assert_eq!(store.mark(token, &[run_at_executor]).await.unwrap(), [rows[0].id]);
    let broadcast = JobSpec { route: rondel_core::Route::Broadcast, ..job.spec.clone() };
    expect_saved(change(store, job.id, &broadcast, None, now).await);
    let shard = |run: Run| (run.shard_index, run.shard_total, run.job_version);
    assert_eq!(shard(read_run(store, rows[0].id).await), (0, Some(1), 1));
    assert_eq!(shard(read_run(store, rows[1].id).await), (ROOT_SHARD, None, 2));
    let paused = JobSpec { enabled: false, ..broadcast };
    expect_saved(change(store, job.id, &paused, None, now).await);
    let (_, reopened) = expect_saved(change(store, job.id, &job.spec, None, now).await);
    assert_eq!(reopened.into_iter().map(shard).collect::<Vec<_>>(), vec![(0, Some(1), 4); 3]);
}

/// Of two concurrent edits of the same version, one gets a conflict.
pub async fn edits_that_meet_see_each_other(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let first = job(store, None).await;
    let other = job(store, None).await;
    let edit = JobSpec { description: "edited".to_owned(), ..first.spec.clone() };
    let (a, b) =
        tokio::join!(change(store, first.id, &edit, Some(1), now), change(store, first.id, &edit, Some(1), now));
    let conflicts = [&a, &b].into_iter().filter(|changed| **changed == JobSaved::Conflict(2)).count();
    assert_eq!(conflicts, 1, "{a:?} {b:?}");

    let taken = JobSpec { name: other.spec.name.clone(), ..edit.clone() };
    assert_eq!(change(store, first.id, &taken, None, now).await, JobSaved::NameTaken);
    let renamed = JobSpec { name: name("renamed"), ..edit.clone() };
    let (record, _) = expect_saved(change(store, first.id, &renamed, Some(2), now).await);
    assert_eq!(store.job(super::DEFAULT, &renamed.name).await.unwrap(), Some(record));
    assert_eq!(store.job(super::DEFAULT, &first.spec.name).await.unwrap(), None);
    assert_eq!(store.definitions(&[(first.id, 1), (first.id, 2), (first.id, 3)]).await.unwrap().len(), 3);
    assert_eq!(change(store, JobId::new(next_id()), &edit, None, now).await, JobSaved::NotFound);
    assert_eq!(delete(store, first.id, None, now).await, JobDeleted::Done);
    assert_eq!(change(store, first.id, &renamed, None, now).await, JobSaved::NotFound);
}

/// A deletion settles future runs and leaves ended ones.
pub async fn a_deleted_job_settles_its_rows(store: &dyn Store) {
    let (token, job, rows, now) = with_four_rows(store).await;
    store.ask_cancel(rows[1].id, CancelRequest::requested("mia"), now).await.unwrap();
    let now = now + Duration::from_secs(1);
    assert_eq!(delete(store, job.id, None, now).await, JobDeleted::Done);
    let deleted = (RunStatus::Skipped, Some(Reason::Deleted), 1);
    let expected = [(RunStatus::Pending, None, 1), deleted, deleted, deleted];
    assert_eq!(statuses(store, &rows).await, expected, "the first was due before");
    assert_eq!(due_job(store, &job, &[NodeId::new(0), token.node]).await, None);
    assert_eq!(store.cancels(token).await.unwrap(), []);
    // The deletion was requested three seconds ago. The row is due within a second by the store's own clock: it may have been read for
    // sending, so it stays.
    let now = store.now().await.unwrap();
    let job = job_with(store, spec(&name("slow"), serde_json::json!({"schedule": {"every": "1s"}})), Some(now)).await;
    let row = run(&job, token, now + Duration::from_millis(800));
    claim(store, token, &job, vec![row.clone()]).await;
    assert_eq!(delete(store, job.id, None, now - Duration::from_secs(3)).await, JobDeleted::Done);
    assert_eq!(read_run(store, row.id).await.status, RunStatus::Pending);
}

/// Fires that were due and had no row yet get one row for all of them, with the reason why they did not run.
pub async fn overdue_fires_of_an_edited_job_are_one_row(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let now = Timestamp::from_secs(now.second());
    let at = |before: i64| Timestamp::from_secs(now.second() - before);
    for (paused, count) in [(true, 4), (false, 1)] {
        let spec = spec(&name("job"), serde_json::json!({"schedule": {"cron": "* * * * * ?"}}));
        let job = job_with(store, spec, Some(at(count - 1))).await;
        let reason = if paused {
            let off = JobSpec { enabled: false, ..job.spec.clone() };
            let (record, _) = expect_saved(change(store, job.id, &off, None, now).await);
            assert_eq!(record.next_fire_at, None);
            Reason::Paused
        } else {
            assert_eq!(delete(store, job.id, None, now).await, JobDeleted::Done);
            Reason::Deleted
        };
        let rows = store.planned_rows(job.id, at(60), now + Duration::from_secs(1), 10).await.unwrap();
        assert_eq!(rows.len(), 1, "{rows:?}");
        let row = &rows[0];
        assert_eq!((row.status, row.reason, row.finished_at), (RunStatus::Skipped, Some(reason), Some(now)));
        assert_eq!((row.fire_at, row.span_count, row.job_version), (at(count - 1), count, 1));
        assert_eq!(row.span_end_at, (count > 1).then_some(now));
    }
    // The first two of four overdue fires have a row already.
    let token = join(store).await;
    let spec = spec(&name("job"), serde_json::json!({"schedule": {"cron": "* * * * * ?"}}));
    let job = job_with(store, spec, Some(at(3) - Duration::from_secs(60))).await;
    claim(store, token, &job, vec![run(&job, token, at(3)), run(&job, token, at(2))]).await;
    assert_eq!(delete(store, job.id, None, now).await, JobDeleted::Done);
    let rows = store.planned_rows(job.id, at(60), now, 10).await.unwrap();
    let fires: Vec<_> = rows.iter().map(|row| (row.fire_at, row.span_end_at)).collect();
    assert_eq!(fires, [(at(3), None), (at(2), None), (at(1), Some(now))]);
    assert_eq!((rows[2].reason, rows[2].span_count), (Some(Reason::Deleted), 2));
}

/// A job fires at an `at` that was in the future at validation, even if the instant has passed when the definition is saved.
pub async fn an_instant_that_was_ahead_when_it_was_checked_fires(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let at = now - Duration::from_millis(20);
    for (checked_before, expected) in [(40, Some(at)), (10, None)] {
        let job = job_with(store, spec(&name("job"), serde_json::json!({})), None).await;
        let once = JobSpec {
            schedule: spec("j", serde_json::json!({"schedule": {"at": at.to_string()}})).schedule,
            ..job.spec.clone()
        };
        let checked_at = now - Duration::from_millis(checked_before);
        let (record, _) = expect_saved(change_checked_at(store, (job.id, &once, None), checked_at, (now, now)).await);
        assert_eq!(record.next_fire_at, expected);
    }
}

/// An attempt ends after its job was paused. If an executor had the attempt, the run gets its next attempt. If no executor received it, the
/// request to end the run stays.
pub(super) async fn a_run_that_an_executor_had_is_not_dropped(
    store: &dyn Store,
    token: LeaseToken,
    paused: CancelRequest<'_>,
) {
    let policy = NextStepPolicy { retry_max: 1, ..POLICY };
    for (outcome, expected) in [(FAILED, None), (Outcome::Lost(Reason::NotReceived), Some(Reason::Paused))] {
        let run = pending_run(store, token).await;
        store.ask_drops(&[run.id], paused, run.due_at).await.unwrap();
        finish_one(store, AttemptEnd { policy, ..finish(&run, outcome) }).await;
        assert_eq!(store.check_runs(&[run.id]).await.unwrap()[0].drop_for, expected);
    }
}
