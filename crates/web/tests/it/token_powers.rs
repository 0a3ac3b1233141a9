//! What tokens can do to accounts, sign-ins and tokens. Every route is called with tokens of each role, which belong to a strong account,
//! and with sign-ins that were begun with those tokens. The targets are the token's own account, another account, and a stronger one. No
//! route may show or change anything stronger than the token, and everything that a token creates must end together with it. For a token
//! with every right, only the sign-in of its own account is stronger: no route may give the token access to that.
//!
//! The calls are generated from the route table, so new routes are covered without a change here.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use axum::body::Body;
use axum::http::Request;
use rondel_admin::auth::Token;
use rondel_admin::sign_in::{self, SignInClient, SignInOwner};
use rondel_core::access::{Grant, Rights, Role};
use rondel_core::{AccountId, NamespaceId, TokenId};
use rondel_store::Store;
use rondel_store::access::{Account, LinkPurpose, TokenKind, TokenQuery, TokenRecord};
use rondel_web::{Access, RouteInfo, route_table};

use crate::harness::Answer;
use crate::matrix::{OBJECTS, TestObjects, World, body};
use crate::visitor::Visitor;

/// The callers: tokens of a strong account with a role in the namespace `default`, a token with every right, and the account itself.
const CALLERS: [(&str, Option<Grant>); 6] = [
    ("viewer", Some(grant_in_default(Role::Viewer))),
    ("operator", Some(grant_in_default(Role::Operator))),
    ("editor", Some(grant_in_default(Role::Editor))),
    ("admin", Some(grant_in_default(Role::Admin))),
    ("everything", Some(ADMIN_EVERYWHERE)),
    ("account", None),
];
const TARGETS: [&str; 3] = ["own", "other", "stronger"];
const ADMIN_EVERYWHERE: Grant = Grant::everywhere(Role::Admin);

const fn grant_in_default(role: Role) -> Grant {
    Grant { role, namespace: Some(NamespaceId::new(1)), app: None }
}

/// The accounts and tokens for one call, freshly created.
struct Accounts {
    boss: Account,
    other: Account,
    root: Account,
    own_token: TokenId,
    other_token: TokenId,
    strong_token: TokenId,
    caller: TokenId,
    rights: Rights,
    bearer: String,
    cookie: String,
}

impl Accounts {
    async fn new(world: &World, grant_of_token: Option<Grant>) -> Self {
        let engine = &world.server.engine;
        let (store, number) = (engine.store(), engine.new_id());
        let account = async |name: &str, grant: Grant| {
            let account = Account {
                id: AccountId::new(engine.new_id()),
                name: format!("{name}{number}"),
                display_name: name.to_owned(),
                password: None,
                disabled: false,
                created_at: engine.now(),
                password_changed_at: None,
                provider_linked_at: None,
                grants: vec![grant],
            };
            assert!(store.create_account(&account).await.unwrap());
            let place = SignInClient { address: None, user_agent: browser(&account) };
            let whose = SignInOwner::Account(account.id);
            let cookie = sign_in::begin(store, engine.new_id(), whose, &place, engine.now()).await.unwrap();
            (account, cookie)
        };
        let token = async |owner: &Account, grant: Grant| {
            let secret = Token::generate_for(TokenKind::Api);
            let record = secret.record(engine.new_id(), TokenKind::Api, engine.now());
            let owner = Some(owner.id);
            let record = TokenRecord { name: "one".to_owned(), owner, grants: vec![grant], ..record };
            assert!(store.add_token(&record).await.unwrap());
            (record.id, secret)
        };
        let (boss, cookie) = account("boss", ADMIN_EVERYWHERE).await;
        let ((other, _), (root, _)) =
            (account("other", grant_in_default(Role::Editor)).await, account("root", ADMIN_EVERYWHERE).await);
        let grant = grant_of_token.unwrap_or(ADMIN_EVERYWHERE);
        let (caller, secret) = token(&boss, grant).await;
        let cookie = match grant_of_token {
            None => cookie,
            Some(_) => {
                let whose = SignInOwner::Token(caller);
                sign_in::begin(store, engine.new_id(), whose, &SignInClient::default(), engine.now()).await.unwrap()
            }
        };
        Self {
            own_token: token(&boss, grant).await.0,
            other_token: token(&other, grant_in_default(Role::Viewer)).await.0,
            strong_token: token(&boss, ADMIN_EVERYWHERE).await.0,
            caller,
            rights: Rights::new(vec![grant]),
            bearer: format!("Bearer {}", secret.reveal()),
            cookie: format!("rondel_session={}", cookie.reveal()),
            boss,
            other,
            root,
        }
    }

