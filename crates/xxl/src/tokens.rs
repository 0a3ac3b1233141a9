//! A cache of the apps of valid tokens, for a few seconds. A token that many executors present at the same time is looked up once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::Instant;

/// How long a valid token stays cached.
const CACHE_PERIOD: Duration = Duration::from_secs(5);
/// Maximum number of tokens that are cached or being looked up. Beyond that, each call looks up its token itself.
const TOKEN_COUNT_MAX: usize = 1_000;

#[derive(Debug)]
pub(crate) struct Tokens<A>(Mutex<HashMap<String, Arc<CacheEntry<A>>>>);

/// A token that is cached or being looked up: the first caller looks it up, and the others wait for the result.
#[derive(Debug)]
struct CacheEntry<A> {
    /// When its lookup began.
    lookup_began_at: Instant,
    app: OnceCell<A>,
}

impl<A> Default for Tokens<A> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<A: Clone> Tokens<A> {
    /// The app of a token, from `look_up` if it is not cached. An error of `look_up` is not cached: the next caller looks the token up
    /// again.
    pub(crate) async fn app<E>(&self, hash: String, look_up: impl Future<Output = Result<A, E>>) -> Result<A, E> {
        let entry = self.entry(&hash);
        let result = entry.app.get_or_try_init(|| look_up).await.cloned();
        if result.is_err() {
            self.remove_unfilled(&hash, &entry);
        }
        result
    }

    fn entry(&self, hash: &str) -> Arc<CacheEntry<A>> {
        let now = Instant::now();
        let is_fresh = |entry: &CacheEntry<A>| now.duration_since(entry.lookup_began_at) < CACHE_PERIOD;
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(hash).filter(|entry| is_fresh(entry)) {
            return Arc::clone(entry);
        }
        if entries.len() >= TOKEN_COUNT_MAX {
            entries.retain(|_, entry| is_fresh(entry));
        }
        let entry = Arc::new(CacheEntry { lookup_began_at: now, app: OnceCell::new() });
        if entries.len() < TOKEN_COUNT_MAX {
            entries.insert(hash.to_owned(), Arc::clone(&entry));
        }
        entry
    }

    /// Removes the entry of a token whose look-up failed, so that invented tokens take no room from valid ones.
    fn remove_unfilled(&self, hash: &str, entry: &Arc<CacheEntry<A>>) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries
            .get(hash)
            .is_some_and(|cached_entry| Arc::ptr_eq(cached_entry, entry) && !cached_entry.app.initialized())
        {
            entries.remove(hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_of_many_callers_is_looked_up_once_in_each_period() {
        let (tokens, looks) = (Tokens::default(), AtomicUsize::new(0));
        let look_up = || async {
            looks.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, ()>("orders")
        };
        let call = || async { tokens.app("hash".to_owned(), look_up()).await };
        let callers: Vec<_> = (0..200).map(|_| call()).collect();
        for found in futures_util::future::join_all(callers).await {
            assert_eq!(found, Ok("orders"));
        }
        assert_eq!(looks.load(Ordering::Relaxed), 1);
        tokio::time::advance(CACHE_PERIOD).await;
        assert!(call().await.is_ok());
        assert_eq!(looks.load(Ordering::Relaxed), 2, "a token that was revoked is found out");
    }

    #[tokio::test]
    async fn refused_tokens_take_no_place_and_are_looked_up_again() {
        let tokens = Tokens::default();
        for number in 0..2 * TOKEN_COUNT_MAX {
            assert!(tokens.app(number.to_string(), async { Err::<&str, _>("wrong") }).await.is_err());
        }
        assert!(tokens.0.lock().expect("a lock").is_empty());
        assert!(tokens.app("1".to_owned(), async { Ok::<_, ()>("orders") }).await.is_ok(), "it is made by now");
    }

    #[tokio::test]
    async fn valid_tokens_beyond_the_bound_are_accepted() {
        let tokens = Tokens::default();
        for number in 0..2 * TOKEN_COUNT_MAX {
            assert!(tokens.app(number.to_string(), async { Ok::<_, ()>("orders") }).await.is_ok());
        }
        assert_eq!(tokens.0.lock().expect("a lock").len(), TOKEN_COUNT_MAX);
    }
}
