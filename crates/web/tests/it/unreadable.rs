//! Jobs whose definitions this server cannot read: a newer server of the cluster saved them.

use std::sync::Arc;

use rondel_core::NamespaceId;
use rondel_store::{MemStore, Store};
use rondel_web::WebConfig;
use serde_json::json;

use crate::harness::{Server, clock};
use crate::visitor::Visitor;

/// A server with the jobs `a1`, `b2` and `c3`, of which it cannot read `b2`.
async fn server_with_unreadable_job() -> Server {
    let store = Arc::new(MemStore::new(Arc::new(clock)));
    let shared_store: Arc<dyn Store> = Arc::<MemStore>::clone(&store);
    let server = Server::start_on(shared_store, WebConfig::default()).await;
    for name in ["a1", "b2", "c3"] {
        server.job(name).await;
    }
    let job = server.engine.store().job(NamespaceId::new(1), "b2").await.unwrap().unwrap();
    store.make_unreadable(job.id);
    server
}

#[tokio::test]
async fn an_unreadable_job_is_listed_and_hides_no_other() {
    let server = server_with_unreadable_job().await;
    for path in ["/api/v1/jobs", "/api/v1/jobs?q=app:app"] {
        let page = server.get(path).await.expect(200);
        assert_eq!((&page["items"][0]["name"], &page["items"][1]["name"]), (&json!("a1"), &json!("c3")), "{page}");
        assert_eq!(page["items"].as_array().unwrap().len(), 2, "{page}");
        let unreadable = &page["unreadable"][0];
        assert_eq!((&unreadable["name"], &unreadable["version"]), (&json!("b2"), &json!(1)), "{page}");
        assert!(unreadable["message"].as_str().unwrap().contains("upgrade this server"), "{page}");
    }
    let first = server.get("/api/v1/jobs?limit=1").await.expect(200);
    assert_eq!((&first["items"][0]["name"], first.get("unreadable")), (&json!("a1"), None), "{first}");
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = server.get(&format!("/api/v1/jobs?limit=1&cursor={cursor}")).await.expect(200);
    assert_eq!(
        (&second["items"][0]["name"], &second["unreadable"][0]["name"]),
        (&json!("c3"), &json!("b2")),
        "each job is on exactly one page: {second}"
    );

    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/jobs").await.text();
    assert!(page.contains("href=\"/jobs/a1\"") && page.contains("href=\"/jobs/c3\""), "{page}");
    assert!(page.contains("href=\"/jobs/b2\"") && page.contains("Upgrade this server"), "{page}");
    for path in ["/", "/runs", "/executors", "/why", "/reports", "/suggest/jobs?q=b", "/palette?q=b2"] {
        assert_eq!(visitor.get(path).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn an_export_marks_an_unreadable_job() {
    let server = server_with_unreadable_job().await;
    let export = server.get("/api/v1/jobs/export?format=yaml").await.text();
    assert!(export.contains("name: a1") && export.contains("name: c3"), "{export}");
    assert!(export.contains("name: b2") && export.contains("unreadable:"), "{export}");
    let request = server.request("POST", "/api/v1/jobs/apply?dry_run=true").header("content-type", "application/yaml");
    let refused = server.send(request.body(export.into()).unwrap()).await;
    assert_eq!(refused.status, 422, "an incomplete list must not remove the job: {}", refused.text());
    let body = json!([{"name": "b2", "app": "app", "handler": "handler"}]);
    let refused = server.with_body("POST", "/api/v1/jobs/apply?dry_run=true", body).await.expect(422);
    assert_eq!(refused["errors"][0]["pointer"], "/0/name", "{refused}");
    let visitor = Visitor::signed_in(&server).await;
    let file = visitor.get("/export/jobs.yaml?job=a1&job=b2").await.text();
    assert!(file.contains("name: a1") && file.contains("unreadable:"), "{file}");
}

#[tokio::test]
async fn an_unreadable_job_is_not_changed() {
    let server = server_with_unreadable_job().await;
    for (method, path) in [("GET", "/api/v1/jobs/b2"), ("POST", "/api/v1/jobs/b2/pause"), ("DELETE", "/api/v1/jobs/b2")]
    {
        let problem = server.bare(method, path).await.expect(503);
        assert_eq!(problem["code"], "unreadable", "{method} {path}");
    }
    let page = Visitor::signed_in(&server).await.get("/jobs/b2").await;
    assert_eq!(page.status, 503);
    assert!(page.text().contains("Upgrade this server"), "{}", page.text());
}
