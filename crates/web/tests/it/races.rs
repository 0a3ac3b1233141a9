//! A job that moves to another app between the check of a change and its save.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use rondel_admin::clock::boot_micros;
use rondel_store::ledger::{AttemptEnd, ClaimJob, Claimed, Ends, Finisher};
use rondel_store::{MemStore, Result, Store};
use rondel_web::WebConfig;
use serde_json::json;
use tokio::sync::Notify;

use crate::harness::{BEGINNING, Server};

/// A store that holds one call back.
#[derive(Debug)]
struct Holding {
    inner: MemStore,
    held: Mutex<Option<&'static str>>,
    reached: Notify,
    released: Notify,
}

impl Holding {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let is_held = self.held.lock().unwrap().take_if(|held| *held == name).is_some();
        if is_held {
            self.reached.notify_one();
            self.released.notified().await;
        }
        effect.await
    }
}

rondel_store::delegate_store!(Holding {
    Claim {
        async fn claim(&self, token: LeaseToken, jobs: &[ClaimJob]) -> Result<Claimed> {
            self.call("claim", self.inner().claim(token, jobs)).await
        }
    }
    Finish {
        async fn finish(&self, finisher: Finisher<'_>, batch: &[AttemptEnd]) -> Result<Ends> {
            self.call("finish", self.inner().finish(finisher, batch)).await
        }
    }
});

#[tokio::test]
async fn a_change_is_saved_only_on_what_it_was_checked_against() {
    let clock = || BEGINNING + Duration::from_micros(boot_micros().unsigned_abs());
    let inner = MemStore::new(Arc::new(clock));
    let (reached, released) = (Notify::new(), Notify::new());
    let store = Arc::new(Holding { inner, held: Mutex::default(), reached, released });
    let server = Server::start_on(Arc::clone(&store) as Arc<dyn Store>, WebConfig::default()).await;
    for app in ["mine", "theirs"] {
        server.with_body("POST", "/api/v1/apps", json!({"name": app})).await.expect(201);
    }
    let grants = json!([{"role": "editor", "namespace": "default", "app": "mine"}]);
    let body = json!({"kind": "api", "name": "scoped", "grants": grants});
    let made = server.with_body("POST", "/api/v1/tokens", body).await.expect(201);
    let bearer = format!("Bearer {}", made["token"].as_str().unwrap());
    let taken = json!({"app": "mine", "handler": "taken"});
    for (method, held, body) in
        [("PUT", "change_job", &taken), ("PATCH", "change_job", &taken), ("DELETE", "delete_job", &json!(null))]
    {
        let job = json!({"name": "a", "app": "mine", "handler": "h"});
        server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
        *store.held.lock().unwrap() = Some(held);
        let request = Request::builder().method(method).uri("/api/v1/jobs/a").header("authorization", &bearer);
        let request = request.header("content-type", "application/json").body(Body::from(body.to_string())).unwrap();
        let (answer, ()) = tokio::join!(server.send(request), async {
            store.reached.notified().await;
            server.with_body("PATCH", "/api/v1/jobs/a", json!({"app": "theirs"})).await.expect(200);
            store.released.notify_one();
        });
        assert_eq!(answer.status, 404, "{method}: {}", answer.text());
        let job = server.get("/api/v1/jobs/a").await.expect(200);
        assert_eq!((&job["app"], &job["handler"]), (&json!("theirs"), &json!("h")), "{method}");
        server.bare("DELETE", "/api/v1/jobs/a").await.expect(204);
    }
}
