//! Accounts, sign-ins, tokens, the audit log, and lists that are limited to the apps that the caller may see.

use std::time::Duration;

use rondel_core::access::{Grant, Role};
use rondel_core::{AccountId, AppId, AuditId, IdGen, JobId, NamespaceId, RunStatus, SessionId, Timestamp, TokenId};

use super::{DEFAULT, expect_created, job, join, name, next_id, requested_run, spec};
use crate::Store;
use crate::access::{
    Account, AccountChange, AccountChanged, AttemptDecision, AuditEntry, AuditQuery, AuthMethod, INCOMPLETE,
    KeptAccess, LinkPurpose, PasswordHash, ProviderLink, SignInLink, TokenKind, TokenQuery, TokenRecord, TokenScope,
    Verdict, WebSession,
};
use crate::catalog::{JobQuery, JobRecord, Namespace, NamespaceDeleted, NewJob};
use crate::ledger::RunQuery;

const MINUTE: Duration = Duration::from_secs(60);

pub(super) fn account(grants: Vec<Grant>, now: Timestamp) -> Account {
    Account {
        id: AccountId::new(next_id()),
        name: name("ann"),
        display_name: "Änne 安".to_owned(),
        password: Some(PasswordHash::new("$argon2id$…".to_owned())),
        disabled: false,
        created_at: now,
        password_changed_at: Some(now),
        provider_linked_at: Some(now),
        grants,
    }
}

pub(super) fn session(account: Option<AccountId>, token: Option<TokenId>, now: Timestamp) -> WebSession {
    WebSession {
        id: SessionId::new(next_id()),
        hash: name("cookie"),
        account,
        token,
        minted_by: None,
        created_at: now,
        last_seen_at: now,
        expires_at: now + 60 * MINUTE,
        address: "192.0.2.7".to_owned(),
        user_agent: "a browser".to_owned(),
    }
}

pub(super) fn token(kind: TokenKind, owner: Option<AccountId>, now: Timestamp) -> TokenRecord {
    let id = TokenId::new(next_id());
    TokenRecord {
        id,
        kind,
        name: "für alle".to_owned(),
        owner,
        namespace: None,
        hash: name("hash"),
        prefix: "rondel_pat_ab".to_owned(),
        minted_by: None,
        line: id,
        series: id,
        declares: true,
        created_at: now,
        expires_at: None,
        last_used_at: None,
        revoked_at: None,
        grants: vec![Grant::everywhere(Role::Viewer)],
    }
}

/// Namespaces are removed with their apps and every role in them, but not while they have a job or a calendar.
pub async fn namespaces_are_made_and_removed_when_empty(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let made = Namespace { id: NamespaceId::new(next_id()), name: name("ns") };
    assert!(store.create_namespace(&made, now).await.unwrap());
    let again = Namespace { id: NamespaceId::new(next_id()), ..made.clone() };
    assert!(!store.create_namespace(&again, now).await.unwrap());
    assert_eq!(store.namespace(&made.name).await.unwrap(), Some(made.clone()));
    store.ensure_app(AppId::new(next_id()), made.id, "app", now).await.unwrap();
    let guest = account(vec![Grant { role: Role::Viewer, namespace: Some(made.id), app: None }], now);
    assert!(store.create_account(&guest).await.unwrap());
    assert_eq!(store.delete_namespace(made.id).await.unwrap(), NamespaceDeleted::Done);
    assert_eq!(store.delete_namespace(made.id).await.unwrap(), NamespaceDeleted::NotFound);
    assert_eq!(store.namespace(&made.name).await.unwrap(), None);
    assert_eq!(store.account(guest.id).await.unwrap().unwrap().grants, []);
    job(store, None).await;
    assert_eq!(store.delete_namespace(DEFAULT).await.unwrap(), NamespaceDeleted::Used);
}

