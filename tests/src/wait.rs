//! Waiting on a value with a limit, instead of sleeping and hoping.

use std::fmt::Debug;
use std::panic::Location;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// The pause between two looks.
const PERIOD: Duration = Duration::from_millis(20);

/// Calls `look` repeatedly until it returns `Ok`, and returns the value.
///
/// `look` answers `Err(what it saw instead)`. When the limit is over, the test fails with `what` was waited for, and with
/// what was seen last.
#[track_caller]
pub fn wait_until<T, Seen: Debug>(
    limit: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, Seen>,
) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let end = Instant::now() + limit;
        let mut seen = None;
        loop {
            match timeout_at(end, look()).await {
                Ok(Ok(value)) => return value,
                Ok(Err(instead)) => seen = Some(instead),
                Err(_) => panic!("at {caller}: not within {limit:?}: {what}; {}", last(seen.as_ref())),
            }
            assert!(Instant::now() < end, "at {caller}: not within {limit:?}: {what}; {}", last(seen.as_ref()));
            sleep(PERIOD).await;
        }
    }
}

fn last(seen: Option<&impl Debug>) -> String {
    seen.map_or_else(|| "the first look did not end".to_owned(), |seen| format!("seen last: {seen:#?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn gives_the_value_as_soon_as_it_is_there() {
        let mut looks = 0;
        let found = wait_until(Duration::from_secs(5), "three looks", async || {
            looks += 1;
            if looks == 3 { Ok(looks) } else { Err(looks) }
        });
        assert_eq!(found.await, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "not within 50ms: never; seen last: \"no\"")]
    async fn tells_what_it_saw_last() {
        wait_until(Duration::from_millis(50), "never", async || Err::<(), _>("no")).await;
    }

    #[tokio::test]
    #[should_panic(expected = "not within 50ms: stuck; the first look did not end")]
    async fn a_look_that_hangs_does_not_hang_the_test() {
        wait_until(Duration::from_millis(50), "stuck", async || std::future::pending::<Result<(), ()>>().await).await;
    }
}
