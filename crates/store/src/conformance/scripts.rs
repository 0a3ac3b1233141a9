//! Checks of scripts, and of the jobs that name them.

use rondel_core::script::{KEPT_VERSIONS, SOURCE_LEN_MAX, ScriptRef, ScriptSpec};
use rondel_core::{AppId, JobId, NamespaceId, RunId, ScriptId};
use serde_json::{Value, json};

use super::alerts::new_namespace;
use super::edits::delete;
use super::{compile, expect_created, name, next_id, spec};
use crate::Store;
use crate::catalog::{JobChange, JobCreated, JobDeleted, JobRecord, JobSaved, NamespaceDeleted, NewJob};
use crate::scripts::{ScriptChange, ScriptDeleted, ScriptRecord, ScriptSaved};

fn source(language: &str, text: &str) -> ScriptSpec {
    ScriptSpec {
        language: language.to_owned(),
        source: text.to_owned(),
        note: "für \u{1f980}".to_owned(),
        signature: None,
    }
}

/// A namespace for scripts, and the number of versions per script that are kept there.
#[derive(Clone, Copy)]
struct ScriptNamespace<'a>(&'a dyn Store, NamespaceId, u32);

impl ScriptNamespace<'_> {
    async fn save(self, name: &str, spec: &ScriptSpec, expected_version: Option<i64>) -> ScriptSaved {
        let Self(store, namespace, kept_count) = self;
        let hash = format!("{:064x}", spec.source.len());
        let change = ScriptChange {
            id: ScriptId::new(next_id()),
            namespace,
            name,
            expected_version,
            spec,
            hash: &hash,
            kept_count,
            author: "conformance",
            now: store.now().await.unwrap(),
        };
        store.save_script(change).await.unwrap()
    }

    async fn new_job(self, params: Value) -> NewJob {
        let Self(store, namespace, _) = self;
        let now = store.now().await.unwrap();
        NewJob {
            id: JobId::new(next_id()),
            namespace,
            app: store.ensure_app(AppId::new(next_id()), namespace, "app", now).await.unwrap().id,
            spec: spec(&name("scripted"), json!({"handler": "shell", "params": params})),
            anchor: now,
            next_fire_at: None,
            delay: None,
            calendar: None,
            declared: None,
            author: "conformance".to_owned(),
            now,
        }
    }

    async fn change(self, record: &JobRecord, params: Value) -> JobSaved {
        let Self(store, ..) = self;
        let spec = spec(&record.spec.name, json!({"handler": "shell", "params": params}));
        let (job, before, now) = (compile(&spec), compile(&record.spec), store.now().await.unwrap());
        let change = JobChange {
            id: record.id,
            expected_version: None,
            spec: &spec,
            job: &job,
            before: &before,
            calendar: None,
            app: record.app,
            author: "conformance",
            skipped_row_id: RunId::new(next_id()),
            now,
            checked_at: now,
            reached: now,
            drops: None,
        };
        store.change_job(change).await.unwrap()
    }
}

#[track_caller]
fn expect_saved(saved: ScriptSaved) -> ScriptRecord {
    match saved {
        ScriptSaved::Created(record) | ScriptSaved::Changed(record) => record,
        other => unreachable!("{other:?}"),
    }
}

fn script_ref(name: &str, version: Option<i64>) -> ScriptRef {
    ScriptRef { name: name.to_owned(), version }
}