    /// The state that a limited token must not be able to change, as text.
    async fn protected_state(&self, store: &dyn Store) -> [(&'static str, String); 4] {
        let (mut passwords, mut roles, mut sessions) = (String::new(), String::new(), String::new());
        for account in [&self.boss, &self.other, &self.root] {
            let found = store.account(account.id).await.unwrap();
            let found = found.as_ref();
            write!(passwords, "{} ", found.is_some_and(|found| found.password.is_some())).unwrap();
            write!(roles, "{:?} ", found.map(|found| (&found.grants, found.disabled))).unwrap();
            let ids = store.sign_ins(account.id).await.unwrap().into_iter().map(|session| session.id.to_string());
            write!(sessions, "{:?} ", ids.collect::<BTreeSet<_>>()).unwrap();
        }
        let mut tokens = String::new();
        for id in [self.other_token, self.strong_token] {
            let found = store.token_by_id(id).await.unwrap();
            write!(tokens, "{:?} ", found.map(|found| (found.revoked_at, found.expires_at))).unwrap();
        }
        [("password", passwords), ("roles", roles), ("sign-ins", sessions), ("token", tokens)]
    }

    /// Texts that are visible only to callers who may see the other token, the strong token, or the sign-ins of the accounts.
    async fn marks(&self, store: &dyn Store) -> Vec<String> {
        let mut marks = vec![browser(&self.boss), browser(&self.other)];
        for id in [self.other_token, self.strong_token] {
            marks.push(store.token_by_id(id).await.unwrap().unwrap().prefix);
        }
        marks
    }

    async fn call(&self, world: &World, route: &RouteInfo, target: &str, things: TestObjects) -> Answer {
        let store = world.server.engine.store();
        let (user, token) = match target {
            "own" => (&self.boss, self.own_token),
            "other" => (&self.other, self.other_token),
            _ => (&self.root, self.strong_token),
        };
        let of_session = if target == "other" { &self.other } else { &self.boss };
        let session = store.sign_ins(of_session.id).await.unwrap()[0].id.to_string();
        let things = TestObjects { token: token.to_string(), session, ..things };
        let path = things.path(route.path).replace("{user}", &user.name);
        let query = if route.path.ends_with("/import") { "?format=csv" } else { "" };
        let request = Request::builder().method(route.method.clone()).uri(format!("{path}{query}")).header("host", "h");
        let request = match route.access {
            Access::SignedIn(_) => request.header("cookie", &self.cookie),
            Access::Open | Access::Needs(_) => request.header("authorization", &self.bearer),
        };
        let (kind, mut body) = body(route, &things, "job-mine");
        if route.path == "/account/password" {
            // The accounts have no password yet, so the form does not ask for the current one.
            body.push_str("&password=a+long+password");
        }
        world.server.send(request.header("content-type", kind).body(Body::from(body)).unwrap()).await
    }
}

fn browser(account: &Account) -> String {
    format!("browser of {}", account.name)
}

fn is_about_accounts(path: &str) -> bool {
    ["/account", "/users", "/tokens", "/sessions", "/sign-in-links", "/api/v1/me"]
        .iter()
        .any(|part| path.contains(part))
}

/// Calls a route and describes the outcome: the answer, what changed, and what became visible.
async fn call_and_describe(
    world: &World,
    route: &RouteInfo,
    target: &str,
    (caller, grant): (&str, Option<Grant>),
) -> String {
    let accounts = Accounts::new(world, grant).await;
    let store = world.server.engine.store();
    let (before, marks) = (accounts.protected_state(store).await, accounts.marks(store).await);
    let things = world.create_objects("root", OBJECTS[0]).await;
    let own = store.token_by_id(accounts.own_token).await.unwrap();
    let marker = TokenId::new(world.server.engine.new_id());
    let answer = accounts.call(world, route, target, things).await;
    let text = String::from_utf8_lossy(&answer.bytes).into_owned();
    let mut outcome = match answer.status.as_u16() {
        status @ (401 | 403 | 404) => status.to_string(),
        status if status < 500 => "yes".to_owned(),
        _ => "5xx".to_owned(),
    };
    let mut effects: Vec<&str> = Vec::new();
    for ((what, before), (_, after)) in before.iter().zip(accounts.protected_state(store).await) {
        effects.extend((*before != after).then_some(*what));
    }
    effects.extend(marks.iter().any(|mark| text.contains(mark.as_str())).then_some("seen"));
    let place = format!("{} {} by {caller} on {target}: {} {effects:?}", route.method, route.path, answer.status);
    if let Some(grant) = grant {
        assert!(effects.is_empty() || grant == ADMIN_EVERYWHERE, "{place}");
        let link = link_in(&text);
        // A link works only once. It is used here if the token has every right. For weaker tokens, `check_created_objects` only checks that it ends
        // with the token.
        let signed_in = match link.filter(|_| grant == ADMIN_EVERYWHERE) {
            Some(link) => try_to_set_password(world, link, &place).await,
            None => None,
        };
        let boss = store.account(accounts.boss.id).await.unwrap();
        assert!(boss.is_none_or(|boss| boss.password.is_none()), "{place}: a token set the password of its account");
        check_created_objects(world, &accounts, (marker, link), &place).await;
        if let Some(signed_in) = signed_in {
            let page = signed_in.get("/account").await;
            assert_ne!(page.status, 200, "{place}: a sign-in outlives the token that made it");
        }
    }
    effects.extend((own != store.token_by_id(accounts.own_token).await.unwrap()).then_some("own token"));
    for effect in effects {
        write!(outcome, " +{effect}").unwrap();
    }
    outcome
}

/// The secret of the sign-in link in an answer.
fn link_in(text: &str) -> Option<&str> {
    let rest = text.split("/sign-in?token=").nth(1)?;
    rest.split(['"', '<', '&']).next()
}

/// Signs in with a link that a token created, and tries to set a new password. Returns the session if the password was refused.
async fn try_to_set_password<'w>(world: &'w World, link: &str, place: &str) -> Option<Visitor<'w>> {
    let mut visitor = Visitor::new(&world.server);
    let answer = visitor.post("/sign-in", &format!("token={link}&next=/jobs")).await;
    assert_eq!(answer.status, 303, "{place}: the link signs in");
    visitor.cookie = answer.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let answer = visitor.post("/account/password", "current=&password=taken+over+now").await;
    // A caller with every right may set the password of another account: the server then begins a new session, which does not depend on
    // the token.
    answer.headers.get("set-cookie").is_none().then_some(visitor)
}

