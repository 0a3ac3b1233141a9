//! A sign-in that is under way at the provider. All of it is in the browser's cookie: a random number, when it began and
//! where it goes on. State, nonce and the verifier of PKCE are made of the whole of it, so none of it can be changed.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rondel_core::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::auth::{Token, hex};

/// How long somebody may take at the provider.
pub const LIFETIME: Duration = Duration::from_secs(10 * 60);
/// How far the clocks of two nodes may be apart: one may begin what another ends.
const SKEW: Duration = Duration::from_secs(60);
/// The longest cookie that is looked at.
const COOKIE_LEN_MAX: usize = 1_024;

#[derive(Clone)]
pub(super) struct Flight {
    cookie: String,
    next: String,
}

impl Flight {
    pub(super) fn begin(next: &str, now: Timestamp) -> Self {
        let encoded = BASE64_URL_SAFE_NO_PAD.encode(next);
        let cookie = format!("{}.{}.{encoded}", Token::generate().reveal(), now.second());
        Self { cookie, next: next.to_owned() }
    }

    /// What a cookie tells, if it is one of these and not too old.
    pub(super) fn from_cookie(cookie: &str, now: Timestamp) -> Option<Self> {
        if cookie.len() > COOKIE_LEN_MAX {
            return None;
        }
        let mut parts = cookie.split('.');
        let (_, second, next) = (parts.next()?, parts.next()?, parts.next()?);
        let begun_at = Timestamp::from_secs(second.parse().ok()?);
        if parts.next().is_some() || begun_at > now + SKEW || begun_at + LIFETIME <= now {
            return None;
        }
        let next = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(next).ok()?).ok()?;
        Some(Self { cookie: cookie.to_owned(), next })
    }

    pub(super) fn cookie(&self) -> &str {
        &self.cookie
    }

    pub(super) fn next(&self) -> &str {
        &self.next
    }

    /// Whether this is its state, in a time that does not tell how much of it is right.
    pub(super) fn has_state(&self, state: &str) -> bool {
        Sha256::digest(self.state()) == Sha256::digest(state)
    }

    pub(super) fn state(&self) -> String {
        self.derived("state")
    }

    pub(super) fn nonce(&self) -> String {
        self.derived("nonce")
    }

    pub(super) fn verifier(&self) -> String {
        self.derived("verifier")
    }

    fn derived(&self, what: &str) -> String {
        hex(&Sha256::digest(format!("rondel oidc {what}\n{}", self.cookie)))
    }
}

impl std::fmt::Debug for Flight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flight").field("next", &self.next).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_790_000_000);

    #[test]
    fn a_cookie_tells_all_of_it() {
        let flight = Flight::begin("/jobs?a=b.c", START);
        let found = Flight::from_cookie(flight.cookie(), START + Duration::from_secs(599)).unwrap();
        assert_eq!(found.next(), "/jobs?a=b.c");
        assert!(found.has_state(&flight.state()) && !found.has_state("") && !found.has_state(&flight.nonce()));
        let derived = [flight.state(), flight.nonce(), flight.verifier()];
        assert!(derived.iter().all(|text| text.len() == 64), "PKCE wants 43 to 128 characters");
        assert_ne!(derived[0], derived[1]);
        assert_ne!(derived[1], derived[2]);
        assert!(!format!("{flight:?}").contains(flight.cookie()));
    }

    #[test]
    fn what_was_changed_or_is_too_old_is_none() {
        let flight = Flight::begin("/jobs", START);
        let (secret, rest) = flight.cookie().split_once('.').unwrap();
        let (_, next) = rest.split_once('.').unwrap();
        let later = format!("{secret}.{}.{next}", START.second() + 60);
        let changed = Flight::from_cookie(&later, START + Duration::from_secs(60)).unwrap();
        assert!(!changed.has_state(&flight.state()), "its age cannot be changed");
        assert!(Flight::from_cookie(flight.cookie(), START + LIFETIME).is_none());
        assert!(Flight::from_cookie(flight.cookie(), START.saturating_sub(SKEW * 2)).is_none());
        for bad in ["", "a.b", "a.1.", "a.1790000000.%", "a.1790000000.L2pvYnM.x", &"a".repeat(2_000)] {
            let found = Flight::from_cookie(bad, START);
            assert!(found.is_none(), "{bad}");
        }
    }
}
