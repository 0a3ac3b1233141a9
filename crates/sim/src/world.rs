//! What all parts of a simulation share: the clock, random numbers, the store, the network, and the truth.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_store::MemStore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::net::Net;
use crate::process::Process;
use crate::profile::Profile;
use crate::pumps::truth::PumpTruth;
use crate::rng::SeededRng;
use crate::trace::Trace;
use crate::truth::Truth;

/// When the simulated world begins, by the database's clock.
const BEGINNING: Timestamp = Timestamp::from_millis(1_800_000_000_250);

/// Milliseconds between the world's beginning and an instant of the database's clock, if that clock never stepped.
pub(crate) fn elapsed_ms(at: Timestamp) -> u64 {
    u64::try_from(at.as_millis() - BEGINNING.as_millis()).unwrap_or(0)
}

/// The state of the database.
#[derive(Debug)]
pub(crate) struct Database {
    /// It answers no call until this instant.
    pub(crate) down_until: Instant,
    /// It is cut off from these nodes until these instants.
    pub(crate) cut_until: BTreeMap<usize, Instant>,
    /// How much longer each call takes.
    pub(crate) slowness: Duration,
}

pub(crate) struct World {
    pub(crate) began_at: Instant,
    pub(crate) profile: Profile,
    pub(crate) store: Arc<MemStore>,
    pub(crate) net: Net,
    pub(crate) tracker: TaskTracker,
    pub(crate) trace: Trace,
    /// The rows as the trace showed them last.
    pub(crate) rows: Mutex<BTreeMap<String, String>>,
    /// The sum of the steps of the database's clock so far.
    step_ms: Arc<AtomicI64>,
    /// The highest value that this sum has had.
    step_ms_max: AtomicI64,
    /// Whether faults happen at random.
    faulty: AtomicBool,
    rng: Mutex<SeededRng>,
    database: Mutex<Database>,
    truth: Mutex<Truth>,
    pub(crate) pumps: Mutex<PumpTruth>,
}

/// Waits until that instant; for ever if there is none.
pub(crate) async fn wait_until(at: Option<std::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(crate) fn new(seed: u64, profile: Profile, keeps_lines: bool) -> Arc<Self> {
        let began_at = Instant::now();
        let step_ms = Arc::new(AtomicI64::new(0));
        let clock_step_ms = Arc::clone(&step_ms);
        let clock = move || {
            let now = BEGINNING + began_at.elapsed();
            Timestamp::from_millis(now.as_millis() + clock_step_ms.load(Ordering::Relaxed))
        };
        let store = MemStore::new(Arc::new(clock));
        let database = Database { down_until: began_at, cut_until: BTreeMap::new(), slowness: Duration::ZERO };
        Arc::new(Self {
            began_at,
            store: Arc::new(if profile.is_single_server { store.of_single_server() } else { store }),
            net: Net::new(profile.node_count, profile.executor_count),
            tracker: TaskTracker::new(),
            trace: Trace::new(keeps_lines),
            rows: Mutex::default(),
            step_ms,
            step_ms_max: AtomicI64::new(0),
            faulty: AtomicBool::new(false),
            rng: Mutex::new(SeededRng::new(seed ^ 0x51E5_7A7E)),
            database: Mutex::new(database),
            truth: Mutex::default(),
            pumps: Mutex::default(),
            profile,
        })
    }

    /// The database's clock.
    pub(crate) fn now(&self) -> Timestamp {
        let now = BEGINNING + self.began_at.elapsed();
        Timestamp::from_millis(now.as_millis() + self.step_ms.load(Ordering::Relaxed))
    }

    /// Milliseconds since the world began, regardless of what clocks show.
    pub(crate) fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.began_at.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn step_clock(&self, millis: i64) {
        let new_step_ms = self.step_ms.fetch_add(millis, Ordering::Relaxed) + millis;
        self.step_ms_max.fetch_max(new_step_ms, Ordering::Relaxed);
    }

    /// The database's clock without its steps back: a node may still take this for the current time.
    pub(crate) fn latest_now(&self) -> Timestamp {
        let now = BEGINNING + self.began_at.elapsed();
        Timestamp::from_millis(now.as_millis() + self.step_ms_max.load(Ordering::Relaxed))
    }

    pub(crate) fn is_faulty(&self) -> bool {
        self.faulty.load(Ordering::Relaxed)
    }

    pub(crate) fn set_faulty(&self, faulty: bool) {
        self.faulty.store(faulty, Ordering::Relaxed);
    }

    pub(crate) fn rng(&self) -> MutexGuard<'_, SeededRng> {
        lock(&self.rng)
    }

    pub(crate) fn truth(&self) -> MutexGuard<'_, Truth> {
        lock(&self.truth)
    }

    pub(crate) fn database(&self) -> MutexGuard<'_, Database> {
        lock(&self.database)
    }

    /// Records an event, for the reader of a trace and for the proof that a seed always does the same.
    pub(crate) fn record(&self, event: &'static str, number: i64, text: impl FnOnce() -> String) {
        self.trace.record(self.elapsed_ms(), event, number, text);
    }

    /// Passes a seam, which is a place at which a process may be stopped or die.
    pub(crate) async fn pass_seam(self: &Arc<Self>, process: &Arc<Process>, place: &'static str) {
        if !self.is_faulty() {
            return;
        }
        let (dies, stops, length) = self.draw_seam();
        if dies {
            self.record("dies at a seam", 0, || place.to_owned());
            process.kill();
            tokio::task::yield_now().await;
        } else if stops {
            self.record("stops at a seam", i64::try_from(length.as_millis()).unwrap_or(0), || place.to_owned());
            self.pause_for(process, length);
            tokio::task::yield_now().await;
        }
    }

    fn draw_seam(&self) -> (bool, bool, Duration) {
        let mut rng = self.rng();
        let dies = rng.happens(self.profile.seam_kill_ppm);
        let stops = !dies && rng.happens(self.profile.seam_stop_ppm);
        (dies, stops, rng.millis(50, self.profile.stop_ms_max))
    }

    /// SIGSTOP now, SIGCONT later.
    pub(crate) fn pause_for(&self, process: &Arc<Process>, length: Duration) {
        if process.stop() {
            let process = Arc::clone(process);
            self.tracker.spawn(async move {
                tokio::time::sleep(length).await;
                process.resume();
            });
        }
    }
}