async fn job_of_new_app(store: &dyn Store) -> JobRecord {
    let now = store.now().await.unwrap();
    let app = store.ensure_app(AppId::new(next_id()), DEFAULT, &name("app"), now).await.unwrap();
    let new = NewJob {
        id: JobId::new(next_id()),
        namespace: DEFAULT,
        app: app.id,
        spec: spec(&name("job"), serde_json::json!({"app": app.name})),
        anchor: now.ceil_second(),
        next_fire_at: None,
        delay: None,
        calendar: None,
        declared: None,
        author: "conformance".to_owned(),
        now,
    };
    expect_created(store.create_job(new).await.unwrap())
}

/// Pages have no gaps, because the query itself filters by app.
pub async fn lists_keep_to_the_apps_that_may_be_seen(store: &dyn Store) {
    let (own, other) = (job_of_new_app(store).await, job_of_new_app(store).await);
    let jobs = async |within: Vec<AppId>| {
        let query = JobQuery { within: Some(within), limit: 100, ..JobQuery::default() };
        let jobs = store.jobs(DEFAULT, &query).await.unwrap();
        jobs.into_iter().map(|job| job.id).filter(|id| [own.id, other.id].contains(id)).collect::<Vec<_>>()
    };
    assert_eq!(jobs(vec![own.app]).await, [own.id]);
    assert_eq!(jobs(vec![own.app, other.app]).await.len(), 2);
    assert_eq!(jobs(Vec::new()).await, []);
    let query = JobQuery { app: Some(other.app), within: Some(vec![own.app]), limit: 9, ..JobQuery::default() };
    assert_eq!(store.jobs(DEFAULT, &query).await.unwrap(), [], "the narrower of both counts");
    let lease = join(store).await;
    let now = store.now().await.unwrap();
    for of in [&own, &other, &own] {
        store.request_run(lease, requested_run(of, lease, now)).await.unwrap();
    }
    let query = |within| RunQuery { within, limit: 1, ..RunQuery::default() };
    let first = store.list_runs(DEFAULT, &query(Some(vec![own.app]))).await.unwrap();
    let after = first.last().map(|run| run.id);
    let second = store.list_runs(DEFAULT, &RunQuery { after, ..query(Some(vec![own.app])) }).await.unwrap();
    let seen: Vec<_> = first.iter().chain(&second).map(|run| run.job).collect();
    assert_eq!(seen, [own.id, own.id]);
    assert_eq!(store.list_runs(DEFAULT, &query(Some(Vec::new()))).await.unwrap(), []);
    // A job can have runs under another app than its present one.
    let of_job = async |within, statuses: &[RunStatus]| {
        let statuses = statuses.to_vec();
        let query = RunQuery { job: Some(own.id), within, statuses, limit: 9, ..RunQuery::default() };
        store.list_runs(DEFAULT, &query).await.unwrap().len()
    };
    let failed = &[RunStatus::Failed];
    for (within, all) in [(None, 2), (Some(vec![own.app, other.app]), 2), (Some(vec![other.app]), 0), (Some(vec![]), 0)]
    {
        assert_eq!((of_job(within.clone(), &[]).await, of_job(within, failed).await), (all, 0));
    }
    let failed_query = RunQuery { statuses: vec![RunStatus::Failed], ..query(Some(vec![own.app])) };
    assert_eq!(store.list_runs(DEFAULT, &failed_query).await.unwrap(), []);
}

