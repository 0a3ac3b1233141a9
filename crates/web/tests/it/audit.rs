//! The audit log: every change has an entry with the state before and after it, and no change is made if its entry cannot be stored.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;

use axum::body::Body;
use axum::http::Request;
use rondel_admin::auth::Token;
use rondel_store::access::{AuditEntry, AuditQuery, INCOMPLETE, Verdict};
use rondel_store::{MemStore, Result, Store, StoreError};
use rondel_web::{Access, WebConfig, route_table};
use serde_json::{Value, json};

use crate::harness::{Server, clock};
use crate::matrix::{OBJECTS, World};
use crate::visitor::Visitor;

/// A store in which chosen calls fail.
#[derive(Debug)]
struct FailingStore {
    inner: MemStore,
    /// The names of the calls that fail.
    calls: Mutex<Vec<&'static str>>,
}

impl FailingStore {
    fn new() -> Arc<Self> {
        Arc::new(Self { inner: MemStore::new(Arc::new(clock)), calls: Mutex::default() })
    }

    fn fail(&self, calls: &[&'static str]) {
        *self.calls.lock().unwrap() = calls.to_vec();
    }

    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if self.calls.lock().unwrap().contains(&name) {
            return Err(StoreError::no_answer(name));
        }
        effect.await
    }
}

rondel_store::delegate_store!(FailingStore);

async fn server() -> (Arc<FailingStore>, Server) {
    let store = FailingStore::new();
    let server = Server::start_on(Arc::clone(&store) as Arc<dyn Store>, WebConfig::default()).await;
    (store, server)
}

async fn newest(store: &dyn Store) -> AuditEntry {
    store.audit(&AuditQuery { limit: 1, ..AuditQuery::default() }).await.unwrap().remove(0)
}

/// An attacker could otherwise fill up the audit log, and then make changes without entries.
#[tokio::test]
async fn a_change_that_cannot_be_recorded_is_not_made() {
    let (store, server) = server().await;
    let visitor = Visitor::signed_in(&server).await;
    store.fail(&["add_audit"]);
    let job = json!({"name": "a", "app": "app", "handler": "handler"});
    assert_eq!(server.with_body("POST", "/api/v1/jobs", &job).await.expect(503)["code"], "unavailable");
    assert_eq!(visitor.post("/jobs", "name=b&app=app&handler=h&kind=none").await.status, 503);
    let link = server.get("/api/v1/jobs").await.expect(200);
    assert_eq!(link["items"], json!([]), "nothing was done");
    // A sign-in without an entry is not possible either.
    store.fail(&[]);
    let link = server.bare("POST", "/api/v1/sign-in-links").await.expect(201);
    store.fail(&["add_audit"]);
    let token = link["path"].as_str().unwrap().strip_prefix("/sign-in?token=").unwrap().to_owned();
    assert_eq!(Visitor::new(&server).post("/sign-in", &format!("token={token}")).await.status, 503);
}

#[tokio::test]
async fn a_change_whose_end_could_not_be_recorded_has_an_unknown_outcome() {
    let (store, server) = server().await;
    store.fail(&["complete_audit"]);
    server.job("a").await;
    let entry = newest(store.as_ref()).await;
    assert_eq!((entry.action.as_str(), entry.verdict), ("job.create", Verdict::Allowed));
    assert_eq!(entry.after.as_deref(), Some(INCOMPLETE));
    let shown = server.get("/api/v1/audit?limit=1").await.expect(200);
    assert_eq!(shown["items"][0]["after"], json!({"unanswered": true}));
}

/// If the server dies between storing the entry and making the change, the entry exists without the change, but never the change without
/// the entry.
#[tokio::test]
async fn the_entry_of_a_change_is_there_before_the_change_is_made() {
    let (store, server) = server().await;
    store.fail(&["create_job", "complete_audit"]);
    let job = json!({"name": "a", "app": "app", "handler": "handler"});
    server.with_body("POST", "/api/v1/jobs", &job).await.expect(503);
    let entry = newest(store.as_ref()).await;
    assert_eq!((entry.action.as_str(), entry.after.as_deref()), ("job.create", Some(INCOMPLETE)));
    store.fail(&["create_job"]);
    server.with_body("POST", "/api/v1/jobs", &job).await.expect(503);
    let entry = newest(store.as_ref()).await;
    assert_eq!((entry.object.as_str(), entry.verdict, entry.after), ("a", Verdict::Failed, None));
}

/// An empty list would look as if nothing was done in that namespace.
#[tokio::test]
async fn a_namespace_that_never_existed_is_refused() {
    let server = Server::start().await;
    server.with_body("POST", "/api/v1/namespaces", json!({"name": "gone"})).await.expect(201);
    let calendar = "/api/v1/calendars/c?namespace=gone";
    server.with_body("PUT", calendar, json!({"rule": {"weekdays": ["tue"]}})).await.expect(201);
    for path in [calendar, "/api/v1/namespaces/gone"] {
        assert_eq!(server.bare("DELETE", path).await.status, 204, "{path}");
    }
    let of_deleted = server.get("/api/v1/audit?in=gone").await.expect(200);
    assert_eq!(of_deleted["items"].as_array().map(Vec::len), Some(2), "{of_deleted}");
    server.get("/api/v1/audit?in=default").await.expect(200);
    let refusal = server.get("/api/v1/audit?in=nope").await.expect(422);
    let error = &refusal["errors"][0];
    let message = "\"nope\" is neither a namespace nor in any entry; namespaces: default";
    assert_eq!((&error["parameter"], &error["message"]), (&json!("in"), &json!(message)));
}

