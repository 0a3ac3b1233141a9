//! Housekeeping tasks of which one fails.

use std::sync::Arc;
use std::time::Duration;

use rondel_admin::{Engine, EngineConfig, Lifecycle};
use rondel_store::{Cluster as _, MemStore, Result, Store, StoreError};

use super::world::{LIMIT, store};

/// A store that cannot count runs.
#[derive(Debug)]
struct UncountedStore(Arc<MemStore>);

impl UncountedStore {
    fn inner(&self) -> &MemStore {
        &self.0
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name == "roll_up" { Err(StoreError::no_answer(name)) } else { effect.await }
    }
}

rondel_store::delegate_store!(UncountedStore);

/// The other tasks are done, and each task has its own report.
#[tokio::test(start_paused = true)]
async fn a_duty_that_fails_is_reported_alone_and_stops_no_other() {
    let store = Arc::new(UncountedStore(store()));
    let retention = Duration::from_secs(10);
    let config = EngineConfig { retention, log_retention: retention, ..EngineConfig::default() };
    let lifecycle = Lifecycle::new();
    let _engine = Engine::start(Arc::clone(&store) as Arc<dyn Store>, config, &lifecycle).await.unwrap();
    let end = tokio::time::Instant::now() + LIMIT;
    loop {
        let nodes = store.nodes().await.unwrap();
        let loops = &nodes[0].report.loops;
        let ticked = |name: &str| loops.iter().find(|one| one.name == name).filter(|one| one.tick_count > 1);
        if let (Some(counts), Some(purge), Some(logs)) = (ticked("roll_up"), ticked("purge"), ticked("remove_logs")) {
            assert!(counts.failed_in_a_row > 1 && counts.error.is_some(), "{counts:?}");
            assert_eq!((purge.failed_count, logs.failed_count), (0, 0), "{loops:?}");
            break;
        }
        assert!(tokio::time::Instant::now() < end, "{loops:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}
