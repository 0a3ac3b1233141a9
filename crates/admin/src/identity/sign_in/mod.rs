//! Signing in: checks a name and a password, and bounds the number of attempts. The resulting sign-ins are stored, so that every node knows them
//! and each sign-in can be ended.

mod buckets;

use std::net::IpAddr;
use std::time::Duration;

use rondel_core::access::Rights;
use rondel_core::{AccountId, Timestamp, TokenId};
use rondel_store::access::{Account, AttemptDecision, LinkPurpose, SignInLink, TokenRecord, WebSession};
use rondel_store::{Store, StoreError};

pub(crate) use self::buckets::{Buckets, network};
use crate::identity::passwords::{PasswordError, Passwords};
use crate::identity::tokens::{Principal, Token, principal_of, record_use, signature};

/// How long a link for signing in is valid.
pub const LINK_LIFETIME: Duration = Duration::from_secs(15 * 60);
/// How long the link for creating the first account is valid.
pub const SETUP_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// How long an unused sign-in lasts.
pub const IDLE_MAX: Duration = Duration::from_secs(12 * 3600);
/// Maximum lifetime of a sign-in.
pub const SESSION_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number of concurrent sign-ins of one account; a further sign-in replaces the oldest.
const SESSION_COUNT_MAX: u32 = 50;
/// How precisely the last use of a sign-in is recorded.
const USE_PERIOD: Duration = Duration::from_secs(60);
/// Maximum number of attempts for one account within [`ATTEMPT_WINDOW`].
const ACCOUNT_ATTEMPT_COUNT_MAX: u32 = 10;
/// Maximum number of attempts from one address within [`ATTEMPT_WINDOW`].
const ADDRESS_ATTEMPT_COUNT_MAX: u32 = 60;
/// Maximum number of browsers that return from the provider, per address within [`ATTEMPT_WINDOW`]. It is bounded because each makes the
/// server call the provider. It is higher than [`ADDRESS_ATTEMPT_COUNT_MAX`], since a whole office may sign in from one address.
const ARRIVAL_COUNT_MAX: u32 = 240;
const ATTEMPT_WINDOW: Duration = Duration::from_secs(15 * 60);
/// Maximum number of stored addresses from which an account has signed in.
const KNOWN_ADDRESS_COUNT_MAX: u32 = 50;
/// Result of an attempt to sign in.
#[derive(Clone, Debug)]
pub enum SignIn {
    /// The name and the password belong to this account.
    Welcome(Box<Account>),
    /// No account has this name and this password; the answer does not reveal which of them is wrong.
    Wrong,
    /// There were too many attempts; the next is allowed at this instant.
    Blocked(Timestamp),
}