/// Accounts are read by id, by name and in pages.
pub async fn accounts_are_read_as_they_were_written(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let place = Grant { role: Role::Editor, namespace: Some(DEFAULT), app: Some(AppId::new(next_id())) };
    let ann = account(vec![Grant::everywhere(Role::Viewer), place], now);
    assert!(store.create_account(&ann).await.unwrap());
    assert!(!store.create_account(&Account { id: AccountId::new(next_id()), ..ann.clone() }).await.unwrap());
    assert_eq!(store.account(ann.id).await.unwrap(), Some(ann.clone()));
    assert_eq!(store.account_by_name(&ann.name).await.unwrap(), Some(ann.clone()));
    assert_eq!(store.account_by_name(&ann.name.to_uppercase()).await.unwrap(), None);
    let bob =
        Account { name: format!("{}b", ann.name), password: None, password_changed_at: None, ..account(vec![], now) };
    assert!(store.create_account(&bob).await.unwrap());
    assert_eq!(store.accounts(Some(&ann.name), 1).await.unwrap(), std::slice::from_ref(&bob));
    let change = AccountChange {
        display_name: Some("Bob".to_owned()),
        disabled: Some(true),
        grants: Some(vec![place]),
        provider_link: Some(ProviderLink::None),
    };
    assert_eq!(store.change_account(bob.id, &change).await.unwrap(), AccountChanged::Done);
    let changed = Account {
        display_name: "Bob".to_owned(),
        disabled: true,
        grants: vec![place],
        provider_linked_at: None,
        ..bob.clone()
    };
    assert_eq!(store.account(bob.id).await.unwrap(), Some(changed.clone()));
    let link = AccountChange { provider_link: Some(ProviderLink::Since(now)), ..AccountChange::default() };
    assert_eq!(store.change_account(bob.id, &link).await.unwrap(), AccountChanged::Done);
    let linked = Account { provider_linked_at: Some(now), ..changed };
    assert_eq!(store.account(bob.id).await.unwrap(), Some(linked), "and nothing else");
    let unknown = AccountId::new(next_id());
    assert_eq!(store.change_account(unknown, &change).await.unwrap(), AccountChanged::NotFound);
    let mut own = token(TokenKind::Api, Some(bob.id), now);
    own.grants = vec![place];
    store.add_token(&own).await.unwrap();
    assert_eq!(store.delete_account(bob.id).await.unwrap(), AccountChanged::Done);
    assert_eq!(store.delete_account(bob.id).await.unwrap(), AccountChanged::NotFound);
    assert_eq!(store.token(&own.hash).await.unwrap(), None, "tokens go with their owner");
}

/// The last admin account cannot be disabled, demoted or deleted, even if there are other accounts.
pub async fn the_last_admin_account_stays(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let admin = || account(vec![Grant::everywhere(Role::Admin)], now);
    let (first, second) = (admin(), admin());
    assert!(!store.has_admin_account().await.unwrap());
    let both = tokio::join!(store.create_first_admin(&first), store.create_first_admin(&second));
    let (first_made, second_made) = (both.0.unwrap(), both.1.unwrap());
    assert!(first_made ^ second_made, "one of two that come at once");
    let (first, second) = if first_made { (first, second) } else { (second, first) };
    assert!(store.has_admin_account().await.unwrap());
    let lock = AccountChange { disabled: Some(true), ..AccountChange::default() };
    let lower = AccountChange { grants: Some(vec![Grant::everywhere(Role::Editor)]), ..AccountChange::default() };
    assert_eq!(store.change_account(first.id, &lock).await.unwrap(), AccountChanged::LastAdmin);
    assert_eq!(store.change_account(first.id, &lower).await.unwrap(), AccountChanged::LastAdmin);
    assert_eq!(store.delete_account(first.id).await.unwrap(), AccountChanged::LastAdmin);
    assert!(store.create_account(&second).await.unwrap());
    let both = tokio::join!(store.change_account(first.id, &lock), store.delete_account(second.id));
    let outcomes = [both.0.unwrap(), both.1.unwrap()];
    assert!(outcomes.contains(&AccountChanged::Done) && outcomes.contains(&AccountChanged::LastAdmin), "{outcomes:?}");
    assert!(store.has_admin_account().await.unwrap());
    // Leaves the store without an admin account, because other checks expect that.
    let third = admin();
    assert!(store.create_account(&third).await.unwrap());
}

