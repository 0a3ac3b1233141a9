//! Checks of maintenance windows and silences.

use std::time::Duration;

use rondel_core::alert::SilenceSpec;
use rondel_core::maintenance::{FiresInside, MaintenanceWindow};
use rondel_core::{AppId, MaintenanceId, NodeId, Reason, RunStatus, SilenceId};

use super::alerts::new_namespace;
use super::{DEFAULT, claim, due_job, job, join, next_id, run};
use crate::Store;
use crate::alerts::{MAINTENANCE_COUNT_MAX, MaintenanceRecord, SILENCE_COUNT_MAX, SilenceRecord};
use crate::ledger::ClaimJob;

const HOUR: Duration = Duration::from_secs(3600);

/// A window is read as it was written. A window that has begun ends now, one that has not begun becomes empty, and neither can be ended
/// twice.
pub async fn a_window_is_read_as_it_was_planned(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let namespace = new_namespace(store).await;
    let window = |starts_at, app: Option<i64>| MaintenanceRecord {
        window: MaintenanceWindow {
            id: MaintenanceId::new(next_id()),
            namespace,
            app: app.map(AppId::new),
            starts_at,
            ends_at: starts_at + HOUR,
            fires: FiresInside::Skip,
        },
        app_name: None,
        reason: "moving the 数据库".to_owned(),
        author: "ann".to_owned(),
        created_at: now,
    };
    let (open, ahead) = (window(now, None), window(now + HOUR, Some(7)));
    assert!(store.add_maintenance(&open).await.unwrap());
    assert!(store.add_maintenance(&open).await.unwrap(), "an earlier try stored it");
    assert!(store.add_maintenance(&ahead).await.unwrap());
    assert_eq!(store.maintenance(Some(namespace), now).await.unwrap(), [open.clone(), ahead.clone()]);
    assert!(store.maintenance(None, now).await.unwrap().contains(&ahead));
    assert_eq!(store.maintenance(Some(namespace), now + HOUR).await.unwrap(), std::slice::from_ref(&ahead));
    let later = now + HOUR / 4;
    assert!(!store.end_maintenance(DEFAULT, open.window.id, later).await.unwrap(), "another tenant's");
    assert!(store.end_maintenance(namespace, open.window.id, later).await.unwrap());
    assert!(store.end_maintenance(namespace, open.window.id, later + HOUR / 2).await.unwrap(), "again");
    assert!(store.end_maintenance(namespace, ahead.window.id, later).await.unwrap());
    assert!(!store.end_maintenance(namespace, MaintenanceId::new(next_id()), later).await.unwrap(), "there is none");
    let remaining = store.maintenance(Some(namespace), now).await.unwrap();
    let spans = remaining.iter().map(|one| (one.window.id, one.window.starts_at, one.window.ends_at));
    let mut ended = vec![(open.window.id, now, later), (ahead.window.id, later, later)];
    ended.sort_unstable_by_key(|one| one.0);
    assert_eq!(spans.collect::<Vec<_>>(), ended, "what had not begun is empty");
    assert!(store.maintenance(Some(namespace), later).await.unwrap().is_empty());
    let mut old = window(now, None);
    old.window.ends_at = now;
    assert!(store.add_maintenance(&old).await.unwrap());
    while store.forget_incidents(now + Duration::from_millis(1), 100).await.unwrap() > 0 {}
    let remaining = store.maintenance(Some(namespace), now - HOUR).await.unwrap();
    assert_eq!(remaining.len(), 2, "what ended long ago is removed: {remaining:?}");
}

/// A namespace has a maximum number of windows that have not ended.
pub async fn windows_are_bounded(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let namespace = new_namespace(store).await;
    let window = |ends_at| MaintenanceRecord {
        window: MaintenanceWindow {
            id: MaintenanceId::new(next_id()),
            namespace,
            app: None,
            starts_at: now,
            ends_at,
            fires: FiresInside::Hold,
        },
        app_name: None,
        reason: "r".to_owned(),
        author: "ann".to_owned(),
        created_at: now,
    };
    let mut last = window(now + HOUR);
    for _ in 0..MAINTENANCE_COUNT_MAX {
        assert!(store.add_maintenance(&last).await.unwrap());
        last = window(now + HOUR);
    }
    assert!(!store.add_maintenance(&last).await.unwrap());
    let first = store.maintenance(Some(namespace), now).await.unwrap().remove(0);
    assert!(store.add_maintenance(&first).await.unwrap(), "an earlier try stored it");
    assert!(store.end_maintenance(namespace, first.window.id, now).await.unwrap());
    assert!(store.add_maintenance(&last).await.unwrap(), "one that has ended does not count");
}