/// Each version has its author, note, hash and signature.
pub async fn scripts_are_read_as_they_were_written(store: &dyn Store) {
    let namespace = new_namespace(store).await;
    let scripts = ScriptNamespace(store, namespace, KEPT_VERSIONS);
    assert_eq!(store.script(namespace, "a").await.unwrap(), None);
    assert_eq!(scripts.save("a", &source("shell", "date"), Some(1)).await, ScriptSaved::Conflict(0));
    let ScriptSaved::Created(first) = scripts.save("a", &source("shell", "date"), Some(0)).await else {
        unreachable!("it is new")
    };
    let long = "é\n".repeat(SOURCE_LEN_MAX / 3);
    let signed = ScriptSpec { signature: Some("c2lnbmVk".to_owned()), ..source("shell", &long) };
    let ScriptSaved::Changed(second) = scripts.save("a", &signed, Some(1)).await else { unreachable!("it is there") };
    assert_eq!((first.id, first.created_at, first.language.as_str()), (second.id, second.created_at, "shell"));
    assert_eq!(store.script(namespace, "a").await.unwrap(), Some(second.clone()));
    let newest = &second.newest;
    assert_eq!((newest.version, newest.size, newest.note.as_str()), (2, long.len() as u64, "für \u{1f980}"));
    assert_eq!((newest.signature.as_deref(), newest.author.as_str()), (Some("c2lnbmVk"), "conformance"));
    let read = async |version| store.script_version(first.id, version).await.unwrap();
    assert_eq!(read(1).await, Some((first.newest.clone(), "date".to_owned())));
    assert_eq!(read(2).await, Some((second.newest.clone(), long)));
    assert_eq!(read(3).await, None);

    assert_eq!(scripts.save("a", &source("shell", "x"), Some(1)).await, ScriptSaved::Conflict(2));
    assert_eq!(scripts.save("a", &source("php", "x"), None).await, ScriptSaved::OtherLanguage("shell".to_owned()));
    expect_saved(scripts.save("b", &source("python", "1"), None).await);
    let names = async |after: Option<&str>, limit| {
        let found = store.scripts(namespace, after, limit).await.unwrap();
        found.into_iter().map(|script| script.name).collect::<Vec<_>>()
    };
    assert_eq!(
        (names(None, 9).await, names(Some("a"), 9).await),
        (vec!["a".to_owned(), "b".to_owned()], vec!["b".to_owned()])
    );
    assert_eq!(names(None, 1).await, ["a"]);
    let versions = async |before, limit| {
        let found = store.script_versions(first.id, before, limit).await.unwrap();
        found.into_iter().map(|version| version.version).collect::<Vec<_>>()
    };
    assert_eq!(
        (versions(None, 9).await, versions(Some(2), 9).await, versions(None, 1).await),
        (vec![2, 1], vec![1], vec![2])
    );
    let other = new_namespace(store).await;
    assert_eq!(store.script(other, "a").await.unwrap(), None);
    assert_eq!(store.delete_namespace(namespace).await.unwrap(), NamespaceDeleted::Used);
    for script in ["a", "b"] {
        assert_eq!(store.delete_script(namespace, script, None).await.unwrap(), ScriptDeleted::Deleted);
    }
    assert_eq!((read(1).await, names(None, 9).await), (None, Vec::new()));
    assert_eq!(store.delete_namespace(namespace).await.unwrap(), NamespaceDeleted::Done);
}

/// Two concurrent saves create one version each. If both expect the same version, one has a conflict.
pub async fn scripts_saved_at_once_get_a_version_each(store: &dyn Store) {
    let scripts = ScriptNamespace(store, new_namespace(store).await, KEPT_VERSIONS);
    let (one, two) = (source("shell", "1"), source("shell", "22"));
    let (first, second) = tokio::join!(scripts.save("a", &one, None), scripts.save("a", &two, None));
    let mut versions = [expect_saved(first).newest.version, expect_saved(second).newest.version];
    versions.sort_unstable();
    assert_eq!(versions, [1, 2]);
    let (first, second) = tokio::join!(scripts.save("a", &one, Some(2)), scripts.save("a", &two, Some(2)));
    let conflicts = [&first, &second].into_iter().filter(|saved| **saved == ScriptSaved::Conflict(3)).count();
    assert_eq!(conflicts, 1, "{first:?} {second:?}");
}

/// The newest versions are kept, and the versions that a job names.
pub async fn old_versions_of_a_script_are_forgotten_unless_a_job_names_them(store: &dyn Store) {
    let scripts = ScriptNamespace(store, new_namespace(store).await, 3);
    let script = expect_saved(scripts.save("a", &source("shell", "1"), None).await);
    let pinned = scripts.new_job(json!({"script": {"name": "a", "version": 1}})).await;
    let pinned = expect_created(store.create_job(pinned).await.unwrap());
    for version in 2..=6 {
        assert_eq!(expect_saved(scripts.save("a", &source("shell", "1"), None).await).newest.version, version);
    }
    let versions = async || {
        let found = store.script_versions(script.id, None, 99).await.unwrap();
        found.into_iter().map(|version| version.version).collect::<Vec<_>>()
    };
    assert_eq!(versions().await, [6, 5, 4, 1]);
    let gone = scripts.new_job(json!({"script": {"name": "a", "version": 3}})).await;
    assert_eq!(store.create_job(gone).await.unwrap(), JobCreated::NoScript(script_ref("a", Some(3))));
    assert!(matches!(scripts.change(&pinned, json!({"script": {"name": "a"}})).await, JobSaved::Saved(..)));
    expect_saved(scripts.save("a", &source("shell", "1"), None).await);
    assert_eq!(versions().await, [7, 6, 5]);
}

