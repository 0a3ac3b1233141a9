//! Signing in: whether a name and a password go together, tried a bounded number of times; and the sign-ins that follow,
//! kept in the store, so that every node knows them and each can be ended.

mod buckets;

use std::net::IpAddr;
use std::time::Duration;

use rondel_core::access::Rights;
use rondel_core::{AccountId, Timestamp, TokenId};
use rondel_store::access::{Account, Attempt, LinkPurpose, SignInLink, TokenRecord, WebSession};
use rondel_store::{Store, StoreError};

pub(crate) use self::buckets::{Buckets, network};
use crate::identity::passwords::{PasswordError, Passwords};
use crate::identity::tokens::{Principal, Token, principal_of, signature};

/// How long a link signs in.
pub const LINK_LIFETIME: Duration = Duration::from_secs(15 * 60);
/// How long the link that makes the first account works.
pub const SETUP_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// How long an unused sign-in lasts.
pub const IDLE_MAX: Duration = Duration::from_secs(12 * 3600);
/// How long a sign-in lasts at most.
pub const SESSION_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// How many sign-ins of one account there are at the same time; the oldest makes room.
const SESSION_COUNT_MAX: u32 = 50;
/// How precisely the last use of a sign-in is recorded.
const USE_PERIOD: Duration = Duration::from_secs(60);
/// How many attempts there are within [`ATTEMPT_WINDOW`]: for one account, and from one address.
const ACCOUNT_ATTEMPTS: u32 = 10;
const ADDRESS_ATTEMPTS: u32 = 60;
/// How many browsers may come back from the provider of sign-ins, from one address within [`ATTEMPT_WINDOW`]: each makes the
/// server call the provider. More than of refusals, since a whole office may sign in from one address.
const ARRIVAL_COUNT_MAX: u32 = 240;
const ATTEMPT_WINDOW: Duration = Duration::from_secs(15 * 60);
/// How many addresses are remembered that an account signed in from.
const KNOWN_ADDRESS_COUNT_MAX: u32 = 50;
/// What became of an attempt to sign in.
#[derive(Clone, Debug)]
pub enum SignIn {
    /// This is who it is.
    Welcome(Box<Account>),
    /// No account has this name and this password; the answer does not distinguish which of both is wrong.
    Wrong,
    /// There were too many attempts; from then on there may be another.
    Blocked(Timestamp),
}