/// Each of these ends a sign-in: a change of password, a change of rights, a revoked token, and idleness.
pub async fn a_sign_in_ends_with_its_password_rights_or_token(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let ann = account(Vec::new(), now);
    assert!(store.create_account(&ann).await.unwrap());
    let begin = async |one: &WebSession| store.begin_sign_in(one, 10 * MINUTE, 3).await.unwrap();
    let (here, there) = (session(Some(ann.id), None, now), session(Some(ann.id), None, now));
    begin(&here).await;
    begin(&there).await;
    assert_eq!(store.sign_in(&here.hash).await.unwrap(), Some(here.clone()));
    assert_eq!(store.sign_ins(ann.id).await.unwrap(), [there.clone(), here.clone()]);
    let password = PasswordHash::new("$argon2id$new".to_owned());
    let kept_access = KeptAccess { session: Some(here.id), keeps_tokens: false };
    assert!(store.set_password(ann.id, &password, kept_access, now).await.unwrap());
    assert_eq!(store.sign_in(&there.hash).await.unwrap(), None);
    assert!(store.sign_in(&here.hash).await.unwrap().is_some());
    let grants = Some(vec![Grant::everywhere(Role::Viewer)]);
    let change = AccountChange { grants, ..AccountChange::default() };
    assert_eq!(store.change_account(ann.id, &change).await.unwrap(), AccountChanged::Done);
    assert_eq!(store.sign_ins(ann.id).await.unwrap(), []);
    let sessions: Vec<WebSession> = (0..4).map(|_| session(Some(ann.id), None, now)).collect();
    for one in &sessions {
        begin(one).await;
    }
    assert_eq!(store.sign_in(&sessions[0].hash).await.unwrap(), None, "the oldest makes room");
    assert!(!store.end_sign_in(sessions[1].id, Some(AccountId::new(next_id()))).await.unwrap());
    assert!(store.end_sign_in(sessions[1].id, Some(ann.id)).await.unwrap());
    assert!(!store.end_sign_in(sessions[1].id, Some(ann.id)).await.unwrap());
    store.touch_sign_in(sessions[2].id, now + 8 * MINUTE).await.unwrap();
    let later = session(Some(ann.id), None, now + 11 * MINUTE);
    begin(&later).await;
    assert_eq!(store.sign_in(&sessions[3].hash).await.unwrap(), None, "an idle one is over");
    let by_token = token(TokenKind::Api, None, now);
    store.add_token(&by_token).await.unwrap();
    let of_token = session(None, Some(by_token.id), now + 11 * MINUTE);
    begin(&of_token).await;
    assert!(store.revoke_token(by_token.id, now).await.unwrap());
    assert_eq!(store.sign_in(&of_token.hash).await.unwrap(), None);
}

/// Of several concurrent callers, exactly one takes the link.
pub async fn a_link_is_used_once(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let link = |minutes: u32| SignInLink {
        hash: name("link"),
        purpose: LinkPurpose::SignIn,
        account: Some(AccountId::new(next_id())),
        token: None,
        minted_by: None,
        expires_at: now + minutes * MINUTE,
    };
    let (short, long) = (link(1), link(9));
    store.add_link(&short, now).await.unwrap();
    store.add_link(&long, now + 2 * MINUTE).await.unwrap();
    assert_eq!(store.link(&short.hash).await.unwrap(), None, "an expired link is deleted");
    assert_eq!(store.link(&long.hash).await.unwrap(), Some(long.clone()));
    let taken = tokio::join!(store.take_link(&long.hash), store.take_link(&long.hash));
    let taken = [taken.0.unwrap(), taken.1.unwrap()];
    assert_eq!(taken.iter().flatten().count(), 1, "{taken:?}");
    assert_eq!(store.take_link(&long.hash).await.unwrap(), None);
}

