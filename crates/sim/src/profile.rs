//! The properties of the world that a seed draws before it begins. Not every seed has every kind of fault: if all
//! kinds happened together, they would hide one another.

use rondel_admin::EngineConfig;
use std::time::Duration;

use crate::rng::SeededRng;

#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) node_count: usize,
    pub(crate) executor_count: usize,
    pub(crate) app_count: usize,
    pub(crate) job_count: usize,
    /// How long faults happen.
    pub(crate) faulty_ms: u64,
    /// How many faults are planned beforehand, of any kind that the seed allows.
    pub(crate) fault_count: usize,
    pub(crate) has_node_faults: bool,
    pub(crate) has_executor_faults: bool,
    pub(crate) has_net_faults: bool,
    pub(crate) has_database_faults: bool,
    pub(crate) has_clock_faults: bool,
    /// Whether the database's clock also steps back.
    pub(crate) steps_back: bool,
    /// Whether users edit, pause, cancel and start pump jobs while faults happen.
    pub(crate) has_edits: bool,
    /// At how many of a million seams a node is stopped for a while.
    pub(crate) seam_stop_ppm: u64,
    /// At how many of a million seams a node dies.
    pub(crate) seam_kill_ppm: u64,
    /// The longest stop at a seam, in milliseconds.
    pub(crate) stop_ms_max: u64,
    /// How many of a million calls of the store are made, but lose their answer.
    pub(crate) lost_answer_ppm: u64,
    /// How many of a million calls of the store fail before they are made.
    pub(crate) store_error_ppm: u64,
    /// How many of a million messages arrive twice.
    pub(crate) duplicate_ppm: u64,
    /// How many of a million messages are late, by up to 800 ms.
    pub(crate) delay_ppm: u64,
    /// The largest error of the pace of a node's clock, in millionths.
    pub(crate) drift_ppm: u64,
    /// How many runs each executor takes at the same time; drawn if it is not set.
    pub(crate) slots: Option<u32>,
    /// The seed for the `on_silence` of jobs and for the outages of all servers. It is a separate draw, so that earlier
    /// seeds keep their other draws. `None` draws neither.
    pub(crate) silence_seed: Option<u64>,
    /// The seed for the jobs in shadow mode, a separate draw like `silence_seed`. `None` in most seeds.
    pub(crate) shadow_seed: Option<u64>,
    /// The seed for the limits that jobs share, a separate draw like `silence_seed`. `None` in seeds in which few jobs have one.
    pub(crate) limit_seed: Option<u64>,
    /// Whether executors take triggers ahead of their instants.
    pub(crate) sends_ahead: bool,
    /// Whether the database is for one server. After its death, the server restarts soon, and takes over its old
    /// lease immediately.
    pub(crate) is_single_server: bool,
    /// How many rows a page has when a server looks for open runs.
    pub(crate) page_size: u32,
    pub(crate) bounds: Bounds,
}

/// Seeds above this one draw small bounds.
const SMALL_BOUNDS_ABOVE: u64 = 100_000_000;
/// Seeds above this one have executors that take triggers ahead of their instants.
pub(crate) const AHEAD_ABOVE: u64 = 300_000_000;
/// Seeds above this one have one server, on a database that is made for one server.
pub(crate) const SINGLE_ABOVE: u64 = 400_000_000;
/// Seeds above this one have several servers again, and most jobs share limits.
pub(crate) const LIMITED_ABOVE: u64 = 500_000_000;

/// Settings of the engine that bound its pages and budgets, under their names there: two, three, or their usual values.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) claim_page: u32,
    pub(crate) claim_budget: u32,
    pub(crate) backlog_budget: u32,
    pub(crate) claim_jobs: usize,
    pub(crate) claim_runs: usize,
    pub(crate) waiting_page: u32,
    pub(crate) dense_from: u32,
    pub(crate) claim_pace: u32,
    pub(crate) refused_kinds_max: usize,
    pub(crate) seek_jobs: usize,
    pub(crate) take_up_looks: usize,
    pub(crate) take_up_jobs: usize,
    pub(crate) take_up_page: u32,
    pub(crate) open_runs_max: usize,
}

