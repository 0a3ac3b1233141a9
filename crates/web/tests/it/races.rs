//! A job that moves to another app after a change was checked, and before it is saved.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use rondel_store::Store;
use rondel_web::WebConfig;
use serde_json::json;

use crate::harness::Server;
use crate::holding::HoldingStore;

#[tokio::test]
async fn a_change_is_saved_only_to_the_version_that_was_checked() {
    let store = HoldingStore::new();
    let server = Server::start_on(Arc::clone(&store) as Arc<dyn Store>, WebConfig::default()).await;
    for app in ["mine", "theirs"] {
        server.with_body("POST", "/api/v1/apps", json!({"name": app})).await.expect(201);
    }
    let grants = json!([{"role": "editor", "namespace": "default", "app": "mine"}]);
    let body = json!({"kind": "api", "name": "scoped", "grants": grants});
    let created = server.with_body("POST", "/api/v1/tokens", body).await.expect(201);
    let bearer = format!("Bearer {}", created["token"].as_str().unwrap());
    let taken = json!({"app": "mine", "handler": "taken"});
    for (method, held, body) in
        [("PUT", "change_job", &taken), ("PATCH", "change_job", &taken), ("DELETE", "delete_job", &json!(null))]
    {
        let job = json!({"name": "a", "app": "mine", "handler": "h"});
        server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
        store.hold(held);
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