/// Valid tokens of an account are counted, tokens within a scope are found, and tokens that ended long ago are removed.
pub async fn tokens_are_counted_found_by_place_and_forgotten(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let (owner, app, namespace) = (AccountId::new(next_id()), AppId::new(next_id()), NamespaceId::new(next_id()));
    let make = async |kind, owner, grant: Grant, expires_at| {
        let record = TokenRecord { grants: vec![grant], expires_at, ..token(kind, owner, now) };
        store.add_token(&record).await.unwrap();
        record.id
    };
    let at = |namespace, app| Grant { role: Role::Executor, namespace: Some(namespace), app };
    let viewer = Grant::everywhere(Role::Viewer);
    let long_ago = now.saturating_sub(MINUTE * 10_000);
    let living = make(TokenKind::Api, Some(owner), viewer, None).await;
    let dead = make(TokenKind::Api, Some(owner), viewer, Some(long_ago.saturating_sub(MINUTE))).await;
    let revoked = make(TokenKind::Api, Some(owner), viewer, None).await;
    store.revoke_token(revoked, long_ago).await.unwrap();
    let of_app = make(TokenKind::Xxl, None, at(DEFAULT, Some(app)), None).await;
    let of_namespace = make(TokenKind::Executor, None, at(namespace, None), None).await;
    make(TokenKind::Executor, None, at(DEFAULT, Some(AppId::new(next_id()))), None).await;
    make(TokenKind::Api, None, at(DEFAULT, Some(app)), None).await;
    assert_eq!(store.count_valid_tokens(owner, now).await.unwrap(), 1);
    let first = token(TokenKind::Api, None, now);
    let of_line = |kind, owner, expires_at| TokenRecord { line: first.id, expires_at, ..token(kind, owner, now) };
    let (second, late) = (of_line(TokenKind::Api, None, None), of_line(TokenKind::Api, None, Some(long_ago)));
    let others =
        [of_line(TokenKind::Executor, None, None), of_line(TokenKind::Api, Some(AccountId::new(next_id())), None)];
    for one in [&first, &second, &late].into_iter().chain(&others) {
        assert!(store.add_token(one).await.unwrap());
    }
    assert_eq!(
        store.count_valid_tokens_of_line(first.id, now).await.unwrap(),
        2,
        "those of the API that work, without an account"
    );
    assert_eq!(store.token_by_id(second.id).await.unwrap().unwrap().line, first.id);

    let found = async |account, namespaces: &[NamespaceId], apps: &[AppId]| {
        let scope = Some(TokenScope { account, namespaces: namespaces.to_vec(), apps: apps.to_vec() });
        let query = TokenQuery { scope, limit: 100, ..TokenQuery::default() };
        store.tokens(&query).await.unwrap().into_iter().map(|token| token.id).collect::<Vec<_>>()
    };
    assert_eq!(found(None, &[namespace], &[app]).await, [of_namespace, of_app]);
    assert_eq!(found(Some(owner), &[], &[app]).await, [of_app, revoked, dead, living]);
    assert_eq!(found(None, &[], &[]).await, []);

    store.forget_tokens(long_ago, 100).await.unwrap();
    assert!(store.token_by_id(dead).await.unwrap().is_none());
    for id in [living, revoked, of_app] {
        assert!(!store.token_by_id(id).await.unwrap().unwrap().grants.is_empty(), "{id}");
    }
    store.forget_tokens(long_ago + MINUTE, 100).await.unwrap();
    assert_eq!(found(Some(owner), &[], &[]).await, [living]);
    super::lineage::check_ends_of_servers_own_tokens(store).await;
}

/// All servers get the key that the first one stored.
pub async fn servers_share_a_key(store: &dyn Store) {
    let (now, word) = (store.now().await.unwrap(), name("key"));
    let (a, b) = tokio::join!(store.server_key(&word, "one", now), store.server_key(&word, "two", now));
    let key = a.unwrap();
    assert!(key == b.unwrap() && ["one", "two"].contains(&key.as_str()), "{key}");
    assert_eq!(store.server_key(&word, "three", now).await.unwrap(), key);
    assert_eq!(store.server_key(&name("key"), "four", now).await.unwrap(), "four");
}

/// The bound holds for any number of concurrent attempts. After the window, new attempts are allowed.
pub async fn attempts_are_counted_and_bounded(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let bucket = next_id();
    let count = async |at: Timestamp| store.count_attempt(bucket, 2, MINUTE, at).await.unwrap();
    let both = tokio::join!(count(now), count(now));
    assert_eq!(both, (AttemptDecision::Allowed, AttemptDecision::Allowed));
    assert_eq!(count(now).await, AttemptDecision::Blocked(now + MINUTE));
    assert_eq!(count(now + MINUTE).await, AttemptDecision::Allowed);
    store.forget_attempts(bucket).await.unwrap();
    for expected in [AttemptDecision::Allowed, AttemptDecision::Allowed, AttemptDecision::Blocked(now + MINUTE)] {
        assert_eq!(count(now).await, expected);
    }
    assert_eq!(store.count_attempt(next_id(), 2, MINUTE, now).await.unwrap(), AttemptDecision::Allowed);
}

