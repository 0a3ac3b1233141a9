//! Which callers may call which gRPC method: each method of the proto file, by each kind of caller, for its own objects
//! and for those of others. The outcome is compared with a table that developers review.
//!
//! A new method fails here until a developer adds how to call it, and its rows in the table. `RONDEL_BLESS=1` rewrites
//! the table: review its changes.

use std::fmt::Write as _;
use std::time::Duration;

use rondel_admin::auth::Token;
use rondel_core::access::{Grant, Role};
use rondel_core::{AccountId, AppId, NamespaceId, Timestamp};
use rondel_proto::v1;
use rondel_store::access::{Account, TokenKind, TokenRecord};
use rondel_store::catalog::Namespace;
use rondel_store::{Accounts as _, Namespaces as _, Tokens as _};
use tonic::Code;

use super::world::{World, hello};

const TABLE: &str = "tests/grpc_permissions.tsv";
const HERE: NamespaceId = NamespaceId::new(1);
const CALLERS: [&str; 13] = [
    "anonymous",
    "unknown token",
    "viewer",
    "operator",
    "editor",
    "admin",
    "root",
    "executor of mine",
    "executor of theirs",
    "expired",
    "revoked",
    "rotated away",
    "locked out",
];
/// The identity that an executor claims: the app for which the token has a role, or another one.
const OBJECTS: [(&str, &str, &str); 4] = [
    ("own", "default", "mine"),
    ("other app", "default", "theirs"),
    ("other namespace", "elsewhere", "mine"),
    ("no app", "default", "nosuch"),
];

/// Every method of every service that the server offers, from the proto file of the executors.
fn methods() -> Vec<String> {
    let file = "../../proto/rondel/v1/gateway.proto";
    let compiled = protox::compile([file], ["../../proto"]).unwrap();
    let mut methods = Vec::new();
    for file in &compiled.file {
        for service in &file.service {
            for method in &service.method {
                methods.push(format!("/{}.{}/{}", file.package(), service.name(), method.name()));
            }
        }
    }
    assert!(!methods.is_empty());
    methods
}

/// Calls a method as this executor would.
async fn call(world: &World, method: &str, token: Option<&Token>, hello: v1::Hello) -> String {
    let answer = match method {
        "/rondel.v1.Gateway/Session" => world.dial(token, hello).await.map(drop),
        new => panic!("add a call of {new} here"),
    };
    match answer {
        Ok(()) => "yes".to_owned(),
        // The caller is permitted, but the object does not exist.
        Err(status) if status.code() == Code::FailedPrecondition => "no such app".to_owned(),
        Err(status) => format!("{:?}", status.code()),
    }
}

/// The token of a caller of this kind; `None` for an anonymous caller.
async fn token(world: &World, caller: &str, mine: AppId, theirs: AppId) -> Option<Token> {
    let (store, now) = (&world.store, world.engine.now());
    let at = |role, app| Grant { role, namespace: Some(HERE), app: Some(app) };
    let (kind, grant) = match caller {
        "anonymous" => return None,
        "unknown token" => return Some(Token::generate_for(TokenKind::Executor)),
        "viewer" | "locked out" => (TokenKind::Api, at(Role::Viewer, mine)),
        "operator" => (TokenKind::Api, at(Role::Operator, mine)),
        "editor" => (TokenKind::Api, at(Role::Editor, mine)),
        "admin" => (TokenKind::Api, at(Role::Admin, mine)),
        "root" => (TokenKind::Api, Grant::everywhere(Role::Admin)),
        "executor of theirs" => (TokenKind::Executor, at(Role::Executor, theirs)),
        _ => (TokenKind::Executor, at(Role::Executor, mine)),
    };
    let token = Token::generate_for(kind);
    let mut record =
        TokenRecord { name: caller.to_owned(), grants: vec![grant], ..token.record(world.engine.new_id(), kind, now) };
    if kind == TokenKind::Api {
        let account = Account {
            id: AccountId::new(world.engine.new_id()),
            name: caller.replace(' ', "-"),
            display_name: caller.to_owned(),
            password: None,
            disabled: caller == "locked out",
            created_at: now,
            password_changed_at: None,
            provider_linked_at: None,
            grants: vec![if caller == "locked out" { at(Role::Admin, mine) } else { grant }],
        };
        assert!(store.create_account(&account).await.unwrap());
        record.owner = Some(account.id);
        if caller == "locked out" {
            record.grants = vec![at(Role::Admin, mine)];
        }
    }
    if caller == "expired" {
        record.expires_at = Some(Timestamp::EPOCH);
    }
    store.add_token(&record).await.unwrap();
    if caller == "revoked" {
        assert!(store.revoke_token(record.id, now).await.unwrap());
    }
    if caller == "rotated away" {
        let next = Token::generate_for(kind);
        let next =
            TokenRecord { id: rondel_core::TokenId::new(world.engine.new_id()), hash: next.hash(), ..record.clone() };
        assert!(store.rotate_token(record.id, now - Duration::from_secs(1), &next).await.unwrap());
    }
    Some(token)
}

