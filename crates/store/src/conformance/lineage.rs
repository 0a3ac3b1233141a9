//! What tokens make: it ends with them, and stays when another caller rotates them.

use std::time::Duration;

use rondel_core::{AccountId, Timestamp, TokenId};

use super::access::{account, session, token};
use super::name;
use crate::Store;
use crate::access::{AccountChanged, Kept, LinkPurpose, PasswordHash, SignInLink, TokenKind, TokenRecord, WebSession};

const MINUTE: Duration = Duration::from_secs(60);

/// A token, one that it made, one that this one made, and a sign-in and a link of each of the first two.
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

    async fn works(&self, store: &dyn Store, now: Timestamp) -> Vec<bool> {
        let mut works = Vec::new();
        for one in &self.tokens {
            works.push(store.token(&one.hash).await.unwrap().is_some_and(|found| found.is_good(now)));
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

/// Revoking the token, resetting the password of its owner, and deleting its owner: each ends all of it.
pub async fn what_a_token_made_ends_with_it(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let ann = account(Vec::new(), now);
    assert!(store.create_account(&ann).await.unwrap());
    let (revoked, bystander) = (Family::add(store, Some(ann.id), now).await, Family::add(store, None, now).await);
    assert_eq!(revoked.works(store, now).await, [true; 7]);
    let found = store.token(&revoked.tokens[1].hash).await.unwrap().unwrap();
    assert_eq!(found, revoked.tokens[1], "with the token that made it");
    assert_eq!(store.sign_in(&revoked.sessions[1].hash).await.unwrap().as_ref(), Some(&revoked.sessions[1]));
    assert_eq!(store.link(&revoked.links[1].hash).await.unwrap().as_ref(), Some(&revoked.links[1]));
    assert!(store.revoke_token(revoked.tokens[0].id, now).await.unwrap());
    assert_eq!(revoked.works(store, now).await, [false; 7]);
    let reset = Family::add(store, Some(ann.id), now).await;
    let password = PasswordHash::new("$argon2id$new".to_owned());
    let kept = Kept { session: None, tokens: true };
    assert!(store.set_password(ann.id, &password, kept, now).await.unwrap());
    assert_eq!(reset.works(store, now).await, [true; 7], "kept");
    assert!(store.set_password(ann.id, &password, Kept::default(), now).await.unwrap());
    assert_eq!(reset.works(store, now).await, [false; 7]);
    let deleted = Family::add(store, Some(ann.id), now).await;
    assert_eq!(store.delete_account(ann.id).await.unwrap(), AccountChanged::Done);
    assert_eq!(deleted.works(store, now).await, [false; 7]);
    assert_eq!(bystander.works(store, now).await, [true; 7]);
}

/// A token that was made by another one expires with it at the latest, and is not made by one that is over.
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
    // However the two meet, nothing is left that works.
    let parent = token(TokenKind::Api, None, now);
    assert!(store.add_token(&parent).await.unwrap());
    let child = TokenRecord { minted_by: Some(parent.id), ..token(TokenKind::Api, None, now) };
    let both = tokio::join!(store.add_token(&child), store.revoke_token(parent.id, now));
    assert!(both.1.unwrap());
    both.0.unwrap();
    assert!(store.token(&child.hash).await.unwrap().is_none_or(|child| !child.is_good(now)));
}

/// What the old token made belongs to the new one.
pub async fn rotation_keeps_what_a_token_made(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let family = Family::add(store, None, now).await;
    let (old, new) = (&family.tokens[0], token(TokenKind::Api, None, now));
    assert!(store.rotate_token(old.id, now + MINUTE, &new).await.unwrap());
    assert!(store.revoke_token(old.id, now).await.unwrap());
    assert_eq!(family.works(store, now).await, [false, true, true, true, true, true, true]);
    assert!(store.revoke_token(new.id, now).await.unwrap());
    assert_eq!(family.works(store, now).await, [false; 7]);
    let parent = token(TokenKind::Api, None, now);
    assert!(store.add_token(&parent).await.unwrap());
    let child = TokenRecord { minted_by: Some(parent.id), ..token(TokenKind::Api, None, now) };
    assert!(store.add_token(&child).await.unwrap());
    assert!(store.revoke_token(parent.id, now).await.unwrap());
    let fresh = TokenRecord { minted_by: Some(parent.id), ..token(TokenKind::Api, None, now) };
    assert!(!store.rotate_token(child.id, now + MINUTE, &fresh).await.unwrap());
}

/// The successor of a token that rotated itself ends with it, and with the token that made it, also when the tokens between them
/// are over and forgotten.
pub async fn a_token_that_rotates_itself_leaves_a_descendant(store: &dyn Store) {
    // Long ago, so that forgetting meets no other test's tokens.
    let now = Timestamp::from_secs(900_000_000);
    let works = async |token: &TokenRecord| store.token(&token.hash).await.unwrap().is_some_and(|one| one.is_good(now));
    let minted_by = async |token: &TokenRecord| store.token(&token.hash).await.unwrap().unwrap().minted_by;
    let successor = |old: &TokenRecord| TokenRecord { minted_by: Some(old.id), ..token(TokenKind::Api, None, now) };
    let first = TokenRecord { expires_at: Some(now + 9 * MINUTE), ..token(TokenKind::Api, None, now) };
    assert!(store.add_token(&first).await.unwrap());
    let child = successor(&first);
    assert!(store.add_token(&child).await.unwrap());
    let second = successor(&first);
    assert!(store.rotate_token(first.id, now + MINUTE, &second).await.unwrap());
    let found = store.token(&second.hash).await.unwrap().unwrap();
    assert_eq!((found.minted_by, found.expires_at), (Some(first.id), first.expires_at));
    assert_eq!(minted_by(&child).await, Some(second.id), "what it made goes over");
    assert!(store.revoke_token(first.id, now).await.unwrap());
    assert!(!works(&second).await && !works(&child).await, "revoked with the original");

    let root = token(TokenKind::Api, None, now);
    assert!(store.add_token(&root).await.unwrap());
    let mut line = vec![successor(&root)];
    assert!(store.add_token(&line[0]).await.unwrap());
    for _ in 0..4 {
        let old = line.last().unwrap();
        let new = successor(old);
        assert!(store.rotate_token(old.id, now, &new).await.unwrap());
        line.push(new);
    }
    let (before, last) = (&line[3], &line[4]);
    assert_eq!(minted_by(last).await, Some(before.id));
    assert_eq!(minted_by(before).await, Some(root.id), "those between them are over");
    store.forget_tokens(now + MINUTE, 500).await.unwrap();
    assert_eq!(store.token(&before.hash).await.unwrap(), None, "forgotten");
    assert_eq!((works(last).await, minted_by(last).await), (true, Some(root.id)));
    assert!(store.revoke_token(root.id, now).await.unwrap());
    assert!(!works(last).await);
}