/// A table of the changing routes, for reviewers: whether the entry of each has the state before and after, and names its object.
/// `RONDEL_BLESS=1` writes it again; review the differences.
const TABLE: &str = "tests/audited.tsv";

/// The routes for which this test has no suitable body are covered by tests of their own.
#[tokio::test]
async fn every_change_records_the_state_before_and_after() {
    let world = World::new().await;
    let store = world.server.engine.store();
    let mut table = "method\tpath\tfields\tobject\n".to_owned();
    let mut routes = route_table();
    routes.sort_by_key(|route| (route.path, route.method.to_string()));
    for route in routes {
        let is_question = matches!(
            route.path,
            "/api/v1/schedules/preview" | "/api/v1/alert-rules/preview" | "/job-code" | "/job-params" | "/job-yaml"
        );
        if route.method.is_safe() || route.access == Access::Open || is_question {
            continue;
        }
        let things = world.create_objects("root", OBJECTS[0]).await;
        let answer = world.call(&route, "root", &things).await;
        let entry = newest(store).await;
        let is_done = answer.status.is_success() || answer.status.is_redirection();
        assert_eq!(entry.verdict == Verdict::Allowed, is_done, "{route:?}: {entry:?}");
        assert!(entry.after.as_deref() != Some(INCOMPLETE), "{route:?}: {entry:?}");
        let words = match (entry.before.is_some(), entry.after.is_some()) {
            _ if !is_done => "not done here",
            (true, true) => "before and after",
            (true, false) => "before",
            (false, true) => "after",
            (false, false) => "nothing",
        };
        let object = if entry.object.is_empty() { "none" } else { "named" };
        table.push_str(&format!("{}\t{}\t{words}\t{object}\n", route.method, route.path));
    }
    if std::env::var_os("RONDEL_BLESS").is_some() {
        std::fs::write(TABLE, &table).unwrap();
    }
    assert_eq!(table, std::fs::read_to_string(TABLE).unwrap_or_default(), "left: what happened; right: {TABLE}");
    assert!(!table.contains("\tnothing\t"), "{table}");
}

/// Changes through forms of the console have the same entries as changes through the API.
#[tokio::test]
async fn changes_by_the_console_record_the_state_before_and_after() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let store = server.engine.store();
    let created = visitor
        .post("/jobs", "name=a&app=app&handler=h&kind=every&every=1h&retry_max=0&retry_backoff=10s&enabled=yes")
        .await;
    assert_eq!(created.status, 303, "{}", created.text());
    let entry = newest(store).await;
    let read = |text: &Option<String>| -> Value { serde_json::from_str(text.as_deref().unwrap_or("null")).unwrap() };
    assert_eq!(
        (entry.action.as_str(), entry.object.as_str(), entry.namespace.as_deref()),
        ("job.create", "a", Some("default"))
    );
    assert_eq!((read(&entry.before), &read(&entry.after)["handler"]), (Value::Null, &json!("h")));
    let edited = visitor
        .post(
            "/jobs/a/edit",
            "version=1&name=a&app=app&handler=other&kind=every&every=1h&retry_max=0&retry_backoff=10s&enabled=yes",
        )
        .await;
    assert_eq!(edited.status, 303, "{}", edited.text());
    let entry = newest(store).await;
    assert_eq!((&read(&entry.before)["handler"], &read(&entry.after)["handler"]), (&json!("h"), &json!("other")));
    visitor.post("/jobs/a/pause", "").await;
    let entry = newest(store).await;
    assert_eq!((&read(&entry.before)["enabled"], &read(&entry.after)["enabled"]), (&json!(true), &json!(false)));
    visitor.post("/jobs/a/delete", "").await;
    let entry = newest(store).await;
    assert_eq!((&read(&entry.before)["handler"], read(&entry.after)), (&json!("other"), Value::Null));
}

/// An applied list has an entry with the changed fields of each job, but without their secrets.
#[tokio::test]
async fn changes_in_bulk_record_the_state_before_and_after() {
    let server = Server::start().await;
    let jobs = |token: &str, timeout: &str| {
        json!([
            {"name": "a", "app": "app", "handler": "h", "timeout": timeout},
            {"name": "b", "app": "app", "handler": "h", "params": {"api_token": token}},
        ])
    };
    server.with_body("POST", "/api/v1/jobs/apply", jobs("hunter2", "1m")).await.expect(200);
    server.with_body("POST", "/api/v1/jobs/apply", jobs("hunter3", "2m")).await.expect(200);
    let entry = newest(server.engine.store()).await;
    let read =
        |text: &Option<String>| -> BTreeMap<String, Value> { serde_json::from_str(text.as_deref().unwrap()).unwrap() };
    let (before, after) = (read(&entry.before), read(&entry.after));
    assert_eq!(before["a"], json!({"version": 1, "fields": {"/timeout": "1m"}}));
    assert_eq!(after["a"], json!({"action": "changed", "fields": {"/timeout": "2m"}}));
    assert!(before.contains_key("b") && after.contains_key("b"), "{entry:?}");
    let text = format!("{entry:?}");
    assert!(!text.contains("hunter"), "{text}");
}

