//! How long to wait before the next attempt: doubled each time, and never the same for two executors.

use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Self { min, max: max.max(min), next: min }
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.min;
    }

    pub(crate) fn next(&mut self) -> Duration {
        self.step(rand::random())
    }

    /// `jitter` from 0 to 1 gives half the wait to the whole of it.
    fn step(&mut self, jitter: f64) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.max);
        wait.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_and_start_anew() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let waits: Vec<u128> = (0..8).map(|_| backoff.step(1.0).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.step(0.0).as_millis(), 2500);
        backoff.reset();
        assert_eq!(backoff.step(0.0).as_millis(), 50);
    }
}
