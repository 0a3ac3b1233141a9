//! Tokens create tokens, sign-ins and links. These end with the token that created them, and stay when another caller rotates that token.

use std::time::Duration;

use rondel_core::{AccountId, Timestamp, TokenId};

use super::access::{account, session, token};
use super::name;
use crate::Store;
use crate::access::{
    AccountChanged, KeptAccess, LinkPurpose, PasswordHash, SignInLink, TokenKind, TokenRecord, WebSession,
};

const MINUTE: Duration = Duration::from_secs(60);

/// Three tokens, each created by the one before. The first two also have a sign-in and a link each.
struct Family {
    tokens: [TokenRecord; 3],
    sessions: [WebSession; 2],
    links: [SignInLink; 2],
}

impl Family {
    async fn add(store: &dyn Store, owner: Option<AccountId>, now: Timestamp) -> Self {
        let first = token(TokenKind::Api, owner, now);
        let second = TokenRecord { minted_by: Some(first.id), ..token(TokenKind::Api, owner, now) };
        let third = TokenRecord { minted_by: Some(second.id), ..token(TokenKind::Executor, None, now) };
        for one in [&first, &second, &third] {
            assert!(store.add_token(one).await.unwrap());
        }
        let other = AccountId::new(super::next_id());
        let by_second = WebSession { minted_by: Some(second.id), ..session(Some(other), None, now) };
        let sessions = [session(None, Some(first.id), now), by_second];
        for one in &sessions {
            store.begin_sign_in(one, 10 * MINUTE, 3).await.unwrap();
        }
        let links = [link(None, Some(first.id), None, now), link(Some(other), None, Some(second.id), now)];
        for one in &links {
            store.add_link(one, now).await.unwrap();
        }
        Self { tokens: [first, second, third], sessions, links }
    }

    async fn are_usable(&self, store: &dyn Store, now: Timestamp) -> Vec<bool> {
        let mut works = Vec::new();
        for one in &self.tokens {
            works.push(store.token(&one.hash).await.unwrap().is_some_and(|found| found.is_valid(now)));
        }
        for one in &self.sessions {
            works.push(store.sign_in(&one.hash).await.unwrap().is_some());
        }
        for one in &self.links {
            works.push(store.link(&one.hash).await.unwrap().is_some());
        }
        works
    }
}

fn link(account: Option<AccountId>, token: Option<TokenId>, minted_by: Option<TokenId>, now: Timestamp) -> SignInLink {
    let (purpose, expires_at) = (LinkPurpose::SignIn, now + 9 * MINUTE);
    SignInLink { hash: name("link"), purpose, account, token, minted_by, expires_at }
}

/// A token ends with everything that it created when it is revoked, when its owner's password is reset, and when its owner is deleted.
pub async fn everything_that_a_token_created_ends_with_it(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let ann = account(Vec::new(), now);
    assert!(store.create_account(&ann).await.unwrap());
    let (revoked, bystander) = (Family::add(store, Some(ann.id), now).await, Family::add(store, None, now).await);
    assert_eq!(revoked.are_usable(store, now).await, [true; 7]);
    let found = store.token(&revoked.tokens[1].hash).await.unwrap().unwrap();
    assert_eq!(found, revoked.tokens[1], "with the token that made it");
    assert_eq!(store.sign_in(&revoked.sessions[1].hash).await.unwrap().as_ref(), Some(&revoked.sessions[1]));
    assert_eq!(store.link(&revoked.links[1].hash).await.unwrap().as_ref(), Some(&revoked.links[1]));
    assert!(store.revoke_token(revoked.tokens[0].id, now).await.unwrap());
    assert_eq!(revoked.are_usable(store, now).await, [false; 7]);
    let reset = Family::add(store, Some(ann.id), now).await;
    let password = PasswordHash::new("$argon2id$new".to_owned());
    let kept = KeptAccess { session: None, keeps_tokens: true };
    assert!(store.set_password(ann.id, &password, kept, now).await.unwrap());
    assert_eq!(reset.are_usable(store, now).await, [true; 7], "kept");
    assert!(store.set_password(ann.id, &password, KeptAccess::default(), now).await.unwrap());
    assert_eq!(reset.are_usable(store, now).await, [false; 7]);
    let deleted = Family::add(store, Some(ann.id), now).await;
    assert_eq!(store.delete_account(ann.id).await.unwrap(), AccountChanged::Done);
    assert_eq!(deleted.are_usable(store, now).await, [false; 7]);
    assert_eq!(bystander.are_usable(store, now).await, [true; 7]);
}

