//! A database whose answers are long under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use rondel_admin::clock::Boot;
use rondel_admin::{Engine, EngineConfig, Lifecycle};
use rondel_store::ledger::{ClaimJob, Claimed, Ends, Finish, Finisher, RunCheck};
use rondel_store::{MemStore, Result, Store};

use super::world::store;

/// Answers each renewal after three seconds, while it is slow.
#[derive(Debug)]
struct Slow {
    inner: Arc<MemStore>,
    is_slow: AtomicBool,
    /// The host's time since boot, which stands still but for the waiting.
    boot_micros: Arc<AtomicI64>,
    renewal_count: AtomicI64,
}

impl Slow {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let answer = effect.await;
        if name == "renew" && self.is_slow.load(Ordering::SeqCst) {
            self.boot_micros.fetch_add(3_000_000, Ordering::SeqCst);
            self.renewal_count.fetch_add(1, Ordering::SeqCst);
        }
        answer
    }
}

rondel_store::pass_on!(Slow {
    async fn claim(&self, token: LeaseToken, jobs: &[ClaimJob]) -> Result<Claimed> {
        self.call("claim", self.inner().claim(token, jobs)).await
    }

    async fn finish(&self, finisher: Finisher<'_>, batch: &[Finish]) -> Result<Ends> {
        self.call("finish", self.inner().finish(finisher, batch)).await
    }

    async fn check_runs(&self, ids: &[RunId]) -> Result<Vec<RunCheck>> {
        self.call("check_runs", self.inner().check_runs(ids)).await
    }

    async fn note_running(&self, token: LeaseToken, runs: &[InHand]) -> Result<()> {
        self.call("note_running", self.inner().note_running(token, runs)).await
    }
});

/// The lease runs from before its renewal was sent: where the answer is longer under way than the lease is long, others may
/// have ended it by then.
#[tokio::test]
async fn a_lease_does_not_count_from_the_answer_to_its_renewal() {
    let boot_micros = Arc::new(AtomicI64::new(1_000_000));
    let slow = Arc::new(Slow {
        inner: store(),
        is_slow: AtomicBool::new(false),
        boot_micros: Arc::clone(&boot_micros),
        renewal_count: AtomicI64::new(0),
    });
    let boot = Boot::Given(Arc::new(move || boot_micros.load(Ordering::SeqCst)));
    let (lease, beat) = (Duration::from_secs(2), Duration::from_millis(20));
    let config = EngineConfig { lease, beat, boot, ..EngineConfig::default() };
    let lifecycle = Lifecycle::new();
    let engine = Engine::start(Arc::clone(&slow) as Arc<dyn Store>, config, &lifecycle).await.unwrap();
    assert!(engine.readiness().lease_held);
    slow.is_slow.store(true, Ordering::SeqCst);
    let mut renewals = 0;
    while renewals < 20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        renewals = slow.renewal_count.load(Ordering::SeqCst);
        assert!(renewals == 0 || !engine.readiness().lease_held, "after {renewals} renewals");
    }
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}
