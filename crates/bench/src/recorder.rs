//! The handler of the jobs: it only records how late it was started.

use std::sync::{Arc, Mutex, PoisonError};

use rondel::{RunContext, State};
use rondel_core::Timestamp;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::histogram::Histogram;

/// The handler's name.
pub(crate) const HANDLER: &str = "bench.nothing";

/// The range of planned instants that are measured; `to_ms` is not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Window {
    pub(crate) from_ms: i64,
    pub(crate) to_ms: i64,
}

impl Window {
    pub(crate) fn new(from: Timestamp, to: Timestamp) -> Self {
        Self { from_ms: from.as_millis(), to_ms: to.as_millis() }
    }

    pub(crate) fn contains(self, at: Timestamp) -> bool {
        (self.from_ms..self.to_ms).contains(&at.as_millis())
    }
}

/// What the handlers of one process observed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Observations {
    /// The number of all starts.
    pub(crate) started: u64,
    /// The number of starts of attempts beyond the first.
    pub(crate) repeated: u64,
    /// The number of starts before the planned instant.
    pub(crate) early: u64,
    /// Lateness of the starts in the window.
    pub(crate) lateness: Histogram,
}

impl Observations {
    pub(crate) fn add(&mut self, other: &Self) {
        self.started += other.started;
        self.repeated += other.repeated;
        self.early += other.early;
        self.lateness.add(&other.lateness);
    }
}

#[derive(Debug, Default)]
struct Inner {
    window: Option<Window>,
    observations: Observations,
}

/// The observations that the handlers of a process share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder(Arc<Mutex<Inner>>);

impl Recorder {
    pub(crate) fn set_window(&self, window: Window) {
        self.lock().window = Some(window);
    }

    pub(crate) fn observations(&self) -> Observations {
        self.lock().observations.clone()
    }

    /// Records a start that happens now and was planned for `fire_at`.
    pub(crate) fn note_now(&self, fire_at: Timestamp, is_repeated: bool) {
        self.note(fire_at, if is_repeated { 2 } else { 1 }, clock::micros_after(fire_at));
    }

    fn note(&self, fire_at: Timestamp, attempt: i32, lateness_micros: i64) {
        let mut inner = self.lock();
        inner.observations.started += 1;
        inner.observations.repeated += u64::from(attempt > 1);
        inner.observations.early += u64::from(lateness_micros < 0);
        if inner.window.is_some_and(|window| window.contains(fire_at)) {
            inner.observations.lateness.record(u64::try_from(lateness_micros).unwrap_or(0));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The handler of all jobs: records how late its run is.
pub(crate) async fn record_start(run: RunContext, State(recorder): State<Recorder>) {
    let lateness_micros = clock::micros_after(run.fire_at());
    recorder.note(run.fire_at(), run.attempt(), lateness_micros);
}