/// A claim that holds fires back adds no rows and only sets when the scan looks at the job again. The job's next fire is the first fire
/// that is held back.
pub async fn a_fire_that_is_held_back_is_the_next_fire(store: &dyn Store) {
    let token = join(store).await;
    let now = store.now().await.unwrap();
    let first = now.ceil_second();
    let job = job(store, Some(first)).await;
    let seen_row = due_job(store, &job, &[NodeId::new(0)]).await.unwrap();
    assert_eq!((seen_row.next_fire_at, seen_row.held_from), (first, None));
    let look_at = first + Duration::from_secs(60);
    let hold = ClaimJob {
        recent_fires: seen_row.recent_fires,
        expected_row: seen_row,
        next_fire_at: Some(look_at),
        held_from: Some(first),
        runs: Vec::new(),
        awaited_run: None,
    };
    assert_eq!(store.claim(token, std::slice::from_ref(&hold)).await.unwrap().jobs.len(), 1);
    let record = store.job(DEFAULT, &job.spec.name).await.unwrap().unwrap();
    assert_eq!(record.next_fire_at, Some(first), "it has no row yet");
    let held = due_job(store, &job, &[token.node]).await.unwrap();
    assert_eq!((held.next_fire_at, held.held_from), (look_at, Some(first)));
    assert_eq!(store.claim(token, &[hold]).await.unwrap().jobs, [], "it was seen before");
    let decide = ClaimJob {
        recent_fires: held.recent_fires,
        expected_row: held,
        next_fire_at: Some(look_at),
        held_from: None,
        runs: Vec::new(),
        awaited_run: None,
    };
    assert_eq!(store.claim(token, &[decide]).await.unwrap().jobs.len(), 1);
    assert_eq!(due_job(store, &job, &[token.node]).await.unwrap().held_from, None);
}

/// The reason of a run that a window skipped is stored.
pub async fn a_run_is_skipped_by_a_window(store: &dyn Store) {
    let token = join(store).await;
    let first = store.now().await.unwrap().ceil_second();
    let job = job(store, Some(first)).await;
    let mut skipped = run(&job, token, first);
    (skipped.status, skipped.reason, skipped.finished_at) =
        (RunStatus::Skipped, Some(Reason::Maintenance), Some(first));
    assert!(claim(store, token, &job, vec![skipped.clone()]).await.existing.is_empty());
    assert_eq!(store.runs(&[skipped.id]).await.unwrap()[0].reason, Some(Reason::Maintenance));
}

/// A silence ends at its time or earlier on request, and only once. A namespace has a maximum number of silences that have not ended.
pub async fn a_silence_has_an_end(store: &dyn Store) {
    let namespace = new_namespace(store).await;
    let now = store.now().await.unwrap();
    let silence = SilenceRecord {
        id: SilenceId::new(next_id()),
        namespace,
        spec: SilenceSpec { job: Some("nightly-close".to_owned()), ..SilenceSpec::default() },
        author: "ann".to_owned(),
        reason: "维护".to_owned(),
        created_at: now,
        ends_at: now + HOUR,
    };
    assert!(store.add_silence(&silence).await.unwrap());
    assert!(store.add_silence(&silence).await.unwrap(), "an earlier try stored it");
    assert_eq!(store.silences(namespace, now).await.unwrap(), std::slice::from_ref(&silence));
    assert_eq!(store.silences(namespace, silence.ends_at).await.unwrap(), []);
    assert!(!store.end_silence(DEFAULT, silence.id, now).await.unwrap());
    assert!(store.end_silence(namespace, silence.id, now).await.unwrap());
    assert!(!store.end_silence(namespace, silence.id, now).await.unwrap());
    assert_eq!(store.silences(namespace, now).await.unwrap(), []);

    let mut last = silence;
    for _ in 0..SILENCE_COUNT_MAX {
        last = SilenceRecord { id: SilenceId::new(next_id()), ..last };
        assert!(store.add_silence(&last).await.unwrap());
    }
    assert!(store.add_silence(&last).await.unwrap(), "an earlier try stored it");
    let next = SilenceRecord { id: SilenceId::new(next_id()), ..last };
    assert!(!store.add_silence(&next).await.unwrap());
}
