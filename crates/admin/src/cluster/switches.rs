//! The switches of apps and executors, as the last beat saw them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use rondel_core::AppId;
use rondel_core::homes::Switch;
use rondel_store::cluster::Switches;

#[derive(Debug, Default)]
pub(crate) struct SwitchBoard {
    /// Rises with each change; 0 until the switches have been read once.
    revision: AtomicU64,
    switches: RwLock<Switches>,
}

impl SwitchBoard {
    /// Stores the switches that were read. Returns whether they differ from the previous switches, or are the first that were read.
    pub(crate) fn set(&self, switches: Switches) -> bool {
        let mut current_switches = self.switches.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = *current_switches != switches || !self.is_known();
        if is_new {
            *current_switches = switches;
            self.revision.fetch_add(1, Ordering::Release);
        }
        is_new
    }

    /// Whether the switches have been read since this process started.
    pub(crate) fn is_known(&self) -> bool {
        self.revision() > 0
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    pub(crate) fn of_app(&self, app: AppId) -> Switch {
        self.switches.read().unwrap_or_else(PoisonError::into_inner).of_app(app)
    }

    pub(crate) fn of_executor(&self, app: AppId, name: &str) -> Switch {
        let switches = self.switches.read().unwrap_or_else(PoisonError::into_inner);
        switches.of_executor(app, name).map_or(Switch::Active, |executor| executor.switch)
    }

    /// The executors whose switch is not active.
    pub(crate) fn executors(&self) -> BTreeMap<(AppId, String), Switch> {
        let switches = self.switches.read().unwrap_or_else(PoisonError::into_inner);
        switches.executors.iter().map(|executor| ((executor.app, executor.name.clone()), executor.switch)).collect()
    }

    pub(crate) fn stopped_apps(&self) -> Vec<AppId> {
        let switches = self.switches.read().unwrap_or_else(PoisonError::into_inner);
        switches.apps.iter().filter(|(_, switch)| *switch == Switch::Stopped).map(|(app, _)| *app).collect()
    }
}
