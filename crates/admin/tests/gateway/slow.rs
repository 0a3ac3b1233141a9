//! A database that answers slowly.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rondel_admin::clock::BootClock;
use rondel_admin::jobs::{self, RunRequest};
use rondel_admin::{Engine, EngineConfig, Lifecycle};
use rondel_core::run::RunJob;
use rondel_core::{NamespaceId, Run, RunId, Trigger};
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body as Up;
use rondel_proto::v1::server_message::Body as Down;
use rondel_store::cluster::{Join, JoinRequest};
use rondel_store::ledger::RunQuery;
use rondel_store::{Claim as _, Cluster as _, MemStore, Result, Runs as _, Store};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::world::{LIMIT, hello, store, success_result};

/// A store that can be made slow. Then an answer to a renewal takes three seconds, and calls that write shards or adopt runs get no answer.
#[derive(Debug)]
struct SlowStore {
    inner: Arc<MemStore>,
    is_slow: watch::Sender<bool>,
    /// The host's time since boot, which advances only during the waits.
    boot_micros: Arc<AtomicI64>,
    renewal_count: AtomicI64,
    /// How often overdue runs were queried while it was slow.
    overdue_count: AtomicI64,
    /// How often it held back the answer to an adoption.
    adopt_count: AtomicI64,
}

impl SlowStore {
    fn new(boot_micros: &Arc<AtomicI64>) -> Arc<Self> {
        Arc::new(Self {
            inner: store(),
            is_slow: watch::Sender::new(false),
            boot_micros: Arc::clone(boot_micros),
            renewal_count: AtomicI64::new(0),
            overdue_count: AtomicI64::new(0),
            adopt_count: AtomicI64::new(0),
        })
    }

    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let answer = effect.await;
        match name {
            "renew" if *self.is_slow.borrow() => {
                self.boot_micros.fetch_add(3_000_000, Ordering::SeqCst);
                self.renewal_count.fetch_add(1, Ordering::SeqCst);
            }
            "expand" => drop(self.is_slow.subscribe().wait_for(|is_slow| !is_slow).await),
            "open_keys" if *self.is_slow.borrow() => drop(self.overdue_count.fetch_add(1, Ordering::SeqCst)),
            "adopt" if *self.is_slow.borrow() => {
                self.adopt_count.fetch_add(1, Ordering::SeqCst);
                drop(self.is_slow.subscribe().wait_for(|is_slow| !is_slow).await);
            }
            _ => {}
        }
        answer
    }
}

rondel_store::delegate_store!(SlowStore);

/// A lease counts from before its renewal was sent. If the answer takes longer than the lease, another node may already have fenced the
/// lease.
#[tokio::test]
async fn a_lease_does_not_count_from_the_answer_to_its_renewal() {
    let boot_micros = Arc::new(AtomicI64::new(1_000_000));
    let slow = SlowStore::new(&boot_micros);
    let boot = BootClock::Given(Arc::new(move || boot_micros.load(Ordering::SeqCst)));
    let (lease, beat) = (Duration::from_secs(2), Duration::from_millis(20));
    let config = EngineConfig { lease, beat, boot, ..EngineConfig::default() };
    let lifecycle = Lifecycle::new();
    let engine = Engine::start(Arc::clone(&slow) as Arc<dyn Store>, config, &lifecycle).await.unwrap();
    assert!(engine.readiness().lease_held);
    slow.is_slow.send_replace(true);
    let mut renewals = 0;
    while renewals < 20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        renewals = slow.renewal_count.load(Ordering::SeqCst);
        assert!(renewals == 0 || !engine.readiness().lease_held, "after {renewals} renewals");
    }
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}