#[tokio::test]
async fn every_method_is_open_to_the_callers_in_the_table() {
    let world = World::start().await;
    let (store, now) = (&world.store, world.engine.now());
    let elsewhere = Namespace { id: NamespaceId::new(2), name: "elsewhere".to_owned() };
    assert!(store.create_namespace(&elsewhere, now).await.unwrap());
    let mine = store.ensure_app(AppId::new(11), HERE, "mine", now).await.unwrap().id;
    let theirs = store.ensure_app(AppId::new(12), HERE, "theirs", now).await.unwrap().id;
    store.ensure_app(AppId::new(13), elsewhere.id, "mine", now).await.unwrap();
    let mut tokens = Vec::new();
    for caller in CALLERS {
        tokens.push(token(&world, caller, mine, theirs).await);
    }
    let mut found = format!("method\tobject\t{}\n", CALLERS.join("\t"));
    let mut incarnation = 100;
    for method in methods() {
        for (object, namespace, app) in OBJECTS {
            write!(found, "{method}\t{object}").unwrap();
            for token in &tokens {
                incarnation += 1;
                let hello = v1::Hello {
                    namespace: namespace.to_owned(),
                    app: app.to_owned(),
                    ..hello(&format!("e{incarnation}"), incarnation)
                };
                write!(found, "\t{}", call(&world, &method, token.as_ref(), hello).await).unwrap();
            }
            found.push('\n');
        }
    }
    world.end().await;
    if std::env::var_os("RONDEL_BLESS").is_some() {
        std::fs::write(TABLE, &found).unwrap();
    }
    let expected = std::fs::read_to_string(TABLE).unwrap_or_default();
    for (line, wanted) in found.lines().zip(expected.lines()) {
        assert_eq!(line, wanted, "left: what happened; right: {TABLE}");
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "a method is missing in {TABLE}, or was removed");
}

/// Rules that hold for the whole table, however it was written.
#[test]
fn the_table_follows_the_rules() {
    let table = std::fs::read_to_string(TABLE).unwrap();
    let mut lines = table.lines();
    let callers: Vec<&str> = lines.next().unwrap().split('\t').skip(2).collect();
    assert_eq!(callers, CALLERS);
    for line in lines {
        let cells: Vec<&str> = line.split('\t').collect();
        let (object, outcomes) = (cells[1], &cells[2..]);
        for (caller, outcome) in callers.iter().zip(outcomes) {
            let expected = match (*caller, object) {
                ("anonymous" | "unknown token" | "expired" | "revoked" | "rotated away" | "locked out", _) => {
                    "Unauthenticated"
                }
                ("root", "no app") => "no such app",
                ("root", _) | ("executor of mine" | "admin", "own") | ("executor of theirs", "other app") => "yes",
                _ => "PermissionDenied",
            };
            assert_eq!(*outcome, expected, "{caller}, {object}");
        }
    }
}
