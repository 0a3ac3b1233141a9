//! How long no server has answered: after that, what must not run twice stops, for its successor may run elsewhere.
//!
//! Lengths are uptimes that go on while the host sleeps: a laptop that wakes up has been silent all night.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The default, where neither the builder nor a server sets it.
const SILENCE: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) struct Silence {
    configured: Option<Duration>,
    /// By the last welcome; 0 until there is one: an executor that was never welcomed holds no runs.
    limit_ms: AtomicU64,
    heard_ms: AtomicU64,
    /// Silences that were too long and that a welcome has ended.
    over_count: AtomicU64,
}

impl Silence {
    pub(crate) fn new(configured: Option<Duration>) -> Self {
        Self { configured, limit_ms: AtomicU64::new(0), heard_ms: AtomicU64::new(0), over_count: AtomicU64::new(0) }
    }

    /// A server answered the hello of then: that is when it is known to have been there, for the welcome may have waited in
    /// the socket too. Where the silence before was too long, that is answered, and the streams of before are over.
    pub(crate) fn welcomed(&self, silence_ms: u32, hello_at: Duration, uptime: Duration) -> Option<Duration> {
        let exceeded = self.exceeded(uptime);
        if exceeded.is_some() {
            self.over_count.fetch_add(1, Ordering::Relaxed);
        }
        let by_server = if silence_ms == 0 { SILENCE } else { Duration::from_millis(silence_ms.into()) };
        self.heard_ms.fetch_max(as_ms(hello_at), Ordering::Relaxed);
        self.limit_ms.store(as_ms(self.configured.unwrap_or(by_server)).max(1), Ordering::Relaxed);
        exceeded
    }

    /// How many silences were too long until now: nothing counts that comes on a stream from before the last of them.
    pub(crate) fn over_count(&self) -> u64 {
        self.over_count.load(Ordering::Relaxed)
    }

    /// A server was heard. Where the silence before was too long, that is answered, and it goes on: what waited in the
    /// socket of a process that stood still may be another executor's by now, and only a new welcome ends it.
    pub(crate) fn heard(&self, uptime: Duration) -> Option<Duration> {
        let exceeded = self.exceeded(uptime);
        if exceeded.is_none() {
            self.heard_ms.store(as_ms(uptime), Ordering::Relaxed);
        }
        exceeded
    }

    /// The length of the silence, where it is too long.
    pub(crate) fn exceeded(&self, uptime: Duration) -> Option<Duration> {
        let limit = self.limit_ms.load(Ordering::Relaxed);
        let silent = as_ms(uptime).saturating_sub(self.heard_ms.load(Ordering::Relaxed));
        (limit > 0 && silent >= limit).then(|| Duration::from_millis(limit))
    }
}

fn as_ms(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_from_the_last_word() {
        let silence = Silence::new(None);
        let at = Duration::from_secs;
        assert_eq!(silence.exceeded(at(60)), None, "no server was heard yet");
        assert_eq!(silence.welcomed(3_000, at(60), at(60)), None);
        silence.heard(at(62));
        assert_eq!(silence.exceeded(at(64)), None);
        assert_eq!(silence.exceeded(at(65)), Some(at(3)));
        assert_eq!(silence.heard(at(65)), Some(at(3)), "a word that waited while the process stood still");
        assert_eq!(silence.exceeded(at(66)), Some(at(3)));
        assert_eq!(silence.over_count(), 0);
        assert_eq!(silence.welcomed(3_000, at(66), at(66)), Some(at(3)));
        assert_eq!(silence.over_count(), 1, "the streams of before are over");
        assert_eq!((silence.heard(at(67)), silence.exceeded(at(69))), (None, None));
        assert_eq!(silence.welcomed(3_000, at(66), at(69)), None);
        assert_eq!(silence.exceeded(at(69)), None, "another server was heard since");
    }

    #[test]
    fn a_welcome_that_waited_while_the_process_stood_still_ends_no_silence() {
        let (silence, at) = (Silence::new(None), Duration::from_secs);
        silence.welcomed(3_000, at(60), at(60));
        assert_eq!(silence.welcomed(3_000, at(61), at(70)), Some(at(3)));
        assert_eq!(silence.heard(at(70)), Some(at(3)), "what came behind it waited as well");
        assert_eq!(silence.welcomed(3_000, at(70), at(71)), Some(at(3)));
        assert_eq!(silence.heard(at(71)), None);
    }

    #[test]
    fn what_is_configured_counts_more_than_what_is_told() {
        let silence = Silence::new(Some(Duration::from_secs(1)));
        silence.welcomed(0, Duration::ZERO, Duration::ZERO);
        assert_eq!(silence.exceeded(Duration::from_secs(1)), Some(Duration::from_secs(1)));
    }
}