/// Shards may be in the store before the answer to the call that wrote them has arrived. They are overdue like their broadcast, but they
/// are sent only after the answer.
#[tokio::test]
async fn shards_are_not_looked_for_while_their_broadcast_is_being_cut() {
    let slow = SlowStore::new(&Arc::new(AtomicI64::new(0)));
    let lifecycle = Lifecycle::new();
    let store = Arc::clone(&slow) as Arc<dyn Store>;
    let engine = Engine::start(store, EngineConfig::default(), &lifecycle).await.unwrap();
    let spec = serde_json::json!({"name": "j", "app": "files", "handler": "h", "route": "broadcast"});
    let job = jobs::create(&engine, NamespaceId::new(1), serde_json::from_value(spec).unwrap(), "test").await.unwrap();
    let (up, messages) = mpsc::unbounded_channel();
    let send = |body| up.send(v1::ExecutorMessage { body: Some(body) }).unwrap();
    send(Up::Hello(hello("e", 1)));
    let messages = UnboundedReceiverStream::new(messages).map(Ok);
    let mut down = engine.open_session(messages, "test").await.unwrap();

    slow.is_slow.send_replace(true);
    let request = RunRequest::by(Trigger::Api);
    let asked_at = engine.now();
    let root = jobs::request_run(&engine, &job, request).await.unwrap();
    let is_overdue = async || {
        while engine.now() < asked_at + Duration::from_millis(1_500) || slow.overdue_count.load(Ordering::SeqCst) < 10 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, is_overdue()).await.unwrap();
    let triggers = |message: v1::ServerMessage| match message.body {
        Some(Down::Triggers(triggers)) => triggers.triggers,
        _ => Vec::new(),
    };
    while let Ok(message) = down.try_recv() {
        assert_eq!(triggers(message), [], "the answer has not arrived");
    }
    slow.is_slow.send_replace(false);
    let mut sent = Vec::new();
    let mut is_over = async || {
        while sent.is_empty() {
            sent.extend(triggers(down.recv().await.unwrap()));
        }
        send(success_result(&sent[0]));
        loop {
            let runs = slow.inner.list_runs(NamespaceId::new(1), &RunQuery { limit: 9, ..RunQuery::default() }).await;
            if runs.unwrap().iter().any(|run| run.id == root.id && run.status.is_terminal()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, is_over()).await.unwrap();
    assert_eq!(sent.len(), 1);
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}

/// While the open runs of a dead server are being adopted, only the jobs of these runs wait for that.
#[tokio::test]
async fn other_jobs_run_while_open_runs_are_taken_over() {
    let slow = SlowStore::new(&Arc::new(AtomicI64::new(0)));
    let lifecycle = Lifecycle::new();
    let store = Arc::clone(&slow) as Arc<dyn Store>;
    let engine = Engine::start(store, EngineConfig::default(), &lifecycle).await.unwrap();
    let create = async |name: &str| {
        let spec = serde_json::json!({"name": name, "app": "files", "handler": "h"});
        jobs::create(&engine, NamespaceId::new(1), serde_json::from_value(spec).unwrap(), "test").await.unwrap()
    };
    let (sick, healthy) = (create("sick").await, create("healthy").await);
    let (up, messages) = mpsc::unbounded_channel();
    up.send(v1::ExecutorMessage { body: Some(Up::Hello(hello("e", 1))) }).unwrap();
    let mut down = engine.open_session(UnboundedReceiverStream::new(messages).map(Ok), "test").await.unwrap();
    let lease = Duration::from_millis(500);
    let request = JoinRequest {
        name: "dead".to_owned(),
        lease,
        advertise_url: None,
        server_version: String::new(),
        may_take_over: false,
        held: None,
        waited_for_takeover: Duration::ZERO,
    };
    let Join::Joined { token: dead, .. } = slow.inner.join(&request).await.unwrap() else { unreachable!() };
    let of = RunJob { namespace: sick.namespace, job: sick.id, job_version: sick.version, app: sick.app };
    let left = Run::new(RunId::new(7), of, engine.now(), Trigger::Api, (dead.node, dead.epoch));
    slow.inner.request_run(dead, Run { cause: 7, ..left }).await.unwrap();
    slow.is_slow.send_replace(true);
    let is_under_way = async || {
        while slow.adopt_count.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, is_under_way()).await.unwrap();
    assert!(!engine.readiness().knows_open_runs);
    let mut asked = Vec::new();
    for job in [&sick, &healthy] {
        let request = RunRequest::by(Trigger::Api);
        asked.push(jobs::request_run(&engine, job, request).await.unwrap().id);
    }
    let mut sent = Vec::new();
    let mut is_sent = async || {
        while sent.is_empty() {
            if let Some(Down::Triggers(triggers)) = down.recv().await.unwrap().body {
                sent.extend(triggers.triggers.iter().map(|trigger| trigger.run_id));
            }
        }
    };
    tokio::time::timeout(LIMIT, is_sent()).await.unwrap();
    assert_eq!(sent, [asked[1].get()], "what is open of the other job is not known");
    slow.is_slow.send_replace(false);
    let is_known = async || {
        while !engine.readiness().knows_open_runs {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, is_known()).await.unwrap();
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}