/// A script that a job names is not deleted. A job that names a missing script is not saved.
pub async fn a_used_script_is_not_deleted(store: &dyn Store) {
    let namespace = new_namespace(store).await;
    let scripts = ScriptNamespace(store, namespace, KEPT_VERSIONS);
    let named = json!({"script": {"name": "a"}});
    let new = scripts.new_job(named.clone()).await;
    assert_eq!(store.create_job(new.clone()).await.unwrap(), JobCreated::NoScript(script_ref("a", None)));
    let free = scripts.new_job(json!({"script": "date"})).await;
    let both = store.create_jobs(&[free.clone(), new.clone()]).await.unwrap();
    assert!(matches!(&both[..], [JobCreated::Saved(_), JobCreated::NoScript(_)]), "{both:?}");
    let free = store.job(namespace, &free.spec.name).await.unwrap().unwrap();

    expect_saved(scripts.save("a", &source("shell", "date"), None).await);
    let more = [scripts.new_job(named.clone()).await, scripts.new_job(named.clone()).await];
    let [one, two] = &store.create_jobs(&more).await.unwrap()[..] else { unreachable!("two") };
    let (one, two) = (expect_created(one.clone()), expect_created(two.clone()));
    let job = expect_created(store.create_job(new).await.unwrap());
    let mut users = [&one, &two, &job].map(|job| job.spec.name.clone());
    users.sort();
    let deleted = async |expected| store.delete_script(namespace, "a", expected).await.unwrap();
    assert_eq!(deleted(None).await, ScriptDeleted::Used(users.to_vec(), 3));
    let read = async |within: Option<&[AppId]>, after: Option<&str>, limit| {
        store.jobs_with_script(namespace, "a", within, after, limit).await.unwrap()
    };
    assert_eq!(
        (read(None, None, 9).await, read(None, Some(&users[0]), 1).await),
        (users.to_vec(), vec![users[1].clone()])
    );
    assert_eq!((read(Some(&[job.app]), None, 9).await.len(), read(Some(&[]), None, 9).await.len()), (3, 0));
    assert_eq!(read(Some(&[AppId::new(next_id())]), None, 9).await, Vec::<String>::new());

    let none = scripts.change(&free, json!({"script": {"name": "none"}})).await;
    assert_eq!(none, JobSaved::NoScript(script_ref("none", None)));
    let none = scripts.change(&job, json!({"script": {"name": "a", "version": 2}})).await;
    assert_eq!(none, JobSaved::NoScript(script_ref("a", Some(2))));
    assert!(matches!(scripts.change(&job, json!({"script": "date"})).await, JobSaved::Saved(..)));
    for job in [&one, &two] {
        assert_eq!(delete(store, job.id, None, store.now().await.unwrap()).await, JobDeleted::Done);
    }
    assert_eq!((deleted(Some(2)).await, deleted(Some(1)).await), (ScriptDeleted::Conflict(1), ScriptDeleted::Deleted));
    assert_eq!(deleted(None).await, ScriptDeleted::NotFound);
}

/// The store serializes the deletion of a script with the saving of a job that names it.
pub async fn a_script_is_not_deleted_under_a_job_that_is_saved(store: &dyn Store) {
    let namespace = new_namespace(store).await;
    let scripts = ScriptNamespace(store, namespace, KEPT_VERSIONS);
    for _ in 0..5 {
        let script = name("script");
        expect_saved(scripts.save(&script, &source("shell", "date"), None).await);
        let new = scripts.new_job(json!({"script": {"name": script}})).await;
        let (made, deleted) = tokio::join!(store.create_job(new), store.delete_script(namespace, &script, None));
        match (made.unwrap(), deleted.unwrap()) {
            (JobCreated::Saved(_), ScriptDeleted::Used(_, 1)) | (JobCreated::NoScript(_), ScriptDeleted::Deleted) => {}
            other => unreachable!("both went through: {other:?}"),
        }
    }
}