/// The newest addresses are kept; they are removed with their account.
pub async fn addresses_of_an_account_are_remembered(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let (ann, bob) = (account(Vec::new(), now), account(Vec::new(), now));
    assert!(store.create_account(&ann).await.unwrap() && store.create_account(&bob).await.unwrap());
    let is_known = async |account: &Account, network: &str| store.is_known_address(account.id, network).await.unwrap();
    assert!(!is_known(&ann, "192.0.2.1").await);
    for (network, seconds) in [("192.0.2.1", 0), ("192.0.2.2", 1), ("192.0.2.1", 2), ("2001:db8:1:2::", 3)] {
        let at = now + Duration::from_secs(seconds);
        store.remember_address(ann.id, network, at, 2).await.unwrap();
    }
    assert!(is_known(&ann, "192.0.2.1").await && is_known(&ann, "2001:db8:1:2::").await);
    assert!(!is_known(&ann, "192.0.2.2").await, "the one that was used least lately makes room");
    assert!(!is_known(&bob, "192.0.2.1").await, "of each account by itself");
    store.remember_address(bob.id, "192.0.2.1", now, 2).await.unwrap();
    store.delete_account(bob.id).await.unwrap();
    assert!(!is_known(&bob, "192.0.2.1").await && is_known(&ann, "192.0.2.1").await);
}

/// Tokens are found by hash; adding one twice changes nothing.
pub async fn tokens_are_found_by_their_hash(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let owner = AccountId::new(next_id());
    let (executor, api) = (token(TokenKind::Executor, None, now), token(TokenKind::Api, Some(owner), now));
    store.add_token(&executor).await.unwrap();
    store.add_token(&api).await.unwrap();
    let again = TokenRecord { id: TokenId::new(next_id()), name: "other".to_owned(), ..api.clone() };
    store.add_token(&again).await.unwrap();
    assert_eq!(store.token(&api.hash).await.unwrap(), Some(api.clone()));
    assert_eq!(store.token(&executor.hash).await.unwrap(), Some(executor.clone()));
    assert_eq!(store.token(&name("hash")).await.unwrap(), None);
    store.touch_token(api.id, now).await.unwrap();
    let used = TokenRecord { last_used_at: Some(now), ..api };
    assert_eq!(store.token_by_id(used.id).await.unwrap(), Some(used.clone()));
    let own = TokenQuery { owner: Some(owner), limit: 5, ..TokenQuery::default() };
    assert_eq!(store.tokens(&own).await.unwrap(), std::slice::from_ref(&used));
    assert_eq!(store.tokens(&TokenQuery { after: Some(used.id), ..own }).await.unwrap(), []);
    let next = TokenQuery { after: Some(used.id), limit: 1, ..TokenQuery::default() };
    assert_eq!(store.tokens(&next).await.unwrap(), [executor]);
}

/// After a rotation, the old token stays valid for a while (the overlap), but not beyond its own expiry.
pub async fn a_token_is_replaced_with_an_overlap(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let (old, new) = (token(TokenKind::Executor, None, now), token(TokenKind::Executor, None, now));
    store.add_token(&old).await.unwrap();
    assert!(store.rotate_token(old.id, now + 9 * MINUTE, &new).await.unwrap());
    let ends = |record: Option<TokenRecord>| record.unwrap().expires_at;
    assert_eq!(ends(store.token(&old.hash).await.unwrap()), Some(now + 9 * MINUTE));
    assert_eq!(store.token(&new.hash).await.unwrap(), Some(new));
    assert!(store.rotate_token(old.id, now + 30 * MINUTE, &token(TokenKind::Executor, None, now)).await.unwrap());
    assert_eq!(ends(store.token(&old.hash).await.unwrap()), Some(now + 9 * MINUTE), "never longer");
    assert!(store.revoke_token(old.id, now).await.unwrap());
    assert!(!store.revoke_token(old.id, now).await.unwrap());
    assert!(!store.token(&old.hash).await.unwrap().unwrap().is_valid(now));
    let late = token(TokenKind::Executor, None, now);
    assert!(!store.rotate_token(old.id, now + MINUTE, &late).await.unwrap());
    assert_eq!(store.token(&late.hash).await.unwrap(), None);
}

