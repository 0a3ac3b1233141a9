//! The periodic work: ships logs and progress, announces long runs, resends unacknowledged results, and detects silence
//! and stuck runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

use super::Engine;
use crate::lifecycle::lock;
use crate::table::TableLog as _;

mod watchdog;
use watchdog::RuntimeWatchdog;

/// Progress is sent at most this often.
const PROGRESS_PERIOD: Duration = Duration::from_secs(1);

pub(crate) struct SweepLoop {
    engine: Arc<Engine>,
    /// When progress is sent next.
    progress_at: Instant,
    watchdog: RuntimeWatchdog,
}

impl SweepLoop {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine, progress_at: Instant::now(), watchdog: RuntimeWatchdog::default() }
    }

    pub(crate) async fn run(mut self) {
        let engine = Arc::clone(&self.engine);
        let mut ticker = tokio::time::interval(engine.setup.timing.sweep_period);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let flush_request = async {
                match &engine.setup.shipping {
                    Some(shipping) => shipping.wait_for_request().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = engine.setup.lifecycle.soft.cancelled() => return,
                _ = ticker.tick() => self.tick(Instant::now()),
                () = flush_request => self.ship_logs(),
            }
        }
    }

    fn tick(&mut self, now: Instant) {
        self.ship_logs();
        let timing = &self.engine.setup.timing;
        let mut table = self.engine.table();
        table.refuse_expired(now.into_std());
        table.announce_started(now.into_std(), timing.report_start_after);
        table.outbox.resend_due(now.into_std());
        table.outbox.forget_logs(now.into_std());
        if now >= self.progress_at {
            self.progress_at = now + PROGRESS_PERIOD;
            for key in std::mem::take(&mut *lock(&self.engine.setup.progressed_runs)) {
                if let Some(run) = table.get(key) {
                    table.announce_progress(key, run.take_progress());
                }
            }
        }
        drop(table);
        self.engine.enforce_silence_limit();
        self.engine.end_stuck_runs(now);
        if let Some(handler_runtime) = self.engine.handler_runtime.get() {
            self.watchdog.check(handler_runtime, &self.engine.setup.lifecycle.tracker, now);
        }
    }

    fn ship_logs(&self) {
        let Some(shipping) = &self.engine.setup.shipping else { return };
        let marked_logs = shipping.take_marked_logs();
        if marked_logs.is_empty() {
            return;
        }
        let table = self.engine.table();
        for log in marked_logs {
            // The log of a run that has ended is not marked again: its remaining chunks are sent with its result.
            if !table.outbox.send_log(&log) && (log.has_unsent() || log.has_chunks()) && table.is_open(log.key()) {
                shipping.mark_log(log);
            }
        }
    }
}