/// The question could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum SignInError {
    /// The store failed.
    #[error("the sign-in could not be looked up")]
    Store(#[from] StoreError),
    /// The password could not be hashed.
    #[error("the password could not be checked")]
    Password(#[from] PasswordError),
}

/// Whether a name and a password go together. Each attempt is counted before it is looked at, so that many at once are no
/// more than so many one after the other.
///
/// # Errors
/// The store's, or no randomness for the password's sake.
pub async fn by_password(
    store: &dyn Store,
    passwords: &Passwords,
    (name, password): (&str, &str),
    from: Option<IpAddr>,
    now: Timestamp,
) -> Result<SignIn, SignInError> {
    let account = store.account_by_name(name).await?;
    // Also asked for an unknown name, so that it takes as long.
    let id = account.as_ref().map_or(AccountId::new(0), |account| account.id);
    let is_known = match from {
        Some(address) => store.is_known_address(id, &network(address)).await?,
        None => false,
    };
    let buckets = Buckets::of(store, now).await?;
    let by_account = account.as_ref().map_or_else(|| buckets.unknown(name), |account| account.id.get());
    // Who has signed in from here before is counted apart: neither guesses from elsewhere nor those of neighbours behind
    // the same address lock them out.
    let counts = match account.as_ref().filter(|_| is_known) {
        Some(account) => vec![(buckets.known(account.id, from), ACCOUNT_ATTEMPTS)],
        None => vec![(buckets.address(from), ADDRESS_ATTEMPTS), (by_account, ACCOUNT_ATTEMPTS)],
    };
    for (bucket, max) in &counts {
        if let Attempt::Blocked(until) = store.count_attempt(*bucket, *max, ATTEMPT_WINDOW, now).await? {
            return Ok(SignIn::Blocked(until));
        }
    }
    let kept = account.as_ref().filter(|account| !account.disabled).and_then(|account| account.password.as_ref());
    let is_right = passwords.verify(password, kept).await?;
    match account.filter(|_| is_right) {
        Some(account) => {
            // What others did to the account, or from the address, is not forgotten for it.
            if let Some((own, _)) = counts.last() {
                store.forget_attempts(*own).await?;
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
pub async fn count_from(store: &dyn Store, from: Option<IpAddr>, now: Timestamp) -> Result<Attempt, StoreError> {
    let bucket = Buckets::of(store, now).await?.address(from);
    store.count_attempt(bucket, ADDRESS_ATTEMPTS, ATTEMPT_WINDOW, now).await
}

/// Counts a browser that comes back from the provider of sign-ins, before anything else is done for it.
///
/// # Errors
/// The store's.
pub async fn count_arrival(store: &dyn Store, from: Option<IpAddr>, now: Timestamp) -> Result<Attempt, StoreError> {
    let bucket = Buckets::of(store, now).await?.arrival(from);
    store.count_attempt(bucket, ARRIVAL_COUNT_MAX, ATTEMPT_WINDOW, now).await
}

/// Marks a one-time value as used, on all nodes; false if it was used within `window`.
///
/// # Errors
/// The store's.
pub async fn use_once(store: &dyn Store, text: &str, window: Duration, now: Timestamp) -> Result<bool, StoreError> {
    let bucket = Buckets::of(store, now).await?.once(text);
    Ok(store.count_attempt(bucket, 1, window, now).await? == Attempt::Allowed)
}

/// The owner of a sign-in.
#[derive(Clone, Copy, Debug)]
pub enum SignInOwner {
    /// An account's.
    Account(AccountId),
    /// An account's, by a link that this token made; it ends with the token.
    AccountBy(AccountId, TokenId),
    /// A token's.
    Token(TokenId),
}

impl SignInOwner {
    /// The account, the token with whose rights it goes on, and the token that it ends with beside that.
    const fn parts(self) -> (Option<AccountId>, Option<TokenId>, Option<TokenId>) {
        match self {
            Self::Account(account) => (Some(account), None, None),
            Self::AccountBy(account, minted_by) => (Some(account), None, Some(minted_by)),
            Self::Token(token) => (None, Some(token), None),
        }
    }

    /// The owner of a sign-in by this link; `None` for a link that signs in no account.
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

/// Where a sign-in begins.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// The address.
    pub address: Option<IpAddr>,
    /// The browser, by its own header.
    pub user_agent: String,
}

/// Begins a sign-in. Returns the value of its cookie.
///
/// # Errors
/// The store's.
pub async fn begin(
    store: &dyn Store,
    id: i64,
    whose: SignInOwner,
    place: &Place,
    now: Timestamp,
) -> Result<Token, StoreError> {
    let cookie = Token::generate();
    let (account, token, minted_by) = whose.parts();
    let session = WebSession {
        id: rondel_core::SessionId::new(id),
        hash: cookie.hash(),
        account,
        token,
        minted_by,
        created_at: now,
        last_seen_at: now,
        expires_at: now + SESSION_LIFETIME,
        address: place.address.map(|address| address.to_string()).unwrap_or_default(),
        user_agent: place.user_agent.chars().take(100).collect(),
    };
    store.begin_sign_in(&session, IDLE_MAX, SESSION_COUNT_MAX).await?;
    if let (Some(account), Some(address)) = (account, place.address) {
        store.remember_address(account, &network(address), now, KNOWN_ADDRESS_COUNT_MAX).await?;
    }
    Ok(cookie)
}

/// A user who signed in.
#[derive(Clone, Debug)]
pub struct SignedIn {
    /// The sign-in.
    pub session: WebSession,
    /// The account.
    pub account: Option<Account>,
    /// The token with whose rights it goes on.
    pub token: Option<TokenRecord>,
    /// What they may do now: a change of roles holds at once.
    pub rights: Rights,
}

/// Who signed in with this cookie; none where the sign-in, the account or the token behind it is over.
///
/// # Errors
/// The store's.
pub async fn by_cookie(store: &dyn Store, cookie: &str, now: Timestamp) -> Result<Option<SignedIn>, StoreError> {
    let found = store.sign_in(&Token::from_text(cookie).hash()).await?;
    let is_open = |session: &WebSession| session.expires_at > now && session.last_seen_at + IDLE_MAX > now;
    let Some(session) = found.filter(is_open) else { return Ok(None) };
    if !works(store, session.minted_by, now).await? {
        return Ok(None);
    }
    let signed_in = match (session.account, session.token) {
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
    };
    if let Some(signed_in) = signed_in.as_ref().filter(|one| one.session.last_seen_at + USE_PERIOD <= now) {
        store.touch_sign_in(signed_in.session.id, now).await?;
    }
    Ok(signed_in)
}

/// The name for changes by a user who signed in so; `None` where the account or the token is gone.
///
/// # Errors
/// The store's.
pub async fn name_of(store: &dyn Store, whose: SignInOwner) -> Result<Option<String>, StoreError> {
    let account = async |id| store.account(id).await;
    match whose {
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

/// Whether the token that made something works; what no token made does without.
async fn works(store: &dyn Store, maker: Option<TokenId>, now: Timestamp) -> Result<bool, StoreError> {
    let Some(maker) = maker else { return Ok(true) };
    match store.token_by_id(maker).await? {
        Some(maker) => Ok(principal_of(store, maker, now).await?.is_some()),
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

/// The secret of a new link that signs in, once.
///
/// # Errors
/// The store's.
pub async fn link(store: &dyn Store, whose: SignInOwner, now: Timestamp) -> Result<Token, StoreError> {
    let secret = Token::generate();
    let (account, token, minted_by) = whose.parts();
    let (purpose, expires_at) = (LinkPurpose::SignIn, now + LINK_LIFETIME);
    let link = SignInLink { hash: secret.hash(), purpose, account, token, minted_by, expires_at };
    store.add_link(&link, now).await?;
    Ok(secret)
}

/// The secret of a link that makes the first account that may do everything; `None` where there is one.
///
/// # Errors
/// The store's.
pub async fn setup_link(store: &dyn Store, now: Timestamp) -> Result<Option<Token>, StoreError> {
    if store.has_admin_account().await? {
        return Ok(None);
    }
    let secret = Token::generate();
    let (purpose, expires_at) = (LinkPurpose::Setup, now + SETUP_LIFETIME);
    let link = SignInLink { hash: secret.hash(), purpose, account: None, token: None, minted_by: None, expires_at };
    store.add_link(&link, now).await?;
    Ok(Some(secret))
}

/// Whether a link with this secret could be used now for this.
///
/// # Errors
/// The store's.
pub async fn is_open(
    store: &dyn Store,
    secret: &str,
    purpose: LinkPurpose,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let link = store.link(&Token::from_text(secret).hash()).await?;
    match link.filter(|link| link.purpose == purpose && link.expires_at > now) {
        Some(link) => works(store, link.token.or(link.minted_by), now).await,
        None => Ok(false),
    }
}

/// Uses a link up.
///
/// # Errors
/// The store's.
pub async fn redeem(
    store: &dyn Store,
    secret: &str,
    purpose: LinkPurpose,
    now: Timestamp,
) -> Result<Option<SignInLink>, StoreError> {
    if !is_open(store, secret, purpose, now).await? {
        return Ok(None);
    }
    let link = store.take_link(&Token::from_text(secret).hash()).await?;
    Ok(link.filter(|link| link.purpose == purpose && link.expires_at > now))
}

#[cfg(test)]
mod tests;