/// Entries are returned newest first, in pages. A document that is too long is replaced by its length, and NUL in a text is replaced.
pub async fn the_audit_log_is_read_by_each_filter(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let (actor, object, namespace) = (name("actor"), name("object"), name("ns"));
    let ids = IdGen::new(7);
    let entry = |verdict: Verdict, at: Timestamp| AuditEntry {
        id: AuditId::new(ids.next(at)),
        at,
        actor: actor.clone(),
        auth_method: AuthMethod::Token,
        address: None,
        request_id: Some("r".to_owned()),
        action: "job.change".to_owned(),
        object: object.clone(),
        namespace: Some(namespace.clone()),
        verdict,
        before: None,
        after: Some("{\"a\":\"ä\"}".to_owned()),
        token: Some(TokenId::new(77)),
    };
    let (first, second) = (entry(Verdict::Allowed, now), entry(Verdict::Denied, now + MINUTE));
    let long = AuditEntry { after: Some("x".repeat(70_000)), actor: name("b\0b"), ..entry(Verdict::Failed, now) };
    for one in [&first, &second, &long] {
        store.add_audit(one).await.unwrap();
    }
    let by_actor = AuditQuery { actor: Some(actor.clone()), limit: 9, ..AuditQuery::default() };
    let read = async |query: AuditQuery| store.audit(&query).await.unwrap();
    assert_eq!(read(by_actor.clone()).await, [second.clone(), first.clone()]);
    assert_eq!(read(AuditQuery { limit: 1, ..by_actor.clone() }).await, std::slice::from_ref(&second));
    assert_eq!(read(AuditQuery { after: Some(second.id), ..by_actor.clone() }).await, std::slice::from_ref(&first));
    assert_eq!(
        read(AuditQuery { verdict: Some(Verdict::Denied), ..by_actor.clone() }).await,
        std::slice::from_ref(&second)
    );
    assert_eq!(read(AuditQuery { from: Some(now + MINUTE), ..by_actor.clone() }).await, std::slice::from_ref(&second));
    assert_eq!(read(AuditQuery { to: Some(now + MINUTE), ..by_actor.clone() }).await, std::slice::from_ref(&first));
    assert_eq!(read(AuditQuery { action: Some("job.run".to_owned()), ..by_actor }).await, []);
    let by_place = AuditQuery { namespace: Some(namespace.clone()), limit: 9, ..AuditQuery::default() };
    assert_eq!(read(by_place).await.len(), 3);
    let by_object =
        AuditQuery { object: Some(object.clone()), verdict: Some(Verdict::Failed), limit: 9, ..AuditQuery::default() };
    assert_eq!(read(by_object).await[0].after.as_deref(), Some("{\"left_out_bytes\":70000}"));
}

/// An entry is completed once; its actor, action and time are not changed by that.
pub async fn an_audit_entry_is_completed_once(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let open = AuditEntry {
        id: AuditId::new(IdGen::new(9).next(now)),
        at: now,
        actor: name("actor"),
        auth_method: AuthMethod::Session,
        address: Some("192.0.2.1".to_owned()),
        request_id: None,
        action: "job.create".to_owned(),
        object: String::new(),
        namespace: None,
        verdict: Verdict::Allowed,
        before: None,
        after: Some(INCOMPLETE.to_owned()),
        token: None,
    };
    store.add_audit(&open).await.unwrap();
    let answered = AuditEntry {
        object: name("job"),
        namespace: Some("default".to_owned()),
        verdict: Verdict::Failed,
        before: Some("{}".to_owned()),
        after: None,
        ..open.clone()
    };
    let forged = AuditEntry { actor: "stranger".to_owned(), action: "job.delete".to_owned(), ..answered.clone() };
    assert!(store.complete_audit(&forged).await.unwrap());
    assert!(!store.complete_audit(&open).await.unwrap(), "another word was first");
    let query = AuditQuery { actor: Some(open.actor.clone()), limit: 9, ..AuditQuery::default() };
    assert_eq!(store.audit(&query).await.unwrap(), [answered]);
}
