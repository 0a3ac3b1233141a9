//! An executor that connects while its server takes its next lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use rondel_admin::EngineConfig;
use rondel_core::Timestamp;
use rondel_store::{MemStore, Result, Store};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tonic::Code;

use super::world::{LIMIT, World, hello};

/// Once it is armed, the next session that is stored is answered after its node has taken another lease: the store's clock steps back.
#[derive(Debug)]
struct LateSession {
    inner: Arc<MemStore>,
    is_armed: AtomicBool,
    /// How far the clock has stepped back, in milliseconds.
    back_ms: Arc<AtomicI64>,
    /// Whether a session waits for the next lease.
    waits: AtomicBool,
    rejoined: Notify,
}

impl LateSession {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let done = effect.await;
        if name == "open_session" && self.is_armed.swap(false, Ordering::SeqCst) {
            self.waits.store(true, Ordering::SeqCst);
            self.back_ms.store(2_000, Ordering::SeqCst);
            timeout(LIMIT, self.rejoined.notified()).await.ok();
        }
        // A node asks for the time once it has its next lease.
        if name == "now" && self.waits.swap(false, Ordering::SeqCst) {
            self.rejoined.notify_one();
        }
        done
    }
}

rondel_store::delegate_store!(LateSession);

/// The row of its session states that its stream ended with the lease before, so nothing may be sent to it.
#[tokio::test]
async fn an_executor_that_connects_during_a_change_of_the_lease_connects_again() {
    let (began, back_ms) = (Instant::now(), Arc::new(AtomicI64::new(0)));
    let back = Arc::clone(&back_ms);
    let clock = move || {
        let elapsed = i64::try_from(began.elapsed().as_millis()).unwrap_or(0);
        Timestamp::from_millis(1_000_000_000 + elapsed - back.load(Ordering::SeqCst))
    };
    let inner = Arc::new(MemStore::new(Arc::new(clock)));
    let late = Arc::new(LateSession {
        inner: Arc::clone(&inner),
        is_armed: AtomicBool::new(false),
        back_ms,
        waits: AtomicBool::new(false),
        rejoined: Notify::new(),
    });
    let config = EngineConfig { beat: Duration::from_millis(100), ..EngineConfig::default() };
    let world = World::start_behind(inner, Arc::clone(&late) as Arc<dyn Store>, config).await;
    late.is_armed.store(true, Ordering::SeqCst);
    let refused = world.dial(Some(&world.token), hello("a", 1)).await.map(|_| ());
    assert_eq!(refused.map_err(|status| status.code()), Err(Code::Unavailable));
    world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    world.die().await;
}
