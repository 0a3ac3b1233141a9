//! What a seed draws of the world before it begins. Not every kind of fault is in every seed: where all happen at once,
//! each hides the others.

use rondel_admin::EngineConfig;
use std::time::Duration;

use crate::chance::Chance;

#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) node_count: usize,
    pub(crate) executor_count: usize,
    pub(crate) app_count: usize,
    pub(crate) job_count: usize,
    /// How long faults happen.
    pub(crate) faulty_ms: u64,
    /// Faults that are planned beforehand, of any kind that the seed allows.
    pub(crate) fault_count: usize,
    pub(crate) node_faults: bool,
    pub(crate) executor_faults: bool,
    pub(crate) net_faults: bool,
    pub(crate) database_faults: bool,
    pub(crate) clock_faults: bool,
    /// Whether the database's clock steps back, too.
    pub(crate) steps_back: bool,
    pub(crate) edits: bool,
    pub(crate) seam_stop_ppm: u64,
    pub(crate) seam_kill_ppm: u64,
    pub(crate) stop_ms_max: u64,
    pub(crate) lost_answer_ppm: u64,
    pub(crate) store_error_ppm: u64,
    pub(crate) duplicate_ppm: u64,
    pub(crate) delay_ppm: u64,
    /// How wrong a node's clock goes, at most.
    pub(crate) drift_ppm: u64,
    /// How many runs each executor takes at once; drawn where it is not set.
    pub(crate) slots: Option<u32>,
    /// Draws the `on_silence` of jobs and the outages of all servers; a separate draw, so that earlier seeds keep their
    /// other draws. `None` draws neither.
    pub(crate) silences: Option<u64>,
    /// How many rows a page has where a server looks for open runs.
    pub(crate) page: u32,
}

impl Profile {
    pub(crate) fn draw(chance: &mut Chance) -> Self {
        let mut has = |share: u64| chance.happens(share * 10_000);
        let (node_faults, executor_faults, net_faults) = (has(65), has(55), has(55));
        let (database_faults, clock_faults, steps_back, edits) = (has(40), has(20), has(30), has(40));
        let (stops, kills, lost, errors) = (has(50), has(35), has(45), has(30));
        let (duplicates, delays, is_calm) = (has(50), has(50), has(4));
        let ppm = |on: bool, ppm: u64| if on && !is_calm { ppm } else { 0 };
        Self {
            node_count: usize::try_from(chance.between(1, 3)).unwrap_or(1),
            executor_count: usize::try_from(chance.between(1, 4)).unwrap_or(1),
            app_count: usize::try_from(chance.between(1, 2)).unwrap_or(1),
            job_count: usize::try_from(chance.between(2, 7)).unwrap_or(1),
            faulty_ms: chance.between(8_000, 22_000),
            fault_count: if is_calm { 0 } else { chance.index(9) },
            node_faults,
            executor_faults,
            net_faults,
            database_faults,
            clock_faults,
            steps_back,
            edits,
            seam_stop_ppm: ppm(stops, chance.between(200, 3_000)),
            seam_kill_ppm: ppm(kills, chance.between(100, 1_000)),
            stop_ms_max: chance.between(500, 8_000),
            lost_answer_ppm: ppm(lost, chance.between(1_000, 40_000)),
            store_error_ppm: ppm(errors, chance.between(1_000, 30_000)),
            duplicate_ppm: ppm(duplicates, chance.between(5_000, 150_000)),
            delay_ppm: ppm(delays, chance.between(5_000, 100_000)),
            drift_ppm: if clock_faults { 200 } else { 20 },
            slots: None,
            silences: None,
            page: u32::try_from(chance.between(2, 3)).unwrap_or(2),
        }
    }

    /// A world in which nothing fails by itself.
    pub(crate) const fn steady(executor_count: usize, slots: u32) -> Self {
        Self {
            node_count: 1,
            executor_count,
            app_count: 1,
            job_count: 0,
            faulty_ms: 0,
            fault_count: 0,
            node_faults: false,
            executor_faults: false,
            net_faults: false,
            database_faults: false,
            clock_faults: false,
            steps_back: false,
            edits: false,
            seam_stop_ppm: 0,
            seam_kill_ppm: 0,
            stop_ms_max: 0,
            lost_answer_ppm: 0,
            store_error_ppm: 0,
            duplicate_ppm: 0,
            delay_ppm: 0,
            drift_ppm: 0,
            slots: Some(slots),
            silences: None,
            page: 1_000,
        }
    }

    /// Whether servers go on and hear everybody, so that a run that begins late has waited for executors alone.
    pub(crate) const fn has_steady_servers(&self) -> bool {
        let has_faults = self.node_faults || self.net_faults || self.database_faults || self.clock_faults;
        let seams = self.seam_stop_ppm + self.seam_kill_ppm;
        !has_faults && seams + self.lost_answer_ppm + self.store_error_ppm + self.delay_ppm == 0
    }
}

/// The engine's numbers, shorter than the usual ones and in the same order, so that a second holds more of its life.
pub(crate) fn engine_config(node_name: String, page: u32) -> EngineConfig {
    EngineConfig {
        node_name,
        lease: Duration::from_secs(2),
        beat: Duration::from_millis(500),
        heartbeat: Duration::from_millis(500),
        silence: Duration::from_secs(3),
        lost_after: Duration::from_secs(6),
        continue_max: Duration::from_secs(10),
        // A simulated database answers within milliseconds: as if it took half a second.
        whole_backlog_share: 200,
        adopt_page: page,
        sweep_page: page,
        sweep_pages: 2,
        ..EngineConfig::default()
    }
}

/// How long a handler that was asked to stop may go on.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
