//! Tests of definitions that cannot be read.

use rondel_core::calendar::CalendarSpec;
use rondel_core::{AppId, CalendarId, JobId, NamespaceId, Timestamp};
use serde_json::json;

use super::{Query, SqlStore, Statement};
use crate::calendars::CalendarChange;
use crate::catalog::{JobQuery, ListedJob, NewJob, UnreadableJob};
use crate::{Calendars as _, Catalog as _, CreateJobs as _, DatabaseUrl, Namespaces as _, StoreConfig};

const REPLACE_SPEC: Statement =
    Statement { name: "replace_spec", text: "UPDATE job_version SET spec = ? WHERE job_id = ?" };

const REPLACE_CALENDAR: Statement =
    Statement { name: "replace_calendar", text: "UPDATE calendar_version SET spec = ? WHERE calendar_id = ?" };

/// A newer server may have saved a definition with a field that this one does not know.
#[tokio::test]
async fn a_definition_that_cannot_be_read_holds_up_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let url = DatabaseUrl::sqlite_file(folder.path().join("rondel.db"));
    let store = SqlStore::open(&StoreConfig { url, ..StoreConfig::default() }).await.unwrap();
    let (namespace, app, now) = (NamespaceId::new(1), AppId::new(7), Timestamp::from_secs(1_800_000_000));
    store.ensure_app(app, namespace, "a", now).await.unwrap();
    let jobs = [1, 2].map(|id| NewJob {
        id: JobId::new(id),
        namespace,
        app,
        spec: serde_json::from_value(json!({"name": format!("j{id}"), "app": "a", "handler": "h"})).unwrap(),
        anchor: now,
        next_fire_at: None,
        delay: None,
        calendar: None,
        declared: None,
        author: "test".to_owned(),
        now,
    });
    store.create_jobs(&jobs).await.unwrap();
    let newer = r#"{"name": "j1", "app": "a", "handler": "h", "of_a_newer_server": 1}"#;
    assert_eq!(store.execute(Query::new(&REPLACE_SPEC).text(newer).int(1)).await.unwrap(), 1);
    let keys: Vec<(JobId, i64)> = jobs.iter().map(|job| (job.id, 1)).collect();
    let found = store.definitions(&keys).await.unwrap();
    assert_eq!(found.iter().map(|definition| definition.job.get()).collect::<Vec<_>>(), [2]);

    let unreadable = UnreadableJob {
        id: JobId::new(1),
        app,
        name: "j1".to_owned(),
        app_name: "a".to_owned(),
        handler: "h".to_owned(),
        version: 1,
    };
    let query = JobQuery { limit: 9, ..JobQuery::default() };
    let listed = store.listed_jobs(namespace, &query).await.unwrap();
    let named = store.listed_jobs_named(namespace, &["j1", "j2"]).await.unwrap();
    assert_eq!(listed, named);
    assert_eq!(listed[0], ListedJob::Unreadable(unreadable));
    assert_eq!((listed[1].name(), listed.len()), ("j2", 2));
    for readable in [
        store.jobs(namespace, &query).await.unwrap(),
        store.jobs_named(namespace, &["j1", "j2"]).await.unwrap(),
        store.jobs_by_id(&jobs.map(|job| job.id)).await.unwrap(),
    ] {
        assert_eq!(readable.iter().map(|job| job.id.get()).collect::<Vec<_>>(), [2]);
    }
    assert!(store.job(namespace, "j1").await.is_err(), "an edit must not replace what this server cannot read");
    store.close().await;
}

#[tokio::test]
async fn a_calendar_that_cannot_be_read_is_listed_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let url = DatabaseUrl::sqlite_file(folder.path().join("rondel.db"));
    let store = SqlStore::open(&StoreConfig { url, ..StoreConfig::default() }).await.unwrap();
    let (namespace, now) = (NamespaceId::new(1), Timestamp::from_secs(1_800_000_000));
    for (id, name) in [(1, "a"), (2, "b")] {
        let spec: CalendarSpec = serde_json::from_value(json!({"name": name, "rule": {"weekdays": ["mon"]}})).unwrap();
        let (id, expanded_rule) = (CalendarId::new(id), &spec.rule);
        let change =
            CalendarChange { id, namespace, expected_version: None, spec: &spec, expanded_rule, author: "test", now };
        store.save_calendar(change).await.unwrap();
    }
    let newer = r#"{"name": "a", "description": "of a newer server", "rule": {"phases_of_the_moon": []}}"#;
    assert_eq!(store.execute(Query::new(&REPLACE_CALENDAR).text(newer).int(1)).await.unwrap(), 1);
    let listed = store.calendar_outlines(namespace, None, 9).await.unwrap();
    let shown: Vec<_> = listed.iter().map(|one| (one.name.as_str(), one.version, one.is_readable)).collect();
    assert_eq!(shown, [("a", 1, false), ("b", 1, true)]);
    assert!(store.calendar(namespace, "a").await.is_err());
    store.close().await;
}
