//! Measures the silence: how long no server has answered. If the silence reaches a run's limit, the run stops, because
//! its successor may run elsewhere.
//!
//! Times are uptimes that include the host's sleep: a laptop that wakes up has heard no server all night.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rondel_proto::v1;

/// A period in which no server answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SilencePeriod {
    /// The executor's limit: when the silence has lasted this long, the runs stop that must not continue in silence.
    pub(crate) limit: Duration,
    /// How long the silence has lasted so far.
    pub(crate) duration: Duration,
}

/// The length of silence after which a run stops; `None` if the run continues. `limit` is the executor's limit, which
/// the job can raise.
pub(crate) fn silence_limit(trigger: &v1::Trigger, limit: Duration) -> Option<Duration> {
    if trigger.pump.is_some() {
        // After so long a silence, the items of the group may belong to another group.
        return Some(limit);
    }
    match trigger.on_silence() {
        v1::OnSilence::Unspecified => (trigger.serial || trigger.at_most_once).then_some(limit),
        v1::OnSilence::Stop => Some(limit),
        v1::OnSilence::Continue => {
            let silence_max_ms =
                u64::try_from(trigger.silence_max_ms).ok().filter(|silence_max_ms| *silence_max_ms > 0);
            silence_max_ms.map(|silence_max_ms| Duration::from_millis(silence_max_ms).max(limit))
        }
    }
}

/// The limit if neither the builder nor a server sets one.
const SILENCE_LIMIT_DEFAULT: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) struct Silence {
    /// The limit that the program sets. It takes precedence over the limit of the servers.
    configured_limit: Option<Duration>,
    /// The limit in force, set by the last welcome; 0 before the first welcome. An executor that was never welcomed
    /// holds no runs.
    limit_ms: AtomicU64,
    /// The uptime at which the executor last heard a server.
    heard_ms: AtomicU64,
    /// The number of silences that were too long and that a welcome has ended.
    exceeded_count: AtomicU64,
}

impl Silence {
    pub(crate) fn new(configured_limit: Option<Duration>) -> Self {
        Self {
            configured_limit,
            limit_ms: AtomicU64::new(0),
            heard_ms: AtomicU64::new(0),
            exceeded_count: AtomicU64::new(0),
        }
    }

    /// How long no server has answered; `None` before the first welcome.
    pub(crate) fn current_period(&self, uptime: Duration) -> Option<SilencePeriod> {
        let limit_ms = self.limit_ms.load(Ordering::Relaxed);
        let silence_ms = clamped_ms(uptime).saturating_sub(self.heard_ms.load(Ordering::Relaxed));
        let limit = Duration::from_millis(limit_ms);
        (limit_ms > 0).then_some(SilencePeriod { limit, duration: Duration::from_millis(silence_ms) })
    }

    /// Records the answer to the hello that was sent at `hello_at`. The server counts as heard at that instant and not
    /// now, because the welcome may have waited in the socket. If the silence before that was too long, this returns
    /// that silence, and all older streams become invalid.
    pub(crate) fn record_welcome(
        &self,
        silence_ms: u32,
        hello_at: Duration,
        uptime: Duration,
    ) -> Option<SilencePeriod> {
        let exceeded_silence = self.exceeded_period(uptime);
        if exceeded_silence.is_some() {
            self.exceeded_count.fetch_add(1, Ordering::Relaxed);
        }
        let server_limit =
            if silence_ms == 0 { SILENCE_LIMIT_DEFAULT } else { Duration::from_millis(silence_ms.into()) };
        self.heard_ms.fetch_max(clamped_ms(hello_at), Ordering::Relaxed);
        self.limit_ms.store(clamped_ms(self.configured_limit.unwrap_or(server_limit)).max(1), Ordering::Relaxed);
        exceeded_silence
    }

    /// The number of silences that were too long so far. Messages on a stream that was opened before the end of the
    /// last such silence are ignored.
    pub(crate) fn exceeded_count(&self) -> u64 {
        self.exceeded_count.load(Ordering::Relaxed)
    }

