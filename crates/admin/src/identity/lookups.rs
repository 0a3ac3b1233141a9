//! Bounds how many credentials are looked up in the database concurrently, in total and per address. Otherwise, a flood of invented
//! credentials would delay the renewal of the lease, probes and other callers. A token that was unknown recently is not looked up again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_core::forwarded::network_of;
use rondel_store::{Store, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::sign_in::{self, SignedIn};
use super::tokens::{self, Principal};

/// Maximum number of concurrent look-ups, which compete with all other work for database connections.
const CONCURRENT_MAX: usize = 32;
/// Maximum number of concurrent look-ups per address.
const CONCURRENT_PER_ADDRESS_MAX: usize = 8;
/// How long a request waits for its two permits together.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of stored addresses from which on unused addresses are removed.
const ADDRESS_COUNT_MAX: usize = 1_000;
/// How long an unknown token is refused without a look-up. A token created meanwhile is not affected, since no client has sent it before.
const UNKNOWN_PERIOD: Duration = Duration::from_secs(3);
const UNKNOWN_COUNT_MAX: usize = 10_000;

/// Why credentials could not be looked up.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// Too many look-ups are in progress.
    #[error("too many credentials are being checked at the same time")]
    Busy,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The permits of look-ups, and the tokens known not to exist.
#[derive(Debug)]
pub(crate) struct Lookups {
    total_permits: Arc<Semaphore>,
    permits_by_address: Mutex<BTreeMap<Option<IpAddr>, Weak<Semaphore>>>,
    unknown_tokens: Mutex<UnknownTokens>,
}

/// Hashes of tokens that do not exist; `order` has the oldest first.
#[derive(Debug, Default)]
struct UnknownTokens {
    until_by_hash: HashMap<String, Instant>,
    order: VecDeque<String>,
}

/// The permits of one look-up, held while the database is queried.
type LookupPermits = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Default for Lookups {
    fn default() -> Self {
        let total_permits = Arc::new(Semaphore::new(CONCURRENT_MAX));
        Self { total_permits, permits_by_address: Mutex::default(), unknown_tokens: Mutex::default() }
    }
}

impl Lookups {
    /// Authenticates the token in an `Authorization` header: see [`tokens::authenticate`].
    pub(crate) async fn authenticate_bearer(
        &self,
        store: &dyn Store,
        (authorization, client): (Option<&str>, Option<IpAddr>),
        now: Timestamp,
    ) -> Result<Option<Principal>, LookupError> {
        let Some(hash) = authorization.and_then(tokens::bearer_hash) else { return Ok(None) };
        if self.is_unknown(&hash) {
            return Ok(None);
        }
        let _permits = self.acquire(client).await?;
        let Some(record) = store.token(&hash).await? else {
            self.note_unknown(hash);
            return Ok(None);
        };
        Ok(tokens::admit(store, record, now).await?)
    }

    /// Authenticates a sign-in by its cookie: see [`sign_in::by_cookie`].
    pub(crate) async fn authenticate_cookie(
        &self,
        store: &dyn Store,
        (cookie, client): (&str, Option<IpAddr>),
        now: Timestamp,
    ) -> Result<Option<SignedIn>, LookupError> {
        let _permits = self.acquire(client).await?;
        Ok(sign_in::by_cookie(store, cookie, now).await?)
    }

    /// Waits for the permit of the address first, so that one address has few requests waiting for the shared permits.
    async fn acquire(&self, client: Option<IpAddr>) -> Result<LookupPermits, LookupError> {
        let deadline = Instant::now() + PERMIT_TIMEOUT;
        let address_permit = timeout_at(deadline, self.permits_of(client.map(network_of)).acquire_owned()).await;
        let address_permit = address_permit.ok().and_then(Result::ok).ok_or(LookupError::Busy)?;
        let total_permit = timeout_at(deadline, Arc::clone(&self.total_permits).acquire_owned()).await;
        Ok((address_permit, total_permit.ok().and_then(Result::ok).ok_or(LookupError::Busy)?))
    }

    fn permits_of(&self, network: Option<IpAddr>) -> Arc<Semaphore> {
        let mut permits_by_address = self.permits_by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(permits) = permits_by_address.get(&network).and_then(Weak::upgrade) {
            return permits;
        }
        if permits_by_address.len() >= ADDRESS_COUNT_MAX {
            permits_by_address.retain(|_, known| known.strong_count() > 0);
        }
        let new_permits = Arc::new(Semaphore::new(CONCURRENT_PER_ADDRESS_MAX));
        permits_by_address.insert(network, Arc::downgrade(&new_permits));
        new_permits
    }

    fn is_unknown(&self, hash: &str) -> bool {
        let unknown_tokens = self.unknown_tokens.lock().unwrap_or_else(PoisonError::into_inner);
        unknown_tokens.until_by_hash.get(hash).is_some_and(|until| *until > Instant::now())
    }

    fn note_unknown(&self, hash: String) {
        let unknown_until = Instant::now() + UNKNOWN_PERIOD;
        let mut unknown_tokens = self.unknown_tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let UnknownTokens { until_by_hash, order } = &mut *unknown_tokens;
        if until_by_hash.insert(hash.clone(), unknown_until).is_none() {
            order.push_back(hash);
        }
        if order.len() > UNKNOWN_COUNT_MAX
            && let Some(oldest) = order.pop_front()
        {
            until_by_hash.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(last: u8) -> Option<IpAddr> {
        Some(Ipv4Addr::new(192, 0, 2, last).into())
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_has_a_part_of_the_permits_and_a_wait_has_an_end() {
        let lookups = Lookups::default();
        let mut held = Vec::new();
        for _ in 0..CONCURRENT_PER_ADDRESS_MAX {
            held.push(lookups.acquire(address(1)).await.unwrap());
        }
        assert!(matches!(lookups.acquire(address(1)).await, Err(LookupError::Busy)));
        for other in 2..5 {
            for _ in 0..CONCURRENT_PER_ADDRESS_MAX {
                held.push(lookups.acquire(address(other)).await.unwrap());
            }
        }
        assert_eq!(held.len(), CONCURRENT_MAX);
        assert!(matches!(lookups.acquire(address(9)).await, Err(LookupError::Busy)), "all permits are taken");
        held.pop();
        assert!(lookups.acquire(address(9)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_and_unknown_tokens_are_kept_in_bounded_number_and_time() {
        let lookups = Lookups::default();
        for number in 0..5_000_u32 {
            drop(lookups.acquire(Some(Ipv4Addr::from(number).into())).await.unwrap());
        }
        assert!(lookups.permits_by_address.lock().unwrap().len() <= ADDRESS_COUNT_MAX);
        for number in 0..2 * UNKNOWN_COUNT_MAX {
            lookups.note_unknown(number.to_string());
        }
        assert!(lookups.unknown_tokens.lock().unwrap().until_by_hash.len() <= UNKNOWN_COUNT_MAX);
        assert!(!lookups.is_unknown("0") && lookups.is_unknown(&(UNKNOWN_COUNT_MAX + 1).to_string()));
        tokio::time::advance(UNKNOWN_PERIOD).await;
        assert!(!lookups.is_unknown(&(UNKNOWN_COUNT_MAX + 1).to_string()), "then it is looked up again");
    }
}
