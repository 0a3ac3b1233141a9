//! Checks of the reads for live views.

use rondel_core::outcome::Outcome;
use rondel_core::{ExecutorId, RunId, RunStatus, Timestamp};

use super::edits::{change, delete, expect_saved};
use super::{DEFAULT, claim, dispatch, finish, finish_all, job, join, next_id, open_stream, read_run, run};
use crate::changes::RunSnapshot;
use crate::cluster::ExecutorRecord;
use crate::{LeaseToken, Store};

/// Runs are read by id in their current state, open runs by their lease, and jobs, including deleted ones, by their last save.
pub async fn changes_are_read_as_they_stand(store: &dyn Store) {
    let token = join(store).await;
    let start = store.now().await.unwrap();
    let first = job(store, Some(start.ceil_second())).await;
    let rows = [run(&first, token, start.ceil_second()), run(&first, token, start.ceil_second() + super::LEASE)];
    claim(store, token, &first, rows.to_vec()).await;
    store.note_running(token, &[dispatch::at_executor(&rows[1], "one")]).await.unwrap();
    finish_all(store, &[finish(&rows[0], Outcome::Succeeded)]).await;
    let mut snapshots = Vec::new();
    for row in &rows {
        snapshots.push(RunSnapshot::from(&read_run(store, row.id).await));
    }
    assert_eq!([snapshots[0].status, snapshots[1].status], [RunStatus::Succeeded, RunStatus::Running]);
    let before = RunId::new(rows[0].id.get() - 1);
    let own =
        |found: Vec<RunSnapshot>| -> Vec<RunSnapshot> { found.into_iter().filter(|run| run.job == first.id).collect() };
    assert_eq!(own(store.snapshots_after(before, 1_000).await.unwrap()), snapshots);
    assert_eq!(store.snapshots_after(before, 1).await.unwrap(), snapshots[..1]);
    assert_eq!(own(store.snapshots_after(rows[1].id, 1_000).await.unwrap()), []);
    let mut now = store.current_snapshots(&[rows[1].id, RunId::new(next_id()), rows[0].id]).await.unwrap();
    now.sort_by_key(|run| run.id);
    assert_eq!(now, snapshots);
    assert_eq!(store.snapshots_of_lease(token, 10).await.unwrap(), snapshots[1..]);

    let deleted = job(store, None).await;
    let at = store.now().await.unwrap();
    let edited = expect_saved(change(store, first.id, &first.spec, None, at).await).0;
    delete(store, deleted.id, None, at).await;
    let found = store.jobs_saved(start, 1_000).await.unwrap();
    assert!(found.windows(2).all(|pair| (pair[0].at, pair[0].id) < (pair[1].at, pair[1].id)));
    let saved_job = |id| found.iter().find(|job| job.id == id).unwrap();
    let first_saved_job = saved_job(first.id);
    assert_eq!(
        (first_saved_job.version, first_saved_job.name.as_str(), first_saved_job.is_deleted),
        (edited.version, first.spec.name.as_str(), false)
    );
    assert_eq!((first_saved_job.namespace, first_saved_job.app, first_saved_job.at), (DEFAULT, first.app, at));
    assert!(saved_job(deleted.id).is_deleted);
    assert_eq!(store.jobs_saved(start, 1).await.unwrap(), found[..1]);
    assert_eq!(store.jobs_saved(Timestamp::MAX, 10).await.unwrap(), []);

    let record = ExecutorRecord { name: "executor-ü".to_owned(), ..super::executor(first.app, start) };
    store.open_session(token, &record, None).await.unwrap();
    let names = store.executor_names(&[record.id, ExecutorId::new(next_id())]).await.unwrap();
    assert_eq!(names, [(record.id, DEFAULT, record.name)]);
    a_run_that_awaits_the_roll_call_is_shown_as_pending(store, token).await;
}

/// The row of an adopted run that may have been sent is `running`, but the run may never have been sent.
async fn a_run_that_awaits_the_roll_call_is_shown_as_pending(store: &dyn Store, heir: LeaseToken) {
    let dead = join(store).await;
    open_stream(store, dead).await;
    let at = store.now().await.unwrap().ceil_second() - super::LEASE;
    let job = job(store, Some(at)).await;
    let row = run(&job, dead, at);
    claim(store, dead, &job, vec![row.clone()]).await;
    store.release(dead, Timestamp::EPOCH).await.unwrap();
    super::orphans::adopt_all(store, heir, &[dead.node]).await;
    assert!(read_run(store, row.id).await.awaits_roll_call());
    let snapshot = RunSnapshot { status: RunStatus::Pending, ..RunSnapshot::from(&row) };
    assert!(store.snapshots_of_lease(heir, 1_000).await.unwrap().contains(&snapshot));
    assert_eq!(store.current_snapshots(&[row.id]).await.unwrap(), [snapshot]);
    // Once an executor has reported the run, it is shown as running.
    store.note_running(heir, &[dispatch::at_executor(&row, "one")]).await.unwrap();
    assert_eq!(store.current_snapshots(&[row.id]).await.unwrap()[0].status, RunStatus::Running);
}
