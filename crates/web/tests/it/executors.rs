//! The list of executors, in pages.

use rondel_core::{AppId, ExecutorId, NamespaceId};
use rondel_store::cluster::ExecutorRecord;
use serde_json::{Value, json};

use crate::harness::Server;
use crate::visitor::Visitor;

const HERE: NamespaceId = NamespaceId::new(1);

/// Executors `a000` to `a124` of one app and `b000` to `b004` of another, with this node's word that it hears them.
async fn with_executors() -> Server {
    let server = Server::start().await;
    let (engine, now) = (&server.engine, server.engine.now());
    for (app, count) in [("a", 125), ("b", 5)] {
        let app_id = engine.store().ensure_app(AppId::new(engine.new_id()), HERE, app, now).await.unwrap().id;
        for number in 0..count {
            let record = ExecutorRecord {
                id: ExecutorId::new(engine.new_id()),
                namespace: HERE,
                app: app_id,
                name: format!("{app}{number:03}"),
                predecessor: None,
                sdk_version: "1".to_owned(),
                labels: "{}".to_owned(),
                weight: 1,
                slots: 1,
                handlers: json!((0..40).map(|handler| format!("h{handler}")).collect::<Vec<_>>()).to_string(),
                secret_hash: None,
                first_seen_at: now,
                last_seen_at: now,
            };
            assert!(engine.store().open_session(engine.token(), &record, None).await.unwrap().is_some());
        }
    }
    server
}

fn names(page: &Value) -> Vec<String> {
    page["items"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_list_has_pages() {
    let server = with_executors().await;
    let first = server.get("/api/v1/executors").await.expect(200);
    assert_eq!(first["items"].as_array().unwrap().len(), 50);
    let (mut all, mut cursor) = (names(&first), first["next_cursor"].clone());
    while let Some(next) = cursor.as_str() {
        let page = server.get(&format!("/api/v1/executors?limit=50&cursor={next}")).await.expect(200);
        all.extend(names(&page));
        cursor = page["next_cursor"].clone();
    }
    let wanted: Vec<String> = (0..125).map(|n| format!("a{n:03}")).chain((0..5).map(|n| format!("b{n:03}"))).collect();
    assert_eq!(all, wanted);
    let whole = server.get("/api/v1/executors?limit=200").await.expect(200);
    assert_eq!((names(&whole), &whole["next_cursor"]), (wanted, &json!(null)));
    for bad in ["limit=0", "limit=201", "cursor=x", "app=a"] {
        server.get(&format!("/api/v1/executors?{bad}")).await.expect(422);
    }
}

#[tokio::test]
async fn the_page_of_the_console_has_pages_and_shows_some_handlers_of_many() {
    let server = with_executors().await;
    let visitor = Visitor::signed_in(&server).await;
    let first = visitor.get("/executors").await.text();
    assert!(first.contains("a000") && first.contains("a049") && !first.contains("a050"), "{first}");
    assert!(first.contains("h29") && !first.contains("h30<") && first.contains("+10"), "{first}");
    let next = first.split("href=\"/executors?").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let second = visitor.get(&format!("/executors?{}", next.replace("&amp;", "&"))).await.text();
    assert!(second.contains("a050") && !second.contains("a049"), "{second}");
}
