//! The values that all runs of an executor share.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::clock::ServerClock;
use crate::engine::Silence;
use crate::lifecycle::Lifecycle;
use crate::log::{LogLimit, LogShipping};
use crate::pump::LastReports;
use crate::scripts::ScriptRequests;
use crate::secrets::Secrets;
use crate::table::RunKey;

/// The periods and timeouts of an executor. The defaults suit every program; tests shorten them. An executor shortens each
/// period to at most ten years, and lengthens the period of a repeated action to at least one millisecond.
///
/// ```
/// use rondel::Timing;
/// use std::time::Duration;
///
/// let timing = Timing { cancel_grace: Duration::from_secs(30), ..Timing::default() };
/// assert_eq!(timing.resend_after, Duration::from_secs(2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long a run may take to stop before it is dropped; 10 s by default. If the run stops because no server
    /// answers, the grace is at most 10 s, because another executor may then get the run. A server gives up a run 60 s
    /// after its timeout, so a run with a longer grace may overlap with its successor.
    pub cancel_grace: Duration,
    /// The longest silence of the servers: once none has answered for this long, groups of pump jobs and runs of jobs
    /// with `on_silence: stop` are stopped. `None`, the default, for the servers' setting. With a longer value than
    /// theirs, these runs may overlap with their successors, unless the servers' `lost_after` is longer, too.
    pub silence_max: Option<Duration>,
    /// How long a result waits for its acknowledgement before it is sent again; 2 s by default. The wait doubles with
    /// each try, up to 16 times this length.
    pub resend_after: Duration,
    /// How long a run must last before its start is reported; 500 ms by default. The starts of shorter runs are not
    /// reported.
    pub report_start_after: Duration,
    /// The period of the executor's sweeps; 200 ms by default. A log line waits at most this long before it is sent,
    /// unless too much of the log is unacknowledged.
    pub sweep_period: Duration,
    /// The wait before a server is dialled again after its first failure; 100 ms by default. The wait doubles with each
    /// further failure, and jitter shortens each wait by up to half.
    pub reconnect_min: Duration,
    /// The longest wait before a server is dialled again; 2 s by default.
    pub reconnect_max: Duration,
    /// How long connecting may take; 5 s by default. The server's welcome may then take as long again.
    pub connect_timeout: Duration,
    /// How long a draining executor waits for the last acknowledgements; 5 s by default.
    pub ack_grace: Duration,
}

/// The longest period that an executor accepts: a longer one could not be added to an instant.
const PERIOD_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// The shortest period of a repeated action, so that no loop runs without a pause.
const PERIOD_MIN: Duration = Duration::from_millis(1);

impl Timing {
    /// Limits each period to the range that the executor's loops can handle.
    fn bounded(self) -> Self {
        let clamp_period = |period: Duration| period.clamp(PERIOD_MIN, PERIOD_MAX);
        Self {
            cancel_grace: self.cancel_grace.min(PERIOD_MAX),
            silence_max: self.silence_max.map(|silence_max| silence_max.min(PERIOD_MAX)),
            resend_after: clamp_period(self.resend_after),
            report_start_after: clamp_period(self.report_start_after),
            sweep_period: clamp_period(self.sweep_period),
            reconnect_min: clamp_period(self.reconnect_min),
            reconnect_max: clamp_period(self.reconnect_max),
            connect_timeout: self.connect_timeout.min(PERIOD_MAX),
            ack_grace: self.ack_grace.min(PERIOD_MAX),
        }
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            cancel_grace: Duration::from_secs(10),
            silence_max: None,
            resend_after: Duration::from_secs(2),
            report_start_after: Duration::from_millis(500),
            sweep_period: Duration::from_millis(200),
            reconnect_min: Duration::from_millis(100),
            reconnect_max: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(5),
            ack_grace: Duration::from_secs(5),
        }
    }
}

pub(crate) struct Setup {
    pub(crate) states: States,
    pub(crate) secrets: Option<Secrets>,
    pub(crate) timing: Timing,
    pub(crate) clock: ServerClock,
    pub(crate) lifecycle: Lifecycle,
    /// `None` if no server collects logs: each run then keeps its own lines.
    pub(crate) shipping: Option<Arc<LogShipping>>,
    pub(crate) log_limit: LogLimit,
    pub(crate) blocking_permits: Arc<Semaphore>,
    /// Runs with progress that was not sent yet.
    pub(crate) progressed_runs: Mutex<Vec<RunKey>>,
    /// Since when no server has answered.
    pub(crate) silence: Silence,
    /// The last report of each group of a pump job.
    pub(crate) pump_reports: LastReports,
    /// The requests with which runs ask servers for scripts.
    pub(crate) script_requests: ScriptRequests,
}

impl Setup {
    pub(crate) fn new(states: States, timing: Timing) -> Self {
        let timing = timing.bounded();
        Self {
            silence: Silence::new(timing.silence_max),
            pump_reports: LastReports::default(),
            script_requests: ScriptRequests::default(),
            states,
            secrets: None,
            timing,
            clock: ServerClock::new(),
            lifecycle: Lifecycle::default(),
            shipping: None,
            log_limit: LogLimit::default(),
            blocking_permits: Arc::new(Semaphore::new(BLOCKING_THREADS_MAX)),
            progressed_runs: Mutex::new(Vec::new()),
        }
    }

    /// Drops the logs that wait to be sent: they and their list refer to each other, and would leak.
    pub(crate) fn forget_logs(&self) {
        if let Some(shipping) = &self.shipping {
            drop(shipping.take_marked_logs());
        }
    }
}

/// The largest number of blocking handlers that run at the same time, unless the program sets another number.
pub(crate) const BLOCKING_THREADS_MAX: usize = 256;

/// The values that handlers take as [`State`](crate::State), one per type.
#[derive(Default)]
pub(crate) struct States(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl States {
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Box::new(value));
    }

    pub(crate) fn get<T: Clone + 'static>(&self) -> Option<T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_of_any_length_are_fit_for_the_loops() {
        let timing = |period| Timing {
            cancel_grace: period,
            silence_max: Some(period),
            resend_after: period,
            report_start_after: period,
            sweep_period: period,
            reconnect_min: period,
            reconnect_max: period,
            connect_timeout: period,
            ack_grace: period,
        };
        let longest = timing(Duration::MAX).bounded();
        assert_eq!(longest, timing(PERIOD_MAX));
        assert!(tokio::time::Instant::now().checked_add(longest.resend_after * 16).is_some());
        let shortest = timing(Duration::ZERO).bounded();
        assert_eq!((shortest.sweep_period, shortest.report_start_after), (PERIOD_MIN, PERIOD_MIN));
        assert_eq!((shortest.reconnect_min, shortest.cancel_grace), (PERIOD_MIN, Duration::ZERO));
        assert_eq!(Timing::default().bounded(), Timing::default());
    }
}