    /// Records that a server was heard. If the silence before that was too long, this returns that silence, which
    /// continues until a new welcome: messages that waited in the socket of a paused process may concern runs that
    /// another executor has by now.
    pub(crate) fn record_heard(&self, uptime: Duration) -> Option<SilencePeriod> {
        let exceeded_silence = self.exceeded_period(uptime);
        if exceeded_silence.is_none() {
            self.heard_ms.store(clamped_ms(uptime), Ordering::Relaxed);
        }
        exceeded_silence
    }

    /// The silence, if it has reached the executor's limit.
    pub(crate) fn exceeded_period(&self, uptime: Duration) -> Option<SilencePeriod> {
        self.current_period(uptime).filter(|silence| silence.duration >= silence.limit)
    }
}

fn clamped_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(silent: Option<SilencePeriod>) -> Option<Duration> {
        silent.map(|silent| silent.limit)
    }

    #[test]
    fn silence_counts_from_the_last_message() {
        let silence = Silence::new(None);
        let at = Duration::from_secs;
        assert_eq!(limit(silence.exceeded_period(at(60))), None, "no server was heard yet");
        assert_eq!(limit(silence.record_welcome(3_000, at(60), at(60))), None);
        silence.record_heard(at(62));
        assert_eq!(limit(silence.exceeded_period(at(64))), None);
        assert_eq!(limit(silence.exceeded_period(at(65))), Some(at(3)));
        assert_eq!(
            limit(silence.record_heard(at(65))),
            Some(at(3)),
            "a word that waited while the process stood still"
        );
        assert_eq!(limit(silence.exceeded_period(at(66))), Some(at(3)));
        assert_eq!(silence.exceeded_count(), 0);
        assert_eq!(limit(silence.record_welcome(3_000, at(66), at(66))), Some(at(3)));
        assert_eq!(silence.exceeded_count(), 1, "the streams of before are over");
        assert_eq!((limit(silence.record_heard(at(67))), limit(silence.exceeded_period(at(69)))), (None, None));
        assert_eq!(limit(silence.record_welcome(3_000, at(66), at(69))), None);
        assert_eq!(limit(silence.exceeded_period(at(69))), None, "another server was heard since");
    }

    #[test]
    fn a_welcome_that_waited_while_the_process_was_paused_ends_no_silence() {
        let (silence, at) = (Silence::new(None), Duration::from_secs);
        silence.record_welcome(3_000, at(60), at(60));
        assert_eq!(limit(silence.record_welcome(3_000, at(61), at(70))), Some(at(3)));
        assert_eq!(limit(silence.record_heard(at(70))), Some(at(3)), "what came behind it waited as well");
        assert_eq!(limit(silence.record_welcome(3_000, at(70), at(71))), Some(at(3)));
        assert_eq!(limit(silence.record_heard(at(71))), None);
    }

    #[test]
    fn the_configured_limit_takes_precedence_over_the_servers() {
        let silence = Silence::new(Some(Duration::from_secs(1)));
        silence.record_welcome(0, Duration::ZERO, Duration::ZERO);
        assert_eq!(limit(silence.exceeded_period(Duration::from_secs(1))), Some(Duration::from_secs(1)));
    }

    #[test]
    fn a_run_that_continues_in_silence_has_its_own_limit() {
        use v1::OnSilence::{Continue, Stop, Unspecified};
        let at = Duration::from_secs;
        let limit = |on_silence: v1::OnSilence, is_serial, max| {
            let trigger = v1::Trigger { on_silence: on_silence.into(), serial: is_serial, ..v1::Trigger::default() };
            silence_limit(&v1::Trigger { silence_max_ms: max, ..trigger }, at(15))
        };
        assert_eq!(limit(Unspecified, true, 0), Some(at(15)));
        assert_eq!(limit(Unspecified, false, 0), None);
        assert_eq!(limit(Stop, false, 0), Some(at(15)));
        assert_eq!(limit(Continue, true, 90_000), Some(at(90)));
        assert_eq!(limit(Continue, true, 1_000), Some(at(15)), "never sooner than one that is to stop");
        assert_eq!((limit(Continue, true, 0), limit(Continue, true, -1)), (None, None));
        let silence = Silence::new(None);
        assert_eq!(silence.current_period(at(9)), None, "no server was heard yet");
        silence.record_welcome(3_000, at(60), at(60));
        assert_eq!(silence.current_period(at(62)), Some(SilencePeriod { limit: at(3), duration: at(2) }));
    }
}
