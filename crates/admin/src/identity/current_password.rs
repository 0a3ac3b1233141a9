//! Checks the current password of a signed-in account. Wrong passwords count only against the session in which they are entered, so they block
//! neither other sessions nor new sign-ins.

use std::time::Duration;

use rondel_core::{SessionId, Timestamp};
use rondel_store::Store;
use rondel_store::access::{Account, AttemptDecision};

use crate::identity::passwords::Passwords;
use crate::identity::sign_in::{Buckets, SignInError};

/// Maximum number of attempts per sign-in within [`WINDOW`].
const ATTEMPT_COUNT_MAX: u32 = 10;
const WINDOW: Duration = Duration::from_secs(15 * 60);
/// Number of counters for all sign-ins. Two sign-ins that share a counter by chance share its attempts.
const BUCKET_COUNT: u64 = 1 << 20;
/// The numbers of these counters are at most this number; the counters of attempts to sign in have higher numbers.
const HIGHEST_BUCKET: i64 = -1_000_000_000;

/// Result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PasswordCheck {
    Right,
    Wrong,
    /// There were too many attempts; the next is allowed at this instant.
    Blocked(Timestamp),
}

/// Checks the password of an account on behalf of one of its sign-ins.
///
/// # Errors
/// The store's, or the system has no randomness to hash the password.
pub async fn check(
    store: &dyn Store,
    passwords: &Passwords,
    (account, session): (&Account, SessionId),
    password: &str,
    now: Timestamp,
) -> Result<PasswordCheck, SignInError> {
    let bucket = HIGHEST_BUCKET - Buckets::of(store, now).await?.bucket(&session.to_string(), BUCKET_COUNT);
    if let AttemptDecision::Blocked(blocked_until) = store.count_attempt(bucket, ATTEMPT_COUNT_MAX, WINDOW, now).await?
    {
        return Ok(PasswordCheck::Blocked(blocked_until));
    }
    if !passwords.verify(password, account.password.as_ref()).await? {
        return Ok(PasswordCheck::Wrong);
    }
    store.forget_attempts(bucket).await?;
    Ok(PasswordCheck::Right)
}
