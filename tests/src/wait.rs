//! Waits for a value with a limit, instead of sleeping for a fixed time.

use std::fmt::Debug;
use std::panic::Location;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// The pause between two calls of `look`.
const PERIOD: Duration = Duration::from_millis(20);
/// Maximum factor by which a limit is stretched on a busy machine.
const STRETCH_MAX: f64 = 4.0;

/// Calls `look` repeatedly until it returns `Ok`, and returns the value.
///
/// `look` returns `Err` with what it saw instead. After the limit, the test fails with `what` and the last such value. The
/// limit only ends a test that waits in vain: if twice as many processes want a processor as there are, it is twice as long. If
/// the limit itself is the assertion, use [`wait_at_most`].
#[track_caller]
pub fn wait_until<T, Seen: Debug>(
    limit: Duration,
    what: &str,
    look: impl AsyncFnMut() -> Result<T, Seen>,
) -> impl Future<Output = T> {
    wait(limit, STRETCH_MAX, what, look)
}

/// Like [`wait_until`], with a limit that is not stretched, because the test asserts it.
#[track_caller]
pub fn wait_at_most<T, Seen: Debug>(
    limit: Duration,
    what: &str,
    look: impl AsyncFnMut() -> Result<T, Seen>,
) -> impl Future<Output = T> {
    wait(limit, 1.0, what, look)
}

#[track_caller]
fn wait<T, Seen: Debug>(
    limit: Duration,
    stretch_max: f64,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, Seen>,
) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let began = Instant::now();
        let mut end = began + limit;
        let mut seen = None;
        loop {
            match timeout_at(end, look()).await {
                Ok(Ok(value)) => return value,
                Ok(Err(instead)) => seen = Some(instead),
                Err(_) => {}
            }
            if Instant::now() >= end {
                end = end.max(began + limit.mul_f64(load_per_processor().clamp(1.0, stretch_max)));
            }
            assert!(Instant::now() < end, "at {caller}: not within {limit:?}: {what}; {}", last(seen.as_ref()));
            sleep(PERIOD).await;
        }
    }
}

/// The number of processes that want a processor, divided by the number of processors, on average over the last minute.
fn load_per_processor() -> f64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(1.0);
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    load / f64::from(u16::try_from(processors).unwrap_or(u16::MAX))
}

fn last(seen: Option<&impl Debug>) -> String {
    seen.map_or_else(|| "the first look did not end".to_owned(), |seen| format!("seen last: {seen:#?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_value_is_returned_as_soon_as_it_exists() {
        let mut looks = 0;
        let found = wait_until(Duration::from_secs(5), "three looks", async || {
            looks += 1;
            if looks == 3 { Ok(looks) } else { Err(looks) }
        });
        assert_eq!(found.await, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "not within 50ms: never; seen last: \"no\"")]
    async fn the_last_value_is_reported() {
        wait_until(Duration::from_millis(50), "never", async || Err::<(), _>("no")).await;
    }

    #[tokio::test]
    #[should_panic(expected = "not within 50ms: stuck; the first look did not end")]
    async fn a_look_that_hangs_does_not_hang_the_test() {
        wait_until(Duration::from_millis(50), "stuck", async || std::future::pending::<Result<(), ()>>().await).await;
    }
}