/// Why a sign-in could not be checked.
#[derive(Debug, thiserror::Error)]
pub enum SignInError {
    /// The store failed.
    #[error("the sign-in could not be looked up")]
    Store(#[from] StoreError),
    /// The password could not be hashed.
    #[error("the password could not be checked")]
    Password(#[from] PasswordError),
}

/// Checks a name and a password. Each attempt is counted before it is checked, so that concurrent attempts count like consecutive ones.
///
/// # Errors
/// The store's, or the system has no randomness to hash the password.
pub async fn by_password(
    store: &dyn Store,
    passwords: &Passwords,
    (name, password): (&str, &str),
    address: Option<IpAddr>,
    now: Timestamp,
) -> Result<SignIn, SignInError> {
    let account = store.account_by_name(name).await?;
    // The address is also queried for an unknown name, so that the answer takes as long as for a known name.
    let id = account.as_ref().map_or(AccountId::new(0), |account| account.id);
    let is_known_address = match address {
        Some(address) => store.is_known_address(id, &network(address)).await?,
        None => false,
    };
    let buckets = Buckets::of(store, now).await?;
    let account_bucket = account.as_ref().map_or_else(|| buckets.of_unknown_name(name), |account| account.id.get());
    // A user who has signed in from this address before has a separate counter. Guesses from other addresses, or at other accounts from this
    // address, do not block this user.
    let attempt_limits = match account.as_ref().filter(|_| is_known_address) {
        Some(account) => vec![(buckets.of_known_address(account.id, address), ACCOUNT_ATTEMPT_COUNT_MAX)],
        None => {
            vec![(buckets.of_address(address), ADDRESS_ATTEMPT_COUNT_MAX), (account_bucket, ACCOUNT_ATTEMPT_COUNT_MAX)]
        }
    };
    for (bucket, max) in &attempt_limits {
        if let AttemptDecision::Blocked(blocked_until) = store.count_attempt(*bucket, *max, ATTEMPT_WINDOW, now).await?
        {
            return Ok(SignIn::Blocked(blocked_until));
        }
    }
    let stored_hash =
        account.as_ref().filter(|account| !account.disabled).and_then(|account| account.password.as_ref());
    let is_right = passwords.verify(password, stored_hash).await?;
    match account.filter(|_| is_right) {
        Some(account) => {
            // Only the last counter is reset: that of the account, or of the account at this known address. The address's counter stays.
            if let Some((own_bucket, _)) = attempt_limits.last() {
                store.forget_attempts(*own_bucket).await?;
            }
            Ok(SignIn::Welcome(Box::new(account)))
        }
        None => Ok(SignIn::Wrong),
    }
}

/// Counts an attempt that involved no password, such as an invalid link.
///
/// # Errors
/// The store's.
pub async fn count_attempt_from(
    store: &dyn Store,
    address: Option<IpAddr>,
    now: Timestamp,
) -> Result<AttemptDecision, StoreError> {
    let bucket = Buckets::of(store, now).await?.of_address(address);
    store.count_attempt(bucket, ADDRESS_ATTEMPT_COUNT_MAX, ATTEMPT_WINDOW, now).await
}

/// Counts a browser that returns from the provider, before its request is processed.
///
/// # Errors
/// The store's.
pub async fn count_arrival(
    store: &dyn Store,
    address: Option<IpAddr>,
    now: Timestamp,
) -> Result<AttemptDecision, StoreError> {
    let bucket = Buckets::of(store, now).await?.of_arrival(address);
    store.count_attempt(bucket, ARRIVAL_COUNT_MAX, ATTEMPT_WINDOW, now).await
}

/// Marks a one-time value as used, on all nodes. Returns false if the value, or another value in its bucket, was used within `window`.
///
/// # Errors
/// The store's.
pub async fn use_once(store: &dyn Store, text: &str, window: Duration, now: Timestamp) -> Result<bool, StoreError> {
    let bucket = Buckets::of(store, now).await?.of_one_time_value(text);
    Ok(store.count_attempt(bucket, 1, window, now).await? == AttemptDecision::Allowed)
}

#[derive(Clone, Copy, Debug)]
pub enum SignInOwner {
    Account(AccountId),
    /// An account, by a link that this token created; the sign-in ends with the token.
    AccountBy(AccountId, TokenId),
    Token(TokenId),
}

impl SignInOwner {
    /// The account, the token whose rights the sign-in has, and the token with which it ends.
    const fn owner_ids(self) -> (Option<AccountId>, Option<TokenId>, Option<TokenId>) {
        match self {
            Self::Account(account) => (Some(account), None, None),
            Self::AccountBy(account, minted_by) => (Some(account), None, Some(minted_by)),
            Self::Token(token) => (None, Some(token), None),
        }
    }

    /// The owner of a sign-in by this link; `None` for a link that does not sign in, such as the link for creating the first account.
    #[must_use]
    pub const fn of_link(link: &SignInLink) -> Option<Self> {
        match (link.account, link.token, link.minted_by) {
            (Some(account), _, None) => Some(Self::Account(account)),
            (Some(account), _, Some(minted_by)) => Some(Self::AccountBy(account, minted_by)),
            (None, Some(token), _) => Some(Self::Token(token)),
            (None, None, _) => None,
        }
    }
}

/// The client from which a sign-in begins.
#[derive(Clone, Debug, Default)]
pub struct SignInClient {
    pub address: Option<IpAddr>,
    /// The browser, according to its own header.
    pub user_agent: String,
}

/// Begins a sign-in. Returns the value of its cookie.
///
/// # Errors
/// The store's.
pub async fn begin(
    store: &dyn Store,
    id: i64,
    owner: SignInOwner,
    client: &SignInClient,
    now: Timestamp,
) -> Result<Token, StoreError> {
    let cookie = Token::generate();
    let (account, token, minted_by) = owner.owner_ids();
    let session = WebSession {
        id: rondel_core::SessionId::new(id),
        hash: cookie.hash(),
        account,
        token,
        minted_by,
        created_at: now,
        last_seen_at: now,
        expires_at: now + SESSION_LIFETIME,
        address: client.address.map(|address| address.to_string()).unwrap_or_default(),
        user_agent: client.user_agent.chars().take(100).collect(),
    };
    store.begin_sign_in(&session, IDLE_MAX, SESSION_COUNT_MAX).await?;
    if let (Some(account), Some(address)) = (account, client.address) {
        store.remember_address(account, &network(address), now, KNOWN_ADDRESS_COUNT_MAX).await?;
    }
    Ok(cookie)
}

/// Begins a sign-in of an account after its password was verified. Returns `None` if the account was locked, deleted or given another password
/// since `account` was read. This is checked again because checking a password takes a while, and a change of the password ends only the
/// sign-ins that exist by then.
///
/// # Errors
/// The store's.
pub async fn begin_by_password(
    store: &dyn Store,
    id: i64,
    account: &Account,
    client: &SignInClient,
    now: Timestamp,
) -> Result<Option<Token>, StoreError> {
    let cookie = begin(store, id, SignInOwner::Account(account.id), client, now).await?;
    let current_account = store.account(account.id).await?;
    if current_account.is_some_and(|present| !present.disabled && present.password == account.password) {
        return Ok(Some(cookie));
    }
    end(store, cookie.reveal()).await?;
    Ok(None)
}

/// A user who signed in.
#[derive(Clone, Debug)]
pub struct SignedIn {
    pub session: WebSession,
    pub account: Option<Account>,
    /// The token whose rights the sign-in has.
    pub token: Option<TokenRecord>,
    /// The user's current rights, so that a change of roles takes effect immediately.
    pub rights: Rights,
}

/// Finds the sign-in with this cookie, and records that it is used; `None` if the sign-in, its account or its token has ended.
///
/// # Errors
/// The store's.
pub async fn by_cookie(store: &dyn Store, cookie: &str, now: Timestamp) -> Result<Option<SignedIn>, StoreError> {
    let signed_in = by_hash(store, &Token::from_text(cookie).hash(), now).await?;
    if let Some(signed_in) = signed_in.as_ref().filter(|signed_in| signed_in.session.last_seen_at + USE_PERIOD <= now) {
        record_use(store.touch_sign_in(signed_in.session.id, now)).await;
    }
    Ok(signed_in)
}

/// Finds the sign-in with this hash of its cookie, without recording a use; `None` if the sign-in, its account or its token has ended.
///
/// # Errors
/// The store's.
pub async fn by_hash(store: &dyn Store, hash: &str, now: Timestamp) -> Result<Option<SignedIn>, StoreError> {
    let stored_session = store.sign_in(hash).await?;
    let is_open = |session: &WebSession| session.expires_at > now && session.last_seen_at + IDLE_MAX > now;
    let Some(session) = stored_session.filter(is_open) else { return Ok(None) };
    if !is_minter_valid(store, session.minted_by, now).await? {
        return Ok(None);
    }
    Ok(match (session.account, session.token) {
        (Some(id), _) => store.account(id).await?.filter(|account| !account.disabled).map(|account| {
            let rights = Rights::new(account.grants.clone());
            SignedIn { session, account: Some(account), token: None, rights }
        }),
        (None, Some(id)) => {
            let Some(token) = store.token_by_id(id).await? else { return Ok(None) };
            let principal = principal_of(store, token, now).await?;
            principal.map(|Principal { token, owner, rights }| SignedIn {
                session,
                account: owner,
                token: Some(token),
                rights,
            })
        }
        (None, None) => None,
    })
}

/// The name under which changes by a sign-in of `owner` are recorded; `None` if the owner's account or token was deleted.
///
/// # Errors
/// The store's.
pub async fn name_of(store: &dyn Store, owner: SignInOwner) -> Result<Option<String>, StoreError> {
    let account = async |id| store.account(id).await;
    match owner {
        SignInOwner::Account(id) | SignInOwner::AccountBy(id, _) => Ok(account(id).await?.map(|account| account.name)),
        SignInOwner::Token(id) => {
            let Some(token) = store.token_by_id(id).await? else { return Ok(None) };
            let owner = match token.owner {
                Some(owner) => account(owner).await?,
                None => None,
            };
            Ok(Some(signature(&token, owner.as_ref())))
        }
    }
}

/// Whether the token that created a sign-in or link is still valid; true if no token created it.
async fn is_minter_valid(store: &dyn Store, minter: Option<TokenId>, now: Timestamp) -> Result<bool, StoreError> {
    let Some(minter) = minter else { return Ok(true) };
    match store.token_by_id(minter).await? {
        Some(minter) => Ok(principal_of(store, minter, now).await?.is_some()),
        None => Ok(false),
    }
}

/// Ends the sign-in with this cookie.
///
/// # Errors
/// The store's.
pub async fn end(store: &dyn Store, cookie: &str) -> Result<(), StoreError> {
    if let Some(session) = store.sign_in(&Token::from_text(cookie).hash()).await? {
        store.end_sign_in(session.id, None).await?;
    }
    Ok(())
}

/// Creates a link that signs in once; returns its secret.
///
/// # Errors
/// The store's.
pub async fn create_link(store: &dyn Store, owner: SignInOwner, now: Timestamp) -> Result<Token, StoreError> {
    let secret = Token::generate();
    let (account, token, minted_by) = owner.owner_ids();
    let (purpose, expires_at) = (LinkPurpose::SignIn, now + LINK_LIFETIME);
    let link = SignInLink { hash: secret.hash(), purpose, account, token, minted_by, expires_at };
    store.add_link(&link, now).await?;
    Ok(secret)
}

/// Creates a link for creating the first admin account; returns its secret, or `None` if there is an admin account.
///
/// # Errors
/// The store's.
pub async fn create_setup_link(store: &dyn Store, now: Timestamp) -> Result<Option<Token>, StoreError> {
    if store.has_admin_account().await? {
        return Ok(None);
    }
    let secret = Token::generate();
    let (purpose, expires_at) = (LinkPurpose::Setup, now + SETUP_LIFETIME);
    let link = SignInLink { hash: secret.hash(), purpose, account: None, token: None, minted_by: None, expires_at };
    store.add_link(&link, now).await?;
    Ok(Some(secret))
}

/// Whether a link with this secret is currently valid for this purpose.
///
/// # Errors
/// The store's.
pub async fn is_link_valid(
    store: &dyn Store,
    secret: &str,
    purpose: LinkPurpose,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let link = store.link(&Token::from_text(secret).hash()).await?;
    match link.filter(|link| link.purpose == purpose && link.expires_at > now) {
        Some(link) => is_minter_valid(store, link.token.or(link.minted_by), now).await,
        None => Ok(false),
    }
}

/// Redeems a link, so that it cannot be used again. Returns `None` if the link is not valid.
///
/// # Errors
/// The store's.
pub async fn redeem(
    store: &dyn Store,
    secret: &str,
    purpose: LinkPurpose,
    now: Timestamp,
) -> Result<Option<SignInLink>, StoreError> {
    if !is_link_valid(store, secret, purpose, now).await? {
        return Ok(None);
    }
    let link = store.take_link(&Token::from_text(secret).hash()).await?;
    Ok(link.filter(|link| link.purpose == purpose && link.expires_at > now))
}

#[cfg(test)]
mod tests;