/// Checks that a call created nothing with more rights than the caller, and nothing that outlives the caller's token.
async fn check_created_objects(
    world: &World,
    accounts: &Accounts,
    (marker, link): (TokenId, Option<&str>),
    place: &str,
) {
    let engine = &world.server.engine;
    let (store, now) = (engine.store(), engine.now());
    let newest = store.tokens(&TokenQuery { limit: 20, ..TokenQuery::default() }).await.unwrap();
    let created: Vec<TokenRecord> = newest.into_iter().filter(|token| token.id > marker).collect();
    for token in &created {
        assert!(token.grants.iter().all(|grant| accounts.rights.covers(grant)), "{place}: {token:?}");
    }
    let is_gone = store.account(accounts.boss.id).await.unwrap().is_none();
    assert!(store.revoke_token(accounts.caller, now).await.unwrap() || is_gone, "{place}: its own token");
    for token in &created {
        let left = store.token_by_id(token.id).await.unwrap();
        assert!(left.is_none_or(|token| !token.is_valid(now)), "{place}: {token:?} outlives the token that made it");
    }
    if let Some(link) = link {
        let is_open = sign_in::is_link_valid(store, link, LinkPurpose::SignIn, now).await.unwrap();
        assert!(!is_open, "{place}: a link outlives the token that made it");
    }
}

/// Checks that callers may manage their own objects, and that an account may also manage the objects of its tokens. This shows that the
/// calls reach their routes.
fn check_allowed(route: &RouteInfo, target: &str, caller: &str, outcome: &str) {
    let is_own = target == "own";
    let is_of_account = caller == "account" && target != "other";
    let is_allowed = match (route.method.as_str(), route.path) {
        ("DELETE", "/api/v1/tokens/{id}")
        | ("POST", "/api/v1/tokens/{id}/rotate" | "/account/tokens/{id}/revoke" | "/account/tokens/{id}/rotate") => {
            is_own || is_of_account
        }
        ("GET" | "POST", "/api/v1/tokens") | ("POST", "/api/v1/sign-in-links") => true,
        ("POST", "/account/password") | ("DELETE", "/api/v1/sessions/{id}") => is_of_account,
        _ => return,
    };
    if is_allowed {
        assert!(outcome.starts_with("yes"), "{} {} by {caller} on {target}: {outcome}", route.method, route.path);
    }
}

#[tokio::test]
async fn a_limited_token_reaches_nothing_that_is_stronger_by_any_route() {
    let world = Box::pin(World::new()).await;
    let mut routes = route_table();
    routes.retain(|route| route.access != Access::Open);
    for route in &routes {
        let targets = if is_about_accounts(route.path) { &TARGETS[..] } else { &TARGETS[..1] };
        for target in targets {
            for caller in CALLERS {
                let outcome = Box::pin(call_and_describe(&world, route, target, caller)).await;
                check_allowed(route, target, caller.0, &outcome);
            }
        }
    }
}
