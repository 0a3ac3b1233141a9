//! Checks of the catalog.

use rondel_core::{AppId, JobId, NamespaceId};

use super::edits::delete;
use super::{DEFAULT, app, expect_created, job, job_with, name, next_id, spec};
use crate::Store;
use crate::catalog::{JobCreated, JobDeleted, JobQuery, NewJob};

/// `default` exists from the start; an app is created once.
pub async fn namespaces_and_apps_are_found_by_name(store: &dyn Store) {
    assert_eq!(store.namespace("default").await.unwrap().unwrap().id, DEFAULT);
    assert_eq!(store.namespace("Default").await.unwrap(), None);
    assert!(store.namespaces().await.unwrap().iter().any(|namespace| namespace.name == "default"));

    let now = store.now().await.unwrap();
    let (first, second) = (AppId::new(next_id()), AppId::new(next_id()));
    let name = name("app");
    assert_eq!(store.app(DEFAULT, &name).await.unwrap(), None);
    let (a, b) =
        tokio::join!(store.ensure_app(first, DEFAULT, &name, now), store.ensure_app(second, DEFAULT, &name, now));
    let made = a.unwrap();
    assert_eq!(made, b.unwrap());
    assert_eq!(store.app(DEFAULT, &name).await.unwrap(), Some(made.clone()));
    assert!(store.apps(DEFAULT).await.unwrap().contains(&made));
    assert_eq!(store.apps(NamespaceId::new(next_id())).await.unwrap(), []);
}

/// Jobs are read as they were written, including text outside of ASCII.
pub async fn jobs_are_read_as_they_were_written(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let spec = spec(&name("job"), serde_json::json!({"description": "日報 \u{1f980}", "params": {"a": "\u{0}"}}));
    let made = job_with(store, spec.clone(), Some(now)).await;
    assert_eq!((made.version, &made.spec, made.next_fire_at), (1, &spec, Some(now)));
    assert_eq!(store.job(DEFAULT, &spec.name).await.unwrap(), Some(made.clone()));
    assert_eq!(store.job(NamespaceId::new(2), &spec.name).await.unwrap(), None);
    let unknown = JobId::new(next_id());
    assert_eq!(store.job_names(&[made.id, unknown]).await.unwrap(), [(made.id, spec.name.clone())]);
    assert_eq!(store.jobs_by_id(&[unknown, made.id]).await.unwrap(), std::slice::from_ref(&made));

    let definitions = store.definitions(&[(made.id, 1), (made.id, 2), (unknown, 1), (made.id, 1)]).await.unwrap();
    assert_eq!(definitions.len(), 1);
    let definition = &definitions[0];
    assert_eq!((definition.job, definition.version, &definition.spec), (made.id, 1, &spec));
    assert_eq!((definition.namespace_name.as_str(), definition.anchor), ("default", made.anchor));
    assert_eq!(store.definitions(&[]).await.unwrap(), []);
}

/// Pages are ordered by name and can be filtered.
pub async fn jobs_come_in_pages_by_name(store: &dyn Store) {
    let tag = name("page");
    let mut names = Vec::new();
    for word in ["a", "b", "c"] {
        names.push(job_with(store, spec(&format!("{tag}-{word}"), serde_json::json!({})), None).await.spec.name);
    }
    let query = JobQuery { name_contains: Some(tag.clone()), limit: 2, ..JobQuery::default() };
    let first = store.jobs(DEFAULT, &query).await.unwrap();
    assert_eq!(first.iter().map(|job| &job.spec.name).collect::<Vec<_>>(), names[..2].iter().collect::<Vec<_>>());
    let query = JobQuery { after_name: Some(names[1].clone()), app: Some(first[0].app), ..query };
    let second = store.jobs(DEFAULT, &query).await.unwrap();
    assert_eq!(second.iter().map(|job| &job.spec.name).collect::<Vec<_>>(), [&names[2]]);
    let query = JobQuery { app: Some(AppId::new(next_id())), limit: 10, ..JobQuery::default() };
    assert_eq!(store.jobs(DEFAULT, &query).await.unwrap(), []);
}

/// Names are compared byte by byte. After a job is deleted, its name is free and its definitions stay.
pub async fn names_differ_by_case_and_are_free_after_deletion(store: &dyn Store) {
    let (lower, upper) = (name("case"), name("case").to_uppercase());
    let lower_again = upper.to_lowercase();
    let first = job_with(store, spec(&lower, serde_json::json!({})), None).await;
    job_with(store, spec(&upper, serde_json::json!({})), None).await;
    job_with(store, spec(&lower_again, serde_json::json!({})), None).await;
    assert_eq!(store.job(DEFAULT, &lower.to_uppercase()).await.unwrap(), None);

    let now = store.now().await.unwrap();
    let new = NewJob {
        id: JobId::new(next_id()),
        namespace: DEFAULT,
        app: app(store).await,
        spec: first.spec.clone(),
        anchor: now,
        next_fire_at: None,
        delay: None,
        calendar: None,
        declared: None,
        author: "conformance".to_owned(),
        now,
    };
    assert_eq!(store.create_job(new.clone()).await.unwrap(), JobCreated::NameTaken);
    assert_eq!(delete(store, first.id, Some(7), now).await, JobDeleted::Conflict(1));
    assert_eq!(delete(store, first.id, Some(1), now).await, JobDeleted::Done);
    assert_eq!(delete(store, first.id, None, now).await, JobDeleted::NotFound);
    assert_eq!(store.job(DEFAULT, &lower).await.unwrap(), None);
    let again = expect_created(store.create_job(new).await.unwrap());
    assert_eq!(delete(store, again.id, None, now).await, JobDeleted::Done, "deleted under the same name twice");
    let last = store.deleted_job(DEFAULT, &lower).await.unwrap().expect("it was deleted");
    assert_eq!(last.deleted_at, now);
    assert_eq!((last.id, last.app), (again.id, again.app), "the one of both that was deleted last");
    assert_eq!(store.deleted_job(DEFAULT, &upper).await.unwrap(), None, "it lives");
    assert_eq!(store.definitions(&[(first.id, 1), (again.id, 1)]).await.unwrap().len(), 2);
    assert_eq!(store.job_names(&[first.id]).await.unwrap(), [(first.id, lower)]);
    let left = job(store, None).await;
    assert_eq!(delete(store, JobId::new(next_id()), None, now).await, JobDeleted::NotFound);
    assert!(store.job(DEFAULT, &left.spec.name).await.unwrap().is_some());
}
