//! A server that takes over runs while the database fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rondel_admin::EngineConfig;
use rondel_core::reason::WaitFor;
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body as Up;
use rondel_proto::v1::result_ack::Kind;
use rondel_store::{MemStore, Result, Store, StoreError};
use serde_json::json;
use tokio::time::timeout;

use super::world::{LIMIT, World, create, hello, request, runs, store};

/// A store that performs the first adoption without an answer.
#[derive(Debug)]
struct LostAdoption {
    inner: Arc<MemStore>,
    is_lost: AtomicBool,
}

impl LostAdoption {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let done = effect.await;
        if name == "adopt" && !self.is_lost.swap(true, Ordering::SeqCst) {
            return Err(StoreError::no_answer(name));
        }
        done
    }
}

rondel_store::delegate_store!(LostAdoption);

/// A run that waits for its next attempt goes before the later runs of its job, also if the answer to its adoption was lost.
#[tokio::test]
async fn a_retry_keeps_its_turn_though_the_answer_to_its_adoption_was_lost() {
    let (inner, config) = (store(), EngineConfig { lease: Duration::from_secs(1), ..EngineConfig::default() });
    let config = EngineConfig { beat: Duration::from_millis(200), ..config };
    let world = World::start_on(Arc::clone(&inner), config.clone()).await;
    let job = create(&world, json!({"retry": {"max": 1, "backoff": "1h"}})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap().beat();
    request(&world, &job).await;
    let first = line.trigger().await;
    let (run_id, attempt) = (first.run_id, first.attempt);
    let status = v1::result::Status::Failed.into();
    let failed = v1::Result { run_id, attempt, status, retryable: true, started_at_ms: 1, ..v1::Result::default() };
    line.send(Up::Results(v1::Results { results: vec![failed] })).await;
    assert_eq!(line.ack().await.kind(), Kind::Stored);
    world.die().await;

    // The next start of the server takes over the runs of its earlier lease.
    let lost = Arc::new(LostAdoption { inner: Arc::clone(&inner), is_lost: AtomicBool::new(false) });
    let world = World::start_behind(inner, Arc::clone(&lost) as Arc<dyn Store>, config).await;
    let line = world.dial(Some(&world.token), hello("b", 2)).await.unwrap().beat();
    request(&world, &job).await;
    let is_behind = async {
        loop {
            let later = runs(&world).await.into_iter().find(|run| run.id.get() != run_id);
            if later.is_some_and(|run| run.waits_for() == Some(WaitFor::Run)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(timeout(LIMIT, is_behind).await.is_ok(), "the later run does not wait");
    assert!(lost.is_lost.load(Ordering::SeqCst));
    drop(line);
    world.die().await;
}