/// A token that another token created expires no later than its creator, and a token that has ended creates none.
pub async fn a_token_does_not_outlive_the_one_that_made_it(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let parent = TokenRecord { expires_at: Some(now + 9 * MINUTE), ..token(TokenKind::Api, None, now) };
    assert!(store.add_token(&parent).await.unwrap());
    for (asked, given) in [(None, 9), (Some(90), 9), (Some(5), 5)] {
        let expires_at = asked.map(|minutes: u32| now + minutes * MINUTE);
        let child = TokenRecord { minted_by: Some(parent.id), expires_at, ..token(TokenKind::Executor, None, now) };
        assert!(store.add_token(&child).await.unwrap());
        assert_eq!(
            store.token(&child.hash).await.unwrap().unwrap().expires_at,
            Some(now + given * MINUTE),
            "{asked:?}"
        );
    }
    let late = TokenRecord { minted_by: Some(parent.id), ..token(TokenKind::Api, None, now + 9 * MINUTE) };
    assert!(!store.add_token(&late).await.unwrap());
    assert!(store.revoke_token(parent.id, now).await.unwrap());
    let orphan = TokenRecord { minted_by: Some(parent.id), ..token(TokenKind::Api, None, now) };
    assert!(!store.add_token(&orphan).await.unwrap());
    assert_eq!(store.token(&orphan.hash).await.unwrap(), None);
    // The creation of a token and the revocation of its creator run concurrently. In whichever order they commit, no valid token remains.
    let parent = token(TokenKind::Api, None, now);
    assert!(store.add_token(&parent).await.unwrap());
    let child = TokenRecord { minted_by: Some(parent.id), ..token(TokenKind::Api, None, now) };
    let both = tokio::join!(store.add_token(&child), store.revoke_token(parent.id, now));
    assert!(both.1.unwrap());
    both.0.unwrap();
    assert!(store.token(&child.hash).await.unwrap().is_none_or(|child| !child.is_valid(now)));
}

/// A rotation transfers everything that the old token created to the new one.
pub async fn rotation_keeps_everything_that_a_token_created(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let family = Family::add(store, None, now).await;
    let (old, new) = (&family.tokens[0], token(TokenKind::Api, None, now));
    assert!(store.rotate_token(old.id, now + MINUTE, &new).await.unwrap());
    assert!(store.revoke_token(old.id, now).await.unwrap());
    assert_eq!(family.are_usable(store, now).await, [false, true, true, true, true, true, true]);
    assert!(store.revoke_token(new.id, now).await.unwrap());
    assert_eq!(family.are_usable(store, now).await, [false; 7]);
    let parent = token(TokenKind::Api, None, now);
    assert!(store.add_token(&parent).await.unwrap());
    let child = TokenRecord { minted_by: Some(parent.id), ..token(TokenKind::Api, None, now) };
    assert!(store.add_token(&child).await.unwrap());
    assert!(store.revoke_token(parent.id, now).await.unwrap());
    let fresh = TokenRecord { minted_by: Some(parent.id), ..token(TokenKind::Api, None, now) };
    assert!(!store.rotate_token(child.id, now + MINUTE, &fresh).await.unwrap());
}

/// Adds a series of four tokens, the first of them created by `maker`. After the rotations the first two have ended, and the third is valid
/// for its overlap.
async fn series(store: &dyn Store, maker: &TokenRecord, now: Timestamp) -> Vec<TokenRecord> {
    let first = TokenRecord { minted_by: Some(maker.id), ..token(TokenKind::Api, None, now) };
    assert!(store.add_token(&first).await.unwrap());
    let mut line = vec![first];
    for overlap in [Duration::ZERO, Duration::ZERO, MINUTE] {
        let old = line.last().unwrap();
        let new = successor(old, now);
        assert!(store.rotate_token(old.id, now + overlap, &new).await.unwrap());
        line.push(new);
    }
    line
}

fn successor(old: &TokenRecord, now: Timestamp) -> TokenRecord {
    TokenRecord { minted_by: old.minted_by, series: old.series, ..token(TokenKind::Api, None, now) }
}

async fn token_row(store: &dyn Store, token: &TokenRecord) -> TokenRecord {
    store.token(&token.hash).await.unwrap().unwrap()
}

async fn are_tokens_valid(store: &dyn Store, tokens: &[&TokenRecord], now: Timestamp) -> Vec<bool> {
    let mut work = Vec::new();
    for token in tokens {
        work.push(store.token(&token.hash).await.unwrap().is_some_and(|one| one.is_valid(now)));
    }
    work
}

