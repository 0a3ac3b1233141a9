//! A thread that only sleeps until instants fixed beforehand: it shows how late any thread is on this host at this
//! time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec};

use crate::BenchError;
use crate::clock;
use crate::histogram::Histogram;

/// Twenty instants a second, one of them at the beginning of the second.
const PERIOD_MICROS: i64 = 50_000;

#[derive(Debug)]
pub(crate) struct Witness {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Histogram>,
}

impl Witness {
    pub(crate) fn start() -> Result<Self, BenchError> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread_stop = Arc::clone(&stop);
        let thread_builder = std::thread::Builder::new().name("witness".to_owned());
        let thread =
            thread_builder.spawn(move || watch(&thread_stop)).map_err(BenchError::system("start the witness"))?;
        Ok(Self { stop, thread })
    }

    /// Ends the thread, and returns what it observed.
    pub(crate) fn end(self) -> Histogram {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn watch(stop: &AtomicBool) -> Histogram {
    let mut delays = Histogram::default();
    while !stop.load(Ordering::Relaxed) {
        let wake_micros = (clock::now_micros() / PERIOD_MICROS + 1) * PERIOD_MICROS;
        let wake_at = Timespec { tv_sec: wake_micros / 1_000_000, tv_nsec: wake_micros % 1_000_000 * 1_000 };
        if clock_nanosleep_absolute(ClockId::Realtime, &wake_at).is_ok() {
            delays.record(u64::try_from(clock::now_micros() - wake_micros).unwrap_or(0));
        }
    }
    delays
}
