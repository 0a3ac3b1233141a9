//! A sign-in in progress at the provider. Its whole state is in the browser's cookie: a random number, the time of its start and the page
//! to continue at. The cookie is authenticated with a key of the servers, so that a browser cannot forge it. The OIDC state, the nonce and
//! the PKCE verifier are derived from the whole cookie, so no part of it can be changed.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use rondel_core::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::identity::tokens::{Token, hex};

/// How long the user may take at the provider.
pub const LIFETIME: Duration = Duration::from_secs(10 * 60);
/// Maximum difference between the clocks of two nodes: one node may begin a sign-in that another one finishes.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(60);
/// Maximum length of a cookie, in bytes; a longer cookie is refused.
const COOKIE_LEN_MAX: usize = 1_024;

/// The key that all servers of a database share.
#[derive(Clone)]
pub(super) struct Key(String);

impl Key {
    pub(super) const fn new(secret: String) -> Self {
        Self(secret)
    }

    fn seal(&self, body: &str) -> String {
        // Never fails: HMAC takes keys of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(self.0.as_bytes()) else { return String::new() };
        mac.update(b"rondel oidc cookie\n");
        mac.update(body.as_bytes());
        hex(&mac.finalize().into_bytes())
    }

    /// Whether `seal` is the seal of `body`. Digests are compared, so that the duration does not reveal how much of the seal is right.
    fn has_sealed(&self, body: &str, seal: &str) -> bool {
        let expected_seal = self.seal(body);
        !expected_seal.is_empty() && Sha256::digest(expected_seal) == Sha256::digest(seal)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

#[derive(Clone)]
pub(super) struct PendingSignIn {
    cookie: String,
    next_path: String,
}

impl PendingSignIn {
    pub(super) fn begin(key: &Key, next_path: &str, now: Timestamp) -> Self {
        let encoded_path = BASE64_URL_SAFE_NO_PAD.encode(next_path);
        let body = format!("{}.{}.{encoded_path}", Token::generate().reveal(), now.second());
        Self { cookie: format!("{body}.{}", key.seal(&body)), next_path: next_path.to_owned() }
    }

    /// Reads the sign-in from a cookie; `None` unless a server with this key created the cookie and the sign-in is not too old.
    pub(super) fn from_cookie(key: &Key, cookie: &str, now: Timestamp) -> Option<Self> {
        if cookie.len() > COOKIE_LEN_MAX {
            return None;
        }
        let (body, seal) = cookie.rsplit_once('.')?;
        if !key.has_sealed(body, seal) {
            return None;
        }
        let mut parts = body.split('.');
        let (_, second, next_path) = (parts.next()?, parts.next()?, parts.next()?);
        let begun_at = Timestamp::from_secs(second.parse().ok()?);
        if parts.next().is_some() || begun_at > now + CLOCK_SKEW_MAX || begun_at + LIFETIME <= now {
            return None;
        }
        let next_path = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(next_path).ok()?).ok()?;
        Some(Self { cookie: cookie.to_owned(), next_path })
    }

    pub(super) fn cookie(&self) -> &str {
        &self.cookie
    }

    pub(super) fn next_path(&self) -> &str {
        &self.next_path
    }

    /// Whether `state` is the sign-in's state. Digests are compared, so that the duration does not reveal how much of the state is right.
    pub(super) fn has_state(&self, state: &str) -> bool {
        Sha256::digest(self.state()) == Sha256::digest(state)
    }

    pub(super) fn state(&self) -> String {
        self.derived_value("state")
    }

    pub(super) fn nonce(&self) -> String {
        self.derived_value("nonce")
    }

    pub(super) fn verifier(&self) -> String {
        self.derived_value("verifier")
    }

    fn derived_value(&self, purpose: &str) -> String {
        hex(&Sha256::digest(format!("rondel oidc {purpose}\n{}", self.cookie)))
    }
}

impl std::fmt::Debug for PendingSignIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingSignIn").field("next", &self.next_path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_790_000_000);

    fn key() -> Key {
        Key::new("00ff".to_owned())
    }

    #[test]
    fn a_cookie_holds_the_whole_sign_in() {
        let pending = PendingSignIn::begin(&key(), "/jobs?a=b.c", START);
        let found = PendingSignIn::from_cookie(&key(), pending.cookie(), START + Duration::from_secs(599)).unwrap();
        assert_eq!(found.next_path(), "/jobs?a=b.c");
        assert!(found.has_state(&pending.state()) && !found.has_state("") && !found.has_state(&pending.nonce()));
        let derived = [pending.state(), pending.nonce(), pending.verifier()];
        assert!(derived.iter().all(|text| text.len() == 64), "PKCE wants 43 to 128 characters");
        assert_ne!(derived[0], derived[1]);
        assert_ne!(derived[1], derived[2]);
        assert!(!format!("{pending:?}").contains(pending.cookie()));
        assert_eq!(format!("{:?}", key()), "Key(…)");
    }

    #[test]
    fn a_changed_or_too_old_cookie_is_none() {
        let pending = PendingSignIn::begin(&key(), "/jobs", START);
        let parts: Vec<&str> = pending.cookie().split('.').collect();
        let [secret, second, next, seal] = parts[..] else { unreachable!("{parts:?}") };
        let later = START.second() + 60;
        for changed in [
            format!("{secret}.{later}.{next}.{seal}"),
            format!("{secret}.{second}.L2E.{seal}"),
            format!("{secret}x.{second}.{next}.{seal}"),
            format!("{secret}.{second}.{next}"),
            format!("{secret}.{second}.{next}."),
        ] {
            assert!(
                PendingSignIn::from_cookie(&key(), &changed, START + Duration::from_secs(60)).is_none(),
                "{changed}"
            );
        }
        assert!(PendingSignIn::from_cookie(&key(), pending.cookie(), START + LIFETIME).is_none());
        assert!(
            PendingSignIn::from_cookie(&key(), pending.cookie(), START.saturating_sub(CLOCK_SKEW_MAX * 2)).is_none()
        );
        for bad in ["", "a.b", "a.1.", "a.1790000000.%", "a.1790000000.L2pvYnM.x", &"a".repeat(2_000)] {
            let sealed = format!("{bad}.{}", key().seal(bad));
            assert!([bad, &sealed].iter().all(|bad| PendingSignIn::from_cookie(&key(), bad, START).is_none()), "{bad}");
        }
    }

    #[test]
    fn no_cookie_can_be_forged() {
        let theirs = PendingSignIn::begin(&Key::new("made up".to_owned()), "/jobs", START);
        assert!(PendingSignIn::from_cookie(&key(), theirs.cookie(), START).is_none());
        let own = PendingSignIn::begin(&key(), "/jobs", START);
        assert!(PendingSignIn::from_cookie(&key(), own.cookie(), START).is_some());
    }
}
