//! Failure webhooks.

use serde_json::json;

use crate::harness::Server;

const PATH: &str = "/api/v1/namespaces/default/failure-webhook";

#[tokio::test]
async fn the_secret_is_shown_once() {
    let server = Server::start().await;
    assert_eq!(server.get(PATH).await.expect(404)["code"], "webhook_not_found");
    let created = server.with_body("PUT", PATH, json!({"url": "https://example.com/a"})).await.expect(201);
    assert!(created["secret"].as_str().unwrap().starts_with("whsec_"), "{created}");
    assert_eq!((&created["url"], &created["namespace"]), (&json!("https://example.com/a"), &json!("default")));
    let changed = server.with_body("PUT", PATH, json!({"url": "https://example.com/b"})).await.expect(200);
    assert_eq!((&changed["url"], changed.get("secret")), (&json!("https://example.com/b"), None));
    assert_eq!(server.get(PATH).await.expect(200), changed);
    server.bare("DELETE", PATH).await.expect(204);
    assert_eq!(server.bare("DELETE", PATH).await.expect(404)["code"], "webhook_not_found");
    let again = server.with_body("PUT", PATH, json!({"url": "https://example.com/a"})).await.expect(201);
    assert_ne!(again["secret"], created["secret"]);
}

#[tokio::test]
async fn wrong_webhooks_are_refused() {
    let server = Server::start().await;
    for url in ["", "ftp://example.com/", "file:///etc/passwd", "https://user:pw@example.com/", "example.com"] {
        let problem = server.with_body("PUT", PATH, json!({"url": url})).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], "/url", "{url}: {problem}");
    }
    for body in [json!({}), json!({"url": 1}), json!({"url": "https://example.com", "secret": "mine"})] {
        server.with_body("PUT", PATH, body).await.expect(422);
    }
    let elsewhere = server.get("/api/v1/namespaces/nosuch/failure-webhook").await.expect(404);
    assert_eq!(elsewhere["code"], "namespace_not_found");
}
