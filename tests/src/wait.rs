//! Waiting on a value with a limit, instead of sleeping and hoping.

use std::fmt::Debug;
use std::panic::Location;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// The pause between two looks.
const PERIOD: Duration = Duration::from_millis(20);
/// A shorter limit is what a test asserts. A longer one only ends a test that waits in vain, and is stretched on a busy machine.
const ASSERTED_BELOW: Duration = Duration::from_secs(10);
/// How far it is stretched.
const STRETCH_MAX: f64 = 4.0;

/// Calls `look` repeatedly until it returns `Ok`, and returns the value.
///
/// `look` answers `Err(what it saw instead)`. When the limit is over, the test fails with `what` was waited for, and with
/// what was seen last. A limit of ten seconds and more is one of a machine with a processor for each process that wants one: where
/// twice as many want one, it is twice as long.
#[track_caller]
pub fn wait_until<T, Seen: Debug>(
    limit: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, Seen>,
) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let began = Instant::now();
        let mut stretch = 1.0_f64;
        let mut seen = None;
        loop {
            if limit >= ASSERTED_BELOW {
                stretch = stretch.max(crowd()).min(STRETCH_MAX);
            }
            let end = began + limit.mul_f64(stretch);
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

/// How many processes want a processor, for each that there is, on average over the last minute.
fn crowd() -> f64 {
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
