//! Forged tokens: only a few of them are looked up at the same time, so that they cannot occupy all connections to the database.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::Request;
use futures_util::future::join_all;
use rondel_admin::gateway::Peer;
use rondel_store::{MemStore, Result, Store};
use rondel_web::WebConfig;
use tokio::sync::Semaphore;

use crate::harness::{Server, clock};

/// How many look-ups one address may have at the same time; must equal the engine's limit.
const CONCURRENT_LOOKUPS_PER_ADDRESS: usize = 8;

/// A store in which look-ups of tokens wait for `go_on`.
#[derive(Debug)]
struct SlowTokenStore {
    inner: MemStore,
    is_slow: AtomicBool,
    go_on: Semaphore,
    under_way: AtomicUsize,
    /// The maximum of `under_way` so far.
    most: AtomicUsize,
    /// How many look-ups were made.
    count: AtomicUsize,
}

impl SlowTokenStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name != "token" || !self.is_slow.load(Ordering::SeqCst) {
            return effect.await;
        }
        self.count.fetch_add(1, Ordering::SeqCst);
        let under_way = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(under_way, Ordering::SeqCst);
        let permit = self.go_on.acquire().await.unwrap();
        let found = effect.await;
        drop(permit);
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        found
    }
}

rondel_store::delegate_store!(SlowTokenStore);

async fn start() -> (Arc<SlowTokenStore>, Server) {
    let store = Arc::new(SlowTokenStore {
        inner: MemStore::new(Arc::new(clock)),
        is_slow: AtomicBool::new(false),
        go_on: Semaphore::new(0),
        under_way: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
        count: AtomicUsize::new(0),
    });
    let server = Server::start_on(Arc::clone(&store) as Arc<dyn Store>, WebConfig::default()).await;
    store.is_slow.store(true, Ordering::SeqCst);
    (store, server)
}

async fn status(server: &Server, token: &str, from: u8) -> u16 {
    let request = Request::get("/api/v1/jobs").header("authorization", format!("Bearer {token}"));
    let mut request = request.body(Body::empty()).unwrap();
    request.extensions_mut().insert(Peer(IpAddr::V4(Ipv4Addr::new(192, 0, 2, from))));
    server.send(request).await.status.as_u16()
}

#[tokio::test]
async fn a_flood_of_made_up_tokens_waits_for_few_look_ups() {
    let (store, server) = start().await;
    let tokens: Vec<String> = (0..200).map(|number| format!("rondel_pat_{number}")).collect();
    let flood = join_all(tokens.iter().map(|token| status(&server, token, 1)));
    let (statuses, other) = tokio::join!(flood, async {
        // Waits until as many look-ups of the flood are in progress as the limit allows.
        while store.under_way.load(Ordering::SeqCst) < CONCURRENT_LOOKUPS_PER_ADDRESS {
            tokio::task::yield_now().await;
        }
        let admin = server.admin.reveal().to_owned();
        let asked = async {
            while store.under_way.load(Ordering::SeqCst) <= CONCURRENT_LOOKUPS_PER_ADDRESS {
                tokio::task::yield_now().await;
            }
            let most = store.most.load(Ordering::SeqCst);
            assert_eq!(most, CONCURRENT_LOOKUPS_PER_ADDRESS + 1, "the flood has its part, and another address its own");
            store.go_on.add_permits(1_000);
        };
        tokio::join!(status(&server, &admin, 2), asked).0
    });
    assert_eq!(other, 200);
    assert!(statuses.iter().all(|status| *status == 401), "{statuses:?}");
    assert!(store.most.load(Ordering::SeqCst) <= CONCURRENT_LOOKUPS_PER_ADDRESS + 1);
}

#[tokio::test]
async fn a_token_that_was_unknown_a_moment_ago_is_not_looked_up_again() {
    let (store, server) = start().await;
    store.go_on.add_permits(1_000);
    for _ in 0..50 {
        assert_eq!(status(&server, "rondel_pat_of_nobody", 1).await, 401);
    }
    // On a very slow machine, the cached refusal may expire once during the loop.
    assert!(store.count.load(Ordering::SeqCst) < 50);
    let before = store.count.load(Ordering::SeqCst);
    assert_eq!(status(&server, server.admin.reveal(), 1).await, 200);
    assert_eq!(store.count.load(Ordering::SeqCst), before + 1, "a good one is looked up each time");
}