impl Bounds {
    /// The bounds of a seed. Earlier seeds keep the usual bounds, with which they show certain known faults.
    pub(crate) fn of(seed: u64) -> Self {
        if seed > SMALL_BOUNDS_ABOVE { Self::draw(&mut SeededRng::new(seed)) } else { Self::usual() }
    }

    pub(crate) fn draw(rng: &mut SeededRng) -> Self {
        let usual = Self::usual();
        let mut pick = |usual: u32| *rng.pick(&[2, 3, usual]);
        let size = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        Self {
            claim_page: pick(usual.claim_page),
            claim_budget: pick(usual.claim_budget),
            backlog_budget: pick(usual.backlog_budget),
            claim_jobs: size(pick(500)),
            claim_runs: size(pick(1_000)),
            waiting_page: pick(usual.waiting_page),
            dense_from: pick(usual.dense_from),
            claim_pace: pick(usual.claim_pace),
            refused_kinds_max: size(pick(200)),
            seek_jobs: size(pick(500)),
            take_up_looks: size(pick(10_000)),
            take_up_jobs: size(pick(100)),
            take_up_page: pick(usual.take_up_page),
            // Enough for one run of each job and for the runs that those wait for. With a smaller bound, memory might
            // become free only when waiting runs expire.
            open_runs_max: size(*rng.pick(&[30, 60, 200_000])),
        }
    }

    /// The bounds of a server whose configuration sets none of them.
    pub(crate) fn usual() -> Self {
        let config = EngineConfig::default();
        Self {
            claim_page: config.claim_page,
            claim_budget: config.claim_budget,
            backlog_budget: config.backlog_budget,
            claim_jobs: config.claim_jobs,
            claim_runs: config.claim_runs,
            waiting_page: config.waiting_page,
            dense_from: config.dense_from,
            claim_pace: config.claim_pace,
            refused_kinds_max: config.refused_kinds_max,
            seek_jobs: config.seek_jobs,
            take_up_looks: config.take_up_looks,
            take_up_jobs: config.take_up_jobs,
            take_up_page: config.take_up_page,
            open_runs_max: config.open_runs_max,
        }
    }
}

impl Profile {
    pub(crate) fn draw(rng: &mut SeededRng) -> Self {
        let mut has = |share: u64| rng.happens(share * 10_000);
        let (has_node_faults, has_executor_faults, has_net_faults) = (has(65), has(55), has(55));
        let (has_database_faults, has_clock_faults, steps_back, has_edits) = (has(40), has(20), has(30), has(40));
        let (stops, kills, lost, errors) = (has(50), has(35), has(45), has(30));
        let (duplicates, delays, is_calm) = (has(50), has(50), has(4));
        let ppm = |on: bool, ppm: u64| if on && !is_calm { ppm } else { 0 };
        Self {
            node_count: usize::try_from(rng.between(1, 3)).unwrap_or(1),
            executor_count: usize::try_from(rng.between(1, 4)).unwrap_or(1),
            app_count: usize::try_from(rng.between(1, 2)).unwrap_or(1),
            job_count: usize::try_from(rng.between(2, 7)).unwrap_or(1),
            faulty_ms: rng.between(8_000, 22_000),
            fault_count: if is_calm { 0 } else { rng.index(9) },
            has_node_faults,
            has_executor_faults,
            has_net_faults,
            has_database_faults,
            has_clock_faults,
            steps_back,
            has_edits,
            seam_stop_ppm: ppm(stops, rng.between(200, 3_000)),
            seam_kill_ppm: ppm(kills, rng.between(100, 1_000)),
            stop_ms_max: rng.between(500, 8_000),
            lost_answer_ppm: ppm(lost, rng.between(1_000, 40_000)),
            store_error_ppm: ppm(errors, rng.between(1_000, 30_000)),
            duplicate_ppm: ppm(duplicates, rng.between(5_000, 150_000)),
            delay_ppm: ppm(delays, rng.between(5_000, 100_000)),
            drift_ppm: if has_clock_faults { 200 } else { 20 },
            slots: None,
            silence_seed: None,
            shadow_seed: None,
            limit_seed: None,
            sends_ahead: false,
            is_single_server: false,
            page_size: u32::try_from(rng.between(2, 3)).unwrap_or(2),
            bounds: Bounds::usual(),
        }
    }

