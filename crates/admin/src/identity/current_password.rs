//! Checks the current password of a signed-in account. Wrong passwords count against that session alone, so they block neither
//! other sessions nor new sign-ins.

use std::time::Duration;

use rondel_core::{SessionId, Timestamp};
use rondel_store::Store;
use rondel_store::access::{Account, Attempt};

use crate::identity::passwords::Passwords;
use crate::identity::sign_in::{Buckets, SignInError};

/// How many attempts a sign-in has within [`WINDOW`].
const ATTEMPTS: u32 = 10;
const WINDOW: Duration = Duration::from_secs(15 * 60);
/// How many counts there are for all sign-ins. Two that share one by chance share its attempts.
const BUCKETS: u64 = 1 << 20;
/// The numbers below which the counts stand, apart from those of signing in.
const FIRST_BUCKET: i64 = -1_000_000_000;

/// What became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// It is the password.
    Right,
    /// It is not.
    Wrong,
    /// There were too many attempts; from then on there may be another.
    Blocked(Timestamp),
}

/// Whether this is the password of the account, asked by one of its sign-ins.
///
/// # Errors
/// The store's, or no randomness for the password's sake.
pub async fn prove(
    store: &dyn Store,
    passwords: &Passwords,
    (account, session): (&Account, SessionId),
    password: &str,
    now: Timestamp,
) -> Result<Proof, SignInError> {
    let bucket = FIRST_BUCKET - Buckets::of(store, now).await?.bucket(&session.to_string(), BUCKETS);
    if let Attempt::Blocked(until) = store.count_attempt(bucket, ATTEMPTS, WINDOW, now).await? {
        return Ok(Proof::Blocked(until));
    }
    if !passwords.verify(password, account.password.as_ref()).await? {
        return Ok(Proof::Wrong);
    }
    store.forget_attempts(bucket).await?;
    Ok(Proof::Right)
}
