//! Stores a requested object only once, even if the database's answer is lost.

use std::time::Duration;

use rondel_store::StoreError;
use tokio::time::Instant;

/// How long a call is repeated after the connection to the database broke: less than the 30 s that an API request may take.
const RETRY_LIMIT: Duration = Duration::from_secs(20);
/// The pause before each further try.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Stores a new object, such as a run, a job or a maintenance window. If the connection breaks, the object may already be stored, and a caller
/// who got an error would request it a second time. So the call is repeated until the database answers, for up to [`RETRY_LIMIT`]. The store
/// recognizes an object that it already has by the object's key or id.
pub(crate) async fn store_once<T, S>(store: impl Fn() -> S) -> Result<T, StoreError>
where
    S: Future<Output = Result<T, StoreError>>,
{
    let result = store().await;
    // The rare path is on the heap, so that the futures of requests stay small.
    if result.as_ref().is_err_and(StoreError::is_outcome_unknown) {
        Box::pin(repeat_until_known(store)).await
    } else {
        result
    }
}

async fn repeat_until_known<T, S>(store: impl Fn() -> S) -> Result<T, StoreError>
where
    S: Future<Output = Result<T, StoreError>>,
{
    let deadline = Instant::now() + RETRY_LIMIT;
    loop {
        tokio::time::sleep(RETRY_DELAY).await;
        let result = store().await;
        if !result.as_ref().is_err_and(StoreError::is_transient) || Instant::now() >= deadline {
            return result;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_call_that_may_have_taken_effect_is_repeated() {
        let lost = || Err(StoreError::lost_answer("a call"));
        let away = || Err(StoreError::no_answer("a call"));
        for (first, then_away, wanted, calls) in [(lost(), 3, Ok(7), 5), (Ok(7), 0, Ok(7), 1), (away(), 0, Err(()), 1)]
        {
            let (first, count) = (std::sync::Mutex::new(Some(first)), AtomicUsize::new(0));
            let stored = store_once(|| {
                let call = count.fetch_add(1, Ordering::Relaxed);
                let first = first.lock().unwrap().take();
                ready(first.unwrap_or_else(|| if call <= then_away { away() } else { Ok(7) }))
            });
            assert_eq!((stored.await.map_err(|_| ()), count.load(Ordering::Relaxed)), (wanted, calls));
        }
        let began = Instant::now();
        assert!(store_once(|| ready(Err::<(), _>(StoreError::lost_answer("a call")))).await.is_err());
        assert!(began.elapsed() <= RETRY_LIMIT + RETRY_DELAY);
    }
}
