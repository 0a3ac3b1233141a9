//! Declared jobs, and the problems with them that the server sends to executors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rondel_admin::EngineConfig;
use rondel_core::AppId;
use rondel_proto::v1;
use rondel_proto::v1::server_message::Body as Down;
use rondel_store::catalog::JobRecord;
use rondel_store::{Catalog as _, MemStore, Result, StoreError};

use super::world::{LIMIT, Line, NAMESPACE, World, hello, store};

/// A store that cannot read the sets of the first app that a look applies.
#[derive(Debug)]
struct UnreadableSets {
    inner: Arc<MemStore>,
    fails: AtomicBool,
}

impl UnreadableSets {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name == "declared_set_headers" {
            self.fails.store(true, Ordering::Relaxed);
        }
        if name == "declared_sets" && self.fails.swap(false, Ordering::Relaxed) {
            let message = "another version wrote it".to_owned();
            return Err(StoreError::Corrupt { table: "declared_set", column: "specs", id: 1, message });
        }
        effect.await
    }
}

rondel_store::delegate_store!(UnreadableSets);

fn declaring_hello(name: &str, incarnation: i64, specs: &[&str]) -> v1::Hello {
    let declared = specs.iter().map(|spec| v1::DeclaredJob { spec_json: (*spec).to_owned() }).collect();
    v1::Hello { declared, ..hello(name, incarnation) }
}

async fn problems(line: &mut Line) -> Vec<(String, String, String)> {
    let problems = line.receive(|body| match body {
        Down::DeclarationProblems(sent) => Some(sent.problems),
        _ => None,
    });
    problems.await.into_iter().map(|problem| (problem.job, problem.pointer, problem.message)).collect()
}

#[tokio::test]
async fn a_job_of_another_app_is_refused_and_only_its_own_executor_is_notified() {
    let world = World::start().await;
    let token = Some(&world.token);
    // Two executors that connect and are processed earlier: one declares nothing, the other another job.
    let mut silent = world.dial(token, hello("silent", 1)).await.unwrap();
    let good = r#"{"name": "good", "app": "files", "handler": "h"}"#;
    let mut other = world.dial(token, declaring_hello("other", 2, &[good])).await.unwrap();
    let foreign = r#"{"name": "foreign", "app": "billing", "handler": "h"}"#;
    let mut line = world.dial(token, declaring_hello("wrong", 3, &[foreign])).await.unwrap();
    let [(job, pointer, message)] = &problems(&mut line).await[..] else { unreachable!("one problem") };
    assert_eq!((job.as_str(), pointer.as_str()), ("foreign", "/app"));
    assert!(message.contains("names app \"billing\"") && message.contains("belongs to app \"files\""), "{message}");
    assert!(world.store.job(NAMESPACE, "foreign").await.unwrap().is_none());
    assert_eq!(world.engine.declaration_problems(AppId::new(7)).len(), 1, "users see all of them");
    for line in [&mut silent, &mut other] {
        let heard = line.receive_until_read(9).await;
        let is_problem = |body: &Down| matches!(body, Down::DeclarationProblems(sent) if !sent.problems.is_empty());
        assert!(!heard.iter().any(is_problem), "{heard:?}");
    }
    // The valid job of the other executor is accepted.
    assert!(world.store.job(NAMESPACE, "good").await.unwrap().is_some());
    world.end().await;
}

/// The definition has the instant at which the job ran, the declaration another one. That is no edit by a user: the next declaration counts.
#[tokio::test]
async fn an_instant_in_the_past_that_ran_when_it_was_saved_is_no_edit() {
    let world = World::start().await;
    let token = Some(&world.token);
    let once = |timeout: &str| {
        let schedule = r#"{"at": "2020-01-01T00:00:00Z", "if_past": "run"}"#;
        format!(r#"{{"name": "once", "handler": "h", "schedule": {schedule}, "timeout": "{timeout}"}}"#)
    };
    let declared = async |version: i64| {
        let saved = async {
            loop {
                let record = world.store.job(NAMESPACE, "once").await.unwrap();
                let is_declared = |record: &JobRecord| {
                    let declared = record.declared.as_ref();
                    record.version == version && declared.is_some_and(|declared| declared.spec == record.spec)
                };
                if let Some(record) = record.filter(is_declared) {
                    return record;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(LIMIT, saved).await.unwrap()
    };
    let _old = world.dial(token, declaring_hello("first", 1, &[once("1m").as_str()])).await.unwrap();
    let before = declared(1).await;
    let _new = world.dial(token, declaring_hello("second", 2, &[once("2m").as_str()])).await.unwrap();
    let after = declared(2).await;
    assert_eq!(after.spec.once_instants(), before.spec.once_instants(), "it runs once");
    world.die().await;
}

#[tokio::test]
async fn an_app_whose_declarations_cannot_be_read_stops_no_other() {
    let known = store();
    let unreadable_sets = UnreadableSets { inner: Arc::clone(&known), fails: AtomicBool::new(false) };
    let world = World::start_behind(known, Arc::new(unreadable_sets), EngineConfig::default()).await;
    world.engine.store().ensure_app(AppId::new(8), NAMESPACE, "later", world.engine.now()).await.unwrap();
    let token = Some(&world.token);
    let one = declaring_hello("one", 1, &[r#"{"name": "one", "handler": "h"}"#]);
    let _one = world.dial(token, one).await.unwrap();
    let two = declaring_hello("two", 2, &[r#"{"name": "two", "handler": "h"}"#]);
    let _two = world.dial(token, v1::Hello { app: "later".to_owned(), ..two }).await.unwrap();
    let is_applied = async {
        while world.store.job(NAMESPACE, "two").await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, is_applied).await.unwrap();
    assert!(world.store.job(NAMESPACE, "one").await.unwrap().is_none(), "its sets cannot be read");
    world.die().await;
}
