//! Signing in without a password: a link that works once makes a session, and a cookie carries the session.
//!
//! Both live in this process alone, as hashes: a restart signs everybody out, and each server of a cluster has its own.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rondel_admin::auth::Token;
use tokio::time::Instant;

use crate::access::Caller;

/// How long a link may be used.
pub(crate) const LINK_LIFETIME: Duration = Duration::from_secs(15 * 60);
/// How long a session lasts that nobody uses.
const IDLE_MAX: Duration = Duration::from_secs(12 * 3600);
/// How long a session lasts at most.
pub(crate) const SESSION_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// How many links are open at the same time; the oldest makes room.
const LINK_COUNT_MAX: usize = 100;
/// How many sessions there are at the same time.
const SESSION_COUNT_MAX: usize = 1000;

/// The links and sessions of a server.
#[derive(Clone, Default)]
pub struct SignIns(Arc<Mutex<Desk>>);

#[derive(Default)]
struct Desk {
    links: HashMap<String, Link>,
    sessions: HashMap<String, Session>,
}

struct Link {
    caller: Caller,
    made_at: Instant,
}

struct Session {
    caller: Caller,
    began_at: Instant,
    used_at: Instant,
}

impl fmt::Debug for SignIns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignIns(…)")
    }
}

impl SignIns {
    /// The path of a link that signs in as an administrator, once, within a quarter of an hour.
    #[must_use]
    pub fn admin_link(&self) -> String {
        self.link(Caller::admin())
    }

    /// The path of a link for somebody.
    pub(crate) fn link(&self, caller: Caller) -> String {
        let token = Token::generate();
        let now = Instant::now();
        let mut desk = self.desk();
        desk.links.retain(|_, link| link.is_open(now));
        let oldest = desk.links.iter().min_by_key(|(_, link)| link.made_at).map(|(hash, _)| hash.clone());
        if let Some(hash) = oldest.filter(|_| desk.links.len() >= LINK_COUNT_MAX) {
            desk.links.remove(&hash);
        }
        desk.links.insert(token.hash(), Link { caller, made_at: now });
        format!("/sign-in?token={}", token.reveal())
    }

    /// Whether a link with this token could be used now.
    pub(crate) fn is_open(&self, token: &str) -> bool {
        let hash = Token::from_text(token).hash();
        self.desk().links.get(&hash).is_some_and(|link| link.is_open(Instant::now()))
    }

    /// Uses a link up; what the cookie is to carry.
    pub(crate) fn redeem(&self, token: &str) -> Option<Token> {
        let now = Instant::now();
        let mut desk = self.desk();
        let link = desk.links.remove(&Token::from_text(token).hash()).filter(|link| link.is_open(now))?;
        desk.sessions.retain(|_, session| session.is_open(now));
        let oldest = desk.sessions.iter().min_by_key(|(_, session)| session.used_at).map(|(hash, _)| hash.clone());
        if let Some(hash) = oldest.filter(|_| desk.sessions.len() >= SESSION_COUNT_MAX) {
            desk.sessions.remove(&hash);
        }
        let session = Token::generate();
        desk.sessions.insert(session.hash(), Session { caller: link.caller, began_at: now, used_at: now });
        Some(session)
    }

    /// Whose session this is.
    pub(crate) fn caller(&self, session: &str) -> Option<Caller> {
        let now = Instant::now();
        let mut desk = self.desk();
        let session = desk.sessions.get_mut(&Token::from_text(session).hash()).filter(|one| one.is_open(now))?;
        session.used_at = now;
        Some(session.caller.clone())
    }

    /// Ends a session.
    pub(crate) fn end(&self, session: &str) {
        self.desk().sessions.remove(&Token::from_text(session).hash());
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    fn is_open(&self, now: Instant) -> bool {
        now.duration_since(self.made_at) < LINK_LIFETIME
    }
}

impl Session {
    fn is_open(&self, now: Instant) -> bool {
        now.duration_since(self.began_at) < SESSION_LIFETIME && now.duration_since(self.used_at) < IDLE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(path: &str) -> &str {
        path.strip_prefix("/sign-in?token=").unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_works_once_and_not_for_long() {
        let desk = SignIns::default();
        let (first, second) = (desk.admin_link(), desk.admin_link());
        assert!(desk.is_open(token(&first)) && !desk.is_open("x"));
        assert!(desk.redeem(token(&first)).is_some());
        assert!(!desk.is_open(token(&first)) && desk.redeem(token(&first)).is_none());
        tokio::time::advance(LINK_LIFETIME).await;
        assert!(desk.redeem(token(&second)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_by_idleness_by_age_and_by_hand() {
        let desk = SignIns::default();
        let begin = || desk.redeem(token(&desk.admin_link())).unwrap();
        let (idle, busy, ended) = (begin(), begin(), begin());
        desk.end(ended.reveal());
        assert!(desk.caller(ended.reveal()).is_none());
        for _ in 0..14 {
            assert!(desk.caller(busy.reveal()).is_some());
            tokio::time::advance(IDLE_MAX - Duration::from_secs(1)).await;
        }
        assert!(desk.caller(idle.reveal()).is_none());
        assert!(desk.caller(busy.reveal()).is_some());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(desk.caller(busy.reveal()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_link_makes_room() {
        let desk = SignIns::default();
        let first = desk.admin_link();
        for _ in 0..LINK_COUNT_MAX {
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(desk.is_open(token(&desk.admin_link())));
        }
        assert!(!desk.is_open(token(&first)));
        assert_eq!(desk.desk().links.len(), LINK_COUNT_MAX);
    }
}