    /// A world without random faults.
    pub(crate) fn steady(executor_count: usize, slots: u32) -> Self {
        Self {
            node_count: 1,
            executor_count,
            app_count: 1,
            job_count: 0,
            faulty_ms: 0,
            fault_count: 0,
            has_node_faults: false,
            has_executor_faults: false,
            has_net_faults: false,
            has_database_faults: false,
            has_clock_faults: false,
            steps_back: false,
            has_edits: false,
            seam_stop_ppm: 0,
            seam_kill_ppm: 0,
            stop_ms_max: 0,
            lost_answer_ppm: 0,
            store_error_ppm: 0,
            duplicate_ppm: 0,
            delay_ppm: 0,
            drift_ppm: 0,
            slots: Some(slots),
            silence_seed: None,
            shadow_seed: None,
            limit_seed: None,
            sends_ahead: false,
            is_single_server: false,
            page_size: 1_000,
            bounds: Bounds::usual(),
        }
    }

    /// Whether servers run without interruption and hear all executors, so that a run that begins late has only waited
    /// for executors.
    pub(crate) const fn has_steady_servers(&self) -> bool {
        let has_faults =
            self.has_node_faults || self.has_net_faults || self.has_database_faults || self.has_clock_faults;
        let seams = self.seam_stop_ppm + self.seam_kill_ppm;
        !has_faults && seams + self.lost_answer_ppm + self.store_error_ppm + self.delay_ppm == 0
    }
}

/// The engine's settings. Their times are shorter than the usual ones, so that more happens in a second, but their order
/// by length is the same.
pub(crate) fn engine_config(node_name: String, profile: &Profile) -> EngineConfig {
    let (page_size, bounds) = (profile.page_size, &profile.bounds);
    EngineConfig {
        claim_page: bounds.claim_page,
        claim_budget: bounds.claim_budget,
        backlog_budget: bounds.backlog_budget,
        claim_jobs: bounds.claim_jobs,
        claim_runs: bounds.claim_runs,
        waiting_page: bounds.waiting_page,
        dense_from: bounds.dense_from,
        claim_pace: bounds.claim_pace,
        refused_kinds_max: bounds.refused_kinds_max,
        seek_jobs: bounds.seek_jobs,
        take_up_looks: bounds.take_up_looks,
        take_up_jobs: bounds.take_up_jobs,
        take_up_page: bounds.take_up_page,
        open_runs_max: bounds.open_runs_max,
        node_name,
        lease: LEASE,
        beat: Duration::from_millis(500),
        heartbeat: Duration::from_millis(500),
        silence: Duration::from_secs(3),
        lost_after: Duration::from_secs(6),
        continue_max: Duration::from_secs(10),
        // A simulated database answers within milliseconds. With this share, the wait is as long as if the database
        // took half a second.
        whole_backlog_wait_factor: 200,
        // Shorter than the delay that the checker allows in a chain of runs.
        whole_backlog_within: Duration::from_secs(1),
        adopt_page: page_size,
        adopt_jobs_max: page_size,
        stray_page: page_size,
        stray_pages: 2,
        ..EngineConfig::default()
    }
}

/// How long a lease is.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// How long a handler that was asked to stop may continue.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