/// If one token of a series or the creator of the series is revoked, all its tokens end, with everything that they created.
pub async fn a_token_that_rotates_itself_stays_one_token(store: &dyn Store) {
    // These instants are long ago, so the removal of old tokens affects no token of another check.
    let now = Timestamp::from_secs(900_000_000);
    for revoked in 0..5 {
        let maker = TokenRecord { expires_at: Some(now + 9 * MINUTE), ..token(TokenKind::Api, None, now) };
        assert!(store.add_token(&maker).await.unwrap());
        let line = series(store, &maker, now).await;
        let last = token_row(store, &line[3]).await;
        assert_eq!((last.minted_by, last.series, last.expires_at), (Some(maker.id), line[0].id, maker.expires_at));
        let [by_third, by_last] = [&line[2], &line[3]]
            .map(|parent| TokenRecord { minted_by: Some(parent.id), ..token(TokenKind::Executor, None, now) });
        for child in [&by_third, &by_last] {
            assert!(store.add_token(child).await.unwrap());
        }
        assert_eq!(token_row(store, &by_third).await.expires_at, Some(now + MINUTE), "with the overlap of its maker");
        let signed_in = session(None, Some(line[2].id), now);
        store.begin_sign_in(&signed_in, 10 * MINUTE, 3).await.unwrap();
        let all = [&line[0], &line[1], &line[2], &line[3], &by_third, &by_last];
        assert_eq!(are_tokens_valid(store, &all, now).await, [false, false, true, true, true, true]);
        let id = line.get(revoked).map_or(maker.id, |token| token.id);
        assert_eq!(store.revoke_token(id, now).await.unwrap(), revoked > 1, "{revoked}: whether it worked itself");
        assert_eq!(are_tokens_valid(store, &all, now).await, [false; 6], "{revoked}");
        assert_eq!(store.sign_in(&signed_in.hash).await.unwrap(), None, "{revoked}");
        assert_eq!(are_tokens_valid(store, &[&maker], now).await, [revoked < 4], "{revoked}");
    }
}

/// A rotation transfers what the old token created to its successor. A token that another caller rotates leaves its series. When the first
/// tokens of a series are removed, the others remain one series.
pub async fn a_series_of_tokens_outlives_its_first_ones(store: &dyn Store) {
    let now = Timestamp::from_secs(900_000_000);
    let maker = token(TokenKind::Api, None, now);
    assert!(store.add_token(&maker).await.unwrap());
    let line = series(store, &maker, now).await;
    let child = TokenRecord { minted_by: Some(line[3].id), ..token(TokenKind::Api, None, now) };
    assert!(store.add_token(&child).await.unwrap());
    let next = successor(&line[3], now);
    assert!(store.rotate_token(line[3].id, now, &next).await.unwrap());
    assert_eq!(token_row(store, &child).await.minted_by, Some(next.id), "its successor takes over what it created");
    store.forget_tokens(now + Duration::from_secs(1), 500).await.unwrap();
    assert_eq!(store.token(&line[0].hash).await.unwrap(), None, "forgotten");
    let after = successor(&next, now);
    assert!(store.rotate_token(next.id, now + MINUTE, &after).await.unwrap());
    let fresh = TokenRecord { minted_by: Some(maker.id), ..token(TokenKind::Api, None, now) };
    assert!(store.rotate_token(after.id, now + MINUTE, &fresh).await.unwrap());
    let again = successor(&after, now);
    assert!(store.rotate_token(after.id, now + MINUTE, &again).await.unwrap());
    let all = [&line[2], &next, &after, &again, &child, &fresh, &maker];
    assert_eq!(are_tokens_valid(store, &all, now).await, [true; 7], "each in its overlap");
    assert_eq!(token_row(store, &again).await.expires_at, Some(now + MINUTE), "no longer than the overlap");
    assert!(store.revoke_token(line[2].id, now).await.unwrap());
    assert_eq!(
        are_tokens_valid(store, &all, now).await,
        [false, false, false, false, true, true, true],
        "not what another gave out"
    );
    assert!(store.revoke_token(maker.id, now).await.unwrap());
    assert_eq!(are_tokens_valid(store, &[&child, &fresh], now).await, [false; 2]);
    assert!(!store.rotate_token(after.id, now + MINUTE, &successor(&after, now)).await.unwrap(), "over");

    // A rotation and the revocation of the series run concurrently. In whichever order they commit, no valid token remains.
    let first = token(TokenKind::Api, None, now);
    assert!(store.add_token(&first).await.unwrap());
    let [second, third] = [successor(&first, now), successor(&first, now)];
    assert!(store.rotate_token(first.id, now, &second).await.unwrap());
    let both = tokio::join!(store.rotate_token(second.id, now, &third), store.revoke_token(first.id, now));
    both.0.unwrap();
    assert!(!both.1.unwrap());
    assert_eq!(are_tokens_valid(store, &[&first, &second, &third], now).await, [false; 3]);
}

/// The row of a server's own token is kept after its end. Without the row, the server would add the token from its file as a new one when
/// it next starts.
pub(super) async fn check_ends_of_servers_own_tokens(store: &dyn Store) {
    let now = Timestamp::from_secs(900_000_000);
    let named = |kind, owner| TokenRecord { name: "admin".to_owned(), ..token(kind, owner, now) };
    let own = named(TokenKind::Api, None);
    let others = [
        token(TokenKind::Api, None, now),
        named(TokenKind::Api, Some(AccountId::new(super::next_id()))),
        named(TokenKind::Executor, None),
    ];
    for one in [&own].into_iter().chain(&others) {
        assert!(store.add_token(one).await.unwrap());
        assert!(store.revoke_token(one.id, now).await.unwrap());
    }
    store.forget_tokens(now + Duration::from_secs(1), 500).await.unwrap();
    assert_eq!(token_row(store, &own).await.revoked_at, Some(now));
    for one in &others {
        assert_eq!(store.token(&one.hash).await.unwrap(), None, "{one:?}");
    }
}
