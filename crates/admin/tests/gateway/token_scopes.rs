//! Which executors a token admits: only those of its own app. Their reports about runs of other apps are rejected.

use rondel_admin::EngineConfig;
use rondel_admin::auth::Token;
use rondel_admin::gateway::Certificates;
use rondel_core::access::{Grant, Role};
use rondel_core::{AppId, NamespaceId};
use rondel_proto::v1;
use rondel_store::access::{TokenKind, TokenRecord};
use rondel_store::catalog::Namespace;
use rondel_store::{Namespaces as _, Tokens as _};
use tonic::Code;

use super::world::{World, create, hello, request, runs, store, success_result};

const HERE: NamespaceId = NamespaceId::new(1);

async fn token(world: &World, grant: Grant, declares: bool) -> Token {
    let token = Token::generate_for(TokenKind::Executor);
    let record = token.record(world.engine.new_id(), TokenKind::Executor, world.engine.now());
    let record = TokenRecord { name: "agents".to_owned(), declares, grants: vec![grant], ..record };
    world.store.add_token(&record).await.unwrap();
    token
}

fn of_app(app: AppId) -> Grant {
    Grant { role: Role::Executor, namespace: Some(HERE), app: Some(app) }
}

async fn refusal(world: &World, token: &Token, hello: v1::Hello) -> (Code, String) {
    match world.dial(Some(token), hello).await {
        Ok(_) => (Code::Ok, String::new()),
        Err(status) => (status.code(), status.message().to_owned()),
    }
}

#[tokio::test]
async fn a_token_for_executors_of_xxl_job_opens_no_session() {
    let world = World::start().await;
    let now = world.engine.now();
    let billing = world.store.ensure_app(AppId::new(9), HERE, "billing", now).await.unwrap();
    let token = Token::generate_for(TokenKind::Xxl);
    let record = token.record(world.engine.new_id(), TokenKind::Xxl, now);
    let record = TokenRecord { name: "xxl".to_owned(), grants: vec![of_app(billing.id)], ..record };
    world.store.add_token(&record).await.unwrap();
    let (code, message) = refusal(&world, &token, v1::Hello { app: "billing".to_owned(), ..hello("a", 1) }).await;
    assert_eq!(code, Code::PermissionDenied);
    assert!(message.contains("rondel token create --kind executor"), "{message}");
}

#[tokio::test]
async fn a_token_of_one_app_admits_no_executor_of_another() {
    let world = World::start().await;
    let now = world.engine.now();
    let billing = world.store.ensure_app(AppId::new(9), HERE, "billing", now).await.unwrap();
    let elsewhere = Namespace { id: NamespaceId::new(2), name: "elsewhere".to_owned() };
    assert!(world.store.create_namespace(&elsewhere, now).await.unwrap());
    world.store.ensure_app(AppId::new(10), elsewhere.id, "billing", now).await.unwrap();
    let own = token(&world, of_app(billing.id), true).await;
    let as_app = |namespace: &str, app: &str| v1::Hello {
        namespace: namespace.to_owned(),
        app: app.to_owned(),
        ..hello("a", 1)
    };
    assert_eq!(refusal(&world, &own, as_app("default", "billing")).await.0, Code::Ok);
    // Existing and missing apps get the same message.
    for (namespace, app) in
        [("default", "files"), ("default", "nosuch"), ("elsewhere", "billing"), ("nosuch", "billing")]
    {
        let (code, message) = refusal(&world, &own, as_app(namespace, app)).await;
        assert_eq!(code, Code::PermissionDenied, "{namespace}/{app}: {message}");
        assert_eq!(
            message,
            format!("this token does not admit executors of app \"{app}\" in namespace \"{namespace}\"")
        );
    }
    // An API token without the role admin opens no session.
    let editor = Token::generate_for(TokenKind::Api);
    let record = editor.record(world.engine.new_id(), TokenKind::Api, now);
    let record = TokenRecord { grants: vec![Grant::everywhere(Role::Editor)], ..record };
    world.store.add_token(&record).await.unwrap();
    assert_eq!(refusal(&world, &editor, as_app("default", "billing")).await.0, Code::PermissionDenied);
    let id = world.store.token(&own.hash()).await.unwrap().unwrap().id;
    assert!(world.store.revoke_token(id, now).await.unwrap());
    assert_eq!(refusal(&world, &own, as_app("default", "billing")).await.0, Code::Unauthenticated);
    world.end().await;
}

#[tokio::test]
async fn a_token_may_keep_executors_from_declaring_jobs() {
    let world = World::start().await;
    let quiet = token(&world, of_app(AppId::new(7)), false).await;
    let declaring = v1::Hello { declared: vec![v1::DeclaredJob::default()], ..hello("a", 1) };
    let (code, message) = refusal(&world, &quiet, declaring).await;
    assert_eq!(code, Code::PermissionDenied);
    assert!(message.contains("declare jobs"), "{message}");
    assert_eq!(refusal(&world, &quiet, hello("a", 2)).await.0, Code::Ok);
    world.end().await;
}

#[tokio::test]
async fn required_client_certificates_must_be_sent() {
    let config = EngineConfig { executor_certificates: Certificates::Required, ..EngineConfig::default() };
    let world = World::start_on(store(), config).await;
    let (code, message) = refusal(&world, &world.token, hello("a", 1)).await;
    assert_eq!(code, Code::Unauthenticated);
    assert!(message.contains("certificate"), "{message}");
    world.end().await;
}

/// Temporal CVE-2026-89140: a client that knows the id of a run can report how it ended.
#[tokio::test]
async fn temporal_cve_2026_89140_results_of_another_apps_runs_are_rejected() {
    let world = World::start().await;
    let now = world.engine.now();
    let billing = world.store.ensure_app(AppId::new(9), HERE, "billing", now).await.unwrap();
    let stranger = token(&world, of_app(billing.id), true).await;
    let job = create(&world, serde_json::json!({})).await;
    request(&world, &job).await;
    let mut own = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    let trigger = own.trigger().await;
    let hello = v1::Hello { app: "billing".to_owned(), ..hello("b", 2) };
    let mut other = world.dial(Some(&stranger), hello).await.unwrap();
    other.send(success_result(&trigger)).await;
    assert_eq!(other.ack().await.kind(), v1::result_ack::Kind::NoSuchRun);
    assert!(runs(&world).await.iter().all(|run| !run.status.is_terminal()));
    own.send(success_result(&trigger)).await;
    assert_eq!(own.ack().await.kind(), v1::result_ack::Kind::Stored);
    drop(own);
    world.end().await;
}