/// A field that is neither in `SHOWN_FIELDS` (`crates/core/src/disclosure.rs`) nor in `HIDDEN` would be hidden by accident instead of by a
/// decision.
#[test]
fn every_field_of_a_document_is_shown_or_hidden_on_purpose() {
    const HIDDEN: [&str; 2] = ["params", "token"];
    let document: Value = serde_json::from_str(rondel_web::openapi()).unwrap();
    let schemas = &document["components"]["schemas"];
    let mut left: Vec<&Value> =
        ["JobSpec", "CalendarSpec", "User", "Token", "Session", "Namespace"].map(|name| &schemas[name]).to_vec();
    let mut seen = std::collections::BTreeSet::new();
    while let Some(schema) = left.pop() {
        match schema {
            Value::Object(map) => {
                if let Some(name) = map.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next())
                    && seen.insert(name)
                {
                    left.push(&schemas[name]);
                }
                for (field, inner) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
                    let is_decided = rondel_core::disclosure::is_shown(field) != HIDDEN.contains(&field.as_str());
                    assert!(is_decided, "{field} is to be in SHOWN of crates/core/src/disclosure.rs, or hidden here");
                    left.push(inner);
                }
                left.extend(map.iter().filter(|(key, _)| *key != "properties").map(|(_, inner)| inner));
            }
            Value::Array(items) => left.extend(items),
            _ => {}
        }
    }
    assert!(seen.len() > 10, "{seen:?}");
}

/// A client must be able to recognise an incomplete export.
#[tokio::test]
async fn an_export_that_the_servers_stop_cuts_ends_with_the_reason() {
    let config = WebConfig::default();
    let shutdown = config.shutdown.clone();
    let server = Server::start_with(config).await;
    server.job("a").await;
    let export = async || {
        let request = server.request("GET", "/api/v1/audit").header("accept", "application/x-ndjson");
        let lines = server.send(request.body(Body::empty()).unwrap()).await.text();
        serde_json::from_str::<Value>(lines.lines().last().unwrap()).unwrap()
    };
    assert_eq!(export().await["complete"], Value::Null);
    shutdown.cancel();
    let last = export().await;
    assert_eq!((&last["complete"], &last["code"]), (&json!(false), &json!("unavailable")), "{last}");
}

/// The secret of a token is shown only once, so what the answer shows is read before the token is stored.
#[tokio::test]
async fn no_token_is_stored_whose_secret_cannot_be_shown() {
    let (store, server) = server().await;
    store.fail(&["namespaces"]);
    let token = json!({"kind": "api", "name": "lost", "grants": [{"role": "viewer"}]});
    server.with_body("POST", "/api/v1/tokens", &token).await.expect(503);
    store.fail(&[]);
    let tokens = server.get("/api/v1/tokens").await.expect(200);
    assert!(!tokens.to_string().contains("\"lost\""), "{tokens}");
    server.with_body("POST", "/api/v1/tokens", &token).await.expect(201);
}

/// The client repeats the call after an error, so the failed call must not have created the user.
#[tokio::test]
async fn no_user_is_created_whose_roles_cannot_be_read() {
    let (store, server) = server().await;
    store.fail(&["namespaces"]);
    let user = json!({"name": "ann", "grants": [{"role": "viewer"}]});
    server.with_body("POST", "/api/v1/users", &user).await.expect(503);
    store.fail(&[]);
    server.with_body("POST", "/api/v1/users", &user).await.expect(201);
}

/// During an outage of the database, a monitoring system can read the metrics with the metrics secret. The secret opens nothing else.
#[tokio::test]
async fn metrics_are_read_while_no_token_can_be_looked_up() {
    let (secret, store) = (Token::generate(), FailingStore::new());
    let config = WebConfig { metrics_token: Some(secret.clone()), ..WebConfig::default() };
    let server = Server::start_on(Arc::clone(&store) as Arc<dyn Store>, config).await;
    let read = async |token: &Token, path: &str| {
        let bearer = format!("Bearer {}", token.reveal());
        server.send(Request::get(path).header("authorization", bearer).body(Body::empty()).unwrap()).await
    };
    assert_eq!(read(&server.admin, "/metrics").await.status, 200);
    assert_eq!(read(&Token::generate(), "/metrics").await.status, 401);
    assert_eq!(read(&secret, "/api/v1/me").await.status, 401, "for metrics alone");
    store.fail(&["token"]);
    let answer = read(&secret, "/metrics").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.text().contains("rondel_db_up"), "{}", answer.text());
    let answer = read(&server.admin, "/metrics").await;
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("the database did not answer"), "{}", answer.text());
}
